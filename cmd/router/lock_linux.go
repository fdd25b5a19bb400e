package main

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// startLocked starts a command as the first process of a group. On Linux it also gets SIGTERM when the thread that has started it ends, which
// happens when this process is killed: so the caller keeps its thread until unlock.
func startLocked(cmd *exec.Cmd) (unlock func(), err error) {
	cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	runtime.LockOSThread()
	if err := cmd.Start(); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	return runtime.UnlockOSThread, nil
}

// untilEnded waits for the end of a child without reaping it. Until Wait reaps it, its process id, which is also the
// id of its group, is not used again.
func untilEnded(cmd *exec.Cmd) {
	for errors.Is(unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR) {
	}
}
