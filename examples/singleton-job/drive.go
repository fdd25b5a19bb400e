package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/examples/killed"
)

const (
	members   = 3
	cutAfter  = 500 * time.Millisecond // in the middle of a run
	away      = 4 * time.Second        // of a killed process: another one takes over
	doneMost  = 2 * time.Minute        // for the last runs to end: a busy machine may need some
	lookEvery = 20 * time.Millisecond
)

// drive starts the group, kills, and counts.
func (o *options) drive(ctx context.Context, shared killed.Options, out io.Writer) error {
	if o.long < 3*every {
		return fmt.Errorf("-for %v: jobs run every %v, and that is too short", o.long, every)
	}
	begun := time.Now()
	var saying sync.Mutex
	say := func(format string, args ...any) {
		saying.Lock()
		defer saying.Unlock()
		_, _ = fmt.Fprintf(out, "%5.1fs  %s\n", time.Since(begun).Seconds(), fmt.Sprintf(format, args...))
	}
	var endpoints []string
	kill := make(chan string, 1)
	r := &runs{say: say, kill: kill, every: o.killEvery, name: func(endpoint string) string {
		return fmt.Sprintf("app-%d", slices.Index(endpoints, endpoint)+1)
	}}
	rows := &killed.Rows{Wrote: r.wrote, Noted: r.noted}
	address, stopServing, err := rows.Serve(ctx)
	if err != nil {
		return err
	}
	defer stopServing()
	say("three processes declare %s, every %v, each beside a router of its own", strings.Join(jobs, ", "), every)
	group, err := killed.Start(ctx, killed.Config{Options: shared, Members: members, Application: func(endpoint string) []string {
		endpoints = append(endpoints, endpoint)
		return []string{"serve", endpoint, address}
	}})
	if err != nil {
		return err
	}
	defer group.Stop()

	kills := 0
	end, all := time.NewTimer(o.long), time.NewTimer(o.long/3)
	defer end.Stop()
	defer all.Stop()
	for running := true; running; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-group.Failed():
			return err
		case <-end.C:
			running = false
		case <-all.C:
			if o.outage > 0 {
				err = outage(ctx, group, r, say, o.outage)
			}
		case app := <-kill:
			kills++
			err = cut(ctx, group, r, say, app, kills)
		}
		if err != nil {
			return err
		}
	}
	due := time.Now().Truncate(every) // every job has to have run for this time
	for waiting := time.Now(); !r.done(due) && time.Since(waiting) < doneMost && ctx.Err() == nil; {
		killed.Pause(ctx, lookEvery)
	}
	s := r.sum(due)
	say("%d times ran, at %s; %d more were missed, and told to the run after them, and %d were not told; %d runs were cut", s.times, strings.Join(s.members, ", "), s.missed, s.untold, s.cut)
	say("%d kills; %d statements with an old fence were refused", kills, rows.Refused())
	if len(s.faults) > 0 {
		return fmt.Errorf("it does not add up:\n%w", errors.Join(s.faults...))
	}
	if o.outage >= 2*every && s.missed == 0 {
		return errors.New("no time was missed in the outage")
	}
	if o.killEvery > 0 && (kills == 0 || s.cut == 0) {
		return fmt.Errorf("%d kills cut %d runs: this shows nothing, -for longer", kills, s.cut)
	}
	say("it adds up: no two runs of a job at once, and each time once")
	return nil
}

// cut kills the application of a run, its router, or both, in turn, and starts them again when another one has had time to take over.
func cut(ctx context.Context, group *killed.Group, r *runs, say func(string, ...any), app string, n int) error {
	killed.Pause(ctx, cutAfter)
	router := "router" + strings.TrimPrefix(app, "app")
	victims := [][]string{{app, router}, {router}, {app}}[(n-1)%3]
	say("%s killed, in the middle of a run at %s", strings.Join(victims, " and "), app)
	return absent(ctx, group, r, away, victims...)
}

// outage kills all processes, and starts them again: what was due meanwhile is missed.
func outage(ctx context.Context, group *killed.Group, r *runs, say func(string, ...any), long time.Duration) error {
	say("all processes killed, for %v", long)
	r.noteOutage()
	names := group.Names()
	slices.Sort(names) // the applications first: one without its router would go on for the rest of its lease
	if err := absent(ctx, group, r, long, names...); err != nil {
		return err
	}
	say("all processes started again")
	return nil
}

func absent(ctx context.Context, group *killed.Group, r *runs, long time.Duration, names ...string) error {
	for _, name := range names {
		group.Kill(name)
		if strings.HasPrefix(name, "app-") {
			r.died(name)
		}
	}
	killed.Pause(ctx, long)
	for _, name := range names {
		if err := group.Begin(name); err != nil {
			return err
		}
	}
	return nil
}
