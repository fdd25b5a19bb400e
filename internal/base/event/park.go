package event

import (
	"encoding/hex"
	"errors"
	"strings"
)

// ParkState says what becomes of the events of a key.
type ParkState uint8

// The states.
const (
	NotParked ParkState = iota // they are handled
	ParkOn                     // they go to the parking topic
	ParkEnds                   // they wait until the letters of the key in the parking topic were handled
)

// Park is what an operator decided about all events of a key: they go to the parking topic, or come back from it.
type Park struct {
	Key   Key
	Act   [16]byte // the id of the record that says so
	State ParkState
}

// Mark is the place of a letter in the parking topic: letters of a key run in the order of their fences.
type Mark struct {
	Act   [16]byte // the park
	Fence Fence    // counts as that of a delivery: greater than those of all that left the key's queue before
}

// String returns the text of m: 32 hex digits, a blank, and the text of the fence.
func (m Mark) String() string { return hex.EncodeToString(m.Act[:]) + " " + m.Fence.String() }

// CutMark splits the Reason of the verdict Parked into the text of a Mark and the newest error of the event, "" if
// there is none.
func CutMark(reason string) (mark, lastError string) {
	if len(reason) <= markBytes {
		return reason, ""
	}
	return reason[:markBytes], strings.TrimPrefix(reason[markBytes:], " ")
}

// markBytes is the length of a mark's text.
const markBytes = 2*len(Mark{}.Act) + len(" ") + fenceBytes

// errMark means that a text is not that of a mark.
var errMark = errors.New("not the mark of a parked event: want 32 hex digits, a blank and a fence")

// ParseMark returns the mark whose text is s.
func ParseMark(s string) (m Mark, err error) {
	act, fence, _ := strings.Cut(s, " ")
	if len(act) != 2*len(m.Act) {
		return Mark{}, errMark
	}
	if _, err := hex.Decode(m.Act[:], []byte(act)); err != nil {
		return Mark{}, errMark
	}
	if m.Fence, err = ParseFence(fence); err != nil {
		return Mark{}, err
	}
	return m, nil
}
