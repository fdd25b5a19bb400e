package schedule

import (
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
)

// The source lets firings wait for as long as a schedule can want.
func TestFiringsOfTheLastTime(t *testing.T) {
	if latest := lastTime.Add(JitterMax).UnixMilli(); latest != event.FiringDueMax {
		t.Errorf("firings are due until %d, and may wait until %d", latest, event.FiringDueMax)
	}
}

func TestDefinitionsAreRefusedWithAnAnswer(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	tests := map[string]struct {
		d    Definition
		want string // in the error; "" is none
	}{
		"cron":                   {Definition{Name: "n", Cron: "0 6 * * 1-5", Zone: "Europe/Berlin"}, ""},
		"every":                  {Definition{Name: "n", Every: 10 * time.Second, Jitter: 9 * time.Second}, ""},
		"at":                     {Definition{Name: "n", At: noon, Jitter: time.Hour}, ""},
		"any script":             {Definition{Name: "täglich 日", Cron: "@daily"}, ""},
		"no name":                {Definition{Cron: "@daily"}, "want 1 to 128 bytes"},
		"a long name":            {Definition{Name: strings.Repeat("n", 129), Cron: "@daily"}, "want 1 to 128 bytes"},
		"a name of bytes":        {Definition{Name: "\xff", Cron: "@daily"}, "UTF-8"},
		"a line feed":            {Definition{Name: "a\nb", Cron: "@daily"}, `schedule "a\nb": the character at byte 1 of its name cannot be printed; remove it`},
		"nothing":                {Definition{Name: "n"}, "exactly one of cron, every and at"},
		"two":                    {Definition{Name: "n", Cron: "@daily", Every: time.Hour}, "exactly one of cron, every and at"},
		"three":                  {Definition{Name: "n", Cron: "@daily", Every: time.Hour, At: noon}, "exactly one of cron, every and at"},
		"too often":              {Definition{Name: "n", Every: 9999 * time.Millisecond}, "from 10s"},
		"negative":               {Definition{Name: "n", Every: -time.Hour}, "from 10s"},
		"too seldom":             {Definition{Name: "n", Every: 367 * 24 * time.Hour}, "from 10s"},
		"a part of a ms":         {Definition{Name: "n", Every: 10*time.Second + 1}, "whole milliseconds"},
		"a zone without cron":    {Definition{Name: "n", Every: time.Hour, Zone: "UTC"}, "belongs to cron; remove it"},
		"long ago":               {Definition{Name: "n", At: time.Unix(-1, 0)}, "from 1970 to 2199"},
		"far away":               {Definition{Name: "n", At: lastTime}, "from 1970 to 2199"},
		"jitter of the period":   {Definition{Name: "n", Every: time.Minute, Jitter: time.Minute}, "less than the time between two firings (1m0s)"},
		"jitter of the cron":     {Definition{Name: "n", Cron: "0,50 * * * *", Jitter: 10 * time.Minute}, "(10m0s)"},
		"jitter over midnight":   {Definition{Name: "n", Cron: "58 23,0 * * *", Jitter: time.Hour}, "(1h0m0s)"},
		"much jitter":            {Definition{Name: "n", Cron: "@daily", Jitter: time.Hour + 1}, "at most 1h0m0s"},
		"negative jitter":        {Definition{Name: "n", Cron: "@daily", Jitter: -1}, "at least 0"},
		"much grace":             {Definition{Name: "n", Cron: "@daily", Grace: 25 * time.Hour}, "at most 24h"},
		"negative grace":         {Definition{Name: "n", Cron: "@daily", Grace: -1}, "more than 0"},
		"an unknown policy":      {Definition{Name: "n", Cron: "@daily", Missed: 3}, "latest, all or skip"},
		"no fields":              {Definition{Name: "n", Cron: " "}, "want five fields"},
		"four fields":            {Definition{Name: "n", Cron: "* * * *"}, "want five fields"},
		"six fields":             {Definition{Name: "n", Cron: "0 * * * * *"}, "want five fields"},
		"a zone in it":           {Definition{Name: "n", Cron: "TZ=UTC"}, "name the time zone in zone"},
		"a zone in it, longer":   {Definition{Name: "n", Cron: " CRON_TZ=UTC 0 6 * * *"}, "name the time zone in zone"},
		"@every":                 {Definition{Name: "n", Cron: "@every 1h"}, "use every"},
		"@reboot":                {Definition{Name: "n", Cron: "@reboot"}, "want five fields"},
		"30 February":            {Definition{Name: "n", Cron: "0 0 30 2 *"}, "never fires"},
		"31 in short months":     {Definition{Name: "n", Cron: "0 0 31 2,4,6,9,11 *"}, "never fires"},
		"30 February or Mondays": {Definition{Name: "n", Cron: "0 0 30 2 1"}, ""},
		"29 February":            {Definition{Name: "n", Cron: "0 0 29 2 *"}, ""},
		"an empty element":       {Definition{Name: "n", Cron: "0, 0 * * *"}, "empty element"},
		"a comma":                {Definition{Name: "n", Cron: ", 0 * * *"}, "empty element"},
		"a star and more":        {Definition{Name: "n", Cron: "*-5 * * * *"}, "continues after the star"},
		"90 minutes":             {Definition{Name: "n", Cron: "*/90 * * * *"}, "longer than the field (60)"},
		"Sunday is 0":            {Definition{Name: "n", Cron: "0 0 * * 7"}, "above maximum"},
		"a long expression":      {Definition{Name: "n", Cron: strings.Repeat("0,", 200) + "0 * * * *"}, "want at most 256"},
		"an unknown zone":        {Definition{Name: "n", Cron: "@daily", Zone: "Europe/Nowhere"}, "IANA"},
		"the machine's zone":     {Definition{Name: "n", Cron: "@daily", Zone: "Local"}, "not the same on all machines"},
		"leap seconds":           {Definition{Name: "n", Cron: "@daily", Zone: "right/Europe/Berlin"}, "not the same on all machines"},
		"a path":                 {Definition{Name: "n", Cron: "@daily", Zone: "../../etc/passwd"}, "no such zone"},
		"an absolute path":       {Definition{Name: "n", Cron: "@daily", Zone: "/etc/localtime"}, "not the same on all machines"},
		"a long zone":            {Definition{Name: "n", Cron: "@daily", Zone: strings.Repeat("z", 65)}, "want at most 64"},
		"all at once":            {Definition{Name: "n", Every: 1, Grace: -1}, "grace"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := test.d.Parse()
			switch {
			case test.want == "" && err != nil:
				t.Fatal(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Fatalf("error = %v, want %q in it", err, test.want)
			}
		})
	}
}

// Equal times have equal ids, however they are spelled; what does not decide times does not count.
func TestIDsAreOfTimes(t *testing.T) {
	same := [][]Definition{
		{
			{Name: "a", Cron: "@daily"},
			{Name: "b", Cron: " 00  0 * ? * ", Zone: "UTC", Missed: All, Grace: time.Minute},
			{Name: "a", Cron: "@midnight"},
		},
		{{Name: "a", Cron: "@daily", Zone: "Europe/Berlin"}},
		{{Name: "a", Cron: "@daily", Jitter: time.Hour}},
		{{Name: "b", Cron: "@daily", Jitter: time.Hour}},
		{{Name: "a", Cron: "@hourly"}, {Name: "a", Cron: "0 * * * *"}, {Name: "a", Cron: "0 */1 * * *"}},
		{{Name: "a", Cron: "0 0-23 * * *"}}, // by the civil clock
		{{Name: "a", Cron: "0 0 1-31 * 1"}}, // either day
		{{Name: "a", Cron: "0 0 * * 1"}},
		{{Name: "a", Every: time.Hour}, {Name: "b", Every: time.Hour}},
		{{Name: "a", Every: 2 * time.Hour}},
		{{Name: "a", At: time.Unix(7200, 0)}},
		{{Name: "a", At: time.Unix(3600, 0)}, {Name: "a", At: time.Unix(3600, 1000).In(time.FixedZone("x", 60))}},
	}
	seen := map[uint64]int{}
	for i, group := range same {
		for _, d := range group {
			d = parse(t, d)
			if j, ok := seen[d.ID()]; ok && j != i {
				t.Errorf("%+v has the id of %+v", d, same[j][0])
			} else if !ok && len(seen) > i {
				t.Errorf("%+v has not the id of %+v", d, group[0])
			}
			seen[d.ID()] = i
		}
	}
}

// Both instants of a civil time that comes twice are firings of their own, and names tell schedules apart.
func TestFiringIDs(t *testing.T) {
	d := parse(t, Definition{Name: "a", Cron: "30 * * * *", Zone: "Europe/Berlin"})
	other := parse(t, Definition{Name: "b", Cron: "30 * * * *", Zone: "Europe/Berlin"})
	first, second := at("2026-10-25T02:30:00+02:00"), at("2026-10-25T02:30:00+01:00")
	if FiringID(d, first) == FiringID(d, second) {
		t.Error("the second 02:30 has the id of the first")
	}
	if FiringID(d, first) == FiringID(other, first) {
		t.Error("two schedules share an id")
	}
	if FiringID(d, first) != FiringID(d, first.In(time.FixedZone("x", 3600))) {
		t.Error("the id depends on how the time is written")
	}
	later := d // at a node whose time zone database puts the same day an hour later
	cron := *d.parsed.cron
	cron.zone = time.FixedZone(cron.zone.String(), 3600)
	parsed := *d.parsed
	parsed.cron, later.parsed = &cron, &parsed
	if FiringID(d, at("2026-07-01T02:30:00+02:00")) != FiringID(later, at("2026-07-01T02:30:00+01:00")) {
		t.Error("the id depends on the version of the time zone database")
	}
}

func TestJitterIsConstant(t *testing.T) {
	a := parse(t, Definition{Name: "a", Every: time.Hour, Jitter: 30 * time.Minute})
	b := parse(t, Definition{Name: "b", Every: time.Hour, Jitter: 30 * time.Minute})
	if a.Offset() == b.Offset() || a.Offset() < 0 || a.Offset() >= a.Jitter || b.Offset() >= b.Jitter {
		t.Errorf("offsets = %v, %v", a.Offset(), b.Offset())
	}
	if again := parse(t, a); again.Offset() != a.Offset() {
		t.Errorf("offset = %v, then %v", a.Offset(), again.Offset())
	}
}

func TestEvery(t *testing.T) {
	d := parse(t, Definition{Name: "n", Every: 90 * time.Second})
	for after, want := range map[string]string{
		"1970-01-01T00:00:00Z":           "1970-01-01T00:01:30Z",
		"1960-01-01T00:00:00Z":           "1970-01-01T00:00:00Z",
		"2026-01-01T00:00:00Z":           "2026-01-01T00:01:30Z",
		"2026-01-01T00:01:29.999999999Z": "2026-01-01T00:01:30Z",
		"2026-01-01T00:01:30Z":           "2026-01-01T00:03:00Z",
	} {
		if got, ok := d.Next(at(after)); !ok || !got.Equal(at(want)) {
			t.Errorf("after %v = %v, want %v", after, got, want)
		}
	}
	if got, ok := d.Next(lastTime); ok {
		t.Errorf("after the last time = %v", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"0 6 * * 1-5", "@daily", "@every 1s", "TZ=UTC", "CRON_TZ=", "*/5 1,2 ? jan-dec sun", "0 0 30 2 *", "59/1 * * * *", ",,,,,", "\x00", "0 0 29 2 *"} {
		f.Add(seed, "Europe/Berlin", int64(1_774_749_600))
	}
	f.Add("30 2 * * *", "Australia/Lord_Howe", int64(1<<62))
	f.Add("@hourly", "../..", int64(-1<<62))
	f.Fuzz(func(t *testing.T, expr, zone string, after int64) {
		d, err := Definition{Name: "n", Cron: expr, Zone: zone}.Parse()
		if err != nil {
			if len(err.Error()) > 4*CronMax+1024 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		from := time.Unix(after, 0)
		for range 3 {
			next, ok := d.Next(from)
			if !ok {
				return
			}
			if !next.After(from) || !d.Occurs(next) {
				t.Fatalf("%q in %q after %v = %v", expr, zone, from, next)
			}
			from = next
		}
	})
}
