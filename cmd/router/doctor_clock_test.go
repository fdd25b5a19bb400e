package main

import (
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// The doctor reports by how much NTP slews the clock, and whether leases follow it.
func TestDoctorKnowsTheClock(t *testing.T) {
	from := clock.Reading{Raw: time.Hour, Boot: 2 * time.Hour, Mono: time.Hour}
	after := func(rate float64) clock.Reading {
		d := time.Duration(float64(time.Second) * rate)
		return clock.Reading{Raw: from.Raw + time.Second, Boot: from.Boot + d, Mono: from.Mono + d}
	}
	for _, test := range []struct {
		to       clock.Reading
		slewable bool
		result   result
		says     string
	}{
		{after(1.0001), false, resultOK, "NTP cannot slew; now NTP slews the system clock by +0.01 %"},
		{after(0.9167), false, resultWarn, "by -8.33 %; leases run on CLOCK_MONOTONIC_RAW and the time asleep, and do not follow it"},
		{after(0.9167), true, resultWarn, "NTP may slew"},
		{from, false, resultOK, "NTP cannot slew"},
	} {
		var d doctor
		d.clock(from, test.to, test.slewable)
		found := d.findings[len(d.findings)-1]
		if found.Check != "clock" || found.Result != test.result || !strings.Contains(found.Says, test.says) {
			t.Errorf("slewable %v, %v in a second: %+v; want %s: %s", test.slewable, test.to.Mono-from.Mono, found, test.result, test.says)
		}
	}
}
