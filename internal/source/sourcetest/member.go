package sourcetest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/testing/eventually"
)

// Sink is a sink for tests that only read the received events.
type Sink func(ctx context.Context, batch []event.Message)

// Received implements source.Sink.
func (f Sink) Received(ctx context.Context, entries []*event.Entry) {
	var batch []event.Message
	for _, e := range entries {
		for i := range e.Fresh.All() {
			batch = append(batch, e.Message(i))
		}
	}
	f(ctx, batch)
}

// Newest implements source.Sink. It knows of no failures.
func (Sink) Newest(handles []event.Handle, dst []*event.Event) []*event.Event {
	return append(dst, make([]*event.Event, len(handles))...)
}

// Drop implements source.Sink.
func (Sink) Drop([]event.Handle, event.Drop) {}

// Member is a running source and the events that it has handed on.
type Member struct {
	*source.Source

	t    testing.TB
	stop context.CancelFunc
	over chan struct{}
	err  error // of Run, once over is closed

	stopped bool // by the test, with open events

	mu     sync.Mutex
	got    []event.Message
	change chan struct{} // capacity 1
}

// Start runs a source until Stop or the end of the test.
func Start(t testing.TB, src *source.Source) *Member {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	m := &Member{Source: src, t: t, stop: stop, over: make(chan struct{}), change: make(chan struct{}, 1)}
	var run sync.WaitGroup
	run.Go(func() {
		defer close(m.over)
		m.err = src.Run(ctx, Sink(m.received))
	})
	t.Cleanup(func() {
		if !t.Failed() && !m.stopped { // every event must be settled
			m.AwaitIdle()
		}
		m.Stop()
		run.Wait()
	})
	select {
	case <-src.Ready():
	case <-m.over:
		t.Fatalf("Run returned %v before it was ready", m.err)
	case <-time.After(patience):
		t.Fatal("the source did not get ready")
	}
	return m
}

func (m *Member) received(_ context.Context, batch []event.Message) {
	m.mu.Lock()
	m.got = append(m.got, batch...)
	m.mu.Unlock()
	signal.Set(m.change)
}

// Stop ends Run, which returns open events to the broker.
func (m *Member) Stop() {
	m.t.Helper()
	m.stopped = true
	m.stop()
	select {
	case <-m.over:
	case <-time.After(patience):
		m.t.Fatal("Run did not return")
	}
	if m.err != nil {
		m.t.Errorf("Run = %v", m.err)
	}
}

// Take waits for n events and returns them, oldest first.
func (m *Member) Take(n int) []event.Message {
	m.t.Helper()
	deadline := time.After(patience)
	for {
		m.mu.Lock()
		if len(m.got) >= n {
			taken := slices.Clone(m.got[:n])
			m.got = slices.Delete(m.got, 0, n)
			m.mu.Unlock()
			return taken
		}
		have := len(m.got)
		m.mu.Unlock()
		select {
		case <-m.change:
		case <-deadline:
			m.t.Fatalf("%d of %d events came", have, n)
		}
	}
}

// Left returns how many events were handed on and not taken.
func (m *Member) Left() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.got)
}

// Done settles events as done.
func (m *Member) Done(events ...event.Message) {
	verdicts := make([]event.Verdict, len(events))
	for i, e := range events {
		verdicts[i] = event.Verdict{Handle: e.Event.Handle, Kind: event.Done}
	}
	m.Settle(nil, verdicts)
}

// AwaitIdle waits until nothing is unsettled.
func (m *Member) AwaitIdle() {
	m.t.Helper()
	eventually.True(m.t, "unsettled = 0", func() bool { return m.Stats().Unsettled == 0 })
}
