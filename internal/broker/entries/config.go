package entries

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/apache/pulsar-client-go/pulsar/auth"

	"github.com/ringfence/router/internal/base/setting"
)

// ClientVersion is the client version that brokers display.
const ClientVersion = "Ringfence"

// Config holds the addresses, timeouts and limits of a client.
type Config struct {
	// URL names one or more brokers or proxies to ask first: pulsar://a:6650,b:6650, or pulsar+ssl:// with TLS.
	URL string `needed:"true"`
	// ConnectTimeout bounds opening a connection, including TLS and authentication.
	ConnectTimeout time.Duration `above:"0"`
	// OperationTimeout bounds each answer of a broker, and a first subscription including retries.
	OperationTimeout time.Duration `above:"0"`
	// KeepAlive is the interval of pings. A connection that receives no byte for two intervals ends.
	KeepAlive time.Duration `above:"0"`
	// IdleMax is the number of KeepAlive intervals after which an unused connection is closed.
	IdleMax int `min:"1"`
	// BackoffMin and BackoffMax bound the delay before a request that a broker has refused is repeated. The delay doubles from BackoffMin
	// to BackoffMax.
	BackoffMin time.Duration `above:"0"`
	BackoffMax time.Duration `above:"0"`
	// ReconnectMax bounds the delay while no broker answers. It is shorter than BackoffMax, since all consumers share an attempt to connect,
	// and their topic partitions wait for it.
	ReconnectMax time.Duration `above:"0"`
	// CloseTimeout bounds the wait for brokers to confirm that consumers are closed.
	CloseTimeout time.Duration `above:"0"`
	// ConnectionsPerBrokerMax is the number of connections over which the consumers of one broker are spread. Each connection has one goroutine
	// that reads and decompresses.
	ConnectionsPerBrokerMax int `min:"1" max:"64"`

	// AckDelayMax bounds the time that an ack waits to share a command.
	AckDelayMax time.Duration `above:"0"`
	// AckGroupMax bounds the entries that one command acks.
	AckGroupMax int `min:"1"`

	// MessageBytesMax bounds the maximum message size that a broker may announce.
	MessageBytesMax int `unit:"bytes" min:"1024"`
	// PayloadBytesMax bounds an entry or a chunked message after decompression. A longer payload is broken.
	PayloadBytesMax int `unit:"bytes" min:"1024"`
	// ChunkBytesMax bounds the held chunks of incomplete messages, for each topic partition.
	ChunkBytesMax int `unit:"bytes" min:"1024"`
	// ChunkTimeout bounds the time that chunks are held. Then they go back to the broker.
	ChunkTimeout time.Duration `above:"0"`
	// GivenUpDelay is the delay before the broker is asked to redeliver chunks that were given up.
	GivenUpDelay time.Duration `above:"0"`
}

// DefaultConfig returns the defaults of all fields except URL.
func DefaultConfig() Config {
	return Config{
		ConnectTimeout:          10 * time.Second,
		OperationTimeout:        30 * time.Second,
		KeepAlive:               30 * time.Second,
		IdleMax:                 6,
		BackoffMin:              100 * time.Millisecond,
		BackoffMax:              10 * time.Second,
		ReconnectMax:            time.Second,
		CloseTimeout:            2 * time.Second,
		ConnectionsPerBrokerMax: 1,
		AckDelayMax:             10 * time.Millisecond,
		AckGroupMax:             1000,
		MessageBytesMax:         128 << 20,
		PayloadBytesMax:         128 << 20,
		ChunkBytesMax:           64 << 20,
		ChunkTimeout:            time.Hour,
		GivenUpDelay:            10 * time.Second,
	}
}

// Validate reports every field outside the range of its tag.
func (c Config) Validate() error { return setting.Check(c) }

// Access holds the TLS configuration, credentials and dialer of a client.
type Access struct {
	// TLS returns the configuration of a new connection if the URL asks for TLS. It is called for each connection, so that renewed CAs and
	// certificates take effect. Without a ServerName the dialed host is verified. nil: the CAs of the system.
	TLS func() *tls.Config
	// Auth provides the credentials. The client initializes it before the first connection, and closes it. nil: none.
	Auth auth.Provider
	// Dial opens connections; nil: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}
