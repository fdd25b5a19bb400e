package ownership

import (
	"fmt"
	"slices"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/ring"
)

const (
	coldHellos   = 6    // own Hellos read back before a cold start
	hellosMax    = 8    // remembered while joining
	keptMax      = 8192 // records kept while joining
	queueMax     = 8192 // records kept behind a contiguity check
	owedSnapsMax = 16   // Hellos not answered yet
)

// read is a record in hand.
type read struct {
	at   Position
	rec  Record
	sum  uint64        // of its bytes
	when clock.Instant // taken after it was in hand
}

// tail is the reader of the log. Its output is gap-free.
type tail struct {
	reader  uint64        // number of the newest reader: only its records count
	opened  bool          // ReaderOpened, or a record, has come from it
	retryAt clock.Instant // if it has failed: when to open the next one; else zero
	askedAt clock.Instant // when OpenReader was emitted
	last    Position      // newest record taken in; zero: nothing counts yet
	resumed bool          // the reader begins at last: its first record must be that one again

	check    uint64 // number of the newest contiguity check
	checking bool
	checkFor time.Duration // its timeout; 0: no check has been repeated since the last one that was answered
	checkDue clock.Instant // when it is repeated
	queue    []read        // the record being checked, and later ones
}

// joining is the progress of a node without a state.
type joining struct {
	hellos   []hello       // read back by the current reader, oldest first
	since    Position      // of the first Hello that it read back; zero: none
	take     Position      // of the newest take since then; zero: none
	kept     []read        // records since the first of them
	onWay    bool          // a Hello was sent and not read back
	sentAt   clock.Instant // when the newest Hello was sent; zero: none by this reader
	began    clock.Instant // when the first one was sent
	group    clock.Instant // when a record of another node was seen last; zero: none
	row      int           // own Hellos read back in a row with no group seen
	rowSent  clock.Instant // when the newest of them was sent
	rowKnew  bool          // a group was known of when the first of them was read back
	coldAt   clock.Instant // when to append a Genesis; zero: not yet
	genesis  clock.Instant // when one was appended in this row; zero: none
	snapOwed []owedSnap    // Hellos of others
	passed   Position      // of the newest Genesis that was read and not adopted; zero: none
}

type hello struct {
	at   Position
	when clock.Instant // when it was read
}

type owedSnap struct {
	hello     Position
	inc       Incarnation
	state     *State // as of the Hello
	when      clock.Instant
	topicRefs bool // of the Hello
}

// ---- the tail: anchor and contiguity ----

// openReader starts a new tail: behind the newest record taken in, or, without a
// state, at the end of the log.
func (m *Machine) openReader() {
	t := &m.tail
	t.reader++
	t.opened, t.retryAt, t.askedAt = false, 0, m.now
	t.checking, t.queue = false, nil
	t.resumed = m.state != nil
	if m.state == nil {
		t.last = Position{}
		m.join = joining{began: m.join.began, group: m.join.group}
	}
	m.emit(OpenReader{Reader: t.reader, At: t.last})
}

func (m *Machine) readerOpened(in ReaderOpened) {
	if in.Reader == m.tail.reader {
		m.tail.opened = true
	}
}

func (m *Machine) readerFailed(in ReaderFailed) {
	if in.Reader == m.tail.reader && m.tail.retryAt == 0 {
		m.tail.retryAt = m.now.Add(m.cfg.Timing.HelloEvery)
	}
}

// keepReading does the due work of the tail: its first reader, a failed reader, a reader that
// returns no own Beat, an unanswered check.
func (m *Machine) keepReading() {
	t, timing := &m.tail, &m.cfg.Timing
	switch {
	case t.reader == 0, t.retryAt != 0 && m.due(t.retryAt):
		m.openReader()
	case (m.state != nil || !t.opened) && m.due(max(m.ownRead, t.askedAt).Add(timing.ReopenAfter)):
		m.emit(Note{Kind: NoteReopen, At: t.last, Took: m.now.Sub(max(m.ownRead, t.askedAt))})
		m.openReader()
	}
	if t.checking && m.due(t.checkDue) {
		m.emit(Note{Kind: NoteCheckRepeated, At: t.last})
		t.checkFor = min(2*t.checkFor, checkGrowthMost*timing.CheckTimeout)
		m.startCheck()
	}
}

// recordRead takes a record if it is the next one. Nothing is applied while a
// ledger change is being checked.
func (m *Machine) recordRead(in RecordRead) {
	t := &m.tail
	if in.Reader != t.reader {
		return
	}
	t.opened = true
	r := read{in.At, in.Record, in.Sum, m.now}
	if !t.checking {
		m.takeIn(r)
		return
	}
	if len(t.queue) >= queueMax {
		m.openReader() // it will come again
		return
	}
	t.queue = append(t.queue, r)
}

// takeIn is the contiguity rule: after (X,e) comes (X,e+1), or (Y,0) with Y > X.
func (m *Machine) takeIn(r read) {
	t := &m.tail
	if t.resumed {
		if r.at != t.last {
			m.gap(fmt.Sprintf("reader resumed at %v, want %v", r.at, t.last))
			return
		}
		t.resumed = false
		return
	}
	switch {
	case t.last.IsZero():
		m.deliver(r)
	case r.at.Ledger == t.last.Ledger && r.at.Entry <= t.last.Entry: // a duplicate
	case r.at.Ledger == t.last.Ledger && r.at.Entry == t.last.Entry+1:
		m.deliver(r)
	case r.at.Ledger > t.last.Ledger && r.at.Entry == 0:
		t.queue = append(t.queue, r)
		t.checkFor = max(t.checkFor, m.cfg.Timing.CheckTimeout)
		m.startCheck()
	default:
		m.gap(fmt.Sprintf("%v follows %v", r.at, t.last))
	}
}

// checkGrowthMost bounds how much longer than the first one a repeated check may take. All members check at the same
// time, so on a busy broker checks that give up after the same short time forever would only keep it busy.
const checkGrowthMost = 16

func (m *Machine) startCheck() {
	t := &m.tail
	t.check++
	t.checking, t.checkDue = true, m.now.Add(t.checkFor)
	m.emit(CheckContiguity{Check: t.check, Last: t.last, Queued: t.queue[0].at, Timeout: t.checkFor})
	m.due(t.checkDue)
}

// checkAnswer ends a check: only a wrong answer is a gap; after an unload a short
// reader may fail on all nodes at once though nothing is lost.
func (m *Machine) checkAnswer(in CheckAnswer) {
	t := &m.tail
	if !t.checking || in.Check != t.check {
		return
	}
	if in.Failed { // after an early failure the check is repeated soon, not after its whole timeout
		t.checkDue = min(t.checkDue, m.now.Add(m.cfg.Timing.CheckTimeout))
		m.due(t.checkDue)
		return
	}
	if in.First != t.last || in.Second != t.queue[0].at {
		m.gap(fmt.Sprintf("%v and %v stand where %v and %v were read", in.First, in.Second, t.last, t.queue[0].at))
		return
	}
	t.checking, t.checkFor = false, 0
	queue := t.queue
	t.queue = nil
	m.deliver(queue[0])
	reader := t.reader
	for i, r := range queue[1:] {
		if m.over || t.reader != reader {
			return
		}
		if t.checking {
			t.queue = append(t.queue, queue[1+i:]...)
			return
		}
		m.takeIn(r)
	}
}

// deliver passes a record on that follows the last one.
func (m *Machine) deliver(r read) {
	m.seeGroup(r)
	if m.state == nil {
		m.joiningRead(r)
		return
	}
	m.tail.last = r.at
	m.apply(r)
}

// gap handles missing records: a node with a state is LOST, and a joining node starts its join again.
func (m *Machine) gap(reason string) {
	if m.state != nil {
		m.lost("gap in the log: " + reason)
		return
	}
	m.rejoin(reason)
}

// rejoin starts the join again with a new reader and a new Hello.
func (m *Machine) rejoin(reason string) {
	m.emit(Note{Kind: NoteRejoin, Reason: reason})
	m.openReader()
}

// judgeOwnSilence is LOST (b): too long without an own Beat, judged before any
// lease is set.
func (m *Machine) judgeOwnSilence() {
	if m.state != nil && m.due(m.ownRead.Add(m.cfg.Timing.LostAfter)) {
		m.lost(fmt.Sprintf("no own Beat came back for %v", m.now.Sub(m.ownRead)))
	}
}

// ---- joining ----

// joiningRead takes a record while there is no state.
func (m *Machine) joiningRead(r read) {
	j := &m.join
	own := r.rec.Inc == m.cfg.Inc
	m.noteVersion(r)
	if !m.readable(r) {
		if !m.over && !own {
			m.groupSeen()
		}
		m.keep(r)
		return
	}
	switch b := r.rec.Body.(type) {
	case *Genesis:
		if m.adoptGenesis(r, b); m.state != nil || m.over {
			return
		}
	case *Hello:
		m.heardFloor(b.Floor)
		if own {
			m.helloBack(r)
		}
	case *Snap:
		if m.adoptSnap(r, b); m.state != nil || m.over {
			return
		}
		m.groupSeen()
	case *Beat, *Epoch, *Reservations:
		if !own {
			m.groupSeen()
		}
	}
	m.keep(r)
	if len(j.kept) > keptMax {
		m.rejoin("too many records while joining")
	}
}

// keep remembers the records after the first own Hello, with their times of reading.
func (m *Machine) keep(r read) {
	if len(m.join.hellos) > 0 {
		m.tail.last = r.at
		m.join.kept = append(m.join.kept, r)
		if b, ok := r.rec.Body.(*Reservations); ok && len(b.Take) > 0 && b.valid(m.cfg.Partitions) == nil {
			m.join.take = r.at
		}
	}
}

// groupSeen ends a row of Hellos: there is a group, and it is alive.
func (m *Machine) groupSeen() {
	m.join.group = m.now
	m.join.row, m.join.coldAt, m.join.genesis = 0, 0, 0
}

// keepJoining sends Hellos, gives a reader up that does not bring them, and starts cold.
func (m *Machine) keepJoining() {
	j, t := &m.join, &m.cfg.Timing
	if !m.tail.opened || m.leaving {
		return
	}
	if j.onWay && m.due(j.sentAt.Add(t.HelloLostAfter)) {
		m.rejoin("no Hello came back")
		return
	}
	m.startCold()
	if !j.onWay && (j.sentAt == 0 || m.due(j.sentAt.Add(m.helloEvery()))) {
		m.sendHello(true)
	}
}

func (m *Machine) helloEvery() time.Duration {
	t := &m.cfg.Timing
	if !m.app || m.join.group != 0 && m.now.Before(m.join.group.Add(3*t.HelloSlow)) {
		return t.HelloSlow
	}
	return t.HelloEvery
}

func (m *Machine) sendHello(needState bool) {
	j := &m.join
	j.onWay, j.sentAt = true, m.now
	if j.began == 0 {
		j.began = m.now
	}
	m.appendAs(LogVersionMin, &Hello{ // always in the lowest version, which any router reads
		Node: m.self(), HashID: m.cfg.HashID, Partitions: uint32(m.cfg.Partitions),
		Gen: m.cfg.Gen, NeedState: needState, Version: m.cfg.Version, Identity: m.cfg.Identity,
		Floor: m.memory.Floor, TopicRefs: true,
	})
	m.due(m.now.Add(m.helloEvery()))
}

func (m *Machine) self() Node {
	return Node{
		Name: m.cfg.Name, Inc: m.cfg.Inc, Lease: m.cfg.Timing.Lease,
		GRPCAddr: m.cfg.GRPCAddr, GossipAddr: m.cfg.GossipAddr,
		Topics: m.cfg.Topics, PublicKey: m.cfg.PublicKey, LogVersion: m.cfg.LogVersion,
	}
}

// helloBack takes an own Hello: a Snap for it counts from here on, and it is one
// more in the row of a cold start. A duplicate is not.
func (m *Machine) helloBack(r read) {
	j := &m.join
	j.hellos = append(j.hellos, hello{r.at, r.when})
	if j.since.IsZero() {
		j.since = r.at
	}
	if len(j.hellos) > hellosMax {
		j.hellos = slices.Delete(j.hellos, 0, 1)
		oldest := j.hellos[0].at
		j.kept = slices.DeleteFunc(j.kept, func(k read) bool { return k.at.Before(oldest) })
	}
	if j.onWay {
		j.onWay = false
		j.row++
		j.rowSent = j.sentAt
		if j.row == 1 {
			j.rowKnew = m.knowsOfGroup()
		}
	}
}

// startCold is the cold start: a ready node that has read six own Hellos back with
// no other node's Beat, Snap or Genesis between makes itself the first member. No
// wall time counts: a stalled broker brings no Hello back.
func (m *Machine) startCold() {
	j, t := &m.join, &m.cfg.Timing
	if j.row < coldHellos || !m.app {
		return
	}
	if j.coldAt == 0 {
		j.coldAt = m.now.Add(m.jitter())
	}
	if j.genesis != 0 && !m.due(j.genesis.Add(t.HelloLostAfter)) {
		return
	}
	if !m.due(j.coldAt) || m.now.Sub(j.rowSent) >= max(t.HelloEvery, t.HelloLostAfter) {
		return // the row is too old: decide again at the next Hello
	}
	if !m.mayBegin() {
		return
	}
	if !m.knowsTakes() {
		m.mayAt = 0 // read them first
		return
	}
	j.genesis = m.now
	g := &Genesis{
		Gen: m.coldGen(), HashID: m.cfg.HashID, Partitions: uint32(m.cfg.Partitions),
		Members: []Node{m.self()}, Table: make([]uint16, m.cfg.Partitions),
		Identity: m.cfg.Identity, After: j.newestHello(),
	}
	version := m.versionToWrite()
	if reserved := m.reservedNow(); len(reserved) > 0 || version >= logVersionReserved {
		// The group was in this version when the takes were written, and promises are kept, whatever this router is set to.
		version, g.Base, g.Reserved = max(version, logVersionReserved), g.After, reserved
	}
	m.appendAs(version, g)
}

// jitter keeps nodes that start together from starting cold together.
func (m *Machine) jitter() time.Duration {
	x := m.cfg.Seed + 0x9e3779b97f4a7c15*(m.tail.reader+1) // splitmix64
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return time.Duration(x % uint64(m.cfg.Timing.HelloEvery))
}

// adoptGenesis takes a Genesis that was read while joining: it is a full state.
//
// It adopts only a Genesis whose author had read our first Hello, and only if no other Genesis was passed over since:
// otherwise members with a state may ignore this one as late ([State.olderThan]), and we cannot know their state. To
// pass over a Genesis is safe: members that applied it send a Snap.
func (m *Machine) adoptGenesis(r read, g *Genesis) {
	j := &m.join
	unread := len(j.hellos) == 0 || g.After.Before(j.hellos[0].at) || r.rec.LogVersion >= logVersionReserved && g.Base.Before(j.hellos[0].at)
	late := g.After.Before(j.passed)
	if !g.After.IsZero() && (unread || late || m.voids(r, g)) {
		j.passed = r.at
		m.groupSeen()
		m.mayAt = 0
		return
	}
	m.applyGenesis(r, g)
	if m.state == nil || m.over {
		if r.rec.Inc != m.cfg.Inc {
			m.groupSeen()
		}
		return
	}
	m.tail.last = r.at
	m.adopted(r)
}

// adoptSnap takes a state that was made for a Hello which the current reader has
// read back, and applies everything that came after that Hello.
func (m *Machine) adoptSnap(r read, b *Snap) {
	i := slices.IndexFunc(m.join.hellos, func(h hello) bool { return h.at == b.ForHello })
	if i < 0 || b.State == nil {
		return
	}
	if err := b.State.valid(); err != nil {
		m.emit(Note{Kind: NoteBadRecord, At: r.at, Inc: r.rec.Inc, Reason: "snap: " + err.Error()})
		return
	}
	adopted := b.State.clone()
	if reason := m.foreignGroup(adopted); reason != "" {
		m.exitForSettings(reason)
		return
	}
	h, kept := m.join.hellos[i], m.join.kept
	if reason := m.fallingTokens(TokenOf(adopted.Gen, h.at)); reason != "" {
		m.exitForSettings(reason) // the group's next token is no greater
		return
	}
	m.tail.last = r.at
	m.state = adopted
	m.raiseFloor()
	m.base = m.state.Cur
	m.adoptPrefix(h.at)
	m.startAnyDeadlines(h.when)
	m.peer(m.cfg.Inc).came = h.when
	m.claimGates(h.when)
	m.emit(PublishTable{m.state.table()})
	m.adopted(r)
	for _, k := range kept {
		if m.over {
			return
		}
		if h.at.Before(k.at) {
			m.apply(k)
		}
	}
	m.prefixes.goOn(m.state, r)
}

// adopted ends the join.
func (m *Machine) adopted(r read) {
	m.ownRead = m.now
	if m.join.began == 0 {
		m.join.began = m.now
	}
	m.emit(Note{Kind: NoteAdopted, At: r.at, Inc: r.rec.Inc, Took: m.now.Sub(m.join.began)})
	m.join = joining{began: m.join.began, sentAt: m.join.sentAt}
}

// ---- for others ----

// applyHello makes a node known, and owes it a Snap of the state as of here.
func (m *Machine) applyHello(r read, h *Hello) {
	if err := m.state.applyHello(r.at, h); err != nil {
		m.emit(Note{Kind: NoteBadRecord, At: r.at, Inc: r.rec.Inc, Reason: "hello: " + err.Error()})
		return
	}
	if !placeable(&h.Node) {
		m.emit(Note{Kind: NoteBadRecord, At: r.at, Inc: r.rec.Inc, Reason: fmt.Sprintf("hello: a name of %d bytes, want at most %d: it cannot become a member", len(h.Node.Name), ring.MemberBytesMax)})
	}
	m.noteVersion(r)
	m.noteOtherSettings(r, h)
	j := &m.join
	if h.Node.Inc == m.cfg.Inc {
		j.onWay = false
		return
	}
	if !h.NeedState {
		return
	}
	m.peer(h.Node.Inc).came = r.when
	j.snapOwed = slices.DeleteFunc(j.snapOwed, func(o owedSnap) bool { return o.inc == h.Node.Inc })
	if len(j.snapOwed) == owedSnapsMax {
		j.snapOwed = slices.Delete(j.snapOwed, 0, 1)
	}
	j.snapOwed = append(j.snapOwed, owedSnap{r.at, h.Node.Inc, m.state.clone(), r.when, h.TopicRefs})
}

// snapSeen takes a Snap of another node off our list.
func (m *Machine) snapSeen(b *Snap) {
	j := &m.join
	j.snapOwed = slices.DeleteFunc(j.snapOwed, func(o owedSnap) bool { return o.hello == b.ForHello })
}

// answerHellos sends the Snaps that no node of a lower rank has sent, and our own Hello when
// the log has forgotten us.
func (m *Machine) answerHellos() {
	j, t := &m.join, &m.cfg.Timing
	if len(j.snapOwed) > 0 && m.isFresh() {
		wait := time.Duration(m.rank()) * t.SnapDelay
		j.snapOwed = slices.DeleteFunc(j.snapOwed, func(o owedSnap) bool {
			if !m.due(o.when.Add(wait)) {
				return false
			}
			m.append(&Snap{ForHello: o.hello, State: o.state, TopicRefs: o.topicRefs})
			m.emit(Note{Kind: NoteSnapSent, At: o.hello, Inc: o.inc})
			return true
		})
	}
	me, known := m.state.Node(m.cfg.Inc)
	if complete := known && me.LogVersion == m.cfg.LogVersion; !complete && (j.sentAt == 0 || m.due(j.sentAt.Add(t.HelloSlow))) {
		if !known && m.beats.seq > 0 { // else it is new, and only its Hello came too early
			m.emit(Note{Kind: NoteEvictedFromLog})
		}
		m.sendHello(false)
	}
}
