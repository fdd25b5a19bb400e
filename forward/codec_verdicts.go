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
	verdictCrashes    = 9
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
		sizeUint(uint64(v.Crashes)) +
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
	b = appendString(b, verdictOwner, v.Owner)
	return appendUint(b, verdictCrashes, uint64(v.Crashes))
}

// parseVerdicts decodes the body of one Verdicts message behind f.verdicts, which
// is empty and keeps its memory.
func (f *verdictsFrame) parseVerdicts(b []byte) error {
	r := reader{rest: b}
	for {
		ok, err := r.next()
		switch {
		case err != nil:
			return err
		case !ok && f.number == 0:
			return fmt.Errorf("%w: verdicts without a number", errFrame)
		case !ok:
			return nil
		case r.is(verdictsNumber, protowire.VarintType):
			f.number = r.n
		case r.is(verdictsEpoch, protowire.BytesType):
			err = parsePosition(r.value, &f.epoch)
		case r.is(verdictsVerdicts, protowire.BytesType):
			err = f.parseVerdict(r.value)
		}
		if err != nil {
			return err
		}
	}
}

func (f *verdictsFrame) parseVerdict(b []byte) error {
	if len(f.verdicts) == frameItemsMax {
		return fmt.Errorf("%w: more than %d verdicts", errFrame, frameItemsMax)
	}
	f.verdicts = append(f.verdicts, event.Verdict{Kind: event.NotYet}) // until it says otherwise
	v := &f.verdicts[len(f.verdicts)-1]
	r := reader{rest: b}
	for {
		ok, err := r.next()
		switch {
		case !ok:
			return err
		case r.is(verdictEpoch, protowire.BytesType):
			if err := parsePosition(r.value, &v.Epoch); err != nil {
				return err
			}
		case r.typ == protowire.VarintType:
			setVerdictNumber(v, r.num, r.n)
		default:
			setVerdictText(v, r.num, r.value)
		}
	}
}

func setVerdictNumber(v *event.Verdict, num protowire.Number, n uint64) {
	switch num {
	case verdictHandle:
		v.Handle = event.Handle(n)
	case verdictKind:
		v.Kind = kindOf(n)
	case verdictDelay:
		v.Delay = duration(n)
	case verdictAttempts:
		v.Attempts = uint32(n)
	case verdictCrashes:
		v.Crashes = uint32(n)
	}
}

func setVerdictText(v *event.Verdict, num protowire.Number, text []byte) {
	switch num {
	case verdictReason:
		v.Reason = string(text)
	case verdictFirstError:
		v.FirstError = string(text)
	case verdictOwner:
		v.Owner = string(text)
	}
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
