package forward

import (
	"testing"

	"github.com/ringfence/router/internal/base/event"
)

// A peer that sends events to be relayed faster than their owner takes them must not fill this member's memory.
func TestRelayedEventsAreBounded(t *testing.T) {
	tt := newTableTest(t, false)
	const mib = 1 << 20
	payload := make([]byte, mib)
	for n := range 4096 {
		tt.holdEntry(n, entryOf(event.NewRelayedHandle(uint64(n+1), 0), &event.Event{Key: "k", Partition: 1, Payload: payload}))
	}
	if s := tt.Stats(); s.Bytes > 64*mib || s.Relayed != s.Bytes || s.RelayedRefused != uint64(len(tt.out.Verdicts)) {
		t.Errorf("%d relayed events of %d MiB are held, want at most 64 MiB; %d were refused, and counted as %d", s.Events, s.Bytes/mib, len(tt.out.Verdicts), s.RelayedRefused)
	}
	if len(tt.out.Verdicts) == 0 || tt.out.Verdicts[0].Kind != event.NotYet {
		t.Fatalf("%d were refused, want those beyond it as not yet: their consumer nodes send them again", len(tt.out.Verdicts))
	}
	for n := range 4096 {
		tt.Drop([]event.Handle{event.NewRelayedHandle(uint64(n+1), 0)})
	}
	if tt.relayedBytes != 0 || tt.n != 0 {
		t.Errorf("%d bytes of %d events remain", tt.relayedBytes, tt.n)
	}
}
