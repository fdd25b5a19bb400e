package wire

import (
	"slices"

	"github.com/ringfence/router/internal/base/clock"
)

// Fixed charges of an incomplete message and of each of its chunks, in bytes, for the memory of their bookkeeping.
const (
	messageCost = 816
	pieceCost   = 128
)

// entriesMax bounds the held entries. Each is an unacked event to the broker until its message is complete or has timed out, so a producer that sends only
// first chunks would use up what all keys of the topic partition share.
const entriesMax = 1 << 12

// chunksMax bounds the chunks of a message: all but the last must be held, and each is inserted into a sorted slice.
const chunksMax = entriesMax

// identity holds the metadata that all chunks of a message share. The uuid alone is not enough: producers build it from their name and a
// sequence number that may start over when they restart, and the halves of two messages would be mixed unnoticed.
type identity struct {
	producer, uuid string
	published      int64
	chunks, size   int32
	compression    Compression
	uncompressed   uint32
}

func identityOf(m *Metadata) identity {
	return identity{
		producer: string(m.Producer), uuid: string(m.UUID), published: m.PublishTime,
		chunks: m.Chunks, size: m.ChunkedSize, compression: m.Compression, uncompressed: m.UncompressedSize,
	}
}

// cost returns the charge of a message that begins with a chunk, without its entries. whole returns the charge with all chunks.
func (i *identity) cost(e *Entry) int {
	return messageCost + len(i.producer) + len(i.uuid) + len(e.Metadata.Properties.fields)
}

func (i *identity) whole(e *Entry) int64 {
	return int64(i.cost(e)) + int64(i.size) + pieceCost*int64(i.chunks)
}

// partial is a message with chunks missing.
type partial struct {
	identity
	head        Entry   // the chunk that came first, without its payload; a copy
	again       bool    // the broker has delivered one of its entries before
	begun       bool    // with its first chunk, and it was not whole before in other entries
	pieces      []piece // in the order of chunk numbers, each chunk once
	repetitions []ID    // of entries that repeat a chunk of another entry
	bytes       int     // in pieces
	deadline    clock.Instant

	before, after *partial // in the order of their first chunks
}

type piece struct {
	chunk   int32
	id      ID
	payload []byte
}

func byChunk(p piece, chunk int32) int { return int(p.chunk) - int(chunk) }

func (a *Assembler) begin(key identity, e *Entry) *partial {
	p := &partial{identity: key, head: *e, before: a.last}
	p.head.Payload, p.head.buffer = nil, nil
	_, _ = p.head.Metadata.parse(slices.Clone(e.Metadata.Properties.fields)) // as before, and it was valid
	if a.last != nil {
		a.last.after = p
	} else {
		a.first = p
	}
	a.last = p
	a.messages[key] = p
	a.held += key.cost(e)
	return p
}

// isFull reports whether there is no room for another entry with a charge of so many bytes.
func (a *Assembler) isFull(bytes int) bool {
	return a.held+bytes > a.bytesMax || len(a.entries) >= entriesMax
}

func (a *Assembler) hold(id ID, cost int) {
	a.entries[id] = struct{}{}
	a.held += cost
}

// repeat holds the id of an entry whose chunk is already held. It is acked with the message. It takes no bytes, so that a message that fits is
// complete however often its producer repeats chunks.
func (a *Assembler) repeat(p *partial, id ID) Assembled {
	givenUp, fits := a.room(p, 0)
	if !fits {
		return Assembled{GivenUp: append(givenUp, id)}
	}
	p.repetitions = append(p.repetitions, id)
	a.hold(id, 0)
	return Assembled{GivenUp: givenUp}
}

// room gives up other messages, later ones and then p unless PreferLater, until that many bytes fit. One message always gets room, because Add refuses messages that
// exceed bytesMax on their own. Messages are given up as a whole: the broker assigns later chunks only after the first one.
func (a *Assembler) room(p *partial, bytes int) (givenUp []ID, fits bool) {
	for a.isFull(bytes) {
		one := a.last
		if a.later {
			if one = a.first; one == p && p.after != nil {
				one = p.after
			}
		}
		givenUp = append(givenUp, a.giveUp(one)...)
		if one == p {
			return givenUp, false
		}
	}
	return givenUp, true
}

// giveUp removes a message that goes back to the broker.
func (a *Assembler) giveUp(p *partial) []ID {
	if len(p.pieces) > 0 && p.pieces[0].chunk == 0 {
		a.returned.add(p.identity)
	}
	return a.remove(p)
}

// remove forgets a message and returns the ids of its entries.
func (a *Assembler) remove(p *partial) []ID {
	if p.before != nil {
		p.before.after = p.after
	} else {
		a.first = p.after
	}
	if p.after != nil {
		p.after.before = p.before
	} else {
		a.last = p.before
	}
	delete(a.messages, p.identity)
	if p.begun {
		a.begun--
	}
	a.held -= p.cost(&p.head) + p.bytes
	ids := make([]ID, 0, len(p.pieces)+len(p.repetitions))
	for _, piece := range p.pieces {
		ids = append(ids, piece.id)
		if _, held := a.entries[piece.id]; held { // the entry that completes a message is not held
			delete(a.entries, piece.id)
			a.held -= pieceCost
		}
	}
	for _, id := range p.repetitions {
		delete(a.entries, id)
	}
	return append(ids, p.repetitions...)
}
