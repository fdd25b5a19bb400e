package ownership

import (
	"github.com/ringfence/router/internal/base/clock"
)

// anchors remembers where the log stood, once per AnchorEvery.
type anchors struct {
	marks []mark // oldest first
}

type mark struct {
	when clock.Instant
	at   Position
}

// moveAnchor lets the broker trim old records: the rank-0 FRESH node moves the anchor to the
// end of the log as of AnchorBehind ago. A node that is half as far behind is LOST, so no node
// needs the trimmed records.
func (m *Machine) moveAnchor() {
	a, t := &m.anchors, &m.cfg.Timing
	if len(a.marks) > 0 && !m.due(a.marks[len(a.marks)-1].when.Add(t.AnchorEvery)) {
		return
	}
	a.marks = append(a.marks, mark{m.now, m.tail.last})
	m.due(m.now.Add(t.AnchorEvery))
	old := Position{}
	for len(a.marks) > 0 && m.now.Sub(a.marks[0].when) >= t.AnchorBehind {
		old = a.marks[0].at
		a.marks = a.marks[1:]
	}
	if !old.IsZero() && m.isFresh() && m.rank() == 0 {
		m.emit(MoveAnchor{To: old})
	}
}
