package entries

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/broker/entries/wire"
)

// For any order of sent, taken and acked entries, our counts equal the broker's, the broker never gets permits beyond the bound of unacked
// events, a reader that takes and acks all entries never starves, and in the end the broker has permits for a queue that is full, or nearly.
func TestPermitsAgreeWithTheBroker(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		queue := rapid.IntRange(1, 50).Draw(t, "queue")
		unackedMax := rapid.OneOf(rapid.Just(0), rapid.IntRange(1, 200)).Draw(t, "unacked max")
		p := newPermits(queue, unackedMax)
		var unread, open []int // costs by entry; an entry has its number as its id, and is open until it is acked
		taken, unackedNow := 0, 0
		broker := 0
		give := func(flow int) {
			broker += flow
			if flow > 0 && unackedMax > 0 && broker > 1 && unackedNow+broker > unackedMax {
				t.Fatalf("the broker has %d permits while %d events are unacked, at most %d", broker, unackedNow, unackedMax)
			}
		}
		give(p.first())
		take := func() {
			give(p.taken(unread[0]))
			unread = unread[1:]
			taken++
		}
		ack := func(i int) {
			p.acked(wire.AckID{ID: wire.ID{Entry: int64(i)}})
			unackedNow -= open[i]
			open[i] = 0
		}
		arrive := func(cost int) {
			if !p.arrived(wire.ID{Entry: int64(len(open))}, cost) {
				t.Fatal("entry within the permits is refused")
			}
			broker -= cost
			unread, open = append(unread, cost), append(open, cost)
			unackedNow += cost
		}
		resized := false
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0, 1:
				if broker > 0 {
					arrive(rapid.IntRange(0, 70).Draw(t, "cost"))
				}
			case 7:
				queue, resized = rapid.IntRange(1, 50).Draw(t, "other queue"), true
				p.resize(queue)
				give(p.rest())
			case 2, 3:
				if len(unread) > 0 {
					take()
				}
			case 4:
				give(p.rest())
			case 5, 6:
				if taken > 0 {
					ack(rapid.IntRange(0, taken-1).Draw(t, "acked"))
				}
			}
			if p.granted != broker || p.entries != len(unread) || p.unacked != unackedNow {
				t.Fatalf("counted %d permits, %d entries and %d unacked events, want %d, %d and %d", p.granted, p.entries, p.unacked, broker, len(unread), unackedNow)
			}
			if len(unread) == 0 && broker < 1 && unackedMax == 0 {
				t.Fatalf("all entries are taken, but the broker has %d permits", broker)
			}
		}
		for resized && broker > 0 { // permits of a larger queue are used up
			arrive(1)
		}
		for len(unread) > 0 {
			take()
		}
		for i := range open {
			ack(i)
		}
		give(p.rest())
		want := queue
		if unackedMax > 0 {
			want = min(want, max(unackedMax, 1))
		}
		least := want - p.unackedMax/portionPart // less is held back until it is a portion
		if broker > want || broker < max(1, min(least, want)) || unackedMax == 0 && broker != want {
			t.Fatalf("in the end, the broker has %d permits, want %d to %d: %+v", broker, least, want, p)
		}
		if p.entries != 0 || p.owed != queue-broker || p.unacked != 0 || len(p.costs) != 0 {
			t.Fatalf("in the end, something is counted: %+v", p)
		}
	})
}

// An entry that arrives again is unacked once, acks of single events count each, and a raised bound releases permits.
func TestUnackedEvents(t *testing.T) {
	p := newPermits(100, 100)
	if got := p.first(); got != 100 {
		t.Fatalf("the first FLOW has %d permits, want 100", got)
	}
	id := wire.ID{Entry: 7}
	p.arrived(id, 70)
	p.arrived(id, 70)
	if p.unacked != 70 {
		t.Errorf("%d events are unacked after an entry of 70 arrived twice", p.unacked)
	}
	p.taken(70)
	if p.taken(70); p.granted > 100-70 {
		t.Errorf("%d permits are granted with 70 unacked events of at most 100", p.granted)
	}
	p.acked(wire.AckID{ID: id, AckSet: []uint64{1<<40 - 1}, BatchSize: 70}) // all but 40
	if p.unacked != 40 {
		t.Errorf("%d events are unacked, want 40", p.unacked)
	}
	p.acked(wire.AckID{ID: wire.ID{Entry: 8}}) // of an earlier session
	p.acked(wire.AckID{ID: id})
	p.acked(wire.AckID{ID: id})
	if p.unacked != 0 || len(p.costs) != 0 {
		t.Errorf("%d events are unacked, want none: %+v", p.unacked, p)
	}
	p.rest()
	if p.granted != 100 || p.waits() {
		t.Errorf("the broker has %d permits, want 100: %+v", p.granted, p)
	}
	p.bound(10)
	for i := range 100 {
		p.arrived(wire.ID{Entry: int64(10 + i)}, 1)
		p.taken(1)
	}
	if p.rest() != 0 || !p.waits() {
		t.Errorf("permits are given with %d unacked events of at most 10", p.unacked)
	}
	p.bound(0)
	if got := p.rest(); got != 100 || p.waits() {
		t.Errorf("%d permits are given without a bound, want 100", got)
	}
}

func TestPermitsBoundWhatABrokerSends(t *testing.T) {
	p := newPermits(10, 0)
	p.first()
	n := 0
	for p.arrived(wire.ID{Entry: int64(n)}, 1) {
		n++
	}
	if n != 10+overrunMax {
		t.Errorf("%d entries are accepted while none is taken, want %d", n, 10+overrunMax)
	}
}

// TestASmallerQueue: the broker keeps the permits that it has, gets no more until the smaller queue has room, and as many as that in the end.
func TestASmallerQueue(t *testing.T) {
	p := newPermits(2*overrunMax, 0)
	broker, n := p.first(), 0
	p.resize(10)
	for ; broker > 0; broker-- { // all at once, before any is taken
		if !p.arrived(wire.ID{Entry: int64(n)}, 1) {
			t.Fatalf("entry %d is refused, for which there was a permit", n)
		}
		n++
	}
	for range n {
		broker += p.taken(1)
	}
	if broker += p.rest(); broker != 10 {
		t.Errorf("the broker has %d permits when all was taken, want 10", broker)
	}
	p.resize(25)
	if broker += p.rest(); broker != 25 {
		t.Errorf("the broker has %d permits of a larger queue, want 25", broker)
	}
}

func TestCost(t *testing.T) {
	for _, c := range []struct {
		events int
		set    []uint64
		want   int
	}{
		{1, nil, 1}, {400, nil, 400}, {0, nil, 0}, {-5, nil, -5}, {1 << 40, nil, costMax}, {400, []uint64{0xf0, 1}, 5}, {400, []uint64{}, 400},
	} {
		if got := cost(c.events, c.set); got != c.want {
			t.Errorf("cost of %d events with %v is %d, want %d", c.events, c.set, got, c.want)
		}
	}
}
