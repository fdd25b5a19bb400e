package ownership

import (
	"github.com/ringfence/router/internal/base/clock"
)

// mark is the newest record taken in at an instant.
type mark struct {
	when clock.Instant
	at   Position
}

// moveAnchor lets the broker trim old records: the rank-0 FRESH node moves the anchor to the
// end of the log as of AnchorBehind ago. A node that is half as far behind is LOST, so no node
// needs the trimmed records.
func (m *Machine) moveAnchor() {
	t := &m.cfg.Timing
	if len(m.anchors) > 0 && !m.due(m.anchors[len(m.anchors)-1].when.Add(t.AnchorEvery)) {
		return
	}
	m.anchors = append(m.anchors, mark{m.now, m.tail.last})
	m.due(m.now.Add(t.AnchorEvery))
	old := Position{}
	for len(m.anchors) > 0 && m.now.Sub(m.anchors[0].when) >= t.AnchorBehind {
		old = m.anchors[0].at
		m.anchors = m.anchors[1:]
	}
	if !old.IsZero() && m.isFresh() && m.rank() == 0 {
		m.emit(MoveAnchor{To: old})
	}
}
