package hotframe

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
)

// field returns the first field of b by protowire; n is negative if it is unreadable.
func field(b []byte) (num protowire.Number, typ protowire.Type, v uint64, content []byte, n int) {
	num, typ, head := protowire.ConsumeTag(b)
	if head < 0 {
		return 0, 0, 0, nil, head
	}
	switch typ {
	case protowire.VarintType:
		v, n = protowire.ConsumeVarint(b[head:])
	case protowire.BytesType:
		content, n = protowire.ConsumeBytes(b[head:])
	default:
		n = protowire.ConsumeFieldValue(num, typ, b[head:])
	}
	if n < 0 {
		return 0, 0, 0, nil, n
	}
	return num, typ, v, content, head + n
}

// plainTag reports whether b begins with the shortest form of a tag.
func plainTag(b []byte, num protowire.Number, typ protowire.Type) bool {
	return bytes.HasPrefix(b, protowire.AppendTag(nil, num, typ))
}

// Any bytes are read as protowire reads them, or not at all.
func FuzzField(f *testing.F) {
	f.Add([]byte{8, 0x80, 0x00})
	f.Add([]byte{8, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01})
	f.Add([]byte{8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{18, 1, 7})
	f.Add([]byte{18, 0x81, 0x00, 7})
	f.Add([]byte{18, 2, 7})
	f.Add([]byte{8})
	f.Add([]byte{0x80, 1, 0x80, 1, 7})
	f.Add([]byte{0x82, 1, 1, 7})
	f.Add([]byte{0x88, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		first, typ, value, content, n := field(b)
		for _, num := range []protowire.Number{1, 2, 3, 14, 15, 16, 17, 18, 20, 21, 31, 32, 2047} {
			v, rest := Number(b, num)
			switch there := n > 0 && first == num && typ == protowire.VarintType && plainTag(b, num, typ); {
			case there && (v != value || len(rest) != len(b)-n), !there && (v != 0 || len(rest) != len(b)):
				t.Fatalf("%x: number %d is %d with %x behind it; protowire reads field %d, %d", b, num, v, rest, first, value)
			}
			c, rest := Chunk(b, num)
			switch there := n > 0 && first == num && typ == protowire.BytesType && plainTag(b, num, typ); {
			case there && (!bytes.Equal(c, content) || c == nil || cap(c) != len(c) || len(rest) != len(b)-n), !there && (c != nil || len(rest) != len(b)):
				t.Fatalf("%x: chunk %d is %x with %x behind it; protowire reads field %d, %x", b, num, c, rest, first, content)
			}
		}
		read := 0
		for num, c := range Fields(b) {
			want, typ, _, content, n := field(b[read:])
			if num != want || (c != nil) != (typ == protowire.BytesType) || !bytes.Equal(c, content) {
				t.Fatalf("%x at %d: field %d, %x; protowire reads field %d, %x", b, read, num, c, want, content)
			}
			read += n
		}
		if _, _, _, _, n := field(b[read:]); n > 0 {
			t.Fatalf("%x: the fields end at %d", b, read)
		}
	})
}

// Numbers of all sizes are written as protowire writes them.
func TestNumbers(t *testing.T) {
	for bit := range 64 {
		for _, v := range []uint64{1<<bit - 1, 1 << bit, math.MaxUint64 << bit} {
			for _, num := range []protowire.Number{1, 15, 16, 2047} {
				var want []byte
				if v > 0 {
					want = protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), v)
				}
				if got := AppendNumber(nil, num, v); !bytes.Equal(got, want) {
					t.Errorf("field %d, %d, is written as %x, want %x", num, v, got, want)
				}
			}
		}
	}
	many, want := []uint64{0, 1, 0, 127, 128, 1 << 40, math.MaxUint64, 0}, []byte("before")
	for i, v := range many {
		want = AppendNumber(want, protowire.Number(6+i), v)
	}
	if got := AppendNumbers([]byte("before"), 6, many...); !bytes.Equal(got, want) {
		t.Errorf("%d are written as %x, want %x", many, got, want)
	}
	for _, v := range []int32{0, 1, -1, 63, -64, math.MaxInt32, math.MinInt32} {
		if z := Zigzag(v); z != protowire.EncodeZigZag(int64(v)) || Unzigzag(z) != v || Unzigzag(z|1<<40) != v {
			t.Errorf("%d becomes %d, and that %d", v, z, Unzigzag(z))
		}
	}
}

func TestShortDelaysAreNotRoundedToNone(t *testing.T) {
	const most = time.Hour
	for d, want := range map[time.Duration]uint64{-1: 0, 0: 0, 1: 1, time.Millisecond: 1, time.Millisecond + 1: 2, 1 << 62: uint64(most / time.Millisecond)} {
		if got := Milliseconds(d, most); got != want {
			t.Errorf("%v are written as %d ms, want %d", d, got, want)
		}
	}
	if got := Duration(1<<63, most); got != most {
		t.Errorf("1<<63 ms are read as %v, want %v", got, most)
	}
}

// A message has the right length, and the bytes behind the buffer's own are not touched, whatever
// room there was for the length.
func TestMessages(t *testing.T) {
	for _, n := range []int{0, 1, 127, 128, 16383, 16384, 1 << 21} {
		content := bytes.Repeat([]byte{7}, n)
		want := protowire.AppendBytes(protowire.AppendTag([]byte("before"), 5, protowire.BytesType), content)
		for room := 1; room <= 2; room++ {
			b, begin := Begin([]byte("before"), 5, room)
			if got := End(append(b, content...), begin, room); !bytes.Equal(got, want) {
				t.Errorf("a message of %d bytes with room %d is written with %d bytes, want %d", n, room, len(got), len(want))
			}
		}
		if n == 0 {
			want = []byte("before")
		}
		if got := AppendBytes([]byte("before"), 5, content); !bytes.Equal(got, want) {
			t.Errorf("%d bytes are written with %d, want %d", n, len(got), len(want))
		}
	}
}

func TestFrame(t *testing.T) {
	body := bytes.Repeat([]byte{9}, 1000)
	for _, receipt := range []uint64{0, 7, math.MaxUint64} {
		frame := Frame(receipt, []byte("head"), mem.SliceBuffer(body)).Materialize()
		got, hot, ok := Open(frame)
		if got != receipt || !bytes.Equal(hot, append([]byte("head"), body...)) || !ok {
			t.Errorf("receipt %d comes back as %d, with %d bytes, %v", receipt, got, len(hot), ok)
		}
		if _, _, ok := Open(append(frame, 0)); ok {
			t.Error("a frame with something behind it is opened")
		}
		if got, hot, ok := Open(Receipt(receipt).Materialize()); got != receipt || hot != nil || !ok {
			t.Errorf("a receipt of %d comes back as %d, %x, %v", receipt, got, hot, ok)
		}
	}
}

// A table is a list without repetitions, which strings that are not UTF-8 enter as text.
func TestTables(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tables := NewTables()
		defer tables.Free()
		var want []string
		for _, s := range rapid.SliceOf(rapid.SampledFrom([]string{"", "a", "b", "c", "a\xff", "a?", "\xff\xfe"})).Draw(t, "strings") {
			text := strings.ToValidUTF8(s, "?")
			if !slices.Contains(want, text) {
				want = append(want, text)
			}
			if got := IndexText(&tables.Names, s); got != slices.Index(want, text) {
				t.Fatalf("the index of %q is %d in %q", s, got, want)
			}
		}
		b := AppendStrings(nil, 4, &tables.Names)
		got, rest := Strings(b, 4, len(b), nil)
		if !slices.Equal(tables.Names.List(), want) || !slices.Equal(got, want) || len(rest) > 0 {
			t.Fatalf("the table is %q and comes back as %q, want %q", tables.Names.List(), got, want)
		}
		if few, rest := Strings(b, 4, 1, nil); len(want) > 1 && (len(few) != 1 || len(rest) == 0) {
			t.Fatalf("at most one string is wanted, and %q are read", few)
		}
	})
}

func TestText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := string(rapid.SliceOf(rapid.SampledFrom([]byte("ab\xff\xc3\xa4"))).Draw(t, "s"))
		got := Text(s)
		if !utf8.ValidString(got) || len(got) > len(s) || utf8.ValidString(s) && got != s {
			t.Fatalf("the text of %q is %q", s, got)
		}
	})
}

// Data of every length is loaded without a look behind its end.
func TestLoad(*testing.T) {
	for _, n := range []int{0, 1, 63, 64, 65, 512, 513, 10_000} {
		Load([]*event.Event{{}, {Key: "k", Payload: make([]byte, n), Properties: []event.Property{{Name: "n"}, {Value: "v"}}}})
	}
}
