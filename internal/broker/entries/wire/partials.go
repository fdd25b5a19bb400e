package wire

import "github.com/ringfence/router/internal/base/clock"

// What an incomplete message and each of its entries are charged beside their bytes, in bytes, for the memory of their places.
const (
	messageCost = 384
	pieceCost   = 128
)

// chunksMax bounds the chunks of a message, because each is put in its place among the others.
const chunksMax = 1 << 14

// identity is what all chunks of a message have in common. Uuids alone would not do: producers make them of their name and a sequence
// number that may begin again when they restart, and then mixing the halves of two messages would go unnoticed.
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

// cost is what the message is charged beside its entries, and whole what it is charged at most, without repetitions.
func (i *identity) cost() int { return messageCost + len(i.producer) + len(i.uuid) }

func (i *identity) whole() int64 { return int64(i.cost()) + int64(i.size) + pieceCost*int64(i.chunks) }

// partial is a message with chunks missing.
type partial struct {
	identity
	pieces      []piece // in the order of chunks, each chunk once
	repetitions []ID    // of entries with a chunk that another entry has brought
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

func (a *Assembler) begin(key identity) *partial {
	p := &partial{identity: key, before: a.last}
	if a.last != nil {
		a.last.after = p
	} else {
		a.first = p
	}
	a.last = p
	a.messages[key] = p
	a.held += key.cost()
	return p
}

func (a *Assembler) hold(id ID, cost int) {
	a.entries[id] = struct{}{}
	a.held += cost
}

// repeat holds the id of an entry with a chunk that is there already. Such entries give way to the chunks of their message.
func (a *Assembler) repeat(p *partial, id ID) Assembled {
	if a.held+pieceCost > a.bytesMax {
		return Assembled{GivenUp: []ID{id}}
	}
	p.repetitions = append(p.repetitions, id)
	a.hold(id, pieceCost)
	return Assembled{}
}

// room gives up what must give way to p until there is room for so many bytes. The message that began first always gets room, because a
// message that needs more than all was refused.
func (a *Assembler) room(p *partial, bytes int) (givenUp []ID, fits bool) {
	for a.held+bytes > a.bytesMax {
		switch {
		case a.last != p:
			givenUp = append(givenUp, a.remove(a.last)...)
		case len(p.repetitions) > 0:
			givenUp = append(givenUp, a.release(p.repetitions, 0)...)
			p.repetitions = nil
		default:
			return givenUp, false
		}
	}
	return givenUp, true
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
	a.held -= p.cost()
	ids := make([]ID, 0, len(p.pieces)+len(p.repetitions))
	for _, piece := range p.pieces {
		ids = append(ids, piece.id)
	}
	return a.release(append(ids, p.repetitions...), p.bytes)
}

// release forgets entries that were held, and their bytes.
func (a *Assembler) release(ids []ID, bytes int) []ID {
	for _, id := range ids {
		if _, held := a.entries[id]; held { // the one that completes a message is not
			delete(a.entries, id)
			a.held -= pieceCost
		}
	}
	a.held -= bytes
	return ids
}
