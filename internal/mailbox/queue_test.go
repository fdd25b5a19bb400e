package mailbox

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The queue against a slice. However often actors come and go behind one that stays, its
// ring is no longer than they need.
func TestQueueMatchesASlice(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue
		var want []*actor
		for range 300 {
			switch i := rapid.IntRange(-1, len(want)-1).Draw(t, "which"); {
			case i < 0 || rapid.IntRange(0, 2).Draw(t, "push") > 0:
				want = append(want, new(actor))
				q.push(want[len(want)-1])
			case i == 0:
				q.pop()
				want = want[1:]
			default:
				q.remove(want[i])
				want = slices.Delete(want, i, i+1)
			}
			var got []*actor
			for number := q.first; number < q.end; number++ {
				if a := q.at(number); a != nil {
					got = append(got, a)
				}
			}
			if !slices.Equal(got, want) || q.n != len(want) || len(want) > 0 && q.head() != want[0] || len(want) == 0 && q.head() != nil {
				t.Fatalf("%d actors, the first is %p, want %p of %d", q.n, q.head(), want, len(want))
			}
		}
	})
}

func TestQueueClosesItsGaps(t *testing.T) {
	var q queue
	first := new(actor)
	q.push(first)
	for range 100 * queueMin {
		a := new(actor)
		q.push(a)
		q.remove(a)
	}
	if q.head() != first || len(q.ring) > queueMin {
		t.Errorf("the ring has %d places for %d actors", len(q.ring), q.n)
	}
}
