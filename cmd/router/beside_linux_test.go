package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ringfence/router/internal/devtools/procgroup"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
)

// TestRunBuriesOrphans: as the first process of a container, a router gets what its application's children leave behind.
func TestRunBuriesOrphans(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, ports := t.TempDir(), freePorts(t, 4)
	file := filepath.Join(dir, "router.yaml")
	settings := procgroup.Settings{
		Group: "orders", Name: "pod-0", Topics: []string{topicOfPod}, Subscription: "orders", Namespace: "public/default",
		App: procgroup.Loopback(ports[0]), Gossip: procgroup.Loopback(ports[1]), Admin: procgroup.Loopback(ports[2]),
	}
	if err := os.WriteFile(file, settings.YAML(), 0o600); err != nil {
		t.Fatal(err)
	}
	shown := &written.Text{}
	binary := filepath.Join(dir, asRouter)
	if err := os.Symlink(self, binary); err != nil {
		t.Fatal(err)
	}
	container := []string{"--pid", "--fork", "--mount-proc", "--kill-child"}
	if os.Geteuid() != 0 {
		container = append(container, "--user", "--map-root-user")
	}
	if err := exec.CommandContext(t.Context(), "unshare", append(container, "true")...).Run(); err != nil {
		t.Skipf("no namespace for process ids: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", append(container, binary, "run", "--config", file, "--pulsar.url", "pulsar://"+procgroup.Loopback(ports[3]),
		"--", "sh", "-c", "for i in 1 2 3 4 5; do (sleep 1 &); done; echo orphaned; exec sleep 600")...)
	cmd.Stdout, cmd.Stderr = shown, shown
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // and with it the router, and all others of its namespace
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(shown)
		}
	})
	routers := func() []int { return children(cmd.Process.Pid) }
	eventually.True(t, "the application has left processes", func() bool {
		return strings.Contains(shown.String(), "orphaned") && len(routers()) == 1 && len(children(routers()[0])) == 6
	})
	eventually.NoError(t, eventually.Most, "they are gone", func() error {
		if n := len(children(routers()[0])); n != 1 {
			return fmt.Errorf("the router has %d children, want the application alone", n)
		}
		return nil
	})
}

// children returns the children of a process, dead ones too.
func children(of int) (found []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is good
	for _, stat := range stats {
		text, _ := os.ReadFile(stat) // a process may have gone
		if fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]); len(fields) > 1 && string(fields[1]) == strconv.Itoa(of) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
			found = append(found, pid)
		}
	}
	return found
}
