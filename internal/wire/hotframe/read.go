package hotframe

import (
	"iter"
	"math"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/base/event"
)

// Wire types, as in tags.
const (
	varint = byte(protowire.VarintType)
	length = byte(protowire.BytesType)
)

// nearMax is the greatest number of a field whose tag has one byte. A tag of two bytes goes up to
// field 2047, and there are none beyond.
const nearMax = 15

// Number takes the varint field num off the front of b. If b begins with another field or an
// unreadable one, it returns 0 and b.
func Number(b []byte, num protowire.Number) (v uint64, rest []byte) {
	body := behindTag(b, num, varint)
	if len(body) == 0 {
		return 0, b
	}
	if body[0] < 0x80 {
		return uint64(body[0]), body[1:]
	}
	v, n := protowire.ConsumeVarint(body)
	if n < 0 {
		return 0, b
	}
	return v, body[n:]
}

// Chunk takes the field num, which has a length, off the front of b. Its content aliases b. If b
// begins with another field or an unreadable one, Chunk returns nil and b; an empty content is
// not nil.
func Chunk(b []byte, num protowire.Number) (content, rest []byte) {
	body := behindTag(b, num, length)
	if len(body) == 0 {
		return nil, b
	}
	n := uint64(body[0])
	if n < 0x80 {
		body = body[1:]
	} else {
		var size int
		if n, size = protowire.ConsumeVarint(body); size < 0 {
			return nil, b
		}
		body = body[size:]
	}
	if n > uint64(len(body)) {
		return nil, b
	}
	return body[:n:n], body[n:]
}

// behindTag returns b behind its first tag, and nothing when that is another one.
func behindTag(b []byte, num protowire.Number, typ byte) []byte {
	if num <= nearMax {
		if len(b) > 0 && b[0] == byte(num<<3)|typ {
			return b[1:]
		}
		return nil
	}
	if len(b) > 1 && b[0] == byte(num<<3)|typ|0x80 && b[1] == byte(num>>4) {
		return b[2:]
	}
	return nil
}

// Strings takes the fields num off the front of b, at most most of them, and appends them to
// dst. They alias b, and need not be UTF-8.
func Strings(b []byte, num protowire.Number, most int, dst []string) (list []string, rest []byte) {
	for range most {
		content, rest := Chunk(b, num)
		if content == nil {
			break
		}
		dst, b = append(dst, event.Alias(content)), rest
	}
	return dst, b
}

// Open returns the receipt and the hot message of a frame. hot is nil if the frame is only a
// receipt; ok is false if the frame has anything else in it.
func Open(frame []byte) (receipt uint64, hot []byte, ok bool) {
	receipt, frame = Number(frame, fieldReceipt)
	hot, frame = Chunk(frame, fieldHot)
	return receipt, hot, len(frame) == 0
}

// Fields yields the fields of a message, whatever their order, up to the first unreadable one. The
// content of a field without a length is nil.
func Fields(message []byte) iter.Seq2[protowire.Number, []byte] {
	return func(yield func(protowire.Number, []byte) bool) {
		for len(message) > 0 {
			num, typ, head := protowire.ConsumeTag(message)
			if head < 0 {
				return
			}
			body := message[head:]
			size := protowire.ConsumeFieldValue(num, typ, body)
			if size < 0 {
				return
			}
			var content []byte
			if typ == protowire.BytesType {
				content, _ = protowire.ConsumeBytes(body)
			}
			if !yield(num, content) {
				return
			}
			message = body[size:]
		}
	}
}

// Count returns how many fields num a message has.
func Count(message []byte, num protowire.Number) (n int) {
	for field := range Fields(message) {
		if field == num {
			n++
		}
	}
	return n
}

// Duration reads a number of milliseconds, up to most.
func Duration(ms uint64, most time.Duration) time.Duration {
	return time.Duration(min(ms, uint64(most/time.Millisecond))) * time.Millisecond
}

// Unzigzag decodes a sint32 as protobuf does: excess bits are cut off.
func Unzigzag(v uint64) int32 { return int32(protowire.DecodeZigZag(v & math.MaxUint32)) }
