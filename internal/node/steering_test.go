package node

import (
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
)

func TestSteeringSaysWhenTheRateIsOff(t *testing.T) {
	r := clock.Reading{Raw: time.Hour, Boot: time.Hour, Mono: time.Hour}
	reg := prometheus.NewRegistry()
	s := newSteering(reg, r)
	for i, test := range []struct {
		rate    float64
		asleep  time.Duration
		changed bool
	}{
		{rate: 1},
		{rate: 1.0005},
		{rate: 1.083333, changed: true},
		{rate: 0.92},
		{rate: 0.9995, asleep: time.Hour, changed: true},
		{rate: 0.98, changed: true},
		{rate: 1, changed: true},
	} {
		r.Raw += steeringEvery
		r.Mono += time.Duration(float64(steeringEvery) * test.rate)
		r.Boot = r.Mono + test.asleep
		if changed := s.look(r); changed != test.changed {
			t.Errorf("step %d, at a rate of %v: changed = %v", i, test.rate, changed)
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		if got := families[0].GetMetric()[0].GetGauge().GetValue(); families[0].GetName() != "ringfence_clock_rate_error_ratio" || math.Abs(got-(test.rate-1)) > 1e-9 {
			t.Errorf("step %d: %s is %v at a rate of %v", i, families[0].GetName(), got, test.rate)
		}
	}
	if s.look(r) || s.value() != 0 {
		t.Errorf("no time has passed, and the ratio is %v", s.value())
	}
}
