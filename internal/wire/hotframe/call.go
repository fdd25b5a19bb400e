package hotframe

import (
	"encoding/binary"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

// The fields of a Call, the same between routers and to the application.
const (
	callMethod  = 1
	callTimeout = 2
	callID      = 3
	callPath    = 4

	callReservation = 5
	callResume      = 6
	callTTL         = 7
)

// CallTimeoutMax bounds the time that a caller may wait. A longer one in a frame counts as this one.
const CallTimeoutMax = time.Hour

// AppendCall appends a call as field num. Its deadline is written as the milliseconds that are left, rounded down.
func AppendCall(b []byte, num protowire.Number, c *event.Call, now clock.Instant) []byte {
	const room = 1 // for the length
	b, begin := Begin(b, num, room)
	b = AppendText(b, callMethod, c.Method)
	b = AppendNumber(b, callTimeout, uint64(max(0, c.Deadline.Sub(now))/time.Millisecond))
	b = AppendText(b, callID, c.ID)
	if len(c.Path) > 0 {
		b = AppendLen(b, callPath, 8*len(c.Path))
		for _, key := range c.Path {
			b = binary.LittleEndian.AppendUint64(b, uint64(key))
		}
	}
	if c.Reservation {
		b = AppendNumber(b, callReservation, 1)
	}
	if c.Resume {
		b = AppendNumber(b, callResume, 1)
	}
	b = AppendNumber(b, callTTL, uint64(c.TTL/time.Millisecond))
	return End(b, begin, room)
}

// ReadCall is the inverse of AppendCall, without the field's tag. The strings alias b. It returns nil if our writer would have encoded
// the call in another way.
func ReadCall(b []byte, now clock.Instant) *event.Call {
	method, b := Chunk(b, callMethod)
	timeout, b := Number(b, callTimeout)
	id, b := Chunk(b, callID)
	path, b := Chunk(b, callPath)
	reservation, b := Number(b, callReservation)
	resume, b := Number(b, callResume)
	ttl, b := Number(b, callTTL)
	if len(b) > 0 || len(path)%8 != 0 {
		return nil
	}
	c := &event.Call{
		Method: event.Alias(method), ID: event.Alias(id), Deadline: now.Add(Duration(timeout, CallTimeoutMax)), Reservation: reservation != 0, Resume: resume != 0,
		TTL: Duration(uint64(uint32(ttl)), event.TTLMost+time.Millisecond), // a longer one is refused like this; protobuf cuts excess bits off
	}
	for ; len(path) > 0 && len(c.Path) <= event.CallPathMax; path = path[8:] { // one more than is allowed: so its receiver refuses it
		c.Path = append(c.Path, partition.KeyHash(binary.LittleEndian.Uint64(path)))
	}
	return c
}
