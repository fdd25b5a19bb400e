package forward

import (
	"cmp"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// KeyPlace is the held events of one key that are in one place.
type KeyPlace struct {
	Place  Place
	With   Peer // Queued, Sent: the peer of the stream, or Local for the own mailbox; Full: the peer that refused them
	Events int
	Oldest clock.Instant // when the oldest of them was held
}

// Inspect returns the held events of a key by place. It visits all held events, so it is
// meant for operators' requests only. An event that moves meanwhile may be counted twice
// or not at all.
func (p *Pool) Inspect(key event.Key) (places []KeyPlace) {
	p.visit(func(h held) {
		if h.key() != key {
			return
		}
		place, with := p.table.placeOf(h)
		i := slices.IndexFunc(places, func(s KeyPlace) bool { return s.Place == place && s.With == with })
		if i < 0 {
			i, places = len(places), append(places, KeyPlace{Place: place, With: with, Oldest: h.since})
		}
		places[i].Events++
		places[i].Oldest = min(places[i].Oldest, h.since)
	})
	slices.SortFunc(places, func(a, b KeyPlace) int {
		return cmp.Or(cmp.Compare(a.Place, b.Place), slices.Compare(a.With[:], b.With[:]))
	})
	return places
}

// HeldKey is the events of one key that no mailbox has: they wait at this node. Of their places it
// has the first one that is found.
type HeldKey struct {
	Key event.Key
	KeyPlace
}

// Unsent returns the keys with events that wait at this node because their owner is not known,
// cannot be reached or has no room. It visits all held events, like [Pool.Inspect].
func (p *Pool) Unsent() (keys []HeldKey) {
	at := make(map[event.Key]int) // in keys
	p.visit(func(h held) {
		place, with := p.table.placeOf(h)
		if place == Sent {
			return
		}
		i, known := at[h.key()]
		if !known {
			i = len(keys)
			key := event.Key(strings.Clone(string(h.key()))) // it outlives the event
			at[key], keys = i, append(keys, HeldKey{key, KeyPlace{Place: place, With: with, Oldest: h.since}})
		}
		keys[i].Events++
		keys[i].Oldest = min(keys[i].Oldest, h.since)
	})
	return keys
}

// visit calls f for all held events, in steps between which it releases the lock.
func (p *Pool) visit(f func(held)) {
	for age, more := uint64(0), true; more; {
		p.mu.Lock()
		age, more = p.table.visit(age, f)
		p.mu.Unlock()
	}
}

// eventsAtOnce is about the number of events of one step.
const eventsAtOnce = 4000

// visit calls f for the events of one step: those of the records behind an age. It returns the age up to which the
// records were visited, and whether there are more.
func (t *Table) visit(age uint64, f func(held)) (_ uint64, more bool) {
	visited := 0
	for r := t.oldest; r != nil; r = r.newer {
		if r.age <= age {
			continue
		}
		if visited >= eventsAtOnce {
			return age, true
		}
		for i := range r.events.All() {
			f(held{r, i})
			visited++
		}
		age = r.age
	}
	return age, false
}
