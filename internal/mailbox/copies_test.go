package mailbox

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// copyBox is a mailbox with one worker, whose partitions are all open.
type copyBox struct {
	t *testing.T
	*Boxes
	handle event.Handle
}

func newCopyBox(t *testing.T) *copyBox {
	b := &copyBox{t: t, Boxes: New(DefaultConfig(), outcome.DefaultConfig(), "m")}
	var out Output
	b.WorkerUp(0, 1, &out)
	b.setAll(ownership.Open)
	return b
}

func (b *copyBox) setAll(gate ownership.Gate) {
	var out Output
	for p := range ring.Partition(ring.Partitions) {
		b.SetGates(0, []ownership.GateChange{{Partition: p, Gate: gate, Token: 1}}, event.Position{}, &out)
	}
}

// deliver brings an event, and finishes it if it may run. It returns its fate.
func (b *copyBox) deliver(key, payload string, round, redelivery uint32) string {
	b.handle++
	e := &event.Event{
		Handle: b.handle, ID: event.MessageID{Ledger: 1, Entry: 2, Batch: -1, TopicPartition: 0}, Topic: "t", Key: event.Key(key),
		Partition: ring.PartitionOf(key), Payload: []byte(payload), Round: round, Redelivery: redelivery,
		Properties: []event.Property{{Name: "kind", Value: "refund"}},
	}
	if round > 0 { // copies come with a trace of their own
		e.Properties = append([]event.Property{{Name: "traceparent", Value: key + payload}}, e.Properties...)
	}
	var out Output
	b.Accept(0, Local, event.Position{}, event.RefsTo(e), &out)
	if slices.Contains(said(&out), says(Local, b.handle, verdict{Kind: event.Done})) {
		return "known to be done"
	}
	running := b.Take(0, ownership.Lease{Until: clock.Forever - 1}, 1, 10, nil)
	if len(running) != 1 {
		b.t.Fatalf("%d deliveries", len(running))
	}
	if running[0].Object != e {
		b.t.Fatal("another event ran")
	}
	b.Finish(0, []event.Result{{Delivery: running[0].ID, Kind: event.ResultDone}}, &out)
	return "ran"
}

// An event is known as done only by an event that is the same: according to the broker, or by its
// content if a copy merely claims it.
func TestCopiesAreKnownByTheirContent(t *testing.T) {
	const ran, known = "ran", "known to be done"
	type delivery struct {
		key, payload string
		round        uint32
		want         string
	}
	for name, deliveries := range map[string][]delivery{
		"delivered again":                     {{"k", "p", 0, ran}, {"k", "p", 0, known}},
		"its copy":                            {{"k", "p", 0, ran}, {"k", "p", 1, known}},
		"the original of a copy":              {{"k", "p", 1, ran}, {"k", "p", 0, known}, {"k", "p", 2, known}},
		"forged under another key":            {{"x", "p", 1, ran}, {"k", "p", 0, ran}, {"k", "p", 0, known}, {"x", "p", 1, known}},
		"forged with other content":           {{"k", "x", 1, ran}, {"k", "p", 0, ran}, {"k", "p", 0, known}, {"k", "p", 1, known}},
		"forged, when the original was there": {{"k", "p", 0, ran}, {"x", "p", 1, known}, {"k", "p", 0, known}},
		"two that are forged":                 {{"x", "p", 1, ran}, {"y", "p", 1, ran}, {"k", "p", 0, ran}, {"y", "p", 1, known}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newCopyBox(t)
			for i, d := range deliveries {
				if got := b.deliver(d.key, d.payload, d.round, 0); got != d.want {
					t.Errorf("delivery %d: %s, want %s", i+1, got, d.want)
				}
			}
		})
	}
	b := newCopyBox(t)
	b.signed = true
	b.deliver("k", "p", 1, 0)
	if got := b.deliver("k", "p", 0, 0); got != known {
		t.Errorf("the original of a signed copy: %s", got)
	}
}

// An event that finished through a copy is not handed over to the next owner, which could not
// check it, unless copies are signed. No alias is ever handed over.
func TestCopiesAreNotHandedOver(t *testing.T) {
	for name, test := range map[string]struct {
		signed bool
		bring  func(*copyBox)
		told   int
	}{
		"a copy":                     {bring: func(b *copyBox) { b.deliver("k", "p", 1, 0) }},
		"a signed copy":              {signed: true, bring: func(b *copyBox) { b.deliver("k", "p", 1, 0) }, told: 1},
		"an event":                   {bring: func(b *copyBox) { b.deliver("k", "p", 0, 0) }, told: 1},
		"a forged copy and an event": {bring: func(b *copyBox) { b.deliver("x", "p", 1, 0); b.deliver("k", "p", 0, 0) }},
	} {
		b := newCopyBox(t)
		b.signed = test.signed
		test.bring(b)
		b.setAll(ownership.Closed)
		told, _ := b.TakeHandover(100, func(ring.Partition) bool { return true }, nil)
		if len(told) != test.told {
			t.Errorf("%s: told %v, want %d ids", name, told, test.told)
		}
		if b.window.n != 0 || len(b.window.copies) != 0 || b.spans.table.len() != 0 {
			t.Errorf("%s: %d ids and %d copies are left", name, b.window.n, len(b.window.copies))
		}
	}
}

// A replayed event is acked without a handler, and counted, as long as its id is remembered;
// after that it runs.
func TestForgottenEventsRunAgain(t *testing.T) {
	b := newCopyBox(t)
	b.deliver("k", "p", 0, 0)
	for range 2 {
		if got := b.deliver("k", "p", 0, 1); got != "known to be done" {
			t.Fatal(got)
		}
	}
	if b.counters.Unrun != 0 {
		t.Errorf("%d redeliveries count as first deliveries", b.counters.Unrun)
	}
	b.deliver("k", "p", 0, 0)
	if b.counters.Unrun != 1 {
		t.Errorf("%d first deliveries were acked, want 1", b.counters.Unrun)
	}
	if n := b.Forget(); n != 1 {
		t.Errorf("forgot %d ids, want 1", n)
	}
	if got := b.deliver("k", "p", 0, 0); got != "ran" {
		t.Errorf("a replay: %s", got)
	}
}

// finish brings the event of an entry, which may be a copy, and finishes it if it is not known to be done. It reports whether it is.
func (b *copyBox) finish(entry int64, round uint32) (known bool) {
	var out Output
	e := &event.Event{
		Handle: event.NewHandle(uint64(entry+1), 0), ID: event.MessageID{Ledger: 1, Entry: entry, Batch: -1}, Key: "k", Partition: ring.PartitionOf("k"), Round: round,
	}
	b.Accept(0, Local, event.Position{}, event.RefsTo(e), &out)
	for _, d := range b.Take(0, ownership.Lease{Until: clock.Forever - 1}, 1, 1, nil) {
		b.Finish(0, []event.Result{{Delivery: d.ID, Kind: event.ResultDone}}, &out)
		return false
	}
	return true
}

// Ids of copies have their own bound, and leave with the window. The oldest makes room for the newest, and no other id does, however many copies
// come.
func TestCopiesInTheWindowAreBounded(t *testing.T) {
	b := newCopyBox(t)
	b.window.countMax = 40
	const first = 1000
	for i := range int64(25) {
		b.finish(first+i, 0)
	}
	for i := range int64(100) {
		b.finish(i, 1)
	}
	if len(b.window.copies) != 10 || b.window.n != 35 || b.Stats().Displaced != 90 {
		t.Errorf("%d copies and %d ids are remembered, and %d were displaced, want 10, 35 and 90", len(b.window.copies), b.window.n, b.Stats().Displaced)
	}
	for i := range int64(25) {
		if !b.finish(first+i, 0) {
			t.Errorf("event %d is forgotten", i)
		}
	}
	for i := int64(99); i >= 89; i-- {
		if known := b.finish(i, 1); known != (i >= 90) {
			t.Errorf("copy %d is known: %t", i, known)
		}
	}
	b.Forget()
	if len(b.window.copies) != 0 {
		t.Errorf("%d copies are left", len(b.window.copies))
	}
}

// Copies that all claim one id are no way around that bound, though each runs under an id of its own.
func TestFalseCopiesInTheWindowAreBounded(t *testing.T) {
	b := newCopyBox(t)
	b.window.countMax = 40
	const first = 1000
	for i := range int64(25) {
		b.finish(first+i, 0)
	}
	for i := range 100 {
		if fate := b.deliver("k", string(rune('a'+i)), 1, 0); fate != "ran" {
			t.Fatal(fate)
		}
	}
	for i := range int64(25) {
		if !b.finish(first+i, 0) {
			t.Errorf("event %d is forgotten", i)
		}
	}
}

// Whatever copies come, the window has the newest ids of both kinds, and those of partitions that have moved away leave it, others not.
func TestWindowWithCopies(t *testing.T) {
	closed := 0
	rapid.Check(t, func(t *rapid.T) {
		const countMax = 40
		b := New(DefaultConfig(), outcome.DefaultConfig(), "m")
		b.window = newWindow(b.spans, countMax*recordBytes, b.cfg.WindowAgeMax)
		type done struct {
			event.Finished
			leaves bool
		}
		var events, copies []done
		var late []event.MessageID
		held := func() (ids []event.Finished) {
			for _, d := range slices.Concat(events, copies) {
				ids = append(ids, d.Finished)
			}
			return ids
		}
		byID := func(a, b event.Finished) int { return cmp.Compare(a.ID.Entry, b.ID.Entry) }
		for entry := range int64(rapid.IntRange(1, 400).Draw(t, "steps")) {
			d := done{Finished: event.Finished{Partition: ring.Partition(rapid.IntRange(0, 2).Draw(t, "partition")), ID: event.MessageID{Ledger: 1 << 61, Entry: entry, Batch: -1}}}
			hash := hashOf(d.ID)
			makeRoom := func() { // the slots of ids that have left count until they are closed
				if b.window.end-b.window.first == countMax {
					oldest := b.window.finished(b.window.at(b.window.first)).ID
					isOldest := func(d done) bool { return d.ID == oldest }
					events, copies = slices.DeleteFunc(events, isOldest), slices.DeleteFunc(copies, isOldest)
				}
			}
			switch rapid.SampledFrom([]string{"event", "copy", "copy", "copy", "copy", "moves", "late", "leave"}).Draw(t, "step") {
			case "event":
				makeRoom()
				events = append(events, d)
				b.window.add(0, d.Partition, b.spans.add(hash, d.ID), bitOf(d.ID))
			case "copy":
				makeRoom()
				d.Content = event.Content{1, byte(entry)}
				b.learn(0, &d.Finished, b.spans.add(hash, d.ID), bitOf(d.ID))
				if copies = append(copies, d); len(copies) > countMax/copiesPart {
					copies = copies[1:]
				}
			case "moves":
				b.part(d.Partition).leaves = b.window.end
				b.RestartHandover(0)
				for _, all := range [][]done{events, copies} {
					for i := range all {
						all[i].leaves = all[i].leaves || all[i].Partition == d.Partition
					}
				}
			case "late":
				if b.window.end > b.window.first {
					b.late = append(b.late, b.window.end)
					late = append(late, b.window.finished(b.window.at(b.window.end-1)).ID)
				}
			case "leave":
				got, _ := b.TakeHandover(rapid.IntRange(0, 5).Draw(t, "ids"), func(ring.Partition) bool { return true }, nil)
				for _, f := range got {
					isOne := func(d done) bool { return d.Finished == f && d.leaves }
					if !slices.ContainsFunc(events, isOne) && !slices.ContainsFunc(copies, isOne) {
						t.Fatalf("%+v leaves, of %+v", f, held())
					}
					events, copies = slices.DeleteFunc(events, isOne), slices.DeleteFunc(copies, isOne)
				}
				for _, d := range slices.Concat(events, copies) {
					if d.leaves && slices.Contains(late, d.ID) {
						t.Fatalf("%+v is late, and does not leave at once", d)
					}
				}
				late = nil
			}
			var have []event.Finished
			for serial := b.window.first; serial < b.window.end; serial++ {
				if r := b.window.at(serial); !r.is(recordDropped) {
					have = append(have, b.window.finished(r))
				}
			}
			if want := slices.SortedFunc(slices.Values(held()), byID); !slices.Equal(have, want) || b.window.n != len(want) || len(b.window.copies) != len(copies) {
				t.Fatalf("the window has %+v, want %+v", have, want)
			}
			if b.window.gaps() == 0 && b.window.first > 1 {
				closed++
			}
		}
		for range 2 * countMax {
			b.TakeHandover(5, func(ring.Partition) bool { return true }, nil)
		}
		for serial := b.window.first; serial < b.window.end; serial++ {
			r := b.window.at(serial)
			isOne := func(d done) bool { return d.ID == b.window.finished(r).ID && d.leaves }
			if !r.is(recordDropped) && (slices.ContainsFunc(events, isOne) || slices.ContainsFunc(copies, isOne)) {
				t.Fatalf("%+v does not leave", b.window.finished(r))
			}
		}
	})
	if closed == 0 {
		t.Error("no gaps were closed; this run proves little")
	}
}

// A copy that claims the id of a call, whenever it comes, runs as an event of its own: neither does it join the call, nor the call it, and neither
// counts as the other when it is done.
func TestCopiesWithTheIDOfACall(t *testing.T) {
	for name, first := range map[string]string{"the copy first": "copy", "the call first": "call", "the copy is done": "done"} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			id := event.CallMessageID("k", "order-7", 0)
			forged := f.event("k")
			forged.ID, forged.Round, forged.Attempts = id, 1, 1
			asked := f.event("k")
			asked.ID, asked.Call = id, &event.Call{Method: "m", ID: "order-7", Deadline: f.now.Add(time.Minute)}
			if first == "call" {
				f.want(f.accept(Local, asked))
			}
			f.want(f.accept(Local, forged))
			if first == "done" {
				f.want(f.finish(f.takeOne(), event.ResultDone, ""), says(Local, forged.Handle, verdict{Kind: event.Done}))
			}
			if first != "call" {
				f.want(f.accept(Local, asked))
			}
			again := *asked
			again.Handle = event.NewHandle(99, 0)
			call := *asked.Call
			call.Deadline = call.Deadline.Add(time.Minute)
			again.Call = &call
			f.want(f.accept(Local, &again)) // joins the call
			f.Tick(f.now, &f.out)
			d := f.takeOne()
			if d.Call() == nil {
				t.Fatalf("%+v runs first, which is no call", d)
			}
			f.finish(d, event.ResultDone, "")
			if got := said(&f.out); len(got) != 2 || got[0].Reply == nil || got[0].Reply.Outcome != event.CallReplied {
				t.Errorf("the callers hear %+v", got)
			}
			if first != "done" {
				if d := f.takeOne(); d.Call() != nil || d.Attempt != 2 {
					t.Errorf("then runs %+v, want the copy", d)
				}
			}
			if s := f.Stats(); s.Mistaken != 1 || s.Joined != 1 {
				t.Errorf("%d events with false ids, %d joined, want 1 of each", s.Mistaken, s.Joined)
			}
		})
	}
}

// A call whose id may be that of an event does not run: its caller would hear of the event.
func TestCallsWithTheIDOfAnEvent(t *testing.T) {
	f := newFixture(t, nil)
	e := f.event("k")
	f.accept(Local, e)
	call := f.event("k")
	call.ID, call.Call = e.ID, &event.Call{Method: "m", ID: "order-7", Deadline: f.now.Add(time.Minute)}
	f.want(f.accept(Local, call), says(Local, call.Handle, verdict{event.Answered, *answerBadID}))
	f.want(f.finish(f.takeOne(), event.ResultDone, ""), says(Local, e.Handle, verdict{Kind: event.Done}))
}

// deliverSent brings a copy of an event that a router has published, as deliver does.
func (b *copyBox) deliverSent(payload string) (e *event.Event, fate string) {
	b.handle++
	e = &event.Event{
		Handle: b.handle, ID: event.SentMessageID("k", "send", "order-7"), Topic: "t-s-TIMER", Key: "k", Partition: ring.PartitionOf("k"), Payload: []byte(payload), Round: 1,
	}
	var out Output
	b.Accept(0, Local, event.Position{}, event.RefsTo(e), &out)
	if slices.Contains(said(&out), says(Local, b.handle, verdict{Kind: event.Done})) {
		return e, "known to be done"
	}
	for _, d := range b.Take(0, ownership.Lease{Until: clock.Forever - 1}, 1, 10, nil) {
		b.Finish(0, []event.Result{{Delivery: d.ID, Kind: event.ResultDone}}, &out)
		return e, "ran"
	}
	return e, "waits"
}

// leave moves all partitions away, and returns what the mailbox knows to be done.
func (b *copyBox) leave() []event.Finished {
	b.setAll(ownership.Closed)
	b.RestartHandover(0)
	done, _ := b.TakeHandover(100, func(ring.Partition) bool { return true }, nil)
	return done
}

// A timer that was handled is known to the next owner of its key, and to the one after that: a second copy of it, that
// was sent again or that a router has published before it died, does not run there. A copy of another content under its
// id does: without keys any client with the right to write to the topic can make one.
func TestSentEventsAreHandedOverWithTheirContent(t *testing.T) {
	first, second, third := newCopyBox(t), newCopyBox(t), newCopyBox(t)
	if _, fate := first.deliverSent("p"); fate != "ran" {
		t.Fatal(fate)
	}
	if fate := first.deliver("x", "p", 1, 0); fate != "ran" {
		t.Fatal(fate)
	}
	told := first.leave()
	if len(told) != 1 || !told[0].ID.IsSent() || told[0].Content == (event.Content{}) {
		t.Fatalf("handed over %+v, want the timer, and not the copy of the retry topic", told)
	}
	var out Output
	second.LearnDone(0, told, &out)
	told = second.leave()
	third.LearnDone(0, told, &out)
	for _, step := range []struct{ payload, want string }{{"p", "known to be done"}, {"other", "ran"}, {"p", "known to be done"}, {"other", "known to be done"}} {
		if _, fate := third.deliverSent(step.payload); fate != step.want {
			t.Errorf("a copy with the content %q %s, want: %s", step.payload, fate, step.want)
		}
	}
}

// An event that waits when its id is handed over is done, if it has the content of the one that was handled.
func TestWaitingSentEventsAreTakenOut(t *testing.T) {
	for payload, done := range map[string]bool{"p": true, "other": false} {
		b := newCopyBox(t)
		b.setAll(ownership.Waiting)
		e, fate := b.deliverSent(payload)
		if fate != "waits" {
			t.Fatal(fate)
		}
		same := *e
		same.Payload = []byte("p")
		var out Output
		b.LearnDone(0, []event.Finished{{Partition: e.Partition, ID: e.ID, Content: ContentOf(&same)}}, &out)
		if got := slices.Contains(said(&out), says(Local, e.Handle, verdict{Kind: event.Done})); got != done {
			t.Errorf("content %q: done is %t, want %t", payload, got, done)
		}
		b.setAll(ownership.Open)
		if got := slices.Equal(out.Known, []event.Known{{Key: "k", Event: e.ID}}); got != done || !done && len(out.Known) > 0 {
			t.Errorf("content %q: known to have finished before are %+v", payload, out.Known)
		}
		if n := len(b.Take(0, ownership.Lease{Until: clock.Forever - 1}, 1, 10, nil)); (n == 0) != done {
			t.Errorf("content %q: %d deliveries", payload, n)
		}
	}
}

// A copy of a timer that has finished is named, since schedules may wait for it; one of an event of a producer is not.
func TestFurtherCopiesOfSentEventsAreNamed(t *testing.T) {
	b := newCopyBox(t)
	sent, _ := b.deliverSent("p")
	for i, e := range []*event.Event{sent, sent, {Handle: 8, ID: event.MessageID{Ledger: 1, Entry: 1, Batch: -1}, Key: "k", Partition: ring.PartitionOf("k")}} {
		var out Output
		for range 2 {
			b.Accept(0, Local, event.Position{}, event.RefsTo(e), &out)
			for _, d := range b.Take(0, ownership.Lease{Until: clock.Forever - 1}, 1, 10, nil) {
				b.Finish(0, []event.Result{{Delivery: d.ID, Kind: event.ResultDone}}, &out)
			}
		}
		if want := []event.Known{{Key: "k", Event: sent.ID}, {Key: "k", Event: sent.ID}}; i < 2 && !slices.Equal(out.Known, want) || i == 2 && len(out.Known) > 0 {
			t.Errorf("event %d: known to have finished before are %+v", i, out.Known)
		}
		if out.Reset(); len(out.Known) > 0 {
			t.Error("Reset leaves them")
		}
	}
}

// A timer that finishes after its partition has moved is handed over at once, as every event is.
func TestLateSentEventsAreHandedOver(t *testing.T) {
	b := newCopyBox(t)
	e := &event.Event{Handle: 1, ID: event.SentMessageID("k", "send", "1"), Topic: "t", Key: "k", Partition: ring.PartitionOf("k"), Round: 1}
	var out Output
	b.Accept(0, Local, event.Position{}, event.RefsTo(e), &out)
	running := b.Take(0, ownership.Lease{Until: clock.Forever - 1}, 1, 10, nil)
	b.setAll(ownership.Draining)
	if told := b.leave(); len(told) != 0 {
		t.Fatalf("handed over %+v before the end", told)
	}
	b.Finish(0, []event.Result{{Delivery: running[0].ID, Kind: event.ResultDone}}, &out)
	told, _ := b.TakeHandover(0, func(ring.Partition) bool { return true }, nil)
	if len(told) != 1 || told[0].ID != e.ID || told[0].Content != ContentOf(e) {
		t.Errorf("handed over %+v", told)
	}
}

// bring brings an event with the id of all others, and returns the fate of it that is said at once.
func (b *copyBox) bring(payload string, round uint32) (h event.Handle, done bool) {
	b.handle++
	e := &event.Event{
		Handle: b.handle, ID: event.MessageID{Ledger: 1, Entry: 2, Batch: -1, TopicPartition: 0}, Topic: "t", Key: "ann",
		Partition: ring.PartitionOf("ann"), Payload: []byte(payload), Round: round,
	}
	var out Output
	b.Accept(0, Local, event.Position{}, event.RefsTo(e), &out)
	return b.handle, slices.Contains(said(&out), says(Local, b.handle, verdict{Kind: event.Done}))
}

// While an event waits or runs, one with its id joins it if the broker says that it is the same, or its content does. A copy that merely claims
// the id is an event of its own, whichever of the two comes first.
func TestCopiesOfEventsThatAreHere(t *testing.T) {
	for name, test := range map[string]struct {
		first, second uint32 // rounds
		payload       string // of the second
		runs          int
	}{
		"the broker delivers it again": {0, 0, "pay", 1},
		"a copy of it":                 {0, 1, "pay", 1},
		"a copy and then itself":       {1, 0, "pay", 1},
		"a false copy":                 {0, 1, "steal", 2},
		"a false copy, then the event": {1, 0, "steal", 2},
		"two false copies":             {1, 2, "steal", 2},
	} {
		for _, running := range []bool{false, true} {
			b := newCopyBox(t)
			var ended []addressed
			var out Output
			runs, lease := 0, ownership.Lease{Until: clock.Forever - 1}
			first, _ := b.bring("pay", test.first)
			var given []event.Delivery
			if running {
				given = b.Take(0, lease, 1, 1, nil)
			}
			second, done := b.bring(test.payload, test.second)
			if done {
				t.Errorf("%s, running %t: done before it has run", name, running)
			}
			for range 3 {
				given = b.Take(0, lease, 1, 1, given)
				for _, d := range given {
					runs++
					b.Finish(0, []event.Result{{Delivery: d.ID, Kind: event.ResultDone}}, &out)
					ended = append(ended, said(&out)...)
					out.Reset()
				}
				given = given[:0]
			}
			if runs != test.runs || b.counters.Mistaken != uint64(test.runs-1) {
				t.Errorf("%s, running %t: %d run, and %d have a false id, want %d and %d", name, running, runs, b.counters.Mistaken, test.runs, test.runs-1)
			}
			for _, h := range []event.Handle{first, second} {
				if !slices.Contains(ended, says(Local, h, verdict{Kind: event.Done})) {
					t.Errorf("%s, running %t: %d is not done: %v", name, running, h, ended)
				}
			}
		}
	}
}

// An id that the broker has confirmed, in whatever order the event and its copies came while it was here, is handed
// over. That of copies alone is not.
func TestTheBrokerConfirmsTheIDOfACopy(t *testing.T) {
	for name, test := range map[string]struct {
		rounds []uint32
		told   int
	}{
		"an event, delivered twice":     {[]uint32{0, 0}, 1},
		"a copy, then the event":        {[]uint32{1, 0}, 1},
		"an event, then its copy":       {[]uint32{0, 1}, 1},
		"two copies, then the event":    {[]uint32{1, 2, 0}, 1},
		"the event between two copies":  {[]uint32{1, 0, 2}, 1},
		"copies of which none is proof": {[]uint32{1, 2, 3}, 0},
	} {
		for _, running := range []bool{false, true} {
			b := newCopyBox(t)
			var given []event.Delivery
			lease := ownership.Lease{Until: clock.Forever - 1}
			for i, round := range test.rounds {
				b.bring("pay", round)
				if i == 0 && running {
					given = b.Take(0, lease, 1, 1, nil)
				}
			}
			if !running {
				given = b.Take(0, lease, 1, 1, nil)
			}
			var out Output
			for _, d := range given {
				b.Finish(0, []event.Result{{Delivery: d.ID, Kind: event.ResultDone}}, &out)
			}
			if told := b.leave(); len(given) != 1 || len(told) != test.told {
				t.Errorf("%s, running %t: %d deliveries, and %+v is handed over, want %d ids", name, running, len(given), told, test.told)
			}
		}
	}
}

// A copy that finishes after its partition has moved stays known here, where its consumer node may ask again: the next owner is not told.
func TestLateCopiesAreStillKnown(t *testing.T) {
	b := newCopyBox(t)
	h, _ := b.bring("pay", 1)
	given := b.Take(0, ownership.Lease{Until: clock.Forever - 1}, 1, 1, nil)
	b.setAll(ownership.Draining)
	var out Output
	b.Finish(0, []event.Result{{Delivery: given[0].ID, Kind: event.ResultDone}}, &out)
	if told, _ := b.TakeHandover(100, func(ring.Partition) bool { return true }, nil); len(told) != 0 {
		t.Errorf("handed over %+v", told)
	}
	if _, done := b.bring("pay", 1); !done || h == 0 {
		t.Error("it is not known to be done")
	}
}

// The ids that are to be told at once are those that are remembered, however many finish and are forgotten before they are told.
func TestLateIDsAreBounded(t *testing.T) {
	b := newCopyBox(t)
	b.window.countMax = 40
	late := func(entry int64, round uint32) {
		t.Helper()
		b.finish(entry, round)
		b.late = append(b.late, b.window.end)
	}
	check := func(what string) {
		t.Helper()
		if most := b.window.n + b.window.countMax/gapsPart + 1; len(b.late) > most {
			t.Errorf("%s: %d ids are to be told, and %d are remembered", what, len(b.late), b.window.n)
		}
	}
	b.finish(1000, 0) // so that gaps are behind it
	for i := range int64(200) {
		late(i, 1)
	}
	check("copies that others have displaced")
	for i := range int64(200) {
		late(2000+i, 0)
	}
	for i := range int64(30) {
		b.finish(300+i, 1)
	}
	check("events that have left the window")

	b.finish(5000, 0)
	late(5001, 0)
	b.part(ring.PartitionOf("k")).leaves = b.window.end
	b.setAll(ownership.Closed)
	told, _ := b.TakeHandover(0, func(ring.Partition) bool { return true }, nil)
	if !slices.ContainsFunc(told, func(f event.Finished) bool { return f.ID.Entry == 5001 }) || slices.ContainsFunc(told, func(f event.Finished) bool { return f.ID.Entry == 5000 }) {
		t.Errorf("told %+v at once, want the late ones alone", told)
	}
	if len(b.late) != 0 {
		t.Errorf("%d ids are to be told again", len(b.late))
	}
	b.setAll(ownership.Open)
	late(6000, 0)
	if b.Forget(); len(b.late) != 0 {
		t.Errorf("%d forgotten ids are to be told", len(b.late))
	}
}
