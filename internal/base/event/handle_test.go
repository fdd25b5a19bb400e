package event_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
)

// A handle holds its slot and generation, and that of a relayed event differs from all others.
func TestHandle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slot := rapid.Int32Range(0, event.SlotsMax-1).Draw(t, "slot")
		generation := rapid.Uint64Range(1, 1<<39-1).Draw(t, "generation")
		h := event.NewHandle(generation, slot)
		if h.Slot() != slot || h.Generation() != generation || h.IsRelayed() {
			t.Fatalf("handle %d of slot %d, generation %d has slot %d, generation %d, relayed %v",
				h, slot, generation, h.Slot(), h.Generation(), h.IsRelayed())
		}
		n := rapid.Uint64Range(1, 1<<62).Draw(t, "relayed")
		if g := event.NewRelayedHandle(n); !g.IsRelayed() || g == h {
			t.Fatalf("relayed event %d has handle %d, an own event %d", n, g, h)
		}
	})
}
