package main

import (
	"os/exec"
	"runtime"
	"syscall"

	"github.com/ringfence/router/internal/base/timerslack"
)

// ownGroup gives an application a process group of its own, so that Ctrl-C in a terminal reaches the
// router alone. It ends by SIGTERM when the router is killed: that happens when the thread that has
// started it ends, so the caller's goroutine keeps its thread until unlock. Its timer slack is the kernel's, not that of a router.
func ownGroup(cmd *exec.Cmd) (unlock func()) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	runtime.LockOSThread()
	restore := timerslack.Narrow()
	return func() {
		restore()
		runtime.UnlockOSThread()
	}
}
