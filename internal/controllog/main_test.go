package controllog

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The client's send timeout sleeps on for up to one SendTimeout behind a closed producer.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction(
		"github.com/apache/pulsar-client-go/pulsar.(*partitionProducer).failTimeoutMessages"))
}
