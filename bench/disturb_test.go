package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/clock"
)

var testPlan = plan{from: 100, half: 200, to: 300, rate: 1000}

// stampedAt is an event of the plan's timetable, which begins at a second.
func stampedAt(n int) (payload []byte, at clock.Instant) {
	at = timetable{begin: clock.Instant(time.Second), rate: testPlan.rate}.at(n)
	return stampedPayload("user-7", n, 256, at), at
}

func TestPlan(t *testing.T) {
	o, err := parseWith("--rate", "100", "--warm-up", "2s", "--measure", "3s")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := o.plan(), (plan{from: 200, half: 500, to: 800, rate: 100}); got != want {
		t.Errorf("plan = %+v, want %+v", got, want)
	}
	for n, want := range map[int]int{99: -1, 100: 0, 199: 0, 200: 1, 299: 1, 300: -1} {
		got, ok := testPlan.of(n)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("event %d is of half %d, %v; want %d", n, got, ok, want)
		}
	}
}

// What is handled counts in the half in which it was handled; how long it took, in the
// one that it was published in.
func TestHalves(t *testing.T) {
	h := newHalves(testPlan)
	for _, event := range []struct {
		n    int
		late time.Duration
	}{{n: 50}, {n: 150, late: time.Millisecond}, {n: 190, late: 20 * time.Millisecond}, {n: 250, late: 2 * time.Millisecond}, {n: 299, late: time.Second}} {
		payload, at := stampedAt(event.n)
		h.started(payload, at.Add(event.late))
		h.finished(payload, at.Add(event.late))
	}
	path := filepath.Join(t.TempDir(), "halves")
	if err := h.write(path); err != nil {
		t.Fatal(err)
	}
	both := [2]half{newHalf(), newHalf()}
	for range 2 { // two applications
		if err := mergeHalves(path, &both); err != nil {
			t.Fatal(err)
		}
	}
	if both[0].handled != 2 || both[1].handled != 4 {
		t.Errorf("%d and %d were handled in the halves, want 2 and 4", both[0].handled, both[1].handled)
	}
	for i, want := range []float64{20, 1000} {
		if q := quantilesOf(both[i].start); q.Count != 4 || q.Max < want || q.Max > want*1.01 {
			t.Errorf("half %d: %+v, want 4 events, the slowest of %v ms", i, q, want)
		}
	}
}

func TestDisturb(t *testing.T) {
	ending := make(chan struct{})
	w := &worker{halves: newHalves(testPlan), disturbance: disturbance{slow: 2, fails: 1, takes: time.Hour}, ending: ending}
	before, _ := stampedAt(150)
	after, _ := stampedAt(250)
	for _, key := range []string{"user-1", "user-2"} {
		if err := w.work(key, before); err != nil {
			t.Errorf("%s in the undisturbed half: %v", key, err)
		}
	}
	if err := w.work("user-2", after); !errors.Is(err, errDisturbed) {
		t.Errorf("the key that is to fail: %v", err)
	}
	if err := w.work("user-3", after); err != nil {
		t.Errorf("a key beside: %v", err)
	}
	close(ending)
	if err := w.work("user-1", after); !errors.Is(err, errDisturbed) { // it would hang for an hour
		t.Errorf("the key that hangs, when the process ends: %v", err)
	}
	if n := w.halves.both[1].start.TotalCount(); n != 1 {
		t.Errorf("%d events count, want that of the key beside alone", n)
	}
}

// What never began must not make the figures better.
func TestLateCounts(t *testing.T) {
	s := disturbSample{both: [2]half{newHalf(), newHalf()}, published: [2]int{100, 100}}
	for i, began := range []int{100, 50} {
		for range began {
			recordLatency(s.both[i].start, time.Millisecond)
		}
		s.both[i].handled = began
	}
	s.allowance = allowance{Consumer: 50_000, Subscription: 150_000, Blocked: true}
	s.countLate()
	m, _ := modeNamed(modeShared)
	d := disturbResult(Options{Measure: time.Second, Rate: 100}, m, []disturbSample{s}).Disturbed
	if d.Before.Late != 0 || d.After.Late != 50 || d.Kept != 0.5 {
		t.Errorf("%d and %d late, %v kept; want 0, 50 and half", d.Before.Late, d.After.Late, d.Kept)
	}
	if d.P99Ratio < 2900 || d.P99Ratio > 3100 {
		t.Errorf("p99 ratio = %v, want 3 s to 1 ms", d.P99Ratio)
	}
	if text := d.String(); !strings.Contains(text, "0.500") || !strings.Contains(text, "BLOCKED") {
		t.Errorf("it says %q", text)
	}
}
