package appwire

import "github.com/ringfence/router/internal/wire/framepool"

// frameBuffers is shared by all streams.
var frameBuffers framepool.Pool
