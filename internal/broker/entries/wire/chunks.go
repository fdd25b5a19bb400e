package wire

import (
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// Assembler puts the messages of one topic partition together whose producers have cut them. Chunks of several messages may be interleaved, and
// come in any order, repeatedly, and again after a reconnect. It is not safe for concurrent use.
//
// No chunk is acked before its message is complete. What the Assembler gives up goes back to the broker, unacked.
type Assembler struct{}

// NewAssembler returns an Assembler that holds at most bytesMax bytes of incomplete messages, and none for longer than timeout since its latest
// chunk.
func NewAssembler(bytesMax int, timeout time.Duration) *Assembler { return nil }

// Assembled is what an Assembler says to a chunk.
type Assembled struct {
	// Complete tells that the entry now holds the whole message.
	Complete bool
	// IDs are those of all entries that the message came in, and of the repetitions of them, when Complete: first those of its chunks in their order.
	// They are acked together, when the message is done. They are also named when the whole message turns out to be broken.
	IDs []ID
	// GivenUp are entries that were held and are not any more, or that could not be held: never ack them, let the broker send them again later.
	GivenUp []ID
}

// Add takes a chunk, of which it keeps a copy. If the message is complete, e becomes it: Payload is the whole one, decompressed, and Chunked is
// false. A message that would decompress to more than payloadMax bytes is refused. The permit of the chunk can be given back in any case but
// Complete, where it is that of the message.
//
// The error is a *BrokenError. It concerns the whole message, if IDs are named, or this chunk alone, which is not held then.
func (a *Assembler) Add(now clock.Instant, id ID, e *Entry, payloadMax int) (Assembled, error) {
	return Assembled{}, nil
}

// Expire gives up messages that have waited too long for a chunk: neither of them may be acked, unless it is in redundant. Those repeat chunks of a
// message that was complete: ack them, because no message will ever be complete by them.
func (a *Assembler) Expire(now clock.Instant) (givenUp, redundant []ID) { return nil, nil }

// Next returns when Expire has something to do, or clock.Forever.
func (a *Assembler) Next() clock.Instant { return clock.Forever }

// Held returns how many bytes of incomplete messages are held, with what each costs beside its payload.
func (a *Assembler) Held() int { return 0 }
