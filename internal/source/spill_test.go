package source_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/source"
)

const second = clock.Instant(time.Second)

func bounds() source.Bounds {
	b := source.Bounds{Spill: source.DefaultSpill(), UnsettledMax: 1000, BytesMax: 1 << 20}
	b.PinnedMax = 100
	return b
}

// enter receives a whole entry at an instant, hands it on, and returns its handles.
func enter(t testing.TB, l *source.Ledger, at clock.Instant, entry int64, keys ...event.Key) []event.Handle {
	t.Helper()
	var handles []event.Handle
	for i, k := range keys {
		r := receipt(entry, int32(i), int32(len(keys)), 0)
		h, what := l.Received(at, r)
		if what != source.Fresh {
			t.Fatalf("event %d of entry %d is %d, want Fresh", i, entry, what)
		}
		r.Event.Key = k // as the sink does it
		handles = append(handles, h)
	}
	l.HandedOn()
	return handles
}

// keys makes n keys that occur once.
func keys(prefix string, n int) []event.Key {
	list := make([]event.Key, n)
	for i := range list {
		list[i] = event.Key(fmt.Sprint(prefix, i))
	}
	return list
}

// done settles events, but not those with an index that is left out.
func done(t testing.TB, l *source.Ledger, handles []event.Handle, leftOut ...int) (acks []source.Ack) {
	t.Helper()
	for i, h := range handles {
		if slices.Contains(leftOut, i) {
			continue
		}
		var ok bool
		if acks, ok = settleDone(l, h, acks); !ok {
			t.Fatalf("event %d was not settled", i)
		}
	}
	return acks
}

func wantSpilled(t testing.TB, got []event.Handle, want ...event.Handle) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("spilled %d events %v, want %d: %v", len(got), got, len(want), want)
	}
}

// One stuck event in a hundred pins everything. The oldest stuck events are spilled, no more of them
// than needed, and their entries are acked as soon as the copies are safe.
func TestFewOpenEventsThatPinManyAreSpilled(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	l.Bound(bounds())
	var stuck []event.Handle
	for i := range 3 {
		handles := enter(t, l, 0, int64(i), keys(fmt.Sprint("e", i, "-"), 50)...)
		done(t, l, handles, 7)
		stuck = append(stuck, handles[7])
	}
	wantSpilled(t, l.Spill(second/2, nil)) // not yet
	chosen := l.Spill(second, nil)
	wantSpilled(t, chosen, stuck[0]) // 150 pinned, 100 allowed: one entry of 50
	if s := l.Stats(); s.Spilling != 1 || s.Unsettled != 3 {
		t.Errorf("stats = %+v, want 1 of 3 unsettled events spilling", s)
	}
	wantSpilled(t, l.Spill(2*second, nil)) // it is under way
	m, ok := l.Sending(chosen[0])
	if !ok || m.Event.Handle != chosen[0] {
		t.Fatalf("Sending = %+v, %v", m, ok)
	}
	l.NotCopied(chosen[0])
	if _, ok := l.Sending(chosen[0]); !ok {
		t.Fatal("a copy that failed cannot be sent again")
	}
	acks, ok := l.Copied(chosen[0], nil)
	if !ok || len(acks) != 1 || acks[0].Entry.Entry != 0 {
		t.Errorf("acks = %v, %v; want the entry", acks, ok)
	}
	if s := l.Stats(); s.Spilling != 0 || s.Unsettled != 2 || s.Allowance != 100 || l.MostUnacked() != 100 {
		t.Errorf("stats = %+v, most unacked %d", s, l.MostUnacked())
	}
	wantSpilled(t, l.Spill(3*second, nil))
}

// An event that may not be handed on yet has no key, and the sink may be writing it.
func TestNothingIsSpilledBeforeItWasHandedOn(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	l.Bound(bounds())
	var handles []event.Handle
	for i := range int32(200) {
		h, _ := l.Received(0, receipt(1, i, 200, 0))
		handles = append(handles, h)
	}
	done(t, l, handles, 3)
	wantSpilled(t, l.Spill(second, nil))
	l.HandedOn()
	wantSpilled(t, l.Spill(second, nil), handles[3])
}

// An entry of which a part has not come would not be acked, whatever is spilled.
func TestATornEntryIsNotSpilled(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	l.Bound(bounds())
	cut := take(t, l, 1, 300, 0, 0, 1)
	done(t, l, cut[:1])
	l.HandedOn()
	wantSpilled(t, l.Spill(60*second, nil))
	enter(t, l, 60*second, 2, "x") // the origin continues
	wantSpilled(t, l.Spill(61*second, nil))
}

// A slow application has many open events, of which none pins many others: they are
// its work, and it is left to it until they are stuck.
func TestSlowIsNotStuck(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	l.Bound(bounds())
	first := enter(t, l, 1, 1, keys("a", 80)...)
	second30 := 1 + 30*second
	enter(t, l, 2, 2, keys("b", 80)...)
	done(t, l, first[:40])
	wantSpilled(t, l.Spill(second30-1, nil))
	wantSpilled(t, l.Spill(second30, nil), first[40:]...) // and with it the excess of 60
}

// Each event that comes to its end pays for four spills: an application that hangs
// altogether keeps its backlog at the broker.
func TestProgressPaysForSpills(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	b := bounds()
	b.RateMax = 10
	l.Bound(b)
	now := clock.Instant(0)
	for i := range int64(20) {
		enter(t, l, now, i, keys(fmt.Sprint("e", i, "-"), 20)...)
	}
	now += 100 * second
	if got := l.Spill(now, nil); len(got) != 10 {
		t.Fatalf("%d spilled at first, want the 10 of a second", len(got))
	}
	now += 100 * second
	wantSpilled(t, l.Spill(now, nil)) // nothing has come to an end
	h := enter(t, l, now, 100, "x")
	done(t, l, h)
	now += 100 * second
	if got := l.Spill(now, nil); len(got) != 4 {
		t.Errorf("%d spilled after an event was done, want 4", len(got))
	}
	for i := range int64(10) {
		done(t, l, enter(t, l, now, 200+i, "x"))
	}
	now += second / 2
	if got := l.Spill(now, nil); len(got) != 5 {
		t.Errorf("%d spilled half a second later, want 5", len(got))
	}
}

// A hot key keeps its share, which is the oldest of its events; the other events of the entries stay.
func TestAKeyHasItsShare(t *testing.T) {
	for _, counting := range []source.Counting{source.CountEntries, source.CountEvents} {
		l := source.NewLedger(counting)
		b := bounds()
		b.PinnedMax, b.UnsettledMax, b.KeyShareMax = 1_000_000, 40, 0.1
		l.Bound(b)
		var hot []event.Handle
		for i := range 15 {
			hot = append(hot, enter(t, l, 0, int64(i), "hot", event.Key(fmt.Sprint("k", i)))[0])
		}
		wantSpilled(t, l.Spill(second, nil), hot[4:]...)
		wantSpilled(t, l.Spill(2*second, nil))
	}
}

// Few events may weigh too much as well.
func TestAKeyHasItsShareOfBytes(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	b := bounds()
	b.BytesMax, b.KeyShareMax = 3000, 0.2 // an event weighs 300 and its key
	l.Bound(b)
	hot := enter(t, l, 0, 1, "hot", "hot", "hot", "a", "b", "c")
	wantSpilled(t, l.Spill(second, nil), hot[1:3]...)
}

// With a verdict about an event that is to be spilled, the verdict counts, as long as
// the copy has not left; "done" counts even then.
func TestAVerdictWinsOverASpill(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	b := bounds()
	b.PinnedMax = 1
	l.Bound(b)
	spilling := func(entry int64) event.Handle {
		h := enter(t, l, 0, entry, keys("k", 20)...)
		done(t, l, h, 0)
		wantSpilled(t, l.Spill(second, nil), h[0])
		return h[0]
	}
	failed := spilling(1)
	if _, ok := claim(l, failed); !ok {
		t.Error("a failed event could not be claimed before its spill was sent")
	}
	if _, ok := l.Sending(failed); ok {
		t.Error("a claimed event is spilled as well")
	}
	l.Copied(failed, nil)

	early := spilling(2)
	if acks, ok := settleDone(l, early, nil); !ok || len(acks) != 1 {
		t.Errorf("done before the spill was sent: acks %v, %v", acks, ok)
	}
	if _, ok := l.Sending(early); ok {
		t.Error("a settled event is spilled")
	}

	late := spilling(3)
	l.Sending(late)
	if _, ok := claim(l, late); ok {
		t.Error("a second copy of an event was allowed while one is on its way")
	}
	if acks, ok := settleDone(l, late, nil); !ok || len(acks) != 1 {
		t.Errorf("done while the copy is on its way: acks %v, %v", acks, ok)
	}
	if _, ok := l.Copied(late, nil); ok {
		t.Error("an event was settled twice")
	}
	l.NotCopied(late) // does not concern the event that has the slot now
	if s := l.Stats(); s != (source.Stats{Oldest: clock.Forever}) {
		t.Errorf("stats at the end = %+v", s)
	}
}

// For any sequence of arrivals, verdicts and spills, under both ways of counting, the ledger
// agrees with a reference that keeps every event in a map.
func TestSpillAgainstAModel(t *testing.T) {
	for name, counting := range map[string]source.Counting{"entries": source.CountEntries, "events": source.CountEvents} {
		t.Run(name, func(t *testing.T) {
			chosen := 0
			rapid.Check(t, func(t *rapid.T) { chosen += checkSpill(t, counting) })
			if chosen == 0 {
				t.Error("nothing was ever spilled; this run proved nothing")
			}
		})
	}
}

// spillEvent is an open event of the reference.
type spillEvent struct {
	entry   *spillEntry
	index   int32
	claim   string // "", "spilling", "sending", "claimed"
	handed  bool
	arrived clock.Instant
}

type spillEntry struct {
	id      int64
	origin  int32
	total   int32
	settled int32
	open    int32
}

type spillModel struct {
	t        *rapid.T
	l        *source.Ledger
	counting source.Counting
	bounds   source.Bounds
	now      clock.Instant
	open     map[event.Handle]*spillEvent
	entries  map[int64]*spillEntry
	last     int64
	chosen   int
}

func checkSpill(t *rapid.T, counting source.Counting) int {
	m := &spillModel{
		t: t, counting: counting, now: 1,
		l:    source.NewLedger(counting),
		open: map[event.Handle]*spillEvent{}, entries: map[int64]*spillEntry{},
	}
	m.bounds = source.Bounds{Spill: source.DefaultSpill()}
	m.bounds.PinnedMax = rapid.IntRange(1, 30).Draw(t, "PinnedMax")
	m.bounds.UnsettledMax = rapid.IntRange(2, 40).Draw(t, "UnsettledMax")
	m.bounds.BytesMax = rapid.IntRange(600, 20_000).Draw(t, "BytesMax")
	m.bounds.KeyShareMax = rapid.Float64Range(0.1, 1).Draw(t, "KeyShareMax")
	m.bounds.RateMax = rapid.IntRange(1, 30).Draw(t, "RateMax")
	m.l.Bound(m.bounds)
	actions := map[string]func(*rapid.T){
		"receive": m.receive,
		"spill":   m.spill,
		"wait":    m.wait,
		"done":    m.with(m.done),
		"claim":   m.with(m.claim),
		"sending": m.with(m.sending),
		"copied":  m.with(m.copied),
		"failed":  m.with(m.notCopied),
		"":        m.check,
	}
	t.Repeat(actions)
	for _, h := range sorted(slices.Collect(maps.Keys(m.open))) {
		if m.open[h].claim == "claimed" {
			m.copied(h)
		} else {
			m.done(h)
		}
	}
	if s := m.l.Stats(); s.Unsettled+s.Spilling != 0 {
		t.Fatalf("left at the end: %+v", s)
	}
	return m.chosen
}

func (m *spillModel) wait(t *rapid.T) {
	m.now = m.now.Add(rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Minute}).Draw(t, "d"))
}

func (m *spillModel) receive(t *rapid.T) {
	m.last++
	e := &spillEntry{id: m.last, origin: rapid.Int32Range(0, 1).Draw(t, "origin"), total: rapid.Int32Range(1, 12).Draw(t, "total")}
	m.entries[e.id] = e
	for i := range e.total {
		r := receipt(e.id, i, e.total, e.origin)
		r.Event.Key = event.Key(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"))
		h, what := m.l.Received(m.now, r)
		if what != source.Fresh {
			t.Fatalf("event %d of entry %d is %d, want Fresh", i, e.id, what)
		}
		m.open[h] = &spillEvent{entry: e, index: i, arrived: m.now}
		e.open++
	}
	if rapid.IntRange(0, 3).Draw(t, "handed on") > 0 {
		m.l.HandedOn()
		for _, ev := range m.open {
			ev.handed = true
		}
	}
}

// spill may choose events only if a bound is exceeded, and only events that are open, old, handed
// on and not claimed, oldest first.
func (m *spillModel) spill(t *rapid.T) {
	over := m.l.MostUnacked() > m.bounds.PinnedMax || len(m.open) > m.bounds.UnsettledMax/2 || m.l.Stats().Bytes > m.bounds.BytesMax/2
	chosen := m.l.Spill(m.now, nil)
	if len(chosen) > 0 && !over {
		t.Fatalf("%d events were spilled though there was room", len(chosen))
	}
	if len(chosen) > m.bounds.RateMax {
		t.Fatalf("%d events at once, with a rate of %d", len(chosen), m.bounds.RateMax)
	}
	latest := clock.Instant(0)
	for _, h := range chosen {
		ev := m.open[h]
		if ev == nil || ev.claim != "" || !ev.handed || m.now.Sub(ev.arrived) < m.bounds.After || ev.arrived < latest {
			t.Fatalf("at %v it spilled %d: %+v", m.now, h, ev)
		}
		ev.claim, latest = "spilling", ev.arrived
	}
	m.chosen += len(chosen)
}

// with makes an action of one on an open event, and tries it on an unknown one, too.
func (m *spillModel) with(act func(event.Handle)) func(*rapid.T) {
	return func(t *rapid.T) {
		if len(m.open) == 0 {
			t.Skip()
		}
		act(rapid.SampledFrom(sorted(slices.Collect(maps.Keys(m.open)))).Draw(t, "handle"))
	}
}

// say compares the result of a call with the expected one.
func (m *spillModel) say(call string, h event.Handle, got bool, when ...string) bool {
	if want := slices.Contains(when, m.open[h].claim); got != want {
		m.t.Fatalf("%s of an event that is %q = %v, want %v", call, m.open[h].claim, got, want)
	}
	return got
}

func (m *spillModel) end(h event.Handle, acks []source.Ack) {
	e := m.open[h].entry
	delete(m.open, h)
	e.open--
	e.settled++
	over := e.settled == e.total
	if want := over || m.counting == source.CountEvents; (len(acks) == 1) != want {
		m.t.Fatalf("acks = %v with %d of %d settled", acks, e.settled, e.total)
	}
	if over || m.counting == source.CountEvents && e.open == 0 {
		delete(m.entries, e.id)
	}
}

func (m *spillModel) done(h event.Handle) {
	acks, ok := settleDone(m.l, h, nil)
	if m.say("Done", h, ok, "", "spilling", "sending") {
		m.end(h, acks)
	}
}

func (m *spillModel) claim(h event.Handle) {
	if _, ok := claim(m.l, h); m.say("Claim", h, ok, "", "spilling") {
		m.open[h].claim = "claimed"
	}
}

func (m *spillModel) sending(h event.Handle) {
	if _, ok := m.l.Sending(h); m.say("Sending", h, ok, "spilling") {
		m.open[h].claim = "sending"
	}
}

// copied and notCopied are only told about copies that were sent.
func (m *spillModel) copied(h event.Handle) {
	if c := m.open[h].claim; c != "sending" && c != "claimed" {
		return
	}
	acks, ok := m.l.Copied(h, nil)
	if m.say("Copied", h, ok, "sending", "claimed") {
		m.end(h, acks)
	}
}

func (m *spillModel) notCopied(h event.Handle) {
	if m.open[h].claim == "sending" {
		m.l.NotCopied(h)
		m.open[h].claim = "spilling"
	}
}

func (m *spillModel) check(t *rapid.T) {
	spilling, unacked := 0, map[int32]int{}
	for _, ev := range m.open {
		if ev.claim == "spilling" || ev.claim == "sending" {
			spilling++
		}
	}
	for _, e := range m.entries {
		if m.counting == source.CountEntries {
			unacked[e.origin] += int(e.total)
		} else {
			unacked[e.origin] += int(e.open)
		}
	}
	s := m.l.Stats()
	most := max(unacked[0], unacked[1])
	if s.Unsettled != len(m.open) || s.Spilling != spilling || s.Entries != len(m.entries) || s.Allowance != unacked[0]+unacked[1] || m.l.MostUnacked() != most {
		t.Fatalf("stats = %+v, most unacked %d; want %d open, %d spilling, %d entries, unacked %v", s, m.l.MostUnacked(), len(m.open), spilling, len(m.entries), unacked)
	}
}

// As long as there is room, looking whether to spill costs nothing; nor does a look at
// 20,000 events of which none may be spilled allocate.
func BenchmarkSpill(b *testing.B) {
	for name, unsettledMax := range map[string]int{"room": 1 << 20, "crowded": 20_000} {
		b.Run(name, func(b *testing.B) {
			l := source.NewLedger(source.CountEntries)
			bound := bounds()
			bound.PinnedMax, bound.UnsettledMax, bound.BytesMax = 1<<20, unsettledMax, 1<<30
			l.Bound(bound)
			for i := range 20_000 / 400 {
				enter(b, l, 0, int64(i), keys("k", 400)...)
			}
			b.ReportAllocs()
			for b.Loop() {
				if got := l.Spill(2*second, nil); len(got) > 0 {
					b.Fatalf("%d spilled", len(got))
				}
			}
		})
	}
}

// One key gets half of all events for five minutes, and handles a sixteenth of them. Reading never
// stops for the other keys, the broker's allowance is never nearly used up, and each event of the key
// is done in the end, or waits in the retry topic.
func TestAHotKeyStopsNobody(t *testing.T) {
	const (
		step      = clock.Instant(100 * time.Millisecond)
		perStep   = 160 // events: 1,600 in a second
		donePer   = 5   // of the hot key, in a step
		allowance = 50_000
	)
	l := source.NewLedger(source.CountEntries)
	cfg := source.DefaultConfig()
	b := source.Bounds{Spill: cfg.Spill, UnsettledMax: cfg.UnsettledMax, BytesMax: cfg.UnsettledBytesMax}
	l.Bound(b)
	rounds := map[event.Handle]uint32{}   // of the open events of the hot key
	var queue []event.Handle              // the same, oldest first, with some that are no longer open
	retry := map[clock.Instant][]uint32{} // when events come back → their rounds
	var entry int64
	inRetry, received, doneHot, spilled, mostOpen, mostUnacked := 0, 0, 0, 0, 0, 0
	for now := step; now <= 300*second; now += step {
		batch := keys("k", perStep)
		for i := range perStep / 2 {
			batch[2*i] = "hot"
		}
		entry++
		for i, h := range enter(t, l, now, entry, batch...) {
			if i%2 == 0 {
				rounds[h] = 0
				queue = append(queue, h)
				received++
				continue
			}
			settleDone(l, h, nil)
		}
		for _, round := range retry[now] {
			entry++
			h := enter(t, l, now, entry, "hot")[0]
			rounds[h] = round
			queue = append(queue, h)
			inRetry--
		}
		delete(retry, now)
		for n := 0; n < donePer && len(queue) > 0; queue = queue[1:] {
			if _, open := rounds[queue[0]]; open {
				settleDone(l, queue[0], nil)
				delete(rounds, queue[0])
				n++
				doneHot++
			}
		}
		mostOpen, mostUnacked = max(mostOpen, l.Stats().Unsettled), max(mostUnacked, l.MostUnacked())
		for _, h := range l.Spill(now, nil) {
			l.Sending(h)
			l.Copied(h, nil)
			round := rounds[h] + 1
			delete(rounds, h)
			delay := min(cfg.Spill.DelayMin<<(3*min(round-1, 5)), cfg.Spill.DelayMax)
			retry[now.Add(delay)] = append(retry[now.Add(delay)], round)
			inRetry++
			spilled++
		}
	}
	t.Logf("%d of %d events of the hot key done, %d spilled, %d in the retry topic, %d open; at most %d open and %d unacked",
		doneHot, received, spilled, inRetry, len(rounds), mostOpen, mostUnacked)
	if mostOpen >= cfg.UnsettledMax || mostUnacked >= allowance/2 {
		t.Errorf("%d events were open, %d unacked: reading stopped", mostOpen, mostUnacked)
	}
	if doneHot+inRetry+len(rounds) != received || doneHot < 300*10*donePer*9/10 {
		t.Errorf("%d done, %d in the retry topic, %d open of %d", doneHot, inRetry, len(rounds), received)
	}
}
