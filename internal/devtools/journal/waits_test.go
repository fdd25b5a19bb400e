package journal

import (
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

func TestMeasureWaits(t *testing.T) {
	s := newScript(t)
	a, b := s.process("a"), s.process("b")
	sent := map[string]clock.Instant{}
	published := func(at int, eventID string) string { sent[eventID] = ms(at); return eventID }

	a.handle(10, 20, published(5, "1"), "waits", 1)
	a.handle(22, 24, published(5, "2"), "sleeps", 1)
	a.handle(25, 28, published(5, "3"), "busy", 1)
	b.handle(30, 40, published(5, "4"), "neighbour", 2)
	// The router beside a is killed at 100. Its keys come back on b from 1200 on.
	b.handle(150, 160, published(145, "5"), "neighbour", 2)
	b.handle(1200, 1210, published(50, "6"), "waits", 7)
	b.handle(1300, 1310, published(400, "7"), "busy", 7)
	b.handle(9000, 9010, published(8990, "8"), "sleeps", 7) // nothing made it wait
	// Later a owns two of them again: one event waited for the end of the handling on
	// b and 25 ms more, the other was published 5 ms before.
	a.handle(9035, 9040, published(8900, "9"), "sleeps", 9)
	a.handle(9505, 9510, published(9500, "10"), "busy", 9)

	w, err := MeasureWaits([]string{a.path, b.path}, []Kill{{Path: a.path, At: ms(100)}},
		func(eventID string) (clock.Instant, bool) { at, ok := sent[eventID]; return at, ok })
	if err != nil {
		t.Fatal(err)
	}
	if got := w.Takeovers[0]; got.Count != 2 || got.Max != 1200*time.Millisecond || got.P50 < 1100*time.Millisecond {
		t.Errorf("takeover = %+v, want the two keys with events, after 1.1 s and 1.2 s", got)
	}
	if got := w.Handoff; got.Count != 2 || got.Max != 25*time.Millisecond {
		t.Errorf("handoff = %+v, want two keys, of which one waited for 25 ms", got)
	}
}

func TestMeasureWaitsWithoutMoves(t *testing.T) {
	s := newScript(t)
	a := s.process("a")
	a.handle(10, 20, "1", "key", 1)
	a.handle(200, 210, "2", "key", 1)
	w, err := MeasureWaits([]string{a.path}, []Kill{{Path: a.path, At: ms(100)}}, func(string) (clock.Instant, bool) { return 0, false })
	if err != nil {
		t.Fatal(err)
	}
	if w.Takeovers[0].Count != 0 || w.Handoff.Count != 0 {
		t.Errorf("waits = %+v, want none: the key stayed where it was", w)
	}
}
