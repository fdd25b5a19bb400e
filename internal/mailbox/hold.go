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
	b.inputs++
	for _, key := range keys {
		if _, already := b.onHold[key]; already {
			continue
		}
		if b.onHold == nil {
			b.onHold = make(map[event.Key]struct{})
		}
		b.onHold[event.Key(strings.Clone(string(key)))] = struct{}{}
		b.refile(now, key, out)
	}
}

// Release undoes Hold. Keys that are not on hold do not change.
func (b *Boxes) Release(now clock.Instant, keys []event.Key, out *Output) {
	b.inputs++
	for _, key := range keys {
		if _, is := b.onHold[key]; is {
			delete(b.onHold, key)
			b.refile(now, key, out)
		}
	}
}

// refile files a key again under the reason why it waits, if it is here and does not run.
func (b *Boxes) refile(now clock.Instant, key event.Key, out *Output) {
	if a := b.actor(key, b.hashOfKey(key)); a != nil && a.running == nil {
		b.dequeueWaiting(a)
		b.enqueue(now, a, out)
	}
}

// isOnHold costs nothing while no key is on hold.
func (b *Boxes) isOnHold(key event.Key) bool {
	if len(b.onHold) == 0 {
		return false
	}
	_, is := b.onHold[key]
	return is
}
