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

	// Of the goroutine that reads.
	parser  wire.Parser
	singles []wire.Single // scratch

	// What the broker says of itself, before the first user.
	protocol int32

	challenged atomic.Bool   // a challenge is being answered
	done       chan struct{} // closed when the connection has ended

	mu       sync.Mutex // guards the fields below
	err      error      // why it has ended
	answers  map[uint64]func(*pulsarpb.BaseCommand)
	sessions map[uint64]*session
	idle     int // keep-alive intervals without a user
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

// end ends the connection: its sockets, requests and sessions.
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

// bare returns the socket under TLS: closing that says farewell, and waits for a peer that hangs.
func bare(socket net.Conn) net.Conn {
	if secured, ok := socket.(*tls.Conn); ok {
		return secured.NetConn()
	}
	return socket
}

// cause returns why a connection has ended, nil if it has not.
func (k *conn) cause() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// send adds the bytes of a command to what is written. A connection that has ended ignores it.
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

// request sends a command with request id and waits for its answer, for the OperationTimeout at most.
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

// expect has take called with the answer to a request, on the goroutine that reads: it must not wait.
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

// answered passes an answer on. One to a request that nobody waits for any more changes nothing.
func (k *conn) answered(id uint64, c *pulsarpb.BaseCommand) {
	k.mu.Lock()
	take := k.answers[id]
	delete(k.answers, id)
	k.mu.Unlock()
	if take != nil {
		take(c)
	}
}

// attach registers the session that a subscription of this connection gets its entries by.
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

// unused counts an interval without a user, and reports whether there were too many.
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

// used notes that somebody is about to use the connection.
func (k *conn) used() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.idle = 0
}

// keepAlive sends pings, and ends the connection when the broker neither sends nor takes a byte for two intervals, or
// nobody uses it.
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
	times int // that it was the same
}

// still notes the count at the end of an interval, and reports whether it has not grown for two intervals in which it should have.
func (w *watched) still(count uint64, should bool) bool {
	if count != w.last || !should {
		w.last, w.times = count, 0
		return false
	}
	w.times++
	return w.times >= 2
}
