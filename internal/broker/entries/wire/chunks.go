package wire

import (
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// Assembler puts the messages of one topic partition together whose producers have cut them. Chunks of several messages may be interleaved,
// and come in any order, repeatedly, and again after a reconnect. It is not safe for concurrent use.
//
// No chunk is named for an ack before its message is complete. What the Assembler gives up goes back to the broker, unacked.
//
// When the bytes do not suffice, messages that began later give way to those that began earlier. The other way round, two interleaved
// messages could push each other out for ever.
type Assembler struct {
	bytesMax int
	timeout  time.Duration

	held     int // bytes
	messages map[identity]*partial
	entries  map[ID]struct{} // of all messages
	first    *partial        // the one that began first
	last     *partial
	next     clock.Instant // no message times out before
	done     remembered
	inflate  inflater
}

// NewAssembler returns an Assembler that holds at most bytesMax bytes of incomplete messages, and none for longer than timeout since its
// latest chunk.
func NewAssembler(bytesMax int, timeout time.Duration) *Assembler {
	return &Assembler{
		bytesMax: bytesMax, timeout: timeout, next: clock.Forever,
		messages: make(map[identity]*partial), entries: make(map[ID]struct{}),
	}
}

// Assembled is what an Assembler answers to a chunk. Without IDs, the chunk waits for others, unless its own id is in GivenUp.
type Assembled struct {
	// IDs are those of all entries that a message came in: first those of its chunks in their order, then those that repeated one. They are
	// acked together, when the message is done. They are there when the message is complete, and when it is complete and broken.
	IDs []ID
	// GivenUp are entries that are not held any more, or could not be held. They must not be acked: let the broker send them again, later.
	GivenUp []ID
}

// Add takes a chunk, that is an entry that Parse has found to be Chunked, and keeps a copy of its payload. If the message is complete, e
// becomes the whole message: Payload is decompressed, and Chunked is false. A message of more than payloadMax bytes is refused,
// decompressed or not.
//
// The permit of the chunk can be given back at once, unless the message is complete and the permit is to stand for it.
//
// The error is a *BrokenError, and e is as it was. It concerns the whole message if there are IDs; without, it concerns this entry alone,
// which is not held.
func (a *Assembler) Add(now clock.Instant, id ID, e *Entry, payloadMax int) (Assembled, error) {
	if !e.Chunked {
		return Assembled{}, broken(ReasonChunk, "no chunk")
	}
	if _, held := a.entries[id]; held {
		return Assembled{}, nil // again, after a reconnect: it is in its place
	}
	key := identityOf(&e.Metadata)
	if key.whole() > int64(a.bytesMax) || key.chunks > chunksMax || key.compression == CompressionNone && int64(key.size) > int64(payloadMax) {
		return Assembled{}, broken(ReasonSize, "chunked message beyond the limit")
	}
	p, cost := a.messages[key], pieceCost+len(e.Payload)
	if p == nil {
		if a.held+key.cost()+cost > a.bytesMax {
			return Assembled{GivenUp: []ID{id}}, nil
		}
		p = a.begin(key)
	}
	at, repeated := slices.BinarySearchFunc(p.pieces, e.Metadata.Chunk, byChunk)
	switch {
	case repeated:
		return a.repeat(p, id), nil
	case p.bytes+len(e.Payload) > int(p.size):
		return Assembled{}, broken(ReasonChunk, "more bytes than the message has")
	case len(p.pieces)+1 == int(p.chunks):
		p.pieces = slices.Insert(p.pieces, at, piece{chunk: e.Metadata.Chunk, id: id, payload: e.Payload}) // not held, so not copied
		return a.complete(p, e, payloadMax)
	}
	givenUp, fits := a.room(p, cost)
	if !fits {
		return Assembled{GivenUp: append(givenUp, id)}, nil
	}
	p.pieces = slices.Insert(p.pieces, at, piece{chunk: e.Metadata.Chunk, id: id, payload: slices.Clone(e.Payload)})
	p.bytes += len(e.Payload)
	p.deadline = now.Add(a.timeout)
	a.next = min(a.next, p.deadline)
	a.hold(id, cost)
	return Assembled{GivenUp: givenUp}, nil
}

// Expire gives up messages that have waited too long for a chunk, and returns their entries. Those in redundant belong to a message that
// was complete already in other entries, as when a producer has sent some chunks again: ack them, because no message will ever be complete
// by them.
func (a *Assembler) Expire(now clock.Instant) (givenUp, redundant []ID) {
	if now < a.next {
		return nil, nil
	}
	a.next = clock.Forever
	for p := a.first; p != nil; {
		after := p.after
		if p.deadline > now {
			a.next = min(a.next, p.deadline)
		} else {
			for _, id := range a.remove(p) {
				if a.done.elsewhere(p.identity, id) {
					redundant = append(redundant, id)
				} else {
					givenUp = append(givenUp, id)
				}
			}
		}
		p = after
	}
	return givenUp, redundant
}

// Next returns when to call Expire. It can be earlier than necessary, and is clock.Forever when nothing is held.
func (a *Assembler) Next() clock.Instant {
	if a.first == nil {
		return clock.Forever
	}
	return a.next
}

// Held returns how many bytes of incomplete messages are held, with what each costs beside its payload. It never exceeds bytesMax.
func (a *Assembler) Held() int { return a.held }

// Messages returns how many incomplete messages are held.
func (a *Assembler) Messages() int { return len(a.messages) }

// complete makes e the message whose last missing piece it has brought.
func (a *Assembler) complete(p *partial, e *Entry, payloadMax int) (Assembled, error) {
	ids := a.remove(p)
	a.done.add(p.identity, ids)
	if p.bytes+len(e.Payload) != int(p.size) {
		return Assembled{IDs: ids}, broken(ReasonSize, "chunks are not as long as declared")
	}
	whole := make([]byte, 0, p.size)
	for _, piece := range p.pieces {
		whole = append(whole, piece.payload...)
	}
	payload, err := a.inflate.payload(&e.Metadata, e.buffer, whole, payloadMax)
	if err != nil {
		return Assembled{IDs: ids}, err
	}
	e.Chunked, e.Payload, e.buffer = false, payload, payload
	return Assembled{IDs: ids}, nil
}
