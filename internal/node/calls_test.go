package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/app/lane"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/ring"
)

// callees counts what handlers of calls do in one process.
type callees struct {
	mu       sync.Mutex
	busy     map[string]int // handlers that run, by key
	overlaps int
	runs     map[string]int // by key and argument
	gone     atomic.Int32   // handlers that were told that their caller is gone
	events   atomic.Int32
}

func newCallees() *callees { return &callees{busy: map[string]int{}, runs: map[string]int{}} }

// enter notes that a handler runs.
func (c *callees) enter(key, what string) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs[key+"/"+what]++
	if c.busy[key]++; c.busy[key] > 1 {
		c.overlaps++
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.busy[key]--
	}
}

func (c *callees) ran(key, what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.runs[key+"/"+what]
}

// startCalls connects an application that takes events and calls, and returns a lane through its router.
func (g *group) startCalls(m *member, c *callees, more ...client.Option) *client.Lane {
	g.t.Helper()
	quiet := client.WithLogger(slog.New(slog.DiscardHandler))
	through, err := client.Dial(m.endpoint, quiet)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = through.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	opts := append([]client.Option{
		quiet, client.WithDrainGrace(5 * time.Second),
		client.WithCall("echo", func(_ context.Context, call *client.Call) ([]byte, error) {
			defer c.enter(call.Key, string(call.Payload))()
			return fmt.Appendf(nil, "%s:%s", m.cfg.Name, call.Payload), nil
		}),
		client.WithCall("fail", func(context.Context, *client.Call) ([]byte, error) {
			return nil, client.FailCall("broke", errors.New("no money"))
		}),
		client.WithCall("wait", func(ctx context.Context, call *client.Call) ([]byte, error) {
			defer c.enter(call.Key, "wait")()
			<-ctx.Done()
			if errors.Is(context.Cause(ctx), client.ErrCallerGone) {
				c.gone.Add(1)
			}
			return nil, ctx.Err()
		}),
		client.WithCall("hold", func(ctx context.Context, call *client.Call) ([]byte, error) {
			r, err := through.Reserve(ctx, string(call.Payload))
			if err == nil {
				r.Release()
			}
			return nil, err
		}),
		client.WithCall("again", func(ctx context.Context, call *client.Call) ([]byte, error) {
			return through.Invoke(ctx, string(call.Payload), "echo", []byte("from "+call.Key))
		}),
	}, more...)
	go func() {
		defer close(done)
		err := client.Run(ctx, m.endpoint, func(_ context.Context, e *client.Event) error {
			defer c.enter(e.Key, string(e.Payload))()
			c.events.Add(1)
			time.Sleep(100 * time.Microsecond)
			return nil
		}, opts...)
		if err != nil {
			g.t.Errorf("application: %v", err)
		}
	}()
	m.stopApp = sync.OnceFunc(func() { cancel(); <-done })
	return through
}

// owned returns a key that a member owns.
func (g *group) owned(m *member) string {
	g.t.Helper()
	for i := range 100_000 {
		key := fmt.Sprintf("key-%d", i)
		if t := m.Table(); t.Owner(ring.PartitionOf(key)).Name == m.cfg.Name {
			return key
		}
	}
	g.t.Fatal("it owns no key")
	return ""
}

// notRun makes calls of a key that is not free, until one is answered as not run since its time was up. Where the
// owner's answer took longer than a caller waits for it, as on a busy machine, the caller cannot know that.
func notRun(g *group, through *client.Lane, key, payload string) {
	g.t.Helper()
	g.eventually("a call is answered as not run", func() error {
		_, err := through.Invoke(g.t.Context(), key, "echo", []byte(payload), client.WithCallTimeout(50*time.Millisecond))
		var failure *client.CallError
		switch {
		case errors.Is(err, client.ErrUnknown):
			return err
		case !errors.As(err, &failure) || !errors.Is(err, client.ErrNotRun) || failure.Code != client.CodeTimeout:
			return fmt.Errorf("%w: the error is %w", eventually.ErrInVain, err)
		}
		return nil
	})
}

// TestCalls: calls through any member reach the owner of their key, run beside no event of it, and come back with what became of them.
func TestCalls(t *testing.T) {
	t.Parallel()
	g, c := newGroup(t), newCallees()
	a := g.start("a", nil)
	b := g.start("b", nil)
	la, lb := g.startCalls(a, c), g.startCalls(b, c)
	g.ready(a, b)
	own, other := g.owned(a), g.owned(b)

	t.Run("replied", func(t *testing.T) {
		for _, through := range []*client.Lane{la, lb} {
			for key, owner := range map[string]string{own: "a", other: "b"} {
				if reply, err := through.Invoke(t.Context(), key, "echo", []byte("x")); err != nil || string(reply) != owner+":x" {
					t.Errorf("the reply for %s is %q, %v; want %s:x", key, reply, err, owner)
				}
			}
		}
	})
	t.Run("empty", func(t *testing.T) {
		if reply, err := la.Invoke(t.Context(), other, "echo", nil); err != nil || string(reply) != "b:" {
			t.Errorf("the reply is %q, %v", reply, err)
		}
	})
	failed := func(t *testing.T, err error, kind error, code string) {
		t.Helper()
		var failure *client.CallError
		if !errors.As(err, &failure) || !errors.Is(err, kind) || failure.Code != code {
			t.Errorf("the error is %v, want %v with code %q", err, kind, code)
		}
	}
	t.Run("failed", func(t *testing.T) {
		_, err := la.Invoke(t.Context(), other, "fail", nil)
		failed(t, err, client.ErrCallFailed, "broke")
	})
	t.Run("no handler", func(t *testing.T) {
		_, err := la.Invoke(t.Context(), other, "unheard", nil)
		failed(t, err, client.ErrNotRun, client.CodeNoHandler)
	})
	t.Run("bad requests", func(t *testing.T) {
		for _, err := range []error{
			second(la.Invoke(t.Context(), "", "echo", nil)), second(la.Invoke(t.Context(), own, "no method", nil)),
		} {
			failed(t, err, client.ErrNotRun, "")
		}
		_, err := la.Invoke(t.Context(), own, "echo", make([]byte, event.CallPayloadMax+1))
		failed(t, err, client.ErrNotRun, client.CodeTooLarge)
	})
	t.Run("the caller is gone", func(t *testing.T) {
		for i, key := range []string{own, other} {
			ctx, giveUp := context.WithCancel(t.Context())
			answered := make(chan error)
			go func() {
				_, err := la.Invoke(ctx, key, "wait", nil, client.WithCallTimeout(5*time.Minute))
				answered <- err
			}()
			g.eventually("it runs", func() error {
				if c.ran(key, "wait") == 0 {
					return errors.New("not yet")
				}
				return nil
			})
			giveUp()
			failed(t, <-answered, client.ErrUnknown, "")
			g.eventually("the handler is told", func() error {
				if n := int(c.gone.Load()); n != i+1 {
					return fmt.Errorf("%d handlers were", n)
				}
				return nil
			})
			if _, err := la.Invoke(t.Context(), key, "echo", []byte("after")); err != nil {
				t.Errorf("the next call of the key: %v", err)
			}
		}
	})
	t.Run("behind one that waits", func(t *testing.T) {
		ctx, giveUp := context.WithCancel(t.Context())
		var calling sync.WaitGroup
		calling.Go(func() {
			_, _ = la.Invoke(ctx, other, "wait", nil, client.WithCallTimeout(5*time.Minute))
		})
		g.eventually("it runs", func() error {
			if c.ran(other, "wait") < 2 {
				return errors.New("not yet")
			}
			return nil
		})
		notRun(g, lb, other, "too late")
		giveUp()
		calling.Wait()
		if _, err := lb.Invoke(t.Context(), other, "echo", []byte("in time")); err != nil || c.ran(other, "too late") != 0 {
			t.Errorf("after it: %v; of the calls whose time was up %d ran", err, c.ran(other, "too late"))
		}
	})
	t.Run("from a handler", func(t *testing.T) {
		if reply, err := la.Invoke(t.Context(), own, "again", []byte(other)); err != nil || string(reply) != "b:from "+own {
			t.Errorf("the reply is %q, %v", reply, err)
		}
		_, err := la.Invoke(t.Context(), own, "again", []byte(own))
		failed(t, err, client.ErrCallFailed, "")
		if c.ran(own, "from "+own) != 0 {
			t.Error("a call ran that waits for itself")
		}
	})
	t.Run("once by its id", func(t *testing.T) {
		for i, through := range []*client.Lane{la, lb, la} {
			reply, err := through.Invoke(t.Context(), other, "echo", []byte("by id"), client.WithCallID("order-7"))
			if err != nil || string(reply) != "b:by id" {
				t.Errorf("reply %d is %q, %v", i, reply, err)
			}
		}
		if n := c.ran(other, "by id"); n != 1 {
			t.Errorf("it ran %d times", n)
		}
	})
	t.Run("beside events", func(t *testing.T) {
		var calling sync.WaitGroup
		for i := range 8 {
			calling.Go(func() {
				for k := range 200 {
					key, through := fmt.Sprintf("user-%d", k%10), []*client.Lane{la, lb}[(i+k)%2]
					if _, err := through.Invoke(t.Context(), key, "echo", fmt.Appendf(nil, "%d-%d", i, k)); err != nil {
						t.Errorf("call: %v", err)
					}
				}
			})
		}
		g.publish(2000, 10)
		calling.Wait()
		g.settled()
		if c.overlaps != 0 || c.events.Load() < 2000 {
			t.Errorf("%d overlaps, %d events", c.overlaps, c.events.Load())
		}
	})
	g.eventually("a keeps nothing", func() error { // an owner that has sent its answer may not have let go of the call yet
		if s, n := a.boxes.Stats(), a.lane.Stats().Calls; s.Visits != 0 || s.Bytes != 0 || s.Events != 0 || n != 0 {
			return fmt.Errorf("%d callers wait, and it keeps %+v", n, s)
		}
		return nil
	})
}

func second[T any](_ T, err error) error { return err }

// TestCallsMove: calls that wait while their key moves are answered, each once.
func TestCallsMove(t *testing.T) {
	t.Parallel()
	calmly(t, callsMove)
}

func callsMove(t testing.TB, g *group) {
	c := newCallees()
	a := g.start("a", nil)
	la := g.startCalls(a, c)
	g.ready(a)
	ctx, stop := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	var replied, odd atomic.Int32
	for i := range 4 {
		calling.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				if _, err := la.Invoke(t.Context(), fmt.Sprintf("user-%d", k%50), "echo", fmt.Appendf(nil, "%d-%d", i, k), client.WithCallTimeout(time.Minute)); err != nil {
					odd.Add(1)
					t.Logf("call: %v", err)
					continue
				}
				replied.Add(1)
			}
		})
	}
	b := g.start("b", nil)
	g.startCalls(b, c)
	g.ready(a, b)
	before := replied.Load()
	g.eventually("calls are answered after the move", func() error {
		if n := replied.Load() - before; n < 500 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	stop()
	calling.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	twice := 0
	for _, n := range c.runs {
		if n > 1 {
			twice++
		}
	}
	if c.overlaps != 0 || twice != 0 || odd.Load() != 0 || len(c.runs) != int(replied.Load()) {
		t.Errorf("%d overlaps, %d ran twice, %d without a reply, %d ran and %d were replied to", c.overlaps, twice, odd.Load(), len(c.runs), replied.Load())
	}
}

// TestCallsOverloaded: a router's callers are bounded.
func TestCallsOverloaded(t *testing.T) {
	t.Parallel()
	calmly(t, callsOverloaded)
}

func callsOverloaded(t testing.TB, g *group) {
	c := newCallees()
	a := g.start("a", func(cfg *Config) { cfg.Lane = lane.Config{CallsMax: 1, CallsBytesMax: 1 << 20} })
	la := g.startCalls(a, c)
	g.ready(a)
	var calling sync.WaitGroup
	ctx, giveUp := context.WithCancel(t.Context())
	calling.Go(func() { _, _ = la.Invoke(ctx, "k", "wait", nil, client.WithCallTimeout(5*time.Minute)) })
	defer calling.Wait()
	defer giveUp()
	g.eventually("it runs", func() error {
		if c.ran("k", "wait") == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	var failure *client.CallError
	if _, err := la.Invoke(t.Context(), "other", "echo", nil); !errors.As(err, &failure) || failure.Code != client.CodeOverloaded || failure.RetryAfter == 0 {
		t.Errorf("the error is %v", err)
	}
	v := newReporter(a.Node).Status().Visits
	if near := v.Nearest(); v.Refused != 1 || v.Running != 1 || near.Setting != "lane.calls_max" || near.Part() != 1 {
		t.Errorf("the report tells %+v", v)
	}
}

// patient is a handler of calls that runs until it is let go.
type patient struct {
	begun chan string // the members that run it
	letGo chan struct{}
}

func (p *patient) of(name string) client.Option {
	return client.WithCall("patient", func(ctx context.Context, _ *client.Call) ([]byte, error) {
		p.begun <- name
		select {
		case <-p.letGo:
			return []byte("at last"), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
}

// TestHomeThatLeaves: a router that leaves its group waits for the answers to the calls that were made at it, and
// refuses new ones, which can be made elsewhere; holders go on meanwhile, and it ends when all are answered, or when
// its drain may take no longer.
func TestHomeThatLeaves(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		bound time.Duration // of the drain
		cut   bool          // at the end of it. What it refuses meanwhile is seen where there is time for that
	}{"in time": {eventually.Most, false}, "too late": {2 * time.Second, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calmly(t, func(t testing.TB, g *group) { homeThatLeaves(t, g, test.bound, test.cut) })
		})
	}
}

func homeThatLeaves(t testing.TB, g *group, bound time.Duration, cut bool) {
	c := newCallees()
	p := &patient{begun: make(chan string, 2), letGo: make(chan struct{})}
	a, b := g.start("a", func(cfg *Config) { cfg.DrainTimeout = bound }), g.start("b", nil)
	la, lb := g.startCalls(a, c, p.of("a")), g.startCalls(b, c, p.of("b"))
	g.ready(a, b)
	key := g.owned(b)
	answers := make(chan error, 1)
	go func() {
		reply, err := la.Invoke(t.Context(), key, "patient", nil, client.WithCallTimeout(time.Minute))
		if err == nil && string(reply) != "at last" {
			err = fmt.Errorf("the reply is %q", reply)
		}
		answers <- err
	}()
	select {
	case <-p.begun:
	case err := <-answers:
		t.Fatalf("the caller is told %v", err)
	}
	a.stop()
	if cut {
		if err := <-answers; !errors.Is(err, client.ErrUnknown) {
			t.Errorf("the caller is told %v", err)
		}
		if <-a.ended; !errors.Is(a.err, ErrDrainTimeout) || !strings.Contains(a.err.Error(), "1 call of its callers have no answer") {
			t.Errorf("the router ended with %v", a.err)
		}
		close(p.letGo)
		return
	}
	var failure *client.CallError
	g.eventually("new calls are refused", func() error {
		if _, err := la.Invoke(t.Context(), "other", "echo", nil, client.WithCallTimeout(time.Second)); !errors.As(err, &failure) || failure.Code != client.CodeLeaving {
			return fmt.Errorf("the error is %w", err)
		}
		return nil
	})
	if !errors.Is(failure, client.ErrNotRun) || failure.RetryAfter != 0 {
		t.Errorf("a new call: %+v", failure)
	}
	if _, err := la.Reserve(t.Context(), "other"); !errors.As(err, &failure) || failure.Code != client.CodeLeaving {
		t.Errorf("a new reservation: %v", err)
	}
	if _, err := lb.Invoke(t.Context(), "other", "echo", nil, client.WithCallTimeout(time.Minute)); err != nil {
		t.Errorf("the call made elsewhere: %v", err)
	}
	g.eventually("the drain waits for the call", func() error {
		if waits := a.DrainWaits(); waits != "1 call of its callers not answered yet" {
			return errors.New(waits)
		}
		return nil
	})
	select {
	case <-a.ended:
		t.Fatalf("it has ended, with %v", a.err)
	case err := <-answers:
		t.Fatalf("the caller is told %v", err)
	default:
	}
	close(p.letGo)
	if err := <-answers; err != nil {
		t.Errorf("the caller is told %v", err)
	}
	if <-a.ended; a.err != nil {
		t.Errorf("the router ended with %v", a.err)
	}
}

// TestUndrainedHomeTakesCalls: a router that comes back takes calls again, and the calls of its handlers meanwhile.
func TestUndrainedHomeTakesCalls(t *testing.T) {
	t.Parallel()
	g, c := newGroup(t), newCallees()
	a, b := g.start("a", nil), g.start("b", nil)
	la, lb := g.startCalls(a, c), g.startCalls(b, c)
	g.ready(a, b)
	// A call from a handler has a path, and is taken while the router drains.
	a.lane.Leave()
	if _, err := lb.Invoke(t.Context(), g.owned(a), "again", []byte(g.owned(b)), client.WithCallTimeout(time.Minute)); err != nil {
		t.Errorf("a call of a handler beside a router that leaves: %v", err)
	}
	a.lane.TakeCalls()
	g.closes("it has drained", a.Drain())
	var failure *client.CallError
	if _, err := la.Invoke(t.Context(), "k", "echo", nil); !errors.As(err, &failure) || failure.Code != client.CodeLeaving {
		t.Errorf("after the drain: %v", err)
	}
	if _, err := a.Undrain(); err != nil {
		t.Fatal(err)
	}
	g.ready(a, b)
	if _, err := la.Invoke(t.Context(), g.owned(b), "echo", nil, client.WithCallTimeout(time.Minute)); err != nil {
		t.Errorf("after it has come back: %v", err)
	}
}
