package entries

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// slot identifies a connection in the pool.
type slot struct {
	to     address
	number int // less than ConnectionsPerBrokerMax
}

// share selects the connection to a broker that the fewest topic partitions use, and counts one more. The count includes those that still
// connect, so that all topic partitions that subscribe at the same time, or again after a connection broke, are spread evenly.
func (c *Client) share(to address) slot {
	c.mu.Lock()
	defer c.mu.Unlock()
	least := slot{to: to}
	for number := range c.cfg.ConnectionsPerBrokerMax {
		if at := (slot{to, number}); c.shares[at] < c.shares[least] {
			least = at
		}
	}
	c.shares[least]++
	return least
}

// unshare ends the use of a connection by a topic partition.
func (c *Client) unshare(at slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shares[at]--; c.shares[at] == 0 {
		delete(c.shares, at)
	}
}

// dialing is a connection, or the attempt to open it. Any number of callers can wait for it.
type dialing struct {
	done chan struct{} // closed when the attempt has ended
	conn *conn         // conn and err are set before done is closed
	err  error
}

// connect returns the connection of a slot, and opens it if there is none. ctx ends the wait, but not the attempt.
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
		c.work.Go(func() { c.open(at, d) }) // other callers may wait for it when ctx has ended
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

// endAll ends all connections, after the client's context has ended.
func (c *Client) endAll() {
	c.mu.Lock()
	attempts := slices.Collect(maps.Values(c.conns))
	c.mu.Unlock()
	for _, d := range attempts {
		<-d.done
		if d.conn != nil { // nil if the attempt failed
			d.conn.end(ErrClosed)
		}
	}
}
