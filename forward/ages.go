package forward

import (
	"cmp"

	"github.com/ringfence/router/internal/base/clock"
)

// cohort is the events of one call to Hold that are still held.
type cohort struct {
	since          clock.Instant
	first          uint64 // the age of its first event
	n              int    // events of it that are held
	older, younger *cohort
}

// ages lists the cohorts by age.
type ages struct {
	oldest, youngest *cohort
	given            uint64 // ages given, from 1
}

// begin starts a cohort.
func (a *ages) begin(now clock.Instant) *cohort {
	c := &cohort{since: now, first: a.given + 1, older: a.youngest}
	if a.youngest == nil {
		a.oldest = c
	} else {
		a.youngest.younger = c
	}
	a.youngest = c
	return c
}

// add makes h the youngest event of c, the youngest cohort.
func (a *ages) add(c *cohort, h *held) {
	a.given++
	h.cohort, h.number = c, uint32(a.given-c.first)
	c.n++
}

// remove takes an event out of its cohort.
func (a *ages) remove(h *held) {
	c := h.cohort
	c.n--
	a.endIfEmpty(c)
}

func (a *ages) endIfEmpty(c *cohort) {
	if c.n > 0 {
		return
	}
	if c.older == nil {
		a.oldest = c.younger
	} else {
		c.older.younger = c.younger
	}
	if c.younger == nil {
		a.youngest = c.older
	} else {
		c.younger.older = c.older
	}
}

// age is the place of h among all events that were ever held: older ones have lower ages.
func (h *held) age() uint64 { return h.cohort.first + uint64(h.number) }

// byAge orders events by age.
func byAge(a, b *held) int { return cmp.Compare(a.age(), b.age()) }
