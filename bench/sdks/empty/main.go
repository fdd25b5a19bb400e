// Command empty is a worker on the Go SDK whose handler does nothing.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/ringfence/router/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := client.Run(ctx, "", func(context.Context, *client.Event) error { return nil }, client.WithMaxInFlight(1000)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
