package audit

import "time"

// Trip is one question to another member and its answer, with the lease clocks of both.
type Trip struct {
	Sent, Back time.Duration // of the asking member: before it sent the question, and after it had the answer
	There      time.Duration // of the answering member, in between
}

// Clock is a process's statement about its clocks at one moment.
type Clock struct {
	ID     ClockID       // of Boot
	Boot   time.Duration // CLOCK_BOOTTIME, which NTP steers
	Lease  time.Duration // the lease clock at that moment
	Since  time.Duration // from this Boot on, Boot − Lease has differed from its present value by at most Wander
	Wander time.Duration // see Since
	Slewed bool          // NTP steers the lease clock too
}

// The rates of two lease clocks: each counter may be off by 1 % (assumption A2 of docs/exclusivity.md), and where NTP steers
// the clock, by slewMax more.
const (
	driftMax = 0.0205
	slewMax  = 0.11
	// sameClock is the tolerance of a check whether two processes read the same clock.
	sameClock = 2 * time.Millisecond
)

// Remote turns instants of a sender's CLOCK_BOOTTIME into those of the receiver's. All of the sender's values are
// claims, which are checked against each other as far as they can be.
type Remote struct {
	Sender, Receiver Clock
	Trips            []Trip // of the sender, to the receiver
}

// SameClock reports whether both processes read the same clock. A ClockID that is equal because a machine was cloned
// does not pass for that: then the trips contradict it.
func (r *Remote) SameClock() bool {
	if r.Sender.ID != r.Receiver.ID || r.Sender.ID == (ClockID{}) {
		return false
	}
	for _, t := range r.Trips {
		if t.There < t.Sent-sameClock || t.There > t.Back+sameClock {
			return false
		}
	}
	return true
}

// Map returns the mapping of a handling of the sender. ok is false if the clocks cannot be compared: there was no trip, or
// the trips contradict each other.
func (r *Remote) Map(h *Handling) (m Mapping, ok bool) {
	if r.SameClock() {
		return Mapping{}, true
	}
	start, startSlack, okStart := r.at(h.Start)
	end, endSlack, okEnd := r.at(h.End)
	if !okStart || !okEnd {
		return Mapping{}, false
	}
	return Mapping{Shift: end, StartSlack: startSlack + (start - end).Abs(), EndSlack: endSlack}, true
}

// at returns what must be added to an instant of the sender's CLOCK_BOOTTIME, give or take slack.
func (r *Remote) at(instant time.Duration) (shift, slack time.Duration, ok bool) {
	s, t := &r.Sender, &r.Receiver
	lease := instant - (s.Boot - s.Lease)
	slack = s.wandered(instant)
	rate := driftMax
	for _, c := range []*Clock{s, t} {
		if c.Slewed {
			rate += slewMax
		}
	}
	low, high := -farthest, farthest
	for _, trip := range r.Trips {
		off := time.Duration(rate * float64(max(0, trip.Sent-lease, lease-trip.Back)+slack))
		low, high = max(low, trip.There-trip.Back-off), min(high, trip.There-trip.Sent+off)
	}
	if low > high || low == -farthest {
		return 0, 0, false
	}
	there := lease + low + (high-low)/2
	slack += (high - low + 1) / 2
	boot := there + t.Boot - t.Lease
	return boot - instant, slack + t.wandered(boot), true
}

// farthest bounds the offset of two clocks: a century.
const farthest = 100 * 365 * 24 * time.Hour

// wandered bounds by how much Boot − Lease differed at an instant of Boot from its present value.
func (c *Clock) wandered(instant time.Duration) time.Duration {
	return c.Wander + time.Duration(slewMax*float64(max(0, c.Since-instant)))
}

// Wander remembers by how much CLOCK_BOOTTIME has moved against the lease clock. The zero Wander is ready.
type Wander struct {
	samples [64]sample // a ring
	n       int
}

type sample struct{ boot, ahead time.Duration }

// Note adds a reading of both clocks, taken together. It should be called about once a second: NTP changes its correction
// of the rate no more often.
func (w *Wander) Note(boot, lease time.Duration) {
	w.samples[w.n%len(w.samples)] = sample{boot, boot - lease}
	w.n++
}

// Clock returns c with Since and Wander, for the Boot and Lease that it has.
func (w *Wander) Clock(c Clock) Clock {
	c.Since, c.Wander = c.Boot, 0
	for i := range min(w.n, len(w.samples)) {
		s := w.samples[i]
		c.Since = min(c.Since, s.boot)
		c.Wander = max(c.Wander, (s.ahead - (c.Boot - c.Lease)).Abs())
	}
	return c
}
