package node

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/testing/eventually"
)

// attempt is one try of a test: its failure is not that of the test yet, and its cleanups end it.
type attempt struct {
	testing.TB
	alone bool // no other group runs

	mu       sync.Mutex
	failed   bool
	cleanups []func()
}

func (a *attempt) Cleanup(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cleanups = append(a.cleanups, f)
}

func (a *attempt) Fail() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = true
}

func (a *attempt) Failed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

func (a *attempt) FailNow() {
	a.Fail()
	runtime.Goexit()
}

func (a *attempt) Error(args ...any) {
	a.Helper()
	a.Log(args...)
	a.Fail()
}

func (a *attempt) Errorf(format string, args ...any) {
	a.Helper()
	a.Error(fmt.Sprintf(format, args...))
}

func (a *attempt) Fatal(args ...any) {
	a.Helper()
	a.Error(args...)
	runtime.Goexit()
}

func (a *attempt) Fatalf(format string, args ...any) {
	a.Helper()
	a.Fatal(fmt.Sprintf(format, args...))
}

// room counts the groups of this process.
type room struct {
	lone   sync.Mutex // held while one of them runs alone
	groups atomic.Int32
}

var groups room

// enter counts the group of a test until its end. It waits while another one runs alone.
func (r *room) enter(t testing.TB) {
	if a, is := t.(*attempt); is && a.alone {
		return
	}
	r.lone.Lock()
	defer r.lone.Unlock()
	r.groups.Add(1)
	t.Cleanup(func() { r.groups.Add(-1) })
}

// clear keeps other groups out until release, and waits for the end of those that run, though not for long: one of them may wait for subtests
// with groups of their own.
func (r *room) clear(ctx context.Context) (release func()) {
	r.lone.Lock()
	_ = eventually.Ask(ctx, time.Minute, "no group runs", func() error {
		if n := r.groups.Load(); n > 0 {
			return fmt.Errorf("%d do", n)
		}
		return nil
	})
	return r.lone.Unlock
}

// tries bounds calmly.
const tries = 4

// interval is how long a goroutine sleeps that measures how calm the machine is. On a calm one it wakes up at most lateMost later, and on
// average lateMean: members have fractions of a second for reports and answers.
const (
	interval = 10 * time.Millisecond
	lateMost = 100 * time.Millisecond
	lateMean = 2 * time.Millisecond
)

// calm reports how a machine was during a try.
type calm struct {
	sleeps int
	late   time.Duration // in all
	latest time.Duration
	lapses uint64 // leases that ran out
}

// watch measures until stop.
func (c *calm) watch(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for begun := clock.Now(); backoff.Sleep(ctx, interval) == nil; begun = clock.Now() {
			late := clock.Now().Sub(begun) - interval
			c.sleeps, c.late, c.latest = c.sleeps+1, c.late+late, max(c.latest, late)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

func (c *calm) mean() time.Duration { return c.late / time.Duration(max(1, c.sleeps)) }

func (c *calm) is() bool { return c.lapses == 0 && c.latest <= lateMost && c.mean() <= lateMean }

func (c *calm) String() string {
	return fmt.Sprintf("leases ran out %d times; a goroutine that slept for %v woke up %v later on average, and %v at most", c.lapses, interval, c.mean(), c.latest)
}

// calmly runs a test that counts exactly what its own moves and acts do. On a machine that has no time for the members
// a lease may run out, which moves keys and cuts handlers as well, and reports come too late: a try that fails, and in
// which this has happened, is repeated, without other groups beside it.
func calmly(t *testing.T, test func(t testing.TB, g *group)) {
	t.Helper()
	for n := 1; ; n++ {
		c := calm{}
		failed := try(t, n > 1, &c, test)
		if !failed {
			return
		}
		if c.is() || n == tries {
			t.Fatalf("try %d has failed: %v", n, &c)
		}
		t.Logf("try %d has failed on a machine without time for its members: %v", n, &c)
	}
}

// try runs a test once.
func try(t *testing.T, alone bool, c *calm, test func(t testing.TB, g *group)) (failed bool) {
	t.Helper()
	if alone {
		defer groups.clear(t.Context())()
	}
	a := &attempt{TB: t, alone: alone}
	g := newGroup(a)
	stop := c.watch(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for _, f := range slices.Backward(a.cleanups) {
				f()
			}
		}()
		test(a, g)
	}()
	<-done
	stop()
	for _, m := range g.started {
		c.lapses += counted(m.metrics.notes.WithLabelValues(string(ownership.NoteLeaseLapsed)))
	}
	return a.Failed()
}
