package entries

import (
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// alone holds the chunks of a session that were handed on one by one, encrypted or broken, until they are acked. The first chunk of a message is acked last:
// brokers that give a message to one consumer (Pulsar 2.11 and later) deliver the other chunks again only after it. Pure.
type alone struct {
	timeout  time.Duration
	messages map[messageKey]*parts
	of       map[wire.ID]*parts
}

// messageKey tells chunked messages apart. A producer that restarts may use its uuids again.
type messageKey struct {
	producer, uuid string
	published      int64
}

func keyOf(m *wire.Metadata) messageKey {
	return messageKey{string(m.Producer), string(m.UUID), m.PublishTime}
}

// parts holds the chunks of a message that are not acked.
type parts struct {
	key      messageKey
	firsts   map[wire.ID]bool // entries with the first chunk; true: done
	why      error            // of the other chunks, because the first is not held
	open     int              // number of other entries
	last     bool             // the last chunk has arrived, and so have all others; or nobody waits for it
	deadline clock.Instant    // of the wait for the last chunk
}

func newAlone(timeout time.Duration) alone {
	return alone{timeout: timeout, messages: make(map[messageKey]*parts), of: make(map[wire.ID]*parts)}
}

// isPart reports whether an entry is a chunk.
func isPart(m *wire.Metadata) bool { return m.Chunks > 1 && len(m.UUID) > 0 }

// errFirst breaks a chunk whose first chunk is not held.
var errFirst = &wire.BrokenError{Reason: wire.ReasonChunk, What: "the first chunk of its message is broken"}

// firstsMax bounds the messages whose first chunk waits to be acked: until then each counts as an unacked event at
// the broker, and all keys of the topic partition share the limit on these.
const firstsMax = 1 << 12

// arrived counts a chunk that is handed on, with the reason if it is broken. If more than most messages are open, the
// first chunks of further ones are acked without waiting for the other chunks.
func (a *alone) arrived(now clock.Instant, id wire.ID, m *wire.Metadata, broken *wire.BrokenError, most int) {
	if a.of[id] != nil {
		return
	}
	p := a.messages[keyOf(m)]
	if p == nil {
		p = &parts{key: keyOf(m), firsts: make(map[wire.ID]bool), last: len(a.messages) >= most}
		a.messages[p.key] = p
	}
	a.of[id] = p
	if m.Chunk == 0 {
		p.firsts[id] = false
		if p.why = errFirst; broken != nil && broken.Reason == wire.ReasonSize { // of the whole message
			p.why = broken
		}
	} else {
		p.open++
	}
	p.last = p.last || m.Chunk == m.Chunks-1
	p.deadline = now.Add(a.timeout)
}

// broken returns the error of a chunk whose first chunk was handed on, so that its message cannot be complete; nil: it was not.
func (a *alone) broken(m *wire.Metadata) error {
	if p := a.messages[keyOf(m)]; p != nil && len(p.firsts) > 0 {
		return p.why
	}
	return nil
}

// done ends a chunk, and returns the entries to ack now, in order. first: it is the first chunk of its message. A
// first chunk of another session is not acked: the broker sends it again, and needs it in order to send the other
// chunks.
func (a *alone) done(now clock.Instant, id wire.ID, first bool) (acks []wire.ID) {
	if !first {
		acks = []wire.ID{id}
	}
	p := a.of[id]
	if p == nil {
		return acks
	}
	p.deadline = now.Add(a.timeout)
	if first {
		p.firsts[id] = true
	} else {
		p.open--
		delete(a.of, id)
	}
	return a.release(p, acks)
}

// release appends the first chunk if all others have ended.
func (a *alone) release(p *parts, acks []wire.ID) []wire.ID {
	if p.open > 0 {
		return acks
	}
	for id, done := range p.firsts {
		if done && p.last {
			delete(p.firsts, id)
			delete(a.of, id)
			acks = append(acks, id)
		}
	}
	if len(p.firsts) == 0 {
		delete(a.messages, p.key)
	}
	return acks
}

// expire returns the first chunks of messages whose last chunk has not come in time, because its producer died.
func (a *alone) expire(now clock.Instant) (acks []wire.ID) {
	for _, p := range a.messages {
		if p.deadline <= now {
			p.last = true
			acks = a.release(p, acks)
		}
	}
	return acks
}
