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
// here, without a line in this package.
package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/app"
	"github.com/ringfence/router/internal/controllog"
	"github.com/ringfence/router/internal/key"
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
	Group string // routers of one group share the events of one subscription
	Name  string // stable over restarts, unique in the group; the host's name by default

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
	BatchIndexAcks bool

	source.Config
}

// Key says which events belong together.
type Key struct {
	From    string // message_key, property:NAME or json:PATH
	Missing string // what to do with an event without a key: reject or spread
}

// App is about the own application: the address that it dials, and its bounds.
type App struct {
	Listen         string      // host:port on loopback, or unix:PATH; with TLS any host:port
	listen.Socket              // of unix:PATH
	TLS            mtls.Config // mutual: Name is that of the application's certificate
	ConnectionsMax int         // connections at once; more are closed at once

	// TokenFile has the token that workers show as Authorization: Bearer TOKEN; it is read again
	// when it changes. Empty: they need none.
	TokenFile string

	app.Config
}

// Handler is about the application's handlers.
type Handler struct {
	// Timeout is how long a handler may work on an event without an answer or
	// Progress; then the event is taken back and counts as failed. 0: as long as it likes.
	Timeout time.Duration
}

// Peer is about the streams between routers.
type Peer struct {
	Listen         string      // host:port
	TLS            mtls.Config // mutual: Name is in the certificate of every member
	Insecure       bool        // allows peer.listen beyond loopback without TLS: then only the network keeps strangers away
	ConnectionsMax int         // connections at once, of all members together; more are closed at once
	forward.Config
}

// Gossip is about membership.
type Gossip struct {
	// EncryptionKeys are in base64, with commas, of 16, 24 or 32 bytes each: the first
	// one encrypts, any of them decrypts. Empty: gossip in the clear, unless there is a file.
	EncryptionKeys Secret

	Insecure bool // allows gossip.listen beyond loopback without keys: then only the network keeps strangers away

	ConnectionsMax int // connections at once; more are closed

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
	Mode    string // strict, or gossip: without a control log, and not exclusive
	Profile string // default, fast or calm: the times below, unless they are set one by one

	// Generation is the first part of fencing tokens, to be raised when the group moves to a control topic whose
	// ledger ids may be lower, as on another cluster. Raising it needs a stop of the whole group. 0: the group's own, at
	// first 0.
	Generation int

	ownership.Timing
}

// ControlLog is about the topic on which ownership is decided.
type ControlLog struct {
	Namespace string // tenant/namespace of the topic __ring-<group>

	// Version is the highest version of its records that this router writes. A group moves to a higher one by
	// itself when all its routers read it, and back only by a stop of the whole group: 1 leaves the way back to releases
	// that read version 1 open.
	Version int

	controllog.Config
}

// Drain bounds the way down.
type Drain struct {
	Timeout time.Duration // of a whole shutdown, more than ownership.drain_timeout
}

// The values of Ownership.Mode.
const (
	ModeStrict = "strict"
	ModeGossip = "gossip"
)

// Secret is a value that is never shown.
type Secret string

// String returns a word instead of the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(hidden)"
}

// GoString returns a word instead of the secret.
func (s Secret) GoString() string { return s.String() }

// Default returns the settings of a router about which nobody has said anything
// else. It is not valid: a group, topics and a subscription have no default.
func Default() Config {
	name, err := os.Hostname()
	if err != nil {
		name = "" // Validate asks for one
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

// derived are the settings of packages that follow from another one here.
var derived = map[string]string{ //nolint:gosec // names of settings, no secrets
	"app.handler_timeout": "handler.timeout",
	"control_log.group":   "node.group",
	"gossip.group":        "node.group",
	"gossip.name":         "node.name",
	"gossip.secret_keys":  "gossip.encryption_keys",
	"pulsar.counting":     "pulsar.batch_index_acks",
	"pulsar.properties":   "node.group",
}

// derive fills in what follows from other settings.
func (c *Config) derive() error {
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
		if _, port, err := net.SplitHostPort(c.Gossip.Listen); err == nil { // else Validate says so
			c.Gossip.Advertise = net.JoinHostPort(c.Node.AdvertiseIP, port)
		}
	}
	return c.deriveKeys()
}

// Validate reports every setting that is out of range, or at odds with another one.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("config: "+format, args...)) }
	required := func(key, value string) {
		if value == "" {
			bad("%s is not set", key)
		}
	}
	required("node.group", c.Node.Group)
	required("node.name", c.Node.Name)
	c.Gossip.Group, c.ControlLog.Group = cmp.Or(c.Gossip.Group, "said"), cmp.Or(c.ControlLog.Group, "said") // once is enough
	c.Gossip.Name = cmp.Or(c.Gossip.Name, "said")
	if c.Node.AdvertiseIP != "" && net.ParseIP(c.Node.AdvertiseIP) == nil {
		bad("node.advertise_ip = %q, want an IP address", c.Node.AdvertiseIP)
	}
	if !strings.HasPrefix(c.Pulsar.URL, "pulsar://") && !strings.HasPrefix(c.Pulsar.URL, "pulsar+ssl://") {
		bad("pulsar.url = %q, want pulsar://HOST:PORT or pulsar+ssl://HOST:PORT", withoutUser(c.Pulsar.URL))
	}
	if tenant, namespace, _ := strings.Cut(c.ControlLog.Namespace, "/"); tenant == "" || namespace == "" || strings.Contains(namespace, "/") {
		bad("control_log.namespace = %q, want TENANT/NAMESPACE", c.ControlLog.Namespace)
	}
	oneOf := func(key, value string, of ...string) {
		if !slices.Contains(of, value) {
			bad("%s = %q, want %s", key, value, strings.Join(of, " or "))
		}
	}
	if v := c.ControlLog.Version; v < ownership.LogVersionMin || v > ownership.LogVersionMax {
		bad("control_log.version = %d, want %d to %d", v, ownership.LogVersionMin, ownership.LogVersionMax)
	}
	if g := c.Ownership.Generation; g < 0 || g > ownership.GenMax {
		bad("ownership.generation = %d, want 0 to %d", g, ownership.GenMax)
	}
	oneOf("ownership.mode", c.Ownership.Mode, ModeStrict, ModeGossip)
	oneOf("ownership.profile", c.Ownership.Profile, "default", "fast", "calm")
	errs = append(errs, c.validateAddresses(), c.validateListeners(), c.validateTimes())
	_, missingErr := key.ParseMissing(c.Key.Missing)
	_, fromErr := key.Parse(c.Key.From, key.Reject)
	return errors.Join(append(errs,
		missingErr,
		fromErr,
		in("pulsar", c.Pulsar.Config.Validate()),
		in("app", c.App.Config.Validate()),
		in("peer", c.Peer.Config.Validate()),
		in("gossip", c.Gossip.Config.Validate()),
		in("ownership", c.Ownership.Timing.Validate()),
		in("control_log", c.ControlLog.Config.Validate()),
		in("ring", c.Ring.Validate()),
		in("mailbox", c.Mailbox.Validate()),
		in("retry", c.Retry.Validate()),
		in("log", c.Log.Validate()),
	)...)
}

// in names the section in which a package has found errors, in each of them: the
// packages do not know by which name they are a section here.
func in(section string, err error) error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return fmt.Errorf("config: section %s: %w", section, err)
	}
	var errs []error
	for _, one := range joined.Unwrap() {
		errs = append(errs, in(section, one))
	}
	return errors.Join(errs...)
}

func (c Config) validateAddresses() error {
	var errs []error
	for _, a := range []struct{ key, address, want string }{
		{"app.listen", c.App.Listen, "HOST:PORT or unix:PATH"},
		{"peer.listen", c.Peer.Listen, "HOST:PORT"},
		{"admin.listen", c.Admin.Listen, "HOST:PORT"},
		{"debug.listen", c.Debug.Listen, "HOST:PORT"},
	} {
		if path, ok := strings.CutPrefix(a.address, "unix:"); ok && a.key == "app.listen" && path != "" {
			continue
		}
		if a.key == "debug.listen" && c.Debug.Off() {
			continue
		}
		if _, err := net.ResolveTCPAddr("tcp", a.address); err != nil || !strings.Contains(a.address, ":") {
			errs = append(errs, fmt.Errorf("config: %s = %q, want %s", a.key, a.address, a.want))
		}
	}
	return errors.Join(append(errs, c.validatePorts())...)
}

// validatePorts finds listeners that would take a port from each other.
func (c Config) validatePorts() error {
	var errs []error
	type listener struct{ key, address string }
	all := []listener{
		{"app.listen", c.App.Listen},
		{"peer.listen", c.Peer.Listen},
		{"gossip.listen", c.Gossip.Listen},
		{"admin.listen", c.Admin.Listen},
		{"debug.listen", c.Debug.Listen},
	}
	for i, a := range all {
		for _, b := range all[:i] {
			if samePort(a.address, b.address) {
				errs = append(errs, fmt.Errorf("config: %s and %s are both at %s: give one of them another port", b.key, a.key, a.address))
			}
		}
	}
	return errors.Join(errs...)
}

// samePort reports whether two addresses cannot both be listened on.
func samePort(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" || strings.HasPrefix(a, "unix:") || strings.HasPrefix(b, "unix:") {
		return false
	}
	everywhere := func(host string) bool {
		ip := net.ParseIP(host)
		return host == "" || ip != nil && ip.IsUnspecified()
	}
	return hostA == hostB || everywhere(hostA) || everywhere(hostB)
}

// validateTimes compares the times of one package with those of another.
func (c Config) validateTimes() error {
	var errs []error
	below := func(key string, value time.Duration, than string, limit time.Duration) {
		if value >= limit {
			errs = append(errs, fmt.Errorf("config: %s = %v, want less than %s (%v)", key, value, than, limit))
		}
	}
	below("app.deadline_margin", c.App.DeadlineMargin, "half of ownership.lease", c.Ownership.Lease/2)
	below("app.ping_interval", c.App.PingInterval, "half of ownership.lease", c.Ownership.Lease/2)
	below("ownership.drain_timeout", c.Ownership.DrainTimeout, "drain.timeout", c.Drain.Timeout)
	if c.Drain.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("config: drain.timeout = %v, want more than ownership.drain_timeout", c.Drain.Timeout))
	}
	if c.Handler.Timeout < 0 {
		errs = append(errs, fmt.Errorf("config: handler.timeout = %v, want 0 or more", c.Handler.Timeout))
	}
	return errors.Join(errs...)
}
