package mailbox

import "github.com/ringfence/router/internal/base/clock"

// cohort is the accepted events of one call of Accept. They share their age, so that an
// event that ends touches no events of other calls.
type cohort struct {
	at             clock.Instant
	items          int
	own            bool   // its events do not lie in the memory of a frame, or no longer, see Boxes.unpin
	peerBytes      uint64 // Boxes.peerBytes when it began
	older, younger *cohort
}

// ages lists the cohorts by age. None of them is empty, so the oldest one tells the age
// of the oldest event.
type ages struct {
	oldest, youngest *cohort
}

// begin returns the cohort of a call. The caller passes it to end.
func (l *ages) begin(now clock.Instant) *cohort {
	a := &cohort{at: now, older: l.youngest}
	if l.youngest == nil {
		l.oldest = a
	} else {
		l.youngest.younger = a
	}
	l.youngest = a
	return a
}

// end takes a cohort out of the list if it is empty.
func (l *ages) end(a *cohort) {
	if a.items > 0 {
		return
	}
	if a.older == nil {
		l.oldest = a.younger
	} else {
		a.older.younger = a.younger
	}
	if a.younger == nil {
		l.youngest = a.older
	} else {
		a.younger.older = a.older
	}
}
