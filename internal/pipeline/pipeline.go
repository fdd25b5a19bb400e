// Package pipeline connects the stages: it moves an event through one node, and its verdict back.
// No other package imports two stages.
//
//	source ─▶ key ─▶ ring ─▶ forward ─┬─▶ mailbox ─▶ app          (this node owns the key)
//	                                  └─▶ peer ══▶ its mailbox    (another node owns it)
//	peer ══▶ mailbox ─▶ app                                       (a peer holds the event)
//
// It decides nothing. The mailbox calls [ownership.Lease.MayDispatch] before each delivery, and
// package outcome interprets each result.
//
// # Concurrency
//
// All methods are safe for concurrent use. They run on the goroutines of the stages that call
// them and hold no lock across a call to another stage. The methods for ownership (SetGates,
// Revoke, Force, Rest, SetLease, SetTable) are for the ownership driver alone, one at a time.
package pipeline

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/mailbox/admission"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// Workers is stage 6, the streams of the application.
type Workers interface {
	Wake(workers ...event.WorkerID)
	WakeAll()
	Revoke(partitions ownership.Set, final bool)
	RevokeAll()
	Force(partitions ownership.Set)
	TakeBack(deliveries []event.DeliveryID)
	Renew(reservations []event.DeliveryID) []event.Permission
	Covered(ownership.Covered)
}

// Answerer brings verdicts to the peers that wait for them. It keeps no slice.
type Answerer interface {
	Answer(to forward.StreamID, verdicts []event.Verdict)
	Credit(to forward.StreamID, key *event.Key, events int)
	SetEpoch(epoch event.Position)
	Renewed(to forward.StreamID, answers []event.Renewal)
}

// Holder is stage 4: it keeps events until their verdicts, but no slice.
type Holder interface {
	Hold(entries ...*event.Entry)
	Settle(from forward.Peer, done []event.Set, verdicts []event.Verdict)
	Credit(from forward.Peer, keys []event.Key, events int)
	GiveUp(call event.Handle)
	Renew(r event.Renewal)
	Forget(reservation event.Handle)
	SetRoute(self forward.Peer, route forward.Route)
	TakenOver(peer forward.Peer, over func(ring.Partition) bool)
	Newest(handles []event.Handle, dst []*event.Event) []*event.Event
	Drop(handles []event.Handle)
	HandOver(to forward.Peer, done []event.Finished)
}

// Settler is stage 1, where an event's journey ends. It keeps no slice.
type Settler interface {
	Settle(done []event.Set, verdicts []event.Verdict)
}

// Stages are the parts of a pipeline. All are needed. Stage 1 is not among them, since a node
// has one source after the other, see [Pipeline.SetSource].
type Stages struct {
	Key    key.Extractor
	Holder Holder
	Peers  Answerer
	Boxes  *mailbox.Mailboxes
	App    Workers
}

// Parts are the collaborators of a pipeline besides its stages. The functions are called on the path of events: they must be quick, not block, and not
// keep a slice. Letters, Answered and Renewed may be nil if nothing is brought back, called or reserved; nil is no one for Judged, Skipped, Known and Began.
type Parts struct {
	// Ended gets partitions without an open gate on which a delivery has ended.
	Ended func([]ring.Partition)
	// Judged gets the results for handed-over ids, of one sender at a time.
	Judged func(admission.Judged)
	// Skipped gets the ends of skips.
	Skipped func([]event.Skipped)
	// Known gets the events that routers have published, and of which a copy ended because they have finished before. It must not keep the keys.
	Known func([]event.Known)
	// Letters gets the verdicts on letters of the parking topic, see [Pipeline.BringBack].
	Letters func([]event.Verdict)
	// Answered gets the verdicts on calls of [Pipeline.Call], also those that reservations have begun.
	Answered func([]event.Verdict)
	// Renewed gets the answers to [Pipeline.RenewReservation].
	Renewed func([]event.Renewal)
	// Began gets the deliveries that a worker has taken, at an instant.
	Began   func(now clock.Instant, deliveries []event.Delivery)
	Now     func() clock.Instant // the lease clock
	Tracing Tracing
	History history.Config
}

// Pipeline joins the stages of one node.
type Pipeline struct {
	Stages
	parts    Parts
	now      func() clock.Instant
	nearer   chan struct{} // of capacity one: Boxes.Next has come nearer
	observer observer
	journeys *history.Journeys
	source   atomic.Pointer[Settler] // the newest one, nil before the first

	self     atomic.Pointer[ownership.Incarnation]
	lease    atomic.Pointer[ownership.Lease]
	table    atomic.Pointer[ownership.Table]
	margin   atomic.Int64 // least remaining lease at a dispatch, 0: none yet
	relayed  relayed
	admitted admitted
	spares   sync.Pool // of *mailbox.Output

	// Used by the ownership driver alone.
	named   ownership.Incarnation   // this node's newest incarnation that a table has named
	formers []ownership.Incarnation // this node's former incarnations, as long as tables may name them

	// Scratch of handOver.
	parting    []event.Finished   // ids to send
	nextOwners [][]event.Finished // by member of the table: the ids for it
}

// New returns a pipeline with the stages that build makes. The stages need the pipeline, too: build
// passes it on to them, and nothing may call it before New has returned.
func New(parts Parts, build func(*Pipeline) (Stages, error)) (*Pipeline, error) {
	p := &Pipeline{
		parts: parts, now: parts.Now, nearer: make(chan struct{}, 1),
		observer: newObserver(&parts.Tracing), journeys: parts.History.NewJourneys(),
		relayed:  relayed{origin: make(map[event.Handle]origin)},
		admitted: admitted{asked: make(chan struct{}, 1), machine: admission.New()},
	}
	p.self.Store(&ownership.Incarnation{})
	p.lease.Store(&ownership.Lease{})
	p.spares.New = func() any { return new(mailbox.Output) }
	stages, err := build(p)
	if err != nil {
		return nil, err
	}
	p.Stages = stages
	return p, nil
}

// SetSource sets the source of the events from now on, before it runs. Verdicts on events of
// an earlier source go to the new one, which does not know their handles.
func (p *Pipeline) SetSource(s Settler) { p.source.Store(&s) }

// SetSelf sets this node's incarnation, before its driver starts.
func (p *Pipeline) SetSelf(inc ownership.Incarnation) {
	p.formers = append(p.formers, *p.self.Load())
	p.self.Store(&inc)
}

// Run does the due work of the mailboxes, until ctx ends: retries, and the ageing of the window
// of finished events. One timer serves all events: it is reset when a retry becomes the
// earliest; other changes of the next due time are a matter of seconds, and are noticed at the
// next check.
func (p *Pipeline) Run(ctx context.Context) error {
	const resolution, look = 10 * time.Millisecond, 250 * time.Millisecond
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.nearer:
		case <-timer.C:
		}
		p.Tick()
		p.refuseLate()
		p.Boxes.CountHotKeys()
		timer.Reset(min(max(p.Boxes.Next().Sub(p.now()), resolution), look))
	}
}

// Tick does the due work of the mailboxes, if there is any. Run does this by itself; do not call it beside Run.
func (p *Pipeline) Tick() {
	if p.Boxes.Next() <= p.now() {
		p.with(p.Boxes.Tick)
	}
}

// with makes a call to the mailboxes and performs its output.
func (p *Pipeline) with(call func(out *mailbox.Output)) {
	out := p.spares.Get().(*mailbox.Output)
	call(out)
	p.pass(out)
	out.Reset()
	p.spares.Put(out)
}

// pass brings verdicts to their senders and wakes workers.
func (p *Pipeline) pass(out *mailbox.Output) {
	if len(out.Wake) > 0 {
		p.App.Wake(out.Wake...)
	}
	if len(out.TakeBack) > 0 {
		p.App.TakeBack(out.TakeBack)
	}
	for i := range out.Answers {
		p.answer(&out.Answers[i])
	}
	if len(out.Telling) > 0 {
		p.Boxes.Told(out.Telling)
	}
	if len(out.Skipped) > 0 && p.parts.Skipped != nil {
		p.parts.Skipped(out.Skipped)
	}
	if len(out.Known) > 0 && p.parts.Known != nil {
		p.parts.Known(out.Known)
	}
	for i := range out.Credits {
		p.credit(&out.Credits[i])
	}
	if len(out.Ended) > 0 {
		p.parts.Ended(out.Ended)
	}
	if out.DueSooner {
		signal.Set(p.nearer)
	}
}

// credit tells a sender that there is room again for refused events.
func (p *Pipeline) credit(c *mailbox.Credit) {
	switch {
	case c.To == mailbox.Letters: // they are tried again
	case c.To == mailbox.Local && c.All:
		p.Holder.Credit(forward.Local, nil, 0)
	case c.To == mailbox.Local:
		p.Holder.Credit(forward.Local, []event.Key{c.Key}, c.Events)
	case c.All:
		p.Peers.Credit(forward.StreamID(c.To), nil, 0)
	default:
		p.Peers.Credit(forward.StreamID(c.To), &c.Key, c.Events)
	}
}

// answer sends the verdicts of an Answer to their recipient: stage 7, on the way back.
func (p *Pipeline) answer(a *mailbox.Answer) {
	switch a.To {
	case mailbox.Local:
		p.Holder.Settle(forward.Local, nil, a.Verdicts)
		return
	case mailbox.Letters:
		p.parts.Letters(a.Verdicts)
		return
	}
	p.Peers.Answer(forward.StreamID(a.To), a.Verdicts)
}

// Received implements source.Sink: stages 2 to 4.
func (p *Pipeline) Received(_ context.Context, entries []*event.Entry) {
	p.see(entries)
	var rejected []event.Verdict
	now := p.now()
	for _, e := range entries {
		rejected = p.giveKeys(e, rejected)
		p.observer.received(e, p.owns) //nolint:contextcheck // a span of an event comes from the event
		p.journeys.Received(now, e)
	}
	p.settle(nil, rejected)
	p.Holder.Hold(entries...)
}

// giveKeys gives the fresh events of an entry their keys. Those without a key are fresh no longer, and are rejected.
func (p *Pipeline) giveKeys(e *event.Entry, rejected []event.Verdict) []event.Verdict {
	var keyless event.Bits
	var m key.Message
	for i := range e.Fresh.All() {
		m.MessageKey, m.OrderingKey = e.Keys(i)
		m.Properties, m.Payload, m.ID = e.Properties(i), e.Payload(i), e.ID(i)
		k, err := p.Key.Extract(&m)
		if err == nil {
			e.SetKey(i, k, ring.PartitionOf(string(k)))
			continue
		}
		ev := e.Event(i)
		ev.Key = ""
		v := event.Verdict{Handle: ev.Handle, Kind: event.Rejected, Detail: &event.Detail{Reason: err.Error(), Attempts: ev.Attempts}}
		p.observer.keyless(v, ev, err)
		rejected = append(rejected, v)
		if keyless == nil {
			keyless = event.NewBits(e.Len())
		}
		keyless.Add(i)
	}
	if keyless != nil {
		e.Fresh = slices.Clone(e.Fresh) // the source holds the other one
		e.Fresh.RemoveAll(keyless)
	}
	return rejected
}

// Newest implements source.Sink.
func (p *Pipeline) Newest(handles []event.Handle, dst []*event.Event) []*event.Event {
	return p.Holder.Newest(handles, dst)
}

// Drop implements source.Sink. Mailboxes and handlers that already have the events continue
// with them: when copies of these events arrive, they join or are recognised as finished.
func (p *Pipeline) Drop(handles []event.Handle, why event.Drop) {
	p.observer.dropped(handles)
	p.journeys.Dropped(p.now(), handles, why)
	p.Holder.Drop(handles)
}

// Deliver implements forward.Sink: events whose owner is this node.
func (p *Pipeline) Deliver(events []event.Ref) {
	p.accept(mailbox.Local, p.epoch(), events)
}

// BringBack takes a letter of the parking topic to its mailbox: its handle names it in the verdicts that Parts.Letters gets.
func (p *Pipeline) BringBack(letter *event.Event) {
	p.accept(mailbox.Letters, p.epoch(), event.RefsTo(letter))
}

// accept brings events to their mailboxes.
func (p *Pipeline) accept(from mailbox.Sender, epoch event.Position, events []event.Ref) {
	p.with(func(out *mailbox.Output) {
		p.Boxes.Accept(from, epoch, events, out)
		p.observer.arrived(from, events, out)
	})
}

// Settle implements forward.Sink: the end of a journey. Relayed events go back to the
// stream that they came on.
func (p *Pipeline) Settle(done []event.Set, verdicts []event.Verdict, events []event.Ref) {
	defer p.observer.settling(done, verdicts, events).end()
	done, verdicts = p.answerCalls(done, verdicts)
	now := p.now()
	p.journeys.Done(now, done)
	p.journeys.Settled(now, verdicts)
	p.settle(p.relayed.settle(done, verdicts, p.Peers))
}

// Attempted implements forward.Sink.
func (p *Pipeline) Attempted(failures []event.Verdict) { p.relayed.answer(failures, p.Peers) }

// settle brings verdicts on this node's events to their source.
func (p *Pipeline) settle(done []event.Set, verdicts []event.Verdict) {
	if s := p.source.Load(); s != nil && len(done)+len(verdicts) > 0 {
		(*s).Settle(done, verdicts)
	}
}

// Accept implements forward.Acceptor: it takes a peer's events.
func (p *Pipeline) Accept(a forward.Arrival) {
	if a.Relay {
		if a.Events = p.refuseRelayedCalls(a); len(a.Events) == 0 {
			return
		}
		relayed := p.relayed.admit(a)
		p.observer.relayed(relayed)
		p.Holder.Hold(relayed)
		return
	}
	p.observer.accepted(a.Events)
	p.accept(mailbox.Sender(a.From), a.Epoch, a.Events)
}

// Gone implements forward.Acceptor.
func (p *Pipeline) Gone(from forward.StreamID) {
	p.relayed.gone(from)
	p.Boxes.SenderGone(mailbox.Sender(from))
}

// WorkerUp implements app.Boxes.
func (p *Pipeline) WorkerUp(w event.WorkerID) {
	p.with(func(out *mailbox.Output) { p.Boxes.WorkerUp(w, out) })
}

// WorkerGone implements app.Boxes.
func (p *Pipeline) WorkerGone(w event.WorkerID) {
	p.with(func(out *mailbox.Output) { p.Boxes.WorkerGone(w, out) })
}

// Take implements app.Boxes. The lease is judged in the mailbox, for each key.
func (p *Pipeline) Take(w event.WorkerID, limit int, dst []event.Delivery) []event.Delivery {
	lease, before := p.lease.Load(), len(dst)
	dst = p.Boxes.Take(*lease, w, limit, dst)
	if len(dst) > before {
		now := p.now()
		p.noteMargin(lease.Until.Sub(now))
		if p.parts.Began != nil {
			p.parts.Began(now, dst[before:])
		}
		p.observer.delivered(w, dst[before:])
	}
	return dst
}

// noteMargin keeps the least remaining lease of all dispatches.
func (p *Pipeline) noteMargin(margin time.Duration) {
	for {
		least := p.margin.Load()
		if least != 0 && int64(margin) >= least || p.margin.CompareAndSwap(least, int64(margin)) {
			return
		}
	}
}

// LeaseMargin returns the least remaining lease at a dispatch since the last call,
// or most when there was none.
func (p *Pipeline) LeaseMargin(most time.Duration) time.Duration {
	if least := p.margin.Swap(0); least != 0 {
		return time.Duration(least)
	}
	return most
}

// Finish implements app.Boxes.
func (p *Pipeline) Finish(results []event.Result) {
	p.observer.finished(results, p.Boxes.Delivered)
	p.with(func(out *mailbox.Output) { p.Boxes.Finish(results, out) })
}

// Outlook returns the outcome that a result of a running delivery will have, unless an operator skips its event; the zero Outcome if it does not run.
func (p *Pipeline) Outlook(r event.Result) outcome.Outcome { return p.Boxes.Outlook(r) }

// Lease returns the newest lease, for dispatch and for Pongs.
func (p *Pipeline) Lease() ownership.Lease { return *p.lease.Load() }

// Table returns the newest applied epoch, nil before the first.
func (p *Pipeline) Table() *ownership.Table { return p.table.Load() }

// owns reports whether the newest table names this node as the owner of q.
func (p *Pipeline) owns(q ring.Partition) bool {
	t := p.table.Load()
	return t != nil && t.Owner(q).Inc == *p.self.Load()
}

func (p *Pipeline) epoch() event.Position {
	if t := p.table.Load(); t != nil {
		return t.Cur
	}
	return event.Position{}
}
