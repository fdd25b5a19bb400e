package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/ring"
)

// ends is a source and peers that record their calls.
type ends struct {
	done     []event.Set
	settled  []event.Verdict
	answered map[forward.StreamID][]event.Verdict
}

func (e *ends) Settle(done []event.Set, v []event.Verdict) {
	e.done, e.settled = append(e.done, done...), append(e.settled, v...)
}

// peers are the called ends of streams, which record their verdicts.
type peers struct {
	deaf
	*ends
}

func (p peers) Answer(to forward.StreamID, v []event.Verdict) {
	p.answered[to] = append(p.answered[to], v...)
}

// noHolder holds nothing.
type noHolder struct{ Holder }

func (noHolder) Hold(...*event.Entry) {}

// Each verdict goes back to the sender of its event, with its detail, in the order in which they came.
func TestSettleBringsEachVerdictHome(t *testing.T) {
	e := &ends{answered: map[forward.StreamID][]event.Verdict{}}
	p := newPipeline(t, Parts{Now: clock.Now}, Stages{Peers: peers{ends: e}, Holder: noHolder{}})
	p.SetSource(e)
	relayed := []*event.Event{{Handle: 71}, {Handle: 72}}
	p.Accept(forward.Arrival{From: 5, Relay: true, Events: event.RefsTo(relayed...)})

	own := func(index int) event.Handle { return event.NewHandle(1, index) }
	done := func(h event.Handle) event.Verdict { return event.Verdict{Handle: h, Kind: event.Done} }
	failed := event.Verdict{Handle: own(2), Kind: event.Failed, Detail: &event.Detail{Attempts: 3, Reason: "no"}}
	notYet := event.Verdict{Handle: relayed[0].Handle, Kind: event.NotYet, Detail: &event.Detail{Delay: 1}}
	second := relayed[1].Handle
	givenDone := []event.Set{{First: own(0), Events: event.Bits{1 << 1}}, {First: second.First(), Events: event.Bits{1 << second.Index()}}, {First: own(0), Events: event.Bits{1 << 3}}}
	given := []event.Verdict{failed, notYet, done(own(4))}
	sets, verdicts := slices.Clone(givenDone), slices.Clone(given)
	for range 2 { // the second time the relayed events are gone, and nothing of the first is left
		e.settled, e.done = nil, nil
		p.Settle(sets, verdicts, nil)
		if want := []event.Verdict{failed, done(own(4))}; !slices.Equal(e.settled, want) {
			t.Errorf("settled %v, want %v", e.settled, want)
		}
		if len(e.done) != 2 || e.done[0].First != own(0) || e.done[0].Events[0] != 1<<1 || e.done[1].Events[0] != 1<<3 {
			t.Errorf("done are %v, want the first and the last of %v", e.done, givenDone)
		}
		if !slices.Equal(verdicts, given) || len(sets) != 3 || sets[1].First != givenDone[1].First {
			t.Errorf("the caller's verdicts are now %v and %v, want %v and %v", sets, verdicts, givenDone, given)
		}
	}
	notYet.Handle = 71
	if want := []event.Verdict{done(72), notYet}; !slices.Equal(e.answered[5], want) {
		t.Errorf("the peer of the relayed events receives %v, want %v", e.answered[5], want)
	}
}

// The failures of a relayed event that its owner reports go to its consumer node, and its verdict after them.
func TestFailuresOfRelayedEventsGoHome(t *testing.T) {
	e := &ends{answered: map[forward.StreamID][]event.Verdict{}}
	p := newPipeline(t, Parts{Now: clock.Now}, Stages{Peers: peers{ends: e}, Holder: noHolder{}})
	relayed := &event.Event{Handle: 71}
	p.Accept(forward.Arrival{From: 5, Relay: true, Events: event.RefsTo(relayed)})
	failure, end := event.Verdict{Handle: relayed.Handle, Kind: event.Attempted, Detail: &event.Detail{Attempts: 1}}, event.Verdict{Handle: relayed.Handle, Kind: event.NotYet, Detail: &event.Detail{Delay: 1}}
	p.Attempted([]event.Verdict{failure})
	p.Attempted([]event.Verdict{failure})
	p.Settle(nil, []event.Verdict{end}, nil)
	p.Attempted([]event.Verdict{failure}) // the event is gone
	failure.Handle, end.Handle = 71, 71
	if want := []event.Verdict{failure, failure, end}; !slices.Equal(e.answered[5], want) {
		t.Errorf("the peer receives %v, want %v", e.answered[5], want)
	}
}

// Verdicts go to the newest source.
func TestVerdictsGoToTheNewestSource(t *testing.T) {
	p := newPipeline(t, Parts{Now: clock.Now}, Stages{})
	verdicts := []event.Verdict{{Handle: event.NewHandle(1, 1), Kind: event.Done}}
	p.Settle(nil, verdicts, nil) // of no source: nobody waits for it
	var first, second ends
	p.SetSource(&first)
	p.Settle(nil, verdicts, nil)
	p.SetSource(&second)
	p.Settle(nil, verdicts, nil)
	if len(first.settled) != 1 || len(second.settled) != 1 {
		t.Errorf("the first source has %d verdicts, the second %d, want one each", len(first.settled), len(second.settled))
	}
}

// A pipeline whose stages cannot be built is not returned.
func TestNewWithoutStages(t *testing.T) {
	failure := errors.New("no application")
	p, err := New(Parts{}, func(*Pipeline) (Stages, error) { return Stages{}, failure })
	if p != nil || !errors.Is(err, failure) {
		t.Errorf("New = %v, %v, want no pipeline and the error", p, err)
	}
}

// The relayed events of a stream that has ended are forgotten, and those of others are not.
func TestRelayedEventsOfAStreamThatEnds(t *testing.T) {
	e := &ends{answered: map[forward.StreamID][]event.Verdict{}}
	boxes := mailbox.NewMailboxes(mailbox.DefaultConfig(), outcome.DefaultConfig(), "here", clock.Now)
	p := newPipeline(t, Parts{Now: clock.Now}, Stages{Peers: peers{ends: e}, Holder: noHolder{}, Boxes: boxes})
	first, second := &event.Event{Handle: 71}, &event.Event{Handle: 72}
	p.Accept(forward.Arrival{From: 5, Relay: true, Events: event.RefsTo(first)})
	p.Accept(forward.Arrival{From: 6, Relay: true, Events: event.RefsTo(second)})
	p.Gone(5)
	if n := len(p.relayed.origin); n != 1 {
		t.Errorf("%d relayed events are remembered, want 1", n)
	}
	p.Settle(nil, []event.Verdict{{Handle: first.Handle, Kind: event.Done}, {Handle: second.Handle, Kind: event.Done}}, nil)
	if n := len(p.relayed.origin); n != 0 || len(e.answered[5]) != 0 || len(e.answered[6]) != 1 || e.answered[6][0].Handle != 72 {
		t.Errorf("%d relayed events are remembered, and the peers receive %v", n, e.answered)
	}
}

// credits records them, as text: those of this node's table, and those of streams.
type credits struct{ got []string }

type tableCredits struct {
	Holder
	*credits
}

func (c tableCredits) Credit(from forward.Peer, keys []event.Key, events int) {
	c.got = append(c.got, fmt.Sprint(from == forward.Local, " ", keys, " ", events))
}

type streamCredits struct {
	deaf
	*credits
}

func (c streamCredits) Credit(to forward.StreamID, key *event.Key, events int) {
	text := fmt.Sprint(to, " all ", events)
	if key != nil {
		text = fmt.Sprint(to, " ", *key, " ", events)
	}
	c.got = append(c.got, text)
}

// A credit goes to the sender whose events were refused.
func TestCreditsGoHome(t *testing.T) {
	c := &credits{}
	p := newPipeline(t, Parts{Now: clock.Now}, Stages{Peers: streamCredits{credits: c}, Holder: tableCredits{credits: c}})
	p.pass(&mailbox.Output{Credits: []mailbox.Credit{
		{To: mailbox.Local, Key: "a", Events: 3},
		{To: mailbox.Local, All: true},
		{To: mailbox.Letters, Key: "b", Events: 2},
		{To: 7, Key: "c", Events: 4},
		{To: 7, All: true},
	}})
	if want := []string{"true [a] 3", "true [] 0", "7 c 4", "7 all 0"}; !slices.Equal(c.got, want) {
		t.Errorf("credits: %q, want %q", c.got, want)
	}
}

// keeping notes what is held.
type keeping struct {
	Holder
	held []*event.Entry
}

func (k *keeping) Hold(entries ...*event.Entry) { k.held = append(k.held, entries...) }

// An event without a key is rejected, with its reason, and held by nobody; the others of its entry are held.
func TestEventsWithoutAKeyAreRejected(t *testing.T) {
	extractor, err := key.Parse("message_key", key.Reject)
	if err != nil {
		t.Fatal(err)
	}
	e, k := &ends{}, &keeping{}
	p := newPipeline(t, Parts{Now: clock.Now, History: history.DefaultConfig()}, Stages{Key: extractor, Holder: k})
	p.SetSource(e)
	entry := event.NewEntry(event.Message{Event: &event.Event{}, Key: "ann"}, event.Message{Event: &event.Event{}}, event.Message{Event: &event.Event{}, Key: "bob"})
	fresh := event.AllBits(3)
	entry.Fresh = fresh
	entry.SetFirst(event.NewHandle(1, 0))
	p.Received(t.Context(), []*event.Entry{entry})
	if len(e.settled) != 1 || e.settled[0].Handle != entry.Handle(1) || e.settled[0].Kind != event.Rejected || e.settled[0].DetailOrZero().Reason == "" || len(e.done) != 0 {
		t.Errorf("settled %+v, want the rejection of the second event", e.settled)
	}
	if len(k.held) != 1 || !k.held[0].Fresh.Has(0) || k.held[0].Fresh.Has(1) || !k.held[0].Fresh.Has(2) {
		t.Errorf("held: %+v, want the first and the third event", k.held)
	}
	if fresh.Len() != 3 {
		t.Error("the source's own set was changed")
	}
	for i, want := range []event.Key{"ann", "", "bob"} {
		if got := entry.Event(i); got.Key != want || want != "" && got.Partition != ring.PartitionOf(string(want)) {
			t.Errorf("event %d has the key %q on partition %d", i, got.Key, got.Partition)
		}
	}
}

// The margin is the least since the last question.
func TestTheLeastMarginIsKept(t *testing.T) {
	p := newPipeline(t, Parts{Now: clock.Now}, Stages{})
	if got := p.LeaseMargin(time.Minute); got != time.Minute {
		t.Errorf("without a dispatch the margin is %v", got)
	}
	for range 2 {
		for _, margin := range []time.Duration{3 * time.Second, 2 * time.Second, 4 * time.Second} {
			p.noteMargin(margin)
		}
		if got := p.LeaseMargin(time.Minute); got != 2*time.Second {
			t.Errorf("the margin is %v, want the least, 2 s", got)
		}
	}
}
