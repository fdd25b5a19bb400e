package wire

import (
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// Assembler reassembles the chunked messages of one topic partition. Chunks of several messages may be interleaved, and arrive in any order and
// repeatedly. It is not safe for concurrent use.
//
// No chunk may be acked before its message is complete. Entries that the Assembler gives up go back to the broker
// unacked. If some entries of a message had been delivered before, and its other chunks do not come in time again,
// the message is not given up a second time: it is returned as incomplete, so that it can be settled.
//
// When bytesMax, or a fixed number of entries, is reached, the messages that began last are given up first, each as a whole, and with the chunks of it that
// arrive before its first one comes again. In the opposite order, two interleaved messages could evict each other forever. But see PreferLater.
type Assembler struct {
	bytesMax int
	timeout  time.Duration
	later    bool // see PreferLater

	held     int // bytes
	begun    int // messages, see partial.begun
	messages map[identity]*partial
	entries  map[ID]struct{} // held, of all messages
	first    *partial        // the message that began first
	last     *partial
	next     clock.Instant // no message times out earlier
	done     remembered
	returned returned
}

// NewAssembler returns an Assembler that holds at most bytesMax bytes of incomplete messages, and each message for at most timeout after
// its latest chunk.
func NewAssembler(bytesMax int, timeout time.Duration) *Assembler {
	return &Assembler{
		bytesMax: bytesMax, timeout: timeout, next: clock.Forever,
		messages: make(map[identity]*partial), entries: make(map[ID]struct{}),
	}
}

// PreferLater makes the Assembler give up the messages that began first: entries come in the order of the topic partition, and none is redelivered, so
// that a message that is open for long mostly lacks chunks that nobody sends any more. It is called before Add.
func (a *Assembler) PreferLater() { a.later = true }

// Assembled is the result of Add. Without IDs, the chunk waits for the rest of its message, unless its own id is in GivenUp.
type Assembled struct {
	// IDs names all entries of a complete message, even if the message is broken: first its chunks in order, then the entries that repeat a
	// chunk. They are acked together, when the message is done.
	IDs []ID
	// Parts holds the payloads of all chunks of a complete message that is broken, one after another; nil otherwise.
	Parts []byte
	// GivenUp names entries that are no longer held or could not be held. Do not ack them: let the broker redeliver them later.
	GivenUp []ID
}

// Add takes an entry that ParseHead has marked as Chunked, and keeps a copy of its payload, and of the metadata of a message's first one to come. If the message is complete, e becomes the whole
// message: Chunked is false, and Payload waits for Parser.Open if it is compressed. An uncompressed message with more than payloadMax bytes is refused.
//
// again says that the broker has delivered the entry before. The permit of the chunk can be returned at once, unless the message is complete and the permit is to count for it.
//
// The error is a *BrokenError, and e is unchanged. With IDs, the whole message is broken; without IDs, only this entry, which is not held.
func (a *Assembler) Add(now clock.Instant, id ID, again bool, e *Entry, payloadMax int) (Assembled, error) {
	if !e.Chunked {
		return Assembled{}, broken(ReasonChunk, "not a chunk")
	}
	if _, held := a.entries[id]; held {
		return Assembled{}, nil // redelivered, and already held
	}
	key := identityOf(&e.Metadata)
	if key.whole(e) > int64(a.bytesMax) || key.chunks > chunksMax || key.compression == CompressionNone && int64(key.size) > int64(payloadMax) {
		return Assembled{}, broken(ReasonSize, "chunked message beyond the limit")
	}
	p, cost := a.messages[key], pieceCost+len(e.Payload)
	var earlier []ID
	if e.Metadata.Chunk == 0 {
		a.returned.remove(key)
	}
	if p == nil {
		switch {
		case len(e.Payload) > int(key.size):
			return Assembled{}, broken(ReasonChunk, "more bytes than the message declares")
		case a.returned.has(key) && !a.done.elsewhere(key, id): // a redundant one waits to be acked
			return Assembled{GivenUp: []ID{id}}, nil
		case a.later:
			earlier, _ = a.room(nil, key.cost(e)+cost)
		case a.isFull(key.cost(e) + cost):
			if e.Metadata.Chunk == 0 {
				a.returned.add(key)
			}
			return Assembled{GivenUp: []ID{id}}, nil
		}
		p = a.begin(key, e)
		if p.begun = e.Metadata.Chunk == 0 && !a.done.elsewhere(key, id); p.begun {
			a.begun++
		}
	}
	p.again = p.again || again
	at, repeated := slices.BinarySearchFunc(p.pieces, e.Metadata.Chunk, byChunk)
	switch {
	case repeated:
		return a.repeat(p, id), nil
	case p.bytes+len(e.Payload) > int(p.size):
		return Assembled{}, broken(ReasonChunk, "more bytes than the message declares")
	case len(p.pieces)+1 == int(p.chunks):
		p.pieces = slices.Insert(p.pieces, at, piece{chunk: e.Metadata.Chunk, id: id, payload: e.Payload}) // not held, so not copied
		return a.complete(p, e)
	}
	givenUp, fits := a.room(p, cost)
	givenUp = append(earlier, givenUp...)
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

// Expired is the result of Expire.
type Expired struct {
	// GivenUp names entries of messages that have waited too long for a chunk. Let the broker redeliver them.
	GivenUp []ID
	// Redundant names entries that belong to a message that was already complete in other entries, for example because the producer resent
	// some chunks. Ack them: they will never complete a message.
	Redundant []ID
	// Incomplete are messages that have waited too long for a chunk not for the first time.
	Incomplete []Incomplete
}

// Incomplete is a message whose other chunks have not come.
type Incomplete struct {
	Entry   Entry  // one of its chunks, without payload
	IDs     []ID   // of its entries, first those with its chunks in order, then those that repeat one. They are acked together
	Missing int    // number of chunks that have not come, at least 1
	Parts   []byte // the payloads of the others, one after another
}

// Expire ends the wait of messages that have waited too long for a chunk.
func (a *Assembler) Expire(now clock.Instant) (r Expired) {
	if now < a.next {
		return r
	}
	a.next = clock.Forever
	for p := a.first; p != nil; {
		after := p.after
		switch {
		case p.deadline > now:
			a.next = min(a.next, p.deadline)
		case p.again && !a.done.has(p.identity):
			r.Incomplete = append(r.Incomplete, a.incomplete(p))
		default:
			for _, id := range a.giveUp(p) {
				if a.done.elsewhere(p.identity, id) {
					r.Redundant = append(r.Redundant, id)
				} else {
					r.GivenUp = append(r.GivenUp, id)
				}
			}
		}
		p = after
	}
	return r
}

func (a *Assembler) incomplete(p *partial) Incomplete {
	m := Incomplete{Entry: p.head, IDs: a.remove(p), Missing: int(p.chunks) - len(p.pieces)}
	for _, piece := range p.pieces {
		m.Parts = append(m.Parts, piece.payload...)
	}
	return m
}

// Drop forgets all incomplete messages, because the broker redelivers all their chunks, perhaps to another consumer.
func (a *Assembler) Drop() {
	for a.first != nil {
		a.remove(a.first)
	}
	a.returned = returned{}
}

// Held returns the bytes held for incomplete messages, including bookkeeping. It never exceeds bytesMax.
func (a *Assembler) Held() int { return a.held }

// Unfinished returns the number of held messages whose first chunk came first, as producers send it: others began before the first entry that was
// added. Those that were whole in other entries do not count either.
func (a *Assembler) Unfinished() int { return a.begun }

// complete turns e, the last missing chunk, into the whole message.
func (a *Assembler) complete(p *partial, e *Entry) (Assembled, error) {
	ids := a.remove(p)
	a.done.add(p.identity, ids)
	whole := make([]byte, 0, p.size)
	for _, piece := range p.pieces {
		whole = append(whole, piece.payload...)
	}
	if len(whole) != int(p.size) {
		return Assembled{IDs: ids, Parts: whole}, broken(ReasonSize, "chunks are not as long as declared")
	}
	e.Chunked, e.Compressed, e.Payload = false, e.Metadata.Compression != CompressionNone, whole
	return Assembled{IDs: ids}, nil
}
