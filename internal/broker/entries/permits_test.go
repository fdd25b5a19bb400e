package entries

import (
	"testing"

	"pgregory.net/rapid"
)

// For any order of sent and taken entries, our count equals the broker's, a reader that takes all entries never starves, and in the end the
// broker has permits for a full queue.
func TestPermitsAgreeWithTheBroker(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := permits{queue: rapid.IntRange(1, 50).Draw(t, "queue")}
		broker := p.first()
		var unread []int
		take := func() {
			broker += p.taken(unread[0])
			unread = unread[1:]
		}
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0, 1:
				if broker <= 0 {
					continue
				}
				cost := rapid.IntRange(1, 70).Draw(t, "cost")
				if !p.arrived(cost) {
					t.Fatal("entry within the permits is refused")
				}
				broker -= cost
				unread = append(unread, cost)
			case 2, 3:
				if len(unread) > 0 {
					take()
				}
			case 4:
				broker += p.rest()
			}
			if p.granted != broker || p.entries != len(unread) {
				t.Fatalf("counted %d permits and %d entries, want %d and %d", p.granted, p.entries, broker, len(unread))
			}
			if len(unread) == 0 && broker < 1 {
				t.Fatalf("all entries are taken, but the broker has %d permits", broker)
			}
		}
		for len(unread) > 0 {
			take()
		}
		if broker += p.rest(); broker != p.queue || p.unread != 0 || p.owed != 0 {
			t.Fatalf("in the end, broker has %d permits of %d, and %+v", broker, p.queue, p)
		}
	})
}

func TestPermitsBoundWhatABrokerSends(t *testing.T) {
	p := permits{queue: 10}
	p.first()
	n := 0
	for p.arrived(1) {
		n++
	}
	if n != 10+overrunMax {
		t.Errorf("%d entries are accepted while none is taken, want %d", n, 10+overrunMax)
	}
}

func TestCost(t *testing.T) {
	for _, c := range []struct {
		events int
		set    []uint64
		want   int
	}{
		{1, nil, 1}, {400, nil, 400}, {0, nil, 1}, {-5, nil, 1}, {1 << 40, nil, costMax}, {400, []uint64{0xf0, 1}, 5}, {400, []uint64{}, 400},
	} {
		if got := cost(c.events, c.set); got != c.want {
			t.Errorf("cost of %d events with %v is %d, want %d", c.events, c.set, got, c.want)
		}
	}
}
