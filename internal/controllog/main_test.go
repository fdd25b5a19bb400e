package controllog

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/ringfence/router/internal/broker/pulsartest"
)

func TestMain(m *testing.M) {
	// With no other exceptions: a producer with a SendTimeout would leave a goroutine that sleeps.
	goleak.VerifyTestMain(m, append(pulsartest.LeftBehind(),
		// The client (v0.21.0) leaves it behind if the topic of a producer was terminated.
		goleak.IgnoreTopFunction("github.com/apache/pulsar-client-go/pulsar.(*partitionProducer).runEventsLoop.func1"))...)
}
