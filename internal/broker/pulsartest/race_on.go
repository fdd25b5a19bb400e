//go:build race

package pulsartest

const raceEnabled = true
