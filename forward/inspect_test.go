package forward

import (
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

func TestInspect(t *testing.T) {
	tt := newTableTest(t)
	began := tt.now
	tt.hold("hot", 1, 3)
	tt.hold("cold", 10, 10)
	tt.take(1)
	tt.after(time.Second)
	tt.hold("hot", 4, 5)
	want := []Share{
		{Place: Queued, With: peerNumber(1), Events: 2, Oldest: began.Add(time.Second)},
		{Place: Sent, With: peerNumber(1), Events: 3, Oldest: began},
	}
	if got := tt.Inspect("hot"); !slices.Equal(got, want) {
		t.Errorf("hot is %+v, want %+v", got, want)
	}
	tt.say(1, event.Overloaded, 0, 2)
	tt.wantTake(1) // queued events wait for room too
	want = []Share{
		{Place: Sent, With: peerNumber(1), Events: 2, Oldest: began},
		{Place: Full, With: peerNumber(1), Events: 3, Oldest: began},
	}
	if got := tt.Inspect("hot"); !slices.Equal(got, want) {
		t.Errorf("hot is %+v, want %+v", got, want)
	}
	if got := tt.Inspect("nobody's"); got != nil {
		t.Errorf("a key without events is %+v", got)
	}
}

// A search goes through the shelf step by step, and finds the same.
func TestInspectGoesStepByStep(t *testing.T) {
	tt := newTableTest(t)
	const events = 3*blocksAtOnce*blockLen + 5
	tt.hold("cold", 1, events-1)
	tt.hold("hot", events, events)
	var look lookup
	steps := 0
	for ; !look.done; steps++ {
		before := look.block
		tt.inspect("hot", &look)
		if look.block-before > blocksAtOnce {
			t.Fatalf("one step looks at %d blocks", look.block-before)
		}
	}
	if got := look.result(); steps < 3 || len(got) != 1 || got[0].Events != 1 {
		t.Errorf("after %d steps %+v", steps, got)
	}
	if got := tt.Inspect("cold"); len(got) != 1 || got[0].Events != events-1 {
		t.Errorf("cold is %+v", got)
	}
}
