package forward

import (
	"bytes"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
)

// Verdicts leave in the order in which they were given, in frames that obey the limits. Those that are plainly done may be in sets.
func TestAnswersFillFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := DefaultConfig()
		config.FrameEventsMax = rapid.IntRange(1, 30).Draw(t, "FrameEventsMax")
		config.FrameBytesMax = rapid.IntRange(1, 100).Draw(t, "FrameBytesMax")
		sets := rapid.Bool().Draw(t, "reads sets")
		in := &inbound{sets: sets, server: &Server{config: config}, link: &link{wakeup: make(chan struct{}, 1)}}
		var want, got []event.Verdict
		var done []event.Handle
		take := func() bool {
			batch := in.take()
			if batch.n == 0 {
				return false
			}
			f := &verdictsFrame{number: 1, batch: batch}
			out := f.marshal()
			defer out.Free()
			var read verdictsFrame
			if err := read.parse(out.Materialize()); err != nil {
				t.Fatal(err)
			}
			texts := 0
			for _, v := range read.verdicts {
				d := v.DetailOrZero()
				texts += len(d.Reason) + len(d.FirstError)
			}
			inSets := handlesIn(read.done)
			n := len(read.verdicts) + len(inSets)
			switch {
			case len(inSets) > 0 && !sets:
				t.Fatal("the peer does not read sets")
			case n > batch.n, n < batch.n && !sets, batch.n > config.FrameEventsMax, texts > config.FrameBytesMax && batch.n > 1: // an event may be done twice
				t.Fatalf("a frame of %d verdicts (said to be %d) with %d bytes of text", n, batch.n, texts)
			}
			done = append(done, inSets...)
			got = append(got, read.verdicts...)
			return true
		}
		for range rapid.IntRange(0, 10).Draw(t, "answers") {
			verdicts := drawVerdicts(t).verdicts
			in.answer(verdicts)
			want = append(want, verdicts...)
			if rapid.Bool().Draw(t, "take") {
				take()
			}
		}
		for take() { // until nothing is left
		}
		if sets {
			var wantDone []event.Handle
			want = slices.DeleteFunc(want, func(v event.Verdict) bool { return plainlyDone(v, &wantDone) })
			got = slices.DeleteFunc(got, func(v event.Verdict) bool { return plainlyDone(v, &done) })
			if !slices.Equal(sortedOnce(done), sortedOnce(wantDone)) {
				t.Fatalf("done are %v, want %v", done, wantDone)
			}
		}
		if !equalVerdicts(got, want) {
			t.Fatalf("read %+v, want %+v", got, want)
		}
	})
}

// plainlyDone reports whether a verdict may be in a set, and appends its event to done if so.
func plainlyDone(v event.Verdict, done *[]event.Handle) bool {
	if v.Kind != event.Done || v.DetailOrZero() != (event.Detail{}) {
		return false
	}
	*done = append(*done, v.Handle)
	return true
}

// sortedOnce returns the handles in their order, each of them once.
func sortedOnce(handles []event.Handle) []event.Handle {
	return slices.Compact(slices.Sorted(slices.Values(handles)))
}

// readBatch returns what the peer reads of a batch, and fails if our reader leaves it to the generated code, or if that one reads
// something else.
func readBatch(t interface {
	fatal
	Fatal(...any)
}, batch verdictBatch,
) *verdictsFrame {
	out := (&verdictsFrame{number: 1, batch: batch}).marshal()
	defer out.Free()
	b := out.Materialize()
	if new(verdictsFrame).parseOurs(b) != nil {
		t.Fatal("our reader left our writer's frame to the generated code")
	}
	read, err := bothVerdicts(t, b)
	if err != nil {
		t.Fatalf("our frame: %v", err)
	}
	return read
}

// Events that are done travel as sets, whatever entries they are of and in whatever order they come. What has no room in the sets of a
// frame is in verdicts.
func TestDoneVerdictsAreSets(t *testing.T) {
	inSets, beside := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		index := rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(0, event.EntryEventsMax-1), rapid.IntRange(event.EntryEventsMax-70, event.EntryEventsMax-1))
		entries := rapid.SampledFrom([]int{1, 3, 40}).Draw(t, "entries")
		var handles []event.Handle
		for range rapid.IntRange(1, 200).Draw(t, "events") {
			serial := uint64(rapid.IntRange(1, entries).Draw(t, "entry"))
			h := event.NewHandle(serial, index.Draw(t, "index"))
			if serial%5 == 0 {
				h = event.NewRelayedHandle(serial, h.Index())
			}
			handles = append(handles, h)
		}
		batch := batchOf(doneOf(handles...), true)
		if batch.n != len(handles) || batch.words > setWordsMax {
			t.Fatalf("%d verdicts are said to be %d, with sets of %d words", len(handles), batch.n, batch.words)
		}
		read := readBatch(t, batch)
		got := handlesIn(read.done)
		inSets, beside = inSets+len(got), beside+len(read.verdicts)
		for _, v := range read.verdicts {
			if !plainlyDone(v, &got) {
				t.Fatalf("a verdict is %+v", v)
			}
		}
		if !slices.Equal(sortedOnce(got), sortedOnce(handles)) {
			t.Fatalf("read %v, want %v", got, handles)
		}
	})
	if inSets == 0 || beside == 0 {
		t.Errorf("%d events were in sets and %d were not; this run proves little", inSets, beside)
	}
}

// Events of several entries by turns make one set for each entry, and verdicts with details stay what they are.
func TestSetsOfEntriesByTurns(t *testing.T) {
	firsts := []event.Handle{event.NewHandle(1, 0), event.NewHandle(2, 0), event.NewRelayedHandle(1, 0)}
	failed := event.Verdict{Handle: firsts[0] | 7, Kind: event.Failed, Detail: &event.Detail{Reason: "r"}}
	verdicts := []event.Verdict{failed}
	for _, i := range []int{70, 64, 130, 100, 129} {
		for n, first := range firsts {
			verdicts = append(verdicts, doneOf(first|event.Handle(i+n))...)
		}
	}
	read := readBatch(t, batchOf(verdicts, true))
	var want []event.Set
	for n, first := range firsts {
		want = append(want, setOf(first, 70+n, 64+n, 130+n, 100+n, 129+n))
	}
	if !equalSets(read.done, want) || !equalVerdicts(read.verdicts, []event.Verdict{failed}) {
		t.Errorf("read %+v and %+v, want %+v and the failure", read.done, read.verdicts, want)
	}
}

// An event before the first word of its entry's set is in a set of its own.
func TestAnEarlierEventGetsAnotherSet(t *testing.T) {
	read := readBatch(t, batchOf(doneOf(event.NewHandle(1, 1000), event.NewHandle(1, 3), event.NewHandle(1, 1001)), true))
	if want := []event.Handle{event.NewHandle(1, 3), event.NewHandle(1, 1000), event.NewHandle(1, 1001)}; len(read.verdicts) != 0 || !slices.Equal(sortedOnce(handlesIn(read.done)), want) {
		t.Errorf("read %+v and %+v, want %v", read.done, read.verdicts, want)
	}
}

// Sets that would take the receiver more words than it accepts are verdicts instead: both a new set and one that would grow.
func TestSetsBeyondTheLimitAreVerdicts(t *testing.T) {
	const last, perEntry = event.EntryEventsMax - 1, event.EntryEventsMax / 64
	var fill, first []event.Handle
	for n := range setWordsMax/perEntry - 1 {
		fill = append(fill, event.NewHandle(uint64(n+1), last))
	}
	first = append(first, event.NewHandle(100, 0))
	growing := event.NewHandle(100, last)      // would fill the sets exactly, as the first word counts already
	beyond := event.NewHandle(101, last)       // of another entry
	small, more := event.NewHandle(102, 0), 64 // has no room either
	read := readBatch(t, batchOf(doneOf(slices.Concat(fill, first, []event.Handle{growing, beyond, small, small + event.Handle(more)})...), true))
	if want := slices.Concat(fill, first, []event.Handle{growing}); !slices.Equal(handlesIn(read.done), want) {
		t.Errorf("in sets are %v, want %v", handlesIn(read.done), want)
	}
	if want := doneOf(beyond, small, small+event.Handle(more)); !equalVerdicts(read.verdicts, want) {
		t.Errorf("beside them are %+v, want %+v", read.verdicts, want)
	}

	fill = append(fill, event.NewHandle(99, last-64)) // leaves one word
	read = readBatch(t, batchOf(doneOf(slices.Concat(fill, []event.Handle{event.NewHandle(100, 0), event.NewHandle(100, 64), event.NewHandle(100, 1)})...), true))
	if want := slices.Concat(fill, []event.Handle{event.NewHandle(100, 0), event.NewHandle(100, 1)}); !slices.Equal(handlesIn(read.done), want) {
		t.Errorf("in sets are %v, want %v", handlesIn(read.done), want)
	}
	if want := doneOf(event.NewHandle(100, 64)); !equalVerdicts(read.verdicts, want) {
		t.Errorf("beside them are %+v, want %+v", read.verdicts, want)
	}
}

// The fast path for plain verdicts encodes the same as the general one.
func TestPlainVerdictIsEncodedAsAnyOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var plain, others []event.Verdict
		for _, h := range rapid.SliceOfN(rapid.OneOf(rapid.Uint64Min(1), rapid.Uint64Range(1, 1<<50)), 1, 50).Draw(t, "handles") {
			v := event.Verdict{Handle: event.Handle(h), Kind: event.VerdictKind(rapid.IntRange(1, 7).Draw(t, "kind"))}
			plain = append(plain, v)
			v.Detail = new(event.Detail)
			others = append(others, v)
		}
		short, long := batchOf(plain, false), batchOf(others, false)
		if short.n != long.n || !bytes.Equal(*short.buf, *long.buf) {
			t.Fatalf("verdicts %v are %d: %x, want %d: %x", plain, short.n, *short.buf, long.n, *long.buf)
		}
	})
}
