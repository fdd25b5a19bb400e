package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/router/internal/testing/eventually"
)

// childrenOf returns the living processes whose demo has its files in folder, by
// their role, as /proc shows them.
func childrenOf(t *testing.T, folder string) map[string][]int {
	t.Helper()
	children := make(map[string][]int)
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		environ, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(environ, []byte("RINGFENCE_DEMO_FOLDER="+folder)) {
			continue // another one's, or it has just ended
		}
		process := filepath.Dir(path)
		pid, _ := strconv.Atoi(filepath.Base(process)) // digits, by the pattern
		line, err := os.ReadFile(filepath.Join(process, "cmdline"))
		if words := bytes.Split(line, []byte{0}); err == nil && len(words) > 2 {
			role := string(words[2])
			children[role] = append(children[role], pid)
		}
	}
	return children
}

// endTogether makes a cancelled command end with all that it has started: a shell that
// is killed runs no trap.
func endTogether(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}

func TestDemoLeavesNothingBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("starts ten processes, twice")
	}
	t.Parallel()
	for name, test := range map[string]struct {
		signal syscall.Signal
		code   int
	}{
		"Ctrl-C":  {syscall.SIGINT, exitFailed},
		"SIGTERM": {syscall.SIGTERM, exitFailed},
		"SIGKILL": {syscall.SIGKILL, -1},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, folder := demoProcess(t, "--duration", "8s", "--kill-at", "0s", "--restart-at", "0s", "--rate", "100", "--keys", "100")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			eventually.True(t, "the members start", func() bool {
				c := childrenOf(t, folder)
				return len(c["member"]) > 1 && len(c["app"]) > 1 && len(c["broker"]) == 1
			})
			if err := cmd.Process.Signal(test.signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // the exit code is checked
			if code := cmd.ProcessState.ExitCode(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			eventually.True(t, "the children end", func() bool { return len(childrenOf(t, folder)) == 0 })
			eventually.True(t, "the files go", func() bool { left, err := os.ReadDir(folder); return err == nil && len(left) == 0 })
		})
	}
}

func TestDemoEndsWithItsChildren(t *testing.T) {
	t.Parallel()
	// The plain applications run for a quarter of that: long enough to be found on a busy machine. The test ends them at once.
	cmd, folder := demoProcess(t, "--duration", "20s", "--kill-at", "0s", "--restart-at", "0s", "--rate", "100", "--keys", "100")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var plain []int
	eventually.True(t, "the plain applications start", func() bool {
		plain = childrenOf(t, folder)["plain"]
		return len(plain) == 3
	})
	if err := syscall.Kill(plain[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the exit code is checked
	if code := cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(stderr.String(), "has ended (signal: killed)") {
		t.Errorf("exit code %d, want %d; stderr\n%s", code, exitFailed, stderr.String())
	}
	if left := childrenOf(t, folder); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
}

// TestDemoWithAFullDisk ends soon, with the reason: applications whose journals cannot be written handle nothing any more.
func TestDemoWithAFullDisk(t *testing.T) {
	t.Parallel()
	cmd, _ := demoProcess(t, "--duration", "4s", "--kill-at", "0s", "--restart-at", "0s", "--rate", "1000")
	cmd.Args = append([]string{"sh", "-c", `ulimit -f 8; exec "$@"`, "sh"}, append([]string{cmd.Path}, cmd.Args[1:]...)...)
	var err error
	if cmd.Path, err = exec.LookPath("sh"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	shown, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(shown), "file too large") {
		t.Errorf("it ended with %v, want the reason in its output:\n%s", err, shown)
	}
	if took := time.Since(began); took > 45*time.Second {
		t.Errorf("it took %v", took)
	}
}
