package forward

import (
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/event"
)

// field is one field of a message, its value not yet read.
type field struct {
	num   protowire.Number
	typ   protowire.Type
	value []byte // without the tag; of a length-delimited field without the length
	n     uint64 // of a varint
}

func (f field) varint() (uint64, error) {
	if f.typ != protowire.VarintType {
		return 0, fmt.Errorf("%w: field %d has wire type %d, want a varint", errFrame, f.num, f.typ)
	}
	return f.n, nil
}

func (f field) bytes() ([]byte, error) {
	if f.typ != protowire.BytesType {
		return nil, fmt.Errorf("%w: field %d has wire type %d, want bytes", errFrame, f.num, f.typ)
	}
	return f.value, nil
}

// fields calls each for every field of message b, in their order, until one fails.
func fields(b []byte, each func(protowire.Number, field) error) error {
	for len(b) > 0 {
		f, n, err := nextField(b)
		if err != nil {
			return err
		}
		b = b[n:]
		if err := each(f.num, f); err != nil {
			return err
		}
	}
	return nil
}

// nextField reads the first field of b and returns its length.
func nextField(b []byte) (f field, n int, err error) {
	var head int
	if b[0] < 0x80 && b[0]>>3 != 0 { // one byte, the usual tag
		f.num, f.typ, head = protowire.Number(b[0]>>3), protowire.Type(b[0]&7), 1
	} else if f.num, f.typ, head = protowire.ConsumeTag(b); head < 0 {
		return f, 0, fmt.Errorf("%w: %w", errFrame, protowire.ParseError(head))
	}
	var body int
	switch f.typ {
	case protowire.VarintType:
		f.n, body = protowire.ConsumeVarint(b[head:])
	case protowire.BytesType:
		f.value, body = protowire.ConsumeBytes(b[head:])
	default: // no field of ours; skipped if it is well formed
		body = protowire.ConsumeFieldValue(f.num, f.typ, b[head:])
	}
	if body < 0 {
		return f, 0, fmt.Errorf("%w: %w", errFrame, protowire.ParseError(body))
	}
	return f, head + body, nil
}

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
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

func appendBytes(b []byte, num protowire.Number, s []byte) []byte {
	if len(s) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), s)
}

// appendLen begins a message of n bytes.
func appendLen(b []byte, num protowire.Number, n int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.BytesType), uint64(n))
}

// zigzag is how sint32 stands on the wire.
func zigzag(v int32) uint64 { return protowire.EncodeZigZag(int64(v)) }

// unzigzag is how protobuf reads a sint32: what does not fit is cut off.
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
func parsePosition(f field, p *event.Position) error {
	b, err := f.bytes()
	if err != nil {
		return err
	}
	return fields(b, func(num protowire.Number, f field) error {
		if num != 1 && num != 2 {
			return nil
		}
		n, err := f.varint()
		if num == 1 {
			p.Ledger = int64(n)
		} else {
			p.Entry = int64(n)
		}
		return err
	})
}
