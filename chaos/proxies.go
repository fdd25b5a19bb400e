//go:build linux

package main

import (
	"context"
	"errors"
)

// proxies are a toxiproxy in every namespace.
type proxies struct{}

func (*proxies) slow(context.Context, fault) error { return errors.New("not yet") }
