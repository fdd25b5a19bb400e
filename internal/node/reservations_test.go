package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/router/client"
)

// notReserved checks the error of a Reserve.
func notReserved(t *testing.T, err error, code string) {
	t.Helper()
	var failure *client.CallError
	if !errors.As(err, &failure) || !errors.Is(err, client.ErrNotReserved) || failure.Code != code {
		t.Errorf("the error is %v, want the code %q", err, code)
	}
}

// TestReservations: whoever holds a key is alone with it, wherever its owner is.
func TestReservations(t *testing.T) {
	t.Parallel()
	g, c := newGroup(t), newCallees()
	a, b := g.start("a", nil), g.start("b", nil)
	la, lb := g.startCalls(a, c), g.startCalls(b, c)
	g.ready(a, b)
	for where, key := range map[string]string{"own": g.owned(a), "other": g.owned(b)} {
		t.Run(where, func(t *testing.T) {
			first, err := la.Reserve(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			if first.Fence().Token == 0 || first.Fence().Turn == 0 {
				t.Errorf("the fence is %v", first.Fence())
			}
			_, err = lb.Reserve(t.Context(), key)
			notReserved(t, err, client.CodeTimeout)
			_, err = lb.Invoke(t.Context(), key, "echo", []byte("beside"), client.WithCallTimeout(300*time.Millisecond))
			if !errors.Is(err, client.ErrNotRun) {
				t.Errorf("a call beside the reservation: %v", err)
			}
			waiting := make(chan *client.Reservation)
			go func() {
				r, err := lb.Reserve(t.Context(), key, client.WithWait(30*time.Second))
				if err != nil {
					t.Errorf("the one that waits: %v", err)
				}
				waiting <- r
			}()
			time.Sleep(3 * time.Second) // longer than a lease
			if first.Context().Err() != nil {
				t.Fatalf("the reservation was lost: %v", context.Cause(first.Context()))
			}
			select {
			case <-waiting:
				t.Fatal("the key was granted twice")
			default:
			}
			first.Release()
			first.Release()
			if !errors.Is(context.Cause(first.Context()), context.Canceled) || errors.Is(context.Cause(first.Context()), client.ErrKeyLost) {
				t.Errorf("after the release the cause is %v", context.Cause(first.Context()))
			}
			second := <-waiting
			if second == nil {
				t.FailNow()
			}
			if f, s := first.Fence(), second.Fence(); s.Token < f.Token || s.Token == f.Token && s.Turn <= f.Turn {
				t.Errorf("the fences are %v, then %v", f, s)
			}
			second.Release()
			if _, err := la.Invoke(t.Context(), key, "echo", []byte("after"), client.WithCallTimeout(5*time.Second)); err != nil {
				t.Errorf("a call after the release: %v", err)
			}
		})
	}
	t.Run("in turn", func(t *testing.T) {
		var inside, overlaps, done atomic.Int32
		var holders sync.WaitGroup
		for i := range 20 {
			holders.Go(func() {
				for range 10 {
					r, err := []*client.Lane{la, lb}[i%2].Reserve(t.Context(), "queue", client.WithWait(time.Minute))
					if err != nil {
						t.Errorf("reserve: %v", err)
						return
					}
					if inside.Add(1) > 1 {
						overlaps.Add(1)
					}
					done.Add(1)
					inside.Add(-1)
					r.Release()
				}
			})
		}
		holders.Wait()
		if overlaps.Load() != 0 || done.Load() != 200 {
			t.Errorf("%d overlaps, %d reservations", overlaps.Load(), done.Load())
		}
	})
	t.Run("events wait, and come before the ninth", func(t *testing.T) {
		r, err := la.Reserve(t.Context(), "user-1")
		if err != nil {
			t.Fatal(err)
		}
		g.publish(10, 1) // user-0, and user-1 is not touched
		g.settled()
		before := c.events.Load()
		g.publish(9, 2)
		time.Sleep(300 * time.Millisecond)
		if n := c.events.Load() - before; n > 5 {
			t.Errorf("%d events were handled beside the reservation of their key", n)
		}
		r.Release()
		g.settled()
	})
	t.Run("cycle", func(t *testing.T) {
		_, err := la.Invoke(t.Context(), "k", "hold", []byte("k"))
		if !errors.Is(err, client.ErrCallFailed) {
			t.Errorf("the error is %v", err)
		}
	})
	for _, m := range []*member{a, b} {
		g.eventually("nothing is left", func() error {
			if s, n := m.boxes.Stats(), m.lane.Waiting(); s.Visits != 0 || n != 0 {
				return fmt.Errorf("%d visits, %d callers", s.Visits, n)
			}
			return nil
		})
	}
}

// TestReservationEndsWithItsHolder: one that is not renewed ends with its last permission, and its holder knows before.
func TestReservationEndsWithItsHolder(t *testing.T) {
	t.Parallel()
	g, c := newGroup(t), newCallees()
	a := g.start("a", nil)
	la := g.startCalls(a, c)
	g.ready(a)
	gone, err := client.Dial(a.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	r, err := gone.Reserve(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close() // as if the process were gone
	next, err := la.Reserve(t.Context(), "k", client.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer next.Release()
	if !errors.Is(context.Cause(r.Context()), client.ErrKeyLost) {
		t.Errorf("the key was granted again while its holder had it: %v", context.Cause(r.Context()))
	}
}

// TestReservationMoves: a reservation outlasts a drain of its key's owner no longer than that may take, and never overlaps with the next.
func TestReservationMoves(t *testing.T) {
	t.Parallel()
	g, c := newGroup(t), newCallees()
	a, b := g.start("a", func(cfg *Config) { cfg.Timing.DrainTimeout = 3 * time.Second }), g.start("b", nil)
	g.startCalls(a, c)
	lb := g.startCalls(b, c)
	g.ready(a, b)
	key := g.owned(a)
	r, err := lb.Reserve(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	a.stop()
	next, err := lb.Reserve(t.Context(), key, client.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(context.Cause(r.Context()), client.ErrKeyLost) {
		t.Errorf("the key was granted again while its holder had it: %v", context.Cause(r.Context()))
	}
	if f, s := r.Fence(), next.Fence(); s.Token <= f.Token {
		t.Errorf("the fences are %v, then %v", f, s)
	}
	next.Release()
}
