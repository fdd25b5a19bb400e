//go:build unix

package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	"github.com/ringfence/router/ring"
)

// endless implements mailboxes that never run empty. It has so many events that each one has
// left the processor's caches before its turn, as in a router that holds thousands of events.
type endless struct {
	mu     sync.Mutex
	last   event.DeliveryID
	left   int // to deliver
	open   int // delivered, not finished
	over   chan struct{}
	events []*event.Event // delivered in a circle
}

// coldEvents returns events with about 32 MiB of payload, more than a processor's caches hold.
func coldEvents(size int) []*event.Event {
	events := make([]*event.Event, (32<<20)/size)
	for i := range events {
		events[i] = &event.Event{
			ID: event.MessageID{Ledger: 1, Entry: int64(i), Batch: -1, TopicPartition: -1}, Topic: "persistent://public/default/orders",
			Key: event.Key(fmt.Sprintf("user-%d", i%10_000)), Payload: make([]byte, size), PublishTime: 1_763_000_000_000,
			Properties: []event.Property{{Name: "source", Value: "web"}},
		}
	}
	return events
}

func (b *endless) WorkerUp(event.WorkerID)   {}
func (b *endless) WorkerGone(event.WorkerID) {}

func (b *endless) Take(_ event.WorkerID, limit int, dst []event.Delivery) []event.Delivery {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range min(limit, b.left) {
		b.last++
		e := b.events[int(b.last)%len(b.events)]
		dst = append(dst, event.Delivery{ID: b.last, Ref: event.RefTo(e), Size: uint32(e.Bytes()), Partition: ring.Partition(b.last % ring.Partitions), Token: 1 << 40, Attempt: 1})
		b.left--
		b.open++
	}
	return dst
}

func (b *endless) Finish(results []event.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open -= len(results); b.open == 0 && b.left == 0 {
		close(b.over)
	}
}

// fill makes n more events ready.
func (b *endless) fill(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left, b.over = n, make(chan struct{})
}

// BenchmarkStream measures the way of an event from the mailboxes through an empty handler
// and back. cpu-ns/event is the processor time of this process alone, for both sides together.
func BenchmarkStream(b *testing.B) {
	for _, network := range []string{"tcp", "unix"} {
		for _, size := range []int{200, 4096} {
			b.Run(fmt.Sprintf("%s/%dB", network, size), func(b *testing.B) { benchmarkStream(b, network, size, 1, flood) })
		}
	}
}

// BenchmarkWorkers is BenchmarkStream over several streams, as with an application of several
// processes.
func BenchmarkWorkers(b *testing.B) {
	for _, workers := range []int{1, 4, 8, 16, 64} {
		b.Run(fmt.Sprint(workers), func(b *testing.B) { benchmarkStream(b, "tcp", 200, workers, flood) })
	}
}

// BenchmarkBursts is BenchmarkStream with little load: 50 events come every 5 ms. It shows what
// wake-ups cost.
func BenchmarkBursts(b *testing.B) {
	benchmarkStream(b, "tcp", 200, 1, func(b *testing.B, round func(events int)) {
		for range b.N / 50 {
			round(50)
			time.Sleep(5 * time.Millisecond)
		}
	})
}

// flood makes all events ready at once.
func flood(b *testing.B, round func(events int)) { round(b.N) }

func benchmarkStream(b *testing.B, network string, size, workers int, load func(b *testing.B, round func(events int))) {
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(b.TempDir(), "s")
	}
	listener, err := net.Listen(network, address)
	if err != nil {
		b.Fatal(err)
	}
	boxes := &endless{events: coldEvents(size)}
	cfg := app.DefaultConfig()
	cfg.WorkersMax = max(cfg.WorkersMax, workers)
	server, err := app.New(cfg, app.Identity{Node: "bench"}, app.Parts{
		Boxes: boxes, Now: clock.Now, Log: slog.New(slog.DiscardHandler), Metrics: app.NewMetrics(prometheus.NewRegistry()),
		Lease:   func() ownership.Lease { return ownership.Lease{Until: clock.Now().Add(time.Minute)} },
		Workers: func(int) {}, Drain: func(string) {},
	})
	if err != nil {
		b.Fatal(err)
	}
	g := grpc.NewServer(app.ServerOptions(cfg)...)
	appv1.RegisterAppServiceServer(g, server)
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = server.Run(ctx) })
	running.Go(func() { _ = g.Serve(listener) })
	endpoint := listener.Addr().String()
	if network == "unix" {
		endpoint = "unix://" + endpoint
	}
	handler := func(context.Context, *client.Event) error { return nil }
	for range workers {
		running.Go(func() {
			if err := client.Run(ctx, endpoint, handler, client.WithMaxInFlight(2000), client.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
				b.Error(err)
			}
		})
	}
	round := func(n int) {
		boxes.fill(n)
		server.WakeAll()
		<-boxes.over
	}
	for server.Workers() < workers {
		time.Sleep(time.Millisecond)
	}
	round(20_000)
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuTime(b)
	load(b, round)
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/event")
	b.StopTimer()
	stop()
	g.Stop()
	running.Wait()
}

// cpuTime returns the processor time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(unix.TimevalToNsec(u.Utime) + unix.TimevalToNsec(u.Stime))
}

// Grant implements app.Boxes.
func (b *endless) Grant(event.DeliveryID, event.Grant) {}
