package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/telemetry/loglimit"
	"github.com/ringfence/router/internal/wire/appwire"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	"github.com/ringfence/router/ring"
)

// Boxes are the mailboxes, as workers see them. All methods are safe for concurrent
// use, do not block, and do not call back into this package but by [Server.Wake].
type Boxes interface {
	// WorkerUp reports that w takes deliveries from now on, WorkerGone that it takes no further ones.
	// w's deliveries keep running until Finish reports their end.
	WorkerUp(w event.WorkerID)
	WorkerGone(w event.WorkerID)
	// Take appends up to limit deliveries for w to dst: none of partitions that this node may
	// not act for.
	Take(w event.WorkerID, limit int, dst []event.Delivery) []event.Delivery
	// Finish ends deliveries with their results. It does not keep the slice.
	Finish(results []event.Result)
	// Grant says that a reservation has begun.
	Grant(id event.DeliveryID, g event.Grant)
}

// Identity is this node's identity as sent to workers.
type Identity struct {
	Node  string // member name
	Group string // router group
}

// Parts are the collaborators of a [Server]. All but Handled and Schedules are needed.
type Parts struct {
	Boxes Boxes
	// Lease returns the newest lease. For every deposition, Revoke must return before
	// Lease returns a lease that was set after the deposing record.
	Lease func() ownership.Lease
	// Workers is called with the number of workers that take deliveries whenever it has
	// changed. It is called from Run, one call at a time, and may skip values in between.
	Workers func(n int)
	// Drain is called when a worker requests that the whole node leave its group. It is called
	// from Run too.
	Drain func(reason string)
	// Handled gets the handlings that results of a worker report, late results too, before the results count. It is called from the
	// goroutines of the streams, must be quick, may change the slice, and must not keep it. nil: workers are not asked.
	Handled func(w event.WorkerID, handlings []event.Handling)
	// Schedules decides about firings. nil: workers may declare none.
	Schedules Schedules
	// Cover takes an ownership.Cover or Drop for the ownership machine, which answers by [Server.Covered]. It must not block. nil: no reservation is
	// covered.
	Cover func(ownership.Input)
	// Now reads the lease clock: clock.Now, but in tests.
	Now     func() clock.Instant
	Log     *slog.Logger
	Metrics *Metrics
}

// Server is the AppService. Besides Run its methods are safe for concurrent use.
type Server struct {
	appv1.UnimplementedAppServiceServer

	cfg Config
	id  Identity
	Parts

	mu       sync.Mutex
	sessions map[event.WorkerID]*session // sessions that have not ended, including broken ones
	last     event.WorkerID              // the newest that was given
	live     int                         // sessions whose stream has not ended
	stopping chan struct{}               // closed, under mu, when it stops

	lookedAt   clock.Instant // when running deliveries were looked at last; for Expire alone
	listenedAt clock.Instant // the same, for silent workers

	streams    atomic.Int64 // open ones, whether or not they have said Hello
	suspectsMu sync.Mutex   // guards suspects
	suspects   suspects
	suspected  atomic.Int32 // how many suspects run
	firing     atomic.Int32 // how many firings of schedules run

	reservations reservations

	streaming sync.WaitGroup // readers and writers of streams
	// Limits of log lines that any caller can cause.
	refusalLines, connectedLines, drainLines, goneLines *loglimit.Limit

	changed chan struct{} // cap 1: Run has to look
	drain   chan string   // cap 1: a reason, on its way to Parts.Drain
}

// New returns a Server. It serves streams as soon as it is registered with a gRPC
// server, which must have been made with [ServerOptions]; Run must be running then.
func New(cfg Config, id Identity, parts Parts) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	parts.Log = parts.Log.With("component", "app")
	limit := func(source string, every time.Duration) *loglimit.Limit {
		return loglimit.New(parts.Log, source, every, parts.Metrics.lines)
	}
	return &Server{
		cfg: cfg, id: id, Parts: parts,
		refusalLines:   limit("app_stream_ended", time.Second),
		connectedLines: limit("app_worker_connected", lifecycleEvery),
		drainLines:     limit("app_worker_drains", lifecycleEvery),
		goneLines:      limit("app_worker_gone", lifecycleEvery),
		sessions:       make(map[event.WorkerID]*session),
		reservations:   reservations{awake: make(chan struct{}, 1), held: make(map[event.DeliveryID]*reservation)},
		stopping:       make(chan struct{}),
		changed:        make(chan struct{}, 1),
		drain:          make(chan string, 1),
	}, nil
}

// ServerOptions returns the options for the gRPC server of a Server: the codec of the hot
// frames, room for the largest frame, and windows that let the usual frame through without
// waiting.
func ServerOptions(cfg Config) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(appwire.Codec{}),
		grpc.MaxRecvMsgSize(recvBytesMax),
		grpc.MaxSendMsgSize(frameBytes(cfg)),
		grpc.ReadBufferSize(socketBuffer),
		grpc.WriteBufferSize(socketBuffer),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connWindow),
		grpc.ConnectionTimeout(cfg.HelloTimeout),
		grpc.MaxConcurrentStreams(uint32(cfg.streamsMax())), // of one connection
		grpc.MaxHeaderListSize(headerBytesMax),
		// Closes the connection of a process that is frozen while a frame to it is stuck, and
		// unused connections.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: cfg.SilenceMax, Timeout: cfg.SilenceMax / 2, MaxConnectionIdle: idleMax}),
	}
}

// lifecycleEvery is the least time between two lines that say that a worker has come, drains, or has gone.
const lifecycleEvery = 100 * time.Millisecond

// spareStreams are for health checks, and let the server refuse a surplus worker with a
// message.
const spareStreams = 16

// headerBytesMax bounds the headers of a call.
const headerBytesMax = 8 << 10

// idleMax is how long a connection may have no stream.
const idleMax = time.Minute

// socketBuffer lets a frame through in one or two system calls.
const socketBuffer = 256 << 10

// The HTTP/2 windows: unread data that a worker may send. A longer frame gets room once its
// reader waits for it.
const (
	streamWindow = 128 << 10
	connWindow   = 1 << 20
)

// recvBytesMax is the largest frame that a worker may send: results and little else. The
// SDK fills its own to 1 MiB.
const recvBytesMax = 2 << 20

// frameBytes is the largest frame that is sent: a full one, or one event of the largest size,
// plus the frame's overhead.
func frameBytes(cfg Config) int { return max(cfg.EventBytesMax, cfg.FrameBytesMax) + 1<<20 }

// Run tells changes of the workers and finds deliveries that are over without an
// answer, until ctx ends. Then it says goodbye to the workers, ends their streams,
// and returns nil when they have ended.
func (s *Server) Run(ctx context.Context) error {
	ready := -1
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			s.stop()
			s.streaming.Wait()
			return nil
		case reason := <-s.drain:
			s.Parts.Drain(reason)
		case <-s.changed:
		case <-s.reservations.awake:
			s.TakeReservations()
		case <-timer.C:
		}
		if n := s.Workers(); n != ready {
			ready = n
			s.Metrics.workers.Set(float64(n))
			s.Parts.Workers(n)
		}
		timer.Reset(s.expireDue())
	}
}

// begin starts the reader and the writer of a stream, unless the Server has stopped: Run waits for those that began before, and a
// WaitGroup takes no new ones beside its Wait. The writer's status goes to written.
func (s *Server) begin(w *session, stream grpc.ServerStream, written chan<- error) (started bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if signal.IsClosed(s.stopping) {
		return false
	}
	s.streaming.Go(func() { w.read(stream) })
	s.streaming.Go(func() {
		err := w.write(stream)
		w.stop()
		written <- err
	})
	return true
}

// stop ends all streams and refuses new ones.
func (s *Server) stop() {
	s.mu.Lock()
	if !signal.IsClosed(s.stopping) {
		close(s.stopping)
	}
	s.mu.Unlock()
	for _, w := range s.snapshot() {
		w.goAway("the router stops")
	}
}

// expireDue is Expire for Run: it returns how long Run may wait before the next check. The timer only wakes us up; the
// comparison in Outstanding decides.
func (s *Server) expireDue() time.Duration {
	const idle = time.Hour
	const most = 100 * time.Millisecond // because timers are late after the machine was suspended
	next := s.Expire()
	if next == clock.Forever {
		return idle
	}
	return min(max(next.Sub(s.Now()), time.Millisecond), most)
}

// snapshot returns the sessions in the order of their ids.
func (s *Server) snapshot() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.sessions), func(a, b *session) int { return cmp.Compare(a.id, b.id) })
}

// notify makes Run check the number of workers, and the time of the next Expire.
func (s *Server) notify() {
	signal.Set(s.changed)
}

// Workers returns how many workers take deliveries.
func (s *Server) Workers() int {
	n := 0
	for _, w := range s.snapshot() {
		if w.ready() {
			n++
		}
	}
	return n
}

// Worker is a connected worker, as it has named itself and its SDK.
type Worker struct{ Name, SDK string }

// Unchecked returns the workers that take deliveries and whose SDK does not declare that it passes
// `router conformance`, at most Config.WorkersMax.
func (s *Server) Unchecked() []Worker {
	var all []Worker
	for _, w := range s.snapshot() {
		if w.unchecked != "" && w.ready() { // unchecked and name do not change after admit
			all = append(all, Worker{Name: w.name, SDK: w.unchecked})
		}
	}
	return all
}

// Wake tells the worker's stream that there is something to take for it. Workers
// that are gone are ignored. It does not block.
func (s *Server) Wake(workers ...event.WorkerID) {
	for _, id := range workers {
		if id == event.Keeper {
			signal.Set(s.reservations.awake)
			continue
		}
		s.mu.Lock()
		w := s.sessions[id]
		s.mu.Unlock()
		if w != nil {
			w.wake()
		}
	}
}

// WakeAll wakes every worker: after the lease came back, for one.
func (s *Server) WakeAll() {
	signal.Set(s.reservations.awake)
	for _, w := range s.snapshot() {
		w.wake()
	}
}

// Revoke takes the partitions back from all workers: waiting deliveries never start, running
// ones may continue until their deadline, which later Pongs move only while
// [ownership.Lease.Draining] lists the partition, and with final not at all. The gates of the
// partitions must be closed already. When it returns, every later Pong goes out after the
// Revoke. It does not block.
func (s *Server) Revoke(partitions ownership.Set, final bool) {
	s.revoke(partitions.Has, partitions, func(d *Outstanding) (bool, []event.Result) { return d.Revoke(partitions, final, nil) })
}

// RevokeAll takes everything back for good, as a Genesis and LOST do. It does not block.
func (s *Server) RevokeAll() {
	s.revoke(everywhere, nil, func(d *Outstanding) (bool, []event.Result) { return d.RevokeAll(nil) })
}

// revoke takes deliveries back by take. Covered reservations on partitions in hit end, and workers are told that these partitions are revoked, or all
// if that is nil.
func (s *Server) revoke(hit func(ring.Partition) bool, partitions ownership.Set, take func(*Outstanding) (tell bool, back []event.Result)) {
	s.revokeReservations(hit, func(d *Outstanding) []event.Result {
		_, back := take(d)
		return back
	})
	for _, w := range s.snapshot() {
		w.revoke(take, partitions)
	}
	s.notify()
}

func everywhere(ring.Partition) bool { return true }

// TakeBack ends reservations, and takes other single deliveries back for good, by their names in the mailboxes: waiting
// ones never start, running ones are cancelled at once, and one that is not answered by its deadline is over, lost.
// Those that have ended are ignored. When it returns, every later Pong goes out after the Revoke. It does not block.
func (s *Server) TakeBack(ids []event.DeliveryID) {
	ids = s.release(ids)
	for _, w := range s.snapshot() {
		w.takeBack(ids)
	}
	s.notify()
}

// Force gives up on revoked deliveries of these partitions: their deadlines move no
// more, and when they have passed the deliveries are over, lost.
func (s *Server) Force(partitions ownership.Set) {
	s.revokeReservations(func(ring.Partition) bool { return false }, func(d *Outstanding) []event.Result {
		d.Force(partitions)
		return nil
	})
	for _, w := range s.snapshot() {
		w.force(partitions)
	}
	s.notify()
}

// admit gives a session its id, its name and its place among the workers.
func (s *Server) admit(w *session, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if signal.IsClosed(s.stopping) {
		return errStopped
	}
	if s.live >= s.cfg.WorkersMax {
		return fmt.Errorf("%w: %d are connected", errTooMany, s.live)
	}
	s.live++
	s.last++
	w.id = s.last
	for name == "" || s.hasWorker(name) { // its stream may be gone without our having noticed; and another may call itself worker#7
		name = fmt.Sprintf("%s#%d", cmp.Or(name, "worker"), w.id)
	}
	w.mu.Lock() // the end of its stream may be logged meanwhile
	w.name = name
	w.mu.Unlock()
	s.sessions[w.id] = w
	if w.unchecked != "" { // written before, and never again
		s.Metrics.unchecked.WithLabelValues(w.name, w.unchecked).Set(1)
	}
	return nil
}

// hasWorker reports whether there is a session of this name. The caller holds mu.
func (s *Server) hasWorker(name string) bool {
	for _, other := range s.sessions {
		if other.name == name {
			return true
		}
	}
	return false
}

// streamEnded notes that the stream of an admitted session has ended.
func (s *Server) streamEnded(w *session) {
	s.undeclare(w)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live--
	s.Metrics.unchecked.DeleteLabelValues(w.name, w.unchecked)
}

// forget drops a session that is over.
func (s *Server) forget(w *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, w.id)
}

// finish hands results on, and counts them.
func (s *Server) finish(results []event.Result) {
	if len(results) == 0 {
		return
	}
	if s.firing.Load() > 0 {
		s.endFirings(results) // before another worker can take the next firing
	}
	s.Boxes.Finish(results)
	if s.suspected.Load() > 0 {
		s.dischargeSuspects(results)
	}
	var counts [event.ResultHandedOver + 1]int
	for i := range results {
		counts[results[i].Kind]++
	}
	for kind, n := range counts {
		if n > 0 {
			s.Metrics.results.WithLabelValues(event.ResultKind(kind).String()).Add(float64(n))
		}
	}
}

// admitSuspect reports whether there is room for a suspect, which is an event that was at a worker when it crashed.
func (s *Server) admitSuspect(d *event.Delivery) bool {
	s.suspectsMu.Lock()
	defer s.suspectsMu.Unlock()
	admitted := s.suspects.admit(d)
	s.noteSuspects()
	return admitted
}

func (s *Server) dischargeSuspects(results []event.Result) {
	s.suspectsMu.Lock()
	defer s.suspectsMu.Unlock()
	s.suspects.discharge(results)
	s.noteSuspects()
}

func (s *Server) noteSuspects() {
	n := len(s.suspects.in)
	s.suspected.Store(int32(n))
	s.Metrics.suspects.Set(float64(n))
}
