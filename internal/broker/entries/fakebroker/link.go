package fakebroker

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"

	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire/wiretest"
)

// Link is one connection to a broker.
type Link struct {
	broker  *Broker
	socket  net.Conn
	members map[uint64]*member
	out     [][]byte
	wake    chan struct{}
	done    chan struct{}
	ended   bool

	// Connect is the first command of the connection.
	Connect *pulsarpb.CommandConnect
}

// serve begins a connection. The caller holds the lock.
func (b *Broker) serve(socket net.Conn) {
	if b.TLS != nil {
		socket = tls.Server(socket, b.TLS)
	}
	l := &Link{broker: b, socket: socket, members: make(map[uint64]*member), wake: make(chan struct{}, 1), done: make(chan struct{})}
	b.links[l] = struct{}{}
	b.cluster.work.Go(l.read)
	b.cluster.work.Go(l.write)
}

// Broker returns the broker of the link.
func (l *Link) Broker() *Broker { return l.broker }

func (l *Link) read() {
	defer l.Cut()
	for {
		head := make([]byte, 4)
		if _, err := io.ReadFull(l.socket, head); err != nil {
			return
		}
		frame := make([]byte, binary.BigEndian.Uint32(head))
		if _, err := io.ReadFull(l.socket, frame); err != nil {
			return
		}
		c := new(pulsarpb.BaseCommand)
		if err := proto.Unmarshal(frame[4:], c); err != nil {
			return
		}
		if c.GetType() == pulsarpb.BaseCommand_CONNECT {
			l.Connect = c.GetConnect()
		}
		if script := l.broker.Script; script == nil || !script(l, c) {
			l.Handle(c)
		}
	}
}

func (l *Link) write() {
	for {
		select {
		case <-l.wake:
		case <-l.done:
			return
		}
		l.broker.cluster.mu.Lock()
		out := l.out
		l.out = nil
		l.broker.cluster.mu.Unlock()
		for _, frame := range out {
			if _, err := l.socket.Write(frame); err != nil {
				l.Cut()
				return
			}
		}
	}
}

// Cut ends the connection.
func (l *Link) Cut() {
	l.broker.cluster.mu.Lock()
	defer l.broker.cluster.mu.Unlock()
	l.cut()
}

func (l *Link) cut() {
	if l.ended {
		return
	}
	l.ended = true
	delete(l.broker.links, l)
	close(l.done)
	l.broker.cluster.work.Go(func() { _ = l.socket.Close() }) // Close of a TLS connection waits for the peer
	for _, m := range l.members {
		m.topic.remove(m)
	}
}

// Raw sends bytes as they are.
func (l *Link) Raw(bytes []byte) {
	l.broker.cluster.mu.Lock()
	defer l.broker.cluster.mu.Unlock()
	l.raw(bytes)
}

func (l *Link) raw(bytes []byte) {
	l.out = append(l.out, bytes)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Send sends a command.
func (l *Link) Send(c *pulsarpb.BaseCommand) {
	l.broker.cluster.mu.Lock()
	defer l.broker.cluster.mu.Unlock()
	l.send(c)
}

func (l *Link) send(c *pulsarpb.BaseCommand) {
	frame, err := wiretest.Frame(c, nil)
	if err != nil {
		frame = []byte("fakebroker: " + err.Error()) // ends the connection, and the test
	}
	l.raw(frame)
}

// Deliver sends an entry to a consumer, regardless of its permits.
func (l *Link) Deliver(m *pulsarpb.CommandMessage, entry []byte) {
	frame, err := wiretest.Frame(wiretest.Message(m), entry)
	if err != nil {
		frame = []byte("fakebroker: " + err.Error())
	}
	l.Raw(frame)
}

func (l *Link) deliver(consumer uint64, e *entry) {
	m := &pulsarpb.CommandMessage{
		ConsumerId:      &consumer,
		MessageId:       &pulsarpb.MessageIdData{LedgerId: new(uint64(e.id.Ledger)), EntryId: new(uint64(e.id.Entry))},
		RedeliveryCount: &e.deliveries,
	}
	for _, word := range e.left {
		m.AckSet = append(m.AckSet, int64(word))
	}
	if frame, err := wiretest.Frame(wiretest.Message(m), e.bytes); err == nil {
		l.raw(frame)
	}
}
