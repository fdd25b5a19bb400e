// Package hook lets tests in this module, and client/clienttest, reach into the SDK
// without a word of it in the public interface: what they need travels in the
// context that is given to client.Run.
package hook

import (
	"context"

	"github.com/ringfence/router/internal/base/clock"
)

// Hooks are what a test may replace or listen to. A nil field means: as usual.
type Hooks struct {
	// Now replaces the lease clock. It is called from many goroutines.
	Now func() clock.Instant
	// Starting is the clock that decides whether a handler may still start: Now if that is
	// replaced, else a cheap one.
	Starting func() clock.Instant
	// Ponged is told the newest deadline each time a Pong has been taken in. It must
	// neither block nor call back into the SDK.
	Ponged func(deadline clock.Instant)
}

type key struct{}

// With returns a context with which client.Run uses h.
func With(ctx context.Context, h Hooks) context.Context { return context.WithValue(ctx, key{}, h) }

// From returns the hooks of ctx; those that are not set do what they do in production.
func From(ctx context.Context) Hooks {
	h, _ := ctx.Value(key{}).(Hooks)
	if h.Now == nil {
		h.Now, h.Starting = clock.Now, new(clock.Fast).Now
	} else {
		h.Starting = h.Now
	}
	if h.Ponged == nil {
		h.Ponged = func(clock.Instant) {}
	}
	return h
}
