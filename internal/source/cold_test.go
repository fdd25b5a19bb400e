package source

import (
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/entries/fakebroker"
	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
)

const (
	coldHeld   = 20_000
	coldEntry  = 440      // events in an entry
	coldWindow = 4096     // verdicts come in any order among the oldest so many
	coldCaches = 16 << 20 // bytes, more than the caches of one core
)

// BenchmarkCold measures a source as a busy member has it: 20,000 events are open,
// verdicts come in another order than events, and whenever the source's turn comes
// others have used the caches meanwhile, also since the entries arrived.
func BenchmarkCold(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := newCold(b)
	var receive, enter, settle time.Duration
	for c.came < coldHeld { // fill, unmeasured
		c.arrive(b)
		c.receive(b)
		c.enter()
	}
	filled := c.came
	b.ReportAllocs()
	for b.Loop() {
		c.arrive(b)
		c.evict()
		receive += timed(b, func() { c.receive(b) })
		enter += timed(b, c.enter)
		c.answer()
		c.evict()
		settle += timed(b, func() { c.source.Settle(nil, c.done) })
	}
	if open := c.source.ledger.Stats().Unsettled; open != len(c.sent) {
		b.Fatalf("%d events are open, want %d", open, len(c.sent))
	}
	perEvent := func(d time.Duration, unit string) {
		b.ReportMetric(float64(d)/float64(c.came-filled), unit)
	}
	perEvent(receive, "receive-ns/event")
	perEvent(enter, "enter-ns/event")
	perEvent(settle, "settle-ns/event")
	perEvent(receive+enter+settle, "cpu-ns/event")
}

// cold is a source, a broker that sends it entries, and a router that settles events.
type cold struct {
	source    *Source
	reader    *entryReader
	cluster   *fakebroker.Cluster
	topic     string
	entry     []byte
	published int // events, ever
	came      int // of them
	receipts  []Receipt
	batch     []*event.Entry
	fresh     int            // events in batch
	sent      []event.Handle // open, about in the order of their coming
	done      []event.Verdict
	rand      *rand.Rand
	others    []byte
}

func newCold(b *testing.B) *cold {
	b.Helper()
	cfg := DefaultConfig()
	cfg.Topics, cfg.Subscription = []string{"t"}, "s"
	c := &cold{rand: rand.New(rand.NewPCG(1, 2)), others: make([]byte, coldCaches), cluster: fakebroker.New()}
	b.Cleanup(c.cluster.Close)
	c.cluster.Broker("a:6650")
	metrics, log := NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)
	c.source = newSource(cfg, metrics, log, nil)
	c.topic = c.source.cfg.Topics[0]
	options := entriesConfig(c.source.cfg, &pulsar.ClientOptions{URL: "pulsar://a:6650"})
	var err error
	if c.reader, err = newEntryReader(c.source.cfg, options, entries.Access{Dial: c.cluster.Dial}, metrics.reader, log); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.reader.close)
	if err := c.reader.subscribe(b.Context(), subscription{topic: c.topic, earliest: true, queue: coldHeld}); err != nil {
		b.Fatal(err)
	}
	var batch []byte
	for i := range coldEntry {
		key := "user-" + strconv.Itoa(i)
		if batch, err = wiretest.AppendSingle(batch, &pulsarpb.SingleMessageMetadata{PartitionKey: &key}, make([]byte, 256)); err != nil {
			b.Fatal(err)
		}
	}
	m := fakebroker.Metadata()
	m.NumMessagesInBatch = new(int32(coldEntry))
	if c.entry, err = wiretest.Entry(m, batch); err != nil {
		b.Fatal(err)
	}
	return c
}

// arrive makes the broker send what the next call of receive takes, and acks what is due.
func (c *cold) arrive(b *testing.B) {
	for _, a := range c.source.acks {
		if err := c.reader.ack(a); err != nil {
			b.Fatal(err)
		}
	}
	c.source.acks = c.source.acks[:0]
	if c.published == c.came {
		c.cluster.Publish(c.topic, c.entry, coldEntry)
		c.published += coldEntry
		for c.reader.queue.Len() == 0 {
			runtime.Gosched()
		}
	}
}

func (c *cold) receive(b *testing.B) {
	clear(c.receipts)
	var err error
	if c.receipts, err = c.reader.receive(b.Context(), c.receipts[:0]); err != nil {
		b.Fatal(err)
	}
	for i := range c.receipts {
		c.came += c.receipts[i].Has.Len()
	}
}

func (c *cold) enter() {
	clear(c.batch)
	c.batch = c.source.enter(c.receipts, c.batch[:0])
	c.fresh = 0
	for _, e := range c.batch {
		for i := range e.Fresh.All() {
			c.sent = append(c.sent, e.Handle(i))
		}
		c.fresh += e.Fresh.Len()
	}
}

// answer prepares the next verdicts.
func (c *cold) answer() {
	c.done = c.done[:0]
	for i := range c.fresh {
		j := i + c.rand.IntN(min(coldWindow, len(c.sent)-i))
		c.sent[i], c.sent[j] = c.sent[j], c.sent[i]
		c.done = append(c.done, event.Verdict{Handle: c.sent[i], Kind: event.Done})
	}
	c.sent = c.sent[c.fresh:]
}

// evict has the effect of other work on the caches.
func (c *cold) evict() {
	for i := 0; i < len(c.others); i += 64 {
		c.others[i]++
	}
}

// timed returns the CPU time of a call on this thread.
func timed(b *testing.B, call func()) time.Duration {
	b.Helper()
	now := func() time.Duration {
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
			b.Fatal(err)
		}
		return time.Duration(t.Nano())
	}
	before := now()
	call()
	return now() - before
}
