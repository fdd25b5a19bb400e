// Package framepool keeps the memory of encoded frames for reuse. The streams between
// routers share one [Pool], those to the application another; a Pool is safe for concurrent use.
package framepool

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Pool is the mem.BufferPool of encoded frames: one sync.Pool for each power of two from 4 KiB
// to 8 MiB. gRPC's own pool has nothing between 32 KiB and 1 MiB and wipes the whole buffer at
// each Get; our frames have just these sizes and fill their buffers, so wiping cost more than
// encoding.
type Pool struct {
	classes [classMax - classMin + 1]sync.Pool
}

const (
	classMin = 12 // 4 KiB
	classMax = 23 // 8 MiB
)

// class returns the index of the smallest buffers of at least size bytes.
func class(size int) int { return max(bits.Len(uint(size-1)), classMin) - classMin }

// Get implements mem.BufferPool. The buffer is not empty: the caller writes all of it.
func (p *Pool) Get(size int) *[]byte {
	i := class(size)
	if i >= len(p.classes) {
		buf := make([]byte, size)
		return &buf
	}
	if buf, ok := p.classes[i].Get().(*[]byte); ok {
		*buf = (*buf)[:size]
		return buf
	}
	buf := make([]byte, size, 1<<(i+classMin))
	return &buf
}

// Put implements mem.BufferPool. Buffers of other sizes are left to the garbage collector.
func (p *Pool) Put(buf *[]byte) {
	if i := class(cap(*buf)); i < len(p.classes) && cap(*buf) == 1<<(i+classMin) {
		p.classes[i].Put(buf)
	}
}

// Buffer returns a buffer with the bytes that write appends to its argument, which is empty and has
// room for size bytes; write may need more. gRPC returns the buffer to the pool.
func (p *Pool) Buffer(size int, write func([]byte) []byte) mem.Buffer {
	if mem.IsBelowBufferPoolingThreshold(size) {
		return mem.SliceBuffer(write(make([]byte, 0, size)))
	}
	buf := p.Get(size)
	*buf = write((*buf)[:0])
	return mem.NewBuffer(buf, p)
}
