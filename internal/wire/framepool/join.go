package framepool

import (
	"strings"
	"unsafe"

	"google.golang.org/grpc/mem"
)

// Join returns a copy of data that nobody else writes to, and that is not of a pool: for
// frames that live as long as anything that aliases them. The memory comes from a
// strings.Builder, because unlike make that does not wipe what is written over at once.
func Join(data mem.BufferSlice) []byte {
	var b strings.Builder
	b.Grow(data.Len())
	for _, part := range data {
		b.Write(part.ReadOnlyData())
	}
	return unsafe.Slice(unsafe.StringData(b.String()), b.Len()) //nolint:gosec // the string is dropped: nothing else refers to its bytes
}
