package appwire

import (
	"errors"
	"fmt"

	"github.com/ringfence/router/internal/wire/hotframe"
)

// Bounds limit one frame of a worker. They are checked before memory is allocated for the
// contents: four megabytes of empty results would decode to a hundred.
type Bounds struct {
	Bytes   int // of the frame
	Results int // in a Results frame
}

// Bounds of frames that are rare. An SDK names each of its deliveries once in a Progress, and has 100,000 at most; it
// has a few capabilities. A worker may declare fewer schedules than this bound, so that the receiver can name the
// surplus in its error.
const (
	progressMax     = 100_000
	capabilitiesMax = 64
	schedulesMax    = 4096
)

// ErrBounds says that a frame exceeds the [Bounds] of its receiver, and was not decoded.
var ErrBounds = errors.New("appwire: frame beyond its bounds")

// Numbers of fields that repeat in frames of a worker.
const (
	fieldHello        = 2
	fieldResults      = 3
	fieldProgress     = 4
	fieldResultsItems = 2
	fieldProgressIDs  = 1
	fieldCapabilities = 5
	fieldSchedules    = 8
)

// judge counts the repeated fields of a frame before the generated code decodes it. It
// stops at the first malformed field, where the generated code fails too.
func (b Bounds) judge(frame []byte) error {
	var results, ids, capabilities, schedules int
	for num, body := range hotframe.Fields(frame) {
		switch num {
		case fieldResults:
			results += hotframe.Count(body, fieldResultsItems)
		case fieldProgress:
			ids += countIDs(body)
		case fieldHello:
			capabilities += hotframe.Count(body, fieldCapabilities)
			schedules += hotframe.Count(body, fieldSchedules)
		}
	}
	switch {
	case results > b.Results:
		return b.tooMany("results", b.Results)
	case ids > progressMax:
		return b.tooMany("deliveries in a Progress", progressMax)
	case capabilities > capabilitiesMax:
		return b.tooMany("capabilities", capabilitiesMax)
	case schedules > schedulesMax:
		return b.tooMany("schedules", schedulesMax)
	}
	return nil
}

func (Bounds) tooMany(what string, most int) error {
	return fmt.Errorf("%w: more than %d %s", ErrBounds, most, what)
}

// countIDs counts the ids of a Progress. Ids may be packed: then each ends with a byte below 0x80.
func countIDs(progress []byte) (n int) {
	for num, packed := range hotframe.Fields(progress) {
		switch {
		case num != fieldProgressIDs:
		case packed == nil:
			n++
		default:
			for _, b := range packed {
				if b < 0x80 {
					n++
				}
			}
		}
	}
	return n
}
