package forward

import (
	"cmp"
	"slices"

	"github.com/ringfence/router/internal/clock"
	"github.com/ringfence/router/internal/event"
)

// Share is the held events of one key that are in one place.
type Share struct {
	Place  Place
	With   Peer // Queued, Relaying, Sent: whose stream takes or has them; Local: the own mailbox. Parked: who refused them
	Events int
	Oldest clock.Instant // when the oldest of them was held
}

// Inspect says where the held events of a key are, in the order of the places. It
// looks at all events: for people's questions.
func (t *Table) Inspect(key event.Key) []Share {
	var shares []Share
	for h := range t.shelf.all {
		if h.event.Key != key {
			continue
		}
		place, with := h.on.place, Peer{}
		switch {
		case h.on.lane != nil:
			with = h.on.lane.peer
		case place == Parked && t.lots[key] != nil:
			with = t.lots[key].refuser
		}
		i := slices.IndexFunc(shares, func(s Share) bool { return s.Place == place && s.With == with })
		if i < 0 {
			i, shares = len(shares), append(shares, Share{Place: place, With: with, Oldest: clock.Forever})
		}
		shares[i].Events++
		shares[i].Oldest = min(shares[i].Oldest, h.cohort.since)
	}
	slices.SortFunc(shares, func(a, b Share) int {
		return cmp.Or(cmp.Compare(a.Place, b.Place), slices.Compare(a.With[:], b.With[:]))
	})
	return shares
}

// Inspect is [Table.Inspect].
func (p *Pool) Inspect(key event.Key) []Share {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.table.Inspect(key)
}
