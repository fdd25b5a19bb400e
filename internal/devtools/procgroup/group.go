package procgroup

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/config"
)

// Config holds the settings that all children of a group share.
type Config struct {
	Executable string // the binary that has the hidden commands
	Dir        string // for logs, and for all that the children share

	// Ended is called for a child that ended unexpectedly, with the reason. It may start
	// another one.
	Ended func(*Process, error)

	// Stderr receives a child's standard error, one call at a time for each child; nil: it goes
	// to a file of the child's name in Dir.
	Stderr func(name string) io.Writer

	// Environ is the environment of the children; nil: the parent's, without settings.
	Environ []string

	// DieWithParent makes children end by SIGKILL as soon as the parent has ended, stopped ones too: on Linux. Elsewhere, and without
	// it, they notice the end of their standard input.
	DieWithParent bool

	// Patience is the time for a child to end after it was asked to.
	Patience time.Duration
}

// Group holds the children of one parent. Its methods are safe for concurrent use.
type Group struct {
	Config

	running   sync.WaitGroup
	mu        sync.Mutex
	processes []*Process // that were started; dead ones leave with the next start
}

// New returns a group without children.
func New(cfg Config) *Group { return &Group{Config: cfg} }

// Process is one child.
type Process struct {
	Name string

	log     string // file of its standard error, if there is one
	command *exec.Cmd
	stdin   io.WriteCloser
	ended   chan struct{} // closed when it has
	asked   atomic.Bool   // to end
}

// Start starts this binary with arguments as a child. Each line of its standard output
// goes to line.
func (c *Group) Start(name string, line func(string), arguments ...string) (*Process, error) {
	p := &Process{Name: name, ended: make(chan struct{})}
	p.command = exec.Command(c.Executable, arguments...) //nolint:noctx,gosec // this binary; ends with its standard input, or by kill
	p.command.WaitDelay = time.Second                    // for a background process that holds its output open
	p.command.Env = c.Environ
	if p.command.Env == nil {
		p.command.Env = config.WithoutSettings(os.Environ()) // these are the parent's to make
	}
	p.command.Env = append(slices.Clip(p.command.Env), folderEnv+"="+c.Dir)
	if c.Stderr != nil {
		p.command.Stderr = c.Stderr(name)
	} else {
		p.log = filepath.Join(c.Dir, name+".log")
		log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		defer func() { _ = log.Close() }() // the child has its own copy
		p.command.Stderr = log
	}
	var err error
	p.stdin, err = p.command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	started := make(chan error)
	c.running.Go(func() {
		if c.DieWithParent {
			unlock := dieWithParent(p.command)
			defer unlock()
		}
		err := p.command.Start()
		started <- err
		if err == nil {
			c.watch(p, stdout, line)
		}
	})
	if err := <-started; err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	c.mu.Lock()
	c.processes = append(slices.DeleteFunc(c.processes, func(old *Process) bool { return signal.IsClosed(old.ended) }), p)
	c.mu.Unlock()
	return p, nil
}

// lineMax is the length of the longest line that a child may print; after a longer one its
// output is ignored.
const lineMax = 1 << 20

// watch reads a child's output until it ends.
func (c *Group) watch(p *Process, stdout io.Reader, line func(string)) {
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, lineMax)
	for lines.Scan() {
		line(lines.Text())
	}
	_, _ = io.Copy(io.Discard, stdout) // after a line that was too long: the child must not block
	err := p.command.Wait()
	close(p.ended)
	if !p.asked.Load() {
		c.Ended(p, fmt.Errorf("%s has ended (%w)%s", p.Name, cmp.Or(err, errUnasked), lastWords(p.log)))
	}
}

var errUnasked = errors.New("unexpectedly, without an error")

// lastWords returns the last line of a log, "" where there is none.
func lastWords(path string) string {
	if path == "" {
		return ""
	}
	text, err := os.ReadFile(path) //nolint:gosec // a log that the group made
	if err != nil {
		return "; " + err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return fmt.Sprintf("; its last words: %s", lines[len(lines)-1])
}

// Ended returns a channel that is closed when the child has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Kill ends a child by SIGKILL, and returns when it was still there for the last time.
func (p *Process) Kill() (clock.Instant, error) {
	p.asked.Store(true)
	at := clock.Now()
	if err := p.command.Process.Kill(); err != nil {
		return 0, fmt.Errorf("kill %s: %w", p.Name, err)
	}
	<-p.ended
	return at, nil
}

// Stop ends these children and waits until they are gone.
func (c *Group) Stop(processes ...*Process) {
	for _, p := range processes {
		p.asked.Store(true)
		_, _ = io.WriteString(p.stdin, farewell+"\n") // if it fails, the child has gone
		_ = p.stdin.Close()
	}
	patience := time.NewTimer(c.Patience)
	defer patience.Stop()
	for _, p := range processes {
		select {
		case <-p.ended:
			continue
		case <-patience.C:
			patience.Reset(0) // the remaining processes have no time left either
		}
		_ = p.command.Process.Kill() // if it fails, the child has gone
		<-p.ended
	}
}

// StopThose ends the children whose names are chosen, and waits until they are gone.
func (c *Group) StopThose(chosen func(name string) bool) {
	c.mu.Lock()
	processes := slices.DeleteFunc(slices.Clone(c.processes), func(p *Process) bool { return !chosen(p.Name) })
	c.mu.Unlock()
	c.Stop(processes...)
}

// StopAll ends all children and waits until they are gone.
func (c *Group) StopAll() {
	c.mu.Lock()
	processes := slices.Clone(c.processes)
	c.mu.Unlock()
	c.Stop(processes...)
	c.running.Wait()
}
