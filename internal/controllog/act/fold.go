package act

import (
	"bytes"
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
	Released  Result = "released"  // the key is no longer held
	NotHeld   Result = "not_held"  // the key was not held: nothing is released
	Full      Result = "full"      // HeldLimit keys are held, SkipsLimit events skipped, or ParksLimit keys parked: no effect
	Skipping  Result = "skipping"  // the event is skipped from now on
	Parking   Result = "parking"   // the key is parked from now on, or its park is this one now
	Unparking Result = "unparking" // the key's letters come back from now on
	Already   Result = "already"   // the event was skipped, or the key's letters came back, already, or the act stands in the topic twice: no effect
	Ended     Result = "ended"     // it tells the end of a skip or of an unpark
	NoSkip    Result = "no_skip"   // it tells the end of a skip or unpark that is not known, or has an end: no effect
	Marked    Result = "marked"    // a mark: no effect
	Malformed Result = "malformed" // it cannot be read, or is out of bounds: no effect
	Later     Result = "version"   // it is of a later version: no effect
	Repeated  Result = "repeated"  // its position was read before: no effect again
)

// Bounds of a Fold.
const (
	// HeldLimit is the most keys that are held at a time, by the format. Settings allow fewer.
	HeldLimit = 1024
	// SkipsLimit is the most skips in effect at a time, by the format. Settings allow fewer.
	SkipsLimit = 1024
	// ParksLimit is the most keys that are parked, or whose letters come back, at a time, by the format. Settings allow fewer.
	ParksLimit = 1024
	// listMax is the number of newest records that a Fold lists.
	listMax = 1000
	// forgottenMax is the number of acts from the far future that a Fold may forget, so that they do not keep all later
	// records in the topic.
	forgottenMax = 64
)

// Fold is the state that results from the records of an acts topic. The zero value is that of an empty log.
// A hold, skip, park or unpark that has expired stays in it, without an effect, until there is no room for another.
type Fold struct {
	holds map[event.Key]placed
	skips map[skipped]placed
	parks map[event.Key]placed // the newest Park or Unpark of each key, until it has ended
	list  []placed             // the newest records but marks and ends, in their order
	last  event.Position
	read  bool // last is a position
	count uint64

	repeats bool // an act stands in the topic twice, or did

	forgotten []time.Time // the latest ends of acts that the list has forgotten, ascending; at most forgottenMax
}

// placed is a record at its position.
type placed struct {
	Record

	at     event.Position
	number uint64         // in the order in which acts were first read
	ending Record         // that has told the end of a skip or unpark; its zero value: none
	endAt  event.Position // of the newest record of that end
}

// hasEnded reports whether the end of a skip or unpark is known.
func (p placed) hasEnded() bool { return p.ending.End != 0 }

// skipped names an event that is skipped.
type skipped struct {
	key   event.Key
	event event.MessageID
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
	case r.Kind.tells():
		return r, f.ended(r, at)
	}
	f.count++
	p := placed{Record: r, at: at, number: f.count}
	if f.again(p) {
		f.redo(p)
		return r, Already
	}
	f.note(p)
	switch r.Kind {
	case Release:
		return r, f.release(r)
	case Skip:
		return r, f.skip(p)
	case Park, Unpark:
		return r, f.park(p)
	case Hold, Mark, Skipped, Unparked:
	}
	return r, f.hold(p)
}

func (f *Fold) skip(p placed) Result {
	name := skipped{p.Key, p.Event}
	before, known := f.skips[name]
	if known && activeAt(before.Record, p.At) {
		return Already
	}
	if !place(&f.skips, SkipsLimit, name, p) {
		return Full
	}
	return Skipping
}

// place puts a record into a map of at most limit records. If the map is full, all records from the far future are
// removed, or else the one that expired first. So a record from a clock that is ahead displaces at most one other. It
// reports whether there was room.
func place[K comparable](into *map[K]placed, limit int, name K, p placed) bool {
	if _, known := (*into)[name]; !known && len(*into) >= limit {
		maps.DeleteFunc(*into, func(_ K, old placed) bool { return isFar(old.Record, p.At) })
		if len(*into) >= limit && !removeExpired(*into, p.At) {
			return false
		}
	}
	if *into == nil {
		*into = map[K]placed{}
	}
	(*into)[name] = p
	return true
}

// removeExpired removes the record that has expired first, the same one at all members, and reports whether there was one.
func removeExpired[K comparable](from map[K]placed, now time.Time) (found bool) {
	var name K
	var first placed
	for k, p := range from {
		if !now.Before(p.Until) && (!found || cmp.Or(p.Until.Compare(first.Until), bytes.Compare(p.ID[:], first.ID[:])) < 0) {
			name, first, found = k, p, true
		}
	}
	if found {
		delete(from, name)
	}
	return found
}

// park takes a Park or an Unpark. An Unpark of a key that is not parked counts, too: letters of an expired park may be left.
func (f *Fold) park(p placed) Result {
	before, known := f.parks[p.Key]
	if known && p.Kind == Unpark && before.Kind == Unpark && activeAt(before.Record, p.At) {
		return Already
	}
	if !place(&f.parks, ParksLimit, p.Key, p) {
		return Full
	}
	if p.Kind == Unpark {
		return Unparking
	}
	return Parking
}

// ended notes the end of a skip or of an unpark, if none is known.
func (f *Fold) ended(r Record, at event.Position) Result {
	of := Skip
	if r.Kind == Unparked {
		of = Unpark
	}
	result := NoSkip
	note := func(p *placed) bool {
		if p.Kind != of || p.ID != r.Of || p.Key != r.Key {
			return false
		}
		p.endAt = at
		if p.hasEnded() {
			return false
		}
		p.ending, result = r, Ended
		return true
	}
	if p, known := f.parks[r.Key]; known && note(&p) {
		delete(f.parks, r.Key)
	}
	for i := range f.list {
		note(&f.list[i])
	}
	for name, s := range f.skips {
		if name.key == r.Key && note(&s) {
			f.skips[name] = s
		}
	}
	return result
}

func (f *Fold) hold(p placed) Result {
	before, known := f.holds[p.Key]
	if !place(&f.holds, HeldLimit, p.Key, p) {
		return Full
	}
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
		i, _ := slices.BinarySearchFunc(f.forgotten, f.list[0].Until, time.Time.Compare)
		f.forgotten = slices.Insert(f.forgotten, i, f.list[0].Until)
		if len(f.forgotten) > forgottenMax {
			f.forgotten = slices.Delete(f.forgotten, 0, 1)
		}
		f.list = slices.Delete(f.list, 0, 1)
	}
	f.list = append(f.list, p)
}

// activeAt reports whether an act has an effect at an instant. A record from the far future has none, so that a
// wrong clock cannot extend an act beyond DurationMax.
func activeAt(r Record, now time.Time) bool {
	return now.Before(r.Until) && !isFar(r, now)
}

// isFar reports whether a record is from the far future, to a clock.
func isFar(r Record, now time.Time) bool { return r.Until.Sub(now) > DurationMax }

// Held returns the hold of a key at an instant, and whether there is one.
func (f *Fold) Held(key event.Key, now time.Time) (Record, bool) {
	h, known := f.holds[key]
	if !known || !activeAt(h.Record, now) {
		return Record{}, false
	}
	return h.Record, true
}

// Skips returns the skips that have an effect at an instant, in any order.
func (f *Fold) Skips(now time.Time) []event.Skip {
	var skips []event.Skip
	for _, s := range f.skips {
		if activeAt(s.Record, now) {
			skips = append(skips, s.skip())
		}
	}
	return skips
}

// SkipsOf returns the skips of a key that have an effect at an instant, the newest first.
func (f *Fold) SkipsOf(key event.Key, now time.Time) []Shown {
	var of []placed
	for name, s := range f.skips {
		if name.key == key && activeAt(s.Record, now) {
			of = append(of, s)
		}
	}
	slices.SortFunc(of, newestFirst)
	shown := make([]Shown, len(of))
	for i, s := range of {
		shown[i] = s.shown(true)
	}
	return shown
}

// Parks returns the parks and unparks that have an effect at an instant, in any order.
func (f *Fold) Parks(now time.Time) []event.Park {
	var parks []event.Park
	for key, p := range f.parks {
		if activeAt(p.Record, now) {
			parks = append(parks, event.Park{Key: key, Act: p.ID, State: p.state()})
		}
	}
	return parks
}

// ParkOf returns the park or unpark of a key that has an effect at an instant, and whether there is one.
func (f *Fold) ParkOf(key event.Key, now time.Time) (Record, bool) {
	p, known := f.parks[key]
	return p.Record, known && activeAt(p.Record, now)
}

// LapsedParks returns how many keys have a newest park or unpark that has expired before its owner told its end: letters of theirs
// may be left in the parking topic.
func (f *Fold) LapsedParks(now time.Time) (n int) {
	for _, p := range f.parks {
		if !activeAt(p.Record, now) {
			n++
		}
	}
	return n
}

// state returns what a Park or an Unpark makes of its key.
func (r Record) state() event.ParkState {
	if r.Kind == Unpark {
		return event.ParkEnds
	}
	return event.ParkOn
}

// skipping returns the skip of an event that has an effect at an instant, and whether there is one.
func (f *Fold) skipping(key event.Key, id event.MessageID, now time.Time) (placed, bool) {
	s, known := f.skips[skipped{key, id}]
	return s, known && activeAt(s.Record, now)
}

// lacksEnd reports whether a skip or unpark of a key is listed or in effect, and its end is not known.
func (f *Fold) lacksEnd(key event.Key, act ID) bool {
	lacks := func(p placed) bool {
		return p.ID == act && (p.Kind == Skip || p.Kind == Unpark) && p.Key == key && !p.hasEnded()
	}
	if p, known := f.parks[key]; known && lacks(p) {
		return true
	}
	if slices.ContainsFunc(f.list, lacks) {
		return true
	}
	for _, s := range f.skips {
		if lacks(s) {
			return true
		}
	}
	return false
}

// shown is Record.shown, with the end.
func (p placed) shown(active bool) Shown {
	s := p.Record.shown(active)
	s.End, s.EndedBy = p.ending.End.String(), p.ending.By
	if p.Kind == Unpark {
		s.EndWords = p.ending.Reason
	}
	return s
}

func newestFirst(a, b placed) int { return cmp.Or(b.at.Compare(a.at), b.At.Compare(a.At)) }

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

// Next returns the time at which the next of the holds, skips, parks and unparks at an instant expires, and whether there
// is one.
func (f *Fold) Next(now time.Time) (next time.Time, ok bool) {
	look := func(r Record) {
		if activeAt(r, now) && (!ok || r.Until.Before(next)) {
			next, ok = r.Until, true
		}
	}
	for _, h := range f.holds {
		look(h.Record)
	}
	for _, s := range f.skips {
		look(s.Record)
	}
	for _, p := range f.parks {
		look(p.Record)
	}
	return next, ok
}

// List returns the acts that have an effect at an instant, and then the newest records without one, each newest first.
func (f *Fold) List(now time.Time) []Shown {
	shown := make([]Shown, 0, len(f.list))
	active := map[ID]bool{}
	effective := slices.SortedFunc(maps.Values(f.holds), newestFirst)
	effective = append(effective, slices.SortedFunc(maps.Values(f.skips), newestFirst)...)
	effective = append(effective, slices.SortedFunc(maps.Values(f.parks), newestFirst)...)
	slices.SortFunc(effective, newestFirst)
	for _, h := range effective {
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

// Old returns the position up to which no record is needed at an instant: each has been without an effect
// for longer than keep, and the newest record stays. ok is false if there is no such position.
func (f *Fold) Old(now time.Time, keep time.Duration) (upTo event.Position, ok bool) {
	before := now.Add(-keep)
	// An act from a wrong clock has no effect and keeps no records: its time is further away than acts last. A later record
	// that is over by the clock here shows whose clock is wrong: if all records are from the far future, the clock here is.
	isFar := func(until time.Time) bool { return until.Sub(now) > 2*DurationMax }
	needed := func(until time.Time) bool { return !until.Before(before) && !isFar(until) }
	if len(f.forgotten) == forgottenMax && !f.forgotten[0].Before(before) || slices.ContainsFunc(f.forgotten, needed) {
		return event.Position{}, false // with so many, a further record may be needed, too
	}
	for _, p := range f.list {
		if needed(p.Until) {
			break
		}
		if !isFar(p.Until) && p.at != f.last { // keep the newest record: without it the topic would look newly created
			upTo, ok = p.at, true
		}
	}
	return upTo, ok && !upTo.IsZero() // the records of acts from before a Restart are gone
}

// Last returns the position of the newest record that was read, and whether there is one.
func (f *Fold) Last() (event.Position, bool) { return f.last, f.read }
