package mailbox

import (
	"slices"
	"testing"

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
		if b.window.n != 0 || len(b.window.copies) != 0 || b.spans.places.len() != 0 {
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

// Ids of copies have their own bound, and leave with the window.
func TestCopiesInTheWindowAreBounded(t *testing.T) {
	b := newCopyBox(t)
	b.window.countMax = 40
	var out Output
	for i := range int64(100) {
		e := &event.Event{
			Handle: event.Handle(i + 1), ID: event.MessageID{Ledger: 1, Entry: i, Batch: -1}, Key: "k", Partition: ring.PartitionOf("k"), Round: 1,
		}
		b.Accept(0, Local, event.Position{}, event.RefsTo(e), &out)
		d := b.Take(0, ownership.Lease{Until: clock.Forever - 1}, 1, 1, nil)
		b.Finish(0, []event.Result{{Delivery: d[0].ID, Kind: event.ResultDone}}, &out)
	}
	if len(b.window.copies) != 10 || b.window.n != 10 {
		t.Errorf("%d copies and %d ids are remembered, want 10", len(b.window.copies), b.window.n)
	}
	b.Forget()
	if len(b.window.copies) != 0 {
		t.Errorf("%d copies are left", len(b.window.copies))
	}
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

// A timer that was handled is known to the next owner of its key, and to the one after that: a second copy of it, that was sent again or that a router has
// published before it died, does not run there. A copy of another content under its id does: without keys any client with the right to write to the topic can make one.
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
	second.TakeOver(0, told, &out)
	told = second.leave()
	third.TakeOver(0, told, &out)
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
		b.TakeOver(0, []event.Finished{{Partition: e.Partition, ID: e.ID, Content: contentOf(&same)}}, &out)
		if got := slices.Contains(said(&out), says(Local, e.Handle, verdict{Kind: event.Done})); got != done {
			t.Errorf("content %q: done is %t, want %t", payload, got, done)
		}
		b.setAll(ownership.Open)
		if n := len(b.Take(0, ownership.Lease{Until: clock.Forever - 1}, 1, 10, nil)); (n == 0) != done {
			t.Errorf("content %q: %d deliveries", payload, n)
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
	if len(told) != 1 || told[0].ID != e.ID || told[0].Content != contentOf(e) {
		t.Errorf("handed over %+v", told)
	}
}
