package forward

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/event"
)

// Field numbers of Verdicts and Verdict.
const (
	verdictsNumber   = 1
	verdictsVerdicts = 2
	verdictsEpoch    = 3

	verdictHandle     = 1
	verdictKind       = 2
	verdictDelay      = 3
	verdictAttempts   = 4
	verdictReason     = 5
	verdictFirstError = 6
	verdictEpoch      = 7
	verdictOwner      = 8
)

// size returns how long the encoding is, and prepares append.
func (f *verdictsFrame) size() int {
	n := sizeUint(f.receipt)
	if f.number == 0 {
		return n
	}
	return n + 1 + protowire.SizeBytes(f.sizeBody())
}

func (f *verdictsFrame) sizeBody() int {
	f.sizes = f.sizes[:0]
	n := sizeUint(f.number)
	if !f.epoch.IsZero() {
		n += sizeBytes(sizePosition(f.epoch))
	}
	for i := range f.verdicts {
		size := sizeVerdict(&f.verdicts[i])
		f.sizes = append(f.sizes, size)
		n += 1 + protowire.SizeBytes(size)
	}
	return n
}

// append encodes the frame behind b. It needs size called before.
func (f *verdictsFrame) append(b []byte) []byte {
	b = appendUint(b, fieldReceipt, f.receipt)
	if f.number == 0 {
		return b
	}
	b = appendLen(b, fieldHot, f.sizeBody())
	b = appendUint(b, verdictsNumber, f.number)
	for i := range f.verdicts {
		b = appendLen(b, verdictsVerdicts, f.sizes[i])
		b = appendVerdict(b, &f.verdicts[i])
	}
	return appendPosition(b, verdictsEpoch, f.epoch)
}

func sizeVerdict(v *event.Verdict) int {
	n := sizeUint(uint64(v.Handle)) +
		sizeUint(uint64(v.Kind)) +
		sizeUint(millis(v.Delay)) +
		sizeUint(uint64(v.Attempts)) +
		sizeBytes(len(v.Reason)) +
		sizeBytes(len(v.FirstError)) +
		sizeBytes(len(v.Owner))
	if !v.Epoch.IsZero() {
		n += sizeBytes(sizePosition(v.Epoch))
	}
	return n
}

func appendVerdict(b []byte, v *event.Verdict) []byte {
	b = appendUint(b, verdictHandle, uint64(v.Handle))
	b = appendUint(b, verdictKind, uint64(v.Kind))
	b = appendUint(b, verdictDelay, millis(v.Delay))
	b = appendUint(b, verdictAttempts, uint64(v.Attempts))
	b = appendString(b, verdictReason, v.Reason)
	b = appendString(b, verdictFirstError, v.FirstError)
	b = appendPosition(b, verdictEpoch, v.Epoch)
	return appendString(b, verdictOwner, v.Owner)
}

// parseVerdicts decodes the body of one Verdicts message behind f.verdicts, which
// is empty and keeps its memory.
func (f *verdictsFrame) parseVerdicts(b []byte) error {
	for len(b) > 0 {
		fl, n, err := nextField(b)
		if err != nil {
			return err
		}
		b = b[n:]
		switch fl.num {
		case verdictsNumber:
			f.number, err = fl.varint()
		case verdictsEpoch:
			err = parsePosition(fl, &f.epoch)
		case verdictsVerdicts:
			err = f.parseVerdict(fl)
		}
		if err != nil {
			return err
		}
	}
	if f.number == 0 {
		return fmt.Errorf("%w: verdicts without a number", errFrame)
	}
	return nil
}

func (f *verdictsFrame) parseVerdict(fl field) error {
	b, err := fl.bytes()
	if err != nil {
		return err
	}
	if len(f.verdicts) == frameItemsMax {
		return fmt.Errorf("%w: more than %d verdicts", errFrame, frameItemsMax)
	}
	f.verdicts = append(f.verdicts, event.Verdict{Kind: event.NotYet}) // until it says otherwise
	v := &f.verdicts[len(f.verdicts)-1]
	for len(b) > 0 {
		fl, n, err := nextField(b)
		if err != nil {
			return err
		}
		b = b[n:]
		if err := parseVerdictField(v, fl); err != nil {
			return err
		}
	}
	return nil
}

func parseVerdictField(v *event.Verdict, f field) error {
	switch f.num {
	case verdictHandle, verdictKind, verdictDelay, verdictAttempts:
		return parseVerdictNumber(v, f)
	case verdictReason, verdictFirstError, verdictOwner:
		s, err := f.bytes()
		if err != nil {
			return err
		}
		switch f.num {
		case verdictReason:
			v.Reason = string(s)
		case verdictFirstError:
			v.FirstError = string(s)
		case verdictOwner:
			v.Owner = string(s)
		}
	case verdictEpoch:
		return parsePosition(f, &v.Epoch)
	}
	return nil
}

func parseVerdictNumber(v *event.Verdict, f field) error {
	n, err := f.varint()
	if err != nil {
		return err
	}
	switch f.num {
	case verdictHandle:
		v.Handle = event.Handle(n)
	case verdictKind:
		v.Kind = kindOf(n)
	case verdictDelay:
		v.Delay = duration(n)
	case verdictAttempts:
		v.Attempts = uint32(n)
	}
	return nil
}

// kindOf reads a kind. One that we do not know means that we cannot tell what the
// peer wants, so the event is sent again: doing it again is safe, loss is not.
func kindOf(n uint64) event.VerdictKind {
	if n == 0 || n > uint64(event.Attempted) {
		return event.NotYet
	}
	return event.VerdictKind(n)
}

// millis rounds up, so that a short delay stays one.
func millis(d time.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	return uint64((d-1)/time.Millisecond) + 1
}

// duration reads milliseconds; more than fit are as many as fit.
func duration(ms uint64) time.Duration {
	if ms > math.MaxInt64/uint64(time.Millisecond) {
		return math.MaxInt64 / time.Millisecond * time.Millisecond
	}
	return time.Duration(ms) * time.Millisecond
}
