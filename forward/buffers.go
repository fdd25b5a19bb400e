package forward

import (
	"strings"
	"unsafe"

	"google.golang.org/grpc/mem"

	"github.com/ringfence/router/internal/framepool"
)

// frameBuffers is shared by all streams: a pool is as good as it is large.
var frameBuffers framepool.Pool

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
