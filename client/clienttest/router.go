package clienttest

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	"github.com/ringfence/router/ring"
)

// lease is the time between the router's clock and the end of its lease.
const lease = time.Hour

// outcomeWait is how long [Delivery.Outcome] waits before it fails the test.
const outcomeWait = 30 * time.Second

// Router is a router in memory, for one test.
type Router struct {
	t        testing.TB
	boxes    *boxes
	visits   *visits
	server   *app.Server
	grpc     *grpc.Server
	listener *bufconn.Listener
	start    time.Time

	mu        sync.Mutex
	ahead     time.Duration // how far our clock is ahead of the real one
	until     clock.Instant // end of the lease
	workers   map[*worker]struct{}
	connected int
	change    *sync.Cond // signals a change of a worker's deadline, or of connected
	conns     map[net.Conn]struct{}
	sent      []Sent
	fired     int // number of calls of Fire
	timers    []*time.Timer
	sendsFail error // why nothing is published
}

// worker is the lease clock of one Run.
type worker struct {
	router   *Router
	deadline clock.Instant // guarded by the router's lock
}

// Option configures a [Router].
type Option func(*options)

type options struct{ handlerTimeout time.Duration }

// WithHandlerTimeout sets a timeout for handlers, as handler.timeout does: a handler that
// takes longer without Progress is cancelled, up to a quarter of the timeout later. It runs
// on the time of the test, and must be at least 100 ms. By default there is no timeout.
func WithHandlerTimeout(d time.Duration) Option {
	return func(o *options) { o.handlerTimeout = d }
}

// NewRouter returns a running router, which stops at the end of the test.
func NewRouter(t testing.TB, opts ...Option) *Router {
	t.Helper()
	r := &Router{
		t: t, boxes: newBoxes(), listener: bufconn.Listen(1 << 20), start: time.Now(), //nolint:forbidigo // this package's clock is built on it, for synctest
		workers: make(map[*worker]struct{}), conns: make(map[net.Conn]struct{}),
	}
	r.change = sync.NewCond(&r.mu)
	r.until = r.now().Add(lease)

	cfg := app.DefaultConfig()
	cfg.PingInterval = 20 * time.Millisecond
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	cfg.HandlerTimeout = o.handlerTimeout
	server, err := app.New(cfg, app.Identity{Node: "clienttest", Group: t.Name()}, app.Parts{
		Boxes: r.boxes, Lease: r.lease, Workers: r.workersChanged, Drain: func(string) {}, Now: r.now, Schedules: &schedules{running: make(map[event.DeliveryID]struct{})},
		Log: slog.New(slog.DiscardHandler), Metrics: app.NewMetrics(prometheus.NewRegistry()),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.server, r.boxes.wake = server, server.WakeAll
	r.grpc = grpc.NewServer(app.ServerOptions(cfg)...)
	appv1.RegisterAppServiceServer(r.grpc, server)
	r.visits = newVisits(r)

	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context())) // it outlives the workers
	var running sync.WaitGroup
	running.Go(func() { _ = server.Run(ctx) }) // it returns nil
	r.serve(&running, r.listener)
	t.Cleanup(func() {
		r.stopTimers()
		stop()
		r.grpc.Stop()
		running.Wait()
	})
	return r
}

func (r *Router) serve(running *sync.WaitGroup, l net.Listener) {
	running.Go(func() { _ = r.grpc.Serve(l) }) // it ends with Stop, or because the listener was closed
}

// Serve also serves applications that dial l, such as another process, until the test ends.
// It returns at once.
func (r *Router) Serve(l net.Listener) {
	var running sync.WaitGroup
	r.serve(&running, &remembering{Listener: l, router: r})
	r.t.Cleanup(func() {
		r.grpc.Stop()
		running.Wait()
	})
}

// Run is client.Run against this router.
func (r *Router) Run(ctx context.Context, handler client.Handler, opts ...client.Option) error {
	return client.Run(ctx, "", handler, append([]client.Option{r.WithClock(), client.WithDialer(r.dial), client.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
}

// WithClock returns an option that makes one client.Run use this router's clock. A client.Run
// that dials a listener given to [Router.Serve] needs it.
func (r *Router) WithClock() client.Option { return client.WithLeaseClock(&worker{router: r}) }

// Now returns the instant of the router's clock.
func (w *worker) Now() clock.Instant { return w.router.now() }

// Renewed records the worker's newest deadline.
func (w *worker) Renewed(until clock.Instant) {
	w.router.mu.Lock()
	defer w.router.mu.Unlock()
	w.deadline = until
	w.router.workers[w] = struct{}{}
	w.router.change.Broadcast()
}

// Ended forgets the worker.
func (w *worker) Ended() {
	w.router.mu.Lock()
	defer w.router.mu.Unlock()
	delete(w.router.workers, w)
	w.router.change.Broadcast()
}

// Start runs the handler in the background until the test ends, and fails the test if
// handlers do not end then. It returns when the stream is established, and fails the test at
// once if client.Run refuses an option.
func (r *Router) Start(handler client.Handler, opts ...client.Option) {
	r.t.Helper()
	r.mu.Lock()
	want := r.connected + 1
	r.mu.Unlock()
	ctx, stop := context.WithCancel(context.Background())
	ended := false // guarded by the router's lock
	var running sync.WaitGroup
	running.Go(func() {
		if err := r.Run(ctx, handler, opts...); err != nil {
			r.t.Errorf("clienttest: %v", err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		ended = true
		r.change.Broadcast()
	})
	r.t.Cleanup(func() {
		stop()
		running.Wait()
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.connected < want {
		if ended { // an option was refused: there will be no stream
			r.t.FailNow()
		}
		r.change.Wait()
	}
}

// Deliver queues an event for the handler. Key is required; all other fields reach the
// handler unchanged, but if Attempt, Fence and FencingToken are 0, the router sets them:
// Attempt and the token count up from 1, and each delivery has a greater turn than the one
// before.
func (r *Router) Deliver(e *client.Event) *Delivery {
	fixed := event.Fence(e.Fence)
	if fixed.Token == 0 {
		fixed.Token = e.FencingToken
	}
	d := &Delivery{router: r, event: wireEvent(e), attempt: uint32(max(e.Attempt, 1)), fixed: fixed, over: make(chan struct{})}
	r.boxes.add(d)
	return d
}

// Lose moves the key away: its waiting deliveries are not started, and its running handler
// is cancelled with client.ErrKeyLost. Other keys are not affected, unless they share the
// key's partition. When Lose returns, the router's clock is past the deadline of the
// handler, whose context is cancelled within 50 ms. Later deliveries have a fence with a
// higher token.
func (r *Router) Lose(key string) {
	p := ring.PartitionOf(key)
	r.boxes.close(p)
	r.server.Revoke(ownership.SetOf(p), true)

	// Running handlers of the key may continue until the end of the current lease. Renew it
	// for the other keys, and when all workers know, move the clock past the old end.
	r.mu.Lock()
	old := r.until
	r.until = old.Add(lease)
	for !r.everyWorkerPast(old) {
		r.change.Wait()
	}
	r.mu.Unlock()
	r.visits.lose(func(one *visit) bool { return one.delivery.event.Partition == p })
	r.visits.keep()
	r.mu.Lock()
	r.passTo(old)
	r.mu.Unlock()
}

// Expire lets the lease run out, as happens to a router that has lost its broker: every
// running handler is cancelled with client.ErrKeyLost. Then there is a new lease, for each
// worker that the router takes for connected: after the end of a Run, or Disconnect, that
// can be the one that has gone. In a synctest bubble, synctest.Wait before Expire lets the
// router notice.
func (r *Router) Expire() {
	r.boxes.expire()
	r.visits.lose(func(*visit) bool { return true })
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passTo(r.until)
	r.until = r.until.Add(lease)
}

// Disconnect breaks the streams of all workers. They reconnect by themselves; their running
// deliveries have the outcome Lost after the next [Router.Expire].
func (r *Router) Disconnect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close() // either end may have closed it before
	}
	clear(r.conns)
}

// everyWorkerPast reports whether all workers have a deadline after i. The lock is held.
func (r *Router) everyWorkerPast(i clock.Instant) bool {
	if r.connected == 0 {
		return true
	}
	for w := range r.workers {
		if !w.deadline.After(i) {
			return false
		}
	}
	return true
}

// passTo moves the clock forward to i. The lock is held.
func (r *Router) passTo(i clock.Instant) {
	r.ahead += max(i.Sub(r.at()), 0)
}

// at returns the present instant of our clock. The lock is held.
func (r *Router) at() clock.Instant {
	elapsed := time.Since(r.start) //nolint:forbidigo // fake time in a synctest bubble, unlike the lease clock
	return clock.Instant(elapsed + r.ahead + 1)
}

func (r *Router) now() clock.Instant {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at()
}

func (r *Router) lease() ownership.Lease {
	r.mu.Lock()
	defer r.mu.Unlock()
	return ownership.Lease{Until: r.until}
}

func (r *Router) workersChanged(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.connected = n
	r.change.Broadcast()
}

func (r *Router) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	conn, err := r.listener.DialContext(ctx)
	if err == nil {
		r.remember(conn)
	}
	return conn, err
}

func (r *Router) remember(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns[conn] = struct{}{}
}

// remembering is a listener whose connections Disconnect can break.
type remembering struct {
	net.Listener
	router *Router
}

func (l *remembering) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.router.remember(conn)
	}
	return conn, err
}

// Delivery is one delivery of an event to the handler, with its outcome.
type Delivery struct {
	router  *Router
	event   event.Event
	attempt uint32
	fixed   event.Fence // chosen by the test; a number that is 0 is not chosen
	visit   *visit      // nil: it is one of an event

	over    chan struct{}
	outcome Outcome // set before over is closed
}

// Outcome waits for the end of the delivery and returns its outcome. It fails the test after
// 30 seconds.
func (d *Delivery) Outcome() Outcome {
	d.router.t.Helper()
	select {
	case <-d.over:
	case <-time.After(outcomeWait):
		d.router.t.Fatalf("clienttest: no outcome after %v", outcomeWait)
	}
	return d.outcome
}

func (d *Delivery) isReservation() bool { return d.visit != nil && d.visit.call.Reservation }

// Over is closed when the delivery has ended.
func (d *Delivery) Over() <-chan struct{} { return d.over }

// Redeliver gives the same event to the handler again, as the router would: with a greater
// Fence, unless the test chose one, and with the next Attempt if the handler failed.
func (d *Delivery) Redeliver() *Delivery {
	d.router.t.Helper()
	next := &Delivery{router: d.router, event: d.event, attempt: d.attempt, fixed: d.fixed, over: make(chan struct{})}
	if d.Outcome().Kind == Retry {
		next.attempt++
	}
	d.router.boxes.add(next)
	return next
}

func (d *Delivery) end(r event.Result) {
	if r.Kind == event.ResultCrashed {
		r.Kind = event.ResultLost // the application cannot tell the two apart
	}
	d.outcome = Outcome{Kind: Kind(r.Kind), After: r.After, Reason: r.Reason}
	close(d.over)
}

// fence returns the numbers that the test has chosen, and those of next in place of the rest.
func (d *Delivery) fence(next event.Fence) event.Fence {
	return event.Fence{Token: cmp.Or(d.fixed.Token, next.Token), Turn: cmp.Or(d.fixed.Turn, next.Turn)}
}

func wireEvent(e *client.Event) event.Event {
	out := event.Event{
		ID:    event.MessageID{Ledger: e.ID.Ledger, Entry: e.ID.Entry, Batch: int32(e.ID.Batch), TopicPartition: int32(e.ID.TopicPartition)},
		Topic: e.Topic, Key: event.Key(e.Key), Partition: ring.PartitionOf(e.Key), Payload: e.Payload, Redelivery: uint32(e.Redelivery),
		SchemaVersion: string(e.SchemaVersion),
	}
	for _, p := range e.Properties {
		out.Properties = append(out.Properties, event.Property(p))
	}
	if !e.PublishTime.IsZero() {
		out.PublishTime = e.PublishTime.UnixMilli()
	}
	if !e.EventTime.IsZero() {
		out.EventTime = e.EventTime.UnixMilli()
	}
	return out
}
