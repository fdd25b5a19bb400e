package wire

import "google.golang.org/protobuf/encoding/protowire"

// numberMax is the greatest field number of protobuf.
const numberMax = 1<<29 - 1

// field is one field of a protobuf message.
type field struct {
	tag   uint64 // number and wire type, as on the wire
	value uint64 // of a varint
	bytes []byte // of a length-delimited field
}

// Wire types, for tags in switches: number<<3 | type.
const (
	varint    = uint64(protowire.VarintType)
	delimited = uint64(protowire.BytesType)
)

// readField reads the first field of b and returns the bytes after it. It reads no value of wire types other than varint and
// length-delimited: no field used here has one, so callers skip them like unknown fields.
func readField(b []byte) (f field, rest []byte, ok bool) {
	tag, n := uvarint(b)
	if n == 0 || tag>>3 == 0 || tag>>3 > numberMax {
		return f, nil, false
	}
	f.tag, b = tag, b[n:]
	switch tag & 7 {
	case varint:
		if f.value, n = uvarint(b); n == 0 {
			return f, nil, false
		}
		return f, b[n:], true
	case delimited:
		f.bytes, b, ok = readDelimited(b)
		return f, b, ok
	}
	n = protowire.ConsumeFieldValue(protowire.Number(tag>>3), protowire.Type(tag&7), b)
	if n < 0 {
		return f, nil, false
	}
	return f, b[n:], true
}

// readDelimited reads a length and that many bytes. The value is not nil, even if it is empty.
func readDelimited(b []byte) (value, rest []byte, ok bool) {
	size, n := uvarint(b)
	if n == 0 || size > uint64(len(b)-n) {
		return nil, nil, false
	}
	end := n + int(size)
	return b[n:end:end], b[end:], true
}

// uvarint reads a varint. n is 0 if the varint is cut off or has more than 64 bits.
func uvarint(b []byte) (v uint64, n int) {
	if len(b) > 0 && b[0] < 0x80 {
		return uint64(b[0]), 1
	}
	if len(b) > 1 && b[1] < 0x80 {
		return uint64(b[0]&0x7f) | uint64(b[1])<<7, 2
	}
	v, n = protowire.ConsumeVarint(b)
	return v, max(n, 0)
}

// seen has one bit for each required field of a message that was read.
type seen uint8

func (s *seen) add(bit seen)           { *s |= bit }
func (s seen) all(bits seen) (ok bool) { return s&bits == bits }
