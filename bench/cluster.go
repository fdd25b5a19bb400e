package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/devtools/journal"
)

// The roles of a process in its mode.
const (
	roleApp    = "app"
	roleRouter = "router"
	roleCaller = "caller"
	roleRedis  = "redis"
	roleHolder = "holder"
	roleEtcd   = "etcd"
	roleBroker = "broker" // in no mode: it is watched, not started
)

// point is a worker's progress at an instant, or a process's CPU use.
type point struct {
	at    time.Time
	value float64 // events, or CPU seconds
}

// proc is one process under measurement.
type proc struct {
	role   string
	pid    int
	cmd    *exec.Cmd // nil: started by another process
	reader sync.WaitGroup

	journal  string        // path of the application's journal, empty for none
	latency  string        // path of its latencies, or of its timeline, empty for none
	tally    string        // path of its tally of calls, empty for none
	killedAt clock.Instant // 0: it was not

	mu        sync.Mutex
	events    []point
	cpu       []point
	allocated float64 // bytes of heap since its start, as of its newest report; 0: unknown
}

// cluster is the processes of one mode in one round. Its methods are for one goroutine.
type cluster struct {
	options Options
	mode    mode
	topic   string
	self    string // this binary
	dir     string // for settings, logs, journals
	procs   []*proc
	nodes   [][]*proc // the processes that a kill of a node ends
	admins  []string  // addresses of the routers' admin servers
	callees []string  // addresses for callers and holders: those of the routers, of the applications, of the Redis or of the etcd
}

// record selects the data that the applications of a cluster write.
type record struct {
	journals    bool
	latencies   bool
	latencyFrom int         // number of the first event that counts
	timeline    *plan       // nil: none
	disturbance disturbance // in the disturbed half
}

// arguments are those of an application that writes its timeline to path.
func (rec record) arguments(path string) []string {
	number, d := strconv.Itoa, rec.disturbance
	return []string{
		"--timeline", path, "--plan-from", number(rec.timeline.from), "--plan-half", number(rec.timeline.half), "--plan-to", number(rec.timeline.to),
		"--plan-rate", number(rec.timeline.rate), "--disturb-slow", number(d.slow), "--disturb-fails", number(d.fails), "--disturb-takes", d.takes.String(),
	}
}

// startCluster starts the processes of a mode on a topic. Its caller calls end, even
// after an error.
func startCluster(ctx context.Context, o Options, m mode, topic, dir string, rec record) (*cluster, error) {
	c := &cluster{options: o, mode: m, topic: topic, dir: dir}
	var err error
	if c.self, err = os.Executable(); err != nil {
		return c, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return c, err
	}
	if o.BrokerPID != 0 {
		c.procs = append(c.procs, &proc{role: roleBroker, pid: o.BrokerPID})
	}
	args := []string{"--mode", m.name, "--handler", o.Handler.name, "--topic", topic, "--pulsar", o.PulsarURL, "--stalled-keys", strconv.Itoa(o.StalledKeys), "--stall", o.Stall.String()}
	if m.hasRedis() {
		redis, err := startRedis(ctx, c)
		if err != nil {
			return c, err
		}
		args = append(args, "--redis", redis)
		if m.name != modeRedlock { // there are no applications
			c.callees = slices.Repeat([]string{redis}, o.Nodes)
			return c, nil
		}
	}
	if m.hasEtcd() {
		etcd, err := startEtcd(ctx, c)
		c.callees = slices.Repeat([]string{etcd}, o.Nodes)
		return c, err
	}
	for i := range o.Nodes {
		if err := c.startNode(ctx, i, args, rec); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c *cluster) startNode(ctx context.Context, i int, args []string, rec record) error {
	var node []*proc
	app := append([]string{workerCommand, "--name", fmt.Sprintf("app-%03d", i)}, args...)
	if c.mode.hasRouters() {
		config, endpoint, admin, err := routerConfig(c.options, c.topic, c.dir, i)
		if err != nil {
			return err
		}
		command := append(slices.Clone(c.options.RouterBy), c.options.Router, "run", "--config", config)
		router, err := c.launch(ctx, roleRouter, command[0], command[1:]...)
		if err != nil {
			return err
		}
		node, c.admins = append(node, router), append(c.admins, admin)
		app = append(app, "--endpoint", endpoint)
		c.callees = append(c.callees, endpoint)
	}
	if c.mode.name == modeUnary {
		app = append(app, "--endpoint", bareAddress(i))
		c.callees = append(c.callees, bareAddress(i))
	}
	if c.mode.name == modeBare {
		relay, err := c.launch(ctx, roleRouter, c.self, relayCommand,
			"--index", strconv.Itoa(i), "--nodes", strconv.Itoa(c.options.Nodes), "--pulsar", c.options.PulsarURL, "--topic", c.topic)
		if err != nil {
			return err
		}
		node = append(node, relay)
		app = append(app, "--endpoint", bareAddress(i))
	}
	var journalPath, latencyPath, tallyPath string
	if c.mode.workload == workloadCalls {
		tallyPath = filepath.Join(c.dir, fmt.Sprintf("app-%d.tally", i))
		app = append(app, "--tally", tallyPath, "--node", strconv.Itoa(i))
	}
	if rec.journals {
		journalPath = filepath.Join(c.dir, fmt.Sprintf("app-%d.journal", i))
		app = append(app, "--journal", journalPath)
	}
	if rec.latencies {
		latencyPath = filepath.Join(c.dir, fmt.Sprintf("app-%d.latencies", i))
		app = append(app, "--latencies", latencyPath, "--latency-from", strconv.Itoa(rec.latencyFrom))
	}
	if rec.timeline != nil {
		latencyPath = filepath.Join(c.dir, fmt.Sprintf("app-%d.timeline", i))
		app = append(app, rec.arguments(latencyPath)...)
	}
	if c.options.SingleAcks {
		app = append(app, "--single-acks")
	}
	p, err := c.launch(ctx, roleApp, c.self, app...)
	if err != nil {
		return err
	}
	p.journal, p.latency, p.tally = journalPath, latencyPath, tallyPath
	c.nodes = append(c.nodes, append(node, p))
	return nil
}

func (c *cluster) launch(ctx context.Context, role, name string, args ...string) (*proc, error) {
	p := &proc{role: role, cmd: exec.CommandContext(ctx, name, args...)}
	p.cmd.Env = append(os.Environ(), "GOGC="+strconv.Itoa(c.options.GOGC))
	log, err := os.Create(filepath.Join(c.dir, fmt.Sprintf("%s-%d.log", role, len(c.procs))))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the process has its own descriptor
	p.cmd.Stderr = log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	p.pid = p.cmd.Process.Pid
	p.reader.Go(func() { p.read(out) })
	c.procs = append(c.procs, p)
	return p, nil
}

// end waits for all processes, after cancel has killed those that still run.
func (c *cluster) end(cancel context.CancelFunc) {
	cancel()
	for _, p := range c.procs {
		p.wait()
	}
}

func (p *proc) wait() {
	if p.cmd == nil || p.cmd.ProcessState != nil {
		return
	}
	p.reader.Wait()
	_ = p.cmd.Wait() // it was killed, or told to end
}

// stopApps tells the applications to end and waits until they have, so that they write their
// buffered data.
func (c *cluster) stopApps() {
	for _, p := range c.apps() {
		_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	}
	for _, p := range c.apps() {
		p.wait()
	}
}

// kill ends all processes of a node at once.
func (c *cluster) kill(node int) clock.Instant {
	at := clock.Now()
	for _, p := range c.nodes[node] {
		p.killedAt = at
		_ = p.cmd.Process.Kill() // it may have ended
	}
	return at
}

func (c *cluster) apps() []*proc {
	var apps []*proc
	for _, p := range c.procs {
		if p.role == roleApp {
			apps = append(apps, p)
		}
	}
	return apps
}

func (c *cluster) journals() []journal.File {
	var files []journal.File
	for _, p := range c.apps() {
		files = append(files, journal.File{Path: p.journal, KilledAt: p.killedAt})
	}
	return files
}

// awaitReady waits until every consumer has subscribed, or every router is a member.
func (c *cluster) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !c.ready(ctx) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the processes are not ready: %w", errors.Join(ctx.Err(), c.lastWords()))
		case <-tick.C:
		}
	}
	return nil
}

func (c *cluster) ready(ctx context.Context) bool {
	for _, p := range c.apps() {
		if !p.reports() {
			return false
		}
	}
	for _, address := range c.admins {
		body, err := get(ctx, "http://"+address+"/readyz")
		if err != nil {
			return false
		}
		body.Close()
	}
	return true
}

// lastWords returns the ends of the logs, which tell why a cluster did not work.
func (c *cluster) lastWords() error {
	var errs []error
	logs, _ := filepath.Glob(filepath.Join(c.dir, "*.log")) // the pattern is a good one
	for _, name := range logs {
		b, err := os.ReadFile(name)
		if text := strings.TrimSpace(string(b[max(0, len(b)-500):])); err == nil && text != "" {
			errs = append(errs, fmt.Errorf("%s: … %s", filepath.Base(name), text))
		}
	}
	return errors.Join(errs...)
}

// read takes a worker's progress lines: the number of events it has handled, and the bytes it has allocated.
func (p *proc) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var events, allocated float64
		if _, err := fmt.Sscan(lines.Text(), &events, &allocated); err != nil {
			continue
		}
		p.mu.Lock()
		p.events = append(p.events, point{time.Now(), events})
		p.allocated = allocated
		p.mu.Unlock()
	}
}

// reports tells whether the worker has sent a report yet.
func (p *proc) reports() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.events) > 0
}

func (c *cluster) sampleCPU() {
	for _, p := range c.procs {
		p.sampleCPU()
	}
}

func (p *proc) sampleCPU() {
	seconds, err := cpuSeconds(p.pid)
	if err != nil {
		return // it has ended; its last point stays
	}
	p.mu.Lock()
	p.cpu = append(p.cpu, point{time.Now(), seconds})
	p.mu.Unlock()
}

// cpuSeconds reads a process's CPU use so far, user and system.
func cpuSeconds(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseStat(string(b))
}

func parseStat(stat string) (float64, error) {
	f := strings.Fields(stat[strings.LastIndex(stat, ")")+1:]) // the name before it may hold anything
	if len(f) < 13 {
		return 0, errors.New("unexpected /proc/PID/stat")
	}
	user, err1 := strconv.ParseFloat(f[11], 64)
	system, err2 := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100, errors.Join(err1, err2) // USER_HZ is 100 on every Linux that Go runs on
}

// buildRouter builds the router binary of this module into dir.
func buildRouter(ctx context.Context, dir string) (string, error) {
	bin := filepath.Join(dir, "router")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", bin, "github.com/ringfence/router/cmd/router")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build the router: %w", err)
	}
	return bin, nil
}
