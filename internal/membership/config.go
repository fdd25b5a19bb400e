package membership

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/ringfence/router/internal/base/setting"
)

// GroupBytesMax is the greatest length of the name of a group.
const GroupBytesMax = memberlist.LabelMaxSize

// Config of a [Gossip].
type Config struct {
	Group string `from:"node.group"` // members of another group are never mixed in
	Name  string `from:"node.name"`  // stable across restarts, unique in the group

	Listen    string // ip:port for both UDP and TCP; port 0: any free one
	Advertise string // ip:port that other members dial; "": the address of gossip.listen. Needed if that is an unspecified address other than 0.0.0.0

	// Seeds are the addresses of members to contact first: host:port, or dns+host:port for a
	// name with the addresses of several members. All are resolved again at each attempt.
	Seeds []string

	// SecretKeys encrypt gossip: the first one encrypts, all of them decrypt. 16, 24 or 32
	// bytes each. None: no encryption.
	SecretKeys [][]byte `from:"gossip.encryption_keys"`

	// EncryptionKeysFile is a file with such keys in base64, one per line. It is read again
	// when it changes, so keys can be replaced while the group runs. Instead of
	// gossip.encryption_keys.
	EncryptionKeysFile string

	// With keys, VerifyIncoming drops unencrypted gossip, and VerifyOutgoing encrypts ours.
	// Turn them off only while a group changes over to encryption.
	VerifyIncoming, VerifyOutgoing bool

	ProbeInterval    time.Duration `min:"100ms" max:"1m"` // interval between two probes, each of one member
	ProbeTimeout     time.Duration `above:"0"`            // timeout of a direct probe; less than ProbeInterval
	SuspicionMult    int           `min:"1" max:"1000"`   // time for a suspect to refute the suspicion, in probe intervals (times the log of the group's size)
	SuspicionMaxMult int           `min:"1" max:"1000"`   // factor by which that time may grow while no other member confirms the suspicion
	GossipInterval   time.Duration `min:"10ms"`           // interval between two rounds of gossip
	GossipNodes      int           `min:"1" max:"1000"`   // members gossiped to in each interval
	AwarenessMax     int           `min:"1"`              // greatest factor by which a member that is itself in trouble slows its probes
	StreamTimeout    time.Duration `min:"100ms"`          // timeout of a TCP connection

	JoinBackoffMin time.Duration `min:"10ms"`         // first delay between attempts to reach a seed; it doubles up to JoinBackoffMax
	JoinBackoffMax time.Duration `above:"0"`          // longest delay between attempts to reach a seed
	RejoinInterval time.Duration `min:"100ms"`        // interval between attempts to reach known members that gossip lacks
	RejoinsMax     int           `min:"1"`            // addresses tried in one attempt to reach known members
	LeaveTimeout   time.Duration `above:"0" max:"5s"` // time for the announcement of a departure

	// StrangersMax is the greatest number of strangers in gossip: members that the control log
	// does not name. With ownership.mode gossip all other members are strangers.
	StrangersMax int `min:"1"`
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
		StrangersMax:     255, // 256 with this member
	}
}

// Validate reports every field that is out of the range of its tag.
func (c Config) Validate() error { return setting.Check(c) }

// memberlist returns the library's configuration.
func (c Config) memberlist() (*memberlist.Config, error) {
	ml := memberlist.DefaultLANConfig()
	ml.Label = c.Group
	// Each packet would be compressed for nothing: they are small, and hardly any becomes smaller. Members that compress are understood.
	ml.EnableCompression = false
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
