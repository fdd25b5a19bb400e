package wire

import "slices"

// returnedMax bounds the messages that a returned remembers.
const returnedMax = 1 << 10

// returned holds the latest messages whose first chunk went back to the broker. Later chunks that are still on their way go back, too: the broker may
// send the first chunk to another member, and the others after it. Brokers with a consumer for each chunked message (Pulsar 2.11 and later) cannot assign
// them otherwise.
type returned struct {
	messages map[identity]struct{}
	order    []identity // oldest first
}

func (r *returned) add(key identity) {
	if len(key.producer)+len(key.uuid) > rememberedNameMax || r.has(key) {
		return
	}
	if r.messages == nil {
		r.messages = make(map[identity]struct{})
	}
	if len(r.order) == returnedMax {
		r.remove(r.order[0])
	}
	r.messages[key] = struct{}{}
	r.order = append(r.order, key)
}

func (r *returned) has(key identity) bool {
	_, ok := r.messages[key]
	return ok
}

// remove forgets a message, when its first chunk arrives again.
func (r *returned) remove(key identity) {
	if r.has(key) {
		delete(r.messages, key)
		at := slices.Index(r.order, key)
		r.order = slices.Delete(r.order, at, at+1)
	}
}
