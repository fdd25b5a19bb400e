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

func TestWindowForgetsTheOldestOfAllPartitionsFirst(t *testing.T) {
	w := newWindow(2, 3*recordBytes, time.Hour)
	for n := range 4 {
		w.add(clock.Instant(n), n%2, entry(n))
	}
	if w.has(entry(0)) || !w.has(entry(1)) || !w.has(entry(2)) || !w.has(entry(3)) || w.len() != 3 {
		t.Errorf("partitions hold %v and %v, want all but entry 0", w.ids(0), w.ids(1))
	}
}

func TestWindowAges(t *testing.T) {
	w := newWindow(1, 100*recordBytes, 16*time.Second)
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
	const partitions, countMax = 3, 10
	rapid.Check(t, func(t *rapid.T) {
		w := newWindow(partitions, countMax*recordBytes, time.Minute)
		type done struct {
			id   event.MessageID
			part int
		}
		var want []done
		for range 200 {
			id, part := entry(rapid.IntRange(0, 30).Draw(t, "id")), rapid.IntRange(0, partitions-1).Draw(t, "part")
			if rapid.IntRange(0, 19).Draw(t, "drop") == 19 {
				w.drop(part)
				want = slices.DeleteFunc(want, func(d done) bool { return d.part == part })
			}
			w.add(0, part, id)
			if !slices.ContainsFunc(want, func(d done) bool { return d.id == id }) {
				want = append(want, done{id, part})
			}
			if len(want) > countMax {
				want = want[1:]
			}
			var got []event.MessageID
			for part := range partitions {
				got = append(got, w.ids(part)...)
			}
			var wantIDs []event.MessageID
			for part := range partitions {
				for _, d := range want {
					if d.part == part {
						wantIDs = append(wantIDs, d.id)
					}
				}
			}
			if !slices.Equal(got, wantIDs) || w.len() != len(want) {
				t.Fatalf("window holds %v, want %v", got, wantIDs)
			}
			for n := range 31 {
				if w.has(entry(n)) != slices.Contains(wantIDs, entry(n)) {
					t.Fatalf("has(%d) = %v", n, w.has(entry(n)))
				}
			}
			if len(w.records) > countMax+1 {
				t.Fatalf("%d records for %d ids: forgotten ones are not used again", len(w.records), countMax)
			}
		}
	})
}
