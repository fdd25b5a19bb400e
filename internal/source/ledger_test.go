package source_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/source"
)

func receipt(entry int64, index, total, origin int32) *source.Receipt {
	return &source.Receipt{
		Message: &source.Message{Event: &event.Event{Payload: make([]byte, 44)}}, // 300 bytes in all bounds
		Entry:   source.EntryID{Ledger: 1, Entry: entry}, Index: index, Total: total, Origin: origin,
		Ref: fmt.Sprintf("%d/%d", entry, index),
	}
}

// settleDone gives the verdict Done on an event, and reports whether it was settled by that.
func settleDone(l *source.Ledger, h event.Handle, acks []source.Ack) ([]source.Ack, bool) {
	acks, _, done := l.Settle([]event.Verdict{{Handle: h, Kind: event.Done}}, acks, nil)
	return acks, done == 1
}

// claim gives a verdict on an event that asks for a copy, and reports whether the event was claimed.
func claim(l *source.Ledger, h event.Handle) (source.Message, bool) {
	_, copies, _ := l.Settle([]event.Verdict{{Handle: h, Kind: event.Failed}}, nil, nil)
	if len(copies) != 1 {
		return source.Message{}, false
	}
	return copies[0].Message, true
}

// take receives events of an entry and returns their handles.
func take(t *testing.T, l *source.Ledger, entry int64, total, origin int32, indexes ...int32) []event.Handle {
	t.Helper()
	var handles []event.Handle
	for _, i := range indexes {
		r := receipt(entry, i, total, origin)
		h, what := l.Received(1, r)
		if what != source.Fresh || h == 0 || r.Event.Handle != h {
			t.Fatalf("receipt %d of entry %d = handle %d, reception %d; want a fresh one", i, entry, h, what)
		}
		handles = append(handles, h)
	}
	return handles
}

func TestAnEntryIsAckedWithItsLastEvent(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	handles := take(t, l, 7, 3, 0, 0, 1, 2)
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
	want := source.Ack{Entry: source.EntryID{Ledger: 1, Entry: 7}, Total: 3, Index: 1, Ref: "7/2"}
	if !ok || len(acks) != 1 || acks[0] != want {
		t.Errorf("acks = %+v, want %+v", acks, want)
	}
	if s := l.Stats(); s != (source.Stats{Oldest: clock.Forever}) {
		t.Errorf("stats at the end = %+v, want none", s)
	}
}

func TestCountEventsAcksEachAndPinsNothing(t *testing.T) {
	l := source.NewLedger(source.CountEvents)
	handles := take(t, l, 7, 2, 0, 0, 1)
	acks, _ := settleDone(l, handles[1], nil)
	if len(acks) != 1 || acks[0].Ref != "7/1" || acks[0].Index != 1 {
		t.Errorf("acks = %+v, want event 1", acks)
	}
	if s := l.Stats(); s.Allowance != 1 || s.Pinned != 0 || s.PinnedEntries != 0 {
		t.Errorf("stats = %+v", s)
	}
	if _, what := l.Received(2, receipt(7, 1, 2, 0)); what != source.Repeated {
		t.Errorf("a settled event that comes again is %d, want Repeated", what)
	}
	if acks, _ = settleDone(l, handles[0], acks); len(acks) != 2 || l.Stats().Entries != 0 {
		t.Errorf("acks = %+v, stats %+v", acks, l.Stats())
	}
}

// After acks of single events the broker delivers the rest only.
func TestCountEventsForgetsAnEntryOfWhichOnlyAPartCame(t *testing.T) {
	l := source.NewLedger(source.CountEvents)
	h := take(t, l, 7, 10, 0, 3)[0]
	if acks, ok := settleDone(l, h, nil); !ok || len(acks) != 1 || l.Stats() != (source.Stats{Oldest: clock.Forever}) {
		t.Errorf("acks = %v, %v; stats = %+v, want none left", acks, ok, l.Stats())
	}
}

func TestOneEndForEachEvent(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	h := take(t, l, 1, 1, 0, 0)[0]
	if m, ok := claim(l, h); !ok || m.Event.Handle != h {
		t.Fatalf("Claim = %v, %v", m, ok)
	}
	if _, ok := claim(l, h); ok {
		t.Error("claimed twice")
	}
	if _, ok := settleDone(l, h, nil); ok {
		t.Error("done although its copy is under way")
	}
	if acks, ok := l.Copied(h, nil); !ok || len(acks) != 1 {
		t.Errorf("Copied = %v, %v", acks, ok)
	}
	next := take(t, l, 2, 1, 0, 0)[0]
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
	h := take(t, l, 1, 5, 0, 0, 1, 2, 3, 4)
	if _, ok := claim(l, h[1]); !ok {
		t.Fatal("cannot claim an open event")
	}
	late := take(t, l, 2, 1, 0, 0)[0]
	if _, ok := settleDone(l, late, nil); !ok {
		t.Fatal("cannot settle an open event")
	}
	unknown := event.NewHandle(1, 1<<20)
	detail := &event.Detail{Reason: "no"}
	var verdicts []event.Verdict
	say := func(kind event.VerdictKind, detail *event.Detail, handles ...event.Handle) {
		for _, h := range handles {
			verdicts = append(verdicts, event.Verdict{Handle: h, Kind: kind, Detail: detail})
		}
	}
	say(event.Done, nil, h[0], h[0], late, h[1], 0)
	say(event.Rejected, detail, unknown, h[1], h[0], h[4], h[4])
	say(event.Done, nil, unknown, h[4], h[3], h[2], h[3])
	acks, copies, n := l.Settle(verdicts, nil, nil)
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
	if acks, ok := l.Copied(h[1], nil); !ok || len(acks) != 1 || l.Stats() != (source.Stats{Oldest: clock.Forever}) {
		t.Errorf("Copied = %v, %v; stats = %+v, want none left", acks, ok, l.Stats())
	}
}

// An entry that is cut in the middle, because its connection broke, is never acked
// by this delivery, and leaves nothing behind.
func TestATornEntryIsForgottenAndNotAcked(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	first := take(t, l, 1, 3, 0, 0, 1)
	acks, _ := settleDone(l, first[0], nil)
	take(t, l, 2, 1, 1, 0) // another origin does not affect this one
	acks, _ = settleDone(l, first[1], acks)
	if s := l.Stats(); s.Entries != 2 || s.Torn != 0 {
		t.Errorf("stats = %+v: the third event of the entry may still come", s)
	}
	take(t, l, 3, 1, 0, 0) // the origin continues
	if s := l.Stats(); len(acks) != 0 || s.Entries != 2 || s.Torn != 1 || s.Pinned != 0 || s.Allowance != 2 {
		t.Errorf("acks %v, stats %+v; want entry 1 gone", acks, s)
	}

	open := take(t, l, 4, 3, 0, 0, 1)
	take(t, l, 5, 1, 0, 0)
	if s := l.Stats(); s.Torn != 1 {
		t.Errorf("torn = %d while events of it are open", s.Torn)
	}
	// It comes again, whole: the open ones are joined, the last one is fresh.
	for i := range int32(2) {
		if _, what := l.Received(2, receipt(4, i, 3, 0)); what != source.Joined {
			t.Errorf("event %d is %d, want Joined", i, what)
		}
	}
	last := take(t, l, 4, 3, 0, 2)
	acks = nil
	for _, h := range append(open, last...) {
		acks, _ = settleDone(l, h, acks)
	}
	if len(acks) != 1 || acks[0].Entry.Entry != 4 {
		t.Errorf("acks = %v, want entry 4 once", acks)
	}
}

// For any sequence of inputs: an entry is acked exactly when all its events have been settled,
// never twice in one lifetime, the counts agree with a model that keeps everything, and in the
// end nothing is left.
func TestLedgerAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkAgainstModel(t) })
}

type modelEvent struct {
	entry source.EntryID
	index int32
}

type modelEntry struct {
	total   int32
	settled map[int32]bool
}

func checkAgainstModel(t *rapid.T) {
	l := source.NewLedger(source.CountEntries)
	open := map[event.Handle]modelEvent{}
	where := map[modelEvent]event.Handle{}
	entries := map[source.EntryID]*modelEntry{}
	used := map[event.Handle]bool{}
	next := int64(0)
	deliver := func(id source.EntryID, total, upTo, origin int32) {
		e := entries[id]
		if e == nil {
			e = &modelEntry{total: total, settled: map[int32]bool{}}
			entries[id] = e
		}
		for i := range upTo {
			r := receipt(id.Entry, i, total, origin)
			h, what := l.Received(clock.Instant(next), r)
			at := modelEvent{id, i}
			_, isOpen := where[at]
			switch {
			case what == source.Joined && isOpen, what == source.Repeated && e.settled[i]:
			case what == source.Fresh && !isOpen:
				if used[h] {
					t.Fatalf("handle %d was used before", h)
				}
				used[h], open[h], where[at] = true, at, h
				delete(e.settled, i) // a torn entry was forgotten, and with it its settled events
			default:
				t.Fatalf("%v is %d, open %v, settled %v", at, what, isOpen, e.settled[i])
			}
		}
	}
	finish := func(h event.Handle) {
		at := open[h]
		acks, ok := settleDone(l, h, nil)
		if !ok {
			t.Fatalf("%v is open and was not settled", at)
		}
		delete(open, h)
		delete(where, at)
		e := entries[at.entry]
		e.settled[at.index] = true
		all := int32(len(e.settled)) == e.total
		if (len(acks) == 1) != all || all && acks[0].Entry != at.entry {
			t.Fatalf("%v: acks %v with %d of %d settled", at.entry, acks, len(e.settled), e.total)
		}
		if all {
			delete(entries, at.entry)
		}
	}
	pick := func() event.Handle {
		handles := make([]event.Handle, 0, len(open))
		for h := range open {
			handles = append(handles, h)
		}
		return rapid.SampledFrom(sorted(handles)).Draw(t, "handle")
	}
	t.Repeat(map[string]func(*rapid.T){
		"new entry, maybe cut": func(t *rapid.T) {
			next++
			total := rapid.Int32Range(1, 5).Draw(t, "total")
			deliver(source.EntryID{Ledger: 1, Entry: next}, total, rapid.Int32Range(1, total).Draw(t, "upTo"), rapid.Int32Range(0, 2).Draw(t, "origin"))
		},
		"an open entry again": func(t *rapid.T) {
			if len(open) == 0 {
				t.Skip()
			}
			at := open[pick()]
			deliver(at.entry, entries[at.entry].total, entries[at.entry].total, rapid.Int32Range(0, 2).Draw(t, "origin"))
		},
		"settle": func(t *rapid.T) {
			if len(open) == 0 {
				t.Skip()
			}
			finish(pick())
		},
		"close": func(t *rapid.T) {
			if got, want := sorted(l.Close(nil)), sorted(handlesOf(open)); !slices.Equal(got, want) {
				t.Fatalf("Close gives %v, open are %v", got, want)
			}
			clear(open)
			clear(where)
			clear(entries)
			if s := l.Stats(); s.Unsettled+s.Entries+s.Bytes+s.Allowance+s.Pinned+s.PinnedEntries != 0 {
				t.Fatalf("left after Close: %+v", s)
			}
		},
		"": func(t *rapid.T) {
			if got := l.Stats().Unsettled; got != len(open) {
				t.Fatalf("unsettled = %d, want %d", got, len(open))
			}
		},
	})
	for _, h := range sorted(handlesOf(open)) {
		finish(h)
	}
	for origin := range int32(3) { // every origin continues, so torn entries are given up
		next++
		deliver(source.EntryID{Ledger: 1, Entry: next}, 1, 1, origin)
	}
	for _, h := range sorted(handlesOf(open)) {
		finish(h)
	}
	if s := l.Stats(); s.Unsettled+s.Entries+s.Bytes+s.Allowance+s.Pinned+s.PinnedEntries != 0 {
		t.Fatalf("left at the end: %+v", s)
	}
}

func TestLedgerAllocatesNothingInTheLongRun(t *testing.T) {
	l := source.NewLedger(source.CountEntries)
	receipts := make([]*source.Receipt, 100)
	for i := range receipts {
		receipts[i] = receipt(1, int32(i), 100, 0)
	}
	var acks []source.Ack
	entry := int64(0)
	round := func() {
		entry++
		acks = acks[:0]
		for _, r := range receipts {
			r.Entry.Entry = entry
			l.Received(1, r)
		}
		for _, r := range receipts {
			acks, _ = settleDone(l, r.Event.Handle, acks)
		}
		if len(acks) != 1 {
			t.Fatalf("acks = %v", acks)
		}
	}
	round()
	if n := testing.AllocsPerRun(1000, round); n > 0.5 {
		t.Errorf("%v allocations in a batch of 100", n)
	}
}

func BenchmarkLedger(b *testing.B) {
	for _, total := range []int32{1, 470} {
		b.Run(fmt.Sprintf("entries of %d", total), func(b *testing.B) {
			l := source.NewLedger(source.CountEntries)
			ev := &event.Event{}
			r := &source.Receipt{Message: &source.Message{Event: ev}, Total: total}
			const window = 4096
			var handles [window]event.Handle
			var acks []source.Ack
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i >= window {
					acks, _ = settleDone(l, handles[i%window], acks[:0])
				}
				r.Index = int32(i) % total
				r.Entry.Entry = int64(i) / int64(total)
				handles[i%window], _ = l.Received(1, r)
			}
		})
	}
}

// A verdict may come late, when the source that gave the handle has ended and
// another one has begun.
func TestHandlesOfALaterLedgerAreNew(t *testing.T) {
	receive := func(l *source.Ledger, entry int64) event.Handle {
		h, _ := l.Received(0, &source.Receipt{
			Message: &source.Message{Event: &event.Event{}}, Entry: source.EntryID{Ledger: 1, Entry: entry}, Total: 1,
		})
		return h
	}
	seen := map[event.Handle]bool{}
	var earlier *source.Ledger
	for range 3 {
		l := source.NewLedger(source.CountEntries)
		if earlier != nil {
			l.ContinueAfter(earlier)
		}
		for i := range int64(5) {
			h := receive(l, i)
			if h == 0 || seen[h] {
				t.Fatalf("handle %d comes twice", h)
			}
			seen[h] = true
			if _, ok := settleDone(l, h, nil); !ok {
				t.Fatalf("handle %d is unknown to its own ledger", h)
			}
		}
		for h := range seen {
			if _, ok := settleDone(l, h, nil); ok {
				t.Fatalf("handle %d of an earlier ledger settled an event", h)
			}
		}
		earlier = l
	}
}
