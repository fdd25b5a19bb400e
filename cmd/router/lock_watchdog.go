//go:build unix

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/ringfence/router/internal/base/clock"
)

// The hidden commands of router lock.
const (
	lockWatchdogRole = "lock-watchdog"
	lockExecRole     = "lock-exec"
)

const (
	// lockTick is how often both processes look at the clock. They do so instead of one long wait, since the machine may sleep.
	lockTick = 10 * time.Millisecond

	// lockKill is how long before the deadline SIGKILL is sent.
	lockKill = 5 * lockTick

	// lockOrphanMax is how long a command may go on after router lock has died.
	lockOrphanMax = time.Second
)

// The lines that are sent to a watchdog. When it has started, and after each line, it answers with a line that has
// its clock's time.
const (
	tellUntil = "until" // and an instant of its clock: the new deadline
	tellGroup = "group" // and the process group
	tellEnd   = "end"   // the command has ended, and the watchdog shall
)

// watchdog is the state of the process that kills the group of a command at its deadline, also when router lock cannot.
type watchdog struct {
	group    int // 0: none yet
	deadline clock.Instant
	orphan   bool // router lock has died
}

// hear takes one line. It reports whether the watch is over.
func (d *watchdog) hear(line string) (over bool) {
	word, number, _ := strings.Cut(line, " ")
	n, err := strconv.ParseInt(number, 10, 64)
	switch {
	case word == tellEnd:
		return true
	case err != nil || n <= 0:
	case word == tellUntil:
		d.deadline = max(d.deadline, clock.Instant(n))
	case word == tellGroup && n > 1:
		d.group = int(n)
	}
	return false
}

// abandoned notes that router lock has died.
func (d *watchdog) abandoned(now clock.Instant) {
	d.orphan = true
	d.deadline = min(d.deadline, now.Add(lockOrphanMax))
}

// late reports whether the time to kill has come.
func (d *watchdog) late(now clock.Instant) bool {
	return d.deadline > 0 && !now.Before(d.deadline.Add(-lockKill))
}

// watchLock is the watchdog's process.
func watchLock(in io.Reader, out io.Writer) {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	lines := make(chan string)
	var reader sync.WaitGroup
	reader.Go(func() { // ends with the process
		defer close(lines)
		for s := bufio.NewScanner(in); s.Scan(); {
			lines <- s.Text()
		}
	})
	ticker := time.NewTicker(lockTick)
	defer ticker.Stop()
	answer := func() { _, _ = fmt.Fprintln(out, int64(clock.Now())) } // router lock may have died
	answer()
	var d watchdog
	for {
		var line string
		heard, open := false, true
		select {
		case line, open = <-lines:
			heard = open
		case <-ticker.C:
		}
		now := clock.Now()
		switch {
		case d.late(now): // whatever was said since
			killUntilGone(d.group)
			return
		case heard:
			if d.hear(line) {
				return
			}
			answer()
		case !open:
			lines = nil
			if d.abandoned(now); d.group == 0 {
				return // the command still waits for its byte, and ends without it
			}
			signalLocked(d.group, syscall.SIGTERM)
		case d.orphan && !signalLocked(d.group, 0):
			return
		}
	}
}

// killUntilGone sends SIGKILL until no process of a group is left, for a second at most, since dead processes that
// nobody reaps count, too.
func killUntilGone(group int) {
	if group == 0 {
		return
	}
	for range 100 {
		if !signalLocked(group, syscall.SIGKILL) {
			return
		}
		time.Sleep(lockTick)
	}
}

// signalLocked signals a group. It reports whether there is one.
func signalLocked(group int, s syscall.Signal) (there bool) {
	return !errors.Is(syscall.Kill(-group, s), syscall.ESRCH)
}

// lockChildren are the commands that router lock starts.
func lockChildren() []*cobra.Command {
	return []*cobra.Command{
		{
			Use: lockWatchdogRole, Hidden: true, Args: noArgs,
			RunE: func(*cobra.Command, []string) error {
				watchLock(os.Stdin, os.Stdout)
				return nil
			},
		},
		{
			Use: lockExecRole, Hidden: true, DisableFlagParsing: true, Args: cobra.MinimumNArgs(2),
			RunE: func(_ *cobra.Command, args []string) error {
				return execLocked(os.NewFile(gateFile, "gate"), args[0], args[1:])
			},
		},
	}
}

// gateFile is the descriptor of the pipe that lets a command begin.
const gateFile = 3

// execLocked becomes the command as soon as a byte comes through the gate.
func execLocked(gate *os.File, path string, command []string) error {
	signal.Ignore(syscall.SIGTSTP) // the command inherits this: the shell only knows router lock, so nothing could continue a command that Ctrl-Z has stopped
	_, err := io.ReadFull(gate, make([]byte, 1))
	_ = gate.Close() // it was only read
	if err != nil {
		return &lockError{exitNotLocked, ""} // router lock has died before the command could begin
	}
	err = syscall.Exec(path, command, os.Environ()) //nolint:gosec // the command is the user's
	return notRunnable(command[0], err)
}

// notRunnable is the error of a command that cannot be run, with the exit code that shells have for it.
func notRunnable(name string, err error) error {
	code := exitNotExec
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		code = exitNoCommand
	}
	if cause := errors.Unwrap(err); cause != nil {
		err = cause // without the name
	}
	return &lockError{code, fmt.Sprintf("%s cannot be run: %v", name, err)}
}
