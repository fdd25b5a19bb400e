package clock

import (
	"testing"
	"time"
)

func TestFastIsNotBehindTheClock(t *testing.T) {
	var fast Fast
	const slack = time.Microsecond // the two clocks round differently
	for end := Now().Add(20 * FastFor); Now().Before(end); {
		before := Now()
		if got := fast.Now(); got.Add(slack).Before(before) {
			t.Fatalf("the fast clock is %v behind", before.Sub(got))
		}
	}
}

func TestFastReadsTheClockAgain(t *testing.T) {
	var fast Fast
	fast.Now()
	fast.offset.Add(int64(-time.Hour)) // as if the machine had been asleep
	time.Sleep(2 * FastFor)
	before := Now()
	if got := fast.Now(); got.Add(time.Minute).Before(before) {
		t.Errorf("after %v the fast clock is still %v behind", 2*FastFor, before.Sub(got))
	}
}

func BenchmarkFast(b *testing.B) {
	var fast Fast
	for b.Loop() {
		fast.Now()
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}
