package app

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/telemetry/loglimit"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/wire/appwire"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stubBoxes are mailboxes that the test fills, and whose results it waits for.
type stubBoxes struct {
	mu       sync.Mutex
	ready    []event.Delivery
	up, gone []event.WorkerID
	taking   func() // called in the middle of Take
	finished chan event.Result
}

func (b *stubBoxes) WorkerUp(w event.WorkerID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.up = append(b.up, w)
}

func (b *stubBoxes) WorkerGone(w event.WorkerID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = append(b.gone, w)
}

func (b *stubBoxes) Take(w event.WorkerID, limit int, dst []event.Delivery) []event.Delivery {
	if w == event.Keeper { // there are no reservations
		return dst
	}
	b.mu.Lock()
	n := min(limit, len(b.ready))
	dst = append(dst, b.ready[:n]...)
	b.ready = b.ready[n:]
	taking := b.taking
	b.mu.Unlock()
	if n > 0 && taking != nil {
		taking()
	}
	return dst
}

func (b *stubBoxes) Finish(results []event.Result) {
	for _, r := range results {
		b.finished <- r
	}
}

// rig is a Server with everything around it that a test turns.
type rig struct {
	t         *testing.T
	boxes     *stubBoxes
	server    *Server
	metrics   *Metrics
	lease     atomic.Pointer[ownership.Lease]
	ahead     atomic.Int64
	workers   chan int
	drains    chan string
	conn      *grpc.ClientConn
	stop      context.CancelFunc // ends Run
	ended     chan struct{}      // closed when Run has returned
	schedules judging
}

func (r *rig) now() clock.Instant { return clock.Now().Add(time.Duration(r.ahead.Load())) }

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	r := &rig{
		t: t, boxes: &stubBoxes{finished: make(chan event.Result, 1000)}, metrics: NewMetrics(prometheus.NewRegistry()),
		workers: make(chan int, 100), drains: make(chan string, 1), ended: make(chan struct{}),
		schedules: judging{declared: map[event.WorkerID][]string{}, running: map[event.DeliveryID]bool{}},
	}
	r.lease.Store(&ownership.Lease{Until: r.now().Add(time.Hour)})
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	server, err := New(cfg, Identity{Node: "n1", Group: "g"}, Parts{
		Boxes: r.boxes, Lease: func() ownership.Lease { return *r.lease.Load() },
		Workers: func(n int) { r.workers <- n }, Drain: func(reason string) { r.drains <- reason },
		Now: r.now, Log: slog.New(slog.DiscardHandler), Metrics: r.metrics, Schedules: &r.schedules,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.server = server
	listener := bufconn.Listen(1 << 20)
	g := grpc.NewServer(ServerOptions(cfg)...)
	appv1.RegisterAppServiceServer(g, server)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	r.stop = stop
	var running sync.WaitGroup
	running.Go(func() {
		defer close(r.ended)
		_ = server.Run(ctx)
	})
	running.Go(func() { _ = g.Serve(listener) })
	r.conn, err = grpc.NewClient("passthrough:///app", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.conn.Close()
		stop()
		g.Stop()
		running.Wait()
	})
	return r
}

// worker is a worker that speaks the generated messages. To the tests it shows the
// ids that the mailboxes know, of deliveries (p, 0), instead of the stream's names.
type worker struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[appv1.WorkRequest, appv1.WorkResponse]
	cancel context.CancelFunc
	names  map[uint64]uint64 // by id
}

func (r *rig) dial() *worker {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Most)
	r.t.Cleanup(cancel)
	stream, err := appv1.NewAppServiceClient(r.conn).Work(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	return &worker{t: r.t, stream: stream, cancel: cancel, names: make(map[uint64]uint64)}
}

// connect dials, says Hello, and waits until the router counts the worker.
func (r *rig) connect(hello *appv1.Hello) *worker {
	r.t.Helper()
	w := r.dial()
	w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: hello}})
	if f := w.recv(); f.GetWelcome().GetNode() != "n1" {
		r.t.Fatalf("first frame = %v, want a Welcome", f)
	}
	return w
}

func (w *worker) send(f *appv1.WorkRequest) {
	w.t.Helper()
	if err := w.stream.Send(f); err != nil {
		w.t.Fatalf("send %v: %v", f, err)
	}
}

func (w *worker) recv() *appv1.WorkResponse {
	w.t.Helper()
	f, err := w.stream.Recv()
	if err != nil {
		w.t.Fatalf("recv: %v", err)
	}
	for _, d := range f.GetDeliveries().GetDeliveries() {
		id := uint64(delivery(int(d.GetPartition()), 0).ID)
		w.names[id], d.DeliveryId = d.GetDeliveryId(), id
	}
	for i, name := range f.GetPong().GetDraining() {
		for id := range w.names {
			if w.names[id] == name {
				f.GetPong().Draining[i] = id
			}
		}
	}
	return f
}

func (w *worker) ping(k uint64) {
	w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Ping{Ping: &appv1.Ping{K: k}}})
}

func (w *worker) results(receipt, number uint64, results ...*appv1.Result) {
	for _, r := range results {
		r.DeliveryId = w.names[r.GetDeliveryId()]
	}
	w.send(&appv1.WorkRequest{Receipt: receipt, Frame: &appv1.WorkRequest_Results{Results: &appv1.Results{Number: number, Results: results}}})
}

// status returns the status that the stream ends with.
func (w *worker) status() *status.Status {
	for {
		if _, err := w.stream.Recv(); err != nil {
			return status.Convert(err)
		}
	}
}

func (r *rig) fill(ds ...event.Delivery) {
	r.boxes.mu.Lock()
	r.boxes.ready = append(r.boxes.ready, ds...)
	r.boxes.mu.Unlock()
	r.server.WakeAll()
}

func (r *rig) wantFinished(want ...string) {
	r.t.Helper()
	var got []string
	for range want {
		select {
		case f := <-r.boxes.finished:
			got = append(got, fmt.Sprintf("%d:%v", f.Delivery, f.Kind))
		case <-time.After(time.Minute):
			r.t.Fatalf("finished = %v, want %v", got, want)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		r.t.Fatalf("finished = %v, want %v", got, want)
	}
}

func (r *rig) wantNothingFinished() {
	r.t.Helper()
	select {
	case f := <-r.boxes.finished:
		r.t.Fatalf("finished %d:%v, want nothing yet", f.Delivery, f.Kind)
	default:
	}
}

func (r *rig) wantWorkers(want int) {
	r.t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case n := <-r.workers:
			if n == want {
				return
			}
		case <-deadline:
			r.t.Fatalf("the node was not notified of %d workers", want)
		}
	}
}

func TestConversation(t *testing.T) {
	r := newRig(t, nil)
	w := r.connect(&appv1.Hello{MaxInFlight: 2})
	r.wantWorkers(1)
	r.fill(delivery(1, 0), delivery(2, 0), delivery(3, 0))
	f := w.recv()
	if got := f.GetDeliveries(); got.GetNumber() != 1 || len(got.GetDeliveries()) != 2 {
		t.Fatalf("frame = %v, want number 1 with the 2 that fit", f)
	}
	w.results(0, 1, &appv1.Result{DeliveryId: 10, Kind: appv1.ResultKind_RESULT_KIND_DONE})
	r.wantFinished("10:done")
	if f := w.recv(); f.GetFrame() != nil || f.GetReceipt() != 1 {
		t.Fatalf("frame = %v, want only a receipt: the first Deliveries frame has none yet", f)
	}
	w.send(&appv1.WorkRequest{Receipt: 1})
	if f := w.recv(); f.GetDeliveries().GetNumber() != 2 || f.GetDeliveries().GetDeliveries()[0].GetDeliveryId() != 30 {
		t.Fatalf("frame = %v, want delivery 30 in frame 2", f)
	}
	w.results(2, 2, &appv1.Result{DeliveryId: 20, Kind: appv1.ResultKind_RESULT_KIND_RETRY, AfterMs: 7, Reason: strings.Repeat("é", 2000)},
		&appv1.Result{DeliveryId: 30}, &appv1.Result{DeliveryId: 30}, &appv1.Result{DeliveryId: 12345})
	got := <-r.boxes.finished
	if got.Kind != event.ResultRetry || got.After != 7*time.Millisecond || len(got.Reason) != 1024 {
		t.Errorf("result = %v after %v with %d bytes, want retry after 7ms, cut to 1024 bytes", got.Kind, got.After, len(got.Reason))
	}
	r.wantFinished("30:retry") // a kind that is not set
	w.ping(1)
	if f := w.recv(); f.GetReceipt() != 2 || f.GetPong() == nil {
		t.Errorf("frame = %v, want the receipt of Results 2 with the Pong, as nothing is unanswered", f)
	}
	if got := testutil.ToFloat64(r.metrics.ignored.WithLabelValues("unknown")); got != 2 {
		t.Errorf("ignored results = %v, want 2", got)
	}
	if err := w.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if s := w.status(); s.Message() != "EOF" {
		t.Errorf("end = %v, want in order", s)
	}
	r.wantWorkers(0)
}

// A frame of many events may be larger than the largest event.
func TestFrameLargerThanTheLargestEvent(t *testing.T) {
	r := newRig(t, func(c *Config) { c.EventBytesMax, c.FrameBytesMax = 2<<10, 3<<20 })
	w := r.dialWith(grpc.MaxCallRecvMsgSize(8 << 20))
	w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{MaxInFlight: 10_000}}})
	welcome := w.recv().GetWelcome()
	var ds []event.Delivery
	for i := range 900 {
		d := delivery(i, 0)
		d.Object.Payload = make([]byte, 1500)
		ds = append(ds, sized(d))
	}
	r.fill(ds...)
	f := w.recv()
	if got := len(f.GetDeliveries().GetDeliveries()); got != 900 {
		t.Errorf("%d events in the first frame, want all", got)
	}
	if size := proto.Size(f); size > int(welcome.GetLimits().GetFrameMaxBytes()) {
		t.Errorf("a frame of %d bytes, the Welcome allows %d", size, welcome.GetLimits().GetFrameMaxBytes())
	}
}

// Bad input ends its own stream and no other, with a status that gives the reason.
func TestBadFramesHarmOnlyTheirStream(t *testing.T) {
	hello := func(w *worker) {
		w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{MaxInFlight: 1}}})
		w.recv()
	}
	tests := map[string]struct {
		do   func(*worker)
		code codes.Code
		says string
	}{
		"no Hello":      {do: func(w *worker) { w.ping(1) }, code: codes.InvalidArgument, says: "not a Hello"},
		"Results first": {do: func(w *worker) { w.results(0, 1) }, code: codes.InvalidArgument, says: "not a Hello"},
		"silence":       {do: func(*worker) {}, code: codes.DeadlineExceeded, says: "no Hello within"},
		"second Hello": {do: func(w *worker) {
			hello(w)
			w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{MaxInFlight: 1}}})
		}, code: codes.InvalidArgument, says: "second Hello"},
		"no room": {do: func(w *worker) { w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{}}}) }, code: codes.InvalidArgument, says: "max_in_flight"},
		"a later version": {do: func(w *worker) {
			w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{MaxInFlight: 1, VersionMin: 2, VersionMax: 3}}})
		}, code: codes.FailedPrecondition, says: "versions 2 to 3"},
		"a receipt for nothing":   {do: func(w *worker) { hello(w); w.send(&appv1.WorkRequest{Receipt: 1}) }, code: codes.InvalidArgument, says: "receipt"},
		"a Results frame missing": {do: func(w *worker) { hello(w); w.results(0, 2) }, code: codes.InvalidArgument, says: "Results frame 2 after 0"},
		"oversize": {do: func(w *worker) {
			hello(w)
			w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Drain{Drain: &appv1.Drain{Reason: string(bytes.Repeat([]byte("x"), recvBytesMax))}}})
		}, code: codes.ResourceExhausted, says: "larger than max"},
		"garbage": {do: func(w *worker) {
			hello(w)
			if err := w.stream.SendMsg(garbage("\xff\xff\xff garbage")); err != nil {
				w.t.Fatal(err)
			}
		}, code: codes.Internal, says: "frame of the worker"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *Config) { c.HelloTimeout = time.Minute })
			bystander := r.connect(&appv1.Hello{MaxInFlight: 1})
			if name == "silence" { // all others have time for their Hello
				r.server.cfg.HelloTimeout = 200 * time.Millisecond
			}
			w := r.dialWith(grpc.ForceCodecV2(garbageCodec{encoding.GetCodecV2("proto")}))
			codesBefore := testutil.CollectAndCount(r.metrics.refused)
			test.do(w)
			if s := w.status(); s.Code() != test.code || !strings.Contains(s.Message(), test.says) {
				t.Errorf("status = %v %q, want %v with %q", s.Code(), s.Message(), test.code, test.says)
			}
			r.metrics.refused.WithLabelValues(test.code.String())
			if testutil.CollectAndCount(r.metrics.refused) != codesBefore {
				t.Errorf("%v has no count of 0 before: its first increase is not seen", test.code)
			}
			bystander.ping(1)
			if f := bystander.recv(); f.GetPong().GetK() != 1 {
				t.Errorf("the other stream got %v, want its Pong", f)
			}
		})
	}
}

// A Hello may come just when the wait for it ends. The race detector sees the name that is given then, and logged.
func TestHelloAtTheEndOfItsTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.HelloTimeout = 3 * time.Second }) // a busy machine may take a part of it before the Hello is sent
	w := r.dial()
	eventually.True(t, "the stream is open", func() bool { return r.server.streams.Load() == 1 })
	time.Sleep(100 * time.Millisecond) // real: its goroutines have begun
	r.server.mu.Lock()
	w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{Worker: "late", MaxInFlight: 1}}})
	time.Sleep(3500 * time.Millisecond) // real: the time of the Hello has ended; to wait for the status would order the two for the detector
	r.server.mu.Unlock()
	if s := w.status(); s.Code() != codes.DeadlineExceeded {
		t.Errorf("status = %v, want DeadlineExceeded", s)
	}
	eventually.True(t, "the worker is gone", func() bool {
		r.boxes.mu.Lock()
		defer r.boxes.mu.Unlock()
		return len(r.boxes.gone) == 1
	})
}

// garbage is sent as it is.
type garbage string

type garbageCodec struct{ encoding.CodecV2 }

func (c garbageCodec) Marshal(v any) (mem.BufferSlice, error) {
	if g, ok := v.(garbage); ok {
		return mem.BufferSlice{mem.SliceBuffer(g)}, nil
	}
	return c.CodecV2.Marshal(v)
}

func (r *rig) dialWith(opt grpc.CallOption) *worker {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventually.Most)
	r.t.Cleanup(cancel)
	stream, err := appv1.NewAppServiceClient(r.conn).Work(ctx, opt)
	if err != nil {
		r.t.Fatal(err)
	}
	return &worker{t: r.t, stream: stream, cancel: cancel, names: make(map[uint64]uint64)}
}

func TestTooManyWorkers(t *testing.T) {
	r := newRig(t, func(c *Config) { c.WorkersMax = 2 })
	first := r.connect(&appv1.Hello{MaxInFlight: 1})
	r.connect(&appv1.Hello{MaxInFlight: 1})
	r.wantWorkers(2)
	w := r.dial()
	w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{MaxInFlight: 1}}})
	if s := w.status(); s.Code() != codes.ResourceExhausted {
		t.Errorf("status of the third of two = %v, want ResourceExhausted", s)
	}
	first.cancel()
	r.wantWorkers(1)
	r.connect(&appv1.Hello{MaxInFlight: 1})
	r.wantWorkers(2)
}

// TestSurplusStreamsAreLogged: a stream beyond those that may be open without a Hello ends with a log line, as others that are refused.
func TestSurplusStreamsAreLogged(t *testing.T) {
	r := newRig(t, func(c *Config) { c.WorkersMax, c.HelloTimeout = 1, time.Minute })
	var lines bytes.Buffer
	r.server.refusalLines = loglimit.New(slog.New(slog.NewTextHandler(&lines, nil)), "app_stream_ended", time.Hour, r.metrics.lines)
	for range streamsPerWorker {
		r.dial()
	}
	eventually.True(t, "the streams are open", func() bool { return r.server.streams.Load() == streamsPerWorker })
	if s := r.dial().status(); s.Code() != codes.ResourceExhausted {
		t.Fatalf("status = %v, want ResourceExhausted", s)
	}
	if got := lines.String(); !strings.Contains(got, `msg="worker stream ended"`) || !strings.Contains(got, "more than 4 streams") {
		t.Errorf("log: %q", got)
	}
}

// Thousands of silent streams are rejected, and a worker with work continues.
func TestManyStreamsAtOnce(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.WorkersMax = 4
		c.HelloTimeout, c.SilenceMax = time.Minute, time.Hour // however long it takes here to open the streams
	})
	bystander := r.connect(&appv1.Hello{MaxInFlight: 1})
	const streams = 10_000
	var refused atomic.Int64
	var opened sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 100 {
		opened.Go(func() {
			for range streams / 100 {
				stream, err := appv1.NewAppServiceClient(r.conn).Work(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				opened.Go(func() {
					if _, err := stream.Recv(); status.Code(err) == codes.ResourceExhausted {
						refused.Add(1)
					}
				})
			}
		})
	}
	// The bystander's is one more; a stream that is about to be refused counts until it is.
	const surplus = streams + 1 - 4*streamsPerWorker
	eventually.NoError(t, eventually.Most, "the surplus is refused", func() error {
		if n := refused.Load(); n < surplus {
			return fmt.Errorf("%d of %d streams were", n, streams)
		}
		return nil
	})
	if n := r.server.streams.Load(); n > 4*streamsPerWorker {
		t.Errorf("%d streams are open, want %d at most", n, 4*streamsPerWorker)
	}
	bystander.ping(7)
	if f := bystander.recv(); f.GetPong().GetK() != 7 {
		t.Errorf("the worker got %v, want its Pong", f)
	}
	cancel()
	opened.Wait()
}

// A worker that floods the router with requests gets only the newest answers, and costs no memory
// for the rest; another worker is not affected.
func TestAWorkerThatFloods(t *testing.T) {
	r := newRig(t, func(c *Config) { c.SilenceMax = time.Hour }) // however long the flood takes here, which nobody reads an answer to meanwhile
	bystander := r.connect(&appv1.Hello{MaxInFlight: 1})
	w := r.connect(&appv1.Hello{MaxInFlight: 1})
	const pings = 20_000
	for k := range uint64(pings) {
		w.ping(k + 1)
		if k%1000 == 0 {
			bystander.ping(k + 1)
		}
		if k%100 == 0 {
			w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Progress{Progress: &appv1.Progress{DeliveryIds: make([]uint64, 1000)}}})
		}
	}
	for before, k := uint64(0), uint64(0); k < pings; before = k {
		if k = w.recv().GetPong().GetK(); k <= before {
			t.Fatalf("Pong %d after %d", k, before)
		}
	}
	bystander.ping(pings)
	for k := uint64(0); k < pings; {
		f := bystander.recv()
		if f.GetPong().GetK() <= k {
			t.Fatalf("the other worker got %v, want its Pong", f)
		}
		k = f.GetPong().GetK()
	}
}

// TestDrainsDoNotFloodTheLog: a worker that connects and drains again and again writes few lines.
func TestDrainsDoNotFloodTheLog(t *testing.T) {
	var written bytes.Buffer
	z := newFuzzed(t)
	log := slog.New(slog.NewTextHandler(&written, nil))
	z.server, _ = New(DefaultConfig(), z.server.id, Parts{
		Boxes: &z.boxes, Lease: z.server.Lease, Workers: func(int) {}, Drain: func(string) {}, Now: z.server.Now, Log: log, Metrics: NewMetrics(prometheus.NewRegistry()),
	})
	const times = 200
	for range times {
		z.stream = z.server.Manual()
		z.step(1, 50, nil) // Hello
		z.step(4, 1, nil)  // Drain
		z.stream.Close()
		z.server.Expire()
	}
	if n := strings.Count(written.String(), "worker drains"); n == 0 || n > times/4 {
		t.Errorf("%d lines say that a worker drains, after %d drains", n, times)
	}
}

// A worker that does not declare that its SDK is checked is named, with text that cannot break a
// line or a label, until its stream ends.
func TestUncheckedWorkersAreNamed(t *testing.T) {
	r := newRig(t, nil)
	r.connect(&appv1.Hello{MaxInFlight: 1, Worker: "good", Sdk: "good/1", Capabilities: []string{appwire.Conformant}})
	bad := r.connect(&appv1.Hello{MaxInFlight: 1, Worker: "bad", Sdk: "own\nline"})
	r.wantWorkers(2)
	want := []Worker{{Name: "bad", SDK: untrusted.Text("own\nline")}}
	if got := r.server.Unchecked(); !slices.Equal(got, want) || strings.Contains(want[0].SDK, "\n") {
		t.Errorf("unchecked = %q, want %q", got, want)
	}
	if n := testutil.ToFloat64(r.metrics.unchecked.WithLabelValues("bad", want[0].SDK)); n != 1 || testutil.CollectAndCount(r.metrics.unchecked) != 1 {
		t.Errorf("the metric is %v in %d series, want 1 in 1", n, testutil.CollectAndCount(r.metrics.unchecked))
	}
	if err := bad.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	r.wantWorkers(1)
	if got := r.server.Unchecked(); len(got) != 0 {
		t.Errorf("unchecked = %q after the end of the worker", got)
	}
	eventually.NoError(t, eventually.Most, "no series is left", func() error {
		if n := testutil.CollectAndCount(r.metrics.unchecked); n != 0 {
			return fmt.Errorf("%d series", n)
		}
		return nil
	})
}

func TestPongSaysHowLong(t *testing.T) {
	r := newRig(t, nil)
	w := r.connect(&appv1.Hello{MaxInFlight: 1, Capabilities: []string{"something", appwire.RawClock}})
	w.ping(5)
	p := w.recv().GetPong()
	if d := time.Duration(p.GetRemainingNs()); p.GetK() != 5 || d < 58*time.Minute || d > (time.Hour-200*time.Millisecond)*99/101 {
		t.Errorf("pong = %v (%v), want the hour of the lease less the margin and 2 %% for two clocks", p, d)
	}
	r.lease.Store(&ownership.Lease{})
	w.ping(6)
	if p := w.recv().GetPong(); p.GetK() != 6 || p.GetRemainingNs() != 0 {
		t.Errorf("pong without a lease = %v, want that nothing remains", p)
	}
}

// When the promised time has passed on a worker's clock, no more than the remaining time may have passed on the router's clock:
// with the router's counter fast and the worker's slow by 1 % each, and with a clock that NTP slows down by 11 % unless the
// worker declares that it cannot.
func TestPongIsShorterForAClockThatMayBeSlow(t *testing.T) {
	r := newRig(t, nil)
	for _, test := range []struct {
		capabilities []string
		rate         float64
	}{{[]string{appwire.RawClock}, 1}, {nil, 0.89}, {[]string{"another"}, 0.89}} {
		capabilities := test.capabilities
		w := r.connect(&appv1.Hello{MaxInFlight: 1, Capabilities: capabilities})
		before := r.lease.Load().Until.Sub(r.now()) - DefaultConfig().DeadlineMargin
		w.ping(1)
		remaining := time.Duration(w.recv().GetPong().GetRemainingNs())
		if byOurs := time.Duration(float64(remaining) / test.rate / 0.99 * 1.01); byOurs > before+time.Microsecond || byOurs < before-time.Minute {
			t.Errorf("with capabilities %q: %v by a slow clock at %v of its rate are %v; want the %v of the lease", capabilities, remaining, test.rate, byOurs, before)
		}
	}
}

// Attack 37: no Pong from a lease that was set after a deposition overtakes its Revoke.
func TestRevokeComesBeforeThePong(t *testing.T) {
	r := newRig(t, nil)
	w := r.connect(&appv1.Hello{MaxInFlight: 10})
	w.ping(999)
	w.recv()
	r.fill(delivery(1, 0), delivery(2, 0))
	w.recv()
	for k := range uint64(50) {
		w.ping(k) // answered before and after the following
	}
	r.server.Revoke(ownership.SetOf(1), false)
	late := r.now().Add(100 * time.Hour)
	r.lease.Store(&ownership.Lease{Until: late, Draining: ownership.SetOf(1)})
	w.ping(1000)
	revoked := false
	for {
		f := w.recv()
		if rv := f.GetRevoke(); rv != nil {
			if !slices.Equal(rv.GetPartitions(), []uint32{1}) || rv.GetAll() {
				t.Fatalf("revoke = %v, want partition 1", rv)
			}
			revoked = true
		}
		if p := f.GetPong(); p.GetRemainingNs() > int64(2*time.Hour) {
			if !revoked {
				t.Fatal("a Pong of the later lease came before the Revoke")
			}
			if !slices.Equal(p.GetDraining(), []uint64{10}) {
				t.Fatalf("draining = %v, want the revoked delivery", p.GetDraining())
			}
			return
		}
	}
}

func TestRevokeWhileTheMailboxesAreRead(t *testing.T) {
	r := newRig(t, nil)
	r.boxes.taking = func() { r.server.Revoke(ownership.SetOf(1), false) }
	w := r.connect(&appv1.Hello{MaxInFlight: 10})
	r.fill(delivery(1, 0), delivery(2, 0))
	if got := w.recv().GetDeliveries().GetDeliveries(); len(got) != 1 || got[0].GetDeliveryId() != 20 {
		t.Errorf("deliveries = %v, want 20 alone", got)
	}
	r.wantFinished("10:not_started")
}

// Attack 41, and the crash of an application.
func TestACrashedWorkersDeliveriesAreOverAfterTheLease(t *testing.T) {
	r := newRig(t, nil)
	w := r.connect(&appv1.Hello{MaxInFlight: 10})
	r.wantWorkers(1)
	w.ping(1)
	w.recv()
	r.fill(delivery(1, 0))
	w.recv()
	w.cancel()
	r.wantWorkers(0)
	r.server.RevokeAll()
	r.server.Force(ownership.SetOf(1))
	r.wantNothingFinished()
	r.ahead.Store(int64(time.Hour) - int64(time.Minute))
	r.server.notify()
	r.wantNothingFinished()
	r.ahead.Store(int64(time.Hour) + int64(time.Minute))
	r.wantFinished("10:crashed") // within a tick of Run
	if n := len(r.server.snapshot()); n != 0 {
		t.Errorf("%d sessions are left of a worker that is over", n)
	}
}

func TestForcedDeliveryIsLostAfterTheLeaseAndTheStreamGoesOn(t *testing.T) {
	r := newRig(t, nil)
	w := r.connect(&appv1.Hello{MaxInFlight: 10})
	w.ping(1)
	w.recv()
	r.fill(delivery(1, 0))
	w.recv()
	r.server.RevokeAll()
	if !w.recv().GetRevoke().GetAll() {
		t.Fatal("no Revoke of everything")
	}
	r.wantNothingFinished()
	r.ahead.Store(int64(2 * time.Hour))
	r.wantFinished("10:lost")
	w.results(1, 1, &appv1.Result{DeliveryId: 10, Kind: appv1.ResultKind_RESULT_KIND_DONE})
	w.ping(2)
	if f := w.recv(); f.GetReceipt() != 1 {
		t.Errorf("frame = %v, want a receipt", f)
	}
	if got := testutil.ToFloat64(r.metrics.ignored.WithLabelValues("late")); got != 1 {
		t.Errorf("late results = %v, want 1", got)
	}
}

func TestDrainOfTheNode(t *testing.T) {
	r := newRig(t, nil)
	w := r.connect(&appv1.Hello{MaxInFlight: 10, Worker: "w"})
	r.fill(delivery(1, 0))
	w.recv()
	w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Drain{Drain: &appv1.Drain{Node: true, Reason: "deploy"}}})
	if got := <-r.drains; got != "deploy" {
		t.Errorf("drain = %q, want that the node is asked to leave", got)
	}
	r.wantWorkers(0)
	r.fill(delivery(2, 0))
	w.results(1, 1, &appv1.Result{DeliveryId: 10, Kind: appv1.ResultKind_RESULT_KIND_DONE})
	r.wantFinished("10:done")
	if f := w.recv(); f.GetDeliveries() != nil {
		t.Errorf("frame = %v, want no deliveries after Drain", f)
	}
}

// A worker that drains waits for the receipt of its last answers.
func TestDrainBringsTheLastReceipt(t *testing.T) {
	r := newRig(t, nil)
	w := r.connect(&appv1.Hello{MaxInFlight: 10})
	r.fill(delivery(1, 0))
	w.recv()
	w.results(1, 1, &appv1.Result{DeliveryId: 10, Kind: appv1.ResultKind_RESULT_KIND_DONE})
	r.wantFinished("10:done")
	w.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Drain{Drain: &appv1.Drain{}}})
	if f := w.recv(); f.GetReceipt() != 1 || f.GetFrame() != nil {
		t.Errorf("frame = %v, want the receipt of Results 1", f)
	}
}

func TestStopSaysGoodbye(t *testing.T) {
	r := newRig(t, nil)
	w := r.connect(&appv1.Hello{MaxInFlight: 1})
	r.server.stop()
	if f := w.recv(); f.GetGoAway() == nil {
		t.Errorf("frame = %v, want GoAway", f)
	}
	if s := w.status(); s.Code() != codes.Unavailable {
		t.Errorf("status = %v, want Unavailable", s)
	}
	if n := testutil.ToFloat64(r.metrics.refused.WithLabelValues(codes.Unavailable.String())); n != 0 {
		t.Errorf("%v streams count as refused, and are logged as that, though the router has ended them", n)
	}
	late := r.dial()
	_ = late.stream.Send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{MaxInFlight: 1}}}) // it may be refused before that; its status tells
	if s := late.status(); s.Code() != codes.Unavailable {
		t.Errorf("status of a joining worker = %v, want Unavailable", s)
	}
}

// TestStreamsBesideTheStop: the gRPC server stops after Run, and workers reconnect. Streams that begin while Run ends, or later, are refused at
// once, and Run does not wait for their readers; under the race detector this fails if it does.
func TestStreamsBesideTheStop(t *testing.T) {
	r := newRig(t, nil)
	var opening sync.WaitGroup
	var refused atomic.Int64
	over := make(chan struct{})
	for range 8 {
		opening.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				ctx, cancel := context.WithCancel(t.Context())
				stream, err := appv1.NewAppServiceClient(r.conn).Work(ctx)
				if err != nil {
					t.Error(err)
				} else if stream.CloseSend() == nil {
					if _, err = stream.Recv(); status.Code(err) == codes.Unavailable {
						refused.Add(1)
					}
				}
				cancel()
			}
		})
	}
	r.connect(&appv1.Hello{MaxInFlight: 1}) // streams come in by now
	r.stop()
	<-r.ended
	eventually.True(t, "streams are refused", func() bool { return refused.Load() > 100 })
	close(over)
	opening.Wait()
	if s := r.dial().status(); s.Code() != codes.Unavailable {
		t.Errorf("a stream without a Hello gets %v, want Unavailable", s)
	}
}

func TestConfigReportsEveryBadField(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the default: %v", err)
	}
	err := Config{}.Validate()
	for _, field := range []string{"workers_max", "in_flight_max", "frame_events_max", "frame_bytes_max", "event_bytes_max", "reason_bytes_max", "hello_timeout", "ping_interval", "deadline_margin"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error = %v, want one that names %s", err, field)
		}
	}
}

func (b *stubBoxes) Grant(event.DeliveryID, event.Grant) {}

// TestWorkersHaveNamesOfTheirOwn: a worker that calls itself as the router would call the next namesake shares no name, and no series, with it.
func TestWorkersHaveNamesOfTheirOwn(t *testing.T) {
	r := newRig(t, nil)
	r.connect(&appv1.Hello{MaxInFlight: 1, Worker: "x"})
	r.connect(&appv1.Hello{MaxInFlight: 1, Worker: "x#3"})
	r.connect(&appv1.Hello{MaxInFlight: 1, Worker: "x"})
	r.wantWorkers(3)
	if n := testutil.CollectAndCount(r.metrics.unchecked); n != 3 {
		t.Errorf("%d series of three workers: %q", n, r.server.Unchecked())
	}
}

// TestStreamsAreRefusedFromZero: the alert about them sees an increase, also the first, only of a count that was there before it.
func TestStreamsAreRefusedFromZero(t *testing.T) {
	r := newRig(t, nil)
	there := testutil.CollectAndCount(r.metrics.refused)
	for _, code := range []codes.Code{
		codes.InvalidArgument,    // a violation of the protocol
		codes.FailedPrecondition, // an SDK of a different version
		codes.ResourceExhausted,  // app.workers_max
		codes.DeadlineExceeded,   // app.silence_max and app.hello_timeout
	} {
		r.metrics.refused.WithLabelValues(code.String())
	}
	if all := testutil.CollectAndCount(r.metrics.refused); all != there {
		t.Errorf("%d of %d codes of refused streams are counted from the start", there, all)
	}
}
