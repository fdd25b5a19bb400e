//go:build unix && !linux

package main

import "os/exec"

// startLocked starts a command as the first process of a group.
func startLocked(cmd *exec.Cmd) (unlock func(), err error) {
	return func() {}, cmd.Start()
}

// untilEnded waits for the end of a child and reaps it. For a moment the watchdog then has the id of a group that no
// longer exists; systems do not reuse an id so soon.
func untilEnded(cmd *exec.Cmd) { _ = cmd.Wait() } // its state is looked at
