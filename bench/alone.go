package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// guard is the address that a running bench listens on, so that a second one notices.
// It is of the network that nodes are on: benches that do not share it do not meet.
const guard = "127.77.255.254:16650"

// alone lets one bench run at a time: two would take each other's addresses and cores,
// and print figures of both. The kernel ends the claim with the process, however it
// dies.
func alone(ctx context.Context, addr string) (release func(), err error) {
	claim, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("another bench is running (it listens on %s): wait until it ends, as two at once measure each other", addr)
	}
	if err != nil {
		return nil, fmt.Errorf("claim the loopback addresses of nodes: %w", err)
	}
	return func() { _ = claim.Close() }, nil // no process ever connected
}
