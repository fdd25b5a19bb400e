package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

const (
	endpointEnv  = "RINGFENCE_APP_ENDPOINT"
	tokenFileEnv = "RINGFENCE_APP_TOKEN_FILE" //nolint:gosec // the name of a variable, no secret
	inFlightMax  = 100_000
	batchMax     = 2048
	frameMax     = 9 << 20
	helloMax     = 4 << 10
	workerMax    = 2 << 20  // bytes of a worker's frame
	receiveMax   = 16 << 20 // bytes that are received, so that a frame that is too large is named
	reasonMax    = 200
	lineMax      = 64 << 10 // bytes of a line of the worker's standard output
	tailMax      = 300      // bytes of the worker's standard error in a reason
	brief        = 600 * time.Millisecond
	long         = time.Minute
)

// router plays the router to one worker. The first failure that a scene cannot go on after makes
// all later calls return at once, so that scenes need no error handling.
type router struct {
	appv1.UnimplementedAppServiceServer
	ctx      context.Context //nolint:containedctx // of the scene, which is one call
	patience time.Duration
	late     time.Duration // see Options.late
	server   *grpc.Server
	cmd      *exec.Cmd
	folder   string // with the token file
	work     sync.WaitGroup
	welcome  *appv1.Welcome        // for the next stream
	adorn    func(m proto.Message) // changes each frame before it is sent; may be nil
	lease    time.Duration         // for the next Hello, see stream.lease

	mu       sync.Mutex
	changed  chan struct{} // closed at the next change
	streams  []*stream
	next     uint64 // the last delivery_id
	begun    map[uint64]line
	ended    map[uint64]line
	cannot   map[uint64]bool   // unsupported instructions
	timed    map[uint64]string // what the handlers of timers have written
	fences   map[uint64]string // what handlers have written of theirs
	sends    []*sending
	sendOf   func(nth int) codes.Code // the status of a key's nth Send, from 0; nil: OK
	sendHeld bool                     // Sends wait for their answers
	running  map[string]uint64
	tasks    map[uint64]task
	exited   bool
	exit     int
	leaving  bool // the scene lets the worker end
	closed   bool // the scene has ended: nothing counts any more
	tail     []byte
	failures map[string]string
	skips    map[string]string
	dead     string // the rule that ended the scene
	absent   string // why the worker does nothing that the scene is about
}

// line is what a handler has written.
type line struct {
	key string
	at  int64
}

// task is one delivery.
type task struct {
	do        string
	ms        int
	key       string // empty: one of its own
	partition uint32
	pad       int    // more bytes of payload
	method    string // of a call; empty: an event
	reply     int    // bytes that the handler of a call is to return
	entry     uint64 // of the message id; 0: one of its own
	timer     *appv1.Timer
	token     uint32 // index of the fencing token among tokens
	turn      uint64 // of the fence; 0: one of its own
}

// tokens are the fencing tokens of each frame of deliveries.
var tokens = []int64{1, 1<<62 + 1}

// newRouter listens and starts the worker.
func newRouter(ctx context.Context, o Options, sc scene) (*router, error) {
	folder, err := os.MkdirTemp("", "ringfence-conformance-")
	if err != nil {
		return nil, err
	}
	r := &router{
		ctx: ctx, patience: o.Patience, late: o.late, folder: folder, changed: make(chan struct{}), server: grpc.NewServer(grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(receiveMax)), // handlers add to work

		begun: map[uint64]line{}, ended: map[uint64]line{}, cannot: map[uint64]bool{}, timed: map[uint64]string{}, fences: map[uint64]string{}, running: map[string]uint64{},
		tasks: map[uint64]task{}, failures: map[string]string{}, skips: map[string]string{},
		welcome: &appv1.Welcome{Node: "conformance", Group: "conformance", Version: 1, Worker: "w", Limits: &appv1.Limits{
			FrameMaxBytes: frameMax, PingIntervalMs: 100, ReasonMaxBytes: reasonMax,
		}},
	}
	if sc.setup != nil {
		sc.setup(r)
	}
	if err := r.start(o.Command); err != nil {
		r.close()
		return nil, fmt.Errorf("start the worker: %w", err)
	}
	return r, nil
}

func (r *router) start(command []string) error {
	r.writeToken("secret-1")
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait for anybody
	if err != nil {
		return err
	}
	appv1.RegisterAppServiceServer(r.server, r)
	lanev1.RegisterLaneServiceServer(r.server, &laneService{r: r})
	r.work.Go(func() { _ = r.server.Serve(listener) })            // ends with Stop
	cmd := exec.CommandContext(r.ctx, command[0], command[1:]...) //nolint:gosec // the command comes from the command line
	inGroup(cmd)
	cmd.Env = append(os.Environ(), endpointEnv+"="+listener.Addr().String(), tokenFileEnv+"="+r.tokenFile())
	cmd.Stdout, cmd.Stderr = &lineWriter{take: r.heard}, tailWriter{r}
	cmd.WaitDelay = time.Second // for what the worker has started, and what has not ended with it
	if err := cmd.Start(); err != nil {
		return err
	}
	r.cmd = cmd
	r.work.Go(func() {
		_ = cmd.Wait() // the exit code tells all
		r.change(func() { r.exited, r.exit = true, cmd.ProcessState.ExitCode() })
	})
	return nil
}

func (r *router) tokenFile() string { return filepath.Join(r.folder, "token") }

func (r *router) writeToken(token string) {
	if err := os.WriteFile(r.tokenFile(), []byte("  "+token+"\n"), 0o600); err != nil {
		r.fail("token", "the kit cannot write its token file: %v", err)
	}
}

// close ends the worker and the router.
func (r *router) close() {
	r.change(func() { r.closed = true })
	if r.cmd != nil {
		signalGroup(r.cmd, sigKill)
	}
	r.server.Stop()
	r.work.Wait()
	_ = os.RemoveAll(r.folder) // an error has no reader
}

// lineWriter hands on whole lines, without their ends.
type lineWriter struct {
	take func(string)
	rest []byte // the begin of a line
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		line, rest, whole := bytes.Cut(w.rest, []byte("\n"))
		if !whole {
			break
		}
		w.take(string(line))
		w.rest = rest
	}
	if len(w.rest) > lineMax {
		return 0, fmt.Errorf("the worker has written a line of more than %d bytes", lineMax)
	}
	w.rest = bytes.Clone(w.rest)
	return len(p), nil
}

// tailWriter keeps the end of what is written.
type tailWriter struct{ r *router }

func (w tailWriter) Write(p []byte) (int, error) {
	w.r.mu.Lock()
	defer w.r.mu.Unlock()
	w.r.tail = append(w.r.tail, p...)
	w.r.tail = w.r.tail[max(0, len(w.r.tail)-tailMax):]
	return len(p), nil
}

// heard takes a line of the worker in.
func (r *router) heard(text string) {
	words := strings.Fields(text)
	if len(words) < 2 {
		return
	}
	id, err := strconv.ParseUint(words[1], 10, 64)
	if err != nil {
		return
	}
	switch words[0] {
	case "unsupported":
		r.change(func() { r.cannot[id] = true })
		return
	case "fence":
		r.change(func() { r.fences[id] = strings.Join(words[2:], " ") })
		return
	case "timer":
		r.change(func() { r.timed[id] = strings.Join(words[2:], " ") })
		return
	}
	if len(words) != 4 {
		return
	}
	at, err := strconv.ParseInt(words[3], 10, 64)
	if err != nil {
		return
	}
	r.change(func() { r.note(words[0], id, line{key: words[2], at: at}) })
}

// note takes a start or an end in. The lock is held.
func (r *router) note(what string, id uint64, l line) {
	switch what {
	case "start":
		if _, again := r.begun[id]; again {
			r.violated("one-handler", "delivery %d started twice", id)
		}
		r.begun[id] = l
		if other, busy := r.running[l.key]; busy && r.tasks[other].do != "ignore_cancel" {
			r.violated("one-handler", "delivery %d of the key %s started before the handler of delivery %d had ended", id, l.key, other)
		}
		r.running[l.key] = id
	case "end":
		r.ended[id] = l
		if r.running[l.key] == id {
			delete(r.running, l.key)
		}
	}
}

// change makes a change and wakes those who wait for it.
func (r *router) change(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
	close(r.changed)
	r.changed = make(chan struct{})
}

// violated records a violation; the scene goes on. The lock is held.
func (r *router) violated(rule, format string, values ...any) {
	if _, known := r.failures[rule]; !known && !r.closed {
		r.failures[rule] = fmt.Sprintf(format, values...)
	}
}

// fail records a violation and ends the scene.
func (r *router) fail(rule, format string, values ...any) {
	r.change(func() {
		if r.dead == "" {
			r.violated(rule, format, values...)
			r.dead = rule
		}
	})
}

// check fails the rule unless ok.
func (r *router) check(ok bool, rule, format string, values ...any) {
	if !ok && !r.over() {
		r.fail(rule, format, values...)
	}
}

func (r *router) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dead != ""
}

// await waits until met, which is called with the lock held.
func (r *router) await(rule, what string, met func() bool) { r.awaitFor(r.patience, rule, what, met) }

func (r *router) awaitFor(patience time.Duration, rule, what string, met func() bool) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		r.mu.Lock()
		changed, dead, is := r.changed, r.dead != "", r.dead == "" && met()
		gone := r.exited && !r.leaving
		tail := strings.Join(strings.Fields(string(r.tail)), " ")
		r.mu.Unlock()
		switch {
		case is:
			time.Sleep(r.late) // 0 but in a test, which plays a busy machine
			return
		case dead:
			return
		case gone:
			r.fail(rule, "the worker ended with exit code %d while the kit waited for %s; its last words: %q", r.exit, what, tail)
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			r.fail(rule, "no %s within %v", what, patience)
			return
		case <-r.ctx.Done():
			r.fail(rule, "interrupted")
			return
		}
	}
}

// sleepUntil waits for an instant of the boot-time clock, or the end of the scene.
func (r *router) sleepUntil(at int64) {
	for bootTime() < at && !r.over() && r.ctx.Err() == nil {
		time.Sleep(min(20*time.Millisecond, time.Duration(at-bootTime())+1))
	}
}

// signal signals the worker.
func (r *router) signal(s syscall.Signal) { signalGroup(r.cmd, s) }

// freezeMax is the time that a process may take to stop.
const freezeMax = time.Second

// freeze stops the worker, and waits until it has stopped.
func (r *router) freeze() {
	if r.over() {
		return
	}
	r.signal(sigStop)
	for end := bootTime() + int64(freezeMax); !stopped(r.cmd) && bootTime() < end; {
		time.Sleep(time.Millisecond)
	}
}

// stream waits for the worker's nth stream, from 1, and its Hello.
func (r *router) stream(rule string, n int) *stream {
	r.await(rule, fmt.Sprintf("stream %d with a Hello", n), func() bool { return len(r.streams) >= n && r.streams[n-1].hello != nil })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead != "" {
		return &stream{r: r, answers: map[uint64]*appv1.Result{}}
	}
	return r.streams[n-1]
}

// started waits for a handler's start and returns its instant.
func (r *router) started(rule string, id uint64) int64 {
	r.await(rule, fmt.Sprintf("start of delivery %d", id), func() bool { _, ok := r.begun[id]; return ok })
	return r.lineOf(r.begun, id).at
}

// finished waits for a handler's end and returns its instant.
func (r *router) finished(rule string, id uint64) int64 {
	r.await(rule, fmt.Sprintf("end of the handler of delivery %d", id), func() bool { _, ok := r.ended[id]; return ok })
	return r.lineOf(r.ended, id).at
}

func (r *router) lineOf(of map[uint64]line, id uint64) line {
	r.mu.Lock()
	defer r.mu.Unlock()
	return of[id]
}

// never checks that a delivery has not started.
func (r *router) never(rule string, id uint64, why string) {
	r.check(r.lineOf(r.begun, id) == line{}, rule, "delivery %d started, and %s", id, why)
}

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
	at         int64 // when Hello was received
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
	w.Limits.MaxInFlight = uint32(s.window())
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
			entry := id
			if t.entry > 0 {
				entry = t.entry
			}
			turn := id
			if t.turn > 0 {
				turn = t.turn
			}
			f.Deliveries = append(f.Deliveries, &appv1.Delivery{
				DeliveryId: id, Partition: t.partition, Key: []byte(t.key), Payload: t.payload(id), LedgerId: 1, EntryId: int64(entry),
				BatchIndex: -1, TopicPartition: -1, Attempt: 1, Token: t.token, Turn: turn, Call: t.call(id), Timer: t.timer,
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
	s.r.await(rule, fmt.Sprintf("answer of delivery %d, want %s", id, kindName(kind)), func() bool { result = s.answers[id]; return result != nil })
	s.r.check(result.GetKind() == kind, rule, "the answer of delivery %d is %s, want %s", id, kindName(result.GetKind()), kindName(kind))
	return result
}

func kindName(k appv1.ResultKind) string { return strings.TrimPrefix(k.String(), "RESULT_KIND_") }

// lost waits for the answer of a handler that was cancelled.
func (s *stream) lost(rule string, id uint64) { s.want(rule, id, kindCancelled) }

// runBriefly delivers a task under brief leases and waits for its start, then lets the lease end. It
// returns the delivery_id and an instant after which the deadline has passed.
func (s *stream) runBriefly(rule string, t task) (id uint64, until int64) {
	r := s.r
	id = s.give(t)
	s.renew(brief)
	r.started(rule, id)
	s.receipted()
	s.renew(0)
	r.mu.Lock()
	defer r.mu.Unlock()
	return id, s.until
}
