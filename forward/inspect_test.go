package forward

import (
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

func TestInspect(t *testing.T) {
	inEachForm(t, func(t *testing.T, tt *tableTest) {
		p := &Pool{table: tt.Table}
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
		if got := p.Inspect("hot"); !slices.Equal(got, want) {
			t.Errorf("hot is %+v, want %+v", got, want)
		}
		tt.say(1, event.Overloaded, 0, 2)
		tt.wantTake(1) // queued events wait for room too
		want = []KeyPlace{
			{Place: Sent, With: peerNumber(1), Events: 2, Oldest: began},
			{Place: Full, With: peerNumber(1), Events: 3, Oldest: began},
		}
		if got := p.Inspect("hot"); !slices.Equal(got, want) {
			t.Errorf("hot is %+v, want %+v", got, want)
		}
		if got := p.Inspect("nobody's"); got != nil {
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
		steps, visited := 0, 0
		for age, more := uint64(0), true; more; steps++ {
			before := visited
			age, more = tt.visit(age, func(held) { visited++ })
			if visited-before >= eventsAtOnce+perEntry {
				t.Fatalf("one step looks at %d events", visited-before)
			}
		}
		if steps < 3 || visited != events {
			t.Errorf("%d steps look at %d events, want 3 or more and %d", steps, visited, events)
		}
		p := &Pool{table: tt.Table}
		for key, want := range map[event.Key]int{"hot": 1, "cold": events - 1} {
			if got := p.Inspect(key); len(got) != 1 || got[0].Events != want {
				t.Errorf("%s is %+v, want %d events in one place", key, got, want)
			}
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
