package entries

import (
	"slices"
	"sync"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// chunks holds the chunks of incomplete messages of one consumer. None outlives its session: the broker redelivers all of them, perhaps to another consumer.
// What is known of complete messages does, for chunks that repeat them.
type chunks struct {
	metrics *Metrics
	now     func() clock.Instant

	mu        sync.Mutex // guards the fields below
	of        *session   // nil between sessions
	assembler *wire.Assembler
	held      int       // bytes counted in the metric
	oldest    wire.ID   // that may be held; while held is 0, none is
	givenUp   []wire.ID // before the latest tick; redelivery is requested at the next tick
	later     []wire.ID // since the latest tick
}

func newChunks(cfg Config, of Type, metrics *Metrics, now func() clock.Instant) *chunks {
	c := &chunks{metrics: metrics, now: now, assembler: wire.NewAssembler(cfg.ChunkBytesMax, cfg.ChunkTimeout)}
	if of != Shared {
		c.assembler.PreferLater()
	}
	return c
}

// begin accepts chunks of one session from now on; nil: of none. It forgets the chunks that earlier sessions held or
// have given up: the broker sends them again by itself, and a request to redeliver one that has just come again would
// return it without the rest of its message.
func (c *chunks) begin(of *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.assembler.Drop()
	c.account(nil)
	c.of, c.givenUp, c.later = of, nil, nil
}

// add takes a chunk. If the result has ids, its Entry is the whole message.
func (c *chunks) add(d *Delivered, payloadMax int) (wire.Assembled, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of != d.from {
		return wire.Assembled{}, nil // the session has ended meanwhile
	}
	if c.held == 0 {
		c.oldest = d.ID
	}
	r, err := c.assembler.Add(c.now(), d.ID, d.Redelivery > 0, &d.Entry, payloadMax)
	c.account(r.GivenUp)
	return r, err
}

// before returns the entry itself, or an earlier one if that may be a part of a message that is not whole. It also returns the number of messages that have begun and are not whole.
func (c *chunks) before(id wire.ID) (from wire.ID, unfinished int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == 0 {
		return id, 0
	}
	return c.oldest, c.assembler.Unfinished()
}

// account updates the metrics and the entries given up. The caller holds the lock.
func (c *chunks) account(givenUp []wire.ID) {
	held := c.assembler.Held()
	c.metrics.chunkBytes.Add(float64(held - c.held))
	c.held = held
	c.metrics.chunksGivenUp.Add(float64(len(givenUp)))
	c.later = append(c.later, givenUp...)
}

// tick ends waits for chunks. The entries given up in its result are to be redelivered; they were given up at least one tick ago, so that a lack of room does not
// become a loop.
func (c *chunks) tick() wire.Expired {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.assembler.Expire(c.now())
	c.account(r.GivenUp)
	slices.Reverse(r.Redundant) // the first chunk of a message is acked last
	r.GivenUp, c.givenUp, c.later = c.givenUp, c.later, nil
	return r
}
