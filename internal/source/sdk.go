package source

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// sdk is a client of pulsar-client-go. Its calls take no context.
type sdk struct {
	client pulsar.Client // nil until open has made it

	mu     sync.Mutex // guards the fields below
	calls  int        // that run on goroutines of their own, see aside
	closed bool
}

// open makes the client.
//
// The client has no limit of bytes: it would be one limit for all topics together, and at that
// limit the client (v0.21.0) fails to release the queue space of a chunked message.
// copyBytesMax bounds its memory instead.
func (s *sdk) open(ctx context.Context, options pulsar.ClientOptions) error {
	options.MemoryLimitBytes = -1
	client, err := await(ctx, s, func() (pulsar.Client, error) { return pulsar.NewClient(options) }, pulsar.Client.Close)
	if err != nil {
		return fmt.Errorf("source: %w", err)
	}
	s.client = client
	return nil
}

var errClosed = errors.New("source: closed")

// await is [pulsarsend.Await] with aside.
func await[T any](ctx context.Context, s *sdk, call func() (T, error), undo func(T)) (T, error) {
	return pulsarsend.Await(ctx, s.aside, call, undo)
}

// call makes a call of the client that may hang, and waits for it until ctx ends.
func (s *sdk) call(ctx context.Context, call func() error) error {
	_, err := await(ctx, s, func() (struct{}, error) { return struct{}{}, call() }, func(struct{}) {})
	return err
}

// aside runs a call of the client on a goroutine of its own, or returns errClosed if s is
// closed. The last of these calls closes the client if s was closed meanwhile: a client
// that is closed during a call opens a new connection for it and never closes that.
func (s *sdk) aside(call func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	s.calls++
	go func() {
		call()
		s.mu.Lock()
		s.calls--
		last := s.closed && s.calls == 0
		s.mu.Unlock()
		if last {
			s.closeClient()
		}
	}()
	return nil
}

// close allows no more calls, runs before, and closes the client. It does not wait for calls made by aside.
func (s *sdk) close(before func()) {
	s.mu.Lock()
	s.closed = true
	last := s.calls == 0
	s.mu.Unlock()
	before()
	if last {
		s.closeClient()
	}
}

// closeClient closes the producers, too.
func (s *sdk) closeClient() {
	if s.client != nil {
		s.client.Close()
	}
}
