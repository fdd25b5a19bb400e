package schedule

import (
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/outcome"
)

// End is the decision about a firing whose run is over.
type End struct {
	Settled bool          // it does not come again: further copies of it are dropped
	Dead    bool          // not Settled: it is a dead letter, and comes again only if that is replayed
	After   time.Duration // neither: until its retry is due; 0: at once
}

// EndOf returns the end of a run by its result and the outcome of its event, the zero Outcome if that is not known.
func EndOf(result event.ResultKind, o outcome.Outcome) End {
	switch {
	case result == event.ResultDone || result == event.ResultReject: // the handler has decided
		return End{Settled: true}
	case o.Kind == outcome.DeadLetter:
		return End{Dead: true}
	}
	return End{After: o.Delay}
}

// Done ends what Enter began.
func (b *Book) Done(now time.Time, f Firing, end End) {
	l := b.schedules[f.Name]
	if l == nil || !l.runs || l.running.DefinitionID != f.DefinitionID || !l.running.Time.Equal(f.Time) {
		return
	}
	l.runs = false
	known := l.has && l.def.ID() == f.DefinitionID
	switch {
	case end.Settled:
		l.status.LastRun = f.Time
		if l.def.ID() == f.DefinitionID {
			l.remember(f.Time)
			l.newest = later(l.newest, f.Time)
		}
	case known:
		e := l.want(now, f.Time, l.running.Missed)
		e.safe, e.seen, e.entered, e.lastSeen, e.dead, e.returns = true, !end.Dead, true, now, end.Dead, end.After
	}
}

// Over notes that an event of a key has finished before, mostly at an earlier owner, so that no copies of it come
// here. If it is a firing that this Book waits for, that firing is over: others no longer wait for it, and it is not
// armed again. Over reports whether it was such a firing.
func (b *Book) Over(key event.Key, message event.MessageID) bool {
	l, e := b.entryOf(key, message)
	if e == nil {
		return false
	}
	at := e.at
	l.remember(at)
	l.remove(at)
	return true
}
