package appwire

import (
	"math/bits"
	"strings"
	"sync"
	"unsafe"

	"google.golang.org/grpc/mem"
)

// buffers is the mem.BufferPool of hot frames: one sync.Pool for each power of two
// from 4 KiB to 8 MiB. gRPC's own pool has nothing between 32 KiB and 1 MiB and wipes
// the whole buffer at each Get; frames are of just these sizes and are written over
// from the start, so wiping cost more than encoding.
type buffers struct {
	classes [bufferClassMax - bufferClassMin + 1]sync.Pool
}

const (
	bufferClassMin = 12 // 4 KiB
	bufferClassMax = 23 // 8 MiB
)

// frameBuffers is shared by all streams: a pool is as good as it is large.
var frameBuffers buffers

// class returns the index of the smallest buffers of at least size bytes.
func class(size int) int { return max(bits.Len(uint(size-1)), bufferClassMin) - bufferClassMin }

// Get implements mem.BufferPool. The buffer is not empty: the caller writes all of it.
func (b *buffers) Get(size int) *[]byte {
	i := class(size)
	if i >= len(b.classes) {
		buf := make([]byte, size)
		return &buf
	}
	if buf, ok := b.classes[i].Get().(*[]byte); ok {
		*buf = (*buf)[:size]
		return buf
	}
	buf := make([]byte, size, 1<<(i+bufferClassMin))
	return &buf
}

// Put implements mem.BufferPool. What is not of our sizes is left to the collector.
func (b *buffers) Put(buf *[]byte) {
	if i := class(cap(*buf)); i < len(b.classes) && cap(*buf) == 1<<(i+bufferClassMin) {
		b.classes[i].Put(buf)
	}
}

// joined returns a copy of data that nobody else writes to. The memory comes from a
// strings.Builder, because unlike make that does not wipe what is written over at once.
func joined(data mem.BufferSlice) []byte {
	var b strings.Builder
	b.Grow(data.Len())
	for _, part := range data {
		b.Write(part.ReadOnlyData())
	}
	return unsafe.Slice(unsafe.StringData(b.String()), b.Len()) // the string is dropped: nobody relies on it
}
