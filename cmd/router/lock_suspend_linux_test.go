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

	"github.com/ringfence/router/internal/testing/eventually"
)

// TestLockIsNotSuspended: after Ctrl-Z the command works on, and Ctrl-C ends it: nobody else could wake what is stopped, and it would hold the key.
func TestLockIsNotSuspended(t *testing.T) {
	t.Parallel()
	l := newLocks(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	user, terminal := newTerminal(t)
	shown := &screen{}
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
	c := exec.CommandContext(t.Context(), self, "lock", "user-1", "--endpoint="+l.endpoint, "--", "sh", "-c", `echo ready; while :; do sleep 0.1; done`)
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
	for _, typed := range []string{"\x1a", "\x03"} {
		if _, err := user.WriteString(typed); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
	}
	stuck := time.AfterFunc(10*time.Second, func() {
		t.Error("10 s after Ctrl-Z and Ctrl-C it holds the key and the terminal")
		_ = c.Process.Kill()
	})
	_ = c.Wait() // its code is looked at
	stuck.Stop()
	reader.Wait()
	if code := c.ProcessState.ExitCode(); code != exitSignal+int(syscall.SIGINT) {
		t.Errorf("exit code %d, %q", code, shown)
	}
}
