package sim

import (
	"testing"
	"time"

	"github.com/ringfence/router/internal/ownership"
)

// TestAnchorAheadTrimsNothing: a member moves an anchor that it read before the topic was deleted and began anew in lower ledgers. Only an anchor
// of the present topic trims (found by seed 993000033 of 26 November 2026, where it did).
func TestAnchorAheadTrimsNothing(t *testing.T) {
	w := newWorld(1, params{partitions: 1})
	beat := func(seq uint64) ownership.Record {
		return ownership.Record{LogVersion: ownership.LogVersionMax, Group: "g", Inc: ownership.Incarnation{1}, Body: &ownership.Beat{Seq: seq}}
	}
	l := w.log
	l.delete(ownership.Position{Ledger: 5})
	for _, to := range []ownership.Position{{Ledger: 40, Entry: 80}, {Ledger: 5, Entry: 1}} {
		l.land(beat(1), 0)
		l.moveAnchor(to)
	}
	first := l.records[0].at
	l.rollover()
	l.land(beat(2), 0)
	l.rollover()
	if len(l.records) == 0 || l.records[0].at != (ownership.Position{Ledger: 5}) || first != l.records[0].at {
		t.Errorf("the log begins at %v, want 5:0", l.records)
	}
	l.moveAnchor(l.newest())
	l.land(beat(3), 0)
	if l.rollover(); l.records[0].at.Ledger == 5 {
		t.Error("an anchor of the present topic trims nothing")
	}
}

// TestATruncatedLogLosesPromises: an operator deletes the takes of covered reservations, and a Genesis follows whose author reads what is left. It
// gives their keys to others, as after the deletion of the topic; so their holders' work proves nothing (found by seed 1478729562 of 28 November 2026).
func TestATruncatedLogLosesPromises(t *testing.T) {
	lost := 0
	for seed := range uint64(12) {
		r := runScene(seed, 2*time.Minute, false, func(w *world) {
			w.p.covering, w.p.publishEvery = true, time.Second
			w.script = func(w *world) {
				w.runUntil(w.now + 5*time.Second)
				w.log.truncate()
				w.runUntil(w.now + 2*time.Second)
				if len(w.live) > 0 {
					w.injectGenesis(w.live[0])
				}
				w.runUntil(w.now + 10*time.Second)
			}
		})
		if r.Failure != "" {
			t.Errorf("seed %d: %s", seed, r.Failure)
		}
		lost += r.Stats["reservation_promise_lost_with_its_log"]
	}
	if lost == 0 {
		t.Error("no promise was lost: these runs prove nothing")
	}
}
