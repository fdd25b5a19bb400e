package listen

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// The limits of a client's input to an HTTP listener, in bytes and time.
const (
	headerTimeout  = 5 * time.Second  // until the headers of a request are complete; of the handshake of TLS, too
	headerBytesMax = 16 << 10         // of them
	bodyTimeout    = 5 * time.Second  // until a body is complete, where one is wanted
	bodyBytesMax   = 64 << 10         // of it
	writeTimeout   = 10 * time.Second // until an answer is taken, once the headers of its request were complete
	idleMax        = time.Minute      // a connection without a request
)

// The rates of an HTTP listener for all callers together. Further requests wait for their turn.
const (
	requestsPerSecond = 1000 // in all
	pagesPerSecond    = 50   // but for probes: pages and metrics are longer, and cost more
	turnWaitMax       = 5 * time.Second
)

// shutdownGrace is how long requests that are being answered may continue.
const shutdownGrace = time.Second

// Bounds are the limits of an HTTP listener that differ between listeners. The zero value of each is that of a listener for people.
type Bounds struct {
	BodyBytesMax      int           // of a body, where one is wanted; 0: 64 KiB
	AnswerMax         time.Duration // until a handler begins to answer; 0: as long as an answer may be taken
	RequestsPerSecond int           // of all callers together; 0: 1000, of which 50 may be other than probes
	KeptMax           int           // connections that are never closed for another one while a request that has passed a guard is answered; 0: a quarter of all
}

// HTTP is a listener for people, probes and monitoring. Strangers reach it, so each
// connection has deadlines for all that it does, bodies are read only where they are
// wanted, and a full listener closes the connection that has been slow for longest.
type HTTP struct {
	Name           string
	Listener       net.Listener
	TLS            *tls.Config // nil: in the clear
	ConnectionsMax int
	Probes         []string // paths with short answers, for callers that must not wait
	Bodies         []string // "METHOD PATH" of the requests that may have a body; a PATH that ends in / stands for all below it
	Bounds         Bounds
	Header         map[string]string // of every answer, unless the handler sets another value
	Metrics        *Metrics
	LogMetrics     *loglimit.Metrics
	Log            *slog.Logger
}

// Serve answers requests by handler until ctx ends, and then closes the listener. It
// returns nil when it was ctx that ended it.
func (h HTTP) Serve(ctx context.Context, handler http.Handler) error {
	logs := h.Log.With("component", "listen", "listener", h.Name)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &httpListener{
		Listener: h.Listener, name: h.Name, metrics: h.Metrics,
		crowd: newCrowd(h.ConnectionsMax), conns: make(map[uint64]*httpConn), open: h.Metrics.connections.WithLabelValues(h.Name),
	}
	if h.Bounds.KeptMax > 0 {
		l.crowd.keptMax = h.Bounds.KeptMax
	}
	server := &http.Server{
		Handler:           h.bounded(handler),
		ReadHeaderTimeout: headerTimeout,
		WriteTimeout:      h.Bounds.AnswerMax + writeTimeout,
		IdleTimeout:       idleMax,
		MaxHeaderBytes:    headerBytesMax,
		Protocols:         new(http.Protocols),
		ConnState:         l.changed,
		// net/http would answer OPTIONS * itself: before the guard, and after its body, however long that takes.
		DisableGeneralOptionsHandler: true,
		ConnContext: func(conns context.Context, conn net.Conn) context.Context {
			return context.WithValue(context.WithValue(conns, connKey{}, connOf(conn)), endingKey{}, ctx.Done())
		},
		ErrorLog: log.New(&httpErrors{
			handshakes: h.Metrics.rejected.WithLabelValues(h.Name, handshake),
			strangers:  loglimit.New(logs, h.Name+"_handshake", noteEvery, h.LogMetrics),
			others:     loglimit.New(logs, h.Name+"_server", noteEvery, h.LogMetrics),
		}, "", 0),
	}
	server.Protocols.SetHTTP1(true) // one request at a time on each connection
	listener := net.Listener(l)
	if h.TLS != nil {
		listener = tls.NewListener(l, h.TLS)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close() // closes the remaining connections
		}
	})
	err := server.Serve(listener)
	cancel()
	wg.Wait()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("listen: serve %s: %w", h.Listener.Addr(), err)
}

// bounded makes requests wait for their turn, and refuses unexpected bodies.
func (h HTTP) bounded(handler http.Handler) http.Handler {
	perSecond := cmp.Or(h.Bounds.RequestsPerSecond, requestsPerSecond)
	requests := rate.NewLimiter(rate.Limit(perSecond), perSecond/10)
	pages := rate.NewLimiter(pagesPerSecond, pagesPerSecond)
	if h.Bounds.RequestsPerSecond > 0 {
		pages = requests
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name, value := range h.Header {
			w.Header().Set(name, value)
		}
		w = &counting{ResponseWriter: w, metrics: h.Metrics, name: h.Name, late: h.Bounds.AnswerMax > 0}
		if conn, ok := r.Context().Value(connKey{}).(*httpConn); ok {
			conn.asked()
		}
		if r.ContentLength != 0 && !h.takesBody(w, r) {
			return
		}
		turns := []*rate.Limiter{requests}
		if pages != requests && !slices.Contains(h.Probes, r.URL.Path) {
			turns = append(turns, pages)
		}
		for _, turn := range turns {
			ctx, cancel := context.WithTimeout(r.Context(), turnWaitMax)
			err := turn.Wait(ctx)
			cancel()
			if err != nil { // also if the caller has closed its side of the connection: it may still read, and without an answer net/http writes one of its own
				w.Header().Set("Retry-After", "1")
				http.Error(w, "too many requests", http.StatusTooManyRequests)
				return
			}
		}
		handler.ServeHTTP(w, r)
	})
}

// takesBody prepares for a body. If none is expected it answers at once, so that neither the
// handler nor the server, which would reuse the connection, waits for the body.
func (h HTTP) takesBody(w http.ResponseWriter, r *http.Request) bool {
	w.Header().Set("Connection", "close")
	control := http.NewResponseController(w)
	if !h.wantsBody(r) {
		_ = control.SetReadDeadline(time.Unix(1, 0)) // if it cannot be set, this is no connection
		http.Error(w, "this endpoint takes no request body", http.StatusRequestEntityTooLarge)
		return false
	}
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) //nolint:forbidigo // the deadlines of connections go by the wall clock
	r.Body = &boundedBody{http.MaxBytesReader(w, r.Body, int64(cmp.Or(h.Bounds.BodyBytesMax, bodyBytesMax))), w, r.ContentLength < 0}
	return true
}

// wantsBody reports whether a request is one of h.Bodies.
func (h HTTP) wantsBody(r *http.Request) bool {
	asked := r.Method + " " + r.URL.Path
	return slices.ContainsFunc(h.Bodies, func(wanted string) bool {
		return asked == wanted || strings.HasSuffix(wanted, "/") && strings.HasPrefix(asked, wanted)
	})
}

// boundedBody is a body with a deadline. Once it was read to its end the deadline is lifted, since net/http takes a
// connection whose deadline has passed for one that its client has closed. The connection may then be used again,
// unless the body came in chunks: the request may also have had a length, which net/http drops, and a proxy that uses
// the length takes the bytes after the last chunk for a part of the body. They must not run as a request of their own
// (RFC 9112, 6.3).
type boundedBody struct {
	io.ReadCloser
	answer  http.ResponseWriter
	chunked bool
}

// Read implements io.Reader.
func (b *boundedBody) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	if errors.Is(err, io.EOF) {
		_ = http.NewResponseController(b.answer).SetReadDeadline(time.Time{})
		if !b.chunked {
			b.answer.Header().Del("Connection")
		}
	}
	return n, err //nolint:wrapcheck // io.EOF is wanted as it is
}

type endingKey struct{}

// Ending returns a channel that is closed when the listener of a request begins to end: an answer
// without an end, as a stream of events, has to end then. nil for requests that no [HTTP] has served.
func Ending(r *http.Request) <-chan struct{} {
	ending, _ := r.Context().Value(endingKey{}).(<-chan struct{})
	return ending
}

// keep makes the connection of a request stay, also while the listener is full.
func keep(ctx context.Context) {
	if conn, ok := ctx.Value(connKey{}).(*httpConn); ok {
		conn.keep()
	}
}

// counting counts rejecting answers, by their status, and bounds the time to take an answer that may come late.
type counting struct {
	http.ResponseWriter
	metrics *Metrics
	name    string
	late    bool // the time to take the answer begins with it, not with the request
}

// WriteHeader implements http.ResponseWriter.
func (c *counting) WriteHeader(status int) {
	if c.late {
		_ = http.NewResponseController(c.ResponseWriter).SetWriteDeadline(time.Now().Add(writeTimeout)) //nolint:forbidigo // as for bodies
	}
	why := map[int]string{
		http.StatusRequestEntityTooLarge: body, http.StatusTooManyRequests: tooMany, http.StatusMethodNotAllowed: method,
	}[status]
	if why != "" {
		c.metrics.rejected.WithLabelValues(c.name, why).Inc()
	}
	c.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController find the connection.
func (c *counting) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// httpListener accepts connections, each into its crowd.
type httpListener struct {
	net.Listener
	name    string
	metrics *Metrics
	open    prometheus.Gauge

	mu    sync.Mutex
	crowd *crowd
	conns map[uint64]*httpConn
	next  uint64
}

// Accept implements net.Listener.
func (l *httpListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if entered := l.enter(conn); entered != nil {
			return entered, nil
		}
		l.reject(full)
		_ = conn.Close()
	}
}

// enter adds a connection, and closes another one if there is no room; nil if there is none at all.
func (l *httpListener) enter(raw net.Conn) *httpConn {
	now := clock.Now()
	l.mu.Lock()
	l.next++
	id := l.next
	victim, evicts, enters := l.crowd.enter(id, hostOf(raw.RemoteAddr()), now)
	var conn, slow *httpConn
	if evicts {
		slow = l.conns[victim]
		delete(l.conns, victim)
	}
	if enters {
		conn = &httpConn{Conn: raw, listener: l, id: id, since: now}
		l.conns[id] = conn
	}
	l.mu.Unlock()
	if slow != nil {
		l.reject(evicted)
		l.open.Dec()
		_ = slow.Conn.Close()
	}
	if conn != nil {
		l.open.Inc()
	}
	return conn
}

func (l *httpListener) reject(why string) { l.metrics.rejected.WithLabelValues(l.name, why).Inc() }

// changed implements http.Server.ConnState.
func (l *httpListener) changed(raw net.Conn, state http.ConnState) {
	conn := connOf(raw)
	if conn == nil {
		return
	}
	switch state {
	case http.StateActive, http.StateIdle:
		l.mu.Lock()
		l.crowd.moved(conn.id, clock.Now())
		conn.begun = state == http.StateActive
		l.mu.Unlock()
	case http.StateNew, http.StateHijacked, http.StateClosed: // no handler hijacks; Close reports the end
	}
}

// httpConn is one connection of the crowd.
type httpConn struct {
	net.Conn
	listener *httpListener
	id       uint64
	since    clock.Instant

	// Guarded by the listener's mutex.
	begun    bool // something of a request has come, and no handler has it
	answered bool // a handler has had a request
}

type connKey struct{}

// connOf finds the crowd's connection inside the server's one.
func connOf(conn net.Conn) *httpConn {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	found, _ := conn.(*httpConn)
	return found
}

// asked says that a request has reached the handler.
func (c *httpConn) asked() {
	c.listener.mu.Lock()
	c.begun, c.answered = false, true
	c.listener.mu.Unlock()
}

func (c *httpConn) keep() {
	c.listener.mu.Lock()
	c.listener.crowd.keep(c.id)
	c.listener.mu.Unlock()
}

// Close implements net.Conn.
func (c *httpConn) Close() error {
	l := c.listener
	l.mu.Lock()
	_, present := l.conns[c.id]
	delete(l.conns, c.id)
	l.crowd.leave(c.id)
	begun, silent := c.begun, !c.begun && !c.answered && clock.Now().Sub(c.since) >= headerTimeout
	l.mu.Unlock()
	if present { // it was not evicted, nor closed before
		l.open.Dec()
		switch {
		case silent:
			l.reject(slow)
		case begun:
			l.reject(malformed)
		}
	}
	return c.Conn.Close()
}

// CloseWrite lets an http.Server end a connection so that its last answer arrives.
func (c *httpConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// hostOf returns an address without its port.
func hostOf(addr net.Addr) string {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	return host
}

// httpErrors is the error log of an http.Server: failures of connections and handlers.
type httpErrors struct {
	handshakes        prometheus.Counter
	strangers, others *loglimit.Limit
}

// errorTextMax is how much of such a line is logged.
const errorTextMax = 1 << 10

// Write implements [io.Writer], a line at a time.
func (e *httpErrors) Write(line []byte) (int, error) {
	text := fmt.Sprintf("%.*s", errorTextMax, bytes.TrimSpace(line))
	if bytes.HasPrefix(line, []byte("http: TLS handshake error")) {
		e.handshakes.Inc()
		if log, due := e.strangers.Line(); due {
			log.Info("rejected", "error", text)
		}
		return len(line), nil
	}
	if log, due := e.others.Line(); due {
		log.Warn("HTTP server error", "error", text)
	}
	return len(line), nil
}
