package signal_test

import (
	"testing"

	"github.com/ringfence/router/internal/base/signal"
)

func TestSignalsBeforeAReceiveAreOne(t *testing.T) {
	c := make(chan struct{}, 1)
	for range 3 {
		signal.Set(c)
	}
	<-c
	select {
	case <-c:
		t.Fatal("a second signal was pending")
	default:
	}
	signal.Set(c)
	if len(c) != 1 {
		t.Fatal("a signal after the receive was lost")
	}
}
