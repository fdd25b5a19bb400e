package appwire

import (
	"google.golang.org/grpc/mem"

	"github.com/ringfence/router/internal/framepool"
)

// frameBuffers is shared by all streams: a pool is as good as it is large.
var frameBuffers framepool.Pool

// FrameBuffers returns the pool of the memory that encoded frames lie in. A buffer comes
// with what was in it before.
func FrameBuffers() mem.BufferPool { return &frameBuffers }
