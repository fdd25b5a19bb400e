//go:build unix

package procgroup

import (
	"fmt"
	"syscall"

	"github.com/ringfence/router/internal/base/clock"
)

// Pause stops a child by SIGSTOP, and returns when it still ran for the last time.
func (p *Process) Pause() (clock.Instant, error) {
	at := clock.Now()
	if err := p.command.Process.Signal(syscall.SIGSTOP); err != nil {
		return 0, fmt.Errorf("pause %s: %w", p.Name, err)
	}
	return at, nil
}

// Resume lets a paused child run again, and returns when it does for sure.
func (p *Process) Resume() (clock.Instant, error) {
	if err := p.command.Process.Signal(syscall.SIGCONT); err != nil {
		return 0, fmt.Errorf("resume %s: %w", p.Name, err)
	}
	return clock.Now(), nil
}
