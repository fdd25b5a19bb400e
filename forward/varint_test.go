package forward

import (
	"bytes"
	"math"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"
)

// Numbers of every length, at every distance from the end of the memory, are those of protowire.
func TestVarint(t *testing.T) {
	const tag = 8
	check := func(t interface{ Fatalf(string, ...any) }, v uint64, tail []byte) {
		want := protowire.AppendVarint(nil, v)
		got := bytes.Repeat([]byte{0xee}, 1+putRoom)
		if end := putVarint(got, 1, v); !bytes.Equal(got[1:end], want) || got[0] != 0xee {
			t.Fatalf("%d is written as %x, want %x", v, got[:end], want)
		}
		b := append(append([]byte{0, tag}, want...), tail...)
		if n, end := number(b, 1, tag); n != v || end != 2+len(want) {
			t.Fatalf("%x is read as %d to %d, want %d", b, n, end, v)
		}
	}
	for bit := range 64 {
		for _, v := range []uint64{1<<bit - 1, 1 << bit, math.MaxUint64 << bit} {
			for n := range 10 {
				check(t, v, bytes.Repeat([]byte{0xff}, n))
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.Uint64().Draw(t, "v"), rapid.SliceOf(rapid.Byte()).Draw(t, "tail"))
	})
}

// Any bytes are read as the general reader reads them, or not at all.
func FuzzField(f *testing.F) {
	f.Add([]byte{8, 0x80, 0x00}, 0)
	f.Add([]byte{8, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01}, 0)
	f.Add([]byte{8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 0)
	f.Add([]byte{0, 18, 1, 7}, 1)
	f.Add([]byte{18, 0x81, 0x00, 7}, 0)
	f.Add([]byte{18, 2, 7}, 0)
	f.Add([]byte{8}, 1)
	f.Fuzz(func(t *testing.T, b []byte, i int) {
		if i < 0 || i > len(b) {
			return
		}
		for num := protowire.Number(1); num < 16; num++ {
			r := reader{rest: b[i:]}
			ok, err := r.next()
			tag := byte(num << 3)
			n, next := number(b, i, tag)
			switch there := ok && err == nil && b[i] == tag; {
			case there && (n != r.n || next != len(b)-len(r.rest)), !there && (n != 0 || next != i):
				t.Fatalf("%x at %d: number %d to %d; the reader returns %+v, %v", b, i, n, next, r, err)
			}
			tag |= bytesType
			v, next := text(b, i, tag)
			switch there := ok && err == nil && b[i] == tag; {
			case there && (!bytes.Equal(v, r.value) || v == nil || cap(v) != len(v) || next != len(b)-len(r.rest)), !there && (v != nil || next != i):
				t.Fatalf("%x at %d: text %x to %d; the reader returns %+v, %v", b, i, v, next, r, err)
			}
		}
	})
}
