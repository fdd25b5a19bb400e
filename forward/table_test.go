package forward

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// tableTest is a table whose moves are kept, with peers 1 and 2 up and all owned by 1. Its events have numbers.
type tableTest struct {
	*Table
	t   *testing.T
	now clock.Instant
	out Moves

	together bool // the events of one call of hold are an entry of bytes; otherwise each one is an entry and an object
	serial   uint64
	handles  map[int]event.Handle // by number
	numbers  map[event.Handle]int
	entries  map[int]*event.Entry // by number
}

// inEachForm runs a test with events that are entries and objects of their own, and with entries of several events that are bytes.
func inEachForm(t *testing.T, test func(t *testing.T, tt *tableTest)) {
	for name, together := range map[string]bool{"objects": false, "bytes": true} {
		t.Run(name, func(t *testing.T) { test(t, newTableTest(t, together)) })
	}
}

func newTableTest(t *testing.T, together bool) *tableTest {
	tt := &tableTest{
		Table: NewTable(DefaultConfig()), t: t, now: clock.Instant(time.Hour), together: together,
		handles: map[int]event.Handle{}, numbers: map[event.Handle]int{}, entries: map[int]*event.Entry{},
	}
	tt.owner(1, 1)
	tt.PeerUp(tt.now, peerNumber(1), true, &tt.out)
	tt.PeerUp(tt.now, peerNumber(2), true, &tt.out)
	return tt
}

func (tt *tableTest) owner(number int, epoch int64) {
	tt.SetRoute(tt.now, peerNumber(0), fixedRoute{owners: []Peer{peerNumber(number)}, epoch: event.Position{Ledger: epoch}}, &tt.out)
}

// hold holds events of one key with the numbers from … to.
func (tt *tableTest) hold(key event.Key, from, to int) {
	var events []*event.Event
	for n := from; n <= to; n++ {
		ev := &event.Event{Key: key, Partition: ring.Partition(1)}
		if events = append(events, ev); !tt.together {
			tt.holdEntry(n, entryOf(tt.nextFirst(), ev))
		}
	}
	if tt.together {
		tt.holdEntry(from, bytesEntryOf(tt.nextFirst(), events...))
	}
}

func (tt *tableTest) nextFirst() event.Handle {
	tt.serial++
	return event.NewHandle(tt.serial, 0)
}

// holdEntry holds an entry, whose events get the numbers from … on.
func (tt *tableTest) holdEntry(from int, e *event.Entry) {
	for i := range e.Len() {
		tt.handles[from+i], tt.numbers[e.Handle(i)], tt.entries[from+i] = e.Handle(i), from+i, e
	}
	tt.Hold(tt.now, e, &tt.out)
}

// handle returns the handle of an event, that of an unknown entry if there is none with this number.
// Empty reports whether there is nothing to do.
func (m *Moves) Empty() bool {
	return len(m.Local)+len(m.Wake)+len(m.Cancel)+len(m.Granted)+len(m.Attempted)+len(m.Renew)+len(m.Done)+len(m.Settled) == 0
}

// Has returns the place of an event and whether it is held.
func (t *Table) Has(handle event.Handle) (Place, bool) {
	h, ok := t.lookUp(handle)
	if !ok {
		return 0, false
	}
	place, _ := t.placeOf(h)
	return place, true
}

func (tt *tableTest) handle(number int) event.Handle {
	if h, ok := tt.handles[number]; ok {
		return h
	}
	return event.NewHandle(1<<40, number)
}

func (tt *tableTest) handlesOf(numbers ...int) (handles []event.Handle) {
	for _, n := range numbers {
		handles = append(handles, tt.handle(n))
	}
	return handles
}

func (tt *tableTest) after(d time.Duration) {
	tt.now = tt.now.Add(d)
	tt.Tick(tt.now, &tt.out)
}

func (tt *tableTest) take(number int) []int {
	batch, _ := tt.Take(peerNumber(number), 1000, 1<<20, nil)
	var numbers []int
	for _, ref := range batch {
		numbers = append(numbers, tt.numbers[ref.Handle()])
	}
	return numbers
}

// doneOf returns verdicts that say done.
func doneOf(handles ...event.Handle) (verdicts []event.Verdict) {
	for _, h := range handles {
		verdicts = append(verdicts, event.Verdict{Handle: h, Kind: event.Done})
	}
	return verdicts
}

func (tt *tableTest) say(number int, kind event.VerdictKind, epoch int64, events ...int) {
	for _, n := range events {
		v := event.Verdict{Handle: tt.handle(n), Kind: kind, Detail: &event.Detail{Delay: 100 * time.Millisecond, Epoch: event.Position{Ledger: epoch}}}
		tt.Settle(tt.now, peerNumber(number), []event.Verdict{v}, &tt.out)
	}
}

// done says done by sets.
func (tt *tableTest) done(number int, events ...int) {
	for _, set := range setsOf(tt.handlesOf(events...)...) {
		tt.Done(peerNumber(number), set, &tt.out)
	}
}

// ended returns the numbers of the events that are done, in the order of the moves.
func (tt *tableTest) ended() (numbers []int) {
	for _, h := range handlesIn(tt.out.Done) {
		numbers = append(numbers, tt.numbers[h])
	}
	return numbers
}

func (tt *tableTest) wantTake(number int, want ...int) {
	tt.t.Helper()
	if got := tt.take(number); !slices.Equal(got, want) {
		tt.t.Fatalf("peer %d takes %v, want %v", number, got, want)
	}
}

func TestNotOwnerWaitsForANewerRoute(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
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
	})
}

func TestNotOwnerIsSentAtOnceWhenTheRouteHasMoved(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.hold("k", 1, 1)
		tt.wantTake(1, 1)
		tt.owner(2, 2)
		tt.wantTake(2) // the deposed owner may be working on it
		tt.say(1, event.NotOwner, 2, 1)
		tt.wantTake(2, 1)
	})
}

func TestQueuedEventsFollowTheRoute(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.hold("up", 1, 2)
		tt.PeerDown(tt.now, peerNumber(1), &tt.out)
		tt.hold("down", 3, 3)
		tt.owner(2, 2)
		tt.wantTake(2, 1, 2, 3)
	})
}

func TestNotOwnerIsRetriedAfterAWhile(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.hold("k", 1, 1)
		tt.wantTake(1, 1)
		tt.say(1, event.NotOwner, 9, 1)
		if next := tt.Next().Sub(tt.now); next != tt.config.RefusedRetry {
			t.Errorf("next in %v, want %v", next, tt.config.RefusedRetry)
		}
		tt.after(tt.config.RefusedRetry)
		tt.wantTake(1, 1)
	})
}

// Done settles the events that its peer has or had, once, regardless of other verdicts before, among
// and after.
func TestDone(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.hold("k", 1, 3)
		tt.wantTake(1, 1, 2, 3)
		tt.Settle(tt.now, peerNumber(2), doneOf(tt.handlesOf(1, 2)...), &tt.out) // never had them
		if tt.n != 3 || tt.Stats().Ignored != 2 {
			t.Fatalf("%d held, %d ignored", tt.n, tt.Stats().Ignored)
		}
		tt.say(1, event.Attempted, 0, 1)
		tt.say(1, event.NotYet, 0, 2) // the peer has it no longer, but may have finished it
		tt.Settle(tt.now, peerNumber(1), doneOf(tt.handlesOf(1, 2, 1, 9)...), &tt.out)
		tt.say(1, event.Attempted, 0, 1)
		tt.say(1, event.Failed, 0, 2)
		if want := []int{1, 2}; !slices.Equal(tt.ended(), want) || tt.n != 1 || tt.Stats().Ignored != 6 {
			t.Errorf("done are %v, want %v; %d held, %d ignored", tt.ended(), want, tt.n, tt.Stats().Ignored)
		}
		tt.wantDoneOnly()
	})
}

// wantDoneOnly fails if a set of the moves is not of its entry, or if other verdicts settle events.
func (tt *tableTest) wantDoneOnly() {
	tt.t.Helper()
	for _, set := range tt.out.Done {
		if set.Entry == nil || set.Entry.First != set.First {
			tt.t.Errorf("the set of %v comes with the entry %+v", set.First, set.Entry)
		}
		for i := range set.Events.All() {
			if n, held := tt.numbers[set.First|event.Handle(i)]; !held || tt.entries[n] != set.Entry {
				tt.t.Errorf("event %d of %v is done, and was not held with that entry", i, set.First)
			}
		}
	}
	if len(tt.out.Verdicts) != 0 || len(tt.out.Settled) != 0 {
		tt.t.Errorf("settled %+v by %+v, want done only", tt.out.Settled, tt.out.Verdicts)
	}
}

// TestDoneBySets is TestDone for sets, which may have events that are settled, of others or of none.
func TestDoneBySets(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.hold("k", 1, 3)
		tt.wantTake(1, 1, 2, 3)
		tt.done(2, 1, 2) // never had them
		tt.done(7, 1)    // there is no such peer
		if tt.n != 3 || tt.Stats().Ignored != 3 || !tt.out.Empty() && len(tt.out.Done) > 0 {
			t.Fatalf("%d held, %d ignored, done are %v", tt.n, tt.Stats().Ignored, tt.ended())
		}
		tt.say(1, event.Attempted, 0, 1)
		tt.say(1, event.NotYet, 0, 2) // the peer has it no longer, but may have finished it
		tt.done(1, 1, 2, 9)           // 9 was never held
		tt.done(1, 1)
		tt.Done(peerNumber(1), setOf(tt.handle(1).First(), event.EntryEventsMax-1), &tt.out) // beyond the entry
		tt.say(1, event.Attempted, 0, 1)
		tt.say(1, event.Failed, 0, 2)
		if want := []int{1, 2}; !slices.Equal(tt.ended(), want) || tt.n != 1 || tt.Stats().Ignored != 8 {
			t.Errorf("done are %v, want %v; %d held, %d ignored", tt.ended(), want, tt.n, tt.Stats().Ignored)
		}
		tt.wantDoneOnly()
		tt.done(1, 3)
		if s := tt.Stats(); s.Events != 0 || s.Bytes != 0 || s.In != [places]int{} {
			t.Errorf("all are done: stats = %+v", s)
		}
	})
}

// Done of a holder settles the events that are queued, sent or waiting elsewhere meanwhile.
func TestDoneOfAnEarlierHolderIsTakenWhereverTheEventIs(t *testing.T) {
	for name, c := range map[string]struct {
		place Place
		move  func(tt *tableTest)
	}{
		"queued":  {Queued, func(*tableTest) {}},
		"sent":    {Sent, func(tt *tableTest) { tt.wantTake(2, 1, 2, 3) }},
		"full":    {Full, func(tt *tableTest) { tt.wantTake(2, 1, 2, 3); tt.say(2, event.Overloaded, 0, 1, 2, 3) }},
		"delayed": {Delayed, func(tt *tableTest) { tt.wantTake(2, 1, 2, 3); tt.say(2, event.NotYet, 0, 1, 2, 3) }},
		"refused": {Refused, func(tt *tableTest) { tt.wantTake(2, 1, 2, 3); tt.say(2, event.NotOwner, 9, 1, 2, 3) }},
	} {
		t.Run(name, func(t *testing.T) {
			inEachForm(t, func(t *testing.T, tt *tableTest) {
				tt.hold("k", 1, 3)
				tt.wantTake(1, 1, 2, 3)
				tt.owner(2, 2)
				tt.PeerDown(tt.now, peerNumber(1), &tt.out)
				tt.PeerUp(tt.now, peerNumber(1), true, &tt.out)
				c.move(tt)
				if got := tt.Stats().In[c.place]; got != 3 {
					t.Fatalf("%d events are in the place, want 3", got)
				}
				tt.done(1, 2, 1)
				if want := []int{1, 2}; !slices.Equal(slices.Sorted(slices.Values(tt.ended())), want) || tt.Stats().In[c.place] != 1 {
					t.Errorf("done are %v, want %v; stats = %+v", tt.ended(), want, tt.Stats())
				}
				tt.wantDoneOnly()
				tt.owner(1, 9)
				tt.PeerDown(tt.now, peerNumber(2), &tt.out)
				tt.wantTake(1, 3)
			})
		})
	}
}

// The verdict of an earlier owner counts, once, also while there is no stream to it.
func TestVerdictOfAnEarlierOwnerCounts(t *testing.T) {
	for name, done := range map[string]func(tt *tableTest, number int){
		"verdicts": func(tt *tableTest, number int) { tt.say(number, event.Done, 0, 1) },
		"sets":     func(tt *tableTest, number int) { tt.done(number, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			inEachForm(t, func(t *testing.T, tt *tableTest) {
				tt.hold("k", 1, 1)
				tt.wantTake(1, 1)
				tt.owner(2, 2)
				tt.PeerDown(tt.now, peerNumber(1), &tt.out)
				tt.wantTake(2, 1)
				tt.say(1, event.NotOwner, 2, 1) // the peer has it no longer, so this changes nothing
				done(tt, 3)                     // never had it
				if tt.n != 1 || len(tt.ended()) != 0 {
					t.Fatalf("%d held, done are %v", tt.n, tt.ended())
				}
				done(tt, 1)
				if !slices.Equal(tt.ended(), []int{1}) {
					t.Errorf("done are %v after the verdict of the earlier owner", tt.ended())
				}
				done(tt, 2)
				if tt.n != 0 || !slices.Equal(tt.ended(), []int{1}) || tt.Stats().Ignored != 3 {
					t.Errorf("%d held, done are %v, %d ignored", tt.n, tt.ended(), tt.Stats().Ignored)
				}
				tt.wantDoneOnly()
			})
		})
	}
}

// An owner that is cut off from the control log alone keeps its stream and answers nothing. When others have taken its
// partition over, its events go to the next owner, before later ones of their keys, and its late verdicts count once.
func TestEventsOfATakenOverPartitionGoToTheNextOwner(t *testing.T) {
	partition := func(which ring.Partition) func(ring.Partition) bool {
		return func(p ring.Partition) bool { return p == which }
	}
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.hold("k", 1, 3)
		tt.wantTake(1, 1, 2, 3)
		tt.owner(2, 2)
		tt.hold("k", 4, 4)
		if n := tt.TakenOver(peerNumber(1), partition(2), &tt.out) + tt.TakenOver(peerNumber(3), partition(1), &tt.out); n != 0 {
			t.Fatalf("%d events go to another owner, of another partition or peer", n)
		}
		if n := tt.TakenOver(peerNumber(1), partition(1), &tt.out); n != 3 {
			t.Fatalf("the owner had not answered %d events, want 3", n)
		}
		if !slices.Contains(tt.out.Wake, peerNumber(1)) {
			t.Error("the stream that was kept for these events alone is not woken, to end")
		}
		tt.wantTake(1)
		tt.wantTake(2, 1, 2, 3, 4)
		tt.say(1, event.NotOwner, 2, 2) // it has read the log at last
		tt.say(1, event.Done, 0, 1)
		tt.done(2, 1, 2, 3, 4)
		if want := []int{1, 2, 3, 4}; !slices.Equal(tt.ended(), want) || tt.n != 0 {
			t.Errorf("done are %v, want %v; %d are held", tt.ended(), want, tt.n)
		}
		tt.wantDoneOnly()
	})
}

func TestOverloadedParksOnlyItsKey(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
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
	})
}

func TestCreditReleasesAtOnce(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.hold("hot", 1, 2)
		tt.wantTake(1, 1, 2)
		tt.say(1, event.Overloaded, 0, 1, 2)
		tt.Credit(tt.now, peerNumber(2), nil, 0, &tt.out) // not the one that refused
		tt.wantTake(1)
		tt.Credit(tt.now, peerNumber(1), []event.Key{"hot"}, 0, &tt.out)
		tt.wantTake(1, 1, 2)
	})
}

func TestBrokenStreamKeepsOrder(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.hold("k", 1, 3)
		tt.wantTake(1, 1, 2, 3)
		tt.hold("k", 4, 5)
		tt.say(1, event.Done, 0, 2)
		tt.PeerDown(tt.now, peerNumber(1), &tt.out)
		tt.wantTake(1)
		tt.PeerUp(tt.now, peerNumber(1), true, &tt.out)
		tt.wantTake(1, 1, 3, 4, 5)
	})
}

func TestAttemptsTravelWithTheEvent(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.hold("k", 1, 1)
		first, _ := tt.Take(peerNumber(1), 1000, 1<<20, nil)
		given := first[0].Event()
		v := event.Verdict{Handle: tt.handle(1), Kind: event.Attempted, Detail: &event.Detail{Attempts: 3, Crashes: 2, Reason: strings.Repeat("x", 2*textMax)}}
		tt.Settle(tt.now, peerNumber(1), []event.Verdict{v}, &tt.out)
		tt.owner(2, 2)
		tt.PeerDown(tt.now, peerNumber(1), &tt.out)
		batch, _ := tt.Take(peerNumber(2), 1, 1, nil)
		if ev := batch[0].Event(); ev.Attempts != 3 || ev.Crashes != 2 || len(ev.LastError) != textMax || ev.FirstError == "" || ev.Handle != tt.handle(1) || ev.Key != "k" {
			t.Errorf("the next owner gets %d attempts, %d crashes and an error of %d bytes", ev.Attempts, ev.Crashes, len(ev.LastError))
		}
		if got, want := weightOf(&batch[0]), weightOf(&first[0])+2*textMax; got < want {
			t.Errorf("with its errors it weighs %d bytes, want %d", got, want)
		}
		if ev := tt.Newest(tt.handle(1)); ev.Attempts != 3 || len(ev.LastError) != textMax {
			t.Errorf("the newest event has %d attempts and an error of %d bytes", ev.Attempts, len(ev.LastError))
		}
		if given.Attempts != 0 || tt.entries[1].Event(0).Attempts != 0 {
			t.Error("the event was written to while its first owner may look at it")
		}
		v = event.Verdict{Handle: tt.handle(1), Kind: event.Failed, Detail: &event.Detail{Attempts: 4}}
		tt.Settle(tt.now, peerNumber(2), []event.Verdict{v}, &tt.out)
		if ref := tt.out.Settled[0]; len(tt.out.Settled) != 1 || ref.Handle() != tt.handle(1) || ref.Event().Attempts != 3 || tt.out.Verdicts[0] != v {
			t.Errorf("settled %+v by %+v", tt.out.Settled, tt.out.Verdicts)
		}
		if tt.Newest(tt.handle(1)) != nil || len(tt.extras) != 0 {
			t.Errorf("%d events that have ended are remembered", len(tt.extras))
		}
	})
}

// Verdicts other than Done come with the event that they settle, in their order.
func TestVerdictsComeWithTheirEvents(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.hold("k", 1, 4)
		tt.wantTake(1, 1, 2, 3, 4)
		tt.say(1, event.Rejected, 0, 3)
		tt.say(1, event.Failed, 0, 1)
		tt.done(1, 2)
		tt.say(1, event.Parked, 0, 4)
		if len(tt.out.Settled) != 3 || len(tt.out.Verdicts) != 3 || !slices.Equal(tt.ended(), []int{2}) {
			t.Fatalf("settled %+v by %+v, done are %v", tt.out.Settled, tt.out.Verdicts, tt.ended())
		}
		for i, want := range []struct {
			number int
			kind   event.VerdictKind
		}{{3, event.Rejected}, {1, event.Failed}, {4, event.Parked}} {
			ref, v := tt.out.Settled[i], tt.out.Verdicts[i]
			if ref.Handle() != tt.handle(want.number) || v.Handle != ref.Handle() || v.Kind != want.kind || ref.Entry != tt.entries[want.number] {
				t.Errorf("verdict %d is %s on %d and comes with event %d, want %s on %d", i, v.Kind, tt.numbers[v.Handle], tt.numbers[ref.Handle()], want.kind, want.number)
			}
		}
	})
}

func TestRelayedEventNeverWaits(t *testing.T) {
	tt := newTableTest(t, false)
	relayed := func(n int) { tt.holdEntry(n, entryOf(event.NewRelayedHandle(uint64(n), 0), &event.Event{})) }
	relayed(1)
	tt.wantTake(1, 1)
	tt.say(1, event.NotOwner, 2, 1)
	relayed(2)
	tt.wantTake(1, 2)
	tt.PeerDown(tt.now, peerNumber(1), &tt.out)
	relayed(3)
	var kinds []event.VerdictKind
	for i, v := range tt.out.Verdicts {
		kinds = append(kinds, v.Kind)
		if want := tt.handle(i + 1); v.Handle != want || tt.out.Settled[i].Handle() != want {
			t.Errorf("the verdict on %d comes with event %d, want %d", v.Handle, tt.out.Settled[i].Handle(), want)
		}
	}
	if want := []event.VerdictKind{event.NotOwner, event.NotYet, event.NotYet}; !slices.Equal(kinds, want) || tt.n != 0 || tt.Stats().Bytes != 0 {
		t.Errorf("relayed events end with %v, want %v; %d are held", kinds, want, tt.n)
	}
}

// What the owner tells of the failures of a relayed event goes on to its consumer node, which would not know it after the owner's death. The event
// stays with its owner.
func TestFailuresOfRelayedEventsArePassedOn(t *testing.T) {
	tt := newTableTest(t, false)
	tt.holdEntry(1, entryOf(event.NewRelayedHandle(1, 0), &event.Event{Key: "k", Partition: ring.Partition(1)}))
	tt.hold("k", 2, 2) // of its own
	tt.wantTake(1, 1, 2)
	failures := []event.Verdict{
		{Handle: tt.handle(1), Kind: event.Attempted, Detail: &event.Detail{Attempts: 2, Reason: "no"}},
		{Handle: tt.handle(2), Kind: event.Attempted, Detail: &event.Detail{Attempts: 2, Reason: "no"}},
	}
	tt.Settle(tt.now, peerNumber(2), failures, &tt.out) // which has neither
	if !tt.out.Empty() && len(tt.out.Attempted) > 0 {
		t.Errorf("a stranger's word is passed on: %+v", tt.out.Attempted)
	}
	tt.Settle(tt.now, peerNumber(1), failures, &tt.out)
	if !slices.Equal(tt.out.Attempted, failures[:1]) || len(tt.out.Verdicts) > 0 || tt.out.Empty() || tt.n != 2 {
		t.Fatalf("passed on are %+v, settled %+v, %d are held", tt.out.Attempted, tt.out.Verdicts, tt.n)
	}
	if tt.out.Reset(); len(tt.out.Attempted) > 0 || !tt.out.Empty() {
		t.Error("it is passed on again")
	}
	tt.done(1, 1)
	if got := tt.ended(); !slices.Equal(got, []int{1}) {
		t.Errorf("done are %v", got)
	}
}

// Relayed events do not wait behind others of their key, and of an entry of them each one has its own end.
func TestRelayedEventsOfAnEntryEndOneByOne(t *testing.T) {
	tt := newTableTest(t, true)
	tt.hold("k", 1, 1)
	tt.wantTake(1, 1)
	tt.holdEntry(10, entryOf(event.NewRelayedHandle(1, 0), &event.Event{Key: "k"}, &event.Event{Key: "k"}, &event.Event{Key: "other"}))
	tt.say(1, event.Overloaded, 0, 1)
	tt.wantTake(1, 10, 11, 12) // they were queued before the key was full
	tt.say(1, event.NotYet, 0, 11)
	tt.done(1, 10)
	if !slices.Equal(tt.ended(), []int{10}) || len(tt.out.Verdicts) != 1 || tt.out.Verdicts[0].Handle != tt.handle(11) || tt.n != 2 {
		t.Errorf("done are %v, the verdicts are %+v, %d events are held", tt.ended(), tt.out.Verdicts, tt.n)
	}
	tt.holdEntry(20, entryOf(event.NewRelayedHandle(2, 0), &event.Event{Key: "k"})) // now the key waits
	if n := len(tt.out.Verdicts); n != 2 || tt.out.Verdicts[1].Handle != tt.handle(20) || tt.out.Verdicts[1].Kind != event.NotYet {
		t.Errorf("the verdicts are %+v, want NotYet on event 20", tt.out.Verdicts)
	}
	tt.PeerDown(tt.now, peerNumber(1), &tt.out)
	if n := len(tt.out.Verdicts); n != 3 || tt.out.Verdicts[2].Handle != tt.handle(12) {
		t.Errorf("the verdicts are %+v, want one more on event 12", tt.out.Verdicts)
	}
	if tt.n != 1 {
		t.Errorf("%d events are held, want the own one", tt.n)
	}
}

func TestRelayGoesByTurnsAndBack(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.PeerUp(tt.now, peerNumber(3), true, &tt.out)
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
		tt.PeerUp(tt.now, peerNumber(1), true, &tt.out)
		tt.after(tt.config.RefusedRetry)
		tt.wantTake(1, 1)
	})
}

// A peer may have events of one entry as their owner and others to relay them. A refusal of these is no matter of its mailbox.
func TestRefusalOfARelayIsToldFromThatOfAnOwner(t *testing.T) {
	tt := newTableTest(t, true)
	tt.SetRoute(tt.now, peerNumber(0), fixedRoute{owners: []Peer{peerNumber(1), peerNumber(2)}, epoch: event.Position{Ledger: 2}}, &tt.out)
	tt.PeerDown(tt.now, peerNumber(1), &tt.out)
	tt.holdEntry(1, bytesEntryOf(tt.nextFirst(), &event.Event{Key: "relayed", Partition: 0}, &event.Event{Key: "owned", Partition: 1}))
	tt.wantTake(2, 2)
	tt.after(tt.config.UnreachableHoldMax)
	batch, relay := tt.Take(peerNumber(2), 1000, 1<<20, nil)
	if len(batch) != 1 || batch[0].Handle() != tt.handle(1) || !relay {
		t.Fatalf("taken are %+v, to be relayed: %t", batch, relay)
	}
	tt.say(2, event.Overloaded, 0, 1, 2)
	for number, want := range map[int]Place{1: Refused, 2: Full} {
		if got, held := tt.Has(tt.handle(number)); got != want || !held {
			t.Errorf("event %d is %s, want %s", number, got, want)
		}
	}
}

// The size of a table is that of the entries of which an event is held, in whatever order events end.
func TestBytesAreThoseOfTheHeldEntries(t *testing.T) {
	tt := newTableTest(t, true)
	big := bytesEntryOf(event.NewHandle(8, 0), &event.Event{Key: "k", Payload: make([]byte, 5000)}, &event.Event{Key: "l", Payload: make([]byte, 700)})
	small := entryOf(event.NewHandle(9, 0), &event.Event{Key: "k", Payload: make([]byte, 300)}, &event.Event{Key: "m"})
	if big.Bytes < 5700 || small.Bytes < 300 {
		t.Fatalf("the entries have %d and %d bytes", big.Bytes, small.Bytes)
	}
	tt.holdEntry(1, big)
	tt.holdEntry(3, small)
	want := func(bytes int) {
		t.Helper()
		if got := tt.Stats().Bytes; got != bytes {
			t.Errorf("%d bytes are held, want %d", got, bytes)
		}
	}
	want(big.Bytes + small.Bytes)
	tt.take(1)
	tt.done(1, 1, 4)
	want(big.Bytes + small.Bytes)
	tt.say(1, event.Failed, 0, 2)
	want(small.Bytes)
	tt.Drop(tt.handlesOf(3))
	want(0)
	tt.say(1, event.Done, 0, 3)
	for _, kind := range []event.VerdictKind{event.Failed, event.Rejected} {
		tt.say(1, kind, 0, 3) // its copy comes back without it
	}
	if s := tt.Stats(); s.Ignored != 3 || s.MissedFailures != 2 {
		t.Errorf("%d verdicts are ignored, %d of them failures, want 3 and 2", s.Ignored, s.MissedFailures)
	}
}

// Only the fresh events of an entry are held; of those that are not there may be no object.
func TestOnlyFreshEventsAreHeld(t *testing.T) {
	tt := newTableTest(t, true)
	e := event.NewEntry(event.Message{}, event.Message{Event: &event.Event{Key: "k"}}, event.Message{}, event.Message{Event: &event.Event{Key: "k"}})
	e.SetFirst(event.NewHandle(5, 0))
	e.Fresh = event.NewBits(4)
	e.Fresh.Add(1)
	e.Fresh.Add(3)
	tt.holdEntry(0, e)
	none := event.NewBatch(1, 10)
	none.AddPart(event.Part{Key: "k"}, []byte("p"), "", nil)
	none.SetFirst(event.NewHandle(6, 0))
	tt.Hold(tt.now, none, &tt.out)
	if s := tt.Stats(); s.Events != 2 || s.Bytes != e.Bytes {
		t.Errorf("stats = %+v, want 2 events of %d bytes", s, e.Bytes)
	}
	tt.wantTake(1, 1, 3)
	tt.done(1, 0, 1, 2, 3)
	if want := []int{1, 3}; !slices.Equal(tt.ended(), want) || tt.n != 0 || tt.Stats().Ignored != 2 {
		t.Errorf("done are %v, want %v; %d are held, %d ignored", tt.ended(), want, tt.n, tt.Stats().Ignored)
	}
}

// An event too large for a frame is rejected at once, and the others of its entry are held.
func TestOversizedEventOfAnEntry(t *testing.T) {
	for name, makeEntry := range map[string]func(event.Handle, ...*event.Event) *event.Entry{"objects": entryOf, "bytes": bytesEntryOf} {
		t.Run(name, func(t *testing.T) {
			tt := newTableTest(t, true)
			tt.holdEntry(1, makeEntry(event.NewHandle(5, 0),
				&event.Event{Key: "k", Partition: 1}, &event.Event{Key: "k", Partition: 1, Payload: make([]byte, tt.config.FrameMax)}, &event.Event{Key: "k", Partition: 1}))
			if len(tt.out.Settled) != 1 || tt.out.Settled[0].Handle() != tt.handle(2) || tt.out.Verdicts[0].Kind != event.Rejected || tt.n != 2 {
				t.Errorf("settled %d by %+v; %d are held", len(tt.out.Settled), tt.out.Verdicts, tt.n)
			}
			tt.wantTake(1, 1, 3)
			tt.out.Reset()
			tt.holdEntry(9, makeEntry(event.NewHandle(6, 0), &event.Event{Key: "k", Payload: make([]byte, tt.config.FrameMax)}))
			if s := tt.Stats(); s.Events != 2 || s.Bytes != tt.entries[1].Bytes || len(tt.out.Verdicts) != 1 {
				t.Errorf("after an entry of nothing else: %+v, settled by %+v", s, tt.out.Verdicts)
			}
		})
	}
}

// The oldest is known exactly, in whatever order events end.
func TestOldest(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		begun := tt.now
		for n := range 3 {
			tt.hold("k", 2*n+1, 2*n+2)
			tt.after(time.Second)
		}
		tt.wantTake(1, 1, 2, 3, 4, 5, 6)
		for _, step := range []struct {
			done int
			want clock.Instant
		}{{2, begun}, {3, begun}, {4, begun}, {1, begun.Add(2 * time.Second)}, {6, begun.Add(2 * time.Second)}, {5, 0}} {
			tt.say(1, event.Done, 0, step.done)
			if got := tt.Stats().Oldest; got != step.want {
				t.Errorf("after event %d the oldest is of %v, want %v", step.done, got, step.want)
			}
		}
	})
}

// An object's own topic counts too: its entry has none.
func TestEventWithAnOversizedTopicIsRejected(t *testing.T) {
	tt := newTableTest(t, true)
	tt.holdEntry(1, entryOf(event.NewRelayedHandle(1, 0), &event.Event{Key: "k", Topic: strings.Repeat("t", tt.config.FrameMax)}, &event.Event{Key: "k"}))
	if len(tt.out.Verdicts) != 1 || tt.out.Verdicts[0].Handle != tt.handle(1) || tt.out.Verdicts[0].Kind != event.Rejected || tt.n != 1 {
		t.Errorf("the verdicts are %+v; %d events are held, want the other one", tt.out.Verdicts, tt.n)
	}
}

// Events with the same index are told apart by the serial numbers of their entries, and those of relayed ones are another series. An entry
// that is held already is ignored as a whole.
func TestEntriesAreToldApart(t *testing.T) {
	tt := newTableTest(t, true)
	three := func() []*event.Event { return []*event.Event{{Key: "k"}, {Key: "k"}, {Key: "k"}} }
	earlier, later := bytesEntryOf(event.NewHandle(1, 0), three()...), bytesEntryOf(event.NewHandle(2, 0), three()...)
	tt.holdEntry(10, earlier)
	tt.holdEntry(20, later)
	tt.Hold(tt.now, later, &tt.out) // held already
	if s := tt.Stats(); s.Events != 6 || s.Ignored != 3 || s.Bytes != earlier.Bytes+later.Bytes {
		t.Fatalf("stats = %+v", s)
	}
	relayed := entryOf(event.NewRelayedHandle(1, 0), three()...)
	tt.holdEntry(30, relayed)
	tt.Hold(tt.now, relayed, &tt.out)
	tt.Drop(tt.handlesOf(30, 31, 32, 99))
	tt.wantTake(1, 10, 11, 12, 20, 21, 22)
	tt.done(1, 99, 12) // an unknown entry
	tt.Hold(tt.now, earlier, &tt.out)
	tt.done(1, 10, 11)
	tt.done(1, 12, 32)
	tt.done(1, 20, 22)
	tt.say(1, event.Done, 0, 21, 31) // joins the set
	if want := []int{12, 10, 11, 20, 21, 22}; !slices.Equal(tt.ended(), want) || tt.n != 0 || tt.Stats().Bytes != 0 {
		t.Errorf("done are %v, want %v; %d are held", tt.ended(), want, tt.n)
	}
	// Three times an entry of 3 events, event 99, event 12 the second time, events 32 and 31.
	if got := tt.Stats().Ignored; got != 3*3+4 {
		t.Errorf("%d are ignored, want %d", got, 3*3+4)
	}
	tt.wantDoneOnly()
}

// Events that come back are sent before the later ones of their queue, those of their own entry and those of others.
func TestLateEventsAreSortedIn(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.hold("a", 1, 4)
		tt.hold("b", 5, 8)
		tt.hold("c", 9, 10)
		for n := 1; n <= 10; n++ { // one by one, so that their entries are taken in parts
			if batch, _ := tt.Take(peerNumber(1), 1, 1<<20, nil); len(batch) != 1 || tt.numbers[batch[0].Handle()] != n {
				t.Fatalf("event %d is taken as %+v", n, batch)
			}
		}
		tt.hold("d", 11, 12)
		tt.say(1, event.NotYet, 0, 7, 5, 8, 6) // comes back in the order of the key
		tt.say(1, event.NotYet, 0, 3)
		tt.say(1, event.NotYet, 0, 2)
		tt.after(100 * time.Millisecond)
		tt.wantTake(1, 2, 3, 5, 6, 7, 8, 11, 12)
		tt.done(1, 3, 9, 12)
		tt.hold("e", 13, 13)
		tt.PeerDown(tt.now, peerNumber(1), &tt.out)
		tt.owner(2, 2)
		tt.wantTake(2, 1, 2, 4, 5, 6, 7, 8, 10, 11, 13)
	})
}

// recordsOf returns n records of entries of events each, the i-th with the age i+1.
func recordsOf(n, events int) []*record {
	records := make([]*record, n)
	for i := range records {
		e := event.NewBatch(events, 0)
		for range events {
			e.AddPart(event.Part{}, nil, "", nil)
		}
		e.SetFirst(event.NewHandle(uint64(i+1), 0))
		records[i] = &record{entry: e, age: uint64(i + 1), events: event.AllBits(events), n: events}
	}
	return records
}

// A list yields its events by age, in whatever order they come and go, and its array does not grow with the
// number of events that have passed through.
func TestList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l list
		var want, out []held
		records, given := recordsOf(60, 5), 0
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch step := rapid.IntRange(0, 5).Draw(t, "step"); {
			case step < 2:
				fresh := held{records[given/5], given % 5}
				given++
				l.add(fresh)
				want = append(want, fresh)
			case step == 2 && len(out) > 0: // comes back
				i := rapid.IntRange(0, len(out)-1).Draw(t, "which")
				l.add(out[i])
				want = append(want, out[i])
				slices.SortFunc(want, byOrder)
				out = slices.Delete(out, i, i+1)
			case step > 2 && len(l) > 0:
				i := 0
				if step == 5 {
					i = rapid.IntRange(0, len(l)-1).Draw(t, "which")
				}
				l.remove(want[i])
				out = append(out, want[i])
				want = slices.Delete(want, i, i+1)
			}
			for _, h := range out {
				l.remove(h)
			}
			if !slices.Equal(l, want) {
				t.Fatalf("%d events are listed, want %d, or their order is wrong", len(l), len(want))
			}
		}
	})
	var l list
	for _, r := range recordsOf(100_000, 1) {
		if l.add(held{r, 0}); len(l) > 10 {
			l.remove(l[0])
		}
	}
	if most := 100; cap(l) > most {
		t.Errorf("10 events need room for %d, want at most %d", cap(l), most)
	}
}

// A queue yields its events in their order, in whatever order they come and go, and its array does not grow with the number of
// records that have passed through.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const perEntry = 70
		table := NewTable(DefaultConfig())
		l := &lane{peer: peerNumber(1)}
		var want, out []held
		for _, r := range recordsOf(rapid.IntRange(1, 6).Draw(t, "records"), perEntry) {
			for i := range perEntry {
				out = append(out, held{r, i})
			}
		}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch step := rapid.IntRange(0, 5).Draw(t, "step"); {
			case step < 3 && len(out) > 0: // in any order
				i := rapid.IntRange(0, len(out)-1).Draw(t, "which")
				out[i].enqueue(l)
				want = append(want, out[i])
				slices.SortFunc(want, byOrder)
				out = slices.Delete(out, i, i+1)
			case step >= 3 && len(want) > 0:
				i := 0
				if step == 5 {
					i = rapid.IntRange(0, len(want)-1).Draw(t, "which")
				}
				if s := want[i].queuedFor(); s == nil || s.lane != l {
					t.Fatal("a queued event is not found")
				}
				table.lift(want[i])
				out = append(out, want[i])
				want = slices.Delete(want, i, i+1)
			}
			if got := l.queue.all(); !slices.Equal(got, want) || l.queuedN != len(want) {
				t.Fatalf("%d events are queued, said to be %d, want %d, or their order is wrong", len(got), l.queuedN, len(want))
			}
			s := l.queue.front()
			if (s == nil) != (len(want) == 0) || s != nil && (held{s.record, s.queued.First()}) != want[0] {
				t.Fatal("the first event is not the front")
			}
		}
	})
	l := &lane{peer: peerNumber(1)}
	for _, r := range recordsOf(100_000, 1) {
		if (held{r, 0}).enqueue(l); l.queuedN > 10 {
			l.queue.front().dequeue(0)
			l.queue.front()
		}
	}
	if most := 100; cap(l.queue.shares) > most {
		t.Errorf("10 records need room for %d, want at most %d", cap(l.queue.shares), most)
	}
}

// Entries whose events were dropped, or have moved to another lane, do not stay in memory because of a queue that nobody takes from.
func TestAQueueThatNobodyTakesFromKeepsNoEntries(t *testing.T) {
	tt := newTableTest(t, false)
	tt.PeerDown(tt.now, peerNumber(1), &tt.out)
	tt.PeerDown(tt.now, peerNumber(2), &tt.out)
	const events = 1000
	for n := range events {
		tt.hold("k", n, n)
		if n%10 > 0 { // as spilling does
			tt.Drop([]event.Handle{tt.handles[n]})
		}
	}
	l := tt.find(peerNumber(1))
	if n := len(l.queue.shares); n > 2*events/10+100 || l.queuedN != events/10 {
		t.Errorf("%d shares are in the queue, with %d events", n, l.queuedN)
	}
	tt.owner(2, 2)
	if n := len(l.queue.shares) + l.queue.empty; n > 0 || l.queuedN != 0 {
		t.Errorf("%d shares are in the queue of the old owner, with %d events", n, l.queuedN)
	}
	tt.PeerUp(tt.now, peerNumber(2), true, &tt.out)
	if got := tt.take(2); len(got) != events/10 {
		t.Errorf("the new owner takes %d events, want %d", len(got), events/10)
	}
}

// A final verdict of an earlier holder settles an event that the next owner has by now; another member's does not.
func TestAnEarlierHolderSettles(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		tt.hold("k", 1, 1)
		tt.wantTake(1, 1)
		tt.PeerDown(tt.now, peerNumber(1), &tt.out)
		tt.owner(2, 2)
		tt.wantTake(2, 1)
		tt.say(3, event.Failed, 0, 1)
		if tt.n != 1 {
			t.Fatal("a member that never had the event has settled it")
		}
		tt.say(1, event.Failed, 0, 1)
		if tt.n != 0 || len(tt.out.Verdicts) != 1 || tt.out.Verdicts[0].Kind != event.Failed {
			t.Errorf("%d events are held, and settled are %v, want none and the failure", tt.n, tt.out.Verdicts)
		}
		ignored := tt.Stats().Ignored
		tt.say(2, event.Rejected, 0, 1)
		if tt.Stats().Ignored != ignored+1 || len(tt.out.Verdicts) != 1 {
			t.Errorf("the second verdict counts: %v", tt.out.Verdicts)
		}
	})
}

// What is known of peers that are gone, own nothing and have no events is forgotten.
func TestPeersThatAreGoneAreForgotten(t *testing.T) {
	tt := newTableTest(t, false)
	before := len(tt.lanes)
	for number := 10; number < 100; number++ {
		tt.owner(number, int64(number))
		tt.PeerUp(tt.now, peerNumber(number), true, &tt.out)
		tt.hold("k", number, number)
		tt.wantTake(number, number)
		tt.done(number, number)
		if number%2 == 0 { // it leaves, or it dies
			tt.owner(1, int64(number))
			tt.PeerDown(tt.now, peerNumber(number), &tt.out)
		} else {
			tt.PeerDown(tt.now, peerNumber(number), &tt.out)
			tt.owner(1, int64(number))
		}
	}
	if n := len(tt.lanes); n != before {
		t.Errorf("%d peers are known, want %d", n, before)
	}
}
