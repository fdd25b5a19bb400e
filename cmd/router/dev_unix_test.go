//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/ringfence/router/internal/devtools/demo"
	"github.com/ringfence/router/internal/testing/eventually"
)

// TestDevDrainsWhenItsGroupIsTerminated: timeout(1) and service managers send SIGTERM to the whole process group.
// The broker and the members, which the drain needs, go on until their parent ends them.
func TestDevDrainsWhenItsGroupIsTerminated(t *testing.T) {
	if testing.Short() {
		t.Skip("runs seven processes for 10 s")
	}
	t.Parallel()
	cmd, shown, folder := devOfTestApp(t, "--members", "2", "--keys", "5", "--rate", "50")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually.NoError(t, eventually.Most, "an event is handled", func() error {
		if !strings.Contains(shown.String(), "| handled ") {
			return errors.New(shown.String())
		}
		return nil
	})
	// First to members and broker alone: one that drained by itself would be gone before its parent asked it to.
	before := strings.Count(shown.String(), "| handled ")
	children := childrenOf(t, folder)
	for _, pid := range slices.Concat(children[demo.RoleMember], children[demo.RoleBroker]) {
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			t.Errorf("%d of %v: %v", pid, children, err)
		}
	}
	eventually.NoError(t, eventually.Most, "100 more events are handled", func() error {
		if strings.Count(shown.String(), "| handled ") < before+100 {
			return errors.New(shown.String())
		}
		return nil
	})
	if out := shown.String(); strings.Contains(out, "starting it again") {
		t.Errorf("SIGTERM ended a child:\n%s", out)
	}
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	if out := shown.String(); strings.Contains(out, "has not drained") || !strings.Contains(out, "| drained") {
		t.Errorf("a member did not drain:\n%s", out)
	}
	if left := childrenOf(t, folder); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
}

// An application that ends in order still has its member: otherwise it ends each run with a warning about a broken stream.
func TestDevEndsApplicationsBeforeMembers(t *testing.T) {
	if testing.Short() {
		t.Skip("runs four processes for 10 s")
	}
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "app.sh")
	if err := os.WriteFile(script, []byte(`#!/bin/sh
trap '
	sleep 1
	"$1" lock -n user-1 -- true
	exit 0
' TERM
"$@" &
while :; do wait; sleep 0.1; done
`), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd, shown, folder := devProcess(t, "--members", "1", "--rate", "20", "--events", "1", "--", script, self, testApp)
	if err := cmd.Run(); err != nil {
		t.Errorf("%v\n%s", err, shown)
	}
	lines(t, shown.String(), `^app-1  *\| router: the key was not obtained \(leaving\)`)
	if left := childrenOf(t, folder); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
}
