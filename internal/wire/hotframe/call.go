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
	call := AppendText(make([]byte, 0, callRoom), callMethod, c.Method)
	call = AppendNumber(call, callTimeout, uint64(max(0, c.Deadline.Sub(now))/time.Millisecond))
	call = AppendText(call, callID, c.ID)
	if len(c.Path) > 0 {
		path := make([]byte, 0, 8*event.CallPathMax)
		for _, key := range c.Path {
			path = binary.LittleEndian.AppendUint64(path, uint64(key))
		}
		call = AppendBytes(call, callPath, path)
	}
	if c.Reservation {
		call = AppendNumber(call, callReservation, 1)
	}
	if c.Resume {
		call = AppendNumber(call, callResume, 1)
	}
	if c.TTL != 0 {
		call = AppendNumber(call, callTTL, uint64(c.TTL/time.Millisecond))
	}
	return append(AppendLen(b, num, len(call)), call...)
}

// callRoom is the usual size of a call.
const callRoom = 64

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
	if len(b) > 0 || len(path)%8 != 0 || len(path) > 8*pathRead {
		return nil
	}
	c := &event.Call{Method: event.Alias(method), ID: event.Alias(id), Deadline: CallDeadline(now, timeout), Reservation: reservation != 0, Resume: resume != 0, TTL: CallTTL(uint32(ttl))} // protobuf cuts excess bits of a ttl off
	for ; len(path) > 0; path = path[8:] {
		c.Path = append(c.Path, partition.KeyHash(binary.LittleEndian.Uint64(path)))
	}
	return c
}

// pathRead is how many keys of a path are read: one more than is allowed, so that its receiver sees that there are too many.
const pathRead = event.CallPathMax + 1

// CallDeadline returns the deadline of a call with so many milliseconds left.
func CallDeadline(now clock.Instant, ms uint64) clock.Instant {
	return now.Add(time.Duration(min(ms, uint64(CallTimeoutMax/time.Millisecond))) * time.Millisecond)
}

// CallTTL returns the ttl of a reservation in a frame. A longer one than TTLMost becomes TTLMost plus a
// millisecond, which is refused like it.
func CallTTL(ms uint32) time.Duration {
	return time.Duration(min(ms, uint32(event.TTLMost/time.Millisecond)+1)) * time.Millisecond
}

// KeyHashes reads a path that the generated code has decoded, as far as ReadCall does.
func KeyHashes(path []uint64) (hashes []partition.KeyHash) {
	for _, key := range path[:min(len(path), pathRead)] {
		hashes = append(hashes, partition.KeyHash(key))
	}
	return hashes
}
