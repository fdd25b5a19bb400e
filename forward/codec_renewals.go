package forward

import (
	"fmt"

	"github.com/ringfence/router/internal/base/event"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
)

// renewalsMax bounds the renewals that wait for one stream, and those of a frame.
const renewalsMax = 4096

// renewedOf returns the frame with answers to renewals.
func renewedOf(answers []event.Renewal) *peerv1.Renewed {
	m := new(peerv1.Renewed)
	for i, r := range answers {
		m.Handles, m.Numbers = append(m.Handles, uint64(r.Handle)), append(m.Numbers, r.Number)
		m.RemainingNs = append(m.RemainingNs, uint64(max(0, r.Remaining)))
		if r.Covered {
			m.Covered = append(m.Covered, uint32(i))
		}
	}
	return m
}

// renewalsOf reads renewals, or the answers to them.
func renewalsOf(handles, numbers, remaining []uint64, covered []uint32) ([]event.Renewal, error) {
	if len(handles) > renewalsMax || len(numbers) != len(handles) || remaining != nil && len(remaining) != len(handles) {
		return nil, fmt.Errorf("%w: %d renewals with %d numbers, want at most %d", errFrame, len(handles), len(numbers), renewalsMax)
	}
	all := make([]event.Renewal, len(handles))
	for i := range handles {
		all[i] = event.Renewal{Handle: event.Handle(handles[i]), Number: numbers[i]}
		if remaining != nil {
			all[i].Remaining = nanoseconds(remaining[i])
		}
	}
	last := -1
	for _, at := range covered {
		if int(at) >= len(all) || int(at) <= last {
			return nil, fmt.Errorf("%w: covered renewal %d of %d, out of order or range", errFrame, at, len(all))
		}
		all[at].Covered = true
		last = int(at)
	}
	return all, nil
}
