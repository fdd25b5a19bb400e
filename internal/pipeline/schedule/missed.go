package schedule

import "time"

// window is the neighbourhood of an instant among the occurrences of a schedule.
type window struct {
	valid     bool
	from, end time.Time // it holds from `from` until end
	next      time.Time // the first occurrence after from; zero: none
	newest    time.Time // within the grace; zero: none
	oldest    time.Time // that All still runs
}

func (w window) holds(a time.Time) bool {
	return w.valid && !a.Before(w.from) && (w.end.IsZero() || a.Before(w.end))
}

// look returns the neighbourhood of now, which it computes only once between two occurrences.
func (l *line) look(now time.Time) window {
	a := now.Add(-l.def.Offset())
	if l.window.holds(a) {
		return l.window
	}
	w := window{valid: true, from: a}
	if next, ok := l.def.Next(a); ok {
		w.next, w.end = next, next
	}
	oldest := a.Add(-l.def.Grace - 1)
	if newest, ok := l.def.Newest(oldest, a, 1); ok {
		w.newest = newest
	}
	if l.def.Missed == All {
		if at, ok := l.def.Newest(oldest, a, MissedMax); ok {
			w.oldest = at
		}
	}
	l.window = w
	return w
}

// bound returns the time from which on firings are to run, now; earlier ones are dropped, for that
// reason or because they are older than the grace.
func (l *line) bound(now time.Time) (time.Time, Reason) {
	w, a := l.look(now), now.Add(-l.def.Offset())
	graced := a.Add(-l.def.Grace)
	switch l.def.Missed {
	case Latest:
		return later(w.newest, graced), Superseded
	case All:
		return later(w.oldest, graced), TooMany
	case Skip:
		if !w.newest.IsZero() && a.Sub(w.newest) <= LateMax {
			return later(w.newest, graced), Skipped
		}
	}
	return a.Add(1), Skipped
}

// dropped reports whether the policy drops the firing at that time.
func (l *line) dropped(now, at time.Time) (Reason, bool) {
	bound, reason := l.bound(now)
	if now.Add(-l.def.Offset() - l.def.Grace).After(at) {
		reason = TooLate
	}
	return reason, at.Before(bound)
}

// successor returns the firing that is to run after the one at that time, or instead of it; false: none.
func (l *line) successor(now, at time.Time) (time.Time, bool) {
	bound, _ := l.bound(now)
	return l.def.Next(later(bound.Add(-1), at))
}

// standsFor returns how many firings the successor of a dropped one stands for.
func (l *line) standsFor(now, at time.Time, missed int, successor time.Time) int {
	if l.def.Missed != Latest || l.due(successor).After(now) {
		return 0
	}
	return l.missedBefore(successor, min(missed+l.def.Count(at, successor, CountMax), CountMax))
}

// missedBefore returns how many firings the one at that time stands for: those since the newest run, or, if that is
// not known, as many as its message and the dropped firings report. The result is too high or too low if a firing
// waited behind that run, or failed after it.
func (l *line) missedBefore(at time.Time, told int) int {
	if l.def.Missed != Latest || l.newest.IsZero() || !l.newest.Before(at) {
		return told
	}
	return l.def.Count(l.newest, at, CountMax+1) - 1
}
