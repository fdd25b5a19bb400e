package mailbox

import (
	"slices"
	"strings"

	"github.com/ringfence/router/internal/base/event"
)

// Credit tells a sender whose events found no room that there is some again.
type Credit struct {
	To     Sender
	Key    event.Key // the key whose mailbox was full
	Events int       // how many events of the key there is room for, at least 1
	All    bool      // not one key but the shard was full: Key and Events say nothing
}

// debts are who waits for a credit. What is here was refused: it costs memory for
// keys whose mailbox is full and for streams that live, never for single events.
type debts struct {
	keys map[*actor][]Sender // of a key whose mailbox was full
	all  []Sender            // of a shard that was full
}

// refuseFull refuses an event because its mailbox is full, or the shard, and notes
// that the sender shall hear when there is room.
func (b *Boxes) refuseFull(a *actor, from address, out *Output) {
	if a != nil && int(a.depth) >= b.cfg.DepthMax {
		if b.owed.keys == nil {
			b.owed.keys = make(map[*actor][]Sender)
		}
		b.owed.keys[a] = b.owe(b.owed.keys[a], from.sender)
	} else {
		b.owed.all = b.owe(b.owed.all, from.sender)
	}
	b.refuseOverload(from, out)
}

func (b *Boxes) owe(senders []Sender, from Sender) []Sender {
	if slices.Contains(senders, from) {
		return senders
	}
	return append(slices.DeleteFunc(senders, b.isSenderGone), from)
}

// repayKey gives credit for a key of which an event has left, once half of its
// mailbox is free: less would be a credit for each event.
func (b *Boxes) repayKey(a *actor, out *Output) {
	if len(b.owed.keys) == 0 {
		return
	}
	room := b.cfg.DepthMax - int(a.depth)
	senders, owed := b.owed.keys[a]
	if !owed || 2*room < b.cfg.DepthMax {
		return
	}
	delete(b.owed.keys, a)
	senders = slices.DeleteFunc(senders, b.isSenderGone)
	for _, to := range senders {
		key := event.Key(strings.Clone(string(a.key))) // it outlives the event in whose memory it may lie
		out.Credits = append(out.Credits, Credit{To: to, Key: key, Events: max(1, room/len(senders))})
	}
}

// repayAll gives credit for the shard once a quarter of it is free.
func (b *Boxes) repayAll(out *Output) {
	if len(b.owed.all) == 0 || 4*b.bytes > 3*b.cfg.BytesMax || 4*b.items.len() > 3*itemsMax {
		return
	}
	for _, to := range b.owed.all {
		if !b.isSenderGone(to) {
			out.Credits = append(out.Credits, Credit{To: to, All: true})
		}
	}
	b.owed.all = b.owed.all[:0]
}

// cancelDebts forgets who waits for a key that is gone. What it had was answered, and
// who has more of it tries again by itself.
func (b *Boxes) cancelDebts(a *actor) {
	if len(b.owed.keys) > 0 {
		delete(b.owed.keys, a)
	}
}
