//go:build !race

package pulsartest

const raceEnabled = false
