package conformance

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
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
	starves  bool          // see Options.starves
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
	fired    []string          // what handlers of firings have written
	loaded   map[uint64]bool   // whose handlers have loaded the state of their key
	states   map[uint64]string // what handlers have written of it
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

// newRouter listens and starts the worker.
func newRouter(ctx context.Context, o Options, sc scene) (*router, error) {
	folder, err := os.MkdirTemp("", "ringfence-conformance-")
	if err != nil {
		return nil, err
	}
	r := &router{
		ctx: ctx, patience: o.Patience, late: o.late, starves: o.starves, folder: folder, changed: make(chan struct{}), server: grpc.NewServer(grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(receiveMax)), // handlers add to work

		begun: map[uint64]line{}, ended: map[uint64]line{}, cannot: map[uint64]bool{}, timed: map[uint64]string{}, fences: map[uint64]string{}, running: map[string]uint64{},
		loaded: map[uint64]bool{}, states: map[uint64]string{},
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
	case "loaded":
		r.change(func() { r.loaded[id] = true })
		return
	case "state":
		r.change(func() { r.states[id] = strings.Join(words[2:], " ") })
		return
	case "firing":
		r.change(func() { r.fired = append(r.fired, strings.Join(words[1:], " ")) })
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
		if other, busy := r.running[l.key]; busy && !r.tasks[other].ignoresCancel() {
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
