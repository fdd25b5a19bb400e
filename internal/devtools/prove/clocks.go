package prove

import (
	"slices"
	"time"
)

// trip is a question to a member and its answer: the command's clock before and after it, and the member's in between.
type trip struct{ sent, back, there int64 }

const (
	// drift bounds the rate of one clock against another (assumption A2 of docs/exclusivity.md).
	drift = 0.0205
	// contradiction is what a clock may seem to be off before a trip that contradicts it counts.
	contradiction = int64(2 * time.Millisecond)
	// tripsNear is how many trips before and after an instant are looked at.
	tripsNear = 3
)

// memberClock turns instants of members that share a clock into those of the command.
type memberClock struct {
	same  bool // it is the command's clock
	trips []trip
}

// clocksOf returns the clock of each member. Members and the command with one id share a clock, unless trips contradict it, as on cloned machines.
func clocksOf(here string, members []Member) []*memberClock {
	byID := map[string]*memberClock{}
	clocks := make([]*memberClock, len(members))
	for i, m := range members {
		c := byID[m.ClockID]
		if c == nil {
			c = &memberClock{same: m.ClockID == here}
			byID[m.ClockID] = c
		}
		c.trips = append(c.trips, m.trips...)
		clocks[i] = c
	}
	for _, c := range byID {
		slices.SortFunc(c.trips, func(a, b trip) int { return int(a.there - b.there) })
		for _, t := range c.trips {
			c.same = c.same && t.there >= t.sent-contradiction && t.there <= t.back+contradiction
		}
	}
	return clocks
}

// at returns an instant by the command's clock, give or take slack. ok is false if the clocks cannot be compared.
func (c *memberClock) at(there int64) (here, slack int64, ok bool) {
	if c.same {
		return there, 0, true
	}
	i, _ := slices.BinarySearchFunc(c.trips, there, func(t trip, at int64) int { return int(t.there - at) })
	const far = int64(1) << 62
	low, high := -far, far // of the member's clock before the command's
	for _, t := range c.trips[max(0, i-tripsNear):min(len(c.trips), i+tripsNear)] {
		off := int64(drift * float64(max(t.there-there, there-t.there)))
		low, high = max(low, t.there-t.back-off), min(high, t.there-t.sent+off)
	}
	if low > high || low == -far {
		return 0, 0, false
	}
	return there - (low + (high-low)/2), (high - low + 1) / 2, true
}
