//go:build unix

package dev

import (
	"context"
	"os/exec"
	"syscall"
)

// inGroup lets the end of a command's context end all that it has started: first
// SIGTERM, and after a grace SIGKILL. Ctrl-C, which reaches the whole foreground group
// of a terminal, does not reach it: it works on while the members drain.
func inGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = appGrace
}

func shell(ctx context.Context, command string) *exec.Cmd {
	return exec.CommandContext(ctx, "sh", "-c", command) //nolint:gosec // the command comes from the command line
}

// shellHas reports whether the shell finds a command: a program, a function or a builtin.
func shellHas(ctx context.Context, word string) bool {
	return shell(ctx, "command -v -- "+word).Run() == nil
}
