package act

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// Result is the effect of a record.
type Result string

// The results.
const (
	Held      Result = "held"      // the key is held from now on
	Renewed   Result = "renewed"   // the key was held already: its hold is this one now
	Released  Result = "released"  // the key is not held any more
	NotHeld   Result = "not_held"  // the key was not held: nothing is released
	Full      Result = "full"      // HeldLimit keys are held: no effect
	Marked    Result = "marked"    // a mark: no effect
	Malformed Result = "malformed" // it cannot be read, or is out of bounds: no effect
	Later     Result = "version"   // it is of a later version: no effect
	Repeated  Result = "repeated"  // its position was read before: no effect again
)

// Bounds of a Fold.
const (
	// HeldLimit is the most keys that are held at a time, by the format. Settings allow fewer.
	HeldLimit = 1024
	// listMax is the number of newest records that a Fold lists.
	listMax = 1000
)

// Fold is the state that results from the records of an acts topic. The zero value is that of an empty log.
// A hold that has expired stays in it, without an effect, until there is no room for another.
type Fold struct {
	holds map[event.Key]placed
	list  []placed // the newest records but marks, in their order
	last  event.Position
	read  bool // last is a position

	forgotten time.Time // the end of the longest act that the list has forgotten
}

// placed is a record at its position.
type placed struct {
	Record

	at event.Position
}

// Apply takes the record at a position. Positions ascend; one that was read before changes nothing.
func (f *Fold) Apply(at event.Position, data []byte) (Record, Result) {
	if f.read && !f.last.Before(at) {
		return Record{}, Repeated
	}
	f.last, f.read = at, true
	r, err := Decode(data)
	switch {
	case errors.Is(err, errVersion):
		return Record{}, Later
	case err != nil:
		return Record{}, Malformed
	case r.Kind == Mark:
		return r, Marked
	}
	f.note(placed{r, at})
	if r.Kind == Release {
		return r, f.release(r)
	}
	return r, f.hold(placed{r, at})
}

func (f *Fold) hold(p placed) Result {
	before, known := f.holds[p.Key]
	if len(f.holds) >= HeldLimit && !known {
		maps.DeleteFunc(f.holds, func(_ event.Key, h placed) bool { return !activeAt(h.Record, p.At) })
	}
	if len(f.holds) >= HeldLimit && !known {
		return Full
	}
	if f.holds == nil {
		f.holds = map[event.Key]placed{}
	}
	f.holds[p.Key] = p
	if known && activeAt(before.Record, p.At) {
		return Renewed
	}
	return Held
}

func (f *Fold) release(r Record) Result {
	h, known := f.holds[r.Key]
	delete(f.holds, r.Key)
	if known && activeAt(h.Record, r.At) {
		return Released
	}
	return NotHeld
}

// note adds a record to the list.
func (f *Fold) note(p placed) {
	if len(f.list) == listMax {
		if f.list[0].Until.After(f.forgotten) {
			f.forgotten = f.list[0].Until
		}
		f.list = slices.Delete(f.list, 0, 1)
	}
	f.list = append(f.list, p)
}

// activeAt reports whether a hold has an effect at an instant. A record from the far future has none, so that no
// wrong clock holds a key for longer than DurationMax.
func activeAt(r Record, now time.Time) bool {
	return now.Before(r.Until) && r.Until.Sub(now) <= DurationMax
}

// Held returns the hold of a key at an instant, and whether there is one.
func (f *Fold) Held(key event.Key, now time.Time) (Record, bool) {
	h, known := f.holds[key]
	if !known || !activeAt(h.Record, now) {
		return Record{}, false
	}
	return h.Record, true
}

// Keys returns the keys that are held at an instant, in any order.
func (f *Fold) Keys(now time.Time) []event.Key {
	var keys []event.Key
	for key, h := range f.holds {
		if activeAt(h.Record, now) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Next returns when the next of the holds at an instant expires, and whether there is one.
func (f *Fold) Next(now time.Time) (next time.Time, ok bool) {
	for _, h := range f.holds {
		if activeAt(h.Record, now) && (!ok || h.Until.Before(next)) {
			next, ok = h.Until, true
		}
	}
	return next, ok
}

// List returns the holds that have an effect at an instant, and then the newest records without one, each newest first.
func (f *Fold) List(now time.Time) []Shown {
	shown := make([]Shown, 0, len(f.list))
	active := map[ID]bool{}
	holds := slices.SortedFunc(maps.Values(f.holds), func(a, b placed) int { return comparePositions(b.at, a.at) })
	for _, h := range holds {
		if activeAt(h.Record, now) {
			active[h.ID] = true
			shown = append(shown, h.shown(true))
		}
	}
	for _, p := range slices.Backward(f.list) {
		if !active[p.ID] {
			shown = append(shown, p.shown(false))
		}
	}
	return shown
}

func comparePositions(a, b event.Position) int {
	return cmp.Or(cmp.Compare(a.Ledger, b.Ledger), cmp.Compare(a.Entry, b.Entry))
}

// Old returns the position up to which no record is needed any more at an instant: each has been without an effect
// for longer than keep. ok is false if there is no such position.
func (f *Fold) Old(now time.Time, keep time.Duration) (upTo event.Position, ok bool) {
	before := now.Add(-keep)
	if !f.forgotten.Before(before) {
		return event.Position{}, false
	}
	for _, p := range f.list {
		if !p.Until.Before(before) {
			break
		}
		upTo, ok = p.at, true
	}
	return upTo, ok
}

// Last returns the position of the newest record that was read, and whether there is one.
func (f *Fold) Last() (event.Position, bool) { return f.last, f.read }
