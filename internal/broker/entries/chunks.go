package entries

import (
	"sync"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// chunks holds the parts of messages of one consumer. It outlives sessions: the broker delivers a part again, perhaps to another
// consumer, but the parts that were here are still those of the message.
type chunks struct {
	metrics *Metrics

	mu        sync.Mutex // guards the fields below
	assembler *wire.Assembler
	held      int       // bytes, as the metric has them
	givenUp   []wire.ID // before the newest tick; they are asked for again at the next
	later     []wire.ID // since the newest tick
}

func newChunks(cfg Config, metrics *Metrics) *chunks {
	return &chunks{metrics: metrics, assembler: wire.NewAssembler(cfg.ChunkBytesMax, cfg.ChunkTimeout)}
}

// add takes a part. If the result has ids, e is the whole message.
func (c *chunks) add(id wire.ID, e *wire.Entry, payloadMax int) (wire.Assembled, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, err := c.assembler.Add(clock.Now(), id, e, payloadMax)
	c.account(r.GivenUp)
	return r, err
}

// account notes what is held and was given up. The caller holds the lock.
func (c *chunks) account(givenUp []wire.ID) {
	held := c.assembler.Held()
	c.metrics.chunkBytes.Add(float64(held - c.held))
	c.held = held
	c.metrics.chunksGivenUp.Add(float64(len(givenUp)))
	c.later = append(c.later, givenUp...)
}

// tick returns the entries to ask for again: those that were given up one tick ago or longer, so that a lack of room does not become
// a loop. Those in redundant are to be acked: they repeat parts of a message that was complete without them.
func (c *chunks) tick() (again, redundant []wire.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	givenUp, redundant := c.assembler.Expire(clock.Now())
	c.account(givenUp)
	again, c.givenUp, c.later = c.givenUp, c.later, nil
	return again, redundant
}

// drop forgets everything, when the consumer ends.
func (c *chunks) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.metrics.chunkBytes.Sub(float64(c.held))
	c.held = 0
}
