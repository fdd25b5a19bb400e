package event_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
)

// A handle gives back what it was made of, and no guest is taken for an own event.
func TestHandle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slot := rapid.Int32Range(0, event.SlotsMax-1).Draw(t, "slot")
		generation := rapid.Uint64Range(1, 1<<39-1).Draw(t, "generation")
		h := event.NewHandle(generation, slot)
		if h.Slot() != slot || h.Generation() != generation || h.IsGuest() {
			t.Fatalf("handle %d of slot %d, generation %d has slot %d, generation %d, guest %v",
				h, slot, generation, h.Slot(), h.Generation(), h.IsGuest())
		}
		n := rapid.Uint64Range(1, 1<<62).Draw(t, "guest")
		if g := event.NewGuestHandle(n); !g.IsGuest() || g == h {
			t.Fatalf("guest %d has handle %d, an own event %d", n, g, h)
		}
	})
}
