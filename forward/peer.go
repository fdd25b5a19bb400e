package forward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/netx/untrusted"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
)

// outbound keeps a stream to one peer: when one ends, it opens the next.
type outbound struct {
	pool    *Pool
	id      Peer
	address string
	giveUp  context.CancelFunc
	listed  atomic.Bool          // SetPeers names the peer
	link    atomic.Pointer[link] // of the present stream, nil while there is none
	calls   bool                 // the peer takes calls; written before the stream is up

	mu        sync.Mutex      // guards the fields below
	cancelled []Cancel        // calls that the peer has and whose callers have stopped waiting
	renewals  []event.Renewal // of reservations that the peer has
}

// cancelledMax bounds the cancellations that wait for one stream. Further ones are not sent: those calls end by their timeouts.
const cancelledMax = 1 << 14

// cancel queues a Cancel for the present stream. It is dropped if the stream breaks: the peer has no caller to answer then.
func (s *outbound) cancel(call Cancel) {
	s.mu.Lock()
	if len(s.cancelled) < cancelledMax {
		s.cancelled = append(s.cancelled, call)
	}
	s.mu.Unlock()
	s.wake()
}

// renew queues a renewal. Beyond renewalsMax it is dropped, and its holder asks again.
func (s *outbound) renew(r event.Renewal) {
	s.mu.Lock()
	if len(s.renewals) < renewalsMax {
		s.renewals = append(s.renewals, r)
	}
	s.mu.Unlock()
	s.wake()
}

// takeSmall empties the queues of what is sent in small frames, and returns it.
func (s *outbound) takeSmall() (calls []Cancel, renewals []event.Renewal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls, s.cancelled = s.cancelled, nil
	renewals, s.renewals = s.renewals, nil
	return calls, renewals
}

func (s *outbound) wake() {
	if l := s.link.Load(); l != nil {
		l.wake()
	}
}

// run opens one stream after the other until ctx ends or the peer has left.
func (s *outbound) run(ctx context.Context) {
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
func (s *outbound) stream(ctx context.Context) error {
	p := s.pool
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l := newLink(p.config, p.now, p.metrics, cancel, callerEnd)
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
	s.link.Store(nil)
	p.step(func(now clock.Instant, out *Moves) { p.noteUnanswered(s.id, p.table.PeerDown(now, s.id, out)) })
	return context.Cause(ctx)
}

// dial connects and exchanges Hellos; the link's timer bounds both.
func (s *outbound) dial(ctx context.Context, l *link) (*grpc.ClientConn, peerStream, error) {
	p := s.pool
	conn, err := grpc.NewClient("passthrough:///"+s.address, append(p.dialOptions(), p.options...)...)
	if err != nil {
		return nil, nil, fmt.Errorf("forward: dial: %w", err)
	}
	st, err := s.hello(ctx, l, conn)
	if err != nil {
		connected := conn.GetState() == connectivity.Ready
		_ = conn.Close()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if errors.Is(err, errNoHello) && !connected {
			err = errNoConnection
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

func (s *outbound) hello(ctx context.Context, l *link, conn *grpc.ClientConn) (peerStream, error) {
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
func (s *outbound) prove(st peerStream, self Identity, given []byte) error {
	if len(given) != nonceSize || len(self.Key) == 0 {
		return nil
	}
	proof := &peerv1.Proof{Signature: signProof(self.Key, [nonceSize]byte(given), self.Incarnation, s.id)}
	return sendError(st.SendMsg(&peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Proof{Proof: proof}}))
}

// receive is the receiving goroutine of an outbound stream. It returns why it ended.
func (s *outbound) receive(l *link, st peerStream) error {
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

func (s *outbound) handle(l *link, f *verdictsFrame) error {
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
	peer   *outbound
	stream peerStream
	frame  eventsFrame
	batch  []event.Ref      // scratch of sendHot
	done   []event.Finished // scratch of sendAside
}

// sendHot implements end.
func (e *outEnd) sendHot(number, receipt uint64) (bool, error) {
	p := e.peer.pool
	p.mu.Lock()
	batch, relay := p.table.Take(e.peer.id, p.config.FrameEventsMax, p.config.FrameBytesMax, e.batch[:0])
	epoch, owed := p.table.epoch, p.table.Unanswered(e.peer.id)
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

// sendSmall implements end: it sends the renewals of reservations, the cancellations of calls, and behind them the
// questions whether these were handled.
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

// answeredDelay bounds the wait of a receipt for verdicts while the peer has no unanswered events of ours: its next
// verdicts will answer events whose frame brings the receipt.
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
