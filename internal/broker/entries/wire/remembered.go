package wire

import "slices"

const (
	// rememberedIDsMax bounds the entries of complete messages that an Assembler remembers.
	rememberedIDsMax = 1 << 12
	// rememberedNameMax bounds the names of such messages, in bytes. Longer ones are not remembered.
	rememberedNameMax = 1 << 10
)

// remembered are the latest messages that were complete, with the entries that they came in. A producer that lost its connection sends the
// chunks again whose receipts it has not seen; they can arrive when their message is complete, and then wait for chunks that never come.
type remembered struct {
	messages map[identity]map[ID]struct{}
	order    []identity // oldest first
	ids      int
}

// add remembers a message. The same one can be complete repeatedly, in the same entries or in others.
func (r *remembered) add(key identity, ids []ID) {
	if len(key.producer)+len(key.uuid) > rememberedNameMax || len(ids) > rememberedIDsMax/2 {
		return
	}
	entries := r.messages[key]
	if entries == nil {
		if r.messages == nil {
			r.messages = make(map[identity]map[ID]struct{})
		}
		entries = make(map[ID]struct{}, len(ids))
		r.messages[key] = entries
		r.order = append(r.order, key)
	}
	r.ids -= len(entries)
	for _, id := range ids {
		entries[id] = struct{}{}
	}
	r.ids += len(entries)
	for r.ids > rememberedIDsMax {
		r.ids -= len(r.messages[r.order[0]])
		delete(r.messages, r.order[0])
		r.order = slices.Delete(r.order, 0, 1)
	}
}

// elsewhere reports whether a message was complete in entries that the given one is not among. Those are acked when the message is done,
// not before; the given one repeats one of them.
func (r *remembered) elsewhere(key identity, id ID) bool {
	entries, complete := r.messages[key]
	_, among := entries[id]
	return complete && !among
}
