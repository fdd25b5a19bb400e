package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/ownership/inbox"
	"github.com/ringfence/router/internal/wire/appwire"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

const (
	version    = 1
	sdkName    = "ringfence-go/1"
	frameMax   = 72 << 20 // more than the largest frame of any router
	windowSize = 4 << 20
	// socketBufferSize lets a whole frame pass in one or two system calls.
	socketBufferSize = 256 << 10

	// checkEvery is the interval at which deadlines are compared with the clock while the
	// stream, or one of its handlers, lives.
	checkEvery = 50 * time.Millisecond

	pingDefault = 200 * time.Millisecond // until the router's Welcome sets another interval
	reasonMax   = 1 << 10                // until the router's Welcome sets another bound

	// silenceMax is how long the router may leave Pings unanswered. A machine that
	// vanishes closes no connection, and TCP notices only after a quarter of an hour. The
	// router has the same bound (app.silence_max), which is longer than any ping interval.
	silenceMax = 10 * time.Second
)

// stream is one connection to the router. It has three goroutines: the sender, which decides
// the order of frames; the reader, which handles received frames in order; and the watch,
// which cancels handlers when their deadline passes, and lives until the last handler has
// returned, even if the stream breaks before.
type stream struct {
	runner *runner
	wire   grpc.BidiStreamingClient[appv1.WorkRequest, appv1.WorkResponse]
	conn   *grpc.ClientConn // sends timers, too
	wake   chan struct{}    // cap 1: wakes the sender
	broken chan struct{}    // closed by the reader at its end

	sure atomic.Int64 // clock.Instant before which no handler's deadline passes
	over atomic.Bool  // it has ended: no later turn can use what its handlers leave

	// Guarded by the runner's lock.
	inbox      inbox.Inbox[Event]
	sent       uint64              // number of the newest Results frame that was sent
	receiptIn  uint64              // number of the newest one that the router has receipted
	takenIn    uint64              // number of the newest Deliveries frame that was taken in
	receiptOut uint64              // number of the newest one for which a receipt was sent
	ongoing    map[uint64]struct{} // ids of deliveries whose progress is to be reported
	pingEvery  time.Duration
	silence    time.Duration // since the newest received frame
	holding    clock.Instant // since when something has been pending to send; 0 if nothing is
	reasonMax  int           // bytes of the reason of a result
	session    Session
	welcomed   bool          // session was set by the router's Welcome
	goingAway  bool          // the router has announced the end of the stream
	away       time.Duration // how long the router asks to wait before the next stream
	err        error         // why the reader ended

	// Used by the sender alone.
	results appwire.ToRouter // scratch
	held    int              // at the last call of the Window hook

	arrived arrivals // used by the reader alone

	// intervals says that the router asks when handlers ran. The reader sets it before the first
	// delivery arrives; handlers read it.
	intervals bool
}

// runStream dials, works until the stream breaks or ctx ends and everything is drained, and
// returns the reason as an *Error. worked reports whether the router had sent its Welcome, and away
// is the least delay before the next stream.
func (r *runner) runStream(ctx context.Context) (worked bool, away time.Duration, err error) {
	token, err := r.token()
	if err != nil {
		return false, 0, err
	}
	conn, err := r.dialRouter()
	if err != nil {
		return false, 0, refusal(err)
	}
	defer func() { _ = conn.Close() }() // the stream is over; its error says more
	// The end of ctx aborts connecting; on an established stream it begins a drain.
	streamCtx, cut := context.WithCancelCause(r.hard)
	cancel := func() { cut(nil) }
	defer cancel()
	connected := context.AfterFunc(ctx, cancel)
	if token != "" {
		streamCtx = metadata.AppendToOutgoingContext(streamCtx, "authorization", "Bearer "+token)
	}
	wire, err := appv1.NewAppServiceClient(conn).Work(streamCtx, grpc.ForceCodecV2(appwire.Codec{})) //nolint:contextcheck // the stream outlives ctx: see above
	// After an error, too: otherwise each attempt at an absent router would wait for the end of ctx.
	established := connected()
	if err != nil {
		return false, 0, refusal(err)
	}
	if !established {
		return false, 0, context.Cause(ctx)
	}
	stopWaiting := context.AfterFunc(ctx, r.startGrace)
	defer stopWaiting()

	s := &stream{
		runner: r, wire: wire, conn: conn, wake: make(chan struct{}, 1), broken: make(chan struct{}),
		pingEvery: pingDefault, reasonMax: reasonMax, ongoing: make(map[uint64]struct{}),
	}
	r.begin(s)
	var goroutines sync.WaitGroup
	goroutines.Go(s.read)
	over := make(chan struct{})
	r.watches.Go(func() { s.watch(over, cut) })

	err = s.send(ctx)
	cancel()
	goroutines.Wait()
	r.end(s)
	close(over)
	if s.held != 0 {
		r.hooks.Window(0, s.session.InFlightMax)
	}
	if s.err != nil { // more precise than the sender's error, which is EOF
		err = s.err
	}
	return s.welcomed, s.away, s.failure(err, context.Cause(streamCtx)) //nolint:contextcheck // see above
}

// failure returns the error for a stream that has ended with err.
func (s *stream) failure(err, cut error) error {
	switch {
	case errors.Is(cut, ErrSilent):
		return &Error{Kind: ErrSilent}
	case errors.Is(err, ErrVersion):
		return err
	case s.goingAway:
		return &Error{Kind: ErrGoAway, Err: err}
	case s.welcomed:
		return &Error{Kind: ErrBroken, Err: err}
	}
	return refusal(err)
}

// begin makes s the stream whose deliveries start.
func (r *runner) begin(s *stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live = s
}

// end marks s as broken. Its handlers may continue until their deadline.
func (r *runner) end(s *stream) {
	r.mu.Lock()
	s.inbox.BreakOff()
	r.live = nil
	r.mu.Unlock()
	s.over.Store(true) // first, so that handlers that still run leave no states behind
	r.states.forget(s, func(uint32) bool { return true })
}

// watch cancels handlers whose deadline has passed, until over is closed and the last
// handler has returned. The ticker only wakes it up; the lease clock decides.
//
// It also breaks the stream when the router is silent. The sender cannot do that: it may
// hang in sending a frame that the router does not read. Silence is counted in ticks, since
// a machine that was asleep could not receive anything.
func (s *stream) watch(over <-chan struct{}, cut context.CancelCauseFunc) {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	r := s.runner
	for {
		select {
		case <-over:
			over = nil
		case <-ticker.C:
		}
		r.mu.Lock()
		lost := s.check()
		left := s.inbox.Started()
		s.silence += checkEvery
		silent := s.silence > silenceMax
		r.mu.Unlock()
		r.cancel(lost, ErrKeyLost)
		if silent {
			cut(ErrSilent) // the stream only: its handlers may continue until their deadlines
		}
		if over == nil && (left == 0 || r.base.Err() != nil) {
			return
		}
	}
}

// check returns the running deliveries whose deadline has passed: their handlers must be
// cancelled. The lock is held.
func (s *stream) check() (lost []*Event) {
	lost = s.inbox.Check(s.runner.clock.Now(), nil)
	s.runner.leftLate(lost)
	return lost
}

// overdue reports whether the deadline of a running delivery has passed, and then cancels all
// overdue handlers. The lock is taken only near the deadline.
func (s *stream) overdue(it *inbox.Item[Event]) bool {
	r := s.runner
	if now, _ := r.fast(); now.Before(clock.Instant(s.sure.Load())) {
		return false
	}
	r.mu.Lock()
	if r.clock.Now().Before(s.inbox.Deadline(it)) {
		r.mu.Unlock()
		return false
	}
	lost := s.check()
	r.mu.Unlock()
	r.cancel(lost, ErrKeyLost)
	return true
}

// passed reports whether the deadline of a running delivery has passed. Unlike overdue it cancels nothing.
func (s *stream) passed(it *inbox.Item[Event]) bool {
	r := s.runner
	if now, _ := r.fast(); now.Before(clock.Instant(s.sure.Load())) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.clock.Now().Before(s.inbox.Deadline(it))
}

// read receives frames until the stream ends.
func (s *stream) read() {
	defer close(s.broken)
	s.arrived.stream = s
	f := appwire.FromRouter{To: &s.arrived}
	for {
		err := s.wire.RecvMsg(&f)
		if err == nil {
			err = s.handle(&f)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				s.err = err // read by other goroutines only after the reader's end
			}
			return
		}
	}
}

// handle processes one received frame.
func (s *stream) handle(f *appwire.FromRouter) error {
	r := s.runner
	r.mu.Lock()
	s.silence = 0
	if f.Receipt > s.sent { // no result would follow it
		defer r.mu.Unlock()
		return fmt.Errorf("the router sent a receipt for Results frame %d, but only %d were sent", f.Receipt, s.sent)
	}
	if f.Other == nil && f.Number == 0 { // without a number the router could get no receipt for them
		defer r.mu.Unlock()
		return errors.New("the router sent deliveries without a number")
	}
	s.receiptIn = max(s.receiptIn, f.Receipt)
	var lost, slow []*Event
	var err error
	welcomed := s.welcomed
	if f.Other == nil {
		s.takenIn = f.Number
		for _, e := range s.arrived.events {
			s.inbox.Give(&e.run.item)
		}
	} else {
		lost, slow, err = s.control(f.Other)
	}
	r.wakeOne()
	now, _ := r.fast()
	s.tell(now)
	r.mu.Unlock()
	r.cancel(lost, ErrKeyLost)
	r.cancelSlow(slow, f.Other.GetRevoke().GetTimedOut())
	if s.welcomed != welcomed {
		r.connected(s.session) // before its first event
	}
	s.arrived.reset()
	return err
}

// control processes any frame but Deliveries. It returns the events whose deadline has passed,
// and those whose handler timed out. The lock is held.
func (s *stream) control(f *appv1.WorkResponse) (lost, slow []*Event, err error) {
	switch frame := f.GetFrame().(type) {
	case *appv1.WorkResponse_Welcome:
		return nil, nil, s.welcome(frame.Welcome)
	case *appv1.WorkResponse_Pong:
		p := frame.Pong
		lost = s.inbox.Pong(s.runner.clock.Now(), p.GetK(), time.Duration(p.GetRemainingNs()), p.GetDraining(), nil)
		s.runner.leftLate(lost)
		if until, all := s.inbox.Shared(); all {
			s.sure.Store(int64(until))
		}
		s.runner.clock.Renewed(s.inbox.Newest())
	case *appv1.WorkResponse_Revoke:
		slow = s.revoke(frame.Revoke)
	case *appv1.WorkResponse_Suspend:
		s.inbox.Suspend()
	case *appv1.WorkResponse_Resume:
		s.inbox.Resume()
	case *appv1.WorkResponse_GoAway:
		s.goingAway, s.away = true, time.Duration(frame.GoAway.GetRetryAfterMs())*time.Millisecond
		s.runner.log.Info("the router ends the stream", "reason", frame.GoAway.GetReason())
	}
	return lost, slow, nil
}

func (s *stream) welcome(w *appv1.Welcome) error {
	if w.GetVersion() != version {
		return &Error{Kind: ErrVersion, Err: fmt.Errorf("the router chose %d, this SDK supports %d", w.GetVersion(), version)}
	}
	o := &s.runner.options
	if !s.welcomed {
		s.intervals = slices.Contains(w.GetCapabilities(), appwire.Intervals)
	}
	s.welcomed = true
	s.session = Session{Node: w.GetNode(), Group: w.GetGroup(), Worker: w.GetWorker(), InFlightMax: o.maxInFlight}
	if n := int(w.GetLimits().GetMaxInFlight()); n > 0 {
		s.session.InFlightMax = min(n, o.maxInFlight)
	}
	if ms := w.GetLimits().GetPingIntervalMs(); ms > 0 {
		s.pingEvery = time.Duration(ms) * time.Millisecond
	}
	if n := w.GetLimits().GetReasonMaxBytes(); n > 0 {
		s.reasonMax = int(n)
	}
	o.log.Info("connected to the router", "node", w.GetNode(), "group", w.GetGroup(), "worker", w.GetWorker())
	return nil
}

// revoke takes back partitions, whose handlers may continue until their deadline, and single
// deliveries whose handler timed out. It returns the running events among the latter.
func (s *stream) revoke(r *appv1.Revoke) (slow []*Event) {
	if partitions := setOf(r.GetPartitions()); r.GetAll() || len(partitions) > 0 {
		s.inbox.Revoke(func(it *inbox.Item[Event]) bool { return r.GetAll() || partitions[it.Partition] })
		s.runner.states.forget(s, func(p uint32) bool { return r.GetAll() || partitions[p] })
	}
	if single := setOf(r.GetDeliveryIds()); len(single) > 0 {
		slow = s.inbox.Cut(func(it *inbox.Item[Event]) bool { return single[uint64(it.ID)] }, nil)
		s.runner.leftLate(slow)
	}
	return slow
}

func setOf[T comparable](values []T) map[T]bool {
	set := make(map[T]bool, len(values))
	for _, v := range values {
		set[v] = true
	}
	return set
}

// notify wakes the sender.
func (s *stream) notify() {
	signal.Set(s.wake)
}

// holdFor bounds how long a receipt or a result waits to share a frame.
const holdFor = 200 * time.Microsecond

// tell wakes the sender if it may send something: results, of which one frame is in flight
// at a time, or the receipt, which requests the next deliveries. Both wait up to holdFor
// while a woken goroutine has not taken its event yet: it calls tell again within
// microseconds, and most handlers end soon, so that one frame replaces three. The lock is
// held.
func (s *stream) tell(now clock.Instant) {
	if s.inbox.Draining() {
		s.notify()
		return
	}
	if s.receiptOut == s.takenIn && (s.receiptIn != s.sent || len(s.inbox.Results) == 0) {
		return
	}
	if s.holding == 0 {
		s.holding = now
	}
	if !s.runner.waking || now.Sub(s.holding) >= holdFor {
		s.notify()
	}
}

// progress queues a Progress for e.
func (s *stream) progress(e *Event) {
	s.runner.mu.Lock()
	defer s.runner.mu.Unlock()
	s.ongoing[uint64(e.run.item.ID)] = struct{}{}
	s.notify()
}

func (s *stream) deadlineOf(e *Event) clock.Instant {
	s.runner.mu.Lock()
	defer s.runner.mu.Unlock()
	return s.inbox.Deadline(&e.run.item)
}

// send sends frames until the stream breaks, or until ctx has ended and the router has
// received all results.
func (s *stream) send(ctx context.Context) error {
	if err := s.introduce(); err != nil {
		return err
	}
	pings := time.NewTicker(pingDefault)
	defer pings.Stop()
	every := pingDefault
	done, draining := ctx.Done(), false // done is also nil for a context that never ends
	for {
		select {
		case <-s.broken:
			return nil
		case <-done:
			done, draining = nil, true
			if err := s.drain(); err != nil {
				return err
			}
		case <-pings.C:
			if err := s.ping(); err != nil {
				return err
			}
		case <-s.wake:
		}
		if d := s.interval(); d != every {
			every = d
			pings.Reset(d)
		}
		if err := s.flush(); err != nil {
			return err
		}
		s.tellWindow()
		if draining && s.drained() {
			return s.closeSend()
		}
	}
}

// tellWindow calls the Window hook if the number of unanswered events has changed.
func (s *stream) tellWindow() {
	r := s.runner
	if r.hooks.Window == nil {
		return
	}
	r.mu.Lock()
	held := s.inbox.Held()
	r.mu.Unlock()
	if held != s.held {
		s.held = held
		r.hooks.Window(held, s.session.InFlightMax) // the session does not change once events come
	}
}

func (s *stream) interval() time.Duration {
	s.runner.mu.Lock()
	defer s.runner.mu.Unlock()
	return s.pingEvery
}

// introduce sends Hello, followed by a Ping, so that the first deliveries need not wait for
// their deadline.
func (s *stream) introduce() error {
	o := &s.runner.options
	err := s.wire.SendMsg(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Hello{Hello: &appv1.Hello{
		Worker: o.name, MaxInFlight: uint32(o.maxInFlight), Sdk: sdkName, VersionMin: version, VersionMax: version,
		Capabilities: o.capabilities(), Schedules: o.schedules,
	}}})
	if err != nil {
		return err
	}
	return s.ping()
}

// capabilities returns the optional features that Hello announces to the router.
func (o *options) capabilities() []string {
	list := []string{appwire.Conformant}
	if !clock.Slewable() {
		list = append(list, appwire.RawClock)
	}
	if len(o.calls) > 0 {
		list = append(list, appwire.Calls)
	}
	if o.stateMax > 0 {
		list = append(list, appwire.State)
	}
	return list
}

// ping requests new deadlines. The clock is read before the frame is sent: deadlines count
// from that instant.
func (s *stream) ping() error {
	r := s.runner
	r.mu.Lock()
	k := s.inbox.SendPing(r.clock.Now())
	r.mu.Unlock()
	return s.wire.SendMsg(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Ping{Ping: &appv1.Ping{K: k}}})
}

// drain tells the router to send no further deliveries.
func (s *stream) drain() error {
	s.runner.mu.Lock()
	s.inbox.Drain()
	s.runner.mu.Unlock()
	return s.wire.SendMsg(&appv1.WorkRequest{Frame: &appv1.WorkRequest_Drain{Drain: &appv1.Drain{
		Reason: "the application ends", Node: s.runner.leaveGroup,
	}}})
}

// drained reports whether nothing runs and the router has all results.
func (s *stream) drained() bool {
	s.runner.mu.Lock()
	defer s.runner.mu.Unlock()
	return s.inbox.Started() == 0 && len(s.inbox.Results) == 0 && s.receiptIn == s.sent
}

// closeSend ends the stream in order: the router closes its side when it has read
// everything.
func (s *stream) closeSend() error {
	if err := s.wire.CloseSend(); err != nil {
		return err
	}
	<-s.broken // at the latest when the end of the grace cancels the stream
	return nil
}

// flush sends pending results, progress and receipts.
func (s *stream) flush() error {
	runtime.Gosched() // lets handlers that are about to end add their results to the frame
	for {
		msg := s.next()
		if msg == nil {
			return nil
		}
		if err := s.wire.SendMsg(msg); err != nil {
			return err
		}
	}
}

// next returns the next frame, or nil. At most one Results frame is in flight without a
// receipt; results accumulate meanwhile.
func (s *stream) next() any {
	r := s.runner
	r.mu.Lock()
	defer r.mu.Unlock()
	s.holding = 0
	switch {
	case len(s.ongoing) > 0:
		ids := slices.Collect(maps.Keys(s.ongoing))
		clear(s.ongoing)
		s.receiptOut = s.takenIn
		return &appv1.WorkRequest{Receipt: s.takenIn, Frame: &appv1.WorkRequest_Progress{Progress: &appv1.Progress{DeliveryIds: ids}}}
	case len(s.inbox.Results) > 0 && s.receiptIn == s.sent:
		s.sent++
		s.results.Number, s.results.Receipt, s.receiptOut = s.sent, s.takenIn, s.takenIn
		s.takeResults()
		return &s.results
	case s.receiptOut < s.takenIn:
		s.receiptOut = s.takenIn
		return &appv1.WorkRequest{Receipt: s.takenIn}
	}
	return nil
}

// resultBytesMax bounds a Results frame.
const resultBytesMax = 1 << 20

// takeResults moves results into the frame, as many as fit. The lock is held.
func (s *stream) takeResults() {
	all := s.inbox.Results
	n := 0
	for size := 0; n < len(all); n++ {
		all[n].Reason = cutReason(all[n].Reason, s.reasonMax)
		size += 64 + len(all[n].Reason)
		if r := all[n].Reply; r != nil {
			size += len(r.Payload) + len(r.Code)
		}
		if n > 0 && size > resultBytesMax {
			break
		}
	}
	rest := append(s.results.Results[:0], all[n:]...) // into the buffer of the previous frame
	s.results.Results, s.inbox.Results = all[:n], rest
}
