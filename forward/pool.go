package forward

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/ring"
)

// Sink receives the events of a Pool that do not go to a peer. Its methods are called from
// many goroutines, without a lock, and must be quick: while one runs, its stream receives
// nothing. The Pool reuses the slices when they return.
type Sink interface {
	// Deliver gives events to the local mailbox, whose verdicts go to [Pool.Settle]
	// as those of [Local].
	Deliver(events []event.Ref)
	// Settle settles events: those of the sets are done, the others have the verdict of the same index. Those of relayed events
	// need not be final.
	Settle(done []event.Set, verdicts []event.Verdict, events []event.Ref)
	// Cancel tells the local mailbox that the callers of some of its calls have stopped waiting. It returns those that
	// had ended already, and whose verdicts come next.
	Cancel(calls []event.Handle) (ended []event.Handle)
	// Granted gets the verdicts on reservations that have begun.
	Granted(verdicts []event.Verdict)
	// Attempted gets the failures of relayed events that their owners report: they are for the consumer nodes.
	Attempted(verdicts []event.Verdict)
	// Renew asks the local mailbox for new permission of reservations that it has. The answers go to Renewed.
	Renew(asked []event.Renewal)
	// Renewed gets the owners' answers to [Pool.Renew].
	Renewed(answers []event.Renewal)
}

// Evidence reports whether a peer is reachable: up once for each stream, down when it
// breaks and after every failed attempt to open one.
type Evidence func(peer Peer, up bool)

// PeerAddress is a peer and its address.
type PeerAddress struct {
	Peer    Peer
	Address string // host:port
}

// Pool is the outbound half of this package: a [Table], and one stream to each peer.
// All methods are safe for concurrent use.
type Pool struct {
	config   Config
	identity func() Identity
	creds    credentials.TransportCredentials
	options  []grpc.DialOption
	sink     Sink
	evidence Evidence
	now      func() clock.Instant
	metrics  *Metrics
	log      *slog.Logger

	mu    sync.Mutex // guards table and unanswered; held for calls to the table only
	table *Table
	moves sync.Pool     // of *Moves
	due   chan struct{} // capacity 1: tells Run that the next tick is due earlier than it thinks
	dueAt clock.Instant // guarded by mu: when Run will tick

	unanswered []Unanswered
	handover   handover
	delivering map[event.Handle]*Cancel // guarded by mu: calls on their way to the local mailbox, each with the Cancel that waits until it is there; nil: none does

	peersMu sync.Mutex         // guards peers and listed; never held together with mu
	peers   map[Peer]*outbound // those with a goroutine, or about to get one
	listed  map[Peer]string    // addresses, as SetPeers has named them
	changed chan struct{}      // capacity 1: tells Run that listed has changed, or a goroutine has ended
}

// NewPool returns a Pool that does nothing until Run. The configuration must be
// valid; now is [clock.Now] but in tests; identity is asked for each Hello.
func NewPool(config Config, identity func() Identity, creds credentials.TransportCredentials, sink Sink, evidence Evidence,
	now func() clock.Instant, metrics *Metrics, log *slog.Logger, options ...grpc.DialOption,
) *Pool {
	return &Pool{
		config: config, identity: identity, creds: creds, options: options, sink: sink, evidence: evidence,
		now: now, metrics: metrics, log: log.With("component", "forward"),
		table: NewTable(config),
		moves: sync.Pool{New: func() any { return new(Moves) }},
		due:   make(chan struct{}, 1), dueAt: clock.Forever,
		handover:   handover{idsMax: config.HandoverMax, queues: make(map[Peer][]event.Finished)},
		delivering: make(map[event.Handle]*Cancel),
		peers:      make(map[Peer]*outbound), listed: make(map[Peer]string),
		changed: make(chan struct{}, 1),
	}
}

// Run keeps the streams until ctx ends, then ends them all and returns nil.
func (p *Pool) Run(ctx context.Context) error {
	var streams sync.WaitGroup
	defer streams.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
			p.startPeers(ctx, &streams)
		case <-p.due:
		case <-timer.C:
			p.step(p.table.Tick)
			p.metrics.observe(p.now(), p.Stats())
		}
		timer.Reset(p.untilDue())
	}
}

// untilDue returns the time until the next tick: when the table asks for it, at least once
// a second for the metrics.
func (p *Pool) untilDue() time.Duration {
	const idle, busy = time.Second, time.Millisecond
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dueAt = p.table.Next()
	return max(busy, min(idle, p.dueAt.Sub(now)))
}

// step calls the table under the lock and performs the moves after it is released.
func (p *Pool) step(call func(now clock.Instant, out *Moves)) {
	out := p.moves.Get().(*Moves)
	now := p.now()
	p.mu.Lock()
	call(now, out)
	calls := p.noteCalls(out)
	sooner := p.table.Next().Before(p.dueAt)
	p.mu.Unlock()
	if sooner {
		signal.Set(p.due)
	}
	p.perform(out, calls)
	out.Reset()
	p.moves.Put(out)
}

// perform performs the moves of one step. calls says whether there are calls among the events for the local mailbox.
func (p *Pool) perform(out *Moves, calls bool) {
	p.wake(out.Wake)
	if len(out.Local) > 0 {
		p.metrics.sentLocal.Add(float64(len(out.Local)))
		p.sink.Deliver(out.Local)
		if calls {
			out.Cancel = p.delivered(out.Local, out.Cancel)
		}
	}
	if len(out.Granted) > 0 { // first: one may have begun and ended in one frame
		p.sink.Granted(out.Granted)
	}
	if len(out.Attempted) > 0 { // before their final verdicts
		p.sink.Attempted(out.Attempted)
	}
	if len(out.Done)+len(out.Settled) > 0 {
		p.sink.Settle(out.Done, out.Verdicts, out.Settled)
	}
	if len(out.Cancel) > 0 {
		p.cancel(out.Cancel)
	}
	if len(out.Renew) > 0 {
		p.renew(out.Renew)
	}
}

// noteCalls notes the calls that the local mailbox is about to get, and reports whether there are any. Another
// goroutine may still be bringing earlier ones there: a Cancel of such a call would arrive too early and find
// nothing, so it is kept for [Pool.delivered]. p.mu is held.
func (p *Pool) noteCalls(out *Moves) (some bool) {
	if len(p.delivering) > 0 {
		out.Cancel = slices.DeleteFunc(out.Cancel, func(c Cancel) bool {
			_, underWay := p.delivering[c.Handle]
			if underWay = underWay && c.Peer == Local; underWay {
				p.delivering[c.Handle] = &c
			}
			return underWay
		})
	}
	for i := range out.Local {
		if h := out.Local[i].Handle(); h.IsCall() {
			p.delivering[h], some = nil, true
		}
	}
	return some
}

// delivered appends the kept Cancels of calls that the local mailbox has got.
func (p *Pool) delivered(events []event.Ref, cancels []Cancel) []Cancel {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range events {
		h := events[i].Handle()
		if c := p.delivering[h]; c != nil {
			cancels = append(cancels, *c)
		}
		delete(p.delivering, h)
	}
	return cancels
}

// renew asks the owners of reservations for new permission.
func (p *Pool) renew(asked []Renew) {
	p.peersMu.Lock()
	var local []event.Renewal
	for _, r := range asked {
		if r.Peer == Local {
			local = append(local, r.Renewal)
		} else if s := p.peers[r.Peer]; s != nil {
			s.renew(r.Renewal)
		}
	}
	p.peersMu.Unlock()
	if len(local) > 0 {
		p.sink.Renew(local)
	}
}

// Renew asks the owner of a reservation for new permission, see [Table.Renew].
func (p *Pool) Renew(r event.Renewal) {
	p.step(func(_ clock.Instant, out *Moves) { p.table.Renew(r, out) })
}

// renewed takes an owner's answers to renewals.
func (p *Pool) renewed(from Peer, answers []event.Renewal) {
	if slices.ContainsFunc(answers, confirms) {
		p.step(func(_ clock.Instant, out *Moves) { answers = p.table.Confirmed(from, answers, out) })
	}
	if len(answers) > 0 {
		p.sink.Renewed(answers)
	}
}

// Forget ends a reservation at this node alone, see [Table.Forget].
func (p *Pool) Forget(reservation event.Handle) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table.Forget(reservation)
}

// cancel tells the owners of calls that their callers have stopped waiting.
func (p *Pool) cancel(calls []Cancel) {
	p.peersMu.Lock()
	var local []event.Handle
	for _, c := range calls {
		if c.Peer == Local {
			local = append(local, c.Handle)
		} else if s := p.peers[c.Peer]; s != nil {
			s.cancel(c)
		}
	}
	p.peersMu.Unlock()
	if len(local) == 0 {
		return
	}
	ended := p.sink.Cancel(local)
	var confirmed []event.Renewal
	for _, c := range calls {
		if c.Peer == Local && c.Confirm && !slices.Contains(ended, c.Handle) {
			confirmed = append(confirmed, c.Renewal())
		}
	}
	if len(confirmed) > 0 {
		p.renewed(Local, confirmed)
	}
}

// GiveUp ends a call whose caller is no longer waiting, see [Table.GiveUp].
func (p *Pool) GiveUp(call event.Handle) {
	p.step(func(now clock.Instant, out *Moves) { p.table.GiveUp(now, call, out) })
}

func (p *Pool) wake(peers []Peer) {
	if len(peers) == 0 {
		return
	}
	p.peersMu.Lock()
	defer p.peersMu.Unlock()
	for _, id := range peers {
		if s := p.peers[id]; s != nil {
			s.wake()
		}
	}
}

// Hold takes events, see [Table.Hold].
func (p *Pool) Hold(entries ...*event.Entry) {
	p.step(func(now clock.Instant, out *Moves) {
		for _, e := range entries {
			p.table.Hold(now, e, out)
		}
	})
}

// Settle takes verdicts, see [Table.Done] and [Table.Settle].
func (p *Pool) Settle(from Peer, done []event.Set, verdicts []event.Verdict) {
	p.metrics.count(done, verdicts)
	if p.logsEvents() {
		p.logAnswers(from, verdicts)
	}
	p.step(func(now clock.Instant, out *Moves) {
		for i := range done {
			p.table.Done(from, done[i], out)
		}
		p.table.Settle(now, from, verdicts, out)
	})
}

// logsEvents reports whether every step of every event is logged.
func (p *Pool) logsEvents() bool { return p.log.Enabled(context.Background(), slog.LevelDebug) }

// logAnswers logs verdicts that are not final. The Sink logs the ends of events.
func (p *Pool) logAnswers(from Peer, verdicts []event.Verdict) {
	for i := range verdicts {
		v := &verdicts[i]
		if v.Kind.Final() {
			continue
		}
		p.mu.Lock()
		ev := p.table.Newest(v.Handle)
		p.mu.Unlock()
		if ev == nil {
			continue
		}
		d := v.DetailOrZero()
		attrs := []any{"message_id", ev.ID.String(), "peer", from, "verdict", v.Kind.String(), "attempts", d.Attempts}
		if d.Reason != "" {
			attrs = append(attrs, "error", ev.HideIn(d.Reason))
		}
		p.log.Debug("answered", attrs...)
	}
}

// Credit takes a credit, see [Table.Credit].
func (p *Pool) Credit(from Peer, keys []event.Key, events int) {
	p.metrics.creditsIn.Inc()
	p.step(func(now clock.Instant, out *Moves) { p.table.Credit(now, from, keys, events, out) })
}

// SetRoute replaces the route and this node's incarnation.
func (p *Pool) SetRoute(self Peer, route Route) {
	p.step(func(now clock.Instant, out *Moves) { p.table.SetRoute(now, self, route, out) })
}

// TakenOver sends the events of partitions again that a deposed owner has, see [Table.TakenOver].
func (p *Pool) TakenOver(peer Peer, over func(ring.Partition) bool) {
	p.step(func(_ clock.Instant, out *Moves) { p.noteUnanswered(peer, p.table.TakenOver(peer, over, out)) })
}

// Newest appends to dst each event that is held under one of the handles, see
// [Table.Newest], and nil where there is none.
func (p *Pool) Newest(handles []event.Handle, dst []*event.Event) []*event.Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, h := range handles {
		dst = append(dst, p.table.Newest(h))
	}
	return dst
}

// Drop forgets events that were settled another way.
func (p *Pool) Drop(handles []event.Handle) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.table.Drop(handles)
}

// HandOver sends a peer, which must be listed by SetPeers, ids of recently finished events
// on partitions that it owns now: as soon as there is a stream, after the events that wait
// for it. Ids beyond Config.HandoverMax are dropped, as are those for a peer that leaves.
// It does not keep the slice.
func (p *Pool) HandOver(to Peer, done []event.Finished) {
	p.metrics.windowDropped.Add(float64(p.handover.put(to, done)))
	p.wake([]Peer{to})
}

// ForgetHandover drops all ids of HandOver that are not sent yet, and returns their number.
func (p *Pool) ForgetHandover() (ids int) {
	ids = p.handover.keepOnly(nil)
	p.metrics.windowDropped.Add(float64(ids))
	return ids
}

// HandedOver returns a channel that is closed when the peers have processed all ids of
// HandOver, or these were dropped or lost with a stream.
func (p *Pool) HandedOver() <-chan struct{} { return p.handover.done() }

// Unanswered is events that a peer had and had not answered when its stream broke, or others took it over. They are sent again, to their next owner;
// those that the peer had handled already are handled twice.
type Unanswered struct {
	Peer   Peer
	Events int
}

// unansweredMax is the number of losses of such events that are remembered; the newest ones are kept.
const unansweredMax = 64

// noteUnanswered notes a broken stream, or a takeover. p.mu is held.
func (p *Pool) noteUnanswered(peer Peer, events int) {
	if events == 0 {
		return
	}
	if len(p.unanswered) == unansweredMax {
		p.unanswered = slices.Delete(p.unanswered, 0, 1)
	}
	p.unanswered = append(p.unanswered, Unanswered{peer, events})
}

// Unanswered returns what the newest broken streams and takeovers left unanswered, the newest last.
func (p *Pool) Unanswered() []Unanswered {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.unanswered)
}

// Stats returns a snapshot of the table.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.table.Stats()
}

// SetPeers names the peers to keep a stream to, also without events for them, since a
// stream is evidence of reachability. A peer that is no longer named keeps its stream until
// all its events are answered or sent elsewhere, and gets no new one.
func (p *Pool) SetPeers(peers []PeerAddress) {
	p.peersMu.Lock()
	defer p.peersMu.Unlock()
	clear(p.listed)
	for _, a := range peers {
		p.listed[a.Peer] = a.Address
	}
	for id, s := range p.peers {
		_, listed := p.listed[id]
		s.listed.Store(listed)
		s.wake()
		if !listed && s.link.Load() == nil {
			s.giveUp()
		}
	}
	p.metrics.windowDropped.Add(float64(p.handover.keepOnly(p.listed)))
	signal.Set(p.changed)
}

// startPeers starts goroutines for listed peers that have none.
func (p *Pool) startPeers(ctx context.Context, streams *sync.WaitGroup) {
	p.peersMu.Lock()
	defer p.peersMu.Unlock()
	for id, address := range p.listed {
		if p.peers[id] != nil {
			continue
		}
		ctx, giveUp := context.WithCancel(ctx)
		s := &outbound{pool: p, id: id, address: address, giveUp: giveUp}
		s.listed.Store(true)
		p.peers[id] = s
		streams.Go(func() {
			defer giveUp()
			s.run(ctx)
		})
	}
}

// ended removes a peer whose goroutine ends. If it was named again meanwhile, it is started
// again.
func (p *Pool) ended(s *outbound) {
	p.peersMu.Lock()
	defer p.peersMu.Unlock()
	delete(p.peers, s.id)
	signal.Set(p.changed)
}
