//go:build !linux

package conformance

import (
	"os/exec"
	"syscall"
)

const supported = false

func bootTime() int64 { return 0 }

const (
	sigStop = syscall.SIGTERM
	sigCont = syscall.SIGTERM
	sigTerm = syscall.SIGTERM
	sigKill = syscall.SIGKILL
)

func inGroup(*exec.Cmd) {}

func signalGroup(*exec.Cmd, syscall.Signal) {}

func stopped(*exec.Cmd) bool { return true }
