package membership

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/memberlist"

	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/ownership"
)

// Member is one incarnation of a member, as gossip knows it.
type Member struct {
	Name       string
	Inc        ownership.Incarnation
	GRPCAddr   string // where its peers reach it
	GossipAddr string // ip:port
}

// Known is a member that the control log knows.
type Known struct {
	Inc        ownership.Incarnation
	GossipAddr string // host:port
}

// Named is an incarnation that the control log names.
type Named struct {
	Name       string
	GossipAddr string // ip:port; in another form it is not compared
}

// gossipName is the only name under which gossip may know the incarnation.
func (n Named) gossipName(inc ownership.Incarnation) string {
	return gossipName(Member{Name: n.Name, Inc: inc})
}

// Kind is gossip's view of a member.
//
//exhaustive:enforce
type Kind uint8

// The kinds of evidence.
const (
	Alive   Kind = iota // it answers, to this node or to one that reported it
	Suspect             // it did not answer our probe, direct or through others
	Dead                // it left, or was suspect for too long
)

// String returns the name of the kind, as metrics and logs have it.
func (k Kind) String() string {
	switch k {
	case Alive:
		return "alive"
	case Suspect:
		return "suspect"
	case Dead:
		return "dead"
	}
	return "unknown"
}

// Evidence is a change in gossip's view of another member.
type Evidence struct {
	Kind   Kind
	Member Member
}

// metaVersion is the first byte of a member's metadata in gossip.
const metaVersion = 1

// encodeMeta encodes our metadata: a version, the incarnation, the gRPC address.
func encodeMeta(self Member) ([]byte, error) {
	meta := append([]byte{metaVersion}, self.Inc[:]...)
	meta = append(meta, self.GRPCAddr...)
	if len(meta) > memberlist.MetaMaxSize {
		return nil, fmt.Errorf("membership: gRPC address of %d bytes leaves gossip no room (%d)", len(self.GRPCAddr), memberlist.MetaMaxSize)
	}
	return meta, nil
}

// decodeMember decodes a node's metadata.
func decodeMember(gossipName, gossipAddr, meta string) (Member, error) {
	m := Member{GossipAddr: gossipAddr}
	if len(meta) < 1+len(m.Inc) || meta[0] != metaVersion {
		return Member{}, errors.New("membership: meta of another version")
	}
	copy(m.Inc[:], meta[1:])
	m.GRPCAddr = meta[1+len(m.Inc):]
	name, ok := strings.CutSuffix(gossipName, "/"+shortInc(m.Inc))
	if !ok || m.Inc.IsZero() {
		return Member{}, errors.New("membership: name and incarnation do not match")
	}
	if err := untrusted.Name(name); err != nil {
		return Member{}, fmt.Errorf("membership: name: %w", err)
	}
	if err := untrusted.Address(m.GRPCAddr); err != nil {
		return Member{}, fmt.Errorf("membership: gRPC address: %w", err)
	}
	m.Name = name
	return m, nil
}

// incarnation reads the incarnation at the beginning of a node's metadata, even if the rest is
// unreadable.
func incarnation(meta string) (inc ownership.Incarnation) {
	if len(meta) >= 1+len(inc) && meta[0] == metaVersion {
		copy(inc[:], meta[1:])
	}
	return inc
}

// gossipName makes each incarnation a node of its own.
func gossipName(self Member) string { return self.Name + "/" + shortInc(self.Inc) }

// shortInc is the first eight bytes of an incarnation in hex.
func shortInc(inc ownership.Incarnation) string { return hex.EncodeToString(inc[:8]) }
