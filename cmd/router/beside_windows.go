package main

import (
	"os"
	"os/exec"
)

var forwarded []os.Signal

func ownGroup(*exec.Cmd) (unlock func()) { return func() {} }

func signalGroup(*exec.Cmd, os.Signal) {}

// terminateGroup ends an application at once: Windows has no signal that asks it to.
func terminateGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() } // fails only if it has ended
func killGroup(cmd *exec.Cmd)      { _ = cmd.Process.Kill() }

// reapOrphans does nothing on this system: see the one for Linux.
func reapOrphans(<-chan struct{}) {}
