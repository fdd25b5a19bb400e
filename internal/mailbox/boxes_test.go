package mailbox

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/invariant"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// Stats returns a snapshot of one shard.
func (b *Boxes) Stats() Stats {
	s := Stats{Oldest: clock.Forever}
	b.addTo(&s)
	return s
}

// fixture is Boxes with one worker and open gates, and shortcuts to call them.
type fixture struct {
	*testing.T
	*Boxes
	now clock.Instant
	out Output
	id  int64
}

func newFixture(t *testing.T, change func(*Config)) *fixture {
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	f := &fixture{T: t, Boxes: New(cfg, modelRetry, "me"), now: clock.Instant(time.Hour)}
	f.SetGates(f.now, openAll(), event.Position{Ledger: 1, Entry: 5}, &f.out)
	f.SetLease(f.now, openLease, &f.out)
	f.WorkerUp(f.now, 1, &f.out)
	return f
}

// event returns a new event of a key. Its handle is the entry of its id.
func (f *fixture) event(key event.Key) *event.Event {
	f.id++
	return &event.Event{
		Handle: event.Handle(f.id), ID: event.MessageID{Ledger: 7, Entry: f.id, Batch: -1, TopicPartition: -1},
		Key: key, Partition: ring.PartitionOf(string(key)), Payload: []byte("hello"),
	}
}

// accept sends events and returns the immediate verdicts.
func (f *fixture) accept(from Sender, events ...*event.Event) []addressed {
	f.out.Reset()
	f.Accept(f.now, from, event.Position{Ledger: 1, Entry: 5}, event.RefsTo(events...), &f.out)
	return said(&f.out)
}

func (f *fixture) take() []event.Delivery { return f.Take(f.now, openLease, 1, 100, nil) }

// takeOne takes a delivery, which must be the only one.
func (f *fixture) takeOne() event.Delivery {
	f.Helper()
	got := f.take()
	if len(got) != 1 {
		f.Fatalf("%d deliveries, want 1", len(got))
	}
	return got[0]
}

// finish ends a delivery and returns the verdicts.
func (f *fixture) finish(d event.Delivery, kind event.ResultKind, reason string) []addressed {
	f.out.Reset()
	f.Finish(f.now, []event.Result{{Delivery: d.ID, Kind: kind, Reason: reason}}, &f.out)
	return said(&f.out)
}

func (f *fixture) setGate(p ring.Partition, gate ownership.Gate) []addressed {
	f.out.Reset()
	change := ownership.GateChange{Partition: p, Gate: gate, Token: 2}
	f.SetGates(f.now, []ownership.GateChange{change}, event.Position{Ledger: 1, Entry: 6}, &f.out)
	return said(&f.out)
}

func (f *fixture) want(got []addressed, want ...addressed) {
	f.Helper()
	if !slices.Equal(got, want) {
		f.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// addressed is a verdict and its recipient.
type addressed struct {
	To     Sender
	Handle event.Handle
	verdict
}

// verdict is an event.Verdict that == compares with its detail.
type verdict struct {
	Kind event.VerdictKind
	event.Detail
}

// said returns all verdicts, in the order of each recipient.
func said(out *Output) (all []addressed) {
	for _, a := range out.Answers {
		for _, v := range a.Verdicts {
			all = append(all, says(a.To, v.Handle, verdict{v.Kind, v.DetailOrZero()}))
		}
	}
	return all
}

func says(to Sender, handle event.Handle, v verdict) addressed {
	return addressed{to, handle, v}
}

func TestOutputKeepsTheOrderOfEachRecipient(t *testing.T) {
	var out Output
	detail := &event.Detail{Attempts: 1}
	for range 2 { // the second time in the memory of the first
		for i, to := range []Sender{5, Local, 5, 9, 5, Local} {
			out.say(address{to, event.Handle(i)}, event.Attempted, detail)
		}
		out.say(address{5, 4}, event.Done, nil)
		want := map[Sender][]event.Handle{5: {0, 2, 4, 4}, Local: {1, 5}, 9: {3}}
		if len(out.Answers) != len(want) {
			t.Errorf("answers to %d recipients, want %d", len(out.Answers), len(want))
		}
		for _, a := range out.Answers {
			var got []event.Handle
			for _, v := range a.Verdicts {
				got = append(got, v.Handle)
				if (v.Kind == event.Done) != (v.Detail == nil) {
					t.Errorf("the verdict %v to %d has the detail %v", v.Kind, a.To, v.Detail)
				}
			}
			if !slices.Equal(got, want[a.To]) {
				t.Errorf("verdicts to %d are on %v, want %v", a.To, got, want[a.To])
			}
		}
		answers := out.Answers
		out.Reset()
		for _, a := range answers {
			for _, v := range a.Verdicts {
				if v.Detail != nil {
					t.Fatalf("after Reset a detail is still referenced")
				}
			}
		}
	}
}

// Two keys may have one hash: lookAhead may have seen the actor of the other key.
func TestAnotherActorUnderTheHashIsNotTaken(t *testing.T) {
	f := newFixture(t, nil)
	ann, bob := f.event("ann"), f.event("bob")
	f.accept(Local, ann, bob)
	seen := f.actor("ann", f.hashOfKey("ann"))
	for _, key := range []event.Key{"ann", "bob"} {
		if a := f.actorSeen(&lookup{name: key, key: f.hashOfKey(key), actor: seen}); a == nil || a.key != key {
			t.Errorf("for key %s found %+v", key, a)
		}
	}
	if a := f.actorSeen(&lookup{name: "eve", key: f.hashOfKey("eve"), actor: seen}); a != nil {
		t.Errorf("for a key without an actor found that of %s", a.key)
	}
}

func TestDifferentKeysRunSideBySideAndOneKeyInOrder(t *testing.T) {
	f := newFixture(t, nil)
	first, second, other := f.event("ann"), f.event("ann"), f.event("bob")
	f.want(f.accept(Local, first, second, other))
	if !slices.Equal(f.out.Wake, []event.WorkerID{1}) {
		t.Errorf("woke %v, want worker 1, once", f.out.Wake)
	}
	got := f.take()
	if len(got) != 2 || got[0].Object != first || got[1].Object != other {
		t.Fatalf("deliveries %+v, want the first of ann and the one of bob", got)
	}
	if got := f.take(); len(got) != 0 {
		t.Fatalf("deliveries %+v while both keys run", got)
	}
	f.want(f.finish(got[0], event.ResultDone, ""), says(Local, 1, verdict{Kind: event.Done}))
	if d := f.takeOne(); d.Object != second || d.Token != 1 || d.Attempt != 1 || d.Partition != second.Partition {
		t.Errorf("delivery %+v, want the second of ann", d)
	}
}

// TestEveryDeliveryHasAFenceOfItsOwn: the retry of an event too, one that came back
// unstarted, and one of a worker that was lost.
func TestEveryDeliveryHasAFenceOfItsOwn(t *testing.T) {
	f := newFixture(t, nil)
	e := f.event("ann")
	f.accept(Local, e)
	var before event.Fence
	for _, end := range []event.ResultKind{event.ResultRetry, event.ResultNotStarted, event.ResultLost, event.ResultDone} {
		f.now = f.now.Add(time.Minute)
		f.Tick(f.now, &f.out)
		d := f.takeOne()
		if d.Token != 1 || d.Turn == 0 || !before.Before(d.Fence()) {
			t.Errorf("fence %v after %v, want token 1 and a greater turn", d.Fence(), before)
		}
		before = d.Fence()
		f.finish(d, end, "no")
	}
}

// TestWithoutATokenThereIsNoTurn: with ownership.mode gossip two owners may count at once.
func TestWithoutATokenThereIsNoTurn(t *testing.T) {
	f := newFixture(t, nil)
	e := f.event("ann")
	f.SetGates(f.now, []ownership.GateChange{{Partition: e.Partition, Gate: ownership.Open}}, event.Position{}, &f.out)
	f.accept(Local, e)
	if d := f.takeOne(); d.Fence() != (event.Fence{}) {
		t.Errorf("fence %v, want none", d.Fence())
	}
}

func TestAcceptUnderEachGate(t *testing.T) {
	here := event.Position{Ledger: 1, Entry: 6}
	ahead := event.Position{Ledger: 2}
	notOwner := verdict{event.NotOwner, event.Detail{Epoch: here}}
	notYet := verdict{event.NotYet, event.Detail{Delay: DefaultConfig().NotYetDelay}}
	tests := map[string]struct {
		gate   ownership.Gate
		sender event.Position
		want   []verdict
		wait   Wait
	}{
		"closed":                               {ownership.Closed, here, []verdict{notOwner}, WaitNothing},
		"closed, sender behind":                {ownership.Closed, event.Position{Ledger: 1}, []verdict{notOwner}, WaitNothing},
		"closed, sender ahead":                 {ownership.Closed, ahead, []verdict{notYet}, WaitNothing},
		"draining":                             {ownership.Draining, here, []verdict{notOwner}, WaitNothing},
		"draining, sender ahead":               {ownership.Draining, ahead, []verdict{notYet}, WaitNothing},
		"waiting: queued and not dispatched":   {ownership.Waiting, here, nil, WaitGate},
		"open: ready, whatever sender's epoch": {ownership.Open, ahead, nil, WaitSlot},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			e := f.event("ann")
			f.setGate(e.Partition, tt.gate)
			f.out.Reset()
			f.Accept(f.now, Local, tt.sender, event.RefsTo(e), &f.out)
			var want []addressed
			for _, v := range tt.want {
				want = append(want, says(Local, 1, v))
			}
			f.want(said(&f.out), want...)
			if got := f.Inspect("ann"); got.Wait != tt.wait {
				t.Errorf("waits for %v, want %v", got.Wait, tt.wait)
			}
			if got, want := len(f.take()), map[bool]int{true: 1}[tt.wait == WaitSlot]; got != want {
				t.Errorf("%d deliveries, want %d", got, want)
			}
		})
	}
}

func TestFinishedEventIsKnownUnderAnyGate(t *testing.T) {
	f := newFixture(t, nil)
	e := f.event("ann")
	f.accept(Local, e)
	f.finish(f.takeOne(), event.ResultDone, "")
	f.setGate(e.Partition, ownership.Draining)
	f.want(f.accept(9, e), says(9, 1, verdict{Kind: event.Done}))
}

func TestARunningEventIsJoinedAndBothGetTheVerdict(t *testing.T) {
	f := newFixture(t, nil)
	e := f.event("ann")
	f.accept(Local, e)
	d := f.takeOne()
	redelivered := *e
	redelivered.Handle = 50
	f.setGate(e.Partition, ownership.Draining)
	f.want(f.accept(3, &redelivered)) // joins even now: it will be done here
	f.want(f.accept(3, &redelivered)) // sent twice on one stream: one verdict
	done := verdict{Kind: event.Done}
	f.want(f.finish(d, event.ResultDone, ""), says(Local, 1, done), says(3, 50, done))
}

func TestJoinsAreBoundedAndEndedStreamsMakeRoom(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.JoinsMax = 3 })
	e := f.event("ann")
	f.accept(Local, e)
	f.want(f.accept(1, e))
	f.want(f.accept(2, e))
	f.want(f.accept(3, e), says(3, 1, verdict{event.Overloaded, event.Detail{Delay: f.cfg.OverloadedDelay}}))
	f.SenderGone(1)
	f.want(f.accept(3, e))
	done := verdict{Kind: event.Done}
	f.want(f.finish(f.takeOne(), event.ResultDone, ""), says(Local, 1, done), says(2, 1, done), says(3, 1, done))
}

func TestJoinTakesTheGreaterFailureCount(t *testing.T) {
	f := newFixture(t, nil)
	e := f.event("ann")
	f.accept(Local, e)
	knows := *e
	knows.Handle, knows.Attempts, knows.FirstError = 50, 2, "boom"
	f.accept(3, &knows)
	if d := f.takeOne(); d.Attempt != 3 || d.Object.FirstError != "boom" {
		t.Errorf("attempt %d, first error %q, want 3 and boom", d.Attempt, d.Object.FirstError)
	}
}

func TestOverload(t *testing.T) {
	overloaded := verdict{event.Overloaded, event.Detail{Delay: DefaultConfig().OverloadedDelay}}
	t.Run("of a key leaves other keys alone", func(t *testing.T) {
		f := newFixture(t, func(c *Config) { c.DepthMax = 2 })
		f.want(f.accept(Local, f.event("ann"), f.event("ann"), f.event("ann"), f.event("bob")), says(Local, 3, overloaded))
		f.take()
		f.want(f.accept(Local, f.event("ann"))) // one runs, so one more may wait
	})
	t.Run("of the node stops all keys until something leaves", func(t *testing.T) {
		first := (&fixture{}).event("ann")
		f := newFixture(t, func(c *Config) { c.BytesMax = 2*(first.Bytes()+placeBytes) - 1 })
		f.want(f.accept(Local, f.event("ann"), f.event("bob")), says(Local, 2, overloaded))
		f.finish(f.takeOne(), event.ResultDone, "")
		f.want(f.accept(Local, f.event("bob")))
	})
	t.Run("never keeps a single event out", func(t *testing.T) {
		f := newFixture(t, func(c *Config) { c.BytesMax = 1 })
		f.want(f.accept(Local, f.event("ann")))
	})
}

// A key on two partitions would run beside itself.
func TestMisplacedEventsAreRejected(t *testing.T) {
	rejected := verdict{event.Rejected, event.Detail{Reason: "the event's partition is not that of its key", Owner: "me"}}
	tests := map[string]func(f *fixture, e *event.Event){
		"no such partition": func(_ *fixture, e *event.Event) { e.Partition = ring.Partitions },
		"another partition": func(_ *fixture, e *event.Event) { e.Partition = (e.Partition + 1) % ring.Partitions },
		"another, and key active": func(f *fixture, e *event.Event) {
			f.accept(Local, f.event(e.Key))
			e.Partition = (e.Partition + 1) % ring.Partitions
		},
	}
	for name, misplace := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			e := f.event("ann")
			misplace(f, e)
			f.want(f.accept(Local, e), says(Local, e.Handle, rejected))
		})
	}
}

// An operator who looks for a key learns why its event fails, and nothing of its content.
func TestInspectTellsTheNewestFailureWithoutTheContent(t *testing.T) {
	f := newFixture(t, nil)
	f.accept(Local, f.event("ann"))
	for _, failure := range []string{"no stock", `no stock for "ann"`} {
		f.finish(f.takeOne(), event.ResultRetry, failure)
		s := f.Inspect("ann")
		if want := "no stock"; !strings.HasPrefix(s.LastError, want) || strings.Contains(s.LastError, "ann") {
			t.Errorf("the newest failure is %q, want %q, and not the key", s.LastError, want)
		}
		f.now, f.out = s.HeldUntil, Output{}
		f.Tick(f.now, &f.out)
	}
}

func TestAFailedEventIsFirstUntilItsRetryIsDue(t *testing.T) {
	f := newFixture(t, nil)
	first, second := f.event("ann"), f.event("ann")
	f.accept(Local, first, second)
	f.want(f.finish(f.takeOne(), event.ResultRetry, "boom"),
		says(Local, 1, verdict{event.Attempted, event.Detail{Attempts: 1, Reason: "boom"}}))
	if first.Attempts != 0 || first.LastError != "" {
		t.Errorf("the event was written to: %+v", first)
	}
	state := f.Inspect("ann")
	if state.Wait != WaitRetry || state.Attempts != 1 || state.LastError != "boom" || state.Depth != 2 || state.HeldUntil != f.Next() || !state.HeldUntil.After(f.now) {
		t.Fatalf("state %+v, next tick at %d", state, f.Next())
	}
	f.accept(Local, f.event("bob"))
	if d := f.takeOne(); d.Object.Key != "bob" {
		t.Fatalf("got key %q, want bob: other keys continue", string(d.Object.Key))
	}
	f.now = state.HeldUntil - 1
	f.Tick(f.now, &f.out)
	if got := f.take(); len(got) != 0 {
		t.Fatalf("delivered %v before its time", got)
	}
	f.now, f.out = state.HeldUntil, Output{}
	f.Tick(f.now, &f.out)
	if !slices.Equal(f.out.Wake, []event.WorkerID{1}) {
		t.Errorf("woke %v, want worker 1", f.out.Wake)
	}
	d := f.takeOne()
	if d.Object.ID != first.ID || d.Attempt != 2 || d.Object.FirstError != "boom" || d.Object.LastError != "boom" {
		t.Errorf("delivery %+v of %+v, want the second attempt of the first event", d, d.Object)
	}
	if state := f.Inspect("ann"); state.Wait != WaitHandler || state.HeldUntil != 0 || state.Delivery != d.ID || state.Worker != 1 {
		t.Errorf("state %+v, want that delivery %d runs and nothing holds it", state, d.ID)
	}
	f.finish(d, event.ResultDone, "")
	if d := f.takeOne(); d.Object != second {
		t.Errorf("then %v, want %v", d.Object.ID, second.ID)
	}
}

func TestFinalVerdictsOnFailures(t *testing.T) {
	f := newFixture(t, nil)
	e := f.event("ann")
	e.Attempts, e.FirstError = 2, "first"
	f.accept(Local, e, f.event("ann"))
	f.out.Reset()
	f.Finish(f.now, []event.Result{{Delivery: f.takeOne().ID, Kind: event.ResultRetry, After: time.Minute, Reason: "busy"}}, &f.out)
	f.want(said(&f.out), says(Local, 1, verdict{event.Failed, event.Detail{
		Delay: time.Minute, Attempts: 3, Reason: "busy", FirstError: "first", Owner: "me",
	}}))
	f.want(f.finish(f.takeOne(), event.ResultReject, "bad"), says(Local, 2, verdict{event.Rejected, event.Detail{
		Attempts: 1, Reason: "bad", FirstError: "bad", Owner: "me",
	}}))
	f.want(f.accept(Local, e)) // neither counts as done
}

func TestReturnedEventGoesBackFirst(t *testing.T) {
	for _, kind := range []event.ResultKind{event.ResultNotStarted, event.ResultCancelled, event.ResultLost} {
		t.Run(kind.String(), func(t *testing.T) {
			f := newFixture(t, nil)
			first := f.event("ann")
			f.accept(Local, first, f.event("ann"))
			f.want(f.finish(f.takeOne(), kind, ""))
			if d := f.takeOne(); d.Object != first || d.Attempt != 1 {
				t.Errorf("then %+v, want the same event as attempt 1", d)
			}
		})
	}
}

func TestMovedPartitionRefusesWaitingEventsAndFinishesTheRunningOne(t *testing.T) {
	f := newFixture(t, nil)
	running, waiting := f.event("ann"), f.event("ann")
	p := running.Partition
	f.accept(Local, running)
	f.accept(4, waiting)
	d := f.takeOne()
	notOwner := verdict{event.NotOwner, event.Detail{Epoch: event.Position{Ledger: 1, Entry: 6}}}
	f.want(f.setGate(p, ownership.Draining), says(4, 2, notOwner))
	if got := f.Running(p); got != 1 {
		t.Errorf("Running = %d, want 1", got)
	}
	f.want(f.finish(d, event.ResultDone, ""), says(Local, 1, verdict{Kind: event.Done}))
	if !slices.Equal(f.out.Ended, []ring.Partition{p}) || f.Running(p) != 0 {
		t.Errorf("ended on %v with %d running, want partition %d with 0", f.out.Ended, f.Running(p), p)
	}
	if f.actors.len() != 0 {
		t.Errorf("%d actors are left", f.actors.len())
	}
}

func TestAFailureAfterDepositionIsCountedAndTheEventMovesOn(t *testing.T) {
	f := newFixture(t, nil)
	e := f.event("ann")
	f.accept(Local, e)
	d := f.takeOne()
	f.setGate(e.Partition, ownership.Draining)
	f.want(f.finish(d, event.ResultRetry, "boom"),
		says(Local, 1, verdict{event.Attempted, event.Detail{Attempts: 1, Reason: "boom"}}),
		says(Local, 1, verdict{event.NotOwner, event.Detail{Epoch: event.Position{Ledger: 1, Entry: 6}}}))
}

// A→B→A: a delivery of the first tenure still runs when the second one begins.
func TestAWaitingGateReportsWhenTheEarlierTenureIsOver(t *testing.T) {
	f := newFixture(t, nil)
	e, next := f.event("ann"), f.event("ann")
	f.accept(Local, e)
	d := f.takeOne()
	f.setGate(e.Partition, ownership.Draining)
	f.setGate(e.Partition, ownership.Waiting)
	f.want(f.accept(Local, next))
	f.want(f.finish(d, event.ResultDone, ""), says(Local, 1, verdict{Kind: event.Done}))
	if !slices.Equal(f.out.Ended, []ring.Partition{e.Partition}) {
		t.Errorf("ended on %v", f.out.Ended)
	}
	if got := f.take(); len(got) != 0 {
		t.Fatalf("delivered %v through a waiting gate", got)
	}
	f.setGate(e.Partition, ownership.Open)
	if d := f.takeOne(); d.Object != next || d.Token != 2 {
		t.Errorf("delivery %+v, want the next event under token 2", d)
	}
}

func TestTakeObeysTheLeaseAndTickWakesWhenItIsBack(t *testing.T) {
	f := newFixture(t, nil)
	f.accept(Local, f.event("ann"))
	lease := ownership.Lease{Until: f.now.Add(time.Second), Guard: time.Second}
	if got := f.Take(f.now, lease, 1, 10, nil); len(got) != 0 {
		t.Fatalf("delivered %v within the guard of the lease", got)
	}
	f.out.Reset()
	f.Tick(f.now, &f.out)
	if !slices.Equal(f.out.Wake, []event.WorkerID{1}) {
		t.Errorf("woke %v, want worker 1", f.out.Wake)
	}
	lease.Until++
	if got := f.Take(f.now, lease, 1, 10, nil); len(got) != 1 {
		t.Errorf("%d deliveries, want 1", len(got))
	}
}

func TestKeysSpreadOverWorkersAndStickToThem(t *testing.T) {
	f := newFixture(t, nil)
	f.WorkerUp(f.now, 2, &f.out)
	f.WorkerUp(f.now, 3, &f.out)
	workers := []event.WorkerID{1, 2, 3}
	before := f.spread(workers)
	for w, keys := range before {
		if len(keys) < 60 || len(keys) > 140 {
			t.Errorf("worker %d has %d of 300 keys", w, len(keys))
		}
	}
	f.WorkerGone(f.now, 2, &f.out)
	after := f.spread([]event.WorkerID{1, 3})
	for _, w := range []event.WorkerID{1, 3} {
		for _, key := range before[w] {
			if !slices.Contains(after[w], key) {
				t.Errorf("a key left worker %d, which stayed", w)
			}
		}
	}
}

// spread sends one event on each of 300 keys and returns the keys of each worker.
func (f *fixture) spread(workers []event.WorkerID) map[event.WorkerID][]event.Key {
	events := benchEvents(300)
	for _, e := range events {
		f.id++
		e.ID.Entry = f.id
	}
	f.accept(Local, events...)
	got := map[event.WorkerID][]event.Key{}
	for _, w := range workers {
		for _, d := range f.Take(f.now, openLease, w, 1000, nil) {
			got[w] = append(got[w], d.Object.Key)
			f.finish(d, event.ResultDone, "")
		}
	}
	return got
}

func TestAWorkersReadyKeysGoToTheOthersWhenItIsGone(t *testing.T) {
	f := newFixture(t, nil)
	f.accept(Local, f.event("ann"), f.event("bob"), f.event("ann"))
	running := f.Take(f.now, openLease, 1, 1, nil)[0]
	f.out.Reset()
	f.WorkerGone(f.now, 1, &f.out)
	if got := f.Inspect("bob").Wait; got != WaitWorker {
		t.Errorf("bob waits for %v, want a worker", got)
	}
	f.WorkerUp(f.now, 2, &f.out)
	if !slices.Equal(f.out.Wake, []event.WorkerID{2}) {
		t.Errorf("woke %v, want worker 2", f.out.Wake)
	}
	got := f.Take(f.now, openLease, 2, 10, nil)
	if len(got) != 1 || got[0].Object.Key != "bob" {
		t.Fatalf("deliveries %+v, want bob alone: ann still runs", got)
	}
	f.finish(running, event.ResultLost, "")
	if got := f.Take(f.now, openLease, 2, 10, nil); len(got) != 1 || got[0].Object.ID != running.Object.ID {
		t.Errorf("deliveries %+v, want those that the worker left behind", got)
	}
}

func TestUnknownResultsAreIgnored(t *testing.T) {
	f := newFixture(t, nil)
	f.accept(Local, f.event("ann"))
	d := f.takeOne()
	f.finish(d, event.ResultDone, "")
	f.accept(Local, f.event("bob")) // where the first one was
	if next := f.takeOne(); next.ID == d.ID || next.ID%itemsMax != d.ID%itemsMax {
		t.Errorf("delivery %d after %d, want another name for the same place", next.ID, d.ID)
	}
	for _, r := range []event.Result{
		{Delivery: d.ID, Kind: event.ResultRetry},
		{Delivery: 0},
		{Delivery: 1},
		{Delivery: 12345},
		{Delivery: 1<<64 - 1},
	} {
		f.out.Reset()
		f.Finish(f.now, []event.Result{r}, &f.out)
		if f.out.Ignored != 1 || len(said(&f.out)) != 0 {
			t.Errorf("%+v: %d ignored, verdicts %v", r, f.out.Ignored, said(&f.out))
		}
	}
}

func TestStatsKnowTheOldestEventThatIsHere(t *testing.T) {
	f := newFixture(t, nil)
	var came []clock.Instant
	for _, key := range []event.Key{"ann", "bob", "cid", "dan"} {
		f.now = f.now.Add(time.Second)
		came = append(came, f.now)
		f.accept(Local, f.event(key), f.event(key))
	}
	running := f.take()
	for i, step := range []struct {
		ends   int // which of the running deliveries
		oldest clock.Instant
	}{{1, came[0]}, {0, came[0]}, {3, came[0]}, {2, came[0]}} {
		f.finish(running[step.ends], event.ResultDone, "")
		if got := f.Stats().Oldest; got != step.oldest {
			t.Errorf("step %d: the oldest came at %d, want %d", i, got, step.oldest)
		}
	}
	for _, d := range f.take() { // in the order of the ends above: bob, ann, dan, cid
		f.finish(d, event.ResultDone, "")
		want := map[event.Key]clock.Instant{"bob": came[0], "ann": came[2], "dan": came[2], "cid": clock.Forever}[d.Object.Key]
		if got := f.Stats().Oldest; got != want {
			t.Errorf("after %d the oldest came at %d, want %d", d.Object.Handle, got, want)
		}
	}
}

// takeHandover returns the ids for next owners when other members own all partitions.
func (f *fixture) takeHandover(idsMax int) []event.Finished {
	done, _ := f.TakeHandover(idsMax, func(ring.Partition) bool { return true }, nil)
	return done
}

// finished returns the ids of events that finished just now.
func (f *fixture) finished(events ...*event.Event) (done []event.Finished) {
	for _, e := range events {
		done = append(done, event.Finished{Partition: e.Partition, ID: e.ID, At: f.now})
	}
	return done
}

func TestTheWindowIsHandedOver(t *testing.T) {
	from, to := newFixture(t, nil), newFixture(t, nil)
	done, waits, runs := from.event("ann"), from.event("ann"), from.event("ann")
	from.accept(Local, done, waits, runs)
	for range 3 {
		from.finish(from.takeOne(), event.ResultDone, "")
	}
	if got := from.takeHandover(10); got != nil {
		t.Fatalf("handed over %v of a partition that is its own", got)
	}
	from.setGate(done.Partition, ownership.Closed)
	ids := from.takeHandover(2)
	if want := from.finished(runs, waits); !slices.Equal(ids, want) {
		t.Fatalf("handed over %v, want %v", ids, want)
	}
	from.want(from.accept(5, waits), says(5, waits.Handle, verdict{event.NotOwner, event.Detail{Epoch: from.epoch}}))
	// Until it is handed over, the id is remembered here.
	from.want(from.accept(5, done), says(5, done.Handle, verdict{Kind: event.Done}))
	ids = append(ids, from.takeHandover(10)...)
	if want := from.finished(runs, waits, done); !slices.Equal(ids, want) {
		t.Fatalf("handed over %v, want %v", ids, want)
	}
	if from.Stats().WindowIDs != 0 || from.takeHandover(10) != nil {
		t.Error("it still holds ids that it has handed over")
	}

	to.accept(Local, runs, waits)
	to.takeOne()
	to.out.Reset()
	to.LearnDone(to.now, ids, &to.out)
	to.want(said(&to.out), says(Local, waits.Handle, verdict{Kind: event.Done}))
	to.want(to.accept(5, done), says(5, done.Handle, verdict{Kind: event.Done}))
}

// A partition that comes back before the handover is complete keeps the remaining ids; ids without
// an owner elsewhere wait for one.
func TestTheWindowOfAPartitionThatComesBack(t *testing.T) {
	f := newFixture(t, nil)
	first, second := f.event("ann"), f.event("ann")
	f.accept(Local, first, second)
	for range 2 {
		f.finish(f.takeOne(), event.ResultDone, "")
	}
	f.setGate(first.Partition, ownership.Closed)
	if got := f.takeHandover(1); !slices.Equal(got, f.finished(second)) {
		t.Fatalf("handed over %v, want the newest", got)
	}
	f.setGate(first.Partition, ownership.Waiting)
	if got := f.takeHandover(10); got != nil {
		t.Fatalf("handed over %v of a partition that is its own again", got)
	}
	f.setGate(first.Partition, ownership.Closed)
	for more := true; more; {
		var got []event.Finished
		if got, more = f.TakeHandover(10, func(ring.Partition) bool { return false }, nil); got != nil {
			t.Fatalf("handed over %v without a next owner", got)
		}
	}
	f.RestartHandover(f.now)
	if got := f.takeHandover(10); !slices.Equal(got, f.finished(first)) {
		t.Fatalf("handed over %v, want the other", got)
	}
}

// Ids of the last seconds are handed over first, also if older ones were added to the window
// later.
func TestYoungIDsAreHandedOverFirst(t *testing.T) {
	f := newFixture(t, nil)
	old, young, own := f.event("ann"), f.event("ann"), f.event("ann")
	f.LearnDone(f.now, f.finished(young), &f.out)
	aged := f.finished(old)
	aged[0].At = f.now.Add(-youngMax - 1)
	f.LearnDone(f.now, aged, &f.out)
	f.now = f.now.Add(youngMax - 1)
	f.accept(Local, own)
	f.finish(f.takeOne(), event.ResultDone, "")
	f.setGate(own.Partition, ownership.Closed)
	var got []event.MessageID
	for range 10 {
		for _, d := range f.takeHandover(1) {
			got = append(got, d.ID)
		}
	}
	if want := []event.MessageID{own.ID, young.ID, old.ID}; !slices.Equal(got, want) {
		t.Errorf("handed over %v, want %v", got, want)
	}
}

// A handover may reach the next owner before the table that names it, long after it has closed the
// gate.
func TestEarlyHandoverIsKept(t *testing.T) {
	f := newFixture(t, nil)
	early, other := f.event("ann"), f.event("bob")
	f.setGate(early.Partition, ownership.Closed)
	f.LearnDone(f.now, f.finished(early), &f.out)
	f.accept(Local, other)
	f.finish(f.takeOne(), event.ResultDone, "")
	f.setGate(other.Partition, ownership.Closed)
	if got := f.takeHandover(10); !slices.Equal(got, f.finished(other)) {
		t.Errorf("handed over %v, want %v", got, f.finished(other))
	}
	f.want(f.accept(5, early), says(5, early.Handle, verdict{Kind: event.Done}))
}

// Events that finish after their gate has closed are handed over as well.
func TestLateResultsAreHandedOver(t *testing.T) {
	f := newFixture(t, nil)
	e := f.event("ann")
	f.accept(Local, e)
	d := f.takeOne()
	f.setGate(e.Partition, ownership.Draining)
	f.takeHandover(10)
	f.finish(d, event.ResultDone, "")
	if got := f.takeHandover(0); !slices.Equal(got, f.finished(e)) {
		t.Errorf("handed over %v, want %v", got, f.finished(e))
	}
}

// Ids that an earlier owner finished before this machine started are handed over too.
func TestIDsOlderThanThisMachineAreHandedOver(t *testing.T) {
	f := newFixture(t, nil)
	e := f.event("ann")
	older := []event.Finished{{Partition: e.Partition, ID: e.ID, At: -clock.Instant(time.Minute)}}
	f.LearnDone(f.now, older, &f.out)
	f.setGate(e.Partition, ownership.Closed)
	var got []event.Finished
	for more := true; more; {
		var some []event.Finished
		some, more = f.TakeHandover(10, func(ring.Partition) bool { return true }, nil)
		got = append(got, some...)
	}
	if !slices.Equal(got, older) {
		t.Errorf("handed over %v, want %v", got, older)
	}
}

func TestAHeldEventThatAnEarlierOwnerHasDoneHoldsItsKeyNoLonger(t *testing.T) {
	f := newFixture(t, nil)
	failed, next := f.event("ann"), f.event("ann")
	f.accept(Local, failed, next)
	f.finish(f.takeOne(), event.ResultRetry, "boom")
	f.out.Reset()
	f.LearnDone(f.now, f.finished(failed), &f.out)
	f.want(said(&f.out), says(Local, failed.Handle, verdict{Kind: event.Done}))
	if d := f.takeOne(); d.Object != next {
		t.Errorf("then %v, want %v", d.Object.ID, next.ID)
	}
}

// The first event's memory, often a whole frame, must not live as long as a hot key.
func TestAnActorThatOutlivesAnEventHasItsOwnKey(t *testing.T) {
	f := newFixture(t, nil)
	first, second := f.event(event.Key(strings.Clone("ann"))), f.event(event.Key(strings.Clone("ann")))
	f.accept(Local, first, second)
	a := f.actor("ann", f.hashOfKey("ann"))
	if a.keyOwn {
		t.Error("the key was copied for an event that may be the only one")
	}
	f.finish(f.takeOne(), event.ResultDone, "")
	if f.actor("ann", f.hashOfKey("ann")) != a || !a.keyOwn {
		t.Error("the actor still has the key of an event that is gone")
	}
}

func TestAHotKeyDoesNotDelayOthers(t *testing.T) {
	f := newFixture(t, nil)
	for range 500 {
		f.accept(Local, f.event("hot"))
	}
	for i, e := range benchEvents(200) {
		e.ID.Entry = int64(10_000 + i)
		f.accept(Local, e)
		// The hot key takes its turn, and only its turn.
		hot, cold := 0, 0
		for _, d := range f.take() {
			if d.Object.Key == "hot" {
				hot++
			} else {
				cold++
			}
			f.finish(d, event.ResultDone, "")
		}
		if hot != 1 || cold != 1 {
			t.Fatalf("round %d: %d hot and %d cold deliveries, want one of each", i, hot, cold)
		}
	}
}

// After a warm-up the way of events allocates one cohort for each call of Accept, and
// nothing for each event.
func TestTheHotPathAllocatesOneCohortPerCall(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.WindowBytesMax = 1000 * recordBytes })
	events := benchEvents(64)
	refs := event.RefsTo(events...)
	var deliveries []event.Delivery
	results := make([]event.Result, 0, len(events))
	round := func() {
		f.out.Reset()
		for _, e := range events {
			f.id++
			e.ID.Entry = f.id
		}
		f.Accept(f.now, Local, event.Position{}, refs, &f.out)
		deliveries = f.Take(f.now, openLease, 1, 64, deliveries[:0])
		results = results[:0]
		for _, d := range deliveries {
			results = append(results, event.Result{Delivery: d.ID, Kind: event.ResultDone})
		}
		f.Finish(f.now, results, &f.out)
	}
	for range 1000 {
		round()
	}
	if got := testing.AllocsPerRun(1000, round); got > 1 {
		t.Errorf("%v allocations for %d events, want 1", got, len(events))
	}
}

// A key that is ready while it runs, by a bug, is blocked rather than run twice.
func TestARunningKeyIsNeverDispatchedAgain(t *testing.T) {
	f := newFixture(t, nil)
	f.accept(Local, f.event("ann"), f.event("ann"))
	f.takeOne()
	before := invariant.Failures()
	f.makeReady(f.now, f.actor("ann", f.hashOfKey("ann")), &f.out) // the planted bug
	defer func() {
		if panicked := recover() != nil; panicked != invariant.Enabled || invariant.Failures() != before+1 {
			t.Errorf("panicked: %v, failures: %d, want %v and one more than %d", panicked, invariant.Failures(), invariant.Enabled, before)
		}
	}()
	if got := f.take(); len(got) != 0 {
		t.Errorf("deliveries %+v of a key that runs", got)
	}
}

// A firing that waits for another one of its schedule lets the events behind it go first: the one that it waits for may be among them. Each
// is looked at about as often as it asks for.
func TestPutOffBehind(t *testing.T) {
	f := newFixture(t, nil)
	first, second, third := f.event("ann"), f.event("ann"), f.event("ann")
	f.accept(Local, first, second, third)
	putOff := func(d event.Delivery) {
		t.Helper()
		f.Finish(f.now, []event.Result{{Delivery: d.ID, Kind: event.ResultPutOff, After: 3 * time.Second, Behind: true}}, &f.out)
	}
	next := func() event.Delivery {
		t.Helper()
		if d := f.Take(f.now, ownership.Lease{Until: clock.Forever - 1}, 1, 10, nil); len(d) > 0 {
			t.Fatalf("%v is given out at once", d[0].MessageID())
		}
		f.now = f.now.Add(time.Second)
		f.Tick(f.now, &f.out)
		return f.takeOne()
	}
	d := f.takeOne()
	for i, want := range []*event.Event{first, second, third, first, second} {
		if d.MessageID() != want.ID {
			t.Fatalf("delivery %d is of %v, want %v", i, d.MessageID(), want.ID)
		}
		if i == 4 {
			break
		}
		putOff(d)
		d = next()
	}
	f.finish(d, event.ResultDone, "") // it needed to come first, and the others follow in their order
	if d := f.takeOne(); d.MessageID() != third.ID {
		t.Errorf("after it %v, want %v", d.MessageID(), third.ID)
	}
}

// An event that is put off for a worker by name goes to that one at once, also if its key belongs to another; if that
// worker has gone, to any after the pause.
func TestPutOffForAWorker(t *testing.T) {
	f := newFixture(t, nil)
	for id := event.WorkerID(2); id <= 4; id++ {
		f.WorkerUp(f.now, id, &f.out)
	}
	e := f.event("ann")
	f.accept(Local, e)
	takeBy := func(id event.WorkerID) []event.Delivery { return f.Take(f.now, openLease, id, 10, nil) }
	holder := func() (event.WorkerID, event.Delivery) {
		t.Helper()
		for id := event.WorkerID(1); id <= 4; id++ {
			if got := takeBy(id); len(got) == 1 {
				return id, got[0]
			}
		}
		t.Fatal("no worker has it")
		return 0, event.Delivery{}
	}
	first, d := holder()
	other := first%4 + 1
	f.Finish(f.now, []event.Result{{Delivery: d.ID, Kind: event.ResultPutOff, After: time.Second, To: other}}, &f.out)
	second, d := holder()
	if second != other {
		t.Fatalf("worker %d has it, want %d", second, other)
	}
	f.WorkerGone(f.now, first, &f.out)
	f.Finish(f.now, []event.Result{{Delivery: d.ID, Kind: event.ResultPutOff, After: time.Second, To: first}}, &f.out)
	for id := event.WorkerID(1); id <= 4; id++ {
		if got := takeBy(id); len(got) > 0 {
			t.Fatalf("worker %d has it at once", id)
		}
	}
	f.now = f.now.Add(time.Second)
	f.Tick(f.now, &f.out)
	holder()
}

// A worker to which an event was put off takes a turn of a key that belongs to another one. That one's state is not what the turn before has left.
func TestGenerationAfterAPutOffForAWorker(t *testing.T) {
	f := newFixture(t, nil)
	f.WorkerUp(f.now, 2, &f.out)
	turn := func(putOff bool) (event.WorkerID, event.Delivery) {
		t.Helper()
		f.accept(Local, f.event("ann"))
		for id := event.WorkerID(1); id <= 2; id++ {
			got := f.Take(f.now, openLease, id, 10, nil)
			if len(got) != 1 {
				continue
			}
			if putOff {
				f.Finish(f.now, []event.Result{{Delivery: got[0].ID, Kind: event.ResultPutOff, To: 3 - id}}, &f.out)
				if got = f.Take(f.now, openLease, 3-id, 10, nil); len(got) != 1 {
					t.Fatalf("worker %d does not have it", 3-id)
				}
				id = 3 - id
			}
			f.finish(got[0], event.ResultDone, "")
			return id, got[0]
		}
		t.Fatal("no worker has it")
		return 0, event.Delivery{}
	}
	first, before := turn(false)
	other, _ := turn(true)
	again, after := turn(false)
	if other == first || again != first {
		t.Fatalf("the turns were at the workers %d, %d and %d", first, other, again)
	}
	if after.Generation == before.Generation {
		t.Errorf("both turns of worker %d are of generation %d, and one at worker %d was between them", first, after.Generation, other)
	}
	if _, same := turn(false); same.Generation != after.Generation {
		t.Errorf("the next turn is of generation %d, want %d", same.Generation, after.Generation)
	}
}

// Of an event that joins its earlier delivery, neither count falls.
func TestJoinKeepsBothCounts(t *testing.T) {
	f := newFixture(t, nil)
	e := f.event("ann")
	e.Attempts = 2
	f.accept(Local, e)
	crashed := *e
	crashed.Attempts, crashed.Crashes, crashed.Handle = 0, 1, e.Handle+1
	f.accept(1, &crashed)
	if d := f.takeOne(); d.Attempt != 3 || d.Crashes != 1 {
		t.Errorf("it is attempt %d after %d crashes, want 3 after 1", d.Attempt, d.Crashes)
	}
}

// A letter that comes back is put off as long as it asks for, also if events of its key wait: it does not go behind them, since it has to run
// before them.
func TestPutOffBehindOfALetter(t *testing.T) {
	f := newFixture(t, nil)
	f.Park(f.now, []event.Park{{Key: "ann", State: event.ParkEnds}}, &f.out)
	other, letter := f.event("ann"), f.event("ann")
	f.accept(Local, other)
	f.accept(Letters, letter)
	d := f.takeOne()
	if d.MessageID() != letter.ID {
		t.Fatalf("%v runs, want the letter", d.MessageID())
	}
	f.Finish(f.now, []event.Result{{Delivery: d.ID, Kind: event.ResultPutOff, After: time.Second, Behind: true}}, &f.out)
	f.now = f.now.Add(time.Second - 1)
	f.Tick(f.now, &f.out)
	if d := f.take(); len(d) > 0 {
		t.Fatalf("%v is given out too early", d[0].MessageID())
	}
	f.now++
	f.Tick(f.now, &f.out)
	f.finish(f.takeOne(), event.ResultDone, "")
	f.want(said(&f.out), says(Letters, letter.Handle, verdict{Kind: event.Done}))
}

// An event that goes by way of the retry topic, or to the dead letter topic, keeps the number of its crashes: otherwise each way begins a new count.
func TestCrashesAreToldWithAFailure(t *testing.T) {
	for kind, want := range map[event.ResultKind]event.VerdictKind{event.ResultRetry: event.Failed, event.ResultReject: event.Rejected} {
		f := newFixture(t, nil)
		f.accept(Local, f.event("ann"))
		f.finish(f.takeOne(), event.ResultCrashed, "")
		d := f.takeOne()
		f.out.Reset()
		f.Finish(f.now, []event.Result{{Delivery: d.ID, Kind: kind, After: time.Hour}}, &f.out)
		if got := said(&f.out); len(got) != 1 || got[0].Kind != want || got[0].Crashes != 1 {
			t.Errorf("after %v: %+v, want %v with one crash", kind, got, want)
		}
	}
}

// A full count of failures, which any producer of the retry topic can give a copy, stays full: the event does not begin anew.
func TestFullCountsOfFailures(t *testing.T) {
	for kind, want := range map[event.ResultKind]event.VerdictKind{event.ResultRetry: event.Rejected, event.ResultCrashed: event.Rejected} {
		f := newFixture(t, nil)
		e := f.event("ann")
		e.Attempts, e.Crashes = math.MaxUint32, math.MaxUint32
		f.accept(Local, e)
		d := f.takeOne()
		if d.Attempt != math.MaxUint32 {
			t.Errorf("its attempt is number %d", d.Attempt)
		}
		if got := f.finish(d, kind, "no"); len(got) != 1 || got[0].Kind != want || got[0].Attempts != math.MaxUint32 {
			t.Errorf("after %v: %+v, want %v", kind, got, want)
		}
	}
}
