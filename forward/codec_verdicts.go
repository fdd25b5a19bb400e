package forward

import (
	"encoding/binary"
	"math"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/hotframe"
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

// plainMax bounds the size of a verdict without a detail, and longMax that of one without its texts.
const (
	plainMax = 2 + 1 + binary.MaxVarintLen64 + 2
	longMax  = 128
)

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
		b := p.room(plainMax)
		*p.buf = appendVerdict(b, v, nil)
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
	b := p.room(longMax + len(d.Reason) + len(d.FirstError) + len(d.Owner))
	*p.buf = appendVerdict(b, v, &d)
	p.n++
	p.texts = texts
	return true
}

// room returns the buffer, with room for size more bytes.
func (p *verdictBatch) room(size int) []byte {
	if p.buf == nil {
		p.buf = frameBuffers.Get(size)
		*p.buf = (*p.buf)[:0]
	}
	if cap(*p.buf)-len(*p.buf) < size {
		larger := frameBuffers.Get(2*cap(*p.buf) + size)
		*larger = (*larger)[:copy(*larger, *p.buf)]
		frameBuffers.Put(p.buf)
		p.buf = larger
	}
	return *p.buf
}

// marshal encodes the frame. gRPC owns the batch afterwards.
func (f *verdictsFrame) marshal() mem.BufferSlice {
	if f.number == 0 {
		return hotframe.Receipt(f.receipt)
	}
	const most = 64 // bytes of the number and the epoch
	head := hotframe.AppendNumber(make([]byte, 0, most), verdictsNumber, f.number)
	head = appendPosition(head, verdictsEpoch, f.epoch)
	body := mem.NewBuffer(f.batch.buf, &frameBuffers)
	f.batch = verdictBatch{}
	return hotframe.Frame(f.receipt, head, body)
}

// appendVerdict appends a verdict with a detail, or with none.
func appendVerdict(b []byte, v *event.Verdict, d *event.Detail) []byte {
	const room = 1 // for the length
	b, begin := hotframe.Begin(b, verdictsVerdicts, room)
	b = hotframe.AppendNumber(b, verdictHandle, uint64(v.Handle))
	b = hotframe.AppendNumber(b, verdictKind, uint64(v.Kind))
	if d != nil {
		b = hotframe.AppendNumber(b, verdictDelay, millis(d.Delay))
		b = hotframe.AppendNumber(b, verdictAttempts, uint64(d.Attempts))
		b = hotframe.AppendText(b, verdictReason, d.Reason)
		b = hotframe.AppendText(b, verdictFirstError, d.FirstError)
		b = appendPosition(b, verdictEpoch, d.Epoch)
		b = hotframe.AppendText(b, verdictOwner, d.Owner)
		b = hotframe.AppendNumber(b, verdictCrashes, uint64(d.Crashes))
	}
	return hotframe.End(b, begin, room)
}

// parseOurs decodes the frame if it is only a receipt, or carries verdicts and is encoded as our
// writer does it. It returns false for any other frame, good or bad.
func (f *verdictsFrame) parseOurs(b []byte) bool {
	receipt, b, ok := hotframe.Open(b)
	if !ok {
		return false
	}
	f.receipt = receipt
	if b == nil {
		return true
	}
	f.number, b = hotframe.Number(b, verdictsNumber)
	f.epoch, b = readPosition(b, verdictsEpoch)
	for len(b) > 0 {
		body, rest := hotframe.Chunk(b, verdictsVerdicts)
		if body == nil || len(f.verdicts) == frameItemsMax || !f.parseVerdict(body) {
			return false
		}
		b = rest
	}
	return f.number > 0
}

func (f *verdictsFrame) parseVerdict(b []byte) bool {
	handle, b := hotframe.Number(b, verdictHandle)
	kind, b := hotframe.Number(b, verdictKind)
	v := event.Verdict{Handle: event.Handle(handle), Kind: kindOf(kind)}
	if len(b) > 0 { // rarely
		if v.Detail, b = readDetail(b); len(b) > 0 {
			return false
		}
	}
	f.verdicts = append(f.verdicts, v)
	return true
}

// readDetail reads the fields that few verdicts have. What it cannot read, it leaves in rest.
func readDetail(b []byte) (_ *event.Detail, rest []byte) {
	delay, b := hotframe.Number(b, verdictDelay)
	attempts, b := hotframe.Number(b, verdictAttempts)
	reason, b := hotframe.Chunk(b, verdictReason)
	first, b := hotframe.Chunk(b, verdictFirstError)
	epoch, b := readPosition(b, verdictEpoch)
	owner, b := hotframe.Chunk(b, verdictOwner)
	crashes, b := hotframe.Number(b, verdictCrashes)
	return detailOrNil(event.Detail{
		Delay: duration(delay), Attempts: uint32(attempts), Crashes: uint32(crashes),
		Reason: string(reason), FirstError: string(first), Epoch: epoch, Owner: string(owner),
	}), b
}

func detailOrNil(d event.Detail) *event.Detail {
	if d == (event.Detail{}) {
		return nil
	}
	return &d
}

// kindOf reads a kind. An unknown kind makes the event be sent again: running it twice is
// safe, loss is not.
func kindOf(n uint64) event.VerdictKind {
	if kind := uint32(n); kind > 0 && kind <= uint32(event.Parked) { // protobuf cuts excess bits of a kind off
		return event.VerdictKind(kind)
	}
	return event.NotYet
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
