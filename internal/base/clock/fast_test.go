package clock

import (
	"testing"
	"time"
)

func TestFastIsNotBehindTheClock(t *testing.T) {
	var fast Fast
	const slack = FastFor/8 + time.Microsecond // NTP's slew of the system clock, and the rounding of both clocks
	for end := Now().Add(20 * FastFor); Now().Before(end); {
		before := Now()
		if got, _ := fast.Both(); got.Add(slack).Before(before) {
			t.Fatalf("the fast clock is %v behind", before.Sub(got))
		}
	}
}

// Go's monotonic clock stands still in a suspend. A reading from before a suspend must not be used
// after it, however little time has passed on that clock.
func TestFastReadsTheClockAgainAfterASuspend(t *testing.T) {
	var fast Fast
	now := Instant(time.Hour)
	reads := 0
	read := func(time.Duration) (Instant, time.Duration) { reads++; return now, time.Duration(now) }
	const mono, wall, soon = int64(time.Minute), int64(1e18), int64(20 * time.Microsecond)
	if got, _ := fast.at(mono, wall, read); got != now {
		t.Fatalf("the first reading is %v, want %v", got, now)
	}
	if got, _ := fast.at(mono+soon, wall+5, read); got != now.Add(time.Duration(soon)) || reads != 1 {
		t.Fatalf("%v later it is %v, after %d readings; want it extrapolated from the first", time.Duration(soon), got, reads)
	}
	for _, asleep := range []time.Duration{time.Millisecond, 2 * time.Second, 24 * time.Hour} {
		before, _ := fast.at(mono+soon, wall, read)
		now = now.Add(asleep)
		if got, _ := fast.at(mono+soon, wall+int64(asleep), read); got.Sub(before) < asleep-FastFor/2 {
			t.Errorf("after a suspend of %v the fast clock has gone on by %v", asleep, got.Sub(before))
		}
	}
	reads = 0
	fast.at(mono+2*soon, wall-int64(time.Hour), read)
	if reads != 1 {
		t.Errorf("%d readings when the wall clock was set back, want 1", reads)
	}
}

func TestFastReadsTheClockAgainInTime(t *testing.T) {
	var fast Fast
	now := Instant(time.Hour)
	read := func(time.Duration) (Instant, time.Duration) { return now, time.Duration(now) }
	fast.at(1, 0, read)
	now = now.Add(time.Hour) // as if the wall clock had been set back by as much as the machine slept
	if got, _ := fast.at(1+int64(FastFor), 0, read); got != now {
		t.Errorf("after %v the fast clock is %v behind", FastFor, now.Sub(got))
	}
}

// Intervals of handlers are compared across processes of one machine: a reading that is off makes two handlers
// overlap that did not. A busy machine may interrupt every try of a reading, so a few outliers are allowed.
func TestFastBootAgreesWithTheClock(t *testing.T) {
	var fast Fast
	const readings, slack = 2000, 20 * time.Microsecond
	off := 0
	check := func(read func() time.Duration) {
		before := Read().Boot
		got := read()
		after := Read().Boot
		if got < before-slack || got > after+slack {
			off++
		}
	}
	for range readings {
		check(func() time.Duration { _, boot := fast.Both(); return boot })
	}
	if off > readings/50 {
		t.Errorf("%d of %d readings are off by more than %v", off, readings, slack)
	}
}

func BenchmarkFast(b *testing.B) {
	var fast Fast
	for b.Loop() {
		fast.Both()
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}
