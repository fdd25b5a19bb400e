package source_test

import (
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/source"
)

// For any sequence of deliveries, verdicts, spills and closings, under both ways of counting, the ledger agrees with a model that keeps
// every event in a map: each event has one end, each ack comes when it is due and names what it should, and the counts are right.
func TestLedgerAgainstAModel(t *testing.T) {
	for name, counting := range map[string]source.Counting{"entries": source.CountEntries, "events": source.CountEvents} {
		t.Run(name, func(t *testing.T) {
			chosen := 0
			rapid.Check(t, func(t *rapid.T) { chosen += checkLedger(t, counting) })
			if chosen == 0 {
				t.Error("nothing was ever spilled; this run proved nothing")
			}
		})
	}
}

// modelClaim is what may settle an open event, as in the ledger.
type modelClaim string

const (
	free     modelClaim = "free"
	spilling modelClaim = "spilling"
	sending  modelClaim = "sending"
	claimed  modelClaim = "claimed"
)

// modelEntry is the fresh events of one receipt, until all of them are settled.
type modelEntry struct {
	entry   *event.Entry
	id      source.EntryID
	ref     any // of the newest receipt
	origin  int32
	arrived clock.Instant
	handed  bool
	got     event.Bits
	open    map[int]modelClaim
}

// modelID is an entry of the broker that was ever delivered.
type modelID struct {
	id   source.EntryID
	size int
	has  event.Bits // those that compaction has left
}

type ledgerModel struct {
	l        *source.Ledger
	counting source.Counting
	bounds   source.Bounds
	now      clock.Instant
	entries  []*modelEntry // open, oldest first
	ids      []modelID
	old      []event.Handle // of events that are settled, or were open at a closing
	firsts   map[event.Handle]bool
	receipts int
	chosen   int // events that were spilled

	acks, asTheyCame []source.Ack
}

func checkLedger(t *rapid.T, counting source.Counting) int {
	m := &ledgerModel{
		counting: counting, now: 1, l: source.NewLedger(counting), firsts: map[event.Handle]bool{},
		old: []event.Handle{0, event.NewHandle(1<<40, 3), event.NewRelayedHandle(1, 0)}, // never given
	}
	m.bounds = source.Bounds{Spill: source.DefaultSpill()}
	m.bounds.PinnedMax = rapid.IntRange(1, 200).Draw(t, "PinnedMax")
	m.bounds.UnsettledMax = rapid.IntRange(2, 300).Draw(t, "UnsettledMax")
	m.bounds.BytesMax = rapid.IntRange(600, 100_000).Draw(t, "BytesMax")
	m.bounds.KeyShareMax = rapid.Float64Range(0.1, 1).Draw(t, "KeyShareMax")
	m.bounds.RateMax = rapid.IntRange(1, 200).Draw(t, "RateMax")
	m.l.Bound(m.bounds)
	t.Repeat(map[string]func(*rapid.T){
		"new entry":      m.newEntry,
		"another entry":  m.newEntry, // so that several are open at times
		"entry again":    m.again,
		"passed on":      func(*rapid.T) { m.passOn() },
		"done":           m.done,
		"done elsewhere": m.doneElsewhere,
		"settle":         m.settle,
		"wait":           m.wait,
		"spill":          m.spill,
		"sending":        m.sending,
		"copied":         m.copied,
		"not copied":     m.notCopied,
		"close":          m.close,
		"":               m.check,
	})
	for len(m.entries) > 0 {
		e := m.entries[0]
		for _, i := range slices.Sorted(maps.Keys(e.open)) {
			m.end(t, e, i)
		}
	}
	if s := m.l.Stats(); s != (source.Stats{Oldest: clock.Forever}) {
		t.Fatalf("left at the end: %+v", s)
	}
	if !reflect.DeepEqual(m.acks, m.asTheyCame) {
		t.Fatalf("acks have changed later: %v, and came as %v", m.acks, m.asTheyCame)
	}
	return m.chosen
}

// drawBits returns a set of indexes below n with at least one.
func drawBits(t *rapid.T, n int, name string) event.Bits {
	b := event.NewBits(n)
	switch rapid.SampledFrom([]string{"all", "one", "range", "some"}).Draw(t, name) {
	case "all":
		return event.AllBits(n)
	case "one":
		b.Add(rapid.IntRange(0, n-1).Draw(t, "index"))
	case "range":
		from := rapid.IntRange(0, n-1).Draw(t, "from")
		to := rapid.IntRange(from, n-1).Draw(t, "to")
		for i := from; i <= to; i++ {
			b.Add(i)
		}
	default:
		mask := event.Bits(rapid.SliceOfN(rapid.Uint64(), len(b), len(b)).Draw(t, "mask"))
		if event.AllBits(n).Take(mask, b) == 0 {
			b.Add(0)
		}
	}
	return b
}

func (m *ledgerModel) newEntry(t *rapid.T) {
	id := modelID{id: source.EntryID{Ledger: 1, Entry: int64(len(m.ids))}, size: rapid.OneOf(rapid.IntRange(1, 12), rapid.IntRange(60, 130)).Draw(t, "size")}
	id.has = drawBits(t, id.size, "not compacted out")
	m.ids = append(m.ids, id)
	m.deliver(t, id)
}

// again delivers an entry again, whether or not it is open; under CountEvents only some events of it.
func (m *ledgerModel) again(t *rapid.T) {
	if len(m.ids) == 0 {
		t.Skip()
	}
	m.deliver(t, rapid.SampledFrom(m.ids).Draw(t, "id"))
}

func (m *ledgerModel) deliver(t *rapid.T, id modelID) {
	m.receipts++
	r := &source.Receipt{
		Entry: m.drawEntry(t, id), ID: id.id, Has: slices.Clone(id.has), Origin: rapid.Int32Range(0, 2).Draw(t, "origin"), Ref: m.receipts,
	}
	if m.counting == source.CountEvents {
		r.Has = drawBits(t, id.size, "delivered")
	}
	var want source.Reception
	fresh, repeated := event.NewBits(id.size), event.NewBits(id.size)
	for i := range r.Has.All() {
		switch isOpen, was := m.state(id.id, i); {
		case isOpen:
			want.Joined++
		case was:
			want.Repeated++
			repeated.Add(i)
		default:
			want.Fresh++
			fresh.Add(i)
		}
	}
	for _, e := range m.of(id.id) {
		e.ref, e.origin = r.Ref, r.Origin
	}
	var wantAcks []source.Ack
	if want.Repeated > 0 && m.counting == source.CountEvents {
		wantAcks = []source.Ack{{Entry: id.id, Events: repeated, Total: id.size, Ref: r.Ref}}
	}
	got, acks := m.l.Received(m.now, r, nil)
	if got != want || !slices.Equal(r.Entry.Fresh, fresh) {
		t.Fatalf("receipt of %v of %v = %+v, fresh %v; want %+v, %v", r.Has, id.id, got, r.Entry.Fresh, want, fresh)
	}
	m.compareAcks(t, "Received", acks, wantAcks)
	if want.Fresh > 0 {
		m.enter(t, r)
	}
}

// drawEntry makes an entry of objects or of bytes.
func (m *ledgerModel) drawEntry(t *rapid.T, id modelID) *event.Entry {
	if rapid.Bool().Draw(t, "objects") {
		messages := make([]event.Message, id.size)
		for i := range messages {
			messages[i].Event = &event.Event{ID: event.MessageID{Ledger: id.id.Ledger, Entry: id.id.Entry, Batch: int32(i)}, Payload: make([]byte, 44)}
		}
		return event.NewEntry(messages...)
	}
	e := event.NewBatch(id.size, 44*id.size)
	e.Ledger, e.Entry, e.Batched = id.id.Ledger, id.id.Entry, true
	for range id.size {
		e.AddPart(event.Part{}, make([]byte, 44), "", nil)
	}
	return e
}

// enter notes the fresh events of a receipt, and gives them keys as the sink does it.
func (m *ledgerModel) enter(t *rapid.T, r *source.Receipt) {
	first := r.Entry.First
	if first.Serial() == 0 || first.IsRelayed() || first.Index() != 0 || m.firsts[first] {
		t.Fatalf("the handle %d is not new", first)
	}
	m.firsts[first] = true
	e := &modelEntry{
		entry: r.Entry, id: r.ID, ref: r.Ref, origin: r.Origin, arrived: m.now, got: slices.Clone(r.Entry.Fresh), open: map[int]modelClaim{},
	}
	keys := rapid.SampledFrom([][]event.Key{{"a"}, {"a", "b"}, {"a", "b", "c"}}).Draw(t, "keys")
	for i := range e.got.All() {
		e.open[i] = free
		r.Entry.SetKey(i, keys[i%len(keys)], 0)
	}
	m.entries = append(m.entries, e)
	if rapid.IntRange(0, 3).Draw(t, "passed on") > 0 {
		m.passOn()
	}
}

func (m *ledgerModel) passOn() {
	m.l.HandedOn()
	for _, e := range m.entries {
		e.handed = true
	}
}

// of returns the open entries with an id.
func (m *ledgerModel) of(id source.EntryID) (list []*modelEntry) {
	for _, e := range m.entries {
		if e.id == id {
			list = append(list, e)
		}
	}
	return list
}

// state reports whether an event is open, and whether it came with an entry that is.
func (m *ledgerModel) state(id source.EntryID, index int) (isOpen, was bool) {
	for _, e := range m.of(id) {
		isOpen = isOpen || e.open[index] != ""
		was = was || e.got.Has(index)
	}
	return isOpen, was
}

// find returns the entry of an open event, or nil.
func (m *ledgerModel) find(h event.Handle) *modelEntry {
	for _, e := range m.entries {
		if e.entry.First == h.First() && e.open[h.Index()] != "" {
			return e
		}
	}
	return nil
}

func (m *ledgerModel) claimOf(h event.Handle) modelClaim {
	if e := m.find(h); e != nil {
		return e.open[h.Index()]
	}
	return ""
}

// settled ends events of an entry, and returns the acks that are due.
func (m *ledgerModel) settled(e *modelEntry, indexes ...int) (acks []source.Ack) {
	if len(indexes) == 0 {
		return nil
	}
	for _, i := range indexes {
		delete(e.open, i)
		m.old = append(m.old, e.entry.Handle(i))
	}
	over := len(e.open) == 0
	switch {
	case m.counting == source.CountEvents && !(over && e.got.Len() == e.entry.Len()): // then the whole entry is acked
		acks = []source.Ack{{Entry: e.id, Events: bits(e.entry.Len(), indexes...), Total: e.entry.Len(), Ref: e.ref}}
	case over:
		acks = []source.Ack{{Entry: e.id, Total: e.entry.Len(), Ref: e.ref}}
	}
	if over {
		m.entries = slices.DeleteFunc(m.entries, func(o *modelEntry) bool { return o == e })
	}
	return acks
}

func (m *ledgerModel) compareAcks(t *rapid.T, call string, got, want []source.Ack) {
	if len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
		t.Fatalf("acks of %s = %+v, want %+v", call, got, want)
	}
	m.acks, m.asTheyCame = append(m.acks, got...), append(m.asTheyCame, want...)
}

// done says of a set that it is done. Parts of it may be settled, claimed, or unknown.
func (m *ledgerModel) done(t *rapid.T) {
	if len(m.entries) == 0 {
		t.Skip()
	}
	e := rapid.SampledFrom(m.entries).Draw(t, "entry")
	size := e.entry.Len()
	set := drawBits(t, rapid.SampledFrom([]int{size, size + 70, max(1, size-64)}).Draw(t, "longest"), "set")
	var hit []int
	for i := range set.All() {
		if c := e.open[i]; c != "" && c != claimed {
			hit = append(hit, i)
		}
	}
	acks, n := m.l.Done(event.Set{First: e.entry.First, Events: slices.Clone(set)}, nil)
	if n != len(hit) {
		t.Fatalf("%d of the set %v are done, want %v", n, set, hit)
	}
	m.compareAcks(t, "Done", acks, m.settled(e, hit...))
}

// doneElsewhere says of a set of an entry that is not open that it is done.
func (m *ledgerModel) doneElsewhere(t *rapid.T) {
	h := rapid.SampledFrom(m.old).Draw(t, "old")
	if slices.ContainsFunc(m.entries, func(e *modelEntry) bool { return e.entry.First == h.First() }) {
		t.Skip()
	}
	if acks, n := m.l.Done(event.Set{First: h.First(), Events: event.AllBits(130)}, nil); n != 0 || len(acks) != 0 {
		t.Fatalf("%d events of an entry that is not open are done, acks %v", n, acks)
	}
}

// drawHandle picks an event, mostly an open one, and of those mostly one with the claim.
func (m *ledgerModel) drawHandle(t *rapid.T, like modelClaim) event.Handle {
	var open, liked []event.Handle
	for _, e := range m.entries {
		for i, c := range e.open {
			open = append(open, e.entry.Handle(i))
			if c == like {
				liked = append(liked, e.entry.Handle(i))
			}
		}
	}
	from := rapid.IntRange(0, 5).Draw(t, "from")
	switch {
	case len(liked) > 0 && from > 1:
		return rapid.SampledFrom(sorted(liked)).Draw(t, "handle")
	case len(open) > 0 && from > 0:
		return rapid.SampledFrom(sorted(open)).Draw(t, "handle")
	}
	return rapid.SampledFrom(m.old).Draw(t, "old handle")
}

func (m *ledgerModel) settle(t *rapid.T) {
	kinds := []event.VerdictKind{event.Done, event.Failed, event.Rejected, event.Parked}
	var verdicts []event.Verdict
	var want []source.Ack
	var copies []event.Verdict
	done := 0
	for range rapid.IntRange(1, 8).Draw(t, "verdicts") {
		v := event.Verdict{Handle: m.drawHandle(t, free), Kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
		if v.Kind != event.Done {
			v.Detail = &event.Detail{Attempts: uint32(len(verdicts))}
		}
		verdicts = append(verdicts, v)
		e := m.find(v.Handle)
		switch c := m.claimOf(v.Handle); {
		case c == "" || c == claimed:
		case v.Kind == event.Done:
			done++
			want = append(want, m.settled(e, v.Handle.Index())...)
		case c != sending:
			e.open[v.Handle.Index()] = claimed
			copies = append(copies, v)
		}
	}
	acks, gotCopies, gotDone := m.l.Settle(verdicts, nil)
	if gotDone != done || len(gotCopies) != len(copies) {
		t.Fatalf("Settle(%v): %d done, copies %v; want %d, %v", verdicts, gotDone, gotCopies, done, copies)
	}
	for i, c := range gotCopies {
		if c.Verdict != copies[i] {
			t.Fatalf("copy %d has the verdict %v, want %v", i, c.Verdict, copies[i])
		}
		m.compareEvent(t, c.Message, copies[i].Handle)
	}
	m.compareAcks(t, "Settle", acks, want)
}

// compareEvent checks that a message is that of an open event.
func (m *ledgerModel) compareEvent(t *rapid.T, got event.Message, h event.Handle) {
	id := m.find(h).id
	if ev := got.Event; ev.Handle != h || ev.ID.Ledger != id.Ledger || ev.ID.Entry != id.Entry || int(ev.ID.Batch) != h.Index() || ev.Key == "" {
		t.Fatalf("the event is %+v, want that of handle %d in %v", ev, h, id)
	}
}

func (m *ledgerModel) wait(t *rapid.T) {
	m.now = m.now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Minute}).Draw(t, "d"))
}

// spill may choose events only if a bound is exceeded, and only events that are open, old, handed on and not claimed, oldest first.
func (m *ledgerModel) spill(t *rapid.T) {
	before := m.l.Stats()
	over := m.l.MostUnacked() > m.bounds.PinnedMax || before.Unsettled > m.bounds.UnsettledMax/2 || before.Bytes > m.bounds.BytesMax/2
	chosen := m.l.Spill(m.now)
	if len(chosen) > 0 && !over {
		t.Fatalf("%d events were spilled though there was room", len(chosen))
	}
	if len(chosen) > m.bounds.RateMax {
		t.Fatalf("%d events at once, with a rate of %d", len(chosen), m.bounds.RateMax)
	}
	latest := clock.Instant(0)
	for _, h := range chosen {
		e := m.find(h)
		if e == nil || e.open[h.Index()] != free || !e.handed || m.now.Sub(e.arrived) < m.bounds.After || e.arrived < latest {
			t.Fatalf("at %v it spilled %d: %+v", m.now, h, e)
		}
		e.open[h.Index()], latest = spilling, e.arrived
	}
	m.chosen += len(chosen)
}

func (m *ledgerModel) sending(t *rapid.T) {
	h := m.drawHandle(t, spilling)
	got, ok := m.l.Sending(h)
	if want := m.claimOf(h) == spilling; ok != want {
		t.Fatalf("Sending of an event that is %q = %v, want %v", m.claimOf(h), ok, want)
	}
	if ok {
		m.compareEvent(t, got, h)
		m.find(h).open[h.Index()] = sending
	}
}

// copied and notCopied are only told about copies that were sent.
func (m *ledgerModel) copied(t *rapid.T) {
	h := m.drawHandle(t, rapid.SampledFrom([]modelClaim{sending, claimed}).Draw(t, "claim"))
	switch e := m.find(h); m.claimOf(h) {
	case sending, claimed:
		m.copiedNow(t, e, h.Index())
	case "":
		if acks, ok := m.l.Copied(h, nil); ok || len(acks) != 0 {
			t.Fatalf("Copied of an event that is not open = %v, %v", acks, ok)
		}
	default:
		t.Skip()
	}
}

func (m *ledgerModel) copiedNow(t *rapid.T, e *modelEntry, index int) {
	acks, ok := m.l.Copied(e.entry.Handle(index), nil)
	if !ok {
		t.Fatalf("Copied of an event that is %q = false", e.open[index])
	}
	m.compareAcks(t, "Copied", acks, m.settled(e, index))
}

func (m *ledgerModel) notCopied(t *rapid.T) {
	h := m.drawHandle(t, sending)
	switch m.claimOf(h) {
	case sending:
		m.l.NotCopied(h)
		m.find(h).open[h.Index()] = spilling
	case "":
		m.l.NotCopied(h)
	default:
		t.Skip()
	}
}

func (m *ledgerModel) close(t *rapid.T) {
	if rapid.IntRange(0, 9).Draw(t, "really") != 7 {
		t.Skip() // so that much is open at times
	}
	var want []event.Handle
	for _, e := range m.entries {
		for i := range e.open {
			want = append(want, e.entry.Handle(i))
		}
	}
	if got := sorted(m.l.Close()); !slices.Equal(got, sorted(want)) {
		t.Fatalf("Close gives %v, open are %v", got, want)
	}
	m.old, m.entries = append(m.old, want...), nil
	if s := m.l.Stats(); s != (source.Stats{Oldest: clock.Forever}) {
		t.Fatalf("left after Close: %+v", s)
	}
}

// end settles an open event in the way that its claim allows.
func (m *ledgerModel) end(t *rapid.T, e *modelEntry, index int) {
	if e.open[index] == claimed {
		m.copiedNow(t, e, index)
		return
	}
	acks, ok := settleDone(m.l, e.entry.Handle(index), nil)
	if !ok {
		t.Fatalf("Done of an event that is %q = false", e.open[index])
	}
	m.compareAcks(t, "Settle", acks, m.settled(e, index))
}

func (m *ledgerModel) check(t *rapid.T) {
	want := source.Stats{Entries: len(m.entries), Oldest: clock.Forever}
	var unacked [3]int // by origin
	for _, e := range m.entries {
		if !slices.Equal(e.entry.Fresh, e.got) {
			t.Fatalf("the fresh events of %v have changed from %v to %v", e.id, e.got, e.entry.Fresh)
		}
		want.Oldest = min(want.Oldest, e.arrived)
		want.Bytes += e.entry.Bytes
		want.Unsettled += len(e.open)
		for _, c := range e.open {
			if c == spilling || c == sending {
				want.Spilling++
			}
		}
		if m.counting == source.CountEvents {
			unacked[e.origin] += len(e.open)
			continue
		}
		unacked[e.origin] += e.got.Len()
		if pinned := e.got.Len() - len(e.open); pinned > 0 {
			want.Pinned += pinned
			want.PinnedEntries++
		}
	}
	want.Allowance = unacked[0] + unacked[1] + unacked[2]
	if s, most := m.l.Stats(), m.l.MostUnacked(); s != want || most != slices.Max(unacked[:]) {
		t.Fatalf("stats = %+v, most unacked %d; want %+v, unacked %v", s, most, want, unacked)
	}
}
