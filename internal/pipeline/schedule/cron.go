package schedule

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // containers often have no zone database; it is used only where the system has none

	robfig "github.com/robfig/cron/v3"
)

// cron is a parsed expression in its time zone: sets of bits by number.
type cron struct {
	minute, hour, dom, month, dow uint64
	eitherDay                     bool // both day fields are restricted, so one that matches suffices
	free                          bool // the hours go by elapsed time, not by the civil clock
	zone                          *time.Location
}

const wantCron = `want five fields (minute hour day-of-month month day-of-week) such as "0 6 * * 1-5", or one of @yearly, @monthly, @weekly, @daily, @hourly`

// starBit is set by robfig's parser in a field with a star of step 1.
const starBit = 1 << 63

var parser = robfig.NewParser(robfig.Minute | robfig.Hour | robfig.Dom | robfig.Month | robfig.Dow | robfig.Descriptor)

// parseCron parses an expression. What robfig's parser panics on, or reads differently from what it
// looks like, is refused before it.
func parseCron(expr, zone string) (*cron, error) {
	if len(expr) > CronMax {
		return nil, fmt.Errorf("cron = %d bytes, want at most %d", len(expr), CronMax)
	}
	expr = strings.TrimSpace(expr)
	switch {
	case strings.HasPrefix(expr, "TZ="), strings.HasPrefix(expr, "CRON_TZ="):
		return nil, fmt.Errorf("cron = %q: name the time zone in zone, not in the expression", expr)
	case strings.HasPrefix(expr, "@every"):
		return nil, fmt.Errorf("cron = %q: use every for a period", expr)
	}
	fields := strings.Fields(expr)
	free, err := checkFields(fields)
	if err != nil {
		return nil, fmt.Errorf("cron = %q: %w; %s", expr, err, wantCron)
	}
	times, err := parser.Parse(expr)
	if err != nil {
		return nil, fmt.Errorf("cron = %q: %w; %s", expr, err, wantCron)
	}
	spec, ok := times.(*robfig.SpecSchedule)
	if !ok {
		return nil, fmt.Errorf("cron = %q: no times of a calendar; %s", expr, wantCron)
	}
	loc, err := loadZone(zone)
	if err != nil {
		return nil, err
	}
	c := &cron{
		minute:    spec.Minute &^ starBit,
		hour:      spec.Hour &^ starBit,
		dom:       spec.Dom &^ starBit,
		month:     spec.Month &^ starBit,
		dow:       spec.Dow &^ starBit,
		eitherDay: (spec.Dom|spec.Dow)&starBit == 0 && len(fields) == len(spans) && !beginsWithStar(fields[2]) && !beginsWithStar(fields[4]),
		free:      free || spec.Hour&starBit != 0,
		zone:      loc,
	}
	// The whole search: all days of the week of all days of the months, 29 February included.
	if _, ok := c.nextCivil(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)); !ok {
		return nil, fmt.Errorf("cron = %q never fires: no month of it has such a day; change the day or the month", expr)
	}
	return c, nil
}

// spans are the counts of the values of the five fields.
var spans = [5]int{60, 24, 31, 12, 7}

// checkFields refuses elements that robfig's parser reads in silence, and not as they look: an empty
// one is no time, "*-5" is every time, and "*/90" is every hour. It reports whether the hours are
// free: a star, with a step or without.
func checkFields(fields []string) (free bool, err error) {
	if len(fields) != len(spans) {
		return false, nil // a descriptor, or the parser's to refuse
	}
	for i, field := range fields {
		for element := range strings.SplitSeq(field, ",") {
			values, step, stepped := strings.Cut(element, "/")
			star := beginsWithStar(values)
			switch {
			case element == "":
				return false, fmt.Errorf("%q has an empty element", field)
			case star && len(values) > 1:
				return false, fmt.Errorf("%q continues after the star", element)
			}
			if n, err := strconv.Atoi(step); stepped && err == nil && n > spans[i] {
				return false, fmt.Errorf("the step of %q is longer than the field (%d)", element, spans[i])
			}
			free = free || i == 1 && star
		}
	}
	return free, nil
}

// beginsWithStar reports whether a field restricts nothing for the rule of the two day fields: cron asks for its first
// character, so "*/2" does not either.
func beginsWithStar(field string) bool {
	return strings.HasPrefix(field, "*") || strings.HasPrefix(field, "?")
}

// loadZone loads a time zone. Names that mean another zone on another machine are refused.
func loadZone(name string) (*time.Location, error) {
	hint := `want a name of the IANA database such as "Europe/Berlin", or none for UTC`
	if len(name) > ZoneMax {
		return nil, fmt.Errorf("zone = %d bytes, want at most %d; %s", len(name), ZoneMax, hint)
	}
	strange := strings.IndexFunc(name, func(r rune) bool {
		return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("+-_/", r)
	})
	switch first, _, _ := strings.Cut(name, "/"); {
	case strange >= 0:
		return nil, fmt.Errorf("zone = %q: no such zone; %s", name, hint)
	case name == "Local", name == "localtime", first == "right", first == "posix", first == "":
		if name != "" {
			return nil, fmt.Errorf("zone = %q is not the same on all machines; %s", name, hint)
		}
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("zone = %q: %w; %s", name, err, hint)
	}
	return loc, nil
}

// dayMatches reports whether c fires on that date.
func (c *cron) dayMatches(y int, m time.Month, d int) bool {
	dom := c.dom>>d&1 == 1
	dow := c.dow>>time.Date(y, m, d, 0, 0, 0, 0, time.UTC).Weekday()&1 == 1
	if c.eitherDay {
		return dom || dow
	}
	return dom && dow
}

// nextCivil returns the first civil time from `from` on that matches, in whole minutes; false: none
// within searchYears. Civil times are written as if they were in UTC.
func (c *cron) nextCivil(from time.Time) (time.Time, bool) {
	if floor := from.Truncate(time.Minute); floor.Before(from) {
		from = floor.Add(time.Minute)
	}
	y, m, d := from.Date()
	hour, minute := from.Hour(), from.Minute()
	for end := y + searchYears; y <= end; {
		if c.month>>m&1 == 0 {
			y, m, d = time.Date(y, m+1, 1, 0, 0, 0, 0, time.UTC).Date()
			hour, minute = 0, 0
			continue
		}
		if c.dayMatches(y, m, d) {
			for h := next(c.hour, hour); h < 24; h = next(c.hour, h+1) {
				if h > hour {
					minute = 0
				}
				if at := next(c.minute, minute); at < 60 {
					return time.Date(y, m, d, h, at, 0, 0, time.UTC), true
				}
			}
		}
		y, m, d = time.Date(y, m, d+1, 0, 0, 0, 0, time.UTC).Date()
		hour, minute = 0, 0
	}
	return time.Time{}, false
}

// next returns the lowest number in the set that is at least from, or 64.
func next(set uint64, from int) int { return bits.TrailingZeros64(set >> from << from) }

// civil returns what the clocks of the zone show at t, and whether they show it for the second time.
func (c *cron) civil(t time.Time) (civil time.Time, fold bool) {
	civil = civilAt(t.In(c.zone))
	return civil, !c.instant(civil).Equal(t)
}

func civilAt(local time.Time) time.Time {
	_, offset := local.Zone()
	return local.UTC().Add(time.Duration(offset) * time.Second)
}

// zoneBounds is t.ZoneBounds with an end that is after t. Where a zone's rule is computed, not read from
// its table, Go takes each year for 365 days: on the last day of a leap year the end of the span has passed.
// No rule changes the clocks on that day, so the span ends with the year.
func zoneBounds(t time.Time) (start, end time.Time) {
	start, end = t.ZoneBounds()
	if !end.IsZero() && !end.After(t) {
		end = time.Date(t.UTC().Year()+1, 1, 1, 0, 0, 0, 0, time.UTC).In(t.Location())
	}
	return start, end
}

// zoneSpan is longer than any zone is from UTC.
const zoneSpan = 26 * time.Hour

// instant returns the first moment at which the clocks of the zone show civil or more: the first
// one of two, and for a time that they skip the end of the gap. It never decreases as
// civil grows, which [cron.next] relies on.
func (c *cron) instant(civil time.Time) time.Time {
	t := civil.Add(-zoneSpan).In(c.zone)
	for {
		start, end := zoneBounds(t)
		_, offset := t.Zone()
		at := civil.Add(-time.Duration(offset) * time.Second)
		if !start.IsZero() && at.Before(start) {
			return start.UTC()
		}
		if end.IsZero() || at.Before(end) {
			return at
		}
		t = end
	}
}

// next returns the first occurrence after t.
func (c *cron) next(t time.Time) (time.Time, bool) {
	if c.free {
		return c.nextFree(t)
	}
	// The civil time that the clocks show at t has begun, so the search starts behind it.
	civil, ok := c.nextCivil(civilAt(t.In(c.zone)).Add(1))
	for ok {
		if at := c.instant(civil); at.After(t) {
			return at, true
		}
		civil, ok = c.nextCivil(civil.Add(time.Minute)) // t is in an hour that comes twice
	}
	return time.Time{}, false
}

// nextFree is next by elapsed time: between two changes of the clocks civil time is elapsed
// time, so each such span is searched by itself.
func (c *cron) nextFree(t time.Time) (time.Time, bool) {
	local, from := t.In(c.zone), civilAt(t.In(c.zone)).Add(1)
	for limit := t.AddDate(searchYears, 0, 0); local.Before(limit); {
		_, end := zoneBounds(local)
		_, offset := local.Zone()
		civil, ok := c.nextCivil(from)
		if !ok {
			return time.Time{}, false
		}
		at := civil.Add(-time.Duration(offset) * time.Second)
		if end.IsZero() || at.Before(end) {
			return at, true
		}
		local, from = end, civilAt(end)
	}
	return time.Time{}, false
}

// interval is the shortest time between two firings by the civil clock, for any days.
func (c *cron) interval() time.Duration {
	shortest, first, last := 24*60, -1, -1
	for h := next(c.hour, 0); h < 24; h = next(c.hour, h+1) {
		for m := next(c.minute, 0); m < 60; m = next(c.minute, m+1) {
			at := h*60 + m
			if first < 0 {
				first = at
			} else {
				shortest = min(shortest, at-last)
			}
			last = at
		}
	}
	return time.Duration(min(shortest, first+24*60-last)) * time.Minute
}
