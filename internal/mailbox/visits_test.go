package mailbox

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// A visit whose time was up when a worker looked, and is not any more since another caller has joined before Tick, still runs.
func TestVisitThatIsWantedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		call   event.Call
		worker event.WorkerID
	}{
		"call":        {event.Call{Method: "m", ID: "id"}, 1},
		"reservation": {event.Call{ID: "id", Reservation: true}, event.Keeper},
	} {
		t.Run(name, func(t *testing.T) {
			b, lease := New(modelConfig, modelRetry, "me"), ownership.Lease{Until: clock.Forever}
			var out Output
			key, now := event.Key("key"), clock.Instant(time.Hour)
			p := ring.PartitionOf(string(key))
			b.SetGates(now, []ownership.GateChange{{Partition: p, Gate: ownership.Open, Token: 1}}, event.Position{}, &out)
			b.WorkerUp(now, 1, &out)
			ask := func(h event.Handle, timeout time.Duration) {
				call := c.call
				call.Deadline = now.Add(timeout)
				b.Accept(now, Local, event.Position{}, event.RefsTo(&event.Event{Handle: h, ID: event.CallMessageID(key, "id", 0), Key: key, Partition: p, Call: &call}), &out)
			}
			ask(1, time.Second)
			now = now.Add(2 * time.Second)
			if got := b.Take(now, lease, c.worker, 1, nil); len(got) != 0 {
				t.Fatalf("it begins after its time: %+v", got)
			}
			ask(2, time.Minute)
			out.Reset()
			b.Tick(now, &out)
			if got := b.Take(now, lease, c.worker, 1, nil); len(got) != 1 {
				t.Errorf("it does not run: %+v", b.Inspect(key))
			}
		})
	}
}

// However often callers ask for a call or a reservation that waits, it is named once, and found in its key.
func TestRepeatedAsksCostNoMore(t *testing.T) {
	for name, call := range map[string]event.Call{"call": {Method: "m", ID: "id"}, "reservation": {ID: "id", Reservation: true}} {
		for _, leaves := range []bool{false, true} { // the caller gives up, and asks anew
			t.Run(name, func(t *testing.T) {
				f := newFixture(t, nil)
				f.WorkerGone(f.now, 1, &f.out)
				var before event.Handle
				for n := range 1000 {
					e := f.event("key")
					call := call
					call.Deadline = f.now.Add(time.Minute + time.Duration(n)*time.Second)
					e.Handle, e.ID, e.Call = event.NewCallHandle(uint64(n+1)), event.CallMessageID("key", "id", 0), &call
					e.Payload = nil
					if leaves && n > 0 {
						f.Cancel(f.now, Local, []event.Handle{before}, &f.out)
					}
					f.accept(Local, e)
					if !leaves && n > 0 {
						f.Cancel(f.now, Local, []event.Handle{before}, &f.out)
					}
					before = e.Handle
				}
				if n := len(f.visits.watched); n > 100 || len(f.visits.state) != 1 {
					t.Errorf("%d visits have %d names", len(f.visits.state), n)
				}
				a, id := f.actor("key", f.hashOfKey("key")), event.CallMessageID("key", "id", 0)
				if it := f.searchIn(a, f.spans.find(hashOf(id), id), bitOf(id)); it == nil || it.id != id {
					t.Error("it is not found in its key")
				}
				f.out.Reset()
				f.Tick(f.now.Add(500*time.Second), &f.out)
				if len(f.visits.state) != 1 {
					t.Error("it ends before the last of its deadlines")
				}
				f.Tick(f.now.Add(time.Hour), &f.out)
				if s := f.Stats(); s.Visits != 0 || s.Expired != 1 || len(f.visits.watched) != 0 {
					t.Errorf("%d visits are left with %d names, %d have expired", s.Visits, len(f.visits.watched), s.Expired)
				}
			})
		}
	}
}

// A call that runs when its time is up is taken back once, whatever place it has got.
func TestACallIsTakenBackOnce(t *testing.T) {
	f := newFixture(t, nil)
	for n := range 3 { // two of them leave their names behind
		e := f.event("key")
		e.Handle, e.ID = event.NewCallHandle(uint64(n+1)), event.CallMessageID("key", "id", 0)
		e.Call = &event.Call{Method: "m", ID: "id", Deadline: f.now.Add(time.Minute)}
		f.accept(Local, e)
		if n < 2 {
			f.Cancel(f.now, Local, []event.Handle{e.Handle}, &f.out)
		}
	}
	d := f.takeOne()
	f.out.Reset()
	f.Tick(f.now.Add(time.Hour), &f.out)
	if want := []event.DeliveryID{d.ID}; !slices.Equal(f.out.TakeBack, want) || f.Stats().Recalled != 1 {
		t.Errorf("taken back are %v, want %v", f.out.TakeBack, want)
	}
}

// A repeat whose path has its own key never joins a call that waits or runs: that would wait for the handler which waits for it. A reply that is
// remembered is told all the same, and a holder comes back.
func TestRepeatBehindItsOwnKey(t *testing.T) {
	f := newFixture(t, nil)
	ask := func(h uint64, call event.Call, path ...ring.KeyHash) []addressed {
		e := f.event("key")
		call.ID, call.Deadline, call.Path = "id", f.now.Add(time.Minute), path
		e.Handle, e.ID, e.Call, e.Payload = event.NewCallHandle(h), event.CallMessageID("key", fmt.Sprint("id", call.Reservation), 0), &call, nil
		return f.accept(Local, e)
	}
	m, path := event.Call{Method: "m"}, []ring.KeyHash{1, ring.HashOf("key")}
	refused := func(h uint64) addressed {
		return addressed{Local, event.NewCallHandle(h), verdict{event.Answered, *answerCycle}}
	}
	f.want(ask(1, m))
	f.want(ask(2, m, path...), refused(2)) // while the call waits
	d := f.takeOne()
	f.want(ask(3, m, path...), refused(3)) // while it runs
	f.want(ask(4, m, 1))
	if got := f.finish(d, event.ResultDone, ""); len(got) != 2 {
		t.Fatalf("its end is told %+v, want to both that wait for it", got)
	}
	if got := ask(5, m, path...); len(got) != 1 || got[0].Reply.Outcome != event.CallReplied {
		t.Errorf("a repeat after its end is told %+v, want the reply", got)
	}
	held := event.Call{Reservation: true}
	f.want(ask(6, held))
	if got := ask(7, held, path...); len(got) != 1 || got[0].Handle != event.NewCallHandle(6) || got[0].Reply.Code != event.CodeLost {
		t.Errorf("a holder that comes back is told %+v, want it at its former place only, that it is over there", got)
	}
}

// A call that had a place among many events is over when these are, and their places are given up with its own: its deadline passes later, and finds
// nothing.
func TestDeadlineOfACallWhosePlaceIsGone(t *testing.T) {
	config := modelConfig
	config.DepthMax, config.BytesMax = 1_000_000, 1<<40
	b, lease := New(config, modelRetry, "me"), ownership.Lease{Until: clock.Forever}
	var out Output
	key, now := event.Key("key"), clock.Instant(time.Hour)
	p := ring.PartitionOf(string(key))
	b.SetGates(now, []ownership.GateChange{{Partition: p, Gate: ownership.Open, Token: 1}}, event.Position{}, &out)
	b.WorkerUp(now, 1, &out)
	const burst = (idleBlocks + 1) * blockLen
	for i := range int64(burst) {
		e := &event.Event{Handle: event.NewHandle(uint64(i+1), 0), ID: event.MessageID{Ledger: 1, Entry: i, Batch: -1, TopicPartition: -1}, Key: key, Partition: p}
		b.Accept(now, Local, event.Position{}, event.RefsTo(e), &out)
	}
	call := event.Call{Method: "m", ID: "id", Deadline: now.Add(time.Minute)}
	b.Accept(now, Local, event.Position{}, event.RefsTo(&event.Event{Handle: event.NewCallHandle(1), ID: event.CallMessageID(key, "id", 0), Key: key, Partition: p, Call: &call}), &out)
	high := false
	for {
		taken := b.Take(now, lease, 1, 1000, nil)
		if len(taken) == 0 {
			break
		}
		for _, d := range taken {
			if d.Call() != nil {
				high = int(b.find(d.ID).place) >= idleBlocks*blockLen
			}
			b.Finish(now, []event.Result{{Delivery: d.ID, Kind: event.ResultDone}}, &out)
		}
		out.Reset()
	}
	if places := b.items.places(); !high || places != idleBlocks*blockLen {
		t.Fatalf("the call's place is high: %t; %d places are left: this shows nothing", high, places)
	}
	b.Tick(now.Add(time.Hour), &out)
	if got := b.Stats().Events; got != 0 {
		t.Errorf("%d events are left", got)
	}
}

// Callers whose streams have ended take no room from those that ask again.
func TestARepeatJoinsBehindCallersThatAreGone(t *testing.T) {
	f := newFixture(t, nil)
	most := Sender(f.cfg.JoinsMax)
	ask := func(from Sender) []addressed {
		e := f.event("key")
		e.Handle, e.ID, e.Payload = event.NewCallHandle(uint64(from)), event.CallMessageID("key", "id", 0), nil
		e.Call = &event.Call{Method: "m", ID: "id", Deadline: f.now.Add(time.Minute)}
		return f.accept(from, e)
	}
	for from := Sender(1); from <= 2*most; from++ {
		if said := ask(from); len(said) > 0 {
			t.Fatalf("stream %d is answered %+v", from, said)
		}
		f.SenderGone(from)
	}
	if said := ask(2*most + 1); len(said) > 0 {
		t.Fatalf("the last one is answered %+v", said)
	}
	if said := f.finish(f.takeOne(), event.ResultDone, ""); len(said) != 1 || said[0].To != 2*most+1 {
		t.Errorf("said %+v, want an answer to the last stream alone", said)
	}
	if n := len(f.visits.by); n > 0 {
		t.Errorf("%d callers are left", n)
	}
}

// A caller may ask twice under one handle, as when its events were taken back from an owner that has the partition
// again: it waits once, gets one answer, and a holder is not told that its reservation is over.
func TestACallerThatAsksTwiceWaitsOnce(t *testing.T) {
	ask := func(f *fixture, call event.Call) []addressed {
		e := f.event("key")
		call.ID, call.Deadline = "id", f.now.Add(time.Minute)
		e.Handle, e.ID, e.Call, e.Payload = event.NewCallHandle(1), event.CallMessageID("key", "id", 0), &call, nil
		return f.accept(Local, e)
	}
	f := newFixture(t, nil)
	f.want(ask(f, event.Call{Method: "m"}))
	f.want(ask(f, event.Call{Method: "m"}))
	if got := f.finish(f.takeOne(), event.ResultDone, ""); len(got) != 1 {
		t.Errorf("its end is told %+v, want once", got)
	}
	f = newFixture(t, nil)
	f.want(ask(f, event.Call{ID: "id", Reservation: true}))
	f.want(ask(f, event.Call{ID: "id", Reservation: true}))
}

// A call whose caller has chosen an id as reservations have does not join the reservation: the release of that would not free the key. Nor does a
// reservation join a call, whose caller would hear that it has not run.
func TestCallsAndReservationsDoNotJoin(t *testing.T) {
	for name, reserved := range map[string]bool{"a reservation first": true, "a call first": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			ask := func(n uint64, reservation bool) event.Handle {
				e := f.event("key")
				e.Handle, e.ID, e.Payload = event.NewCallHandle(n), event.CallMessageID("key", "reservation\x00id", 0), nil
				e.Call = &event.Call{ID: "id", Reservation: true, Deadline: f.now.Add(time.Minute)}
				if !reservation {
					e.Call = &event.Call{Method: "m", ID: "reservation\x00id", Deadline: f.now.Add(time.Minute)}
				}
				f.out.Reset()
				f.accept(Local, e)
				return e.Handle
			}
			first, worker := ask(1, reserved), event.WorkerID(1)
			if reserved {
				worker = event.Keeper
			}
			got := f.Take(f.now, openLease, worker, 1, nil)
			if len(got) != 1 {
				t.Fatalf("%d deliveries", len(got))
			}
			if reserved {
				f.Grant(got[0].ID, event.Grant{Fence: got[0].Fence(), Remaining: time.Second}, &f.out)
			}
			second := ask(2, !reserved)
			if a := f.out.Answers; len(a) != 1 || len(a[0].Verdicts) != 1 || a[0].Verdicts[0].Handle != second || a[0].Verdicts[0].DetailOrZero().Reply == nil || a[0].Verdicts[0].DetailOrZero().Reply.Outcome != event.CallNotRun {
				t.Errorf("the answers are %+v, want one to the second caller: it has not run", a)
			}
			f.out.Reset()
			f.Cancel(f.now, Local, []event.Handle{first}, &f.out)
			if want := []event.DeliveryID{got[0].ID}; !slices.Equal(f.out.TakeBack, want) {
				t.Errorf("taken back are %v, want %v", f.out.TakeBack, want)
			}
		})
	}
}

// The id of a call that was done, as reservations have it, is answered to a reservation as one that has not run, not with the call's reply.
func TestAReservationIsNotAnsweredByACall(t *testing.T) {
	f := newFixture(t, nil)
	ask := func(n uint64, call event.Call) {
		e := f.event("key")
		call.Deadline = f.now.Add(time.Minute)
		e.Handle, e.ID, e.Payload, e.Call = event.NewCallHandle(n), event.CallMessageID("key", "reservation\x00id", 0), nil, &call
		f.out.Reset()
		f.accept(Local, e)
	}
	ask(1, event.Call{Method: "m", ID: "reservation\x00id"})
	f.finish(f.takeOne(), event.ResultDone, "")
	ask(2, event.Call{Method: "m", ID: "reservation\x00id"})
	if a := f.out.Answers; len(a) != 1 || a[0].Verdicts[0].DetailOrZero().Reply.Outcome == event.CallNotRun {
		t.Fatalf("the answers to the call are %+v, want its reply again", a)
	}
	ask(3, event.Call{ID: "id", Reservation: true})
	if a := f.out.Answers; len(a) != 1 || a[0].Verdicts[0].DetailOrZero() != *answerMixed {
		t.Errorf("the answers to the reservation are %+v, want one that it has not run", a)
	}
}

// While no worker is up, nothing can run of a key but reservations: they need not wait for the turn of an event, or of a call before them, which
// nobody could give.
func TestReservationsGoOnWithoutAWorker(t *testing.T) {
	for name, c := range map[string]struct {
		gone   func(f *fixture) // when the worker goes
		before *event.Call      // waits before the reservations
	}{
		"behind an event":             {gone: func(f *fixture) { f.WorkerGone(f.now, 1, &f.out) }},
		"behind an event, gone later": {},
		"behind a call":               {gone: func(f *fixture) { f.WorkerGone(f.now, 1, &f.out) }, before: &event.Call{Method: "m"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			if c.gone != nil {
				c.gone(f)
			}
			f.accept(Local, f.event("key"))
			visit := func(n uint64, call event.Call) {
				e := f.event("key")
				call.ID, call.Deadline = fmt.Sprint(n), f.now.Add(time.Minute)
				e.Handle, e.ID, e.Call, e.Payload = event.NewCallHandle(n), event.CallMessageID("key", call.ID, 0), &call, nil
				f.accept(Local, e)
			}
			if c.before != nil {
				visit(100, *c.before)
			}
			for n := range uint64(2*visitsInTurn + 1) {
				visit(n+1, event.Call{Reservation: true})
				if n == visitsInTurn && c.gone == nil {
					f.WorkerGone(f.now, 1, &f.out)
				}
				got := f.Take(f.now, openLease, event.Keeper, 1, nil)
				if len(got) != 1 {
					t.Fatalf("reservation %d is not granted: the key waits for %v", n+1, f.Inspect("key").Wait)
				}
				f.finish(got[0], event.ResultDone, "")
			}
			f.WorkerUp(f.now, 1, &f.out)
			visit(200, event.Call{Reservation: true})
			if got := f.take(); len(got) != 1 {
				t.Errorf("a worker that comes gets %d deliveries, it is its turn", len(got))
			}
		})
	}
}

// A holder that comes back to the next owner of its key is not refused because others wait there for reservations: a
// refusal would mean to it that its key is lost.
func TestAHolderThatComesBackFindsRoom(t *testing.T) {
	f := newFixture(t, nil)
	f.SetCovers(true)
	for i := range f.parts {
		f.setGate(f.parts[i].number, ownership.Waiting) // the owner before has just died
	}
	asked := uint64(0)
	ask := func(resume bool) (refused bool) {
		asked++
		key := event.Key(fmt.Sprint("key", asked/10))
		e := f.event(key)
		id := fmt.Sprint(asked)
		e.Handle, e.ID, e.Payload = event.NewCallHandle(asked), event.CallMessageID(key, id, 0), nil
		e.Call = &event.Call{ID: id, Deadline: f.now.Add(time.Minute), Reservation: true, Resume: resume, TTL: event.TTLLeast}
		said := f.accept(Local, e)
		return len(said) > 0 && said[0].Kind == event.Overloaded
	}
	for range ReservationsMax {
		if ask(false) {
			t.Fatalf("the bound is reached after %d", asked)
		}
	}
	if !ask(false) {
		t.Error("one more is taken")
	}
	for n := range ReservationsMax {
		if ask(true) {
			t.Fatalf("the holder %d that comes back is refused", n+1)
		}
	}
	if !ask(true) {
		t.Error("holders that come back have no bound")
	}
}
