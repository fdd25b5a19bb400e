package procgroup

import (
	"os/exec"
	"runtime"
	"syscall"
)

// dieWithParent makes a child end when its parent does, also while it is stopped and cannot read the end of its standard input. The
// system goes by the thread that has started it, so the caller's goroutine keeps its thread until unlock.
func dieWithParent(command *exec.Cmd) (unlock func()) {
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}
