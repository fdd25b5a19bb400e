package config

import (
	"reflect"
	"slices"
	"time"

	"github.com/ringfence/router/internal/membership"
)

// Prove configures whether this router takes part in proofs (router prove), and their bounds.
type Prove struct {
	// Enabled lets callers with the admin token, and members of the group, make this router start a second router and a
	// built-in handler as processes of its own, kill and pause them, and publish events to a topic of the proof.
	Enabled bool

	ForMax     time.Duration `min:"10s" max:"24h"`       // longest proof
	RateMax    int           `min:"1" max:"100000"`      // most events per second that this router publishes in a proof
	KeysMax    int           `min:"1" max:"1000000"`     // most keys of a proof
	RecordsMax int           `min:"1000" max:"10000000"` // most records, of about 100 bytes each, that wait for the command; at half of that this router stops publishing

	PeerPort   int `min:"0" max:"65535"` // port of the second router's peer.listen; 0: any free one
	GossipPort int `min:"0" max:"65535"` // port of the second router's gossip.listen; 0: any free one
}

// DefaultProve returns the settings for production.
func DefaultProve() Prove {
	return Prove{ForMax: time.Hour, RateMax: 1000, KeysMax: 10_000, RecordsMax: 200_000}
}

// ProofSuffixBytes is the length of the suffix that a proof adds to the name of its group.
const ProofSuffixBytes = len("-prove-000000")

func proveFitsGroup(c *reader) bool {
	return !c.Prove.Enabled || len(c.Node.Group)+ProofSuffixBytes <= membership.GroupBytesMax
}

// Environ returns the variables that give a router the settings of c. It has the secrets in the clear. Settings that follow from others must have the values that
// they had before.
func (c Config) Environ() (environ []string) {
	was := table(new(Default()))
	for i, f := range table(&c) {
		value := f.String()
		if secret, ok := reflect.TypeAssert[Secret](f.Value); ok {
			value = string(secret)
		}
		if value == "" && was[i].Empty() {
			continue
		}
		environ = append(environ, variableOf(f.Key)+"="+value)
	}
	slices.Sort(environ)
	return environ
}
