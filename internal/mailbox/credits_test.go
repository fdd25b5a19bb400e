package mailbox

import (
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
)

// wantCredits compares the credits of the last call.
func (f *fixture) wantCredits(what string, want ...Credit) {
	f.Helper()
	if !slices.Equal(f.out.Credits, want) {
		f.Errorf("%s: credits %+v, want %+v", what, f.out.Credits, want)
	}
}

// accepts sends n events of a key.
func (f *fixture) accepts(from Sender, key event.Key, n int) {
	f.Helper()
	var events []*event.Event
	for range n {
		events = append(events, f.event(key))
	}
	f.accept(from, events...)
}

// A full mailbox gives credit once it is half empty, once, and shares it out.
func TestCreditForAKey(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.DepthMax = 4 })
	f.accepts(1, "ann", 5) // the fifth finds no room
	f.accepts(1, "ann", 1)
	f.accepts(Local, "ann", 1)
	f.wantCredits("full")
	f.finish(f.takeOne(), event.ResultDone, "")
	f.wantCredits("three of four wait")
	f.finish(f.takeOne(), event.ResultRetry, "again") // is first again, so three still wait
	f.wantCredits("a retry frees nothing")
	f.now = f.now.Add(modelRetry.BackoffMax)
	f.Tick(f.now, &f.out)
	f.finish(f.takeOne(), event.ResultDone, "")
	f.wantCredits("half", Credit{To: 1, Key: "ann", Events: 1}, Credit{To: Local, Key: "ann", Events: 1})
	f.finish(f.takeOne(), event.ResultDone, "")
	f.wantCredits("it was given")
	if len(f.owed.keys) != 0 {
		t.Errorf("%d keys are owed credit", len(f.owed.keys))
	}
}

// A departed sender gets no credit, and takes no share.
func TestNoCreditForAStreamThatIsGone(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.DepthMax = 2 })
	f.accepts(1, "ann", 3)
	f.accepts(2, "ann", 1)
	f.SenderGone(1)
	f.finish(f.takeOne(), event.ResultDone, "")
	f.wantCredits("half", Credit{To: 2, Key: "ann", Events: 1})
}

// A full shard gives credit to all that it refused, once a quarter is free.
func TestCreditForTheShard(t *testing.T) {
	weight := (&fixture{}).event("ann").Bytes() + placeBytes
	f := newFixture(t, func(c *Config) { c.BytesMax = 4 * weight })
	f.accept(3, f.event("ann"), f.event("bob"), f.event("cat"), f.event("dan"), f.event("eve"))
	f.accepts(Local, "fay", 1)
	f.wantCredits("full")
	deliveries := f.take()
	f.finish(deliveries[0], event.ResultDone, "")
	f.wantCredits("a quarter is free", Credit{To: 3, All: true}, Credit{To: Local, All: true})
	f.finish(deliveries[1], event.ResultDone, "")
	f.wantCredits("it was given")
}

// Waiting events go back when the partition moves, so no sender is owed a credit.
func TestNoCreditAfterAMove(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.DepthMax = 2 })
	e := f.event("ann")
	f.accept(1, e)
	f.accepts(1, "ann", 3)
	d := f.takeOne()
	f.setGate(e.Partition, ownership.Draining)
	f.finish(d, event.ResultDone, "")
	f.wantCredits("moved")
	if len(f.owed.keys) != 0 {
		t.Errorf("%d keys are owed credit", len(f.owed.keys))
	}
}

// A full shard gives credit however its events leave it: also if another member has done them, or the time of calls is up.
func TestCreditForTheShardWithoutAResult(t *testing.T) {
	full := func(t *testing.T) *fixture {
		f := newFixture(t, func(c *Config) { c.BytesMax = 2048 })
		f.WorkerGone(f.now, 1, &f.out)
		return f
	}
	t.Run("handed over", func(t *testing.T) {
		f := full(t)
		var done []event.Finished
		for f.counters.Overloaded == 0 {
			e := f.event("ann")
			done = append(done, event.Finished{Partition: e.Partition, ID: e.ID, At: f.now})
			f.accept(3, e)
		}
		f.out.Reset()
		f.LearnDone(f.now, done, &f.out)
		f.wantCredits("all are done elsewhere", Credit{To: 3, All: true})
	})
	t.Run("expired", func(t *testing.T) {
		f := full(t)
		for f.counters.Crowded == 0 {
			e := f.event("ann")
			e.Handle, e.ID, e.Payload = event.NewCallHandle(uint64(f.id)), event.CallMessageID("ann", "", uint64(f.id)), nil
			e.Call = &event.Call{Method: "m", Deadline: f.now.Add(time.Second)}
			f.accept(3, e)
		}
		f.accepts(3, "ann", 1)
		f.out.Reset()
		f.Tick(f.now.Add(time.Minute), &f.out)
		f.wantCredits("the time of all is up", Credit{To: 3, All: true})
	})
}

// The end of a call that nobody waits for makes room, too.
func TestCreditForTheShardAfterACancel(t *testing.T) {
	f := newFixture(t, func(cfg *Config) { cfg.BytesMax = 2000 })
	call := f.event("call")
	call.Handle, call.ID = event.NewCallHandle(1), event.CallMessageID("call", "", 1)
	call.Call, call.Payload = &event.Call{Method: "m", Deadline: f.now.Add(time.Minute)}, make([]byte, 1500)
	f.accept(5, call)
	if got := f.accept(6, f.event("ann")); len(got) != 1 || got[0].Kind != event.Overloaded {
		t.Fatalf("an event without room is answered %v", got)
	}
	f.out.Reset()
	f.Cancel(f.now, 5, []event.Handle{call.Handle}, &f.out)
	f.wantCredits("a cancel", Credit{To: 6, All: true})
}
