// Package ring computes which member should own which partition of the key space.
//
// A [Ring] is a pure function of the sorted member names and the [Config]: every node
// that builds it from the same names gets the same table, in whatever order it learned
// them. It names the member that *should* own a partition. The control log decides which
// member *may act* for it; a Ring is only a proposal.
//
// It is pure: no goroutine, clock, lock or log line. A Ring is immutable and safe
// for concurrent use; looking a key up neither allocates nor locks.
//
// # Invariant
//
// Every partition has exactly one owner, and no member owns more than
// ⌈[Partitions] / members × [Config.Load]⌉ of them.
package ring

import (
	"errors"
	"fmt"
	"slices"

	"github.com/buraksezer/consistent"
	"github.com/cespare/xxhash/v2"

	"github.com/ringfence/router/internal/base/setting"
)

// Limits of a Ring's input. MembersMax keeps the records of a group readable for each member:
// everybody reads everybody's Beats (ADR 0036).
const (
	MembersMax      = 256
	MemberBytesMax  = 256 // bytes of one name
	VirtualNodesMax = 1000
	LoadMax         = 1024 // a Load of at least the number of members bounds nothing
)

// fullMembersMax is the number of members up to which each has [Config.VirtualNodes] points. A
// larger ring has as many points as this number of members together: the library sorts all
// points again for each member (ADR 0037).
const fullMembersMax = 25

// Member is the stable name of a router. It outlives restarts (an incarnation
// does not), so that a restarted member gets its partitions back.
type Member string

// String returns the name.
func (m Member) String() string { return string(m) }

// Config configures the placement of partitions. Members of one group may differ in it,
// since the control log carries the whole placement. They should still agree, otherwise
// every new proposer reshuffles the table.
type Config struct {
	// VirtualNodes is the number of points of each member on the hash circle. More of them
	// even out the shares and cost time to build. Members of a group of more than 25 have fewer:
	// together as many as 25 members would have.
	VirtualNodes int `min:"1" max:"1000" agree:"true"`

	// Load is the greatest share of one member, as a multiple of the average. A value nearer
	// to 1 is more even, but moves more partitions between the remaining members when another
	// member joins or leaves.
	Load float64 `above:"1" max:"1024" agree:"true"`
}

// DefaultConfig returns the router's default placement: even, since a group reaches its maximum
// throughput when its fullest member does, and with few additional moves (ADR 0023).
func DefaultConfig() Config { return Config{VirtualNodes: 100, Load: 1.05} }

// Validate reports every field that is out of the range of its tag.
func (c Config) Validate() error { return setting.Check(c) }

// Ring is an immutable table from partition to the member that should own it.
type Ring struct {
	members []Member           // sorted, unique
	table   [Partitions]uint16 // index in members
}

// New places all partitions on members, given in any order. It fails if cfg is invalid, if
// there is no member or more than [MembersMax], and if a name is empty, longer than
// [MemberBytesMax] or given twice.
func New(members []Member, cfg Config) (*Ring, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	sorted := slices.Sorted(slices.Values(members))
	if err := validateMembers(sorted); err != nil {
		return nil, err
	}
	r := &Ring{members: sorted}
	r.place(cfg)
	return r, nil
}

func validateMembers(sorted []Member) error {
	if len(sorted) < 1 || len(sorted) > MembersMax {
		return fmt.Errorf("ring: %d members, want 1 … %d", len(sorted), MembersMax)
	}
	var errs []error
	for i, m := range sorted {
		switch {
		case m == "":
			errs = append(errs, errors.New("ring: a member has no name"))
		case len(m) > MemberBytesMax:
			errs = append(errs, fmt.Errorf("ring: the name of member %.32q… has %d bytes, want at most %d", m, len(m), MemberBytesMax))
		case i > 0 && sorted[i-1] == m:
			errs = append(errs, fmt.Errorf("ring: member %q is given twice", m))
		}
	}
	return errors.Join(errs...)
}

// place fills the table. The library panics on input that it cannot place, so
// everything that reaches it has been validated; it sees the members sorted,
// because where two virtual nodes collide the later one wins.
func (r *Ring) place(cfg Config) {
	indexes := make(map[Member]uint16, len(r.members))
	candidates := make([]consistent.Member, len(r.members))
	for i, m := range r.members {
		indexes[m] = uint16(i)
		candidates[i] = m
	}
	circle := consistent.New(candidates, consistent.Config{
		Hasher:            hasher{},
		PartitionCount:    Partitions,
		ReplicationFactor: cfg.points(len(r.members)),
		Load:              cfg.Load,
	})
	for p := range r.table {
		r.table[p] = indexes[circle.GetPartitionOwner(p).(Member)]
	}
}

// points returns the number of points of each of n members.
func (c Config) points(n int) int {
	return max(1, min(c.VirtualNodes, c.VirtualNodes*fullMembersMax/n))
}

// hasher places virtual nodes and partitions on the circle.
type hasher struct{}

// Sum64 implements consistent.Hasher.
func (hasher) Sum64(b []byte) uint64 { return xxhash.Sum64(b) }

// Owner returns the member that should own p. It panics if p is not below [Partitions].
func (r *Ring) Owner(p Partition) Member { return r.members[r.table[p]] }

// Locate returns the partition of key and the member that should own it.
func (r *Ring) Locate(key string) (Partition, Member) {
	p := PartitionOf(key)
	return p, r.Owner(p)
}

// Members returns the names that the Ring was built from, sorted.
func (r *Ring) Members() []Member { return slices.Clone(r.members) }

// Table returns for each partition the index of its owner in [Ring.Members].
func (r *Ring) Table() []uint16 { return slices.Clone(r.table[:]) }

// Place builds the Ring of names and returns for each partition the index *in
// names* of the member that should own it, so names may come in any order. Proposers of
// epochs use this form. It fails as [New] does.
func (c Config) Place(names []string) ([]uint16, error) {
	members := make([]Member, len(names))
	for i, name := range names {
		members[i] = Member(name)
	}
	r, err := New(members, c)
	if err != nil {
		return nil, err
	}
	given := make([]uint16, len(names)) // index in r.members → index in names
	for i, m := range members {
		at, _ := slices.BinarySearch(r.members, m)
		given[at] = uint16(i)
	}
	table := r.Table()
	for p, at := range table {
		table[p] = given[at]
	}
	return table, nil
}
