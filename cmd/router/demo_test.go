package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/config"
)

// asRouter is the name under which the test binary is the router, whatever its arguments.
const asRouter = "router"

// TestMain makes the test binary the router when it is started as one: the children of
// demo, dev and prove are this binary, started again, and so is the application of a user.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == asRouter || len(os.Args) > 1 && (os.Args[1] == "demo" || os.Args[1] == "dev" || os.Args[1] == "prove" || os.Args[1] == "deadletters" || os.Args[1] == "lock") {
		main()
	}
	if len(os.Args) > 1 && os.Args[1] == testApp {
		os.Exit(runTestApp())
	}
	if len(os.Args) > 1 && os.Args[1] == testBridge {
		os.Exit(runTestBridge())
	}
	forgetSettings()
	os.Exit(m.Run())
}

// forgetSettings removes the settings of the test's caller from the environment.
func forgetSettings() {
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, config.EnvPrefix) {
			_ = os.Unsetenv(name) // it has a name, so it can
		}
	}
}

// demoProcess returns a demo as a process of its own, with its files in a folder of the test.
func demoProcess(t *testing.T, arguments ...string) (cmd *exec.Cmd, folder string) {
	t.Helper()
	return process(t, "demo", arguments...)
}

func process(t *testing.T, verb string, arguments ...string) (cmd *exec.Cmd, folder string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder = t.TempDir()
	cmd = exec.CommandContext(t.Context(), self, append([]string{verb}, arguments...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+folder, "GORACE=halt_on_error=1") // a race in a child ends the demo
	cmd.WaitDelay = time.Second
	return cmd, folder
}

// output runs a demo, and returns the last line of its standard output and its exit code.
func output(t *testing.T, arguments ...string) (last []byte, stderr string, code int) {
	t.Helper()
	cmd, folder := demoProcess(t, arguments...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	code = cmd.ProcessState.ExitCode()
	if left, _ := os.ReadDir(folder); code == 0 && len(left) > 0 {
		t.Errorf("a demo that passed left %v", left)
	}
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return lines[len(lines)-1], errs.String(), code
}

func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("runs ten processes for 15 s")
	}
	t.Parallel()
	last, stderr, code := output(t, "--output", "json", "--duration", "8s", "--kill-at", "2s", "--restart-at", "5s", "--rate", "400", "--keys", "100")
	if code != exitOK {
		t.Fatalf("exit code %d\n%s", code, stderr)
	}
	lines(t, stderr, `^The group has a page, http://127\.0\.0\.1:\d+, until the demo ends\.$`)
	var got map[string]float64
	if err := json.Unmarshal(last, &got); err != nil {
		t.Fatalf("the last line is %q: %v", last, err)
	}
	want := map[string]float64{"events": 3200, "handled": 3200, "lost": 0, "overlaps": 0, "stale_token_writes": 0}
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s = %v, want %v", name, got[name], n)
		}
	}
	for _, name := range []string{"baseline_shared_overlaps", "takeover_ms", "throughput"} {
		if got[name] <= 0 {
			t.Errorf("%s = %v, want more than 0", name, got[name])
		}
	}
	if got["takeover_ms"] > 10_000 {
		t.Errorf("the takeover took %v ms, which no busy machine explains", got["takeover_ms"])
	}
	t.Logf("%s", last)
}

// A run that proves nothing must not look like one that passed.
func TestDemoThatProvesNothing(t *testing.T) {
	t.Parallel()
	last, stderr, code := output(t, "--output", "json", "--nodes", "1", "--duration", "1s", "--kill-at", "0s", "--restart-at", "0s", "--rate", "4", "--keys", "500")
	if code != exitFailed || !strings.Contains(stderr, "plain SHARED did not overlap") {
		t.Errorf("exit code %d, want %d; stderr\n%s", code, exitFailed, stderr)
	}
	if !strings.Contains(stderr, "The logs and journals of this run are in") {
		t.Errorf("it does not say where the logs are:\n%s", stderr)
	}
	var result map[string]float64
	if err := json.Unmarshal(last, &result); err != nil || result["handled"] != 4 {
		t.Errorf("the last line is %q, want 4 handled events (%v)", last, err)
	}
}

func TestDemoWithBadOptions(t *testing.T) {
	for _, arguments := range [][]string{{"--nodes", "0"}, {"--output", "xml"}, {"--keys", "1"}, {"--nonsense"}} {
		_, stderr, code := output(t, arguments...)
		if code != exitUsage || !strings.Contains(stderr, strings.TrimLeft(arguments[0], "-")) {
			t.Errorf("%v: exit code %d, want %d; stderr %q", arguments, code, exitUsage, stderr)
		}
	}
}
