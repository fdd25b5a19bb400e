package schedule

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// The limits of a definition.
const (
	NameMax       = 128              // bytes of a schedule's name
	CronMax       = 256              // bytes of an expression
	ZoneMax       = 64               // bytes of a time zone's name
	EveryShortest = 10 * time.Second // the shortest period
	EveryMax      = 366 * 24 * time.Hour
	JitterMax     = time.Hour
	GraceDefault  = time.Hour
	GraceMax      = 24 * time.Hour
	searchYears   = 41 // in any that many years there is a 29 February on each day of the week
)

// The times that a schedule can have. They bound the searches, and what a message from outside can
// claim.
var (
	firstTime = time.Unix(0, 0).UTC()
	lastTime  = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
)

// Policy decides about firings that come late: their owner was dead, or an earlier firing
// took too long.
//
//exhaustive:enforce
type Policy uint8

const (
	// Latest runs the newest of them, and tells it how many it stands for.
	Latest Policy = iota
	// All runs each of them, the oldest first, up to [MissedMax].
	All
	// Skip runs none that is late by more than [LateMax].
	Skip
)

var policies = [...]string{Latest: "latest", All: "all", Skip: "skip"}

// String returns the word that reports show.
func (p Policy) String() string {
	if int(p) < len(policies) {
		return policies[p]
	}
	return "unknown"
}

// Definition is a schedule as its application declares it. Exactly one of Cron, Every and At is
// set. Its methods but Parse are for what [Definition.Parse] returned.
type Definition struct {
	Name   string
	Cron   string        // five fields, or a descriptor such as @daily
	Zone   string        // of Cron, as in "Europe/Berlin"; "" is UTC
	Every  time.Duration // fires at the multiples of it since 1970
	At     time.Time     // fires once
	Jitter time.Duration // a firing is due up to that much after its time, always by the same delay
	Missed Policy
	Grace  time.Duration // a firing that is later than that does not run; 0 is GraceDefault

	parsed *parsed
}

// parsed holds values that are computed from a definition, once. It is never changed.
type parsed struct {
	cron   *cron
	id     uint64
	offset time.Duration
}

// Parse checks d and returns it with its defaults, ready for the other methods. The error
// names every bad field, and what it should be.
func (d Definition) Parse() (Definition, error) {
	if err := checkName(d.Name); err != nil {
		return Definition{}, err
	}
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	p := &parsed{}
	interval := EveryMax // the shortest time between two firings
	switch {
	case boolToInt(d.Cron != "")+boolToInt(d.Every != 0)+boolToInt(!d.At.IsZero()) != 1:
		wrong("set exactly one of cron, every and at")
	case d.Cron != "":
		c, err := parseCron(d.Cron, d.Zone)
		if err != nil {
			errs = append(errs, err)
			break
		}
		p.cron, interval = c, c.interval()
	case d.Zone != "":
		wrong("zone = %.20q belongs to cron; remove it", d.Zone)
	case d.Every != 0:
		if d.Every < EveryShortest || d.Every > EveryMax || d.Every%time.Millisecond != 0 {
			wrong("every = %v, want whole milliseconds, from %v to %v", d.Every, EveryShortest, EveryMax)
		}
		interval = d.Every
	default:
		d.At = d.At.UTC().Truncate(time.Millisecond)
		if d.At.Before(firstTime) || !d.At.Before(lastTime) {
			wrong("at = year %d, want a time from 1970 to 2199", d.At.Year())
		}
	}
	if d.Jitter < 0 || d.Jitter > JitterMax || d.Jitter >= interval {
		wrong("jitter = %v, want at least 0, at most %v, and less than the time between two firings (%v)", d.Jitter, JitterMax, interval)
	}
	if d.Grace == 0 {
		d.Grace = GraceDefault
	}
	if d.Grace < 0 || d.Grace > GraceMax {
		wrong("grace = %v, want more than 0 and at most %v; 0 means %v", d.Grace, GraceMax, GraceDefault)
	}
	if int(d.Missed) >= len(policies) {
		wrong("missed = %d, want latest, all or skip", d.Missed)
	}
	if err := errors.Join(errs...); err != nil {
		return Definition{}, fmt.Errorf("schedule %q: %w", d.Name, err)
	}

	if ms := uint64(d.Jitter.Milliseconds()); ms > 0 {
		p.offset = time.Duration(xxhash.Sum64String(d.Name)%ms) * time.Millisecond
	}
	p.id = d.hash(p)
	d.parsed = p
	return d, nil
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// checkName checks a name. The name is part of a key, and appears in logs and on pages.
func checkName(name string) error {
	if name == "" || len(name) > NameMax || !utf8.ValidString(name) {
		return fmt.Errorf("schedule: a name of %d bytes; want 1 to %d bytes of UTF-8", len(name), NameMax)
	}
	if i := strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		return fmt.Errorf("schedule %q: the character at byte %d of its name cannot be printed; remove it", name, i)
	}
	return nil
}

// hash is the hash of everything that decides when d is due, in a form in which equal times
// are spelled alike: "@daily" is "0 0 * * *". Policy and grace do not count, so a change of them
// leaves the firings that are already armed valid.
func (d Definition) hash(p *parsed) uint64 {
	var b []byte
	add := func(v uint64) { b = binary.LittleEndian.AppendUint64(b, v) }
	switch {
	case p.cron != nil:
		b = append(b, 'c')
		for _, v := range []uint64{p.cron.minute, p.cron.hour, p.cron.dom, p.cron.month, p.cron.dow, uint64(boolToInt(p.cron.eitherDay)), uint64(boolToInt(p.cron.free))} {
			add(v)
		}
		b = append(b, p.cron.zone.String()...)
		b = append(b, 0)
	case d.Every != 0:
		b = append(b, 'e')
		add(uint64(d.Every))
	default:
		b = append(b, 'a')
		add(uint64(d.At.UnixMilli()))
	}
	add(uint64(p.offset))
	return xxhash.Sum64(b)
}

// ID identifies the times of d: definitions that fire at the same times have the same.
func (d Definition) ID() uint64 { return d.parsed.id }

// Offset is the delay of every firing of d after its time: the jitter of d's name. It is constant, so
// that two nodes agree on it.
func (d Definition) Offset() time.Duration { return d.parsed.offset }

// FiringID identifies one firing of d: the one at that occurrence. It is made of the civil
// time, so nodes with different versions of the time zone database still agree on which firing is
// that of a day.
func FiringID(d Definition, occurrence time.Time) uint64 {
	civil, fold := occurrence, false
	if d.parsed.cron != nil {
		civil, fold = d.parsed.cron.civil(occurrence)
	}
	var b []byte
	b = binary.LittleEndian.AppendUint64(b, d.parsed.id)
	b = binary.LittleEndian.AppendUint64(b, uint64(civil.UnixMilli()))
	b = append(b, byte(boolToInt(fold)))
	b = append(b, d.Name...)
	return xxhash.Sum64(b)
}

// Next returns the first occurrence of d after that time, in UTC; false: there is none before the year 2200.
func (d Definition) Next(after time.Time) (time.Time, bool) {
	if after.Before(firstTime) {
		after = firstTime.Add(-1)
	}
	if !after.Before(lastTime) {
		return time.Time{}, false
	}
	after = after.UTC().Round(0)
	next, ok := d.At, d.At.After(after)
	switch {
	case d.parsed.cron != nil:
		next, ok = d.parsed.cron.next(after)
	case d.Every != 0:
		next, ok = multiple(after, d.Every).Add(d.Every), true
	}
	if !ok || !next.Before(lastTime) {
		return time.Time{}, false
	}
	return next, true
}

// multiple returns the newest multiple of every, since 1970, that is not after t.
func multiple(t time.Time, every time.Duration) time.Time {
	ns := t.UnixNano()
	over := ns % int64(every)
	if over < 0 {
		over += int64(every)
	}
	return time.Unix(0, ns-over).UTC()
}

// Occurs reports whether t is an occurrence of d.
func (d Definition) Occurs(t time.Time) bool {
	next, ok := d.Next(t.Add(-1))
	return ok && next.Equal(t)
}

// Count counts the occurrences after from and up to to, at most limit.
func (d Definition) Count(from, to time.Time, limit int) int {
	if d.Every != 0 && from.Before(to) && !from.Before(firstTime) && !to.After(lastTime) {
		return int(min(int64(limit), int64(multiple(to, d.Every).Sub(multiple(from, d.Every))/d.Every)))
	}
	n := 0
	for n < limit {
		next, ok := d.Next(from)
		if !ok || next.After(to) {
			break
		}
		n, from = n+1, next
	}
	return n
}

// Newest returns the nth newest occurrence after from and up to to, or the oldest of them if they are
// fewer; false: there is none.
func (d Definition) Newest(from, to time.Time, n int) (time.Time, bool) {
	// Most occurrences of a long span need not be looked at: short ones before the end are tried first.
	all := to.Sub(from)
	for span := time.Minute; ; span *= 4 {
		start, whole := to.Add(-span), false
		if span >= all/4 {
			start, whole = from, true
		}
		var found []time.Time // the n newest, the oldest first
		count := 0
		for next, ok := d.Next(start); ok && !next.After(to); next, ok = d.Next(next) {
			if count++; len(found) == n {
				found = append(found[:0], found[1:]...)
			}
			found = append(found, next)
		}
		if whole || count >= n {
			if count == 0 {
				return time.Time{}, false
			}
			return found[0], true
		}
	}
}
