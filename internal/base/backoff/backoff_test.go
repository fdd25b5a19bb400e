package backoff_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/backoff"
)

func TestDelaysDoubleUpToTheMaximum(t *testing.T) {
	b := backoff.Backoff{Min: 20, Max: 70}
	var got []time.Duration
	var atMax []bool
	for range 5 {
		got, atMax = append(got, b.Next()), append(atMax, b.IsMaxBackoffReached())
	}
	if want := []time.Duration{20, 40, 70, 70, 70}; !slices.Equal(got, want) {
		t.Errorf("delays = %v, want %v", got, want)
	}
	if want := []bool{false, false, true, true, true}; !slices.Equal(atMax, want) {
		t.Errorf("at the maximum: %v, want %v", atMax, want)
	}
	if b.Reset(); b.Next() != 20 {
		t.Errorf("the first delay after a reset is %v, want 20", b.Last)
	}
}

// For any bounds, even near the longest Duration, delays are within them and do not shrink, and
// Nth agrees with Next.
func TestDelaysAreWithinBounds(t *testing.T) {
	duration := rapid.OneOf(rapid.Int64Range(1, 1000), rapid.Int64Range(1, math.MaxInt64))
	rapid.Check(t, func(t *rapid.T) {
		first, longest := time.Duration(duration.Draw(t, "first")), time.Duration(duration.Draw(t, "longest"))
		b := backoff.Backoff{Min: first, Max: longest}
		before := min(first, longest)
		for n := range 70 {
			d := b.Next()
			if d < before || d > longest || n > 0 && before < longest && d == before {
				t.Fatalf("delay %d is %v after %v", n+1, d, before)
			}
			if nth := backoff.Nth(first, longest, n+1); nth != d {
				t.Fatalf("Nth(%d) = %v, Next = %v", n+1, nth, d)
			}
			before = d
		}
		if before != longest {
			t.Fatalf("delay 70 is %v, want the longest, %v", before, longest)
		}
	})
}

func TestJitterTakesUpToHalf(t *testing.T) {
	seen := map[time.Duration]bool{}
	for random := range uint64(100) {
		seen[backoff.Jitter(10, random)] = true
	}
	for d := range time.Duration(20) {
		if seen[d] != (d >= 5 && d <= 10) {
			t.Errorf("a delay of 10 with jitter is %d: %v, want 5 to 10", d, seen[d])
		}
	}
	if got := backoff.Jitter(0, 7); got != 0 {
		t.Errorf("jitter makes %v of 0", got)
	}
	if got := backoff.Jitter(math.MaxInt64, math.MaxUint64); got < math.MaxInt64/2 {
		t.Errorf("jitter makes %v of the longest delay", got)
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		if backoff.Sleep(t.Context(), time.Minute) != nil || time.Since(begun) != time.Minute {
			t.Errorf("slept for %v, want a minute", time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun = time.Now()
		if err := backoff.Sleep(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("slept for %v after the end of the context", time.Since(begun))
		}
	})
}
