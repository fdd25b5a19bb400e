package forward

import (
	"cmp"
	"slices"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// Share is the held events of one key that are in one place.
type Share struct {
	Place  Place
	With   Peer // Queued, Sent: the peer of the stream, or Local for the own mailbox; Full: the peer that refused them
	Events int
	Oldest clock.Instant // when the oldest of them was held
}

// Inspect returns the held events of a key by place. It visits all held events, so it is
// meant for operators' requests only.
func (t *Table) Inspect(key event.Key) []Share {
	var look lookup
	for !look.done {
		t.inspect(key, &look)
	}
	return look.result()
}

// lookup is a search for the events of a key that visits the records in steps, so that the
// lock can be released between them.
type lookup struct {
	age    uint64 // records up to this one were looked at
	shares []Share
	done   bool
}

// eventsAtOnce is about the number of events of one step.
const eventsAtOnce = 4000

// inspect is one step of a search.
func (t *Table) inspect(key event.Key, look *lookup) {
	t.visit(look, func(h held) {
		if h.key() == key {
			t.add(h, look)
		}
	})
}

// visit calls f for the events of one step.
func (t *Table) visit(look *lookup, f func(held)) {
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

// add adds an event to the result.
func (t *Table) add(h held, look *lookup) {
	place, with := t.whereIs(h)
	i := slices.IndexFunc(look.shares, func(s Share) bool { return s.Place == place && s.With == with })
	if i < 0 {
		i, look.shares = len(look.shares), append(look.shares, Share{Place: place, With: with, Oldest: clock.Forever})
	}
	look.shares[i].Events++
	look.shares[i].Oldest = min(look.shares[i].Oldest, h.since)
}

// whereIs returns the place of an event, and the peer that it is for, see [Share.With].
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

func (l *lookup) result() []Share {
	slices.SortFunc(l.shares, func(a, b Share) int {
		return cmp.Or(cmp.Compare(a.Place, b.Place), slices.Compare(a.With[:], b.With[:]))
	})
	return l.shares
}

// Inspect is [Table.Inspect]. An event that moves during the search may be counted twice
// or not at all.
func (p *Pool) Inspect(key event.Key) []Share {
	var look lookup
	for !look.done {
		p.mu.Lock()
		p.table.inspect(key, &look)
		p.mu.Unlock()
	}
	return look.result()
}
