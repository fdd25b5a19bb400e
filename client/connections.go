package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/clock"
)

// connections holds the connection of a Lane. It replaces the connection if a call has ended by its deadline, or a
// reservation is not renewed, and nothing was heard meanwhile: the other end may be gone silently, and TCP would wait
// for a quarter of an hour. Calls in flight on the old connection continue.
type connections struct {
	dial func() (*grpc.ClientConn, error)
	now  func() clock.Instant

	mu         sync.Mutex // guards the fields below, and those of all connections
	connection *laneConn  // of what begins now
	old        map[*laneConn]struct{}
	patience   time.Duration // how old a connection must be before a call replaces it on which nothing was ever heard
	closed     bool
}

// laneConn is one connection.
type laneConn struct {
	conn  *grpc.ClientConn
	made  clock.Instant
	heard clock.Instant // when it was made, or the newest message came
	ever  bool          // a message has come
	open  int           // streams
}

func newConnections(now func() clock.Instant, dial func() (*grpc.ClientConn, error)) (*connections, error) {
	c := &connections{dial: dial, now: now, old: make(map[*laneConn]struct{}), patience: redialLeast}
	conn, err := dial()
	c.connection = c.made(conn)
	return c, err
}

func (c *connections) made(conn *grpc.ClientConn) *laneConn {
	now := c.now()
	return &laneConn{conn: conn, made: now, heard: now}
}

// Invoke implements grpc.ClientConnInterface. Lanes have no use for it: their requests are streams, too.
func (c *connections) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	c.mu.Lock()
	conn := c.connection.conn
	c.mu.Unlock()
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface. The stream must be ended by the end of its context.
func (c *connections) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	c.mu.Lock()
	lc := c.connection
	lc.open++
	c.mu.Unlock()
	context.AfterFunc(ctx, func() { c.ended(lc) })
	s, err := lc.conn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &onConnection{s, c, lc, c.now()}, nil
}

// Close ends all connections.
func (c *connections) Close() error {
	c.mu.Lock()
	c.closed = true
	old := c.old
	c.old = nil
	err := c.connection.conn.Close()
	c.mu.Unlock()
	for lc := range old {
		_ = lc.conn.Close()
	}
	return err
}

// silent replaces the connection if nothing was heard on it since an instant from which on it should have been.
func (c *connections) silent(since clock.Instant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replace(since)
}

// unanswered is silent for a call that has ended by its deadline. A connection on which nothing was ever heard may still be in the making: each one that
// calls replace in a row has twice the time of the one before, connectMax at most. Otherwise calls with a timeout shorter than that would never connect.
func (c *connections) unanswered(since clock.Instant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	never := !c.connection.ever
	if never && c.now().Sub(c.connection.made) < c.patience {
		return
	}
	if c.replace(since) && never {
		c.patience = min(2*c.patience, connectMax)
	}
}

// replace reports whether it has replaced the connection. The lock is held.
func (c *connections) replace(since clock.Instant) bool {
	if c.closed || since.Before(c.connection.heard) {
		return false
	}
	conn, err := c.dial()
	if err != nil { // as of options, which were good before
		return false
	}
	if c.connection.open > 0 {
		c.old[c.connection] = struct{}{}
	} else {
		_ = c.connection.conn.Close()
	}
	c.connection = c.made(conn)
	return true
}

func (c *connections) ended(lc *laneConn) {
	c.mu.Lock()
	lc.open--
	_, last := c.old[lc]
	last = last && lc.open == 0
	if last {
		delete(c.old, lc)
	}
	c.mu.Unlock()
	if last {
		_ = lc.conn.Close()
	}
}

// onConnection is a stream on a connection.
type onConnection struct {
	grpc.ClientStream

	connections *connections
	connection  *laneConn
	begun       clock.Instant
}

// RecvMsg implements grpc.ClientStream.
func (s *onConnection) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		s.connections.unanswered(s.begun)
	case codes.Canceled:
	case codes.Unavailable: // as of a connection that was refused
		s.connections.mu.Lock()
		s.connection.heard = s.connections.now()
		s.connections.mu.Unlock()
	default:
		s.connections.mu.Lock()
		s.connection.heard, s.connection.ever, s.connections.patience = s.connections.now(), true, redialLeast
		s.connections.mu.Unlock()
	}
	return err
}
