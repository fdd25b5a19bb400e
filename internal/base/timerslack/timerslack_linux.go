package timerslack

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Widen gives all threads of this process the slack [Wide]. A thread inherits its slack, and sysmon exists before any
// code of the program runs, so the process executes its program again, with the same arguments, variables, files and
// process id. Widen does nothing, and returns nil, if the slack is not [Default]: the process has done this before,
// or the slack was set on purpose (TimerSlackNSec of systemd). Call it before the program handles signals, since a
// signal that comes in between would be lost.
func Widen() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now, err := get()
	if err != nil || now != Default {
		return err
	}
	path, err := os.Executable()
	if err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	if err := set(Wide); err != nil {
		return err
	}
	err = syscall.Exec(path, os.Args, os.Environ()) //nolint:gosec // this program again
	_ = set(now)                                    // restores the slack; this cannot fail if the call above did not
	return fmt.Errorf("timer slack: cannot start %s again: %w", path, err)
}

// get returns the slack of the calling thread.
func get() (time.Duration, error) {
	ns, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return 0, fmt.Errorf("timer slack: %w", err)
	}
	return time.Duration(ns), nil
}

// Narrow gives the calling thread the kernel's default slack, which the processes that it starts inherit. The
// caller's goroutine must be locked to its thread. restore undoes the change.
func Narrow() (restore func()) {
	before, err := get()
	if err != nil || before == Default || set(Default) != nil {
		return func() {}
	}
	return func() { _ = set(before) }
}

func set(slack time.Duration) error {
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(slack), 0, 0, 0); err != nil {
		return fmt.Errorf("timer slack: %w", err)
	}
	return nil
}
