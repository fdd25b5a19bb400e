package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
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

// A handling counts in the half in which it was handled; its latency counts in the half in
// which the event was published. Repeats, even at another process, count once.
func TestHalves(t *testing.T) {
	all := newTimes(testPlan)
	var others []int
	for app := range 2 {
		d := newTimeline(testPlan)
		for _, event := range []struct {
			n    int
			late time.Duration
		}{{n: 50}, {n: 150, late: time.Millisecond}, {n: 190, late: 20 * time.Millisecond}, {n: 250, late: 2 * time.Millisecond}, {n: 299, late: time.Second}, {n: 300}} {
			payload, at := stampedAt(event.n)
			for again := range 2 {
				now := at.Add(event.late + time.Duration(app+again)*time.Hour)
				d.started(payload, now)
				d.finished(payload, now)
			}
			if app == 0 && event.n < 300 {
				others = append(others, event.n)
			}
		}
		path := filepath.Join(t.TempDir(), "timeline")
		if err := d.write(path); err != nil {
			t.Fatal(err)
		}
		if err := mergeTimeline(path, all); err != nil {
			t.Fatal(err)
		}
	}
	both := all.halves(testPlan, others)
	if both[0].handled != 1 || both[1].handled != 2 {
		t.Errorf("%d and %d were handled in the halves, want 1 and 2", both[0].handled, both[1].handled)
	}
	for i, want := range []float64{20, 1000} {
		if q := quantilesOf(both[i].start); both[i].published != 2 || q.Count != 2 || q.Max < want || q.Max > want*1.01 {
			t.Errorf("half %d: %+v of %d, want 2 events, the slower of %v ms", i, q, both[i].published, want)
		}
	}
}

func TestDisturb(t *testing.T) {
	ending := make(chan struct{})
	w := &worker{timeline: newTimeline(testPlan), disturbance: disturbance{slow: 2, fails: 1, takes: time.Hour}, ending: ending}
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
	if w.timeline.times.Start[250] == never || w.timeline.times.Start[150] != never {
		t.Errorf("event 150 began after %d, event 250 after %d µs; want that of the key beside alone", w.timeline.times.Start[150], w.timeline.times.Start[250])
	}
}

// Events that never began must not improve the figures.
func TestLateCounts(t *testing.T) {
	all := newTimes(testPlan)
	var others []int
	for n := testPlan.from; n < testPlan.to; n++ {
		others = append(others, n)
		if n < testPlan.half || n%2 == 0 {
			all.Start[n], all.End[n] = 1000, 1000
		}
	}
	s := disturbSample{both: all.halves(testPlan, others), allowance: allowance{Consumer: 50_000, Subscription: 150_000, Blocked: true}}
	m, _ := modeNamed(modeShared)
	d := disturbResult(Options{Measure: 100 * time.Millisecond, Rate: 1000}, m, []disturbSample{s}).Disturbed
	if d.Before.Late != 0 || d.After.Late != 50 || d.After.PublishedPerS != 1000 || d.Kept < 0.48 || d.Kept > 0.52 {
		t.Errorf("%d and %d late, %v kept; want 0, 50 and half", d.Before.Late, d.After.Late, d.Kept)
	}
	if d.P99Ratio < 3000 || d.P99Ratio > 3200 {
		t.Errorf("p99 ratio = %v, want more than 3 s to 1 ms", d.P99Ratio)
	}
	if text := d.String(); !strings.Contains(text, "unacked at most 150000") || !strings.Contains(text, "BLOCKED") {
		t.Errorf("text = %q", text)
	}
}
