package controllog

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/ringfence/router/internal/broker/pulsartest"
)

func TestMain(m *testing.M) {
	// Without exceptions of our own: a producer with a SendTimeout would leave a goroutine that sleeps.
	goleak.VerifyTestMain(m, pulsartest.LeftBehind()...)
}
