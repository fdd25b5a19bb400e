package dev

import (
	"context"
	"os/exec"
)

// inGroup bounds how long a command may hold its output open. Windows knows no SIGTERM:
// the end of a command's context kills it.
func inGroup(cmd *exec.Cmd) { cmd.WaitDelay = appGrace }

func shell(ctx context.Context, command string) *exec.Cmd {
	return exec.CommandContext(ctx, "cmd", "/C", command)
}

// shellHas reports whether the shell finds a command. It reports true, as that shell cannot tell.
func shellHas(context.Context, string) bool { return true }
