package schedule

import (
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/outcome"
)

// End is the decision about a firing whose run is over.
type End struct {
	Settled bool          // the handler has decided
	Dead    bool          // it is to be a dead letter, and comes again only if that is replayed, or if its consumer node ended before; if it is Settled and not Dead, further copies of it are dropped
	After   time.Duration // neither: until its retry is due; 0: at once
}

// EndOf returns the end of a run by its result and the outcome of its event, the zero Outcome if that is not known.
func EndOf(result event.ResultKind, o outcome.Outcome) End {
	switch {
	case result == event.ResultDone:
		return End{Settled: true}
	case result == event.ResultReject:
		return End{Settled: true, Dead: true}
	case o.Kind == outcome.DeadLetter:
		return End{Dead: true}
	}
	return End{After: o.Delay}
}

// Done ends what Enter began.
func (b *Book) Done(now time.Time, f Firing, end End) {
	l := b.line(f.Name)
	if l == nil || !l.runs || l.running.DefinitionID != f.DefinitionID || !l.running.Time.Equal(f.Time) {
		return
	}
	l.runs = false
	same := l.def.ID() == f.DefinitionID
	if end.Settled {
		l.status.LastRun = f.Time
		if same {
			l.newest = later(l.newest, f.Time)
		}
	}
	switch {
	case !same:
	case end.Settled && !end.Dead:
		l.remember(f.Time)
	case l.declared():
		e := l.want(now, f.Time, l.running.Missed)
		e.safe, e.seen, e.entered, e.lastSeen, e.dead, e.returns = true, !end.Dead, true, now, end.Dead, end.After
	}
	if same && end.Dead {
		l.letters = keepNewest(l.letters, f.Time)
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
