package clock

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// system simulates the clocks of a machine.
type system struct {
	counter time.Duration // the hardware's
	ahead   time.Duration // NTP's additions to the steered clocks
	slept   time.Duration
	gap     time.Duration // between two readings
}

func (s *system) read() Reading {
	r := Reading{Raw: s.counter}
	s.counter += s.gap
	r.Boot = s.counter + s.ahead + s.slept
	s.counter += s.gap
	r.Mono = s.counter + s.ahead
	return r
}

// run lets d pass on the hardware's clock, while NTP runs the other clocks at a rate.
func (s *system) run(d time.Duration, rate float64) {
	s.counter += d
	s.ahead += time.Duration(float64(d) * (rate - 1))
}

// The lease clock has the rate of the hardware counter, however NTP steers the other clocks, and
// runs during a suspend.
func TestSteadyIsNotSlewed(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 25))
	s := &system{counter: time.Hour, slept: 3 * time.Hour, ahead: -time.Minute, gap: 200 * time.Nanosecond}
	steady := newSteady(s.read)
	begun := steady.Now(s.read())
	want := begun
	for range 10_000 {
		d := time.Duration(rng.Int64N(int64(time.Second)))
		s.run(d, 1+SlewMax*(2*rng.Float64()-1))
		want = want.Add(d)
		if rng.IntN(100) == 0 {
			asleep := time.Duration(rng.Int64N(int64(time.Hour)))
			s.slept += asleep
			want = want.Add(asleep)
		}
		before := s.counter
		got := steady.Now(s.read())
		want = want.Add(s.counter - before)
		if off := got.Sub(want); off > shortSleep || off < -2*shortSleep {
			t.Fatalf("after %v the lease clock is off by %v", want.Sub(begun), off)
		}
	}
	if s.ahead > -time.Second && s.ahead < time.Second {
		t.Errorf("NTP has moved the other clocks by %v only: this shows nothing", s.ahead)
	}
}

// Two readings of different clocks are apart by as long as the goroutine was interrupted.
// None of this may move the lease clock, backward least of all.
func TestSteadyIgnoresInterruptions(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 25))
	s := &system{counter: time.Hour}
	steady := newSteady(s.read)
	last := steady.Now(s.read())
	for range 10_000 {
		s.run(time.Duration(rng.Int64N(int64(time.Millisecond))), 1.1)
		s.gap = time.Duration(rng.Int64N(int64(20 * time.Millisecond)))
		at := s.counter
		now := steady.Now(s.read())
		if now < last || now != Instant(at) {
			t.Fatalf("the lease clock shows %v after %v; it was read at %v", now, last, at)
		}
		last = now
	}
}

func TestSteadySeesASuspendBetweenReadings(t *testing.T) {
	for _, between := range []string{"raw and boot", "boot and mono"} {
		var steady Steady
		s := &system{counter: time.Hour, gap: time.Microsecond}
		before := steady.Now(s.read())
		const asleep = 10 * time.Second
		r := s.read()
		s.slept = asleep
		if between == "raw and boot" {
			r.Boot += asleep
		}
		if now := steady.Now(r); now < before {
			t.Errorf("a suspend between %s: the clock goes back by %v", between, before.Sub(now))
		}
		if now := steady.Now(s.read()); now.Sub(before) < asleep {
			t.Errorf("a suspend between %s: the next reading is %v later, want %v at least", between, now.Sub(before), asleep)
		}
	}
}

// A later reading never shows an earlier instant, even if both readers find out at the same
// moment that the machine was asleep.
func TestSteadyGrowsForAll(t *testing.T) {
	var steady Steady
	var mu sync.Mutex
	var last Instant
	s := &system{counter: time.Hour, gap: time.Microsecond}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 5_000 {
				mu.Lock()
				s.run(time.Microsecond, 1.08)
				if i%100 == 0 {
					s.slept += 5 * time.Millisecond
				}
				r, floor := s.read(), last
				mu.Unlock()
				now := steady.Now(r)
				mu.Lock()
				last = max(last, now)
				mu.Unlock()
				if now < floor {
					t.Errorf("%v after %v", now, floor)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestSteering(t *testing.T) {
	for _, rate := range []float64{0.9, 1 - 83333e-6, 1, 1.0005, 1.1} {
		s := &system{counter: time.Hour, slept: time.Hour}
		from := s.read()
		s.run(10*time.Second, rate)
		s.slept += time.Hour
		if got, ok := Steering(from, s.read()); !ok || got < rate-1-1e-6 || got > rate-1+1e-6 {
			t.Errorf("clocks steered to a rate of %v: %v, %v", rate, got, ok)
		}
	}
	if _, ok := Steering(Reading{}, Reading{Raw: time.Millisecond, Mono: time.Millisecond}); ok {
		t.Error("a millisecond tells a rate")
	}
}

func TestNowDoesNotGoBack(t *testing.T) {
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			last := Now()
			for range 20_000 {
				now := Now()
				if now < last {
					t.Errorf("%v after %v", now, last)
					return
				}
				last = now
			}
		})
	}
	all.Wait()
}
