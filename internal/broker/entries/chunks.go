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

	mu        sync.Mutex // guards the fields below
	of        *session   // nil between sessions
	assembler *wire.Assembler
	held      int       // bytes counted in the metric
	givenUp   []wire.ID // before the latest tick; redelivery is requested at the next tick
	later     []wire.ID // since the latest tick
}

func newChunks(cfg Config, metrics *Metrics) *chunks {
	return &chunks{metrics: metrics, assembler: wire.NewAssembler(cfg.ChunkBytesMax, cfg.ChunkTimeout)}
}

// begin takes chunks of a session from now on; nil: of none. The chunks that earlier sessions hold or have given up are forgotten: the broker has
// sent them again, or will, and a chunk that was asked for since then would go back without the rest of its message.
func (c *chunks) begin(of *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.assembler.Drop()
	c.account(nil)
	c.of, c.givenUp, c.later = of, nil, nil
}

// add takes a chunk. If the result has ids, e is the whole message.
func (c *chunks) add(from *session, id wire.ID, e *wire.Entry, payloadMax int) (wire.Assembled, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of != from {
		return wire.Assembled{}, nil // the session has ended meanwhile
	}
	r, err := c.assembler.Add(clock.Now(), id, e, payloadMax)
	c.account(r.GivenUp)
	return r, err
}

// account updates the metrics and the entries given up. The caller holds the lock.
func (c *chunks) account(givenUp []wire.ID) {
	held := c.assembler.Held()
	c.metrics.chunkBytes.Add(float64(held - c.held))
	c.held = held
	c.metrics.chunksGivenUp.Add(float64(len(givenUp)))
	c.later = append(c.later, givenUp...)
}

// tick returns the entries to redeliver, which were given up at least one tick ago, so that a lack of room does not become a loop. Entries
// in redundant must be acked: they repeat chunks of a message that was complete without them.
func (c *chunks) tick() (again, redundant []wire.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	givenUp, redundant := c.assembler.Expire(clock.Now())
	c.account(givenUp)
	slices.Reverse(redundant) // the first chunk of a message is acked last
	again, c.givenUp, c.later = c.givenUp, c.later, nil
	return again, redundant
}
