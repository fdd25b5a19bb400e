//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/chaos/fencedsink"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/devtools/journal"
)

// warmUp is the time under load before the first fault, so that all keys are known and all
// processes have the memory that they need.
const warmUp = 8 * time.Second

// settleMax bounds the time after the load in which all events must be handled: events that a
// victim has stranded return within a minute or so.
const settleMax = 3 * time.Minute

// run sets everything up, goes through the faults of the seed, and judges.
func run(ctx context.Context, o options, dir string) (_ *result, err error) {
	say("seed %d: %d faults of %v", o.Seed, o.Faults, o.Kinds)
	if err := os.Mkdir(filepath.Join(dir, "journals"), 0o755); err != nil {
		return nil, err
	}
	net, err := newNetwork(ctx, scaleMost+1) // the last one is for joining routers
	if err != nil {
		return nil, err
	}
	d, err := startSinks(ctx, o, dir)
	if err != nil {
		return nil, err
	}
	defer d.stop()
	say("starting Pulsar")
	b, err := startBroker(ctx, dir, slices.Contains(o.Kinds, kindRollover))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.keepLog(dir)) }()
	g := newGroup(o, dir, b, d.urls)
	defer g.end()
	c := &chaos{group: g, network: net, broker: b, callers: newCallers(o, g)}
	if slices.Contains(o.Kinds, kindSlow) {
		if c.proxies, err = startProxies(ctx, g); err != nil {
			return nil, err
		}
	}
	for _, m := range g.members[:o.Members] {
		if err := g.join(m); err != nil {
			return nil, err
		}
	}
	if err := g.awaitWhole(ctx); err != nil {
		return nil, err
	}
	fired := firingRun{wall: zeroOfClock(), whole: clock.Now(), share: o.Timers}
	if fired.schedules, err = plannedSchedules(o.Schedules); err != nil {
		return nil, err
	}
	if err := startAll(g.holders); err != nil {
		return nil, err
	}
	p, err := newPublisher(ctx, o, b.url)
	if err != nil {
		return nil, err
	}
	defer p.close()
	outcomes, err := c.underLoad(ctx, o, p)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		if loops, _ := b.loops(ctx); loops {
			err = errors.Join(err, errBrokerLoops)
		}
	}
	fired.over, fired.sends = clock.Now(), c.callers.sends
	g.endHolders()
	say("%v are sent, waiting until all are handled", p)
	err = errors.Join(err, g.awaitSettled(ctx, settleMax)) // the journals tell more than either
	g.end()
	r, err := conclude(ctx, o, g, d, p.published(), &c.callers.log, outcomes, fired, err)
	if err == nil {
		r.Joiners, r.ClockRateError = c.joiners.all, g.steering
	}
	return r, err
}

// warmUp lets the load run, and a member leave and come back if planned changes are to
// be measured: a broker that has just started takes 100 ms to close its first consumers.
func (c *chaos) warmUp(ctx context.Context, o options) error {
	err := backoff.Sleep(ctx, warmUp)
	planned := slices.ContainsFunc(o.Kinds, func(k kind) bool { return profiles[k].graceful })
	if err != nil || !planned || o.Control == controlShared {
		return err
	}
	say("a leave and a join that are not measured")
	if err := c.rejoin(ctx, c.group.members[0]); err != nil {
		return err
	}
	if err := c.group.awaitWhole(ctx); err != nil {
		return err
	}
	return backoff.Sleep(ctx, quietMax)
}

// underLoad goes through all rounds while the publisher publishes.
func (c *chaos) underLoad(ctx context.Context, o options, p *publisher) (outcomes []outcome, err error) {
	loading, stop := context.WithCancel(ctx)
	defer stop()
	load, loading := errgroup.WithContext(loading)
	load.Go(func() error { return p.run(loading) })
	load.Go(func() error { return c.callers.run(loading) })
	load.Go(func() error { return c.callers.send(loading, o.Timers > 0) })
	err = c.warmUp(ctx, o)
	rounds := plan(o)
	for i, r := range rounds {
		if err != nil {
			break
		}
		var done []outcome
		done, err = c.round(ctx, i, len(rounds), r)
		for _, o := range done {
			if o.Until != 0 { // it was done
				outcomes = append(outcomes, o)
			}
		}
	}
	if err == nil {
		err = backoff.Sleep(ctx, quietMax)
	}
	stop()
	return outcomes, errors.Join(err, load.Wait())
}

// round does the faults of a round, waits until the group is whole, and rests.
func (c *chaos) round(ctx context.Context, i, of int, r round) ([]outcome, error) {
	done := make([]outcome, len(r.Faults))
	all, together := errgroup.WithContext(ctx) // which ends with them, unlike ctx
	for j, f := range r.Faults {
		say("round %d of %d: %v", i+1, of, f)
		all.Go(func() (err error) {
			if err := backoff.Sleep(together, f.After); err != nil {
				return err
			}
			done[j], err = c.do(together, f)
			return err
		})
	}
	err := all.Wait()
	if err == nil {
		err = backoff.Sleep(ctx, toBeJudged(done))
	}
	if err == nil {
		err = c.group.awaitWhole(ctx)
	}
	whole := clock.Now()
	for j := range done {
		done[j].Whole, done[j].Lone = whole, r.lone()
	}
	return done, errors.Join(err, backoff.Sleep(ctx, r.Quiet))
}

// judgedAfter is the time after a fault in which the members may still find its victim silent:
// five Beats without evidence, and some for a slow log. Until then a group that looks whole may
// still remove a member, which would disturb the next round.
const judgedAfter = 3500 * time.Millisecond

// toBeJudged returns the time until all victims of a round are judged.
func toBeJudged(done []outcome) (wait time.Duration) {
	for _, o := range done {
		if !profiles[o.Fault.Kind].graceful {
			wait = max(wait, o.From.Add(judgedAfter).Sub(clock.Now()))
		}
	}
	return wait
}

// databases are the sinks of a run.
type databases struct {
	urls     [2]string
	servers  []*fencedsink.Server
	postgres *fencedsink.Postgres
	redis    *fencedsink.Redis
}

func startSinks(ctx context.Context, o options, dir string) (d *databases, err error) {
	d = &databases{}
	if o.Share == 0 || o.Control == controlShared { // without tokens no write can be refused
		return d, nil
	}
	defer func() {
		if err != nil {
			d.stop()
		}
	}()
	for i, s := range []struct {
		name  string
		start func(context.Context, string) (*fencedsink.Server, error)
	}{{"postgres", fencedsink.StartPostgres}, {"redis", fencedsink.StartRedis}} {
		home := filepath.Join(dir, s.name)
		if err := os.Mkdir(home, 0o755); err != nil {
			return d, err
		}
		server, err := s.start(ctx, home)
		if err != nil {
			return d, err
		}
		d.servers, d.urls[i] = append(d.servers, server), server.URL
	}
	if d.postgres, err = fencedsink.OpenPostgres(ctx, d.urls[0], 2); err != nil {
		return d, err
	}
	if d.redis, err = fencedsink.OpenRedis(d.urls[1], 2); err != nil {
		return d, err
	}
	return d, errors.Join(d.postgres.Create(ctx), d.postgres.Watch(ctx))
}

func (d *databases) stop() {
	if d.postgres != nil {
		d.postgres.Close()
	}
	if d.redis != nil {
		d.redis.Close()
	}
	for _, s := range d.servers {
		s.Stop()
	}
}

// audit reads the accepted claims and writes of the sinks.
func (d *databases) audit(ctx context.Context) (total fencedsink.Audit, err error) {
	if d.postgres == nil {
		return total, nil
	}
	p, err := d.postgres.Audit(ctx)
	if err != nil {
		return total, err
	}
	r, err := d.redis.Audit(ctx)
	return fencedsink.Audit{Accepted: p.Accepted + r.Accepted, Stale: p.Stale + r.Stale, SameToken: p.SameToken + r.SameToken}, err
}

// conclude reads the journals and the sinks.
func conclude(ctx context.Context, o options, g *group, d *databases, sent *publication, calls *callLog, outcomes []outcome, fired firingRun, failed error) (*result, error) {
	runs := g.runs()
	say("reading %d journals", len(runs))
	runs, err := readable(runs)
	if err != nil {
		return nil, err
	}
	files := filesOf(runs)
	if err := save(g.dir, outcomes, sent, calls); err != nil {
		return nil, err
	}
	report, err := journal.Check(files, sent.confirmed)
	if err != nil {
		return nil, err
	}
	times, err := analyse(runs, outcomes, sent)
	if err != nil {
		return nil, err
	}
	called, err := judgeCalls(pathsOf(files), calls)
	if err != nil {
		return nil, err
	}
	reserved, err := judgeReservations(files)
	if err != nil {
		return nil, err
	}
	if drift := zeroOfClock().Sub(fired.wall); drift.Abs() > earlyTolerance/2 {
		say("the time of day was set by %v during the run: times of schedules and timers are judged by the older one", drift)
	}
	firings, timers, err := judgeFirings(runs, outcomes, fired)
	if err != nil {
		return nil, err
	}
	r := summarise(o, report, times, outcomes, sent, called, reserved, firings, timers)
	r.Journals = filepath.Join(g.dir, "journals")
	r.failed = failed
	audit, err := d.audit(ctx)
	if err != nil {
		return nil, err
	}
	r.SinkWrites, r.StaleTokenWrites, r.StaleSameToken = audit.Accepted, audit.Stale, audit.SameToken
	if r.AuditHandlings, r.AuditOverlaps, err = g.auditedTotal(); err != nil {
		return nil, err
	}
	for _, w := range g.holders {
		r.Oddities = append(r.Oddities, w.oddities()...)
	}
	for _, m := range g.members {
		r.Oddities = append(r.Oddities, m.router.oddities()...)
		for _, w := range m.workers {
			r.Oddities = append(r.Oddities, w.oddities()...)
		}
	}
	return r, nil
}

// save writes, beside the journals, the faults, the published events with their times, and the calls, for
// later evaluation.
func save(dir string, outcomes []outcome, sent *publication, calls *callLog) error {
	text, err := json.MarshalIndent(outcomes, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "outcomes.json"), text, 0o644); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(dir, "published.txt"))
	if err != nil {
		return err
	}
	lines := bufio.NewWriter(file)
	for n, at := range sent.sent {
		fmt.Fprintln(lines, n, int64(at), int64(sent.atEnd[n]))
	}
	if err := errors.Join(lines.Flush(), file.Close()); err != nil {
		return err
	}
	if file, err = os.Create(filepath.Join(dir, "calls.txt")); err != nil {
		return err
	}
	lines.Reset(file)
	return errors.Join(calls.write(lines), lines.Flush(), file.Close())
}

// zeroOfClock returns the time of day at which the lease clock was 0.
func zeroOfClock() time.Time {
	now := clock.Now()
	return time.Now().Add(-time.Duration(now)).Round(0)
}

// readable leaves out the applications that were killed before they made a journal.
func readable(runs []appRun) (there []appRun, err error) {
	for _, r := range runs {
		_, err := os.Stat(r.file.Path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		there = append(there, r)
	}
	return there, nil
}

func say(format string, args ...any) {
	at := time.Now().Format("15:04:05")
	fmt.Fprintf(os.Stderr, "%s  %s\n", at, fmt.Sprintf(format, args...))
}
