package conformance

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/ringfence/router/internal/base/clock"
)

const supported = true

// bootTime is CLOCK_BOOTTIME in nanoseconds.
func bootTime() int64 { return int64(clock.Read().Boot) }

// The signals that scenes send.
const (
	sigStop = syscall.SIGSTOP
	sigCont = syscall.SIGCONT
	sigTerm = syscall.SIGTERM
	sigKill = syscall.SIGKILL
)

// inGroup gives a worker a process group of its own.
func inGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// signalGroup signals a worker and what it has started.
func signalGroup(cmd *exec.Cmd, s syscall.Signal) { _ = syscall.Kill(-cmd.Process.Pid, s) } // fails only if it has ended

// stopped reports whether a worker has stopped.
func stopped(cmd *exec.Cmd) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	_, state, ok := bytes.Cut(stat, []byte(") ")) // after the name of the command
	return err != nil || !ok || bytes.HasPrefix(state, []byte("T"))
}
