package ownership

import (
	"fmt"
	"slices"

	"github.com/ringfence/router/ring"
)

// Replay audits a control log from its records alone: it applies them as every member does, and checks what members wrote against
// the state. It is pure. Rules that depend on time, such as the wait for a silent owner, cannot be checked so: the log has no
// time.
//
// It checks that
//   - positions only grow, and within a ledger without a gap;
//   - fencing tokens of a partition grow with each of its tenures;
//   - each Beat knows the epoch, the epochs before it and the records that the log had at the position up to which its sender had read it;
//   - a Beat acquires a partition only under a tenure of its sender;
//   - a Beat lists a released partition as draining again only after another tenure of its sender was deposed;
//   - a Snap is the state at the Hello that it answers.
type Replay struct {
	group   string
	checked Checked

	last     Position
	state    *State // nil: no Genesis or Snap was read yet
	prefixes prefixes
	views    []view                   // the accepted epochs, ascending; the first is that of the adopted state
	tokens   []Token                  // partition → the greatest token so far
	tenures  [][]span                 // partition → the newest tenures, the newest last
	beats    map[Incarnation]lastBeat // of each incarnation
	hellos   []answered               // the newest Hellos that ask for the state
	kept     []read                   // before there is a state: the newest records
	lastTake Position                 // before there is a state: the newest take
}

// span is one tenure, from the record that began it to the one that deposed it; zero while it lasts.
type span struct {
	inc        Incarnation
	start, dep Position
	acquired   bool // a Beat says so
}

// lastBeat holds the data with which the next Beat of an incarnation is compared.
type lastBeat struct {
	seq      uint64
	applied  Position
	draining Set
}

// answered is the state at a Hello.
type answered struct {
	at    Position
	state *State
}

// Bounds of a Replay's memory.
const (
	replayTenuresMax = 8       // of a partition
	replayHellosMax  = 16      // states that wait for a Snap
	replayKeptMax    = 1 << 16 // records before the first state
)

// Checked counts what a [Replay] has checked.
type Checked struct {
	Records  int      `json:"records"`
	First    Position `json:"first"`
	Last     Position `json:"last"`
	Foreign  int      `json:"foreign"`  // of other groups, or unreadable: members skip them too
	Unjudged int      `json:"unjudged"` // from before the first Genesis or Snap: there is no state to check them against
	Geneses  int      `json:"geneses"`
	Epochs   int      `json:"epochs"`
	Tenures  int      `json:"tenures"`
	Beats    int      `json:"beats"`
	Acquired int      `json:"acquired"` // tenures that a Beat has acquired: Beats repeat what their sender has acquired
	Released int      `json:"released"` // tenures that a Beat has ended; not what a Genesis waits for, which may be nothing
	Prefixes int      `json:"prefixes"` // Beats whose hash of all earlier records was compared
	Snaps    int      `json:"snaps"`

	Reservations int `json:"reservations"` // records of takes and drops

	Later        int      `json:"later"`         // of the group, in a version that this build cannot read: members of it exit there
	LaterFrom    Position `json:"later_from"`    // the first of them
	LaterVersion uint32   `json:"later_version"` // its version
}

// Violation is a record that contradicts the log before it.
type Violation struct {
	At     Position    `json:"at"`
	Inc    Incarnation `json:"incarnation"` // its author
	Name   string      `json:"member"`      // of the author; "" if it is not known
	Reason string      `json:"reason"`
}

// Error returns the violation as a sentence.
func (v *Violation) Error() string {
	return fmt.Sprintf("record %v of %v %q: %s", v.At, v.Inc, v.Name, v.Reason)
}

// NewReplay returns a Replay of the log of a group.
func NewReplay(group string) *Replay {
	return &Replay{group: group, beats: make(map[Incarnation]lastBeat)}
}

// Checked returns what was checked so far.
func (r *Replay) Checked() Checked { return r.checked }

// Judges reports whether there is a state to check records against.
func (r *Replay) Judges() bool { return r.state != nil }

// ViewHash returns the hash over the epochs so far, 0 before there is a state.
func (r *Replay) ViewHash() uint64 {
	if r.state == nil {
		return 0
	}
	return r.state.ViewHash
}

// Read takes the next record of the log, with the hash of its bytes. It returns the first violation of the record, nil if
// there is none, and continues after one.
func (r *Replay) Read(at Position, rec Record, sum uint64) *Violation {
	r.checked.Records++
	if r.checked.First.IsZero() {
		r.checked.First = at
	}
	before := r.last
	r.last, r.checked.Last = at, at
	one := read{at: at, rec: rec, sum: sum}
	reason := r.order(before, at)
	if why := r.apply(one); reason == "" {
		reason = why
	}
	if reason == "" {
		return nil
	}
	v := &Violation{At: at, Inc: rec.Inc, Reason: reason}
	if r.state != nil {
		if n := r.state.node(rec.Inc); n != nil {
			v.Name = n.Name
		}
	}
	return v
}

func (r *Replay) order(before, at Position) string {
	switch {
	case before.IsZero():
		return ""
	case !before.Before(at):
		return fmt.Sprintf("it follows %v, which is not before it", before)
	case before.Ledger == at.Ledger && at.Entry != before.Entry+1:
		return fmt.Sprintf("it follows %v: records between the two are missing", before)
	}
	return ""
}

// apply applies a record, or keeps it until there is a state.
func (r *Replay) apply(one read) string {
	if r.state != nil {
		r.prefixes.goOn(r.state, one)
	}
	foreign := one.rec.Group != r.group || one.rec.Body == nil || one.rec.LogVersion == 0 || one.rec.LogVersion > LogVersionMax
	if g, ok := one.rec.Body.(*Genesis); ok && !foreign {
		return r.genesis(one, g)
	}
	later := one.rec.Group == r.group && one.rec.LogVersion > LogVersionMax
	if later {
		r.noteLater(one)
	}
	if r.state == nil {
		return r.await(one, foreign)
	}
	if later {
		return ""
	}
	if foreign {
		r.checked.Foreign++
		return ""
	}
	switch b := one.rec.Body.(type) {
	case *Epoch:
		return r.epoch(one, b)
	case *Beat:
		return r.beat(one, b)
	case *Hello:
		_ = r.state.applyHello(one.at, b) // members skip a bad one too
		if b.NeedState {
			if len(r.hellos) == replayHellosMax {
				r.hellos = slices.Delete(r.hellos, 0, 1)
			}
			r.hellos = append(r.hellos, answered{one.at, r.state.clone()})
		}
	case *Snap:
		return r.snap(b)
	case *Reservations:
		return r.reservations(one, b)
	case *Genesis: // see above
	}
	return ""
}

func (r *Replay) noteLater(one read) {
	if r.checked.Later == 0 {
		r.checked.LaterFrom, r.checked.LaterVersion = one.at, one.rec.LogVersion
	}
	r.checked.Later++
}

// await keeps a record from before the first state, and begins with the first Snap.
func (r *Replay) await(one read, foreign bool) string {
	if b, ok := one.rec.Body.(*Reservations); ok && !foreign && len(b.Take) > 0 && b.valid(1<<16) == nil {
		r.lastTake = one.at
	}
	snap, ok := one.rec.Body.(*Snap)
	if foreign || !ok || snap.State == nil || snap.State.valid() != nil {
		r.checked.Unjudged++
		if len(r.kept) == replayKeptMax {
			r.kept = slices.Delete(r.kept, 0, replayKeptMax/2)
		}
		r.kept = append(r.kept, one)
		return ""
	}
	i := slices.IndexFunc(r.kept, func(k read) bool { return k.at == snap.ForHello })
	if i < 0 {
		r.checked.Unjudged++
		return ""
	}
	later := slices.Clone(r.kept[i+1:])
	r.kept = nil
	r.begin(snap.ForHello, snap.State.clone())
	r.checked.Unjudged -= len(later)
	for _, k := range later {
		if reason := r.apply(k); reason != "" {
			return fmt.Sprintf("the state that it hands over contradicts record %v: %s", k.at, reason)
		}
	}
	r.prefixes.goOn(r.state, one)
	r.checked.Snaps++
	return ""
}

// begin starts with a state as of a position.
func (r *Replay) begin(at Position, s *State) {
	r.state, r.views, r.hellos = s, []view{{s.Cur, s.ViewHash}}, nil
	r.prefixes.begin(at, s)
	r.tenures = make([][]span, len(s.Table))
	if len(r.tokens) != len(s.Table) {
		r.tokens = make([]Token, len(s.Table))
	}
	for p := range r.tenures {
		for _, t := range s.Pending[p] {
			r.tenures[p] = append(r.tenures[p], span{inc: t.Inc, start: t.Start, dep: t.Dep})
		}
		r.tenures[p] = append(r.tenures[p], span{inc: s.Owner(ring.Partition(p)), start: s.Start[p]})
	}
}

// reservations checks that the sender had read what it says, and applies them.
func (r *Replay) reservations(one read, b *Reservations) string {
	r.checked.Reservations++
	if r.state.applyReservations(one.at, b) != nil {
		r.checked.Foreign++ // members skip it too
		return ""
	}
	if !b.Applied.Before(one.at) {
		return fmt.Sprintf("it claims that its sender has read %v, which is not before it", b.Applied)
	}
	return ""
}

func (r *Replay) genesis(one read, g *Genesis) (reason string) {
	take := r.lastTake
	if r.state != nil {
		take = r.state.LastTake
	}
	if validGenesis(one.at, g) != nil || r.state != nil && r.state.olderThan(g) || g.voidBy(one.rec.LogVersion, take) {
		r.checked.Foreign++ // members skip it too
		return ""
	}
	token := TokenOf(g.Gen, one.at)
	for p, greatest := range r.tokens {
		if token <= greatest {
			reason = fmt.Sprintf("its token %v is not greater than %v, which partition %d has had", token, greatest, p)
			break
		}
	}
	s := newGenesisState(one.at, one.rec.LogVersion, g)
	s.PrefixHash = hashPrefix(0, one)
	r.kept = nil
	r.beats = make(map[Incarnation]lastBeat)
	r.begin(one.at, s)
	for p := range r.tokens {
		r.tokens[p] = max(r.tokens[p], token)
	}
	r.checked.Geneses++
	r.checked.Tenures += len(s.Table)
	return reason
}

func (r *Replay) epoch(one read, e *Epoch) (reason string) {
	s := r.state
	owners := make([]Incarnation, len(s.Table))
	for p := range owners {
		owners[p] = s.Owner(ring.Partition(p))
	}
	version := s.LogVersion
	if s.applyEpoch(one.at, one.rec.LogVersion, e) != nil {
		return "" // superseded, as most that lose a race
	}
	r.checked.Epochs++
	if s.LogVersion != version {
		s.PrefixHash = hashPrefix(0, one) // as members do
		r.prefixes.begin(one.at, s)
	}
	r.views = append(r.views, view{one.at, s.ViewHash})
	for p, was := range owners {
		q := ring.Partition(p)
		if s.Owner(q) == was {
			continue
		}
		r.checked.Tenures++
		if token := s.Token(q); token > r.tokens[p] {
			r.tokens[p] = token
		} else if reason == "" {
			reason = fmt.Sprintf("partition %d gets the token %v after %v", p, token, r.tokens[p])
		}
		t := r.tenures[p]
		t[len(t)-1].dep = one.at
		if len(t) == replayTenuresMax {
			t = slices.Delete(t, 0, 1)
		}
		r.tenures[p] = append(t, span{inc: s.Owner(q), start: one.at})
	}
	return reason
}

func (r *Replay) beat(one read, b *Beat) (reason string) {
	inc := one.rec.Inc
	before, known := r.beats[inc]
	if known && b.Seq <= before.seq {
		return "" // the log has it twice
	}
	r.checked.Beats++
	r.beats[inc] = lastBeat{b.Seq, b.Applied, b.Draining}
	pending := r.pendingTenures()
	r.state.applyBeat(inc, b)
	r.checked.Released += pending - r.pendingTenures()
	switch {
	case !b.Applied.Before(one.at):
		return fmt.Sprintf("it claims that its sender has read %v, which is not before it", b.Applied)
	case b.Applied.Before(r.views[0].at):
		return "" // from before the state that this replay began with
	}
	if reason = r.knows(b); reason == "" {
		reason = r.acquires(inc, b)
	}
	if reason == "" {
		reason = r.drains(inc, b, before, known)
	}
	return reason
}

func (r *Replay) pendingTenures() (n int) {
	for p := range r.state.pending.All() {
		for _, t := range r.state.Pending[p] {
			if !t.Inc.IsZero() { // else ANY, of a Genesis
				n++
			}
		}
	}
	return n
}

// knows checks what a Beat says of the log up to the position that its sender had read.
func (r *Replay) knows(b *Beat) string {
	i, found := slices.BinarySearchFunc(r.views, b.Applied, func(v view, at Position) int { return v.at.Compare(at) })
	if !found {
		i--
	}
	if v := r.views[i]; v.at != b.Cur || v.hash != b.ViewHash {
		return fmt.Sprintf("at %v the epoch was %v, and it names %v, or has read other epochs before it", b.Applied, v.at, b.Cur)
	}
	hash, ok := r.prefixes.at(b.Applied)
	if !ok || b.PrefixHash == 0 {
		return ""
	}
	r.checked.Prefixes++
	if hash != b.PrefixHash {
		return fmt.Sprintf("the records up to %v are others than those that its sender has read", b.Applied)
	}
	return ""
}

// acquires checks that the sender had a tenure of each partition that it says it has acquired.
func (r *Replay) acquires(inc Incarnation, b *Beat) string {
	for p := range b.Acquired.All() {
		if int(p) >= len(r.tenures) {
			return fmt.Sprintf("it acquires partition %d, which there is not", p)
		}
		t := r.tenures[p]
		i := slices.IndexFunc(t, func(s span) bool {
			return s.inc == inc && !b.Applied.Before(s.start) && (s.dep.IsZero() || b.Applied.Before(s.dep))
		})
		if i >= 0 && !t[i].acquired {
			t[i].acquired = true
			r.checked.Acquired++
		}
		if i < 0 && !b.Applied.Before(t[0].start) {
			return fmt.Sprintf("it acquires partition %d, which it did not own at %v", p, b.Applied)
		}
	}
	return ""
}

// drains checks that the sender does not list a partition as draining again that it has released.
func (r *Replay) drains(inc Incarnation, b *Beat, before lastBeat, known bool) string {
	if !known || before.applied.Before(r.views[0].at) { // a Genesis deposes every tenure; and of others from before the first state nothing is known
		return ""
	}
	for p := range b.Draining.All() {
		if int(p) >= len(r.tenures) {
			return fmt.Sprintf("it drains partition %d, which there is not", p)
		}
		if before.draining.Has(p) || before.applied.Before(r.tenures[p][0].start) { // it drains still, or it may be of a tenure that is forgotten
			continue
		}
		deposed := slices.ContainsFunc(r.tenures[p], func(s span) bool {
			return s.inc == inc && before.applied.Before(s.dep) && !b.Applied.Before(s.dep)
		})
		if !deposed {
			return fmt.Sprintf("deliveries run on partition %d although its Beat %d had released it", p, before.seq)
		}
	}
	return ""
}

// snap checks that a Snap is the state at its Hello.
func (r *Replay) snap(b *Snap) string {
	i := slices.IndexFunc(r.hellos, func(a answered) bool { return a.at == b.ForHello })
	if i < 0 || b.State == nil {
		return ""
	}
	r.checked.Snaps++
	ours, theirs := r.hellos[i].state, b.State
	differs := ""
	switch {
	case ours.Cur != theirs.Cur || ours.ViewHash != theirs.ViewHash:
		differs = "epoch"
	case ours.Gen != theirs.Gen || !slices.Equal(ours.Start, theirs.Start):
		differs = "tokens"
	case !slices.Equal(ours.Members, theirs.Members) || !slices.Equal(ours.Table, theirs.Table):
		differs = "table"
	case ours.PrefixHash != 0 && theirs.PrefixHash != 0 && ours.PrefixHash != theirs.PrefixHash:
		differs = "records before"
	case !slices.EqualFunc(ours.Pending, theirs.Pending, samePending):
		differs = "pending tenures"
	case !slices.EqualFunc(ours.Reserved, theirs.Reserved, sameReserved) || ours.LastTake != theirs.LastTake:
		differs = "reservations"
	}
	if differs != "" {
		return fmt.Sprintf("it hands over a state at %v whose %s differ from the log's", b.ForHello, differs)
	}
	return ""
}

func samePending(a, b []Tenure) bool {
	return slices.EqualFunc(a, b, func(x, y Tenure) bool { return x.Inc == y.Inc && x.Start == y.Start && x.Dep == y.Dep })
}

func sameReserved(a, b Reserved) bool {
	return a.KeyAt == b.KeyAt && a.TTL == b.TTL && a.At == b.At && slices.Equal(a.IDs, b.IDs)
}
