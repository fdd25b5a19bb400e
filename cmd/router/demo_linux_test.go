package main

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// childrenOf returns the command lines of the living processes whose demo has its
// files in folder, by their role, as /proc shows them.
func childrenOf(t *testing.T, folder string) map[string]int {
	t.Helper()
	roles := make(map[string]int)
	paths, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		environ, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(environ, []byte("RINGFENCE_DEMO_FOLDER="+folder)) {
			continue // another one's, or it has just ended
		}
		line, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if words := bytes.Split(line, []byte{0}); err == nil && len(words) > 2 {
			roles[string(words[2])]++
		}
	}
	return roles
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

func TestDemoLeavesNothingBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("starts ten processes, twice")
	}
	for name, test := range map[string]struct {
		signal syscall.Signal
		code   int
	}{
		"Ctrl-C":  {syscall.SIGINT, exitFailed},
		"SIGTERM": {syscall.SIGTERM, exitFailed},
		"SIGKILL": {syscall.SIGKILL, -1},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, folder := demoProcess(t, "--duration", "4s", "--kill-at", "0s", "--restart-at", "0s", "--rate", "100", "--keys", "100")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the members start", func() bool { c := childrenOf(t, folder); return c["member"] > 1 && c["app"] > 1 && c["broker"] == 1 })
			if err := cmd.Process.Signal(test.signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // the code says it
			if code := cmd.ProcessState.ExitCode(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			eventually(t, "the children end", func() bool { return len(childrenOf(t, folder)) == 0 })
			eventually(t, "the files go", func() bool { left, err := os.ReadDir(folder); return err == nil && len(left) == 0 })
		})
	}
}
