//go:build !slewclock || !linux

package clock_test

const slewBuilt = false
