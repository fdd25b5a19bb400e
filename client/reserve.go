package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

// Reservation is a key that this process holds: until Release or the end of Context no handler of the key runs, and no other process holds it.
// Its methods are safe for concurrent use.
type Reservation struct {
	lane *Lane
	key  string
	id   []byte
	path []uint64

	ctx      context.Context //nolint:containedctx // the reservation's own, for its holder
	lost     context.CancelCauseFunc
	ttl      time.Duration // 0: not covered
	released chan struct{} // closed by Release
	ended    chan struct{} // closed when the goroutine has ended

	tellReleased func()

	every time.Duration // until the next renewal; used by one goroutine at a time

	mu    sync.Mutex // guards the fields below
	fence Fence
	until clock.Instant            // when the reservation ends without a further renewal
	pings map[uint64]clock.Instant // renewals without an answer, by number: when they were sent
	k     uint64                   // number of the newest renewal

	silentSince clock.Instant // when the first request since the newest frame was sent; 0: there was none
}

// ErrNotReserved is the kind of a [CallError] of Reserve: the key was not reserved. The code says why: [CodeTimeout] if the key was not free in time,
// or another code of ErrNotRun.
var ErrNotReserved = errors.New("client: the key is not reserved")

// CodeNotExclusive is the code of a refusal by a group in which two members may own a key (ownership.mode gossip).
const CodeNotExclusive = event.CodeNotExclusive

// A ReserveOption configures one reservation.
type ReserveOption func(*lanev1.Ask)

// WithWait sets how long Reserve waits for the key: up to an hour, and until the end of its context. By default it does
// not wait. In addition it waits up to five seconds for a connection to the router with room for the request, and as
// long for the answer.
func WithWait(d time.Duration) ReserveOption {
	return func(a *lanev1.Ask) { a.WaitMs = uint64(max(0, d.Milliseconds())) }
}

// CodeNotCovered is the code of a refusal of a reservation with a ttl: the group cannot promise it. All its routers must know covered
// reservations, and the group must not have 1,024 of them.
const CodeNotCovered = event.CodeNotCovered

// WithTTL makes the reservation last for d from each renewal on, 5 seconds to 5 minutes, even if the owner of the key
// dies or the key moves meanwhile: the control log records the reservation, and no later owner gives the key to
// another holder or handler within d. The reservation is renewed six times in d, at least every 10 seconds. If its
// holder dies, the key is free only after d. Reserve returns when the control log has recorded the reservation.
func WithTTL(d time.Duration) ReserveOption {
	// The router refuses a ttl that is too short; 0 would be a reservation without a ttl.
	return func(a *lanev1.Ask) { a.TtlMs = uint32(min(max(1, d.Milliseconds()), math.MaxUint32)) }
}

// renewEvery is the longest interval of renewals. It is shorter with the short leases of ownership.profile fast: a third of what the last
// answer gave, so that one renewal may fail.
const (
	renewEvery = 500 * time.Millisecond
	renewLeast = 20 * time.Millisecond

	renewCoveredEvery = 10 * time.Second      // the longest interval of a covered reservation
	coverEvery        = 50 * time.Millisecond // the longest interval while Reserve waits for the control log
	coverFirst        = 4 * time.Millisecond  // the first interval then; each further one is twice as long
)

// unheardMax bounds the renewals of a covered reservation in a row without any answer. When the next one is due, the
// SDK gives the connection up, with half of the ttl left. A reservation without a ttl is too short for that: it is
// lost first, and then the SDK gives the connection up.
const unheardMax = 2

// openGrace limits the wait for a stream, in addition to the wait for the key, and the wait for the answer.
const openGrace = 5 * time.Second

// redialLeast is how long the next stream of a reservation is waited for at least. Then it gets another connection:
// with a ttl after a third of what is left of the permission, if that is longer, and after openGrace at most.
const redialLeast = time.Second

// beginMax limits the wait for permission to begin after the grant.
const beginMax = 10 * time.Second

// releaseGrace bounds the wait for the router's answer to the release of a reservation that Reserve does not return.
const releaseGrace = 500 * time.Millisecond

// Reserve reserves a key. The reservation is renewed in the background until Release; it is lost, and its context cancelled with the cause
// [ErrKeyLost], if the owner of the key cannot be reached for about a lease (two seconds by default), dies, or gives the key up. With [WithTTL] it is
// lost only if no owner can be reached within the ttl. It lasts an hour at most at one owner.
// Stop working when the context ends, and pass the fence to your database with every write. The error is a [*CallError] of the kind
// [ErrNotReserved]. When ctx ends first, Reserve returns up to half a second later, since it releases a reservation that may have been granted.
//
// A router takes some 100 calls and reservations at a time on one connection. A further one fails with the code [CodeOverloaded]: use another Lane.
//
// Pass the context of a handler if you call from one: a reservation of the handler's own key is refused with the code [CodeCycle].
func (l *Lane) Reserve(ctx context.Context, key string, opts ...ReserveOption) (*Reservation, error) {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	r := &Reservation{
		lane: l, key: key, id: id, path: pathOf(ctx), released: make(chan struct{}), ended: make(chan struct{}), pings: make(map[uint64]clock.Instant),
		every: renewEvery,
	}
	r.tellReleased = sync.OnceFunc(func() { close(r.released) })
	ask := &lanev1.Ask{Key: []byte(key), Id: id, Path: r.path, RawClock: !clock.Slewable()}
	for _, opt := range opts {
		opt(ask)
	}
	if err := checkSize(&lanev1.ReserveRequest{Frame: &lanev1.ReserveRequest_Ask{Ask: ask}}, 0); err != nil {
		return nil, &CallError{Kind: ErrNotReserved, Code: CodeTooLarge, Text: err.Error()}
	}
	r.ttl = time.Duration(ask.GetTtlMs()) * time.Millisecond
	r.ctx, r.lost = context.WithCancelCause(context.WithoutCancel(ctx))
	wait, begun := ask.GetWaitMs(), l.options.clock.Now()
	open := within(wait, openGrace)
	s, err := r.ask(ctx, ask, open)
	for pauses := (backoff.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond}); isCrowded(err); s, err = r.ask(ctx, ask, open) {
		if backoff.Sleep(ctx, pauses.Next()) != nil {
			break
		}
		waited := max(0, l.options.clock.Now().Sub(begun))
		if open = within(wait, openGrace) - waited; open <= 0 {
			break
		}
		ask.WaitMs = wait - min(wait, uint64(waited.Milliseconds()))
	}
	if ctx.Err() != nil && err != nil {
		err = &CallError{Kind: ErrNotReserved, Code: CodeTimeout, Text: context.Cause(ctx).Error(), Err: context.Cause(ctx)}
	}
	if err != nil {
		r.lost(err)
		return nil, err
	}
	go r.keep(s) //nolint:contextcheck // it outlasts the context; Release ends it, and waits for it
	return r, nil
}

// ask makes one attempt: it opens a stream, for at most open, asks, and waits for the grant.
func (r *Reservation) ask(ctx context.Context, ask *lanev1.Ask, open time.Duration) (*holderStream, error) {
	s, streamCtx := r.newStream(ctx)
	begun := r.lane.options.clock.Now()
	err := s.openWithin(ctx, streamCtx, open)
	if err == nil {
		ask.WaitMs -= min(ask.GetWaitMs(), uint64(max(0, r.lane.options.clock.Now().Sub(begun)).Milliseconds()))
		err = s.begin(streamCtx, ask)
	}
	if err == nil {
		err = s.await(ctx, within(ask.GetWaitMs(), openGrace))
	}
	if err != nil {
		s.end()
	}
	return s, err
}

// isCrowded reports whether the router refused a request unread, because too many calls were just beginning.
func isCrowded(err error) bool { return errors.Is(err, ErrTooManyWorkers) }

// Context ends when the reservation does: with the cause [ErrKeyLost] if it is lost, with context.Canceled after Release. It has the values of the
// context of Reserve, but does not end with it.
//
// Its Err reads the clock, as Err of a handler's context does: call it before a write that must not be late.
func (r *Reservation) Context() context.Context { return reservedContext{r.ctx, r} }

// reservedContext is the context of a reservation.
type reservedContext struct {
	context.Context //nolint:containedctx // it is one

	reservation *Reservation
}

// Err implements context.Context. It reports a passed deadline even before the watch does, for example in a process that was just resumed.
func (c reservedContext) Err() error {
	if err := c.Context.Err(); err != nil || !c.reservation.overdue() {
		return err
	}
	c.reservation.expire()
	return c.Context.Err()
}

// Fence is greater than that of any earlier delivery, call or reservation of the key. The fence of a reservation with a ttl grows when the key
// gets another owner; your database accepts the earlier fence until it has seen the greater one.
func (r *Reservation) Fence() Fence {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fence
}

// Until returns the time at which the reservation ends if no further renewal succeeds, by the clock of this machine.
func (r *Reservation) Until() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Add(r.until.Sub(r.lane.options.clock.Now())) //nolint:forbidigo // wall time, for the caller
}

// Release ends the reservation and waits until its owner has confirmed that, at most for as long as the reservation would have lasted without
// a renewal. If the connection is broken, Release connects again, unless the Lane is closed. Context ends immediately. Further calls only wait.
func (r *Reservation) Release() {
	r.tellReleased()
	<-r.ended
}

// holderStream is one stream of a reservation.
type holderStream struct {
	*Reservation
	stream lanev1.LaneService_ReserveClient
	asked  clock.Instant // when the Ask was sent
	frames chan *lanev1.ReserveResponse
	end    context.CancelFunc // ends the stream
	err    error              // why frames is closed

	granted bool // the owner has answered on this stream; until then silence is normal
	unheard int  // renewals since the newest frame
}

// newStream returns a stream that is not open yet, and its context.
func (r *Reservation) newStream(ctx context.Context) (s *holderStream, streamCtx context.Context) {
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &holderStream{Reservation: r, frames: make(chan *lanev1.ReserveResponse, 1), end: cancel}, streamCtx
}

// openWithin opens the stream, until ctx ends and for at most most: gRPC waits without a limit if the connection has no room for a stream.
func (s *holderStream) openWithin(ctx, streamCtx context.Context, most time.Duration) error {
	limit, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	stop := context.AfterFunc(limit, s.end)
	begun := s.lane.options.clock.Now()
	connected, err := s.open(streamCtx)
	switch {
	case stop():
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !connected:
		s.lane.conn.silent(begun)
		return &CallError{Kind: ErrNotReserved, Code: CodeUnreachable, Text: fmt.Sprintf("no connection to the router in %v", most)}
	}
	return &CallError{Kind: ErrNotReserved, Code: CodeOverloaded, Text: fmt.Sprintf("the connection had no free stream for %v: other calls and reservations use them all", most)}
}

// open opens the stream. It waits for a connection: until one attempt to make it has failed, or the stream is ended.
// connected reports whether there was one.
func (s *holderStream) open(ctx context.Context) (connected bool, err error) {
	ctx, err = s.lane.options.authorized(ctx)
	if err != nil {
		return false, notReserved(err)
	}
	var had connection
	if s.stream, err = s.lane.service.Reserve(ctx, grpc.PerRPCCredentials(&had)); err != nil {
		err = notReserved(err)
	}
	return had.Load(), err
}

// begin asks, on an open stream.
func (s *holderStream) begin(ctx context.Context, ask *lanev1.Ask) error {
	s.asked = s.lane.options.clock.Now()
	s.mu.Lock()
	s.silentSince = s.asked
	s.mu.Unlock()
	err := s.stream.Send(&lanev1.ReserveRequest{Frame: &lanev1.ReserveRequest_Ask{Ask: ask}})
	if errors.Is(err, io.EOF) { // the router has ended the stream, and says why
		_, err = s.stream.Recv()
	}
	if err != nil {
		return notReserved(err)
	}
	go s.read(ctx)
	return nil
}

// read passes the router's frames on to s.frames, until the stream ends.
func (s *holderStream) read(ctx context.Context) {
	defer close(s.frames)
	for {
		f, err := s.stream.Recv()
		if err != nil {
			s.err = err
			return
		}
		s.mu.Lock()
		s.silentSince = 0
		s.mu.Unlock()
		select {
		case s.frames <- f:
		case <-ctx.Done():
			s.err = ctx.Err()
			return
		}
	}
}

// notReserved returns the error of an ask that the router has not answered.
func notReserved(err error) error {
	code, kind := CodeUnreachable, refusal(err)
	switch {
	case status.Code(err) == codes.ResourceExhausted:
		code = CodeOverloaded
	case errors.Is(err, ErrUnauthenticated), errors.Is(kind, ErrUnauthenticated), isRefusal(err):
		code = ""
	}
	return &CallError{Kind: ErrNotReserved, Code: code, Text: status.Convert(err).Message(), Err: kind}
}

// await waits for the grant, for at most most, and then for permission to begin.
func (s *holderStream) await(ctx context.Context, most time.Duration) error {
	late := time.NewTimer(most)
	defer late.Stop()
	renewals := time.NewTicker(renewEvery)
	defer renewals.Stop()
	pauses := backoff.Backoff{Min: coverFirst, Max: coverEvery}
	for {
		select {
		case <-ctx.Done():
			s.release()
			s.drain()
			return context.Cause(ctx)
		case <-late.C:
			s.release()
			s.drain()
			s.lane.conn.silent(s.asked)
			return &CallError{Kind: ErrNotReserved, Code: CodeUnreachable, Text: "the router has not answered in time"}
		case <-renewals.C:
			if !s.granted {
				continue
			}
			s.renew()
			if s.ttl > 0 {
				renewals.Reset(pauses.Next())
			}
		case f, ok := <-s.frames:
			if !ok {
				return notReserved(s.err)
			}
			if over := f.GetOver(); over != nil {
				return &CallError{
					Kind: ErrNotReserved, Code: over.GetCode(), Text: over.GetText(), RetryAfter: time.Duration(over.GetRetryAfterMs()) * time.Millisecond,
				}
			}
			if f.GetGranted() != nil && !s.granted {
				s.granted = true
				late.Reset(beginMax)
				if s.ttl > 0 {
					renewals.Reset(pauses.Next())
				}
			}
			if s.extend(f) && (s.ttl == 0 || f.GetRenewed().GetCovered()) {
				return nil
			}
			if f.GetGranted() != nil {
				s.renew() // the grant took long
			}
		}
	}
}

// extend takes new permission. It reports whether the holder may work now.
func (s *holderStream) extend(f *lanev1.ReserveResponse) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.lane.options.clock.Now()
	var until clock.Instant
	if g := f.GetGranted(); g != nil {
		// A deposed owner that does not know of its deposition yet answers with its own fence, and no permission.
		if fence := (Fence{Token: g.GetToken(), Turn: g.GetTurn()}); s.fence.Before(fence) {
			s.fence = fence
		}
		// The wait for the permission has used up part of it, or all. With little left the holder renews before it begins.
		if remaining := time.Duration(g.GetRemainingNs()); s.asked.Add(remaining).Sub(now) > remaining/2 {
			until = s.asked.Add(remaining)
		}
	}
	if a := f.GetRenewed(); a != nil {
		if at, known := s.pings[a.GetK()]; known && a.GetRemainingNs() > 0 {
			until = at.Add(time.Duration(a.GetRemainingNs()))
		}
		for k := range s.pings {
			if k <= a.GetK() {
				delete(s.pings, k)
			}
		}
	}
	if s.until != 0 && !now.Before(s.until) {
		return false // a passed deadline is never extended
	}
	if until > s.until && now.Before(until) {
		s.until = until
	}
	// At a next owner a covered reservation first has the permission of a live one, and must be renewed as often.
	switch {
	case s.ttl > 0 && f.GetRenewed().GetCovered():
		s.every = max(renewLeast, min(renewCoveredEvery, s.ttl/6))
	case f.GetGranted() != nil || until == s.until:
		s.every = max(renewLeast, min(renewEvery, s.until.Sub(now)/3))
	}
	return s.until != 0
}

// pingsMax bounds the renewals without an answer.
const pingsMax = 64

// renew asks for new permission.
func (s *holderStream) renew() {
	s.mu.Lock()
	s.k++
	k := s.k
	if len(s.pings) < pingsMax {
		s.pings[k] = s.lane.options.clock.Now()
	}
	s.mu.Unlock()
	s.noteSent()
	_ = s.stream.Send(&lanev1.ReserveRequest{Frame: &lanev1.ReserveRequest_Renew{Renew: &lanev1.Renew{K: k}}}) // the reader learns why
}

// keep renews the reservation until it is released or lost. A release is sent to the router, and to another router if
// the first does not answer, for as long as the permission lasts: then the key is free without it.
func (r *Reservation) keep(s *holderStream) {
	defer close(r.ended)
	renewals := time.NewTicker(r.every)
	defer renewals.Stop()
	watch := time.NewTicker(checkEvery)
	defer watch.Stop()
	again := backoff.Backoff{Min: 20 * time.Millisecond, Max: renewEvery}
	var redial, slow <-chan time.Time
	var next *holderStream        // being opened
	var nextSince clock.Instant   // since then
	opened := make(chan error, 1) // of next
	defer func() {
		s.end()
		if next != nil {
			next.end()
			<-opened //nolint:errcheck // opened or not, it is ended
		}
	}()
	released := r.released // nil after the release
	for {
		select {
		case <-released:
			released = nil
			r.lost(context.Canceled)
			s.release()
		case <-watch.C:
			if r.overdue() {
				r.expire()
				return
			}
		case <-renewals.C:
			switch {
			case released == nil:
			case s.ttl > 0 && s.granted && s.unheard >= unheardMax:
				r.giveUpSilent()
				s.end() // its frames end, too
			default:
				s.unheard++
				s.renew()
			}
		case <-redial:
			redial = nil
			var streamCtx context.Context
			next, streamCtx = r.newStream(r.ctx)
			nextSince, slow = r.lane.options.clock.Now(), time.After(max(redialLeast, min(openGrace, r.left()/3)))
			go func(s *holderStream) { // opening may take longer than the permission lasts
				_, err := s.open(streamCtx)
				if err == nil {
					err = s.begin(streamCtx, r.askAgain())
				}
				if err != nil {
					s.end()
				}
				opened <- err
			}(next)
		case <-slow: // another attempt may meet a router that answers
			slow = nil
			r.lane.conn.silent(nextSince)
			next.end()
		case err := <-opened:
			slow = nil
			switch {
			case err == nil:
				s.end()
				s = next
			case released == nil && r.lane.conn.isClosed(): // the release can be told to nobody
				next = nil
				return
			default:
				redial = time.After(again.Next())
			}
			next = nil
		case f, ok := <-s.frames:
			s.granted, s.unheard = s.granted || f.GetGranted() != nil, 0
			switch {
			case !ok: // the stream broke; the reservation continues until its deadline
				s.frames, redial = nil, time.After(again.Next())
			case f.GetOver() != nil:
				r.lost(fmt.Errorf("%w: %s", ErrKeyLost, f.GetOver().GetText()))
				return
			case released == nil:
				if f.GetGranted() != nil { // the owner has answered on a new stream: before that, its router would not have sent the release on
					s.release()
				}
			default:
				again.Reset()
				s.extend(f)
				renewals.Reset(s.every)
				if f.GetGranted() != nil {
					s.renew()
				}
			}
		}
	}
}

// askAgain asks to continue the reservation. If it is covered, its owner may have died: askAgain waits for the next owner
// as long as the permission lasts.
func (r *Reservation) askAgain() *lanev1.Ask {
	ask := &lanev1.Ask{Key: []byte(r.key), Id: r.id, Resume: true, Path: r.path, RawClock: !clock.Slewable(), TtlMs: uint32(r.ttl.Milliseconds())}
	if r.ttl > 0 {
		ask.WaitMs = uint64(r.left().Milliseconds())
	}
	return ask
}

// left returns what is left of the permission.
func (r *Reservation) left() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(0, r.until.Sub(r.lane.options.clock.Now()))
}

// release sends the release to the router. The end of the stream, or Over, has the result.
func (s *holderStream) release() {
	s.noteSent()
	_ = s.stream.Send(&lanev1.ReserveRequest{Frame: &lanev1.ReserveRequest_Release{Release: &lanev1.Release{}}})
}

// drain waits until the router has answered a release. If the stream ended before the release arrived, the reservation would last
// until its permission has passed: with a ttl, for the whole ttl.
func (s *holderStream) drain() {
	grace := time.NewTimer(releaseGrace)
	defer grace.Stop()
	for {
		select {
		case f, ok := <-s.frames:
			if !ok || f.GetOver() != nil {
				return
			}
		case <-grace.C:
			return
		}
	}
}

// noteSent notes that a request is sent.
func (r *Reservation) noteSent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.silentSince == 0 {
		r.silentSince = r.lane.options.clock.Now()
	}
}

// giveUpSilent replaces the connection if a request of the reservation had no answer, and nothing else was heard on it since.
func (r *Reservation) giveUpSilent() {
	r.mu.Lock()
	since := r.silentSince
	r.mu.Unlock()
	if since != 0 {
		r.lane.conn.silent(since)
	}
}

// expire ends a reservation whose permission has passed. The next one gets another connection if this one is dead. After a release it has no other effect.
func (r *Reservation) expire() {
	r.giveUpSilent()
	r.lost(ErrKeyLost)
}

// overdue reports whether the permission has passed.
func (r *Reservation) overdue() bool { return r.left() == 0 }
