package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringfence/router/internal/base/timerslack"
)

// ownGroup gives an application a process group of its own, so that Ctrl-C in a terminal reaches the router alone.
// The kernel sends the application SIGTERM when the router is killed, or already when the thread that started the
// application ends: so the caller's goroutine keeps its thread until unlock. The application gets the kernel's
// default timer slack, not the router's.
func ownGroup(cmd *exec.Cmd) (unlock func()) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	runtime.LockOSThread()
	restore := timerslack.Narrow()
	return func() {
		restore()
		runtime.UnlockOSThread()
	}
}

// orphansEvery is the time between two looks for orphans. What the router has started itself is waited for at once, long before a second look.
const orphansEvery = 5 * time.Second

// reapOrphans reaps processes that have lost their parent, until stop is closed, if this is the first process of a
// container. Such processes become its children, and unless it reaps them, each occupies a process id of the
// container.
func reapOrphans(stop <-chan struct{}) {
	if os.Getpid() != 1 {
		return
	}
	ticker := time.NewTicker(orphansEvery)
	defer ticker.Stop()
	var before map[int]bool
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		dead := deadChildren()
		for pid := range dead {
			if before[pid] {
				_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil) // its end interests nobody
			}
		}
		before = dead
	}
}

// deadChildren returns the children of this process that have ended and that nobody has waited for.
func deadChildren() map[int]bool {
	var found unix.Siginfo
	if unix.Waitid(unix.P_ALL, 0, &found, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil) != nil || found.Signo == 0 {
		return nil // there is none
	}
	dead := map[int]bool{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is good
	for _, stat := range stats {
		text, err := os.ReadFile(stat) //nolint:gosec // of a process
		if err != nil {
			continue // it has gone
		}
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // after the name, which may have spaces
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if err == nil && len(fields) > 1 && string(fields[0]) == "Z" && string(fields[1]) == "1" {
			dead[pid] = true
		}
	}
	return dead
}
