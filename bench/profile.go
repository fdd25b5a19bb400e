package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/google/pprof/profile"
	"golang.org/x/sync/errgroup"
)

// profileFor is how long the routers of a drain are profiled. A drain of 8,000,000 events takes longer from the middle on.
const profileFor = 8 * time.Second

// profiler writes a CPU profile of a drain's routers, for a build by profile.
type profiler struct {
	path   string // empty: it does nothing
	begun  bool
	writer errgroup.Group
}

// watch begins once half of the events were handled.
func (p *profiler) watch(ctx context.Context, c *cluster, events int) {
	if p.path == "" || p.begun || len(c.admins) == 0 || total(c.procs) < events/2 {
		return
	}
	p.begun = true
	p.writer.Go(func() error { return writeProfile(ctx, p.path, len(c.admins)) })
}

// wait returns when the profile is written. Errors: there were no routers, or they ended too early.
func (p *profiler) wait() error {
	if p.path != "" && !p.begun {
		return errors.New("profile: nothing was profiled; ask for --modes ringfence alone")
	}
	return p.writer.Wait()
}

// writeProfile profiles the routers, and writes the sum of their profiles without a path of this machine.
func writeProfile(ctx context.Context, path string, routers int) error {
	profiles := make([]*profile.Profile, routers)
	group, ctx := errgroup.WithContext(ctx)
	for i := range profiles {
		group.Go(func() (err error) {
			profiles[i], err = fetchProfile(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%.0f", debugAddress(i), profileFor.Seconds()))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("profile: %w; the drain may have ended before: ask for more --events", err)
	}
	sum, err := profile.Merge(profiles)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	for _, mapping := range sum.Mapping {
		mapping.File, mapping.BuildID = "router", ""
	}
	for _, function := range sum.Function {
		function.Filename = "" // a build by profile asks for names and lines alone
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := sum.Write(file); err != nil {
		_ = file.Close()
		return fmt.Errorf("profile: %w", err)
	}
	return file.Close()
}

func fetchProfile(ctx context.Context, url string) (*profile.Profile, error) {
	body, err := get(ctx, url)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return profile.Parse(body)
}
