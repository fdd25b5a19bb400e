// Package reference is a worker on the bare protocol that keeps every rule of
// docs/sdk-protocol.md, or breaks one on purpose: it tests the tests of workers.
//
// # Concurrency
//
// [Run] has a goroutine that reads frames in their order, one that sends Pings and watches
// deadlines, and one for each handler. One lock guards all state, and is held while a frame is sent.
package reference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/ringfence/router/internal/base/clock"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

const (
	silenceMax = 10 * time.Second
	checkEvery = 20 * time.Millisecond
	version    = 1
	frameMax   = 66 << 20
	redial     = 50 * time.Millisecond

	conformant = "conformant"
	calls      = "calls"
	intervals  = "intervals"
	stateful   = "state"
)

// Config is what a worker needs.
type Config struct {
	Endpoint, TokenFile string
	InFlight            int
	Fault               string // one of Faults, or empty
	Out                 io.Writer
}

// Run works until ctx ends, and then drains.
func Run(ctx context.Context, c Config) error {
	w := &worker{Config: c, states: map[string]*kept{}}
	defer w.handlers.Wait()
	if c.is("exits-at-once") {
		context.AfterFunc(ctx, func() { os.Exit(0) })
	}
	if c.is("hello-window") {
		w.InFlight = 0
	}
	for ctx.Err() == nil {
		pause, err := w.session(ctx)
		if err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "no stream to the router:", err)
		}
		if ctx.Err() == nil {
			time.Sleep(max(redial, pause))
		}
	}
	return nil
}

func (c Config) is(fault string) bool { return c.Fault == fault }

type worker struct {
	Config
	handlers sync.WaitGroup
	mu       sync.Mutex // guards all sessions
	left     []*delivery
	old      []*appv1.Result // answers of earlier streams
	ticks    time.Duration
	states   map[string]*kept // by key
}

// now is CLOCK_BOOTTIME.
func (w *worker) now() time.Duration {
	if w.is("clock-stops") {
		return w.ticks
	}
	return clock.Read().Boot
}

type delivery struct {
	*appv1.Delivery
	session            *session
	fence              fence
	started, revoked   bool
	cancelled          bool
	deadline           time.Duration
	lost               chan struct{} // closed at the cancellation
	instruction        instruction
	instructionMissing bool
	timers             []*lanev1.SendRequest // that the handler has set
}

type fence struct {
	token int64
	turn  uint64
}

// String returns the text that sorts as fences do.
func (f fence) String() string { return fmt.Sprintf("%019d.%020d", f.token, f.turn) }

type instruction struct {
	ID uint64 `json:"id"`
	Do string `json:"do"`
	Ms int    `json:"ms"`

	Bytes int    `json:"bytes"`
	Then  string `json:"then"`
}

type session struct {
	*worker
	wire                               grpc.BidiStreamingClient[appv1.WorkRequest, appv1.WorkResponse]
	lane                               lanev1.LaneServiceClient
	bearer                             string
	cut                                context.CancelFunc
	held                               map[uint64]*delivery
	waiting                            []*delivery // in the order of arrival
	pings                              map[uint64]time.Duration
	k, receipt, sent, got              uint64
	deadline, silence, every, sinceOne time.Duration
	reasonMax                          int
	pause                              time.Duration
	suspended, draining, over, welcome bool
	closed                             bool // half-closed: a frame sent now would reset the stream
	intervals                          bool
	refused                            map[uint32]bool
	gathered                           []*appv1.Result // with the fault one-frame: results that wait for a receipt
}

// session is the life of one stream. It returns how long the router wants it to wait.
func (w *worker) session(ctx context.Context) (time.Duration, error) {
	size := frameMax
	if w.is("small-frames") {
		size = 4 << 20
	}
	conn, err := grpc.NewClient("passthrough:///"+w.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(size)))
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	alive, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	token, err := os.ReadFile(w.TokenFile)
	if err != nil {
		return 0, err
	}
	bearer := "Bearer " + strings.TrimSpace(string(token))
	if w.is("token-untrimmed") {
		bearer = "Bearer x" + strings.TrimSpace(string(token))
	}
	wire, err := appv1.NewAppServiceClient(conn).Work(metadata.AppendToOutgoingContext(alive, "authorization", bearer))
	if err != nil {
		return 0, err
	}
	s := &session{
		worker: w, wire: wire, lane: lanev1.NewLaneServiceClient(conn), bearer: bearer, cut: cut, held: map[uint64]*delivery{}, pings: map[uint64]time.Duration{},
		every: 200 * time.Millisecond, reasonMax: 100, refused: map[uint32]bool{},
	}
	s.begin() //nolint:contextcheck // Sends end with the key of their event
	stop := context.AfterFunc(ctx, s.drain)
	defer stop()
	ended := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { s.watch(ended) })
	err = s.read()
	s.breakOff()
	close(ended)
	watch.Wait()
	return s.pause, err
}

func (s *session) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{
		MaxInFlight: uint32(s.InFlight), Sdk: "ringfence-reference/1", VersionMin: version, VersionMax: version, Capabilities: s.capabilities(),
		Schedules: s.schedules(),
	}}})
	s.ping()
	if s.is("answers-on-new-stream") && len(s.old) > 0 {
		s.results(s.old...)
	}
	if s.is("starts-of-old-stream") {
		for _, d := range s.left {
			s.start(d)
		}
	}
}

func (w *worker) capabilities() []string {
	if w.is("undeclared") {
		return nil
	}
	return []string{conformant, calls, stateful}
}

// send sends a frame. The lock is held, as in all methods below but read and watch.
func (s *session) send(f *appv1.WorkRequest) {
	if !s.over && (!s.closed || s.is("pings-after-close")) {
		_ = s.wire.Send(f) // read notices the end
	}
}

func (s *session) ping() {
	s.k++
	if s.is("ping-gaps") {
		s.k++
	}
	s.pings[s.k] = s.now() // before it is sent
	s.sinceOne = 0
	s.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Ping{Ping: &appv1.Ping{K: s.k}}})
}

func (s *session) read() error {
	for {
		f, err := s.wire.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.take(f); err != nil {
			return err
		}
	}
}

// watch sends Pings, cancels handlers, and breaks a silent stream.
func (s *session) watch(ended <-chan struct{}) {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		s.ticks += checkEvery
		s.silence += checkEvery
		s.sinceOne += checkEvery
		if !s.is("late-pong-counts") {
			s.check()
		}
		if s.sinceOne >= s.every {
			s.ping()
		}
		if s.silence > silenceMax && s.welcome && !s.is("waits-forever") {
			s.cut()
		}
		s.mu.Unlock()
	}
}

// check cancels the handlers whose deadline has passed, those of earlier streams too.
func (s *session) check() {
	if s.is("no-watch") {
		return
	}
	now := s.now()
	if s.is("cancels-late") {
		now -= 3 * time.Second
	}
	for _, d := range s.left {
		if d.started && now >= d.deadline {
			d.cut()
		}
	}
	for _, d := range s.held {
		if d.started && now >= d.deadline {
			d.cut()
		}
	}
}

func (d *delivery) cut() {
	if !d.cancelled {
		d.cancelled = true
		close(d.lost)
	}
}

func (s *session) take(f *appv1.WorkResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silence = 0
	s.got = max(s.got, f.GetReceipt())
	if s.is("crashes-on-unknown") && len(f.ProtoReflect().GetUnknown()) > 0 {
		return errors.New("an unknown field")
	}
	switch frame := f.GetFrame().(type) {
	case *appv1.WorkResponse_Welcome:
		if frame.Welcome.GetVersion() != version && !s.is("accepts-any-version") {
			return errors.New("no version in common")
		}
		s.welcome = true
		s.intervals = slices.Contains(frame.Welcome.GetCapabilities(), intervals) || s.is("intervals-unasked")
		s.every = time.Duration(frame.Welcome.GetLimits().GetPingIntervalMs()) * time.Millisecond
		s.reasonMax = int(frame.Welcome.GetLimits().GetReasonMaxBytes())
	case *appv1.WorkResponse_Deliveries:
		s.deliveries(frame.Deliveries)
	case *appv1.WorkResponse_Pong:
		s.pong(frame.Pong)
	case *appv1.WorkResponse_Revoke:
		s.revoke(frame.Revoke)
	case *appv1.WorkResponse_Suspend:
		s.suspended = !s.is("ignores-suspend")
	case *appv1.WorkResponse_Resume:
		s.suspended = false
	case *appv1.WorkResponse_GoAway:
		if !s.is("dials-at-once") {
			s.pause = time.Duration(frame.GoAway.GetRetryAfterMs()) * time.Millisecond
		}
	}
	if s.got >= s.sent && len(s.gathered) > 0 {
		results := s.gathered
		s.gathered = nil
		s.results(results...)
	}
	s.startAll()
	s.endIfDrained()
	return nil
}

func (s *session) deliveries(f *appv1.Deliveries) {
	s.receipt = f.GetNumber()
	if s.is("receipt-beyond") {
		s.receipt++
	}
	if !s.is("no-receipts") {
		s.send(&appv1.WorkRequest{Receipt: s.receipt})
	}
	for i, in := range f.GetDeliveries() {
		if s.is("half-a-batch") && i >= 1000 || s.is("forgets-waiting") && len(s.held) > 2200 {
			break
		}
		d := &delivery{Delivery: in, session: s, fence: fence{f.GetTokens()[in.GetToken()], in.GetTurn()}}
		switch {
		case s.is("fence-of-frame"):
			d.fence.token = f.GetTokens()[0]
		case s.is("fence-as-float"):
			d.fence.turn = uint64(float64(d.fence.turn/2)) * 2
		}
		d.instructionMissing = json.Unmarshal(in.GetPayload(), &d.instruction) != nil
		if s.draining && s.is("drops-at-drain") {
			continue
		}
		if s.draining || s.refused[in.GetPartition()] {
			s.answer(d, &appv1.Result{Kind: appv1.ResultKind_RESULT_KIND_NOT_STARTED})
			continue
		}
		s.held[in.GetDeliveryId()], s.waiting = d, append(s.waiting, d)
	}
}

func (s *session) pong(p *appv1.Pong) {
	if !s.is("late-pong-counts") {
		s.check() // a deadline that has passed is never extended
	}
	sent, ok := s.pings[p.GetK()]
	if !ok || p.GetRemainingNs() <= 0 {
		return
	}
	if s.is("from-receipt") {
		sent = s.now()
	}
	maps.DeleteFunc(s.pings, func(k uint64, _ time.Duration) bool { return k+8 <= s.k })
	deadline := sent + time.Duration(p.GetRemainingNs())
	s.deadline = max(s.deadline, deadline)
	for id, d := range s.held {
		move := !d.revoked || slices.Contains(p.GetDraining(), id) && !s.is("ignores-draining") || s.is("revoked-moves")
		d.revoked = d.revoked && !(s.is("draining-for-good") && slices.Contains(p.GetDraining(), id))
		if d.started && !d.cancelled && move && !s.is("one-lease") {
			d.deadline = max(d.deadline, deadline)
		}
	}
	if s.is("revives-old") {
		for _, d := range s.left {
			d.deadline = max(d.deadline, deadline)
		}
	}
}

func (s *session) revoke(f *appv1.Revoke) {
	for id, d := range s.held {
		single := slices.Contains(f.GetDeliveryIds(), id) && !s.is("ignores-single") && !(d.GetCall() != nil && s.is("ignores-callers"))
		all := f.GetAll() && (d.started || !s.is("all-but-waiting"))
		if !all && (!slices.Contains(f.GetPartitions(), d.GetPartition()) || d.started && s.is("waiting-partitions")) && !single {
			continue
		}
		d.revoked = !s.is("starts-revoked") || d.started
		switch {
		case !d.started && d.revoked:
			s.answer(d, &appv1.Result{Kind: appv1.ResultKind_RESULT_KIND_NOT_STARTED})
		case d.started && single:
			d.cut()
		}
	}
	s.forget(f)
	if s.is("revokes-the-future") {
		for _, p := range f.GetPartitions() {
			s.refused[p] = true
		}
	}
}

// startAll starts what may start, in the order of arrival.
func (s *session) startAll() {
	if s.suspended || s.draining || s.now() >= s.deadline && !s.is("starts-at-once") {
		return
	}
	later := s.waiting[:0]
	for _, d := range s.waiting {
		switch busy := s.is("waits-for-the-lost") && s.busy(d); {
		case s.held[d.GetDeliveryId()] != d: // it was answered
		case busy:
			later = append(later, d)
		default:
			s.start(d)
		}
	}
	s.waiting = later
}

// busy reports whether another delivery of the key runs.
func (s *session) busy(d *delivery) bool {
	for _, other := range s.held {
		if other.started && string(other.GetKey()) == string(d.GetKey()) {
			return true
		}
	}
	return false
}

func (s *session) start(d *delivery) {
	d.started, d.lost, d.deadline = true, make(chan struct{}), s.deadline
	if s.is("answers-early") {
		s.answer(d, &appv1.Result{Kind: appv1.ResultKind_RESULT_KIND_DONE})
	}
	s.handlers.Go(func() {
		began := clock.Read().Boot
		s.begun(d)
		result := s.handle(d)
		s.publish(d, result)
		ended := clock.Read().Boot
		s.mu.Lock()
		defer s.mu.Unlock()
		if d.cancelled && (result.GetKind() == appv1.ResultKind_RESULT_KIND_RETRY || s.is("cancelled-whatever")) {
			result = &appv1.Result{Kind: appv1.ResultKind_RESULT_KIND_CANCELLED}
		}
		s.leave(d, result)
		if s.intervals {
			if s.is("interval-of-answer") {
				began = ended
			}
			result.StartedNs, result.TookNs = uint64(began), uint64(ended-began)
		}
		if !s.is("answers-early") {
			d.session.answer(d, result)
		}
		s.startAll()
		s.endIfDrained()
	})
}

func (s *session) answer(d *delivery, result *appv1.Result) {
	delete(s.held, d.GetDeliveryId())
	s.left = slices.DeleteFunc(s.left, func(x *delivery) bool { return x == d })
	result.DeliveryId = d.GetDeliveryId()
	if s.over {
		s.old = append(s.old, result)
		return
	}
	s.results(result)
	if s.is("answers-twice") {
		s.results(result)
	}
}

func (s *session) results(results ...*appv1.Result) {
	if s.is("one-frame") && s.got < s.sent {
		s.gathered = append(s.gathered, results...)
		return
	}
	number := s.sent + 1
	if s.is("results-from-zero") {
		number = s.sent
	}
	s.sent++
	s.send(&appv1.WorkRequest{Receipt: s.receipt, Frame: &appv1.WorkRequest_Results{Results: &appv1.Results{Number: number, Results: results}}})
}

func (s *session) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	s.send(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Drain{Drain: &appv1.Drain{Reason: "SIGTERM"}}})
	for _, d := range s.held {
		if !d.started && !s.is("drops-at-drain") {
			s.answer(d, &appv1.Result{Kind: appv1.ResultKind_RESULT_KIND_NOT_STARTED})
		}
	}
	s.endIfDrained()
}

func (s *session) endIfDrained() {
	if s.draining && !s.over && len(s.held) == 0 && (s.got >= s.sent || s.is("closes-early")) {
		s.closed = true
		_ = s.wire.CloseSend() // read notices the end
	}
}

// breakOff keeps the running handlers until their deadlines.
func (s *session) breakOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	for _, d := range s.held {
		if d.started {
			s.left = append(s.left, d)
			if s.is("answers-on-new-stream") {
				s.old = append(s.old, &appv1.Result{DeliveryId: d.GetDeliveryId(), Kind: appv1.ResultKind_RESULT_KIND_DONE})
			}
		} else if s.is("starts-of-old-stream") {
			s.left = append(s.left, d)
		}
	}
}
