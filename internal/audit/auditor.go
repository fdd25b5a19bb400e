package audit

import (
	"math"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

// Handling is one run of a handler, by the clock of its [Source].
type Handling = event.Handling

// ClockID names the clock of a machine: two processes with one ClockID read the same clock. The zero ClockID is unlike
// every other, itself included.
type ClockID [16]byte

// Source is a process that reports handlings, and its clock.
type Source struct {
	Name  string // of the member, for people
	Clock ClockID
}

// SourceID names a registered [Source] of one Auditor.
type SourceID uint16

// Mapping turns an instant of a source's clock into the judge's: instant + Shift, give or take Slack. The zero Mapping is
// that of the judge's own clock.
type Mapping struct {
	Shift      time.Duration
	StartSlack time.Duration // of Handling.Start; not negative
	EndSlack   time.Duration // of Handling.End; not negative
}

// Side is one of two handlings that were compared.
type Side struct {
	Handling
	Source Source
}

// Finding is a pair of handlings of one key that overlapped.
type Finding struct {
	First, Second Side          // First began earlier, if the clocks can tell
	For           time.Duration // the least time for which both ran; more than 0
}

// Reason tells why handlings could not be compared.
type Reason uint8

// The reasons.
const (
	Clocks      Reason = iota // the clocks of two machines do not agree well enough
	Forgotten                 // earlier handlings of the key, or of one that shares its memory, are forgotten
	Crowded                   // more handlings than can be compared ran at the same time
	Implausible               // the interval does not lie between the sending of the delivery and the arrival of the result
	reasons
)

// String returns the reason as metrics have it.
func (r Reason) String() string {
	return [reasons]string{"clocks", "forgotten", "crowded", "implausible"}[r]
}

// Reasons lists all reasons.
func Reasons() []Reason { return []Reason{Clocks, Forgotten, Crowded, Implausible} }

// Counts are totals since the Auditor was made.
type Counts struct {
	Handlings uint64          // taken in
	Overlaps  uint64          // pairs of handlings
	Undecided [reasons]uint64 // handlings, by Reason
}

// Bounds of one handling's comparison.
const (
	stepsMax    = 4096 // handlings that it is compared with
	findingsMax = 16   // overlaps that are shown; all are counted
)

// sourcesMax is how many sources an Auditor knows at a time.
const sourcesMax = 1024

// record is a handling in the ring. It fills a line of the CPU's cache.
type record struct {
	key        uint64
	start, end time.Duration // by the source's clock
	before     time.Duration // by the judge's clock: the latest possible end of all earlier records of its chain; never if there was none
	token      int64
	turn       uint64
	back       uint32 // how many records earlier the previous one of the chain is; 0: none
	worker     uint32
	source     SourceID
	partition  partition.ID
}

// head is the newest record of a chain, the keys that share a part of their hash.
type head struct {
	number uint64        // of the record, plus 1; 0: none ever
	reach  time.Duration // by the judge's clock: the latest possible end of all records of the chain, those that left the ring too
}

// never is before all instants.
const never = time.Duration(math.MinInt64)

// headsMax is small enough that the heads, one of which each handling reads, fit into a cache of the processor, and
// large enough that few keys share a chain: concurrent handlers of other keys in the same chain are compared in vain.
const headsMax = 1 << 14

const (
	headBytes   = 16
	recordBytes = 64 + 24 // and its Mapping
)

// Auditor compares handlings. It is not safe for concurrent use.
type Auditor struct {
	ring     []record
	count    uint64    // records ever; record n is at ring[n%len(ring)]
	next     int       // count%len(ring)
	heads    []head    // by hash of a key
	mappings []Mapping // of the records in the ring; nil as long as all are zero

	sources []registered
	counts  Counts
	warm    [32]uint64 // scratch of Add
}

type registered struct {
	Source
	last uint64 // the number of its newest record, plus 1
}

// New returns an Auditor that takes at most about memory bytes, and at least a few kilobytes.
func New(memory int) *Auditor {
	heads := headsMax
	for heads > 1 && heads*headBytes > memory/4 {
		heads /= 2
	}
	return &Auditor{ring: make([]record, max((memory-heads*headBytes)/recordBytes, 16)), heads: make([]head, heads)}
}

// Register returns the id of a source, and registers it if necessary. The first source keeps its id for good. Any
// other source may lose its id to a later Register once none of its handlings is in memory. ok is false if there is
// no room: all others have handlings in memory.
func (a *Auditor) Register(s Source) (id SourceID, ok bool) {
	free := -1
	for i := range a.sources {
		switch r := &a.sources[i]; {
		case r.Source == s:
			return SourceID(i), true
		case free < 0 && i > 0 && r.last <= a.oldest():
			free = i
		}
	}
	switch {
	case free >= 0:
	case len(a.sources) < sourcesMax:
		a.sources = append(a.sources, registered{})
		free = len(a.sources) - 1
	default:
		return 0, false
	}
	a.sources[free] = registered{Source: s}
	return SourceID(free), true
}

// oldest returns the number of the oldest record in the ring.
func (a *Auditor) oldest() uint64 {
	return a.count - min(a.count, uint64(len(a.ring)))
}

// Counts returns the totals.
func (a *Auditor) Counts() Counts { return a.counts }

// Undecided counts handlings that the caller could not hand over, or must not.
func (a *Auditor) Undecided(r Reason, handlings int) { a.counts.Undecided[r] += uint64(handlings) }

// Add takes handlings of a source in, compares each with those of its key, and appends the overlaps to dst.
func (a *Auditor) Add(from SourceID, m Mapping, handlings []Handling, dst []Finding) []Finding {
	if m != (Mapping{}) && a.mappings == nil {
		a.mappings = make([]Mapping, len(a.ring))
	}
	before := a.count
	for len(handlings) > 0 {
		n := min(len(handlings), len(a.warm))
		for i := range n { // first this alone, so that cache misses overlap
			a.warm[i] = a.chainOf(uint64(handlings[i].Key)).number
		}
		for i := range n {
			dst = a.add(from, &m, &handlings[i], dst)
		}
		handlings = handlings[n:]
	}
	if a.count > before {
		a.sources[from].last = a.count
	}
	return dst
}

func (a *Auditor) add(from SourceID, m *Mapping, h *Handling, dst []Finding) []Finding {
	if h.End < h.Start {
		a.counts.Undecided[Implausible]++
		return dst
	}
	a.counts.Handlings++
	chain := a.chainOf(uint64(h.Key))
	before := never
	if chain.number > 0 {
		before = chain.reach
	}
	if before > m.earliest(h.Start) { // else all earlier ones have ended
		r := compared{m: *m}
		r.set(from, h, before, 0)
		var known bool
		if dst, known = a.compare(&r, chain.number, dst); known {
			return dst
		}
	}
	back := uint32(0)
	if chain.number > a.oldest() {
		back = uint32(a.count - (chain.number - 1))
	}
	a.ring[a.next].set(from, h, before, back) // in the place of the oldest one
	if a.mappings != nil {
		a.mappings[a.next] = *m
	}
	if a.next++; a.next == len(a.ring) {
		a.next = 0
	}
	a.count++
	chain.number, chain.reach = a.count, max(before, m.latest(h.End))
	return dst
}

// set writes a handling, field by field: it is the memory of the ring, and a copy would cost as much again.
func (r *record) set(from SourceID, h *Handling, before time.Duration, back uint32) {
	r.key, r.start, r.end, r.before = uint64(h.Key), h.Start, h.End, before
	r.token, r.turn, r.back, r.worker, r.source, r.partition = h.Fence.Token, h.Fence.Turn, back, h.Worker, from, h.Partition
}

// compared is a record that is compared with another.
type compared struct {
	record

	m Mapping
}

// compare compares r with the chain that begins with the record of a number, less 1. known says that r is in it already.
func (a *Auditor) compare(r *compared, number uint64, dst []Finding) (_ []Finding, known bool) {
	begins, unsure, shown, oldest := r.m.earliest(r.start), false, 0, a.oldest()
	reach := r.before
	for steps := 0; reach > begins; steps++ { // else those that are left have ended
		if number <= oldest { // they are forgotten
			a.counts.Undecided[Forgotten]++
			return dst, false
		}
		if steps == stepsMax {
			a.counts.Undecided[Crowded]++
			return dst, false
		}
		other := a.at(number - 1)
		if other.key == r.key {
			if other.source == r.source && other.start == r.start && other.end == r.end && other.turn == r.turn && other.token == r.token {
				return dst, true
			}
			other := a.withMapping(number - 1)
			overlap, sure := a.overlap(&other, r)
			unsure = unsure || !sure
			if sure && overlap > 0 {
				a.counts.Overlaps++
				if shown++; shown <= findingsMax {
					dst = append(dst, a.finding(&other, r, overlap))
				}
			}
		}
		reach = other.before
		if other.back == 0 {
			number = 0
		} else {
			number -= uint64(other.back)
		}
	}
	if unsure {
		a.counts.Undecided[Clocks]++
	}
	return dst, false
}

// overlap returns the least time for which two handlings of a key both ran, 0 or less if they did not. sure says that no
// reading of the clocks tells otherwise.
func (a *Auditor) overlap(x, y *compared) (least time.Duration, sure bool) {
	if x.source == y.source || a.sources[x.source].Clock == a.sources[y.source].Clock && a.sources[x.source].Clock != (ClockID{}) && x.m.agrees(&y.m) {
		least = min(x.end, y.end) - max(x.start, y.start)
		if least == 0 && (x.isWithin(&y.record) || y.isWithin(&x.record)) {
			least = 1
		}
		return least, true
	}
	least = min(x.end+x.m.Shift-x.m.EndSlack, y.end+y.m.Shift-y.m.EndSlack) - max(x.start+x.m.Shift+x.m.StartSlack, y.start+y.m.Shift+y.m.StartSlack)
	if least > 0 {
		return least, true
	}
	most := min(x.m.latest(x.end), y.m.latest(y.end)) - max(x.m.earliest(x.start), y.m.earliest(y.start))
	return 0, most < 0 || most == 0 && x.start < x.end && y.start < y.end // an instant may lie within the other one
}

func (a *Auditor) finding(x, y *compared, overlap time.Duration) Finding {
	first, second := a.side(&x.record), a.side(&y.record)
	if y.start+y.m.Shift < x.start+x.m.Shift {
		first, second = second, first
	}
	return Finding{First: first, Second: second, For: overlap}
}

func (a *Auditor) side(r *record) Side {
	return Side{Source: a.sources[r.source].Source, Handling: r.handling()}
}

// Since appends to dst the newest handlings of a source for which want holds and which ended after an instant of its
// clock, most at the most, the newest first. It returns the latest end of those for which there was no room, 0 if there were none: an
// overlap with these, or with forgotten handlings, cannot be seen from dst.
func (a *Auditor) Since(from SourceID, instant time.Duration, want func(partition.ID) bool, most int, dst []Handling) (_ []Handling, omitted time.Duration) {
	for number := a.count; number > a.oldest(); number-- {
		r := a.at(number - 1)
		if r.source != from || r.end <= instant || !want(r.partition) {
			continue
		}
		if len(dst) == most {
			omitted = max(omitted, r.end)
			continue
		}
		dst = append(dst, r.handling())
	}
	return dst, omitted
}

// withMapping returns a record with its Mapping.
func (a *Auditor) withMapping(number uint64) compared {
	c := compared{record: *a.at(number)}
	if a.mappings != nil {
		c.m = a.mappings[number%uint64(len(a.ring))]
	}
	return c
}

func (a *Auditor) at(number uint64) *record { return &a.ring[number%uint64(len(a.ring))] }

func (a *Auditor) chainOf(key uint64) *head { return &a.heads[spread(key)&uint64(len(a.heads)-1)] }

// spread mixes the bits of a key's hash: its reporter is not trusted to have hashed the key.
func spread(key uint64) uint64 {
	key ^= key >> 32
	key *= 0xd6e8feb86659fd93
	return key ^ key>>29
}

// earliest is when a handling may have started, and latest when it may have ended, by the judge's clock.
func (m *Mapping) earliest(start time.Duration) time.Duration { return start + m.Shift - m.StartSlack }

func (m *Mapping) latest(end time.Duration) time.Duration { return end + m.Shift + m.EndSlack }

// agrees reports whether both mappings can be of one clock. Those of machines with one ClockID do not if one is a clone of the other.
func (m *Mapping) agrees(other *Mapping) bool {
	return (m.Shift - other.Shift).Abs() <= max(m.StartSlack, m.EndSlack)+max(other.StartSlack, other.EndSlack)
}

// isWithin reports whether r has no length, as a clock with coarse steps shows a short handling, and lies within the
// other one.
func (r *record) isWithin(other *record) bool {
	return r.start == r.end && other.start < r.start && r.end < other.end
}

func (r *record) handling() Handling {
	return Handling{
		Key: partition.KeyHash(r.key), Partition: r.partition, Worker: r.worker, Fence: event.Fence{Token: r.token, Turn: r.turn}, Start: r.start, End: r.end,
	}
}
