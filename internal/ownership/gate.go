package ownership

import "github.com/ringfence/router/internal/clock"

// Gate is whether this node may dispatch for a partition, apart from its lease.
//
//exhaustive:enforce
type Gate uint8

// The gates of a partition.
const (
	Closed   Gate = iota // not ours, and nothing of ours runs
	Waiting              // ours, but an earlier tenure may still run
	Open                 // ours, acquired
	Draining             // not ours any more, and something of ours still runs
)

// String returns the name of the gate, as metrics and logs have it.
func (g Gate) String() string {
	switch g {
	case Closed:
		return "closed"
	case Waiting:
		return "waiting"
	case Open:
		return "open"
	case Draining:
		return "draining"
	}
	return "unknown"
}

// MayDispatch is rule 6, the line where exclusivity is decided for a delivery: the
// gate is open, and the lease lasts longer than the guard. The caller holds the
// lock under which the gate changes, and took now under it.
func (l Lease) MayDispatch(g Gate, now clock.Instant) bool {
	return g == Open && now.Add(l.Guard).Before(l.Until)
}
