package ownership

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// A covered reservation is promised for longer than the lease of its owner, so it stands in the log (rule 9, ADR 0052). The
// replicated state has one entry for each key. A take replaces it and a drop removes it, and like an Epoch each is a
// compare-and-set: it counts if there is no entry, or its sender had applied the record that made the entry. Who owns the
// partition does not matter: a take of a deposed owner may count, and then it costs a wait.

// Reserved is the entry of a key that a covered reservation may hold.
type Reserved struct {
	KeyAt
	IDs []ReservationID // one, or idsMax: it is not known which of several holds the key, so none of them may resume
	TTL time.Duration   // the longest promise
	At  Position        // of the record that made it
}

func compareKeys(a, b KeyAt) int {
	return cmp.Or(cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Key, b.Key))
}

func findReserved(list []Reserved, k KeyAt) (i int, found bool) {
	return slices.BinarySearchFunc(list, k, func(r Reserved, k KeyAt) int { return compareKeys(r.KeyAt, k) })
}

// reservedOf returns the entry of a key.
func (s *State) reservedOf(k KeyAt) (Reserved, bool) {
	i, found := findReserved(s.Reserved, k)
	if !found {
		return Reserved{}, false
	}
	return s.Reserved[i], true
}

// reservedOn returns the entries of a partition, ascending by key.
func (s *State) reservedOn(p ring.Partition) []Reserved {
	i, _ := findReserved(s.Reserved, KeyAt{Partition: p})
	j := i
	for j < len(s.Reserved) && s.Reserved[j].Partition == p {
		j++
	}
	return s.Reserved[i:j]
}

// applyReservations applies takes and drops. Clones of the state keep the list that they have.
func (s *State) applyReservations(at Position, b *Reservations) error {
	if err := b.valid(len(s.Table)); err != nil {
		return err
	}
	list := slices.Clone(s.Reserved)
	for _, k := range b.Drop {
		if i, found := findReserved(list, k); found && b.knows(list[i].At) {
			list = slices.Delete(list, i, i+1)
		}
	}
	for _, t := range b.Take {
		made := Reserved{KeyAt: t.KeyAt, IDs: []ReservationID{t.ID}, TTL: t.TTL, At: at}
		i, found := findReserved(list, t.KeyAt)
		if found && slices.Contains(list[i].IDs, t.ID) {
			made.TTL = max(made.TTL, list[i].TTL) // what its holder was promised before may last for longer
		}
		switch {
		case found && b.knows(list[i].At):
			list[i] = made
		case !found && len(list) < ReservedMax:
			list = slices.Insert(list, i, made)
		}
	}
	s.Reserved = list
	if len(b.Take) > 0 {
		s.LastTake = at
	}
	return nil
}

// knows is the compare of the compare-and-set: the sender had applied the record that made the entry.
func (b *Reservations) knows(entry Position) bool { return !b.Applied.Before(entry) }

// valid is the structural validity of takes and drops.
func (b *Reservations) valid(partitions int) error {
	if len(b.Take)+len(b.Drop) > changesMax {
		return fmt.Errorf("%d takes and drops", len(b.Take)+len(b.Drop))
	}
	for _, k := range b.Drop {
		if int(k.Partition) >= partitions {
			return fmt.Errorf("drop on partition %d of %d", k.Partition, partitions)
		}
	}
	for _, t := range b.Take {
		if err := validReserved(t.KeyAt, []ReservationID{t.ID}, t.TTL, partitions); err != nil {
			return err
		}
	}
	return nil
}

// validTTL reports whether the log has reservations with this ttl.
func validTTL(ttl time.Duration) bool { return event.IsTTL(ttl) && ttl%time.Millisecond == 0 }

func validReserved(k KeyAt, ids []ReservationID, ttl time.Duration, partitions int) error {
	switch {
	case int(k.Partition) >= partitions:
		return fmt.Errorf("reservation on partition %d of %d", k.Partition, partitions)
	case len(ids) == 0 || len(ids) > idsMax || slices.Contains(ids, ReservationID{}):
		return errors.New("reservation without an id, or with too many")
	case !validTTL(ttl):
		return fmt.Errorf("reservation for %v", ttl)
	}
	return nil
}

// validList is the structural validity of the entries of a Genesis or of a Snap.
func validList(list []Reserved, partitions int) error {
	if len(list) > listedMax {
		return fmt.Errorf("%d reservations", len(list))
	}
	for i, r := range list {
		if err := validReserved(r.KeyAt, r.IDs, r.TTL, partitions); err != nil {
			return err
		}
		if i > 0 && compareKeys(list[i-1].KeyAt, r.KeyAt) >= 0 {
			return errors.New("reservations out of order")
		}
	}
	return nil
}

// beginReserved takes the list of the Genesis that begins the state.
func (s *State) beginReserved(at Position, version uint32, g *Genesis) {
	if version < logVersionReserved || len(g.Reserved) == 0 {
		return
	}
	s.Reserved = slices.Clone(g.Reserved)
	for i := range s.Reserved {
		s.Reserved[i].At = at
	}
	// All that apply this Genesis judge later ones alike, whether or not they have read the takes on its list. Without a list
	// there is nothing that a later one could lose.
	s.LastTake = g.Base
}

// voidBy reports whether a take makes a Genesis void: its author had not read it. A router that writes an older version does not know this
// rule, and would act on a Genesis that others ignore.
func (g *Genesis) voidBy(version uint32, take Position) bool {
	return version >= logVersionReserved && g.Base.Before(take)
}

// Stretch reads the covered reservations from a stretch of the log for the author of a Genesis, which has no state:
// it reads the records from the anchor on. It follows the compare-and-set of each key, as members with a state do,
// until it cannot be certain of the result; from then on it keeps all ids of the key. It is not certain if the sender
// of a record had applied nothing of the stretch, since the entry that the record met is then unknown. Nor is it if a
// record does not count here: it may have counted in the state, where the entry before it may have found no room.
type Stretch struct {
	Group      string
	Partitions int // of the group

	first   Position // of the stretch
	entries map[KeyAt]*stretchEntry
	crowded bool
}

type stretchEntry struct {
	ids     []ReservationID // of all takes since the entry is known, the newest last; idsMax of them
	ttl     time.Duration   // the longest of these
	at      Position        // of the newest take that counts; zero: a drop was the newest
	unknown bool            // it is not certain which records counted
}

// Read takes the next record of the stretch.
func (s *Stretch) Read(at Position, rec Record) {
	if s.first.IsZero() {
		s.first, s.entries = at, map[KeyAt]*stretchEntry{}
	}
	if s.crowded {
		return
	}
	if rec.LogVersion > LogVersionMax && rec.Group == s.Group { // before a downgrade: it may hold any reservations
		s.crowded = true
		return
	}
	switch b := rec.Body.(type) {
	case *Reservations:
		if b.valid(s.Partitions) != nil {
			return
		}
		for _, k := range b.Drop {
			s.drop(b, k)
		}
		for _, t := range b.Take {
			s.take(at, b, t)
		}
	case *Genesis:
		if rec.LogVersion < logVersionReserved || validList(b.Reserved, s.Partitions) != nil {
			return
		}
		for _, r := range b.Reserved { // perhaps void
			e := s.entry(r.KeyAt)
			e.unknown = true
			for _, id := range r.IDs {
				e.add(id, r.TTL)
			}
		}
	case *Epoch, *Beat, *Hello, *Snap:
	}
}

func (s *Stretch) entry(k KeyAt) *stretchEntry {
	e := s.entries[k]
	if e == nil {
		e = &stretchEntry{}
		s.entries[k] = e
		s.crowded = s.crowded || len(s.entries) > listedMax
	}
	return e
}

func (e *stretchEntry) add(id ReservationID, ttl time.Duration) {
	e.ttl = max(e.ttl, ttl)
	if len(e.ids) < idsMax && !slices.Contains(e.ids, id) {
		e.ids = append(e.ids, id)
	}
}

// counts reports whether a record counts for sure, given what is known of the key's entry.
func (s *Stretch) counts(b *Reservations, e *stretchEntry) bool {
	return !e.unknown && !b.Applied.Before(s.first) && !b.Applied.Before(e.at)
}

func (s *Stretch) take(at Position, b *Reservations, t Take) {
	e := s.entry(t.KeyAt)
	if s.counts(b, e) {
		if !slices.Contains(e.ids, t.ID) {
			e.ttl = 0
		}
		e.ids = nil
	} else {
		e.unknown = true
	}
	e.add(t.ID, t.TTL)
	e.at = at
}

func (s *Stretch) drop(b *Reservations, k KeyAt) {
	e := s.entries[k]
	switch {
	case e == nil: // of a reservation from before the stretch
	case s.counts(b, e):
		delete(s.entries, k)
	default:
		e.unknown = true
	}
}

// List returns the reservations that may be covered at the end of the stretch, as a Genesis lists them. It is not ok if there
// are too many keys to tell.
func (s *Stretch) List() (list []Reserved, ok bool) {
	if s.crowded {
		return nil, false
	}
	for k, e := range s.entries {
		list = append(list, Reserved{KeyAt: k, IDs: e.ids, TTL: e.ttl})
	}
	slices.SortFunc(list, func(a, b Reserved) int { return compareKeys(a.KeyAt, b.KeyAt) })
	return list, true
}

// mergeReserved adds the entries of more to those of list: of a key that is in both, all ids.
func mergeReserved(list, more []Reserved) []Reserved {
	for _, r := range more {
		i, found := findReserved(list, r.KeyAt)
		if !found {
			list = slices.Insert(list, i, Reserved{KeyAt: r.KeyAt, IDs: r.IDs, TTL: r.TTL})
			continue
		}
		e := stretchEntry{ids: slices.Clone(list[i].IDs), ttl: list[i].TTL}
		for _, id := range r.IDs {
			e.add(id, r.TTL)
		}
		list[i].IDs, list[i].TTL = e.ids, e.ttl
	}
	return list
}
