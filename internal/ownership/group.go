package ownership

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// oldHelloMax is how long a Hello of a router that reads only older log versions keeps a group from
// writing a newer one: that router may be about to join.
const oldHelloMax = 10 * time.Second

// firstReadMax is the time for which an answer to ReadFirst permits a Genesis.
const firstReadMax = 3 * time.Second

// Memory is a process's memory of its group, independent of the control log.
type Memory struct {
	Floor Token    // the greatest token that the group may have given out; 0: none is known
	Seen  Position // of the newest record of a working group; zero: none was read
	Told  Token    // the greatest Floor in Hellos that were read while joining; 0: none

	Reserved   []Reserved    // the group's covered reservations, as of ReservedAt
	ReservedAt clock.Instant // by this process's clock
}

// least returns the token that the token of a new tenure must exceed.
func (k Memory) least() Token { return max(k.Floor, k.Told) }

// group is the state that this node shares with its group.
type group struct {
	memory   Memory
	oldHello clock.Instant // when the newest Hello of a router that cannot read LogVersionMax was read; zero: never
	reads    uint64        // number of the newest ReadFirst
	reading  bool          // it is not answered
	readAt   clock.Instant // when it was sent
	mayAt    clock.Instant // when an answer to it allowed a Genesis; zero: none did
	readTo   Position      // its Before
	reserved []Reserved    // by its answer
}

// groupVersion is the log version in which the group decides.
func (m *Machine) groupVersion() uint32 {
	if m.state == nil {
		return LogVersionMin
	}
	return max(m.state.LogVersion, LogVersionMin)
}

// versionToWrite is the log version of our next Genesis or Epoch: that of the group, or the
// highest one that this router may write once all live routers read it.
func (m *Machine) versionToWrite() uint32 {
	version := m.groupVersion()
	if m.cfg.LogVersion > version && m.everybodyReads(m.cfg.LogVersion) {
		return m.cfg.LogVersion
	}
	return version
}

// wantsUpgrade reports whether the group decides in an older version than it could.
func (m *Machine) wantsUpgrade() bool { return m.versionToWrite() > m.groupVersion() }

// everybodyReads reports whether all members, all recently heard nodes and all senders of
// recent Hellos read this version of the log.
func (m *Machine) everybodyReads(version uint32) bool {
	if m.oldHello != 0 && !m.due(m.oldHello.Add(oldHelloMax)) {
		return false
	}
	if m.state == nil {
		return true
	}
	unable := func(inc Incarnation) bool {
		n := m.state.node(inc)
		return n == nil || n.MaxLogVersion() < version
	}
	return !slices.ContainsFunc(m.state.Members, unable) && !slices.ContainsFunc(m.beating, unable)
}

// noteVersion remembers that there is a router that reads only older log versions than this one.
func (m *Machine) noteVersion(r read) {
	if h, ok := r.rec.Body.(*Hello); ok && h.Node.MaxLogVersion() < m.cfg.LogVersion {
		m.oldHello = r.when
	}
}

// inVersion adds to an Epoch the fields of the version in which it is written.
func (m *Machine) inVersion(e *Epoch, members []Node) *Epoch {
	if m.versionToWrite() < 2 {
		return e
	}
	e.Identity = m.state.Identity
	if len(e.Identity) == 0 {
		e.Identity = m.cfg.Identity
	}
	if m.groupVersion() < 2 {
		e.Nodes = withTopicsThatFit(members)
	}
	return e
}

// epochTopicsBytesMax bounds the topics in an Epoch: a broker takes no record of more than 5 MiB.
const epochTopicsBytesMax = 2 << 20

// withTopicsThatFit returns nodes without their topics if these do not fit into an Epoch. Then the members count as nodes that do
// not say what they consume, for all readers alike, until they start again.
func withTopicsThatFit(nodes []Node) []Node {
	sum := 0
	for _, n := range nodes {
		for _, topic := range n.Topics {
			sum += len(topic)
		}
	}
	if sum <= epochTopicsBytesMax {
		return nodes
	}
	nodes = slices.Clone(nodes)
	for i := range nodes {
		nodes[i].Topics = nil
	}
	return nodes
}

// foreignGroup returns the reason why this node may not work in a group with this state, "" if it may.
func (m *Machine) foreignGroup(s *State) string {
	if s.HashID != m.cfg.HashID || len(s.Table) != m.cfg.Partitions {
		return fmt.Sprintf("the group places keys by %s on %d partitions, this router by %s on %d",
			s.HashID, len(s.Table), m.cfg.HashID, m.cfg.Partitions)
	}
	if reason := m.otherSettings(s); reason != "" {
		return reason
	}
	if m.cfg.Gen != 0 && m.cfg.Gen < s.Gen {
		return fmt.Sprintf("ownership.generation is %d here, and the group's fencing tokens are of generation %d: set it to %d, or remove the setting",
			m.cfg.Gen, s.Gen, s.Gen)
	}
	return s.foreignTopics(m.cfg.Name, m.cfg.Topics)
}

// foreignTopics returns the reason why a router of this name with these topics belongs to another group, "" if it does not: it
// shares no topic with the members.
func (s *State) foreignTopics(name string, topics []string) string {
	common, known := s.commonTopics(name)
	if !known || len(topics) == 0 || slices.ContainsFunc(topics, func(t string) bool { return lists(common, t) }) {
		return ""
	}
	return fmt.Sprintf("pulsar.topics of the router (%q) has none of the topics that all members of the group share (%q)",
		strings.Join(topics, ", "), strings.Join(common, ", "))
}

// otherSettings says in which settings this node differs from its group, "" if in none.
func (m *Machine) otherSettings(s *State) string {
	differ := m.cfg.Identity.Against(s.Identity)
	if len(differ) == 0 {
		return ""
	}
	return fmt.Sprintf("the settings of this router (here) are not those of its group (there): %v", differ)
}

// noteOtherSettings reports a router that wants to join with settings other than the group's. It learns this from the
// Snap, and exits.
func (m *Machine) noteOtherSettings(r read, h *Hello) {
	reason := m.state.Identity.Against(h.Identity).String() // the group's values are the ones here
	if reason == "" && h.Node.Inc != m.cfg.Inc {
		reason = m.state.foreignTopics(h.Node.Name, h.Node.Topics)
	}
	if reason != "" {
		m.emit(Note{Kind: NoteOtherSettings, At: r.at, Inc: h.Node.Inc, Name: h.Node.Name, Reason: reason})
	}
}

// raiseFloor remembers the greatest token that the group may have given out.
func (m *Machine) raiseFloor() {
	m.memory.Floor = max(m.memory.Floor, TokenOf(m.state.Gen, m.state.Cur))
}

// seeGroup remembers how far a group has been read.
func (m *Machine) seeGroup(r read) {
	if m.memory.Seen.Before(r.at) && HoldsGroup(r.at, r.rec) {
		m.memory.Seen = r.at
	}
}

// Memory returns the knowledge of this incarnation and the earlier ones of its process, for the
// next one.
func (m *Machine) Memory() Memory {
	k := m.memory
	if m.state != nil {
		k.Reserved, k.ReservedAt = m.state.Reserved, m.now
	}
	return k
}

// heardFloor records the greatest token that another router knows: this router may have read
// less of the log than the other had when the log was lost (ADR 0030).
func (m *Machine) heardFloor(told Token) {
	m.memory.Told = max(m.memory.Told, told)
}

// fallingTokens returns the reason why a tenure may not begin with this token, "" if it may.
func (m *Machine) fallingTokens(next Token) string {
	if next > m.memory.least() {
		return ""
	}
	return fmt.Sprintf("fencing tokens would go backward, from %v to %v: the control topic stands on ledgers with lower ids than before, as after a move to another cluster. "+
		"Stop all routers of the group, set ownership.generation to %d or higher, and start them", m.memory.least(), next, m.memory.least().Gen()+1)
}

// coldGen is the generation of a Genesis of ours: no lower than any that is known.
func (m *Machine) coldGen() uint32 {
	gen := max(m.cfg.Gen, m.memory.least().Gen())
	if m.cfg.HadGroup {
		gen = max(gen, m.cfg.HadGen)
	}
	return gen
}

// mayBegin reports whether this node may append a Genesis: tokens must not fall. Right before,
// it checks whether there was a group, and whether the log holds its records: the knowledge
// from its start may be outdated, and its newest record of the group may not be the newest one.
func (m *Machine) mayBegin() bool {
	newest := m.join.newestHello()
	if reason := m.fallingTokens(TokenOf(m.coldGen(), newest)); reason != "" {
		m.exitForSettings(reason)
		return false
	}
	if m.mayAt != 0 && m.now.Before(m.mayAt.Add(firstReadMax)) {
		return true
	}
	if !m.reading || m.due(m.readAt.Add(m.cfg.Timing.ReopenAfter)) {
		m.reads++
		m.reading, m.readAt = true, m.now
		m.readTo, m.reserved = newest, nil
		m.emit(ReadFirst{Read: m.reads, Before: newest, Partitions: m.cfg.Partitions})
		m.due(m.now.Add(m.cfg.Timing.ReopenAfter))
	}
	return false
}

// newestHello is the position of the newest own Hello that was read back.
func (j *joining) newestHello() Position {
	if len(j.hellos) == 0 {
		return Position{}
	}
	return j.hellos[len(j.hellos)-1].at
}

// firstRead takes the answer to ReadFirst.
func (m *Machine) firstRead(in FirstRead) {
	if !m.reading || in.Read != m.reads || in.Failed {
		return // asked again when it times out
	}
	if in.Crowded && m.tooManyReserved() {
		return // asked again when it times out
	}
	m.reading = false
	m.reserved = in.Reserved
	m.heardFloor(in.Told)
	m.cfg.HadGroup, m.cfg.HadGen = m.cfg.HadGroup || in.HadGroup, max(m.cfg.HadGen, in.HadGen)
	had := max(m.cfg.HadGen, m.memory.least().Gen())
	if !in.Virgin || !m.knowsOfGroup() || m.cfg.Gen > had || m.isLater(in.First) {
		m.mayAt = m.now
		return
	}
	if m.state != nil {
		return
	}
	if m.join.row < coldHellos {
		return // a group was seen since the question
	}
	if !m.join.rowKnew {
		m.beginRow() // the known group may have begun after our Hellos, so that its records are still to be read
		return
	}
	holds, is := "no record of a group", "Is this the right control topic? If so, stop"
	if in.Later > 0 { // after a downgrade
		holds, is = fmt.Sprintf("no record of a group but those in log version %d, and this router reads up to %d", in.Later, LogVersionMax), "Use a newer build, or stop"
	}
	m.exitForSettings(fmt.Sprintf("the control topic holds %s, and the subscription had one, with fencing tokens of generation %d: "+
		"new ones could be lower. %s all routers of the group, set ownership.generation to %d or higher, and start them", holds, had, is, had+1))
}

// knowsOfGroup reports whether a group is known to have worked on the subscription.
func (m *Machine) knowsOfGroup() bool { return m.cfg.HadGroup || m.memory.least() > 0 }

// beginRow starts a new row of own Hellos. They come after everything that is known now. So if the known group is in
// this log, its records lie before the newest Hello of the row.
func (m *Machine) beginRow() {
	m.mayAt = 0
	m.join.row, m.join.coldAt = 0, 0
}

// isLater reports whether a log that begins at this position follows the one that this process
// has read: it then has greater positions, and tokens, than all earlier ones of the group.
// While a broker keeps its metadata, its ledger ids only grow, so the log that replaces a
// deleted one follows. After a loss of the metadata the ids restart: a log on a ledger that
// this process has seen, or on a lower one, may be behind the records that other members have
// read.
func (m *Machine) isLater(first Position) bool {
	return m.memory.Floor > 0 && m.memory.Seen.Ledger < first.Ledger
}

// HoldsGroup reports whether a record at this position shows that a group has worked on the
// log: only members write such records, and they refer to earlier positions. Beats of members
// that still write from their knowledge of a replaced log do not count.
func HoldsGroup(at Position, r Record) bool {
	switch b := r.Body.(type) {
	case *Genesis:
		return b.After.Before(at)
	case *Epoch:
		return b.Prev.Before(at)
	case *Beat:
		return b.Applied.Before(at)
	case *Snap:
		return b.ForHello.Before(at)
	case *Reservations:
		return b.Applied.Before(at)
	case *Hello:
	}
	return false
}
