//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/ring"
)

// routerEndpoint is where a router listens for applications and callers, in the namespace of its member.
const routerEndpoint = "127.0.0.1:16650"

const (
	wholeMax = 2 * time.Minute  // until a group is whole again after a round
	leaveMax = 50 * time.Second // for each process of a member that leaves
)

// group holds the members and their applications' journals.
type group struct {
	options options
	dir     string
	broker  *broker
	sinks   [2]string // URLs of Postgres and Redis, empty without
	members []*member

	holders []*worker // of reservations

	joiner *member // has other settings each time, and no place among the members

	mu       sync.Mutex
	apps     []appRun
	steering float64           // the most by which a router has seen its system clock run off
	audited  map[string]uint64 // handlings that its live auditor compared, by router process
}

// member is one network namespace with a router and its applications.
type member struct {
	number  int
	name    string
	router  *process
	workers []*worker
	proxy   *process // nil without slow links
	admin   *http.Client

	mu      sync.Mutex
	present bool
}

// worker is an application beside a router.
type worker struct {
	*process
	newest int // index of its newest run in group.apps
}

func newGroup(o options, dir string, b *broker, sinks [2]string) *group {
	g := &group{options: o, dir: dir, broker: b, sinks: sinks, audited: map[string]uint64{}}
	for n := range scaleMost {
		g.members = append(g.members, g.newMember(n))
	}
	g.joiner = g.newMember(scaleMost)
	g.holders = g.newHolders()
	return g
}

func (g *group) newMember(n int) *member {
	name := memberName(n)
	m := &member{number: n, name: name, admin: &http.Client{
		Timeout:   leaveMax + 5*time.Second,
		Transport: &http.Transport{DialContext: dialWithin(name), DisableKeepAlives: true},
	}}
	m.router = &process{
		namespace: name, log: filepath.Join(g.dir, name+"-router.log"),
		ended: func(clock.Instant, bool) {},
		launch: func(run int) (string, []string, []string) {
			var env []string
			if g.options.Keep != "" {
				env = append(env, "RINGFENCE_OWNERSHIP_JOURNAL="+filepath.Join(g.dir, "journals"))
			}
			if g.options.slewed() {
				env = append(env, clockOf(g.options, name+" router", run)...)
			}
			if g.options.Control == controlNoWait {
				env = append(env, "RINGFENCE_PLANTED=no_wait")
			}
			args := []string{"run", "--config", filepath.Join(g.dir, name+".yaml")}
			return filepath.Join(g.dir, "router"), args, env
		},
	}
	for i := range g.options.workers() {
		w := &worker{}
		w.process = &process{
			namespace: name, log: filepath.Join(g.dir, fmt.Sprintf("%s-app%d.log", name, i)),
			launch: func(run int) (string, []string, []string) {
				language := g.options.Apps[(n*g.options.workers()+i)%len(g.options.Apps)]
				return g.launchApp(m, w, fmt.Sprintf("%s-%d-%d", name, i, run), language)
			},
			ended: func(at clock.Instant, killed bool) { g.appEnded(w, at, killed) },
		}
		m.workers = append(m.workers, w)
	}
	return m
}

// newJournal notes the journal of a process that is about to start.
func (g *group) newJournal(w *worker, member int, name string) (path string) {
	path = filepath.Join(g.dir, "journals", name+".journal")
	g.mu.Lock()
	defer g.mu.Unlock()
	w.newest = len(g.apps)
	g.apps = append(g.apps, appRun{member: member, file: journal.File{Path: path}})
	return path
}

func (g *group) launchApp(m *member, w *worker, name, language string) (binary string, args, env []string) {
	path := g.newJournal(w, m.number, name)
	args = []string{roleApp, "--journal", path, "--share", fmt.Sprint(g.options.Share), "--postgres", g.sinks[0], "--redis", g.sinks[1]}
	args = append(args, "--schedules", fmt.Sprint(g.options.Schedules), "--timers", fmt.Sprint(g.options.Timers))
	if g.options.Stubborn {
		args = append(args, "--stubborn")
	}
	if language != languages[0] {
		args = append(args, "--worker", scriptOf(language))
	}
	if g.options.Control == controlShared {
		args = append(args, "--pulsar", g.broker.url)
	}
	if g.options.slewed() {
		return filepath.Join(g.dir, "app"), args, clockOf(g.options, name, 0) // the name has the number of the run
	}
	return "/proc/self/exe", args, nil
}

func (g *group) appEnded(w *worker, at clock.Instant, killed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	file := &g.apps[w.newest].file
	if killed {
		file.KilledAt = at
	}
	if n := len(file.Stops); n > 0 && file.Stops[n-1].Until == clock.Forever {
		file.Stops[n-1].Until = at
	}
}

// freeze stops applications, and thaw continues them. The journals' reader is notified.
func (g *group) freeze(workers ...*worker) {
	for _, w := range workers {
		g.mu.Lock()
		file := &g.apps[w.newest].file
		file.Stops = append(file.Stops, journal.Stop{From: clock.Now(), Until: clock.Forever})
		g.mu.Unlock()
		w.signal(syscall.SIGSTOP)
	}
}

func (g *group) thaw(workers ...*worker) {
	for _, w := range workers {
		g.mu.Lock()
		stops := g.apps[w.newest].file.Stops
		if n := len(stops); n > 0 && stops[n-1].Until == clock.Forever { // it has not ended meanwhile
			stops[n-1].Until = clock.Now()
		}
		g.mu.Unlock()
		w.signal(syscall.SIGCONT)
	}
}

// configure writes the settings of a member's router.
func (g *group) configure(m *member) error {
	mode := "strict"
	if g.options.Control == controlGossip {
		mode = "gossip"
	}
	seeds := make([]string, 0, scaleLeast)
	for n := range scaleLeast {
		seeds = append(seeds, fmt.Sprintf("%q", memberIP(n)+":16652"))
	}
	peer := memberIP(m.number)
	if m.proxy != nil {
		peer = "127.0.0.1" // the proxy has the other address
	}
	silence := ""
	if g.options.workers() > 1 {
		silence = fmt.Sprintf(", silence_max: %v", silenceMax)
	}
	settings := fmt.Sprintf(`node: {group: %q, name: %q, advertise_ip: %q}
pulsar: {url: %q, topics: [%q], subscription: %q, discover_every: %[11]v}
app: {listen: "127.0.0.1:16650"%[10]s}
peer: {listen: "%[9]s:16651", insecure: true}
gossip: {listen: "%[3]s:16652", seeds: [%[7]s], insecure: true}
admin: {listen: "127.0.0.1:16653"}
debug: {listen: "127.0.0.1:16654"}
ownership: {mode: %[8]s}
`, groupName, m.name, memberIP(m.number), g.broker.url, eventsTopic, subscription, strings.Join(seeds, ", "), mode, peer, silence, discoverEvery)
	return os.WriteFile(filepath.Join(g.dir, m.name+".yaml"), []byte(settings), 0o644)
}

// join starts a member.
func (g *group) join(m *member) error {
	m.mu.Lock()
	m.present = true
	m.mu.Unlock()
	if err := g.configure(m); err != nil {
		return err
	}
	if g.options.Control != controlShared {
		if err := m.router.start(); err != nil {
			return err
		}
	}
	return startAll(m.workers)
}

func startAll(workers []*worker) error {
	var errs []error
	for _, w := range workers {
		errs = append(errs, w.start())
	}
	return errors.Join(errs...)
}

// leave ends a member as Kubernetes ends a pod with a native sidecar: the preStop
// hook of the application drains the router, then the application ends, then the
// router.
func (g *group) leave(ctx context.Context, m *member) error {
	m.mu.Lock()
	m.present = false
	m.mu.Unlock()
	var errs []error
	if g.options.Control != controlShared {
		if _, err := m.ask(ctx, "/drain?wait=45s"); err != nil {
			errs = append(errs, fmt.Errorf("%s: drain: %w", m.name, err))
		}
	}
	if endAll(m.workers, leaveMax) {
		errs = append(errs, fmt.Errorf("%s: an application did not end within %v", m.name, leaveMax))
	}
	if m.router.end(leaveMax) {
		errs = append(errs, fmt.Errorf("%s: the router did not end within %v", m.name, leaveMax))
	}
	return errors.Join(errs...)
}

// endAll ends processes, and reports whether one had to be killed.
func endAll(workers []*worker, patience time.Duration) (killed bool) {
	var all sync.WaitGroup
	var stuck atomic.Bool
	for _, w := range workers {
		all.Go(func() {
			if w.end(patience) {
				stuck.Store(true)
			}
		})
	}
	all.Wait()
	return stuck.Load()
}

func (m *member) isPresent() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.present
}

// present lists the members that currently take part.
func (g *group) present() (all []*member) {
	for _, m := range g.members {
		if m.isPresent() {
			all = append(all, m)
		}
	}
	return all
}

// ask asks the router of a member, from inside its namespace.
func (m *member) ask(ctx context.Context, path string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:16653"+path, http.NoBody)
	if err != nil {
		return "", err
	}
	answer, err := m.admin.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(body)))
	}
	return string(body), err
}

var metricLine = regexp.MustCompile(`(?m)^(\w+) (\S+)$`)

// metrics returns those of a router that have no labels.
func (m *member) metrics(ctx context.Context) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	text, err := m.ask(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	values := map[string]float64{}
	for _, line := range metricLine.FindAllStringSubmatch(text, -1) {
		if v, err := strconv.ParseFloat(line[2], 64); err == nil {
			values[line[1]] = v
		}
	}
	return values, nil
}

// whole reports why the group is not whole: every member that is present takes part,
// and every partition is open at one of them.
func (g *group) whole(ctx context.Context) error {
	if g.options.Control == controlShared {
		return nil
	}
	open := 0.0
	for _, m := range g.present() {
		values, err := m.metrics(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		g.noteSteering(values["ringfence_clock_rate_error_ratio"])
		g.noteAudit(m, values)
		n := values["ringfence_ownership_open_partitions"]
		if n == 0 {
			return fmt.Errorf("%s has no open partition", m.name)
		}
		open += n
	}
	if g.options.Control == "" && open != ring.Partitions {
		return fmt.Errorf("%v partitions are open, want %d", open, ring.Partitions)
	}
	return nil
}

// noteAudit keeps how many handlings the live auditor of each router process has compared. What it counts after that, before it is
// killed, is lost.
func (g *group) noteAudit(m *member, values map[string]float64) {
	handlings, ok := values["ringfence_audit_handlings_total"]
	if !ok {
		return // it did not answer, or audits nothing
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.audited[fmt.Sprint(m.name, " run ", m.router.run())] = uint64(handlings)
}

// auditedTotal returns how many handlings the live auditors of all routers compared, and how many overlaps they logged: one of them
// may be counted by each owner of its key.
func (g *group) auditedTotal() (handlings, overlaps uint64, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range g.audited {
		handlings += n
	}
	pairs := map[string]bool{}
	for _, m := range append(slices.Clone(g.members), g.joiner) {
		content, err := os.ReadFile(m.router.log)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, 0, err
		}
		overlapsLogged(string(content), pairs)
	}
	return handlings, uint64(len(pairs)), nil
}

func (g *group) noteSteering(ratio float64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.steering = max(g.steering, math.Abs(ratio))
}

// awaitWhole waits until the group is whole.
func (g *group) awaitWhole(ctx context.Context) error {
	return eventually.Ask(ctx, wholeMax, "the group is whole", func() error { return g.whole(ctx) })
}

// awaitSettled waits until no router holds an event and the broker has none left.
func (g *group) awaitSettled(ctx context.Context, within time.Duration) error {
	return eventually.Ask(ctx, within, "everything is settled", func() error {
		backlog, err := g.broker.backlog(ctx)
		if err != nil || backlog > 0 {
			return errors.Join(err, fmt.Errorf("the broker has a backlog of %d", backlog))
		}
		if g.options.Control == controlShared {
			return nil
		}
		for _, m := range g.present() {
			values, err := m.metrics(ctx)
			g.noteAudit(m, values)
			if n := values["ringfence_source_unsettled"] - values["ringfence_timers_held"]; err != nil || n > 0 {
				return errors.Join(err, fmt.Errorf("%s has %v unsettled", m.name, n))
			}
		}
		return g.timersSettled(ctx)
	})
}

// timersSettled reports why timers are left: the next firing of each schedule always waits.
func (g *group) timersSettled(ctx context.Context) error {
	if g.options.Schedules == 0 && g.options.Timers == 0 {
		return nil
	}
	_, waiting, err := source.Backlog(ctx, g.broker.admin, timerTopic, false, subscription)
	if err == nil && waiting > g.options.Schedules {
		err = fmt.Errorf("%d timers wait at the broker, beside the next firings of %d schedules", waiting-g.options.Schedules, g.options.Schedules)
	}
	return err
}

// end ends everything, without ceremony.
func (g *group) end() {
	var all sync.WaitGroup
	all.Go(g.endHolders)
	for _, m := range g.members {
		all.Go(func() {
			endAll(m.workers, 10*time.Second)
			m.router.end(time.Second)
			if m.proxy != nil {
				m.proxy.end(time.Second)
			}
		})
	}
	all.Wait()
}

// runs returns all processes that applications have been so far.
func (g *group) runs() []appRun {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]appRun(nil), g.apps...)
}
