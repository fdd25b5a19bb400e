package app

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/netx/greet"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/wire/appwire"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	"github.com/ringfence/router/ring"
)

// version is the protocol version that this router speaks.
const version = 1

var (
	errTooMany = errors.New("app: too many workers")
	errStopped = errors.New("app: the router stops")
)

// session is the stream of one worker, from its first frame until the last of its
// deliveries is over, which may be after the end of the stream.
type session struct {
	server *Server
	id     event.WorkerID // set by admit, before anybody else sees the session
	name   string         // set by admit, too
	awake  chan struct{}  // cap 1: the writer has to look
	over   chan struct{}  // closed when ended is set

	mu          sync.Mutex
	outstanding *Outstanding

	// The writer's pending frames. Nothing here queues up, however slow the worker is: a Revoke
	// is merged into a waiting one, only the newest Ping is answered, and a Pong is computed
	// when it is sent, after the Revoke.
	welcome    *appv1.Welcome
	revoked    map[ring.Partition]struct{}
	revokedAll bool     // all partitions are revoked
	timedOut   []uint64 // names of deliveries that are taken back one by one, since they took too long
	skipped    []uint64 // the same, since an operator skips their event, or their caller has stopped waiting
	ping       uint64   // number of the newest Ping
	pinged     bool     // it has no answer yet
	goodbye    string   // why the router ends the stream, "" if it does not

	// What the worker has said of itself, written before it takes its first delivery.
	rawClock  bool   // it counts its deadlines on a clock that NTP cannot slew
	calls     bool   // it takes calls
	declares  bool   // it has declared schedules
	unchecked string // its SDK, if that does not declare that it passes router conformance

	quiet   uint8 // how often Expire has listened since the newest Pong, or the Ping behind it
	unread  uint8 // how often Expire has listened since the newest receipt, while one was due
	greeted bool  // its Hello was accepted
	ended   bool  // no further frame follows
	err     error // why, nil when the worker closed the stream in order

	sent       uint64 // number of the newest Deliveries frame that was sent
	receiptIn  uint64 // number of the newest one that the worker has receipted
	takenIn    uint64 // number of the newest Results frame that was taken in
	receiptOut uint64 // number of the newest one that the worker has got a receipt for

	// Used by the writer alone.
	took   []event.Delivery // scratch of fill
	frame  appwire.ToWorker
	result []event.Result // of deliveries that the writer has found to be over, for flush
}

func newSession(s *Server) *session {
	return &session{server: s, awake: make(chan struct{}, 1), over: make(chan struct{}), outstanding: NewOutstanding(0), revoked: make(map[ring.Partition]struct{})}
}

// Work serves one worker. Its reader and its writer run beside it. The reader ends when Work has returned. A writer
// whose worker reads nothing hangs in gRPC until then, too, so Work waits for it for at most writeGrace once the stream
// is over or the Server stops.
func (s *Server) Work(stream grpc.BidiStreamingServer[appv1.WorkRequest, appv1.WorkResponse]) error {
	defer s.streams.Add(-1)
	if most := streamsPerWorker * s.cfg.WorkersMax; s.streams.Add(1) > int64(most) {
		s.Metrics.refused.WithLabelValues(codes.ResourceExhausted.String()).Inc()
		err := status.Errorf(codes.ResourceExhausted, "app: more than %d streams, those without a Hello included", most)
		if log, due := s.refusalLines.Line(); due {
			log.Warn("worker stream ended", "error", err)
		}
		return err
	}
	w := newSession(s)
	written := make(chan error, 1)
	if !s.begin(w, stream, written) {
		return status.Error(codes.Unavailable, errStopped.Error())
	}
	err := w.await(written)
	w.mu.Lock() // a Hello may come just when the wait for it ends
	name, sentAway := w.name, w.goodbye != ""
	w.mu.Unlock()
	if code := status.Code(err); code != codes.OK && code != codes.Canceled && !sentAway {
		s.Metrics.refused.WithLabelValues(code.String()).Inc()
		if log, due := s.refusalLines.Line(); due {
			log.Warn("worker stream ended", "worker", name, "error", err)
		}
	}
	return err
}

// writeGrace is how long the last frame may take when a stream is over.
const writeGrace = time.Second

// await returns the status of the stream when its writer has returned, or hangs.
func (w *session) await(written <-chan error) error {
	select {
	case err := <-written:
		return err
	case <-w.over:
	case <-w.server.stopping:
	}
	select {
	case err := <-written:
		return err
	case <-time.After(writeGrace):
		return cmp.Or(w.status(), status.Error(codes.Unavailable, errStopped.Error()))
	}
}

// streamsPerWorker times Config.WorkersMax bounds the open streams, so that silent streams cost
// little.
const streamsPerWorker = 4

// wake makes the writer look.
func (w *session) wake() {
	signal.Set(w.awake)
}

// read takes frames until the stream ends or the worker breaks the rules.
func (w *session) read(stream grpc.ServerStream) {
	frame := appwire.FromWorker{Bounds: appwire.Bounds{Bytes: helloBytesMax}}
	for {
		err := stream.RecvMsg(&frame)
		switch {
		case err != nil:
		case frame.Err != nil:
			err = status.Errorf(codes.InvalidArgument, "app: %v", frame.Err)
			if frame.Bounds.Bytes == helloBytesMax {
				err = status.Errorf(codes.InvalidArgument, "app: the Hello: %v; shorten its texts, of schedules above all", frame.Err)
			}
		default:
			err = w.handle(&frame)
		}
		if err != nil {
			w.end(err)
			return
		}
		if frame.Bounds.Bytes == helloBytesMax { // that was the Hello
			frame.Bounds = appwire.Bounds{Bytes: recvBytesMax, Results: w.server.cfg.InFlightMax}
			greet.Greeted(stream.Context())
		}
	}
}

// helloBytesMax is the largest first frame of a stream: a Hello takes some 200 bytes, and at most 471 for each of 256 schedules, if their names,
// expressions and zones are as long as they may be. listen.AppStrangers lets that in.
const helloBytesMax = 128 << 10

// end notes that the reader has ended, and why.
func (w *session) end(err error) {
	if errors.Is(err, io.EOF) {
		err = nil
	}
	w.mu.Lock()
	w.finish(err)
	w.mu.Unlock()
	w.wake()
}

// finish sets the status of the stream. No frame follows but the one that is being sent. The lock is held.
func (w *session) finish(err error) {
	if w.err = err; !w.ended {
		w.ended = true
		close(w.over)
	}
}

// handle takes one frame in, and writes to its results.
func (w *session) handle(f *appwire.FromWorker) error {
	if !w.greeted { // only the reader writes it
		if f.Other == nil || f.Other.GetHello() == nil {
			return status.Error(codes.InvalidArgument, "app: the first frame is not a Hello")
		}
		return w.hello(f.Other.GetHello())
	}
	if f.Other == nil {
		if err := w.answer(f); err != nil { // first: keys that the answers free belong in the deliveries that the receipt requests
			return err
		}
		return w.received(f)
	}
	if err := w.received(f); err != nil {
		return err
	}
	return w.control(f.Other)
}

// hello admits the worker.
func (w *session) hello(h *appv1.Hello) error {
	if lowest, highest := max(h.GetVersionMin(), 1), max(h.GetVersionMax(), 1); lowest > version || highest < version {
		return status.Errorf(codes.FailedPrecondition, "app: the worker supports protocol versions %d to %d, this router supports %d", lowest, highest, version)
	}
	if h.GetMaxInFlight() == 0 {
		return status.Error(codes.InvalidArgument, "app: Hello.max_in_flight = 0, want >= 1")
	}
	s := w.server
	limit := int(min(int64(h.GetMaxInFlight()), int64(s.cfg.InFlightMax)))
	w.mu.Lock()
	w.outstanding.limit, w.outstanding.asks = limit, s.Handled != nil
	w.rawClock = slices.Contains(h.GetCapabilities(), appwire.RawClock)
	w.calls = slices.Contains(h.GetCapabilities(), appwire.Calls)
	w.frame.State = slices.Contains(h.GetCapabilities(), appwire.State)
	conformant := slices.Contains(h.GetCapabilities(), appwire.Conformant)
	if !conformant {
		w.unchecked = cmp.Or(untrusted.Text(h.GetSdk()), "unnamed SDK")
	}
	w.mu.Unlock()
	switch err := s.admit(w, untrusted.Text(h.GetWorker())); {
	case errors.Is(err, errTooMany):
		return status.Error(codes.ResourceExhausted, err.Error())
	case err != nil:
		return status.Error(codes.Unavailable, err.Error())
	}
	if err := s.declare(w, h.GetSchedules()); err != nil {
		s.streamEnded(w)
		s.forget(w)
		return status.Errorf(codes.InvalidArgument, "app: %v", err)
	}
	s.Boxes.WorkerUp(w.id)
	if !w.greet(limit) { // the stream has ended meanwhile
		s.Boxes.WorkerGone(w.id)
		s.streamEnded(w)
		s.forget(w)
		return status.Error(codes.Canceled, "app: the stream has ended")
	}
	if log, due := s.connectedLines.Line(); due {
		log.Info("worker connected", "worker", w.name, "sdk", untrusted.Text(h.GetSdk()), "in_flight_max", limit, "raw_clock", w.rawClock, "conformant", conformant)
	}
	s.notify()
	w.wake()
	return nil
}

// greet queues the Welcome, unless the stream has ended.
func (w *session) greet(limit int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.server
	w.greeted = !w.outstanding.broken
	var asksFor []string
	if s.Handled != nil {
		asksFor = append(asksFor, appwire.Intervals)
	}
	w.welcome = &appv1.Welcome{
		Capabilities: asksFor,
		Node:         s.id.Node, Group: s.id.Group, Version: version, Worker: w.name,
		Limits: &appv1.Limits{
			MaxInFlight: uint32(limit), FrameMaxBytes: uint32(frameBytes(s.cfg)),
			PingIntervalMs: uint32(s.cfg.PingInterval / time.Millisecond), ReasonMaxBytes: uint32(s.cfg.ReasonBytesMax),
		},
	}
	return w.greeted
}

// received notes the worker's receipt, and that its results, if the frame has some, were
// taken in: our receipt for them, which asks for more, may go only now.
func (w *session) received(f *appwire.FromWorker) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.Receipt > w.sent {
		return status.Errorf(codes.InvalidArgument, "app: receipt for Deliveries frame %d, sent were %d", f.Receipt, w.sent)
	}
	if f.Receipt > w.receiptIn {
		w.unread = 0
	}
	news := f.Receipt > w.receiptIn || f.Other == nil
	w.receiptIn = max(w.receiptIn, f.Receipt)
	if f.Other == nil {
		w.takenIn = f.Number
	}
	if news {
		w.wake()
	}
	return nil
}

// answer takes results in.
func (w *session) answer(f *appwire.FromWorker) error {
	w.mu.Lock()
	if f.Number != w.takenIn+1 {
		defer w.mu.Unlock()
		return status.Errorf(codes.InvalidArgument, "app: Results frame %d after %d", f.Number, w.takenIn)
	}
	known := w.outstanding.Answer(f.Results, f.Results[:0])
	handled := w.outstanding.Handled() // only this goroutine calls Answer
	stats := w.outstanding.Stats()
	w.mu.Unlock()

	if len(handled) > 0 {
		w.server.Handled(w.id, handled)
	}

	for i := range known {
		if r := &known[i]; r.Reason != "" {
			r.Reason = cut(r.Reason, w.server.cfg.ReasonBytesMax)
		}
	}
	w.server.count(stats)
	w.server.finish(known)
	return nil
}

// control takes any other frame in.
func (w *session) control(f *appv1.WorkRequest) error {
	switch frame := f.GetFrame().(type) {
	case nil: // only a receipt
	case *appv1.WorkRequest_Hello:
		return status.Error(codes.InvalidArgument, "app: a second Hello")
	case *appv1.WorkRequest_Ping:
		w.mu.Lock()
		if !w.pinged { // otherwise its Pong waits: a worker that reads nothing could continue like this forever
			w.quiet = 0
		}
		w.ping, w.pinged = frame.Ping.GetK(), true
		w.mu.Unlock()
		w.wake()
	case *appv1.WorkRequest_Progress:
		w.mu.Lock()
		w.outstanding.Progress(frame.Progress.GetDeliveryIds())
		w.mu.Unlock()
	case *appv1.WorkRequest_Drain:
		w.drain(frame.Drain)
	}
	return nil
}

// drain ends the giving, as the worker asks.
func (w *session) drain(d *appv1.Drain) {
	w.mu.Lock()
	first := !w.outstanding.draining
	results := w.outstanding.Drain(nil)
	w.mu.Unlock()
	s := w.server
	if first {
		s.undeclare(w) // it takes no more firings, and others may
		s.Boxes.WorkerGone(w.id)
		if log, due := s.drainLines.Line(); due {
			log.Info("worker drains", "worker", w.name, "node", d.GetNode())
		}
	}
	s.finish(results)
	w.wake() // for the receipt of the last answers
	if d.GetNode() {
		select {
		case s.drain <- cut(d.GetReason(), s.cfg.ReasonBytesMax):
		default: // the node has been asked to already
		}
	}
	s.notify()
}

func (w *session) hasGreeted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.greeted
}

// status returns the status with which the stream ends.
func (w *session) status() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// stop says that the stream has ended. The session lives on while deliveries of it may run.
func (w *session) stop() {
	w.mu.Lock()
	admitted, drained := w.greeted, w.outstanding.draining
	if meant := drained || w.goodbye != "" || w.ended && w.err == nil; meant {
		w.result = w.outstanding.Break(w.result)
	} else {
		w.result = w.outstanding.Crash(w.result)
	}
	w.mu.Unlock()
	if !admitted {
		return
	}
	s := w.server
	s.streamEnded(w)
	if !drained {
		s.Boxes.WorkerGone(w.id)
	}
	w.flush()
	if log, due := s.goneLines.Line(); due {
		log.Info("worker gone", "worker", w.name)
	}
	s.notify()
}

// expire finishes deliveries that are over without an answer, and returns the time of the next
// check. With look it also checks for deliveries that take too long, and takes them back.
func (w *session) expire(now clock.Instant, look bool) clock.Instant {
	w.mu.Lock()
	if look {
		w.timedOut = w.outstanding.TimeOut(looksMax, w.timedOut)
		if len(w.timedOut) > 0 {
			w.wake()
		}
	}
	lost := w.outstanding.Expire(now, nil)
	next := w.outstanding.Next()
	stats := w.outstanding.Stats()
	over := w.outstanding.broken && w.outstanding.Len() == 0
	w.server.count(stats) // before the writer tells the worker: who sees a revocation there finds it counted
	w.mu.Unlock()
	if over {
		w.server.forget(w)
	}
	w.server.finish(lost)
	return next
}

// listen ends the stream of a worker that has sent no Ping, or taken nothing in, for SilenceMax. Its connection lives,
// but the worker, or its reader, may not, and the keys that were chosen for it would wait. Calls of listen count, not time, so
// that a pause of this process is not taken for one of the worker's.
func (w *session) listen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.greeted || w.outstanding.broken || w.ended {
		return
	}
	if w.quiet++; w.receiptIn < w.sent {
		w.unread++
	}
	if w.quiet <= looksMax && w.unread <= looksMax {
		return
	}
	reason := "no Ping for %v: the worker is frozen, or does not send them"
	if w.pinged || w.unread > looksMax {
		reason = "the worker has taken nothing in for %v: it does not read its stream, or sends no receipts"
	}
	w.server.Metrics.silent.Inc()
	w.finish(status.Errorf(codes.DeadlineExceeded, "app: "+reason, w.server.cfg.SilenceMax))
	w.wake()
}

// ready reports whether the worker takes deliveries.
func (w *session) ready() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.greeted && !w.outstanding.draining && !w.outstanding.broken && !w.ended
}

// revoke runs take, which takes deliveries back, under the lock, and notes for the writer what the worker must be told:
// that the partitions are revoked, or all if that is nil.
func (w *session) revoke(take func(*Outstanding) (tell bool, back []event.Result), partitions ownership.Set) {
	w.mu.Lock()
	tell, back := take(w.outstanding)
	stats := w.outstanding.Stats()
	if tell && partitions == nil {
		w.revokedAll = true
	} else if tell {
		for p := range partitions.All() {
			w.revoked[p] = struct{}{}
		}
	}
	w.mu.Unlock()
	w.server.finish(back)
	w.server.count(stats)
	w.wake()
}

// takeBack takes single deliveries back for good.
func (w *session) takeBack(ids []event.DeliveryID) {
	w.revoke(func(d *Outstanding) (tell bool, back []event.Result) {
		w.skipped, back = d.TakeBack(ids, w.skipped, nil)
		return false, back // the worker is told of single ones by their names
	}, nil)
}

func (w *session) force(partitions ownership.Set) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.outstanding.Force(partitions)
}

// goAway ends the stream from our side.
func (w *session) goAway(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.goodbye = reason
	w.wake()
}

// count adds unusable results to the metrics.
func (s *Server) count(stats OutstandingStats) {
	s.Metrics.ignored.WithLabelValues("unknown").Add(float64(stats.Unknown))
	s.Metrics.ignored.WithLabelValues("late").Add(float64(stats.Late))
	s.Metrics.revoked.Add(float64(stats.Revoked))
	s.Metrics.timedOut.Add(float64(stats.TimedOut))
}

// cut shortens s to at most n bytes, at the border of a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return strings.Clone(s[:n]) // so that the rest can go
}
