package schedule

import (
	"math"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// Arm asks for the publication of one firing. It is under way until [Book.Armed].
type Arm struct {
	Definition Definition
	Time       time.Time
	ID         uint64
	Due        time.Time
	Missed     int
}

// Sent returns the event that is published for the firing.
func (a *Arm) Sent() event.Sent {
	return event.Sent{
		Key: event.Key(KeyOf(a.Definition.Name)), Due: a.Due.UnixMilli(), Name: a.Definition.Name,
		Firing: &event.Firing{Definition: a.Definition.ID(), Time: a.Time.UnixMilli(), Missed: uint32(min(a.Missed, math.MaxUint32))},
	}
}

// flight is an Arm that is under way.
type flight struct {
	name  string
	at    time.Time
	stale bool // the gate was opened again meanwhile, so another owner may have consumed the copy
}

// Tick returns what is to be published now.
func (b *Book) Tick(now time.Time) []Arm {
	type order struct {
		tried time.Time
		arm   Arm
	}
	var orders []order
	b.lines = slices.DeleteFunc(b.lines, func(l *line) bool {
		if l.since.After(now) { // the clock was ahead
			l.since = now
		}
		return !l.declared() && !l.runs && now.Sub(l.since) >= GraceDefault
	})
	for _, l := range b.lines {
		if !b.owned(l) {
			continue
		}
		b.follow(now, l)
		for _, e := range l.entries {
			if e.safe || b.underway[e.id] != nil || !elapsed(now, e.tried, e.wait) {
				continue
			}
			due := l.due(e.at)
			orders = append(orders, order{e.tried, Arm{Definition: l.def, Time: e.at, ID: e.id, Due: due, Missed: e.missed}})
		}
	}
	// Those that wait longest go first, so that schedules whose publication fails do not hold up others.
	slices.SortStableFunc(orders, func(x, y order) int { return x.tried.Compare(y.tried) })
	var wanted []Arm
	for _, o := range orders[:min(len(orders), ArmsMax-len(b.underway))] {
		b.underway[o.arm.ID] = &flight{name: o.arm.Definition.Name, at: o.arm.Time}
		wanted = append(wanted, o.arm)
	}
	return wanted
}

// follow brings the entries of l up to date: the next firing is one of them, those that no longer
// need to run are none, and those that did not come are armed again.
func (b *Book) follow(now time.Time, l *line) {
	w := l.look(now)
	if !w.next.IsZero() {
		l.want(now, w.next, 0)
	}
	for i := 0; i < len(l.entries); i++ {
		e := &l.entries[i]
		if e.seen && !elapsed(now, e.lastSeen, LostMax) {
			continue
		}
		if e.seen {
			e.seen, e.tried, e.wait = false, e.lastSeen, 0
		}
		at, missed := e.at, e.missed
		if l.due(at).After(now) || b.underway[e.id] != nil {
			continue
		}
		if _, dropped := l.dropped(now, at); dropped {
			// No message is needed: if a copy of it comes, it is dropped then, after its successor is safe.
			l.entries = slices.Delete(l.entries, i, i+1)
			if successor, ok := l.successor(now, at); ok {
				l.want(now, successor, l.standsFor(now, at, missed, successor))
			}
			i = -1 // an earlier one may have been added
			continue
		}
		if e.safe && !e.entered && b.stopped[l.name] == 0 && !now.Before(l.due(at).Add(UnseenMax)) && elapsed(now, e.tried, max(e.wait, UnseenMax)) {
			e.safe, e.tried, e.wait = false, now, 0
			b.counts.Rearmed++
		}
	}
}

// Armed says how the publication of an Arm ended. A failed one is tried again, with growing delays.
func (b *Book) Armed(now time.Time, id uint64, err error) {
	f := b.underway[id]
	if f == nil {
		return
	}
	delete(b.underway, id)
	l := b.line(f.name)
	if l == nil {
		return
	}
	l.status.ArmError = ""
	if err != nil {
		l.status.ArmError = err.Error()
	}
	e := l.find(f.at)
	if e == nil || e.id != id || e.safe || f.stale {
		return
	}
	e.tried = now
	if err != nil {
		e.wait = e.retry.Next()
		return
	}
	e.retry.Reset()
	e.safe, e.wait = true, e.again.Next()
}

// Next returns when [Book.Tick] has something to do; the zero Time: not before another call.
func (b *Book) Next(now time.Time) time.Time {
	var next time.Time
	at := func(t time.Time) {
		if t.Before(now) {
			t = now
		}
		if next.IsZero() || t.Before(next) {
			next = t
		}
	}
	for _, l := range b.lines {
		if !l.declared() && !l.runs {
			at(l.since.Add(GraceDefault))
		}
		if !b.owned(l) {
			continue
		}
		switch a := now.Add(-l.def.Offset()); {
		case !l.window.holds(a):
			at(now)
		case !l.window.next.IsZero():
			at(l.due(l.window.next))
		}
		for _, e := range l.entries {
			due := l.due(e.at)
			switch {
			case e.seen:
				at(after(now, e.lastSeen, LostMax))
			case e.entered, e.safe && b.stopped[l.name] != 0:
			case b.underway[e.id] != nil:
			case e.safe && due.After(now):
				at(due.Add(UnseenMax))
			case e.safe:
				at(later(due.Add(UnseenMax), after(now, e.tried, max(e.wait, UnseenMax))))
			case len(b.underway) < ArmsMax:
				at(after(now, e.tried, e.wait))
			}
		}
	}
	return next
}
