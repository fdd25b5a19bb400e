package dev

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/devtools/demo"
	"github.com/ringfence/router/internal/devtools/ends"
	"github.com/ringfence/router/internal/devtools/procgroup"
	"github.com/ringfence/router/internal/ownership"
)

// The hidden commands of the children, besides those of a demo.
const (
	RoleApp  = "app"
	RoleExec = "exec"
)

// Environment holds the executable and the outputs of a development group.
type Environment struct {
	Executable string // the binary that has the hidden commands
	Stdout     io.Writer
	Colours    bool
}

// ErrUsage means that a child rejected its command line.
var ErrUsage = errors.New("dev: wrong usage")

// ErrNotDrained means that a member did not drain in time.
var ErrNotDrained = errors.New("dev: not all members have drained")

const (
	startPatience = 2 * time.Minute
	drainPatience = 30 * time.Second
	stopPatience  = appGrace + 5*time.Second
	lookEvery     = 100 * time.Millisecond

	// restartFirst and restartMax are the pauses before an ended process is restarted.
	restartFirst = 500 * time.Millisecond
	restartMax   = 10 * time.Second

	// drainNoteEvery is how often a drain says what it waits for.
	drainNoteEvery = 2 * time.Second

	exitUsage    = 2 // of this binary
	exitIdentity = 5
)

// session is one run.
type session struct {
	options   Options
	dir       string
	out       *output
	processes *procgroup.Group
	broker    string // address of the one in memory, "" without
	profile   string // the times of ownership, for the user
	members   []*member
	fail      context.CancelCauseFunc
	ends      ends.Tally
	published atomic.Int64 // generated events

	restarts sync.WaitGroup
}

// member is one router and the application beside it.
type member struct {
	node, app string // names
	endpoint  string
	admin     string
	gossip    string
	router    []string // command line
	command   []string // of the application's parent

	mu     sync.Mutex
	pauses backoff.Backoff // before restarts
}

// Run runs a group until ctx ends, or until Options.Events are handled. Then it drains: the
// members leave the group in order, and finish accepted events. When it returns, all children
// have ended. An error names the failure of a child.
func Run(ctx context.Context, o Options, e Environment) (err error) {
	if err := o.Validate(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", procgroup.FolderPrefix+"dev-")
	if err != nil {
		return fmt.Errorf("dev: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	s := &session{
		options: o, dir: dir, fail: fail,
		out: &output{w: e.Stdout, colours: e.Colours, width: len(fmt.Sprintf("node-%d", o.Members))},
	}
	s.processes = procgroup.New(procgroup.Config{
		Executable: e.Executable, Dir: dir, Patience: stopPatience,
		Stderr: s.out.stream,
		Ended:  func(p *procgroup.Process, err error) { s.ended(running, p.Name, err) },
	})
	defer s.restarts.Wait()
	defer s.processes.StopAll()
	err = s.run(running)
	if ctx.Err() != nil || errors.Is(err, errAllHandled) {
		s.noteLapses(context.WithoutCancel(ctx))
		err := s.drain(context.WithoutCancel(ctx))
		s.processes.StopThose(func(name string) bool { // an application that lost its member would end with a warning
			m, _ := s.find(name)
			return m != nil && name == m.app
		})
		s.processes.StopAll() // the members have told all ends then
		s.summarize()
		return err
	}
	if cause := context.Cause(running); cause != nil {
		return cause
	}
	return err
}

var errAllHandled = errors.New("dev: all events are handled")

// group says what runs.
func (s *session) group() string {
	if len(s.members) == 1 {
		return "1 member, with: " + s.what()
	}
	return fmt.Sprintf("%d members, each with: %s", len(s.members), s.what())
}

// run starts everything and publishes. It returns errAllHandled, or why it ended.
func (s *session) run(ctx context.Context) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	s.out.note("%s", s.group())
	s.out.note("%s", s.profile)
	s.out.note("the group is forming; a new group first waits for old leases to expire (about 7 s)")
	if err := s.untilReady(ctx); err != nil {
		return err
	}
	s.out.note("the group has a page, http://%[1]s, and answers: router members --admin %[1]s", s.members[0].admin)
	if s.broker == "" {
		s.out.note("ready: events come from %s, subscription %s. Ctrl-C drains and ends.", strings.Join(s.options.Topics, ", "), s.options.Subscription)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	s.out.note("ready: %d events/s on %d keys. Ctrl-C drains and ends.", s.options.Rate, s.options.Keys)
	return s.generate(ctx)
}

func (s *session) what() string {
	if s.options.Exec != "" {
		return s.options.Exec + " (for each event)"
	}
	return strings.Join(s.options.Command, " ")
}

// start starts the broker, and every member with its application.
func (s *session) start(ctx context.Context) error {
	if s.options.Pulsar == "" {
		address := make(chan string, 1)
		if _, err := s.processes.Start("broker", func(line string) { address <- line }, "demo", demo.RoleBroker); err != nil {
			return fmt.Errorf("dev: %w", err)
		}
		select {
		case s.broker = <-address:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := s.plan(); err != nil {
		return err
	}
	for _, m := range s.members {
		if err := s.startOne(m.node, m.router); err != nil {
			return err
		}
	}
	begun := clock.Now()
	for _, m := range s.members { // an application that came before its member would begin with a warning
		if err := s.until(ctx, begun, m, "/livez", func(status int) bool { return status != 0 }); err != nil {
			return err
		}
		if err := s.startOne(m.app, m.command); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) startOne(name string, arguments []string) error {
	line := func(line string) { s.out.line(name, line) }
	if m, _ := s.find(name); m != nil && name == m.node {
		line = func(line string) { s.tell(name, line) }
	}
	if _, err := s.processes.Start(name, line, arguments...); err != nil {
		return fmt.Errorf("dev: %w", err)
	}
	return nil
}

// tell shows the failures that a member writes, and counts the ends of events.
func (s *session) tell(name, line string) {
	r, err := ends.Read(line)
	if err != nil {
		s.out.line(name, line)
		return
	}
	s.ends.Add(r)
	if r.Failure != nil {
		s.out.line(name, r.Failure.String())
	}
}

// summarize says how the events ended.
func (s *session) summarize() {
	done, dead := s.ends.Counts()
	if s.broker == "" {
		s.out.note("%d done, %d dead-lettered; the others stay in the subscription", done, dead)
		return
	}
	s.out.note("%d done, %d dead-lettered, %d pending", done, dead, max(0, int(s.published.Load())-done-dead))
}

// plan gives every member its ports, its settings and its command lines.
func (s *session) plan() error {
	ports, err := procgroup.FreePorts(3 * s.options.Members)
	if err != nil {
		return fmt.Errorf("dev: %w", err)
	}
	var seeds []string
	for i := range s.options.Members {
		m := &member{
			node: fmt.Sprintf("node-%d", i+1), app: fmt.Sprintf("app-%d", i+1),
			gossip: procgroup.Loopback(ports[3*i]), admin: procgroup.Loopback(ports[3*i+1]),
			pauses: backoff.Backoff{Min: restartFirst, Max: restartMax},
		}
		listen, endpoint := procgroup.AppAddress(filepath.Join(s.dir, m.node+".sock"), ports[3*i+2])
		m.endpoint = endpoint
		settings := procgroup.Settings{
			Group: s.options.Group, Name: m.node,
			Pulsar: s.options.Pulsar, Topics: s.options.Topics, Subscription: s.options.Subscription,
			Namespace: "public/default", App: listen, Gossip: m.gossip, Admin: m.admin, Seeds: seeds,
			LogLevel: s.options.logLevel(),
		}
		if s.options.Pulsar == "" {
			settings.Topics = []string{topic}
			settings.LogKeys = "reveal" // they are generated
		}
		file := filepath.Join(s.dir, m.node+".yaml")
		if err := os.WriteFile(file, settings.YAML(), 0o600); err != nil {
			return fmt.Errorf("dev: %w", err)
		}
		if i == 0 {
			if err := s.check(file); err != nil {
				return err
			}
		}
		m.router = []string{"demo", demo.RoleMember, "--" + demo.ParentDrains, "--config", file, "--log.format", "text"}
		if s.broker != "" {
			m.router = append(m.router, "--broker", s.broker)
		}
		for _, setting := range s.options.Settings {
			m.router = append(m.router, "--"+setting)
		}
		m.command = s.application(m)
		seeds = append(seeds, m.gossip)
		s.members = append(s.members, m)
	}
	return nil
}

// check checks the members' settings before any of them starts.
func (s *session) check(file string) error {
	flags, err := settingFlags(s.options.Settings)
	if err != nil {
		return err
	}
	loaded, err := config.Load(config.Sources{File: file, Flags: flags})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUsage, err)
	}
	s.profile = profileOf(loaded.Ownership)
	return nil
}

// profileOf names the times of ownership, which differ from those of production by default.
func profileOf(o config.Ownership) string {
	if o.Profile == config.ProfileFast {
		return fmt.Sprintf("ownership.profile is fast, for development: leases of %v. Production has %v: --set ownership.profile=default",
			o.Lease, ownership.DefaultTiming().Lease)
	}
	return fmt.Sprintf("ownership.profile is %s: leases of %v", o.Profile, o.Lease)
}

// application is the command line of the process beside a member.
func (s *session) application(m *member) []string {
	if s.options.Exec != "" {
		return []string{"dev", RoleExec, "--endpoint", m.endpoint, "--parallel", fmt.Sprint(s.options.Parallel), "--", s.options.Exec}
	}
	return append([]string{"dev", RoleApp, "--endpoint", m.endpoint, "--"}, s.options.Command...)
}

// ended starts a child again that has ended unasked, unless that would not help.
func (s *session) ended(ctx context.Context, name string, err error) {
	if ctx.Err() != nil {
		return
	}
	var exit *exec.ExitError
	wrong := errors.As(err, &exit) && (exit.ExitCode() == exitUsage || exit.ExitCode() == exitIdentity)
	m, arguments := s.find(name)
	switch {
	case wrong: // it has printed the reason
		s.fail(fmt.Errorf("%w: %w", ErrUsage, err))
		return
	case m == nil:
		s.fail(fmt.Errorf("dev: %w", err))
		return
	case name == m.app && s.options.Exec == "" && !s.ends.Any(): // RunCommand has given up
		s.fail(fmt.Errorf("%w, and no event was ever handled: the lines of %s above show why", errNoStart, name))
		return
	}
	m.mu.Lock()
	pause := m.pauses.Next()
	m.mu.Unlock()
	s.out.note("%v; starting it again in %v", err, pause)
	s.restarts.Go(func() {
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
		if err := s.startOne(name, arguments); err != nil {
			s.fail(err)
		}
	})
}

func (s *session) find(name string) (*member, []string) {
	for _, m := range s.members {
		switch name {
		case m.node:
			return m, m.router
		case m.app:
			return m, m.command
		}
	}
	return nil, nil
}

// untilReady waits until every member takes part.
func (s *session) untilReady(ctx context.Context) error {
	begun := clock.Now()
	for _, m := range s.members {
		if err := s.until(ctx, begun, m, "/readyz", func(status int) bool { return status == http.StatusOK }); err != nil {
			return err
		}
	}
	return nil
}

// until asks a member until its answer is good.
func (s *session) until(ctx context.Context, begun clock.Instant, m *member, path string, good func(status int) bool) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		status, body := get(ctx, m.admin, path)
		if good(status) {
			return nil
		}
		if clock.Now().Sub(begun) > startPatience {
			return fmt.Errorf("dev: %s is not ready after %v: %s (an application finds its member by %s)",
				m.node, startPatience, strings.ReplaceAll(strings.TrimSpace(body), "\n", ", "), client.EndpointEnv)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// noteLapses names the members that had no lease for a while, which explains why an event ran twice.
func (s *session) noteLapses(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, m := range s.members {
		if n := lapsesIn(ctx, m.admin); n > 0 {
			s.out.note("%s lost its lease (lapses: %d), as on a busy machine: events that it had then may have run twice", m.node, n)
		}
	}
}

// metricLapses is the metric of leases that ran out.
const metricLapses = `ringfence_ownership_notes_total{kind="lease_lapsed"}`

// lapsesIn returns how often a member's lease ran out; 0 without an answer.
func lapsesIn(ctx context.Context, admin string) int {
	response, err := answerOf(ctx, admin, "/metrics")
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if value, is := strings.CutPrefix(lines.Text(), metricLapses+" "); is {
			n, _ := strconv.Atoi(value)
			return n
		}
	}
	return 0
}

// drain lets every member leave in order. It returns ErrNotDrained if one does not.
func (s *session) drain(ctx context.Context) error {
	s.out.note("draining")
	ctx, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	var asked sync.WaitGroup
	var open atomic.Bool
	for _, m := range s.members {
		asked.Go(func() {
			if !s.drainOne(ctx, m) {
				open.Store(true)
			}
		})
	}
	asked.Wait()
	if open.Load() {
		return ErrNotDrained
	}
	s.out.note("drained")
	return nil
}

// drainOne drains a member, and says what that waits for whenever it changes. It returns whether
// the member has drained.
func (s *session) drainOne(ctx context.Context, m *member) bool {
	said := ""
	for {
		status, body := get(ctx, m.admin, "/drain?wait="+drainNoteEvery.String())
		body = strings.TrimSpace(body)
		switch {
		case status == http.StatusOK:
			return true
		case status != http.StatusAccepted || ctx.Err() != nil:
			s.out.note("%s has not drained (%s): its open events would be delivered again", m.node, cmp.Or(said, body))
			return false
		case body != said:
			said = body
			s.out.note("%s is %s", m.node, body)
		}
	}
}

// bodyMax is as much of an answer as is read.
const bodyMax = 4 << 10

// get asks a member's admin port. Without an answer the status is 0, and body gives the reason.
func get(ctx context.Context, admin, path string) (status int, body string) {
	response, err := answerOf(ctx, admin, path)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, bodyMax)) // as much as there is
	return response.StatusCode, string(text)
}

// answerOf returns a member's answer at its admin port. The caller closes its body.
func answerOf(ctx context.Context, admin, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	return http.DefaultClient.Do(request)
}
