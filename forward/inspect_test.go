package forward

import (
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

func TestInspect(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		began := tt.now
		tt.hold("hot", 1, 3)
		tt.hold("cold", 10, 10)
		tt.take(1)
		tt.after(time.Second)
		tt.hold("hot", 4, 5)
		want := []KeyPlace{
			{Place: Queued, With: peerNumber(1), Events: 2, Oldest: began.Add(time.Second)},
			{Place: Sent, With: peerNumber(1), Events: 3, Oldest: began},
		}
		if got := tt.Inspect("hot"); !slices.Equal(got, want) {
			t.Errorf("hot is %+v, want %+v", got, want)
		}
		tt.say(1, event.Overloaded, 0, 2)
		tt.wantTake(1) // queued events wait for room too
		want = []KeyPlace{
			{Place: Sent, With: peerNumber(1), Events: 2, Oldest: began},
			{Place: Full, With: peerNumber(1), Events: 3, Oldest: began},
		}
		if got := tt.Inspect("hot"); !slices.Equal(got, want) {
			t.Errorf("hot is %+v, want %+v", got, want)
		}
		if got := tt.Inspect("nobody's"); got != nil {
			t.Errorf("a key without events is %+v", got)
		}
	})
}

// A search goes through the records step by step, and finds the same.
func TestInspectGoesStepByStep(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		const events, perEntry = 3*eventsAtOnce + 5, 500
		for n := 1; n < events; n += perEntry {
			tt.hold("cold", n, min(events, n+perEntry)-1)
		}
		tt.hold("hot", events, events)
		var look inspection
		steps := 0
		for ; !look.done; steps++ {
			before, visited := look.age, 0
			tt.inspect("hot", &look)
			for r := tt.oldest; r != nil; r = r.newer {
				if r.age > before && r.age <= look.age {
					visited += r.n
				}
			}
			if visited >= eventsAtOnce+perEntry {
				t.Fatalf("one step looks at %d events", visited)
			}
		}
		if got := look.result(); steps < 3 || len(got) != 1 || got[0].Events != 1 {
			t.Errorf("after %d steps %+v", steps, got)
		}
		if got := tt.Inspect("cold"); len(got) != 1 || got[0].Events != events-1 {
			t.Errorf("cold is %+v", got)
		}
	})
}

// The keys whose events wait at this node are told with the number of their events, those that were sent are not among them.
func TestUnsentCountsEventsByKey(t *testing.T) {
	tt := newTableTest(t, true)
	p := &Pool{table: tt.Table}
	tt.hold("sent", 1, 2)
	tt.take(1)
	began := tt.now
	tt.holdEntry(3, bytesEntryOf(tt.nextFirst(), &event.Event{Key: "a"}, &event.Event{Key: "b"}, &event.Event{Key: "a"}))
	tt.after(time.Second)
	tt.hold("b", 6, 6)
	want := []HeldKey{
		{"a", KeyPlace{Place: Queued, With: peerNumber(1), Events: 2, Oldest: began}},
		{"b", KeyPlace{Place: Queued, With: peerNumber(1), Events: 2, Oldest: began}},
	}
	if got := p.Unsent(); !slices.Equal(got, want) {
		t.Errorf("unsent are %+v, want %+v", got, want)
	}
}
