package idlecpu

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"
)

func TestPolicy(t *testing.T) {
	const busy, between, quiet = BusyFrom, (BusyFrom + QuietBelow) / 2, QuietBelow - 0.01
	times := func(share float64, periods int) []float64 { return slices.Repeat([]float64{share}, periods) }
	const enough = int(QuietFor / Period)
	for name, c := range map[string]struct {
		shares []float64
		one    bool
	}{
		"starts with all":                      {nil, false},
		"quiet, but not for long":              {times(quiet, enough-1), false},
		"quiet for long":                       {times(quiet, enough), true},
		"between, for long":                    {times(between, 10*enough), false},
		"a busy period begins the time anew":   {slices.Concat(times(quiet, enough-1), times(busy, 1), times(quiet, enough-1)), false},
		"a period between does, too":           {slices.Concat(times(quiet, enough-1), times(between, 1), times(quiet, enough-1)), false},
		"load comes":                           {slices.Concat(times(quiet, enough), times(busy, 1)), false},
		"some load comes":                      {slices.Concat(times(quiet, enough), times(between, 10*enough)), true},
		"load comes and goes":                  {slices.Concat(times(quiet, enough), times(busy, 1), times(quiet, enough)), true},
		"load comes, and has not been long by": {slices.Concat(times(quiet, enough), times(busy, 1), times(quiet, enough-1)), false},
	} {
		t.Run(name, func(t *testing.T) {
			var p Policy
			one := p.Next(0, 0)
			for _, share := range c.shares {
				one = p.Next(time.Duration(share*float64(Period)), Period)
			}
			if one != c.one {
				t.Errorf("one processor: %t, want %t", one, c.one)
			}
		})
	}
}

func TestAPeriodOfNoLengthChangesNothing(t *testing.T) {
	var p Policy
	p.Next(0, QuietFor)
	if !p.Next(time.Second, 0) {
		t.Error("all processors are back, with no time gone by")
	}
}

// A late look counts for as long as it took: a process that stood still was not busy.
func TestALateLook(t *testing.T) {
	var p Policy
	if !p.Next(Period, QuietFor+Period) {
		t.Error("a period of quiet that is long enough by itself was not")
	}
}

func TestDecided(t *testing.T) {
	for _, c := range []struct {
		environ map[string]string
		want    bool
	}{
		{nil, false},
		{map[string]string{"GOGC": "400", "MY_GOMAXPROCS": "2"}, false},
		{map[string]string{"GOMAXPROCS": ""}, false}, // which is nothing to Go, either
		{map[string]string{"GOGC": "400", "GOMAXPROCS": "2"}, true},
	} {
		t.Run(fmt.Sprint(c.environ), func(t *testing.T) {
			t.Setenv("GOMAXPROCS", "")
			for name, value := range c.environ {
				t.Setenv(name, value)
			}
			if got := decided(); got != c.want {
				t.Errorf("%t, want %t", got, c.want)
			}
		})
	}
}

// The process of this test is governed: it gets down to one processor when it has little to
// do, has all of them again when it works, and at the end.
func TestStart(t *testing.T) {
	t.Setenv("GOMAXPROCS", "")
	runtime.SetDefaultGOMAXPROCS()
	all := runtime.GOMAXPROCS(0)
	if _, err := cpuTime(); err != nil || all == 1 {
		t.Skipf("nothing to govern here: %d processors, CPU time: %v", all, err)
	}
	stop := Start()
	await := func(want int, meanwhile func()) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); runtime.GOMAXPROCS(0) != want; meanwhile() {
			if time.Now().After(deadline) {
				t.Fatalf("%d processors after a minute, want %d", runtime.GOMAXPROCS(0), want)
			}
		}
	}
	rest := func() { time.Sleep(10 * time.Millisecond) }
	work := func() {
		for range 1_000_000 {
			runtime.KeepAlive(all)
		}
	}
	await(1, rest)
	await(all, work)
	await(1, rest)
	stop()
	if now := runtime.GOMAXPROCS(0); now != all {
		t.Errorf("%d processors are left, of %d", now, all)
	}
}

func TestWhoHasDecidedIsNotGoverned(t *testing.T) {
	t.Setenv("GOMAXPROCS", "2")
	before := runtime.NumGoroutine()
	defer Start()()
	if now := runtime.NumGoroutine(); now > before {
		t.Errorf("%d goroutines, %d before", now, before)
	}
}
