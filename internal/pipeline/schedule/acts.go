package schedule

import (
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// Skip says that an operator has skipped an event of a key. If it is a firing, it is a dead letter, so it is not armed again: it enters if the letter is
// replayed.
func (b *Book) Skip(now time.Time, key event.Key, message event.MessageID) {
	l, e := b.entryOf(key, message)
	if l == nil {
		return
	}
	if e == nil {
		at, ok := l.timeOf(now, message) // it came to an earlier owner, or was armed by one
		if !ok {
			return
		}
		if e = l.want(now, at, 0); e == nil {
			return
		}
	}
	e.safe, e.entered, e.dead = true, true, true
	if successor, ok := l.successor(now, e.at); ok { // it may be skipped before it came here, which arms its successor
		if next := l.want(now, successor, 0); next != nil {
			next.owed = true
		}
	}
}

// Stop is why an operator's act keeps the events of a key from running.
type Stop uint8

// The reasons. A key can have both.
const (
	OnHold Stop = 1 << iota
	Parked      // also while its letters come back
)

// Stop says that an act stops a key, or does not any more. Its firings come, and wait in the lane or are parked without a word to the Book: they are not armed
// again until it ends, and then only if they do not come.
func (b *Book) Stop(now time.Time, key event.Key, why Stop, stops bool) {
	name, ok := strings.CutPrefix(string(key), KeyOf(""))
	before := b.stopped[name]
	switch {
	case !ok:
	case stops:
		b.stopped[strings.Clone(name)] = before | why
	case before == why:
		delete(b.stopped, name)
		if l := b.schedules[name]; l != nil {
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

// timesMax bounds the times that timeOf looks at.
const timesMax = 10_000

// timeOf returns the time of a firing that is due and not too late, by its message id; false: there is none.
func (l *line) timeOf(now time.Time, message event.MessageID) (time.Time, bool) {
	at, ok := l.def.Next(now.Add(-l.def.Offset() - l.def.Grace))
	for range timesMax {
		if !ok || l.due(at).After(now) {
			break
		}
		if MessageID(l.def.Name, FiringID(l.def, at)) == message {
			return at, true
		}
		at, ok = l.def.Next(at)
	}
	return time.Time{}, false
}
