//go:build unix

package node

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/ring"
)

// BenchmarkIdleGroup measures what the control log costs a member of an idle group: members of one process, each
// with its own machine, driver and reader, over one log in memory. An operation is a second. The goal for 100 members
// is 1 % of a core. Pulsar's client, peers and gossip are not in it.
func BenchmarkIdleGroup(b *testing.B) {
	for _, members := range []int{10, 100} {
		b.Run(fmt.Sprintf("members=%d", members), func(b *testing.B) { benchmarkIdleGroup(b, members) })
	}
}

func benchmarkIdleGroup(b *testing.B, members int) {
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	transport := controllog.NewMem()
	cfg := controllog.DefaultConfig()
	cfg.Group = "orders"
	loops := make([]*driverLoop, members)
	for i := range loops {
		m := ownership.New(ownership.Config{
			Group: cfg.Group, Name: fmt.Sprintf("pod-%03d", i), Inc: newIncarnation(), HashID: ring.HashID, Partitions: ring.Partitions,
			GRPCAddr: "10.0.0.1:16651", GossipAddr: "10.0.0.1:16652", LogVersion: ownership.LogVersionMax,
			Timing: ownership.DefaultTiming(), Seed: uint64(i), Place: ring.DefaultConfig().Place,
		})
		var loop *driverLoop
		log, err := controllog.New(cfg, transport, func(in ownership.Input) { loop.deliver(in) }, slog.New(slog.DiscardHandler), controllog.NewMetrics(prometheus.NewRegistry()))
		if err != nil {
			b.Fatal(err)
		}
		loop = newDriverLoop(newShown(m, func(directory) {}), idleHost{log}, nothingToHandOver, nothingNew)
		loops[i] = loop
		running.Go(func() { _ = log.Run(ctx) })
		running.Go(func() { loop.run(ctx) })
		loop.deliver(ownership.AppReady{Ready: true})
		if i%8 == 0 { // a Snap for each at once would take all processors for long
			eventually.True(b, "a member joins", func() bool { return loop.Status().Member })
		}
	}
	eventually.True(b, "all are members, and their gates are open", func() bool {
		open := 0
		for _, l := range loops {
			if s := l.Status(); s.Member && s.Phase == ownership.Current {
				open += s.Open
			}
		}
		return open == ring.Partitions
	})
	time.Sleep(time.Second)
	before, applied, began := processorTime(b), loops[0].Status().Applied, time.Now()
	for b.Loop() {
		time.Sleep(time.Second)
	}
	seconds := time.Since(began).Seconds()
	records := float64(loops[0].Status().Applied.Entry - applied.Entry)
	cpu := (processorTime(b) - before).Seconds()
	b.ReportMetric(100*cpu/seconds/float64(members), "%core/member")
	b.ReportMetric(records/seconds, "records/s")
	b.ReportMetric(1e9*cpu/records/float64(members), "cpu-ns/record")
}

func processorTime(b *testing.B) time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
