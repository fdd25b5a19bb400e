package entries

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// conn is a connection to a broker, authenticated and ready.
type conn struct {
	client *Client
	to     address
	socket net.Conn
	in     *frameReader
	out    *outbox

	// Used only by the goroutine that reads.
	parser wire.Parser

	// The broker's protocol version, set before the first use.
	protocol int32

	challenged atomic.Bool   // a challenge is being answered
	done       chan struct{} // closed when the connection has ended

	mu       sync.Mutex // guards the fields below
	err      error      // cause of its end
	answers  map[uint64]func(*pulsarpb.BaseCommand)
	sessions map[uint64]*session
	idle     int // keep-alive intervals without use
}

// start starts the goroutines of a connection, which end with it.
func (k *conn) start() {
	k.client.metrics.connections.Inc()
	k.client.work.Go(func() { k.end(k.read()) })
	k.client.work.Go(func() {
		if err := k.out.run(k.socket, k.done); err != nil {
			k.end(fmt.Errorf("entries: write to %v: %w", k.to, err))
		}
	})
	k.client.work.Go(k.keepAlive)
}

// end ends the connection, with its socket, requests and sessions.
func (k *conn) end(err error) {
	k.mu.Lock()
	if k.err != nil {
		k.mu.Unlock()
		return
	}
	k.err = err
	k.mu.Unlock()
	k.client.metrics.connections.Dec()
	k.client.forget(k)
	_ = bare(k.socket).Close()
	close(k.done)
}

// bare returns the socket under TLS. Closing a TLS connection sends an alert first, and would wait for a peer that hangs.
func bare(socket net.Conn) net.Conn {
	if secured, ok := socket.(*tls.Conn); ok {
		return secured.NetConn()
	}
	return socket
}

// cause returns the error that ended the connection, nil if it is open.
func (k *conn) cause() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// send queues the bytes of a command for writing. A connection that has ended ignores them.
func (k *conn) send(build func(dst []byte) []byte) {
	if !k.out.add(build) {
		k.end(fmt.Errorf("%w: %v", errStuck, k.to))
	}
}

// post sends a command without an answer.
func (k *conn) post(c *pulsarpb.BaseCommand) error {
	frame, err := wire.AppendCommand(nil, c)
	if err != nil {
		return fmt.Errorf("entries: %w", err)
	}
	k.send(func(dst []byte) []byte { return append(dst, frame...) })
	return nil
}

// request sends a command with a request id and waits for its answer, at most for the OperationTimeout.
func (k *conn) request(ctx context.Context, id uint64, c *pulsarpb.BaseCommand) (*pulsarpb.BaseCommand, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, k.client.cfg.OperationTimeout, errNoAnswer)
	defer cancel()
	answer := make(chan *pulsarpb.BaseCommand, 1)
	if err := k.expect(id, func(c *pulsarpb.BaseCommand) { answer <- c }); err != nil {
		return nil, err
	}
	defer k.unexpect(id)
	if err := k.post(c); err != nil {
		return nil, err
	}
	select {
	case a := <-answer:
		return a, nil
	case <-k.done:
		return nil, k.cause()
	case <-ctx.Done():
		return nil, fmt.Errorf("entries: %v at %v: %w", c.GetType(), k.to, context.Cause(ctx))
	}
}

var errNoAnswer = errors.New("no answer in time")

// expect registers take for the answer to a request. The goroutine that reads calls it, so it must not wait.
func (k *conn) expect(id uint64, take func(*pulsarpb.BaseCommand)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return k.err
	}
	k.answers[id] = take
	return nil
}

func (k *conn) unexpect(id uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.answers, id)
}

// answered passes on an answer. An answer to a request that was abandoned is ignored.
func (k *conn) answered(id uint64, c *pulsarpb.BaseCommand) {
	k.mu.Lock()
	take := k.answers[id]
	delete(k.answers, id)
	k.mu.Unlock()
	if take != nil {
		take(c)
	}
}

// attach registers the session that receives the entries of a subscription.
func (k *conn) attach(s *session) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		return k.err
	}
	k.sessions[s.id] = s
	return nil
}

func (k *conn) detach(s *session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.sessions, s.id)
}

func (k *conn) session(id uint64) *session {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.sessions[id]
}

// spare reports whether no subscription uses the connection.
func (k *conn) spare() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.sessions) == 0
}

// unused counts an interval without use, and reports whether there were more than IdleMax.
func (k *conn) unused() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.sessions) > 0 || len(k.answers) > 0 {
		k.idle = 0
		return false
	}
	k.idle++
	return k.idle > k.client.cfg.IdleMax
}

// used resets the idle count before the connection is used.
func (k *conn) used() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.idle = 0
}

// keepAlive sends pings. It ends the connection if the broker sends or takes no byte for two intervals, or if the connection is unused.
func (k *conn) keepAlive() {
	ticker := time.NewTicker(k.client.cfg.KeepAlive)
	defer ticker.Stop()
	var heard, written watched
	for {
		select {
		case <-ticker.C:
		case <-k.done:
			return
		}
		taken, waiting := k.out.progress()
		switch {
		case heard.still(k.in.heard.Load(), true):
			k.end(fmt.Errorf("%w: %v", errSilent, k.to))
		case written.still(taken, waiting):
			k.end(fmt.Errorf("%w: %v", errStuck, k.to))
		case k.unused():
			k.end(errIdle)
		default:
			k.send(wire.AppendPing)
		}
	}
}

// watched is a count that should grow.
type watched struct {
	last  uint64
	times int // intervals without growth
}

// still records the count at the end of an interval. It reports whether the count failed to grow in two intervals in which it should.
func (w *watched) still(count uint64, should bool) bool {
	if count != w.last || !should {
		w.last, w.times = count, 0
		return false
	}
	w.times++
	return w.times >= 2
}
