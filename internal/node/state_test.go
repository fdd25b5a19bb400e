package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/client"
)

// tallies is a database of one number for each key, and the handlers that keep it in their state.
type tallies struct {
	mu    sync.Mutex
	of    map[string]int
	loads map[string]int
	turns map[string]int
	wrong []string
}

// counter is the state of a key.
type counter struct{ n int }

func (d *tallies) loaded(key string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.loads[key]
}

// add is a turn of a key: it reads the state, compares it with the database, and writes both.
func (d *tallies) add(ctx context.Context, key string) (int, error) {
	s, err := client.State(ctx, func(context.Context) (*counter, error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.loads[key]++
		return &counter{d.of[key]}, nil
	})
	if err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.n != d.of[key] {
		d.wrong = append(d.wrong, fmt.Sprintf("%s: the state has %d, the database %d", key, s.n, d.of[key]))
	}
	s.n++
	d.of[key] = s.n
	d.turns[key]++
	return s.n, nil
}

// work connects a worker that keeps tallies.
func (d *tallies) work(t testing.TB, m *member) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ready, done := make(chan struct{}), make(chan struct{})
	var once sync.Once
	go func() {
		defer close(done)
		err := client.Run(ctx, m.endpoint, func(ctx context.Context, e *client.Event) error {
			_, err := d.add(ctx, e.Key)
			return err
		}, client.WithLogger(slog.New(slog.DiscardHandler)),
			client.WithCall("add", func(ctx context.Context, c *client.Call) ([]byte, error) {
				n, err := d.add(ctx, c.Key)
				return fmt.Append(nil, n), err
			}),
			client.WithCall("fail", func(ctx context.Context, c *client.Call) ([]byte, error) {
				if _, err := d.add(ctx, c.Key); err != nil {
					return nil, err
				}
				return nil, errors.New("after the write")
			}),
			client.WithReady(func(is bool) {
				if is {
					once.Do(func() { close(ready) })
				}
			}))
		if err != nil {
			t.Errorf("application: %v", err)
		}
	}()
	<-ready
	return sync.OnceFunc(func() { cancel(); <-done })
}

// TestState: a handler reads what the turn before it has written, over events and calls, and loads only after something came between.
func TestState(t *testing.T) {
	t.Parallel()
	calmly(t, state)
}

func state(t testing.TB, g *group) {
	a := g.start("a", nil)
	d := &tallies{of: map[string]int{}, loads: map[string]int{}, turns: map[string]int{}}
	a.stopApp = d.work(t, a)
	through, err := client.Dial(a.endpoint, client.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = through.Close() }()
	g.ready(a)
	const key = "user-1"
	add := func(want int) {
		t.Helper()
		if reply, err := through.Invoke(t.Context(), key, "add", nil); err != nil || string(reply) != fmt.Sprint(want) {
			t.Fatalf("the reply is %q, %v; want %d", reply, err, want)
		}
	}
	loads := func(want int, after string) {
		t.Helper()
		if n := d.loaded(key); n != want {
			t.Errorf("after %s: %d loads, want %d", after, n, want)
		}
	}
	add(1)
	loads(1, "the first turn")
	g.publish(100, 2) // 50 of them of this key
	g.settled()
	for i := range 10 {
		add(52 + i)
	}
	loads(1, "events and calls")

	_, _ = through.Invoke(t.Context(), key, "fail", nil) // number 62
	add(63)
	loads(2, "a turn that failed")

	r, err := through.Reserve(t.Context(), key, client.WithWait(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.of[key] = 100 // as the holder may
	d.mu.Unlock()
	r.Release()
	add(101)
	loads(3, "a reservation")
	add(102)
	loads(3, "the turn after it")

	stop := d.work(t, a)
	add(103)
	add(104)
	loads(4, "a second worker has come")
	stop()
	add(105)
	loads(5, "it has gone")
	g.publish(1000, 5)
	g.settled()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, wrong := range d.wrong {
		t.Error(wrong)
	}
	turns, all := 0, 0
	for key, n := range d.turns {
		turns, all = turns+n, all+d.loads[key]
	}
	if turns < 1100 || all > 20 {
		t.Errorf("%d loads in %d turns", all, turns)
	}
}
