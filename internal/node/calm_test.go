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
)

// attempt is one try of a test: its failure is not that of the test yet, and its cleanups end it.
type attempt struct {
	testing.TB

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

// tries bounds calmly.
const tries = 3

// stalledAfter is how much longer than asked a pause may be on a calm machine: members have fractions of a second for reports and answers.
const stalledAfter = 250 * time.Millisecond

// calmly runs a test that counts exactly what its own moves and acts do. On a machine that has no time for the members
// a lease may run out, which moves keys and cuts handlers as well, and reports come too late: a try that fails, and in
// which this has happened, is repeated.
func calmly(t *testing.T, test func(t testing.TB, g *group)) {
	t.Helper()
	for n := 1; ; n++ {
		a := &attempt{TB: t}
		g := newGroup(a)
		watch, stop := context.WithCancel(t.Context())
		var stalls atomic.Int32
		var running sync.WaitGroup
		running.Go(func() {
			const pause = 10 * time.Millisecond
			for begun := clock.Now(); backoff.Sleep(watch, pause) == nil; begun = clock.Now() {
				if clock.Now().Sub(begun) > pause+stalledAfter {
					stalls.Add(1)
				}
			}
		})
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
		running.Wait()
		if !a.Failed() {
			return
		}
		lapses := uint64(0)
		for _, m := range g.started {
			lapses += counted(m.metrics.notes.WithLabelValues(string(ownership.NoteLeaseLapsed)))
		}
		if lapses == 0 && stalls.Load() == 0 || n == tries {
			t.Fatalf("try %d has failed; leases ran out %d times, and the machine stood still %d times", n, lapses, stalls.Load())
		}
		t.Logf("try %d has failed on a machine without time for its members: their leases ran out %d times, and it stood still %d times", n, lapses, stalls.Load())
	}
}
