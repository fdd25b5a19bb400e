package source_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

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
	r := delivery(entry, len(keys), 0)
	if got, _ := l.Received(at, r, nil); got != (source.Reception{Fresh: len(keys)}) {
		t.Fatalf("entry %d came as %+v, want all fresh", entry, got)
	}
	handles := make([]event.Handle, len(keys))
	for i, k := range keys {
		r.Entry.SetKey(i, k, 0) // as the sink does it
		handles[i] = r.Entry.Handle(i)
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
	wantSpilled(t, l.Spill(second/2)) // not yet
	chosen := l.Spill(second)
	wantSpilled(t, chosen, stuck[0]) // 150 pinned, 100 allowed: one entry of 50
	if s := l.Stats(); s.Spilling != 1 || s.Unsettled != 3 {
		t.Errorf("stats = %+v, want 1 of 3 unsettled events spilling", s)
	}
	wantSpilled(t, l.Spill(2*second)) // it is under way
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
	wantSpilled(t, l.Spill(3*second))
}

// An event that may not be handed on yet has no key, and the sink may be writing it.
func TestNothingIsSpilledBeforeItWasHandedOn(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	l.Bound(bounds())
	handles := take(t, l, 1, 200, 0)
	done(t, l, handles, 3)
	wantSpilled(t, l.Spill(2*second))
	l.HandedOn()
	wantSpilled(t, l.Spill(2*second), handles[3])
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
	wantSpilled(t, l.Spill(second30-1))
	wantSpilled(t, l.Spill(second30), first[40:]...) // and with it the excess of 60
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
	if got := l.Spill(now); len(got) != 10 {
		t.Fatalf("%d spilled at first, want the 10 of a second", len(got))
	}
	now += 100 * second
	wantSpilled(t, l.Spill(now)) // nothing has come to an end
	h := enter(t, l, now, 100, "x")
	done(t, l, h)
	now += 100 * second
	if got := l.Spill(now); len(got) != 4 {
		t.Errorf("%d spilled after an event was done, want 4", len(got))
	}
	for i := range int64(10) {
		done(t, l, enter(t, l, now, 200+i, "x"))
	}
	now += second / 2
	if got := l.Spill(now); len(got) != 5 {
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
		wantSpilled(t, l.Spill(second), hot[4:]...)
		wantSpilled(t, l.Spill(2*second))
	}
}

// Few events may weigh too much as well.
func TestAKeyHasItsShareOfBytes(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	b := bounds()
	b.BytesMax, b.KeyShareMax = 3000, 0.2 // an event weighs 300 and its key
	l.Bound(b)
	hot := enter(t, l, 0, 1, "hot", "hot", "hot", "a", "b", "c")
	wantSpilled(t, l.Spill(second), hot[1:3]...)
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
		wantSpilled(t, l.Spill(second), h[0])
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
	l.NotCopied(late) // of an event that is settled, it changes nothing
	if s := l.Stats(); s != (source.Stats{Oldest: clock.Forever}) {
		t.Errorf("stats at the end = %+v", s)
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
				if got := l.Spill(2 * second); len(got) > 0 {
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
		for _, h := range l.Spill(now) {
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

// Where all events take seconds, the last ones of an entry are not copied as long as they take no longer than those before them did again.
func TestTheLastEventsOfASlowEntryHaveTime(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	l.Bound(bounds())
	slow := enter(t, l, second, 1, keys("a", 200)...)
	done(t, l, slow[:150])
	wantSpilled(t, l.Spill(4*second)) // 50 are no few
	done(t, l, slow[150:190])         // the ten that are left pin many, after three seconds
	wantSpilled(t, l.Spill(7*second-1))
	quick := enter(t, l, 7*second-1, 2, keys("b", 200)...)
	done(t, l, quick[10:])
	wantSpilled(t, l.Spill(7*second), slow[190:]...) // after six
	wantSpilled(t, l.Spill(8*second-1), quick[:10]...)
}

// stuckEntry returns a ledger with an entry of so many stuck events, of which it spills one a second from now on.
func stuckEntry(t *testing.T, events int) (l *source.Ledger, stuck []event.Handle, now clock.Instant) {
	t.Helper()
	l = source.NewLedger(source.CountEntries)
	b := bounds()
	b.PinnedMax, b.RateMax = 1, 1
	l.Bound(b)
	return l, enter(t, l, 1, 1, keys("a", events)...), clock.Instant(1).Add(b.StuckAfter)
}

// An entry of which one copy was on its way is spilled to its end: its other events are chosen when the budget allows.
func TestTheRestOfAnEntryIsSpilled(t *testing.T) {
	l, stuck, now := stuckEntry(t, 3)
	for i, h := range stuck {
		wantSpilled(t, l.Spill(now), h)
		if _, ok := l.Sending(h); !ok {
			t.Fatalf("event %d is not sent", i)
		}
		if i == 0 { // it fails once
			l.NotCopied(h)
			if _, ok := l.Sending(h); !ok {
				t.Fatal("it is not sent again")
			}
		}
		if s := l.Stats(); s.Spilling != 1 {
			t.Errorf("%d events are spilling, want 1", s.Spilling)
		}
		acks, ok := l.Copied(h, nil)
		if s := l.Stats(); !ok || s.Spilling != 0 || len(acks) != i/2 {
			t.Errorf("copy %d settles: %t, acks %v, and %d are spilling", i, ok, acks, s.Spilling)
		}
		now = now.Add(time.Second)
		done(t, l, enter(t, l, now, int64(10+i), "other")) // which pays for the next one
	}
}

// While the copy of one event is on its way, the others of its entry are chosen, too.
func TestAnEntryIsSpilledBesideACopyOnItsWay(t *testing.T) {
	l, stuck, now := stuckEntry(t, 2)
	wantSpilled(t, l.Spill(now), stuck[0])
	l.Sending(stuck[0])
	now = now.Add(time.Second)
	done(t, l, enter(t, l, now, 10, "other"))
	wantSpilled(t, l.Spill(now), stuck[1])
}

// Few large events that are stuck fill the memory, not the allowance: they are spilled, too.
func TestStuckBytesAreSpilled(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	b := bounds()
	l.Bound(b)
	r := delivery(1, 1, 0)
	r.Entry.Bytes = b.BytesMax / 4
	l.Received(1, r, nil)
	later := delivery(2, 1, 0)
	later.Entry.Bytes = b.BytesMax/4 + 1 // without the first one it fits
	l.Received(1, later, nil)
	l.HandedOn()
	if got := l.Spill(clock.Instant(1).Add(b.StuckAfter - 1)); len(got) > 0 {
		t.Errorf("%v are spilled before they are stuck", got)
	}
	wantSpilled(t, l.Spill(clock.Instant(1).Add(b.StuckAfter)), r.Entry.Handle(0))
}

// Events that are done in sets pay for spills as others do.
func TestProgressInSetsPaysForSpills(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	b := bounds()
	b.PinnedMax, b.RateMax = 1, 2
	l.Bound(b)
	stuck := enter(t, l, 1, 1, keys("a", 4)...)
	now := clock.Instant(1).Add(b.StuckAfter)
	wantSpilled(t, l.Spill(now), stuck[:2]...)
	now = now.Add(time.Minute)
	wantSpilled(t, l.Spill(now)) // without progress
	other := enter(t, l, now, 2, keys("b", 2)...)
	if _, n := l.Done(event.Set{First: other[0].First(), Events: event.AllBits(2)}, nil); n != 2 {
		t.Fatalf("%d are done, want 2", n)
	}
	wantSpilled(t, l.Spill(now.Add(time.Minute)), stuck[2:]...)
}
