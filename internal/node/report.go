package node

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/time/rate"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/invariant"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/ring"
)

// Reports returns the reports of this node and its group, and lets its peers query it too. prover
// takes part in proofs for it; nil: nothing does. Call it once, before Run.
func (n *Node) Reports(prover report.Prover) *report.Group {
	s := newReporter(n)
	n.peers.Also(report.NewServer(s, prover).Register)
	n.group = report.NewGroup(s, prover, n.parts.ClientCreds)
	return n.group
}

// reporter answers reports about this node. It implements report.Local.
type reporter struct {
	node  *Node
	since clock.Instant
	keys  *rate.Limiter // looks for a key, which go through all held events
	lists *rate.Limiter // lists of keys, which go through all keys too
}

// keysPerSecond bounds the queries about keys from all callers; further ones wait for their
// turn.
const keysPerSecond = 20

// listsPerSecond bounds the lists of keys for all callers.
const listsPerSecond = 4

// tooMany is the error of a question about keys that gets no turn.
const tooMany = "too many questions about keys: ask again in a moment"

func newReporter(n *Node) *reporter {
	return &reporter{
		node: n, since: clock.Now(),
		keys: rate.NewLimiter(keysPerSecond, keysPerSecond), lists: rate.NewLimiter(listsPerSecond, listsPerSecond),
	}
}

func (s *reporter) reporter() report.View {
	n := s.node
	who := report.View{
		Member: n.cfg.Name, Incarnation: n.self.Load().inc.String(),
		Position: n.Status().Applied.String(), Epoch: ownership.Position{}.String(),
	}
	if t := n.Table(); t != nil {
		who.Epoch, who.Table = t.Cur.String(), fingerprint(t)
	}
	return who
}

// otherSettings records the difference of a router that wanted to join.
type otherSettings struct {
	at     clock.Instant
	reason string
}

// otherSettingsShownMax is how long otherSettings are shown.
const otherSettingsShownMax = 10 * time.Minute

// fingerprint is equal for equal owners and tokens.
func fingerprint(t *ownership.Table) string {
	sum := xxhash.New()
	for p, token := range t.Tokens {
		owner := t.Owner(ring.Partition(p)).Inc
		_, _ = sum.Write(binary.BigEndian.AppendUint64(owner[:], uint64(token))) // never fails
	}
	return fmt.Sprintf("%016x", sum.Sum64())
}

// Status implements report.Local.
func (s *reporter) Status() report.Status {
	n := s.node
	st := n.Status()
	status := report.Status{
		View: s.reporter(), Group: n.cfg.Group, Version: n.cfg.Build, Mode: n.cfg.Mode.String(),
		Phase: string(st.Phase), Listed: st.Member, Generation: st.Gen, Workers: n.Workers(),
		Gates:       report.Gates{Open: st.Open, Waiting: st.Waiting, Draining: st.Draining, Pending: st.Pending, Withheld: st.Withheld},
		Events:      n.heldEvents(),
		Visits:      n.visits(),
		Rates:       report.Rates(n.boxes.Rates()),
		Exclusivity: s.exclusivity(),
		Listeners:   n.cfg.Listeners,
	}
	status.Schedules, status.SchedulesUnshown = n.schedules.report()
	for _, w := range n.app.Unchecked() {
		status.UncheckedWorkers = append(status.UncheckedWorkers, report.Worker(w))
	}
	for _, inc := range n.self.Load().earlier {
		status.Earlier = append(status.Earlier, inc.String())
	}
	if t := n.Table(); t != nil {
		status.LogVersion = t.Version
	}
	status.Settings = make(map[string]string, len(n.cfg.Identity))
	for _, one := range n.cfg.Identity {
		status.Settings[one.Name] = one.Value
	}
	status.TopicsNotConsumed = n.TopicsNotConsumed()
	for topic, why := range n.topicsUnread() {
		if status.TopicsUnread == nil {
			status.TopicsUnread = make(map[string]string)
		}
		status.TopicsUnread[topic] = why.Error()
	}
	status.Acts = n.actsStatus()
	if other := n.otherSettings.Load(); other != nil && clock.Now().Sub(other.at) < otherSettingsShownMax {
		status.OtherSettings = other.reason
	}
	drainCycle := n.drainCycle()
	status.Draining, status.Drained = drainCycle.isDraining(), drainCycle.isDrained()
	if st.Lease != 0 {
		status.LeaseSeconds = st.Lease.Sub(clock.Now()).Seconds()
	}
	for _, c := range n.Probes().Ready {
		check := report.Check{Name: c.Name}
		if err := c.Ask(); err != nil {
			check.Error = err.Error()
		}
		status.Checks = append(status.Checks, check)
	}
	return status
}

func (n *Node) heldEvents() report.Events {
	boxes, now := n.boxes.Stats(), clock.Now()
	events := report.Events{
		Mailboxes: boxes.Events, Running: boxes.Running, Keys: boxes.Keys, HeldKeys: boxes.Held,
		OnHoldKeys:        boxes.OnHold,
		OldestHereSeconds: age(now, boxes.Oldest),
	}
	if src := n.source.Load(); src != nil {
		ledger := src.Stats()
		events.Unsettled, events.PinnedEntries, events.Spilling = ledger.Unsettled, ledger.PinnedEntries, ledger.Spilling
		events.OldestSeconds = age(now, ledger.Oldest)
	}
	return events
}

// visits counts the calls and reservations of this node, at both of their ends.
func (n *Node) visits() *report.Visits {
	boxes, callers := n.boxes.Stats(), n.lane.Stats()
	return &report.Visits{
		Waiting: boxes.Visits - boxes.VisitsRun, Running: boxes.VisitsRun - boxes.Reserved, Reserved: boxes.Reserved,
		Crowded: boxes.Crowded, Refused: callers.Refused,
		Bounds: []report.Bound{
			{Setting: "mailbox.calls_max", Used: boxes.Visits, Max: n.cfg.Mailbox.CallsMax},
			{Setting: "reservations of an owner", Used: boxes.Reserves, Max: mailbox.ReservationsMax},
			{Setting: "lane.calls_max", Used: callers.Unanswered, Max: callers.CallsMax},
			{Setting: "lane.calls_bytes_max", Used: callers.Bytes, Max: callers.BytesMax},
			{Setting: "lane.reservations_max", Used: callers.Reservations, Max: callers.ReservationsMax},
		},
	}
}

// left returns the time until an instant.
func left(now, until clock.Instant) float64 { return max(0, until.Sub(now).Seconds()) }

// age returns the time since an instant, 0 if there is none.
func age(now, since clock.Instant) float64 {
	if since == clock.Forever || since == 0 {
		return 0
	}
	return max(0, now.Sub(since).Seconds())
}

func (s *reporter) exclusivity() report.Exclusivity {
	n := s.node
	return report.Exclusivity{
		Seconds:           age(clock.Now(), s.since),
		InvariantFailures: invariant.Failures(),
		ForcedDrains:      counted(n.metrics.forced),
		LateResults:       counted(n.app.Metrics.LateResults()),
		LostTrust:         counted(n.metrics.lost),
		Audit:             n.audited(),
		LeaseLapses:       counted(n.metrics.notes.WithLabelValues(string(ownership.NoteLeaseLapsed))),
	}
}

// counted reads a counter.
func counted(c prometheus.Counter) uint64 {
	var m dto.Metric
	_ = c.Write(&m) // a counter has nothing that could fail
	return uint64(m.GetCounter().GetValue())
}

// Partitions implements report.Local.
func (s *reporter) Partitions(ctx context.Context) report.Partitions {
	all := report.Partitions{View: s.reporter(), Partitions: []report.Partition{}}
	t := s.node.Table()
	if t == nil {
		return all
	}
	var ours []ring.Partition
	for p, state := range s.node.boxes.Parts() {
		if state.Gate == ownership.Waiting || state.Gate == ownership.Open { // which may withhold keys
			ours = append(ours, ring.Partition(p))
		}
		all.Partitions = append(all.Partitions, report.Partition{
			Number: uint16(p), Owner: t.Owner(ring.Partition(p)).Name, Token: int64(t.Tokens[p]),
			Gate: state.Gate.String(), Running: state.Running,
		})
	}
	for i, blockers := range s.blockers(ctx, ours...) {
		all.Partitions[ours[i]].Blockers = blockers
	}
	return all
}

// unnamedListedMax bounds the members in a report that gossip alone knows: a stranger may
// have invented them.
const unnamedListedMax = 64

// Members implements report.Local: this node, the members of its table, and those that gossip knows.
func (s *reporter) Members() []report.Member {
	n := s.node
	own := n.self.Load()
	self := own.inc
	var members []report.Member
	seen := map[ownership.Incarnation]bool{}
	add := func(name string, inc ownership.Incarnation, address string, owned int, listed bool) {
		if seen[inc] {
			return
		}
		seen[inc] = true
		m := report.Member{Name: name, Incarnation: inc.String(), Address: address, Partitions: owned, Listed: listed, Reach: n.reach.word(inc), Over: slices.Contains(own.earlier, inc)}
		if inc == self {
			m.Reach = report.ReachSelf
		}
		members = append(members, m)
	}
	if t := n.Table(); t != nil {
		owned := make([]int, len(t.Members))
		for _, i := range t.Owners {
			owned[i]++
		}
		for i, m := range t.Members {
			add(m.Name, m.Inc, m.GRPCAddr, owned[i], true)
		}
	}
	add(n.cfg.Name, self, n.cfg.PeerAddr, 0, false)
	if l := n.incarnation.Load(); l != nil {
		unnamed := 0
		for _, m := range l.gossip.Members() {
			if named, ok := l.entryOf(m.Inc); ok {
				add(named.Name, m.Inc, named.GRPCAddr, 0, false)
			} else if !seen[m.Inc] && (n.cfg.Mode == Gossip || unnamed < unnamedListedMax) {
				unnamed++
				add(m.Name, m.Inc, m.GRPCAddr, 0, false)
				members[len(members)-1].Unnamed = n.cfg.Mode != Gossip
			}
		}
	}
	slices.SortStableFunc(members, func(a, b report.Member) int { return cmp.Compare(a.Name, b.Name) })
	return members
}

// word is the node's knowledge of the reach of a peer.
func (r *reach) word(inc ownership.Incarnation) string {
	r.mu.Lock()
	verdict := r.peers[inc].verdict()
	r.mu.Unlock()
	switch verdict {
	case ownership.ReachAlive:
		return "alive"
	case ownership.ReachDead:
		return "dead"
	case ownership.ReachUnknown:
	}
	return report.ReachUnknown
}

// Owner implements report.Local.
func (s *reporter) Owner(p ring.Partition) (*report.Member, int64) {
	t := s.node.Table()
	if t == nil {
		return nil, 0
	}
	owner := t.Owner(p)
	return &report.Member{
		Name: owner.Name, Incarnation: owner.Inc.String(), Address: owner.GRPCAddr, Over: slices.Contains(s.node.self.Load().earlier, owner.Inc),
	}, int64(t.Tokens[p])
}

// Key implements report.Local.
func (s *reporter) Key(ctx context.Context, key event.Key) report.KeyAt {
	ctx, cancel := context.WithTimeout(ctx, report.AskTimeout)
	defer cancel()
	if s.keys.Wait(ctx) != nil {
		s.node.metrics.questionsRefused.Inc()
		return report.KeyAt{View: s.reporter(), Error: tooMany}
	}
	now, state := clock.Now(), s.node.boxes.Inspect(key)
	at := report.KeyAt{View: s.reporter(), Gate: state.Gate.String(), Wait: state.Wait.String(), Held: s.held(now, key), Hold: s.node.holdOf(key)}
	at.NoApplication = s.node.appIsGone()
	at.Skips, at.MoreSkips = s.node.skipsOf(key)
	at.Park, at.Parking = s.node.parkOf(key), s.node.parking(key)
	if at.Wait == report.WaitsForNothing {
		return at
	}
	at.Seconds, at.Age = age(now, state.Since), age(now, state.Accepted)
	at.Queued, at.Event, at.Failures, at.Worker = state.Behind(), state.Event.String(), state.Attempts, uint64(state.Worker)
	at.LastError = state.LastError
	s.describeVisits(&at, now, &state)
	if state.HeldUntil != 0 {
		at.RetryIn = left(now, state.HeldUntil)
	}
	if state.Wait == mailbox.WaitGate {
		for _, blockers := range s.blockers(ctx, state.Partition) {
			at.Blockers = blockers
		}
	}
	return at
}

// describeVisits tells of the calls and reservations of a key: the one that runs or is next, and those that wait.
func (s *reporter) describeVisits(at *report.KeyAt, now clock.Instant, state *mailbox.KeyState) {
	at.Call, at.Calls = state.Call, state.Calls
	if state.Call {
		at.Event = "" // the id is that of no message: no skip can name it
		at.Method, at.Via = state.Method, s.via(state.Via)
	}
	if state.Method != "" {
		at.CallerWaits = left(now, state.Deadline)
	}
	if left, held := s.node.app.Reserved(state.Delivery); held {
		at.Reservation = &report.Reservation{Token: state.Fence.Token, Turn: state.Fence.Turn, Left: left.Seconds()}
	}
	for _, w := range state.Waiting {
		at.Waiting = append(at.Waiting, report.Waiting{
			Method: w.Method, Via: s.via(w.Via), Seconds: age(now, w.Accepted), Left: left(now, w.Deadline), Callers: w.Callers,
		})
	}
}

// via names the member at which a caller or a holder asked, "" if it is gone.
func (s *reporter) via(from mailbox.Sender) string {
	if from == mailbox.Local {
		return s.node.cfg.Name
	}
	peer, connected := s.node.peers.PeerOf(forward.StreamID(from))
	if !connected {
		return ""
	}
	return s.nameOf(peer)
}

// blockersWait is how long a report waits for the next step of the driver to learn its
// blockers.
const blockersWait = report.AskTimeout / 2

// blockers returns, for each partition, the tenures that it waits for, as published by the driver;
// nothing if the driver takes no step in time. It makes no call to the driver.
func (s *reporter) blockers(ctx context.Context, partitions ...ring.Partition) [][]report.Blocker {
	l := s.node.incarnation.Load()
	if l == nil || l.shown == nil || len(partitions) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, blockersWait)
	defer cancel()
	shown, now := l.shown.look(ctx), clock.Now()
	all := make([][]report.Blocker, len(partitions))
	for i, p := range partitions {
		wait := shown.partitions[p]
		if wait.running {
			all[i] = append(all[i], report.Blocker{Member: s.node.cfg.Name})
		}
		for j, b := range wait.blockers {
			all[i] = append(all[i], report.Blocker{Member: wait.names[j], Start: b.Start.String(), Seconds: left(now, b.Deadline)})
		}
	}
	return all
}

// held returns the places of a key's events that this node has received.
func (s *reporter) held(now clock.Instant, key event.Key) []report.Held {
	var all []report.Held
	for _, share := range s.node.pool.Inspect(key) {
		all = append(all, report.Held{Place: share.Place.String(), Events: share.Events, Seconds: age(now, share.Oldest), With: s.with(share)})
	}
	return all
}

// with names the member that events wait for, or that has them; "" for none.
func (s *reporter) with(held forward.KeyPlace) string {
	if held.Place == forward.Delayed || held.Place == forward.Refused {
		return ""
	}
	return s.nameOf(held.With)
}

// nameOf returns the name of a peer, as the table has it.
func (s *reporter) nameOf(peer forward.Peer) string {
	if peer == forward.Local {
		return s.node.cfg.Name
	}
	if t := s.node.Table(); t != nil {
		for _, m := range t.Members {
			if forward.Peer(m.Inc) == peer {
				return m.Name
			}
		}
	}
	return peer.String()
}

// String returns the name of the mode, as the settings have it.
func (m Mode) String() string {
	if m == Gossip {
		return "gossip"
	}
	return "strict"
}
