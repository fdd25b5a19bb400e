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
	settled  []event.Verdict
	answered map[forward.StreamID][]event.Verdict
}

func (e *ends) Settle(v []event.Verdict) { e.settled = append(e.settled, v...) }

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

func (noHolder) HoldRelayed([]*event.Event) {}

// Each verdict goes back to the sender of its event, with its detail, in the order in which they came.
func TestSettleBringsEachVerdictHome(t *testing.T) {
	e := &ends{answered: map[forward.StreamID][]event.Verdict{}}
	p := newPipeline(t, Parts{Now: clock.Now}, Stages{Peers: peers{ends: e}, Holder: noHolder{}})
	p.SetSource(e)
	relayed := []*event.Event{{Handle: 71}, {Handle: 72}}
	p.Accept(forward.Arrival{From: 5, Relay: true, Events: relayed})

	own := func(slot int32) event.Handle { return event.NewHandle(1, slot) }
	done := func(h event.Handle) event.Verdict { return event.Verdict{Handle: h, Kind: event.Done} }
	failed := event.Verdict{Handle: own(2), Kind: event.Failed, Detail: &event.Detail{Attempts: 3, Reason: "no"}}
	notYet := event.Verdict{Handle: relayed[0].Handle, Kind: event.NotYet, Detail: &event.Detail{Delay: 1}}
	given := []event.Verdict{done(own(1)), failed, done(relayed[1].Handle), notYet, done(own(3))}
	verdicts := slices.Clone(given)
	for range 2 { // the second time the relayed events are gone, and nothing of the first is left
		e.settled = nil
		p.Settle(verdicts, make([]*event.Event, len(verdicts)))
		if want := []event.Verdict{done(own(1)), failed, done(own(3))}; !slices.Equal(e.settled, want) {
			t.Errorf("settled %v, want %v", e.settled, want)
		}
		if !slices.Equal(verdicts, given) {
			t.Errorf("the caller's verdicts are now %v, want %v", verdicts, given)
		}
	}
	notYet.Handle = 71
	if want := []event.Verdict{done(72), notYet}; !slices.Equal(e.answered[5], want) {
		t.Errorf("the peer of the relayed events receives %v, want %v", e.answered[5], want)
	}
}

// Verdicts go to the newest source.
func TestVerdictsGoToTheNewestSource(t *testing.T) {
	p := newPipeline(t, Parts{Now: clock.Now}, Stages{})
	verdicts, events := []event.Verdict{{Handle: event.NewHandle(1, 1), Kind: event.Done}}, make([]*event.Event, 1)
	p.Settle(verdicts, events) // of no source: nobody waits for it
	var first, second ends
	p.SetSource(&first)
	p.Settle(verdicts, events)
	p.SetSource(&second)
	p.Settle(verdicts, events)
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
