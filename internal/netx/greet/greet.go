// Package greet tells a listener that the caller of a gRPC stream has authenticated: the bounds that package listen sets for
// unauthenticated callers no longer apply to its connection.
package greet

import (
	"context"

	"google.golang.org/grpc/peer"
)

// Greeted lifts the bounds for unauthenticated callers from the connection of ctx. Without a listener that has such bounds, as in tests,
// it does nothing.
func Greeted(ctx context.Context) {
	if p, ok := peer.FromContext(ctx); ok {
		if conn, ok := p.AuthInfo.(interface{ Greeted() }); ok {
			conn.Greeted()
		}
	}
}
