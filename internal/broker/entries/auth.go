package entries

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar/auth"

	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// credentials calls the authentication provider, which takes no context and may ask an issuer over the network.
type credentials struct {
	provider auth.Provider // nil: none
	timeout  time.Duration

	mu     sync.Mutex // guards the fields below, and is held during Init: a client has one provider, and its first connections wait for it
	inited bool
}

// method returns the name of the authentication, "" for none.
func (c *credentials) method() string {
	if c.provider == nil {
		return ""
	}
	return c.provider.Name()
}

// init inits the provider until that has worked once.
func (c *credentials) init(ctx context.Context) error {
	_, err := aside(ctx, c, func() (struct{}, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.inited {
			return struct{}{}, nil
		}
		err := c.provider.Init()
		c.inited = err == nil
		return struct{}{}, err
	})
	return err
}

// data returns fresh authentication data, nil without a provider.
func (c *credentials) data(ctx context.Context) ([]byte, error) {
	if c.provider == nil {
		return nil, nil
	}
	if err := c.init(ctx); err != nil {
		return nil, err
	}
	return aside(ctx, c, c.provider.GetData)
}

var errSlow = errors.New("the source of credentials does not answer")

// aside makes a call on a goroutine of its own, and abandons it after the timeout or with ctx.
func aside[T any](ctx context.Context, c *credentials, call func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errSlow)
	defer cancel()
	start := func(call func()) error {
		go call()
		return nil
	}
	result, err := pulsarsend.Await(ctx, start, call, func(T) {})
	if err != nil && errors.Is(err, context.DeadlineExceeded) {
		err = context.Cause(ctx)
	}
	return result, err
}

func (c *credentials) close() error {
	if c.provider == nil {
		return nil
	}
	return c.provider.Close()
}
