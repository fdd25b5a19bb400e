package pipeline

import (
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// releasing is the owner of a granted reservation, and the stream that it came on. It notes what the stream is told, in order.
type releasing struct {
	nobody
	deaf
	p        *Pipeline
	delivery event.DeliveryID
	meantime func() // what the receiving goroutine does before the verdicts are queued
	told     []string
}

const stream forward.StreamID = 5

func (r *releasing) Answer(_ forward.StreamID, verdicts []event.Verdict) {
	if r.meantime != nil {
		r.meantime()
	}
	for _, v := range verdicts {
		r.told = append(r.told, v.Kind.String())
	}
}

func (r *releasing) Renewed(_ forward.StreamID, answers []event.Renewal) {
	for range answers {
		r.told = append(r.told, "confirmed")
	}
}

func (*releasing) Renew(ids []event.DeliveryID) []event.Permission {
	return make([]event.Permission, len(ids))
}
func (*releasing) Covered(ownership.Covered) {}

// release does what the receiving goroutine does with a Cancel that is to be confirmed.
func (r *releasing) release() {
	h := event.NewCallHandle(1)
	r.p.CancelFor(stream, []event.Handle{h})
	r.p.RenewFor(stream, []event.Renewal{{Handle: h, Number: 1<<64 - 1}})
}

func newReleasing(t *testing.T) *releasing {
	now := func() clock.Instant { return clock.Instant(time.Hour) }
	boxes := mailbox.NewMailboxes(mailbox.DefaultConfig(), outcome.DefaultConfig(), "here", now)
	r := new(releasing)
	r.p = newPipeline(t, Parts{Now: now}, Stages{Boxes: boxes, Peers: r, App: r})
	boxes.SetCovers(true)
	p := ring.PartitionOf("ann")
	gate := func(g ownership.Gate) { r.p.SetGates([]ownership.GateChange{{Partition: p, Gate: g, Token: 1}}) }
	gate(ownership.Open)
	call := &event.Call{ID: "mine", Reservation: true, TTL: event.TTLLeast, Deadline: now().Add(time.Minute)}
	r.p.Accept(forward.Arrival{From: stream, Events: event.RefsTo(&event.Event{
		Handle: event.NewCallHandle(1), ID: event.CallMessageID("ann", "mine", 0), Key: "ann", Partition: p, Call: call,
	})})
	given := boxes.Take(ownership.Lease{Until: clock.Forever}, event.Keeper, 1, nil)
	if len(given) != 1 {
		t.Fatalf("%d deliveries, want 1", len(given))
	}
	r.delivery = given[0].ID
	r.p.Grant(r.delivery, event.Grant{Fence: given[0].Fence()})
	gate(ownership.Draining)
	r.told = nil
	return r
}

func (r *releasing) end(kind event.ResultKind) {
	r.p.Finish([]event.Result{{Delivery: r.delivery, Kind: kind}})
}

// resume moves the reservation to a holder at this node.
func (r *releasing) resume(h event.Handle) {
	p := ring.PartitionOf("ann")
	r.p.accept(mailbox.Local, event.Position{}, event.RefsTo(&event.Event{
		Handle: h, ID: event.CallMessageID("ann", "mine", 0), Key: "ann", Partition: p,
		Call: &event.Call{ID: "mine", Reservation: true, Resume: true, TTL: event.TTLLeast, Deadline: r.p.now().Add(time.Minute)},
	}))
}

// homecoming is the table of this node, whose holder releases before the verdict is settled.
type homecoming struct {
	Holder
	p     *Pipeline
	h     event.Handle
	ended []event.Handle
}

func (c *homecoming) Settle(_ forward.Peer, _ []event.Set, verdicts []event.Verdict) {
	if verdicts[0].Kind == event.NotOwner {
		c.ended = c.p.Cancel([]event.Handle{c.h})
	}
}

// A release that comes when its turn has been handed over has freed nothing: it is not confirmed before the verdict that says so is queued.
func TestNoConfirmationOvertakesAVerdict(t *testing.T) {
	want := func(t *testing.T, r *releasing, want ...string) {
		t.Helper()
		if !slices.Equal(r.told, want) {
			t.Errorf("the stream is told %q, want %q", r.told, want)
		}
	}
	notOwner, confirmed := event.NotOwner.String(), "confirmed"
	t.Run("the mailbox has ended it", func(t *testing.T) {
		r := newReleasing(t)
		r.meantime = r.release
		r.end(event.ResultHandedOver)
		want(t, r, notOwner)
		r.release()
		want(t, r, notOwner, confirmed)
	})
	t.Run("the application's side has", func(t *testing.T) {
		r := newReleasing(t)
		r.release()
		want(t, r)
		r.end(event.ResultHandedOver)
		want(t, r, notOwner)
		r.release()
		want(t, r, notOwner, confirmed)
	})
	t.Run("a holder at this node", func(t *testing.T) {
		r := newReleasing(t)
		h := event.NewCallHandle(1)
		back := &homecoming{p: r.p, h: h}
		r.p.Holder = back
		r.resume(h)
		r.end(event.ResultHandedOver)
		if !slices.Equal(back.ended, []event.Handle{h}) {
			t.Errorf("before the verdict %v are said to have ended, want the reservation", back.ended)
		}
		if got := r.p.Cancel([]event.Handle{h}); len(got) > 0 {
			t.Errorf("after the verdict %v are said to have ended", got)
		}
	})
	t.Run("it has freed the key", func(t *testing.T) {
		r := newReleasing(t)
		r.p.CancelFor(stream, []event.Handle{event.NewCallHandle(1)})
		r.end(event.ResultDone)
		r.release()
		want(t, r, confirmed)
	})
}
