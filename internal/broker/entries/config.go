package entries

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/apache/pulsar-client-go/pulsar/auth"

	"github.com/ringfence/router/internal/base/setting"
)

// Config says how brokers are reached, and bounds what they may cost.
type Config struct {
	// URL names one or more brokers or proxies to ask first: pulsar://a:6650,b:6650, or pulsar+ssl:// with TLS.
	URL string `needed:"true"`
	// ClientVersion is what brokers show of this client.
	ClientVersion string `needed:"true"`
	// ConnectTimeout is how long it may take to open a connection, with TLS and authentication.
	ConnectTimeout time.Duration `above:"0"`
	// OperationTimeout is how long a broker may take to answer, and a first subscription in all.
	OperationTimeout time.Duration `above:"0"`
	// KeepAlive is the interval of pings. A connection without a byte for two intervals ends.
	KeepAlive time.Duration `above:"0"`
	// IdleMax is how many of these intervals a connection stays that nobody uses.
	IdleMax int `min:"1"`
	// BackoffMin and BackoffMax bound the delay before another attempt to reconnect; it doubles from one to the other.
	BackoffMin time.Duration `above:"0"`
	BackoffMax time.Duration `above:"0"`
	// CloseTimeout is how long brokers may take to confirm that consumers are closed.
	CloseTimeout time.Duration `above:"0"`
	// ConnectionsPerBrokerMax is how many connections the consumers of one broker share.
	ConnectionsPerBrokerMax int `min:"1"`

	// AckDelayMax is how long an ack may wait for others.
	AckDelayMax time.Duration `above:"0"`
	// AckGroupMax is how many entries are acked by one command.
	AckGroupMax int `min:"1"`

	// MessageBytesMax bounds the maximum message size that a broker may announce.
	MessageBytesMax int `unit:"bytes" min:"1024"`
	// PayloadBytesMax bounds an entry or a chunked message after decompression; a longer one is broken.
	PayloadBytesMax int `unit:"bytes" min:"1024"`
	// ChunkBytesMax bounds the chunks of one topic partition that wait for the others of their message.
	ChunkBytesMax int `unit:"bytes" min:"1024"`
	// ChunkTimeout is how long chunks wait; then they go back to the broker.
	ChunkTimeout time.Duration `above:"0"`
	// GivenUpDelay is when the broker is asked to deliver chunks again that were given up.
	GivenUpDelay time.Duration `above:"0"`
}

// DefaultConfig returns all but the URL and the credentials.
func DefaultConfig() Config {
	return Config{
		ClientVersion:           "Ringfence",
		ConnectTimeout:          10 * time.Second,
		OperationTimeout:        30 * time.Second,
		KeepAlive:               30 * time.Second,
		IdleMax:                 6,
		BackoffMin:              100 * time.Millisecond,
		BackoffMax:              10 * time.Second,
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

// Validate reports every field that is out of the range of its tag.
func (c Config) Validate() error { return setting.Check(c) }

// Access is what a client needs for its connections beside numbers.
type Access struct {
	// TLS returns the configuration of a new connection, where the URL asks for TLS; it is asked each time, so that renewed
	// CAs and certificates count. Without a ServerName the dialed host is verified. nil: the CAs of the system.
	TLS func() *tls.Config
	// Auth has the credentials; the client inits it before the first connection, and closes it. nil: none.
	Auth auth.Provider
	// Dial opens connections; nil: TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}
