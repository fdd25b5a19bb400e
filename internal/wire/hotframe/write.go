package hotframe

import (
	"encoding/binary"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/base/event"
)

// Fields of every frame.
const (
	fieldReceipt = 1
	fieldHot     = 3
)

// frontMax is the maximum size of a frame up to its hot message.
const frontMax = 24

// Frame returns a frame whose hot message consists of head, which is copied, and of body, which it
// owns.
func Frame(receipt uint64, head []byte, body mem.Buffer) mem.BufferSlice {
	front := AppendNumber(make([]byte, 0, frontMax+len(head)), fieldReceipt, receipt)
	front = append(AppendLen(front, fieldHot, len(head)+body.Len()), head...)
	return mem.BufferSlice{mem.SliceBuffer(front), body}
}

// Receipt returns a frame that is only a receipt.
func Receipt(receipt uint64) mem.BufferSlice {
	return mem.BufferSlice{mem.SliceBuffer(AppendNumber(nil, fieldReceipt, receipt))}
}

// AppendNumber appends the varint field num, and nothing when v is 0.
func AppendNumber(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	b = appendTag(b, num, varint)
	if v < 0x80 {
		return append(b, byte(v))
	}
	return protowire.AppendVarint(b, v)
}

// AppendBytes appends the field num with the content of s, and nothing when s is empty.
func AppendBytes[T ~string | ~[]byte](b []byte, num protowire.Number, s T) []byte {
	if len(s) == 0 {
		return b
	}
	return append(AppendLen(b, num, len(s)), s...)
}

// AppendText is AppendBytes for a field that protobuf wants to be UTF-8, see [Text].
func AppendText(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return AppendBytes(b, num, Text(s))
}

// AppendLen appends the tag and the length of a field of n bytes.
func AppendLen(b []byte, num protowire.Number, n int) []byte {
	b = appendTag(b, num, length)
	if n < 0x80 {
		return append(b, byte(n))
	}
	return protowire.AppendVarint(b, uint64(n))
}

func appendTag(b []byte, num protowire.Number, typ byte) []byte {
	if num <= nearMax {
		return append(b, byte(num<<3)|typ)
	}
	return append(b, byte(num<<3)|typ|0x80, byte(num>>4))
}

// Begin appends the beginning of field num, a message of a length that is not known yet. room is the
// usual size of that length in bytes, 1 or 2. [End] needs the index begin.
func Begin(b []byte, num protowire.Number, room int) (_ []byte, begin int) {
	b = appendTag(b, num, length)
	begin = len(b) + room
	return append(b, 0, 0)[:begin], begin
}

// End ends the message that [Begin] began: it writes its length in front of it, and moves the
// message if the length needs more or less than room bytes.
func End(b []byte, begin, room int) []byte {
	n := len(b) - begin
	if need := protowire.SizeVarint(uint64(n)); need > room {
		b = slices.Insert(b, begin, make([]byte, need-room)...)
	} else if need < room {
		b = slices.Delete(b, begin-room+need, begin)
	}
	binary.PutUvarint(b[begin-room:], uint64(n))
	return b
}

// Milliseconds is the inverse of [Duration]. It rounds up, so that a short delay never becomes none.
func Milliseconds(d, most time.Duration) uint64 {
	return uint64((min(max(d, 0), most) + time.Millisecond - 1) / time.Millisecond)
}

// Zigzag encodes a sint32.
func Zigzag(v int32) uint64 { return protowire.EncodeZigZag(int64(v)) }

// Text returns s as protobuf wants its strings. Producers may have put any bytes into a property,
// and one of those must not make the whole frame unreadable. The result is never longer than
// s, so that bounds of an event hold for its frame.
func Text(s string) string {
	if utf8.ValidString(s) { // much faster than ToValidUTF8
		return s
	}
	return strings.ToValidUTF8(s, "?")
}

// AppendProperty appends an event's property as field num; names gets its name.
func AppendProperty(b []byte, num protowire.Number, p *event.Property, names *Table[string]) []byte {
	const room = 1 // for the length
	b, begin := Begin(b, num, room)
	b = AppendNumber(b, 1, uint64(IndexText(names, p.Name)))
	b = AppendText(b, 2, p.Value)
	return End(b, begin, room)
}

// AppendNumbers is [AppendNumber] for fields with successive numbers, the last one 15 at most. One
// check for room serves all of them, which makes the encoding of an event a fifth faster.
func AppendNumbers(b []byte, first protowire.Number, values ...uint64) []byte {
	i := len(b)
	b = slices.Grow(b, len(values)*(1+binary.MaxVarintLen64))
	b = b[:cap(b)]
	for at, v := range values {
		if v == 0 {
			continue
		}
		b[i] = byte(int(first)+at)<<3 | varint
		i++
		for ; v >= 0x80; v >>= 7 {
			b[i] = byte(v) | 0x80
			i++
		}
		b[i] = byte(v)
		i++
	}
	return b[:i]
}
