//go:build linux

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// joinersMax bounds the time that a router with other settings takes to detect that and end. It is killed then, which looks as if it had been admitted.
const joinersMax = 3 * time.Minute

// joiners are the routers with other settings that were started so far.
type joiners struct {
	mu  sync.Mutex
	all []joiner
}

// regroup starts a router, with an application, whose settings differ from the group's in
// one on which members must agree, and waits for its end.
func (c *chaos) regroup(ctx context.Context, f fault) error {
	setting, m := regroupingOf(f.Variant), c.group.joiner
	if err := c.broker.makeNamespace(ctx, anotherNamespace); err != nil {
		return err
	}
	if err := c.group.configure(m); err != nil {
		return err
	}
	before := c.group.lost(ctx)
	if err := startAll(m.workers); err != nil {
		return err
	}
	defer endAll(m.workers, leaveMax)
	begin := clock.Now()
	said, code, err := c.group.runJoiner(ctx, m, setting)
	if err != nil {
		return err
	}
	c.joiners.mu.Lock()
	defer c.joiners.mu.Unlock()
	c.joiners.all = append(c.joiners.all, joiner{
		Setting: setting.name, Code: code, Took: clock.Now().Sub(begin), Named: setting.names(said), Lost: c.group.lost(ctx) - before,
	})
	return nil
}

// runJoiner runs a joining router until it exits or joinersMax has passed, and returns its
// output and its exit code.
func (g *group) runJoiner(ctx context.Context, m *member, setting regrouping) (said string, code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, joinersMax)
	defer cancel()
	path := filepath.Join(g.dir, fmt.Sprintf("%s-router-%s.log", m.name, setting.name))
	log, err := os.Create(path)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = log.Close() }() // others wrote its content
	binary, args, env := m.router.launch(0)
	cmd := exec.CommandContext(ctx, binary, append(args, setting.flags...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), env...)
	if err := within(m.name, cmd.Start); err != nil {
		return "", 0, fmt.Errorf("start %s: %w", binary, err)
	}
	_ = cmd.Wait() // how it ended is in its ProcessState
	text, err := os.ReadFile(path)
	return string(text), cmd.ProcessState.ExitCode(), err
}

// lost counts how often the routers of the group gave up their incarnation.
func (g *group) lost(ctx context.Context) (n int) {
	for _, m := range g.present() {
		values, err := m.metrics(ctx)
		if err != nil {
			continue // it is not there, and the group will not be whole
		}
		n += int(values["ringfence_ownership_lost_total"])
	}
	return n
}

// makeNamespace makes a namespace where there is none.
func (b *broker) makeNamespace(ctx context.Context, name string) error {
	var there []string
	if err := b.admin.Call(ctx, http.MethodGet, "namespaces/public", nil, &there); err != nil {
		return err
	}
	if slices.Contains(there, name) {
		return nil
	}
	return b.admin.Call(ctx, http.MethodPut, "namespaces/"+name, nil, nil)
}
