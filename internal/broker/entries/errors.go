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
	// ErrClosed says that a client, consumer or queue is closed.
	ErrClosed = errors.New("entries: closed")
	// ErrLost says that a topic partition is no longer read, since trying again does not help. It is wrapped in a [LostError].
	ErrLost = errors.New("entries: a topic partition is no longer read")
)

// LostError is the end of a consumer that nobody has closed.
type LostError struct {
	Consumer *Consumer
	Topic    string
	Cause    error // with the broker's words
}

// Error implements error.
func (e *LostError) Error() string { return fmt.Sprintf("%v: %s: %v", ErrLost, e.Topic, e.Cause) }

// Unwrap returns ErrLost and the cause.
func (e *LostError) Unwrap() []error { return []error{ErrLost, e.Cause} }

// BrokerError is a broker's refusal of a request.
type BrokerError struct {
	Request string // what was asked for, as in "subscribe s on t"
	Broker  string
	Code    pulsarpb.ServerError
	Text    string // the broker's words, or a part of them
}

// Error implements error.
func (e *BrokerError) Error() string {
	return fmt.Sprintf("entries: %s at %s: %s: %s", e.Request, e.Broker, codeName(e.Code), e.Text)
}

// codeName returns a code as Pulsar writes it, which is what operators and their tools search for: TopicNotFound.
func codeName(code pulsarpb.ServerError) string {
	var name strings.Builder
	for word := range strings.SplitSeq(code.String(), "_") {
		name.WriteString(word[:min(1, len(word))] + strings.ToLower(word[min(1, len(word)):]))
	}
	return name.String()
}

// AuthError says that a broker does not accept the credentials, or that there are none to show.
type AuthError struct {
	Broker string
	Text   string // the broker's words
	Cause  error  // why there are no credentials; nil if the broker refused them
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

// words returns a text of a broker for errors and logs.
func words(text string) string { return untrusted.Short(text, wordsMax) }

// Errors of connections: each ends one, and the next attempt opens another.
var (
	errSilent   = errors.New("entries: not a byte from the broker for two keep-alive intervals")
	errStuck    = errors.New("entries: the broker takes no bytes")
	errIdle     = errors.New("entries: the connection was not used")
	errOverrun  = errors.New("entries: the broker sends entries beyond the permits")
	errNotReady = errors.New("entries: the broker is not ready, and there may be another one at this address")
)

// final reports whether a subscription that was there cannot come back, so that its topic partition counts as lost. All
// else passes: a broker that starts, an expired token that is about to be renewed, an own earlier connection that the broker still sees.
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

// permanent reports whether a first attempt is not worth another one: its end is final, credentials or certificates are
// wrong, or a consumer is in the way.
func permanent(err error) bool {
	var refused *BrokerError
	if errors.As(err, &refused) && refused.Code == pulsarpb.ServerError_CONSUMER_BUSY {
		return true
	}
	var auth *AuthError
	return final(err) || errors.As(err, &auth) && auth.Cause == nil || ofTLS(err) || errors.Is(err, ErrClosed)
}

// ofTLS reports whether an error is about certificates, on either side.
func ofTLS(err error) bool {
	var (
		record  tls.RecordHeaderError
		remote  *net.OpError // "remote error": the other side ends TLS, and says why
		verify  *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
	)
	return errors.As(err, &record) || errors.As(err, &remote) && remote.Op == "remote error" ||
		errors.As(err, &verify) || errors.As(err, &unknown) || errors.As(err, &host)
}
