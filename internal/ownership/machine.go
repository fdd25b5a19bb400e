package ownership

import (
	"fmt"
	"slices"

	"github.com/ringfence/router/internal/base/clock"
)

// acceptedMax bounds the accepted epochs that are kept to compare views with.
const acceptedMax = 1024

// Machine is one incarnation of one member. It is not safe for concurrent use.
type Machine struct {
	cfg  Config
	now  clock.Instant // of this Step
	out  []Effect      // of this Step
	next clock.Instant // when something is due
	over bool          // lost, exited or left

	tail tail    // join.go: the reader of the log
	join joining // join.go: until there is a state

	state    *State   // the replicated state; nil while joining
	base     Position // views are compared beyond this epoch
	accepted []view   // epochs accepted after base
	prefixes prefixes // prefix.go: to compare logs with

	lease   clock.Instant // rule 2: until when this node may act
	fresh   clock.Instant // tFresh of the specification: when the newest own Beat that was read back was sent
	ownRead clock.Instant // when an own Beat was last read back
	lapsed  clock.Instant // when the lease ran out, zero while there is one
	listed  Set           // Draining of the newest own Beat that was read back
	counted []counted     // own Beats by which the silence of others is judged, oldest first

	beats  beats // beat.go: own Beats on their way
	gates  gates // gate.go
	intent       // propose.go: the requests of this node to the group

	anchors []mark      // anchor.go: where the log stood, once per AnchorEvery, oldest first
	covers  covers      // cover.go
	taken   []takenOver // takenover.go: not reported yet

	heardBase clock.Instant         // rule 4: heard of everybody at first
	peers     map[Incarnation]*peer // looked up only, so that no order of a map decides anything
	beating   []Incarnation         // recently heard nodes: only these can be FRESH

	group // group.go: the state shared with the group
}

// view is an accepted epoch.
type view struct {
	at   Position
	hash uint64
}

// counted is an own Beat that counts for judging silence.
type counted struct {
	at         Position
	sent, read clock.Instant
}

// New returns the machine of a new incarnation. cfg must be valid.
func New(cfg Config) *Machine {
	m := &Machine{cfg: cfg, peers: map[Incarnation]*peer{}}
	m.gates = newGates(cfg.Partitions, cfg.Running)
	m.covers = newCovers(cfg.Partitions)
	m.memory = cfg.Memory
	return m
}

// Next returns when Step is due at the latest.
func (m *Machine) Next() clock.Instant { return m.next }

// Step applies in at time now, which never falls. Safety comes first, whatever the input: a
// node without an own Beat for too long is LOST before a lease is set.
func (m *Machine) Step(now clock.Instant, in Input) []Effect {
	if m.over {
		return nil
	}
	m.now, m.out, m.next = max(now, m.now), nil, clock.Forever
	m.judgeOwnSilence()
	if !m.over {
		m.handle(in)
	}
	if !m.over {
		m.settle()
	}
	return m.out
}

// handle passes an input to its method. What follows from it is done in settle.
func (m *Machine) handle(in Input) {
	switch in := in.(type) {
	case Tick:
	case RecordRead:
		m.recordRead(in)
	case ReaderOpened:
		m.readerOpened(in)
	case ReaderFailed:
		m.readerFailed(in)
	case CheckAnswer:
		m.checkAnswer(in)
	case AppendDone:
		m.appendDone(in)
	case Drained:
		m.drained(in)
	case FirstRead:
		m.firstRead(in)
	case AppReady:
		m.appReady(in)
	case Evidence:
		m.peer(in.Inc).reach = in.Reach
	case Cover:
		m.cover(in)
	case Drop:
		m.uncover(in)
	case Leave:
		m.leave()
	}
}

// settle does the due work. Gates come first, so that the Beat includes them.
func (m *Machine) settle() {
	m.keepReading()
	if m.state == nil {
		m.keepJoining()
		m.finishLeaving()
		return
	}
	m.judgeName()
	if m.over {
		return
	}
	m.noteLapse()
	m.forceDrains()
	m.acquire()
	m.tellTakenOver()
	m.keepCovers()
	m.propose()
	m.noteFull()
	m.answerHellos()
	m.moveAnchor()
	m.finishLeaving()
	if !m.over {
		m.beat()
	}
}

func (m *Machine) emit(e Effect) { m.out = append(m.out, e) }

// append writes in the version in which the group decides.
func (m *Machine) append(b Body) { m.appendAs(m.groupVersion(), b) }

func (m *Machine) appendAs(version uint32, b Body) {
	m.emit(Append{Record{LogVersion: version, Group: m.cfg.Group, Inc: m.cfg.Inc, Body: b}})
}

// due reports whether t has come, and if not, asks for a Step then.
func (m *Machine) due(t clock.Instant) bool {
	if !m.now.Before(t) {
		return true
	}
	m.next = min(m.next, t)
	return false
}

// isFresh reports whether this node has state and a valid lease: see seenFresh for other nodes.
func (m *Machine) isFresh() bool { return m.state != nil && m.now.Before(m.lease) }

func (m *Machine) isMember() bool { return m.state != nil && m.state.IsMember(m.cfg.Inc) }

// apply takes the next record of a gap-free log, read at r.when, into the state.
func (m *Machine) apply(r read) {
	m.prefixes.goOn(m.state, r)
	if !m.readable(r) {
		return
	}
	switch b := r.rec.Body.(type) {
	case *Genesis:
		m.applyGenesis(r, b)
	case *Epoch:
		m.applyEpoch(r, b)
	case *Beat:
		m.applyBeat(r, b)
	case *Hello:
		m.applyHello(r, b)
	case *Snap:
		m.snapSeen(b)
	case *Reservations:
		m.applyReservations(r, b)
	}
}

// readable reports whether a record is one of ours. A decision in a format that we
// cannot read means that we no longer know the state.
func (m *Machine) readable(r read) bool {
	switch {
	case r.rec.Group != m.cfg.Group, r.rec.LogVersion == 0: // in any version, even one that we cannot read: it has no effect here
		m.emit(Note{Kind: NoteBadRecord, At: r.at, Inc: r.rec.Inc, Reason: "of group " + r.rec.Group})
		return false
	case r.rec.LogVersion <= LogVersionMax:
		return r.rec.Body != nil
	}
	switch r.rec.Body.(type) {
	case *Beat, *Hello, *Snap, *Reservations:
		m.emit(Note{Kind: NoteBadRecord, At: r.at, Inc: r.rec.Inc, Reason: fmt.Sprintf("of log version %d", r.rec.LogVersion)})
	default:
		m.exit(fmt.Sprintf("the group decides in log version %d, this router reads up to %d: use a newer build", r.rec.LogVersion, LogVersionMax))
	}
	return false
}

// applyEpoch takes a table. Gates close and Revoke goes out before anything that
// follows from the new table (rule 3).
func (m *Machine) applyEpoch(r read, e *Epoch) {
	s := m.state
	wasMember, before, version := m.isMember(), s.Members, m.groupVersion()
	if err := s.applyEpoch(r.at, r.rec.LogVersion, e); err != nil {
		if r.rec.Inc == m.cfg.Inc {
			m.emit(Note{Kind: NoteEpochLost, At: r.at, Reason: err.Error()})
		}
		m.noteAsked(r, e)
		return
	}
	m.keepView(r.at)
	moved := m.startDeadlines(r)
	m.moveGates(r)
	m.emit(PublishTable{s.table()})
	m.emit(Note{Kind: NoteEpoch, At: r.at, Inc: r.rec.Inc, Count: moved, Reason: e.Reason})
	if m.groupVersion() != version {
		m.beginPrefix(r) // members that came by the Snap of an older router do not know it
		m.emit(Note{Kind: NoteLogVersion, At: r.at, Inc: r.rec.Inc, Count: int(m.groupVersion())})
	}
	m.wanted = 0 // competing proposals are void: judge again
	m.raiseFloor()
	differs := m.otherSettings(s) // by the first epoch that names the group's settings
	switch isMember := m.isMember(); {
	case differs != "":
		m.exitForSettings(differs)
	case m.nameTaken(before):
		m.exit("another incarnation has taken the name " + m.cfg.Name)
	case wasMember && !isMember:
		m.removed(r)
	case !wasMember && isMember:
		m.joinedAt, m.votedOff = r.when, false
	}
}

// startDeadlines sets the deadlines of the tenures that the record at r has deposed (rule 4), and returns their
// number. A deadline counts from the newest Beat that was read from the owner.
func (m *Machine) startDeadlines(r read) (moved int) {
	for p := range m.state.pending.All() {
		tenures := m.state.Pending[p]
		if t := &tenures[len(tenures)-1]; t.Dep == r.at {
			t.deadline = m.heard(t.Inc).Add(WaitFor(t.Lease))
			moved++
		}
	}
	return moved
}

// applyGenesis deposes every tenure on every node, also where the owner stays.
func (m *Machine) applyGenesis(r read, g *Genesis) {
	if err := validGenesis(r.at, g); err != nil {
		m.emit(Note{Kind: NoteBadRecord, At: r.at, Inc: r.rec.Inc, Reason: "genesis: " + err.Error()})
		return
	}
	if m.state != nil && m.state.olderThan(g) {
		m.emit(Note{Kind: NoteOtherSettings, At: r.at, Inc: r.rec.Inc, Reason: "genesis: " + m.state.Identity.Against(g.Identity).String()})
		return
	}
	if m.voids(r, g) {
		return
	}
	begun := newGenesisState(r.at, r.rec.LogVersion, g)
	if reason := m.foreignGroup(begun); reason != "" {
		m.exitForSettings(reason)
		return
	}
	if reason := m.fallingTokens(TokenOf(g.Gen, r.at)); reason != "" {
		m.exitForSettings(reason)
		return
	}
	m.state = begun
	m.raiseFloor()
	m.beginPrefix(r)
	m.startAnyDeadlines(r.when)
	m.base, m.accepted = r.at, nil
	m.counted = nil // its sender is alive, despite the earlier count
	m.wanted, m.joinSince = 0, 0
	m.stopAll("genesis")
	m.moveGates(r)
	m.emit(PublishTable{m.state.table()})
	m.emit(Note{Kind: NoteGenesis, At: r.at, Inc: r.rec.Inc, Count: len(g.Table)})
}

// voids reports whether a Genesis has no effect: its author had not read a take (a record that covers a reservation) that
// precedes it. Its list may then lack that reservation, whose promise can outlast every lease.
func (m *Machine) voids(r read, g *Genesis) bool {
	take := m.newestTake()
	if !g.voidBy(r.rec.LogVersion, take) {
		return false
	}
	m.emit(Note{Kind: NoteGenesisVoid, At: take, Inc: r.rec.Inc})
	return true
}

// startAnyDeadlines is rule 4 for deliveries from before a Genesis, or from before the record that an adopted state comes
// from. x is when that record was read.
func (m *Machine) startAnyDeadlines(x clock.Instant) {
	m.heardBase = max(m.heardBase, x)
	for p := range m.state.pending.All() {
		for i := range m.state.Pending[p] {
			t := &m.state.Pending[p][i]
			t.deadline = max(t.deadline, x.Add(WaitFor(t.Lease)))
		}
	}
	m.gates.recheck = true
}

// applyBeat applies a Beat: first its proof about tenures, then its data about its sender,
// then, if it is our own, the lease (rule 2).
func (m *Machine) applyBeat(r read, b *Beat) {
	b = m.bounded(r, b)
	if m.isFromCopy(r, b) {
		m.lost("another process runs as this incarnation: it has sent a Beat that this one has not; was a virtual machine copied, or set back to a snapshot?")
		return
	}
	if m.diverged(r, b) {
		m.lost(fmt.Sprintf("log diverged: %v has another epoch %v", r.rec.Inc, b.Cur))
		return
	}
	if reason, forked := m.forked(r, b); forked {
		m.lost(reason)
		return
	}
	m.noteTakenOver(r.rec.Inc, b)
	if m.state.applyBeat(r.rec.Inc, b) {
		m.gates.recheck = true
	}
	p := m.peer(r.rec.Inc)
	if !slices.Contains(m.beating, r.rec.Inc) {
		m.beating = append(m.beating, r.rec.Inc)
	}
	if p.came == 0 {
		p.came = r.when
	}
	p.at, p.beat, p.heard = r.at, b, r.when
	if p.applied.Before(b.Applied) {
		p.applied = b.Applied
	}
	if b.Ready && !b.Applied.Before(p.asked) {
		p.asked = Position{}
	}
	p.note(r.when, b.Unreachable)
	if r.rec.Inc == m.cfg.Inc {
		m.ownBeat(r, b)
		return
	}
	m.noteBusy(r.rec.Inc, b)
	m.moveDeadlines(r, b)
}

// isFromCopy reports whether a Beat of our own incarnation is not ours but that of a copy of this process. It must set no
// lease: it was sent at another time. A copy of this process whose Beats equal ours is detected as soon as one of them
// differs.
func (m *Machine) isFromCopy(r read, b *Beat) bool {
	if r.rec.Inc != m.cfg.Inc {
		return false
	}
	return b.Seq > m.beats.seq || slices.ContainsFunc(m.beats.sent, func(s sentBeat) bool { return s.seq == b.Seq && s.applied != b.Applied })
}

// bounded returns a Beat that names at most unreachableMax nodes as unreachable; no member writes more. Each named
// node is compared with all those of the Beat before, so a longer list would be slow.
func (m *Machine) bounded(r read, b *Beat) *Beat {
	n := len(b.Unreachable)
	if n <= unreachableMax {
		return b
	}
	m.emit(Note{Kind: NoteBadRecord, At: r.at, Inc: r.rec.Inc, Count: n, Reason: fmt.Sprintf("beat: it names %d nodes as unreachable, of which the first %d count", n, unreachableMax)})
	cut := *b
	cut.Unreachable = slices.Clone(b.Unreachable[:unreachableMax]) // the rest is not kept with the peer
	return &cut
}

// moveDeadlines is rule 4 for later Beats: only one that lists p in draining moves
// the deadlines of its sender's tenures of p. Any other proves nothing about p: its
// sender holds no lease for it once it has read of its deposition.
func (m *Machine) moveDeadlines(r read, b *Beat) {
	for p := range both(b.Draining, m.state.pending) {
		for i := range m.state.Pending[p] {
			if t := &m.state.Pending[p][i]; t.Inc == r.rec.Inc {
				t.deadline = max(t.deadline, r.when.Add(WaitFor(t.Lease)))
			}
		}
	}
}

// ownBeat is rule 2: reading one's own Beat back is the only thing that sets a
// lease, and it counts from before the Beat was sent.
func (m *Machine) ownBeat(r read, b *Beat) {
	sent, ok := m.beats.readBack(b.Seq)
	if !ok {
		return // a duplicate
	}
	m.ownRead = r.when
	m.forgetSilent()
	m.count(counted{r.at, sent, r.when})
	m.fresh = max(m.fresh, sent)
	m.lease = max(m.lease, sent.Add(m.cfg.Timing.Lease))
	m.listed = b.Draining
	m.gates.recheck = true
	m.setLease()
	if m.lapsed != 0 && m.isFresh() {
		m.emit(Note{Kind: NoteLeaseRegained, Took: m.now.Sub(m.lapsed)})
		m.lapsed = 0
	}
}

// setLease publishes the lease. Barred partitions are never listed, so no Pong can extend them
// (rule 7).
func (m *Machine) setLease() {
	draining := newSet(m.cfg.Partitions)
	for p := range both(m.listed, m.gates.running) {
		if !m.gates.barred.Has(p) {
			draining.add(p)
		}
	}
	m.emit(SetLease{Lease{Until: m.lease, Guard: m.cfg.Timing.Guard, Draining: draining.Clone()}})
}

// count keeps those own Beats that came at the pace of R (Timing.BeatEvery). Others judge nobody's silence: not Beats that
// were sent together, nor Beats that an outage has delayed and then let through together. A pause restarts the count, so
// that an outage counts against no one.
func (m *Machine) count(c counted) {
	r := m.cfg.Timing.BeatEvery
	if n := len(m.counted); n > 0 {
		last := m.counted[n-1]
		if c.sent.Sub(last.sent) < r*9/10 || c.read.Sub(last.read) < r/2 {
			return
		}
		if c.sent.Sub(last.sent) > 3*r || c.read.Sub(last.read) > 3*r {
			m.counted = nil
		}
	}
	m.counted = append(m.counted, c)
	if len(m.counted) > countedMax {
		m.counted = slices.Delete(m.counted, 0, 1)
	}
}

// keepView remembers the epoch that was just accepted, to compare views.
func (m *Machine) keepView(at Position) {
	m.accepted = append(m.accepted, view{at, m.state.ViewHash})
	if len(m.accepted) > acceptedMax {
		m.base = m.accepted[0].at
		m.accepted = slices.Delete(m.accepted, 0, 1)
	}
}

// diverged reports whether the sender of b has another history: its current epoch is one that
// we have passed and never accepted, or accepted with another view. Epochs before our adoption
// or the newest Genesis cannot be judged.
func (m *Machine) diverged(r read, b *Beat) bool {
	if !m.base.Before(b.Cur) || !b.Cur.Before(r.at) {
		return false
	}
	i, ok := slices.BinarySearchFunc(m.accepted, b.Cur, func(v view, at Position) int { return v.at.Compare(at) })
	return !ok || m.accepted[i].hash != b.ViewHash
}

// noteLapse reports the end of the lease. It has no other effect: rule 6 compares.
func (m *Machine) noteLapse() {
	if m.lease != 0 && m.lapsed == 0 && m.due(m.lease) {
		m.lapsed = m.lease
		m.emit(Note{Kind: NoteLeaseLapsed})
	}
}

// lost ends this incarnation because it can no longer know the owners.
func (m *Machine) lost(reason string) {
	m.emit(Note{Kind: NoteLostTrust, Reason: reason})
	m.end(reason, Lost{reason})
}

// exit ends this member.
func (m *Machine) exit(reason string) { m.end(reason, Exit{Reason: reason}) }

// exitForSettings ends this member because its settings are not those of its group.
func (m *Machine) exitForSettings(reason string) { m.end(reason, Exit{Reason: reason, Settings: true}) }

func (m *Machine) end(reason string, last Effect) {
	if m.over {
		return
	}
	m.stopAll(reason)
	m.closeGates()
	m.over = true
	m.next = clock.Forever
	m.emit(SetLease{}) // permits nothing
	m.emit(last)
}
