package node

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/app/lane"
	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/source"
)

// Every part of the bound follows the settings that it stands for.
func TestMemoryBoundFollowsTheSettings(t *testing.T) {
	cfg, from := overloadedConfig()
	cfg.Audit, cfg.Lane = audit.DefaultConfig(), lane.DefaultConfig()
	before := MemoryBound(cfg, from)
	cfg.App.WorkersMax *= 2
	cfg.App.ReasonBytesMax *= 2
	cfg.Forward.PeersTypical *= 2
	cfg.Forward.HandoverMax *= 2
	cfg.Forward.RelayedBytesMax *= 2
	cfg.Mailbox.BytesMax *= 2
	cfg.Mailbox.FramesBytesMax *= 2
	cfg.Mailbox.WindowBytesMax *= 2
	cfg.Mailbox.RepliesBytesMax *= 2
	cfg.Lane.CallsMax *= 2
	cfg.Lane.CallsBytesMax *= 2
	cfg.History.BytesMax *= 2
	cfg.Audit.BytesMax *= 2
	from.ReceiverQueueMax *= 2
	from.UnsettledBytesMax *= 2
	from.CopiesMax *= 2
	from.ChunkedBytesMax *= 2
	from.PayloadBytesMax *= 2
	connected := from
	connected.BrokerConnectionsMax *= 2
	if one, two := MemorySum(MemoryBound(cfg, from)), MemorySum(MemoryBound(cfg, connected)); two <= one {
		t.Errorf("sum = %d with two connections, %d with one", two, one)
	}
	sum := 0
	for i, p := range MemoryBound(cfg, from) {
		if p.Bytes <= before[i].Bytes || before[i].Bytes <= 0 {
			t.Errorf("%s = %d with settings twice as large, %d before", p.Name, p.Bytes, before[i].Bytes)
		}
		sum += p.Bytes
	}
	if got := MemorySum(MemoryBound(cfg, from)); got != sum {
		t.Errorf("sum = %d, want %d", got, sum)
	}
}

// A setting that stands for "no limit" makes a bound that says so, not one that has overflown.
func TestMemoryBoundOfHugeSettings(t *testing.T) {
	cfg, from := overloadedConfig()
	cfg.Audit, cfg.Lane = audit.DefaultConfig(), lane.DefaultConfig()
	for name, setting := range map[string]*int{
		"UnsettledMax": &from.UnsettledMax, "UnsettledBytesMax": &from.UnsettledBytesMax, "ReceiverQueueMax": &from.ReceiverQueueMax,
		"BatchMax": &from.BatchMax, "CopiesMax": &from.CopiesMax, "HandoverMax": &cfg.Forward.HandoverMax, "BytesMax": &cfg.Mailbox.BytesMax,
		"CallsMax": &cfg.Lane.CallsMax,
	} {
		before, was := MemorySum(MemoryBound(cfg, from)), *setting
		for _, *setting = range []int{1 << 54, 1 << 62, math.MaxInt} {
			if sum := MemorySum(MemoryBound(cfg, from)); sum < *setting {
				t.Errorf("%s = %d: the bound is %d bytes, %d with %d", name, *setting, sum, before, was)
			}
		}
		*setting = was
	}
}

// overloadedConfig has bounds that a test of a few seconds reaches.
func overloadedConfig() (Config, source.Config) {
	cfg := Config{App: app.DefaultConfig(), Forward: forward.DefaultConfig(), Mailbox: mailbox.DefaultConfig(), History: history.DefaultConfig()}
	adjustOverloaded(&cfg)
	from := source.DefaultConfig()
	from.Topics, from.Subscription = []string{"orders"}, "orders"
	from.ReceiverQueueMax, from.BatchMax, from.UnsettledMax, from.UnsettledBytesMax = 500, 64, 12_000, 24<<20
	from.EventBytesTypical = 3 << 10
	from.ChunkedBytesMax, from.PayloadBytesMax = 5<<20, 5<<20      // the broker in memory has no chunks: they would only raise the bound
	from.Spill.After, from.Spill.StuckAfter = time.Hour, time.Hour // copies that come back later only make the recovery longer
	return cfg, from
}

func adjustOverloaded(c *Config) {
	c.Lane, c.Mailbox.RepliesBytesMax = lane.Config{CallsMax: 1, CallsBytesMax: 1}, 0 // there are no calls
	c.App.WorkersMax, c.App.InFlightMax, c.App.FrameBytesMax, c.App.ReasonBytesMax = 1, 64, 64<<10, 64
	c.Forward.RelayedBytesMax, c.Forward.FrameMax = 1<<20, 1<<20 // nothing is relayed
	c.Forward.PeersTypical, c.Forward.HandoverMax, c.Forward.FrameBytesMax = 1, 1<<10, 64<<10
	c.Mailbox.Shards, c.Mailbox.BytesMax, c.Mailbox.FramesBytesMax, c.Mailbox.WindowBytesMax = 1, 10<<20, 1<<20, 1<<20
}

// owning is a broker whose consumers own the memory of the received events, as a real client's do.
type owning struct{ *membroker.Broker }

func (b owning) Subscribe(ctx context.Context, o membroker.SubscribeOptions) (membroker.Consumer, error) {
	c, err := b.Broker.Subscribe(ctx, o)
	return owningConsumer{c}, err
}

type owningConsumer struct{ membroker.Consumer }

func (c owningConsumer) Receive(ctx context.Context) ([]membroker.Entry, error) {
	entries, err := c.Consumer.Receive(ctx)
	for i := range entries {
		e := &entries[i]
		e.Messages = slices.Clone(e.Messages)
		for j := range e.Messages {
			e.Messages[j].Payload = bytes.Clone(e.Messages[j].Payload)
		}
	}
	return entries, err
}

// overload is an application that is far slower than the topic until it is let go.
type overload struct {
	free    atomic.Bool
	handled atomic.Int64
}

func (o *overload) handle(ctx context.Context, _ *client.Event) error {
	if !o.free.Load() {
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	o.handled.Add(1)
	return nil
}

// TestOverloadKeepsWithinTheMemoryBound: a topic has far more events than the applications can
// handle, and the live memory of two members stays within the bound of the settings. When the
// applications are fast again all events are handled.
func TestOverloadKeepsWithinTheMemoryBound(t *testing.T) {
	const events, size, keys = 30_000, 2 << 10, 2000
	g := newGroup(t)
	_, g.source = overloadedConfig()
	g.feed = owning{g.broker}
	payload := make([]byte, size)
	for published := 0; published < events; { // before the nodes are there: the broker's part can only shrink
		batch := make([]membroker.Message, 50)
		for i := range batch {
			batch[i] = membroker.Message{Key: fmt.Sprintf("user-%d", published%keys), Payload: payload}
			published++
		}
		if _, err := g.broker.Publish(t.Context(), "persistent://public/default/orders", batch); err != nil {
			t.Fatal(err)
		}
	}
	var o overload
	var cfg Config
	members := make([]*member, 2)
	for i, name := range []string{"a", "b"} {
		m := g.start(name, func(c *Config) {
			adjustOverloaded(c)
			cfg = *c
		})
		members[i] = m
	}
	before := settledHeap() // without an application they consume nothing
	for _, m := range members {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := client.Run(ctx, m.endpoint, o.handle, client.WithMaxInFlight(32), client.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
				t.Errorf("application: %v", err)
			}
		}()
		m.stopApp = func() { cancel(); <-done }
	}
	g.ready(members...)

	bound := int64(MemorySum(MemoryBound(cfg, g.source)))
	var most int64
	full := 0
	for i := 0; i < 15 || i < 150 && (full == 0 || most < bound/2 || o.handled.Load() == 0); i++ { // a busy machine takes longer to fill the sources
		time.Sleep(200 * time.Millisecond)
		most = max(most, liveHeap()-before)
		for _, m := range members {
			if m.source.Load().Stats().Bytes >= g.source.UnsettledBytesMax {
				full++
			}
		}
	}
	backlog, handled := g.broker.SubscriptionStats("orders").Backlog, o.handled.Load()
	t.Logf("%d handled, %d still in the topic; live memory grew by %d KiB, the bound of two members is %d KiB", handled, backlog, most>>10, 2*bound>>10)
	if most > 2*bound {
		t.Errorf("live memory grew by %d bytes, the bound of two members is %d", most, 2*bound)
	}
	if full == 0 || most < bound/2 || handled == 0 || handled > events/5 {
		t.Errorf("%d of %d events were handled in the time, sources were full %d times, and live memory grew by %d bytes: this was no overload", handled, events, full, most)
	}

	o.free.Store(true)
	g.eventually("everything is handled", func() error {
		s := g.broker.SubscriptionStats("orders")
		if n := o.handled.Load(); n < events || s.Backlog+s.Unacked > 0 || members[0].Unsettled()+members[1].Unsettled() > 0 {
			return fmt.Errorf("%d of %d handled: %+v", n, events, s)
		}
		return nil
	})
}

// TestMoreMembersThanTheMemoryBoundCounts: a router warns once each time that its group outgrows peer.peers_typical.
func TestMoreMembersThanTheMemoryBoundCounts(t *testing.T) {
	t.Parallel()
	g := newGroup(t)
	told := make(chan string, 10)
	warns := func(p *Parts) {
		p.Log = slog.New(handlerFunc(func(r slog.Record) {
			if !strings.HasPrefix(r.Message, "the group has more members than the memory bound counts") || r.Level != slog.LevelWarn {
				return
			}
			r.Attrs(func(a slog.Attr) bool {
				if a.Key == "peers" {
					told <- a.Value.String()
				}
				return true
			})
		}))
	}
	a, b := g.startWith("a", func(c *Config) { c.Forward.PeersTypical = 1 }, warns), g.start("b", nil)
	g.startApp(a)
	g.startApp(b)
	g.ready(a, b)
	if len(told) > 0 {
		t.Errorf("it warns of %s other members, which the bound counts", <-told)
	}
	c := g.start("c", nil)
	g.startApp(c)
	if peers := <-told; peers != "2" {
		t.Errorf("it warns of %s other members, want 2", peers)
	}
	g.ready(a, b, c)
	a.notePeers(3)
	if len(told) > 0 {
		t.Errorf("it warns again, of %s", <-told)
	}
	a.notePeers(1)
	a.notePeers(2)
	if len(told) != 1 {
		t.Errorf("%d warnings after there were fewer, want one", len(told))
	}
}

// settledHeap is the live heap when tests that have ended have let go of theirs, which
// would count as ours shrinking.
func settledHeap() int64 {
	last := liveHeap()
	for range 50 {
		time.Sleep(100 * time.Millisecond)
		now := liveHeap()
		if last-now < 64<<10 {
			return now
		}
		last = now
	}
	return last
}

func liveHeap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
