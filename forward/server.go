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
	"strings"
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
	// LearnDone takes ids of recently finished events on partitions that this node owns or
	// will own. proven says that the peer has authenticated as the incarnation from, with
	// the private half of KeyOf's key. The slice is the receiver's.
	LearnDone(from Peer, proven bool, done []event.Finished)
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
		now: now, metrics: metrics,
		refusals: loglimit.New(log, "peer_stream_refused", lineEvery, metrics.lines),
		endings:  loglimit.New(log, "peer_stream_ended", lineEvery, metrics.lines),
		streams:  make(map[StreamID]*inbound),
	}
}

// Also makes Run serve another service on the same port, under the same credentials.
// Call it before Run.
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
		grpc.UnknownServiceHandler(unknownMethod),
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

// unknownMethod refuses calls of methods that no service here has. An application whose address names this port by mistake shows the text.
func unknownMethod(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	if strings.HasPrefix(method, "/ringfence.app.") || strings.HasPrefix(method, "/ringfence.lane.") {
		return status.Error(codes.Unimplemented, "forward: this port (peer.listen) is for other routers: applications connect to app.listen, which has port 16650 by default")
	}
	return status.Errorf(codes.Unimplemented, "forward: unknown method %s", method)
}

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
	in.mu.Lock()
	if len(in.credits) < creditsMax {
		in.credits = append(in.credits, credit)
	}
	in.mu.Unlock()
	in.link.wake()
}

// Renewed answers renewals on a stream. If the stream is gone the answers are dropped, and the holders ask again. The
// confirmation of a release goes behind the verdicts that wait: one of them may report that the reservation had ended
// before its Cancel came, which then freed nothing.
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

// Forward implements the stream of peerv1.PeerServiceServer.
func (s *Server) Forward(st grpc.BidiStreamingServer[peerv1.ForwardRequest, peerv1.ForwardResponse]) error {
	ctx, cancel := context.WithCancelCause(st.Context())
	defer cancel(nil)
	in := &inbound{
		server: s,
		stream: st,
		link:   newLink(s.config, s.now, s.metrics, cancel, calleeEnd),
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
