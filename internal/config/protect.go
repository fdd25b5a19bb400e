package config

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

	ConnectionsMax int `min:"1"` // connections at once; for one more the one is closed that has been slow for longest
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
