// Package greet tells a listener that the caller of a gRPC stream is no stranger: the bounds for unauthenticated callers of
// package listen end for its connection.
package greet

import (
	"context"

	"google.golang.org/grpc/peer"
)

// Greeted ends the bounds for strangers of the connection that ctx is of. Without a listener that has such bounds, as in tests, it does
// nothing.
func Greeted(ctx context.Context) {
	if p, ok := peer.FromContext(ctx); ok {
		if conn, ok := p.AuthInfo.(interface{ Greeted() }); ok {
			conn.Greeted()
		}
	}
}
