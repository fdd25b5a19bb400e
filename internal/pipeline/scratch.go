package pipeline

import (
	"sync"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/mailbox"
)

// The slices that this package makes for a batch are used again for later ones: no
// stage keeps a slice that it is given.

// recycle returns a call's slice in scratch to its pool, and clears its references.
func recycle[T any](pool *sync.Pool, scratch *[]T, used []T) {
	clear(used)
	*scratch = used[:0]
	pool.Put(scratch)
}

// post sorts verdicts by sender.
type post struct {
	bags []bag
	used int // of bags; unused ones keep their memory
}

type bag struct {
	to       mailbox.Sender
	verdicts []event.Verdict
}

// sort puts each verdict into the bag of its sender. Senders are few, as many as
// peers, and mostly the next verdict goes where the last one went.
func (p *post) sort(verdicts []mailbox.Addressed) {
	var b *bag
	for i := range verdicts {
		v := &verdicts[i]
		if b == nil || b.to != v.To {
			b = p.bagOf(v.To)
		}
		b.verdicts = append(b.verdicts, v.Verdict)
	}
}

func (p *post) bagOf(to mailbox.Sender) *bag {
	for i := range p.bags[:p.used] {
		if p.bags[i].to == to {
			return &p.bags[i]
		}
	}
	if p.used == len(p.bags) {
		p.bags = append(p.bags, bag{})
	}
	b := &p.bags[p.used]
	b.to = to
	p.used++
	return b
}

// reset empties the bags.
func (p *post) reset() {
	for i := range p.bags[:p.used] {
		b := &p.bags[i]
		clear(b.verdicts)
		b.verdicts = b.verdicts[:0]
	}
	p.used = 0
}
