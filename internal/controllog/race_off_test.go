//go:build !race

package controllog

const raceEnabled = false
