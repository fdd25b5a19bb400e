package ownership

import (
	"encoding/binary"
	"encoding/hex"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/identity"
	"github.com/ringfence/router/ring"
)

// The versions of the record formats and of the rules of structural validity that this build reads. A
// record of another version is never applied.
//
// Version 2 adds the identity of the group, the key and the topics of each incarnation, and the rule that a
// Genesis does not replace a younger one of another identity (ADR 0030). A group writes it once all its
// living incarnations read it.
//
// Version 3 adds covered reservations: the record of takes and drops, and the rule that a Genesis has no effect
// if a take lies between what its author has read and itself (ADR 0052).
const (
	LogVersionMin = 1
	LogVersionMax = 3

	logVersionReserved = 3 // the first with covered reservations
)

// LeaseMax is the longest lease that an incarnation may have. It is a constant of
// [LogVersionMin], not configuration: after a Genesis everybody waits for it.
const LeaseMax = 4 * time.Second

// GenMax is the greatest generation of fencing tokens.
const GenMax = 1<<7 - 1

// Incarnation names one lifetime of a member's process: random, new at each start and after
// LOST. The zero Incarnation is no node.
type Incarnation [16]byte

// String returns the first four bytes in hex, enough for people.
func (i Incarnation) String() string { return hex.EncodeToString(i[:4]) }

// MarshalText makes logs show the incarnation as String does.
func (i Incarnation) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// IsZero reports whether i is the zero Incarnation.
func (i Incarnation) IsZero() bool { return i == Incarnation{} }

// Position is the place of a record in the control log.
type Position = event.Position

// Record is one entry of the control log, as everybody reads it. It is immutable
// once it is made; its slices are shared.
type Record struct {
	LogVersion uint32
	Group      string
	Inc        Incarnation // its author
	Body       Body        // nil: a record that this version cannot read
}

// Body is the content of a record: *[Genesis], *[Epoch], *[Beat], *[Hello], *[Snap] or *[Reservations].
//
//sumtype:decl
type Body interface{ body() }

// Node is the group's knowledge of an incarnation.
type Node struct {
	Name       string // stable over restarts
	Inc        Incarnation
	Lease      time.Duration // constant for an incarnation; whole milliseconds in the log
	GRPCAddr   string
	GossipAddr string
	Since      Position // of its Hello, its Genesis or its removal: the order of forgetting

	// Fields of version 2 of the log. They are empty for an incarnation of a router that writes
	// version 1.
	Topics     []string // that it is configured to consume, in full and ascending
	PublicKey  string   // Ed25519, 32 bytes, by which it proves a connection to be its own
	LogVersion uint32   // the highest that it reads; 0: it does not say, and reads version 1
}

// MaxLogVersion returns the highest log version that the incarnation reads.
func (n *Node) MaxLogVersion() uint32 { return max(n.LogVersion, LogVersionMin) }

// setDetails copies the fields of version 2 of the log about an incarnation.
func (n *Node) setDetails(from Node) {
	n.Topics, n.PublicKey, n.LogVersion = from.Topics, from.PublicKey, from.LogVersion
}

// Genesis begins a state. It is accepted whenever it is structurally valid; the
// last one wins.
type Genesis struct {
	Gen        uint32 // 0 … GenMax
	HashID     string // the function from key to partition
	Partitions uint32
	Members    []Node
	Table      []uint16 // partition → index in Members

	Identity identity.Identity // on which the group agrees; version 2
	After    Position          // the author's newest Hello that it had read back; version 2

	Base     Position   // up to which the author had read all takes since the anchor; version 3
	Reserved []Reserved // the reservations that these may cover; At is unused; version 3
}

// Epoch is a whole new table. It is accepted if Prev is the current epoch.
type Epoch struct {
	Prev    Position
	Members []Incarnation
	Table   []uint16 // partition → index in Members
	Reason  string   // for people

	Identity identity.Identity // on which the group agrees; version 2
	Nodes    []Node            // all that is known about Members, in the first epoch of version 2
}

// Beat renews the lease of its sender once the sender reads it back, and tells
// which of its old tenures still run.
type Beat struct {
	Seq         uint64
	Applied     Position // newest record that the sender has applied
	Cur         Position // the sender's current epoch
	ViewHash    uint64   // over the epochs up to Cur
	Ready       bool     // the sender has an application and wants partitions
	Draining    Set      // a delivery of another tenure than the open one runs
	Busy        []Busy   // by partition, for some of Draining: where alone it does
	Acquired    Set      // the gate is open, and no key is withheld
	Unreachable []Incarnation
	PrefixHash  uint64 // over the records from the Genesis to Applied; 0: not known
}

// Busy lists the keys of a partition on which deliveries of deposed tenures may run: on every other key none runs,
// and none will start.
type Busy struct {
	Partition ring.Partition
	Keys      []ring.KeyHash // ascending
}

// BusyKeysMax bounds the keys that one Beat names. On partitions for which there is no room
// every key counts as busy.
const BusyKeysMax = 1024

// Hello makes an incarnation known, and asks for the state.
type Hello struct {
	Node       Node // Since is unused
	HashID     string
	Partitions uint32
	Gen        uint32
	NeedState  bool
	Version    string // the sender's build, for people

	Identity identity.Identity // of the sender; nil: it does not say
	Floor    Token             // the greatest token that the sender knows the group may have given out; 0: none

	TopicRefs bool // the sender reads a Snap that is written with TopicRefs
}

// Snap hands a joining member the state exactly as of its Hello's position.
type Snap struct {
	ForHello Position
	State    *State

	// TopicRefs asks for a form in which each topic is written once, however many nodes list it: else a state of many nodes and topics
	// is larger than a broker takes. Routers that do not know the form read no topics in it. It is not set in a Snap that was read.
	TopicRefs bool
}

// Reservations changes the entries of keys that covered reservations hold (rule 9): first its drops, then its takes.
type Reservations struct {
	Seq     uint64
	Applied Position // newest record that the sender has applied
	Take    []Take
	Drop    []KeyAt
}

// Take says that a reservation of a key is about to be covered, or still is.
type Take struct {
	KeyAt
	ID  ReservationID
	TTL time.Duration // what its holder is promised with each answer, TTLLeast … TTLMost; whole milliseconds in the log
}

// KeyAt is a key by its hash, and its partition.
type KeyAt struct {
	Partition ring.Partition
	Key       ring.KeyHash
}

// ReservationID names a reservation. It is a hash of the key and the holder's secret, so that it does not let a reader of the
// log come back for the reservation.
type ReservationID [16]byte

// ReservationOf returns the name of a reservation, which is a call with this message id.
func ReservationOf(call event.MessageID) (id ReservationID) {
	binary.BigEndian.PutUint64(id[:8], uint64(call.Ledger))
	binary.BigEndian.PutUint64(id[8:], uint64(call.Entry))
	return id
}

// Bounds of covered reservations. They are constants of the log version.
const (
	TTLLeast    = event.TTLLeast // no less than LeaseMax: at first a covered turn still has the promise of a lease
	TTLMost     = event.TTLMost
	ReservedMax = 1024 // keys with an entry, of a group: a take for another key has no effect
	changesMax  = 1024 // takes and drops of one record
	listedMax   = 4 * ReservedMax
	idsMax      = 2 // of an entry: two show that the holder is not certain
)

func (*Genesis) body()      {}
func (*Epoch) body()        {}
func (*Beat) body()         {}
func (*Hello) body()        {}
func (*Snap) body()         {}
func (*Reservations) body() {}
