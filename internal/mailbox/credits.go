package mailbox

import (
	"slices"
	"strings"

	"github.com/ringfence/router/internal/base/event"
)

// Credit tells a sender whose events were refused for lack of room that there is room again.
type Credit struct {
	To     Sender
	Key    event.Key // the key whose mailbox was full
	Events int       // room for events of the key, at least 1
	All    bool      // the whole shard was full: Key and Events are not set
}

// debts hold the senders that wait for a credit. Their memory grows with full keys and
// live streams, not with refused events.
type debts struct {
	keys map[*actor][]Sender // senders refused because the key's mailbox was full
	all  []Sender            // senders refused because the shard was full
}

// refuseFull refuses an event because its mailbox or the shard is full, and notes that
// its sender gets a credit when there is room.
func (b *Boxes) refuseFull(a *actor, from address, out *Output) {
	if a != nil && int(a.depth) >= b.cfg.DepthMax {
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
	return append(slices.DeleteFunc(senders, b.isGone), from)
}

// repayKey gives credit for a key that an event has left, once half of its mailbox is
// free: a lower bound would mean a credit per event.
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
	senders = slices.DeleteFunc(senders, b.isGone)
	for _, to := range senders {
		key := event.Key(strings.Clone(string(a.key))) // it outlives the event whose memory it may lie in
		out.Credits = append(out.Credits, Credit{To: to, Key: key, Events: max(1, room/len(senders))})
	}
}

// repayAll gives credit for the shard once a quarter of it is free.
func (b *Boxes) repayAll(out *Output) {
	if len(b.owed.all) == 0 || 4*b.bytes > 3*b.cfg.BytesMax || 4*b.items.len() > 3*itemsMax {
		return
	}
	for _, to := range b.owed.all {
		if !b.isGone(to) {
			out.Credits = append(out.Credits, Credit{To: to, All: true})
		}
	}
	b.owed.all = b.owed.all[:0]
}
