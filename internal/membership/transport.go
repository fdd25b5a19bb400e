package membership

import (
	"errors"
	"io"
	"log"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/ringfence/router/internal/telemetry/loglimit"
)

// Limiter bounds the connections that gossip accepts, and counts rejections.
type Limiter interface {
	// Admit returns the connection, which has a place until it is closed; or closes it and
	// returns false.
	Admit(conn net.Conn) (net.Conn, bool)
	// Refuse counts something that was rejected.
	Refuse(why string)
}

// noLimiter lets everybody in.
type noLimiter struct{}

// Admit implements Limiter.
func (noLimiter) Admit(conn net.Conn) (net.Conn, bool) { return conn, true }

// Refuse implements Limiter.
func (noLimiter) Refuse(string) {}

// transport is memberlist's own, behind a [Limiter] and a screen.
type transport struct {
	*memberlist.NetTransport

	screen  screen
	limiter Limiter
	lines   *loglimit.Limit
	packets chan *memberlist.Packet
	streams chan net.Conn
	pumps   sync.WaitGroup
	done    chan struct{} // closed when memberlist no longer reads
	stop    func() error
}

// bindTries is how often a free port is looked for: it has to be free for TCP and for UDP.
const bindTries = 10

// newTransport listens at ml's address, and sets its port if that is 0.
func newTransport(ml *memberlist.Config, limiter Limiter, lines *loglimit.Limit) (*transport, error) {
	encrypted := ml.Keyring != nil && ml.GossipVerifyIncoming
	t := &transport{
		screen: screen{label: ml.Label, encrypted: encrypted}, limiter: limiter, lines: lines,
		packets: make(chan *memberlist.Packet), streams: make(chan net.Conn), done: make(chan struct{}),
	}
	tries := 1
	if ml.BindPort == 0 {
		tries = bindTries
	}
	var err error
	for range tries {
		if t.NetTransport, err = listenOn(ml.BindAddr, ml.BindPort, ml.Logger); err == nil || !strings.Contains(err.Error(), "address already in use") {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	if ml.BindPort == 0 {
		ml.BindPort = t.GetAutoBindPort()
		ml.AdvertisePort = ml.BindPort
	}
	t.stop = sync.OnceValue(func() error {
		err := t.NetTransport.Shutdown() // while memberlist still accepts messages on their way
		close(t.done)
		t.pumps.Wait()
		return err
	})
	t.pumps.Go(t.pumpPackets)
	t.pumps.Go(t.pumpStreams)
	return t, nil
}

func listenOn(address string, port int, log *log.Logger) (*memberlist.NetTransport, error) {
	return memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{address}, BindPort: port, Logger: log})
}

// pumpPackets hands on the packets that pass the screen.
func (t *transport) pumpPackets() {
	for {
		select {
		case <-t.done:
			return
		case p := <-t.NetTransport.PacketCh():
			buf, err := t.screen.packet(p.Buf)
			if err != nil {
				t.refuse(err, p.From)
				continue
			}
			p.Buf = buf
			select {
			case t.packets <- p:
			case <-t.done:
				return
			}
		}
	}
}

// pumpStreams hands on the connections that get a place.
func (t *transport) pumpStreams() {
	for {
		select {
		case <-t.done:
			return
		case conn := <-t.NetTransport.StreamCh():
			placed, ok := t.limiter.Admit(conn)
			if !ok {
				continue
			}
			select {
			case t.streams <- &screened{Conn: placed, transport: t, labelled: true}:
			case <-t.done:
				_ = placed.Close()
				return
			}
		}
	}
}

// refuse counts refused traffic, and logs it at a limited rate; memberlist logs other errors.
func (t *transport) refuse(err error, from net.Addr) {
	why, ok := errors.AsType[refusal](err)
	if !ok {
		why = refusedMalformed
	}
	t.limiter.Refuse(string(why))
	if log, due := t.lines.Line(); due {
		log.Warn("gossip refused", "reason", string(why), "peer", from.String())
	}
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport: the answering side is no more
// trusted than a dialing one.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	conn, err := t.NetTransport.DialAddressTimeout(a, timeout)
	if err != nil {
		return nil, err
	}
	return &screened{Conn: conn, transport: t}, nil
}

// Shutdown implements memberlist.Transport. It may be called again.
func (t *transport) Shutdown() error { return t.stop() }

// screened is a connection whose first bytes are judged before memberlist reads them, on
// the goroutine that reads, and by its deadline.
type screened struct {
	net.Conn

	transport *transport
	labelled  bool
	from      io.Reader // nil before the first Read
}

// Read implements net.Conn. It has one caller at a time, as memberlist does it.
func (s *screened) Read(p []byte) (int, error) {
	if s.from == nil {
		from, err := s.transport.screen.stream(s.Conn, s.labelled)
		if err != nil {
			if _, ours := errors.AsType[refusal](err); ours {
				s.transport.refuse(err, s.RemoteAddr())
			}
			if s.labelled && errors.Is(err, io.EOF) {
				err = errNothing
			}
			from = failed{err}
		}
		s.from = from
	}
	return s.from.Read(p)
}

// errNothing is the error of a connection that ends before its first message, as after a ping that the member could not answer in time. memberlist takes
// an io.EOF there for a wrong label, as of another group.
var errNothing = errors.New("membership: the connection ended without a message")

// failed is a reader that has nothing.
type failed struct{ err error }

// Read implements io.Reader.
func (f failed) Read([]byte) (int, error) { return 0, f.err }
