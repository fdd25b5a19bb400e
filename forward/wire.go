package forward

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/base/event"
)

// bytesType is the wire type of bytes, texts and messages in a tag; that of numbers is 0.
const bytesType = byte(protowire.BytesType)

// reader walks over the fields of a message. A field of another wire type than ours
// is skipped like an unknown one, as protobuf does: num is 0 then.
type reader struct {
	rest []byte

	// The present field.
	num   protowire.Number // 0 when it is neither a varint nor bytes
	typ   protowire.Type
	n     uint64 // of a varint
	value []byte // of bytes
}

// next reads the next field, false at the end of the message.
func (r *reader) next() (bool, error) {
	if len(r.rest) == 0 {
		return false, nil
	}
	head := 1
	if tag := r.rest[0]; tag >= 8 && tag < 0x80 { // the usual tag has one byte
		r.num, r.typ = protowire.Number(tag>>3), protowire.Type(tag&7)
	} else if r.num, r.typ, head = protowire.ConsumeTag(r.rest); head < 0 {
		return false, malformed(head)
	}
	body := r.rest[head:]
	var n int
	switch r.typ {
	case protowire.VarintType:
		if len(body) > 0 && body[0] < 0x80 {
			r.n, n = uint64(body[0]), 1
		} else {
			r.n, n = protowire.ConsumeVarint(body)
		}
	case protowire.BytesType:
		r.value, n = protowire.ConsumeBytes(body)
	default:
		n = protowire.ConsumeFieldValue(r.num, r.typ, body)
		r.num = 0
	}
	if n < 0 {
		return false, malformed(n)
	}
	r.rest = body[n:]
	return true, nil
}

// is reports whether the present field is the one called num, of type typ.
func (r *reader) is(num protowire.Number, typ protowire.Type) bool {
	return r.num == num && r.typ == typ
}

func malformed(code int) error { return fmt.Errorf("%w: %w", errFrame, protowire.ParseError(code)) }

// Proto3 leaves zero values out. The size functions and the append functions below
// do so in the same way.

func sizeUint(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}

func sizeBytes(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + protowire.SizeBytes(n)
}

func appendUint(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return appendVarint(appendTag(b, num, protowire.VarintType), v)
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return append(appendLen(b, num, len(s)), s...)
}

// appendLen begins a message of n bytes.
func appendLen(b []byte, num protowire.Number, n int) []byte {
	return appendVarint(appendTag(b, num, protowire.BytesType), uint64(n))
}

func appendTag(b []byte, num protowire.Number, typ protowire.Type) []byte {
	return appendVarint(b, protowire.EncodeTag(num, typ))
}

// appendVarint is protowire's, with a short way for the one byte that most have.
func appendVarint(b []byte, v uint64) []byte {
	if v < 0x80 {
		return append(b, byte(v))
	}
	return protowire.AppendVarint(b, v)
}

// zigzag is the wire encoding of sint32.
func zigzag(v int32) uint64 { return protowire.EncodeZigZag(int64(v)) }

// unzigzag decodes a sint32 as protobuf does: excess bits are cut off.
func unzigzag(v uint64) int32 { return int32(protowire.DecodeZigZag(v & math.MaxUint32)) }

func sizePosition(p event.Position) int {
	return sizeUint(uint64(p.Ledger)) + sizeUint(uint64(p.Entry))
}

func appendPosition(b []byte, num protowire.Number, p event.Position) []byte {
	if p.IsZero() {
		return b
	}
	b = appendLen(b, num, sizePosition(p))
	b = appendUint(b, 1, uint64(p.Ledger))
	return appendUint(b, 2, uint64(p.Entry))
}

// parsePosition reads a Position into p, as protobuf merges one.
func parsePosition(b []byte, p *event.Position) error {
	r := reader{rest: b}
	for {
		switch ok, err := r.next(); {
		case !ok:
			return err
		case r.is(1, protowire.VarintType):
			p.Ledger = int64(r.n)
		case r.is(2, protowire.VarintType):
			p.Entry = int64(r.n)
		}
	}
}
