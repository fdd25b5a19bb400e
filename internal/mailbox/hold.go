package mailbox

import (
	"strings"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// Hold keeps the events of keys waiting, in their order, until Release. A delivery that runs continues,
// and its result counts; if its event is to be retried here, it waits first in its key. The keys stay on hold
// whatever happens to their partitions, so that a new owner need not be told. Keys that are on hold already do not
// change. out gets no verdict.
func (b *Boxes) Hold(now clock.Instant, keys []event.Key, out *Output) {
	for _, key := range keys {
		if !b.onHold[key] {
			b.onHold[event.Key(strings.Clone(string(key)))] = true
			b.refileKey(now, key, out)
		}
	}
}

// Release undoes Hold. Keys that are not on hold do not change.
func (b *Boxes) Release(now clock.Instant, keys []event.Key, out *Output) {
	for _, key := range keys {
		if b.onHold[key] {
			delete(b.onHold, key)
			b.refileKey(now, key, out)
		}
	}
}

// refileKey is refile for a key that may not be here.
func (b *Boxes) refileKey(now clock.Instant, key event.Key, out *Output) {
	if a := b.actor(key, b.hashOfKey(key)); a != nil {
		b.refile(now, a, out)
	}
}
