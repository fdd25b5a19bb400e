package inbox

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// work is a delivery.
type work struct{ item Item[work] }

type box = Inbox[work]

func newWork(id, partition int) *work {
	w := new(work)
	w.item = Item[work]{Of: w, ID: event.DeliveryID(id), Partition: uint32(partition)}
	return w
}

const second = clock.Instant(time.Second)

// given returns an inbox with deliveries 1 … n of partitions 1 … n, no Pong yet.
func given(n int) (*box, []*work) {
	b := new(box)
	var events []*work
	for i := range n {
		events = append(events, newWork(i+1, i+1))
		b.Give(&events[i].item)
	}
	return b, events
}

// ponged takes a Ping sent at a and its Pong at now.
func ponged(b *box, a, now clock.Instant, remaining time.Duration, draining ...uint64) (lost []*work) {
	return b.Pong(now, b.SendPing(a), remaining, draining, nil)
}

func ofPartition(p uint32) func(*Item[work]) bool {
	return func(it *Item[work]) bool { return it.Partition == p }
}

func answers(b *box) (out []string) {
	for _, r := range b.Results {
		out = append(out, r.Kind.String())
	}
	return out
}

func TestNothingStartsBeforeThePong(t *testing.T) {
	b, events := given(1)
	if e := b.Take(0); e != nil {
		t.Fatal("a delivery started without a Pong")
	}
	ponged(b, 10*second, 11*second, time.Second) // the answer took as long as it was worth
	if e := b.Take(11 * second); e != nil {
		t.Fatal("a delivery started at its deadline")
	}
	ponged(b, 11*second, 11*second, time.Second)
	if e := b.Take(12*second - 1); e != events[0] {
		t.Fatal("a delivery did not start before its deadline")
	}
}

func TestDeadlineCountsFromBeforeThePing(t *testing.T) {
	b, events := given(1)
	ponged(b, 10*second, 13*second, 5*time.Second)
	if got, want := b.Deadline(&events[0].item), 15*second; got != want {
		t.Errorf("deadline = %v, want %v", got, want)
	}
}

func TestPongsThatMoveNothing(t *testing.T) {
	tests := map[string]func(b *box){
		"nothing remains":   func(b *box) { b.Pong(2*second, b.SendPing(2*second), 0, nil, nil) },
		"less than nothing": func(b *box) { b.Pong(2*second, b.SendPing(2*second), -time.Hour, nil, nil) },
		"no such ping":      func(b *box) { b.Pong(2*second, 77, time.Hour, nil, nil) },
		"ping 0":            func(b *box) { b.Pong(2*second, 0, time.Hour, nil, nil) },
		"a ping of long ago": func(b *box) {
			k := b.k
			for range len(b.pings) {
				b.SendPing(2 * second)
			}
			b.Pong(2*second, k, time.Hour, nil, nil)
		},
		"an earlier deadline":     func(b *box) { ponged(b, 2*second, 2*second, time.Second) },
		"of another delivery set": func(b *box) { ponged(b, 0, second, time.Second, 99) },
	}
	for name, pong := range tests {
		t.Run(name, func(t *testing.T) {
			b, _ := given(1)
			ponged(b, second, second, 4*time.Second)
			pong(b)
			if got, want := b.newest, 5*second; got != want {
				t.Errorf("deadline = %v, want %v", got, want)
			}
		})
	}
}

func TestPassedDeadlineIsNeverExtended(t *testing.T) {
	b, events := given(2)
	ponged(b, 0, 0, time.Second)
	b.Take(0)
	lost := ponged(b, second, second, time.Minute) // frozen since 0; no check ran meanwhile
	if !slices.Equal(lost, events[:1]) {
		t.Fatalf("lost %d deliveries, want the one that ran", len(lost))
	}
	if got := b.Deadline(&events[0].item); got != second {
		t.Errorf("deadline of the lost delivery = %v, want the passed one, %v", got, second)
	}
	if e := b.Take(second); e != events[1] {
		t.Error("the delivery that had not started could not start under the new Pong")
	}
	if again := b.Check(2*second, nil); len(again) > 0 {
		t.Error("a delivery was lost twice")
	}
}

func TestRevoke(t *testing.T) {
	b, events := given(3)
	ponged(b, 0, 0, 10*time.Second)
	b.Take(0) // 1 runs
	b.Take(0) // 2 runs; 3 waits
	b.Revoke(func(it *Item[work]) bool { return it.ID != 2 })
	if got := answers(b); !slices.Equal(got, []string{"not_started"}) || b.Results[0].Delivery != 3 {
		t.Fatalf("answers = %v, want that 3 was not started", b.Results)
	}

	ponged(b, 5*second, 5*second, 10*time.Second)
	if b.Deadline(&events[0].item) != 10*second || b.Deadline(&events[1].item) != 15*second {
		t.Errorf("deadlines = %v, %v, want the revoked one frozen at 10s, the other at 15s", b.Deadline(&events[0].item), b.Deadline(&events[1].item))
	}
	ponged(b, 6*second, 6*second, 10*time.Second, 1)
	if got := b.Deadline(&events[0].item); got != 16*second {
		t.Errorf("deadline of the draining delivery = %v, want 16s", got)
	}
	ponged(b, 7*second, 7*second, 10*time.Second)
	ponged(b, 7*second, 7*second, time.Second, 1) // a shorter one
	if got := b.Deadline(&events[0].item); got != 16*second {
		t.Errorf("a later Pong took the deadline of the draining delivery back to %v", got)
	}
	if lost := b.Check(16*second, nil); !slices.Equal(lost, events[:1]) {
		t.Errorf("%d lost at 16s, want the revoked one alone", len(lost))
	}
	ponged(b, 16*second, 16*second, 10*time.Second, 1)
	if got := b.Deadline(&events[0].item); got != 16*second {
		t.Errorf("Pong.draining moved a passed deadline to %v", got)
	}
}

// An overlong delivery is cancelled at once, and nothing revives it; a waiting delivery is
// never overlong.
func TestCut(t *testing.T) {
	b, events := given(4)
	ponged(b, 0, 0, 10*time.Second)
	for range 3 {
		b.Take(0) // 1, 2 and 3 run; 4 waits
	}
	b.Revoke(ofPartition(2))
	cut := b.Cut(func(it *Item[work]) bool { return it.ID != 3 }, nil)
	if !slices.Equal(cut, []*work{events[1], events[0]}) || !slices.Equal(answers(b), []string{"not_started"}) {
		t.Fatalf("%d are cut and the answers are %v; want the two that run, and one not started", len(cut), answers(b))
	}
	ponged(b, 5*second, 5*second, 10*time.Second, 1, 2)
	for i, want := range []clock.Instant{10 * second, 10 * second, 15 * second} {
		if got := b.Deadline(&events[i].item); got != want {
			t.Errorf("deadline of %d = %v, want %v", i+1, got, want)
		}
	}
	if lost := b.Check(20*second, nil); !slices.Equal(lost, events[2:3]) {
		t.Errorf("%d are lost, want the one that was not cut before", len(lost))
	}
	if b.Started() != 3 {
		t.Errorf("%d run, want 3: being cut does not end a handler", b.Started())
	}
}

func TestRevokeIsNotForLaterDeliveries(t *testing.T) { // the key came back
	b, _ := given(0)
	ponged(b, 0, 0, time.Second)
	b.Revoke(ofPartition(1))
	_, events := given(1)
	for _, e := range events {
		b.Give(&e.item)
	}
	if b.Take(0) != events[0] {
		t.Error("a delivery that came after the Revoke did not start")
	}
}

// Attack 38: frozen for long with a delivery that has not started; after that come,
// in their order, the Revoke and a fresh Pong.
func TestFrozenApplicationStartsNothingRevoked(t *testing.T) {
	b, _ := given(1)
	ponged(b, 0, 0, time.Second)
	b.Revoke(ofPartition(1))
	ponged(b, 40*second, 40*second, time.Minute)
	if b.Take(40*second) != nil {
		t.Error("a revoked delivery started")
	}
	if got := answers(b); !slices.Equal(got, []string{"not_started"}) {
		t.Errorf("answers = %v, want not_started", got)
	}
}

// Attack 42: the machine slept through the deadline; the clock has gone on.
func TestSuspendedMachineStartsNothing(t *testing.T) {
	b, _ := given(2)
	ponged(b, 0, 0, time.Second)
	running := b.Take(0)
	if b.Take(3600*second) != nil {
		t.Error("a delivery started after its deadline")
	}
	if lost := b.Check(3600*second, nil); !slices.Equal(lost, []*work{running}) {
		t.Errorf("%d lost after the sleep, want the one that ran", len(lost))
	}
}

func TestBrokenStreamKeepsTheLastDeadline(t *testing.T) {
	b, events := given(2)
	ponged(b, 0, 0, 10*time.Second)
	b.Take(0)
	b.BreakOff()
	if b.Take(second) != nil {
		t.Error("a delivery of a broken stream started")
	}
	if got := b.Deadline(&events[0].item); got != 10*second {
		t.Errorf("deadline = %v, want the last one, 10s", got)
	}
	if lost := b.Check(10*second-1, nil); len(lost) > 0 {
		t.Error("lost before the last deadline")
	}
	if lost := b.Check(10*second, nil); len(lost) != 1 {
		t.Error("not lost at the last deadline")
	}
	b.End(&events[0].item, &event.Result{Kind: event.ResultDone})
	if len(b.Results) > 0 || b.Started() > 0 {
		t.Errorf("a broken stream has %d results and %d handlers, want none", len(b.Results), b.Started())
	}
}

func TestSuspendAndDrain(t *testing.T) {
	b, events := given(2)
	ponged(b, 0, 0, 10*time.Second)
	b.Suspend()
	if b.Take(0) != nil {
		t.Error("a delivery started while suspended")
	}
	b.Resume()
	b.Take(0)
	b.Drain()
	b.Give(&newWork(9, 0).item)
	if got := answers(b); !slices.Equal(got, []string{"not_started", "not_started"}) {
		t.Errorf("answers = %v, want not_started for the waiting and the later deliveries", got)
	}
	b.End(&events[0].item, &event.Result{Kind: event.ResultDone})
	if b.Started() != 0 || len(b.Results) != 3 {
		t.Errorf("%d run, %d results; want none, and three", b.Started(), len(b.Results))
	}
}

// For any inputs in any order: no delivery starts at or after its present deadline, no
// cancelled delivery is revived, no deadline moves once it has passed, and none moves beyond
// the Pongs that may move it.
func TestInboxKeepsItsDeadlines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := new(box)
		now := clock.Instant(0)
		var all []*work
		newest := clock.Instant(0)
		revoked, lost := map[*work]bool{}, map[*work]bool{}
		check := func(events []*work) {
			for _, e := range events {
				if lost[e] {
					t.Fatal("lost twice")
				}
				lost[e] = true
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"give": func(t *rapid.T) {
				e := newWork(len(all)+1, rapid.IntRange(0, 3).Draw(t, "p"))
				all = append(all, e)
				b.Give(&e.item)
			},
			"take": func(t *rapid.T) {
				if e := b.Take(now); e != nil {
					if revoked[e] || !now.Before(newest) || !now.Before(b.Deadline(&e.item)) {
						t.Fatalf("started at %v: revoked %v, newest Pong until %v", now, revoked[e], newest)
					}
				}
			},
			"pong": func(t *rapid.T) {
				a := now
				k := b.SendPing(a)
				now += clock.Instant(rapid.IntRange(0, 5).Draw(t, "trip"))
				remaining := time.Duration(rapid.IntRange(-2, 20).Draw(t, "remaining"))
				var listed []uint64
				before := map[*work]clock.Instant{}
				for _, e := range all {
					before[e] = b.Deadline(&e.item)
					if revoked[e] && rapid.Bool().Draw(t, "list") {
						listed = append(listed, uint64(e.item.ID))
					}
				}
				check(b.Pong(now, k, remaining, listed, nil))
				if remaining > 0 {
					newest = max(newest, a.Add(remaining))
				}
				for _, e := range all {
					if e.item.list == nil || e.item.list == &b.waiting {
						continue
					}
					moved := b.Deadline(&e.item) != before[e]
					switch {
					case moved && !now.Before(before[e]):
						t.Fatal("a passed deadline moved")
					case b.Deadline(&e.item) < before[e]:
						t.Fatalf("a Pong took a deadline back from %v to %v", before[e], b.Deadline(&e.item))
					case moved && revoked[e] && !slices.Contains(listed, uint64(e.item.ID)):
						t.Fatal("the deadline of a revoked delivery moved, though it was not listed")
					case moved && b.Deadline(&e.item) != a.Add(remaining):
						t.Fatalf("deadline %v, want ping + remaining = %v", b.Deadline(&e.item), a.Add(remaining))
					}
				}
			},
			"revoke": func(t *rapid.T) {
				p := uint32(rapid.IntRange(0, 3).Draw(t, "p"))
				for _, e := range all {
					if e.item.Partition == p && e.item.list != nil {
						revoked[e] = true
					}
				}
				b.Revoke(ofPartition(p))
				if b.waiting.n > 0 && slices.ContainsFunc(slices.Collect(b.waiting.all()), ofPartition(p)) {
					t.Fatal("a revoked delivery still waits")
				}
			},
			"cut": func(t *rapid.T) {
				id := event.DeliveryID(rapid.IntRange(1, 1+len(all)).Draw(t, "id"))
				for _, e := range b.Cut(func(it *Item[work]) bool { return it.ID == id }, nil) {
					if lost[e] {
						t.Fatal("a delivery was cut twice")
					}
					lost[e], revoked[e] = true, true
				}
			},
			"check": func(t *rapid.T) { check(b.Check(now, nil)) },
			"end": func(t *rapid.T) {
				for _, e := range all {
					if l := e.item.list; l != nil && l != &b.waiting {
						b.End(&e.item, &event.Result{Kind: event.ResultDone})
						return
					}
				}
			},
			"wait": func(t *rapid.T) { now += clock.Instant(rapid.IntRange(0, 30).Draw(t, "d")) },
			"": func(t *rapid.T) {
				if n := b.running.n + b.frozen.n + b.lost.n + b.waiting.n + len(b.Results); n != len(all) {
					t.Fatalf("%d deliveries accounted for, want %d", n, len(all))
				}
				for e := range lost {
					if l := e.item.list; l != nil && l != &b.lost {
						t.Fatal("a lost delivery was revived")
					}
				}
			},
		})
	})
}

// End copies a result field by field.
func TestAllOfAResultIsKept(t *testing.T) {
	b, events := given(1)
	ponged(b, second, second, time.Minute)
	it := &b.Take(2 * second).item
	want := event.Result{
		Delivery: it.ID, Kind: event.ResultRetry, TimedOut: true, Behind: true, To: 3, After: time.Second, Reason: "why",
		Reply: &event.CallReply{Payload: []byte("reply"), Code: "told"}, Ran: event.Interval{Start: 1, Length: 2},
	}
	for i := range reflect.TypeFor[event.Result]().NumField() {
		if reflect.ValueOf(want).Field(i).IsZero() {
			t.Fatalf("the test sets no %s", reflect.TypeFor[event.Result]().Field(i).Name)
		}
	}
	result := want
	b.End(&events[0].item, &result)
	if len(b.Results) != 1 || !reflect.DeepEqual(b.Results[0], want) {
		t.Errorf("the results are %+v, want %+v", b.Results, want)
	}
}
