package sim

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/ownership"
)

// An owner that is cut off from the control log alone, and not from the other members, keeps no event for longer than a takeover lasts: its consumer nodes send
// what it has not answered to the next owner.
func TestAnOwnerCutFromTheLogKeepsNoEvents(t *testing.T) {
	w := newWorld(1, params{partitions: 6})
	w.draw()
	w.p.timing = ownership.DefaultTiming()
	w.p.mixed, w.p.skew, w.p.olderReleases, w.p.slow, w.p.publishEvery = false, false, false, 0.4, 100*time.Millisecond
	w.p.late, w.p.duplicate, w.p.lostAck, w.p.checkFails, w.p.preempt = 0, 0, 0, 0, 0
	w.p.appendMin, w.p.appendMax, w.p.readMin, w.p.readMax = time.Millisecond, 10*time.Millisecond, 500*time.Microsecond, 8*time.Millisecond
	for range 3 {
		w.after(w.between(0, time.Second), w.newPod(fmt.Sprintf("n%d", len(w.pods))).up)
	}
	w.publishing = true
	w.after(0, w.publishOn)
	w.runUntil(15 * time.Second)

	at := func(owner *member) (events int) { // of other members
		for _, m := range w.live {
			if m != owner {
				events += m.table.Unanswered(forward.Peer(owner.inc))
			}
		}
		return events
	}
	owner := slices.MaxFunc(w.live, func(a, b *member) int { return cmp.Compare(at(a), at(b)) })
	const cut = time.Minute
	end := w.now + cut
	owner.feed.cut = end
	owner.touch(cut)
	w.runUntil(w.now + 1900*time.Millisecond) // its lease ends, and it is still a member
	if at(owner) == 0 {
		t.Fatal("it has no events: this run proves nothing")
	}
	for _, m := range w.live {
		if c := m.conn(owner.inc); m != owner && (c == nil || c.link == nil) {
			t.Fatalf("%s has no stream to it: this run proves nothing", m)
		}
	}
	w.runUntil(w.now + 1600*time.Millisecond) // before any of them is spilled
	if n := at(owner); n > 0 {
		t.Errorf("it has %d events, 3.5 s after it was cut off", n)
	}
	if w.stats["taken_over_unanswered"] == 0 {
		t.Error("nothing was sent to the next owner")
	}
	w.runUntil(end)
	w.rest()
	if w.failure != "" {
		t.Fatal(w.failure)
	}
}
