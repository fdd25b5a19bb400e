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

// lookup is a search for the events of a key that visits the shelf in steps, so that the
// lock can be released between them.
type lookup struct {
	block  int // to look at next
	shares []Share
	done   bool
}

// blocksAtOnce bounds one step: about 4,000 events.
const blocksAtOnce = 16

// inspect is one step of a search.
func (t *Table) inspect(key event.Key, look *lookup) {
	t.visit(look, func(h *held) { t.share(key, h, look) })
}

// visit calls f for the places of one step.
func (t *Table) visit(look *lookup, f func(*held)) {
	end := min(look.block+blocksAtOnce, len(t.shelf.blocks))
	for ; look.block < end; look.block++ {
		if b := t.shelf.blocks[look.block]; b != nil {
			for i := range b {
				f(&b[i])
			}
		}
	}
	if look.block < len(t.shelf.blocks) {
		return
	}
	for _, h := range t.shelf.beside {
		f(h)
	}
	look.done = true
}

// share adds h to the result if it is of the key.
func (t *Table) share(key event.Key, h *held, look *lookup) {
	if h.event == nil || h.event.Key != key {
		return
	}
	place, with := h.on.place, t.with(h)
	i := slices.IndexFunc(look.shares, func(s Share) bool { return s.Place == place && s.With == with })
	if i < 0 {
		i, look.shares = len(look.shares), append(look.shares, Share{Place: place, With: with, Oldest: clock.Forever})
	}
	look.shares[i].Events++
	look.shares[i].Oldest = min(look.shares[i].Oldest, h.cohort.since)
}

// with returns the peer that an event is for, see [Share.With].
func (t *Table) with(h *held) Peer {
	switch {
	case h.on.lane != nil:
		return h.on.lane.peer
	case h.on.place == Full:
		return t.waiting[h.event.Key].refuser
	}
	return Peer{}
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
