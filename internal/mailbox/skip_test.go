package mailbox

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// skip skips the event of an entry, and returns the verdicts.
func (f *fixture) skip(key event.Key, entry int64) []addressed {
	f.out.Reset()
	f.Skip(f.now, []event.Skip{skipOfEntry(key, entry)}, &f.out)
	return said(&f.out)
}

func skipOfEntry(key event.Key, entry int64) event.Skip {
	return event.Skip{Key: key, Event: event.MessageID{Ledger: 7, Entry: entry, Batch: -1, TopicPartition: -1}, Act: [16]byte{byte(entry)}, Reason: "skipped"}
}

// letter is the verdict on a skipped event.
func letter(entry int64, attempts uint32, firstError string) addressed {
	return says(Local, event.Handle(entry), verdict{event.Rejected, event.Detail{Attempts: attempts, Reason: "skipped", FirstError: firstError, Owner: "me"}})
}

// wantEnds checks which skips have come to their end in the newest call.
func (f *fixture) wantEnds(want ...event.Skipped) {
	f.Helper()
	if !slices.Equal(f.out.Skipped, want) {
		f.Errorf("ends %+v, want %+v", f.out.Skipped, want)
	}
}

// TestSkipOfARunningEvent: its delivery is taken back, the key is busy until the answer, and then the event is done if the handler
// has done it, and a dead letter otherwise, whatever the application thinks of it.
func TestSkipOfARunningEvent(t *testing.T) {
	for kind, want := range map[event.ResultKind][]addressed{
		event.ResultDone:       {says(Local, 1, verdict{Kind: event.Done})},
		event.ResultCancelled:  {letter(1, 0, "")},
		event.ResultNotStarted: {letter(1, 0, "")},
		event.ResultLost:       {letter(1, 0, "")},
		event.ResultPutOff:     {letter(1, 0, "")},
		event.ResultReject:     {letter(1, 1, "no")},
		event.ResultRetry:      {letter(1, 1, "no")},
		event.ResultCrashed:    {letter(1, 0, "its worker crashed")},
	} {
		if kind == event.ResultCrashed {
			want[0].Crashes = 1
		}
		t.Run(kind.String(), func(t *testing.T) {
			f := newFixture(t, nil)
			f.accept(Local, f.event("k"), f.event("k"))
			d := f.takeOne()
			f.want(f.skip("k", 1))
			if !slices.Equal(f.out.TakeBack, []event.DeliveryID{d.ID}) {
				t.Fatalf("taken back are %v, want %v", f.out.TakeBack, d.ID)
			}
			f.skip("k", 1) // again: nothing changes
			if len(f.out.TakeBack) > 0 {
				t.Errorf("taken back again are %v", f.out.TakeBack)
			}
			if got := f.take(); len(got) > 0 || f.Inspect("k").Wait != WaitHandler {
				t.Fatalf("%d deliveries beside the one that was taken back", len(got))
			}
			f.want(f.finish(d, kind, "no"), want...)
			f.wantEnds(event.Skipped{Skip: skipOfEntry("k", 1), Done: kind == event.ResultDone})
			if next := f.takeOne(); next.Object.ID.Entry != 2 {
				t.Errorf("then event %v runs", next.Object.ID)
			}
		})
	}
}

// TestSkipOfARunningEventWithoutALease: the next owner may run the event already, so it does not become a dead letter
// here, unless the application has given it up: it waits until there is a lease, or goes to that owner.
func TestSkipOfARunningEventWithoutALease(t *testing.T) {
	for _, kind := range []event.ResultKind{event.ResultLost, event.ResultCancelled, event.ResultCrashed, event.ResultNotStarted} {
		for name, back := range map[string]bool{"the lease comes back": true, "the partition has moved": false} {
			t.Run(kind.String()+", "+name, func(t *testing.T) {
				f := newFixture(t, nil)
				e := f.event("k")
				f.accept(Local, e)
				d := f.takeOne()
				f.SetLease(f.now, ownership.Lease{Until: f.now}, &f.out)
				f.skip("k", 1)
				for _, v := range f.finish(d, kind, "no") {
					if v.Kind.Final() {
						t.Fatalf("without a lease it is settled: %+v", v)
					}
				}
				f.wantEnds()
				if !back {
					f.want(f.setGate(e.Partition, ownership.Closed), says(Local, 1, verdict{event.NotOwner, event.Detail{Epoch: event.Position{Ledger: 1, Entry: 6}}}))
					f.wantEnds()
					return
				}
				f.out.Reset()
				f.SetLease(f.now, openLease, &f.out)
				f.wantEnds(event.Skipped{Skip: skipOfEntry("k", 1)})
			})
		}
	}
	f := newFixture(t, nil)
	f.accept(Local, f.event("k"))
	d := f.takeOne()
	f.SetLease(f.now, ownership.Lease{Until: f.now}, &f.out)
	f.skip("k", 1)
	f.want(f.finish(d, event.ResultReject, "no"), letter(1, 1, "no"))
}

// TestSkipOfAWaitingEvent: it leaves its key at once wherever it stands, also on hold, or while its retry is not due; the others
// stay in their order.
func TestSkipOfAWaitingEvent(t *testing.T) {
	f := newFixture(t, nil)
	f.accept(Local, f.event("k"), f.event("k"), f.event("k"), f.event("k"))
	d := f.takeOne()
	f.want(f.skip("k", 3), letter(3, 0, "")) // behind one that runs
	f.finish(d, event.ResultRetry, "first")
	if w := f.Inspect("k").Wait; w != WaitRetry {
		t.Fatalf("the failed event waits for %v", w)
	}
	f.want(f.skip("k", 1), letter(1, 1, "first"))
	f.wantEnds(event.Skipped{Skip: skipOfEntry("k", 1)})
	f.hold("k")
	f.want(f.skip("k", 2), letter(2, 0, ""))
	if s := f.Inspect("k"); s.Wait != WaitHold || s.Depth != 1 || s.Event.Entry != 4 {
		t.Errorf("on hold remains %+v", s)
	}
	f.want(f.skip("k", 4), letter(4, 0, ""))
	if s := f.Stats(); s.Keys != 0 || s.Events != 0 || s.OnHold != 0 || s.Held != 0 || s.Skipped != 4 {
		t.Errorf("in the end %+v", s)
	}
}

// TestSkipOfAnEventThatIsNotHere: it is skipped when it comes, as long as the skip is in effect; no other event is.
func TestSkipOfAnEventThatIsNotHere(t *testing.T) {
	f := newFixture(t, nil)
	f.want(f.skip("k", 1))
	f.want(f.skip("other", 2))
	f.want(f.accept(Local, f.event("k")), letter(1, 0, ""))
	f.accept(Local, f.event("k")) // entry 2, skipped under another key
	f.want(f.skip("k", 4))
	f.accept(Local, f.event("k"))
	f.want(f.accept(Local, f.event("k")), letter(4, 0, "")) // behind others that wait
	if s := f.Inspect("k"); s.Depth != 2 || s.Event.Entry != 2 {
		t.Errorf("there remain %+v", s)
	}
	f.Unskip([]event.Skip{skipOfEntry("k", 4)})
	again := f.event("k")
	again.ID.Entry = 4
	f.want(f.accept(Local, again))
	if n := f.Inspect("k").Depth; n != 3 {
		t.Errorf("%d events wait when the skip is over, want 3", n)
	}
}

// TestSkipWaitsForTheGate: while another tenure may run the event, it waits for the gate and for the lease; under a
// gate that is not ours, a delivery that was taken back becomes a dead letter all the same.
func TestSkipWaitsForTheGate(t *testing.T) {
	f := newFixture(t, nil)
	p := ring.PartitionOf("k")
	f.setGate(p, ownership.Waiting)
	f.accept(Local, f.event("k"))
	f.want(f.skip("k", 1))
	if w := f.Inspect("k").Wait; w != WaitGate {
		t.Fatalf("it waits for %v", w)
	}
	f.want(f.setGate(p, ownership.Open), letter(1, 0, ""))

	f.out.Reset()
	f.SetLease(f.now, ownership.Lease{}, &f.out)
	f.want(f.skip("k", 2))
	f.want(f.accept(Local, f.event("k")))
	f.out.Reset()
	f.SetLease(f.now, openLease, &f.out)
	f.want(said(&f.out), letter(2, 0, ""))

	f.accept(Local, f.event("k"))
	d := f.takeOne()
	f.skip("k", 3)
	f.setGate(p, ownership.Draining)
	f.Unskip([]event.Skip{skipOfEntry("k", 3)}) // its time is over, but the handler was told
	f.want(f.finish(d, event.ResultCancelled, ""), letter(3, 0, ""))
	if !slices.Equal(f.out.Ended, []ring.Partition{p}) {
		t.Errorf("ended on %v", f.out.Ended)
	}
}

// TestSkipGivesCredit: a full mailbox that loses an event by a skip has room again.
func TestSkipGivesCredit(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.DepthMax = 2 })
	f.accept(Local, f.event("k"), f.event("k"), f.event("k"))
	f.skip("k", 1)
	if len(f.out.Credits) != 1 || f.out.Credits[0].Key != "k" || f.out.Credits[0].Events != 1 {
		t.Errorf("credits %+v", f.out.Credits)
	}
}

// TestMailboxesSkipInAllShards: each event is skipped in the shard of its partition.
func TestMailboxesSkipInAllShards(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Shards = 4
	now := clock.Instant(time.Hour)
	m := NewMailboxes(cfg, outcome.DefaultConfig(), "me", func() clock.Instant { return now })
	var out Output
	m.SetGates(openAll(), event.Position{Ledger: 1, Entry: 5}, &out)
	m.SetLease(openLease, &out)
	m.WorkerUp(1, &out)
	var skips []event.Skip
	var events []*event.Event
	for i := range int64(40) {
		key := event.Key(fmt.Sprintf("key-%d", i))
		skips = append(skips, skipOfEntry(key, i))
		events = append(events, &event.Event{Handle: event.Handle(i + 1), ID: skips[i].Event, Key: key, Partition: ring.PartitionOf(string(key))})
	}
	m.Skip(skips[:20], &out)
	m.Accept(Local, event.Position{Ledger: 1, Entry: 5}, event.RefsTo(events...), &out)
	taken := m.Take(openLease, 1, 100, nil)
	m.Skip(skips, &out)
	if len(taken) != 20 || len(out.TakeBack) != 20 || len(out.Skipped) != 20 || m.Stats().Skipped != 20 {
		t.Fatalf("%d deliveries, %d taken back, %d skipped, want 20 each", len(taken), len(out.TakeBack), len(out.Skipped))
	}
	m.Unskip(skips)
	for i := range m.shards {
		if n := len(m.shards[i].boxes.skips.known); n != 0 {
			t.Errorf("%d skips are left in a shard", n)
		}
	}
}

// TestMailboxesLeaseAndSkips: shards learn of each lease, also of the one before a skip.
func TestMailboxesLeaseAndSkips(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Shards = 2
	m := NewMailboxes(cfg, outcome.DefaultConfig(), "me", func() clock.Instant { return clock.Instant(time.Hour) })
	var out Output
	m.SetGates(openAll(), event.Position{Ledger: 1, Entry: 5}, &out)
	m.SetLease(openLease, &out)
	m.SetLease(ownership.Lease{}, &out)
	m.Accept(Local, event.Position{Ledger: 1, Entry: 5}, event.RefsTo(&event.Event{Handle: 1, ID: skipOfEntry("k", 1).Event, Key: "k", Partition: ring.PartitionOf("k")}), &out)
	m.Skip([]event.Skip{skipOfEntry("k", 1)}, &out)
	if len(out.Skipped) != 0 {
		t.Fatal("an event was skipped without a lease")
	}
	m.SetLease(openLease, &out)
	if len(out.Skipped) != 1 {
		t.Fatal("an event that is skipped stays though there is a lease")
	}
	m.Accept(Local, event.Position{Ledger: 1, Entry: 5}, event.RefsTo(&event.Event{Handle: 2, ID: skipOfEntry("k", 2).Event, Key: "k", Partition: ring.PartitionOf("k")}), &out)
	m.Skip([]event.Skip{skipOfEntry("k", 2)}, &out)
	if len(out.Skipped) != 2 {
		t.Fatal("an event was not skipped under the lease from before")
	}
}

// TestASkippedEventThatMayNotEndWaits: it leaves its key as soon as it may, and is not delivered meanwhile, though the others are.
func TestASkippedEventThatMayNotEndWaits(t *testing.T) {
	sent := event.SentMessageID("k", "schedule", "1")
	skip := event.Skip{Key: "k", Event: sent, Reason: "skipped"}
	ours := func(f *fixture) (may *bool, e *event.Event) {
		may = new(bool)
		f.skips.mayEnd = func(e *event.Event) bool { return *may || e.ID != sent }
		e = f.event("k")
		e.ID = sent
		return may, e
	}
	t.Run("it waits", func(t *testing.T) {
		f := newFixture(t, nil)
		may, e := ours(f)
		f.accept(Local, e)
		f.accept(Local, f.event("k"))
		f.skipEvent(skip)
		f.wantEnds()
		if got := f.take(); len(got) > 0 {
			t.Fatalf("%d deliveries", len(got))
		}
		f.now = f.now.Add(skipAgain)
		f.out.Reset()
		f.Tick(f.now, &f.out)
		f.wantEnds()
		if got := f.take(); len(got) > 0 {
			t.Fatalf("%d deliveries though it may still not end", len(got))
		}
		*may = true
		f.now = f.now.Add(skipAgain)
		f.out.Reset()
		f.Tick(f.now, &f.out)
		f.wantEnds(event.Skipped{Skip: skip})
		if d := f.takeOne(); d.MessageID() == sent {
			t.Fatal("it is delivered though it was skipped")
		}
	})
	t.Run("it is not skipped any more", func(t *testing.T) {
		f := newFixture(t, nil)
		_, e := ours(f)
		f.accept(Local, e)
		f.skipEvent(skip)
		f.Unskip([]event.Skip{skip})
		f.now = f.now.Add(skipAgain)
		f.out.Reset()
		f.Tick(f.now, &f.out)
		if d := f.takeOne(); d.MessageID() != sent {
			t.Fatal("another one is delivered")
		}
	})
	t.Run("a letter comes before the others", func(t *testing.T) {
		f := newFixture(t, nil)
		_, e := ours(f)
		f.Park(f.now, []event.Park{{Key: "k", State: event.ParkEnds}}, &f.out)
		f.accept(Local, f.event("k"))
		f.skipEvent(skip)
		f.accept(Letters, e)
		if got := f.take(); len(got) > 0 {
			t.Fatalf("%d deliveries", len(got))
		}
	})
	t.Run("a call made its key ready", func(t *testing.T) {
		f := newFixture(t, nil)
		may, e := ours(f)
		f.accept(Local, e)
		f.skipEvent(skip)
		call := f.event("k")
		call.ID, call.Call = event.CallMessageID("k", "id", 0), &event.Call{Method: "m", ID: "id", Deadline: f.now.Add(time.Millisecond)}
		f.accept(Local, call)
		f.now = f.now.Add(2 * skipAgain)
		if got := f.take(); len(got) > 0 {
			t.Fatalf("%d deliveries", len(got))
		}
		*may = true
		f.now = f.now.Add(skipAgain)
		f.out.Reset()
		f.Tick(f.now, &f.out)
		f.wantEnds(event.Skipped{Skip: skip})
	})
	t.Run("it was put off", func(t *testing.T) {
		f := newFixture(t, nil)
		may, e := ours(f)
		f.accept(Local, e)
		d := f.takeOne()
		f.skipEvent(skip)
		f.finish(d, event.ResultPutOff, "")
		f.wantEnds()
		if got := f.take(); len(got) > 0 {
			t.Fatalf("%d deliveries", len(got))
		}
		*may = true
		f.out.Reset()
		f.SetLease(f.now, openLease, &f.out)
		f.wantEnds(event.Skipped{Skip: skip})
	})
}

func (f *fixture) skipEvent(s event.Skip) {
	f.out.Reset()
	f.Skip(f.now, []event.Skip{s}, &f.out)
}
