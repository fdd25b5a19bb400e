package config

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/netx/listen"
)

// Admin is about the admin page: health, metrics, and the verbs of operators.
type Admin struct {
	Listen string // host:port; beyond loopback without TLS the page serves probes and /metrics only

	// Token is required by requests that change something or show keys, as Authorization:
	// Bearer TOKEN. Without a token, only callers on loopback may make changes.
	Token     Secret
	TokenFile string // file with the token, read again when it changes; instead of admin.token

	// DrainToken is accepted for /drain only: it is for Kubernetes hooks, whose headers are
	// visible to all users who may read pods.
	DrainToken Secret
	DrainOpen  bool // /drain needs no token, from any address; instead of DrainToken

	TLS      AdminTLS
	Insecure bool // the whole page is served beyond loopback without TLS: tokens then cross the network in the clear

	ConnectionsMax int // connections at once; for one more the one is closed that has been slow for longest
}

// DefaultAdmin returns the settings for production.
func DefaultAdmin() Admin { return Admin{Listen: "127.0.0.1:16653", ConnectionsMax: 64} }

// AdminTLS names the files of the admin page's certificate. Callers need none: they have the token.
type AdminTLS struct {
	CertFile string // certificate of the admin page in PEM, read again when it changes; empty: the page is in the clear
	KeyFile  string // its key
}

// Enabled reports whether the admin page has TLS.
func (t AdminTLS) Enabled() bool { return t != AdminTLS{} }

// PulsarTLS is about the TLS of brokers, with pulsar+ssl:// and https://. Files are read
// again at each connection.
type PulsarTLS struct {
	CAFile   string // CAs that sign the certificates of brokers, in PEM; empty: those of the system
	CertFile string // own certificate, for brokers that require one; it identifies the router when there is no token
	KeyFile  string // its key
	Name     string // DNS name in the certificates of all brokers; empty: the host that is dialed
}

// PulsarOAuth2 is about tokens from an OAuth 2.0 server, by client credentials.
type PulsarOAuth2 struct {
	IssuerURL string // URL of the server, https://HOST
	Audience  string // for whom the tokens are, as the brokers want it
	Scope     string // with spaces between several
	KeyFile   string // JSON file with client_id and client_secret, as Pulsar's clients have it
}

// enabled reports whether anything is set.
func (o PulsarOAuth2) enabled() bool { return o != PulsarOAuth2{} }

// deriveKeys decodes the keys of the gossip.
func (c *Config) deriveKeys() error {
	c.Gossip.SecretKeys = nil
	if c.Gossip.EncryptionKeys == "" {
		return nil
	}
	keys, err := membership.ParseKeys(string(c.Gossip.EncryptionKeys))
	if err != nil {
		return fmt.Errorf("config: gossip.encryption_keys: %w", err)
	}
	c.Gossip.SecretKeys = keys
	return nil
}

// validateListeners compares who may come in with where they may come from.
func (c Config) validateListeners() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("config: "+format, args...)) }
	oneOf := func(a string, setA bool, b string, setB bool) {
		if setA && setB {
			bad("%s and %s are both set, want one of them", a, b)
		}
	}
	for _, l := range c.Listeners() {
		if l.refused != "" {
			bad("%s.listen = %q%s", l.Name, l.Address, l.refused)
		}
	}
	if (c.Admin.TLS.CertFile == "") != (c.Admin.TLS.KeyFile == "") {
		bad("admin.tls.cert_file and admin.tls.key_file go together: only one of them is set")
	}
	oneOf("admin.token", c.Admin.Token != "", "admin.token_file", c.Admin.TokenFile != "")
	oneOf("admin.drain_token", c.Admin.DrainToken != "", "admin.drain_open", c.Admin.DrainOpen)
	oneOf("pulsar.token", c.Pulsar.Token != "", "pulsar.token_file", c.Pulsar.TokenFile != "")
	oneOf("pulsar.oauth2", c.Pulsar.Oauth2.enabled(), "pulsar.token", c.Pulsar.Token != "" || c.Pulsar.TokenFile != "")
	oneOf("gossip.encryption_keys", c.Gossip.EncryptionKeys != "", "gossip.encryption_keys_file", c.Gossip.EncryptionKeysFile != "")
	for _, t := range []struct {
		key   string
		token Secret
	}{{"admin.token", c.Admin.Token}, {"admin.drain_token", c.Admin.DrainToken}} {
		if t.token == "" {
			continue
		}
		if err := listen.CheckToken(string(t.token)); err != nil {
			bad("%s: %w", t.key, err)
		}
	}
	for _, m := range []struct {
		key string
		max int
	}{{"app.connections_max", c.App.ConnectionsMax}, {"peer.connections_max", c.Peer.ConnectionsMax}, {"gossip.connections_max", c.Gossip.ConnectionsMax}, {"admin.connections_max", c.Admin.ConnectionsMax}} {
		if m.max < 1 {
			bad("%s = %d, want 1 or more", m.key, m.max)
		}
	}
	return errors.Join(append(errs, c.validatePulsarAuth(),
		in("app.tls", c.App.TLS.Validate()), in("peer.tls", c.Peer.TLS.Validate()), in("app", c.App.Socket.Validate()))...)
}

func (c Config) validatePulsarAuth() error {
	errs := c.validateUsers()
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("config: "+format, args...)) }
	tls := c.Pulsar.TLS
	if (tls.CertFile == "") != (tls.KeyFile == "") {
		bad("pulsar.tls.cert_file and pulsar.tls.key_file go together: only one of them is set")
	}
	encrypted := strings.HasPrefix(c.Pulsar.URL, "pulsar+ssl://")
	if tls != (PulsarTLS{}) && !encrypted {
		bad("pulsar.tls is set, and pulsar.url = %q is in the clear: want pulsar+ssl://HOST:PORT", withoutUser(c.Pulsar.URL))
	}
	if o := c.Pulsar.Oauth2; o.enabled() {
		if issuer, err := url.Parse(o.IssuerURL); err != nil || issuer.Scheme != "https" || issuer.Host == "" {
			bad("pulsar.oauth2.issuer_url is not https://HOST: the router sends it the client's secret")
		}
		if o.KeyFile == "" {
			bad("pulsar.oauth2.key_file is not set")
		}
	}
	return errors.Join(errs...)
}
