package wire

import "slices"

const (
	// rememberedIDsMax bounds the entries of complete messages that an Assembler remembers.
	rememberedIDsMax = 1 << 12
	// rememberedNameMax bounds producer name and uuid of a remembered message, in bytes together.
	rememberedNameMax = 1 << 10
)

// remembered holds the latest complete messages and their entries. A producer that lost its connection resends the chunks whose receipts it
// has not seen. If their message was already complete, the resent chunks wait for chunks that never arrive.
type remembered struct {
	messages map[identity]map[ID]struct{}
	order    []identity // oldest first
	ids      int
}

// add remembers a complete message. A message can be complete more than once, in the same or in other entries.
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

func (r *remembered) has(key identity) bool {
	_, complete := r.messages[key]
	return complete
}

// elsewhere reports whether the message was complete without entry id, so that id only repeats one of its chunks. The entries of the
// message itself are acked when it is done, not before.
func (r *remembered) elsewhere(key identity, id ID) bool {
	entries, complete := r.messages[key]
	_, among := entries[id]
	return complete && !among
}
