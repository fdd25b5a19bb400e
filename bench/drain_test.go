package main

import (
	"math"
	"testing"
	"time"
)

var zero = time.Unix(1000, 0)

func after(seconds float64) time.Time { return zero.Add(time.Duration(seconds * float64(time.Second))) }

// steady is a process that does so many events a second from began until ended, and
// uses cpu seconds in each second.
func steady(role string, began, ended, rate, cpu float64) *proc {
	p := &proc{role: role}
	for s := 0.0; s <= ended+1; s += 0.1 {
		at := after(s)
		p.events = append(p.events, point{at, rate * math.Max(0, math.Min(s, ended)-began)})
		p.cpu = append(p.cpu, point{at, cpu * s})
	}
	return p
}

func TestWindowIsWithoutStartAndTail(t *testing.T) {
	late, broker := steady(roleApp, 1, 11, 500, 0.2), steady(roleBroker, 0, 11, 0, 0.3)
	broker.events = nil // it reports nothing
	procs := []*proc{steady(roleApp, 0, 11, 1000, 0.5), late, broker}
	s, err := window(0.1, total(procs), procs)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "events a second", s.PerSecond, 1500, 0.01)
	near(t, "CPU of the applications", s.CPU[roleApp], 0.7*1e6/1500, 0.02)
	near(t, "CPU of the broker", s.CPU[roleBroker], 0.3*1e6/1500, 0.02)
}

func TestWindowThatSaysNothing(t *testing.T) {
	if _, err := window(0.1, 500, []*proc{steady(roleApp, 0, 0.5, 1000, 1)}); err == nil {
		t.Error("a window of less than half a second has figures")
	}
	idle := &proc{role: roleApp, events: []point{{after(0), 0}, {after(9), 0}}}
	if _, err := window(0.1, 10_000, []*proc{steady(roleApp, 0, 10, 1000, 1), idle}); err == nil {
		t.Error("a run in which one worker had nothing to do has figures")
	}
}

func TestValueAt(t *testing.T) {
	points := []point{{after(1), 10}, {after(2), 20}}
	for at, want := range map[float64]float64{0.5: 0, 1: 10, 1.5: 15, 2: 20, 9: 20} {
		if got := valueAt(points, after(at)); math.Abs(got-want) > 1e-6 {
			t.Errorf("value at %v s = %v, want %v", at, got, want)
		}
	}
}

func TestParseStat(t *testing.T) {
	got, err := parseStat("42 (a (strange) name) S 1 42 42 0 -1 4194560 100 0 0 0 250 150 0 0 20 0 9 0 1")
	if err != nil || got != 4 {
		t.Errorf("CPU = %v s, %v, want 4 s", got, err)
	}
	for _, bad := range []string{"", "42 (name) S 1 2", "42 (name) S 1 42 42 0 -1 4194560 100 0 0 0 x y 0 0"} {
		if _, err := parseStat(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestMedian(t *testing.T) {
	tests := map[string]struct {
		values []float64
		mid    float64
		spread [2]float64
	}{
		"none": {nil, 0, [2]float64{}},
		"odd":  {[]float64{9, 1, 5}, 5, [2]float64{1, 9}},
		"even": {[]float64{4, 1, 2, 9}, 3, [2]float64{1, 9}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if mid, spread := median(tt.values); mid != tt.mid || spread != tt.spread {
				t.Errorf("median = %v, %v, want %v, %v", mid, spread, tt.mid, tt.spread)
			}
		})
	}
	got := medians([]map[string]float64{{"a": 1, "b": 7}, {"a": 3}, {"a": 2}})
	if got["a"] != 2 || got["b"] != 7 {
		t.Errorf("medians = %v", got)
	}
}
