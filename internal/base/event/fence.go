package event

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
)

// Fence orders the deliveries of one key: each one has a greater fence than all earlier ones,
// across workers, owners and processes. The zero Fence is none.
type Fence struct {
	Token int64  // of the tenure, from 1; 0 when owners cannot be ordered (ownership.mode gossip)
	Turn  uint64 // of the delivery within the tenure, from 1; 0 when the router did not say
}

// Compare returns -1 if f is older than other, 0 if they are equal, and 1 if f is newer.
func (f Fence) Compare(other Fence) int {
	return cmp.Or(cmp.Compare(f.Token, other.Token), cmp.Compare(f.Turn, other.Turn))
}

// Before reports whether f is older than other.
func (f Fence) Before(other Fence) bool { return f.Compare(other) < 0 }

// The digits of a fence's text: enough for any token and any turn.
const (
	tokenDigits = 19
	turnDigits  = 20
	fenceBytes  = tokenDigits + len(".") + turnDigits
)

// Append appends the text of f to b. All texts have one length, and sort by their bytes as
// the fences do.
func (f Fence) Append(b []byte) []byte {
	return fmt.Appendf(b, "%0*d.%0*d", tokenDigits, f.Token, turnDigits, f.Turn)
}

// String returns the text of f.
func (f Fence) String() string { return string(f.Append(make([]byte, 0, fenceBytes))) }

// ErrFence means that a text is not that of a fence.
var ErrFence = errors.New("not the text of a fence: want 19 digits, a point and 20 digits")

// ParseFence returns the fence whose text is s.
func ParseFence(s string) (Fence, error) {
	if len(s) != fenceBytes || s[tokenDigits] != '.' || s[0] == '-' || s[0] == '+' {
		return Fence{}, ErrFence
	}
	token, errToken := strconv.ParseInt(s[:tokenDigits], 10, 64)
	turn, errTurn := strconv.ParseUint(s[tokenDigits+1:], 10, 64)
	if errToken != nil || errTurn != nil {
		return Fence{}, ErrFence
	}
	return Fence{Token: token, Turn: turn}, nil
}
