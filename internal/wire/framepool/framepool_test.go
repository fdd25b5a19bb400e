package framepool

import (
	"bytes"
	"testing"
)

func TestPool(t *testing.T) {
	var pool Pool
	for _, size := range []int{1, 4096, 4097, 1 << 20, 1<<20 + 1, 8 << 20, 8<<20 + 1, 20 << 20} {
		buf := pool.Get(size)
		if len(*buf) != size || cap(*buf) < size || size <= 8<<20 && size > 4096 && cap(*buf) >= 2*size {
			t.Errorf("Get(%d) has length %d and capacity %d", size, len(*buf), cap(*buf))
		}
		pool.Put(buf)
		if again := pool.Get(size); len(*again) != size {
			t.Errorf("the second Get(%d) has length %d", size, len(*again))
		}
	}
}

// A buffer has the bytes that were written, whatever room was asked for.
func TestBuffer(t *testing.T) {
	var pool Pool
	want := bytes.Repeat([]byte("x"), 10_000)
	for _, size := range []int{0, 100, 5000, 10_000, 1 << 20} {
		buf := pool.Buffer(size, func(b []byte) []byte {
			if len(b) != 0 || cap(b) < size {
				t.Errorf("Buffer(%d) gives room for %d bytes after %d", size, cap(b), len(b))
			}
			return append(b, want...)
		})
		if !bytes.Equal(buf.ReadOnlyData(), want) {
			t.Errorf("Buffer(%d) has %d bytes, want %d", size, buf.Len(), len(want))
		}
		buf.Free()
	}
}
