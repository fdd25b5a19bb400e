package client

import (
	"context"
	"sync"

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
	closed     bool
}

// laneConn is one connection.
type laneConn struct {
	conn  *grpc.ClientConn
	heard clock.Instant // when it was made, or the newest message came
	open  int           // streams
}

func newConnections(now func() clock.Instant, dial func() (*grpc.ClientConn, error)) (*connections, error) {
	l := &connections{dial: dial, now: now, old: make(map[*laneConn]struct{})}
	conn, err := dial()
	l.connection = &laneConn{conn: conn, heard: now()}
	return l, err
}

// Invoke implements grpc.ClientConnInterface. Lanes have no use for it: their requests are streams, too.
func (l *connections) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	l.mu.Lock()
	conn := l.connection.conn
	l.mu.Unlock()
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface. The stream must be ended by the end of its context.
func (l *connections) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	l.mu.Lock()
	of := l.connection
	of.open++
	l.mu.Unlock()
	context.AfterFunc(ctx, func() { l.ended(of) })
	s, err := of.conn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &onConnection{s, l, of, l.now()}, nil
}

// Close ends all connections.
func (l *connections) Close() error {
	l.mu.Lock()
	l.closed = true
	old := l.old
	l.old = nil
	err := l.connection.conn.Close()
	l.mu.Unlock()
	for of := range old {
		_ = of.conn.Close()
	}
	return err
}

// silent replaces the connection if nothing was heard on it since an instant from which on it should have been.
func (l *connections) silent(since clock.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || since.Before(l.connection.heard) {
		return
	}
	conn, err := l.dial()
	if err != nil { // as of options, which were good before
		return
	}
	if l.connection.open > 0 {
		l.old[l.connection] = struct{}{}
	} else {
		_ = l.connection.conn.Close()
	}
	l.connection = &laneConn{conn: conn, heard: l.now()}
}

func (l *connections) ended(of *laneConn) {
	l.mu.Lock()
	of.open--
	_, last := l.old[of]
	last = last && of.open == 0
	if last {
		delete(l.old, of)
	}
	l.mu.Unlock()
	if last {
		_ = of.conn.Close()
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
		s.connections.silent(s.begun)
	case codes.Canceled:
	default:
		s.connections.mu.Lock()
		s.connection.heard = s.connections.now()
		s.connections.mu.Unlock()
	}
	return err
}
