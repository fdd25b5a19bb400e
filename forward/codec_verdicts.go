package forward

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/base/event"
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

// verdictBatch is the verdicts of one frame. They are encoded as they come, so that they
// take a tenth of the memory while they wait.
type verdictBatch struct {
	n     int
	texts int     // bytes of reasons and errors
	buf   *[]byte // of frameBuffers; nil when n is 0
}

// plainMax bounds the size of a verdict with only a kind, overwritten bytes included.
const plainMax = 2 + 1 + 2 + 1 + putRoom

// add encodes as many of the verdicts as have room in the frame, at least one if it has none yet,
// and returns the rest.
func (p *verdictBatch) add(verdicts []event.Verdict, config *Config) []event.Verdict {
	for i := range verdicts {
		v := &verdicts[i]
		if p.n == config.FrameEventsMax || p.texts > config.FrameBytesMax {
			return verdicts[i:]
		}
		if v.Detail != nil {
			if !p.addLong(v, config) {
				return verdicts[i:]
			}
			continue
		}
		b, at := p.room(plainMax)
		end := putNumber(b, at+2, verdictHandle<<3, uint64(v.Handle))
		end = putNumber(b, end, verdictKind<<3, uint64(v.Kind))
		b[at], b[at+1] = verdictsVerdicts<<3|bytesType, byte(end-at-2)
		*p.buf = b[:end]
		p.n++
	}
	return nil
}

// addLong encodes a verdict with a detail; it returns false when there is no room.
func (p *verdictBatch) addLong(v *event.Verdict, config *Config) bool {
	d := *v.Detail
	d.Reason, d.FirstError = clip(d.Reason), clip(d.FirstError)
	texts := p.texts + len(d.Reason) + len(d.FirstError)
	if texts > config.FrameBytesMax && p.n > 0 {
		return false
	}
	size := sizeVerdict(v, &d)
	b, at := p.room(1 + protowire.SizeBytes(size))
	*p.buf = appendVerdict(appendLen(b[:at], verdictsVerdicts, size), v, &d)
	p.n++
	p.texts = texts
	return true
}

// room returns the whole buffer, with room for size bytes at index at.
func (p *verdictBatch) room(size int) (b []byte, at int) {
	if p.buf == nil {
		p.buf = frameBuffers.Get(size)
		*p.buf = (*p.buf)[:0]
	}
	at = len(*p.buf)
	if cap(*p.buf)-at < size {
		larger := frameBuffers.Get(2*cap(*p.buf) + size)
		*larger = (*larger)[:copy(*larger, *p.buf)]
		frameBuffers.Put(p.buf)
		p.buf = larger
	}
	return (*p.buf)[:cap(*p.buf)], at
}

// marshal encodes the frame. gRPC owns the batch afterwards.
func (f *verdictsFrame) marshal() mem.BufferSlice {
	head := appendUint(make([]byte, 0, headMax), fieldReceipt, f.receipt)
	if f.number == 0 {
		return mem.BufferSlice{mem.SliceBuffer(head)}
	}
	body := *f.batch.buf
	length := sizeUint(f.number) + len(body)
	if !f.epoch.IsZero() {
		length += sizeBytes(sizePosition(f.epoch))
	}
	head = appendLen(head, fieldHot, length)
	head = appendUint(head, verdictsNumber, f.number)
	head = appendPosition(head, verdictsEpoch, f.epoch)
	out := mem.BufferSlice{mem.SliceBuffer(head), mem.NewBuffer(f.batch.buf, &frameBuffers)}
	f.batch = verdictBatch{}
	return out
}

func sizeVerdict(v *event.Verdict, d *event.Detail) int {
	n := sizeUint(uint64(v.Handle)) +
		sizeUint(uint64(v.Kind)) +
		sizeUint(millis(d.Delay)) +
		sizeUint(uint64(d.Attempts)) +
		sizeUint(uint64(d.Crashes)) +
		sizeBytes(len(d.Reason)) +
		sizeBytes(len(d.FirstError)) +
		sizeBytes(len(d.Owner))
	if !d.Epoch.IsZero() {
		n += sizeBytes(sizePosition(d.Epoch))
	}
	return n
}

func appendVerdict(b []byte, v *event.Verdict, d *event.Detail) []byte {
	b = appendUint(b, verdictHandle, uint64(v.Handle))
	b = appendUint(b, verdictKind, uint64(v.Kind))
	b = appendUint(b, verdictDelay, millis(d.Delay))
	b = appendUint(b, verdictAttempts, uint64(d.Attempts))
	b = appendString(b, verdictReason, d.Reason)
	b = appendString(b, verdictFirstError, d.FirstError)
	b = appendPosition(b, verdictEpoch, d.Epoch)
	b = appendString(b, verdictOwner, d.Owner)
	return appendUint(b, verdictCrashes, uint64(d.Crashes))
}

// parseVerdicts decodes the body of one Verdicts message behind f.verdicts, which is empty
// and keeps its memory.
func (f *verdictsFrame) parseVerdicts(b []byte) error {
	r := reader{rest: b}
	for {
		if len(f.verdicts) > frameItemsMax {
			return fmt.Errorf("%w: more than %d verdicts", errFrame, frameItemsMax)
		}
		if handle, kind, next := plainVerdict(r.rest); next > 0 {
			f.verdicts = append(f.verdicts, event.Verdict{Handle: handle, Kind: kind})
			r.rest = r.rest[next:]
			continue
		}
		ok, err := r.next()
		switch {
		case err != nil:
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

// plainVerdict reads a verdict with only a kind, as most are, at the beginning of b. next
// is 0 if b begins with another field, or the verdict may be the last one.
func plainVerdict(b []byte) (handle event.Handle, kind event.VerdictKind, next int) {
	if len(b) < plainMax || b[0] != verdictsVerdicts<<3|bytesType || b[2] != verdictHandle<<3 {
		return 0, 0, 0
	}
	h, size := gather(binary.LittleEndian.Uint64(b[3:]))
	i := 3 + size
	if size == 0 || int(b[1]) != size+3 || b[i] != verdictKind<<3 || b[i+1] >= 0x80 {
		return 0, 0, 0
	}
	return event.Handle(h), kindOf(uint64(b[i+1])), i + 2
}

func (f *verdictsFrame) parseVerdict(b []byte) error {
	v := event.Verdict{Kind: event.NotYet} // until it says otherwise
	var d event.Detail
	r := reader{rest: b}
	for {
		ok, err := r.next()
		switch {
		case err != nil:
			return err
		case !ok:
			if d != (event.Detail{}) {
				detail := d // on the heap, which d is not
				v.Detail = &detail
			}
			f.verdicts = append(f.verdicts, v)
			return nil
		case r.is(verdictEpoch, protowire.BytesType):
			if err := parsePosition(r.value, &d.Epoch); err != nil {
				return err
			}
		case r.typ == protowire.VarintType:
			setVerdictNumber(&v, &d, r.num, r.n)
		default:
			setVerdictText(&d, r.num, r.value)
		}
	}
}

func setVerdictNumber(v *event.Verdict, d *event.Detail, num protowire.Number, n uint64) {
	switch num {
	case verdictHandle:
		v.Handle = event.Handle(n)
	case verdictKind:
		v.Kind = kindOf(n)
	case verdictDelay:
		d.Delay = duration(n)
	case verdictAttempts:
		d.Attempts = uint32(n)
	case verdictCrashes:
		d.Crashes = uint32(n)
	}
}

func setVerdictText(d *event.Detail, num protowire.Number, text []byte) {
	switch num {
	case verdictReason:
		d.Reason = string(text)
	case verdictFirstError:
		d.FirstError = string(text)
	case verdictOwner:
		d.Owner = string(text)
	}
}

// kindOf reads a kind. An unknown kind makes the event be sent again: running it twice is
// safe, loss is not.
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
