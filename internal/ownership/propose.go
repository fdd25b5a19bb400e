package ownership

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/ring"
)

// How many counted Beats judge silence (section 3, Proposing).
const (
	silentWithEvidence    = 3
	silentWithoutEvidence = 5
	replacedAfter         = 2
	countedMax            = 64 // remembered
)

// intent holds the requests of this node: for itself, and for the group.
type intent struct {
	leaving bool // asked to leave
	leaveAt clock.Instant
	app     bool // an application is connected
	appGone clock.Instant

	joinedAt     clock.Instant // when it became a member
	votedOff     bool          // removed by others, and not a member since
	removals     int           // in a row
	backoffUntil clock.Instant

	wanted     clock.Instant // since when an epoch is wanted; zero: none is
	joinSince  clock.Instant // since when a node can join; zero: none can
	proposedAt clock.Instant
	rivalSince clock.Instant // since when another incarnation is seen to beat under our name
	full       bool          // it was said that the group has no place for this node
}

func (m *Machine) appReady(in AppReady) {
	if m.app && !in.Ready {
		m.appGone = m.now
	}
	m.app = in.Ready
}

// ready is the flag in our Beats: this node wants partitions. A node that was removed waits
// until it is drained, reaches a majority, and its back-off has passed.
func (m *Machine) ready() bool {
	if !m.app || m.leaving {
		return false
	}
	if m.votedOff && !m.isMember() {
		return m.gates.running.Empty() && m.reachesMajority() && m.due(m.backoffUntil)
	}
	return true
}

// wantsOut reports whether this member gives its partitions up.
func (m *Machine) wantsOut() bool {
	return m.leaving || !m.app && m.due(m.appGone.Add(m.cfg.Timing.AppAbsence))
}

// removed begins the back-off of a member that others have removed.
func (m *Machine) removed(r read) {
	if m.wantsOut() || r.rec.Inc == m.cfg.Inc || !m.peer(m.cfg.Inc).asked.IsZero() {
		return // as it wishes, or did when it proposed this or asked for it
	}
	t := &m.cfg.Timing
	if r.when.Sub(m.joinedAt) > t.RemovedMax {
		m.removals = 0
	}
	m.removals++
	wait := backoff.Nth(t.RemovedBackoff, t.RemovedMax, m.removals)
	m.votedOff = true
	m.backoffUntil = r.when.Add(wait)
	m.emit(Note{Kind: NoteRemoved, At: r.at, Inc: r.rec.Inc, Took: wait})
}

// nameTaken reports whether the epoch that was just accepted gives our name to an incarnation that came after us:
// then this node must exit. An epoch that adds our own dead predecessor late does not count. Nodes are in the order
// in which they came. Since does not give this order, because a removal changes it.
func (m *Machine) nameTaken(before []Incarnation) bool {
	mine, known := m.state.byInc[m.cfg.Inc]
	return known && slices.ContainsFunc(m.state.Members, func(inc Incarnation) bool {
		n, _ := m.state.Node(inc)
		return n.Name == m.cfg.Name && m.state.byInc[inc] > mine && !slices.Contains(before, inc)
	})
}

// judgeName makes a node exit whose name is kept beating by another incarnation.
func (m *Machine) judgeName() {
	rival := m.rival()
	if rival == nil || !m.seenFresh(rival) {
		m.rivalSince = 0
		return
	}
	if m.rivalSince == 0 {
		m.rivalSince = m.now
		m.emit(Note{
			Kind: NoteNameHeld, Inc: rival.Inc, Name: rival.Name,
			Reason: fmt.Sprintf("it beats under the name of this router, which exits if that lasts for %v", m.cfg.Timing.NameInUseAfter),
		})
	}
	if m.due(m.rivalSince.Add(m.cfg.Timing.NameInUseAfter)) {
		m.exit("name_in_use: " + rival.Inc.String() + " beats as " + rival.Name + "; each router needs a node.name of its own")
	}
}

// rival is another member with our name, nil if there is none.
func (m *Machine) rival() *Node {
	if n := m.memberNamed(m.cfg.Name); n != nil && n.Inc != m.cfg.Inc {
		return n
	}
	return nil
}

// memberNamed is the member with this name, nil if there is none.
func (m *Machine) memberNamed(name string) *Node {
	for i := range m.state.Members {
		if n := m.state.member(i); n.Name == name {
			return n
		}
	}
	return nil
}

// knownRival is a rival that was seen to beat, nil if there is none.
func (m *Machine) knownRival() *Node {
	if m.rivalSince == 0 || m.state == nil {
		return nil
	}
	return m.rival()
}

// propose appends an Epoch when one is needed, in this node's turn and not too often. Any FRESH
// node may propose, member or not: otherwise a dead sole member would block the nodes that have
// adopted its state forever. A late proposal loses the compare-and-set, or wins and is only
// churn.
func (m *Machine) propose() {
	if !m.isFresh() {
		m.wanted = 0
		return
	}
	next, ok := m.plan()
	if !ok {
		m.wanted = 0
		return
	}
	if m.wanted == 0 {
		m.wanted = m.now
	}
	t := &m.cfg.Timing
	wait, spacing := time.Duration(m.rank())*t.RankDelay, t.ProposeSpacing
	if m.wantsOut() {
		wait, spacing = 0, spacing+m.turnToLeave()
	}
	if !m.due(m.wanted.Add(wait)) || m.proposedAt != 0 && !m.due(m.proposedAt.Add(spacing)) {
		return
	}
	m.proposedAt = m.now
	names := make([]string, len(next.members))
	incs := make([]Incarnation, len(next.members))
	for i, n := range next.members {
		names[i], incs[i] = n.Name, n.Inc
	}
	table, err := m.cfg.Place(names)
	if err != nil {
		m.emit(Note{Kind: NotePlaceFailed, Reason: err.Error()})
		return
	}
	table = m.keepStill(names, table)
	reason := strings.Join(next.reasons, ", ")
	m.appendAs(m.versionToWrite(), m.inVersion(&Epoch{Prev: m.state.Cur, Members: incs, Table: table, Reason: reason}, next.members))
	m.emit(Note{Kind: NoteProposed, At: m.state.Cur, Count: len(incs), Reason: reason})
	m.due(m.now.Add(t.ProposeSpacing))
}

// keepStill removes from a table the moves that no join or leave requires. Members are
// identified by name: a replaced member gets its partitions back.
func (m *Machine) keepStill(names []string, table []uint16) []uint16 {
	at := make(map[string]int, len(names)) // name → index in names
	joining := make([]bool, len(names))
	for i, name := range names {
		at[name], joining[i] = i, true
	}
	owner := make([]int, len(m.state.Members)) // index in Members → index in names
	for i, inc := range m.state.Members {
		owner[i] = ring.Unowned
		if at, remains := at[m.nameOf(inc)]; remains {
			owner[i], joining[at] = at, false
		}
	}
	present := make([]int, len(table))
	for p := range present {
		present[p] = owner[m.state.Table[p]]
	}
	return ring.KeepStill(table, present, joining)
}

// plan is the membership of a next epoch.
type plan struct {
	members []Node // by name
	reasons []string
}

// plan returns the next set of members, and false if it is the present one, or if it is not
// time yet.
func (m *Machine) plan() (plan, bool) {
	var next plan
	var gone []Incarnation
	named := m.named()
	for i, inc := range m.state.Members {
		n := m.state.member(i)
		if why := m.mustGo(n, named); why != "" {
			next.reasons = append(next.reasons, why+" "+n.Name)
			gone = append(gone, inc)
		}
	}
	joiners := m.joiners()
	if len(joiners) == 0 {
		m.joinSince = 0
	} else if m.joinSince == 0 {
		m.joinSince = m.now
	}
	if len(joiners) > 0 && len(gone) == 0 && !m.due(m.joinSince.Add(m.cfg.Timing.JoinSettle)) {
		joiners = nil // a removal takes them along, settled or not: one move instead of two
	}
	if len(joiners) > 0 && m.othersWork(gone) {
		joiners = m.withoutLateStarters(joiners)
	}
	joiners = m.withRoom(joiners, gone)
	upgrade := m.wantsUpgrade()
	if upgrade {
		next.reasons = append(next.reasons, fmt.Sprintf("log version %d", m.versionToWrite()))
	}
	if len(gone)+len(joiners) == 0 && !upgrade {
		return next, false
	}
	for i, inc := range m.state.Members {
		n := *m.state.member(i)
		replaced := slices.ContainsFunc(joiners, func(j Node) bool { return j.Name == n.Name })
		if !replaced && !slices.Contains(gone, inc) {
			next.members = append(next.members, n)
		}
	}
	for _, n := range joiners {
		next.members = append(next.members, n)
		next.reasons = append(next.reasons, "join "+n.Name)
	}
	slices.SortFunc(next.members, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return next, slices.ContainsFunc(next.members, func(n Node) bool { return m.seenReady(&n) })
}

// withRoom drops the joining nodes beyond the ring.MembersMax members that a table can have; they join when a member goes. The nodes that
// came to the log first join first. A node that replaces a member of its name takes no further place.
func (m *Machine) withRoom(joiners []Node, gone []Incarnation) []Node {
	room := ring.MembersMax - len(m.state.Members) + len(gone)
	if len(joiners) <= room {
		return joiners
	}
	slices.SortStableFunc(joiners, func(a, b Node) int { return a.Since.Compare(b.Since) })
	return slices.DeleteFunc(joiners, func(j Node) bool {
		if o := m.memberNamed(j.Name); o != nil && !slices.Contains(gone, o.Inc) {
			return false
		}
		room--
		return room < 0
	})
}

// groupFull reports whether this node could join, but the group has as many members as it can have.
func (m *Machine) groupFull() bool {
	return m.state != nil && len(m.state.Members) >= ring.MembersMax && !m.isMember() && m.ready() && m.memberNamed(m.cfg.Name) == nil
}

// noteFull says once that this node waits for a place in its group.
func (m *Machine) noteFull() {
	full := m.groupFull()
	if full && !m.full {
		m.emit(Note{Kind: NoteGroupFull, Count: len(m.state.Members), Reason: fmt.Sprintf("a group has at most %d members: this router joins when one of them leaves", ring.MembersMax)})
	}
	m.full = full
}

// withoutLateStarters drops the joining nodes that would delay the takeover of a dead owner's
// partitions: a node that has adopted its state has read no Beat from before its own Hello, and
// counts every lease from there (rule 4), where the members count from the last Beat. It gets
// its share when its Hello is a lease old, or when no owner is doubtful: then from live owners.
func (m *Machine) withoutLateStarters(joiners []Node) []Node {
	lease := m.longestDoubtful()
	if lease == 0 {
		return joiners
	}
	return slices.DeleteFunc(joiners, func(j Node) bool {
		return !m.due(m.peer(j.Inc).came.Add(WaitFor(lease)))
	})
}

// othersWork reports whether another member remains that is ready, or may be: this node has not been here for long
// enough to have heard it.
func (m *Machine) othersWork(gone []Incarnation) bool {
	here := m.peer(m.cfg.Inc).came
	for i, inc := range m.state.Members {
		n := m.state.member(i)
		if slices.Contains(gone, inc) {
			continue
		}
		if m.seenReady(n) || !m.everHeard(inc) && !m.due(here.Add(n.Lease)) {
			return true
		}
	}
	return false
}

func (m *Machine) everHeard(inc Incarnation) bool {
	p := m.peers[inc]
	return p != nil && p.beat != nil
}

// longestDoubtful is the longest lease of the owners that may be dead: members that we do not
// hear or reach, and owners that have not answered their deposition. Zero: none.
func (m *Machine) longestDoubtful() (lease time.Duration) {
	for i, inc := range m.state.Members {
		if n := m.state.member(i); inc != m.cfg.Inc && (m.reachOf(inc) == ReachDead || !m.everHeard(inc) || m.replaceable(n)) {
			lease = max(lease, n.Lease)
		}
	}
	for p := range m.state.pending.All() {
		for _, t := range m.state.Pending[p] {
			if o := m.peers[t.Inc]; !t.Inc.IsZero() && (o == nil || o.at.Before(t.Dep)) {
				lease = max(lease, t.Lease)
			}
		}
	}
	return lease
}

// mustGo returns the reason why a node may not remain a member, "" if it may.
func (m *Machine) mustGo(n *Node, named []Incarnation) string {
	switch {
	case n.Inc == m.cfg.Inc:
		if m.wantsOut() {
			return "leave"
		}
	case m.silent(n):
		return "silent"
	case m.asksOut(n):
		return "leave"
	case slices.Contains(named, n.Inc) && m.votedOut(n):
		return "unreachable"
	}
	return ""
}

// seenReady reports whether n is seen FRESH and wants partitions.
func (m *Machine) seenReady(n *Node) bool {
	if n.Inc == m.cfg.Inc {
		return m.isFresh() && m.ready()
	}
	return m.seenFresh(n) && m.peers[n.Inc].beat.Ready
}

// silent reports whether n has not been heard to apply the log up to our k-th last counted
// Beat. So a node with a working producer and a stuck reader is silent too.
func (m *Machine) silent(n *Node) bool {
	k, p := silentWithoutEvidence, m.peers[n.Inc]
	if p != nil && p.reach == ReachDead {
		k = silentWithEvidence
	}
	since, ok := m.countedAgo(k, n)
	return ok && (p == nil || p.applied.Before(since))
}

// countedAgo returns the position of our k-th last counted Beat, with k at n's pace: a node
// with a longer lease sends Beats more slowly, and must not be judged by our faster ones.
func (m *Machine) countedAgo(k int, n *Node) (Position, bool) {
	mine := m.cfg.Timing.Lease
	k = min(k*int((n.Lease+mine-1)/mine), countedMax)
	if len(m.counted) < k {
		return Position{}, false
	}
	return m.counted[len(m.counted)-k].at, true
}

// named lists the nodes that members report as unreachable: mostly none.
func (m *Machine) named() []Incarnation {
	var list []Incarnation
	for _, inc := range m.state.Members {
		if p := m.peers[inc]; p != nil {
			for _, l := range p.lists {
				list = append(list, l.inc)
			}
		}
	}
	return list
}

// votedOut reports whether more than half of the FRESH members, apart from x, name
// x as unreachable in two Beats at least 0.9 R apart, and we reach more than half.
// Of two members the smaller name stays.
func (m *Machine) votedOut(x *Node) bool {
	if !m.seenFresh(x) {
		return false // silence will judge it
	}
	voters, votes, reached := 0, 0, 0
	tie := ""
	for i, inc := range m.state.Members {
		n := m.state.member(i)
		if inc == x.Inc || !m.seenFresh(n) {
			continue
		}
		voters++
		tie = n.Name
		if m.votesAgainst(inc, x.Inc) {
			votes++
		}
		if inc == m.cfg.Inc || m.reachOf(inc) != ReachDead {
			reached++
		}
	}
	if voters == 1 && x.Name < tie {
		return false
	}
	return 2*votes > voters && 2*reached > voters
}

// votesAgainst reports whether voter has named x for 0.9 R without a break.
func (m *Machine) votesAgainst(voter, x Incarnation) bool {
	p := m.peers[voter]
	if p == nil {
		return false
	}
	i := p.listing(x)
	return i >= 0 && p.lists[i].last.Sub(p.lists[i].first) >= m.cfg.Timing.BeatEvery*9/10
}

// joiners are the nodes that can become members now, by name.
func (m *Machine) joiners() []Node {
	var list []Node
	for _, inc := range m.beating {
		if m.state.IsMember(inc) {
			continue
		}
		if n := m.state.node(inc); n != nil && m.mayJoin(n) {
			list = append(list, *n)
		}
	}
	slices.SortFunc(list, func(a, b Node) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), a.Since.Compare(b.Since), bytes.Compare(a.Inc[:], b.Inc[:]))
	})
	return slices.CompactFunc(list, func(a, b Node) bool { return a.Name == b.Name }) // the first of a name
}

// mayJoin reports whether a node that is not a member can become one: it sends Beats and is
// ready, it reaches and is reached by a majority of the FRESH members, and no live node has its
// name.
func (m *Machine) mayJoin(n *Node) bool {
	if !m.seenReady(n) {
		return false
	}
	p := m.peers[n.Inc]
	if p == nil || p.beat == nil || !p.beat.Ready {
		return false
	}
	if !placeable(n) {
		return false
	}
	if p.beat.Applied.Before(n.Since) {
		return false // a Beat of before its removal, which asks for nothing: it may be dead
	}
	fresh, reaches, reached := 0, 0, 0
	for i, inc := range m.state.Members {
		o := m.state.member(i)
		if o.Name == n.Name {
			if !m.replaceable(o) {
				return false
			}
			continue
		}
		if !m.seenFresh(o) {
			continue
		}
		fresh++
		if !slices.Contains(p.beat.Unreachable, inc) {
			reaches++
		}
		if !m.names(inc, n.Inc) {
			reached++
		}
	}
	return fresh == 0 || 2*reaches > fresh && 2*reached > fresh
}

// placeable reports whether a table can be made with a node. With one that is not, no epoch could be proposed at all.
func placeable(n *Node) bool { return len(n.Name) <= ring.MemberBytesMax }

// names reports whether inc says now that it cannot reach x.
func (m *Machine) names(inc, x Incarnation) bool {
	if inc == m.cfg.Inc {
		return m.reachOf(x) == ReachDead
	}
	p := m.peers[inc]
	return p != nil && p.listing(x) >= 0
}

// replaceable reports whether a member has no Beat in our last two counted Beats.
func (m *Machine) replaceable(n *Node) bool {
	since, ok := m.countedAgo(replacedAfter, n)
	p := m.peers[n.Inc]
	return ok && n.Inc != m.cfg.Inc && (p == nil || p.at.Before(since))
}

// reachesMajority reports whether we reach more than half of the FRESH members.
func (m *Machine) reachesMajority() bool {
	fresh, reached := 0, 0
	for i, inc := range m.state.Members {
		if !m.seenFresh(m.state.member(i)) {
			continue
		}
		fresh++
		if m.reachOf(inc) != ReachDead {
			reached++
		}
	}
	return fresh == 0 || 2*reached > fresh
}

// rank is this node's turn: seen-FRESH members by name, then the other seen-FRESH nodes. A node
// that must leave has no turn.
func (m *Machine) rank() int {
	me, _ := m.state.Node(m.cfg.Inc)
	me.Name, me.Inc = m.cfg.Name, m.cfg.Inc // also when the log has forgotten us
	member := m.isMember()
	rank := 0
	for _, inc := range m.beating {
		n := m.state.node(inc)
		if n == nil || inc == m.cfg.Inc || !m.seenFresh(n) || m.silent(n) {
			continue
		}
		other := m.state.IsMember(n.Inc)
		before := cmp.Or(cmp.Compare(n.Name, me.Name), bytes.Compare(n.Inc[:], me.Inc[:])) < 0
		if other && !member || other == member && before {
			rank++
		}
	}
	return rank
}
