package schedule

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	robfig "github.com/robfig/cron/v3"
	"pgregory.net/rapid"
)

func parse(t interface{ Fatal(args ...any) }, d Definition) Definition {
	d, err := d.Parse()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		panic(err)
	}
	return t.UTC()
}

// randomField draws a field of an expression, of all forms that cron has.
func randomField(rng *rand.Rand, low, high int, names []string) string {
	value := func(n int) string {
		if names != nil && rng.IntN(2) == 0 {
			return names[n-low]
		}
		return fmt.Sprint(n)
	}
	element := func() string {
		a := low + rng.IntN(high-low+1)
		b := a + rng.IntN(high-a+1)
		switch rng.IntN(6) {
		case 0:
			return "*"
		case 1:
			return fmt.Sprintf("*/%d", 1+rng.IntN(high-low+1))
		case 2:
			return value(a) + "-" + value(b)
		case 3:
			return fmt.Sprintf("%d-%d/%d", a, b, 1+rng.IntN(high-low+1))
		case 4:
			return fmt.Sprintf("%d/%d", a, 1+rng.IntN(high-low+1))
		default:
			return value(a)
		}
	}
	field := element()
	for rng.IntN(4) == 0 {
		field += "," + element()
	}
	return field
}

var (
	monthNames = strings.Fields("jan FEB mar apr may jun jul aug sep oct Nov dec")
	dayNames   = strings.Fields("sun mon tue WED thu fri sat")
)

func randomCron(rng *rand.Rand) string {
	return strings.Join([]string{
		randomField(rng, 0, 59, nil), randomField(rng, 0, 23, nil), randomField(rng, 1, 31, nil),
		randomField(rng, 1, 12, monthNames), randomField(rng, 0, 6, dayNames),
	}, " ")
}

// In UTC no clock ever changes, so there the library's own times are right.
func TestTimesInUTCAreThoseOfRobfig(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	checked, never, gone := 0, 0, 0
	for n := range 3000 {
		expr := randomCron(rng)
		if n < 7 {
			expr = strings.Fields("@yearly @annually @monthly @weekly @daily @midnight @hourly")[n]
		}
		theirs, err := robfig.ParseStandard(expr)
		if err != nil {
			t.Fatalf("%q: %v", expr, err)
		}
		// Of the day fields robfig takes a star with a step for a restriction, cron does not.
		if spec, ok := theirs.(*robfig.SpecSchedule); ok && n >= 7 {
			if fields := strings.Fields(expr); fields[2][0] == '*' || fields[4][0] == '*' {
				spec.Dom |= starBit
			}
		}
		from := firstTime.Add(time.Duration(rng.Int64N(int64(lastTime.AddDate(-30, 0, 0).Sub(firstTime)))))
		d, err := Definition{Name: "n", Cron: expr}.Parse()
		if err != nil {
			if !strings.Contains(err.Error(), "never fires") {
				t.Fatalf("%q: %v", expr, err)
			}
			if next := theirs.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)); !next.IsZero() {
				t.Fatalf("%q never fires? %v", expr, next)
			}
			never++
			continue
		}
		for range 20 {
			got, ok := d.Next(from)
			want := theirs.Next(from)
			if want.IsZero() || !want.Before(lastTime) { // robfig searches for five years, and beyond 2199
				if ok && (!want.IsZero() || got.Before(from.AddDate(5, 0, 0))) {
					t.Fatalf("%q after %v = %v, robfig has %v", expr, from, got, want)
				}
				gone++
				break
			}
			if !ok || !got.Equal(want) {
				t.Fatalf("%q after %v = %v, want %v", expr, from, got, want)
			}
			from = got
			checked++
		}
	}
	if checked < 40_000 || never == 0 {
		t.Errorf("compared %d times, %d expressions that never fire, %d ends", checked, never, gone)
	}
}

// Europe/Berlin 2026: 29 March 02:00 → 03:00, 25 October 03:00 → 02:00.
// America/New_York 2026: 8 March 02:00 → 03:00, 1 November 02:00 → 01:00.
// Australia/Lord_Howe 2026: 5 April 02:00 → 01:30, 4 October 02:00 → 02:30.
func TestTimesAtChangesOfTheClocks(t *testing.T) {
	const berlin, york, howe = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
	tests := map[string]struct {
		cron, zone, after string
		want              []string
	}{
		"gap: fixed time":                              {"30 2 * * *", berlin, "2026-03-28T12:00:00+01:00", []string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"}},
		"gap: its first minute":                        {"0 2 * * *", berlin, "2026-03-28T12:00:00+01:00", []string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"}},
		"gap: its end is no second":                    {"0 2,3 * * *", berlin, "2026-03-28T12:00:00+01:00", []string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"}},
		"gap: many fall into one":                      {"*/15 2 * * *", berlin, "2026-03-29T00:00:00+01:00", []string{"2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"}},
		"gap: free hours":                              {"*/30 * * * *", berlin, "2026-03-29T01:00:00+01:00", []string{"2026-03-29T01:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"}},
		"gap: step of hours":                           {"0 */2 * * *", berlin, "2026-03-28T23:00:00+01:00", []string{"2026-03-29T00:00:00+01:00", "2026-03-29T04:00:00+02:00"}},
		"gap: from within an hour":                     {"30 2 * * *", berlin, "2026-03-29T03:00:00+02:00", []string{"2026-03-30T02:30:00+02:00"}},
		"fold: fixed time":                             {"30 2 * * *", berlin, "2026-10-24T12:00:00+02:00", []string{"2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"}},
		"fold: asked in the second":                    {"30 2 * * *", berlin, "2026-10-25T02:10:00+01:00", []string{"2026-10-26T02:30:00+01:00"}},
		"fold: its end":                                {"0 3 * * *", berlin, "2026-10-25T02:10:00+02:00", []string{"2026-10-25T03:00:00+01:00"}},
		"fold: free hours":                             {"*/30 * * * *", berlin, "2026-10-25T02:00:00+02:00", []string{"2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T02:30:00+01:00", "2026-10-25T03:00:00+01:00"}},
		"fold: hourly":                                 {"@hourly", berlin, "2026-10-25T01:00:00+02:00", []string{"2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T03:00:00+01:00"}},
		"a stepped star restricts no day of the month": {"0 6 */2 * 1-5", "", "2026-11-06T12:00:00Z", []string{"2026-11-09T06:00:00Z", "2026-11-11T06:00:00Z"}},
		"nor a day of the week: the first Sunday":      {"0 9 1-7 * */7", "", "2026-11-06T12:00:00Z", []string{"2026-12-06T09:00:00Z", "2027-01-03T09:00:00Z"}},
		"a 29 February on a Sunday":                    {"0 9 29 2 */7", "", "2033-01-01T12:00:00Z", []string{"2060-02-29T09:00:00Z", "2088-02-29T09:00:00Z", "2128-02-29T09:00:00Z"}},
		"two restricted day fields: either suffices":   {"0 6 7 * 1", "", "2026-11-06T12:00:00Z", []string{"2026-11-07T06:00:00Z", "2026-11-09T06:00:00Z"}},
		"daily at noon":                                {"0 12 * * *", berlin, "2026-10-24T12:00:00+02:00", []string{"2026-10-25T12:00:00+01:00"}},
		"New York: gap":                                {"15 2 * * *", york, "2026-03-07T12:00:00-05:00", []string{"2026-03-08T03:00:00-04:00", "2026-03-09T02:15:00-04:00"}},
		"New York: fold":                               {"15 1 * * *", york, "2026-10-31T12:00:00-04:00", []string{"2026-11-01T01:15:00-04:00", "2026-11-02T01:15:00-05:00"}},
		"New York: free in the fold":                   {"15 * * * *", york, "2026-11-01T01:00:00-04:00", []string{"2026-11-01T01:15:00-04:00", "2026-11-01T01:15:00-05:00", "2026-11-01T02:15:00-05:00"}},
		"Lord Howe: gap":                               {"15 2 * * *", howe, "2026-10-03T12:00:00+10:30", []string{"2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"}},
		"Lord Howe: after the gap":                     {"45 2 * * *", howe, "2026-10-03T12:00:00+10:30", []string{"2026-10-04T02:45:00+11:00"}},
		"Lord Howe: fold":                              {"45 1 * * *", howe, "2026-04-04T12:00:00+11:00", []string{"2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"}},
		"Lord Howe: before the fold":                   {"15 1 * * *", howe, "2026-04-04T12:00:00+11:00", []string{"2026-04-05T01:15:00+11:00", "2026-04-06T01:15:00+10:30"}},
		"Lord Howe: free in the gap":                   {"0,30 * * * *", howe, "2026-10-04T01:00:00+10:30", []string{"2026-10-04T01:30:00+10:30", "2026-10-04T02:30:00+11:00", "2026-10-04T03:00:00+11:00"}},
		"a day that was left out":                      {"0 9,17 * * *", "Pacific/Apia", "2011-12-29T18:00:00-10:00", []string{"2011-12-31T00:00:00+14:00", "2011-12-31T09:00:00+14:00"}},
		"a gap at midnight":                            {"@daily", "Africa/Cairo", "2026-04-23T12:00:00+02:00", []string{"2026-04-24T01:00:00+03:00", "2026-04-25T00:00:00+03:00"}},
		"a fold at midnight":                           {"45 23 * * 4", "Africa/Cairo", "2026-10-29T12:00:00+03:00", []string{"2026-10-29T23:45:00+03:00", "2026-11-05T23:45:00+02:00"}},
		"a free fold at midnight":                      {"45 * * * 4", "Africa/Cairo", "2026-10-29T23:00:00+03:00", []string{"2026-10-29T23:45:00+03:00", "2026-10-29T23:45:00+02:00", "2026-11-05T00:45:00+02:00"}},
		"31 December, by rule":                         {"30 2 * * *", berlin, "2040-12-30T12:00:00+01:00", []string{"2040-12-31T02:30:00+01:00", "2041-01-01T02:30:00+01:00"}},
		"the same, free":                               {"30 */12 * * *", berlin, "2040-12-31T00:30:00+01:00", []string{"2040-12-31T12:30:00+01:00", "2041-01-01T00:30:00+01:00"}},
		"leap day":                                     {"0 0 29 2 *", "", "2096-03-01T00:00:00Z", []string{"2104-02-29T00:00:00Z"}},
		"either day":                                   {"0 0 13 * fri", "", "2026-11-10T00:00:00Z", []string{"2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z"}},
		"both days":                                    {"0 0 * * fri", "", "2026-11-10T00:00:00Z", []string{"2026-11-13T00:00:00Z", "2026-11-20T00:00:00Z"}},
		"a fraction of a second":                       {"* * * * *", "", "2026-01-01T00:00:59.999999999Z", []string{"2026-01-01T00:01:00Z", "2026-01-01T00:02:00Z"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := parse(t, Definition{Name: "n", Cron: test.cron, Zone: test.zone})
			after := at(test.after)
			for _, want := range test.want {
				got, ok := d.Next(after)
				if !ok || !got.Equal(at(want)) {
					t.Fatalf("after %v = %v, want %v", after.In(d.parsed.cron.zone), got.In(d.parsed.cron.zone), want)
				}
				if !d.Occurs(got) {
					t.Errorf("%v is no occurrence", got)
				}
				after = got
			}
		})
	}
}

// Zones with changes of all kinds: at midnight, by half an hour, by a day, with rules for ever.
var zones = strings.Fields("Europe/Berlin America/New_York Australia/Lord_Howe Pacific/Apia Africa/Cairo Asia/Kolkata America/Sao_Paulo Africa/Casablanca UTC")

// A fixed time fires once for each civil day, at that time of the day or where the clocks skip it.
func TestFixedTimesFireOncePerDay(t *testing.T) {
	moved := 0
	for _, zone := range zones {
		for _, of := range []time.Duration{0, 15, 45, 60, 90, 120, 135, 150, 179, 180, 720, 1410, 1439} {
			of *= time.Minute
			d := parse(t, Definition{Name: "n", Cron: fmt.Sprintf("%d %d * * *", int(of.Minutes())%60, int(of.Hours())), Zone: zone})
			loc := d.parsed.cron.zone
			for _, year := range []int{2008, 2011, 2016, 2026, 2040} {
				if zone == "Pacific/Apia" && year == 2011 && of == 0 {
					continue // it has no 30 December: that midnight and the next one are one moment
				}
				day := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
				now := d.parsed.cron.instant(day.Add(of))
				for range 366 {
					next, ok := d.Next(now)
					day = day.AddDate(0, 0, 1)
					if !ok || !next.After(now) {
						t.Fatalf("%v in %s after %v = %v, %v", of, zone, now, next, ok)
					}
					want := day.Add(of)
					shown, fold := d.parsed.cron.civil(next)
					switch {
					case fold:
						t.Fatalf("%v is the second one of its civil time", next.In(loc))
					case !shown.Equal(want):
						// The clocks must skip want: just before next they show less, and at next more.
						if before, _ := d.parsed.cron.civil(next.Add(-1)); !before.Before(want) || !shown.After(want) {
							t.Fatalf("%v after %v = %v, want %v", of, now.In(loc), next.In(loc), want)
						}
						moved++
					}
					now = next
				}
			}
		}
	}
	if moved == 0 {
		t.Error("no time was skipped; this run proved little")
	}
}

// Free hours fire at each minute whose civil time matches: a scan through all quarters of hours is the reference.
func TestFreeHoursFireAtEveryMatchingTime(t *testing.T) {
	twice := 0
	for _, zone := range zones {
		for _, step := range []int{1, 2, 5} {
			for _, minute := range []int{0, 30, 45} {
				d := parse(t, Definition{Name: "n", Cron: fmt.Sprintf("%d */%d * * *", minute, step), Zone: zone})
				loc := d.parsed.cron.zone
				for _, year := range []int{2011, 2026, 2040} {
					start := time.Date(year, 1, 1, 0, 0, 0, 0, loc)
					now := start.Add(-1)
					for m := start; m.Before(start.AddDate(1, 0, 0)); m = m.Add(15 * time.Minute) {
						local := m.In(loc)
						if local.Minute() != minute || local.Hour()%step != 0 {
							continue
						}
						next, ok := d.Next(now)
						if !ok || !next.Equal(m) {
							t.Fatalf("*/%d in %s after %v = %v, want %v", step, zone, now, next.In(loc), m)
						}
						if _, fold := d.parsed.cron.civil(next); fold {
							twice++
						}
						now = next
					}
				}
			}
		}
	}
	if twice == 0 {
		t.Error("no hour came twice; this run proved little")
	}
}

// Whatever the expression: times increase, are occurrences, have ids of their own, and counting them finds as many.
func TestTimesIncrease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		d := Definition{Name: "n", Cron: randomCron(rng), Zone: rapid.SampledFrom(zones).Draw(t, "zone")}
		if rapid.IntRange(0, 4).Draw(t, "kind") == 0 {
			d = Definition{Name: "n", Every: time.Duration(rapid.Int64Range(10_000, 1e8).Draw(t, "every")) * time.Millisecond}
		}
		d, err := d.Parse()
		if err != nil {
			t.Skip(err)
		}
		start := firstTime.Add(time.Duration(rng.Int64N(int64(lastTime.Sub(firstTime)))))
		ids, now := map[uint64]bool{}, start
		var times []time.Time
		for range 200 {
			next, ok := d.Next(now)
			if !ok {
				break
			}
			if !next.After(now) || !d.Occurs(next) || next.Location() != time.UTC {
				t.Fatalf("%+v after %v = %v", d, now, next)
			}
			if between := now.Add(next.Sub(now) / 2); between.After(now) {
				if got, _ := d.Next(between); !got.Equal(next) {
					t.Fatalf("%+v after %v = %v, want %v", d, between, got, next)
				}
			}
			ids[FiringID(d, next)] = true
			times, now = append(times, next), next
		}
		if len(ids) != len(times) {
			t.Fatalf("%d ids of %d firings", len(ids), len(times))
		}
		if len(times) == 0 {
			return
		}
		if got := d.Count(start, times[len(times)-1], 1000); got != len(times) {
			t.Fatalf("count = %d, want %d", got, len(times))
		}
		if got := d.Count(start, times[len(times)-1], 3); got != min(3, len(times)) {
			t.Fatalf("count up to 3 = %d", got)
		}
		n := rapid.IntRange(1, 250).Draw(t, "n")
		if got, ok := d.Newest(start, times[len(times)-1], n); !ok || !got.Equal(times[max(0, len(times)-n)]) {
			t.Fatalf("newest %d = %v, want %v", n, got, times[max(0, len(times)-n)])
		}
		if got, ok := d.Newest(start, times[0].Add(-1), n); ok {
			t.Fatalf("newest of none = %v", got)
		}
	})
}
