package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
)

// TestLockLendsItsTerminal: the command can read from the terminal, and Ctrl-C reaches it.
func TestLockLendsItsTerminal(t *testing.T) {
	t.Parallel()
	l := newLocks(t)
	for typed, want := range map[string]struct {
		code  int
		shows string
	}{"hello\n": {exitOK, "got hello"}, "\x03": {exitSignal + int(syscall.SIGINT), ""}} {
		code, shown := lockOnTerminal(t, l, `echo ready; read x; echo "got $x"`, typed)
		if code != want.code || !strings.Contains(shown, want.shows) {
			t.Errorf("after %q: exit code %d, %q; want %d, %q", typed, code, shown, want.code, want.shows)
		}
	}
}

// TestLockIsNotSuspended: Ctrl-Z does not stop the command, and Ctrl-C after it ends the command. A shell that waits for router lock could not wake a stopped command, which would hold the key.
func TestLockIsNotSuspended(t *testing.T) {
	t.Parallel()
	code, shown := lockOnTerminal(t, newLocks(t), `echo ready; while :; do sleep 0.1; done`, "\x1a", "\x03")
	if code != exitSignal+int(syscall.SIGINT) {
		t.Errorf("exit code %d, %q", code, shown)
	}
}

// lockOnTerminal runs router lock with a shell script on a terminal of its own, types texts there when the script has printed "ready", and returns the exit
// code and what the terminal has shown.
func lockOnTerminal(t *testing.T, l *locks, script string, typed ...string) (code int, shows string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	user, terminal := newTerminal(t)
	shown := &written.Text{}
	var reader sync.WaitGroup
	reader.Go(func() {
		for b := make([]byte, 1024); ; {
			n, err := user.Read(b)
			if err != nil {
				return
			}
			_, _ = shown.Write(b[:n])
		}
	})
	c := exec.CommandContext(t.Context(), self, "lock", "user-1", "--endpoint="+l.endpoint, "--", "sh", "-c", script)
	c.Env = append(os.Environ(), "RINGFENCE_DEMO_FOLDER="+l.dir)
	c.Stdin, c.Stdout, c.Stderr = terminal, terminal, terminal
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	_ = terminal.Close()
	eventually.NoError(t, eventually.Most, "the command runs", func() error {
		if !strings.Contains(shown.String(), "ready") {
			return fmt.Errorf("%q", shown)
		}
		return nil
	})
	for i, text := range typed {
		if i > 0 {
			time.Sleep(300 * time.Millisecond) // real: nothing shows that the text before has had its effect
		}
		if _, err := user.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	stuck := time.AfterFunc(eventually.Most, func() {
		t.Errorf("long after %q it holds the key and the terminal", typed)
		_ = c.Process.Kill()
	})
	_ = c.Wait() // its code is looked at
	stuck.Stop()
	reader.Wait()
	return c.ProcessState.ExitCode(), shown.String()
}

// newTerminal returns a terminal and the end of it where its user is.
func newTerminal(t *testing.T) (user, terminal *os.File) {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { _ = user.Close() })
	fd := int(user.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	return user, terminal
}
