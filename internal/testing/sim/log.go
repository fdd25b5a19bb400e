package sim

import (
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/ownership"
)

// controlLog is the simulated control log: a total order of records, with all effects of a real
// one on its writers and readers.
type controlLog struct {
	w       *world
	records []logged // ascending; trimmed records are removed
	base    int      // how many are gone
	next    ownership.Position
	topic   int // counts deletions
	anchor  ownership.Position
	outage  time.Duration // the broker does not answer until then
	rolled  time.Duration // when the ledger changed
	epochs  time.Duration // when the last epoch that is on its way lands
	states  map[ownership.Position]uint64
	states2 map[ownership.Position]uint64 // of the records before those

	prefixes map[ownership.Position]uint64 // prefix hashes of the newest ledger
}

// logged is a record in the log.
type logged struct {
	at     ownership.Position
	data   []byte           // the bytes in the log
	record ownership.Record // the record as all members read it
	sum    uint64
	sent   time.Duration // by its sender, however long it was on its way
	landed time.Duration
}

// feed is one process's access to the log: a producer and a tail.
type feed struct {
	stalled time.Duration     // the tail brings nothing until then
	wedged  bool              // the tail brings nothing until its reader is opened again
	stuck   bool              // nor then
	fork    bool              // it brings another record in the place of the next Beat
	lies    bool              // the next Beat that is appended has a wrong prefix hash
	liedAt  time.Duration     // when one had
	cut     time.Duration     // neither half works until then
	skip    int               // records that the client will drop
	skips   func(logged) bool // of which kind; nil: any
	lag     time.Duration     // additional delay of each append
	beats   int               // under way
	lands   time.Duration

	reader  uint64
	open    bool
	reading bool
	topic   int
	next    int // absolute index of the next record
}

func newControlLog(w *world) *controlLog {
	return &controlLog{w: w, next: ownership.Position{Ledger: 10 + w.rng.Int64N(1000)}, states: map[ownership.Position]uint64{}, prefixes: map[ownership.Position]uint64{}}
}

// end is the absolute index of the record to come.
func (l *controlLog) end() int { return l.base + len(l.records) }

// find is the absolute index of the first record at or after a position.
func (l *controlLog) find(at ownership.Position) int {
	return l.base + sort.Search(len(l.records), func(i int) bool { return !l.records[i].at.Before(at) })
}

// at returns the record at a position.
func (l *controlLog) at(at ownership.Position) (logged, bool) {
	if i := l.find(at) - l.base; i < len(l.records) && l.records[i].at == at {
		return l.records[i], true
	}
	return logged{}, false
}

// newest is the position of the newest record.
func (l *controlLog) newest() ownership.Position {
	if len(l.records) == 0 {
		return ownership.Position{}
	}
	return l.records[len(l.records)-1].at
}

// sentAt returns the time at which the record at a position was sent; 0: it was lost.
func (l *controlLog) sentAt(at ownership.Position) time.Duration {
	x, _ := l.at(at)
	return x.sent
}

// down reports whether m can neither write nor read.
func (l *controlLog) down(m *member) bool {
	return l.w.now < l.outage || l.w.now < m.feed.cut
}

// reconnectMax is the greatest difference between the reconnects of two clients.
const reconnectMax = 500 * time.Millisecond

// upAgain returns the time at which m's client works again: clients reconnect at different speeds.
func (l *controlLog) upAgain(m *member) time.Duration {
	return max(l.outage, m.feed.cut) + l.w.between(0, reconnectMax)
}

// liesApart is the least time between two lies of a router: Beats that land late must not bring them in a row, which would be
// taken for another log.
const liesApart = 15 * time.Second

// beatsMax is the number of Beats that a producer has in flight at most, as in internal/controllog.
const beatsMax = 2

// append sends a record. Records of one producer keep their order, but for those that
// chance lets land late.
func (l *controlLog) append(m *member, record ownership.Record) {
	w, f, incarnation := l.w, &m.feed, m.incarnation
	beat, isBeat := record.Body.(*ownership.Beat)
	done := func(failed bool) {
		m.driver.later(w.hop(), func() {
			if isBeat {
				f.beats--
			}
			if m.incarnation == incarnation {
				m.deliver(ownership.AppendDone{Record: record, Failed: failed})
			}
		})
	}
	if isBeat {
		f.beats++
		if f.beats > beatsMax {
			done(true)
			return
		}
		if f.lies && (f.liedAt == 0 || w.now-f.liedAt > liesApart) {
			f.lies, f.liedAt = false, w.now
			record.Body = w.lie(beat)
		}
	}
	delay := w.between(w.p.appendMin, w.p.appendMax) + f.lag
	late := w.chance(w.p.late)
	if late {
		delay = w.between(10*time.Millisecond, 6*time.Second)
		w.count("late")
		m.touched = w.now + delay
	}
	if l.down(m) {
		up := l.upAgain(m) - w.now
		if up > m.cfg.Timing.Lease { // the producer's send timeout
			failed := done
			w.after(m.cfg.Timing.Lease, func() { failed(true) })
			if w.chance(0.7) {
				return
			}
			done = func(bool) {} // it lands all the same
		}
		delay += up // queued records are sent when the broker is back
		w.count("flushed")
	}
	at := w.now + delay
	if !late {
		at = max(at, f.lands)
		f.lands = at
	}
	if _, isEpoch := record.Body.(*ownership.Epoch); isEpoch {
		l.epochs = max(l.epochs, at)
	}
	topic, sent := l.topic, w.now
	w.after(at-w.now, func() { // the record is on its way, even if its sender dies
		if l.topic != topic {
			done(true)
			return
		}
		if w.now < l.outage && !late {
			w.after(l.outage-w.now+w.between(0, reconnectMax), func() { l.landUnless(topic, record, sent); done(false) })
			return
		}
		l.land(record, sent)
		if w.chance(w.p.duplicate) {
			w.count("duplicate")
			w.after(w.between(0, time.Second), func() { l.landUnless(topic, record, sent) })
		}
		done(w.chance(w.p.lostAck))
	})
}

func (l *controlLog) landUnless(topic int, record ownership.Record, sent time.Duration) {
	if l.topic == topic {
		l.land(record, sent)
	}
}

// land puts a record into the log.
func (l *controlLog) land(record ownership.Record, sent time.Duration) {
	w := l.w
	x := logged{at: l.next, sent: sent, landed: w.now}
	var err error
	if x.data, err = controllog.Encode(record); err == nil {
		record, err = controllog.Decode("g", x.data)
	}
	if err != nil {
		w.fail("a record is not read as it was written: %v", err)
		return
	}
	x.record, x.sum = record, controllog.SumOf(x.data)
	w.count("record_as_bytes")
	l.records = append(l.records, x)
	if w.tracing {
		w.tracef("log %v: %s %s", l.next, w.nameOf(record.Inc), describe(w, record.Body))
	}
	w.checkLanded(record)
	l.next.Entry++
	for _, m := range w.live {
		l.read(m)
	}
}

// openReader gives m a new tail.
func (l *controlLog) openReader(m *member, e ownership.OpenReader) {
	f, w, incarnation := &m.feed, l.w, m.incarnation
	f.reader, f.open, f.reading = e.Reader, false, false
	m.driver.later(w.between(time.Millisecond, 15*time.Millisecond), func() {
		if m.incarnation != incarnation || f.reader != e.Reader {
			return
		}
		if l.down(m) {
			m.deliver(ownership.ReaderFailed{Reader: e.Reader})
			return
		}
		f.wedged = false
		f.open, f.topic, f.next = true, l.topic, l.end()
		if w.now < f.stalled && w.chance(0.7) {
			f.stalled = 0 // the new reader found another broker
		}
		if !e.At.IsZero() {
			f.next = l.find(e.At)
		}
		m.deliver(ownership.ReaderOpened{Reader: e.Reader})
		l.read(m)
	})
}

// read brings m the arrived records, a little later.
func (l *controlLog) read(m *member) {
	f, w := &m.feed, l.w
	if f.reading || !f.open || m.process.dead || f.topic == l.topic && f.next >= l.end() {
		return
	}
	f.reading = true
	reader, incarnation := f.reader, m.incarnation
	delay := w.between(w.p.readMin, w.p.readMax)
	if blocked := max(f.stalled, f.cut, l.outage); blocked > w.now {
		delay = max(delay, blocked-w.now+w.between(0, 300*time.Millisecond))
	}
	w.after(delay, func() {
		if m.incarnation != incarnation || m.feed.reader != reader {
			return // another reader takes its place
		}
		f.reading = false
		if f.wedged || f.stuck {
			return
		}
		if w.now < f.stalled || l.down(m) {
			l.read(m)
			return
		}
		l.bring(m)
	})
}

// bring hands m's driver the records that its reader has.
func (l *controlLog) bring(m *member) {
	f, w := &m.feed, l.w
	if f.topic != l.topic { // the client silently continues with the new topic
		f.topic, f.next = l.topic, l.base
	}
	if f.next < l.base { // trimmed under a slow reader, without an error
		w.count("trimmed_under_reader")
		f.next = l.base
	}
	reader, incarnation := f.reader, m.incarnation
	for f.next < l.end() {
		x := l.records[f.next-l.base]
		f.next++
		if f.skip > 0 && (f.skips == nil || f.skips(x)) {
			f.skip--
			w.count("hole")
			w.allowLost()
			continue
		}
		if f.fork {
			x = w.forked(m, x)
		}
		m.driver.act(func() {
			if m.incarnation == incarnation && m.feed.reader == reader {
				m.deliver(ownership.RecordRead{Reader: reader, At: x.at, Record: x.record, Sum: x.sum})
			}
		})
	}
}

// check is a short reader of the contiguity rule.
func (l *controlLog) check(m *member, e ownership.CheckContiguity) {
	w, incarnation := l.w, m.incarnation
	w.count("check")
	m.driver.later(w.between(time.Millisecond, 20*time.Millisecond), func() {
		if m.incarnation != incarnation {
			return
		}
		a := ownership.CheckAnswer{Check: e.Check, Failed: l.down(m) || w.chance(w.p.checkFails)}
		i := l.find(e.Last) - l.base
		if i+1 >= len(l.records) {
			a.Failed = true
		}
		if a.Failed {
			m.touch(0)
		} else {
			a.First, a.Second = l.records[i].at, l.records[i+1].at
		}
		m.deliver(a)
	})
}

// readFirst looks for a record of a group before a cold start.
func (l *controlLog) readFirst(m *member, e ownership.ReadFirst) {
	incarnation := m.incarnation
	m.driver.later(l.w.between(time.Millisecond, 50*time.Millisecond), func() {
		if m.incarnation != incarnation {
			return
		}
		first := l.next
		if len(l.records) > 0 {
			first = l.records[0].at
		}
		held := slices.ContainsFunc(l.records, func(x logged) bool {
			return x.at.Before(e.Before) && ownership.HoldsGroup(x.at, x.record)
		})
		answer := ownership.FirstRead{Read: e.Read, Virgin: !held, Told: l.told(ownership.Position{}, e.Before), Failed: l.down(m), First: first, HadGroup: l.w.hadGroup, HadGen: l.w.hadGen}
		if held {
			list, all := l.reserved(e.Before, e.Partitions)
			answer.Reserved, answer.Crowded = list, !all
		}
		m.deliver(answer)
	})
}

// told returns the greatest token that routers name in Hellos from one position up to before another.
func (l *controlLog) told(from, before ownership.Position) (greatest ownership.Token) {
	for _, x := range l.records {
		if h, ok := x.record.Body.(*ownership.Hello); ok && !x.at.Before(from) && x.at.Before(before) {
			greatest = max(greatest, h.Floor)
		}
	}
	return greatest
}

// reserved reads what the log says of reservations, from the anchor to before a position.
func (l *controlLog) reserved(before ownership.Position, partitions int) (list []ownership.Reserved, all bool) {
	s := ownership.Stretch{Partitions: partitions}
	for _, x := range l.records {
		if x.at.Before(before) && l.anchor.Before(x.at) {
			s.Read(x.at, x.record)
		}
	}
	return s.List()
}

// moveAnchor lets the broker trim the records at or before it, once its ledger is closed. The broker ignores an anchor beyond the end: a
// member may have read it in an earlier topic, with greater ledgers (controllog.TestPulsarIgnoresAnAnchorAhead).
func (l *controlLog) moveAnchor(to ownership.Position) {
	if !to.Before(l.next) {
		l.w.count("anchor_ahead")
		return
	}
	if l.anchor.Before(to) {
		l.anchor = to
	}
	l.w.count("anchor")
}

// rollover closes the ledger, as an unload does. Trimming comes with it.
func (l *controlLog) rollover() {
	if l.next.Entry == 0 {
		return
	}
	l.next = ownership.Position{Ledger: l.next.Ledger + 1 + l.w.rng.Int64N(3)}
	l.rolled = l.w.now
	l.w.tracef("log: rollover to %v", l.next)
	l.drop(func(x logged) bool { return x.at.Ledger < l.anchor.Ledger }) // only whole closed ledgers
	l.states, l.states2, l.prefixes = map[ownership.Position]uint64{}, l.states, map[ownership.Position]uint64{}
}

// drop trims the oldest records, as long as they are to go.
func (l *controlLog) drop(gone func(logged) bool) {
	n := slices.IndexFunc(l.records, func(x logged) bool { return !gone(x) })
	if n < 0 {
		n = len(l.records)
	}
	if n > 0 {
		l.w.count("trimmed")
	}
	l.records = slices.Clone(l.records[n:])
	l.base += n
}

// delete deletes the topic by force. Later records go to a new one, whose ledgers have greater
// ids, unless the metadata was rebuilt.
func (l *controlLog) delete(next ownership.Position) {
	l.topic++
	l.rolled = l.w.now
	l.base = l.end()
	l.records = nil
	l.next, l.anchor = next, ownership.Position{}
	l.states, l.states2, l.prefixes = map[ownership.Position]uint64{}, nil, map[ownership.Position]uint64{}
	l.w.allowLost()
	l.w.forgetPromises()
	l.w.tracef("log: deleted, goes on at %v", next)
}

func names(w *world, incs []ownership.Incarnation) []string {
	all := make([]string, len(incs))
	for i, inc := range incs {
		all[i] = w.nameOf(inc)
	}
	return all
}

func describe(w *world, b ownership.Body) string {
	switch b := b.(type) {
	case *ownership.Beat:
		return fmt.Sprintf("beat %d, applied %v, ready %t, acquired %x, draining %x, cannot reach %v",
			b.Seq, b.Applied, b.Ready, []uint64(b.Acquired), []uint64(b.Draining), names(w, b.Unreachable))
	case *ownership.Epoch:
		return fmt.Sprintf("epoch after %v (%s): %v of %v", b.Prev, b.Reason, b.Table, names(w, b.Members))
	case *ownership.Genesis:
		return fmt.Sprintf("genesis, generation %d, base %v, reserved %v", b.Gen, b.Base, b.Reserved)
	case *ownership.Hello:
		return fmt.Sprintf("hello, needs state: %t", b.NeedState)
	case *ownership.Snap:
		return fmt.Sprintf("snap for the hello at %v", b.ForHello)
	case *ownership.Reservations:
		return fmt.Sprintf("reservations %d, applied %v, take %v, drop %v", b.Seq, b.Applied, b.Take, b.Drop)
	}
	return "unreadable"
}
