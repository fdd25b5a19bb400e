package pipeline

import (
	"slices"
	"testing"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// ends is a source and peers that record their calls.
type ends struct {
	done     []event.Handle
	settled  []event.Verdict
	answered map[forward.StreamID][]event.Verdict
}

func (e *ends) Done(h []event.Handle)    { e.done = append(e.done, h...) }
func (e *ends) Settle(v []event.Verdict) { e.settled = append(e.settled, v...) }

// peers are the called ends of streams, which record their verdicts.
type peers struct {
	deaf
	*ends
}

func (p peers) Answer(to forward.StreamID, v []event.Verdict) {
	p.answered[to] = append(p.answered[to], v...)
}

func (p peers) Done(to forward.StreamID, handles []event.Handle) {
	for _, h := range handles {
		p.answered[to] = append(p.answered[to], event.Verdict{Handle: h, Kind: event.Done})
	}
}

// noHolder holds nothing.
type noHolder struct{ Holder }

func (noHolder) HoldRelayed([]*event.Event) {}

// Each verdict goes back to the sender of its event, with all its fields.
func TestSettleBringsEachVerdictHome(t *testing.T) {
	e := &ends{answered: map[forward.StreamID][]event.Verdict{}}
	p := New(func([]ring.Partition) {}, clock.Now)
	p.Stages = Stages{Source: e, Peers: peers{ends: e}, Holder: noHolder{}}
	relayed := []*event.Event{{Handle: 71}, {Handle: 72}}
	p.Accept(forward.Arrival{From: 5, Relay: true, Events: relayed})

	own := func(slot int32) event.Handle { return event.NewHandle(1, slot) }
	failed := event.Verdict{Handle: own(2), Kind: event.Failed, Attempts: 3, Reason: "no"}
	rejected := event.Verdict{Handle: own(4), Kind: event.Rejected, Reason: "never"}
	var settlements []forward.Settlement
	for _, v := range []event.Verdict{failed, rejected, {Handle: relayed[0].Handle, Kind: event.NotYet}} {
		settlements = append(settlements, forward.Settlement{Verdict: v})
	}
	done := []event.Handle{own(1), relayed[1].Handle, own(3)}
	for range 2 { // the second time the relayed events are gone, and nothing of the first is left
		e.done, e.settled = nil, nil
		p.Done(done, make([]*event.Event, len(done)))
		p.Settle(settlements)
		if want := []event.Handle{own(1), own(3)}; !slices.Equal(e.done, want) {
			t.Errorf("done %v, want %v", e.done, want)
		}
		if want := []event.Handle{own(1), relayed[1].Handle, own(3)}; !slices.Equal(done, want) {
			t.Errorf("the caller's handles are now %v, want %v", done, want)
		}
		if want := []event.Verdict{failed, rejected}; !slices.Equal(e.settled, want) {
			t.Errorf("settled %v, want %v", e.settled, want)
		}
	}
	if want := []event.Verdict{{Handle: 72, Kind: event.Done}, {Handle: 71, Kind: event.NotYet}}; !slices.Equal(e.answered[5], want) {
		t.Errorf("the peer of the relayed events receives %v, want %v", e.answered[5], want)
	}
}
