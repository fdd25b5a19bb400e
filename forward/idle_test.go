//go:build unix

package forward

import (
	"runtime"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// BenchmarkIdlePeer measures a peer that has nothing to send: the stream to it and the one from it, in
// one process. An operation is a second of silence between a member and its peers.
func BenchmarkIdlePeer(b *testing.B) {
	const peers = 64
	network := &loopback{}
	before := idleCost()
	caller := newNode(b, network, 0, DefaultConfig(), clock.Now)
	caller.start()
	defer func() { caller.stop() }()
	addresses := make([]PeerAddress, peers)
	for i := range addresses {
		n := newNode(b, network, i+1, DefaultConfig(), clock.Now)
		n.startServer()
		defer n.stopServer()
		addresses[i] = PeerAddress{Peer: n.identity.Incarnation, Address: n.name()}
	}
	caller.pool.SetPeers(addresses)
	caller.awaitThat("a stream to each peer", func() bool { return caller.streamsOpened() == peers })
	time.Sleep(2 * time.Second) // what an opening needs is gone
	after := idleCost()
	cpu := cpuTime(b)
	for b.Loop() {
		time.Sleep(time.Second)
	}
	b.ReportMetric(float64(cpuTime(b)-cpu)/peers/b.Elapsed().Seconds(), "cpu-ns/peer/s")
	b.ReportMetric(float64(after.goroutines-before.goroutines)/peers, "goroutines/peer")
	b.ReportMetric(float64(after.heap-before.heap)/peers, "heap-B/peer")
	b.ReportMetric(float64(after.stacks-before.stacks)/peers, "stack-B/peer")
	if caller.streamsOpened() != peers {
		b.Errorf("%d streams were opened to %d peers", caller.streamsOpened(), peers)
	}
}

// idle is what a process holds.
type idle struct{ goroutines, heap, stacks int }

func idleCost() idle {
	runtime.GC()
	runtime.GC() // also what the first one moved from pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return idle{runtime.NumGoroutine(), int(m.HeapAlloc), int(m.StackInuse)}
}
