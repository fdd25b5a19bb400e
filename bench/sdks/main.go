//go:build linux

// Command sdks measures workers of any language: it plays the router to each command in turn, with
// the router's own stream server and mailboxes that never run empty.
//
//	go run ./bench/sdks go=./empty-go bare-go=./bare-go
//
// Each command finds the router by RINGFENCE_APP_ENDPOINT. It prints for each the events/s of an empty
// handler, the CPU of the command and all that it has started, and the latency of single events at a
// low rate, from the mailbox to the result.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
	"github.com/ringfence/router/ring"
)

type options struct {
	rounds  int
	seconds time.Duration // of each measurement
	warm    time.Duration // before it: interpreters compile
	size    int           // bytes of a payload
	rate    int           // events/s for latencies
	ask     bool          // when handlers ran, as a router with the live auditor does
}

func main() {
	o := options{rounds: 1, seconds: 5 * time.Second, warm: 3 * time.Second, size: 256, rate: 1000}
	flag.IntVar(&o.rounds, "rounds", o.rounds, "how often each command is measured, in turn")
	flag.DurationVar(&o.seconds, "for", o.seconds, "how long each measurement takes")
	flag.DurationVar(&o.warm, "warm", o.warm, "how long a command works before it is measured")
	flag.IntVar(&o.size, "size", o.size, "bytes of a payload")
	flag.IntVar(&o.rate, "rate", o.rate, "events/s at which latencies are measured")
	flag.BoolVar(&o.ask, "intervals", o.ask, "ask when handlers ran, as a router with the live auditor does")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sdks:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("name the commands as NAME=COMMAND")

func run(ctx context.Context, o options, commands []string) error {
	if len(commands) == 0 {
		return errUsage
	}
	fmt.Println("| worker | events/s | CPU µs/event | p50 ms | p99 ms |\n|---|---|---|---|---|")
	for range o.rounds {
		for _, one := range commands {
			name, command, ok := strings.Cut(one, "=")
			if !ok || command == "" {
				return fmt.Errorf("%w: %q", errUsage, one)
			}
			row, err := measure(ctx, o, command)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			fmt.Printf("| %s | %.0f | %.2f | %.2f | %.2f |\n", name, row.perSecond, row.cpu.Seconds()*1e6, row.p50.Seconds()*1e3, row.p99.Seconds()*1e3)
		}
	}
	return nil
}

// figures are those of one command.
type figures struct {
	perSecond float64
	cpu       time.Duration // per event, of the command
	p50, p99  time.Duration
}

// patience is how long a command may take to connect.
const patience = time.Minute

func measure(ctx context.Context, o options, command string) (f figures, err error) {
	ctx, stop := context.WithCancel(ctx)
	boxes := newBoxes(o.size)
	server, endpoint, wait, err := serve(ctx, boxes, o.ask)
	if err != nil {
		stop()
		return f, err
	}
	defer wait()
	defer stop()
	cmd := exec.CommandContext(ctx, "sh", "-c", "exec "+command)
	cmd.Env = append(os.Environ(), "RINGFENCE_APP_ENDPOINT="+endpoint)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		return f, fmt.Errorf("start: %w", err)
	}
	var running sync.WaitGroup
	died := make(chan error, 1)
	running.Go(func() { died <- cmd.Wait() })
	defer running.Wait()
	defer stop()
	for begun := clock.Now(); server.Workers() == 0; {
		select {
		case err := <-died:
			return f, fmt.Errorf("it has ended: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
		if clock.Now().Sub(begun) > patience {
			return f, fmt.Errorf("it has not connected within %v", patience)
		}
	}

	boxes.flood(true)
	server.WakeAll()
	_ = backoff.Sleep(ctx, o.warm) // the end of ctx is returned below
	before, beforeCPU, begun := boxes.count(), cpuOf(cmd.Process.Pid), clock.Now()
	_ = backoff.Sleep(ctx, o.seconds)
	events, cpu, took := boxes.count()-before, cpuOf(cmd.Process.Pid)-beforeCPU, clock.Now().Sub(begun)
	boxes.flood(false)
	if events == 0 {
		return f, errors.New("it has answered no event")
	}
	f.perSecond, f.cpu = float64(events)/took.Seconds(), cpu/time.Duration(events)

	boxes.settle(ctx)
	ticker := time.NewTicker(time.Second / time.Duration(o.rate))
	defer ticker.Stop()
	for begun := clock.Now(); clock.Now().Sub(begun) < o.seconds && ctx.Err() == nil; {
		<-ticker.C
		boxes.put(clock.Now())
		server.WakeAll()
	}
	boxes.settle(ctx)
	f.p50, f.p99 = boxes.quantile(0.5), boxes.quantile(0.99)
	return f, ctx.Err()
}

// serve runs the router's side of the stream until ctx ends; wait waits for its end.
func serve(ctx context.Context, boxes app.Boxes, ask bool) (server *app.Server, endpoint string, wait func(), err error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", nil, fmt.Errorf("listen: %w", err)
	}
	cfg := app.DefaultConfig()
	var handled func(event.WorkerID, []event.Handling)
	if ask {
		handled = func(event.WorkerID, []event.Handling) {}
	}
	server, err = app.New(cfg, app.Identity{Node: "bench", Group: "bench"}, app.Parts{
		Boxes: boxes, Now: clock.Now, Log: slog.New(slog.DiscardHandler), Metrics: app.NewMetrics(prometheus.NewRegistry()),
		Lease:   func() ownership.Lease { return ownership.Lease{Until: clock.Now().Add(5 * time.Second)} },
		Workers: func(int) {}, Drain: func(string) {}, Handled: handled,
	})
	if err != nil {
		return nil, "", nil, fmt.Errorf("server: %w", err)
	}
	g := grpc.NewServer(app.ServerOptions(cfg)...)
	appv1.RegisterAppServiceServer(g, server)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Run(ctx) }) // it returns nil
	running.Go(func() { _ = g.Serve(listener) })
	running.Go(func() {
		<-ctx.Done()
		g.Stop()
	})
	return server, listener.Addr().String(), running.Wait, nil
}

// endless are mailboxes that are never empty while they flood, and hold single events otherwise. A key
// has one event at a time, since each event has a key of its own.
type endless struct {
	mu        sync.Mutex
	events    []*event.Event // delivered in a circle
	last      event.DeliveryID
	flooding  bool
	waiting   []clock.Instant // when single events were put
	puts      map[event.DeliveryID]clock.Instant
	open      int
	done      int
	latencies []time.Duration
}

// circle is how many events there are: more than a processor's caches hold.
const circle = 50_000

func newBoxes(size int) *endless {
	b := &endless{puts: map[event.DeliveryID]clock.Instant{}}
	for i := range circle {
		b.events = append(b.events, &event.Event{
			ID: event.MessageID{Ledger: 1, Entry: int64(i), Batch: -1, TopicPartition: -1}, Topic: "persistent://public/default/orders",
			Key: event.Key("user-" + strconv.Itoa(i)), Payload: make([]byte, size), PublishTime: 1_763_000_000_000,
			Properties: []event.Property{{Name: "source", Value: "web"}},
		})
	}
	return b
}

func (b *endless) WorkerUp(event.WorkerID)   {}
func (b *endless) WorkerGone(event.WorkerID) {}

func (b *endless) Grant(event.DeliveryID, event.Grant) {}

func (b *endless) Take(_ event.WorkerID, limit int, dst []event.Delivery) []event.Delivery {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range limit {
		if !b.flooding && len(b.waiting) == 0 {
			break
		}
		b.last++
		if len(b.waiting) > 0 {
			b.puts[b.last], b.waiting = b.waiting[0], b.waiting[1:]
		}
		e := b.events[int(b.last)%circle]
		dst = append(dst, event.Delivery{ID: b.last, Ref: event.RefTo(e), Size: uint32(e.Bytes()), Partition: ring.Partition(b.last % ring.Partitions), Token: 1 << 40, Turn: uint64(b.last), Attempt: 1})
		b.open++
	}
	return dst
}

func (b *endless) Finish(results []event.Result) {
	now := clock.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range results {
		b.open--
		if results[i].Kind != event.ResultDone {
			continue
		}
		b.done++
		if at, ok := b.puts[results[i].Delivery]; ok {
			delete(b.puts, results[i].Delivery)
			b.latencies = append(b.latencies, now.Sub(at))
		}
	}
}

func (b *endless) flood(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flooding = on
}

func (b *endless) put(at clock.Instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting = append(b.waiting, at)
}

func (b *endless) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done
}

// settle waits until all events are answered.
func (b *endless) settle(ctx context.Context) {
	for ctx.Err() == nil {
		b.mu.Lock()
		left := b.open + len(b.waiting)
		b.mu.Unlock()
		if left == 0 {
			return
		}
		_ = backoff.Sleep(ctx, time.Millisecond) // the loop looks at ctx
	}
}

// quantile returns a latency of the single events, 0 if there were none.
func (b *endless) quantile(q float64) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.latencies) == 0 {
		return 0
	}
	slices.Sort(b.latencies)
	return b.latencies[min(len(b.latencies)-1, int(q*float64(len(b.latencies))))]
}

// cpuOf returns the CPU time of a process group so far.
func cpuOf(group int) (sum time.Duration) {
	const tick = 10 * time.Millisecond // of /proc, on every Linux
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ") // after the name of the command
		fields := strings.Fields(rest)
		if len(fields) < 13 || fields[2] != strconv.Itoa(group) {
			continue
		}
		for _, field := range fields[11:13] {
			ticks, _ := strconv.Atoi(field)
			sum += time.Duration(ticks) * tick
		}
	}
	return sum
}
