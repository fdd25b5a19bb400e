package wire

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
)

var compressions = []pulsarpb.CompressionType{
	pulsarpb.CompressionType_LZ4, pulsarpb.CompressionType_ZLIB, pulsarpb.CompressionType_ZSTD, pulsarpb.CompressionType_SNAPPY,
}

// inflate decompresses with a declared size.
func inflate(i *inflater, c pulsarpb.CompressionType, b []byte, size uint32, payloadMax int) ([]byte, error) {
	return i.payload(&Metadata{Compression: Compression(c), UncompressedSize: size}, nil, b, payloadMax)
}

func TestPayloadsDecompress(t *testing.T) {
	var i inflater // shared: no state of an earlier payload may remain
	rapid.Check(t, func(t *rapid.T) {
		c := rapid.SampledFrom(compressions).Draw(t, "compression")
		want := rapid.SliceOfN(rapid.ByteRange(0, byte(rapid.IntRange(0, 255).Draw(t, "greatest"))), 0, 3000).Draw(t, "payload")
		b := must(wiretest.Compress(nil, c, want))
		got, err := inflate(&i, c, b, uint32(len(want)), len(want))
		if err != nil || got == nil || !bytes.Equal(got, want) {
			t.Fatalf("payload = %d bytes, %v, want %d", len(got), err, len(want))
		}
		if wrong := rapid.Uint32Range(0, 4000).Draw(t, "wrong size"); int(wrong) != len(want) {
			if got, err := inflate(&i, c, b, wrong, 4000); reasonOf(t, err) != ReasonSize && reasonOf(t, err) != ReasonDecompress {
				t.Fatalf("declared as %d instead of %d bytes: %d, %v", wrong, len(want), len(got), err)
			}
		}
		if len(want) > 0 {
			if _, err := inflate(&i, c, b, uint32(len(want)), len(want)-1); reasonOf(t, err) != ReasonSize {
				t.Fatalf("beyond the limit: %v", err)
			}
		}
		cutOff := b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut off")]
		if got, err := inflate(&i, c, cutOff, uint32(len(want)), len(want)); err == nil && !bytes.Equal(got, want) {
			t.Fatalf("cut off to %d of %d bytes, decompressed to another payload", len(cutOff), len(b))
		}
	})
}

// A message outside of a batch can be empty and compressed. Clients write the compressed form of no bytes, or no bytes.
func TestEmptyPayloads(t *testing.T) {
	for _, c := range compressions {
		m := metadata()
		for _, b := range [][]byte{nil, must(wiretest.Compress(m, c, nil))} {
			e, err := parse(must(wiretest.Entry(m, b)), 100)
			if err != nil || e.Payload == nil || len(e.Payload) > 0 {
				t.Errorf("%v of %d bytes: payload = %q, %v", c, len(b), e.Payload, err)
			}
		}
	}
}

// An absent size must not turn an event into an empty event.
func TestAbsentSizeIsNotZero(t *testing.T) {
	for _, c := range compressions {
		m := metadata()
		b := must(wiretest.Compress(m, c, []byte("payload payload payload")))
		m.UncompressedSize = nil
		if e, err := parse(must(wiretest.Entry(m, b)), 100); reasonOf(t, err) != ReasonSize && reasonOf(t, err) != ReasonDecompress {
			t.Errorf("%v: payload = %q, %v", c, e.Payload, err)
		}
	}
}

func TestBombs(t *testing.T) {
	zeros := make([]byte, 64<<20)
	for _, c := range compressions {
		b := must(wiretest.Compress(nil, c, zeros))
		t.Logf("%v: %d bytes for %d", c, len(b), len(zeros))
		for size, want := range map[uint32][]Reason{
			1000:      {ReasonSize, ReasonDecompress}, // less than the real size
			1 << 20:   {ReasonSize, ReasonDecompress},
			64 << 20:  {ReasonSize}, // the real size, beyond the limit
			1<<32 - 1: {ReasonSize},
		} {
			var i inflater
			var err error
			allocated := allocated(func() { _, err = inflate(&i, c, b, size, 1<<20) })
			if reason := reasonOf(t, err); reason != want[0] && reason != want[len(want)-1] {
				t.Errorf("%v declared as %d: %v, want %v", c, size, err, want)
			}
			if allocated > 4<<20 {
				t.Errorf("%v declared as %d: %d bytes allocated", c, size, allocated)
			}
		}
		// A few bytes cannot hold the largest payload.
		if _, err := inflate(new(inflater), c, b[:16], 4<<20, 4<<20); reasonOf(t, err) != ReasonSize && reasonOf(t, err) != ReasonDecompress {
			t.Errorf("%v: 16 bytes for 4 MiB: %v", c, err)
		}
	}
}

// The most compressible payloads stay within ratioMax.
func TestBestRatios(t *testing.T) {
	for _, c := range compressions {
		for _, size := range []int{1, 100, 1 << 10, 1 << 17, 1<<17 + 1, 1 << 20, 5 << 20, 32 << 20} {
			b := must(wiretest.Compress(nil, c, make([]byte, size)))
			if got, err := inflate(new(inflater), c, b, uint32(size), size); err != nil || len(got) != size {
				t.Errorf("%v: %d zeros in %d bytes: %v", c, size, len(b), err)
			}
		}
	}
}

// A wrong checksum at the end of zlib, and a payload one byte longer than declared, are detected.
func TestZlibEnd(t *testing.T) {
	b := must(wiretest.Compress(nil, pulsarpb.CompressionType_ZLIB, []byte("payload")))
	if _, err := inflate(new(inflater), pulsarpb.CompressionType_ZLIB, b, 6, 100); reasonOf(t, err) != ReasonSize {
		t.Errorf("declared a byte shorter: %v", err)
	}
	b[len(b)-1]++
	if _, err := inflate(new(inflater), pulsarpb.CompressionType_ZLIB, b, 7, 100); reasonOf(t, err) != ReasonDecompress {
		t.Errorf("wrong checksum: %v", err)
	}
}

// A Parse into the same Entry reuses the buffer.
func TestBufferIsUsedAgain(t *testing.T) {
	for _, c := range compressions {
		m := metadata()
		compressed := must(wiretest.Compress(m, c, bytes.Repeat([]byte("payload"), 1000)))
		b := must(wiretest.Entry(m, compressed))
		var e Entry
		var p Parser
		if err := p.Parse(&e, b, 10000); err != nil {
			t.Fatal(err)
		}
		first := &e.Payload[0]
		if err := p.Parse(&e, b, 10000); err != nil || &e.Payload[0] != first {
			t.Errorf("%v: buffer not reused, %v", c, err)
		}
	}
}

func FuzzDecompress(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 300)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	for _, c := range compressions {
		for _, payload := range [][]byte{nil, []byte("a"), bytes.Repeat([]byte("abcd"), 500), noise} {
			f.Add(uint8(c), must(wiretest.Compress(nil, c, payload)), uint32(len(payload)))
		}
	}
	f.Fuzz(func(t *testing.T, c uint8, b []byte, size uint32) {
		const payloadMax = 1 << 18
		m := Metadata{Compression: Compression(c % 5), UncompressedSize: size}
		var i inflater
		got, err := i.payload(&m, nil, b, payloadMax)
		if reasonOf(t, err) != 0 {
			return
		}
		if m.Compression != CompressionNone && (len(got) != int(size) || len(got) > payloadMax) {
			t.Fatalf("%d bytes, want %d", len(got), size)
		}
		again, err := i.payload(&m, make([]byte, 0, 2*len(got)), b, payloadMax)
		if err != nil || !bytes.Equal(again, got) {
			t.Fatalf("different result when decompressed again: %v", err)
		}
	})
}
