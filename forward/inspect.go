package forward

import (
	"cmp"
	"slices"

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
// meant for operators' requests only.
func (t *Table) Inspect(key event.Key) []KeyPlace {
	var look inspection
	for !look.done {
		t.inspect(key, &look)
	}
	return look.result()
}

// inspection is a search among the held events that visits the records in steps, so that the
// lock can be released between them.
type inspection struct {
	age    uint64     // records up to this age were visited
	places []KeyPlace // found so far
	done   bool
}

// eventsAtOnce is about the number of events of one step.
const eventsAtOnce = 4000

// inspect is one step of a search.
func (t *Table) inspect(key event.Key, look *inspection) {
	t.visit(look, func(h held) {
		if h.key() == key {
			t.add(h, look)
		}
	})
}

// visit calls f for the events of one step.
func (t *Table) visit(look *inspection, f func(held)) {
	visited := 0
	for r := t.oldest; r != nil; r = r.newer {
		if r.age <= look.age {
			continue
		}
		if visited >= eventsAtOnce {
			return
		}
		for i := range r.events.All() {
			f(held{r, i})
			visited++
		}
		look.age = r.age
	}
	look.done = true
}

// add counts an event of the key in the result.
func (t *Table) add(h held, look *inspection) {
	place, with := t.whereIs(h)
	i := slices.IndexFunc(look.places, func(s KeyPlace) bool { return s.Place == place && s.With == with })
	if i < 0 {
		i, look.places = len(look.places), append(look.places, KeyPlace{Place: place, With: with, Oldest: clock.Forever})
	}
	look.places[i].Events++
	look.places[i].Oldest = min(look.places[i].Oldest, h.since)
}

// whereIs returns the place of an event, and the peer that it is for, see [KeyPlace.With].
func (t *Table) whereIs(h held) (Place, Peer) {
	place, l := t.placeOf(h)
	switch {
	case l != nil:
		return place, l.peer
	case place == Full:
		return place, t.waiting[h.waiter()].refuser
	}
	return place, Peer{}
}

func (l *inspection) result() []KeyPlace {
	slices.SortFunc(l.places, func(a, b KeyPlace) int {
		return cmp.Or(cmp.Compare(a.Place, b.Place), slices.Compare(a.With[:], b.With[:]))
	})
	return l.places
}

// Inspect is [Table.Inspect]. An event that moves during the search may be counted twice
// or not at all.
func (p *Pool) Inspect(key event.Key) []KeyPlace {
	var look inspection
	for !look.done {
		p.mu.Lock()
		p.table.inspect(key, &look)
		p.mu.Unlock()
	}
	return look.result()
}
