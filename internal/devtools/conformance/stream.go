package conformance

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// task is one delivery.
type task struct {
	do        string
	then      string // of the instruction state
	ms        int
	key       string // empty: one of its own
	partition uint32
	pad       int    // more bytes of payload
	method    string // of a call; empty: an event
	reply     int    // bytes that the handler of a call is to return
	entry     uint64 // of the message id; 0: one of its own
	timer     *appv1.Timer
	attempt   uint32 // 0: the first
	token     uint32 // index of the fencing token among tokens
	turn      uint64 // of the fence; 0: one of its own

	generation uint64
}

// ignoreCancel is the instruction of a handler that continues after its deadline.
const ignoreCancel = "ignore_cancel"

func (t task) ignoresCancel() bool { return t.do == ignoreCancel || t.then == ignoreCancel }

// tokens are the fencing tokens of each frame of deliveries.
var tokens = []int64{1, 1<<62 + 1}

// stream is one stream of the worker.
type stream struct {
	r      *router
	wire   grpc.BidiStreamingServer[appv1.WorkRequest, appv1.WorkResponse] // nil in a scene that has failed
	end    chan error
	token  string
	sendMu sync.Mutex // one frame at a time

	// Guarded by the router's lock.
	frames     int
	hello      *appv1.Hello
	version    uint32 // of the Welcome
	at         int64  // when Hello was received
	lease      time.Duration
	draining   []uint64
	pings      []int64 // when Ping k+1 was received
	until      int64   // no deadline lies after this
	sent       uint64  // number of the newest Deliveries frame
	receipt    uint64
	results    uint64
	given      map[uint64]bool
	answers    map[uint64]*appv1.Result
	progress   map[uint64]bool
	holdFor    uint64 // the frame that answers this delivery gets no receipt yet, if it is the last answer
	holds      bool   // such a frame has come
	drained    bool   // Drain was received
	halfClosed bool
	linger     time.Duration // after the half-close, the stream stays open for so long: the worker must wait
	gone       bool
	goneAt     int64
}

// Work implements the service.
func (r *router) Work(wire grpc.BidiStreamingServer[appv1.WorkRequest, appv1.WorkResponse]) error {
	s := &stream{
		r: r, wire: wire, end: make(chan error, 1),
		given: map[uint64]bool{}, answers: map[uint64]*appv1.Result{}, progress: map[uint64]bool{},
	}
	if md, ok := metadata.FromIncomingContext(wire.Context()); ok {
		s.token = strings.Join(md.Get("authorization"), ",")
	}
	r.change(func() { r.streams = append(r.streams, s) })
	r.work.Go(s.read)
	select {
	case err := <-s.end:
		return err
	case <-wire.Context().Done():
		return status.FromContextError(wire.Context().Err()).Err()
	}
}

// breakOff ends the stream as a router that stops.
func (s *stream) breakOff() {
	if s.wire != nil {
		s.close(status.Error(codes.Unavailable, "the scene breaks the stream"))
	}
}

func (s *stream) close(err error) {
	select {
	case s.end <- err:
	default:
	}
}

func (s *stream) read() {
	for {
		f, err := s.wire.Recv()
		if err != nil {
			s.finish(errors.Is(err, io.EOF))
			return
		}
		var reply []*appv1.WorkResponse
		s.r.change(func() { reply = s.take(f, bootTime()) })
		for _, f := range reply {
			s.send(f)
		}
	}
}

// finish notes the end of what the worker sends, and ends the stream.
func (s *stream) finish(halfClosed bool) {
	s.r.mu.Lock()
	linger := s.linger
	s.r.mu.Unlock()
	reset := false
	if halfClosed && linger > 0 {
		select {
		case <-s.wire.Context().Done():
			reset = true
		case <-time.After(linger):
		}
	}
	s.r.change(func() {
		s.gone, s.goneAt, s.halfClosed = true, bootTime(), halfClosed
		if reset {
			s.r.violated("drain", "it reset the stream after its half-close, and did not wait for the router to end it")
		}
	})
	s.close(nil)
}

// take takes a frame in and returns the replies to it. The lock is held.
func (s *stream) take(f *appv1.WorkRequest, now int64) (reply []*appv1.WorkResponse) {
	r := s.r
	s.frames++
	if hello := f.GetHello(); (hello != nil) != (s.frames == 1) {
		r.violated("hello", "frame %d of a stream is %T", s.frames, f.GetFrame())
	}
	if n := proto.Size(f); n > workerMax {
		r.violated("call-large", "frame %d of a stream has %d bytes: want at most %d", s.frames, n, workerMax)
	}
	switch n := f.GetReceipt(); {
	case n > s.sent:
		r.violated("receipts-exact", "receipt %d, and %d Deliveries frames were sent", n, s.sent)
	case n != 0 && n < s.receipt:
		r.violated("receipts-exact", "receipt %d after receipt %d", n, s.receipt)
	default:
		s.receipt = max(s.receipt, n)
	}
	switch frame := f.GetFrame().(type) {
	case *appv1.WorkRequest_Hello:
		return s.greet(f, frame.Hello, now)
	case *appv1.WorkRequest_Ping:
		s.pings = append(s.pings, now)
		if k := frame.Ping.GetK(); k != uint64(len(s.pings)) {
			r.violated("pings", "Ping %d has the number %d", len(s.pings), k)
		}
		if s.lease > 0 {
			reply = append(reply, s.pong(uint64(len(s.pings)), s.lease))
		}
	case *appv1.WorkRequest_Results:
		s.results++
		if n := frame.Results.GetNumber(); n != s.results {
			r.violated("results-numbers", "Results frame %d has the number %d", s.results, n)
		}
		hold := false
		for _, result := range frame.Results.GetResults() {
			s.answered(result)
			hold = hold || result.GetDeliveryId() == s.holdFor
		}
		if hold && len(s.answers) >= len(s.given) { // without a receipt a worker sends no further answer
			s.holds = true
		} else {
			s.holds = false // this receipt is for the frame before, too: on a busy machine a delivery may have come just behind the last answer
			reply = append(reply, &appv1.WorkResponse{Receipt: s.results})
		}
	case *appv1.WorkRequest_Progress:
		for _, id := range frame.Progress.GetDeliveryIds() {
			s.progress[id] = true
		}
	case *appv1.WorkRequest_Drain:
		s.drained = true
	}
	return reply
}

func (s *stream) greet(f *appv1.WorkRequest, hello *appv1.Hello, now int64) []*appv1.WorkResponse {
	r := s.r
	s.hello, s.at, s.lease = hello, now, r.lease // with the Welcome: a scene changes both at once
	if n := hello.GetMaxInFlight(); n < 1 || n > inFlightMax {
		r.violated("hello", "max_in_flight is %d", n)
	}
	if low, high := max(1, hello.GetVersionMin()), max(1, hello.GetVersionMax()); low != 1 || high < low {
		r.violated("hello", "it offers the versions %d to %d", low, high)
	}
	if size := proto.Size(f); size > helloMax {
		r.violated("hello", "it has %d bytes", size)
	}
	w, ok := proto.Clone(r.welcome).(*appv1.Welcome)
	if !ok {
		return nil
	}
	w.Limits.MaxInFlight, s.version = uint32(s.window()), w.GetVersion()
	return []*appv1.WorkResponse{{Frame: &appv1.WorkResponse_Welcome{Welcome: w}}}
}

func (s *stream) answered(result *appv1.Result) {
	r, id := s.r, result.GetDeliveryId()
	switch _, twice := s.answers[id]; {
	case twice:
		r.violated("answered-once", "delivery %d was answered twice", id)
	case !s.given[id]:
		r.violated("answered-once", "delivery %d was answered, and is none of this stream", id)
		if _, old := r.tasks[id]; old {
			r.violated("reconnect", "delivery %d of an earlier stream was answered on a later one", id)
		}
	default:
		s.answers[id] = result
	}
	if reason := result.GetReason(); len(reason) > reasonMax || !utf8.ValidString(reason) {
		r.violated("answers", "the reason of delivery %d is not UTF-8 of at most %d bytes: it has %d", id, reasonMax, len(reason))
	}
}

// window is max_in_flight. The lock is held, or Hello was received before.
func (s *stream) window() int {
	return min(inFlightMax, max(1, int(s.hello.GetMaxInFlight())))
}

// pong returns a Pong and notes its deadline. The lock is held.
func (s *stream) pong(k uint64, remaining time.Duration) *appv1.WorkResponse {
	if k > 0 && k <= uint64(len(s.pings)) {
		s.until = max(s.until, s.pings[k-1]+int64(remaining))
	}
	return &appv1.WorkResponse{Frame: &appv1.WorkResponse_Pong{Pong: &appv1.Pong{K: k, RemainingNs: int64(remaining), Draining: s.draining}}}
}

// send sends a frame. A stream that has ended takes none.
func (s *stream) send(f *appv1.WorkResponse) {
	if s.wire == nil {
		return
	}
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	if s.r.adorn != nil {
		s.r.adorn(f)
	}
	_ = s.wire.Send(f) // the reader notices the end
}

// renew answers Pings with a lease from now on, the newest one at once; 0 answers none. It returns
// the instant before.
func (s *stream) renew(lease time.Duration) (at int64) {
	at = bootTime()
	var f *appv1.WorkResponse
	s.r.change(func() {
		s.lease = lease
		if lease > 0 && len(s.pings) > 0 {
			f = s.pong(uint64(len(s.pings)), lease)
		}
	})
	if f != nil {
		s.send(f)
	}
	return at
}

// answer sends a Pong for Ping k.
func (s *stream) answer(k uint64, remaining time.Duration) {
	var f *appv1.WorkResponse
	s.r.change(func() { f = s.pong(k, remaining) })
	s.send(f)
}

// pinged waits for n more Pings, so that the worker has had time to go wrong, and returns the
// number of the newest one.
func (s *stream) pinged(n int) (k uint64) {
	s.r.mu.Lock()
	want := len(s.pings) + n
	s.r.mu.Unlock()
	s.r.await("pings", fmt.Sprintf("Ping %d", want), func() bool { k = uint64(len(s.pings)); return len(s.pings) >= want })
	return k
}

// deliver sends tasks in one frame, once there is room and the previous frame has its receipt. It
// returns the delivery_ids.
func (s *stream) deliver(tasks ...task) (ids []uint64) {
	s.r.await("receipts", "receipt of the previous Deliveries frame", func() bool { return s.receipt == s.sent })
	s.r.await("answered-once", "room in the window", func() bool { return len(s.given)-len(s.answers)+len(tasks) <= s.window() })
	f := &appv1.Deliveries{Topics: []string{"conformance"}, Tokens: tokens}
	s.r.change(func() {
		s.sent++
		f.Number = s.sent
		for _, t := range tasks {
			s.r.next++
			id := s.r.next
			if t.key == "" {
				t.key = fmt.Sprintf("key-%d", id)
			}
			s.r.tasks[id] = t
			if s.given != nil {
				s.given[id] = true
			}
			ids = append(ids, id)
			f.Deliveries = append(f.Deliveries, &appv1.Delivery{
				DeliveryId: id, Partition: t.partition, Key: []byte(t.key), Payload: t.payload(id), LedgerId: 1, EntryId: int64(cmp.Or(t.entry, id)),
				BatchIndex: -1, TopicPartition: -1, Attempt: cmp.Or(t.attempt, 1), Token: t.token, Turn: cmp.Or(t.turn, id), Call: t.call(id), Timer: t.timer,
				Generation: t.generation,
			})
		}
	})
	s.send(&appv1.WorkResponse{Frame: &appv1.WorkResponse_Deliveries{Deliveries: f}})
	return ids
}

// give delivers one task.
func (s *stream) give(t task) uint64 { return s.deliver(t)[0] }

func (t task) payload(id uint64) []byte {
	instruction := map[string]any{"id": id, "do": t.do, "ms": t.ms}
	if t.then != "" {
		instruction["then"] = t.then
	}
	if t.reply > 0 {
		instruction["bytes"] = t.reply
	}
	if t.pad > 0 {
		instruction["pad"] = strings.Repeat("x", t.pad)
	}
	text, _ := json.Marshal(instruction) // cannot fail
	return text
}

// call returns what makes a delivery a call, nil for an event.
func (t task) call(id uint64) *appv1.Call {
	if t.method == "" {
		return nil
	}
	return &appv1.Call{Method: t.method, TimeoutMs: uint64(long.Milliseconds()), Id: fmt.Sprintf("call-%d", id)}
}

// receipted waits for the receipt of all Deliveries frames.
func (s *stream) receipted() {
	s.r.await("receipts", "receipt of a Deliveries frame", func() bool { return s.receipt == s.sent })
}

// receiptAll sends the receipt of the newest Results frame.
func (s *stream) receiptAll() {
	f := new(appv1.WorkResponse)
	s.r.change(func() { f.Receipt = s.results })
	s.send(f)
}

// revoke, suspend and resume send the frame.
func (s *stream) revoke(f *appv1.Revoke) {
	s.send(&appv1.WorkResponse{Frame: &appv1.WorkResponse_Revoke{Revoke: f}})
}

func (s *stream) suspend() {
	s.send(&appv1.WorkResponse{Frame: &appv1.WorkResponse_Suspend{Suspend: &appv1.Suspend{}}})
}

func (s *stream) resume() {
	s.send(&appv1.WorkResponse{Frame: &appv1.WorkResponse_Resume{Resume: &appv1.Resume{}}})
}

const (
	kindDone       = appv1.ResultKind_RESULT_KIND_DONE
	kindRetry      = appv1.ResultKind_RESULT_KIND_RETRY
	kindReject     = appv1.ResultKind_RESULT_KIND_REJECT
	kindNotStarted = appv1.ResultKind_RESULT_KIND_NOT_STARTED
	kindCancelled  = appv1.ResultKind_RESULT_KIND_CANCELLED
)

// want waits for the answer of a delivery and checks its kind.
func (s *stream) want(rule string, id uint64, kind appv1.ResultKind) (result *appv1.Result) {
	result = s.awaitAnswer(rule, id, kind)
	s.r.check(result.GetKind() == kind, rule, "the answer of delivery %d is %s, want %s", id, kindName(result.GetKind()), kindName(kind))
	return result
}

// awaitAnswer waits for the answer of a delivery, of whatever kind. It returns nil if the scene ends before.
func (s *stream) awaitAnswer(rule string, id uint64, want appv1.ResultKind) (result *appv1.Result) {
	s.r.await(rule, fmt.Sprintf("answer of delivery %d, want %s", id, kindName(want)), func() bool { result = s.answers[id]; return result != nil })
	return result
}

// outlasts waits for the answer of a handler that takes longer than its first lease, and reports whether its deadline moved. A busy machine may keep a
// worker from its next Ping until the deadline: only the last of moveTries counts against it.
func (s *stream) outlasts(rule string, id uint64, try int) bool {
	if s.r.starves && try == 1 {
		s.r.started(rule, id) // with a lease: before its first Ping a worker has none
		s.renew(0)
	}
	if s.awaitAnswer(rule, id, kindDone).GetKind() == kindCancelled && try < moveTries {
		s.renew(generous)
		return false
	}
	s.want(rule, id, kindDone)
	return true
}

func kindName(k appv1.ResultKind) string { return strings.TrimPrefix(k.String(), "RESULT_KIND_") }

// lost waits for the answer of a handler that was cancelled.
func (s *stream) lost(rule string, id uint64) { s.want(rule, id, kindCancelled) }

// runBriefly delivers a task under brief leases and waits for its start, then lets the lease end. It
// returns the delivery_id and an instant after which the deadline has passed.
func (s *stream) runBriefly(rule string, t task) (id uint64, until int64) {
	ids, until := s.runAllBriefly(rule, t)
	return ids[0], until
}

// runAllBriefly is runBriefly for several tasks.
func (s *stream) runAllBriefly(rule string, tasks ...task) (ids []uint64, until int64) {
	r := s.r
	ids = s.deliver(tasks...)
	s.renew(brief)
	for _, id := range ids {
		r.started(rule, id)
	}
	s.receipted()
	s.renew(0)
	r.mu.Lock()
	defer r.mu.Unlock()
	return ids, s.until
}
