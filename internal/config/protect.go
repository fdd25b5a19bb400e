package config

// Admin configures the admin page: health, metrics, and operators' requests.
type Admin struct {
	Listen string // host:port; beyond loopback without TLS the page serves only probes, /metrics, and /drain with admin.drain_token

	// Token is required, as Authorization: Bearer TOKEN, for requests that change something or
	// show keys. Without a token, only callers on loopback may make changes.
	Token     Secret
	TokenFile string // file with the token, read again when it changes; instead of admin.token

	// DrainToken is accepted for /drain only. It is meant for Kubernetes hooks, whose headers are
	// visible to all users who may read pods.
	DrainToken Secret
	DrainOpen  bool // /drain needs no token, from any address; instead of DrainToken

	TLS      AdminTLS
	Insecure bool // serves the whole page beyond loopback without TLS: tokens then cross the network in the clear

	// DeadLetters is the permission for callers that may act to read the group's dead letters, with the admin token also their
	// payloads, to send them again and to remove them, and to replay events of a key. The router answers with a process of its own, by its
	// role on the broker.
	DeadLetters bool

	ConnectionsMax int `min:"1"` // most open connections; a further one replaces the one that has been slow for longest
}

// DefaultAdmin returns the settings for production.
func DefaultAdmin() Admin {
	return Admin{Listen: "127.0.0.1:16653", ConnectionsMax: 64, DeadLetters: true}
}

// AdminTLS names the files of the admin page's certificate. Callers need no certificate: they have the token.
type AdminTLS struct {
	CertFile string // certificate of the admin page in PEM, read again when it changes; empty: no TLS
	KeyFile  string // private key of the certificate, in PEM
}

// Enabled reports whether the admin page has TLS.
func (t AdminTLS) Enabled() bool { return t != AdminTLS{} }

// PulsarTLS configures TLS to brokers, for pulsar+ssl:// and https://. Files are read again at
// each connection.
type PulsarTLS struct {
	CAFile   string // CAs that sign the certificates of brokers, in PEM; empty: those of the system
	CertFile string // own certificate, for brokers that require one; it identifies the router if there is no token
	KeyFile  string // private key of the certificate, in PEM
	Name     string // DNS name in the certificates of all brokers; empty: the host that is dialed
}

// PulsarOAuth2 configures tokens from an OAuth 2.0 server, by client credentials.
type PulsarOAuth2 struct {
	IssuerURL string // URL of the server, https://HOST
	Audience  string // audience of the tokens, as the brokers require it
	Scope     string // scopes of the tokens, separated by spaces
	KeyFile   string // JSON file with client_id and client_secret, in the format of Pulsar's clients
}

// enabled reports whether any field is set.
func (o PulsarOAuth2) enabled() bool { return o != PulsarOAuth2{} }
