// Package config joins the settings of all packages into one Config, and reads it.
//
// # Where a value comes from
//
// Flags win over the environment, the environment over the file, the file over the
// defaults. One name serves all of them: the key DepthMax of the section Mailbox is
//
//	--mailbox.depth_max 500
//	RINGFENCE__MAILBOX__DEPTH_MAX=500
//	mailbox: {depth_max: 500}
//
// An unknown key is an error that tells the nearest name. Durations have units
// ("500ms"), sizes may have ("8MiB"), lists are YAML lists or have commas.
//
// A package's own Config is a section as it stands: a new field there is a new key
// here, without a line in this package. Types and tags of the fields say what a value may be (package setting), their comments
// are the documentation, and [Load], docs/settings.md and the JSON Schema are derived from them. What depends on more than one
// setting is in the table of rules.
package config

import (
	"fmt"
	"net"
	"os"
	"time"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/base/setting"
	"github.com/ringfence/router/internal/controllog"
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

// Config is every setting of a router.
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
	Ring       ring.Config
	Mailbox    mailbox.Config
	Retry      outcome.Config
	Drain      Drain
	Log        telemetry.LogConfig
}

// Node says who this router is.
type Node struct {
	Group string `needed:"true" agree:"true"` // routers of one group share the events of one subscription
	Name  string `needed:"true"`              // stable over restarts, unique in the group; the host's name by default

	// AdvertiseIP is the address under which the others reach this router; empty:
	// the first address of this machine that is not loopback.
	AdvertiseIP string
}

// Pulsar says which events come from where.
type Pulsar struct {
	URL   string // pulsar:// or pulsar+ssl://, several hosts with commas
	Token Secret // for token authentication; empty: none

	TokenFile string // file with the token, read again at each connection; instead of pulsar.token
	TLS       PulsarTLS
	Oauth2    PulsarOAuth2 // instead of a token

	// BatchIndexAcks says that the broker counts unacked events one by one
	// (acknowledgmentAtBatchIndexLevelEnabled), and not by the entry.
	BatchIndexAcks bool `agree:"true"`

	source.Config
}

// Key says which events belong together.
type Key struct {
	From    string `agree:"true"`                       // message_key, property:NAME or json:PATH
	Missing string `words:"reject,spread" agree:"true"` // what to do with an event without a key: reject or spread
}

// App is about the own application: the address that it dials, and its bounds.
type App struct {
	Listen         string      // host:port on loopback, or unix:PATH; with TLS any host:port
	listen.Socket              // of unix:PATH
	TLS            mtls.Config // mutual: Name is that of the application's certificate
	ConnectionsMax int         `min:"1"` // connections at once; more are closed at once

	// TokenFile has the token that workers show as Authorization: Bearer TOKEN; it is read again
	// when it changes. Empty: they need none.
	TokenFile string

	app.Config
}

// Handler is about the application's handlers.
type Handler struct {
	// Timeout is how long a handler may work on an event without an answer or
	// Progress; then the event is taken back and counts as failed. 0: as long as it likes.
	Timeout time.Duration `min:"0s" max:"24h"`
}

// Peer is about the streams between routers.
type Peer struct {
	Listen         string      // host:port
	TLS            mtls.Config // mutual: Name is in the certificate of every member
	Insecure       bool        // allows peer.listen beyond loopback without TLS: then only the network keeps strangers away
	ConnectionsMax int         `min:"1"` // connections at once, of all members together; more are closed at once
	forward.Config
}

// Gossip is about membership.
type Gossip struct {
	// EncryptionKeys are in base64, with commas, of 16, 24 or 32 bytes each: the first
	// one encrypts, any of them decrypts. Empty: gossip in the clear, unless there is a file.
	EncryptionKeys Secret

	Insecure bool // allows gossip.listen beyond loopback without keys: then only the network keeps strangers away

	ConnectionsMax int `min:"1"` // connections at once; more are closed

	membership.Config
}

// Format shows the section without the decoded keys, whatever the verb.
func (g Gossip) Format(w fmt.State, _ rune) {
	g.SecretKeys = nil
	type plain Gossip // without this method
	fmt.Fprintf(w, "%+v", plain(g))
}

// Debug is about the page with Go's profiles.
type Debug struct {
	Listen string // host:port on loopback, or off
}

// Off reports whether there is no debug page.
func (d Debug) Off() bool { return d.Listen == "" || d.Listen == "off" }

// Ownership says how it is decided who may act.
type Ownership struct {
	Mode    string `words:"strict,gossip" agree:"true"` // strict, or gossip: without a control log, and not exclusive
	Profile string `words:"default,fast,calm"`          // default, fast or calm: the times below, unless they are set one by one

	// Generation is the first part of fencing tokens, to be raised when the group moves to a control topic whose
	// ledger ids may be lower, as on another cluster. Raising it needs a stop of the whole group. 0: the group's own, at
	// first 0.
	Generation int `min:"0" max:"127"`

	ownership.Timing
}

// ControlLog is about the topic on which ownership is decided.
type ControlLog struct {
	Namespace string `agree:"control_log.topic"` // tenant/namespace of the topic __ring-<group>

	// Version is the highest version of its records that this router writes. A group moves to a higher one by
	// itself when all its routers read it, and back only by a stop of the whole group: 1 leaves the way back to releases
	// that read version 1 open.
	Version int `min:"1" max:"2"`

	controllog.Config
}

// Drain bounds the way down.
type Drain struct {
	Timeout time.Duration `above:"0"` // of a whole shutdown, more than ownership.drain_timeout
}

// The values of Ownership.Mode.
const (
	ModeStrict = "strict"
	ModeGossip = "gossip"
)

// Secret is a value that is never shown.
type Secret = setting.Secret

// Default returns the settings of a router about which nobody has said anything
// else. It is not valid: a group, topics and a subscription have no default.
func Default() Config {
	name, err := os.Hostname()
	if err != nil {
		name = "" // it has to be set then
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
		Ring:       ring.DefaultConfig(),
		Mailbox:    mailbox.DefaultConfig(),
		Retry:      outcome.DefaultConfig(),
		Drain:      Drain{Timeout: 45 * time.Second},
		Log:        telemetry.DefaultLogConfig(),
	}
}

// profiles are the times of ownership that Ownership.Profile names.
var profiles = map[string]func() ownership.Timing{
	"default": ownership.DefaultTiming,
	"fast":    ownership.FastTiming,
	"calm":    ownership.CalmTiming,
}

// derive fills in what follows from other settings.
func (c *Config) derive() {
	c.ControlLog.Group, c.Gossip.Group = c.Node.Group, c.Node.Group
	c.Gossip.Name = c.Node.Name
	c.App.HandlerTimeout = c.Handler.Timeout
	c.Pulsar.Counting = source.CountEntries
	if c.Pulsar.BatchIndexAcks {
		c.Pulsar.Counting = source.CountEvents
	}
	c.Pulsar.Properties = c.subscriptionProperties()
	if c.Pulsar.ConsumerName == "" {
		c.Pulsar.ConsumerName = c.Node.Name
	}
	if c.Gossip.Advertise == "" && c.Node.AdvertiseIP != "" {
		if _, port, err := net.SplitHostPort(c.Gossip.Listen); err == nil { // else a rule says so
			c.Gossip.Advertise = net.JoinHostPort(c.Node.AdvertiseIP, port)
		}
	}
	c.Gossip.SecretKeys, _ = membership.ParseKeys(string(c.Gossip.EncryptionKeys)) // a rule says what is wrong with them
}
