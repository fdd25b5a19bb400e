package schedule

import (
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/event"
)

// entry is a firing that has to be safe in the topic.
type entry struct {
	at       time.Time
	id       uint64
	missed   int
	safe     bool
	seen     bool // it came here, and waits with its sender
	entered  bool // it was in the lane and was not settled, and is retried as an event is; or it was skipped by an operator: it is not armed again
	dead     bool // it is a dead letter: no other waits for it
	lastSeen time.Time
	returns  time.Duration // from lastSeen until its retry is due
	tried    time.Time     // when it was wanted, failed, or became safe
	wait     time.Duration
	retry    backoff.Backoff
	again    backoff.Backoff
}

// entryOf returns the schedule whose firings have a key, nil if none is declared, and its entry of the firing with a message id, nil if it has none.
func (b *Book) entryOf(key event.Key, message event.MessageID) (*line, *entry) {
	name, ok := strings.CutPrefix(string(key), KeyOf(""))
	l := b.line(name)
	if !ok || l == nil || !l.declared() {
		return nil, nil
	}
	i := slices.IndexFunc(l.entries, func(e entry) bool { return MessageID(name, e.id) == message })
	if i < 0 {
		return l, nil
	}
	return l, &l.entries[i]
}

// remember notes a firing that has run.
func (l *line) remember(at time.Time) { l.ran = keepNewest(l.ran, at) }

// keepNewest adds a firing to those that are remembered.
func keepNewest(times []time.Time, at time.Time) []time.Time {
	if times = append(times, at); len(times) > ranMax {
		times = slices.Delete(times, 0, 1)
	}
	return times
}

// covers reports whether the firing at that time is safe, or is over.
func (l *line) covers(at time.Time) bool {
	e := l.find(at)
	return e != nil && e.safe || e == nil && l.past(at)
}

// past reports whether the firing at that time has entered.
func (l *line) past(at time.Time) bool {
	return l.hasRun(at) || slices.ContainsFunc(l.letters, at.Equal) || l.runs && l.running.DefinitionID == l.def.ID() && l.running.Time.Equal(at)
}

func (l *line) hasRun(at time.Time) bool { return slices.ContainsFunc(l.ran, at.Equal) }

// precedes reports whether a firing before that time is still to run. It is waited for until its retry is due, and as long as a
// broker may take to bring it again.
func (l *line) precedes(now, at time.Time) bool {
	return slices.ContainsFunc(l.entries, func(e entry) bool {
		if e.dead || !e.at.Before(at) || elapsed(now, later(l.due(e.at), e.lastSeen), e.returns+LostMax) {
			return false
		}
		_, dropped := l.dropped(now, e.at)
		return !dropped
	})
}

func (l *line) search(at time.Time) (int, bool) {
	return slices.BinarySearchFunc(l.entries, at, func(e entry, at time.Time) int { return e.at.Compare(at) })
}

func (l *line) find(at time.Time) *entry {
	if i, ok := l.search(at); ok {
		return &l.entries[i]
	}
	return nil
}

func (l *line) remove(at time.Time) {
	if i, ok := l.search(at); ok {
		l.entries = slices.Delete(l.entries, i, i+1)
	}
}

// want makes the firing at that time one of the entries, unless it has entered; then it returns nil.
func (l *line) want(now, at time.Time, missed int) *entry {
	i, ok := l.search(at)
	if !ok {
		if l.past(at) {
			return nil
		}
		l.entries = slices.Insert(l.entries, i, entry{
			at: at, id: FiringID(l.def, at), tried: now,
			retry: backoff.Backoff{Min: retryFirst, Max: retryLast}, again: backoff.Backoff{Min: UnseenMax, Max: againLast},
		})
		if last := len(l.entries) - 1; last >= entriesMax {
			// A clock that jumps to and fro makes them many. The latest is wanted again when its time is near.
			if i == last {
				last--
			}
			l.entries = slices.Delete(l.entries, last, last+1)
			i, _ = l.search(at)
		}
	}
	e := &l.entries[i]
	e.missed = max(e.missed, missed)
	return e
}
