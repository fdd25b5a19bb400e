package mailbox

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// entry returns different ids for different numbers, thirty of each batch.
func entry(n int) event.MessageID {
	return event.MessageID{Ledger: 7, Entry: int64(n / 30), Batch: int32(n%30) * 9}
}

// testWindow is a window with spans of its own.
type testWindow struct{ window }

func newTestWindow(countMax int, ageMax time.Duration) *testWindow {
	return &testWindow{newWindow(newSpans(), countMax*recordBytes, ageMax)}
}

func (w *testWindow) has(id event.MessageID) bool {
	s := w.spans.find(hashOf(id), id)
	return s != nil && s.done.has(bitOf(id))
}

func (w *testWindow) add(now clock.Instant, p ring.Partition, id event.MessageID) {
	if w.has(id) {
		return
	}
	s := w.spans.find(hashOf(id), id)
	if s == nil {
		s = w.spans.add(hashOf(id), id)
	}
	w.window.add(now, p, s, bitOf(id))
}

// holds returns the content of w, oldest first.
func (w *testWindow) holds() (held []event.Finished) {
	for serial := w.first; serial < w.end; serial++ {
		if r := w.at(serial); !r.is(recordDropped) {
			held = append(held, w.finished(r))
		}
	}
	return held
}

func TestWindowForgetsTheOldestOfAllPartitionsFirst(t *testing.T) {
	w := newTestWindow(3, time.Hour)
	for n := range 4 {
		w.add(clock.Instant(n), ring.Partition(n%2), entry(n))
	}
	if w.has(entry(0)) || !w.has(entry(1)) || !w.has(entry(2)) || !w.has(entry(3)) || w.n != 3 {
		t.Errorf("it holds %v, want all but entry 0", w.holds())
	}
}

func TestWindowAges(t *testing.T) {
	w := newTestWindow(100, 16*time.Second)
	if got := w.next(); got != clock.Forever {
		t.Errorf("an empty window is due at %d", got)
	}
	w.add(0, 0, entry(0))
	w.add(clock.Instant(time.Second), 0, entry(1))
	if got, want := w.next(), clock.Instant(17*time.Second); got != want {
		t.Errorf("due at %d, want %d", got, want)
	}
	w.expire(clock.Instant(16*time.Second) - 1)
	if !w.has(entry(0)) {
		t.Error("forgot too early")
	}
	w.expire(clock.Instant(16 * time.Second))
	if w.has(entry(0)) || !w.has(entry(1)) {
		t.Errorf("after 16 s it holds %v, want entry 1 alone", w.holds())
	}
}

// The window against a slice, of which some partitions are taken now and then, in parts.
func TestWindowMatchesASlice(t *testing.T) {
	const partitions, countMax = 3, 100
	rapid.Check(t, func(t *rapid.T) {
		w := newTestWindow(countMax, time.Minute)
		type done struct {
			event.Finished
			dropped bool
		}
		var want []done
		swept := 0 // want before this one is still to be looked at
		young := ever
		for range 500 {
			id, part := entry(rapid.IntRange(0, 300).Draw(t, "id")), ring.Partition(rapid.IntRange(0, partitions-1).Draw(t, "part"))
			switch rapid.IntRange(0, 29).Draw(t, "sweep") {
			case 28:
				w.beginSweep(clock.Instant(youngMax))
				swept, young = len(want), 0
			case 29:
				idsMax := rapid.IntRange(0, countMax).Draw(t, "ids")
				got, more := w.sweepSome(idsMax, func(_ uint64, p ring.Partition) bool { return p == part }, nil)
				var taken []event.Finished
				for ; swept > 0 && len(taken) < idsMax; swept-- {
					if d := &want[swept-1]; d.Partition == part && !d.dropped && !d.At.Before(young) {
						d.dropped = true
						taken = append(taken, d.Finished)
					}
				}
				if !slices.Equal(got, taken) {
					t.Fatalf("took %v, want %v", got, taken)
				}
				isLeft := func(d done) bool { return !d.dropped }
				if !slices.ContainsFunc(want[:swept], isLeft) && young != ever {
					swept, young = len(want), ever
				}
				if slices.ContainsFunc(want[:swept], isLeft) && !more {
					t.Fatalf("nothing is left to look at, want %v", want[:swept])
				}
			}
			at := clock.Instant(rapid.IntRange(-4, 4).Draw(t, "at")) // of the clock of a machine that has just started
			w.add(at, part, id)
			if !slices.ContainsFunc(want, func(d done) bool { return d.ID == id && !d.dropped }) {
				want = append(want, done{Finished: event.Finished{Partition: part, ID: id, At: at}})
			}
			if len(want) > countMax {
				want = want[1:]
				swept = max(0, swept-1)
			}
			var held []event.Finished
			for _, d := range want {
				if !d.dropped {
					held = append(held, d.Finished)
				}
			}
			if got := w.holds(); !slices.Equal(got, held) || w.n != len(held) {
				t.Fatalf("window holds %v, want %v", got, held)
			}
			if w.has(id) != slices.ContainsFunc(held, func(d event.Finished) bool { return d.ID == id }) || w.has(entry(-1)) {
				t.Fatalf("has(%v) = %v", id, w.has(id))
			}
			covered := map[event.MessageID]bool{}
			for _, d := range held {
				covered[event.MessageID{Ledger: d.ID.Ledger, Entry: d.ID.Entry, Batch: partOf(d.ID)}] = true
			}
			if got := w.spans.table.len(); got != len(covered) {
				t.Fatalf("%d spans, want %d", got, len(covered))
			}
			if len(w.records) > countMax {
				t.Fatalf("%d records for %d ids", len(w.records), countMax)
			}
		}
	})
}

// However little of a long window leaves, no look at it takes long.
func TestSweepIsBounded(t *testing.T) {
	w := newTestWindow(3*sweepMax, time.Hour)
	w.add(0, 1, entry(-1))
	for n := range 2 * sweepMax {
		w.add(0, 0, entry(n))
	}
	w.beginSweep(1) // all of it is young
	leaves := func(_ uint64, p ring.Partition) bool { return p == 1 }
	for call := range 3 {
		got, more := w.sweepSome(10, leaves, nil)
		if want := call == 2; (len(got) == 1) != want {
			t.Errorf("call %d found %v, more %t", call, got, more)
		}
	}
}
