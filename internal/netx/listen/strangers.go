package listen

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// StrangerBounds bound the resources of callers of a gRPC listener before their Hello, and the
// waiting times for all callers.
type StrangerBounds struct {
	ConnectionsMax int           // connections without a Hello at once
	BytesMax       int           // received on such a connection until it is closed
	LastMax        time.Duration // how long such a connection lasts
	CallsMax       int           // on connections with a Hello: calls at once whose first message is not here
	CallMax        time.Duration // how long the first message of a call may take
	Greets         string        // a prefix of methods whose callers are no strangers once their headers are here, with the token if there is one; "": none
	StuckMax       time.Duration // how long a caller may take nothing while bytes for it wait; it comes up to twice as late
}

// AppStrangers returns the bounds of the application's listener. A Hello and its HTTP/2 frames
// have some 600 bytes, and up to 128 KiB with schedules; a health check has 200. The first message of who calls a handler may be as large as any.
func AppStrangers() StrangerBounds {
	return StrangerBounds{
		ConnectionsMax: 32, BytesMax: 136 << 10, LastMax: time.Minute, CallsMax: 24, CallMax: 10 * time.Second, StuckMax: 10 * time.Second,
		Greets: "/ringfence.lane.v1.LaneService/",
	}
}

// PeerStrangers returns the bounds of the peers' listener. The Hello of a member has the
// settings on which the group agrees, some of which are lists of topics.
func PeerStrangers() StrangerBounds {
	return StrangerBounds{ConnectionsMax: 64, BytesMax: 64 << 10, LastMax: time.Minute, CallsMax: 4, CallMax: 10 * time.Second, StuckMax: 10 * time.Second}
}

// Memory is the maximum of gRPC's memory for callers without a Hello: for each connection
// buffers of socketBytes, the state of streams calls with their headers, and its received data,
// which small frames make dearFrame times as large; for each call on other connections a
// message of messageMax.
func (b StrangerBounds) Memory(socketBytes, streams, messageMax int) int {
	const dearFrame, call = 16, 20 << 10
	return b.ConnectionsMax*(socketBytes+b.BytesMax*dearFrame+streams*call) + b.CallsMax*messageMax
}

// Callers bounds the callers of one gRPC listener. It replaces the credentials of the server: a
// connection counts as a stranger's from its handshake on, until the service behind calls
// Greeted on the AuthInfo of one of its streams.
type Callers struct {
	name   string
	inner  credentials.TransportCredentials
	bounds StrangerBounds
	token  func() string
	turned *prometheus.CounterVec
	lines  *loglimit.Limit

	strangers atomic.Int64 // connections without a Hello

	mu    sync.Mutex // guards calls, and the calls of each connection
	calls int        // without a first message, on connections with a Hello
}

// NewCallers returns the bounds of a listener, on top of the credentials inner. token returns
// the token that callers must send as Authorization: Bearer TOKEN, "" for none; it is called
// for each call. Health checks need none.
func NewCallers(name string, inner credentials.TransportCredentials, bounds StrangerBounds, token func() string, metrics *Metrics, log *slog.Logger) *Callers {
	return &Callers{
		name: name, inner: inner, bounds: bounds, token: token, turned: metrics.rejected,
		lines: loglimit.New(log.With("component", "listen", "listener", name), name+"_callers", noteEvery, metrics.lines),
	}
}

// NoToken asks for none.
func NoToken() string { return "" }

// Options returns the server options that enforce the bounds. They include the server's
// credentials.
func (c *Callers) Options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(callersCreds{c.inner, c}), grpc.InTapHandle(c.begin),
		grpc.ChainUnaryInterceptor(unaryBegun), grpc.ChainStreamInterceptor(streamBegun),
	}
}

// turnAway counts a rejection, and now and then logs it.
func (c *Callers) turnAway(why string, from net.Addr) {
	c.turned.WithLabelValues(c.name, why).Inc()
	if log, due := c.lines.Line(); due {
		log.Info("rejected", "peer", from.String(), "reason", why)
	}
}

type callersCreds struct {
	credentials.TransportCredentials
	callers *Callers
}

// Clone implements credentials.TransportCredentials.
func (c callersCreds) Clone() credentials.TransportCredentials {
	return callersCreds{c.TransportCredentials.Clone(), c.callers}
}

var (
	errStrangers = errors.New("listen: too many connections without a Hello")
	errBytes     = errors.New("listen: too many bytes before the Hello")
)

// ServerHandshake implements credentials.TransportCredentials.
func (c callersCreds) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return conn, info, err
	}
	k := c.callers
	if k.strangers.Add(1) > int64(k.bounds.ConnectionsMax) {
		k.strangers.Add(-1)
		k.turnAway(strangers, conn.RemoteAddr())
		_ = conn.Close()
		return nil, nil, errStrangers
	}
	called := &connection{Conn: conn, callers: k, left: k.bounds.BytesMax, calls: make(map[*call]struct{})}
	called.recognized = sync.OnceFunc(func() { k.strangers.Add(-1) })
	k.mu.Lock() // they may fire before both are there
	defer k.mu.Unlock()
	called.patience = time.AfterFunc(k.bounds.LastMax, called.closeSilent)
	called.look = time.AfterFunc(k.bounds.StuckMax, called.watchWrites)
	return called, callerInfo{info, called}, nil
}

// callerInfo is the AuthInfo of a connection, by which its streams say that it has greeted.
type callerInfo struct {
	credentials.AuthInfo
	caller *connection
}

// Greeted says that a good Hello has come: the bounds of strangers end.
func (i callerInfo) Greeted() { i.caller.greet() }

// connection is one that a caller has made.
type connection struct {
	net.Conn
	callers    *Callers
	known      atomic.Bool // it has carried a Hello
	left       int         // bytes that it may still send before; the reader's
	recognized func()      // it is no longer a stranger, or closed
	patience   *time.Timer // for the Hello; guarded by callers.mu
	look       *time.Timer // watches the writes

	writes atomic.Uint64 // odd while a Write is under way
	seen   uint64        // of writes, at the last look

	calls  map[*call]struct{} // without a first message; guarded by callers.mu
	closed bool               // guarded by mu
}

// Read implements net.Conn.
func (c *connection) Read(p []byte) (int, error) {
	if c.known.Load() {
		return c.Conn.Read(p)
	}
	if c.left == 0 {
		c.callers.turnAway(bytesBefore, c.RemoteAddr())
		return 0, errBytes
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// Write implements net.Conn.
func (c *connection) Write(p []byte) (int, error) {
	c.writes.Add(1)
	defer c.writes.Add(1)
	return c.Conn.Write(p)
}

// watchWrites closes the connection if the Write that was running at the last check still is. A
// deadline for each Write would do the same, but cost as much as a small frame.
func (c *connection) watchWrites() {
	now := c.writes.Load()
	if now%2 == 1 && now == c.seen {
		c.callers.turnAway(stuck, c.RemoteAddr())
		_ = c.Close()
		return
	}
	c.seen = now
	c.callers.mu.Lock()
	defer c.callers.mu.Unlock()
	if !c.closed {
		c.look.Reset(c.callers.bounds.StuckMax)
	}
}

// closeSilent closes a connection on which no Hello has come in time.
func (c *connection) closeSilent() {
	if !c.known.Load() {
		c.callers.turnAway(silent, c.RemoteAddr())
		_ = c.Close()
	}
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.recognized()
	c.callers.mu.Lock()
	c.closed = true
	c.patience.Stop()
	c.look.Stop()
	c.callers.mu.Unlock()
	return c.Conn.Close()
}

// greet ends the bounds of strangers. The other calls of the connection take places among
// those of CallsMax from now on; those that find none end.
func (c *connection) greet() {
	if c.known.Load() {
		return
	}
	k := c.callers
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.known.Swap(true) {
		return
	}
	c.recognized()
	c.patience.Stop()
	for one := range c.calls {
		if k.calls == k.bounds.CallsMax {
			delete(c.calls, one)
			one.cancel()
			continue
		}
		k.calls++
	}
}

// call is one whose first message is not here.
type call struct {
	caller *connection
	cancel context.CancelFunc
	late   *time.Timer
	ended  func() bool // unregisters the callback at the end of the context
}

type callKey struct{}

// healthPrefix is that of the methods that need no token.
const healthPrefix = "/grpc.health.v1.Health/"

// begin is called with the headers of each call, before anything else of it is taken in.
func (c *Callers) begin(ctx context.Context, info *tap.Info) (context.Context, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ctx, nil
	}
	if want := c.token(); want != "" && !strings.HasPrefix(info.FullMethodName, healthPrefix) && !same(bearer(info.Header), want) {
		c.turnAway(token, p.Addr)
		return nil, status.Error(codes.Unauthenticated, "the token is missing or wrong (Authorization: Bearer TOKEN): an application gives its router the token of app.token_file, by RINGFENCE_APP_TOKEN_FILE")
	}
	known, ok := p.AuthInfo.(callerInfo)
	if !ok {
		return ctx, nil
	}
	if c.bounds.Greets != "" && strings.HasPrefix(info.FullMethodName, c.bounds.Greets) {
		known.Greeted()
	}
	ctx, cancel := context.WithCancel(ctx)
	one := &call{caller: known.caller, cancel: cancel}
	if !c.admit(one) {
		cancel()
		c.turnAway(calls, p.Addr)
		return nil, status.Error(codes.ResourceExhausted, "too many calls that have not sent their request yet")
	}
	one.late = time.AfterFunc(c.bounds.CallMax, func() {
		if c.drop(one) {
			c.turnAway(silent, p.Addr)
			cancel()
		}
	})
	one.ended = context.AfterFunc(ctx, func() {
		one.late.Stop()
		c.drop(one)
	})
	return context.WithValue(ctx, callKey{}, one), nil
}

// admit gives a call its place, if there is one.
func (c *Callers) admit(one *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if one.caller.known.Load() {
		if c.calls == c.bounds.CallsMax {
			return false
		}
		c.calls++
	}
	one.caller.calls[one] = struct{}{}
	return true
}

// drop ends the waiting for a call's first message, and reports whether it was waited for.
func (c *Callers) drop(one *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, waited := one.caller.calls[one]; !waited {
		return false
	}
	delete(one.caller.calls, one)
	if one.caller.known.Load() {
		c.calls--
	}
	return true
}

// begun says that the first message of a call is here.
func begun(ctx context.Context) {
	if one, ok := ctx.Value(callKey{}).(*call); ok {
		one.late.Stop()
		one.ended()
		one.caller.callers.drop(one)
	}
}

func unaryBegun(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	begun(ctx)
	return handler(ctx, request)
}

func streamBegun(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(server, &beginning{ServerStream: stream})
}

// beginning is a stream that notes its first message.
type beginning struct {
	grpc.ServerStream
	received bool // the reader's
}

// RecvMsg implements grpc.ServerStream.
func (b *beginning) RecvMsg(m any) error {
	err := b.ServerStream.RecvMsg(m)
	if err == nil && !b.received {
		b.received = true
		begun(b.Context())
	}
	return err
}

// bearer returns the token in the headers of a call, "" if there is none.
func bearer(headers metadata.MD) string {
	given := headers.Get("authorization")
	if len(given) == 0 {
		return ""
	}
	text, ok := strings.CutPrefix(given[0], "Bearer ")
	if !ok {
		return ""
	}
	return text
}
