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
	With   Peer // Queued, Relaying, Sent: whose stream takes or has them; Local: the own mailbox. Parked: who refused them
	Events int
	Oldest clock.Instant // when the oldest of them was held
}

// Inspect says where the held events of a key are, in the order of the places. It
// looks at all events: for people's questions.
func (t *Table) Inspect(key event.Key) []Share {
	var look lookup
	for !look.done {
		t.inspect(key, &look)
	}
	return look.result()
}

// lookup is a search for the events of a key that goes through the shelf step by step, so
// that those who move events need not wait for all of it.
type lookup struct {
	block  int // to look at next
	shares []Share
	done   bool
}

// blocksAtOnce is how much of the shelf one step looks at: about 4,000 events.
const blocksAtOnce = 16

// inspect is one step of a search.
func (t *Table) inspect(key event.Key, look *lookup) {
	end := min(look.block+blocksAtOnce, len(t.shelf.blocks))
	for ; look.block < end; look.block++ {
		if b := t.shelf.blocks[look.block]; b != nil {
			for i := range b {
				t.share(key, &b[i], look)
			}
		}
	}
	if look.block < len(t.shelf.blocks) {
		return
	}
	for _, h := range t.shelf.beside {
		t.share(key, h, look)
	}
	look.done = true
}

// share adds h to what was found, if it is of the key.
func (t *Table) share(key event.Key, h *held, look *lookup) {
	if h.event == nil || h.event.Key != key {
		return
	}
	place, with := h.on.place, Peer{}
	switch {
	case h.on.lane != nil:
		with = h.on.lane.peer
	case place == Parked && t.lots[key] != nil:
		with = t.lots[key].refuser
	}
	i := slices.IndexFunc(look.shares, func(s Share) bool { return s.Place == place && s.With == with })
	if i < 0 {
		i, look.shares = len(look.shares), append(look.shares, Share{Place: place, With: with, Oldest: clock.Forever})
	}
	look.shares[i].Events++
	look.shares[i].Oldest = min(look.shares[i].Oldest, h.cohort.since)
}

func (l *lookup) result() []Share {
	slices.SortFunc(l.shares, func(a, b Share) int {
		return cmp.Or(cmp.Compare(a.Place, b.Place), slices.Compare(a.With[:], b.With[:]))
	})
	return l.shares
}

// Inspect is [Table.Inspect]. Events move while it looks, so one that does may be counted
// twice, or not at all.
func (p *Pool) Inspect(key event.Key) []Share {
	var look lookup
	for !look.done {
		p.mu.Lock()
		p.table.inspect(key, &look)
		p.mu.Unlock()
	}
	return look.result()
}
