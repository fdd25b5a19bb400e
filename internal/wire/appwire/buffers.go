package appwire

import "github.com/ringfence/router/internal/wire/framepool"

// frameBuffers is shared by all streams: a pool is as good as it is large.
var frameBuffers framepool.Pool
