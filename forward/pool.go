package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/netx/untrusted"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
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
	// Cancel tells the local mailbox that nobody waits for calls any more that it has. It returns those that had ended already, and whose verdicts
	// come next.
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

	mu    sync.Mutex // guards table, epoch and unanswered; held for calls to the table only
	table *Table
	epoch event.Position
	moves sync.Pool // of *Moves
	due   chan struct{}
	dueAt clock.Instant // guarded by mu: when Run will tick

	unanswered []Unanswered
	handover   handover
	delivering map[event.Handle]*Cancel // guarded by mu: calls on their way to the local mailbox, each with the Cancel that waits until it is there; nil: none does

	peersMu sync.Mutex
	peers   map[Peer]*peer // peers with a goroutine, or about to get one
	listed  map[Peer]string
	changed chan struct{}
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
		peers:      make(map[Peer]*peer), listed: make(map[Peer]string),
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

// perform performs the moves of one step. calls: there are some among those for the local mailbox.
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

// noteCalls notes the calls that the local mailbox is about to get, and reports whether there are some. It keeps a Cancel of such a call for
// [Pool.delivered]: another goroutine brings them there, and a Cancel that came first would find nothing. p.mu is held.
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

// cancel tells the owners of calls that nobody waits for these any more.
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

// GiveUp ends a call whose caller waits no longer, see [Table.GiveUp].
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
	p.step(func(now clock.Instant, out *Moves) {
		p.epoch = route.Epoch()
		p.table.SetRoute(now, self, route, out)
	})
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

// unansweredMax is how many losses of such events are remembered, the newest.
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
		if !listed && !s.up.Load() {
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
		s := &peer{pool: p, id: id, address: address, giveUp: giveUp}
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
func (p *Pool) ended(s *peer) {
	p.peersMu.Lock()
	defer p.peersMu.Unlock()
	delete(p.peers, s.id)
	signal.Set(p.changed)
}

// peer keeps one stream to one peer.
type peer struct {
	pool    *Pool
	id      Peer
	address string
	giveUp  context.CancelFunc
	listed  atomic.Bool
	up      atomic.Bool
	link    atomic.Pointer[link] // of the present stream
	calls   bool                 // the peer takes calls; written before the stream is up

	mu        sync.Mutex      // guards the fields below
	cancelled []Cancel        // calls that the peer has and nobody waits for
	renewals  []event.Renewal // of reservations that the peer has
}

// cancelledMax bounds the calls whose cancelling waits for one stream. More are not told, and end by their timeouts.
const cancelledMax = 1 << 14

// cancel queues a Cancel, for the present stream. A later one need not know.
func (s *peer) cancel(call Cancel) {
	s.mu.Lock()
	if len(s.cancelled) < cancelledMax {
		s.cancelled = append(s.cancelled, call)
	}
	s.mu.Unlock()
	s.wake()
}

// renew queues a renewal. Beyond renewalsMax it is dropped, and its holder asks again.
func (s *peer) renew(r event.Renewal) {
	s.mu.Lock()
	if len(s.renewals) < renewalsMax {
		s.renewals = append(s.renewals, r)
	}
	s.mu.Unlock()
	s.wake()
}

// renewalsMax bounds the renewals that wait for one stream, and those of a frame.
const renewalsMax = 4096

// takeSmall empties the queues.
func (s *peer) takeSmall() (calls []Cancel, renewals []event.Renewal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls, s.cancelled = s.cancelled, nil
	renewals, s.renewals = s.renewals, nil
	return calls, renewals
}

func (s *peer) wake() {
	if l := s.link.Load(); l != nil {
		l.wake()
	}
}

// run opens one stream after the other until ctx ends or the peer has left.
func (s *peer) run(ctx context.Context) {
	defer s.pool.ended(s)
	p := s.pool
	pauses := backoff.Backoff{Min: p.config.ReconnectMin, Max: p.config.ReconnectMax}
	for {
		begun := p.now()
		err := s.stream(ctx)
		if ctx.Err() != nil || !s.listed.Load() {
			return
		}
		p.evidence(s.id, false)
		if p.now().Sub(begun) > p.config.DeadAfter {
			pauses.Reset()
		}
		pause := pauses.Next()
		p.log.Info("stream ended", "peer", s.id, "error", err, "pause", pause)
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
	}
}

// stream opens one stream and returns why it ended.
func (s *peer) stream(ctx context.Context) error {
	p := s.pool
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l := newLink(p.config, p.now, p.metrics, cancel, true)
	conn, st, err := s.dial(ctx, l)
	if err != nil {
		l.silence.Stop()
		p.metrics.connects.WithLabelValues("failed").Inc()
		return err
	}
	defer func() { _ = conn.Close() }()
	p.metrics.connects.WithLabelValues("ok").Inc()
	l.open()

	s.takeSmall() // of an earlier stream
	s.link.Store(l)
	s.up.Store(true)
	p.metrics.streamsOut.Inc()
	p.step(func(now clock.Instant, out *Moves) { p.table.PeerUp(now, s.id, s.calls, out) })
	p.evidence(s.id, true)
	l.wake()

	var receiver sync.WaitGroup
	receiver.Go(func() { cancel(s.receive(l, st)) }) //nolint:contextcheck // whether a level of the log is on does not depend on one
	err = l.run(ctx, &outEnd{peer: s, stream: st})
	cancel(err)
	receiver.Wait() // nothing of this stream may be settled after PeerDown

	p.metrics.streamsOut.Dec()
	s.up.Store(false)
	s.link.Store(nil)
	p.step(func(now clock.Instant, out *Moves) { p.noteUnanswered(s.id, p.table.PeerDown(now, s.id, out)) })
	return context.Cause(ctx)
}

// dial connects and exchanges Hellos; the link's timer bounds both.
func (s *peer) dial(ctx context.Context, l *link) (*grpc.ClientConn, peerStream, error) {
	p := s.pool
	conn, err := grpc.NewClient("passthrough:///"+s.address, append(p.dialOptions(), p.options...)...)
	if err != nil {
		return nil, nil, fmt.Errorf("forward: dial: %w", err)
	}
	st, err := s.hello(ctx, l, conn)
	if err != nil {
		_ = conn.Close()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, nil, err
	}
	return conn, st, nil
}

// http2Window is the HTTP/2 window of streams and connections: enough for the one frame in
// flight and the small frames beside it, without window updates.
const http2Window = 4 << 20

// socketBuffer lets a full frame through in a few system calls.
const socketBuffer = 256 << 10

func (p *Pool) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(p.creds),
		grpc.WithContextDialer(untrusted.DialTCP),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(codec{frameMax: p.config.FrameMax, now: p.now}),
			grpc.MaxCallRecvMsgSize(p.config.FrameMax),
			grpc.MaxCallSendMsgSize(p.config.FrameMax),
		),
		grpc.WithDisableRetry(),                        // a retry would keep copies of our frames, and we retry better
		grpc.WithMaxHeaderListSize(2 * headerBytesMax), // a status has words of the peer
		grpc.WithReadBufferSize(socketBuffer),
		grpc.WithWriteBufferSize(socketBuffer),
		grpc.WithInitialWindowSize(http2Window),
		grpc.WithInitialConnWindowSize(http2Window),
	}
}

// peerStream is the calling end of a stream.
type peerStream = grpc.BidiStreamingClient[peerv1.ForwardRequest, peerv1.ForwardResponse]

func (s *peer) hello(ctx context.Context, l *link, conn *grpc.ClientConn) (peerStream, error) {
	st, err := peerv1.NewPeerServiceClient(conn).Forward(ctx)
	if err != nil {
		return nil, fmt.Errorf("forward: connect: %s", peerText(status.Convert(err).Message()))
	}
	self := s.pool.identity()
	hello := &peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Hello{Hello: self.hello(s.id)}}
	if err := st.SendMsg(hello); err != nil && !errors.Is(err, io.EOF) { // EOF: the answer says why
		return nil, fmt.Errorf("forward: hello: %s", peerText(status.Convert(err).Message()))
	}
	var answer verdictsFrame
	if err := st.RecvMsg(&answer); err != nil {
		return nil, fmt.Errorf("forward: hello: %s", peerText(status.Convert(err).Message()))
	}
	if answer.err != nil {
		return nil, answer.err
	}
	if answer.other.GetHello() == nil {
		return nil, fmt.Errorf("%w: the first frame is not a Hello", errFrame)
	}
	who, err := self.check(answer.other.GetHello())
	if err != nil {
		return nil, err
	}
	s.calls = slices.Contains(answer.other.GetHello().GetCapabilities(), capabilityCalls)
	if who != s.id {
		return nil, fmt.Errorf("%w: incarnation %s answers for %s", errRefused, who, s.id)
	}
	if err := s.prove(st, self, answer.other.GetHello().GetNonce()); err != nil {
		return nil, err
	}
	return st, l.heard(answer.receipt)
}

// prove sends the Proof that this member is the incarnation of its Hello, as the first
// frame after it. Callees of older releases send no nonce and get no Proof.
func (s *peer) prove(st peerStream, self Identity, given []byte) error {
	if len(given) != nonceSize || len(self.Key) == 0 {
		return nil
	}
	proof := &peerv1.Proof{Signature: signProof(self.Key, [nonceSize]byte(given), self.Incarnation, s.id)}
	return sendError(st.SendMsg(&peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Proof{Proof: proof}}))
}

// receive is the receiving goroutine of an outbound stream. It returns why it ended.
func (s *peer) receive(l *link, st peerStream) error {
	var f verdictsFrame
	for {
		if err := st.RecvMsg(&f); err != nil {
			return fmt.Errorf("forward: receive: %s", peerText(status.Convert(err).Message()))
		}
		if f.err != nil {
			return f.err
		}
		if err := l.heard(f.receipt); err != nil {
			return err
		}
		if err := s.handle(l, &f); err != nil {
			return err
		}
	}
}

func (s *peer) handle(l *link, f *verdictsFrame) error {
	if f.number > 0 {
		if err := l.arrived(f.number); err != nil {
			return err
		}
		if len(f.done)+len(f.verdicts) > 0 {
			s.pool.Settle(s.id, f.done, f.verdicts)
		}
		l.took(f.number)
		return nil
	}
	switch frame := f.other.GetFrame().(type) {
	case nil: // a receipt; and it was heard
	case *peerv1.ForwardResponse_Pong:
		l.pong(frame.Pong.GetK())
	case *peerv1.ForwardResponse_Credit:
		keys := make([]event.Key, len(frame.Credit.GetKeys()))
		for i, key := range frame.Credit.GetKeys() {
			keys[i] = event.Key(key)
		}
		s.pool.Credit(s.id, keys, int(frame.Credit.GetEvents()))
	case *peerv1.ForwardResponse_Renewed:
		answers, err := renewalsOf(frame.Renewed.GetHandles(), frame.Renewed.GetNumbers(), frame.Renewed.GetRemainingNs(), frame.Renewed.GetCovered())
		if err != nil {
			return err
		}
		s.pool.renewed(s.id, answers)
	case *peerv1.ForwardResponse_GoAway:
		return fmt.Errorf("forward: the peer ends the stream: %s", peerText(frame.GoAway.GetReason()))
	default:
		return fmt.Errorf("%w: a %T in the middle of a stream", errFrame, frame)
	}
	return nil
}

// outEnd sends the frames of an outbound stream.
type outEnd struct {
	peer   *peer
	stream peerStream
	frame  eventsFrame
	batch  []event.Ref
	done   []event.Finished // of the window that was sent last
}

// sendHot implements end.
func (e *outEnd) sendHot(number, receipt uint64) (bool, error) {
	p := e.peer.pool
	p.mu.Lock()
	batch, relay := p.table.Take(e.peer.id, p.config.FrameEventsMax, p.config.FrameBytesMax, e.batch[:0])
	epoch, owed := p.epoch, p.table.Unanswered(e.peer.id)
	p.mu.Unlock()
	if len(batch) > 0 && p.logsEvents() {
		for i := range batch {
			p.log.Debug("sent", "message_id", batch[i].MessageID().String(), "peer", e.peer.id, "relay", relay)
		}
	}
	if len(batch) == 0 {
		if owed == 0 && !e.peer.listed.Load() {
			return false, errGone
		}
		return false, nil
	}
	e.frame.receipt, e.frame.number, e.frame.epoch, e.frame.relay, e.frame.refs = receipt, number, epoch, relay, batch
	err := e.stream.SendMsg(&e.frame)
	p.metrics.framesOut.Inc()
	p.metrics.frameEvents.Observe(float64(len(batch)))
	if relay {
		p.metrics.sentRelay.Add(float64(len(batch)))
	} else {
		p.metrics.sentPeer.Add(float64(len(batch)))
	}
	clear(batch)
	e.batch, e.frame.refs = batch, nil
	return true, sendError(err)
}

// sendSmall implements end: it sends the renewals of reservations, the calls that nobody waits for, and behind these the questions whether they were handled.
func (e *outEnd) sendSmall(receipt uint64) error {
	calls, renewals := e.peer.takeSmall()
	config := &e.peer.pool.config
	if err := e.sendRenewals(receipt, renewals); err != nil {
		return err
	}
	for calls := range slices.Chunk(calls, config.smallMax(cancelBytesMax)) {
		cancel := &peerv1.Cancel{Handles: make([]uint64, len(calls))}
		var questions []event.Renewal
		for i := range calls {
			cancel.Handles[i] = uint64(calls[i].Handle)
			if calls[i].Confirm {
				questions = append(questions, calls[i].Renewal())
			}
		}
		if err := e.stream.SendMsg(&peerv1.ForwardRequest{Receipt: receipt, Frame: &peerv1.ForwardRequest_Cancel{Cancel: cancel}}); err != nil {
			return sendError(err)
		}
		if err := e.sendRenewals(receipt, questions); err != nil {
			return err
		}
	}
	return nil
}

func (e *outEnd) sendRenewals(receipt uint64, renewals []event.Renewal) error {
	config := &e.peer.pool.config
	for renewals := range slices.Chunk(renewals, min(renewalsMax, config.smallMax(renewalBytesMax))) {
		ask := &peerv1.Renewals{}
		for _, r := range renewals {
			ask.Handles, ask.Numbers = append(ask.Handles, uint64(r.Handle)), append(ask.Numbers, r.Number)
		}
		if err := e.stream.SendMsg(&peerv1.ForwardRequest{Receipt: receipt, Frame: &peerv1.ForwardRequest_Renewals{Renewals: ask}}); err != nil {
			return sendError(err)
		}
	}
	return nil
}

// sendReceipt implements end.
func (e *outEnd) sendReceipt(receipt uint64) error {
	e.frame.receipt, e.frame.number = receipt, 0
	return sendError(e.stream.SendMsg(&e.frame))
}

// answeredDelay bounds the wait of a receipt for verdicts when the peer owes no other: its next ones answer events whose frame brings the
// receipt.
const answeredDelay = 100 * time.Millisecond

// receiptDelay implements end.
func (e *outEnd) receiptDelay(time.Duration) time.Duration {
	p := e.peer.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.table.Unanswered(e.peer.id) > 0 {
		return 0
	}
	return min(answeredDelay, p.config.PingAfter)
}

// windowIDBytesMax bounds the encoded size of one id.
const windowIDBytesMax = 40

// sendAside implements end: it sends ids of finished events.
func (e *outEnd) sendAside(receipt uint64) (ids int, more bool, err error) {
	p := e.peer.pool
	idsMax := min(p.config.FrameEventsMax, (p.config.FrameMax-frameOverheadMax)/windowIDBytesMax)
	e.done, more = p.handover.take(e.peer.id, idsMax, e.done[:0])
	if len(e.done) == 0 {
		return 0, more, nil
	}
	err = e.stream.SendMsg(&peerv1.ForwardRequest{
		Receipt: receipt,
		Frame:   &peerv1.ForwardRequest_Window{Window: encodeWindow(p.now(), e.done)},
	})
	p.metrics.windowSent.Add(float64(len(e.done)))
	return len(e.done), more, sendError(err)
}

// asideTaken implements end.
func (e *outEnd) asideTaken(ids int) { e.peer.pool.handover.taken(ids) }

// sendPing implements end.
func (e *outEnd) sendPing(k, receipt uint64) error {
	return sendError(e.stream.SendMsg(&peerv1.ForwardRequest{
		Receipt: receipt,
		Frame:   &peerv1.ForwardRequest_Ping{Ping: &peerv1.Ping{K: k}},
	}))
}

func sendError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("forward: send: %w", err)
}
