package demo

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/devtools/ends"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/ring"
)

// group is the second part: members, and an application beside each.
type group struct {
	part

	members []*member
	ends    ends.Tally
	loaded  atomic.Bool // the load has begun: moves before belong to the start
	shares  []int       // number of partitions of each member when last printed; the drawer's own
}

// fenced runs the same load through Ringfence, and judges it.
func (d *demo) fenced(ctx context.Context, plain journal.Report) (*Result, error) {
	d.view.note("Now Ringfence: a router beside each application; each key belongs to one of them.\n" +
		"(A new group first waits for old leases to expire, about 7 s. The leases of ownership.profile\n" +
		"fast are half of production's, so that keys move sooner; docs/settings.md#ownership.)")
	g := &group{part: part{demo: d, title: "Ringfence", duration: d.options.Duration, against: int(plain.Overlaps)}}
	g.addMembers = g.fill
	for i := range d.options.Nodes {
		m := &member{application: d.application(fmt.Sprintf("app-%d", i+1)), node: fmt.Sprintf("node-%d", i+1)}
		g.members = append(g.members, m)
		g.apps = append(g.apps, m.application)
	}
	var kills []journal.Kill
	var drained error
	err := g.shown(ctx, func(ctx context.Context) (err error) {
		if err := g.start(ctx); err != nil {
			return err
		}
		if kills, err = g.load(ctx); err != nil {
			return err
		}
		if open := g.unsettled(); open > 0 {
			g.view.note("The load is over; now the %s events that are not settled yet have to end.", thousands(open))
		}
		drained = g.drain(ctx)
		return nil
	})
	if err != nil {
		return nil, err
	}
	d.processes.StopAll()
	result, err := judge(g.journals(), kills, &g.sent)
	if err != nil {
		return nil, err
	}
	result.plain, result.BaselineSharedOverlaps = plain, plain.Overlaps
	result.DeadLettered = g.deadLettered()
	result.stayedAway = g.options.RestartAt > 0 && g.members[victim].figures().partitions == 0
	return result, drained
}

// start starts all members and applications, and waits until they share the
// partitions.
func (g *group) start(ctx context.Context) error {
	for _, m := range g.members {
		if err := g.startRouter(m); err != nil {
			return err
		}
		var err error
		m.process, err = g.child(m.name, m.line, RoleApp, "--journal", m.journal, "--endpoint", m.endpoint)
		if err != nil {
			return err
		}
	}
	return until(ctx, startPatience, "forming the group", func(ctx context.Context) (bool, error) {
		return g.look(ctx) && g.partitions() == ring.Partitions && g.everyoneOwns(), nil
	})
}

// load publishes, and meanwhile kills a router and starts it again.
func (g *group) load(ctx context.Context) (kills []journal.Kill, err error) {
	g.loaded.Store(true)
	g.view.note("%d members share %d partitions. %d events/s on %d keys for %v.",
		len(g.members), ring.Partitions, g.options.Rate, g.options.Keys, g.options.Duration)
	g.view.note("The group has a page, http://%s, until the demo ends.", g.members[0].admin) // no other goroutine writes it: this router is not killed
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return g.publish(ctx, g.names.fenced.topic) })
	if g.options.KillAt > 0 {
		tasks.Go(func() (err error) {
			kills, err = g.fault(ctx)
			return err
		})
	}
	err = tasks.Wait()
	return kills, err
}

// victim is the member that is killed.
const victim = 1

func (g *group) fault(ctx context.Context) ([]journal.Kill, error) {
	m := g.members[victim]
	if backoff.Sleep(ctx, g.options.KillAt) != nil {
		return nil, context.Cause(ctx)
	}
	at, err := m.kill()
	if err != nil {
		return nil, err
	}
	g.view.note("%5.1f s  SIGKILL for the router %s. Its application lives on, alone.", g.options.KillAt.Seconds(), m.node)
	kills := []journal.Kill{{Path: m.journal, At: at}}
	if g.options.RestartAt == 0 {
		return kills, nil
	}
	if backoff.Sleep(ctx, g.options.RestartAt-g.options.KillAt) != nil {
		return kills, context.Cause(ctx)
	}
	g.view.note("%5.1f s  %s is started again.", g.options.RestartAt.Seconds(), m.node)
	return kills, g.startRouter(m)
}

// drain waits until every event has its end (no member has an open one, the broker
// has none, and the journals tell of all) and every partition an owner.
func (g *group) drain(ctx context.Context) error {
	return until(ctx, drainPatience, "settling what was published", func(ctx context.Context) (bool, error) {
		if !g.look(ctx) || g.unsettled() > 0 || g.partitions() != ring.Partitions {
			return false, nil
		}
		if open, err := g.backend.open(ctx, g.names.fenced.name); err != nil || open > 0 {
			return false, err
		}
		return g.allHandled()
	})
}

// told shows the failures that a member writes, and counts the ends of events.
func (g *group) told(m *member, line string) {
	r, err := ends.Read(line)
	if err != nil {
		return // no line of ends
	}
	g.ends.Add(r)
	if r.Failure != nil {
		g.view.note("%s: %s", m.node, r.Failure)
	}
}

func (g *group) deadLettered() uint64 {
	_, dead := g.ends.Counts()
	return uint64(dead)
}

// judge reads the journals.
func judge(journals []string, kills []journal.Kill, sent *publication) (*Result, error) {
	report, err := journal.Check(journal.Files(journals), sent.names)
	if err != nil {
		return nil, err
	}
	waits, err := journal.MeasureWaits(journals, kills, sent.sentAt)
	if err != nil {
		return nil, err
	}
	return resultOf(report, waits), nil
}

// look asks all members for their figures, and reports whether all that live take
// part in the group.
func (g *group) look(ctx context.Context) bool {
	ok := true
	for _, m := range g.members {
		ok = m.look(ctx) && ok
	}
	return ok
}

func (g *group) partitions() (n int) {
	for _, m := range g.members {
		n += m.figures().partitions
	}
	return n
}

func (g *group) unsettled() (n int) {
	for _, m := range g.members {
		n += m.figures().unsettled
	}
	return n
}

func (g *group) everyoneOwns() bool {
	for _, m := range g.members {
		if m.figures().partitions == 0 {
			return false
		}
	}
	return true
}

// fill shows the members in the table, and the moves of partitions.
func (g *group) fill(ctx context.Context, pic *picture) {
	g.look(ctx)
	shares := make([]int, len(g.members))
	for i, m := range g.members {
		shares[i] = m.figures().partitions
		handled := pic.rows[i].handled
		pic.rows[i] = m.row()
		pic.rows[i].handled = handled
	}
	if !g.loaded.Load() || g.partitions() != ring.Partitions {
		return // they are moving
	}
	if moves := movesOf(g.members, g.shares, shares); moves != "" {
		g.view.note("%5.1f s  Partitions have moved: %s.", pic.elapsed.Seconds(), moves)
	}
	g.shares = shares
}

// movesOf tells the difference between the shares before and after, "" when there is
// none or no before.
func movesOf(members []*member, before, after []int) string {
	var moves []string
	for i, m := range members {
		if before != nil && before[i] != after[i] {
			moves = append(moves, fmt.Sprintf("%s %+d", m.node, after[i]-before[i]))
		}
	}
	return strings.Join(moves, ", ")
}
