package journal

import (
	"slices"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// A process is stopped from 100 to 5000 with a handling in its hands; another one
// handles the key meanwhile.
func TestStops(t *testing.T) {
	wake := int(WakeMax / time.Millisecond)
	tests := map[string]struct {
		oldEnd, newStart, newEnd int
		overlaps, woken          uint64
	}{
		"the other one comes and goes meanwhile": {oldEnd: 5001, newStart: 3000, newEnd: 3010, woken: 1},
		"the old one is cut as it wakes":         {oldEnd: 5000 + wake, newStart: 3000, newEnd: 9000, woken: 1},
		"the old one goes on":                    {oldEnd: 5001 + wake, newStart: 3000, newEnd: 9000, overlaps: 1},
		"the other one began before the stop":    {oldEnd: 5001, newStart: 99, newEnd: 3010, overlaps: 1},
		"the other one comes after the waking":   {oldEnd: 5100, newStart: 5050, newEnd: 5060, woken: 1},
		"they do not meet":                       {oldEnd: 5001, newStart: 5001, newEnd: 5060},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			a, b := s.process("a"), s.process("b")
			old := a.start(50, "1", "k", 1)
			b.handle(test.newStart, test.newEnd, "2", "k", 2)
			a.end(test.oldEnd, old, Cancelled)
			stopped := a.file()
			stopped.Stops = []Stop{{ms(10), ms(20)}, {ms(100), ms(5000)}}
			r := check(t, []File{stopped, b.file()}, "2")
			if r.Overlaps != test.overlaps || r.Woken != test.woken {
				t.Errorf("%d overlaps and %d woken, want %d and %d", r.Overlaps, r.Woken, test.overlaps, test.woken)
			}
		})
	}
}

// A process is stopped from 100 to 5000 while it holds a key, whose deadline was 2000 at last.
func TestStopsOfHolders(t *testing.T) {
	tests := map[string]struct {
		newStart        int
		overlaps, woken uint64
	}{
		"the other one begins before the deadline": {newStart: 1999, overlaps: 1},
		"the other one begins at the deadline":     {newStart: 2000, woken: 1},
		"the other one begins long after it":       {newStart: 4000, woken: 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			a, b := s.process("a"), s.process("b")
			old := a.start(50, "reservation:1", "k", 1)
			a.until(51, old, 1500)
			a.until(99, old, 2000)
			b.handle(test.newStart, test.newStart+10, "2", "k", 2)
			a.end(5010, old, Cancelled)
			stopped := a.file()
			stopped.Stops = []Stop{{ms(100), ms(5000)}}
			r := check(t, []File{stopped, b.file()}, "2")
			if r.Overlaps != test.overlaps || r.Woken != test.woken {
				t.Errorf("%d overlaps and %d woken, want %d and %d", r.Overlaps, r.Woken, test.overlaps, test.woken)
			}
		})
	}
}

func TestWalk(t *testing.T) {
	s := newScript(t)
	a, b := s.process("a"), s.process("b")
	h := a.startFenced(1, "1", "k", event.Fence{Token: 7, Turn: 3})
	a.until(2, h, 9) // no step
	b.handle(2, 3, "2", "l", 8)
	a.end(4, h, Rejected)
	var steps []Step
	err := Walk([]string{a.path, b.path}, func(s Step) error { steps = append(steps, s); return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{
		{File: 0, At: ms(1), Handling: 1, Token: 7, Turn: 3, Event: "1", Key: "k"},
		{File: 1, At: ms(2), Handling: 1, Token: 8, Event: "2", Key: "l"},
		{File: 1, At: ms(3), Handling: 1, Outcome: Done},
		{File: 0, At: ms(4), Handling: 1, Outcome: Rejected},
	}
	if !slices.Equal(steps, want) {
		t.Errorf("steps:\n got %+v\nwant %+v", steps, want)
	}
}
