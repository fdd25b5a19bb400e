package controllog

import (
	"crypto/ed25519"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/ownership"
	controllogv1 "github.com/ringfence/router/proto/ringfence/controllog/v1"
	"github.com/ringfence/router/ring"
)

// decoder remembers the first thing that was wrong.
type decoder struct{ err error }

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

func (d *decoder) body(in *controllogv1.Record) ownership.Body {
	switch b := in.GetRecord().(type) {
	case *controllogv1.Record_Genesis:
		return d.genesis(b.Genesis)
	case *controllogv1.Record_Epoch:
		return d.epoch(b.Epoch)
	case *controllogv1.Record_Beat:
		return d.beat(b.Beat)
	case *controllogv1.Record_Hello:
		return d.hello(b.Hello)
	case *controllogv1.Record_Reservations:
		if in.GetLogVersion() < reservationsVersion {
			d.fail("reservations in log version %d", in.GetLogVersion()) // which others cannot read
		}
		return d.reservations(b.Reservations)
	case *controllogv1.Record_Snap:
		return &ownership.Snap{ForHello: d.position(b.Snap.GetForHello()), State: d.state(b.Snap.GetState())}
	}
	d.fail("no body")
	return nil
}

func (d *decoder) genesis(g *controllogv1.Genesis) *ownership.Genesis {
	return &ownership.Genesis{
		Gen: g.GetGen(), HashID: g.GetHashId(), Partitions: g.GetPartitions(),
		Members: d.nodes(g.GetMembers()), Table: d.table(g.GetTable()),
		Identity: d.identity(g.GetIdentity()), After: d.position(g.GetAfter()),
		Base: d.position(g.GetBase()), Reserved: d.reserved(g.GetReserved()),
	}
}

func (d *decoder) epoch(e *controllogv1.Epoch) *ownership.Epoch {
	return &ownership.Epoch{
		Prev: d.position(e.GetPrev()), Members: d.incs(e.GetMembers()), Table: d.table(e.GetTable()), Reason: e.GetReason(),
		Identity: d.identity(e.GetIdentity()), Nodes: d.nodes(e.GetNodes()),
	}
}

func (d *decoder) beat(b *controllogv1.Beat) *ownership.Beat {
	return &ownership.Beat{
		Seq: b.GetSeq(), Applied: d.position(b.GetApplied()), Cur: d.position(b.GetCur()),
		ViewHash: b.GetViewHash(), Ready: b.GetReady(),
		Draining: d.set(b.GetDraining()), Acquired: d.set(b.GetAcquired()),
		Unreachable: d.incs(b.GetUnreachable()),
		Busy:        d.busy(b.GetBusy()),
		PrefixHash:  b.GetPrefixHash(),
	}
}

func (d *decoder) busy(list []*controllogv1.BusyKeys) []ownership.Busy {
	var out []ownership.Busy
	last, room := -1, ownership.BusyKeysMax
	for _, b := range list {
		room -= len(b.GetKeys())
		if p := b.GetPartition(); p >= partitionsMax || int(p) <= last || room < 0 {
			d.fail("busy keys of partition %d out of order or range, or more than %d keys", p, ownership.BusyKeysMax)
			return nil
		}
		last = int(b.GetPartition())
		var keys []ring.KeyHash
		for i, k := range b.GetKeys() {
			if i > 0 && k <= b.GetKeys()[i-1] {
				d.fail("busy keys of partition %d out of order", last)
				return nil
			}
			keys = append(keys, ring.KeyHash(k))
		}
		out = append(out, ownership.Busy{Partition: ring.Partition(last), Keys: keys})
	}
	return out
}

func (d *decoder) hello(h *controllogv1.Hello) *ownership.Hello {
	if h.GetFloor() < 0 {
		d.fail("a floor of %d", h.GetFloor())
	}
	return &ownership.Hello{
		Node: d.node(h.GetNode()), HashID: h.GetHashId(), Partitions: h.GetPartitions(),
		Gen: h.GetGen(), NeedState: h.GetNeedState(), Version: h.GetVersion(),
		Identity: d.identity(h.GetIdentity()), Floor: ownership.Token(h.GetFloor()), TopicRefs: h.GetTopicRefs(),
	}
}

func (d *decoder) state(s *controllogv1.State) *ownership.State {
	if s == nil {
		d.fail("snap without a state")
		return nil
	}
	table := d.table(s.GetTable())
	return &ownership.State{
		Gen: s.GetGen(), HashID: s.GetHashId(), Genesis: d.position(s.GetGenesis()),
		Cur: d.position(s.GetCur()), ViewHash: s.GetViewHash(),
		Members: d.incs(s.GetMembers()), Table: table, Nodes: d.stateNodes(s),
		Start:      d.starts(s.GetStartPositions(), s.GetStarts(), len(table)),
		Pending:    d.pending(s.GetPending(), len(table)),
		LogVersion: s.GetLogVersion(), Identity: d.identity(s.GetIdentity()),
		PrefixHash: s.GetPrefixHash(),
		Reserved:   d.reserved(s.GetReserved()), LastTake: d.position(s.GetLastTake()),
	}
}

func (d *decoder) reservations(b *controllogv1.Reservations) *ownership.Reservations {
	out := &ownership.Reservations{Seq: b.GetSeq(), Applied: d.position(b.GetApplied())}
	if n := len(b.GetTake()) + len(b.GetDrop()); n > reservedMax {
		d.fail("%d takes and drops", n)
		return out
	}
	for _, t := range b.GetTake() {
		out.Take = append(out.Take, ownership.Take{
			KeyAt: d.keyAt(t.GetPartition(), t.GetKey()), ID: d.reservationID(t.GetId()), TTL: decodeMillis(t.GetTtlMs()),
		})
	}
	for _, k := range b.GetDrop() {
		out.Drop = append(out.Drop, d.keyAt(k.GetPartition(), k.GetKey()))
	}
	return out
}

func (d *decoder) reserved(list []*controllogv1.Reserved) []ownership.Reserved {
	if len(list) > reservedMax {
		d.fail("%d reservations", len(list))
		return nil
	}
	var out []ownership.Reserved
	for _, r := range list {
		one := ownership.Reserved{KeyAt: d.keyAt(r.GetPartition(), r.GetKey()), TTL: decodeMillis(r.GetTtlMs()), At: d.position(r.GetAt())}
		if len(r.GetIds()) > reservedIDsMax {
			d.fail("a key with %d reservations", len(r.GetIds()))
			return nil
		}
		for _, id := range r.GetIds() {
			one.IDs = append(one.IDs, d.reservationID(id))
		}
		out = append(out, one)
	}
	return out
}

func (d *decoder) keyAt(partition uint32, key uint64) ownership.KeyAt {
	if partition >= partitionsMax {
		d.fail("a reservation on partition %d", partition)
	}
	return ownership.KeyAt{Partition: ring.Partition(partition), Key: ring.KeyHash(key)}
}

func (d *decoder) reservationID(id []byte) (out ownership.ReservationID) {
	if len(id) != len(out) {
		d.fail("a reservation's id of %d bytes", len(id))
	}
	copy(out[:], id)
	return out
}

// identity reads settings; none is the unknown identity.
func (d *decoder) identity(settings []*controllogv1.Setting) identity.Identity {
	if len(settings) > identity.SettingsMax {
		d.fail("identity of %d settings", len(settings))
		return nil
	}
	var out identity.Identity
	for _, s := range settings {
		out = append(out, identity.Setting{Name: s.GetName(), Value: s.GetValue()})
	}
	if err := out.Validate(); err != nil {
		d.fail("%v", err)
	}
	return out
}

func (d *decoder) nodes(nodes []*controllogv1.Node) []ownership.Node {
	var out []ownership.Node
	for _, n := range nodes {
		out = append(out, d.node(n))
	}
	return out
}

// stateNodes reads the nodes of a state, each with its own topics or with references to those of the state.
func (d *decoder) stateNodes(s *controllogv1.State) []ownership.Node {
	nodes := d.nodes(s.GetNodes())
	for i, n := range s.GetNodes() {
		if len(n.GetTopicRefs()) == 0 {
			continue
		}
		if len(n.GetTopics()) > 0 || len(n.GetTopicRefs()) > topicsMax {
			d.fail("a node with %d topics and %d references to topics", len(n.GetTopics()), len(n.GetTopicRefs()))
			return nil
		}
		topics := make([]string, 0, len(n.GetTopicRefs()))
		for _, ref := range n.GetTopicRefs() {
			if uint64(ref) >= uint64(len(s.GetTopics())) {
				d.fail("topic %d of %d", ref, len(s.GetTopics()))
				return nil
			}
			topics = append(topics, s.GetTopics()[ref])
		}
		nodes[i].Topics = d.topics(topics)
	}
	return nodes
}

func (d *decoder) node(n *controllogv1.Node) ownership.Node {
	return ownership.Node{
		Name: n.GetName(), Inc: d.someInc(n.GetInc()), Lease: decodeMillis(n.GetLeaseMs()),
		GRPCAddr: n.GetGrpcAddr(), GossipAddr: n.GetGossipAddr(), Since: d.position(n.GetSince()),
		Topics: d.topics(n.GetTopics()), PublicKey: d.publicKey(n.GetPublicKey()), LogVersion: n.GetLogVersion(),
	}
}

// topics reads the topics of a node, which stand in order.
func (d *decoder) topics(topics []string) []string {
	if len(topics) > topicsMax {
		d.fail("a node with %d topics", len(topics))
		return nil
	}
	for i, t := range topics {
		if t == "" || len(t) > TopicBytesMax || i > 0 && t <= topics[i-1] {
			d.fail("topic %d of a node is empty, too long or out of order", i)
			return nil
		}
	}
	return topics
}

// publicKey reads the key of a node; none is no key.
func (d *decoder) publicKey(key []byte) string {
	if len(key) != 0 && len(key) != ed25519.PublicKeySize {
		d.fail("a public key of %d bytes", len(key))
	}
	return string(key)
}

func decodeMillis(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }

// position reads a position; none is the zero position.
func (d *decoder) position(p *controllogv1.Position) event.Position {
	if p.GetLedgerId() < 0 || p.GetEntryId() < 0 {
		d.fail("position %d:%d", p.GetLedgerId(), p.GetEntryId())
	}
	return event.Position{Ledger: p.GetLedgerId(), Entry: p.GetEntryId()}
}

func (d *decoder) incs(incs [][]byte) []ownership.Incarnation {
	var out []ownership.Incarnation
	for _, inc := range incs {
		out = append(out, d.someInc(inc))
	}
	return out
}

// someInc reads an incarnation that is not zero.
func (d *decoder) someInc(inc []byte) ownership.Incarnation {
	var out ownership.Incarnation
	if copy(out[:], inc) != len(inc) || len(inc) != len(out) || out.IsZero() {
		d.fail("incarnation %x", inc[:min(len(inc), len(out))])
	}
	return out
}

func (d *decoder) table(data []byte) []uint16 {
	if len(data)%2 != 0 || len(data)/2 > partitionsMax {
		d.fail("table of %d bytes", len(data))
		return nil
	}
	out := make([]uint16, 0, len(data)/2)
	for ; len(data) > 0; data = data[2:] {
		out = append(out, binary.LittleEndian.Uint16(data))
	}
	return out
}

func (d *decoder) set(s *controllogv1.PartitionSet) ownership.Set {
	bits, list := s.GetBits(), s.GetList()
	switch {
	case len(bits) > 0 && len(list) > 0:
		d.fail("a set both as bits and as a list")
	case len(bits) > partitionsMax/8:
		d.fail("a set of %d bytes", len(bits))
	case len(list) > 0:
		return d.listedSet(list)
	}
	if d.err != nil {
		return nil
	}
	out := make(ownership.Set, (len(bits)+7)/8)
	for i, b := range bits {
		out[i/8] |= uint64(b) << (i % 8 * 8)
	}
	return out.Clone() // nil when empty
}

func (d *decoder) listedSet(list []uint32) ownership.Set {
	partitions := make([]ring.Partition, 0, min(len(list), partitionsMax))
	for i, p := range list {
		if p >= partitionsMax || i > 0 && p <= list[i-1] {
			d.fail("a set with partition %d out of order or range", p)
			return nil
		}
		partitions = append(partitions, ring.Partition(p))
	}
	slices.Reverse(partitions) // the greatest first: the set is made once, at its full length
	return ownership.SetOf(partitions...)
}

func (d *decoder) starts(positions []*controllogv1.Position, starts []uint32, partitions int) []event.Position {
	if len(starts) != partitions {
		d.fail("%d starts for %d partitions", len(starts), partitions)
		return nil
	}
	out := make([]event.Position, 0, partitions)
	for _, i := range starts {
		if uint64(i) >= uint64(len(positions)) {
			d.fail("start %d of %d", i, len(positions))
			return nil
		}
		out = append(out, d.position(positions[i]))
	}
	return out
}

func (d *decoder) pending(pending []*controllogv1.Pending, partitions int) [][]ownership.Tenure {
	out, room := make([][]ownership.Tenure, partitions), pendingMax
	for _, one := range pending {
		t := ownership.Tenure{
			Lease: decodeMillis(one.GetLeaseMs()), Start: d.position(one.GetStart()), Dep: d.position(one.GetDep()),
		}
		if len(one.GetInc()) > 0 { // none: ANY
			t.Inc = d.someInc(one.GetInc())
		}
		set := d.set(one.GetPartitions())
		if room -= set.Len(); room < 0 {
			d.fail("more than %d pending tenures", pendingMax)
			return nil
		}
		for p := range set.All() {
			if int(p) >= partitions {
				d.fail("pending partition %d of %d", p, partitions)
				return nil
			}
			if before := out[p]; len(before) > 0 && !before[len(before)-1].Dep.Before(t.Dep) {
				d.fail("partition %d was deposed at %v after %v", p, t.Dep, before[len(before)-1].Dep)
				return nil
			}
			out[p] = append(out[p], t)
		}
	}
	return out
}
