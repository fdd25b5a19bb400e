// Package admission decides which ids of finished events this member takes in from another
// member.
//
// Whoever hands over an id says that its event was done, and this member then acks the
// event without a handler. So an id counts only if all of this holds:
//
//   - its sender is proven to be the incarnation that it says it is,
//   - its sender, or an earlier incarnation of the same name, has owned the partition of
//     the id's key, as far as this member has read the control log,
//   - the broker had shown this member that its topic partition was that long already: an
//     event that was done was published before.
//
// # Invariant
//
// An id that was not published when it came here is never admitted.
package admission

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/planted"
	"github.com/ringfence/router/ring"
)

// Incarnation names a process lifetime of a member.
type Incarnation [16]byte

// Member is what the control log says of a member.
type Member struct {
	Inc  Incarnation
	Name string
	Key  string // public key, "" if it wrote none
}

// Former is a member that has owned partitions, and may run events of them still.
type Former struct {
	Member
	Partitions []ring.Partition
}

// Table is an applied epoch.
type Table struct {
	// Keyless says that members of an older release, which have no keys, may be among these:
	// the group decides in version 1 of the log.
	Keyless bool
	Members []Member
	Owners  []uint16 // partition → index in Members
	Formers []Former // earlier owners that the state of the group still names
}

// End is how long a topic partition is: the place of its last entry.
type End struct {
	Topic     string
	Partition int32 // -1 when the topic is not partitioned
	Last      event.Position
}

// Result is what became of an id.
//
//exhaustive:enforce
type Result uint8

// The results. The first two are good ones.
const (
	Admitted Result = iota // taken in
	Keyless                // taken in from a member without a key, while the group decides in version 1 of the log
	Unproven               // refused: its sender has not proven to be who it says
	NotOwner               // refused: its sender has never owned the partition, as far as is known here
	Ahead                  // refused: beyond the end of its topic partition
	Late                   // refused: where its topic partition ends was not learned in time
	Full                   // refused: too many ids wait for that
	results
)

// String returns the name of the result, as metrics and logs have it.
func (r Result) String() string {
	switch r {
	case Admitted:
		return "admitted"
	case Keyless:
		return "keyless"
	case Unproven:
		return "unproven"
	case NotOwner:
		return "not_owner"
	case Ahead:
		return "ahead"
	case Late:
		return "late"
	case Full:
		return "full"
	case results:
	}
	return "unknown"
}

// Results yields all results.
func Results(yield func(Result) bool) {
	for r := range results {
		if !yield(r) {
			return
		}
	}
}

// Counts is how many ids came to each result.
type Counts [results]int

// Refused returns how many ids were refused.
func (c *Counts) Refused() (n int) {
	for r := Unproven; r < results; r++ {
		n += c[r]
	}
	return n
}

// Output is what calls ask their caller to do. Calls append to it.
type Output struct {
	Admitted []event.Finished
	Judged   []Judged // by sender, at most one for each call and sender
}

// Judged is what became of the ids of one sender.
type Judged struct {
	From   Incarnation
	Name   string // "": it is not known
	Counts Counts
}

// Bounds of what is remembered.
const (
	waitMax        = 5 * time.Second // for the ends of topic partitions
	waitIDsMax     = 1 << 16         // ids that wait for them
	waitIDsPeerMax = 1 << 13         // of one sender
	formersMax     = 256             // incarnations that are members no more
	ledgersMax     = 4096            // of which is known to which topic partition they belong
)

// WaitBytesMax is what waiting ids weigh at most.
const WaitBytesMax = waitIDsMax * 48

// Admission is the machine. It is not safe for concurrent use.
type Admission struct {
	keyless bool
	tables  uint64 // that were set
	members map[Incarnation]*member
	held    map[string]*partitions // name → what an incarnation of it has owned

	ends     []End // as far as the broker has shown it
	unasked  bool  // the broker cannot be asked for ends: no bound is known, and none counts
	byNumber map[int32][]int
	byLedger map[int64]int
	ledgers  []int64 // keys of byLedger, oldest first
	last     int     // in ends: what Seen saw last
	floor    int64   // the newest ledger when the broker last told all ends, -1: it never did

	asked, answered uint64
	waiting         []waiting
	waitingIDs      int
}

type member struct {
	Member
	listed uint64 // number of the newest table with it
}

// partitions is a set of them.
type partitions [(ring.Partitions + 63) / 64]uint64

func (s *partitions) add(p ring.Partition)      { s[p/64] |= 1 << (p % 64) }
func (s *partitions) has(p ring.Partition) bool { return s[p/64]>>(p%64)&1 != 0 }

// waiting is what one window brought and cannot be judged yet.
type waiting struct {
	from    Incarnation
	keyless bool
	until   clock.Instant
	done    []event.Finished
}

// New returns an Admission that knows nobody.
func New() *Admission {
	return &Admission{
		members:  make(map[Incarnation]*member),
		held:     make(map[string]*partitions),
		byNumber: make(map[int32][]int),
		byLedger: make(map[int64]int),
		floor:    -1,
	}
}

// SetTable takes in the newest applied epoch. Who owned partitions by it, or by an earlier
// one, may hand over ids of them from now on.
func (a *Admission) SetTable(t Table) {
	a.tables++
	a.keyless = t.Keyless
	owned := make([]*partitions, len(t.Members))
	for i, m := range t.Members {
		owned[i] = a.know(m)
	}
	for p, i := range t.Owners {
		owned[i].add(ring.Partition(p))
	}
	for _, f := range t.Formers {
		owned := a.know(f.Member)
		for _, p := range f.Partitions {
			owned.add(p)
		}
	}
	a.forget()
}

// know remembers a member, and returns what is known that its name has owned.
func (a *Admission) know(m Member) *partitions {
	if m.Name == "" {
		m.Name = string(m.Inc[:])
	}
	a.members[m.Inc] = &member{Member: m, listed: a.tables}
	owned := a.held[m.Name]
	if owned == nil {
		owned = new(partitions)
		a.held[m.Name] = owned
	}
	return owned
}

// forget drops who was a member longest ago, beyond formersMax.
func (a *Admission) forget() {
	var formers []*member
	for _, m := range a.members {
		if m.listed < a.tables {
			formers = append(formers, m)
		}
	}
	if len(formers) <= formersMax {
		return
	}
	slices.SortFunc(formers, func(x, y *member) int {
		if x.listed != y.listed {
			return cmp.Compare(x.listed, y.listed)
		}
		return bytes.Compare(x.Inc[:], y.Inc[:])
	})
	for _, m := range formers[:len(formers)-formersMax] {
		delete(a.members, m.Inc)
	}
	names := make(map[string]bool, len(a.members))
	for _, m := range a.members {
		names[m.Name] = true
	}
	for name := range a.held {
		if !names[name] {
			delete(a.held, name)
		}
	}
}

// KeyOf returns the public key of an incarnation, "" if none is known.
func (a *Admission) KeyOf(inc Incarnation) string {
	if m := a.members[inc]; m != nil {
		return m.Key
	}
	return ""
}

// Seen takes in that the broker has delivered an entry.
func (a *Admission) Seen(topic string, partition int32, at event.Position) {
	if a.last < len(a.ends) {
		if e := &a.ends[a.last]; e.Partition == partition && e.Last.Ledger == at.Ledger && e.Topic == topic {
			e.Last.Entry = max(e.Last.Entry, at.Entry)
			return
		}
	}
	a.last = a.end(End{Topic: topic, Partition: partition, Last: at})
}

// end takes in a place that a topic partition has reached, and returns where it stands in ends.
func (a *Admission) end(e End) int {
	i := slices.IndexFunc(a.ends, func(o End) bool { return o.Partition == e.Partition && o.Topic == e.Topic })
	if i < 0 {
		i = len(a.ends)
		a.ends = append(a.ends, e)
		a.byNumber[e.Partition] = append(a.byNumber[e.Partition], i)
	} else if a.ends[i].Last.Before(e.Last) {
		a.ends[i].Last = e.Last
	}
	if _, ok := a.byLedger[e.Last.Ledger]; !ok && e.Last.Ledger >= 0 {
		if len(a.ledgers) >= ledgersMax {
			delete(a.byLedger, a.ledgers[0])
			a.ledgers = a.ledgers[1:]
		}
		a.ledgers = append(a.ledgers, e.Last.Ledger)
		a.byLedger[e.Last.Ledger] = i
	}
	return i
}

// Ask says that the broker is about to be asked where its topic partitions end, or will be
// as soon as there is a subscription. Ids beyond the ends that are known wait for the
// answer. It returns the number to give with the answer.
func (a *Admission) Ask() uint64 {
	a.asked++
	return a.asked
}

// Learn takes in the answer to an Ask. Not known: the broker cannot be asked such a thing,
// and ids are admitted wherever they are. An answer has all topic partitions; one that failed has none.
func (a *Admission) Learn(number uint64, ends []End, known bool, out *Output) {
	a.unasked = !known
	for _, e := range ends {
		a.end(e)
		a.floor = max(a.floor, e.Last.Ledger)
	}
	a.answered = max(a.answered, number)
	if !a.asking() {
		a.judge(Ahead, clock.Forever, out)
	}
}

// asking reports whether an answer is still to come.
func (a *Admission) asking() bool { return a.asked == 0 || a.answered < a.asked }

// Forget drops the ids that wait, and returns how many.
func (a *Admission) Forget() (ids int) {
	ids, a.waiting, a.waitingIDs = a.waitingIDs, nil, 0
	return ids
}

// Tick refuses what has waited for too long. It is due at Next.
func (a *Admission) Tick(now clock.Instant, out *Output) { a.judge(Late, now, out) }

// Next returns when Tick is due, or clock.Forever.
func (a *Admission) Next() clock.Instant {
	if len(a.waiting) == 0 {
		return clock.Forever
	}
	return a.waiting[0].until
}

// judge ends the waiting of what came long enough ago to wait no longer than until.
func (a *Admission) judge(refusal Result, until clock.Instant, out *Output) {
	for len(a.waiting) > 0 && a.waiting[0].until <= until {
		w := a.waiting[0]
		a.waiting[0] = waiting{}
		a.waiting = a.waiting[1:]
		a.waitingIDs -= len(w.done)
		counts := out.of(w.from, a.name(w.from))
		for _, d := range w.done {
			result := refusal
			if a.reached(d.ID) {
				result = good(w.keyless)
			}
			out.add(counts, result, d)
		}
	}
}

// Offer judges what a member hands over. proven says that the stream is of that
// incarnation for certain. It keeps done.
func (a *Admission) Offer(now clock.Instant, from Incarnation, proven bool, done []event.Finished, out *Output) {
	counts := out.of(from, a.name(from))
	if planted.On(planted.WindowForged) {
		for _, d := range done {
			out.add(counts, Admitted, d)
		}
		return
	}
	keyless := !proven && a.keyless && a.KeyOf(from) == ""
	if !proven && !keyless {
		out.Judged[counts].Counts[Unproven] += len(done)
		return
	}
	owned := new(partitions)
	if m := a.members[from]; m != nil {
		owned = a.held[m.Name]
	}
	var unknown []event.Finished
	for _, d := range done {
		switch {
		case !owned.has(d.Partition):
			out.add(counts, NotOwner, d)
		case a.reached(d.ID):
			out.add(counts, good(keyless), d)
		case a.asking():
			unknown = append(unknown, d)
		default:
			out.add(counts, Ahead, d)
		}
	}
	if len(unknown) > 0 {
		a.wait(now, waiting{from: from, keyless: keyless, done: unknown}, counts, out)
	}
}

// wait keeps ids until the ends of topic partitions are known, as far as there is room.
func (a *Admission) wait(now clock.Instant, w waiting, counts int, out *Output) {
	theirs := 0
	for i := range a.waiting {
		if a.waiting[i].from == w.from {
			theirs += len(a.waiting[i].done)
		}
	}
	room := max(0, min(len(w.done), waitIDsMax-a.waitingIDs, waitIDsPeerMax-theirs))
	out.Judged[counts].Counts[Full] += len(w.done) - room
	if room == 0 {
		return
	}
	w.done, w.until = w.done[:room], now.Add(waitMax)
	a.waiting = append(a.waiting, w)
	a.waitingIDs += room
}

func good(keyless bool) Result {
	if keyless {
		return Keyless
	}
	return Admitted
}

// reached reports whether the broker has shown that the topic partition of an id is that
// long. Ids do not name their topics, but a ledger belongs to one. Where it is not known
// to which, the ledger must be older than the broker's newest answer, so that no topic
// has begun with it since, and the id must lie before the ends of all topic partitions of
// its number: then the one that it belongs to has gone on to another ledger.
func (a *Admission) reached(id event.MessageID) bool {
	if id.Ledger < 0 || id.Entry < 0 {
		return false // no broker gives such an id
	}
	if a.unasked {
		return true
	}
	at := event.Position{Ledger: id.Ledger, Entry: id.Entry}
	if i, ok := a.byLedger[id.Ledger]; ok {
		return !a.ends[i].Last.Before(at)
	}
	if id.Ledger > a.floor {
		return false
	}
	candidates := a.byNumber[id.TopicPartition]
	for _, i := range candidates {
		if a.ends[i].Last.Before(at) {
			return false
		}
	}
	return len(candidates) > 0
}

func (a *Admission) name(inc Incarnation) string {
	if m := a.members[inc]; m != nil {
		return m.Name
	}
	return ""
}

// of returns the index of a sender's counts.
func (o *Output) of(from Incarnation, name string) int {
	i := slices.IndexFunc(o.Judged, func(j Judged) bool { return j.From == from })
	if i < 0 {
		i = len(o.Judged)
		o.Judged = append(o.Judged, Judged{From: from, Name: name})
	}
	return i
}

// add counts an id, and appends it if it is admitted.
func (o *Output) add(counts int, r Result, d event.Finished) {
	o.Judged[counts].Counts[r]++
	if r == Admitted || r == Keyless {
		o.Admitted = append(o.Admitted, d)
	}
}
