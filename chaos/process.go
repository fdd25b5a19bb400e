//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/ringfence/router/internal/base/clock"
)

// process is a program that is kept running in the namespace of a member, as a
// kubelet would: when it ends, it is started again.
type process struct {
	namespace string
	log       string
	launch    func(run int) (binary string, args, env []string)
	ended     func(at clock.Instant, killed bool) // told of every end

	keeper sync.WaitGroup // of one goroutine, while the process is wanted

	mu       sync.Mutex // guards the fields below
	cmd      *exec.Cmd
	done     chan struct{} // closed when cmd has ended
	runs     int
	wanted   bool
	down     time.Duration // how long it stays away after the next end
	killed   bool          // the next end is our doing
	killSent clock.Instant // when SIGKILL had been sent; 0: it was not
	env      []string      // of the next run only, in addition to launch's
	odd      []string      // unexpected ends
}

// restartAfter is the delay before a process that ended by itself is started again.
const restartAfter = time.Second

// start starts the process, which must not be running, and keeps it running.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wanted = true
	if err := p.spawn(); err != nil {
		return err
	}
	p.keeper.Go(p.keep)
	return nil
}

// spawn starts the program. The caller holds the lock.
func (p *process) spawn() error {
	binary, args, env := p.launch(p.runs)
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()   // the process has its own
	cmd := exec.Command(binary, args...) //nolint:noctx // it ends on request
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a fault hits what it has started, too
	cmd.Env = slices.Concat(os.Environ(), env, p.env)
	if err := within(p.namespace, cmd.Start); err != nil {
		return fmt.Errorf("start %s: %w", binary, err)
	}
	p.cmd, p.done, p.killed, p.killSent, p.env = cmd, make(chan struct{}), false, 0, nil
	p.down = restartAfter
	p.runs++
	return nil
}

// keep waits for the ends of the process, and starts it again until it is not wanted.
func (p *process) keep() {
	for {
		p.mu.Lock()
		cmd, done := p.cmd, p.done
		p.mu.Unlock()
		err := cmd.Wait()
		waited := clock.Now()
		p.mu.Lock()
		if p.wanted && !p.killed {
			p.odd = append(p.odd, fmt.Sprintf("%s ended by itself: %v", p.log, err))
		}
		bySignal := cmd.ProcessState.ExitCode() < 0
		p.ended(p.endedAt(waited, bySignal), bySignal)
		close(done)
		down, wanted := p.down, p.wanted
		p.mu.Unlock()
		if !wanted {
			return
		}
		time.Sleep(down)
		p.mu.Lock()
		wanted = p.wanted
		if wanted {
			if err := p.spawn(); err != nil {
				p.odd = append(p.odd, err.Error())
				wanted = false
			}
		}
		p.mu.Unlock()
		if !wanted {
			return
		}
	}
}

// endedAt returns an instant from which on the program did not run: when it was waited for, or when SIGKILL had been sent. Between the two a busy
// machine may need more than a second to take the process apart, and its keys may already run elsewhere. The caller holds the lock.
func (p *process) endedAt(waited clock.Instant, bySignal bool) clock.Instant {
	if bySignal && p.killSent != 0 {
		return min(waited, p.killSent)
	}
	return waited
}

// kill kills the process, which comes back after down.
func (p *process) kill(down time.Duration) {
	p.mu.Lock()
	p.down, p.killed = down, true
	done := p.done
	p.sendKill()
	p.mu.Unlock()
	<-done
}

// sendKill sends SIGKILL. The caller holds the lock.
func (p *process) sendKill() {
	_ = signalGroup(p.cmd, syscall.SIGKILL) // it may have ended
	if p.killSent == 0 {
		p.killSent = clock.Now()
	}
}

func (p *process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = signalGroup(p.cmd, s) // it may have ended
}

func signalGroup(cmd *exec.Cmd, s syscall.Signal) error { return syscall.Kill(-cmd.Process.Pid, s) }

// nextEnv adds to the environment of the next run.
func (p *process) nextEnv(env []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.env = env
}

// run is the number of the present or latest run.
func (p *process) run() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runs - 1
}

// end asks the process to end, kills it when patience is over, and waits.
func (p *process) end(patience time.Duration) (killed bool) {
	p.mu.Lock()
	p.wanted, p.killed = false, true
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return false // it was never started
	}
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-done:
	case <-time.After(patience):
		p.mu.Lock()
		p.sendKill()
		p.mu.Unlock()
		killed = true
	}
	p.keeper.Wait()
	return killed
}

// await waits until the process has been started again after the end of a run.
func (p *process) await(ctx context.Context, run int) error {
	for p.run() == run {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func (p *process) oddities() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.odd
}
