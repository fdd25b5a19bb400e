package source

import (
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/invariant"
)

// Spill configures when events that are open for a long time are copied to the retry topic and
// acked although they wait or run, so that a few of them do not use up the broker's
// allowance of unacked events.
type Spill struct {
	// PinnedMax is the number of unacked events of one topic partition, as the broker counts
	// them, at which spilling begins. Spilling begins at 45 % of the allowance at the latest,
	// even if this is higher.
	PinnedMax int `min:"1"`
	// KeyShareMax is the share of the open events that one key may have once more than half of
	// the limit is open: the newer events of the key are spilled.
	KeyShareMax float64 `above:"0" max:"1"`
	// After is how long an event is open, at least, before it is spilled because its entry pins
	// many others, or because of its key's share. An event whose entry pins many is first given as much additional time as the rest of the entry took.
	After time.Duration `above:"0"`
	// StuckAfter is the age at which any open event is spilled.
	StuckAfter time.Duration `above:"0"`
	// RateMax is the greatest number of events spilled per second. Copies with a delay are never
	// batched: a broker takes about 10,000 of them per second, of all members together.
	RateMax int `min:"1"`
	// DelayMin is the delay of a spilled event. It grows eightfold with every further round
	// of the same event, up to DelayMax, so that the events of a stuck key make few rounds.
	// At least a second, the resolution of the broker's delays.
	DelayMin time.Duration `min:"1s"`
	// DelayMax is the longest delay of a spilled event. Mailboxes must remember finished events
	// for longer than this, or an event that was running when its copy was made may run again.
	DelayMax time.Duration `min:"1s"`
	// RoundsMax is the number of times that an event may be copied to the retry topic, for any
	// reason; then it goes to the dead letter topic.
	RoundsMax int `min:"1" max:"2147483647"`
}

// Further constants of spilling.
const (
	// pinningPart is the part of an entry that may be open for the entry to count as one
	// that pins many: one copy frees at least so many events.
	pinningPart = 10
	// lateFactor decides when the last events of such an entry are late: at this multiple of the age that the entry
	// had when it began to pin many. Where all events of a full group take seconds, the last events of an entry take
	// little longer than the others, and copies of them would only cost.
	lateFactor = 2
	// spillsPerEnd is the number of spills allowed per event that is settled another way.
	// If an application makes no progress, spilling would only move its backlog.
	spillsPerEnd = 4
	// delayGrowth is the factor between the delays of two rounds of an event.
	delayGrowth = 8
	// sharesEvery is the interval at which keys are counted, which visits all open events.
	sharesEvery = time.Second
)

// DefaultSpill returns bounds for a stock broker: some half of its allowance for one
// consumer, and rounds for some days.
func DefaultSpill() Spill {
	return Spill{
		PinnedMax:   25_000,
		KeyShareMax: 0.1,
		After:       time.Second,
		StuckAfter:  30 * time.Second,
		RateMax:     3000,
		DelayMin:    5 * time.Second,
		DelayMax:    5 * time.Minute,
		RoundsMax:   1000,
	}
}

// delay returns when the next copy of an event that was copied rounds times comes back.
func (c Spill) delay(rounds uint32) time.Duration {
	d := c.DelayMin
	for ; rounds > 0 && d < c.DelayMax; rounds-- {
		d *= delayGrowth
	}
	return min(d, c.DelayMax)
}

// Bounds are the bounds by which a ledger chooses events to spill.
type Bounds struct {
	Spill
	UnsettledMax int // of the whole ledger
	BytesMax     int // of the whole ledger
}

// spill is the part of a ledger's state that chooses events to spill.
type spill struct {
	bounds  Bounds
	budget  float64       // number of events that may be spilled now
	earned  clock.Instant // when budget last grew
	ended   uint64        // events that came to their end in another way since then
	excess  excess
	counted clock.Instant // when keys were last counted
	keys    map[event.Key]keyShare
}

// excess is by how much the ledger exceeds its bounds; negative if it does not. It falls with each chosen event.
type excess struct {
	unacked []int // by origin
	events  int
	bytes   int
}

// keyShare is one key's part of a ledger.
type keyShare struct{ events, bytes int }

// Bound sets the bounds. A ledger without them spills nothing.
func (l *Ledger) Bound(b Bounds) {
	if l.spill.bounds.RateMax == 0 {
		l.spill.budget = float64(b.RateMax)
	}
	l.spill.bounds = b
}

// HandedOn says that all events that were received have been handed on, but for those of copies that are not due yet: they have
// their keys now, and may be spilled.
func (l *Ledger) HandedOn() { l.batch++ }

// due says that an entry that came too early is about to be handed on.
func (l *Ledger) due(first event.Handle) {
	if o := l.bySerial[first.Serial()]; o != nil {
		o.held, o.batch = false, l.batch
	}
}

// Spill chooses events to be copied to the retry topic, oldest first, and returns their
// handles: the caller makes a copy of each ([Ledger.Sending]), and then calls [Ledger.Copied]
// or [Ledger.NotCopied]. Until then nothing else changes for the event.
//
// It chooses while the broker counts more than PinnedMax events of a topic partition as
// unacked, or more than half of UnsettledMax or BytesMax is open. While neither is the case it
// costs nothing; otherwise it checks the events that are open for longer than Spill.After.
func (l *Ledger) Spill(now clock.Instant) (chosen []event.Handle) {
	s := &l.spill
	if s.bounds.RateMax == 0 {
		return nil
	}
	l.now = now
	s.earn(now)
	if !l.measure() || s.budget < 1 {
		return nil
	}
	countKeys := now.Sub(s.counted) >= sharesEvery
	if countKeys {
		s.counted = now
	}
	for o := l.oldest; o != nil && s.budget >= 1; o = o.newer {
		age := now.Sub(o.received)
		if age < s.bounds.After {
			break
		}
		if !l.isHandedOn(o) {
			continue
		}
		switch {
		case l.frees(o, now):
			chosen = l.spillEntry(o, chosen)
		case countKeys:
			chosen = l.spillShares(o, chosen)
		}
	}
	clear(s.keys) // they alias their entries, which could not be freed
	return chosen
}

// earn lets the budget grow by RateMax events per second, but by no more than spillsPerEnd for each event that has ended
// since the last call, and to one second's worth at most.
func (s *spill) earn(now clock.Instant) {
	rate := float64(s.bounds.RateMax)
	s.budget = min(rate, s.budget+min(rate*now.Sub(s.earned).Seconds(), float64(spillsPerEnd*s.ended)))
	s.earned, s.ended = now, 0
}

// measure computes the excess anew, and reports whether any part of it is positive.
func (l *Ledger) measure() bool {
	x, b := &l.spill.excess, &l.spill.bounds
	x.events, x.bytes = l.stats.Unsettled-b.UnsettledMax/2, l.stats.Bytes-b.BytesMax/2
	x.unacked = x.unacked[:0]
	over := x.events > 0 || x.bytes > 0
	for i := range l.origins {
		unacked := l.origins[i] - b.PinnedMax
		x.unacked = append(x.unacked, unacked)
		over = over || unacked > 0
	}
	return over
}

// frees reports whether an entry contributes to the excess, and all of its open events should
// be spilled to free it.
func (l *Ledger) frees(o *openEntry, now clock.Instant) bool {
	x := &l.spill.excess
	stuck := now.Sub(o.received) >= l.spill.bounds.StuckAfter
	return (stuck || now >= o.late) && (x.unacked[o.origin] > 0 || x.bytes > 0) || stuck && x.events > 0
}

// pinsMany reports whether few events of an entry keep many others unacked.
func (l *Ledger) pinsMany(o *openEntry) bool {
	return l.counting == CountEntries && o.n <= o.total/pinningPart
}

// spillEntry chooses all open events of an entry, as far as the budget allows.
func (l *Ledger) spillEntry(o *openEntry, dst []event.Handle) []event.Handle {
	x := &l.spill.excess
	x.unacked[o.origin] -= l.unackedOf(o)
	x.events -= o.n
	x.bytes -= o.entry.Bytes
	if o.spilling == o.n {
		return dst
	}
	for i := range o.events.All() {
		dst = l.choose(o, i, dst)
	}
	return dst
}

// spillShares chooses those open events of an entry whose keys have had their share
// with older ones.
func (l *Ledger) spillShares(o *openEntry, dst []event.Handle) []event.Handle {
	s := &l.spill
	if s.keys == nil {
		s.keys = make(map[event.Key]keyShare)
	}
	events := s.bounds.KeyShareMax * float64(min(s.bounds.UnsettledMax, s.bounds.PinnedMax))
	bytes := s.bounds.KeyShareMax * float64(s.bounds.BytesMax)
	for i := range o.events.All() {
		key := o.entry.Key(i)
		had := s.keys[key]
		had.events++
		had.bytes += o.entry.Weight(i)
		s.keys[key] = had
		if had.events > 1 && (float64(had.events) > events || float64(had.bytes) > bytes) {
			dst = l.choose(o, i, dst)
		}
	}
	return dst
}

// isHandedOn reports whether the sink has had an entry, so that its events have their keys. The number of a batch may
// wrap around, hence the signed difference.
func (l *Ledger) isHandedOn(o *openEntry) bool { return !o.held && int32(o.batch-l.batch) < 0 }

// choose lets one open event be spilled, unless something settles it already.
func (l *Ledger) choose(o *openEntry, index int, dst []event.Handle) []event.Handle {
	h := o.entry.Handle(index)
	if o.claims > 0 && l.claims[h] != unclaimed || l.spill.budget < 1 {
		return dst
	}
	l.spill.budget--
	l.claim(o, h, spilling)
	return append(dst, h)
}

// Sending says that the copy of an event that was chosen by [Ledger.Spill] is being sent. It
// returns false if no copy is needed, because its verdict came first.
func (l *Ledger) Sending(h event.Handle) (event.Message, bool) {
	o := l.find(h)
	if o == nil || l.claims[h] != spilling {
		return event.Message{}, false
	}
	l.claim(o, h, sending)
	return o.entry.Message(h.Index()), true
}

// NotCopied reverts [Ledger.Sending] after the copy has failed: it will be sent again.
func (l *Ledger) NotCopied(h event.Handle) {
	if o := l.find(h); o != nil && invariant.Check(l.claims[h] == sending, "source: a copy failed that nobody has sent") {
		l.claim(o, h, spilling)
	}
}

// MostUnacked returns the largest number of unacked events of one origin, as the broker
// counts them.
func (l *Ledger) MostUnacked() int {
	most := 0
	for _, unacked := range l.origins {
		most = max(most, unacked)
	}
	return most
}
