// Package killedtest runs the command of an example as its documentation names it.
package killedtest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// Run builds a router and the command in the working folder, runs the command with that router and the arguments, and returns what it printed. It skips the
// test in short mode, and fails it if the command fails.
func Run(t *testing.T, args ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds a router, and runs the command for a minute")
	}
	dir := t.TempDir()
	router, self := filepath.Join(dir, "router"), filepath.Join(dir, "example")
	for path, pkg := range map[string]string{router: "../../cmd/router", self: "."} {
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, pkg).CombinedOutput(); err != nil { //nolint:gosec // packages of this repository
			t.Fatalf("%v\n%s", err, out)
		}
	}
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	var said bytes.Buffer
	command := exec.CommandContext(ctx, self, append([]string{"-router", router, "-verbose"}, args...)...) //nolint:gosec // that was just built
	command.Stderr = &said
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) } // it ends its processes
	command.WaitDelay = time.Minute
	shown, err := command.Output()
	if err != nil {
		t.Errorf("%v\n%s", err, &said)
	}
	return string(shown)
}
