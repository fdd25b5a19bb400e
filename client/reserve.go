package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

// Reservation is a key that this process holds: no handler of the key runs, and nobody else holds it, until Release or the end of Context.
// Its methods are safe for concurrent use.
type Reservation struct {
	lane *Lane
	key  string
	id   []byte
	path []uint64

	ctx      context.Context //nolint:containedctx // the reservation's own, for its holder
	lost     context.CancelCauseFunc
	fence    Fence
	released chan struct{} // closed by Release
	release  func()
	ended    chan struct{} // closed when the goroutine has ended

	every time.Duration // until the next renewal; used by one goroutine at a time

	mu    sync.Mutex // guards the fields below
	until clock.Instant
	pings map[uint64]clock.Instant // renewals without an answer
	k     uint64
}

// ErrNotReserved is the kind of a [CallError] of Reserve: the key was not reserved. The code says why: [CodeTimeout] if it was not free in time,
// or another one of those of ErrNotRun.
var ErrNotReserved = errors.New("client: the key is not reserved")

// CodeNotExclusive is the code of a refusal by a group in which two members may own a key (ownership.mode gossip).
const CodeNotExclusive = "not_exclusive"

// A ReserveOption configures one reservation.
type ReserveOption func(*lanev1.Ask)

// WithWait sets how long Reserve waits for the key: up to an hour, and until the end of its context. By default it does not wait.
func WithWait(d time.Duration) ReserveOption {
	return func(a *lanev1.Ask) { a.WaitMs = uint64(max(0, d.Milliseconds())) }
}

// renewEvery is the longest interval of renewals. It is shorter with the short leases of ownership.profile fast: a third of what the last
// answer gave, so that one renewal may fail.
const (
	renewEvery = 500 * time.Millisecond
	renewLeast = 20 * time.Millisecond
)

// Reserve reserves a key. The reservation is renewed in the background until Release; it is lost, and its context cancelled with the cause
// [ErrKeyLost], if the owner of the key cannot be reached for about a lease (two seconds by default), dies, or gives the key up. It lasts an hour at most.
// Stop working when the context ends, and pass the fence to your database with every write. The error is a [*CallError] of the kind
// [ErrNotReserved].
//
// Pass the context of a handler if you call from one: a reservation of its own key is refused with the code [CodeCycle].
func (l *Lane) Reserve(ctx context.Context, key string, opts ...ReserveOption) (*Reservation, error) {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	r := &Reservation{
		lane: l, key: key, id: id, path: pathOf(ctx), released: make(chan struct{}), ended: make(chan struct{}), pings: make(map[uint64]clock.Instant),
		every: renewEvery,
	}
	r.release = sync.OnceFunc(func() { close(r.released) })
	ask := &lanev1.Ask{Key: []byte(key), Id: id, Path: r.path, RawClock: !clock.Slewable()}
	for _, opt := range opts {
		opt(ask)
	}
	r.ctx, r.lost = context.WithCancelCause(context.WithoutCancel(ctx))
	s, of := r.newStream(ctx)
	stop := context.AfterFunc(ctx, s.end) // to open may take long
	err := s.open(of, ask)
	stop()
	if err == nil {
		err = s.await(ctx)
	}
	if ctx.Err() != nil && err != nil {
		err = &CallError{Kind: ErrNotReserved, Code: CodeTimeout, Text: context.Cause(ctx).Error(), Err: context.Cause(ctx)}
	}
	if err != nil {
		s.end()
		r.lost(err)
		return nil, err
	}
	go r.keep(s) //nolint:contextcheck // it outlasts the context; Release ends it, and waits for it
	return r, nil
}

// Context ends when the reservation does: with the cause [ErrKeyLost] if it is lost, with context.Canceled after Release. It has the values of the
// context of Reserve, but does not end with it.
//
// Its Err reads the clock itself, as that of a handler's context does: call it before a write that must not be late.
func (r *Reservation) Context() context.Context { return reservedContext{r.ctx, r} }

// reservedContext is the context of a reservation.
type reservedContext struct {
	context.Context //nolint:containedctx // it is one

	reservation *Reservation
}

// Err implements context.Context. It reports a passed deadline even before the watch does, as when the process has just thawed.
func (c reservedContext) Err() error {
	if err := c.Context.Err(); err != nil || !c.reservation.overdue() {
		return err
	}
	c.reservation.lost(ErrKeyLost)
	return c.Context.Err()
}

// Fence is greater than that of any earlier delivery, call or reservation of the key.
func (r *Reservation) Fence() Fence { return r.fence }

// Until is how long the reservation lasts if it is not renewed any more, by the clock of this machine.
func (r *Reservation) Until() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Add(r.until.Sub(r.lane.options.clock.Now())) //nolint:forbidigo // wall time, for the caller
}

// Release ends the reservation and waits until its router knows. Further calls do nothing.
func (r *Reservation) Release() {
	r.release()
	<-r.ended
}

// holding is one stream of a reservation.
type holding struct {
	*Reservation
	stream lanev1.LaneService_ReserveClient
	asked  clock.Instant
	frames chan *lanev1.ReserveResponse
	end    context.CancelFunc
	err    error // why frames is closed
}

// newStream returns a stream that is not open yet, and its context.
func (r *Reservation) newStream(ctx context.Context) (s *holding, of context.Context) {
	of, cancel := context.WithCancel(context.WithoutCancel(ctx))
	return &holding{Reservation: r, frames: make(chan *lanev1.ReserveResponse, 1), end: cancel}, of
}

// open opens the stream, and asks. It waits for a connection: until one attempt to make it has failed, or the stream is ended.
func (s *holding) open(ctx context.Context, ask *lanev1.Ask) error {
	ctx, err := s.lane.authorized(ctx)
	if err == nil {
		s.asked = s.lane.options.clock.Now()
		s.stream, err = s.lane.service.Reserve(ctx)
	}
	if err == nil {
		err = s.stream.Send(&lanev1.ReserveRequest{Frame: &lanev1.ReserveRequest_Ask{Ask: ask}})
	}
	if err != nil {
		s.end()
		return notReserved(err)
	}
	go s.read(ctx)
	return nil
}

func (s *holding) read(ctx context.Context) {
	defer close(s.frames)
	for {
		f, err := s.stream.Recv()
		if err != nil {
			s.err = err
			return
		}
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
	case errors.Is(err, ErrUnauthenticated), errors.Is(kind, ErrUnauthenticated), status.Code(err) != codes.Unavailable && isRefusal(err):
		code = ""
	}
	return &CallError{Kind: ErrNotReserved, Code: code, Text: status.Convert(err).Message(), Err: kind}
}

// await waits for the grant, and for permission to begin.
func (s *holding) await(ctx context.Context) error {
	renewals := time.NewTicker(renewEvery)
	defer renewals.Stop()
	granted := false
	for {
		select {
		case <-ctx.Done():
			_ = s.stream.Send(&lanev1.ReserveRequest{Frame: &lanev1.ReserveRequest_Release{Release: &lanev1.Release{}}}) // otherwise its end tells
			return context.Cause(ctx)
		case <-renewals.C:
			if granted {
				s.renew()
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
			if g := f.GetGranted(); g != nil {
				granted, s.fence = true, Fence{Token: g.GetToken(), Turn: g.GetTurn()}
			}
			if s.extend(f) {
				return nil
			}
			if granted && f.GetGranted() != nil {
				s.renew() // it took long until the grant
			}
		}
	}
}

// extend takes new permission. It reports whether the holder may work now.
func (s *holding) extend(f *lanev1.ReserveResponse) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.lane.options.clock.Now()
	var until clock.Instant
	if g := f.GetGranted(); g != nil {
		// The wait for it has used up some of it, or all. With little left the holder renews before it begins.
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
		s.every = max(renewLeast, min(renewEvery, until.Sub(now)/3))
	}
	return s.until != 0
}

// pingsMax bounds the renewals without an answer.
const pingsMax = 64

// renew asks for new permission.
func (s *holding) renew() {
	s.mu.Lock()
	s.k++
	k := s.k
	if len(s.pings) < pingsMax {
		s.pings[k] = s.lane.options.clock.Now()
	}
	s.mu.Unlock()
	_ = s.stream.Send(&lanev1.ReserveRequest{Frame: &lanev1.ReserveRequest_Renew{Renew: &lanev1.Renew{K: k}}}) // the reader learns why
}

// keep renews the reservation until it is released or lost.
func (r *Reservation) keep(s *holding) {
	defer close(r.ended)
	renewals := time.NewTicker(r.every)
	defer renewals.Stop()
	watch := time.NewTicker(checkEvery)
	defer watch.Stop()
	again := backoff.Backoff{Min: 20 * time.Millisecond, Max: renewEvery}
	var redial <-chan time.Time
	var next *holding             // that is being opened
	opened := make(chan error, 1) // of next
	defer func() {
		s.end()
		if next != nil {
			next.end()
			<-opened //nolint:errcheck // it may be open or not: it is ended
		}
	}()
	for {
		select {
		case <-r.released:
			_ = s.stream.Send(&lanev1.ReserveRequest{Frame: &lanev1.ReserveRequest_Release{Release: &lanev1.Release{}}})
			r.lost(context.Canceled)
			s.awaitEnd()
			return
		case <-watch.C:
			if r.overdue() {
				r.lost(ErrKeyLost)
				return
			}
		case <-renewals.C:
			s.renew()
		case <-redial:
			redial = nil
			var of context.Context
			next, of = r.newStream(r.ctx)
			go func(s *holding) { // to open may take longer than the permission lasts
				opened <- s.open(of, &lanev1.Ask{Key: []byte(r.key), Id: r.id, Resume: true, Path: r.path, RawClock: !clock.Slewable()})
			}(next)
		case err := <-opened:
			if err != nil {
				redial = time.After(again.Next())
			} else {
				s.end()
				s = next
			}
			next = nil
		case f, ok := <-s.frames:
			switch {
			case !ok: // the stream broke; the reservation goes on until its deadline
				s.frames, redial = nil, time.After(again.Next())
			case f.GetOver() != nil:
				r.lost(fmt.Errorf("%w: %s", ErrKeyLost, f.GetOver().GetText()))
				return
			default:
				again.Reset()
				s.extend(f)
				renewals.Reset(s.every)
				if g := f.GetGranted(); g != nil {
					s.renew()
				}
			}
		}
	}
}

// awaitEnd waits for the router's last frame, at most as long as a renewal may take.
func (s *holding) awaitEnd() {
	timeout := time.NewTimer(renewEvery)
	defer timeout.Stop()
	for {
		select {
		case <-timeout.C:
			return
		case f, ok := <-s.frames:
			if !ok || f.GetOver() != nil {
				return
			}
		}
	}
}

// overdue reports whether the permission has passed.
func (r *Reservation) overdue() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.lane.options.clock.Now().Before(r.until)
}
