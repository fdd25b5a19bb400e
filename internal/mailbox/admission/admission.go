// Package admission decides which ids of finished events this member accepts from another
// member.
//
// This member acks an event with an accepted id without running a handler. So an id is
// admitted only if all of this holds:
//
//   - its sender has proven to be the incarnation that it claims to be,
//   - its sender, or an earlier incarnation of the same name, has owned the partition of
//     the id's key, according to the control log as far as this member has read it,
//   - the broker has shown this member that the topic partition already contains the id,
//     since a finished event must have been published.
//
// # Invariant
//
// An id that was not yet published when it was offered is never admitted.
package admission

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// Incarnation names a process lifetime of a member.
type Incarnation [16]byte

// Member is a member as the control log describes it.
type Member struct {
	Inc  Incarnation
	Name string
	Key  string // public key, "" if the log has none
}

// Former is an earlier owner of partitions that may still run events of them.
type Former struct {
	Member
	Partitions []ring.Partition
}

// Table is an applied epoch.
type Table struct {
	// Keyless says that Members may include members of an older release without keys: the
	// group uses version 1 of the log.
	Keyless bool
	Members []Member
	Owners  []uint16 // partition → index in Members
	Formers []Former // earlier owners that the state of the group still names
}

// End is the position of the last entry of a topic partition.
type End struct {
	Topic     string
	Partition int32 // -1 when the topic is not partitioned
	Last      event.Position
}

// Result is the decision about an id.
//
//exhaustive:enforce
type Result uint8

// The results. Ids with the first two are admitted.
const (
	Admitted Result = iota // admitted
	Keyless                // admitted from a member without a key, while the group uses version 1 of the log
	Unproven               // refused: the sender has not proven its incarnation
	NotOwner               // refused: the sender is not known to have owned the partition
	Ahead                  // refused: beyond the end of its topic partition
	Late                   // refused: the broker did not report the end of the topic partition in time
	Full                   // refused: too many ids wait for the broker's report
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

// Counts is the number of ids by result.
type Counts [results]int

// Refused returns how many ids were refused.
func (c *Counts) Refused() (n int) {
	for r := Unproven; r < results; r++ {
		n += c[r]
	}
	return n
}

// Output collects the effects of calls for the caller to perform. Calls append to it.
type Output struct {
	Admitted []event.Finished
	Judged   []Judged // by sender, at most one for each call and sender
}

// Judged counts the results of one sender's ids.
type Judged struct {
	From   Incarnation
	Name   string // "" if not known
	Counts Counts
}

// Bounds of the state.
const (
	waitMax        = 5 * time.Second // for the ends of topic partitions
	waitIDsMax     = 1 << 16         // ids that wait for them
	waitIDsPeerMax = 1 << 13         // of one sender
	formersMax     = 256             // incarnations that are no longer members
	ledgersMax     = 4096            // ledgers whose topic partition is known
)

// WaitBytesMax bounds the weight of waiting ids.
const WaitBytesMax = waitIDsMax * 64

// Admission is the machine. It is not safe for concurrent use.
type Admission struct {
	keyless bool
	tables  uint64 // number of SetTable calls
	members map[Incarnation]member
	held    map[string]event.Bits // name → the partitions that an incarnation of it has owned

	ends     []End // as far as the broker has shown them
	unasked  bool  // the broker cannot be asked for ends: ids are not checked against them
	byNumber map[int32][]int
	byLedger map[int64]int
	ledgers  []int64 // keys of byLedger, oldest first
	last     int     // index in ends of the last call of Seen
	floor    int64   // the newest ledger in the broker's answers, of the cluster of its URL; -1 before the first

	asked, answered uint64
	waiting         []waiting
	waitingIDs      int
}

type member struct {
	Member
	listed uint64 // number of the newest table with it
}

// waiting holds ids of one window frame that wait for the ends of topic partitions.
type waiting struct {
	from    Incarnation
	keyless bool
	until   clock.Instant
	done    []event.Finished
}

// New returns an Admission without members.
func New() *Admission {
	return &Admission{
		members:  make(map[Incarnation]member),
		held:     make(map[string]event.Bits),
		byNumber: make(map[int32][]int),
		byLedger: make(map[int64]int),
		floor:    -1,
	}
}

// SetTable applies the newest epoch. Members that own partitions in it, or owned them in
// an earlier one, may hand over ids of these partitions.
func (a *Admission) SetTable(t Table) {
	a.tables++
	a.keyless = t.Keyless
	owned := make([]event.Bits, len(t.Members))
	for i, m := range t.Members {
		owned[i] = a.know(m)
	}
	for p, i := range t.Owners {
		owned[i].Add(p)
	}
	for _, f := range t.Formers {
		owned := a.know(f.Member)
		for _, p := range f.Partitions {
			owned.Add(int(p))
		}
	}
	a.forget()
}

// know remembers a member, and returns the partitions that its name is known to have owned.
func (a *Admission) know(m Member) event.Bits {
	if m.Name == "" {
		m.Name = string(m.Inc[:])
	}
	a.members[m.Inc] = member{Member: m, listed: a.tables}
	if a.held[m.Name] == nil {
		a.held[m.Name] = event.NewBits(ring.Partitions)
	}
	return a.held[m.Name]
}

// forget drops the oldest former members beyond formersMax.
func (a *Admission) forget() {
	var formers []member
	for _, m := range a.members {
		if m.listed < a.tables {
			formers = append(formers, m)
		}
	}
	if len(formers) <= formersMax {
		return
	}
	slices.SortFunc(formers, func(x, y member) int {
		return cmp.Or(cmp.Compare(x.listed, y.listed), bytes.Compare(x.Inc[:], y.Inc[:]))
	})
	for _, m := range formers[:len(formers)-formersMax] {
		delete(a.members, m.Inc)
	}
	names := make(map[string]bool, len(a.members))
	for _, m := range a.members {
		names[m.Name] = true
	}
	maps.DeleteFunc(a.held, func(name string, _ event.Bits) bool { return !names[name] })
}

// KeyOf returns the public key of an incarnation, "" if none is known.
func (a *Admission) KeyOf(inc Incarnation) string { return a.members[inc].Key }

// Seen notes that the broker has delivered an entry.
func (a *Admission) Seen(topic string, partition int32, at event.Position) {
	if a.last < len(a.ends) {
		if e := &a.ends[a.last]; e.Partition == partition && e.Last.Ledger == at.Ledger && e.Topic == topic {
			e.Last.Entry = max(e.Last.Entry, at.Entry)
			return
		}
	}
	a.last = a.end(End{Topic: topic, Partition: partition, Last: at})
}

// end notes a position that a topic partition has reached, and returns its index in ends.
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

// Ask notes that the caller asks the broker for the ends of its topic partitions, now or
// as soon as there is a subscription. Ids beyond the known ends wait for the answer. It
// returns the number to pass to Learn.
func (a *Admission) Ask() uint64 {
	a.asked++
	return a.asked
}

// Learn applies the answer to an Ask. known is false if the broker does not support the
// question; then ids are admitted without this check. An answer names all topic
// partitions, a failed one none.
func (a *Admission) Learn(number uint64, ends []End, known bool, out *Output) {
	a.unasked = !known
	for _, e := range ends {
		a.end(e)
		if unmoved(e.Partition) {
			a.floor = max(a.floor, e.Last.Ledger)
		}
	}
	a.answered = max(a.answered, number)
	if !a.asking() {
		a.judge(Ahead, clock.Forever, out)
	}
}

// asking reports whether an answer is outstanding.
func (a *Admission) asking() bool { return a.asked == 0 || a.answered < a.asked }

// Forget drops the ids that wait, and returns how many.
func (a *Admission) Forget() (ids int) {
	ids, a.waiting, a.waitingIDs = a.waitingIDs, nil, 0
	return ids
}

// Tick refuses ids that have waited too long. It is due at Next.
func (a *Admission) Tick(now clock.Instant, out *Output) { a.judge(Late, now, out) }

// Next returns when Tick is due, or clock.Forever.
func (a *Admission) Next() clock.Instant {
	if len(a.waiting) == 0 {
		return clock.Forever
	}
	return a.waiting[0].until
}

// judge decides about the waiting ids whose deadline is at or before until.
func (a *Admission) judge(refusal Result, until clock.Instant, out *Output) {
	for len(a.waiting) > 0 && a.waiting[0].until <= until {
		w := a.waiting[0]
		a.waiting[0] = waiting{}
		a.waiting = a.waiting[1:]
		a.waitingIDs -= len(w.done)
		counts := out.of(w.from, a.members[w.from].Name)
		for _, d := range w.done {
			result := refusal
			if a.reached(d.ID) {
				result = good(w.keyless)
			}
			out.add(counts, result, d)
		}
	}
}

// Offer decides about ids that a member hands over. proven says that the member has
// proven its incarnation. Offer keeps the slice.
func (a *Admission) Offer(now clock.Instant, from Incarnation, proven bool, done []event.Finished, out *Output) {
	counts := out.of(from, a.members[from].Name)
	keyless := !proven && a.keyless && a.KeyOf(from) == ""
	if !proven && !keyless {
		out.Judged[counts].Counts[Unproven] += len(done)
		return
	}
	owned := a.held[a.members[from].Name]
	var unknown []event.Finished
	for _, d := range done {
		switch {
		case !owned.Has(int(d.Partition)):
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

// wait keeps ids until the ends of topic partitions are known, within the bounds.
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

// reached reports whether the broker has shown that the topic partition of an id reaches
// it. Ids do not name their topics, but a ledger belongs to exactly one. If that topic is
// not known, the ledger must be older than the broker's newest answer, so that no topic
// has begun it since, and the id must lie before the ends of all topic partitions of its
// number: then its own topic partition has gone on to another ledger. That needs the ends of
// all topics, which are only known of the cluster of the URL: another one, to which a topic
// has moved, numbers its ledgers by itself, and has topics whose move is not noticed yet.
func (a *Admission) reached(id event.MessageID) bool {
	if id.Ledger < 0 || id.Entry < 0 {
		return false // no broker assigns such an id
	}
	if a.unasked || id.IsCall() || id.IsSent() { // no broker has given these ids
		return true
	}
	at := event.Position{Ledger: id.Ledger, Entry: id.Entry}
	if i, ok := a.byLedger[id.Ledger]; ok {
		return a.ends[i].Partition == id.TopicPartition && !a.ends[i].Last.Before(at) // both clusters may have such a ledger
	}
	if id.Ledger > a.floor || !unmoved(id.TopicPartition) {
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

// unmoved reports whether the number of a topic partition is without the mark of another cluster.
func unmoved(partition int32) bool {
	return event.MessageID{TopicPartition: partition}.PartitionNumber() == partition
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

// add counts an id and appends it to Admitted if the result admits it.
func (o *Output) add(counts int, r Result, d event.Finished) {
	o.Judged[counts].Counts[r]++
	if r == Admitted || r == Keyless {
		o.Admitted = append(o.Admitted, d)
	}
}
