package entries

import (
	"context"
	"crypto/tls"
	"errors"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar/auth"

	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// credentials calls the authentication provider, which takes no context and may call an issuer over the network.
type credentials struct {
	provider auth.Provider // nil: none
	timeout  time.Duration
	calling  chan struct{} // holds a token during a call of the provider, so that hanging calls do not pile up
	hung     chan struct{} // holds a token for each call that has given its token up, since it has not returned in time
	inited   atomic.Bool   // set by who has the token of calling
}

// hungMax bounds the calls that hang while the provider is called again.
const hungMax = 8

func newCredentials(provider auth.Provider, timeout time.Duration) *credentials {
	return &credentials{provider: provider, timeout: timeout, calling: make(chan struct{}, 1), hung: make(chan struct{}, hungMax)}
}

// method returns the name of the authentication, "" for none.
func (c *credentials) method() string {
	if c.provider == nil {
		return ""
	}
	return c.provider.Name()
}

// data returns fresh authentication data, nil without a provider.
func (c *credentials) data(ctx context.Context) ([]byte, error) {
	if c.provider == nil {
		return nil, nil
	}
	return aside(ctx, c, c.provider.GetData)
}

// certificate returns the client certificate, nil for none.
func (c *credentials) certificate(ctx context.Context) (*tls.Certificate, error) {
	if c.provider == nil {
		return nil, nil
	}
	return aside(ctx, c, c.provider.GetTLSCertificate)
}

var errSlow = errors.New("the credentials provider does not answer")

// aside calls the provider on a separate goroutine, and abandons the call after the timeout or with ctx. It initializes the provider before
// the first call.
func aside[T any](ctx context.Context, c *credentials, call func() (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, errSlow)
	defer cancel()
	start := func(call func()) error {
		select {
		case c.calling <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			call()
		}()
		go c.leave(done)
		return nil
	}
	result, err := pulsarsend.Await(ctx, start, func() (made T, err error) {
		if !c.inited.Load() {
			if err = c.provider.Init(); err != nil {
				return made, err
			}
			c.inited.Store(true)
		}
		return call()
	}, func(T) {})
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return result, err
}

// leave gives back the token of a call when the call is done, or has not returned in time: otherwise a call that
// never returns would prevent all later ones. While a provider is being initialized, no other call begins.
func (c *credentials) leave(done <-chan struct{}) {
	defer func() { <-c.calling }()
	late := time.NewTimer(c.timeout)
	defer late.Stop()
	select {
	case <-done:
		return
	case <-late.C:
	}
	if !c.inited.Load() {
		<-done
		return
	}
	select {
	case <-done:
	case c.hung <- struct{}{}:
		go func() {
			<-done
			<-c.hung
		}()
	}
}

// close closes the provider, if it was initialized: others may take no other call before.
func (c *credentials) close() error {
	if !c.inited.Load() {
		return nil
	}
	return c.provider.Close()
}
