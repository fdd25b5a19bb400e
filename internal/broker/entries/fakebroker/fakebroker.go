// Package fakebroker is a cluster of Pulsar brokers in memory, for tests of readers. It implements the part of the binary protocol that a
// reader needs: handshake, lookup, a subscription with permits and acks for each topic, redelivery.
//
// A test overrides the behavior of a broker with [Broker.Script]: refuse, redirect, stay silent, send invalid data.
//
// # Concurrency
//
// Everything is safe for concurrent use. Each link has a goroutine that reads and one that writes; [Cluster.Close] waits for them.
// Scripts run on the goroutine that reads.
package fakebroker

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"sync"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// Cluster is a set of brokers, and the topics that they serve.
type Cluster struct {
	work sync.WaitGroup

	mu      sync.Mutex // guards the fields below, and the fields of brokers, links and topics
	brokers map[string]*Broker
	topics  map[string]*topic
	ledger  int64 // of the next entry
	entries int64 // number of published entries of the ledger
	closed  bool
}

// New returns a cluster without brokers.
func New() *Cluster {
	return &Cluster{brokers: make(map[string]*Broker), topics: make(map[string]*topic), ledger: 1}
}

// Broker is one broker, or a proxy.
type Broker struct {
	cluster *Cluster
	host    string
	down    bool
	links   map[*Link]struct{}
	dials   int

	// Set before the first connection.

	// TLS makes it accept connections with TLS only.
	TLS *tls.Config
	// Version is its protocol version.
	Version int32
	// MessageSize is the announced maximum message size; 0: none.
	MessageSize int32
	// Script is called first with each command, and returns true if it has handled it. nil: no script.
	Script func(*Link, *pulsarpb.BaseCommand) bool
}

// Broker adds a broker at an address, host:port.
func (c *Cluster) Broker(address string) *Broker {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := &Broker{cluster: c, host: address, links: make(map[*Link]struct{}), Version: 21, MessageSize: wire.MessageSizeDefault}
	c.brokers[address] = b
	return b
}

var errRefused = errors.New("fakebroker: connection refused")

// Dial connects to a broker by its address.
func (c *Cluster) Dial(ctx context.Context, address string) (net.Conn, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.brokers[address]
	if b == nil || b.down || c.closed {
		return nil, errRefused
	}
	ours, theirs := net.Pipe()
	b.dials++
	b.serve(ours)
	return theirs, nil
}

// Accept serves a connection that the test has accepted for a broker.
func (b *Broker) Accept(socket net.Conn) {
	b.cluster.mu.Lock()
	defer b.cluster.mu.Unlock()
	b.dials++
	b.serve(socket)
}

// Dials returns the number of connections that were opened to a broker.
func (b *Broker) Dials() int {
	b.cluster.mu.Lock()
	defer b.cluster.mu.Unlock()
	return b.dials
}

// Links returns the number of open connections.
func (b *Broker) Links() int {
	b.cluster.mu.Lock()
	defer b.cluster.mu.Unlock()
	return len(b.links)
}

// Kill cuts all connections to a broker, and refuses new connections until Revive.
func (b *Broker) Kill() {
	b.cluster.mu.Lock()
	defer b.cluster.mu.Unlock()
	b.down = true
	b.cut()
}

// Cut cuts all connections to a broker.
func (b *Broker) Cut() {
	b.cluster.mu.Lock()
	defer b.cluster.mu.Unlock()
	b.cut()
}

func (b *Broker) cut() {
	for l := range b.links {
		l.cut()
	}
}

// Revive ends Kill.
func (b *Broker) Revive() {
	b.cluster.mu.Lock()
	defer b.cluster.mu.Unlock()
	b.down = false
}

// Close cuts all connections and waits for their goroutines.
func (c *Cluster) Close() {
	c.mu.Lock()
	c.closed = true
	for _, b := range c.brokers {
		b.cut()
	}
	c.mu.Unlock()
	c.work.Wait()
}

// Partition sets the number of partitions of a topic.
func (c *Cluster) Partition(name string, partitions int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.topic(name).partitions = uint32(partitions)
}

// Own sets the broker that serves a topic. Without it, every broker serves the topic.
func (c *Cluster) Own(name string, b *Broker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.topic(name).owner = b
}

// Move makes another broker serve a topic. It closes the consumers, and names the new broker to them if named is set.
func (c *Cluster) Move(name string, to *Broker, named bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.topic(name).owner = to
	c.close(name, to, named)
}

// Remake deletes all entries of a topic and closes its consumers, as if it was deleted and made again. The next entries, of all topics, are in the given ledger.
func (c *Cluster) Remake(name string, ledger int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.topic(name).entries = nil
	c.ledger, c.entries = ledger, 0
	c.close(name, nil, false)
}

// Trim deletes the oldest entries of a topic and closes its consumers.
func (c *Cluster) Trim(name string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.topic(name).entries = c.topic(name).entries[n:]
	c.close(name, nil, false)
}

// close closes the consumers of a topic, and names a new broker to them if named is set. The caller holds the lock.
func (c *Cluster) close(name string, to *Broker, named bool) {
	t := c.topic(name)
	for _, m := range slices.Clone(t.consumers) {
		id, zero := m.id, uint64(0)
		closed := &pulsarpb.CommandCloseConsumer{ConsumerId: &id, RequestId: &zero}
		if named {
			url := to.url(false)
			secure := to.url(true)
			closed.AssignedBrokerServiceUrl, closed.AssignedBrokerServiceUrlTls = &url, &secure
		}
		m.link.send(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_CLOSE_CONSUMER.Enum(), CloseConsumer: closed})
		t.remove(m)
	}
}

func (b *Broker) url(secure bool) string {
	if secure {
		return "pulsar+ssl://" + b.host
	}
	return "pulsar://" + b.host
}
