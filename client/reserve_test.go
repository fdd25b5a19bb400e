package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

// lender is a router that answers each stream of Reserve as the test says, in a synctest bubble.
type lender struct {
	lanev1.UnimplementedLaneServiceServer

	t     *testing.T
	serve func(s *lending) error

	mu      sync.Mutex
	streams int
	cut     bool          // no connection can be made any more
	hang    int           // so many attempts to connect meet nobody, and the next ones succeed
	slow    time.Duration // how long each attempt takes
	frozen  time.Duration // by which the lease clock is ahead of the timers, as in a process that has just thawed
	begun   time.Time
	conns   []*mutable
}

// mutable is a connection whose other end can go without a word.
type mutable struct {
	net.Conn

	gone atomic.Bool
}

func (m *mutable) Write(p []byte) (int, error) {
	if m.gone.Load() {
		return len(p), nil
	}
	return m.Conn.Write(p)
}

// mute makes all connections that there are go without a word.
func (l *lender) mute() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.conns {
		conn.gone.Store(true)
	}
}

// lending is the router's end of one stream.
type lending struct {
	lanev1.LaneService_ReserveServer

	n   int // of the stream, from 1
	ask *lanev1.Ask
}

func (l *lender) Reserve(stream lanev1.LaneService_ReserveServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.streams++
	s := &lending{LaneService_ReserveServer: stream, n: l.streams, ask: first.GetAsk()}
	l.mu.Unlock()
	if s.ask == nil {
		l.t.Error("the first frame is not an Ask")
	}
	return l.serve(s)
}

// Now, Renewed and Ended make it the lease clock of its lane.
func (l *lender) Now() clock.Instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return clock.Instant(time.Since(l.begun) + l.frozen + 1)
}

func (*lender) Renewed(clock.Instant) {}
func (*lender) Ended()                {}

// thaw makes it later, without a timer that has fired.
func (l *lender) thaw(after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.frozen += after
}

// unplug ends all connections; further ones hang.
func (l *lender) unplug(server *grpc.Server) {
	l.mu.Lock()
	l.cut = true
	l.mu.Unlock()
	server.Stop()
}

// lend runs a test with a lane to a lender.
func lend(t *testing.T, serve func(s *lending) error, test func(t *testing.T, lane *client.Lane, l *lender, server *grpc.Server), options ...grpc.ServerOption) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &lender{t: t, serve: serve, begun: time.Now()}
		listener, server := bufconn.Listen(1<<16), grpc.NewServer(options...)
		lanev1.RegisterLaneServiceServer(server, l)
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(listener) })
		lane, err := client.Dial("router:1", client.WithLeaseClock(l), client.WithDialer(func(ctx context.Context, _, _ string) (net.Conn, error) {
			l.mu.Lock()
			cut, slow := l.cut || l.hang > 0, l.slow
			l.hang--
			l.mu.Unlock()
			if cut {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			if err := backoff.Sleep(ctx, slow); err != nil {
				return nil, err
			}
			conn, err := listener.DialContext(ctx)
			if err != nil {
				return nil, err
			}
			mutable := &mutable{Conn: conn}
			l.mu.Lock()
			l.conns = append(l.conns, mutable)
			l.mu.Unlock()
			return mutable, nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		defer serving.Wait()
		defer server.Stop()
		defer func() { _ = lane.Close() }()
		test(t, lane, l, server)
	})
}

func (s *lending) grant(remaining time.Duration) error {
	return s.grantWith(client.Fence{Token: 7, Turn: 8}, remaining)
}

func (s *lending) grantWith(f client.Fence, remaining time.Duration) error {
	return s.Send(&lanev1.ReserveResponse{Frame: &lanev1.ReserveResponse_Granted{Granted: &lanev1.Granted{Token: f.Token, Turn: f.Turn, RemainingNs: int64(remaining)}}})
}

func (s *lending) renewed(k uint64, remaining time.Duration) error {
	return s.answer(&lanev1.Renewed{K: k, RemainingNs: int64(remaining)})
}

// covered answers a renewal as one that the control log has.
func (s *lending) covered(k uint64, remaining time.Duration) error {
	return s.answer(&lanev1.Renewed{K: k, RemainingNs: int64(remaining), Covered: true})
}

func (s *lending) answer(a *lanev1.Renewed) error {
	return s.Send(&lanev1.ReserveResponse{Frame: &lanev1.ReserveResponse_Renewed{Renewed: a}})
}

func (s *lending) over(code, text string) error {
	return s.Send(&lanev1.ReserveResponse{Frame: &lanev1.ReserveResponse_Over{Over: &lanev1.Over{Code: code, Text: text, RetryAfterMs: 1500}}})
}

// keep answers each renewal with the remaining time, until the holder releases or goes.
func (s *lending) keep(remaining time.Duration) error {
	return s.keepBy(func(k uint64) error { return s.renewed(k, remaining) })
}

// keepBy answers each renewal so, until the holder releases or goes.
func (s *lending) keepBy(answer func(k uint64) error) error {
	for {
		f, err := s.Recv()
		switch {
		case errors.Is(err, io.EOF), err == nil && f.GetRelease() != nil:
			return s.over("released", "")
		case err != nil:
			return err
		}
		if err := answer(f.GetRenew().GetK()); err != nil {
			return err
		}
	}
}

// drop reads frames and answers none, until the holder goes.
func (s *lending) drop() error {
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
}

const lease = 1760 * time.Millisecond

// lostAfter waits until a reservation is lost, and checks when that is.
func lostAfter(t *testing.T, r *client.Reservation, begun time.Time, want time.Duration) {
	t.Helper()
	<-r.Context().Done()
	if took := time.Since(begun); took < want || took > want+50*time.Millisecond {
		t.Errorf("it was lost after %v, want %v, and 50 ms more at most", took, want)
	}
	if cause := context.Cause(r.Context()); !errors.Is(cause, client.ErrKeyLost) {
		t.Errorf("the cause is %v", cause)
	}
}

func reserve(t *testing.T, lane *client.Lane, opts ...client.ReserveOption) *client.Reservation {
	t.Helper()
	r, err := lane.Reserve(t.Context(), "user-1", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestReservationIsHeldUntilItsRelease: it is granted at once, renewed for longer than a lease, and over when it is released.
func TestReservationIsHeldUntilItsRelease(t *testing.T) {
	asks, over := make(chan *lanev1.Ask, 1), make(chan struct{})
	lend(t, func(s *lending) error {
		asks <- s.ask
		if err := s.grant(lease); err != nil {
			return err
		}
		defer close(over)
		return s.keep(lease)
	}, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
		type name struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), name{}, "of the caller"))
		r, err := lane.Reserve(ctx, "user-1", client.WithWait(30*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		ask := <-asks
		if string(ask.GetKey()) != "user-1" || len(ask.GetId()) != 16 || ask.GetWaitMs() != 30_000 || ask.GetResume() || ask.GetRawClock() == clock.Slewable() {
			t.Errorf("the ask is %v", ask)
		}
		if r.Fence() != (client.Fence{Token: 7, Turn: 8}) {
			t.Errorf("the fence is %v", r.Fence())
		}
		cancel() // the reservation goes on
		time.Sleep(10 * lease)
		if r.Context().Err() != nil || r.Context().Value(name{}) != "of the caller" {
			t.Errorf("%v: %v", r.Context().Err(), context.Cause(r.Context()))
		}
		if left := time.Until(r.Until()); left <= lease-600*time.Millisecond || left > lease {
			t.Errorf("%v are left", left)
		}
		child, stop := context.WithTimeout(r.Context(), time.Hour)
		defer stop()
		r.Release()
		r.Release()
		<-over
		if !errors.Is(r.Context().Err(), context.Canceled) || !errors.Is(context.Cause(child), context.Canceled) || errors.Is(context.Cause(child), client.ErrKeyLost) {
			t.Errorf("after the release: %v", context.Cause(r.Context()))
		}
	})
}

// TestReservationAfterALongWait: a grant without permission is renewed before Reserve returns, and counts from that renewal.
func TestReservationAfterALongWait(t *testing.T) {
	const answer = 300 * time.Millisecond
	lend(t, func(s *lending) error {
		time.Sleep(20 * time.Second)
		if err := s.grant(0); err != nil {
			return err
		}
		f, err := s.Recv()
		if err != nil {
			return err
		}
		time.Sleep(answer)
		if err := s.renewed(f.GetRenew().GetK(), lease); err != nil {
			return err
		}
		return s.drop()
	}, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
		begun := time.Now()
		r := reserve(t, lane, client.WithWait(time.Minute))
		if took := time.Since(begun); took != 20*time.Second+answer {
			t.Errorf("it was given after %v", took)
		}
		lostAfter(t, r, begun, 20*time.Second+lease)
	})
}

// TestReservationOnADeadConnection: nothing ends the connection. With a ttl there is time to renew by another one.
func TestReservationOnADeadConnection(t *testing.T) {
	t.Parallel()
	const ttl = 12 * time.Second
	lend(t, func(s *lending) error {
		if err := s.grant(time.Second); err != nil {
			return err
		}
		for {
			f, err := s.Recv()
			if err != nil {
				return nil //nolint:nilerr // the holder has given it up
			}
			switch {
			case f.GetRelease() != nil:
				return s.over("released", "")
			case f.GetRenew() != nil:
				err = s.Send(&lanev1.ReserveResponse{Frame: &lanev1.ReserveResponse_Renewed{Renewed: &lanev1.Renewed{K: f.GetRenew().GetK(), RemainingNs: int64(ttl), Covered: true}}})
			}
			if err != nil {
				return err
			}
		}
	}, func(t *testing.T, lane *client.Lane, l *lender, _ *grpc.Server) {
		r, err := lane.Reserve(t.Context(), "user-1", client.WithTTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		l.mute()
		time.Sleep(ttl + time.Second)
		if err := r.Context().Err(); err != nil {
			t.Errorf("it is lost: %v", context.Cause(r.Context()))
		}
		r.Release()
		l.mute()
		if _, err := lane.Reserve(t.Context(), "user-1"); !errors.Is(err, client.ErrNotReserved) {
			t.Errorf("a reservation over a dead connection: %v", err)
		}
		again, err := lane.Reserve(t.Context(), "user-1")
		if err != nil {
			t.Fatalf("the next one: %v", err)
		}
		again.Release()
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.conns) != 3 {
			t.Errorf("%d connections, want 3", len(l.conns))
		}
	})
}

// TestAfterALiveReservationOnADeadConnection: without a ttl it is lost at its deadline, or its release is given up then. The next one gets
// another connection, at once.
func TestAfterALiveReservationOnADeadConnection(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*client.Reservation){
		"lost": func(r *client.Reservation) { <-r.Context().Done() },
		"seen by the call": func(r *client.Reservation) {
			for r.Context().Err() == nil {
				time.Sleep(time.Millisecond)
			}
		},
		"released": (*client.Reservation).Release,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lend(t, func(s *lending) error {
				if err := s.grant(lease); err != nil {
					return err
				}
				return s.keep(lease)
			}, func(t *testing.T, lane *client.Lane, l *lender, _ *grpc.Server) {
				r := reserve(t, lane)
				l.mute()
				end(r)
				again, err := lane.Reserve(t.Context(), "user-1")
				if err != nil {
					t.Fatalf("the next one: %v", err)
				}
				again.Release()
				r.Release()
				l.mu.Lock()
				defer l.mu.Unlock()
				if len(l.conns) != 2 {
					t.Errorf("%d connections, want 2", len(l.conns))
				}
			})
		})
	}
}

// TestReservationIsLostWithoutAnAnswer: permission counts from the ask, or from the renewal that was answered; silence moves nothing.
func TestReservationIsLostWithoutAnAnswer(t *testing.T) {
	const late = 700 * time.Millisecond
	for name, test := range map[string]struct {
		grant func(s *lending) error
		want  time.Duration
	}{
		"none": {func(s *lending) error { return s.grant(lease) }, lease},
		"a late grant": {func(s *lending) error {
			time.Sleep(late)
			return s.grant(lease)
		}, lease},
		"one, late": {func(s *lending) error {
			if err := s.grant(lease); err != nil {
				return err
			}
			f, err := s.Recv() // sent after 500 ms
			if err != nil {
				return err
			}
			time.Sleep(late)
			return s.renewed(f.GetRenew().GetK(), lease)
		}, 500*time.Millisecond + lease},
		"without more permission": {func(s *lending) error {
			if err := s.grant(lease); err != nil {
				return err
			}
			return s.keep(0)
		}, lease},
		"less than before": {func(s *lending) error {
			if err := s.grant(lease); err != nil {
				return err
			}
			return s.keep(time.Millisecond)
		}, lease},
		"of a renewal that was not sent": {func(s *lending) error {
			if err := s.grant(lease); err != nil {
				return err
			}
			return s.renewed(1000, time.Hour)
		}, lease},
		"after the deadline": {func(s *lending) error {
			if err := s.grant(lease); err != nil {
				return err
			}
			time.Sleep(lease)
			return s.renewed(1, time.Hour)
		}, lease},
	} {
		t.Run(name, func(t *testing.T) {
			lend(t, func(s *lending) error {
				if err := test.grant(s); err != nil {
					return err
				}
				return s.drop()
			}, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
				begun := time.Now()
				lostAfter(t, reserve(t, lane), begun, test.want)
			})
		})
	}
}

// TestReservationThatIsOverIsLostAtOnce: the router's word ends it, and its words are in the cause.
func TestReservationThatIsOverIsLostAtOnce(t *testing.T) {
	lend(t, func(s *lending) error {
		if err := s.grant(time.Hour); err != nil {
			return err
		}
		time.Sleep(time.Second)
		return s.over("lost", "its owner is gone")
	}, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
		begun := time.Now()
		r := reserve(t, lane)
		lostAfter(t, r, begun, time.Second)
		if text := context.Cause(r.Context()).Error(); text != client.ErrKeyLost.Error()+": its owner is gone" {
			t.Errorf("the cause is %q", text)
		}
		r.Release()
	})
}

// TestReservationSurvivesABrokenStream: its holder comes back with the same id, wants no new one, and goes on; but not after its deadline.
func TestReservationSurvivesABrokenStream(t *testing.T) {
	var id string
	lend(t, func(s *lending) error {
		if s.n == 1 {
			id = string(s.ask.GetId())
			if err := s.grant(lease); err != nil {
				return err
			}
			time.Sleep(time.Second)
			return status.Error(codes.Unavailable, "the router is stopping")
		}
		if !s.ask.GetResume() || string(s.ask.GetId()) != id || string(s.ask.GetKey()) != "user-1" {
			t.Errorf("the ask on stream %d is %v", s.n, s.ask)
		}
		if s.n < 4 { // routers that are still starting
			return status.Error(codes.Unavailable, "not yet")
		}
		if err := s.grant(lease); err != nil {
			return err
		}
		return s.keep(lease)
	}, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
		r := reserve(t, lane)
		time.Sleep(10 * lease)
		if err := r.Context().Err(); err != nil {
			t.Errorf("it was lost: %v", context.Cause(r.Context()))
		}
		r.Release()
	})
}

// TestCoveredReservation: one with a ttl begins when the control log has it, is renewed seldom, and goes on at the next
// owner, which is waited for as long as it lasts.
func TestCoveredReservation(t *testing.T) {
	const ttl = 12 * time.Second
	var renewals, began atomic.Int64
	const uncovered = 5 // renewals before the control log has it
	lend(t, func(s *lending) error {
		if ms := s.ask.GetTtlMs(); ms != uint32(ttl.Milliseconds()) || s.ask.GetResume() != (s.n > 1) {
			t.Errorf("the ask on stream %d is %v", s.n, s.ask)
		}
		switch s.n {
		case 1:
			if err := s.grant(lease); err != nil {
				return err
			}
			for until := time.Now().Add(ttl); time.Now().Before(until); {
				f, err := s.Recv()
				if err != nil {
					return err
				}
				answer := s.renewed
				if renewals.Add(1) > uncovered {
					answer = s.covered
				} else if began.Load() != 0 {
					t.Error("it began before the control log had it")
				}
				if err := answer(f.GetRenew().GetK(), ttl); err != nil {
					return err
				}
			}
			return status.Error(codes.Unavailable, "the owner of the key was killed")
		case 2: // a former owner that does not know yet that it is one
			_ = s.grantWith(client.Fence{Token: 6, Turn: 9}, 0)
			return status.Error(codes.Unavailable, "not the owner any more")
		}
		if wait := time.Duration(s.ask.GetWaitMs()) * time.Millisecond; wait > ttl || wait < ttl/2 {
			t.Errorf("the next owner is waited for for %v, want nearly %v", wait, ttl)
		}
		time.Sleep(2 * lease)
		if err := s.grantWith(client.Fence{Token: 9, Turn: 1}, lease); err != nil {
			return err
		}
		live := 3
		return s.keepBy(func(k uint64) error {
			live--
			if live >= 0 {
				return s.renewed(k, lease)
			}
			return s.covered(k, ttl)
		})
	}, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
		asked := time.Now()
		r := reserve(t, lane, client.WithTTL(ttl))
		began.Store(1)
		if took := time.Since(asked); took > 200*time.Millisecond {
			t.Errorf("it began %v after its grant", took)
		}
		before := renewals.Load()
		time.Sleep(ttl - time.Second)
		if n := renewals.Load() - before; n < 4 || n > 6 {
			t.Errorf("%d renewals in %v, want one in %v", n, ttl, ttl/6)
		}
		if f := r.Fence(); f != (client.Fence{Token: 7, Turn: 8}) {
			t.Errorf("the fence is %v", f)
		}
		time.Sleep(3 * ttl)
		if err := r.Context().Err(); err != nil {
			t.Errorf("it was lost: %v", context.Cause(r.Context()))
		}
		if f := r.Fence(); f != (client.Fence{Token: 9, Turn: 1}) {
			t.Errorf("at the next owner the fence is %v", f)
		}
		r.Release()
	})
}

// TestCoverThatNobodyAskedFor: what a router says of the control log is nothing to a reservation without a ttl. It is renewed as before.
func TestCoverThatNobodyAskedFor(t *testing.T) {
	var renewals atomic.Int64
	lend(t, func(s *lending) error {
		if err := s.grant(lease); err != nil {
			return err
		}
		return s.keepBy(func(k uint64) error {
			renewals.Add(1)
			return s.covered(k, lease)
		})
	}, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
		r := reserve(t, lane)
		time.Sleep(10 * time.Second)
		if err := r.Context().Err(); err != nil {
			t.Errorf("it was lost: %v", context.Cause(r.Context()))
		}
		if n := renewals.Load(); n < 10 || n > 30 {
			t.Errorf("%d renewals in 10 s", n)
		}
		r.Release()
	})
}

// TestReservationIsLostAtItsDeadlineWhateverTheConnectionDoes: no attempt to come back may hold its end up.
func TestReservationIsLostAtItsDeadlineWhateverTheConnectionDoes(t *testing.T) {
	const refused, hangs = "every stream is refused", "the attempt to connect hangs"
	for _, name := range []string{refused, hangs} {
		t.Run(name, func(t *testing.T) {
			lend(t, func(s *lending) error {
				if s.n > 1 {
					return status.Error(codes.Unavailable, "not here")
				}
				if err := s.grant(lease); err != nil {
					return err
				}
				if name == refused {
					return status.Error(codes.Unavailable, "the router is stopping")
				}
				return s.drop()
			}, func(t *testing.T, lane *client.Lane, l *lender, server *grpc.Server) {
				begun := time.Now()
				r := reserve(t, lane)
				if name == hangs {
					time.Sleep(lease - 500*time.Millisecond)
					l.unplug(server)
				}
				lostAfter(t, r, begun, lease)
				r.Release()
			})
		})
	}
}

// TestReservationInAProcessThatThaws: Err of its context says so before the watch does, and no answer revives it.
func TestReservationInAProcessThatThaws(t *testing.T) {
	lend(t, func(s *lending) error {
		if err := s.grant(lease); err != nil {
			return err
		}
		return s.keep(time.Hour)
	}, func(t *testing.T, lane *client.Lane, l *lender, _ *grpc.Server) {
		r := reserve(t, lane)
		if r.Context().Err() != nil {
			t.Fatal("it is lost from the beginning")
		}
		l.thaw(lease)
		if err := r.Context().Err(); !errors.Is(err, context.Canceled) || !errors.Is(context.Cause(r.Context()), client.ErrKeyLost) {
			t.Errorf("%v: %v", err, context.Cause(r.Context()))
		}
		time.Sleep(time.Second)
		if cause := context.Cause(r.Context()); !errors.Is(cause, client.ErrKeyLost) {
			t.Errorf("later: %v", cause)
		}
		r.Release()
	})
}

// TestReservationThatIsRefused: the error says why.
func TestReservationThatIsRefused(t *testing.T) {
	over := func(code string) func(s *lending) error {
		return func(s *lending) error { return s.over(code, "as told") }
	}
	statusOf := func(code codes.Code) func(s *lending) error {
		return func(*lending) error { return status.Error(code, "as told") }
	}
	for name, test := range map[string]struct {
		serve func(s *lending) error
		code  string
		after time.Duration
		cause error
	}{
		"timeout":            {over("timeout"), client.CodeTimeout, 1500 * time.Millisecond, nil},
		"overloaded":         {over("overloaded"), client.CodeOverloaded, 1500 * time.Millisecond, nil},
		"cycle":              {over("cycle"), client.CodeCycle, 1500 * time.Millisecond, nil},
		"not exclusive":      {over("not_exclusive"), client.CodeNotExclusive, 1500 * time.Millisecond, nil},
		"bad request":        {statusOf(codes.InvalidArgument), "", 0, client.ErrRefused},
		"an older router":    {statusOf(codes.Unimplemented), "", 0, client.ErrRefused},
		"bad token":          {statusOf(codes.Unauthenticated), "", 0, client.ErrUnauthenticated},
		"a router that ends": {statusOf(codes.Unavailable), client.CodeUnreachable, 0, client.ErrUnreachable},
		"granted, and over": {func(s *lending) error {
			if err := s.grant(0); err != nil {
				return err
			}
			return s.over("lost", "as told")
		}, "lost", 1500 * time.Millisecond, nil},
	} {
		t.Run(name, func(t *testing.T) {
			lend(t, test.serve, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
				_, err := lane.Reserve(t.Context(), "user-1")
				var failure *client.CallError
				if !errors.As(err, &failure) || !errors.Is(err, client.ErrNotReserved) || failure.Code != test.code || failure.Text != "as told" || failure.RetryAfter != test.after {
					t.Fatalf("the error is %+v", err)
				}
				if test.cause != nil && !errors.Is(err, test.cause) {
					t.Errorf("the cause is %v, want %v", failure.Err, test.cause)
				}
			})
		})
	}
}

// TestReserveInACrowd: a router that has refused the stream unread, since too many were just beginning, is asked again.
func TestReserveInACrowd(t *testing.T) {
	var asked atomic.Int32
	lend(t, func(s *lending) error {
		if asked.Add(1) < 4 {
			return status.Error(codes.ResourceExhausted, "as told")
		}
		return s.over("parked", "as told")
	}, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
		_, err := lane.Reserve(t.Context(), "user-1")
		var failure *client.CallError
		if !errors.As(err, &failure) || failure.Code != client.CodeParked || asked.Load() != 4 {
			t.Errorf("%v after %d asks", err, asked.Load())
		}
		asked.Store(-1 << 20)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := lane.Reserve(ctx, "user-1"); !errors.As(err, &failure) || failure.Code != client.CodeTimeout {
			t.Errorf("a wait that is over: %v", err)
		}
	})
}

// TestReserveThatNobodyAnswers: a router that says nothing, or too little, or that has never room, is not waited for without a bound.
func TestReserveThatNobodyAnswers(t *testing.T) {
	const wait = 2 * time.Second
	crowded := func(*lending) error { return status.Error(codes.ResourceExhausted, "as told") }
	for name, test := range map[string]struct {
		serve func(s *lending) error
		code  string
		least time.Duration
		most  time.Duration
	}{
		"it says nothing": {(*lending).drop, client.CodeUnreachable, wait, wait + 6*time.Second},
		"it grants, and renews nothing": {func(s *lending) error {
			if err := s.grant(0); err != nil {
				return err
			}
			return s.drop()
		}, client.CodeUnreachable, wait, 11 * time.Second},
		"it is always crowded": {crowded, client.CodeOverloaded, wait, wait + 6*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			lend(t, test.serve, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the test would hang without it
				defer cancel()
				begun := time.Now()
				_, err := lane.Reserve(ctx, "user-1", client.WithWait(wait))
				var failure *client.CallError
				if !errors.As(err, &failure) || !errors.Is(failure.Kind, client.ErrNotReserved) || failure.Code != test.code {
					t.Errorf("the error is %v", err)
				}
				if took := time.Since(begun); took < test.least || took > test.most {
					t.Errorf("it took %v, want %v to %v", took, test.least, test.most)
				}
			})
		})
	}
}

// TestReserveWithASlowConnection: a key that is free is reserved, although it takes long to connect. That has a bound, too.
func TestReserveWithASlowConnection(t *testing.T) {
	for slow, want := range map[time.Duration]time.Duration{0: 0, 1500 * time.Millisecond: 0, 4 * time.Second: 0, 7 * time.Second: 5 * time.Second} {
		t.Run(slow.String(), func(t *testing.T) {
			lend(t, func(s *lending) error {
				if err := s.grant(lease); err != nil {
					return err
				}
				return s.keep(lease)
			}, func(t *testing.T, lane *client.Lane, l *lender, _ *grpc.Server) {
				l.slow = slow
				begun := time.Now()
				r, err := lane.Reserve(t.Context(), "user-1")
				var failure *client.CallError
				switch {
				case want == 0 && err != nil:
					t.Fatalf("after %v: %v", time.Since(begun), err)
				case want == 0:
					r.Release()
				case !errors.As(err, &failure) || failure.Code != client.CodeUnreachable || time.Since(begun) != want:
					t.Errorf("the error after %v is %v", time.Since(begun), err)
				default:
					l.mu.Lock()
					l.slow = 0
					l.mu.Unlock()
					reserve(t, lane).Release() // by another attempt to connect
				}
			})
		})
	}
}

// TestReservationComesBackAfterASlowConnection: an attempt to connect meets nobody, and the next one succeeds while the
// permission lasts. With a ttl a connection may take longer than a lease.
func TestReservationComesBackAfterASlowConnection(t *testing.T) {
	for name, test := range map[string]struct {
		ttl  time.Duration
		hang int
		slow time.Duration
	}{
		"live, and an attempt hangs":     {0, 1, 0},
		"with a ttl, and attempts hang":  {12 * time.Second, 2, 0},
		"with a ttl, and it takes 1.5 s": {12 * time.Second, 0, 1500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			permission := max(lease, test.ttl)
			lend(t, func(s *lending) error {
				if err := s.grant(lease); err != nil {
					return err
				}
				return s.keepBy(func(k uint64) error { return s.covered(k, permission) })
			}, func(t *testing.T, lane *client.Lane, l *lender, _ *grpc.Server) {
				var options []client.ReserveOption
				if test.ttl > 0 {
					options = append(options, client.WithTTL(test.ttl))
				}
				r := reserve(t, lane, options...)
				l.mu.Lock()
				l.hang, l.slow = test.hang, test.slow
				l.mu.Unlock()
				_ = l.conns[0].Close()
				time.Sleep(10 * permission)
				if err := r.Context().Err(); err != nil {
					t.Errorf("it was lost: %v", context.Cause(r.Context()))
				}
				r.Release()
			})
		})
	}
}

// TestReserveWithAnEndlessWait: the router refuses it, by its own words.
func TestReserveWithAnEndlessWait(t *testing.T) {
	lend(t, func(*lending) error { return status.Error(codes.InvalidArgument, "as told") }, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
		_, err := lane.Reserve(t.Context(), "user-1", client.WithWait(math.MaxInt64))
		var failure *client.CallError
		if !errors.As(err, &failure) || failure.Text != "as told" {
			t.Errorf("the error is %v", err)
		}
	})
}

// TestReservationThatIsNotWaitedFor: the end of the context of Reserve ends the wait, also while there is no connection
// yet. The router's answer to the release is waited for, since the end of the stream may overtake the release: what was
// granted would then last.
func TestReservationThatIsNotWaitedFor(t *testing.T) {
	const after = 400 * time.Millisecond
	released := func(delay time.Duration) func(s *lending) error {
		return func(s *lending) error {
			for {
				if f, err := s.Recv(); err != nil || f.GetRelease() != nil {
					time.Sleep(delay)
					return errors.Join(err, s.Context().Err(), s.over("released", ""))
				}
			}
		}
	}
	for name, test := range map[string]struct {
		serve func(s *lending) error // nil: nothing connects
		told  bool                   // the router has answered the release
		want  time.Duration
	}{
		"it waits": {released(0), true, after},
		"it is granted, and not covered": {func(s *lending) error {
			if err := s.grant(time.Minute); err != nil {
				return err
			}
			return released(200 * time.Millisecond)(s)
		}, true, after + 200*time.Millisecond},
		"the router says nothing": {(*lending).drop, false, after + 500*time.Millisecond},
		"nothing connects":        {nil, false, after},
	} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan error, 1)
			lend(t, func(s *lending) error {
				err := test.serve(s)
				gone <- err
				return err
			}, func(t *testing.T, lane *client.Lane, l *lender, _ *grpc.Server) {
				l.cut = test.serve == nil
				ctx, cancel := context.WithTimeout(t.Context(), after)
				defer cancel()
				begun := time.Now()
				_, err := lane.Reserve(ctx, "user-1", client.WithWait(time.Minute), client.WithTTL(5*time.Minute))
				var failure *client.CallError
				if !errors.As(err, &failure) || failure.Code != client.CodeTimeout || !errors.Is(err, client.ErrNotReserved) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the error is %v", err)
				}
				if took := time.Since(begun); took != test.want {
					t.Errorf("it took %v, want %v", took, test.want)
				}
				if test.serve == nil {
					return
				}
				if err := <-gone; (err == nil) != test.told {
					t.Errorf("the router learns of it by %v; told of the release: want %t", err, test.told)
				}
			})
		})
	}
}

// TestTTLThatIsNone: a ttl that was computed and is too short is asked for, so that the router refuses it. A
// reservation without one would be less than was asked for.
func TestTTLThatIsNone(t *testing.T) {
	for _, ttl := range []time.Duration{-time.Second, 0, time.Microsecond} {
		t.Run(ttl.String(), func(t *testing.T) {
			lend(t, func(s *lending) error {
				if s.ask.GetTtlMs() == 0 {
					return s.over("none", "no ttl")
				}
				return status.Errorf(codes.InvalidArgument, "a ttl of %d ms", s.ask.GetTtlMs())
			}, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
				_, err := lane.Reserve(t.Context(), "user-1", client.WithTTL(ttl))
				var failure *client.CallError
				if !errors.As(err, &failure) || failure.Text != "a ttl of 1 ms" {
					t.Errorf("the error is %v, want the refusal of a ttl of 1 ms", err)
				}
			})
		})
	}
}

// TestReserveWithoutRoomForAStream: gRPC waits for room on the connection without a bound, and Reserve does not. The
// wait for room is a part of that for the key.
func TestReserveWithoutRoomForAStream(t *testing.T) {
	const wait = 10 * time.Second
	lend(t, func(s *lending) error {
		if s.n == 2 && s.ask.GetWaitMs() != uint64((wait-time.Second)/time.Millisecond) {
			t.Errorf("the ask is %v, want a wait that is a second shorter", s.ask)
		}
		if err := s.grant(lease); err != nil {
			return err
		}
		return s.keep(lease)
	}, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
		first := reserve(t, lane)
		begun := time.Now()
		_, err := lane.Reserve(t.Context(), "user-2")
		var failure *client.CallError
		if !errors.As(err, &failure) || !errors.Is(failure.Kind, client.ErrNotReserved) || failure.Code != client.CodeOverloaded {
			t.Errorf("the error is %v", err)
		}
		if took := time.Since(begun); took != 5*time.Second {
			t.Errorf("it took %v", took)
		}
		time.AfterFunc(time.Second, first.Release)
		second, err := lane.Reserve(t.Context(), "user-2", client.WithWait(wait))
		if err != nil {
			t.Fatal(err)
		}
		second.Release()
	}, grpc.MaxConcurrentStreams(1))
}

// TestReleaseAfterTheLaneHasClosed: there is no next stream to wait for.
func TestReleaseAfterTheLaneHasClosed(t *testing.T) {
	lend(t, func(s *lending) error {
		if err := s.grant(time.Hour); err != nil {
			return err
		}
		return s.keep(time.Hour)
	}, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
		r := reserve(t, lane)
		_ = lane.Close()
		begun := time.Now()
		r.Release()
		if took := time.Since(begun); took > time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// TestReleaseWhileTheStreamIsBroken: a release reaches the owner by the next stream, after it has answered there, and
// never later than the permission lasts.
func TestReleaseWhileTheStreamIsBroken(t *testing.T) {
	unavailable := status.Error(codes.Unavailable, "the router is stopping")
	for name, test := range map[string]struct {
		next    func(s *lending) error // serves the streams after the first one
		told    bool                   // a release reaches a router after the stream broke
		atLeast time.Duration          // until Release returns
		within  time.Duration
	}{
		"it comes back": {func(s *lending) error {
			time.Sleep(300 * time.Millisecond) // the owner is far away
			if err := s.grant(lease); err != nil {
				return err
			}
			return s.keep(lease)
		}, true, 300 * time.Millisecond, 500 * time.Millisecond},
		"it comes back, and the reservation is over": {func(s *lending) error { return s.over("lost", "not here") }, false, 0, 100 * time.Millisecond},
		"it does not come back":                      {func(*lending) error { return unavailable }, false, lease - 100*time.Millisecond, lease},
		"it comes back, and does not answer":         {func(s *lending) error { return s.drop() }, false, lease - 100*time.Millisecond, lease},
	} {
		for _, sent := range []bool{false, true} { // the release was sent on the stream that breaks
			t.Run(fmt.Sprintf("%s, sent %t", name, sent), func(t *testing.T) {
				var told atomic.Bool
				broken := make(chan struct{})
				lend(t, func(s *lending) error {
					if s.n > 1 {
						if !s.ask.GetResume() {
							t.Error("a released key is reserved anew")
						}
						err := test.next(s)
						told.Store(told.Load() || err == nil && test.told)
						return err
					}
					if err := s.grant(lease); err != nil {
						return err
					}
					if sent {
						for {
							if f, err := s.Recv(); err != nil || f.GetRelease() != nil {
								break
							}
						}
					}
					close(broken)
					return unavailable
				}, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
					r := reserve(t, lane)
					if !sent {
						<-broken
					}
					begun := time.Now()
					r.Release()
					if took := time.Since(begun); took < test.atLeast || took > test.within+50*time.Millisecond {
						t.Errorf("it took %v, want %v to %v", took, test.atLeast, test.within)
					}
					if err := context.Cause(r.Context()); !errors.Is(err, context.Canceled) || errors.Is(err, client.ErrKeyLost) {
						t.Errorf("the cause is %v", err)
					}
					synctest.Wait() // the server notes the release after its answer
					if told.Load() != test.told {
						t.Errorf("a release was told: %t, want %t", told.Load(), test.told)
					}
				})
			})
		}
	}
}

// TestReleasedReservationIsNotRenewed: a released key is held no longer than it would have been without the release.
func TestReleasedReservationIsNotRenewed(t *testing.T) {
	renewals := make(chan uint64, 100)
	lend(t, func(s *lending) error {
		if err := s.grant(lease); err != nil {
			return err
		}
		for {
			f, err := s.Recv()
			if err != nil {
				return err
			}
			if k := f.GetRenew().GetK(); k > 0 {
				renewals <- k
			}
		}
	}, func(t *testing.T, lane *client.Lane, _ *lender, _ *grpc.Server) {
		r := reserve(t, lane)
		r.Release()
		if len(renewals) > 0 {
			t.Errorf("%d renewals after the release", len(renewals))
		}
	})
}
