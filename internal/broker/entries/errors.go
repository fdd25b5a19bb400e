package entries

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/ringfence/router/internal/broker/entries/pulsarpb"
	"github.com/ringfence/router/internal/netx/untrusted"
)

var (
	// ErrClosed means that a client or consumer is closed.
	ErrClosed = errors.New("entries: closed")
	// ErrLost means that a topic partition is no longer read, because retries cannot succeed. It is wrapped in a [LostError].
	ErrLost = errors.New("entries: a topic partition is no longer read")
)

// errMoved refuses the ack of an entry that stays in a cluster which its topic has left, and ends a reader of that cluster.
var errMoved = errors.New("entries: the topic has moved to another cluster, where another entry may have this id")

// ErrReplaced means that a topic partition lacks an entry that a reader has received from it: it was deleted and made again, trimmed, truncated or restored.
var ErrReplaced = errors.New("entries: the topic partition lacks an entry that was received from it: it was deleted, trimmed, truncated or restored")

// LostError reports the end of a consumer that was not closed.
type LostError struct {
	Consumer *Consumer
	Topic    string
	Cause    error // includes the broker's text
}

// Error implements error.
func (e *LostError) Error() string { return fmt.Sprintf("%v: %s: %v", ErrLost, e.Topic, e.Cause) }

// Unwrap returns ErrLost and the cause.
func (e *LostError) Unwrap() []error { return []error{ErrLost, e.Cause} }

// BrokerError is a broker's refusal of a request.
type BrokerError struct {
	Request string // such as "subscribe s on t"
	Broker  string
	Code    pulsarpb.ServerError
	Text    string // the broker's text, possibly shortened
}

// Error implements error.
func (e *BrokerError) Error() string {
	return fmt.Sprintf("entries: %s at %s: %s: %s", e.Request, e.Broker, codeName(e.Code), e.Text)
}

// codeName returns a code in Pulsar's spelling, which operators and their tools search for: TopicNotFound.
func codeName(code pulsarpb.ServerError) string {
	var name strings.Builder
	for word := range strings.SplitSeq(code.String(), "_") {
		name.WriteString(word[:min(1, len(word))] + strings.ToLower(word[min(1, len(word)):]))
	}
	return name.String()
}

// AuthError means that a broker refuses the credentials, or that no credentials are available.
type AuthError struct {
	Broker string
	Text   string // the broker's text
	Cause  error  // the reason for missing credentials; nil if the broker refused them
}

// Error implements error.
func (e *AuthError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("entries: no credentials for %s: %v: %s", e.Broker, e.Cause, authAdvice)
	}
	return fmt.Sprintf("entries: the broker %s does not authenticate the router: %s: %s", e.Broker, e.Text, authAdvice)
}

const authAdvice = "look at pulsar.token, pulsar.oauth2 or pulsar.tls (docs/security.md)"

// Unwrap returns the cause.
func (e *AuthError) Unwrap() error { return e.Cause }

// wordsMax bounds the part of a broker's text that is kept.
const wordsMax = 500

// words shortens a broker's text for errors and logs.
func words(text string) string { return untrusted.Short(text, wordsMax) }

// Errors that end a connection. The next attempt opens a new connection.
var (
	errSilent   = errors.New("entries: no byte from the broker for two keep-alive intervals")
	errStuck    = errors.New("entries: the broker does not read")
	errIdle     = errors.New("entries: the connection was not used")
	errOverrun  = errors.New("entries: the broker sends entries beyond the permits")
	errNotReady = errors.New("entries: the broker is not ready, and another broker may be at this address")
)

// final reports whether an earlier subscription cannot be restored, so that its topic partition counts as lost. All other failures are
// temporary: a starting broker, an expired token, an earlier connection of ours that the broker still sees.
func final(err error) bool {
	var refused *BrokerError
	if !errors.As(err, &refused) {
		return false
	}
	switch refused.Code {
	case pulsarpb.ServerError_CONSUMER_BUSY: // mostly our own earlier consumer
		return strings.Contains(refused.Text, "different type")
	case pulsarpb.ServerError_TOPIC_NOT_FOUND, pulsarpb.ServerError_SUBSCRIPTION_NOT_FOUND, pulsarpb.ServerError_AUTHORIZATION_ERROR,
		pulsarpb.ServerError_TOPIC_TERMINATED_ERROR, pulsarpb.ServerError_INVALID_TOPIC_NAME, pulsarpb.ServerError_INCOMPATIBLE_SCHEMA,
		pulsarpb.ServerError_NOT_ALLOWED_ERROR, pulsarpb.ServerError_UNSUPPORTED_VERSION_ERROR:
		return true
	default:
		return false
	}
}

// Unavailable reports whether a broker refuses a topic itself until somebody acts on it: the topic is deleted, or the role may not consume it, for
// example. It is false for a subscription that is in use with another type.
func Unavailable(err error) bool {
	var refused *BrokerError
	return final(err) && errors.As(err, &refused) && refused.Code != pulsarpb.ServerError_CONSUMER_BUSY
}

// permanent reports whether a first attempt should not be repeated: its error is final, credentials or certificates are wrong, or another
// consumer blocks it.
func permanent(err error) bool {
	var refused *BrokerError
	if errors.As(err, &refused) && refused.Code == pulsarpb.ServerError_CONSUMER_BUSY {
		return true
	}
	var auth *AuthError
	return final(err) || errors.As(err, &auth) && auth.Cause == nil || ofTLS(err) || errors.Is(err, ErrClosed)
}

// ofTLS reports whether an error is about TLS or certificates, on either side.
func ofTLS(err error) bool {
	var (
		record  tls.RecordHeaderError
		remote  *net.OpError // "remote error": the peer ends TLS, with a reason
		verify  *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
	)
	return errors.As(err, &record) || errors.As(err, &remote) && remote.Op == "remote error" ||
		errors.As(err, &verify) || errors.As(err, &unknown) || errors.As(err, &host)
}
