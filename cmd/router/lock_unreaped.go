//go:build unix && !linux

package main

import "os/exec"

// startLocked starts a command as the first process of a group.
func startLocked(cmd *exec.Cmd) (unlock func(), err error) {
	return func() {}, cmd.Start()
}

// untilEnded waits for the end of a child. For a moment then the watchdog knows the number of a group that is no more; systems do not give it away
// so soon.
func untilEnded(cmd *exec.Cmd) { _ = cmd.Wait() } // its state is looked at
