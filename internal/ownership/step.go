package ownership

import (
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/ring"
)

// Input is something that happened: one of the types below.
//
//sumtype:decl
type Input interface{ input() }

// Tick says that time has passed. It is due at [Machine.Next].
type Tick struct{}

// RecordRead is the next record of the tail. Step's now was taken after the
// record was in hand.
type RecordRead struct {
	Reader uint64 // as in OpenReader; records of earlier readers are dropped
	At     Position
	Record Record
	Sum    uint64 // hash of the record's bytes, the same on every member
}

// ReaderOpened answers OpenReader: from here on that reader's records come.
type ReaderOpened struct{ Reader uint64 }

// ReaderFailed answers OpenReader, or says that the reader broke for good.
type ReaderFailed struct{ Reader uint64 }

// CheckAnswer answers CheckContiguity: the first two records that the short reader
// returned, or that it failed.
type CheckAnswer struct {
	Check         uint64
	First, Second Position
	Failed        bool
}

// AppendDone answers Append: the log has taken the record, or (Failed) it may or may not have.
type AppendDone struct {
	Record Record
	Failed bool
}

// Drained reports the partitions on which no delivery of a deposed tenure is left, of this incarnation or an earlier
// one of the process: none is queued on a stream, and none has started and is not over.
type Drained struct {
	// Seq is that of the newest Revoke that was performed when this was checked, 0 if there was none. The report does
	// not count for partitions that were revoked later.
	Seq        uint64
	Partitions Set
	// Busy lists, for some other partitions whose gates are not open, the keys on which such deliveries run. On a
	// partition that is in neither list, any key may run.
	Busy []Busy
}

// AppReady says whether an application is connected.
type AppReady struct{ Ready bool }

// Evidence is the transport's present knowledge of a peer. A Dead peer is named in our Beats as
// unreachable, and is given three counted Beats instead of five. A driver that requires a
// joining member to prove its links first reports peers as Dead until the first contact.
type Evidence struct {
	Inc   Incarnation
	Reach Reach
}

// Reach says whether a peer can be reached from here.
//
//exhaustive:enforce
type Reach uint8

// The values of Reach.
const (
	ReachUnknown Reach = iota
	ReachAlive         // a frame arrived recently
	ReachDead          // refused, EOF, no Pong frame, or gossip's suspicion
)

// FirstRead answers ReadFirst.
type FirstRead struct {
	Read   uint64
	Virgin bool // no member has ever written to the log: up to Before there are only Hellos, or nothing
	Failed bool
	First  Position // of the first record in the log
	Told   Token    // the greatest Floor of the Hellos up to Before, if Virgin; 0: none
	Later  uint32   // the greatest log version of the group's records up to Before that this build cannot read, if Virgin; 0: there are none

	// HadGroup and HadGen are as in Config, as of now.
	HadGroup bool
	HadGen   uint32

	// Reserved holds the result of a [Stretch] over the records from the anchor up to Before. Crowded: there are too
	// many reservations to tell, or records that this build cannot read.
	Reserved []Reserved
	Crowded  bool
}

// Cover asks to cover a running turn of a reservation; it is answered by Covered. The driver numbers the turns, each
// differently.
type Cover struct {
	Take
	Turn uint64
}

// Drop says that a turn that was covered or resumed has ended here: its holder has released it, or its promise has ended,
// or the holder was silent for that time after the last promise.
type Drop struct {
	KeyAt
	ID       ReservationID
	Turn     uint64
	Released bool // by its holder, which has stopped
}

// Leave asks for a graceful leave: an epoch without us, drain, release, [Left].
type Leave struct{}

func (Tick) input()         {}
func (RecordRead) input()   {}
func (ReaderOpened) input() {}
func (ReaderFailed) input() {}
func (CheckAnswer) input()  {}
func (AppendDone) input()   {}
func (Drained) input()      {}
func (AppReady) input()     {}
func (Evidence) input()     {}
func (FirstRead) input()    {}
func (Cover) input()        {}
func (Drop) input()         {}
func (Leave) input()        {}

// Effect is something to do: one of the types below. The effects of a Step are
// performed in their order.
//
//sumtype:decl
type Effect interface{ effect() }

// OpenReader closes the present tail and opens another one, answered by
// ReaderOpened or ReaderFailed. It is the first effect of every machine.
type OpenReader struct {
	Reader uint64
	At     Position // position of the first record to return; zero: records appended from now on
}

// CheckContiguity opens a short reader at Last, inclusive, and reports the first
// two records. It replaces an earlier check that is not answered yet.
type CheckContiguity struct {
	Check        uint64
	Last, Queued Position
	Timeout      time.Duration // after which it is repeated, with a longer one
}

// ReadFirst reads the log from its very first record, and reports whether it holds anything but
// Hellos before a position. If so it reads the log from the anchor up to there, for the reservations in it.
type ReadFirst struct {
	Read       uint64
	Before     Position
	Partitions int
}

// Append appends a record, at once and without retrying for longer than a lease.
type Append struct{ Record Record }

// SetGates changes gates. It comes before the Revoke that belongs to it.
type SetGates struct{ Gates []GateChange }

// GateChange is the new gate of one partition.
type GateChange struct {
	Partition ring.Partition
	Gate      Gate
	Token     Token // of our tenure; zero when we do not own the partition

	// Withheld are the keys for which an open gate is still closed, ascending: of
	// these alone a delivery of an earlier tenure may run.
	Withheld []ring.KeyHash

	// Reserved are the keys for which an open gate is still closed to all but the holder of a covered reservation, ascending by
	// key.
	Reserved []ReservedKey
}

// ReservedKey is a key that waits for the holder of its reservation.
type ReservedKey struct {
	Key ring.KeyHash
	ID  ReservationID // may resume; zero: none may
}

// Covered reports that the holder of a turn may, from now until Until, be promised its ttl with each answer, or why
// it may not. On a revoked partition nothing may be promised.
type Covered struct {
	KeyAt
	Turn    uint64
	Until   clock.Instant // no promise may be given from then on; zero: none may be given
	Refused string        // why there will be no cover; "": there will
}

// Revoke takes back every delivery on these partitions from the application: waiting ones never
// start, running ones may continue only until their last deadline. It is answered by Drained.
type Revoke struct {
	Seq        uint64 // 1, 2, …
	Partitions Set
	Final      bool // Genesis, LOST or exit: no later Pong may list them
}

// ForceDrain stops extending the deadlines of deliveries on revoked partitions: they are over when their last
// deadline has passed.
type ForceDrain struct {
	Partitions Set
	Reason     string
}

// SetLease is the lease after an own Beat was read back.
type SetLease struct{ Lease Lease }

// PublishTable is the newest applied table, for routing.
type PublishTable struct{ Table *Table }

// TakenOver reports tenures of an owner that the log has proven over, although no Beat of the owner shows that it has
// read of their end: it may be cut off from the log alone. No delivery of these tenures runs, and events that the
// owner still has cannot start there.
type TakenOver struct {
	Inc        Incarnation
	Partitions Set
}

// MoveAnchor moves the durable subscription that keeps the broker from trimming
// the log under slow readers.
type MoveAnchor struct{ To Position }

// Lost ends this incarnation: all gates are closed, everything is revoked and
// forced. The driver raises an alarm and starts again with a new incarnation.
type Lost struct{ Reason string }

// Exit ends this member: it must not come back by itself.
type Exit struct {
	Reason string
	// Settings says that this router's settings are not those of its group, so that starting it again
	// changes nothing.
	Settings bool
}

// Left ends a graceful leave: we own nothing (or no node can take it), and nothing runs.
type Left struct{}

// Note is for log lines and metrics. It changes nothing.
type Note struct {
	Kind   NoteKind
	At     Position    // of the record that it is about
	Inc    Incarnation // the incarnation concerned
	Name   string
	Count  int           // of partitions, members, …
	Took   time.Duration // a duration, by kind
	Reason string
}

// NoteKind is the subject of a Note.
type NoteKind string

// The kinds of Note.
const (
	NoteAdopted        NoteKind = "adopted"         // we have the state; Took since the first Hello
	NoteGenesis        NoteKind = "genesis"         // a Genesis was applied
	NoteEpoch          NoteKind = "epoch"           // an epoch was accepted; Count partitions moved
	NoteEpochLost      NoteKind = "epoch_lost"      // our proposal was not accepted
	NoteProposed       NoteKind = "proposed"        // we propose an epoch
	NoteRemoved        NoteKind = "removed"         // we were voted out, or found silent; Took: the back-off
	NoteDeposed        NoteKind = "deposed"         // Count open gates closed
	NoteAcquired       NoteKind = "acquired"        // Count gates opened; Took: the longest wait since the record that gave them to us
	NoteTakeover       NoteKind = "takeover"        // the same, after a silent owner; Took: since its last Beat
	NoteDrained        NoteKind = "drained"         // nothing runs on Count partitions; Took: the longest time since the deposition
	NoteForced         NoteKind = "forced"          // Count partitions are drained by force
	NoteConfirm        NoteKind = "confirm"         // a confirming Beat
	NoteLeaseLapsed    NoteKind = "lease_lapsed"    // the lease ran out
	NoteLeaseRegained  NoteKind = "lease_regained"  // Took: how long there was none
	NoteReopen         NoteKind = "reader_reopened" // no own Beat came back, or the reader broke
	NoteRejoin         NoteKind = "rejoin"          // the join starts again with a new reader
	NoteBadRecord      NoteKind = "bad_record"      // a record was ignored
	NotePlaceFailed    NoteKind = "place_failed"    // no table could be made
	NoteCheckRepeated  NoteKind = "check_repeated"  // a contiguity check failed or took too long
	NoteLostTrust      NoteKind = "lost"            // with Lost
	NoteSnapSent       NoteKind = "snap_sent"
	NoteNameHeld       NoteKind = "name_held"  // another incarnation beats under our name
	NoteGroupFull      NoteKind = "group_full" // this node is ready, and the group has as many members, Count, as it can have
	NoteNoOtherMember  NoteKind = "no_other_member"
	NoteEvictedFromLog NoteKind = "evicted"        // the group has forgotten us: a new Hello
	NoteOtherSettings  NoteKind = "other_settings" // a router whose settings are not the group's wants to join
	NoteLogVersion     NoteKind = "log_version"    // the group decides in log version Count from here on
	NoteGenesisVoid    NoteKind = "genesis_void"   // a Genesis has no effect: its author had not read the take at At
	NotePrefixDiffers  NoteKind = "prefix_differs" // the Beat of a peer says that it has read another log than we have, up to At
)

func (OpenReader) effect()      {}
func (CheckContiguity) effect() {}
func (ReadFirst) effect()       {}
func (Append) effect()          {}
func (SetGates) effect()        {}
func (Revoke) effect()          {}
func (ForceDrain) effect()      {}
func (SetLease) effect()        {}
func (PublishTable) effect()    {}
func (TakenOver) effect()       {}
func (MoveAnchor) effect()      {}
func (Lost) effect()            {}
func (Exit) effect()            {}
func (Left) effect()            {}
func (Covered) effect()         {}
func (Note) effect()            {}

// Lease is this node's permission to act, as of the newest own Beat read back. It
// is immutable. The zero Lease permits nothing.
type Lease struct {
	Until clock.Instant
	Guard time.Duration // G

	// Draining holds the revoked partitions whose deliveries a Pong may still extend:
	// the newest own Beat read back lists them, and no Genesis or force bars it.
	Draining Set
}

// Table is an immutable picture of the newest applied epoch.
type Table struct {
	Cur     Position
	Gen     uint32
	Version uint32 // of the log, in which the group decides
	Members []Node
	Owners  []uint16 // partition → index in Members
	Tokens  []Token  // partition → token of the present tenure
	Formers []Former // earlier owners with tenures that are not over
}

// Covers reports whether reservations can be covered: the group decides in a version of the log that knows them.
func (t *Table) Covers() bool { return t.Version >= logVersionReserved }

// Former is an earlier owner of partitions, by tenures that are not over.
type Former struct {
	Node
	Partitions Set
}

// IsMember reports whether inc is a member. Before the first epoch, of which t is nil, nobody is.
func (t *Table) IsMember(inc Incarnation) bool {
	return t != nil && slices.ContainsFunc(t.Members, func(n Node) bool { return n.Inc == inc })
}

// Owner returns the member that owns p.
func (t *Table) Owner(p ring.Partition) Node { return t.Members[t.Owners[p]] }
