package forward

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// tableTest is a table whose moves are kept, with peers 1 and 2 up and all owned by 1.
type tableTest struct {
	*Table
	t   *testing.T
	now clock.Instant
	out Moves
}

func newTableTest(t *testing.T) *tableTest {
	tt := &tableTest{Table: NewTable(DefaultConfig()), t: t, now: clock.Instant(time.Hour)}
	tt.owner(1, 1)
	tt.PeerUp(tt.now, peerNumber(1), &tt.out)
	tt.PeerUp(tt.now, peerNumber(2), &tt.out)
	return tt
}

func (tt *tableTest) owner(number int, epoch int64) {
	tt.SetRoute(tt.now, peerNumber(0), fixedRoute{owners: []Peer{peerNumber(number)}, epoch: event.Position{Ledger: epoch}}, &tt.out)
}

// hold holds events of one key with the handles from … to.
func (tt *tableTest) hold(key event.Key, from, to event.Handle) {
	for h := from; h <= to; h++ {
		tt.Hold(tt.now, []*event.Event{{Handle: h, Key: key, Partition: ring.Partition(1)}}, &tt.out)
	}
}

func (tt *tableTest) after(d time.Duration) {
	tt.now = tt.now.Add(d)
	tt.Tick(tt.now, &tt.out)
}

func (tt *tableTest) take(number int) []event.Handle {
	batch, _ := tt.Take(tt.now, peerNumber(number), 1000, 1<<20, nil)
	var handles []event.Handle
	for _, ev := range batch {
		handles = append(handles, ev.Handle)
	}
	return handles
}

// doneOf returns verdicts that say done.
func doneOf(handles ...event.Handle) (verdicts []event.Verdict) {
	for _, h := range handles {
		verdicts = append(verdicts, event.Verdict{Handle: h, Kind: event.Done})
	}
	return verdicts
}

func (tt *tableTest) say(number int, kind event.VerdictKind, epoch int64, handles ...event.Handle) {
	for _, h := range handles {
		v := event.Verdict{Handle: h, Kind: kind, Detail: &event.Detail{Delay: 100 * time.Millisecond, Epoch: event.Position{Ledger: epoch}}}
		tt.Settle(tt.now, peerNumber(number), []event.Verdict{v}, &tt.out)
	}
}

func (tt *tableTest) wantTake(number int, want ...event.Handle) {
	tt.t.Helper()
	if got := tt.take(number); !slices.Equal(got, want) {
		tt.t.Fatalf("peer %d takes %v, want %v", number, got, want)
	}
}

func TestNotOwnerWaitsForANewerRoute(t *testing.T) {
	tt := newTableTest(t)
	tt.hold("k", 1, 1)
	tt.wantTake(1, 1)
	tt.say(1, event.NotOwner, 3, 1)
	tt.owner(1, 2) // newer, but the refuser knew it already
	tt.wantTake(1)
	tt.owner(1, 3) // the epoch that the refuser had applied names the refuser as well
	tt.wantTake(1, 1)
	tt.say(1, event.NotOwner, 4, 1)
	tt.owner(2, 4)
	tt.wantTake(2, 1)
}

func TestNotOwnerIsSentAtOnceWhenTheRouteHasMoved(t *testing.T) {
	tt := newTableTest(t)
	tt.hold("k", 1, 1)
	tt.wantTake(1, 1)
	tt.owner(2, 2)
	tt.wantTake(2) // the deposed owner may be working on it
	tt.say(1, event.NotOwner, 2, 1)
	tt.wantTake(2, 1)
}

func TestQueuedEventsFollowTheRoute(t *testing.T) {
	tt := newTableTest(t)
	tt.hold("up", 1, 2)
	tt.PeerDown(tt.now, peerNumber(1), &tt.out)
	tt.hold("down", 3, 3)
	tt.owner(2, 2)
	tt.wantTake(2, 1, 2, 3)
}

func TestNotOwnerIsRetriedAfterAWhile(t *testing.T) {
	tt := newTableTest(t)
	tt.hold("k", 1, 1)
	tt.wantTake(1, 1)
	tt.say(1, event.NotOwner, 9, 1)
	if next := tt.Next().Sub(tt.now); next != tt.config.RefusedRetry {
		t.Errorf("next in %v, want %v", next, tt.config.RefusedRetry)
	}
	tt.after(tt.config.RefusedRetry)
	tt.wantTake(1, 1)
}

// Done settles the events that its peer has or had, once, regardless of other verdicts before, among
// and after.
func TestDone(t *testing.T) {
	tt := newTableTest(t)
	tt.hold("k", 1, 3)
	tt.wantTake(1, 1, 2, 3)
	tt.Settle(tt.now, peerNumber(2), doneOf(1, 2), &tt.out) // never had them
	if tt.Len() != 3 || tt.Stats().Ignored != 2 {
		t.Fatalf("%d held, %d ignored", tt.Len(), tt.Stats().Ignored)
	}
	tt.say(1, event.Attempted, 0, 1)
	tt.say(1, event.NotYet, 0, 2) // the peer has it no longer, but may have finished it
	tt.Settle(tt.now, peerNumber(1), doneOf(1, 2, 1, 9), &tt.out)
	tt.say(1, event.Attempted, 0, 1)
	tt.say(1, event.Failed, 0, 2)
	if want := doneOf(1, 2); !equalVerdicts(tt.out.Verdicts, want) || tt.Len() != 1 || tt.Stats().Ignored != 6 {
		t.Errorf("settled %+v, want %+v; %d held, %d ignored", tt.out.Verdicts, want, tt.Len(), tt.Stats().Ignored)
	}
	for i, ev := range tt.out.Settled {
		if ev.Handle != tt.out.Verdicts[i].Handle {
			t.Errorf("the verdict on %d comes with event %d", tt.out.Verdicts[i].Handle, ev.Handle)
		}
	}
}

func TestVerdictOfAnEarlierOwnerCounts(t *testing.T) {
	tt := newTableTest(t)
	tt.hold("k", 1, 1)
	tt.wantTake(1, 1)
	tt.owner(2, 2)
	tt.PeerDown(tt.now, peerNumber(1), &tt.out)
	tt.wantTake(2, 1)
	tt.say(1, event.NotOwner, 2, 1) // the peer has it no longer, so this changes nothing
	tt.say(3, event.Done, 0, 1)     // never had it
	if tt.Len() != 1 || len(tt.out.Verdicts) != 0 {
		t.Fatalf("%d held, settled %v", tt.Len(), tt.out.Verdicts)
	}
	tt.say(1, event.Done, 0, 1)
	tt.say(2, event.Done, 0, 1)
	if tt.Len() != 0 || len(tt.out.Verdicts) != 1 || tt.Stats().Ignored != 3 {
		t.Errorf("%d held, settled %v, %d ignored", tt.Len(), tt.out.Verdicts, tt.Stats().Ignored)
	}
}

func TestOverloadedParksOnlyItsKey(t *testing.T) {
	tt := newTableTest(t)
	tt.hold("hot", 1, 1)
	tt.wantTake(1, 1)
	tt.hold("hot", 2, 2) // queued before the refusal is known
	tt.say(1, event.Overloaded, 0, 1)
	tt.hold("hot", 3, 60)
	tt.hold("cold", 100, 101)
	tt.wantTake(1, 100, 101)
	if s := tt.Stats(); s.In[Full] != 60 || s.FullKeys != 1 {
		t.Fatalf("stats = %+v, want 60 events of 1 key that wait for room", s)
	}
	for _, want := range []int{16, 32, 12} { // bursts double while none is refused
		tt.after(99 * time.Millisecond)
		tt.wantTake(1)
		tt.after(time.Millisecond)
		if got := len(tt.take(1)); got != want {
			t.Fatalf("a burst of %d, want %d", got, want)
		}
	}
	if tt.Stats().FullKeys != 0 {
		t.Error("its mailbox is still full")
	}
}

func TestCreditReleasesAtOnce(t *testing.T) {
	tt := newTableTest(t)
	tt.hold("hot", 1, 2)
	tt.wantTake(1, 1, 2)
	tt.say(1, event.Overloaded, 0, 1, 2)
	tt.Credit(tt.now, peerNumber(2), nil, 0, &tt.out) // not the one that refused
	tt.wantTake(1)
	tt.Credit(tt.now, peerNumber(1), []event.Key{"hot"}, 0, &tt.out)
	tt.wantTake(1, 1, 2)
}

func TestBrokenStreamKeepsOrder(t *testing.T) {
	tt := newTableTest(t)
	tt.hold("k", 1, 3)
	tt.wantTake(1, 1, 2, 3)
	tt.hold("k", 4, 5)
	tt.say(1, event.Done, 0, 2)
	tt.PeerDown(tt.now, peerNumber(1), &tt.out)
	tt.wantTake(1)
	tt.PeerUp(tt.now, peerNumber(1), &tt.out)
	tt.wantTake(1, 1, 3, 4, 5)
}

func TestAttemptsTravelWithTheEvent(t *testing.T) {
	tt := newTableTest(t)
	tt.hold("k", 1, 1)
	tt.wantTake(1, 1)
	given := tt.shelf.find(1).event
	v := event.Verdict{Handle: 1, Kind: event.Attempted, Detail: &event.Detail{Attempts: 3, Reason: strings.Repeat("x", 2*textMax)}}
	tt.Settle(tt.now, peerNumber(1), []event.Verdict{v}, &tt.out)
	tt.owner(2, 2)
	tt.PeerDown(tt.now, peerNumber(1), &tt.out)
	batch, _ := tt.Take(tt.now, peerNumber(2), 1, 1, nil)
	if ev := batch[0]; ev.Attempts != 3 || len(ev.LastError) != textMax || ev.FirstError == "" {
		t.Errorf("the next owner gets %d attempts and an error of %d bytes", ev.Attempts, len(ev.LastError))
	}
	if given.Attempts != 0 {
		t.Error("the event was written to while its first owner may look at it")
	}
}

func TestRelayedEventNeverWaits(t *testing.T) {
	tt := newTableTest(t)
	relayed := func(h event.Handle) { tt.HoldRelayed(tt.now, []*event.Event{{Handle: h}}, &tt.out) }
	relayed(1)
	tt.wantTake(1, 1)
	tt.say(1, event.NotOwner, 2, 1)
	relayed(2)
	tt.wantTake(1, 2)
	tt.PeerDown(tt.now, peerNumber(1), &tt.out)
	relayed(3)
	var kinds []event.VerdictKind
	for _, v := range tt.out.Verdicts {
		kinds = append(kinds, v.Kind)
	}
	if want := []event.VerdictKind{event.NotOwner, event.NotYet, event.NotYet}; !slices.Equal(kinds, want) || tt.Len() != 0 {
		t.Errorf("relayed events end with %v, want %v; %d are held", kinds, want, tt.Len())
	}
}

func TestRelayGoesByTurnsAndBack(t *testing.T) {
	tt := newTableTest(t)
	tt.PeerUp(tt.now, peerNumber(3), &tt.out)
	tt.PeerDown(tt.now, peerNumber(1), &tt.out)
	tt.hold("k", 1, 1)
	tt.after(tt.config.UnreachableHoldMax - 1)
	tt.wantTake(2)
	tt.after(1)
	tt.wantTake(3)
	tt.wantTake(2, 1)
	tt.say(2, event.NotOwner, 1, 1)
	tt.hold("k", 2, 2)
	tt.hold("other", 3, 3)
	tt.after(1)
	tt.wantTake(3, 3)
	tt.after(tt.config.RefusedRetry)
	tt.wantTake(2)
	tt.wantTake(3, 1, 2)
	tt.PeerDown(tt.now, peerNumber(3), &tt.out)
	tt.after(1)
	tt.wantTake(2, 1, 2, 3)
	tt.say(2, event.NotOwner, 1, 1)
	tt.PeerUp(tt.now, peerNumber(1), &tt.out)
	tt.after(tt.config.RefusedRetry)
	tt.wantTake(1, 1)
}

func TestHeldIsAtMostOneCacheLine(t *testing.T) {
	if size := unsafe.Sizeof(held{}); size > 64 {
		t.Errorf("a held event has %d bytes, want at most 64", size)
	}
}

// The oldest is known exactly, in whatever order events end.
func TestOldest(t *testing.T) {
	tt := newTableTest(t)
	begun := tt.now
	for h := range event.Handle(3) {
		tt.hold("k", h+1, h+1)
		tt.after(time.Second)
	}
	tt.wantTake(1, 1, 2, 3)
	for _, step := range []struct {
		done event.Handle
		want clock.Instant
	}{{2, begun}, {1, begun.Add(2 * time.Second)}, {3, 0}} {
		tt.say(1, event.Done, 0, step.done)
		if got := tt.Stats().Oldest; got != step.want {
			t.Errorf("after event %d the oldest is of %v, want %v", step.done, got, step.want)
		}
	}
}

// The slots of a new source begin anew, while events of an earlier one are held.
func TestSlotOfAnEarlierSource(t *testing.T) {
	tt := newTableTest(t)
	earlier, later, third := event.NewHandle(1, 300), event.NewHandle(2, 300), event.NewHandle(3, 300)
	tt.hold("k", earlier, earlier)
	tt.hold("k", later, later)
	twice := &event.Event{Handle: later}
	tt.Hold(tt.now, []*event.Event{twice, twice}, &tt.out) // held already
	relayed := &event.Event{Handle: event.NewRelayedHandle(1)}
	tt.HoldRelayed(tt.now, []*event.Event{relayed, relayed}, &tt.out)
	tt.Drop([]event.Handle{relayed.Handle})
	tt.wantTake(1, earlier, later)
	tt.say(1, event.Done, 0, third, earlier)
	tt.hold("k", third, third)
	tt.wantTake(1, third)
	tt.say(1, event.Done, 0, later, third)
	var settled []event.Handle
	for _, ev := range tt.out.Settled {
		settled = append(settled, ev.Handle)
	}
	if want := []event.Handle{earlier, later, third}; !slices.Equal(settled, want) || tt.Len() != 0 || tt.Stats().Ignored != 4 {
		t.Errorf("settled %v, want %v; %d are held, %d ignored", settled, want, tt.Len(), tt.Stats().Ignored)
	}
}

// A list yields its events by age, in whatever order they come and go, and its array does not grow with the
// number of entries that have passed through.
func TestList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := list{place: Queued}
		var a ages
		c := a.begin(1)
		var want, out []*held
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch step := rapid.IntRange(0, 5).Draw(t, "step"); {
			case step < 2:
				fresh := new(held)
				a.add(c, fresh)
				l.push(fresh)
				want = append(want, fresh)
			case step == 2 && len(out) > 0: // comes back
				i := rapid.IntRange(0, len(out)-1).Draw(t, "which")
				l.push(out[i])
				want = append(want, out[i])
				slices.SortFunc(want, byAge)
				out = slices.Delete(out, i, i+1)
			case step > 2 && l.n > 0:
				i := 0
				if step == 5 {
					i = rapid.IntRange(0, l.n-1).Draw(t, "which")
					l.remove(want[i])
				} else {
					l.pop(l.front())
				}
				out = append(out, want[i])
				want = slices.Delete(want, i, i+1)
			}
			if got := l.all(); !slices.Equal(got, want) || l.n != len(want) {
				t.Fatalf("%d events are listed, want %d, or their order is wrong", len(got), len(want))
			}
			if l.n > 0 && l.front() != want[0] {
				t.Fatal("the first event is not the front")
			}
		}
	})
	l := list{place: Queued}
	var a ages
	c := a.begin(1)
	for range 100_000 {
		fresh := new(held)
		a.add(c, fresh)
		l.push(fresh)
		if l.n > 10 {
			l.pop(l.front())
		}
	}
	if most := 100; cap(l.items) > most {
		t.Errorf("10 events need room for %d, want at most %d", cap(l.items), most)
	}
}
