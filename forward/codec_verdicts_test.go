package forward

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
)

// Verdicts leave in the order in which they were given, in frames that obey the limits.
func TestAnswersFillFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := DefaultConfig()
		config.FrameEventsMax = rapid.IntRange(1, 30).Draw(t, "FrameEventsMax")
		config.FrameBytesMax = rapid.IntRange(1, 100).Draw(t, "FrameBytesMax")
		in := &inbound{server: &Server{config: config}, link: &link{wakeup: make(chan struct{}, 1)}}
		var want, got []event.Verdict
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
			if n := len(read.verdicts); n != batch.n || n > config.FrameEventsMax || texts > config.FrameBytesMax && n > 1 {
				t.Fatalf("a frame of %d verdicts (said to be %d) with %d bytes of text", n, batch.n, texts)
			}
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
		if !equalVerdicts(got, want) {
			t.Fatalf("read %+v, want %+v", got, want)
		}
	})
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
		short, long := batchOf(plain), batchOf(others)
		if short.n != long.n || !bytes.Equal(*short.buf, *long.buf) {
			t.Fatalf("verdicts %v are %d: %x, want %d: %x", plain, short.n, *short.buf, long.n, *long.buf)
		}
	})
}
