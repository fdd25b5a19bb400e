package entries

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// protocolVersion is the newest version of Pulsar's protocol that this package supports. The features in use depend on the broker's
// version.
const protocolVersion = 21

// receiptsSince is the first version in which brokers confirm acks with a request id.
const receiptsSince = 17

// challengesMax bounds the commands of a broker before it accepts a connection.
const challengesMax = 10

// dial opens a connection, with TLS and authentication, within the ConnectTimeout. It has no goroutine yet.
func (c *Client) dial(ctx context.Context, to address) (*conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.ConnectTimeout, errNoAnswer)
	defer cancel()
	socket, err := c.access.Dial(ctx, to.dialed)
	if err != nil {
		return nil, fmt.Errorf("entries: connect to %v: %w", to, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = socket.Close() }) // ends reads and writes
	k, err := c.greet(ctx, socket, to)
	if !stop() && err == nil {
		err = fmt.Errorf("entries: connect to %v: %w", to, context.Cause(ctx))
	}
	if err != nil {
		_ = socket.Close()
		if ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) { // the socket was closed: its error is not the cause
			err = fmt.Errorf("entries: connect to %v: %w", to, context.Cause(ctx))
		}
		return nil, err
	}
	return k, nil
}

func (c *Client) greet(ctx context.Context, socket net.Conn, to address) (*conn, error) {
	if to.tls {
		secured, err := c.secure(ctx, socket, to)
		if err != nil {
			return nil, fmt.Errorf("entries: no TLS with %v: %w", to, err)
		}
		socket = secured
	}
	k := &conn{
		client: c, to: to, socket: socket, in: newFrameReader(socket), out: newOutbox(), done: make(chan struct{}),
		answers: make(map[uint64]func(*pulsarpb.BaseCommand)), sessions: make(map[uint64]*session),
	}
	return k, k.introduce(ctx)
}

// secure makes the TLS handshake. The certificate of the authentication provider is used if the configuration has none.
func (c *Client) secure(ctx context.Context, socket net.Conn, to address) (net.Conn, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.access.TLS != nil {
		config = c.access.TLS().Clone()
	}
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(to.dialed)
		if err != nil {
			return nil, err
		}
		config.ServerName = host
	}
	if len(config.Certificates) == 0 && config.GetClientCertificate == nil {
		certificate, err := c.auth.certificate(ctx)
		if err != nil {
			return nil, &AuthError{Broker: to.String(), Cause: err}
		}
		if certificate != nil {
			config.Certificates = []tls.Certificate{*certificate}
		}
	}
	secured := tls.Client(socket, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return secured, nil
}

// introduce sends Connect, and reads until the broker accepts the connection.
func (k *conn) introduce(ctx context.Context) error {
	data, err := k.client.auth.data(ctx)
	if err != nil {
		return &AuthError{Broker: k.to.String(), Cause: err}
	}
	connect := &pulsarpb.CommandConnect{
		ClientVersion:   new(ClientVersion),
		ProtocolVersion: proto.Int32(protocolVersion),
		FeatureFlags:    &pulsarpb.FeatureFlags{SupportsAuthRefresh: new(true), SupportsBrokerEntryMetadata: new(true)},
	}
	if method := k.client.auth.method(); method != "" {
		connect.AuthMethodName, connect.AuthData = &method, data
	}
	if k.to.proxied() {
		connect.ProxyToBrokerUrl = &k.to.broker
	}
	err = k.writeNow(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_CONNECT.Enum(), Connect: connect})
	for range challengesMax {
		if err != nil {
			return err
		}
		var c *pulsarpb.BaseCommand
		if c, err = k.readNow(); err != nil {
			return err
		}
		switch c.GetType() {
		case pulsarpb.BaseCommand_CONNECTED:
			return k.accepted(c.GetConnected())
		case pulsarpb.BaseCommand_ERROR:
			return k.refused(c.GetError())
		case pulsarpb.BaseCommand_AUTH_CHALLENGE:
			var response *pulsarpb.BaseCommand
			if response, err = k.authResponse(ctx); err == nil {
				err = k.writeNow(response)
			}
		case pulsarpb.BaseCommand_PING:
			err = k.writeNow(&pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_PONG.Enum(), Pong: &pulsarpb.CommandPong{}})
		default:
			return fmt.Errorf("entries: %v answers a greeting with %v", k.to, c.GetType())
		}
	}
	return fmt.Errorf("entries: %v sends too many authentication challenges", k.to)
}

// writeNow and readNow are for the handshake, when the connection has no goroutines yet.
func (k *conn) writeNow(c *pulsarpb.BaseCommand) error {
	frame, err := wire.AppendCommand(nil, c)
	if err == nil {
		_, err = k.socket.Write(frame)
	}
	if err != nil {
		return fmt.Errorf("entries: greet %v: %w", k.to, err)
	}
	return nil
}

func (k *conn) readNow() (*pulsarpb.BaseCommand, error) {
	frame, err := k.in.next()
	if err != nil {
		return nil, fmt.Errorf("entries: greet %v: %w", k.to, err)
	}
	f, err := wire.ParseFrame(frame)
	if err == nil && f.Command == nil {
		err = errors.New("entry before the connection is accepted")
	}
	if err != nil {
		return nil, fmt.Errorf("entries: greet %v: %w", k.to, err)
	}
	return f.Command, nil
}

// accepted records the broker's protocol version and maximum message size.
func (k *conn) accepted(c *pulsarpb.CommandConnected) error {
	k.protocol = c.GetProtocolVersion()
	if size := int(c.GetMaxMessageSize()); size > k.client.cfg.MessageBytesMax {
		return fmt.Errorf("entries: %v announces messages of %d bytes, want at most %d", k.to, size, k.client.cfg.MessageBytesMax)
	} else if size > 0 {
		k.in.messageMax = size
	}
	return nil
}

// refused returns the error of a connection that the broker refuses.
func (k *conn) refused(e *pulsarpb.CommandError) error {
	switch e.GetError() {
	case pulsarpb.ServerError_AUTHENTICATION_ERROR, pulsarpb.ServerError_AUTHORIZATION_ERROR: // the latter is sent by proxies
		return &AuthError{Broker: k.to.String(), Text: words(e.GetMessage())}
	default:
		return &BrokerError{Request: "connect", Broker: k.to.String(), Code: e.GetError(), Text: words(e.GetMessage())}
	}
}

// challenge answers the broker's request for fresh credentials, which may take a while. Challenges that arrive meanwhile get the same
// answer.
func (k *conn) challenge() {
	if !k.challenged.CompareAndSwap(false, true) {
		return
	}
	k.client.work.Go(func() {
		defer k.challenged.Store(false)
		response, err := k.authResponse(k.client.ctx)
		if err == nil {
			err = k.post(response)
		}
		if err != nil {
			k.end(err)
		}
	})
}

func (k *conn) authResponse(ctx context.Context) (*pulsarpb.BaseCommand, error) {
	data, err := k.client.auth.data(ctx)
	if err != nil {
		return nil, &AuthError{Broker: k.to.String(), Cause: err}
	}
	if data == nil {
		data = []byte{} // brokers do not accept a response without data
	}
	return &pulsarpb.BaseCommand{Type: pulsarpb.BaseCommand_AUTH_RESPONSE.Enum(), AuthResponse: &pulsarpb.CommandAuthResponse{
		ClientVersion:   new(ClientVersion),
		ProtocolVersion: proto.Int32(protocolVersion),
		Response:        &pulsarpb.AuthData{AuthMethodName: new(k.client.auth.method()), AuthData: data},
	}}, nil
}
