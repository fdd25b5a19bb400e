package controllog

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Without exceptions: a producer with a SendTimeout would leave a goroutine that sleeps.
	goleak.VerifyTestMain(m)
}
