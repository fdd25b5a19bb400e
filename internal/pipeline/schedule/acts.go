package schedule

import (
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

// MaySkip reports whether a firing that waits here, and that an operator skips, may become a dead letter: as one that a policy drops, after the firing
// that follows is safe. While no worker here declares its schedule, it waits for one as long as [Book.Arrive] lets it wait.
func (b *Book) MaySkip(now time.Time, f Firing) bool {
	opened, open := b.opened[partition.Of(KeyOf(f.Name))]
	if !open {
		return false
	}
	l := b.line(f.Name)
	if l == nil || !l.declared() {
		return !now.Before(b.unknownUntil(now, f, l, opened))
	}
	if f.DefinitionID != l.def.ID() || !l.def.Occurs(f.Time) {
		return true
	}
	e := l.want(now, f.Time, 0)
	if e == nil {
		return true
	}
	e.safe, e.seen, e.lastSeen = true, true, now
	successor, ok := l.successor(now, f.Time)
	if !ok {
		return true
	}
	l.want(now, successor, 0)
	return l.covers(successor)
}

// Skip says that an operator has skipped an event of a key. If it is a firing, it is a dead letter, so it is not armed again: it enters if the letter is
// replayed.
func (b *Book) Skip(key event.Key, message event.MessageID) {
	if l, e := b.entryOf(key, message); e != nil {
		e.safe, e.entered, e.dead = true, true, true
		l.letters = keepNewest(l.letters, e.at)
	}
}

// Stop is why an operator's act keeps the events of a key from running.
type Stop uint8

// The reasons. A key can have several.
const (
	OnHold    Stop = 1 << iota
	Parked         // also while its letters come back
	Unparking      // its letters come back: they alone run, in their own order
)

// Stop notes that an act stops a key, or no longer does. Firings of a stopped key that come wait in the lane or are
// parked, and the Book does not learn of them. So none is armed again until the stop ends, and then only if it does
// not come.
func (b *Book) Stop(now time.Time, key event.Key, why Stop, stops bool) {
	name, ok := strings.CutPrefix(string(key), KeyOf(""))
	before := b.stopped[name]
	switch {
	case !ok:
	case stops:
		b.stopped[strings.Clone(name)] = before | why
	case before == why:
		delete(b.stopped, name)
		if l := b.line(name); l != nil {
			for i := range l.entries {
				if e := &l.entries[i]; e.safe {
					e.tried, e.wait = now, 0
				}
			}
		}
	case before != 0:
		b.stopped[name] = before &^ why
	}
}
