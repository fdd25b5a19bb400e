package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/broker/membroker"
)

// fenced is a database with the recipe of docs/sinks.md, for one key.
type fenced struct {
	mu     sync.Mutex
	newest client.Fence
	value  string
}

func (f *fenced) write(fence client.Fence, value string) (accepted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fence.Before(f.newest) {
		return false
	}
	f.newest, f.value = fence, value
	return true
}

// TestALostWorkersWriteIsRefused: two workers of one application are separate processes. The
// connection of the first breaks while its handler stands still: SIGSTOP, a long pause of the
// runtime, a stuck network. When its deadline has passed the key moves to the second, which writes.
// Then the first continues and writes, too. Both got the key from one owner, so under one
// token.
func TestALostWorkersWriteIsRefused(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	a := g.start("a", nil)
	var db fenced

	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	run := func(endpoint string, h client.Handler) {
		workers.Go(func() { _ = client.Run(ctx, endpoint, h, client.WithLogger(slog.New(slog.DiscardHandler))) })
	}
	relay := newBreakable(t, a.endpoint)
	thaw, frozen, first := make(chan struct{}), make(chan client.Fence, 1), make(chan bool, 1)
	t.Cleanup(func() {
		cancel()
		workers.Wait()
	})
	thawn := sync.OnceFunc(func() { close(thaw) })
	t.Cleanup(thawn) // before the workers end, or theirs would not

	run(relay.endpoint(), func(_ context.Context, e *client.Event) error {
		frozen <- e.Fence
		<-thaw // a process that stands still looks at no context
		first <- db.write(e.Fence, "of the first worker")
		return nil
	})
	g.ready(a)
	if _, err := g.broker.Publish(t.Context(), "persistent://public/default/orders", []membroker.Message{{Key: "user-0", Payload: []byte("x")}}); err != nil {
		t.Fatal(err)
	}
	lost := <-frozen
	second := make(chan client.Fence, 1)
	run(a.endpoint, func(_ context.Context, e *client.Event) error {
		if !db.write(e.Fence, "of the second worker") {
			return fmt.Errorf("the write of the worker that has the key was refused: %v", e.Fence)
		}
		second <- e.Fence
		return nil
	})
	g.eventually("the second worker is there", func() error {
		if n := a.Workers(); n != 2 {
			return fmt.Errorf("%d workers", n)
		}
		return nil
	})
	relay.cut()
	newest := <-second
	thawn()
	if <-first {
		t.Errorf("a write with %v was accepted after one with %v: now the database holds that %s", lost, newest, db.value)
	}
	if lost.Token != newest.Token || !lost.Before(newest) {
		t.Errorf("fences %v and %v, want one token and a greater turn", lost, newest)
	}
}

// breakable relays connections until they are cut.
type breakable struct {
	listener net.Listener
	to       string
	copies   sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func newBreakable(t *testing.T, to string) *breakable {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &breakable{listener: l, to: to}
	b.copies.Go(b.accept)
	t.Cleanup(func() {
		b.cut()
		b.copies.Wait()
	})
	return b
}

func (b *breakable) endpoint() string { return b.listener.Addr().String() }

func (b *breakable) accept() {
	for {
		in, err := b.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", b.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		b.mu.Lock()
		b.conns = append(b.conns, in, out)
		b.mu.Unlock()
		for _, way := range [2][2]net.Conn{{in, out}, {out, in}} {
			b.copies.Go(func() {
				_, _ = io.Copy(way[0], way[1])
				_ = way[0].Close()
			})
		}
	}
}

// cut breaks all connections, and lets no other one come.
func (b *breakable) cut() {
	_ = b.listener.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.conns {
		_ = c.Close()
	}
}
