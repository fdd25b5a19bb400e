package demo

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
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/internal/clock"
	"github.com/ringfence/router/internal/config"
)

// crew is the child processes of a demo. One that ends unasked ends the demo.
type crew struct {
	executable string
	dir        string                  // for logs, and for all that the children share
	fail       context.CancelCauseFunc // ends the demo

	running   sync.WaitGroup
	mu        sync.Mutex
	processes []*process // that were started, dead ones too
}

// process is one child.
type process struct {
	name    string
	log     string // file of its standard error
	command *exec.Cmd
	stdin   io.WriteCloser
	ended   chan struct{} // closed when it has

	mu    sync.Mutex
	asked bool // to end
}

// start starts a child. Each line of its standard output goes to line.
func (c *crew) start(name string, line func(string), arguments ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(c.dir, name+".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	defer func() { _ = log.Close() }()                                                // the child has its own copy
	p.command = exec.Command(c.executable, append([]string{"demo"}, arguments...)...) //nolint:noctx // ends with its standard input, or by kill
	p.command.Env = append(slices.DeleteFunc(os.Environ(), isSetting), folderEnv+"="+c.dir)
	p.command.Stderr = log
	p.stdin, err = p.command.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("demo: %s: %w", name, err)
	}
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("demo: %s: %w", name, err)
	}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("demo: %s: %w", name, err)
	}
	c.mu.Lock()
	c.processes = append(c.processes, p)
	c.mu.Unlock()
	c.running.Go(func() { c.watch(p, stdout, line) })
	return p, nil
}

// isSetting reports whether a variable would change the settings of a member, which
// are the demo's own.
func isSetting(variable string) bool { return strings.HasPrefix(variable, config.EnvPrefix) }

// watch reads what a child prints until it ends.
func (c *crew) watch(p *process, stdout io.Reader, line func(string)) {
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		line(lines.Text())
	}
	err := p.command.Wait()
	close(p.ended)
	if !p.wasAsked() {
		c.fail(fmt.Errorf("demo: %s has ended (%w); %s", p.name, orUnasked(err), lastWords(p.log)))
	}
}

var errUnasked = errors.New("unasked, without an error")

func orUnasked(err error) error {
	if err == nil {
		return errUnasked
	}
	return err
}

// lastWords returns the last line of a log.
func lastWords(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return fmt.Sprintf("its last words: %s", lines[len(lines)-1])
}

func (p *process) ask() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = true
}

func (p *process) wasAsked() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

// kill ends a child by SIGKILL, and returns when it was still there for the last time.
func (p *process) kill() (clock.Instant, error) {
	p.ask()
	at := clock.Now()
	if err := p.command.Process.Kill(); err != nil {
		return 0, fmt.Errorf("demo: kill %s: %w", p.name, err)
	}
	<-p.ended
	return at, nil
}

// stopPatience is how long a child may take to end when it is asked to.
const stopPatience = 2 * time.Second

// stop ends these children and waits until they are gone.
func (c *crew) stop(processes ...*process) {
	for _, p := range processes {
		p.ask()
		_, _ = io.WriteString(p.stdin, farewell+"\n") // if it fails, the child has gone
		_ = p.stdin.Close()
	}
	patience := time.NewTimer(stopPatience)
	defer patience.Stop()
	for _, p := range processes {
		select {
		case <-p.ended:
			continue
		case <-patience.C:
			patience.Reset(0) // for the others too
		}
		_ = p.command.Process.Kill() // if it fails, the child has gone
		<-p.ended
	}
}

// stopAll ends all children and waits until they are gone.
func (c *crew) stopAll() {
	c.mu.Lock()
	processes := slices.Clone(c.processes)
	c.mu.Unlock()
	c.stop(processes...)
	c.running.Wait()
}
