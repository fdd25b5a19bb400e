package mailbox

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/clock"
	"github.com/ringfence/router/internal/event"
)

func entry(n int) event.MessageID { return event.MessageID{Ledger: 7, Entry: int64(n)} }

// testWindow is a window with an index of its own, and the histories of its partitions.
type testWindow struct {
	window
	histories []history
}

func newTestWindow(partitions, countMax int, ageMax time.Duration) *testWindow {
	return &testWindow{newWindow(newIndex(), countMax*recordBytes, ageMax), make([]history, partitions)}
}

func (w *testWindow) has(id event.MessageID) bool {
	return w.known.find(hashOf(id), func(ref uint32) bool { return w.isID(ref, id) }) != 0
}

func (w *testWindow) add(now clock.Instant, part int, id event.MessageID) {
	if !w.has(id) {
		w.known.add(hashOf(id), w.window.add(now, &w.histories[part], id, hashOf(id)))
	}
}

func (w *testWindow) ids(part int) []event.MessageID { return w.window.ids(w.histories[part]) }

func TestWindowForgetsTheOldestOfAllPartitionsFirst(t *testing.T) {
	w := newTestWindow(2, 3, time.Hour)
	for n := range 4 {
		w.add(clock.Instant(n), n%2, entry(n))
	}
	if w.has(entry(0)) || !w.has(entry(1)) || !w.has(entry(2)) || !w.has(entry(3)) || w.n != 3 {
		t.Errorf("partitions hold %v and %v, want all but entry 0", w.ids(0), w.ids(1))
	}
}

func TestWindowAges(t *testing.T) {
	w := newTestWindow(1, 100, 16*time.Second)
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
		t.Errorf("after 16 s it holds %v, want entry 1 alone", w.ids(0))
	}
}

// The window against a slice, with partitions that are dropped now and then.
func TestWindowMatchesASlice(t *testing.T) {
	const partitions, countMax = 3, 100
	rapid.Check(t, func(t *rapid.T) {
		w := newTestWindow(partitions, countMax, time.Minute)
		type done struct {
			id      event.MessageID
			part    int
			dropped bool
		}
		var want []done
		for range 500 {
			id, part := entry(rapid.IntRange(0, 300).Draw(t, "id")), rapid.IntRange(0, partitions-1).Draw(t, "part")
			if rapid.IntRange(0, 29).Draw(t, "drop") == 29 {
				w.drop(&w.histories[part])
				for i := range want {
					want[i].dropped = want[i].dropped || want[i].part == part
				}
			}
			w.add(0, part, id)
			if !slices.ContainsFunc(want, func(d done) bool { return d.id == id && !d.dropped }) {
				want = append(want, done{id: id, part: part})
			}
			if len(want) > countMax {
				want = want[1:]
			}
			var got, wantIDs []event.MessageID
			for part := range partitions {
				got = append(got, w.ids(part)...)
				for _, d := range want {
					if d.part == part && !d.dropped {
						wantIDs = append(wantIDs, d.id)
					}
				}
			}
			if !slices.Equal(got, wantIDs) || w.n != len(wantIDs) || w.known.n != w.n {
				t.Fatalf("window holds %v, want %v", got, wantIDs)
			}
			if w.has(id) != slices.Contains(wantIDs, id) || w.has(entry(-1)) {
				t.Fatalf("has(%v) = %v", id, w.has(id))
			}
			if len(w.records) > countMax {
				t.Fatalf("%d records for %d ids", len(w.records), countMax)
			}
		}
	})
}
