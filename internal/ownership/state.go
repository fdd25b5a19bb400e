package ownership

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/ring"
)

// strangersMax bounds the remembered incarnations that are not members. It is a constant of the
// log version.
const strangersMax = 256

// State is the sum of the log's records: the same on every node at the same position (I9). Only
// the apply methods in this file and reserved.go change it.
type State struct {
	Gen      uint32
	HashID   string
	Genesis  Position // the newest one
	Cur      Position // the newest accepted Epoch or Genesis
	ViewHash uint64   // over all accepted epochs since the Genesis
	// PrefixHash covers all records since the Genesis; 0: not known.
	PrefixHash uint64
	Members    []Incarnation
	Table      []uint16 // partition → index in Members
	Nodes      []Node   // all members, and the last strangersMax others, in the order of their coming

	LogVersion uint32            // in which the group decides: that of the newest accepted Genesis or Epoch
	Identity   identity.Identity // on which the group agrees; nil: not known
	Start      []Position        // partition → where the tenure of its owner began
	Pending    [][]Tenure        // partition → tenures that are deposed and not proven dead (I5)

	Reserved []Reserved // keys that covered reservations hold, by partition and key; never changed in place
	LastTake Position   // a Genesis whose author had not read this is void: the newest take, or the Base of the newest Genesis with a list

	pending Set                  // partitions with a pending tenure: an index
	byInc   map[Incarnation]int  // Nodes by incarnation: an index
	members map[Incarnation]bool // Members: an index
	seats   []int                // Members in Nodes: an index
}

// Tenure is a deposed tenure that may still run.
type Tenure struct {
	Inc   Incarnation // zero: ANY, every tenure from before a Genesis
	Lease time.Duration
	Start Position // zero for ANY
	Dep   Position // the record that deposed it

	// deadline is when this tenure is over, by our clock, unless a Beat that we have not read extends it (rule 4). It
	// is not replicated.
	deadline clock.Instant

	// noted and busy are not replicated, either: if noted, the owner has listed in a Beat the only keys on which
	// deliveries of this tenure run.
	noted bool
	busy  []ring.KeyHash
}

// Owner returns the incarnation that owns p.
func (s *State) Owner(p ring.Partition) Incarnation { return s.Members[s.Table[p]] }

// IsMember reports whether inc is a member.
func (s *State) IsMember(inc Incarnation) bool { return s.members[inc] }

// Node returns the state's knowledge of inc.
func (s *State) Node(inc Incarnation) (Node, bool) {
	if n := s.node(inc); n != nil {
		return *n, true
	}
	return Node{}, false
}

// node returns the entry of inc, nil if there is none. It is valid until the next record, and
// read-only.
func (s *State) node(inc Incarnation) *Node {
	i, ok := s.byInc[inc]
	if !ok {
		return nil
	}
	return &s.Nodes[i]
}

// member is node for Members[i], without a look-up.
func (s *State) member(i int) *Node { return &s.Nodes[s.seats[i]] }

// Token returns the fencing token of the present tenure of p.
func (s *State) Token(p ring.Partition) Token {
	return TokenOf(s.Gen, s.Start[p])
}

// newGenesisState is the state that a Genesis at this position begins. Every partition waits
// for ANY: all tenures before it.
func newGenesisState(at Position, version uint32, g *Genesis) *State {
	s := &State{
		Gen: g.Gen, HashID: g.HashID, Genesis: at, Cur: at, ViewHash: hashGenesis(at, version, g),
		LogVersion: version, Identity: g.Identity,
		Table: g.Table, Nodes: slices.Clone(g.Members),
		Start:   make([]Position, len(g.Table)),
		Pending: make([][]Tenure, len(g.Table)),
	}
	for i := range s.Nodes {
		s.Nodes[i].Since = at
		s.Members = append(s.Members, s.Nodes[i].Inc)
	}
	tenures := make([]Tenure, len(g.Table))
	for p := range g.Table {
		s.Start[p] = at
		tenures[p] = Tenure{Lease: LeaseMax, Dep: at}
		s.Pending[p] = tenures[p : p+1 : p+1]
	}
	s.beginReserved(at, version, g)
	s.index()
	return s
}

// validGenesis is the structural validity of a Genesis.
func validGenesis(at Position, g *Genesis) error {
	switch {
	case g.Gen > GenMax:
		return fmt.Errorf("generation %d", g.Gen)
	case len(g.Table) == 0 || uint64(len(g.Table)) != uint64(g.Partitions):
		return fmt.Errorf("table of %d for %d partitions", len(g.Table), g.Partitions)
	case !tokenInRange(at):
		return fmt.Errorf("position %v does not fit a token", at)
	case !g.After.Before(at):
		return fmt.Errorf("its author's Hello is at %v, not before it: it was written for another log", g.After)
	case !g.Base.Before(at):
		return fmt.Errorf("its author has read up to %v, not before it: it was written for another log", g.Base)
	}
	if err := validList(g.Reserved, len(g.Table)); err != nil {
		return err
	}
	for i, n := range g.Members {
		if err := validNode(n); err != nil {
			return err
		}
		for _, o := range g.Members[:i] {
			if o.Name == n.Name || o.Inc == n.Inc {
				return fmt.Errorf("two members %q", n.Name)
			}
		}
	}
	return validTable(g.Table, len(g.Members))
}

// validNode is the structural validity of an incarnation's description of itself.
func validNode(n Node) error {
	if n.Inc.IsZero() || n.Name == "" || n.Lease <= 0 || n.Lease > LeaseMax || n.Lease%time.Millisecond != 0 {
		return fmt.Errorf("node %q/%v with a lease of %v", n.Name, n.Inc, n.Lease)
	}
	return nil
}

func validTable(table []uint16, members int) error {
	for p, i := range table {
		if int(i) >= members {
			return fmt.Errorf("partition %d belongs to member %d of %d", p, i, members)
		}
	}
	return nil
}

// Why an Epoch has no effect.
var (
	errSuperseded  = errors.New("superseded")
	errOlderFormat = errors.New("of an older log version than the group decides in")
)

// applyEpoch accepts or ignores an Epoch: it is the compare-and-set of the log.
func (s *State) applyEpoch(at Position, version uint32, e *Epoch) error {
	if e.Prev != s.Cur {
		return errSuperseded
	}
	if version < s.LogVersion {
		return errOlderFormat
	}
	if differ := s.Identity.Against(e.Identity); len(differ) > 0 {
		return fmt.Errorf("of another identity: %v", differ)
	}
	if err := s.validEpoch(at, e); err != nil {
		return err
	}
	before := *s
	s.upgrade(version, e)
	s.Members, s.Table = e.Members, e.Table
	s.indexMembers()
	for p := range ring.Partition(len(s.Table)) {
		if was := before.Owner(p); was != s.Owner(p) {
			s.depose(at, p, was)
		}
	}
	for _, inc := range before.Members {
		if i := s.byInc[inc]; !s.IsMember(inc) {
			s.Nodes[i].Since = at // it stays known, as the newest of the other nodes
		}
	}
	s.forget()
	s.ViewHash = hashEpoch(s.ViewHash, at, version, e)
	s.Cur = at
	return nil
}

// upgrade applies the additional fields of an Epoch of version 2. Only some members have the
// data about nodes from version 1: from this record on, the record and later Hellos define it.
func (s *State) upgrade(version uint32, e *Epoch) {
	if version < 2 {
		return
	}
	if s.LogVersion < 2 {
		for i := range s.Nodes {
			s.Nodes[i].setDetails(Node{})
		}
		for _, n := range e.Nodes {
			if i, ok := s.byInc[n.Inc]; ok {
				s.Nodes[i].setDetails(n)
			}
		}
	}
	s.LogVersion = version
	if e.Identity != nil {
		s.Identity = e.Identity
	}
}

// olderThan reports whether a Genesis was written before this state began, by a router of
// another identity: it came late, and the group that began meanwhile prevails.
func (s *State) olderThan(g *Genesis) bool {
	return !g.After.IsZero() && g.After.Before(s.Genesis) && len(s.Identity.Against(g.Identity)) > 0
}

// commonTopics returns the topics that all members but those of this name say they consume, ascending, and
// false if one of them does not say.
func (s *State) commonTopics(but string) (topics []string, known bool) {
	first := true
	for i := range s.Members {
		n := s.member(i)
		switch {
		case n.Name == but:
			continue
		case len(n.Topics) == 0:
			return nil, false
		case first:
			topics, first = n.Topics, false
		default:
			topics = slices.DeleteFunc(slices.Clone(topics), func(t string) bool { return !lists(n.Topics, t) })
		}
	}
	return topics, !first
}

// lists reports whether ascending topics have this one among them. There may be thousands, of hundreds of members, and
// each Hello is compared with all.
func lists(topics []string, topic string) bool {
	_, found := slices.BinarySearch(topics, topic)
	return found
}

// validEpoch is the structural validity of an Epoch.
func (s *State) validEpoch(at Position, e *Epoch) error {
	switch {
	case len(e.Table) != len(s.Table):
		return fmt.Errorf("table of %d for %d partitions", len(e.Table), len(s.Table))
	case !tokenInRange(at):
		return fmt.Errorf("position %v does not fit a token", at)
	}
	names := make(map[string]bool, len(e.Members))
	for _, inc := range e.Members {
		n, ok := s.Node(inc)
		if !ok {
			return fmt.Errorf("unknown member %v", inc)
		}
		if names[n.Name] {
			return fmt.Errorf("two members %q", n.Name)
		}
		names[n.Name] = true
	}
	return validTable(e.Table, len(e.Members))
}

// depose ends the tenure of was and begins the one of the new owner.
func (s *State) depose(at Position, p ring.Partition, was Incarnation) {
	n, _ := s.Node(was) // members are never forgotten
	s.Pending[p] = append(s.Pending[p], Tenure{Inc: was, Lease: n.Lease, Start: s.Start[p], Dep: at})
	s.pending.add(p)
	s.Start[p] = at
}

// applyBeat removes the tenures that a Beat proves dead, and reports whether there were any.
func (s *State) applyBeat(inc Incarnation, b *Beat) bool {
	changed := false
	for p := range s.pending.All() {
		acquired, ok := Position{}, false
		if b.Acquired.Has(p) {
			acquired, ok = s.acquiredTenure(p, inc, b)
		}
		before := len(s.Pending[p])
		s.Pending[p] = slices.DeleteFunc(s.Pending[p], func(t Tenure) bool {
			return released(t, p, inc, b) || ok && provenDead(t, acquired)
		})
		if len(s.Pending[p]) != before {
			changed = true
		}
		if len(s.Pending[p]) == 0 {
			s.pending.remove(p)
		}
	}
	return changed
}

// released is apply rule (i): the sender has read that the tenure is over, and
// none of its deliveries runs. A Beat of a sender that has not read it proves nothing.
func released(t Tenure, p ring.Partition, inc Incarnation, b *Beat) bool {
	return t.Inc == inc && !b.Applied.Before(t.Dep) && !b.Draining.Has(p)
}

// acquiredTenure finds, for apply rule (ii), which tenure the sender had acquired
// when it built the Beat: not the present one if it had not read of it.
func (s *State) acquiredTenure(p ring.Partition, inc Incarnation, b *Beat) (start Position, ok bool) {
	if s.Owner(p) == inc && !b.Applied.Before(s.Start[p]) {
		return s.Start[p], true
	}
	for _, t := range s.Pending[p] {
		if t.Inc == inc && !b.Applied.Before(t.Start) && b.Applied.Before(t.Dep) {
			return t.Start, true
		}
	}
	return Position{}, false
}

// provenDead is apply rule (ii): a tenure can be acquired only after every tenure deposed by
// then is dead for good. ANY is deposed by its Genesis.
func provenDead(t Tenure, acquired Position) bool { return !acquired.Before(t.Dep) }

// applyHello makes an incarnation known.
func (s *State) applyHello(at Position, h *Hello) error {
	if err := validNode(h.Node); err != nil {
		return err
	}
	if i, ok := s.byInc[h.Node.Inc]; ok {
		if s.Nodes[i].LogVersion == 0 { // its first one passed a router that knows no details
			s.Nodes[i].setDetails(h.Node)
		}
		return nil
	}
	n := h.Node
	n.Since = at
	s.Nodes = append(s.Nodes, n)
	s.byInc[n.Inc] = len(s.Nodes) - 1
	s.forget()
	return nil
}

// forget drops the oldest incarnations that are not members, beyond strangersMax.
func (s *State) forget() {
	if len(s.Nodes)-len(s.Members) <= strangersMax {
		return
	}
	var strangers []Node
	for _, n := range s.Nodes {
		if !s.IsMember(n.Inc) {
			strangers = append(strangers, n)
		}
	}
	slices.SortFunc(strangers, func(a, b Node) int {
		return cmp.Or(a.Since.Compare(b.Since), bytes.Compare(a.Inc[:], b.Inc[:]))
	})
	gone := strangers[:len(strangers)-strangersMax]
	s.Nodes = slices.DeleteFunc(slices.Clone(s.Nodes), func(n Node) bool {
		return slices.ContainsFunc(gone, func(g Node) bool { return g.Inc == n.Inc })
	})
	s.index()
}

// clone returns a copy that shares nothing that is ever written to. Deadlines and
// notes are left behind: they are ours.
func (s *State) clone() *State {
	c := *s
	c.Nodes = slices.Clone(s.Nodes)
	c.Start = slices.Clone(s.Start)
	c.Pending = make([][]Tenure, len(s.Pending))
	for p, tenures := range s.Pending {
		if len(tenures) == 0 {
			continue
		}
		c.Pending[p] = slices.Clone(tenures)
		for i := range c.Pending[p] {
			t := &c.Pending[p][i]
			t.deadline, t.noted, t.busy = 0, false, nil
		}
	}
	c.index()
	return &c
}

// index rebuilds the derived fields.
func (s *State) index() {
	s.byInc = make(map[Incarnation]int, len(s.Nodes))
	for i, n := range s.Nodes {
		s.byInc[n.Inc] = i
	}
	s.indexMembers()
	s.pending = newSet(len(s.Table))
	for p := range s.Pending {
		if len(s.Pending[p]) > 0 {
			s.pending.add(ring.Partition(p))
		}
	}
}

func (s *State) indexMembers() {
	s.members = make(map[Incarnation]bool, len(s.Members))
	s.seats = make([]int, len(s.Members))
	for i, inc := range s.Members {
		s.members[inc] = true
		s.seats[i] = s.byInc[inc]
	}
}

// valid checks a state that another member sent. It reads no index.
func (s *State) valid() error {
	if s.Gen > GenMax || s.LogVersion > LogVersionMax || len(s.Table) == 0 || len(s.Start) != len(s.Table) || len(s.Pending) != len(s.Table) {
		return errors.New("state of the wrong shape")
	}
	for _, inc := range s.Members {
		if !slices.ContainsFunc(s.Nodes, func(n Node) bool { return n.Inc == inc }) {
			return fmt.Errorf("unknown member %v", inc)
		}
	}
	for _, n := range s.Nodes {
		if err := validNode(n); err != nil {
			return err
		}
	}
	if err := validList(s.Reserved, len(s.Table)); err != nil {
		return err
	}
	for _, tenures := range s.Pending {
		for _, t := range tenures {
			if t.Lease <= 0 || t.Lease > LeaseMax || t.Inc.IsZero() && t.Lease != LeaseMax {
				return fmt.Errorf("pending lease of %v", t.Lease)
			}
		}
	}
	return validTable(s.Table, len(s.Members))
}

// table returns the immutable picture of the current epoch.
func (s *State) table() *Table {
	t := &Table{Cur: s.Cur, Gen: s.Gen, Version: max(s.LogVersion, LogVersionMin), Owners: s.Table, Tokens: make([]Token, len(s.Table))}
	for _, inc := range s.Members {
		n, _ := s.Node(inc)
		t.Members = append(t.Members, n)
	}
	for p := range t.Tokens {
		t.Tokens[p] = s.Token(ring.Partition(p))
	}
	t.Formers = s.formers()
	return t
}

// formers returns the earlier owners that pending tenures name, as far as they are known.
func (s *State) formers() (all []Former) {
	for p := range s.pending.All() {
		for _, tenure := range s.Pending[p] {
			n, ok := s.Node(tenure.Inc)
			if !ok { // ANY, or one that is forgotten
				continue
			}
			i := slices.IndexFunc(all, func(f Former) bool { return f.Inc == n.Inc })
			if i < 0 {
				i = len(all)
				all = append(all, Former{Node: n, Partitions: newSet(len(s.Table))})
			}
			all[i].Partitions.add(p)
		}
	}
	return all
}

// digest collects the input of a hash, each part with its length.
type digest struct{ buf []byte }

func (d *digest) num(v uint64) { d.buf = binary.LittleEndian.AppendUint64(d.buf, v) }

func (d *digest) str(s string) {
	d.num(uint64(len(s)))
	d.buf = append(d.buf, s...)
}

func (d *digest) position(p Position) {
	d.num(uint64(p.Ledger))
	d.num(uint64(p.Entry))
}

func (d *digest) table(t []uint16) {
	d.num(uint64(len(t)))
	for _, i := range t {
		d.buf = binary.LittleEndian.AppendUint16(d.buf, i)
	}
}

func (d *digest) identity(i identity.Identity) {
	d.num(uint64(len(i)))
	for _, s := range i {
		d.str(s.Name)
		d.str(s.Value)
	}
}

func (d *digest) details(n Node) {
	d.num(uint64(n.LogVersion))
	d.str(n.PublicKey)
	d.num(uint64(len(n.Topics)))
	for _, t := range n.Topics {
		d.str(t)
	}
}

// hashGenesis begins a chain of view hashes. The fields of version 2 count in version 2 alone:
// routers that read version 1 do not see them.
func hashGenesis(at Position, version uint32, g *Genesis) uint64 {
	var d digest
	d.position(at)
	d.num(uint64(g.Gen))
	d.str(g.HashID)
	d.num(uint64(len(g.Members)))
	for _, n := range g.Members {
		d.str(n.Name)
		d.buf = append(d.buf, n.Inc[:]...)
		d.num(uint64(n.Lease))
		d.str(n.GRPCAddr)
		d.str(n.GossipAddr)
	}
	d.table(g.Table)
	if version >= 2 {
		d.identity(g.Identity)
		d.position(g.After)
		for _, n := range g.Members {
			d.details(n)
		}
	}
	if version >= logVersionReserved {
		d.position(g.Base)
		d.num(uint64(len(g.Reserved)))
		for _, r := range g.Reserved {
			d.num(uint64(r.Partition))
			d.num(uint64(r.Key))
			d.num(uint64(r.TTL))
			d.num(uint64(len(r.IDs)))
			for _, id := range r.IDs {
				d.buf = append(d.buf, id[:]...)
			}
		}
	}
	return xxhash.Sum64(d.buf)
}

// hashEpoch extends a chain of view hashes.
func hashEpoch(before uint64, at Position, version uint32, e *Epoch) uint64 {
	var d digest
	d.num(before)
	d.position(at)
	d.position(e.Prev)
	d.num(uint64(len(e.Members)))
	for _, inc := range e.Members {
		d.buf = append(d.buf, inc[:]...)
	}
	d.table(e.Table)
	d.str(e.Reason)
	if version >= 2 {
		d.identity(e.Identity)
		for _, n := range e.Nodes {
			d.buf = append(d.buf, n.Inc[:]...)
			d.details(n)
		}
	}
	return xxhash.Sum64(d.buf)
}
