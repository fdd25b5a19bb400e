//go:build unix

package mailbox

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/ring"
)

// BenchmarkCold measures mailboxes as a busy member sees them: 20,480 events of
// 10,000 keys are here, the window is full, events end in another order than they
// began, and whenever the mailboxes' turn comes others have used the caches
// meanwhile. Most of the time goes to cache misses, of which the other benchmarks
// of this package know nothing.
func BenchmarkCold(b *testing.B) {
	for _, events := range []int64{100, 1} {
		b.Run(fmt.Sprintf("entry=%d", events), func(b *testing.B) { benchmarkCold(b, events) })
	}
}

func benchmarkCold(b *testing.B, perEntry int64) {
	c := newCold(perEntry)
	c.fill()
	var accept, take, finish time.Duration
	b.ReportAllocs()
	for b.Loop() {
		c.receive()
		c.evict()
		c.touch() // the stages before have just had them
		accept += cpuOf(b, c.accept)
		c.evict()
		take += cpuOf(b, c.take)
		c.answer()
		c.evict()
		finish += cpuOf(b, c.finish)
	}
	if s := c.boxes.Stats(); s.Events != coldEvents || s.Running < coldKeys/2 {
		b.Fatalf("%d events are here and %d run: not the load that this is about", s.Events, s.Running)
	}
	perEvent := func(d time.Duration, unit string) {
		b.ReportMetric(float64(d)/float64(b.N*coldBatch), unit)
	}
	perEvent(accept, "accept-ns/event")
	perEvent(take, "take-ns/event")
	perEvent(finish, "finish-ns/event")
	perEvent(accept+take+finish, "cpu-ns/event")
}

const (
	coldEvents = 80 * coldBatch
	coldKeys   = 10_000
	coldBatch  = 256
	coldCaches = 16 << 20 // bytes, more than the caches of one core
)

// cold holds mailboxes and their surroundings: events that return under new ids once they are
// done, and a worker that answers in any order.
type cold struct {
	boxes      *Mailboxes
	out        Output
	events     []*event.Event // by handle
	free       []event.Handle // of events that are not here
	batch      []*event.Event
	perEntry   int64 // events
	received   int64
	deliveries []event.Delivery
	running    []event.DeliveryID
	results    []event.Result
	rand       *rand.Rand
	others     []byte
	sum        int
}

func newCold(perEntry int64) *cold {
	c := &cold{
		perEntry: perEntry,
		boxes:    NewMailboxes(DefaultConfig(), outcome.DefaultConfig(), "a", clock.Now),
		rand:     rand.New(rand.NewPCG(1, 2)), others: make([]byte, coldCaches),
	}
	c.boxes.Remember(history.DefaultConfig())
	c.boxes.SetGates(openAll(), event.Position{}, &c.out)
	c.boxes.WorkerUp(1, &c.out)
	c.boxes.WorkerUp(2, &c.out)
	for i := range coldEvents + coldBatch {
		key := event.Key(fmt.Sprintf("user-%d", i%coldKeys))
		c.events = append(c.events, &event.Event{
			Handle: event.Handle(i), Key: key, Partition: ring.PartitionOf(string(key)), Payload: make([]byte, 300),
		})
		c.free = append(c.free, event.Handle(i))
	}
	c.rand.Shuffle(len(c.free), func(i, j int) { c.free[i], c.free[j] = c.free[j], c.free[i] })
	return c
}

// fill brings in events until the window is full.
func (c *cold) fill() {
	for len(c.free) >= coldBatch {
		c.receive()
		c.accept()
		c.take()
	}
	for full := DefaultConfig().WindowBytesMax / recordBytes; c.boxes.Stats().WindowIDs < full-full/100; {
		c.answer()
		c.finish()
		c.receive()
		c.accept()
		c.take()
	}
	c.answer()
	c.finish()
}

// receive prepares the next batch.
func (c *cold) receive() {
	c.batch = c.batch[:0]
	for _, handle := range c.free[:coldBatch] {
		e := c.events[handle]
		c.received++
		e.ID = event.MessageID{Ledger: 7, Entry: c.received / c.perEntry, Batch: int32(c.received % c.perEntry), TopicPartition: -1}
		c.batch = append(c.batch, e)
	}
	c.free = append(c.free[:0], c.free[coldBatch:]...)
}

func (c *cold) accept() {
	c.out.Reset()
	c.boxes.Accept(Local, event.Position{}, event.RefsTo(c.batch...), &c.out)
}

func (c *cold) take() {
	c.deliveries = c.deliveries[:0]
	for w := event.WorkerID(1); w <= 2; w++ {
		c.deliveries = c.boxes.Take(openLease, w, coldBatch, c.deliveries)
	}
	for _, d := range c.deliveries {
		c.running = append(c.running, d.ID)
	}
}

// answer prepares the results of any deliveries that run.
func (c *cold) answer() {
	c.results = c.results[:0]
	for range coldBatch {
		last := len(c.running) - 1
		i := c.rand.IntN(last + 1)
		c.results = append(c.results, event.Result{Delivery: c.running[i], Kind: event.ResultDone})
		c.running[i] = c.running[last]
		c.running = c.running[:last]
	}
}

func (c *cold) finish() {
	c.out.Reset()
	c.boxes.Finish(c.results, &c.out)
	for _, a := range c.out.Answers {
		for _, v := range a.Verdicts {
			c.free = append(c.free, v.Handle)
		}
	}
}

// touch reads the batch as the stages before have done.
func (c *cold) touch() {
	for _, e := range c.batch {
		c.sum += e.Bytes() + int(e.Partition) + len(e.Key) + int(e.Key[0])
	}
}

// evict has the effect of other work on the caches.
func (c *cold) evict() {
	for i := 0; i < len(c.others); i += 64 {
		c.others[i]++
	}
}

// cpuOf returns the processor time of a call, which on a busy machine is a better measure than the clock.
func cpuOf(b *testing.B, call func()) time.Duration {
	used := func() time.Duration {
		var r unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
			b.Fatal(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	before := used()
	call()
	return used() - before
}
