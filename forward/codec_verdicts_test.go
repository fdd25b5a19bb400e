package forward

import (
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/event"
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
				texts += len(v.Reason) + len(v.FirstError)
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
		if !slices.Equal(got, want) {
			t.Fatalf("read %+v, want %+v", got, want)
		}
	})
}

// The short way for plain verdicts reads what the general one reads, or nothing.
func FuzzPlainVerdict(f *testing.F) {
	f.Add([]byte{18, 5, 8, 0x81, 1, 16, 1, 18, 5, 8, 0x82, 1, 16, 2, 26, 0, 26, 0})
	f.Add([]byte{18, 4, 8, 0x81, 1, 16, 1, 18, 5, 8, 0x82, 1, 16, 2, 26, 0, 26, 0})
	f.Add([]byte{18, 5, 8, 0x80, 0, 16, 9, 18, 5, 8, 0x82, 1, 16, 2, 26, 0, 26, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		handle, kind, next := plainVerdict(b)
		if next == 0 {
			return
		}
		var want verdictsFrame
		r := reader{rest: b}
		if _, err := r.next(); err != nil || !r.is(verdictsVerdicts, protowire.BytesType) || len(b)-len(r.rest) != next {
			t.Fatalf("%x is read to %d, the reader says %+v, %v", b, next, r, err)
		}
		if err := want.parseVerdict(r.value); err != nil || !reflect.DeepEqual(want.verdicts, []event.Verdict{{Handle: handle, Kind: kind}}) {
			t.Fatalf("%x is read as %d %v, want %+v, %v", b, handle, kind, want.verdicts, err)
		}
	})
}
