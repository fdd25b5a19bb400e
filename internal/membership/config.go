package membership

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/ringfence/router/internal/netx/untrusted"
)

// Config of a [Gossip].
type Config struct {
	Group string // members of another group are never mixed in
	Name  string // stable over restarts, unique in the group

	Listen    string // ip:port for both UDP and TCP; port 0: any free one
	Advertise string // ip:port that others dial; "": Listen's. Needed when Listen names no single address, except for 0.0.0.0

	// Seeds are addresses of members to begin with: host:port, or dns+host:port for
	// a name that stands for many members. All are looked up again at each attempt.
	Seeds []string

	// SecretKeys encrypt the gossip: the first one what is sent, any of them what is
	// received. 16, 24 or 32 bytes each. None: no encryption.
	SecretKeys [][]byte

	// EncryptionKeysFile holds such keys in base64, one in a line. It is read again when
	// it changes, so keys can be replaced while the group goes on. Instead of
	// gossip.encryption_keys.
	EncryptionKeysFile string

	// With keys: whether gossip in the clear is dropped, and whether ours is encrypted.
	// Both are on, but while a group that gossips in the clear changes over.
	VerifyIncoming, VerifyOutgoing bool

	ProbeInterval    time.Duration // between two probes, each of one member
	ProbeTimeout     time.Duration // of a direct probe; less than ProbeInterval
	SuspicionMult    int           // how long a suspect has to object, in probe intervals (times the log of the group's size)
	SuspicionMaxMult int           // and at most this many times that, while no other member suspects it
	GossipInterval   time.Duration // between two rounds of gossip
	GossipNodes      int           // members gossiped to in each interval
	AwarenessMax     int           // how many times slower a node that is itself in trouble judges others
	StreamTimeout    time.Duration // of a TCP connection

	JoinBackoffMin time.Duration // between attempts to reach a seed
	JoinBackoffMax time.Duration // to which that doubles
	RejoinInterval time.Duration // between attempts to reach known members that gossip misses
	RejoinsMax     int           // addresses tried in one such attempt
	LeaveTimeout   time.Duration // for the farewell to go out

	// StrangersMax is how many members that the control log does not name gossip may know at
	// once. Those that it names have a place always. With ownership.mode gossip all others are strangers.
	StrangersMax int
}

// DefaultConfig returns the timings of the protocol, without group, name and seeds.
func DefaultConfig() Config {
	return Config{
		Listen:           "0.0.0.0:16652",
		VerifyIncoming:   true,
		VerifyOutgoing:   true,
		ProbeInterval:    500 * time.Millisecond,
		ProbeTimeout:     200 * time.Millisecond,
		SuspicionMult:    4,
		SuspicionMaxMult: 2,
		GossipInterval:   100 * time.Millisecond,
		GossipNodes:      4,
		AwarenessMax:     4,
		StreamTimeout:    2 * time.Second,
		JoinBackoffMin:   200 * time.Millisecond,
		JoinBackoffMax:   5 * time.Second,
		RejoinInterval:   5 * time.Second,
		RejoinsMax:       16,
		LeaveTimeout:     time.Second,
		StrangersMax:     255, // with this one 256
	}
}

// Validate reports every bad field, not just the first.
func (c Config) Validate() error {
	v := validator{}
	v.need(c.Group != "" && len(c.Group) <= memberlist.LabelMaxSize, "Group = %q, want 1 … %d bytes", c.Group, memberlist.LabelMaxSize)
	if err := untrusted.Name(c.Name); err != nil {
		v.need(false, "Name = %q: %v", c.Name, err)
	}
	c.validateAddresses(&v)
	for i, key := range c.SecretKeys {
		v.need(memberlist.ValidateKey(key) == nil, "SecretKeys[%d] has %d bytes, want 16, 24 or 32", i, len(key))
	}
	v.need(len(c.SecretKeys) == 0 || c.EncryptionKeysFile == "", "SecretKeys and EncryptionKeysFile are both set, want one of them")
	v.need(c.VerifyOutgoing || !c.VerifyIncoming, "VerifyIncoming without VerifyOutgoing: the members would drop each other's gossip")
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"ProbeInterval", c.ProbeInterval},
		{"ProbeTimeout", c.ProbeTimeout},
		{"GossipInterval", c.GossipInterval},
		{"StreamTimeout", c.StreamTimeout},
		{"JoinBackoffMin", c.JoinBackoffMin},
		{"RejoinInterval", c.RejoinInterval},
		{"LeaveTimeout", c.LeaveTimeout},
	} {
		v.need(f.d > 0, "%s = %v, want > 0", f.name, f.d)
	}
	v.need(c.ProbeTimeout < c.ProbeInterval, "ProbeTimeout = %v, want < ProbeInterval (%v)", c.ProbeTimeout, c.ProbeInterval)
	v.need(c.JoinBackoffMax >= c.JoinBackoffMin, "JoinBackoffMax = %v, want >= JoinBackoffMin (%v)", c.JoinBackoffMax, c.JoinBackoffMin)
	for _, f := range []struct {
		name string
		n    int
	}{
		{"SuspicionMult", c.SuspicionMult},
		{"SuspicionMaxMult", c.SuspicionMaxMult},
		{"GossipNodes", c.GossipNodes},
		{"AwarenessMax", c.AwarenessMax},
		{"RejoinsMax", c.RejoinsMax},
		{"StrangersMax", c.StrangersMax},
	} {
		v.need(f.n >= 1, "%s = %d, want >= 1", f.name, f.n)
	}
	return errors.Join(v.errs...)
}

func (c Config) validateAddresses(v *validator) {
	listen, err := netip.ParseAddrPort(c.Listen)
	v.need(err == nil, "Listen = %q, want ip:port", c.Listen)
	if c.Advertise != "" {
		advertise, err := netip.ParseAddrPort(c.Advertise)
		v.need(err == nil && advertise.Port() != 0 && !advertise.Addr().IsUnspecified(),
			"Advertise = %q, want the ip:port that others dial", c.Advertise)
	} else {
		v.need(err != nil || listen.Addr() != netip.IPv6Unspecified(), "Advertise is empty, and Listen = %q names no address to dial", c.Listen)
	}
	for _, seed := range c.Seeds {
		host, port, err := net.SplitHostPort(strings.TrimPrefix(seed, "dns+"))
		v.need(err == nil && host != "" && port != "", "seed %q, want host:port or dns+host:port", seed)
	}
}

// validator collects what is wrong.
type validator struct{ errs []error }

func (v *validator) need(ok bool, format string, args ...any) {
	if !ok {
		v.errs = append(v.errs, fmt.Errorf("membership: "+format, args...))
	}
}

// memberlist returns the library's configuration.
func (c Config) memberlist() (*memberlist.Config, error) {
	ml := memberlist.DefaultLANConfig()
	ml.Label = c.Group
	listen, err := netip.ParseAddrPort(c.Listen)
	if err != nil {
		return nil, fmt.Errorf("membership: Listen: %w", err)
	}
	ml.BindAddr, ml.BindPort = listen.Addr().String(), int(listen.Port())
	ml.AdvertisePort = ml.BindPort
	if c.Advertise != "" {
		advertise, err := netip.ParseAddrPort(c.Advertise)
		if err != nil {
			return nil, fmt.Errorf("membership: Advertise: %w", err)
		}
		ml.AdvertiseAddr, ml.AdvertisePort = advertise.Addr().String(), int(advertise.Port())
	}
	if len(c.SecretKeys) > 0 {
		if ml.Keyring, err = memberlist.NewKeyring(c.SecretKeys, c.SecretKeys[0]); err != nil {
			return nil, fmt.Errorf("membership: SecretKeys: %w", err)
		}
	}
	ml.GossipVerifyIncoming, ml.GossipVerifyOutgoing = c.VerifyIncoming, c.VerifyOutgoing
	ml.ProbeInterval, ml.ProbeTimeout = c.ProbeInterval, c.ProbeTimeout
	ml.SuspicionMult, ml.SuspicionMaxTimeoutMult = c.SuspicionMult, c.SuspicionMaxMult
	ml.GossipInterval, ml.GossipNodes = c.GossipInterval, c.GossipNodes
	ml.AwarenessMaxMultiplier = c.AwarenessMax
	ml.TCPTimeout = c.StreamTimeout
	return ml, nil
}
