package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/clock"
)

// connections holds the connection of a Lane. It replaces the connection if a call has ended by its deadline, or a
// reservation is not renewed, and nothing was heard meanwhile: the other end may be gone silently, and TCP would wait
// for a quarter of an hour. Calls in flight on the old connection continue. A handler or a broker may also be slower than a
// caller waits: in the middle of its time a call probes a silent connection, with a question that every router answers at once.
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
	probe clock.Instant // when the probe was sent that is under way; 0: there is none
}

// The time that a router has for the answer to a probe: as long as the call would still wait, within these bounds.
const (
	probeLeast = 100 * time.Millisecond
	probeMost  = time.Second
)

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
	begun := c.now()
	if deadline, ok := ctx.Deadline(); ok {
		half := time.Until(deadline) / 2 //nolint:forbidigo // wall time, as in contexts
		probe := time.AfterFunc(half, func() { c.probe(ctx, lc, begun, half) })
		context.AfterFunc(ctx, func() { probe.Stop() })
	}
	return &onConnection{s, c, lc, begun}, nil
}

// probe asks the router how it is, if nothing was heard on a connection since an instant. Whatever it answers, it is there; its health is of no interest.
func (c *connections) probe(ctx context.Context, lc *laneConn, since clock.Instant, within time.Duration) {
	now := c.now()
	c.mu.Lock()
	due := lc.probe == 0 && !since.Before(lc.heard)
	if due {
		lc.probe = now
		lc.open++
	}
	c.mu.Unlock()
	if !due {
		return
	}
	defer c.ended(lc)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(max(within, probeLeast), probeMost)) // it outlasts a short call
	defer cancel()
	s, err := lc.conn.NewStream(ctx, &grpc.StreamDesc{}, healthv1.Health_Check_FullMethodName)
	sent := err == nil // otherwise the connection is broken, or has no room
	if sent {
		_ = s.SendMsg(new(healthv1.HealthCheckRequest)) // RecvMsg has the error
		err = s.RecvMsg(new(healthv1.HealthCheckResponse))
	}
	c.mu.Lock()
	lc.probe = 0
	c.mu.Unlock()
	if sent {
		c.note(lc, now, err)
	}
}

// isClosed reports whether Close was called.
func (c *connections) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
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
	if p := c.connection.probe; p != 0 && c.now().Sub(p) < probeLeast {
		return // the probe decides
	}
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
	s.connections.note(s.connection, s.begun, err)
	return err
}

// note notes what a message of a stream, begun then, or its end says about its connection.
func (c *connections) note(lc *laneConn, begun clock.Instant, err error) {
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		c.unanswered(begun)
	case codes.Canceled:
	case codes.Unavailable: // as of a connection that was refused
		c.mu.Lock()
		lc.heard = c.now()
		c.mu.Unlock()
	default:
		c.mu.Lock()
		lc.heard, lc.ever, c.patience = c.now(), true, redialLeast
		c.mu.Unlock()
	}
}
