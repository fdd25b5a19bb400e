//go:build unix

package forward

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/netx/mtls/tlstest"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
	"github.com/ringfence/router/ring"
)

// benchBatch is the number of events that a source hands on at a time.
const benchBatch = 256

func benchEvents(n, payload int) []*event.Event {
	events := make([]*event.Event, n)
	for i := range events {
		key := event.Key("user-" + strconv.Itoa(i%10000))
		events[i] = &event.Event{
			ID: event.MessageID{Ledger: 12345, Entry: int64(i), Batch: int32(i % 500), TopicPartition: -1}, Topic: "persistent://public/default/events",
			Key: key, Partition: ring.PartitionOf(string(key)), Payload: make([]byte, payload),
			PublishTime: 1_700_000_000_000, Properties: []event.Property{{Name: "tenant", Value: "acme"}},
		}
	}
	return events
}

// benchEntries returns the events as entries of bytes, of benchBatch events each.
func benchEntries(events []*event.Event) (entries []*event.Entry) {
	for batch := range slices.Chunk(events, benchBatch) {
		entries = append(entries, bytesEntryOf(0, batch...))
	}
	return entries
}

// hop holds both ends of BenchmarkHop, with a minimal source and mailbox.
type hop struct {
	server  *Server
	settled atomic.Int64
	free    chan int // tickets of batches that may be held
	open    []atomic.Int32
}

func (h *hop) Accept(a Arrival) {
	done := make([]event.Verdict, len(a.Events))
	for i := range a.Events {
		done[i] = event.Verdict{Handle: a.Events[i].Handle(), Kind: event.Done}
	}
	h.server.Answer(a.From, done)
}

func (h *hop) Gone(StreamID)                          {}
func (h *hop) CancelFor(StreamID, []event.Handle)     {}
func (h *hop) Cancel([]event.Handle) []event.Handle   { return nil }
func (h *hop) Granted([]event.Verdict)                {}
func (h *hop) Attempted([]event.Verdict)              {}
func (h *hop) Renew([]event.Renewal)                  {}
func (h *hop) Renewed([]event.Renewal)                {}
func (h *hop) RenewFor(StreamID, []event.Renewal)     {}
func (h *hop) LearnDone(Peer, bool, []event.Finished) {}
func (h *hop) KeyOf(Peer) ed25519.PublicKey           { return nil }
func (h *hop) Deliver([]event.Ref)                    {}

func (h *hop) Settle(done []event.Set, verdicts []event.Verdict, _ []event.Ref) {
	for _, set := range done {
		h.ended(set.First, set.Events.Len())
	}
	for _, v := range verdicts {
		h.ended(v.Handle, 1)
	}
}

// ended notes the ends of n events of an entry. The serial numbers of a batch are those with its remainder.
func (h *hop) ended(handle event.Handle, n int) {
	batch := int(handle.Serial() % uint64(len(h.open)))
	if h.open[batch].Add(-int32(n)) == 0 {
		h.free <- batch
	}
	h.settled.Add(int64(n))
}

// cpuTime returns the processor time of this process, which on a busy machine is a better measure than the clock.
func cpuTime(b *testing.B) time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkHop measures one event there and its verdict back: through Table, Pool,
// codec, gRPC on loopback, codec and Server. raw-stream is the floor: the same bytes
// over the same gRPC with nothing done to them. tls is the hop between members that
// show each other certificates.
func BenchmarkHop(b *testing.B) {
	for _, payload := range []int{100, 1000} {
		b.Run(fmt.Sprintf("payload=%d", payload), func(b *testing.B) {
			benchmarkHop(b, payload, insecure.NewCredentials(), insecure.NewCredentials())
		})
		b.Run(fmt.Sprintf("raw-stream/payload=%d", payload), func(b *testing.B) { benchmarkRawStream(b, payload) })
		b.Run(fmt.Sprintf("tls/payload=%d", payload), func(b *testing.B) {
			ca := tlstest.NewCA(b)
			owner := ca.ClientConfig(b, "", ca.Issue(b, "owner"))
			owner.ClientAuth, owner.ClientCAs = tls.RequireAndVerifyClientCert, owner.RootCAs
			caller := ca.ClientConfig(b, "owner", ca.Issue(b, "caller"))
			benchmarkHop(b, payload, credentials.NewTLS(owner), credentials.NewTLS(caller))
		})
	}
}

func benchmarkHop(b *testing.B, payload int, ownerCreds, callerCreds credentials.TransportCredentials) {
	const batches = 40 // in flight: about 10,000 events
	h := &hop{free: make(chan int, batches), open: make([]atomic.Int32, batches)}
	network := &loopback{}
	log := (&node{}).log()
	config := DefaultConfig()
	metrics := NewMetrics(prometheus.NewRegistry())
	owner := Identity{Group: "g", HashID: ring.HashID, Incarnation: peerNumber(2)}
	h.server = NewServer(config, func() Identity { return owner }, ownerCreds, h, clock.Now, metrics, log)
	pool := NewPool(config, func() Identity { return Identity{Group: "g", HashID: ring.HashID, Incarnation: peerNumber(1)} },
		callerCreds, h, func(Peer, bool) {}, clock.Now, metrics, log, grpc.WithContextDialer(network.dial))
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 2)
	lis := network.listen(b, "owner")
	go func() { done <- h.server.Run(ctx, lis) }()
	go func() { done <- pool.Run(ctx) }()
	defer func() {
		cancel()
		if err := errors.Join(<-done, <-done); err != nil {
			b.Error(err)
		}
	}()
	pool.SetPeers([]PeerAddress{{Peer: owner.Incarnation, Address: "owner"}})
	pool.SetRoute(peerNumber(1), fixedRoute{owners: []Peer{owner.Incarnation}})
	for i := range batches {
		h.free <- i
	}

	entries := benchEntries(benchEvents(batches*benchBatch, payload))
	b.ReportAllocs()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu := cpuTime(b)
	b.ResetTimer()
	rounds := (b.N + benchBatch - 1) / benchBatch
	for round := range rounds {
		batch := <-h.free
		h.open[batch].Store(benchBatch)
		entries[batch].SetFirst(event.NewHandle(uint64((round+1)*batches+batch), 0)) // nobody has it any more
		pool.Hold(entries[batch])
	}
	for h.settled.Load() < int64(rounds*benchBatch) {
		time.Sleep(50 * time.Microsecond)
	}
	b.StopTimer()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rounds*benchBatch), "ns/event")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(rounds*benchBatch), "allocs/event")
	b.ReportMetric(float64(cpuTime(b)-cpu)/float64(rounds*benchBatch), "cpu-ns/event")
	b.ReportMetric(float64(rounds*benchBatch)/testutil.ToFloat64(metrics.framesOut), "events/frame")
}

// rawCodec passes bytes.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }
func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// echo answers each frame with as many bytes as its verdicts would have.
type echo struct {
	peerv1.UnimplementedPeerServiceServer
	answer []byte
}

func (e echo) Forward(st peerv1.PeerService_ForwardServer) error {
	for {
		var frame []byte
		if err := st.RecvMsg(&frame); err != nil {
			return nil //nolint:nilerr // the client has closed the stream, however it did
		}
		if err := st.SendMsg(&e.answer); err != nil {
			return err
		}
	}
}

func benchmarkRawStream(b *testing.B, payload int) {
	const perFrame = 500
	events := benchEvents(perFrame, payload)
	frame := &eventsFrame{number: 1, events: event.RefsTo(events...)}
	answers := &verdictsFrame{number: 1}
	for i, ev := range events {
		ev.Handle = event.Handle(1_000_000 + i)
		answers.verdicts = append(answers.verdicts, event.Verdict{Handle: ev.Handle, Kind: event.Done})
	}
	out, answer := encode(b, frame), encode(b, answers)

	server := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.InitialWindowSize(http2Window), grpc.InitialConnWindowSize(http2Window))
	peerv1.RegisterPeerServiceServer(server, echo{answer: answer})
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(lis) }()
	defer func() {
		server.Stop()
		if err := <-done; err != nil {
			b.Error(err)
		}
	}()
	conn, err := grpc.NewClient("passthrough:///"+lis.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})), grpc.WithInitialWindowSize(http2Window), grpc.WithInitialConnWindowSize(http2Window))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	st, err := peerv1.NewPeerServiceClient(conn).Forward(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	frames := (b.N + perFrame - 1) / perFrame
	b.ResetTimer()
	cpu := cpuTime(b)
	const ahead = 2 // one frame there, one answer back
	tickets := make(chan struct{}, ahead)
	go func() {
		for range frames {
			tickets <- struct{}{}
			if err := st.SendMsg(&out); err != nil {
				return
			}
		}
	}()
	for range frames {
		var got []byte
		if err := st.RecvMsg(&got); err != nil {
			b.Fatal(err)
		}
		<-tickets
	}
	b.StopTimer()
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(frames*perFrame), "ns/event")
	b.ReportMetric(float64(cpuTime(b)-cpu)/float64(frames*perFrame), "cpu-ns/event")
}

// BenchmarkCodec measures the fast codec and the generated one on a frame of 500 events.
func BenchmarkCodec(b *testing.B) {
	events := benchEvents(500, 100)
	f := &eventsFrame{number: 1, events: event.RefsTo(events...)}
	for i, ev := range events {
		ev.Handle = event.Handle(i + 1)
	}
	generated := protoEvents(f)
	bytes := encode(b, f)
	var refs []event.Ref
	for i, e := range benchEntries(events) {
		e.SetFirst(event.NewHandle(uint64(i+1), 0))
		refs = append(refs, refsTo(e)...)
	}
	perEvent := func(b *testing.B, cpu time.Duration) {
		b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N*len(f.events)), "cpu-ns/event")
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(f.events)), "ns/event")
	}
	marshal := func(v any) func(*testing.B) {
		return func(b *testing.B) {
			b.ReportAllocs()
			cpu := cpuTime(b)
			for b.Loop() {
				out, err := codec{frameMax: testFrameMax, now: atZero}.Marshal(v)
				if err != nil {
					b.Fatal(err)
				}
				out.Free()
			}
			perEvent(b, cpu)
		}
	}
	unmarshal := func(bytes []byte, v any) func(*testing.B) {
		return func(b *testing.B) {
			b.ReportAllocs()
			cpu := cpuTime(b)
			for b.Loop() {
				if err := (codec{frameMax: testFrameMax, now: atZero}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(bytes)}, v); err != nil {
					b.Fatal(err)
				}
			}
			perEvent(b, cpu)
		}
	}
	b.Run("encode/fast", marshal(f))
	b.Run("encode/bytes", marshal(&eventsFrame{number: 1, refs: refs}))
	b.Run("encode/generated", marshal(generated))
	b.Run("decode/fast", unmarshal(bytes, &eventsFrame{}))
	b.Run("decode/foreign", unmarshal(append(slices.Clone(bytes), 15<<3, 1), &eventsFrame{})) // with a field of a later version
	b.Run("decode/generated", unmarshal(bytes, &peerv1.ForwardRequest{}))
}

// BenchmarkVerdicts measures a frame of 500 verdicts, all of them Done, with sets or without, or all of them Failed with a
// reason.
func BenchmarkVerdicts(b *testing.B) {
	const n = 500
	config := DefaultConfig()
	done, failed := make([]event.Verdict, n), make([]event.Verdict, n)
	detail := &event.Detail{Delay: time.Second, Attempts: 2, Reason: "database is locked", FirstError: "timeout", Owner: "pod-1"}
	for i := range n {
		handle := event.NewHandle(uint64(1+i%4), i*2)
		done[i], failed[i] = event.Verdict{Handle: handle, Kind: event.Done}, event.Verdict{Handle: handle, Kind: event.Failed, Detail: detail}
	}
	for _, of := range []struct {
		kind     string
		verdicts []event.Verdict
		sets     bool
	}{{"done", done, false}, {"sets", done, true}, {"failed", failed, false}} {
		frame := func() mem.BufferSlice {
			f := verdictsFrame{receipt: 5, number: 6, epoch: event.Position{Ledger: 1234, Entry: 56}, batch: verdictBatch{sets: of.sets}}
			f.batch.add(of.verdicts, &config)
			out, err := codec{now: atZero}.Marshal(&f)
			if err != nil {
				b.Fatal(err)
			}
			return out
		}
		perEvent := func(b *testing.B, call func()) {
			b.ReportAllocs()
			cpu := cpuTime(b)
			for b.Loop() {
				call()
			}
			b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N*n), "cpu-ns/event")
		}
		b.Run("encode/"+of.kind, func(b *testing.B) { perEvent(b, func() { frame().Free() }) })
		data := mem.BufferSlice{mem.SliceBuffer(frame().Materialize())}
		var read verdictsFrame
		b.Run("decode/"+of.kind, func(b *testing.B) {
			perEvent(b, func() {
				if err := (codec{now: atZero}).Unmarshal(data, &read); err != nil || read.err != nil {
					b.Fatal(err, read.err)
				}
			})
		})
	}
}

// BenchmarkTable measures hold, take and settle without a stream.
func BenchmarkTable(b *testing.B) {
	t := NewTable(DefaultConfig())
	var out Moves
	t.SetRoute(1, peerNumber(1), fixedRoute{owners: []Peer{peerNumber(2)}}, &out)
	t.PeerUp(1, peerNumber(2), true, &out)
	entry := benchEntries(benchEvents(benchBatch, 100))[0]
	done := event.AllBits(benchBatch)
	var batch []event.Ref
	serial := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		out.Reset()
		serial++
		entry.SetFirst(event.NewHandle(serial, 0))
		t.Hold(1, entry, &out)
		batch, _ = t.Take(peerNumber(2), benchBatch, 1<<20, batch[:0])
		t.Done(peerNumber(2), event.Set{First: entry.First, Events: done}, &out)
	}
	if t.n != 0 || len(batch) != benchBatch {
		b.Fatalf("%d events are left, the last batch had %d", t.n, len(batch))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*benchBatch), "ns/event")
}

// BenchmarkCold measures a table as a busy member sees it: 20,000 events are held,
// verdicts come in another order than events, and whenever the table's turn comes
// others have used the caches meanwhile. Most of the time goes to cache misses, of
// which the other benchmarks of this file know nothing.
func BenchmarkCold(b *testing.B) {
	c := newCold()
	var hold, take, encode, settle time.Duration
	for range coldHeld/benchBatch + 1 { // fill, unmeasured
		c.receive()
		c.table.Hold(1, c.batch, &c.out)
		c.take()
	}
	b.ReportAllocs()
	for b.Loop() {
		c.receive()
		c.evict()
		c.touch() // the source has just made them
		hold += c.timed(b, func() { c.table.Hold(1, c.batch, &c.out) })
		c.evict()
		take += c.timed(b, c.take)
		c.evict()
		encode += c.timed(b, func() {
			frame, err := codec{frameMax: testFrameMax, now: atZero}.Marshal(&c.frame)
			if err != nil {
				b.Fatal(err)
			}
			frame.Free()
		})
		c.answer()
		c.evict()
		settle += c.timed(b, func() {
			for _, set := range c.done {
				c.table.Done(peerNumber(2), set, &c.out)
			}
		})
		if n := len(handlesIn(c.out.Done)); n != benchBatch {
			b.Fatalf("settled %d events of %d", n, benchBatch)
		}
	}
	perEvent := func(d time.Duration, unit string) {
		b.ReportMetric(float64(d)/float64(b.N*benchBatch), unit)
	}
	perEvent(hold, "hold-ns/event")
	perEvent(take, "take-ns/event")
	perEvent(encode, "encode-ns/event")
	perEvent(settle, "settle-ns/event")
	perEvent(hold+take+encode+settle, "cpu-ns/event")
}

const (
	coldHeld   = 20_000
	coldWindow = 4096     // verdicts come in any order among the oldest so many
	coldCaches = 16 << 20 // bytes, more than the caches of one core
)

// cold is a table, a source that gives handles as [source.Ledger] does, and a peer.
type cold struct {
	table  *Table
	out    Moves
	free   []*event.Entry // of which no event is held, used in turn
	open   map[event.Handle]*coldEntry
	serial uint64
	batch  *event.Entry
	sent   []event.Handle // in the order of sending
	frame  eventsFrame
	done   []event.Set
	rand   *rand.Rand
	others []byte
	sum    int
}

// coldEntry is an entry with events that are held, n of them.
type coldEntry struct {
	*event.Entry
	n int
}

func newCold() *cold {
	c := &cold{
		table: NewTable(DefaultConfig()), rand: rand.New(rand.NewPCG(1, 2)),
		open: map[event.Handle]*coldEntry{}, others: make([]byte, coldCaches),
	}
	c.table.SetRoute(1, peerNumber(1), fixedRoute{owners: []Peer{peerNumber(2)}}, &c.out)
	c.table.PeerUp(1, peerNumber(2), true, &c.out)
	return c
}

// receive prepares the next batch to hold.
func (c *cold) receive() {
	c.out.Reset()
	if len(c.free) == 0 { // of many an entry one event is still held
		c.free = benchEntries(benchEvents((coldHeld/benchBatch+2)*benchBatch, 300))
		c.rand.Shuffle(len(c.free), func(i, j int) { c.free[i], c.free[j] = c.free[j], c.free[i] }) // in no order, as after a long time
	}
	c.batch, c.free = c.free[0], c.free[1:]
	c.serial++
	c.batch.SetFirst(event.NewHandle(c.serial, 0))
	c.open[c.batch.First] = &coldEntry{c.batch, c.batch.Len()}
}

func (c *cold) take() {
	c.frame.number++
	c.frame.refs, _ = c.table.Take(peerNumber(2), benchBatch, 1<<20, c.frame.refs[:0])
}

// answer prepares the peer's next verdicts.
func (c *cold) answer() {
	for i := range c.batch.Len() {
		c.sent = append(c.sent, c.batch.Handle(i))
	}
	for i := range benchBatch {
		j := i + c.rand.IntN(min(coldWindow, len(c.sent)-i))
		c.sent[i], c.sent[j] = c.sent[j], c.sent[i]
		e := c.open[c.sent[i].First()]
		if e.n--; e.n == 0 {
			delete(c.open, e.First)
			c.free = append(c.free, e.Entry)
		}
	}
	c.done = setsOf(c.sent[:benchBatch]...)
	c.sent = c.sent[benchBatch:]
}

// touch reads the batch as the stages before have done.
func (c *cold) touch() {
	for i := range c.batch.Len() {
		c.sum += c.batch.Weight(i) + int(c.batch.Partition(i))
	}
}

// evict has the effect of other work on the caches.
func (c *cold) evict() {
	for i := 0; i < len(c.others); i += 64 {
		c.others[i]++
	}
}

func (c *cold) timed(b *testing.B, call func()) time.Duration {
	before := cpuTime(b)
	call()
	return cpuTime(b) - before
}
