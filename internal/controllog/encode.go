package controllog

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/ownership"
	controllogv1 "github.com/ringfence/router/proto/ringfence/controllog/v1"
	"github.com/ringfence/router/ring"
)

func encodeGenesis(g *ownership.Genesis) (*controllogv1.Genesis, error) {
	members, err := encodeNodes(g.Members)
	if err != nil {
		return nil, err
	}
	reserved, err := encodeReserved(g.Reserved)
	return &controllogv1.Genesis{
		Gen: g.Gen, HashId: g.HashID, Partitions: g.Partitions, Members: members, Table: encodeTable(g.Table),
		Identity: encodeIdentity(g.Identity), After: encodePosition(g.After),
		Base: encodePosition(g.Base), Reserved: reserved,
	}, err
}

func encodeEpoch(e *ownership.Epoch) (*controllogv1.Epoch, error) {
	nodes, err := encodeNodes(e.Nodes)
	return &controllogv1.Epoch{
		Prev:     encodePosition(e.Prev),
		Members:  encodeIncs(e.Members),
		Table:    encodeTable(e.Table),
		Reason:   strings.ToValidUTF8(e.Reason, "?"), // for people: never a reason to fail
		Identity: encodeIdentity(e.Identity),
		Nodes:    nodes,
	}, err
}

func encodeIdentity(i identity.Identity) []*controllogv1.Setting {
	var out []*controllogv1.Setting
	for _, s := range i {
		out = append(out, &controllogv1.Setting{Name: s.Name, Value: s.Value})
	}
	return out
}

func encodeBeat(b *ownership.Beat) *controllogv1.Beat {
	return &controllogv1.Beat{
		Seq:         b.Seq,
		Applied:     encodePosition(b.Applied),
		Cur:         encodePosition(b.Cur),
		ViewHash:    b.ViewHash,
		Ready:       b.Ready,
		Draining:    encodeSet(b.Draining),
		Acquired:    encodeSet(b.Acquired),
		Unreachable: encodeIncs(b.Unreachable),
		Busy:        encodeBusy(b.Busy),
		PrefixHash:  b.PrefixHash,
	}
}

func encodeBusy(busy []ownership.Busy) []*controllogv1.BusyKeys {
	var out []*controllogv1.BusyKeys
	for _, b := range busy {
		keys := make([]uint64, len(b.Keys))
		for i, k := range b.Keys {
			keys[i] = uint64(k)
		}
		out = append(out, &controllogv1.BusyKeys{Partition: uint32(b.Partition), Keys: keys})
	}
	return out
}

func encodeHello(h *ownership.Hello) (*controllogv1.Hello, error) {
	node, err := encodeNode(h.Node)
	return &controllogv1.Hello{
		Node: node, HashId: h.HashID, Partitions: h.Partitions, Gen: h.Gen, NeedState: h.NeedState, Version: h.Version,
		Identity: encodeIdentity(h.Identity), Floor: int64(h.Floor), TopicRefs: h.TopicRefs,
	}, err
}

func encodeState(s *ownership.State) (*controllogv1.State, error) {
	if s == nil {
		return nil, errors.New("no state")
	}
	nodes, err := encodeNodes(s.Nodes)
	if err != nil {
		return nil, err
	}
	pending, err := encodePending(s.Pending)
	if err != nil {
		return nil, err
	}
	reserved, err := encodeReserved(s.Reserved)
	if err != nil {
		return nil, err
	}
	positions, starts := encodeStarts(s.Start)
	return &controllogv1.State{
		Gen: s.Gen, HashId: s.HashID, Genesis: encodePosition(s.Genesis),
		Cur: encodePosition(s.Cur), ViewHash: s.ViewHash,
		Members: encodeIncs(s.Members), Table: encodeTable(s.Table), Nodes: nodes,
		StartPositions: positions, Starts: starts, Pending: pending,
		LogVersion: s.LogVersion, Identity: encodeIdentity(s.Identity),
		PrefixHash: s.PrefixHash,
		Reserved:   reserved, LastTake: encodePosition(s.LastTake),
	}, nil
}

// referToTopics replaces the topics of each node by references to one list. A state remembers hundreds of nodes, and nearly all
// list the same topics.
func referToTopics(s *controllogv1.State) {
	index := make(map[string]uint32)
	for _, n := range s.GetNodes() {
		for _, topic := range n.GetTopics() {
			i, ok := index[topic]
			if !ok {
				i = uint32(len(s.GetTopics()))
				index[topic] = i
				s.Topics = append(s.Topics, topic)
			}
			n.TopicRefs = append(n.TopicRefs, i)
		}
		n.Topics = nil
	}
}

func encodeReservations(b *ownership.Reservations) (*controllogv1.Reservations, error) {
	out := &controllogv1.Reservations{Seq: b.Seq, Applied: encodePosition(b.Applied)}
	for _, t := range b.Take {
		ttl, err := encodeMillis("ttl", t.TTL)
		if err != nil {
			return nil, err
		}
		out.Take = append(out.Take, &controllogv1.Take{Partition: uint32(t.Partition), Key: uint64(t.Key), Id: t.ID[:], TtlMs: ttl})
	}
	for _, k := range b.Drop {
		out.Drop = append(out.Drop, &controllogv1.Drop{Partition: uint32(k.Partition), Key: uint64(k.Key)})
	}
	return out, nil
}

func encodeReserved(list []ownership.Reserved) ([]*controllogv1.Reserved, error) {
	out := make([]*controllogv1.Reserved, 0, len(list))
	for _, r := range list {
		ttl, err := encodeMillis("ttl", r.TTL)
		if err != nil {
			return nil, err
		}
		one := &controllogv1.Reserved{Partition: uint32(r.Partition), Key: uint64(r.Key), TtlMs: ttl, At: encodePosition(r.At)}
		for _, id := range r.IDs {
			one.Ids = append(one.Ids, slices.Clone(id[:]))
		}
		out = append(out, one)
	}
	return out, nil
}

func encodeNodes(nodes []ownership.Node) ([]*controllogv1.Node, error) {
	out := make([]*controllogv1.Node, 0, len(nodes))
	for _, n := range nodes {
		node, err := encodeNode(n)
		if err != nil {
			return nil, err
		}
		out = append(out, node)
	}
	return out, nil
}

func encodeNode(n ownership.Node) (*controllogv1.Node, error) {
	lease, err := encodeMillis("lease", n.Lease)
	return &controllogv1.Node{
		Name: n.Name, Inc: n.Inc[:], LeaseMs: lease,
		GrpcAddr: n.GRPCAddr, GossipAddr: n.GossipAddr, Since: encodePosition(n.Since),
		Topics: n.Topics, PublicKey: []byte(n.PublicKey), LogVersion: n.LogVersion,
	}, err
}

// encodeMillis refuses to round: a lease that others take for shorter than it is
// would let two members act.
func encodeMillis(what string, d time.Duration) (uint32, error) {
	ms := d / time.Millisecond
	if d%time.Millisecond != 0 || ms < 0 || ms > math.MaxUint32 {
		return 0, fmt.Errorf("%s of %v is not a number of milliseconds", what, d)
	}
	return uint32(ms), nil
}

// encodePosition leaves the zero position out.
func encodePosition(p event.Position) *controllogv1.Position {
	if p.IsZero() {
		return nil
	}
	return &controllogv1.Position{LedgerId: p.Ledger, EntryId: p.Entry}
}

func encodeIncs(incs []ownership.Incarnation) [][]byte {
	out := make([][]byte, 0, len(incs))
	for _, inc := range incs {
		out = append(out, slices.Clone(inc[:]))
	}
	return out
}

func encodeTable(table []uint16) []byte {
	out := make([]byte, 0, 2*len(table))
	for _, i := range table {
		out = binary.LittleEndian.AppendUint16(out, i)
	}
	return out
}

// encodeSet writes a set as a list where that is shorter than the bits.
func encodeSet(s ownership.Set) *controllogv1.PartitionSet {
	if s.Empty() {
		return nil
	}
	var list []uint32
	for p := range s.All() {
		list = append(list, uint32(p))
	}
	size := int(list[len(list)-1])/8 + 1
	if 2*len(list) < size { // a partition takes two bytes in a list, mostly
		return &controllogv1.PartitionSet{List: list}
	}
	bits := make([]byte, size)
	for _, p := range list {
		bits[p/8] |= 1 << (p % 8)
	}
	return &controllogv1.PartitionSet{Bits: bits}
}

// encodeStarts names each position once: epochs are few, partitions are many.
func encodeStarts(start []event.Position) (positions []*controllogv1.Position, starts []uint32) {
	index := make(map[event.Position]uint32)
	starts = make([]uint32, 0, len(start))
	for _, at := range start {
		i, ok := index[at]
		if !ok {
			i = uint32(len(positions))
			index[at] = i
			positions = append(positions, &controllogv1.Position{LedgerId: at.Ledger, EntryId: at.Entry})
		}
		starts = append(starts, i)
	}
	return positions, starts
}

// encodePending writes each tenure once, with its partitions. In a partition the
// tenures stand in the order in which they were deposed, and so they do here.
func encodePending(pending [][]ownership.Tenure) ([]*controllogv1.Pending, error) {
	type tenure struct {
		inc        ownership.Incarnation
		lease      time.Duration
		start, dep event.Position
	}
	index := make(map[tenure]int)
	var tenures []tenure
	var partitions [][]ring.Partition
	for p, list := range pending {
		for _, t := range list {
			key := tenure{t.Inc, t.Lease, t.Start, t.Dep}
			i, ok := index[key]
			if !ok {
				i = len(tenures)
				index[key] = i
				tenures = append(tenures, key)
				partitions = append(partitions, nil)
			}
			partitions[i] = append(partitions[i], ring.Partition(p))
		}
	}
	out := make([]*controllogv1.Pending, 0, len(tenures))
	for i, t := range tenures {
		lease, err := encodeMillis("lease", t.lease)
		if err != nil {
			return nil, err
		}
		one := &controllogv1.Pending{
			LeaseMs: lease, Start: encodePosition(t.start), Dep: encodePosition(t.dep),
			Partitions: encodeSet(ownership.SetOf(partitions[i]...)),
		}
		if !t.inc.IsZero() {
			one.Inc = t.inc[:]
		}
		out = append(out, one)
	}
	slices.SortStableFunc(out, func(a, b *controllogv1.Pending) int {
		return cmp.Or(
			cmp.Compare(a.GetDep().GetLedgerId(), b.GetDep().GetLedgerId()),
			cmp.Compare(a.GetDep().GetEntryId(), b.GetDep().GetEntryId()))
	})
	return out, nil
}
