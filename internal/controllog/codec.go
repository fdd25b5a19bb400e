package controllog

import (
	"cmp"
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/internal/ownership"
	controllogv1 "github.com/ringfence/router/proto/ringfence/controllog/v1"
	"github.com/ringfence/router/ring"
)

// The reasons why bytes are not a record. [Decode] judges only whether the bytes have the shape
// of a record; the ownership package decides whether a record has an effect.
var (
	ErrVersion   = errors.New("record of another log version")
	ErrGroup     = errors.New("record of another group")
	ErrMalformed = errors.New("malformed record")
)

// partitionsMax is the most partitions that a record can speak of.
const partitionsMax = 1 << 16

// pendingMax bounds the tenures in a Snap, which names each once, with all of its partitions: within the size that a broker takes, there could be
// gigabytes of them. It allows 256 on each partition, and a new owner takes none over before it has waited for all.
const pendingMax = 1 << 20

// Bounds of the topics that a node says it consumes. TopicsBytesMax is that of what a router may be configured with: with it, a Snap
// of a group of full size that remembers as many former nodes fits into a record.
const (
	TopicsBytesMax = 64 << 10 // of the full names, together
	TopicBytesMax  = 1024     // of one of them
	topicsMax      = 4096     // more than fit into TopicsBytesMax
)

// Bounds of the reservations in a record. The ownership package judges records by bounds of its own, which are lower.
const (
	reservedMax    = 4096
	reservedIDsMax = 16

	reservationsVersion = 3 // of the log
)

// Encode returns the bytes of a record. It fails if the record cannot be represented: a lease
// that is not in whole milliseconds, or strings that are not UTF-8.
func Encode(r ownership.Record) ([]byte, error) {
	out := &controllogv1.Record{LogVersion: r.LogVersion, Group: r.Group, Inc: r.Inc[:]}
	var err error
	switch body := r.Body.(type) {
	case *ownership.Genesis:
		var g *controllogv1.Genesis
		g, err = encodeGenesis(body)
		out.Record = &controllogv1.Record_Genesis{Genesis: g}
	case *ownership.Epoch:
		var e *controllogv1.Epoch
		e, err = encodeEpoch(body)
		out.Record = &controllogv1.Record_Epoch{Epoch: e}
	case *ownership.Beat:
		out.Record = &controllogv1.Record_Beat{Beat: encodeBeat(body)}
	case *ownership.Hello:
		var h *controllogv1.Hello
		h, err = encodeHello(body)
		out.Record = &controllogv1.Record_Hello{Hello: h}
	case *ownership.Reservations:
		var rs *controllogv1.Reservations
		rs, err = encodeReservations(body)
		out.Record = &controllogv1.Record_Reservations{Reservations: rs}
	case *ownership.Snap:
		var s *controllogv1.State
		s, err = encodeState(body.State)
		if body.TopicRefs {
			referToTopics(s)
		}
		out.Record = &controllogv1.Record_Snap{Snap: &controllogv1.Snap{ForHello: encodePosition(body.ForHello), State: s}}
	default:
		err = errors.New("no body")
	}
	if err != nil {
		return nil, fmt.Errorf("controllog: encode %s: %w", kindOf(r), err)
	}
	data, err := proto.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("controllog: encode %s: %w", kindOf(r), err)
	}
	return data, nil
}

// Decode reads a record of this group and log version. Every member that has this log version
// gives the same answer for the same bytes. With an error, which wraps [ErrVersion], [ErrGroup]
// or [ErrMalformed], it returns the readable part of the record, without a body.
func Decode(group string, data []byte) (ownership.Record, error) {
	var in controllogv1.Record
	crowded := crowded(data)
	if crowded {
		data = headOf(data) // one of a later version is for the caller to know
	}
	if err := proto.Unmarshal(data, &in); err != nil {
		return ownership.Record{}, fmt.Errorf("controllog: %w: not a protobuf message", ErrMalformed)
	}
	r := ownership.Record{LogVersion: in.GetLogVersion(), Group: in.GetGroup()}
	var d decoder
	r.Inc = d.someInc(in.GetInc())
	switch {
	case r.LogVersion < ownership.LogVersionMin || r.LogVersion > ownership.LogVersionMax:
		return r, fmt.Errorf("controllog: %w: %d, want %d to %d", ErrVersion, r.LogVersion, ownership.LogVersionMin, ownership.LogVersionMax)
	case r.Group != group:
		return r, fmt.Errorf("controllog: %w: %q, want %q", ErrGroup, r.Group, group)
	case crowded:
		return r, fmt.Errorf("controllog: %w: more than %d items", ErrMalformed, itemsMax)
	}
	body := d.body(&in)
	if d.err != nil {
		return r, fmt.Errorf("controllog: %w: %w", ErrMalformed, d.err)
	}
	r.Body = body
	return r, nil
}

// SumOf returns the hash of the bytes of a record, as [ownership.RecordRead] carries it.
func SumOf(data []byte) uint64 { return xxhash.Sum64(data) }

// kindOf names a record for metrics and log lines.
func kindOf(r ownership.Record) string {
	switch r.Body.(type) {
	case *ownership.Genesis:
		return "genesis"
	case *ownership.Epoch:
		return "epoch"
	case *ownership.Beat:
		return "beat"
	case *ownership.Hello:
		return "hello"
	case *ownership.Snap:
		return "snap"
	case *ownership.Reservations:
		return "reservations"
	}
	return "none"
}

// reasonOf names a decoding error for metrics.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, ErrVersion):
		return "version"
	case errors.Is(err, ErrGroup):
		return "group"
	}
	return "malformed"
}

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
