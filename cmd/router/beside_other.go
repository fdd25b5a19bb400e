//go:build unix && !linux

package main

import (
	"os/exec"
	"syscall"
)

// ownGroup gives an application a process group of its own, so that Ctrl-C in a terminal reaches the
// router alone.
func ownGroup(cmd *exec.Cmd) (unlock func()) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return func() {}
}

// reapOrphans does nothing on this system: see the one for Linux.
func reapOrphans(<-chan struct{}) {}
