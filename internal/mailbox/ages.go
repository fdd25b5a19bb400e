package mailbox

import "github.com/ringfence/router/internal/base/clock"

// cohort is the accepted events of one call of Accept. They share their age, so that an
// event that ends touches no events of other calls.
type cohort struct {
	at             clock.Instant
	items          int
	own            bool   // its events no longer lie in the memory of a frame, see Boxes.unpin
	peerBytes      uint64 // Boxes.peerBytes when it began
	older, younger *cohort
}

// ages lists the cohorts by age. None of them is empty, so the oldest one tells the age
// of the oldest event.
type ages struct {
	oldest, youngest *cohort
	free             pool[cohort]
}

// begin returns the cohort of a call. The caller passes it to end.
func (l *ages) begin(now clock.Instant) *cohort {
	a := l.free.get()
	a.at, a.older = now, l.youngest
	if l.youngest == nil {
		l.oldest = a
	} else {
		l.youngest.younger = a
	}
	l.youngest = a
	return a
}

// end frees a cohort if it is empty.
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
	l.free.put(a)
}

// freeMax bounds the unused values that a pool keeps after a burst.
const freeMax = 4096

// pool keeps unused values. Unlike sync.Pool it needs no lock and behaves the same in
// every replay.
type pool[T any] struct{ unused []*T }

// get returns a zero T.
func (p *pool[T]) get() *T {
	last := len(p.unused) - 1
	if last < 0 {
		return new(T)
	}
	x := p.unused[last]
	p.unused = p.unused[:last]
	return x
}

func (p *pool[T]) put(x *T) {
	var zero T
	*x = zero
	if len(p.unused) < freeMax {
		p.unused = append(p.unused, x)
	}
}
