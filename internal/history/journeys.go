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

// namesMax bounds the names of members that a history knows: later ones have no name.
const namesMax = 4096

// Journey is one event from its receipt to its end at its consumer node.
type Journey struct {
	Handle   event.Handle
	Key      ring.KeyHash
	ID       event.MessageID
	Received clock.Instant
	Ended    clock.Instant // 0: it is open
	Owner    Name          // of its partition, when it was received
	Verdict  event.VerdictKind
	Spilled  bool // it ended as a copy in the retry topic, without a verdict
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
	slots  []uint32 // of handles → the low bits of their journey's serial in newest
	moves  newest[Move]
	owners [ring.Partitions]Name
	names  []string // by Name; the first is that of nobody
	times  Durations
}

// journeyBytes is the memory of a journey with its slot.
const journeyBytes = 68

// NewJourneys returns a history without journeys.
func (c Config) NewJourneys() *Journeys {
	bytes := c.BytesMax / parts * journeysPart / journeyBytes * 64
	return &Journeys{
		newest: newRing[Journey](bytes - bytes/failedPart), failed: newRing[Journey](bytes / failedPart),
		moves: newRing[Move](c.BytesMax / parts * movesPart), names: []string{""},
	}
}

// Received notes events that the member has received.
func (j *Journeys) Received(now clock.Instant, events []*event.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range events {
		at, serial := j.newest.next()
		*at = Journey{Handle: e.Handle, Key: ring.HashOf(string(e.Key)), ID: e.ID, Received: now, Owner: j.owners[e.Partition]}
		slot := int(e.Handle.Slot())
		if slot >= j.newest.countMax {
			continue // there are more open events than the ring holds
		}
		for slot >= len(j.slots) {
			j.slots = append(j.slots, 0)
		}
		j.slots[slot] = uint32(serial)
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
		at := j.find(v.Handle)
		if at == nil {
			continue
		}
		at.Ended, at.Verdict = now, v.Kind
		j.times.Add(now.Sub(at.Received))
		if v.Kind != event.Done {
			kept, _ := j.failed.next()
			*kept = *at
			at.Key = 0 // it is found among the failed ones
		}
	}
}

// Dropped notes that events ended as copies in the retry topic, without a verdict.
func (j *Journeys) Dropped(now clock.Instant, handles []event.Handle) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, h := range handles {
		if at := j.find(h); at != nil {
			at.Ended, at.Spilled = now, true
		}
	}
}

// find returns the open journey of a handle, nil if it is not remembered.
func (j *Journeys) find(h event.Handle) *Journey {
	slot := int(h.Slot())
	if h.IsRelayed() || slot >= len(j.slots) || j.newest.end == 0 {
		return nil
	}
	last := j.newest.end - 1
	serial := last - uint64(uint32(last)-j.slots[slot])
	if serial > last || serial < j.newest.first() {
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
		at, _ := j.moves.next()
		*at = Move{At: now, Token: token, Partition: p, From: j.owners[p], To: to}
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
	if len(j.names) >= namesMax {
		return 0
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

// Told is what Journeys know about one key.
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
