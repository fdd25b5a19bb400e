package schedule

import "time"

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
