package pipeline

import (
	"errors"
	"slices"
	"testing"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
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
