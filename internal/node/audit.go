package node

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/ringfence/router/forward"
	"github.com/ringfence/router/internal/audit"
	"github.com/ringfence/router/internal/audit/exchange"
	"github.com/ringfence/router/internal/audit/judge"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/netx/untrusted"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/ring"
)

// Bounds of the reports between the auditors of members.
const (
	// auditedBefore is the time before a move within which the end of a handler is reported to the next owner: longer than
	// a lease and its wait.
	auditedBefore = 10 * time.Second
	// lateMax bounds the handlings that wait to be reported to next owners because they ended after their partition had
	// moved, and the handlings of failed reports.
	lateMax = 10_000
	// reportTimeout bounds one exchange with another member.
	reportTimeout = time.Second
	// unheardAfter is the time that a new owner waits for the report of an earlier owner, and that the earlier owner repeats a
	// failed report.
	unheardAfter = 10 * time.Second
	// gathered is the time that handlings wait for others that go to the same member.
	gathered = 20 * time.Millisecond
)

// auditing compares the handlings of this node, and those that earlier owners of its keys report.
type auditing struct {
	node  *Node
	judge *judge.Judge

	changed chan struct{}         // cap 1: there is a new table, or late is not empty
	mine    atomic.Pointer[owned] // as of the newest call of handled

	mu    sync.Mutex
	late  []audit.Handling                        // ended after their partition had moved
	again []failed                                // reports to be repeated
	held  int                                     // handlings in again
	heard map[ownership.Incarnation]clock.Instant // the times of the members' last reports
	owed  map[ownership.Incarnation]clock.Instant // the deadlines for the reports of former owners

	seen *ownership.Table // of run: the newest table whose moves were reported
}

// owned holds the partitions that a node has by a table, so that a handling costs the test of a bit, not a look-up of two
// members.
type owned struct {
	table      *ownership.Table
	self       ownership.Incarnation
	partitions ownership.Set
}

// failed is a report that may not have arrived. A repeat is harmless: the receiver recognizes handlings that it has.
type failed struct {
	to     ownership.Node
	report exchange.Report
	until  clock.Instant // the time at which it is given up
}

func newAuditing(n *Node) *auditing {
	return &auditing{
		node: n, judge: judge.New(n.cfg.Audit.BytesMax, n.cfg.Name, n.parts.Registry, n.parts.Log), changed: make(chan struct{}, 1),
		heard: make(map[ownership.Incarnation]clock.Instant), owed: make(map[ownership.Incarnation]clock.Instant),
	}
}

// handled takes the handlings that a worker reports.
func (a *auditing) handled(w event.WorkerID, handlings []event.Handling) {
	handlings = a.judge.Own(w, handlings, clock.Read().Boot)
	t := a.node.Table()
	if t == nil {
		return
	}
	mine := a.ownedBy(t, a.node.self.Load().inc)
	for i := range handlings {
		if !mine.Has(handlings[i].Partition) {
			a.endedLate(handlings[i])
		}
	}
}

// ownedBy returns the partitions of a member.
func (a *auditing) ownedBy(t *ownership.Table, self ownership.Incarnation) ownership.Set {
	if o := a.mine.Load(); o != nil && o.table == t && o.self == self {
		return o.partitions
	}
	var mine []ring.Partition
	for p := range ring.Partition(ring.Partitions) {
		if t.Owner(p).Inc == self {
			mine = append(mine, p)
		}
	}
	o := &owned{t, self, ownership.SetOf(mine...)}
	a.mine.Store(o)
	return o.partitions
}

// endedLate keeps a handling that ended after its partition had moved, for the next owner.
func (a *auditing) endedLate(h audit.Handling) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.late)+a.held >= lateMax {
		a.judge.Lost(1)
		return
	}
	a.late = append(a.late, h)
	signal.Set(a.changed)
}

// run reports handlings to next owners until ctx ends, and then the last ones. a may be nil.
func (a *auditing) run(ctx context.Context) error {
	if a == nil {
		<-ctx.Done()
		return nil
	}
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTimeout)
			defer cancel()
			a.tell(last)
			a.repeat(last)
			return nil
		case <-second.C:
			a.judge.Note()
			a.missOwners()
			a.repeat(ctx)
		case <-a.changed:
			if backoff.Sleep(ctx, gathered) == nil { // else the next round reports all
				a.tell(ctx)
			}
		}
	}
}

// tell reports the newest handlings to the next owners of the partitions that the newest table has moved, and the late ones.
func (a *auditing) tell(ctx context.Context) {
	t := a.node.Table()
	if t == nil {
		return
	}
	self := a.node.self.Load().inc
	a.expect(t, self)
	reports := make([]exchange.Report, len(t.Members))
	owes := a.gather(t, reports)
	var sending sync.WaitGroup
	defer sending.Wait()
	for i, m := range t.Members {
		if r := reports[i]; m.Inc != self && (owes[i] || len(r.Handlings) > 0) {
			sending.Go(func() { a.report(ctx, failed{m, r, clock.Now().Add(unheardAfter)}) })
		}
	}
}

// repeat sends the failed reports again. Reports for a member that has left go to the present owners.
func (a *auditing) repeat(ctx context.Context) {
	t := a.node.Table()
	a.mu.Lock()
	again := a.again
	a.again, a.held = nil, 0
	var sending sync.WaitGroup
	defer sending.Wait()
	for _, f := range again {
		switch {
		case t.IsMember(f.to.Inc):
			sending.Go(func() { a.report(ctx, f) })
		case len(f.report.Handlings) > 0:
			a.late = append(a.late, f.report.Handlings...)
			signal.Set(a.changed)
		}
	}
	a.mu.Unlock()
}

// gather puts handlings into the reports to the members of t. owes has the members with partitions that were this node's: they
// wait for a report, even an empty one.
func (a *auditing) gather(t *ownership.Table, reports []exchange.Report) (owes []bool) {
	before := a.seen
	a.seen = t
	owes = make([]bool, len(reports))
	add := func(h audit.Handling) {
		if r := &reports[t.Owners[h.Partition]]; len(r.Handlings) < exchange.HandlingsMax {
			r.Handlings = append(r.Handlings, h)
		} else {
			a.judge.Lost(1)
		}
	}
	if before != nil && before != t {
		moved := func(p ring.Partition) bool { return before.Owner(p).Inc != t.Owner(p).Inc }
		ended, omitted := a.judge.Since(clock.Read().Boot-auditedBefore, moved, lateMax)
		for _, h := range ended {
			add(h)
		}
		for p := range ring.Partition(ring.Partitions) {
			if moved(p) && before.Owner(p).Name == a.node.cfg.Name {
				owes[t.Owners[p]] = true
				reports[t.Owners[p]].OmittedUntil = omitted
			}
		}
	}
	a.mu.Lock()
	late := a.late
	a.late = nil
	a.mu.Unlock()
	for _, h := range late {
		add(h)
	}
	return owes
}

// report sends one report. If it fails it is repeated.
func (a *auditing) report(ctx context.Context, f failed) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	err := a.exchange(ctx, f.to, f.report)
	a.judge.Sent(err)
	if err == nil {
		return
	}
	n := len(f.report.Handlings)
	a.mu.Lock()
	defer a.mu.Unlock()
	if n == 0 && slices.ContainsFunc(a.again, func(other failed) bool { return other.to.Inc == f.to.Inc }) {
		return // that report has the same content
	}
	if clock.Now().Before(f.until) && len(a.late)+a.held+n <= lateMax {
		a.again, a.held = append(a.again, f), a.held+n
		return
	}
	a.judge.Lost(n)
	a.node.log.Info("handlings were not reported to their keys' next owner", "peer", f.to.Name, "handlings", n, "error", untrusted.Print(err.Error()))
}

func (a *auditing) exchange(ctx context.Context, to ownership.Node, r exchange.Report) error {
	conn, err := grpc.NewClient("passthrough:///"+to.GRPCAddr, grpc.WithTransportCredentials(a.node.parts.ClientCreds), grpc.WithDisableRetry(),
		grpc.WithContextDialer(untrusted.DialTCP))
	if err != nil {
		return fmt.Errorf("node: dial: %w", err)
	}
	defer conn.Close()
	link, self := exchange.NewLink(conn), a.node.self.Load()
	if len(self.key) > 0 {
		link.Sign = func(text []byte) []byte { return ed25519.Sign(self.key, text) }
	}
	r.Group, r.Member = a.node.cfg.Group, a.node.cfg.Name
	r.Incarnation, r.To = exchange.Incarnation(self.inc), exchange.Incarnation(to.Inc)
	for range 2 { // the second exchange has a connection, so its round trip is short
		r.Clock = a.judge.Here()
		if err := link.Measure(ctx, r); err != nil {
			return err
		}
	}
	r.Clock = a.judge.Here()
	return link.Send(ctx, r)
}

// errNotMember refuses reports from non-members.
var errNotMember = errors.New("the sender is not a member of this group, its key did not sign the report, or the report is for another member")

// take accepts the report of another member.
func (a *auditing) take(r *exchange.Report, signed func(verify func(text, signature []byte) bool) bool) error {
	n := a.node
	key := n.pipeline.KeyOf(forward.Peer(r.Incarnation))
	proven := len(key) == ed25519.PublicKeySize && signed(func(text, signature []byte) bool { return ed25519.Verify(key, text, signature) })
	if n.cfg.Mode == Gossip { // members have no keys there
		proven = n.Table().IsMember(ownership.Incarnation(r.Incarnation))
	}
	if !proven || r.Group != n.cfg.Group || ownership.Incarnation(r.To) != n.self.Load().inc {
		a.judge.Refused()
		return errNotMember
	}
	if len(r.Moves) > 0 {
		return n.rollout.take(r.Moves)
	}
	a.judge.Take(r)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard[ownership.Incarnation(r.Incarnation)] = clock.Now()
	delete(a.owed, ownership.Incarnation(r.Incarnation))
	return nil
}

// expect notes the former owners of this node's partitions that should report.
func (a *auditing) expect(t *ownership.Table, self ownership.Incarnation) {
	now := clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, f := range t.Formers {
		if at, heard := a.heard[f.Inc]; f.Inc == self || f.Name == a.node.cfg.Name || heard && now.Sub(at) < unheardAfter {
			continue
		}
		for p := range f.Partitions.All() {
			if t.Owner(p).Inc == self {
				if _, owes := a.owed[f.Inc]; !owes {
					a.owed[f.Inc] = now.Add(unheardAfter)
				}
				break
			}
		}
	}
}

// missOwners counts former owners that have not reported in time.
func (a *auditing) missOwners() {
	now, missed := clock.Now(), 0
	a.mu.Lock()
	for inc, until := range a.owed {
		if until.Before(now) {
			missed++
			delete(a.owed, inc)
		}
	}
	for inc, at := range a.heard {
		if now.Sub(at) > unheardAfter {
			delete(a.heard, inc)
		}
	}
	a.mu.Unlock()
	if missed > 0 {
		a.judge.Unheard(missed)
		a.node.log.Info("former owners did not report when their last handlings ended", "owners", missed)
	}
}

// audited returns the auditor's findings, for reports; nil if it is off.
func (n *Node) audited() *report.Audit {
	if n.audit == nil {
		return nil
	}
	s := n.audit.judge.State()
	r := &report.Audit{Handlings: s.Handlings, Overlaps: s.Overlaps, Undecided: make(map[string]uint64), Unheard: s.Unheard}
	for _, reason := range audit.Reasons() {
		if count := s.Undecided[reason]; count > 0 {
			r.Undecided[reason.String()] = count
		}
	}
	order := n.meter.Counts()
	r.Order.FirstHandlings, r.Order.Inversions = order.First, make(map[string]uint64)
	for _, cause := range audit.Causes() {
		if count := order.Inversions[cause]; count > 0 {
			r.Order.Inversions[cause.String()] = count
		}
	}
	for _, f := range s.Newest {
		r.Newest = append(r.Newest, report.Overlap{
			KeyHash: f.First.Key.String(), Partition: uint16(f.First.Partition), Seconds: f.For.Seconds(),
			First: judge.Describe(f.First), Second: judge.Describe(f.Second), Fences: [2]string{f.First.Fence.String(), f.Second.Fence.String()},
		})
	}
	return r
}
