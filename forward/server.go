package forward

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/netx/greet"
	"github.com/ringfence/router/internal/telemetry/loglimit"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
)

// StreamID names an inbound stream of this process. Never reused; zero is none.
type StreamID uint64

// Arrival is the content of one frame of events.
type Arrival struct {
	From   StreamID
	Peer   Peer           // the consumer node, which holds the events
	Epoch  event.Position // the epoch by which they were routed
	Relay  bool           // this node is not the owner and must pass them on once
	Events []event.Ref    // the receiver's to keep; handles are those of the peer
}

// Acceptor takes the events of other members. The receiving goroutines of the streams call
// its methods, which must be quick: while one runs, its stream receives nothing.
type Acceptor interface {
	// Accept takes events. Each gets its verdict by [Server.Answer], now or later.
	Accept(arrival Arrival)
	// TakeOver takes ids of recently finished events on partitions that this node owns or
	// will own. proven says that the peer has authenticated as the incarnation from, with
	// the private half of KeyOf's key. The slice is the receiver's.
	TakeOver(from Peer, proven bool, done []event.Finished)
	// KeyOf returns the public key of an incarnation, nil if none is known.
	KeyOf(peer Peer) ed25519.PublicKey
	// CancelFor reports that the callers of calls that came on a stream have stopped waiting. The slice is the receiver's.
	CancelFor(from StreamID, calls []event.Handle)
	// RenewFor asks for new permission of reservations that came on a stream. Each gets its answer by [Server.Renewed]. The slice is the
	// receiver's.
	RenewFor(from StreamID, asked []event.Renewal)
	// Gone says that a stream has ended: no events come from it, and verdicts for it are
	// dropped.
	Gone(from StreamID)
}

// Server is the inbound half of this package: the streams that other members open.
// All methods are safe for concurrent use.
type Server struct {
	peerv1.UnimplementedPeerServiceServer

	config   Config
	identity func() Identity
	creds    credentials.TransportCredentials
	options  []grpc.ServerOption
	acceptor Acceptor
	now      func() clock.Instant
	metrics  *Metrics
	log      *slog.Logger
	refusals *loglimit.Limit // log lines about streams without a valid Hello
	endings  *loglimit.Limit // log lines about streams with one, which proves no identity
	others   []func(grpc.ServiceRegistrar)

	epoch     atomic.Pointer[event.Position]
	receivers sync.WaitGroup

	mu      sync.RWMutex // guards the fields below
	stopped bool
	lastID  StreamID
	streams map[StreamID]*inbound
}

// NewServer returns a Server that does nothing until Run. The configuration must be
// valid; now is [clock.Now] but in tests; identity is asked for each Hello.
func NewServer(config Config, identity func() Identity, creds credentials.TransportCredentials, acceptor Acceptor,
	now func() clock.Instant, metrics *Metrics, log *slog.Logger, options ...grpc.ServerOption,
) *Server {
	log = log.With("component", "forward")
	return &Server{
		config: config, identity: identity, creds: creds, options: options, acceptor: acceptor,
		now: now, metrics: metrics, log: log,
		refusals: loglimit.New(log, "peer_stream_refused", lineEvery, metrics.lines),
		endings:  loglimit.New(log, "peer_stream_ended", lineEvery, metrics.lines),
		streams:  make(map[StreamID]*inbound),
	}
}

// Also makes Run serve another service on the same port, under the same credentials.
// To be called before Run.
func (s *Server) Also(register func(grpc.ServiceRegistrar)) { s.others = append(s.others, register) }

// Run serves streams from listener, which it closes, until ctx ends. Then it sends
// the verdicts that wait, for at most Config.DeadAfter, ends the streams and returns
// nil. It can run once.
func (s *Server) Run(ctx context.Context, listener net.Listener) error {
	server := grpc.NewServer(append([]grpc.ServerOption{
		grpc.Creds(s.creds),
		grpc.ForceServerCodecV2(codec{frameMax: s.config.FrameMax, now: s.now}),
		grpc.MaxRecvMsgSize(s.config.FrameMax),
		grpc.MaxSendMsgSize(s.config.FrameMax),
		grpc.ReadBufferSize(socketBuffer),
		grpc.WriteBufferSize(socketBuffer),
		grpc.InitialWindowSize(http2Window),
		grpc.InitialConnWindowSize(http2Window),
		grpc.MaxConcurrentStreams(streamsMax),
		grpc.ConnectionTimeout(s.config.HelloTimeout),
		grpc.MaxHeaderListSize(headerBytesMax),
		// Closes a stream whose peer has vanished while a frame to it is stuck, and unused
		// connections.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 3 * time.Second, MaxConnectionIdle: idleMax}),
		grpc.WaitForHandlers(true),
	}, s.options...)...)
	peerv1.RegisterPeerServiceServer(server, s)
	for _, register := range s.others {
		register(server)
	}

	var stopper sync.WaitGroup
	served := make(chan struct{})
	stopper.Go(func() {
		select {
		case <-ctx.Done():
		case <-served:
		}
		s.stop()
		force := time.AfterFunc(s.config.DeadAfter, server.Stop)
		defer force.Stop()
		server.GracefulStop()
	})
	err := server.Serve(listener)
	close(served)
	stopper.Wait()
	s.receivers.Wait()
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("forward: serve: %w", err)
	}
	return nil
}

const (
	streamsMax     = 16          // of one connection; a peer needs one
	headerBytesMax = 8 << 10     // the headers of a call
	idleMax        = time.Minute // a connection without a stream
	lineEvery      = time.Second // between two log lines of a kind that strangers can cause
)

// stop ends all streams, and those that are just beginning.
func (s *Server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for _, in := range s.streams {
		in.stopping.Store(true)
		in.link.wake()
	}
}

// SetEpoch sets the newest epoch that this member has applied. It is sent to peers.
func (s *Server) SetEpoch(epoch event.Position) { s.epoch.Store(&epoch) }

// inbound returns the stream of that name, nil if it is gone.
func (s *Server) inbound(name StreamID) *inbound {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.streams[name]
}

// PeerOf returns the member at the other end of a stream. ok is false if the stream is gone.
func (s *Server) PeerOf(stream StreamID) (p Peer, ok bool) {
	in := s.inbound(stream)
	if in == nil {
		return Peer{}, false
	}
	return in.peer, true
}

// Answer sends verdicts on a stream. If the stream is gone they are dropped: its
// peer sends the events again.
func (s *Server) Answer(to StreamID, verdicts []event.Verdict) {
	if in := s.inbound(to); in != nil {
		in.answer(verdicts)
	}
}

// Credit tells the peer of a stream that there is room again for a number of events
// of one key that it was refused, or with a nil key for all that it was refused. It
// does not keep the key. Credits may be dropped, for example when the stream has ended:
// the peer also retries without them.
func (s *Server) Credit(to StreamID, key *event.Key, events int) {
	in := s.inbound(to)
	if in == nil {
		return
	}
	credit := &peerv1.Credit{Events: uint32(events)}
	if key != nil {
		credit.Keys = [][]byte{[]byte(*key)}
	}
	in.credit(credit)
}

// Forward implements the stream of peerv1.PeerServiceServer.
func (s *Server) Forward(st grpc.BidiStreamingServer[peerv1.ForwardRequest, peerv1.ForwardResponse]) error {
	ctx, cancel := context.WithCancelCause(st.Context())
	defer cancel(nil)
	in := &inbound{
		server: s,
		stream: st,
		link:   newLink(s.config, s.now, s.metrics, cancel, false),
		opened: make(chan struct{}),
	}
	_, _ = rand.Read(in.nonce[:]) // never fails
	defer in.link.silence.Stop()
	s.receivers.Go(func() { cancel(in.receive()) })
	select {
	case <-ctx.Done():
		if log, due := s.refusals.Line(); due {
			log.Info("stream refused", "error", context.Cause(ctx))
		}
	case <-in.opened:
		s.metrics.streamsIn.Inc()
		defer s.metrics.streamsIn.Dec()
		cancel(in.run(ctx)) // if it was cancelled, its cause stays
		if log, due := s.endings.Line(); due {
			log.Info("inbound stream ended", "stream", in.id, "peer", in.peer, "error", context.Cause(ctx))
		}
	}
	return s.statusOf(context.Cause(ctx))
}

// statusOf returns the status that tells the peer why its stream ends.
func (s *Server) statusOf(cause error) error {
	switch {
	case errors.Is(cause, io.EOF):
		return nil
	case errors.Is(cause, errRefused):
		s.metrics.refused[refusedHello].Inc()
		if errors.Is(cause, errSettings) {
			s.metrics.otherSettings.Inc()
		}
		return status.Error(codes.FailedPrecondition, cause.Error())
	case errors.Is(cause, errFrame):
		s.metrics.refused[refusedFrame].Inc()
		return status.Error(codes.InvalidArgument, cause.Error())
	case errors.Is(cause, errNoHello):
		s.metrics.refused[refusedSilent].Inc()
		return status.Error(codes.DeadlineExceeded, cause.Error())
	case errors.Is(cause, errSilent):
		return status.Error(codes.DeadlineExceeded, cause.Error())
	}
	return status.Error(codes.Unavailable, cause.Error())
}

// add assigns a stream its id. A Server that stops accepts no streams.
func (s *Server) add(in *inbound) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errStopping
	}
	s.lastID++
	in.id = s.lastID
	s.streams[in.id] = in
	return nil
}

func (s *Server) remove(in *inbound) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, in.id)
}

// inbound is one stream that another member has opened.
type inbound struct {
	server *Server
	stream grpc.BidiStreamingServer[peerv1.ForwardRequest, peerv1.ForwardResponse]
	link   *link
	opened chan struct{} // closed when the Hello was good: id and peer are set
	id     StreamID
	peer   Peer
	self   Identity      // this member, as its Hello on this stream says
	sets   bool          // the peer reads sets of events that are done
	frame  verdictsFrame // the sending goroutine's

	// The receiving goroutine's, but for nonce, which does not change.
	nonce  [nonceSize]byte // for the peer's Proof to sign
	proof  []byte          // its signature, nil before it comes
	proven bool            // it was found to be that of the peer's key

	stopping atomic.Bool // the stream ends when no verdict waits

	mu      sync.Mutex     // guards the fields below
	queued  []verdictBatch // the last one may grow
	taken   uint64         // number of batches that were taken out of queued
	owed    uint64         // the peer's frame whose receipt waits until fewer batches are queued; 0: none
	credits []*peerv1.Credit
	renewed []renewed
}

// renewed is the answer to a renewal.
type renewed struct {
	event.Renewal
	behind uint64 // it is sent when so many batches were taken
}

// Renewed answers renewals on a stream. If the stream is gone they are dropped: their holders ask again. The
// confirmation of a release goes behind the verdicts that wait: one of them may say that the reservation was given back
// before its Cancel came, which has freed nothing then.
func (s *Server) Renewed(to StreamID, answers []event.Renewal) {
	in := s.inbound(to)
	if in == nil {
		return
	}
	in.mu.Lock()
	for _, a := range answers[:min(len(answers), renewalsMax-len(in.renewed))] {
		r := renewed{Renewal: a}
		if confirms(a) {
			r.behind = in.taken + uint64(len(in.queued))
		}
		in.renewed = append(in.renewed, r)
	}
	in.mu.Unlock()
	in.link.wake()
}

// renewedOf returns the frame with answers to renewals.
func renewedOf(answers []event.Renewal) *peerv1.Renewed {
	m := new(peerv1.Renewed)
	for i, r := range answers {
		m.Handles, m.Numbers = append(m.Handles, uint64(r.Handle)), append(m.Numbers, r.Number)
		m.RemainingNs = append(m.RemainingNs, uint64(max(0, r.Remaining)))
		if r.Covered {
			m.Covered = append(m.Covered, uint32(i))
		}
	}
	return m
}

// renewalsOf reads renewals, or the answers to them.
func renewalsOf(handles, numbers, remaining []uint64, covered []uint32) ([]event.Renewal, error) {
	if len(handles) > renewalsMax || len(numbers) != len(handles) || remaining != nil && len(remaining) != len(handles) {
		return nil, fmt.Errorf("%w: %d renewals with %d numbers, want at most %d", errFrame, len(handles), len(numbers), renewalsMax)
	}
	all := make([]event.Renewal, len(handles))
	for i := range handles {
		all[i] = event.Renewal{Handle: event.Handle(handles[i]), Number: numbers[i]}
		if remaining != nil {
			all[i].Remaining = nanoseconds(remaining[i])
		}
	}
	last := -1
	for _, at := range covered {
		if int(at) >= len(all) || int(at) <= last {
			return nil, fmt.Errorf("%w: covered renewal %d of %d, out of order or range", errFrame, at, len(all))
		}
		all[at].Covered = true
		last = int(at)
	}
	return all, nil
}

// creditsMax is the number of credits that may wait for one stream; more are dropped.
const creditsMax = 1024

// credit queues a credit.
func (in *inbound) credit(c *peerv1.Credit) {
	in.mu.Lock()
	if len(in.credits) < creditsMax {
		in.credits = append(in.credits, c)
	}
	in.mu.Unlock()
	in.link.wake()
}

// sendSmall implements end: it sends the credits that wait, and the answers to renewals.
func (in *inbound) sendSmall(receipt uint64) error {
	in.mu.Lock()
	credits := in.credits
	in.credits = nil
	var due []event.Renewal
	in.renewed = slices.DeleteFunc(in.renewed, func(r renewed) bool {
		if r.behind > in.taken {
			return false // the receipt of the next frame of verdicts wakes the stream for it
		}
		due = append(due, r.Renewal)
		return true
	})
	if len(in.renewed) == 0 {
		in.renewed = nil
	}
	in.mu.Unlock()
	for answers := range slices.Chunk(due, in.server.config.smallMax(renewedBytesMax)) {
		if err := in.stream.SendMsg(&peerv1.ForwardResponse{Receipt: receipt, Frame: &peerv1.ForwardResponse_Renewed{Renewed: renewedOf(answers)}}); err != nil {
			return sendError(err)
		}
	}
	for _, c := range credits {
		f := &peerv1.ForwardResponse{Receipt: receipt, Frame: &peerv1.ForwardResponse_Credit{Credit: c}}
		if err := in.stream.SendMsg(f); err != nil {
			return sendError(err)
		}
		in.server.metrics.creditsOut.Inc()
	}
	return nil
}

// receive is the receiving goroutine of an inbound stream. It returns why it ended.
func (in *inbound) receive() error {
	s := in.server
	if err := in.hello(); err != nil {
		return err
	}
	defer s.acceptor.Gone(in.id)
	defer s.remove(in)
	var f eventsFrame
	for {
		if err := in.recv(&f); err != nil {
			return err
		}
		if err := in.link.heard(f.receipt); err != nil {
			return err
		}
		if err := in.handle(&f); err != nil {
			return err
		}
	}
}

// hello takes the first frame.
func (in *inbound) hello() (err error) {
	f := eventsFrame{bytesMax: helloBytesMax}
	if err := in.recv(&f); err != nil {
		return err
	}
	hello := f.other.GetHello()
	if hello == nil {
		return fmt.Errorf("%w: the first frame is not a Hello", errFrame)
	}
	self := in.server.identity()
	if in.peer, err = self.check(hello); err != nil {
		return err
	}
	in.self, in.sets = self, slices.Contains(hello.GetCapabilities(), capabilitySets)
	if err := in.server.add(in); err != nil {
		return err
	}
	in.link.open()
	close(in.opened)
	greet.Greeted(in.stream.Context())
	return nil
}

// recv receives one frame. It tells malformed frames from broken streams.
func (in *inbound) recv(f *eventsFrame) error {
	err := in.stream.RecvMsg(f)
	switch {
	case err == nil:
		return f.err
	case errors.Is(err, io.EOF):
		return err
	}
	return fmt.Errorf("forward: receive: %s", status.Convert(err).Message())
}

func (in *inbound) handle(f *eventsFrame) error {
	s := in.server
	if f.number > 0 {
		if err := in.link.arrived(f.number); err != nil {
			return err
		}
		if in.stopping.Load() {
			return nil // ignored: the peer sends the events to another member
		}
		received := s.metrics.receivedPeer
		if f.relay {
			received = s.metrics.receivedRelay
		}
		received.Add(float64(len(f.events)))
		s.metrics.framesIn.Inc()
		s.acceptor.Accept(Arrival{From: in.id, Peer: in.peer, Epoch: f.epoch, Relay: f.relay, Events: f.events})
		in.took(f.number)
		return nil
	}
	switch frame := f.other.GetFrame().(type) {
	case nil: // a receipt
	case *peerv1.ForwardRequest_Ping:
		in.link.ping(frame.Ping.GetK())
	case *peerv1.ForwardRequest_Window:
		done, err := decodeWindow(s.now(), frame.Window)
		if err != nil {
			return err
		}
		s.metrics.windowReceived.Add(float64(len(done)))
		s.acceptor.TakeOver(in.peer, in.isProven(), done)
	case *peerv1.ForwardRequest_Proof:
		if in.proof != nil {
			return fmt.Errorf("%w: a second Proof", errFrame)
		}
		in.proof = append([]byte{}, frame.Proof.GetSignature()...)
	case *peerv1.ForwardRequest_Renewals:
		asked, err := renewalsOf(frame.Renewals.GetHandles(), frame.Renewals.GetNumbers(), nil, nil)
		if err != nil {
			return err
		}
		s.acceptor.RenewFor(in.id, asked)
	case *peerv1.ForwardRequest_Cancel:
		if n := len(frame.Cancel.GetHandles()); n > cancelledMax {
			return fmt.Errorf("%w: a Cancel of %d calls, want at most %d", errFrame, n, cancelledMax)
		}
		calls := make([]event.Handle, len(frame.Cancel.GetHandles()))
		for i, h := range frame.Cancel.GetHandles() {
			calls[i] = event.Handle(h)
		}
		s.acceptor.CancelFor(in.id, calls)
	default:
		return fmt.Errorf("%w: a %T in the middle of a stream", errFrame, frame)
	}
	return nil
}

// isProven reports whether the peer has shown that it is the incarnation of its Hello. Its
// key may become known after its Proof came, when this member reads its Hello in the log.
func (in *inbound) isProven() bool {
	if !in.proven && in.proof != nil {
		key := in.server.acceptor.KeyOf(in.peer)
		in.proven = verifyProof(key, in.nonce, in.peer, in.self.Incarnation, in.proof)
	}
	return in.proven
}

// queuedMax is the number of frames of verdicts that may wait for one stream before its peer gets no receipts for events, and so may send no more.
const queuedMax = 64

// took lets the receipt for a frame of events be sent, once few verdicts wait: a peer that takes no verdicts gets none.
func (in *inbound) took(number uint64) {
	in.mu.Lock()
	waits := len(in.queued) > queuedMax
	if waits {
		in.owed = number
	}
	in.mu.Unlock()
	if !waits {
		in.link.took(number)
	}
}

// answer encodes verdicts into the last frame and further ones as needed. queuedMax and the
// events that the peer has here bound the queue.
func (in *inbound) answer(verdicts []event.Verdict) {
	in.mu.Lock()
	for len(verdicts) > 0 {
		if n := len(in.queued); n > 0 {
			if verdicts = in.queued[n-1].add(verdicts, &in.server.config); len(verdicts) == 0 {
				break
			}
		}
		in.queued = append(in.queued, verdictBatch{sets: in.sets})
	}
	in.mu.Unlock()
	in.link.wake()
}

// run is the sending goroutine: the handler of the stream. It returns why it ended.
func (in *inbound) run(ctx context.Context) error {
	answer := in.self.hello(in.peer)
	answer.Nonce = in.nonce[:]
	hello := &peerv1.ForwardResponse{Frame: &peerv1.ForwardResponse_Hello{Hello: answer}}
	if err := in.stream.SendMsg(hello); err != nil {
		return sendError(err)
	}
	return in.link.run(ctx, in)
}

// goAway ends a stream when all its verdicts are receipted.
func (in *inbound) goAway(receipt uint64) error {
	frame := &peerv1.ForwardResponse_GoAway{GoAway: &peerv1.GoAway{Reason: "this member stops"}}
	if err := in.stream.SendMsg(&peerv1.ForwardResponse{Receipt: receipt, Frame: frame}); err != nil {
		return sendError(err)
	}
	return errStopping
}

// sendHot implements end.
func (in *inbound) sendHot(number, receipt uint64) (bool, error) {
	f := &in.frame
	stopping := in.stopping.Load() // before the queue is found empty
	f.batch = in.take()
	switch {
	case f.batch.n > 0:
	case stopping:
		return false, in.goAway(receipt)
	default:
		return false, nil
	}
	f.receipt, f.number = receipt, number
	if epoch := in.server.epoch.Load(); epoch != nil {
		f.epoch = *epoch
	}
	return true, sendError(in.stream.SendMsg(f))
}

// take removes the verdicts of one frame from the queue.
func (in *inbound) take() (batch verdictBatch) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.queued) > 0 {
		batch = in.queued[0]
		in.queued = slices.Delete(in.queued, 0, 1)
		in.taken++
	}
	if in.owed > 0 && len(in.queued) <= queuedMax {
		in.link.took(in.owed)
		in.owed = 0
	}
	return batch
}

// sendReceipt implements end.
func (in *inbound) sendReceipt(receipt uint64) error {
	in.frame.receipt, in.frame.number = receipt, 0
	return sendError(in.stream.SendMsg(&in.frame))
}

// Receipts for events wait up to acceptedDelay for verdicts, unless frames come at shorter intervals than rareAfter: then the peer may have
// more events ready.
const (
	acceptedDelay = time.Millisecond
	rareAfter     = 5 * acceptedDelay
)

// receiptDelay implements end.
func (*inbound) receiptDelay(gap time.Duration) time.Duration {
	if gap < rareAfter {
		return 0
	}
	return acceptedDelay
}

// sendAside implements end: this direction carries verdicts only.
func (*inbound) sendAside(uint64) (int, bool, error) { return 0, false, nil }

// asideTaken implements end.
func (*inbound) asideTaken(int) {}

// sendPing implements end.
func (in *inbound) sendPing(k, receipt uint64) error {
	return sendError(in.stream.SendMsg(&peerv1.ForwardResponse{
		Receipt: receipt,
		Frame:   &peerv1.ForwardResponse_Pong{Pong: &peerv1.Pong{K: k}},
	}))
}
