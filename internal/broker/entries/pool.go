package entries

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// slot is the place of a connection in the pool.
type slot struct {
	to     address
	number int // less than ConnectionsPerBrokerMax
}

// dialing is a connection, or the attempt to open one, which any number of callers wait for.
type dialing struct {
	done chan struct{} // closed when the attempt has ended
	conn *conn         // these two are set before
	err  error
}

// connect returns the connection of a slot, which it opens if there is none. ctx ends the waiting and not the attempt.
func (c *Client) connect(ctx context.Context, at slot) (*conn, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, ErrClosed
	}
	d := c.conns[at]
	if d == nil {
		d = &dialing{done: make(chan struct{})}
		c.conns[at] = d
		c.work.Go(func() { c.open(at, d) }) // others may wait for it when ctx has ended
	}
	c.mu.Unlock()
	select {
	case <-d.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("entries: connect to %v: %w", at.to, context.Cause(ctx))
	}
	if d.err != nil {
		return nil, d.err
	}
	d.conn.used()
	return d.conn, nil
}

func (c *Client) open(at slot, d *dialing) {
	defer close(d.done)
	k, err := c.dial(c.ctx, at.to)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		d.err = err
		delete(c.conns, at)
		return
	}
	d.conn = k
	k.start()
}

// forget removes a connection that has ended from the pool.
func (c *Client) forget(k *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.conns, func(_ slot, d *dialing) bool { return d.conn == k })
}

// endAll ends all connections, after the context of the client.
func (c *Client) endAll() {
	c.mu.Lock()
	attempts := slices.Collect(maps.Values(c.conns))
	c.mu.Unlock()
	for _, d := range attempts {
		<-d.done
		if d.conn != nil { // else there is none
			d.conn.end(ErrClosed)
		}
	}
}
