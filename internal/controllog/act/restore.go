package act

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// The functions below serve a topic that was deleted, truncated or restored from a backup: members read it anew, keep
// the acts that they know, and write those again that it lacks.

// again reports whether the act of a record is known, and notes where its newest record is.
func (f *Fold) again(p placed) (known bool) {
	same := func(q placed) bool { return q.ID == p.ID && q.Kind == p.Kind && q.Key == p.Key }
	if i := slices.IndexFunc(f.list, same); i >= 0 {
		q := f.list[i]
		q.at, known, f.repeats = p.at, true, true
		f.list = append(slices.Delete(f.list, i, i+1), q) // in the order of positions
	}
	known = move(f.holds, p.Key, same, p.at) || known
	known = move(f.parks, p.Key, same, p.at) || known
	return move(f.skips, skipped{p.Key, p.Event}, same, p.at) || known
}

// subject identifies the state that an act other than a skip changes: each act replaces the one before.
type subject struct {
	key  event.Key
	park bool // and not a hold
}

func (r Record) subject() subject { return subject{r.Key, r.Kind == Park || r.Kind == Unpark} }

// redo puts an act into effect again whose record is in the topic twice, if its time is later than that of every
// other act on its key. Members write such an act again when an earlier act was written again behind it, by a member
// that had not read it.
func (f *Fold) redo(p placed) {
	if p.Kind == Skip {
		return
	}
	newest, self := uint64(0), -1
	for i, q := range f.list {
		switch {
		case q.Kind == Skip || q.subject() != p.subject():
		case q.ID == p.ID && q.Kind == p.Kind:
			self = i
		case !q.At.Before(p.At):
			return
		default:
			newest = max(newest, q.number)
		}
	}
	if self < 0 || f.list[self].number > newest {
		return
	}
	f.count++
	f.list[self].number = f.count
	p = f.list[self]
	switch {
	case p.Kind == Release:
		f.release(p.Record)
	case p.Kind == Hold:
		f.hold(p)
	case p.hasEnded():
		delete(f.parks, p.Key)
	default:
		f.park(p)
	}
}

// move notes a new position of a record of a map, if it is the same.
func move[K comparable](in map[K]placed, name K, same func(placed) bool, at event.Position) bool {
	q, known := in[name]
	if !known || !same(q) {
		return false
	}
	q.at = at
	in[name] = q
	return true
}

// Restart prepares the Fold to read a new topic from its first record on. The known acts remain: their records have
// no effect when they are read again, and [Fold.Missing] returns those that have no record in the new topic.
func (f *Fold) Restart() {
	f.last, f.read = event.Position{}, false
	for i := range f.list {
		f.list[i].at, f.list[i].endAt = event.Position{}, event.Position{}
	}
	all := func(placed) bool { return true }
	for key := range f.holds {
		move(f.holds, key, all, event.Position{})
	}
	for name := range f.skips {
		move(f.skips, name, all, event.Position{})
	}
	for key := range f.parks {
		move(f.parks, key, all, event.Position{})
	}
}

// Missing returns the records that the topic lacks, oldest first: acts with an effect at an instant, and parks and
// unparks without an end, that have no record since [Fold.Restart]; and acts and ends after which the topic now
// has a record of an act that they ended or replaced.
func (f *Fold) Missing(now time.Time) (missing []Record) {
	look := func(p placed, always bool) {
		if p.at.IsZero() && (always || activeAt(p.Record, now)) {
			missing = append(missing, p.Record)
		}
	}
	for _, h := range f.holds {
		look(h, false)
	}
	for _, s := range f.skips {
		look(s, false)
	}
	for _, p := range f.parks {
		look(p, true) // letters may be left
	}
	if f.repeats {
		missing = f.undone(now, missing)
	}
	slices.SortFunc(missing, func(a, b Record) int { return cmp.Or(a.At.Compare(b.At), bytes.Compare(a.ID[:], b.ID[:])) })
	return missing
}

// undone appends the acts and ends that have no effect at a member that reads only the present topic: the topic was
// restored to an earlier state without them, or a member that had not read them has written an earlier act again
// behind them.
func (f *Fold) undone(now time.Time, missing []Record) []Record {
	last, newest := map[subject]placed{}, map[subject]placed{} // by positions, and by the order in which they were first read
	for _, p := range f.list {
		if p.hasEnded() && !p.at.IsZero() && p.endAt.Before(p.at) && activeAt(p.Record, now) {
			missing = append(missing, p.ending)
		}
		if p.Kind == Skip {
			continue
		}
		n := p.subject()
		last[n] = p
		if newest[n].number < p.number {
			newest[n] = p
		}
	}
	for n, p := range newest {
		q := last[n]
		if q.number == p.number || q.at.IsZero() || !activeAt(q.Record, now) || slices.ContainsFunc(missing, func(r Record) bool { return r.ID == p.ID }) {
			continue
		}
		h, held := f.holds[n.key]
		counts := p.hasEnded() || f.parks[n.key].ID == p.ID
		if !n.park { // an act that had no room has no effect anywhere
			counts = held && h.ID == p.ID || !held && p.Kind == Release
		}
		if counts {
			missing = append(missing, p.Record)
		}
	}
	return missing
}
