package clock_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// TestSlewClock: in a build with the tag slewclock the environment steers the system's
// clocks, but not the leases; the control steers the leases too. To any other build the
// environment means nothing.
func TestSlewClock(t *testing.T) {
	if os.Getenv("SLEW_TEST_CHILD") != "" {
		from, lease, shared := clock.Careful(), clock.Now(), clock.Shared()
		time.Sleep(300 * time.Millisecond)
		to := clock.Careful()
		rate := func(d time.Duration) float64 { return float64(d) / float64(to.Raw-from.Raw) }
		fmt.Printf("system %.1f lease %.1f shared %.1f slewable %v\n",
			rate(to.Boot-from.Boot), rate(clock.Now().Sub(lease)), rate(clock.Shared().Sub(shared)), clock.Slewable())
		return
	}
	if clock.Slewable() {
		t.Skip("this system has no clock that NTP cannot slew")
	}
	for _, test := range []struct{ environment, built string }{
		{"", "system 1.0 lease 1.0 shared 1.0 slewable false"},
		{"RINGFENCE_TEST_CLOCK_RATE=1.5", "system 1.5 lease 1.0 shared 1.0 slewable false"},
		{"RINGFENCE_TEST_CLOCK_RATE=0.5,0.5", "system 0.5 lease 1.0 shared 1.0 slewable false"},
		{"RINGFENCE_TEST_CLOCK_RATE=1.5 RINGFENCE_TEST_CLOCK=slewed", "system 1.5 lease 1.5 shared 1.0 slewable true"},
		{"RINGFENCE_TEST_CLOCK_RATE=fast", "want rates above 0"},
		{"RINGFENCE_TEST_CLOCK_EVERY=-1s", "want a duration above 0"},
	} {
		want := test.built
		if !slewBuilt {
			want = "system 1.0 lease 1.0 shared 1.0 slewable false"
		}
		var out []byte
		for range 3 { // a child that is interrupted between readings is off by more than it may
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSlewClock$")
			cmd.Env = append(append(os.Environ(), "SLEW_TEST_CHILD=1"), strings.Fields(test.environment)...)
			if out, _ = cmd.CombinedOutput(); strings.Contains(string(out), want) {
				break
			}
		}
		if !strings.Contains(string(out), want) {
			t.Errorf("%s: want %q in:\n%s", test.environment, want, out)
		}
	}
}
