package appwire

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Bounds limit one frame of a worker. They are checked before memory is allocated for the
// contents: four megabytes of empty results would decode to a hundred.
type Bounds struct {
	Bytes   int // of the frame
	Results int // in a Results frame
}

// Bounds of frames that are rare. An SDK names each of its deliveries once in a Progress,
// and has 100,000 at most; it has one capability today.
const (
	progressMax     = 100_000
	capabilitiesMax = 64
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
)

// judge counts the repeated fields of a frame before the generated code decodes it. It
// stops at the first malformed field, where the generated code fails too.
func (b Bounds) judge(frame []byte) error {
	var results, ids, capabilities int
	eachField(frame, func(num protowire.Number, _ protowire.Type, body []byte) {
		switch num {
		case fieldResults:
			results += countField(body, fieldResultsItems)
		case fieldProgress:
			ids += countField(body, fieldProgressIDs)
		case fieldHello:
			capabilities += countField(body, fieldCapabilities)
		}
	})
	switch {
	case results > b.Results:
		return b.tooMany("results", b.Results)
	case ids > progressMax:
		return b.tooMany("deliveries in a Progress", progressMax)
	case capabilities > capabilitiesMax:
		return b.tooMany("capabilities", capabilitiesMax)
	}
	return nil
}

func (Bounds) tooMany(what string, most int) error {
	return fmt.Errorf("%w: more than %d %s", ErrBounds, most, what)
}

// countField counts the values of a repeated field. Numbers may be packed: then each ends
// with a byte below 0x80.
func countField(message []byte, field protowire.Number) (n int) {
	eachField(message, func(num protowire.Number, typ protowire.Type, body []byte) {
		switch {
		case num != field:
		case typ == protowire.BytesType && field == fieldProgressIDs:
			for _, b := range body {
				if b < 0x80 {
					n++
				}
			}
		default:
			n++
		}
	})
	return n
}

// eachField calls visit for the fields of a message, in their order, up to the first unreadable
// one. body is the content of a bytes field.
func eachField(message []byte, visit func(num protowire.Number, typ protowire.Type, body []byte)) {
	for len(message) > 0 {
		num, typ, head := protowire.ConsumeTag(message)
		if head < 0 {
			return
		}
		value := protowire.ConsumeFieldValue(num, typ, message[head:])
		if value < 0 {
			return
		}
		var body []byte
		if typ == protowire.BytesType {
			body, _ = protowire.ConsumeBytes(message[head:])
		}
		visit(num, typ, body)
		message = message[head+value:]
	}
}
