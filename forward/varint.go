package forward

import (
	"encoding/binary"
	"math/bits"

	"google.golang.org/protobuf/encoding/protowire"
)

// Most numbers of a hot frame take two to eight bytes: handles, ledgers, times. These functions
// read and write one as a word of eight bytes rather than byte by byte, and find fields by an
// index, for callers that know the next field.

// putRoom is how many bytes putVarint may write, however few it uses.
const putRoom = binary.MaxVarintLen64

// eighths is the highest bit of each byte of a word: another byte follows.
const eighths = 0x8080808080808080

// gather reads the varint at the beginning of a word of eight bytes, the first one lowest.
// Its size is 0 when it does not end there.
func gather(x uint64) (v uint64, size int) {
	end := ^x & eighths
	if end == 0 {
		return 0, 0
	}
	x &= end ^ (end - 1) // up to the first byte that no other follows
	x = x&0x007f007f007f007f | x&0x7f007f007f007f00>>1
	x = x&0x00003fff00003fff | x&0x3fff00003fff0000>>2
	x = x&0x000000000fffffff | x&0x0fffffff00000000>>4
	return x, bits.TrailingZeros64(end)/8 + 1
}

// number reads the varint field tagged tag at b[i] and returns the index after it: 0 and i if
// there is another field, none, or an unreadable one.
func number(b []byte, i int, tag byte) (v uint64, next int) {
	if i >= len(b) || b[i] != tag {
		return 0, i
	}
	if len(b)-i > 8 {
		if v, size := gather(binary.LittleEndian.Uint64(b[i+1:])); size > 0 {
			return v, i + 1 + size
		}
	}
	v, size := protowire.ConsumeVarint(b[i+1:])
	if size < 0 {
		return 0, i
	}
	return v, i + 1 + size
}

// text reads the bytes field tagged tag at b[i] and returns the index after it: nil and i if
// there is another field, none, or an unreadable one.
func text(b []byte, i int, tag byte) (v []byte, next int) {
	if i >= len(b) || b[i] != tag {
		return nil, i
	}
	start, n := i+2, uint64(0)
	if start <= len(b) && b[i+1] < 0x80 {
		n = uint64(b[i+1])
	} else {
		if n, start = number(b, i, tag); start == i {
			return nil, i
		}
	}
	if n > uint64(len(b)-start) {
		return nil, i
	}
	end := start + int(n)
	return b[start:end:end], end
}

// putVarint writes v at b[i], where there must be putRoom, and returns the index after it.
func putVarint(b []byte, i int, v uint64) int {
	if v < 0x80 {
		b[i] = byte(v)
		return i + 1
	}
	return putLongVarint(b, i, v)
}

func putLongVarint(b []byte, i int, v uint64) int {
	if v >= 1<<56 {
		return i + binary.PutUvarint(b[i:], v)
	}
	x := v&0x000000000fffffff | v&0x00fffffff0000000<<4
	x = x&0x00003fff00003fff | x&0x0fffc0000fffc000<<2
	x = x&0x007f007f007f007f | x&0x3f803f803f803f80<<1
	size := protowire.SizeVarint(v)
	binary.LittleEndian.PutUint64(b[i:], x|eighths&(1<<(8*(size-1))-1))
	return i + size
}

// putNumber writes a varint field, and nothing when it is zero.
func putNumber(b []byte, i int, tag byte, v uint64) int {
	if v == 0 {
		return i
	}
	b[i] = tag
	return putVarint(b, i+1, v)
}

// putText writes a bytes field, and nothing when it is empty.
func putText[T ~string | ~[]byte](b []byte, i int, tag byte, s T) int {
	if len(s) == 0 {
		return i
	}
	b[i] = tag
	i = putVarint(b, i+1, uint64(len(s)))
	return i + copy(b[i:], s)
}
