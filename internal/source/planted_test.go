//go:build planted

package source

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ringfence/router/internal/testing/planted"
)

// TestPlantedTimers: a copy that is acked before the next one is safe is seen, and nothing without that bug.
func TestPlantedTimers(t *testing.T) {
	if broken := hopIsAckedLast(t); broken != "" {
		t.Fatalf("without a bug: %s", broken)
	}
	defer planted.Plant(planted.None)
	planted.Plant(planted.TimerAckedEarly)
	broken := hopIsAckedLast(t)
	if broken == "" {
		t.Fatal("not found")
	}
	t.Log(broken)
}

// hopIsAckedLast brings a timer an hour before it is due, to a broker that does not confirm its next copy.
func hopIsAckedLast(t *testing.T) (broken string) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t)
		h.send(2 * HopMax)
		h.broker.answer(h.cfg.TimerTopic())
		first := h.newest(1)
		time.Sleep(HopMax)
		h.deliver(first, HopMax)
		h.newest(2)
		if n := h.acked(); n != 0 {
			broken = fmt.Sprintf("%d acks, and the broker has not confirmed the next copy", n)
		}
	})
	return broken
}
