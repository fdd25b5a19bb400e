package forward

import (
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/event"
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
	tt.wantTake(1) // what was queued is parked too
	want = []Share{
		{Place: Sent, With: peerNumber(1), Events: 2, Oldest: began},
		{Place: Parked, With: peerNumber(1), Events: 3, Oldest: began},
	}
	if got := tt.Inspect("hot"); !slices.Equal(got, want) {
		t.Errorf("hot is %+v, want %+v", got, want)
	}
	if got := tt.Inspect("nobody's"); got != nil {
		t.Errorf("a key without events is %+v", got)
	}
}
