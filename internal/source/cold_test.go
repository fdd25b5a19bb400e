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
)

const (
	coldHeld   = 20_000
	coldEntry  = 440      // events in an entry
	coldWindow = 4096     // verdicts come in any order among the oldest so many
	coldCaches = 16 << 20 // bytes, more than the caches of one core
)

// BenchmarkCold measures a source as a busy member has it: 20,000 events are open,
// verdicts come in another order than events, and whenever the source's turn comes
// others have used the caches meanwhile, also since the client made its messages.
// Acks are not sent.
func BenchmarkCold(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := newCold()
	var receive, enter, settle time.Duration
	for range coldHeld/c.source.cfg.BatchMax + 1 { // fill, unmeasured
		c.arrive()
		c.receive(b)
		c.enter()
	}
	b.ReportAllocs()
	for b.Loop() {
		c.arrive()
		c.evict()
		receive += timed(b, func() { c.receive(b) })
		enter += timed(b, c.enter)
		c.answer()
		c.evict()
		settle += timed(b, func() { c.source.Settle(c.done) })
		c.source.acks = c.source.acks[:0]
	}
	if open := c.source.ledger.Stats().Unsettled; open != len(c.sent) {
		b.Fatalf("%d events are open, want %d", open, len(c.sent))
	}
	perEvent := func(d time.Duration, unit string) {
		b.ReportMetric(float64(d)/float64(b.N*c.source.cfg.BatchMax), unit)
	}
	perEvent(receive, "receive-ns/event")
	perEvent(enter, "enter-ns/event")
	perEvent(settle, "settle-ns/event")
	perEvent(receive+enter+settle, "cpu-ns/event")
}

const coldTopic = "persistent://public/default/t"

// cold is a source, a client that brings it messages, and a router that settles them.
type cold struct {
	source   *Source
	reader   *clientReader
	came     int // messages, ever
	receipts []Receipt
	batch    []Message
	sent     []event.Handle // open, about in the order of their coming
	done     []event.Verdict
	rand     *rand.Rand
	others   []byte
}

func newCold() *cold {
	cfg := DefaultConfig()
	cfg.Topics, cfg.Subscription = []string{"t"}, "s"
	c := &cold{rand: rand.New(rand.NewPCG(1, 2)), others: make([]byte, coldCaches)}
	c.source = newSource(cfg, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler), nil)
	c.reader = newClientReader(c.source.cfg, new(sdk), c.source.metrics, c.source.log)
	c.reader.consumers[coldTopic] = &consumption{subscription: subscription{topic: coldTopic}}
	return c
}

// arrive makes the client's next messages.
func (c *cold) arrive() {
	for range c.source.cfg.BatchMax {
		c.reader.messages <- pulsar.ConsumerMessage{Message: &clientMessage{
			id:        &clientID{clientNumbers: &clientNumbers{ledger: 7, entry: int64(c.came / coldEntry), index: int32(c.came % coldEntry), size: coldEntry}},
			published: time.UnixMilli(1_790_000_000_000), event: time.UnixMilli(0),
			key: "user-" + strconv.Itoa(c.came), payload: make([]byte, 256), topic: coldTopic,
		}}
		c.came++
	}
}

func (c *cold) receive(b *testing.B) {
	clear(c.receipts)
	var err error
	if c.receipts, err = c.reader.receive(b.Context(), c.receipts[:0]); err != nil || len(c.receipts) != c.source.cfg.BatchMax {
		b.Fatalf("received %d, %v", len(c.receipts), err)
	}
}

func (c *cold) enter() {
	clear(c.batch)
	c.batch = c.source.enter(c.receipts, c.batch[:0])
	for i := range c.batch {
		c.sent = append(c.sent, c.batch[i].Event.Handle)
	}
}

// answer prepares the next verdicts.
func (c *cold) answer() {
	c.done = c.done[:0]
	for i := range c.source.cfg.BatchMax {
		j := i + c.rand.IntN(min(coldWindow, len(c.sent)-i))
		c.sent[i], c.sent[j] = c.sent[j], c.sent[i]
		c.done = append(c.done, event.Verdict{Handle: c.sent[i], Kind: event.Done})
	}
	c.sent = c.sent[c.source.cfg.BatchMax:]
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

// clientMessage lies in memory as the client's own messages do.
type clientMessage struct {
	pulsar.Message

	published, event  time.Time
	key, orderingKey  string
	_                 string
	payload           []byte
	id                pulsar.MessageID
	properties        map[string]string
	topic             string
	_                 [5]uint64
	redelivered       uint32
	_                 [6]uint64
	encryptionContext *pulsar.EncryptionContext
	_                 [4]uint64
}

func (m *clientMessage) Topic() string                                   { return m.topic }
func (m *clientMessage) Properties() map[string]string                   { return m.properties }
func (m *clientMessage) Payload() []byte                                 { return m.payload }
func (m *clientMessage) ID() pulsar.MessageID                            { return m.id }
func (m *clientMessage) PublishTime() time.Time                          { return m.published }
func (m *clientMessage) EventTime() time.Time                            { return m.event }
func (m *clientMessage) Key() string                                     { return m.key }
func (m *clientMessage) OrderingKey() string                             { return m.orderingKey }
func (m *clientMessage) RedeliveryCount() uint32                         { return m.redelivered }
func (*clientMessage) ProducerName() string                              { return "p" }
func (*clientMessage) SchemaVersion() []byte                             { return nil }
func (m *clientMessage) GetEncryptionContext() *pulsar.EncryptionContext { return m.encryptionContext }

// clientID is a message id with its numbers behind a pointer, as the client's.
type clientID struct {
	*clientNumbers
	_ [6]uint64
}

type clientNumbers struct {
	ledger, entry     int64
	index, part, size int32
}

func (n *clientNumbers) Serialize() []byte   { return nil }
func (n *clientNumbers) String() string      { return "" }
func (n *clientNumbers) LedgerID() int64     { return n.ledger }
func (n *clientNumbers) EntryID() int64      { return n.entry }
func (n *clientNumbers) BatchIdx() int32     { return n.index }
func (n *clientNumbers) PartitionIdx() int32 { return n.part }
func (n *clientNumbers) BatchSize() int32    { return n.size }
