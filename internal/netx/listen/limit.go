package listen

import (
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc/credentials"

	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// Metrics of all listeners.
type Metrics struct {
	connections *prometheus.GaugeVec
	rejected    *prometheus.CounterVec
	lines       *loglimit.Metrics
}

// The reasons of a rejection.
const (
	full      = "full"      // there are as many connections as there may be
	handshake = "handshake" // TLS: the wrong certificate, or none
	token     = "token"     // the wrong bearer token, or none

	// Of HTTP listeners alone.
	evicted   = "evicted"   // the connection that was slow for longest made room for a new one
	slow      = "slow"      // nothing came within headerTimeout
	malformed = "malformed" // no request, one that is too long, or none that is complete within headerTimeout
	body      = "body"      // a body where none is wanted
	tooMany   = "rate"      // requests wait for their turn for too long, or another profile runs
	method    = "method"    // such as GET for a change
	origin    = "origin"    // a browser, on behalf of a page of another site
	host      = "host"      // a name that is not that of loopback, as after DNS rebinding
	plain     = "plain"     // in the clear from another machine

	// Of gRPC listeners alone.
	strangers   = "strangers" // there are as many connections without a Hello as there may be
	bytesBefore = "bytes"     // a connection sends too much before a Hello
	silent      = "silent"    // no Hello on a connection for too long, or no first message of a call
	calls       = "calls"     // there are as many calls without a first message as there may be
	stuck       = "stuck"     // a caller reads nothing that is sent to it
)

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	with := promauto.With(reg)
	return &Metrics{
		connections: with.NewGaugeVec(prometheus.GaugeOpts{
			Name: "ringfence_listener_connections",
			Help: "Open connections, by listener (app, peer, gossip, admin, debug).",
		}, []string{"listener"}),
		rejected: with.NewCounterVec(prometheus.CounterOpts{
			Name: "ringfence_listener_rejected_total",
			Help: "Connections, requests and gossip that were rejected, by listener and why (full, handshake, token, evicted, slow, malformed, body, rate, method, origin, host, plain, strangers, bytes, silent, calls, stuck; for gossip also label, clear, too_large, member_name, member_address, members_full).",
		}, []string{"listener", "reason"}),
		lines: loglimit.NewMetrics(reg),
	}
}

// Limiter bounds the connections to one listener, and counts rejections.
type Limiter struct {
	name           string
	connectionsMax int64
	count          atomic.Int64
	metrics        *Metrics
}

// NewLimiter returns a Limiter for at most connectionsMax connections at once.
func NewLimiter(name string, connectionsMax int, metrics *Metrics) *Limiter {
	return &Limiter{name: name, connectionsMax: int64(connectionsMax), metrics: metrics}
}

// Admit returns conn, which has a place until it is closed. Beyond the limit it closes
// conn at once and returns false: a connection that had to wait for a place would block
// the next ones.
func (d *Limiter) Admit(conn net.Conn) (net.Conn, bool) {
	if d.count.Add(1) > d.connectionsMax {
		d.count.Add(-1)
		d.Refuse(full)
		_ = conn.Close()
		return nil, false
	}
	open := d.metrics.connections.WithLabelValues(d.name)
	open.Inc()
	return &counted{Conn: conn, gone: sync.OnceFunc(func() { d.count.Add(-1); open.Dec() })}, true
}

// Refuse counts something that was rejected. why is a constant of the program.
func (d *Limiter) Refuse(why string) { d.metrics.rejected.WithLabelValues(d.name, why).Inc() }

// Limit returns a listener with at most connectionsMax connections at once, see [Limiter.Admit].
func Limit(listener net.Listener, name string, connectionsMax int, metrics *Metrics) net.Listener {
	return &limited{Listener: listener, limiter: NewLimiter(name, connectionsMax, metrics)}
}

type limited struct {
	net.Listener

	limiter *Limiter
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if placed, ok := l.limiter.Admit(conn); ok {
			return placed, nil
		}
	}
}

// counted is a connection that has a place.
type counted struct {
	net.Conn
	gone func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.gone()
	return c.Conn.Close()
}

// noteEvery is the least time between two log lines about rejections.
const noteEvery = time.Second

// ServerCredentials are those of a gRPC server behind a listener. Handshakes that fail are
// counted, and now and then logged.
func ServerCredentials(name string, config *tls.Config, metrics *Metrics, log *slog.Logger) credentials.TransportCredentials {
	return &watched{
		TransportCredentials: credentials.NewTLS(config),
		refused:              metrics.rejected.WithLabelValues(name, handshake),
		lines:                loglimit.New(log.With("component", "listen", "listener", name), name+"_handshake", noteEvery, metrics.lines),
	}
}

type watched struct {
	credentials.TransportCredentials
	refused prometheus.Counter
	lines   *loglimit.Limit
}

// ServerHandshake implements credentials.TransportCredentials.
func (w *watched) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := w.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		w.refused.Inc()
		if log, due := w.lines.Line(); due {
			log.Info("rejected", "peer", raw.RemoteAddr().String(), "error", err)
		}
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (w *watched) Clone() credentials.TransportCredentials {
	clone := *w
	clone.TransportCredentials = w.TransportCredentials.Clone()
	return &clone
}
