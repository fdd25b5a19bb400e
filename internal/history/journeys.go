package history

import (
	"slices"
	"sync"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// Name is the number of a member's name in a history.
type Name uint16

// namesMax bounds the names of members that a history knows: all later ones are [NameNotKept].
const namesMax = 4096

// NameNotKept stands for the names of members beyond those that a history knows.
const NameNotKept = "(name not kept: more than 4096 members came)"

// Journey is one event from its receipt to its end at its consumer node.
type Journey struct {
	Handle   event.Handle
	Key      ring.KeyHash
	ID       event.MessageID
	Received clock.Instant
	Ended    clock.Instant // 0: it is open
	Owner    Name          // of its partition, when it was received
	Verdict  event.VerdictKind
	Dropped  event.Drop // it ended without a verdict; 0: with one
}

// Move is a change of the owner of a partition, as one member learned of it.
type Move struct {
	At        clock.Instant
	Token     int64
	Partition ring.Partition
	From, To  Name // the first one is 0 if there was no owner before
}

// Journeys keeps the journeys of the events that one member has received, and the moves of all
// partitions. It is safe for concurrent use.
type Journeys struct {
	mu     sync.Mutex
	newest newest[Journey]
	failed newest[Journey]
	open   map[event.Handle]begun // by the first handle of an entry
	moves  newest[Move]
	owners [ring.Partitions]Name
	names  []string // by Name; the first is that of nobody
	times  Durations
}

// begun is an entry with open journeys. They stand one behind the other.
type begun struct {
	first  uint64     // serial in newest of the first one
	events event.Bits // that have one
	open   event.Bits // those that are open

	received clock.Instant
}

// NewJourneys returns a history without journeys.
func (c Config) NewJourneys() *Journeys {
	bytes := c.BytesMax / parts * journeysPart
	return &Journeys{
		newest: newRing[Journey](bytes - bytes/failedPart), failed: newRing[Journey](bytes / failedPart),
		moves: newRing[Move](c.BytesMax / parts * movesPart), names: []string{""}, open: make(map[event.Handle]begun),
	}
}

// Received notes the fresh events of an entry that the member has received.
func (j *Journeys) Received(now clock.Instant, e *event.Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b := begun{events: e.Fresh, open: slices.Clone(e.Fresh), received: now, first: j.newest.end}
	for i := range e.Fresh.All() {
		p := e.Partition(i)
		*j.newest.next() = Journey{Handle: e.Handle(i), Key: ring.HashOf(string(e.Key(i))), ID: e.ID(i), Received: now, Owner: j.owners[p]}
	}
	if b.open.First() >= 0 {
		j.open[e.First] = b
	}
}

// Done notes that events are done. Those that are not remembered any more are ignored.
func (j *Journeys) Done(now clock.Instant, sets []event.Set) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, set := range sets {
		b, ok := j.open[set.First]
		if !ok {
			continue
		}
		// The journeys are written to and not read: most have left the caches.
		n := 0
		for index := range set.Events.All() {
			if !b.open.Has(index) {
				continue
			}
			n++
			if serial := b.first + uint64(b.events.Below(index)); serial >= j.newest.first() {
				at := j.newest.at(serial)
				at.Ended, at.Verdict = now, event.Done
			}
		}
		j.times.AddMany(now.Sub(b.received), n)
		j.close(set.First, b, set.Events)
	}
}

// Settled notes verdicts. Those that do not end a journey, and those of events that are not
// remembered any more, are ignored.
func (j *Journeys) Settled(now clock.Instant, verdicts []event.Verdict) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range verdicts {
		v := &verdicts[i]
		if !v.Kind.Final() {
			continue
		}
		at := j.take(v.Handle)
		if at == nil {
			continue
		}
		at.Ended, at.Verdict = now, v.Kind
		j.times.Add(now.Sub(at.Received))
		if v.Kind != event.Done {
			*j.failed.next() = *at
			at.Key = 0 // it is found among the failed ones
		}
	}
}

// Dropped notes that events ended without a verdict.
func (j *Journeys) Dropped(now clock.Instant, handles []event.Handle, why event.Drop) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, h := range handles {
		if at := j.take(h); at != nil {
			at.Ended, at.Dropped = now, why
		}
	}
}

// take returns the open journey of a handle that ends, nil if it is not remembered.
func (j *Journeys) take(h event.Handle) *Journey {
	b, ok := j.open[h.First()]
	if !ok || !b.open.Has(h.Index()) {
		return nil
	}
	b.open.Remove(h.Index())
	j.close(h.First(), b, nil)
	return j.at(b.first+uint64(b.events.Below(h.Index())), h)
}

// close ends journeys of an entry, which is forgotten when none is left.
func (j *Journeys) close(first event.Handle, b begun, events event.Bits) {
	if b.open.RemoveAll(events); b.open.First() < 0 {
		delete(j.open, first)
	}
}

// at returns the journey of a handle that had a serial, nil if it is over or not remembered.
func (j *Journeys) at(serial uint64, h event.Handle) *Journey {
	if serial < j.newest.first() || serial >= j.newest.end {
		return nil
	}
	if at := j.newest.at(serial); at.Handle == h && at.Ended == 0 {
		return at
	}
	return nil
}

// Owned notes the owners of all partitions, of which there are [ring.Partitions] at most, and the
// tokens of their tenures.
func (j *Journeys) Owned(now clock.Instant, partitions int, owner func(ring.Partition) (name string, token int64)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for p := range ring.Partition(min(partitions, len(j.owners))) {
		name, token := owner(p)
		to := j.name(name)
		if to == j.owners[p] {
			continue
		}
		*j.moves.next() = Move{At: now, Token: token, Partition: p, From: j.owners[p], To: to}
		j.owners[p] = to
	}
}

// name returns the number of a name.
func (j *Journeys) name(name string) Name {
	for i, known := range j.names {
		if known == name {
			return Name(i)
		}
	}
	switch {
	case len(j.names) == namesMax:
		name = NameNotKept
	case len(j.names) > namesMax:
		return namesMax
	}
	j.names = append(j.names, name)
	return Name(len(j.names) - 1)
}

// Times returns the time from receipt to verdict of all events so far whose receipt was
// remembered when their verdict came.
func (j *Journeys) Times() Durations {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.times
}

// Told holds the records of Journeys about one key.
type Told struct {
	Journeys []Journey
	Moves    []Move        // of its partition
	Names    []string      // by Name
	Oldest   clock.Instant // all later journeys are remembered; 0: none was forgotten
}

// Tell returns what is remembered about a key of a partition.
func (j *Journeys) Tell(key ring.KeyHash, p ring.Partition) Told {
	var t Told
	var newest, failed, moves cursor
	ofKey := func(one *Journey) {
		if one.Key == key {
			t.Journeys = append(t.Journeys, *one)
		}
	}
	for more := true; more; {
		j.mu.Lock()
		more = step(&j.failed, &failed, ofKey) || step(&j.newest, &newest, ofKey) ||
			step(&j.moves, &moves, func(m *Move) {
				if m.Partition == p {
					t.Moves = append(t.Moves, *m)
				}
			})
		t.Names = slices.Clip(j.names)
		if j.newest.forgets() {
			t.Oldest = j.newest.at(j.newest.first()).Received
		}
		j.mu.Unlock()
	}
	return t
}
