package ownership

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/ring"
)

func idOf(b byte) ReservationID { return ReservationID{b} }

var someKey = KeyAt{Partition: 3, Key: 77}

func hashOf(i int64) ring.KeyHash { return ring.KeyHash(i) }

func take(applied int64, id byte) *Reservations {
	return &Reservations{Applied: at(applied), Take: []Take{{KeyAt: someKey, ID: idOf(id), TTL: 30 * time.Second}}}
}

func drop(applied int64) *Reservations {
	return &Reservations{Applied: at(applied), Drop: []KeyAt{someKey}}
}

// reservationAt is a record and its position.
type reservationAt struct {
	at int64
	b  *Reservations
}

// A take or a drop counts if its key has no entry, or its sender had applied the record that made the entry.
func TestTakesAndDropsAreCompareAndSet(t *testing.T) {
	for name, test := range map[string]struct {
		records []reservationAt
		want    byte // whose entry is left, 0: nobody's
		made    int64
	}{
		"the first take":                                {[]reservationAt{{10, take(1, 1)}}, 1, 10},
		"again, with knowledge of it":                   {[]reservationAt{{10, take(1, 1)}, {12, take(10, 1)}}, 1, 12},
		"of another that knows it":                      {[]reservationAt{{10, take(1, 1)}, {12, take(11, 2)}}, 2, 12},
		"of one before that lands late":                 {[]reservationAt{{10, take(5, 2)}, {12, take(4, 1)}}, 2, 10},
		"dropped":                                       {[]reservationAt{{10, take(1, 1)}, {12, drop(10)}}, 0, 0},
		"dropped twice":                                 {[]reservationAt{{10, take(1, 1)}, {12, drop(10)}, {13, drop(10)}}, 0, 0},
		"a drop of an earlier entry":                    {[]reservationAt{{10, take(1, 1)}, {12, take(10, 1)}, {14, drop(11)}}, 1, 12},
		"a late take after the drop counts, and nobody": {[]reservationAt{{10, take(1, 1)}, {12, drop(10)}, {14, take(2, 2)}}, 2, 14},
	} {
		t.Run(name, func(t *testing.T) {
			s := &State{Table: make([]uint16, 8)}
			for _, r := range test.records {
				if err := s.applyReservations(at(r.at), r.b); err != nil {
					t.Fatal(err)
				}
			}
			e, found := s.reservedOf(someKey)
			if found != (test.want != 0) || found && (e.IDs[0] != idOf(test.want) || e.At != at(test.made)) {
				t.Errorf("entry %+v, want of %d made at %d", e, test.want, test.made)
			}
			last := Position{}
			for _, r := range test.records {
				if len(r.b.Take) > 0 {
					last = at(r.at)
				}
			}
			if s.LastTake != last {
				t.Errorf("the newest take is at %v, want %v", s.LastTake, last)
			}
		})
	}
}

// A reservation whose holder asks for a shorter ttl was promised more before: later owners wait for that.
func TestShorterTTLShortensNoPromise(t *testing.T) {
	s, stretch := &State{Table: make([]uint16, 8)}, Stretch{Partitions: 8}
	long, short, other := take(1, 1), take(2, 1), take(3, 2)
	short.Take[0].TTL, other.Take[0].TTL = TTLLeast, TTLLeast
	for i, want := range []time.Duration{30 * time.Second, 30 * time.Second, TTLLeast} {
		b := []*Reservations{long, short, other}[i]
		b.Applied = at(int64(10 + i))
		if err := s.applyReservations(at(int64(11+i)), b); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			stretch.Read(at(10), Record{})
		}
		stretch.Read(at(int64(11+i)), Record{LogVersion: LogVersionMax, Body: b})
		list, _ := stretch.List()
		if s.Reserved[0].TTL != want || list[0].TTL != want || len(list[0].IDs) != 1 {
			t.Errorf("after take %d the entry is %+v, listed as %+v, want %v", i, s.Reserved[0], list[0], want)
		}
	}
}

// A take for one key more than the group may have has no effect, and one for a key that has an entry has.
func TestReservationsAreBounded(t *testing.T) {
	s := &State{Table: make([]uint16, 8)}
	for i := range int64(ReservedMax + 1) {
		b := take(i, 1)
		b.Take[0].KeyAt = KeyAt{Partition: 2, Key: hashOf(i)}
		if err := s.applyReservations(at(i+1), b); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.Reserved) != ReservedMax || validList(s.Reserved, 8) != nil {
		t.Fatalf("%d entries, want %d", len(s.Reserved), ReservedMax)
	}
	again := take(ReservedMax+5, 9)
	again.Take[0].KeyAt = s.Reserved[7].KeyAt
	if err := s.applyReservations(at(ReservedMax+9), again); err != nil || s.Reserved[7].IDs[0] != idOf(9) {
		t.Errorf("a key that has an entry got no other: %v", err)
	}
}

func TestInvalidReservationsHaveNoEffect(t *testing.T) {
	for name, change := range map[string]func(*Reservations){
		"partition":      func(b *Reservations) { b.Take[0].Partition = 8 },
		"drop partition": func(b *Reservations) { b.Drop = []KeyAt{{Partition: 8}} },
		"ttl too short":  func(b *Reservations) { b.Take[0].TTL = TTLLeast - time.Millisecond },
		"ttl too long":   func(b *Reservations) { b.Take[0].TTL = TTLMost + time.Millisecond },
		"no id":          func(b *Reservations) { b.Take[0].ID = ReservationID{} },
		"too many":       func(b *Reservations) { b.Drop = make([]KeyAt, changesMax) },
	} {
		t.Run(name, func(t *testing.T) {
			s := &State{Table: make([]uint16, 8)}
			b := take(1, 1)
			change(b)
			if err := s.applyReservations(at(2), b); err == nil || len(s.Reserved) > 0 || !s.LastTake.IsZero() {
				t.Errorf("error %v, entries %v, newest take %v", err, s.Reserved, s.LastTake)
			}
		})
	}
}

// Whatever lies in a log, an author that reads it from an anchor on lists every entry that a take behind the anchor made. Where it names one id
// alone, that is the entry's.
func TestStretchKnowsWhatTheStateKnows(t *testing.T) {
	alone, several := 0, 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		s := &State{Table: make([]uint16, 8)}
		anchor := 1 + rng.Int64N(20)
		stretch := Stretch{Partitions: 8}
		keys := []KeyAt{{1, 1}, {1, 2}, {5, 1}}
		for i := range int64(60) {
			b := &Reservations{Applied: at(max(0, i-1))}
			if late := int(seed % 4); rng.IntN(20) < late {
				b.Applied = at(rng.Int64N(i + 1)) // it lands late
			}
			k := keys[rng.IntN(len(keys))]
			if rng.IntN(3) == 0 {
				b.Drop = []KeyAt{k}
			} else {
				b.Take = []Take{{KeyAt: k, ID: idOf(byte(1 + rng.IntN(5))), TTL: TTLLeast + time.Duration(rng.IntN(3))*time.Second}}
			}
			if b.Applied.Entry >= i {
				b.Applied = at(max(0, i-1))
			}
			if err := s.applyReservations(at(i), b); err != nil {
				t.Fatal(err)
			}
			if i > anchor {
				stretch.Read(at(i), Record{LogVersion: LogVersionMax, Body: b})
			}
		}
		list, ok := stretch.List()
		if !ok || validList(list, 8) != nil {
			t.Fatalf("seed %d: list %v: %v", seed, list, validList(list, 8))
		}
		for _, e := range s.Reserved {
			if e.At.Entry <= anchor {
				continue
			}
			i, found := findReserved(list, e.KeyAt)
			switch {
			case !found:
				t.Fatalf("seed %d: the entry %+v is not listed", seed, e)
			case list[i].TTL < e.TTL:
				t.Fatalf("seed %d: listed for %v, want %v", seed, list[i].TTL, e.TTL)
			case len(list[i].IDs) > 1:
				several++
			case list[i].IDs[0] != e.IDs[0]:
				t.Fatalf("seed %d: %v is listed for the entry %+v", seed, list[i], e)
			default:
				alone++
			}
		}
	}
	if alone < 1000 || several < 1000 {
		t.Errorf("%d entries were listed with one id, %d with several", alone, several)
	}
}

// A Genesis in a stretch may be void or count: a record whose author had not read it decides nothing about its reservations.
func TestStretchDoubtsAGenesis(t *testing.T) {
	listed := Reserved{KeyAt: someKey, IDs: []ReservationID{idOf(4)}, TTL: TTLMost}
	for name, late := range map[string]*Reservations{"a drop": drop(15), "a take": take(15, 5)} {
		t.Run(name, func(t *testing.T) {
			stretch := Stretch{Partitions: 8}
			stretch.Read(at(10), Record{LogVersion: LogVersionMax, Body: &Beat{}})
			stretch.Read(at(20), Record{LogVersion: LogVersionMax, Body: &Genesis{Partitions: 8, Base: at(18), Reserved: []Reserved{listed}}})
			stretch.Read(at(25), Record{LogVersion: LogVersionMax, Body: late})
			list, ok := stretch.List()
			if !ok || len(list) != 1 || !slices.Contains(list[0].IDs, idOf(4)) || list[0].TTL != TTLMost {
				t.Errorf("listed %+v, want the reservation of the Genesis among them", list)
			}
		})
	}
}

// A stretch with more keys than a Genesis can list says so: none may be left out.
func TestStretchIsBounded(t *testing.T) {
	stretch := Stretch{Partitions: 8}
	read := func(i int64) (keys int, ok bool) {
		b := take(i, 1)
		b.Take[0].KeyAt = KeyAt{Partition: 2, Key: hashOf(i)}
		stretch.Read(at(i+1), Record{LogVersion: LogVersionMax, Body: b})
		if i < listedMax-1 { // to list them takes long
			return 0, true
		}
		list, ok := stretch.List()
		return len(list), ok
	}
	for i := range int64(listedMax) {
		if keys, ok := read(i); !ok || keys != 0 && keys != listedMax {
			t.Fatalf("%d keys are listed of %d: %t", keys, i+1, ok)
		}
	}
	if keys, ok := read(listedMax); ok {
		t.Errorf("%d keys are listed, and none said to be missing", keys)
	}
}

// Turns, waits and promises of a key end by what is about them alone.
func TestCoverBelongsToItsTurn(t *testing.T) {
	m := quietWorld(t, 3, DefaultTiming(), 1).procs[0].m
	c := &m.covers
	cover := Cover{Take: Take{KeyAt: someKey, ID: idOf(1), TTL: TTLLeast}, Turn: 1}
	m.gates.open.remove(someKey.Partition)
	m.out = nil
	if m.cover(cover); len(m.out) != 1 || m.out[0].(Covered).Refused != RefusedMoving {
		t.Errorf("with a closed gate: %+v", m.out)
	}
	m.gates.open.add(someKey.Partition)
	m.cover(cover)
	m.uncover(Drop{KeyAt: someKey, ID: idOf(1), Turn: 9, Released: true})
	if c.turns[someKey] == nil {
		t.Fatal("the end of another turn ended this one")
	}

	entry := Reserved{KeyAt: someKey, IDs: []ReservationID{idOf(1), idOf(2)}, TTL: TTLLeast, At: m.tail.last}
	m.state.Reserved, c.until[someKey] = []Reserved{entry}, clock.Forever
	if keys := m.reservedKeys(someKey.Partition); len(keys) != 1 || keys[0].ID != (ReservationID{}) {
		t.Errorf("with two ids, %+v: want that nobody may resume", keys)
	}
	waits := func(what string, released, want bool) {
		t.Helper()
		m.uncover(Drop{KeyAt: someKey, ID: idOf(1), Turn: 9, Released: released})
		if _, waits := c.until[someKey]; waits != want {
			t.Errorf("%s: the key waits: %t, want %t", what, waits, want)
		}
	}
	waits("released by one of two", true, true)
	m.state.Reserved[0].IDs = entry.IDs[:1]
	waits("not released", false, true)
	waits("released", true, false)

	m.state.Reserved[0].At, c.turns[someKey].at = m.tail.last, m.tail.last
	next := Position{Ledger: m.tail.last.Ledger, Entry: m.tail.last.Entry + 1}
	m.out = nil
	m.applyReservations(read{at: next, rec: Record{Inc: Incarnation{0xF}}}, &Reservations{Applied: m.tail.last, Take: []Take{{KeyAt: someKey, ID: idOf(2), TTL: TTLLeast}}})
	if len(m.out) != 1 || m.out[0] != (Covered{KeyAt: someKey, Turn: 1}) || !c.turns[someKey].at.IsZero() {
		t.Errorf("after another's take: %+v, want that no more is promised", m.out)
	}

	m.out, c.sent = nil, []sentChanges{{seq: 7, turns: map[KeyAt]uint64{someKey: 5}}}
	m.applyReservations(read{at: Position{Ledger: next.Ledger, Entry: next.Entry + 1}, rec: Record{Inc: m.cfg.Inc}}, &Reservations{Seq: 7, Applied: next, Take: []Take{cover.Take}})
	if len(m.out) > 0 || !c.turns[someKey].at.IsZero() {
		t.Errorf("a take of an earlier turn covers this one: %+v", m.out)
	}

	sent := m.now.Add(-time.Second)
	own := func(entry int64, applied Position) Position {
		m.out, c.sent = nil, []sentChanges{{seq: 8, at: sent, turns: map[KeyAt]uint64{someKey: 1}}}
		at := Position{Ledger: next.Ledger, Entry: entry}
		m.applyReservations(read{at: at, when: m.now, rec: Record{Inc: m.cfg.Inc}}, &Reservations{Seq: 8, Applied: applied, Take: []Take{cover.Take}})
		return at
	}
	if own(next.Entry+2, Position{}); len(m.out) > 0 || !c.turns[someKey].at.IsZero() {
		t.Errorf("a take that does not count covers a turn: %+v", m.out)
	}
	made := own(next.Entry+3, Position{Ledger: next.Ledger, Entry: next.Entry + 2})
	if turn := c.turns[someKey]; len(m.out) != 1 || m.out[0] != (Covered{KeyAt: someKey, Turn: 1, Until: sent.Add(answerMax)}) || turn.at != made || turn.sent != sent {
		t.Errorf("covered by %+v: %+v, want it from its sending on", turn, m.out)
	}
}

// What the author of a Genesis must know of takes before it writes one, and for how long it waits if it cannot.
func TestAuthorKnowsTheTakes(t *testing.T) {
	m := New(Config{Partitions: 8, Timing: DefaultTiming()})
	m.now = clock.Instant(time.Hour)
	for name, c := range map[string]struct {
		since, take, readTo int64
		want                bool
	}{
		"all were read":                  {5, 7, 8, true},
		"no take":                        {5, 0, 8, true},
		"read up to before its Hello":    {5, 0, 4, false},
		"a take behind what it has read": {5, 9, 8, false},
	} {
		m.join.since, m.join.take, m.readTo = at(c.since), Position{}, at(c.readTo)
		if c.take > 0 {
			m.join.take = at(c.take)
		}
		if got := m.knowsTakes(); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}

	m.memory.Reserved, m.memory.ReservedAt = []Reserved{{KeyAt: someKey, IDs: []ReservationID{idOf(1)}, TTL: TTLLeast}}, m.now.Add(time.Second-memoryOfReserved)
	if got := m.reservedNow(); len(got) != 1 || got[0].KeyAt != someKey {
		t.Errorf("what an earlier incarnation knew is not listed: %+v", got)
	}
	m.memory.ReservedAt = m.now.Add(-memoryOfReserved)
	if got := m.reservedNow(); len(got) > 0 {
		t.Errorf("what has ended long ago is listed: %+v", got)
	}

	if !m.tooManyReserved() {
		t.Error("it does not wait for the promises that it cannot list")
	}
	m.now = m.now.Add(WaitFor(TTLMost) - 1)
	if !m.tooManyReserved() {
		t.Error("it does not wait until they have ended")
	}
	if m.now = m.now.Add(1); m.tooManyReserved() {
		t.Error("it waits on")
	}
}

// A Genesis with a take between what its author has read and itself has no effect; one without replaces the entries.
func TestGenesisAndTakes(t *testing.T) {
	genesis := func(base int64, reserved ...Reserved) *Genesis {
		return &Genesis{HashID: "h", Partitions: 8, Members: []Node{{Name: "n", Inc: Incarnation{1}, Lease: time.Second}}, Table: make([]uint16, 8), After: at(base), Base: at(base), Reserved: reserved}
	}
	listed := Reserved{KeyAt: someKey, IDs: []ReservationID{idOf(4)}, TTL: TTLLeast}
	for name, test := range map[string]struct {
		version    uint32
		base, take int64
		want       bool
	}{
		"the take was read":            {LogVersionMax, 20, 20, true},
		"the take was not read":        {LogVersionMax, 20, 21, false},
		"of a version without takes":   {2, 20, 21, true},
		"there was no take":            {LogVersionMax, 20, 0, true},
		"it does not say what it read": {LogVersionMax, 0, 21, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := genesis(test.base, listed)
			take := Position{}
			if test.take > 0 {
				take = at(test.take)
			}
			if got := !g.voidBy(test.version, take); got != test.want {
				t.Errorf("it counts: %v, want %v", got, test.want)
			}
		})
	}
	s := newGenesisState(at(30), LogVersionMax, genesis(20, listed))
	if want := []Reserved{{KeyAt: someKey, IDs: listed.IDs, TTL: TTLLeast, At: at(30)}}; !reflect.DeepEqual(s.Reserved, want) || s.LastTake != at(20) {
		t.Errorf("entries %+v, newest take %v", s.Reserved, s.LastTake)
	}
	if s := newGenesisState(at(30), LogVersionMax, genesis(20)); len(s.Reserved) > 0 || !s.LastTake.IsZero() {
		t.Errorf("entries %+v, newest take %v without a list", s.Reserved, s.LastTake)
	}
	two := listed
	two.IDs = []ReservationID{idOf(4), idOf(5)}
	if a, b := hashGenesis(at(30), LogVersionMax, genesis(20, listed)), hashGenesis(at(30), LogVersionMax, genesis(20, two)); a == b {
		t.Error("the hash of views does not cover the list")
	}
	for reason, bad := range map[string]Reserved{
		"no id": {KeyAt: someKey, TTL: TTLLeast}, "ttl": {KeyAt: someKey, IDs: listed.IDs}, "partition": {KeyAt: KeyAt{Partition: 9}, IDs: listed.IDs, TTL: TTLLeast},
	} {
		if validGenesis(at(30), genesis(20, bad)) == nil {
			t.Errorf("a Genesis with a reservation without a valid %s is valid", reason)
		}
	}
	if validGenesis(at(30), genesis(20, listed, listed)) == nil || validGenesis(at(30), genesis(30)) == nil {
		t.Error("a Genesis with a key twice, or that has read itself, is valid")
	}
}

// What an earlier incarnation knew joins what the log says: two ids are two, and nobody may resume.
func TestMergeReserved(t *testing.T) {
	one := func(key uint64, id byte, ttl time.Duration) Reserved {
		return Reserved{KeyAt: KeyAt{Partition: 1, Key: hashOf(int64(key))}, IDs: []ReservationID{idOf(id)}, TTL: ttl}
	}
	got := mergeReserved([]Reserved{one(1, 1, 5*time.Second), one(3, 1, 5*time.Second)}, []Reserved{one(1, 2, 9*time.Second), one(2, 1, 5*time.Second), one(3, 1, 5*time.Second)})
	if validList(got, 8) != nil || len(got) != 3 || !slices.Equal(got[0].IDs, []ReservationID{idOf(1), idOf(2)}) || got[0].TTL != 9*time.Second || len(got[2].IDs) != 1 {
		t.Errorf("merged to %+v", got)
	}
}

// A group that decides in an older version covers nothing, and says so at once; so does a ttl out of range, and a second key of one hash.
func TestCoverIsRefused(t *testing.T) {
	w := newWorld(1, DefaultTiming())
	w.idle = true
	w.start("n0")
	w.runUntil(12 * time.Second)
	p := w.procs[0]
	var answers []Covered
	w.effect = func(_ *proc, e Effect) {
		if c, ok := e.(Covered); ok {
			answers = append(answers, c)
		}
	}
	ask := func(partition, turn int, ttl time.Duration) string {
		answers = nil
		p.step(Cover{Take: Take{KeyAt: KeyAt{Partition: 2, Key: hashOf(int64(partition))}, ID: idOf(byte(turn)), TTL: ttl}, Turn: uint64(turn)})
		w.runUntil(w.now + time.Second)
		if len(answers) != 1 {
			t.Fatalf("%d answers: %+v", len(answers), answers)
		}
		if answers[0].Turn != uint64(turn) || answers[0].Refused == "" && answers[0].Until == 0 {
			t.Fatalf("answer %+v to turn %d", answers[0], turn)
		}
		return answers[0].Refused
	}
	if got := ask(1, 1, TTLLeast); got != "" {
		t.Errorf("refused: %s", got)
	}
	if got := ask(1, 2, TTLLeast); got != RefusedCollision {
		t.Errorf("got %q, want %q", got, RefusedCollision)
	}
	if got := ask(2, 3, TTLLeast-1); got != RefusedTTL {
		t.Errorf("got %q, want %q", got, RefusedTTL)
	}
	p.m.state.LogVersion = 2
	if got := ask(2, 4, TTLLeast); got != RefusedVersion {
		t.Errorf("got %q, want %q", got, RefusedVersion)
	}
	p.m.state.LogVersion = LogVersionMax
	for i := range int64(ReservedMax) {
		p.m.state.Reserved = append(p.m.state.Reserved, Reserved{KeyAt: KeyAt{Partition: 3, Key: hashOf(i)}, IDs: []ReservationID{idOf(1)}, TTL: TTLLeast, At: at(1)})
	}
	if got := ask(2, 5, TTLLeast); got != RefusedFull {
		t.Errorf("got %q, want %q", got, RefusedFull)
	}
	if w.failure != "" {
		t.Error(w.failure)
	}
}

// Owners take again before a take is too old to promise on, and promise nothing on an older one.
func TestTakesAreRepeated(t *testing.T) {
	w := newWorld(1, DefaultTiming())
	w.idle = true
	w.start("n0")
	w.runUntil(12 * time.Second)
	p := w.procs[0]
	var untils []clock.Instant
	w.effect = func(_ *proc, e Effect) {
		if c, ok := e.(Covered); ok {
			untils = append(untils, c.Until)
			if left := c.Until.Sub(p.local(w.now)); left > answerMax || left < answerMax-time.Second {
				t.Errorf("promises may be given for %v, want nearly %v", left, answerMax)
			}
		}
	}
	p.step(Cover{Take: Take{KeyAt: someKey, ID: idOf(1), TTL: TTLLeast}, Turn: 1})
	w.runUntil(w.now + 9*time.Minute)
	if len(untils) != 5 {
		t.Errorf("%d takes in nine minutes, want 5", len(untils))
	}
	p.step(Drop{KeyAt: someKey, ID: idOf(1), Turn: 1, Released: true})
	w.runUntil(w.now + time.Second)
	if len(p.m.state.Reserved) > 0 {
		t.Errorf("after the release the log has %+v", p.m.state.Reserved)
	}
	if w.failure != "" {
		t.Error(w.failure)
	}
}

// With the least AnchorBehind that is valid, the anchor passes a take only after the last promise on it has ended.
func TestAnchorRemainsBehindPromises(t *testing.T) {
	timing := DefaultTiming()
	timing.AnchorEvery, timing.AnchorBehind = time.Second, AnchorBehindMin()
	w := newWorld(1, timing)
	w.idle = true
	w.start("n0")
	w.runUntil(12 * time.Second)
	p := w.procs[0]
	var newest Position // take
	promised := map[Position]clock.Instant{}
	passed := 0
	w.landed = func(at Position, r Record) {
		if b, ok := r.Body.(*Reservations); ok && len(b.Take) > 0 {
			newest = at
		}
	}
	w.effect = func(_ *proc, e Effect) {
		switch e := e.(type) {
		case Covered:
			promised[newest] = e.Until.Add(TTLMost)
		case MoveAnchor:
			for at, until := range promised {
				if e.To.Before(at) {
					continue
				}
				passed++
				if now := p.local(w.now); now.Before(until) {
					t.Errorf("the anchor passes the take at %v, on which a promise lasts for another %v", at, until.Sub(now))
				}
				delete(promised, at)
			}
		}
	}
	p.step(Cover{Take: Take{KeyAt: someKey, ID: idOf(1), TTL: TTLMost}, Turn: 1})
	w.runUntil(w.now + 20*time.Minute)
	if passed < 3 {
		t.Errorf("the anchor has passed %d takes: this proves nothing", passed)
	}
	if w.failure != "" {
		t.Error(w.failure)
	}
}
