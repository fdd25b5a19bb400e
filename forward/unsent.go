package forward

import (
	"strings"

	"github.com/ringfence/router/internal/base/event"
)

// HeldKey is the events of one key that no mailbox has: they wait at this node.
type HeldKey struct {
	Key event.Key
	KeyPlace
}

// unsent collects the keys of held events that were not sent.
type unsent struct {
	inspection

	place map[event.Key]int // in keys
	keys  []HeldKey
}

// note notes an event that was not sent: of each key the place of the first one that is found.
func (all *unsent) note(t *Table, h held) {
	place, with := t.whereIs(h)
	if place == Sent {
		return
	}
	i, known := all.place[h.key()]
	if !known {
		i = len(all.keys)
		key := event.Key(strings.Clone(string(h.key()))) // it outlives the event
		all.place[key], all.keys = i, append(all.keys, HeldKey{key, KeyPlace{Place: place, With: with, Oldest: h.since}})
	}
	all.keys[i].Events++
	all.keys[i].Oldest = min(all.keys[i].Oldest, h.since)
}

// Unsent returns the keys with events that wait at this node because their owner is not known,
// cannot be reached or has no room. It visits all held events, so it is meant for operators'
// requests only. An event that moves meanwhile may be counted twice or not at all.
func (p *Pool) Unsent() []HeldKey {
	all := unsent{place: make(map[event.Key]int)}
	for !all.done {
		p.mu.Lock()
		p.table.visit(&all.inspection, func(h held) { all.note(p.table, h) })
		p.mu.Unlock()
	}
	return all.keys
}
