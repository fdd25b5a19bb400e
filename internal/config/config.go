// Package config joins the settings of all packages into one Config, and reads it.
//
// # Sources of a value
//
// Flags win over the environment, the environment over the file, the file over the
// defaults. One name serves all of them: the key DepthMax of the section Mailbox is
//
//	--mailbox.depth_max 500
//	RINGFENCE__MAILBOX__DEPTH_MAX=500
//	mailbox: {depth_max: 500}
//
// An unknown key is an error that names the nearest key. Durations have units ("500ms"),
// sizes may have units ("8MiB"), and lists are YAML lists or comma-separated.
//
// The Config of a package is a section: a new field there is a new key here, without a line
// in this package. The types and tags of the fields define the valid values (package
// setting), and their comments are the documentation; [Load], docs/settings.md and the JSON
// Schema are derived from them. Constraints between settings are in the table of rules.
package config

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/app/lane"
	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/base/setting"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/history"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/membership"
	"github.com/ringfence/router/internal/netx/listen"
	"github.com/ringfence/router/internal/netx/mtls"
	"github.com/ringfence/router/internal/outcome"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/telemetry"
	"github.com/ringfence/router/ring"
)

// Config holds all settings of a router.
type Config struct {
	Node       Node
	Pulsar     Pulsar
	Key        Key
	App        App
	Handler    Handler
	Peer       Peer
	Gossip     Gossip
	Admin      Admin
	Debug      Debug
	Ownership  Ownership
	ControlLog ControlLog
	Acts       act.Config
	Ring       ring.Config
	Lane       Lane
	Mailbox    mailbox.Config
	Retry      outcome.Config
	History    history.Config
	Drain      Drain
	Audit      audit.Config
	Prove      Prove
	Log        telemetry.LogConfig
}

// Node identifies this router.
type Node struct {
	Group string `needed:"true" agree:"true"` // routers of one group share the events of one subscription
	Name  string `needed:"true"`              // stable across restarts, unique in the group; the host's name by default

	// AdvertiseIP is the address at which the other members reach this router; empty:
	// the first address of this machine that is not loopback.
	AdvertiseIP string
}

// Pulsar configures the broker, the subscription and its topics.
type Pulsar struct {
	URL   string // broker, as pulsar:// or pulsar+ssl://; several hosts are comma-separated
	Token Secret // token for authentication; empty: none

	TokenFile string // file with the token, read again at each connection; instead of pulsar.token
	TLS       PulsarTLS
	Oauth2    PulsarOAuth2 // instead of a token

	// BatchIndexAcks says that the broker counts unacked events singly
	// (acknowledgmentAtBatchIndexLevelEnabled, which is on by default since Pulsar 4.1), not by entry.
	BatchIndexAcks bool `agree:"true"`

	source.Config
}

// Key configures the key of each event.
type Key struct {
	From    string `agree:"true"`                       // place of the key: message_key, property:NAME or json:PATH
	Missing string `words:"reject,spread" agree:"true"` // treatment of events without a key: reject, or spread, which derives a key from the message id
}

// App configures the listener for the application, and its bounds.
type App struct {
	Listen         string      // host:port on loopback, or unix:PATH; with TLS any host:port
	listen.Socket              // of unix:PATH
	TLS            mtls.Config // mutual: Name is that of the application's certificate
	ConnectionsMax int         `min:"1"` // most open connections; further ones are closed at once

	// TokenFile is the file with the token that workers must send as Authorization: Bearer
	// TOKEN; it is read again when it changes. Empty: no token is required.
	TokenFile string

	app.Config
}

// Lane configures the calls of keys' handlers that are made at this router.
type Lane struct {
	Listen         string // host:port for calls by HTTP, or off; beyond loopback only with lane.token_file and lane.tls
	TLS            LaneTLS
	ConnectionsMax int `min:"1"` // most open connections, and so the most calls by HTTP at once; a further one replaces one that waits for no answer, or is closed

	// TokenFile is the file with the token that callers by HTTP must send as Authorization: Bearer TOKEN; it is read again when it
	// changes. Empty: no token is required. A caller can run every handler of every key.
	TokenFile string

	lane.Config
}

// LaneTLS names the files of the certificate of lane.listen. Callers need no certificate: they have the token.
type LaneTLS struct {
	CertFile string // certificate of lane.listen in PEM, read again when it changes; empty: no TLS
	KeyFile  string // private key of the certificate, in PEM
}

// Enabled reports whether the listener has TLS.
func (t LaneTLS) Enabled() bool { return t != LaneTLS{} }

// Off reports whether there are no calls by HTTP.
func (l Lane) Off() bool { return l.Listen == "" || l.Listen == "off" }

// Handler configures the application's handlers.
type Handler struct {
	// Timeout is how long a handler may work on an event without an answer or
	// Progress; then the event is taken back and counts as failed. 0: no limit.
	Timeout time.Duration `min:"0s" max:"24h"`
}

// Peer configures the streams between routers.
type Peer struct {
	Listen         string      // host:port
	TLS            mtls.Config // mutual: Name is in the certificate of every member
	Insecure       bool        // allows peer.listen beyond loopback without TLS: then only the network keeps strangers away
	ConnectionsMax int         `min:"1"` // most open connections of all members together; further ones are closed at once
	forward.Config
}

// Gossip configures membership.
type Gossip struct {
	// EncryptionKeys is a comma-separated list of keys in base64, of 16, 24 or 32 bytes each:
	// the first one encrypts, all of them decrypt. Empty: no encryption, unless there is a file.
	EncryptionKeys Secret

	Insecure bool // allows gossip.listen beyond loopback without keys: then only the network keeps strangers away

	ConnectionsMax int `min:"1"` // most open connections; further ones are closed

	membership.Config
}

// Format formats the section without the decoded keys, for every verb.
func (g Gossip) Format(w fmt.State, _ rune) {
	g.SecretKeys = nil
	type plain Gossip // without this method
	fmt.Fprintf(w, "%+v", plain(g))
}

// Debug configures the page with Go's profiles.
type Debug struct {
	Listen string // host:port on loopback, or off
}

// Off reports whether there is no debug page.
func (d Debug) Off() bool { return d.Listen == "" || d.Listen == "off" }

// Ownership configures how the members decide which of them owns a partition.
type Ownership struct {
	Mode    string `words:"strict,gossip" agree:"true"` // decision about owners: strict, or gossip, which needs no control log and is not exclusive
	Profile string `words:"default,fast,calm"`          // defaults of the times below: default, fast or calm

	// Generation is the first part of fencing tokens. Raise it when the group moves to a control topic whose
	// ledger ids may be lower, as on another cluster. Raising it needs a stop of the whole group. 0: the group's
	// current generation, initially 0.
	Generation int `min:"0" max:"127"`

	ownership.Timing
}

// ControlLog configures the topic on which ownership is decided.
type ControlLog struct {
	Namespace string `agree:"control_log.topic"` // namespace of the topic __ring-<group>, as TENANT/NAMESPACE

	// Version is the highest version of control log records that this router writes. A group moves to a higher version by
	// itself once all its routers can read it, but back only by a stop of the whole group. Set 1 to keep the way back to
	// releases that read only version 1.
	Version int `min:"1" max:"3"`

	controllog.Config
}

// Drain configures the shutdown.
type Drain struct {
	Timeout time.Duration `above:"0"` // longest duration of a whole shutdown; more than ownership.drain_timeout
}

// The values of Ownership.Mode.
const (
	ModeStrict = "strict"
	ModeGossip = "gossip"
)

// ProfileFast is the value of Ownership.Profile for development.
const ProfileFast = "fast"

// Secret is a value that is never shown.
type Secret = setting.Secret

// Default returns the defaults of all settings. They are not valid alone: a group, topics
// and a subscription have no default.
func Default() Config {
	name, err := os.Hostname()
	if err != nil {
		name = "" // then the name must be set
	}
	return Config{
		Node:       Node{Name: name},
		Pulsar:     Pulsar{URL: "pulsar://127.0.0.1:6650", Config: source.DefaultConfig()},
		Key:        Key{From: "message_key", Missing: "reject"},
		App:        App{Listen: "127.0.0.1:16650", Socket: listen.DefaultSocket(), ConnectionsMax: 64, Config: app.DefaultConfig()},
		Peer:       Peer{Listen: "0.0.0.0:16651", ConnectionsMax: 1024, Config: forward.DefaultConfig()},
		Gossip:     Gossip{ConnectionsMax: 64, Config: membership.DefaultConfig()},
		Admin:      DefaultAdmin(),
		Debug:      Debug{Listen: "off"},
		Ownership:  Ownership{Mode: ModeStrict, Profile: "default", Timing: ownership.DefaultTiming()},
		ControlLog: ControlLog{Namespace: "public/default", Version: ownership.LogVersionMax, Config: controllog.DefaultConfig()},
		Acts:       act.DefaultConfig(),
		Ring:       ring.DefaultConfig(),
		Lane:       Lane{Listen: "off", ConnectionsMax: 1024, Config: lane.DefaultConfig()},
		Mailbox:    mailbox.DefaultConfig(),
		Retry:      outcome.DefaultConfig(),
		History:    history.DefaultConfig(),
		Drain:      Drain{Timeout: 45 * time.Second},
		Audit:      audit.DefaultConfig(),
		Prove:      DefaultProve(),
		Log:        telemetry.DefaultLogConfig(),
	}
}

// profiles maps the values of Ownership.Profile to times.
var profiles = map[string]func() ownership.Timing{
	"default":   ownership.DefaultTiming,
	ProfileFast: ownership.FastTiming,
	"calm":      ownership.CalmTiming,
}

// derive fills in the fields that follow from other settings.
func (c *Config) derive() {
	c.ControlLog.Group, c.Gossip.Group = c.Node.Group, c.Node.Group
	c.Gossip.Name = c.Node.Name
	c.App.HandlerTimeout = c.Handler.Timeout
	c.Pulsar.Counting = source.CountEntries
	if c.Pulsar.BatchIndexAcks {
		c.Pulsar.Counting = source.CountEvents
	}
	c.Pulsar.Properties = c.subscriptionProperties()
	c.Pulsar.ConsumerName = cmp.Or(c.Pulsar.ConsumerName, c.Node.Name)
	if c.Gossip.Advertise == "" && c.Node.AdvertiseIP != "" {
		if _, port, err := net.SplitHostPort(c.Gossip.Listen); err == nil { // a rule reports an error
			c.Gossip.Advertise = net.JoinHostPort(c.Node.AdvertiseIP, port)
		}
	}
	c.Gossip.SecretKeys, _ = membership.ParseKeys(string(c.Gossip.EncryptionKeys)) // a rule reports bad keys
}
