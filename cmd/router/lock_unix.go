//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/clock"
)

const (
	// lockTerm is how much permission is left when the command gets SIGTERM, or a quarter of the longest permission,
	// if that is less. A renewal begins when two thirds are left, at the latest, so by then one has failed, and a
	// second one has had time for an answer.
	lockTerm = 400 * time.Millisecond

	// lockStart bounds the answers of a watchdog that starts.
	lockStart = 10 * time.Second

	// lockGrace bounds the connection to the router and its answer, after the wait. The client's own bound of 10 s comes first, since
	// it says which was missing.
	lockGrace = 11 * time.Second
)

// passedOn are the signals that the command gets, unless this process was told to ignore them.
var passedOn = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH}

func lockable() error { return nil }

// commandPath finds a command.
func commandPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", notRunnable(name, err)
	}
	return path, nil
}

// runLocked reserves the key and runs the command.
func runLocked(cmd *cobra.Command, by *client.Lane, o *lockOptions) error {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, slices.DeleteFunc(slices.Clone(passedOn), signal.Ignored)...)
	defer signal.Stop(signals)
	if cmd.Context().Err() != nil { // a signal came while this process started, and is not in signals
		return &lockError{exitSignal + int(endedBy(cmd.Context())), ""}
	}
	r, err := reserveKey(context.WithoutCancel(cmd.Context()), by, o, signals)
	if err != nil {
		return err
	}
	defer r.Release()
	l := &locked{
		options: o, reservation: r, signals: signals,
		stdin: cmd.InOrStdin(), stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(),
	}
	err = l.run()
	if own := (*lockError)(nil); err != nil && !errors.As(err, &own) { // this machine has no process or no pipe to spare, or router is not there any more
		err = &lockError{exitNotLocked, "the command has not run: " + err.Error()}
	}
	return err
}

// endedBy returns the signal that has ended a context of signal.NotifyContext.
func endedBy(ctx context.Context) syscall.Signal {
	if strings.HasPrefix(context.Cause(ctx).Error(), syscall.SIGTERM.String()) {
		return syscall.SIGTERM
	}
	return syscall.SIGINT
}

// reserveKey waits for the key, or for a signal.
func reserveKey(ctx context.Context, by *client.Lane, o *lockOptions, signals <-chan os.Signal) (r *client.Reservation, err error) {
	ctx, stop := context.WithTimeout(ctx, o.wait+lockGrace)
	defer stop()
	var waiting sync.WaitGroup
	waiting.Go(func() {
		defer stop()
		options := []client.ReserveOption{client.WithWait(o.wait)}
		if o.ttl > 0 {
			options = append(options, client.WithTTL(o.ttl))
		}
		r, err = by.Reserve(ctx, o.key, options...)
	})
	for {
		select {
		case s := <-signals:
			n, ok := s.(syscall.Signal)
			if !ok || n == syscall.SIGWINCH {
				continue
			}
			stop()
			waiting.Wait()
			if err == nil {
				r.Release()
			}
			return nil, &lockError{exitSignal + int(n), ""}
		case <-ctx.Done():
			waiting.Wait()
			if err != nil {
				return nil, notLocked(err)
			}
			return r, nil
		}
	}
}

// locked is a command that runs while a key is held. One goroutine uses it.
type locked struct {
	options        *lockOptions
	reservation    *client.Reservation
	signals        <-chan os.Signal
	stdin          io.Reader
	stdout, stderr io.Writer

	dog      *dog
	child    *exec.Cmd
	ended    chan struct{} // closed when the command has ended
	deadline clock.Instant // that the watchdog knows
	told     clock.Instant // that the watchdog was told and has not confirmed, 0: none
	most     time.Duration // the longest permission there was
	lost     string        // why the command shall end, "" while it shall not
}

// run runs the command to its end. The command never runs without a watchdog that knows its process group: it begins
// only when the watchdog has confirmed that. An error other than a lockError means that the command has not begun.
func (l *locked) run() error {
	var err error
	if l.dog, err = startDog(); err != nil {
		return fmt.Errorf("its watchdog cannot be started: %w", err)
	}
	defer l.dog.end()
	if err := l.tell(tellUntil, func() int64 { l.told = l.until(); return int64(l.told.Add(l.dog.ahead)) }); err != nil {
		return err
	}
	l.deadline, l.told = l.told, 0
	gate, unlock, err := l.startChild()
	if err != nil {
		return err
	}
	defer unlock()
	if err = l.tell(tellGroup, func() int64 { return int64(l.child.Process.Pid) }); err == nil && l.short(clock.Now()) {
		err = &lockError{exitNotLocked, "the command has not run: by the time that it could, the key was lost"}
	}
	if err != nil {
		_ = gate.Close()
		_ = l.child.Process.Kill() // it may have ended
		_ = l.child.Wait()         // it says nothing
		return err
	}
	leave := l.lendTerminal()
	defer leave()
	_, _ = gate.Write([]byte{1}) // it fails if the child has ended, which is seen below
	_ = gate.Close()
	var waiting sync.WaitGroup
	l.ended = make(chan struct{})
	waiting.Go(func() {
		defer close(l.ended)
		untilEnded(l.child)
	})
	defer waiting.Wait()
	l.watch()
	return l.finish()
}

// until returns the deadline of the reservation. It reads the lease clock before the remaining time, so a delay of
// the process in between makes the result earlier, never later.
func (l *locked) until() clock.Instant {
	now := clock.Now()
	left := time.Until(l.reservation.Until())
	l.most = max(l.most, left)
	return now.Add(left)
}

// short reports whether so little permission is left that it will not be renewed in time.
func (l *locked) short(now clock.Instant) bool { return l.deadline.Sub(now) < min(lockTerm, l.most/4) }

// tell tells a watchdog something before the command begins, and waits until it has heard it.
func (l *locked) tell(word string, number func() int64) error {
	l.dog.say(word, number())
	timeout := time.NewTimer(lockStart)
	defer timeout.Stop()
	select {
	case ahead, ok := <-l.dog.answers:
		if ok {
			l.dog.ahead = max(l.dog.ahead, ahead)
			return nil
		}
	case <-timeout.C:
	}
	return &lockError{exitNotLocked, "the command has not run: its watchdog does not answer"}
}

// startChild starts the process that becomes the command when a byte comes through the gate.
func (l *locked) startChild() (gate *os.File, unlock func(), err error) {
	entry, gate, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = entry.Close() }() // the child has its own
	l.child, err = lockChild(append([]string{lockExecRole, l.options.path}, l.options.command...)...)
	if err != nil {
		return nil, nil, errors.Join(err, gate.Close())
	}
	l.child.Stdin, l.child.Stdout, l.child.Stderr = l.stdin, l.stdout, l.stderr
	l.child.ExtraFiles = []*os.File{entry}
	l.child.WaitDelay = time.Second // for what it has left behind, and that holds its output open
	key := l.options.key
	l.child.Env = lockEnvironment(os.Environ(), key, base64.StdEncoding.EncodeToString([]byte(key)), l.reservation.Fence())
	l.child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	unlock, err = startLocked(l.child)
	if err != nil {
		return nil, nil, errors.Join(err, gate.Close())
	}
	return gate, unlock, nil
}

// lockChild is this binary with a hidden command.
func lockChild(args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, args...) //nolint:noctx,gosec // this binary
	cmd.Args[0] = "router"
	return cmd, nil
}

// watch lets the command run until it has ended, and ends it if the key is lost.
func (l *locked) watch() {
	ticker := time.NewTicker(lockTick)
	defer ticker.Stop()
	answers, over := l.dog.answers, l.reservation.Context().Done()
	for {
		select {
		case <-l.ended:
			return
		case s := <-l.signals:
			l.signal(s.(syscall.Signal)) //nolint:forcetypeassert // on unix each is one
		case ahead, ok := <-answers:
			switch late := l.late(clock.Now()); {
			case !ok:
				if answers = nil; !late { // otherwise it has ended after it killed the group
					l.lose("its watchdog has ended")
				}
			case l.lost == "" && !late: // a passed deadline is never extended
				l.dog.ahead = max(l.dog.ahead, ahead)
				l.deadline, l.told = l.told, 0
			}
		case <-over:
			over = nil
			l.lose(context.Cause(l.reservation.Context()).Error())
		case <-ticker.C:
		}
		l.look(clock.Now())
	}
}

// look keeps the deadline.
func (l *locked) look(now clock.Instant) {
	switch short := l.short(now); {
	case l.late(now):
		l.lose("the permission has passed")
		l.signal(syscall.SIGKILL)
	case l.lost != "":
	case short && l.told > 0:
		l.lose("its watchdog does not answer")
	case short:
		l.lose("it was not renewed in time")
	case l.told == 0:
		const news = time.Millisecond
		if until := l.until(); until.After(l.deadline.Add(news)) {
			l.told = until
			l.dog.say(tellUntil, int64(until.Add(l.dog.ahead)))
		}
	}
}

func (l *locked) late(now clock.Instant) bool { return !now.Before(l.deadline.Add(-lockKill)) }

// lose tells the command to end.
func (l *locked) lose(why string) {
	if l.lost == "" {
		l.lost = why
		l.signal(syscall.SIGTERM)
	}
}

// signal signals the command and all that is in its group. It fails only if nothing is.
func (l *locked) signal(s syscall.Signal) { _ = syscall.Kill(-l.child.Process.Pid, s) }

// finish ends what the command has left in its group and returns the error that stands for its exit code.
func (l *locked) finish() error {
	if l.lost == "" && l.late(clock.Now()) {
		l.lost = "the permission has passed" // this process was stopped: it cannot tell whether the command ended before
	}
	l.signal(syscall.SIGKILL)
	l.dog.end()
	if l.child.ProcessState == nil {
		_ = l.child.Wait() // its state is looked at
	}
	for range 10 { // those that were killed may need a moment
		if !signalLocked(l.child.Process.Pid, 0) {
			break
		}
		time.Sleep(lockTick)
	}
	if l.lost != "" {
		return &lockError{exitLost, "the key was lost while the command ran: " + l.lost}
	}
	code := l.child.ProcessState.ExitCode()
	if s, ok := l.child.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		code = exitSignal + int(s.Signal())
	}
	if code == 0 {
		return nil
	}
	return &lockError{code, ""}
}

// lendTerminal gives the terminal to the command's group, if there is one and this process has it: otherwise the command could not read from it.
func (l *locked) lendTerminal() (takeBack func()) {
	in, ok := l.stdin.(*os.File)
	if !ok {
		return func() {}
	}
	terminal := int(in.Fd())
	own := unix.Getpgrp()
	if has, err := unix.IoctlGetInt(terminal, unix.TIOCGPGRP); err != nil || has != own {
		return func() {}
	}
	signal.Ignore(syscall.SIGTTOU) // which would stop this process when it takes the terminal back
	_ = unix.IoctlSetPointerInt(terminal, unix.TIOCSPGRP, l.child.Process.Pid)
	return func() { _ = unix.IoctlSetPointerInt(terminal, unix.TIOCSPGRP, own) }
}

// dog is the watchdog as router lock sees it.
type dog struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers <-chan time.Duration // by how much its clock is ahead of ours, at least; closed when it has ended
	ahead   time.Duration        // the greatest of them
	ended   sync.WaitGroup
	end     func()
}

// startDog starts a watchdog, in a session of its own: no signal to this process's group reaches it.
func startDog() (*dog, error) {
	cmd, err := lockChild(lockWatchdogRole)
	if err != nil {
		return nil, err
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	d := &dog{cmd: cmd}
	if d.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	answers := make(chan time.Duration, 4) // it answers one line at a time
	d.answers = answers
	d.ended.Go(func() {
		defer close(answers)
		for s := bufio.NewScanner(out); s.Scan(); {
			if at, err := strconv.ParseInt(s.Text(), 10, 64); err == nil {
				answers <- clock.Instant(at).Sub(clock.Now())
			}
		}
	})
	d.end = sync.OnceFunc(d.dismiss)
	timeout := time.NewTimer(lockStart)
	defer timeout.Stop()
	select {
	case ahead, ok := <-answers:
		if d.ahead = ahead; ok {
			return d, nil
		}
	case <-timeout.C:
	}
	d.end()
	return nil, errors.New("it does not answer")
}

// say tells it something. It fails if the watchdog has ended, which closes answers.
func (d *dog) say(word string, number int64) { _, _ = fmt.Fprintln(d.in, word, number) }

// dismiss tells it to end, and waits for that.
func (d *dog) dismiss() {
	_, _ = fmt.Fprintln(d.in, tellEnd)
	stop := time.AfterFunc(time.Second, func() { _ = d.cmd.Process.Kill() })
	defer stop.Stop()
	d.ended.Wait()
	_ = d.in.Close()
	_ = d.cmd.Wait() // however it has ended
}
