package source_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/source"
)

// delivery returns the receipt of an entry of so many events, of which some are delivered; all if none are named.
func delivery(entry int64, total int, origin int32, indexes ...int) *source.Receipt {
	messages := make([]event.Message, total)
	for i := range messages {
		messages[i].Event = &event.Event{Payload: make([]byte, 44)} // 300 bytes in all bounds
	}
	return &source.Receipt{
		Entry: event.NewEntry(messages...), ID: source.EntryID{Ledger: 1, Entry: entry}, Has: bits(total, indexes...), Origin: origin,
		Ref: fmt.Sprint(entry),
	}
}

// bits returns a set of indexes, all below n if none are named.
func bits(n int, indexes ...int) event.Bits {
	if len(indexes) == 0 {
		return event.AllBits(n)
	}
	b := event.NewBits(n)
	for _, i := range indexes {
		b.Add(i)
	}
	return b
}

// settleDone gives the verdict Done on an event, and reports whether it was settled by that.
func settleDone(l *source.Ledger, h event.Handle, acks []source.Ack) ([]source.Ack, bool) {
	acks, _, done := l.Settle([]event.Verdict{{Handle: h, Kind: event.Done}}, acks)
	return acks, done == 1
}

// claim gives a verdict on an event that asks for a copy, and reports whether the event was claimed.
func claim(l *source.Ledger, h event.Handle) (event.Message, bool) {
	_, copies, _ := l.Settle([]event.Verdict{{Handle: h, Kind: event.Failed}}, nil)
	if len(copies) != 1 {
		return event.Message{}, false
	}
	return copies[0].Message, true
}

// take receives events of an entry, all if none are named, and returns their handles.
func take(t *testing.T, l *source.Ledger, entry int64, total int, origin int32, indexes ...int) []event.Handle {
	t.Helper()
	r := delivery(entry, total, origin, indexes...)
	got, acks := l.Received(1, r, nil)
	if got != (source.Reception{Fresh: r.Has.Len()}) || len(acks) != 0 || !slices.Equal(r.Entry.Fresh, r.Has) {
		t.Fatalf("receipt of %v of entry %d = %+v, acks %v, fresh %v; want fresh events only", r.Has, entry, got, acks, r.Entry.Fresh)
	}
	var handles []event.Handle
	for i := range r.Has.All() {
		h := r.Entry.Handle(i)
		if h.Serial() == 0 || h.Index() != i || r.Entry.Event(i).Handle != h {
			t.Fatalf("event %d of entry %d has the handle %d, and %d as an object", i, entry, h, r.Entry.Event(i).Handle)
		}
		handles = append(handles, h)
	}
	return handles
}

func wantAcks(t *testing.T, got []source.Ack, want ...source.Ack) {
	t.Helper()
	if len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
		t.Errorf("acks = %+v, want %+v", got, want)
	}
}

func wantNothingLeft(t *testing.T, l *source.Ledger) {
	t.Helper()
	if s := l.Stats(); s != (source.Stats{Oldest: clock.Forever}) || l.MostUnacked() != 0 {
		t.Errorf("stats at the end = %+v, most unacked %d, want none", s, l.MostUnacked())
	}
}

func TestAnEntryIsAckedWithItsLastEvent(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	handles := take(t, l, 7, 3, 0)
	if s := l.Stats(); s.Unsettled != 3 || s.Entries != 1 || s.Allowance != 3 || s.Bytes != 900 || s.Oldest != 1 || s.Pinned != 0 {
		t.Errorf("stats = %+v", s)
	}
	acks, ok := settleDone(l, handles[2], nil)
	if !ok || len(acks) != 0 {
		t.Errorf("acks after one of three = %v, %v", acks, ok)
	}
	if s := l.Stats(); s.Unsettled != 2 || s.Pinned != 1 || s.PinnedEntries != 1 || s.Allowance != 3 || s.Bytes != 900 {
		t.Errorf("stats = %+v; a settled event weighs and counts until its entry goes", s)
	}
	acks, _ = settleDone(l, handles[0], nil)
	acks, ok = settleDone(l, handles[1], acks)
	if !ok {
		t.Error("the last event was not settled")
	}
	wantAcks(t, acks, source.Ack{Entry: source.EntryID{Ledger: 1, Entry: 7}, Total: 3, Ref: "7"})
	wantNothingLeft(t, l)
}

func TestCountEventsAcksEachAndPinsNothing(t *testing.T) {
	l := source.NewLedger(source.CountEvents)
	id := source.EntryID{Ledger: 1, Entry: 7}
	handles := take(t, l, 7, 2, 0)
	acks, _ := settleDone(l, handles[1], nil)
	wantAcks(t, acks, source.Ack{Entry: id, Events: bits(2, 1), Total: 2, Ref: "7"})
	if s := l.Stats(); s.Allowance != 1 || s.Pinned != 0 || s.PinnedEntries != 0 {
		t.Errorf("stats = %+v", s)
	}
	again := delivery(7, 2, 0)
	again.Ref = "7 again"
	got, acks := l.Received(2, again, nil)
	if got != (source.Reception{Joined: 1, Repeated: 1}) || again.Entry.Fresh.First() >= 0 {
		t.Errorf("an open and a settled event that come again are %+v, want one joined and one repeated", got)
	}
	wantAcks(t, acks, source.Ack{Entry: id, Events: bits(2, 1), Total: 2, Ref: "7 again"})
	acks, _ = settleDone(l, handles[0], nil)
	wantAcks(t, acks, source.Ack{Entry: id, Total: 2, Ref: "7 again"}) // an ack of the whole, after which a broker forgets the entry
	wantNothingLeft(t, l)
}

// After acks of single events the broker delivers the rest only.
func TestCountEventsForgetsAnEntryOfWhichOnlyAPartCame(t *testing.T) {
	l := source.NewLedger(source.CountEvents)
	h := take(t, l, 7, 10, 0, 3)[0]
	if acks, ok := settleDone(l, h, nil); !ok || len(acks) != 1 {
		t.Errorf("acks = %v, %v", acks, ok)
	}
	wantNothingLeft(t, l)
}

func TestOneEndForEachEvent(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	h := take(t, l, 1, 1, 0)[0]
	if m, ok := claim(l, h); !ok || m.Event.Handle != h {
		t.Fatalf("Claim = %v, %v", m, ok)
	}
	if _, ok := claim(l, h); ok {
		t.Error("claimed twice")
	}
	if _, ok := settleDone(l, h, nil); ok {
		t.Error("done although its copy is under way")
	}
	if acks, done := l.Done(event.Set{First: h.First(), Events: bits(1)}, nil); done != 0 || len(acks) != 0 {
		t.Error("done in a set although its copy is under way")
	}
	if acks, ok := l.Copied(h, nil); !ok || len(acks) != 1 {
		t.Errorf("Copied = %v, %v", acks, ok)
	}
	next := take(t, l, 2, 1, 0)[0]
	if next == h {
		t.Error("a handle came twice")
	}
	if _, ok := settleDone(l, h, nil); ok {
		t.Error("an old handle settled a new event")
	}
}

// Settle takes many verdicts as single calls do, regardless of others in the same call, and of two
// verdicts on an event the first one.
func TestSettleTakesWhatIsStillOpen(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	h := take(t, l, 1, 5, 0)
	if _, ok := claim(l, h[1]); !ok {
		t.Fatal("cannot claim an open event")
	}
	late := take(t, l, 2, 1, 0)[0]
	if _, ok := settleDone(l, late, nil); !ok {
		t.Fatal("cannot settle an open event")
	}
	unknown, beyond, relayed := event.NewHandle(1<<20, 1), h[0].First()|70, event.NewRelayedHandle(h[2].Serial(), 2)
	detail := &event.Detail{Reason: "no"}
	var verdicts []event.Verdict
	say := func(kind event.VerdictKind, detail *event.Detail, handles ...event.Handle) {
		for _, h := range handles {
			verdicts = append(verdicts, event.Verdict{Handle: h, Kind: kind, Detail: detail})
		}
	}
	say(event.Done, nil, h[0], h[0], late, h[1], 0)
	say(event.Rejected, detail, unknown, beyond, relayed, h[1], h[0], h[4], h[4])
	say(event.Done, nil, unknown, beyond, relayed, h[4], h[3], h[2], h[3])
	acks, copies, n := l.Settle(verdicts, nil)
	if n != 3 || len(acks) != 0 {
		t.Errorf("settled %d with acks %v, want events 0, 2 and 3, and no ack", n, acks)
	}
	if len(copies) != 1 || copies[0].Event.Handle != h[4] || copies[0].Verdict != (event.Verdict{Handle: h[4], Kind: event.Rejected, Detail: detail}) {
		t.Errorf("copies = %+v, want one of event 4", copies)
	}
	if s := l.Stats(); s.Unsettled != 2 || s.Pinned != 3 {
		t.Errorf("stats = %+v, want two open that pin three", s)
	}
	if acks, ok := l.Copied(h[4], nil); !ok || len(acks) != 0 {
		t.Errorf("Copied = %v, %v, want no ack", acks, ok)
	}
	if acks, ok := l.Copied(h[1], nil); !ok || len(acks) != 1 {
		t.Errorf("Copied = %v, %v, want an ack", acks, ok)
	}
	wantNothingLeft(t, l)
}

// Of a set, events count that are open and not claimed; under CountEvents one ack names just those.
func TestDoneTakesWhatIsStillOpen(t *testing.T) {
	for _, counting := range []source.Counting{source.CountEntries, source.CountEvents} {
		const total = 130
		l := source.NewLedger(counting)
		h := take(t, l, 1, total, 0)
		settleDone(l, h[64], nil)
		claim(l, h[65])
		for _, first := range []event.Handle{0, event.NewHandle(1<<20, 0), event.NewRelayedHandle(h[0].Serial(), 0)} {
			if acks, done := l.Done(event.Set{First: first, Events: bits(total)}, nil); done != 0 || len(acks) != 0 {
				t.Errorf("the set of the unknown entry %d settled %d with acks %v", first, done, acks)
			}
		}
		if acks, done := l.Done(event.Set{First: h[0], Events: bits(total, 64, 65)}, nil); done != 0 || len(acks) != 0 {
			t.Errorf("settled %d with acks %v of a settled and a claimed event", done, acks)
		}
		acks, done := l.Done(event.Set{First: h[0], Events: bits(1000, 0, 63, 64, 65, 129, 999)}, nil)
		if s := l.Stats(); done != 3 || s.Unsettled != total-4 {
			t.Errorf("settled %d, stats %+v, want 3 of the set", done, s)
		}
		id := source.EntryID{Ledger: 1, Entry: 1}
		if counting == source.CountEvents {
			wantAcks(t, acks, source.Ack{Entry: id, Events: bits(total, 0, 63, 129), Total: total, Ref: "1"})
		} else {
			wantAcks(t, acks)
		}
		if acks, done = l.Done(event.Set{First: h[0], Events: bits(total)}, nil); done != total-5 {
			t.Errorf("settled %d, want all others but the claimed one", done)
		}
		if counting == source.CountEntries {
			wantAcks(t, acks)
		}
		acks, _ = l.Copied(h[65], nil)
		wantAcks(t, acks, source.Ack{Entry: id, Total: total, Ref: "1"})
		wantNothingLeft(t, l)
	}
}

// An entry that comes again is joined, from whichever origin, and acked once, by its newest receipt.
func TestAnEntryThatComesAgainIsAckedByItsNewestReceipt(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	h := take(t, l, 4, 3, 0)
	settleDone(l, h[0], nil)
	take(t, l, 5, 2, 1) // another entry does not affect this one
	again := delivery(4, 3, 1)
	again.Ref = "4 again"
	if got, acks := l.Received(2, again, nil); got != (source.Reception{Joined: 2, Repeated: 1}) || len(acks) != 0 || again.Entry.Fresh.First() >= 0 {
		t.Errorf("it came as %+v with acks %v, want two joined, one repeated, and no ack", got, acks)
	}
	if s := l.Stats(); s.Entries != 2 || s.Unsettled != 4 || s.Allowance != 5 || s.Oldest != 1 || l.MostUnacked() != 5 {
		t.Errorf("stats = %+v, most unacked %d; want all 5 unacked at the second origin", s, l.MostUnacked())
	}
	acks, _ := l.Done(event.Set{First: h[0].First(), Events: bits(3)}, nil)
	wantAcks(t, acks, source.Ack{Entry: source.EntryID{Ledger: 1, Entry: 4}, Total: 3, Ref: "4 again"})
	if got, _ := l.Received(3, delivery(4, 3, 0), nil); got != (source.Reception{Fresh: 3}) {
		t.Errorf("an entry whose ack was lost came as %+v, want three fresh events", got)
	}
}

// A member that acks single events can leave an entry of which one part comes first, and another one later.
func TestEventsThatComeLaterAreFresh(t *testing.T) {
	l := source.NewLedger(source.CountEvents)
	id := source.EntryID{Ledger: 1, Entry: 4}
	early := take(t, l, 4, 100, 0, 0, 1, 70)
	settleDone(l, early[1], nil)
	again := delivery(4, 100, 0, 0, 1, 2, 99)
	again.Ref = "4 again"
	got, acks := l.Received(2, again, nil)
	if got != (source.Reception{Fresh: 2, Joined: 1, Repeated: 1}) || !slices.Equal(again.Entry.Fresh, bits(100, 2, 99)) {
		t.Errorf("it came as %+v with %v fresh, want 2 and 99", got, again.Entry.Fresh)
	}
	wantAcks(t, acks, source.Ack{Entry: id, Events: bits(100, 1), Total: 100, Ref: "4 again"})
	if again.Entry.First == early[0].First() || again.Entry.Event(99).Handle != again.Entry.Handle(99) {
		t.Errorf("the fresh events have the handles of %d, those before %d", again.Entry.First, early[0].First())
	}
	if s := l.Stats(); s.Entries != 2 || s.Unsettled != 4 || s.Allowance != 4 || s.Bytes != 2*30_000 {
		t.Errorf("stats = %+v, want 4 events of two entries", s)
	}
	acks, done := l.Done(event.Set{First: again.Entry.First, Events: bits(100)}, nil)
	if done != 2 {
		t.Errorf("%d events of the second receipt are done, want 2", done)
	}
	acks, done = l.Done(event.Set{First: early[0].First(), Events: bits(100)}, acks)
	if done != 2 {
		t.Errorf("%d events of the first receipt are done, want 2", done)
	}
	wantAcks(t, acks,
		source.Ack{Entry: id, Events: bits(100, 2, 99), Total: 100, Ref: "4 again"},
		source.Ack{Entry: id, Events: bits(100, 0, 70), Total: 100, Ref: "4 again"})
	wantNothingLeft(t, l)
}

// The ledger's cost of memory is by entries, and not by events.
func TestLedgerAllocatesForEntriesOnly(t *testing.T) {
	for _, total := range []int{1, 1000} {
		for name, settle := range map[string]func(l *source.Ledger, e *event.Entry, acks []source.Ack) []source.Ack{
			"a set": func(l *source.Ledger, e *event.Entry, acks []source.Ack) []source.Ack {
				acks, _ = l.Done(event.Set{First: e.First, Events: e.Fresh}, acks)
				return acks
			},
			"verdicts": func(l *source.Ledger, e *event.Entry, acks []source.Ack) []source.Ack {
				for i := range e.Len() {
					acks, _ = settleDone(l, e.Handle(i), acks)
				}
				return acks
			},
		} {
			l := source.NewLedger(source.CountEntries)
			r := delivery(1, total, 0)
			var acks []source.Ack
			round := func() {
				r.ID.Entry++
				l.Received(1, r, nil)
				if acks = settle(l, r.Entry, acks[:0]); len(acks) != 1 {
					t.Fatalf("acks = %v", acks)
				}
			}
			round()
			if n := testing.AllocsPerRun(1000, round); n > 2.5 { // the open entry, and the set of its open events
				t.Errorf("%v allocations for an entry of %d that %s settles", n, total, name)
			}
		}
	}
}

func BenchmarkLedger(b *testing.B) {
	for _, total := range []int{1, 470} {
		b.Run(fmt.Sprintf("entries of %d", total), func(b *testing.B) {
			l := source.NewLedger(source.CountEntries)
			messages := make([]event.Message, total)
			const window = 4096
			var handles [window]event.Handle
			var acks []source.Ack
			r := &source.Receipt{Has: event.AllBits(total)}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i >= window {
					acks, _ = settleDone(l, handles[i%window], acks[:0])
				}
				if i%total == 0 {
					r.ID.Entry++
					r.Entry = event.NewEntry(messages...)
					l.Received(1, r, nil)
				}
				handles[i%window] = r.Entry.Handle(i % total)
			}
		})
		b.Run(fmt.Sprintf("sets of %d", total), func(b *testing.B) {
			l := source.NewLedger(source.CountEntries)
			messages := make([]event.Message, total)
			const window = 16
			var open [window]event.Set
			var acks []source.Ack
			r := &source.Receipt{Has: event.AllBits(total)}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i >= window {
					acks, _ = l.Done(open[i%window], acks[:0])
				}
				r.ID.Entry++
				r.Entry = event.NewEntry(messages...)
				l.Received(1, r, nil)
				open[i%window] = event.Set{First: r.Entry.First, Events: r.Has}
			}
		})
	}
}

// A verdict may come late, when the source that gave the handle has ended and
// another one has begun.
func TestHandlesOfALaterLedgerAreNew(t *testing.T) {
	seen := map[event.Handle]bool{}
	var earlier *source.Ledger
	for range 3 {
		l := source.NewLedger(source.CountEntries)
		if earlier != nil {
			l.ContinueAfter(earlier)
		}
		for i := range int64(5) {
			h := take(t, l, i, 1, 0)[0]
			if h == 0 || seen[h] {
				t.Fatalf("handle %d comes twice", h)
			}
			seen[h] = true
			if _, ok := settleDone(l, h, nil); !ok {
				t.Fatalf("handle %d is unknown to its own ledger", h)
			}
		}
		open := take(t, l, 5, 1, 0)[0]
		for h := range seen {
			if _, ok := settleDone(l, h, nil); ok {
				t.Fatalf("handle %d of an earlier ledger settled an event", h)
			}
		}
		seen[open] = true
		earlier = l
	}
}
