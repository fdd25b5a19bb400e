package sim

import (
	"slices"
	"time"

	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/ownership"
)

// forkLog lets one member read another record than everybody else does: the same but for a byte,
// so that nothing but the prefix hash can tell.
func (w *world) forkLog(m *member) {
	m.feed.fork = true
	w.allowLost()
	w.spurious = true // of two members both may be LOST
	for _, o := range w.live {
		o.touch(10 * time.Second)
	}
}

// forked returns the record that a member reads in the place of one of another member.
func (w *world) forked(m *member, x logged) logged {
	if _, isBeat := x.record.Body.(*ownership.Beat); !isBeat || x.record.Inc == m.inc {
		return x
	}
	m.feed.fork = false
	w.forks = true
	w.count("forked")
	x.data = append(slices.Clone(x.data), 0xf8, 0x7f, byte(w.rng.Uint32()&0x7f|1)) // an unknown field
	record, err := controllog.Decode("g", x.data)
	if err != nil {
		w.fail("a record with one field more is not read: %v", err)
	}
	x.record, x.sum = record, controllog.SumOf(x.data)
	w.tracef("%s reads another record at %v", m, x.at)
	return x
}

// lie is a Beat with a wrong prefix hash.
func (w *world) lie(b *ownership.Beat) *ownership.Beat {
	if b.PrefixHash == 0 {
		return b
	}
	w.count("lied")
	lie := *b
	lie.PrefixHash = max(1, w.rng.Uint64())
	return &lie
}

// checkPrefix: members have the same prefix hash at the same position, unless a member reads a
// fork of the log.
func (w *world) checkPrefix(m *member, s *ownership.State, at ownership.Position) {
	was, ok := w.log.prefixes[at]
	switch {
	case !ok:
		w.log.prefixes[at] = s.PrefixHash
	case was == s.PrefixHash || was == 0 || s.PrefixHash == 0:
	case !w.forks:
		w.fail("%s has the prefix hash %x at %v, and others have %x", m, s.PrefixHash, at, was)
	default:
		w.differedAt = w.now
	}
}
