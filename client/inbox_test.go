package client

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/clock"
	"github.com/ringfence/router/internal/event"
)

const second = clock.Instant(time.Second)

// given returns an inbox with deliveries 1 … n of partitions 1 … n, no Pong yet.
func given(n int) (*inbox, []*Event) {
	b := new(inbox)
	var events []*Event
	for i := range n {
		e := &Event{run: delivery{id: uint64(i + 1), partition: uint32(i + 1)}}
		events = append(events, e)
	}
	b.give(events)
	return b, events
}

// ponged takes a Ping sent at a and its Pong at now.
func (b *inbox) ponged(a, now clock.Instant, remaining time.Duration, draining ...uint64) (lost []*Event) {
	return b.pong(now, b.sendPing(a), remaining, draining, nil)
}

func ofPartition(p uint32) func(*Event) bool {
	return func(e *Event) bool { return e.run.partition == p }
}

func answers(b *inbox) (out []string) {
	for _, r := range b.results {
		out = append(out, r.Kind.String())
	}
	return out
}

func TestNothingStartsBeforeThePong(t *testing.T) {
	b, events := given(1)
	if e := b.take(0); e != nil {
		t.Fatal("a delivery started without a Pong")
	}
	b.ponged(10*second, 11*second, time.Second) // the answer took as long as it was worth
	if e := b.take(11 * second); e != nil {
		t.Fatal("a delivery started at its deadline")
	}
	b.ponged(11*second, 11*second, time.Second)
	if e := b.take(12*second - 1); e != events[0] {
		t.Fatal("a delivery did not start before its deadline")
	}
}

func TestDeadlineCountsFromBeforeThePing(t *testing.T) {
	b, events := given(1)
	b.ponged(10*second, 13*second, 5*time.Second)
	if got, want := b.deadline(events[0]), 15*second; got != want {
		t.Errorf("deadline = %v, want %v", got, want)
	}
}

func TestPongsThatMoveNothing(t *testing.T) {
	tests := map[string]func(b *inbox){
		"nothing remains":   func(b *inbox) { b.pong(2*second, b.sendPing(2*second), 0, nil, nil) },
		"less than nothing": func(b *inbox) { b.pong(2*second, b.sendPing(2*second), -time.Hour, nil, nil) },
		"no such ping":      func(b *inbox) { b.pong(2*second, 77, time.Hour, nil, nil) },
		"ping 0":            func(b *inbox) { b.pong(2*second, 0, time.Hour, nil, nil) },
		"a ping of long ago": func(b *inbox) {
			k := b.k
			for range len(b.pings) {
				b.sendPing(2 * second)
			}
			b.pong(2*second, k, time.Hour, nil, nil)
		},
		"an earlier deadline":     func(b *inbox) { b.ponged(2*second, 2*second, time.Second) },
		"of another delivery set": func(b *inbox) { b.ponged(0, second, time.Second, 99) },
	}
	for name, pong := range tests {
		t.Run(name, func(t *testing.T) {
			b, _ := given(1)
			b.ponged(second, second, 4*time.Second)
			pong(b)
			if got, want := b.newest, 5*second; got != want {
				t.Errorf("deadline = %v, want %v", got, want)
			}
		})
	}
}

func TestPassedDeadlineIsNeverExtended(t *testing.T) {
	b, events := given(2)
	b.ponged(0, 0, time.Second)
	b.take(0)
	lost := b.ponged(second, second, time.Minute) // frozen since 0; no check ran meanwhile
	if !slices.Equal(lost, events[:1]) {
		t.Fatalf("lost %d deliveries, want the one that ran", len(lost))
	}
	if got := b.deadline(events[0]); got != second {
		t.Errorf("deadline of the lost delivery = %v, want the passed one, %v", got, second)
	}
	if e := b.take(second); e != events[1] {
		t.Error("the delivery that had not started could not start under the new Pong")
	}
	if again := b.check(2*second, nil); len(again) > 0 {
		t.Error("a delivery was lost twice")
	}
}

func TestRevoke(t *testing.T) {
	b, events := given(3)
	b.ponged(0, 0, 10*time.Second)
	b.take(0) // 1 runs
	b.take(0) // 2 runs; 3 waits
	b.revoke(func(e *Event) bool { return e.run.id != 2 })
	if got := answers(b); !slices.Equal(got, []string{"not_started"}) || b.results[0].Delivery != 3 {
		t.Fatalf("answers = %v, want that 3 was not started", b.results)
	}

	b.ponged(5*second, 5*second, 10*time.Second)
	if b.deadline(events[0]) != 10*second || b.deadline(events[1]) != 15*second {
		t.Errorf("deadlines = %v, %v, want the revoked one frozen at 10s, the other at 15s", b.deadline(events[0]), b.deadline(events[1]))
	}
	b.ponged(6*second, 6*second, 10*time.Second, 1)
	if got := b.deadline(events[0]); got != 16*second {
		t.Errorf("deadline of the draining delivery = %v, want 16s", got)
	}
	b.ponged(7*second, 7*second, 10*time.Second)
	if lost := b.check(16*second, nil); !slices.Equal(lost, events[:1]) {
		t.Errorf("%d lost at 16s, want the revoked one alone", len(lost))
	}
	b.ponged(16*second, 16*second, 10*time.Second, 1)
	if got := b.deadline(events[0]); got != 16*second {
		t.Errorf("Pong.draining moved a passed deadline to %v", got)
	}
}

func TestRevokeIsNotForLaterDeliveries(t *testing.T) { // the key came back
	b, _ := given(0)
	b.ponged(0, 0, time.Second)
	b.revoke(ofPartition(1))
	_, events := given(1)
	b.give(events)
	if b.take(0) != events[0] {
		t.Error("a delivery that came after the Revoke did not start")
	}
}

// Attack 38: frozen for long with a delivery that has not started; after that come,
// in their order, the Revoke and a fresh Pong.
func TestFrozenApplicationStartsNothingRevoked(t *testing.T) {
	b, _ := given(1)
	b.ponged(0, 0, time.Second)
	b.revoke(ofPartition(1))
	b.ponged(40*second, 40*second, time.Minute)
	if b.take(40*second) != nil {
		t.Error("a revoked delivery started")
	}
	if got := answers(b); !slices.Equal(got, []string{"not_started"}) {
		t.Errorf("answers = %v, want not_started", got)
	}
}

// Attack 42: the machine slept through the deadline; the clock has gone on.
func TestSuspendedMachineStartsNothing(t *testing.T) {
	b, _ := given(2)
	b.ponged(0, 0, time.Second)
	running := b.take(0)
	if b.take(3600*second) != nil {
		t.Error("a delivery started after its deadline")
	}
	if lost := b.check(3600*second, nil); !slices.Equal(lost, []*Event{running}) {
		t.Errorf("%d lost after the sleep, want the one that ran", len(lost))
	}
}

func TestBrokenStreamKeepsTheLastDeadline(t *testing.T) {
	b, events := given(2)
	b.ponged(0, 0, 10*time.Second)
	b.take(0)
	b.breakOff()
	if b.take(second) != nil {
		t.Error("a delivery of a broken stream started")
	}
	if got := b.deadline(events[0]); got != 10*second {
		t.Errorf("deadline = %v, want the last one, 10s", got)
	}
	if lost := b.check(10*second-1, nil); len(lost) > 0 {
		t.Error("lost before the last deadline")
	}
	if lost := b.check(10*second, nil); len(lost) != 1 {
		t.Error("not lost at the last deadline")
	}
	b.end(events[0], event.Result{Kind: event.ResultDone})
	if len(b.results) > 0 || b.started() > 0 {
		t.Errorf("a broken stream has %d results and %d handlers, want none", len(b.results), b.started())
	}
}

func TestSuspendAndDrain(t *testing.T) {
	b, events := given(2)
	b.ponged(0, 0, 10*time.Second)
	b.suspended = true
	if b.take(0) != nil {
		t.Error("a delivery started while suspended")
	}
	b.suspended = false
	b.take(0)
	b.drain()
	b.give([]*Event{{run: delivery{id: 9}}})
	if got := answers(b); !slices.Equal(got, []string{"not_started", "not_started"}) {
		t.Errorf("answers = %v, want that what waited and what came later was not started", got)
	}
	b.end(events[0], event.Result{Kind: event.ResultDone})
	if b.started() != 0 || len(b.results) != 3 {
		t.Errorf("%d run, %d results; want none, and three", b.started(), len(b.results))
	}
}

// Whatever comes in whatever order: no delivery starts at or after the deadline it
// then has, none that was cancelled is revived, no deadline moves once it has passed,
// and none moves past what the Pongs that may move it say.
func TestInboxKeepsItsDeadlines(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := new(inbox)
		now := clock.Instant(0)
		var all []*Event
		newest := clock.Instant(0)
		revoked, lost := map[*Event]bool{}, map[*Event]bool{}
		check := func(events []*Event) {
			for _, e := range events {
				if lost[e] {
					t.Fatal("lost twice")
				}
				lost[e] = true
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"give": func(t *rapid.T) {
				e := &Event{run: delivery{id: uint64(len(all) + 1), partition: uint32(rapid.IntRange(0, 3).Draw(t, "p"))}}
				all = append(all, e)
				b.give([]*Event{e})
			},
			"take": func(t *rapid.T) {
				if e := b.take(now); e != nil {
					if revoked[e] || !now.Before(newest) || !now.Before(b.deadline(e)) {
						t.Fatalf("started at %v: revoked %v, newest Pong until %v", now, revoked[e], newest)
					}
				}
			},
			"pong": func(t *rapid.T) {
				a := now
				k := b.sendPing(a)
				now += clock.Instant(rapid.IntRange(0, 5).Draw(t, "trip"))
				remaining := time.Duration(rapid.IntRange(-2, 20).Draw(t, "remaining"))
				var listed []uint64
				before := map[*Event]clock.Instant{}
				for _, e := range all {
					before[e] = b.deadline(e)
					if revoked[e] && rapid.Bool().Draw(t, "list") {
						listed = append(listed, e.run.id)
					}
				}
				check(b.pong(now, k, remaining, listed, nil))
				if remaining > 0 {
					newest = max(newest, a.Add(remaining))
				}
				for _, e := range all {
					if e.run.list == nil || e.run.list == &b.waiting {
						continue
					}
					moved := b.deadline(e) != before[e]
					switch {
					case moved && !now.Before(before[e]):
						t.Fatal("a passed deadline moved")
					case moved && revoked[e] && !slices.Contains(listed, e.run.id):
						t.Fatal("the deadline of a revoked delivery moved, though it was not listed")
					case moved && b.deadline(e) != a.Add(remaining):
						t.Fatalf("deadline %v, want ping + remaining = %v", b.deadline(e), a.Add(remaining))
					}
				}
			},
			"revoke": func(t *rapid.T) {
				p := uint32(rapid.IntRange(0, 3).Draw(t, "p"))
				for _, e := range all {
					if e.run.partition == p && e.run.list != nil {
						revoked[e] = true
					}
				}
				b.revoke(ofPartition(p))
				if b.waiting.n > 0 && slices.ContainsFunc(slices.Collect(b.waiting.all()), ofPartition(p)) {
					t.Fatal("a revoked delivery still waits")
				}
			},
			"check": func(t *rapid.T) { check(b.check(now, nil)) },
			"end": func(t *rapid.T) {
				for _, e := range all {
					if l := e.run.list; l != nil && l != &b.waiting {
						b.end(e, event.Result{Kind: event.ResultDone})
						return
					}
				}
			},
			"wait": func(t *rapid.T) { now += clock.Instant(rapid.IntRange(0, 30).Draw(t, "d")) },
			"": func(t *rapid.T) {
				if n := b.running.n + b.frozen.n + b.lost.n + b.waiting.n + len(b.results); n != len(all) {
					t.Fatalf("%d deliveries accounted for, want %d", n, len(all))
				}
				for e := range lost {
					if l := e.run.list; l != nil && l != &b.lost {
						t.Fatal("a lost delivery was revived")
					}
				}
			},
		})
	})
}
