//go:build !linux

package exchange

import (
	"crypto/rand"

	"github.com/ringfence/router/internal/audit"
)

// readClockID names a clock that no other process reads.
func readClockID() (id audit.ClockID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}
