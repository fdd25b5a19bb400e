package conformance

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/internal/devtools/conformance/reference"
)

// faultEnv makes this binary the reference worker, with this fault.
const (
	faultEnv    = "RINGFENCE_TEST_FAULT"
	inFlightEnv = "RINGFENCE_TEST_IN_FLIGHT"
	noFault     = "none"
)

// lateEnv makes this binary run a worker, and tell it of a SIGTERM late.
const lateEnv = "RINGFENCE_TEST_LATE"

// stopLate runs a worker in a process group of its own, passes a SIGTERM on after so long that a handler that ran at that time has ended, and returns the
// worker's exit code. The worker ends with it, so that no failure leaves one behind.
func stopLate(program string) int {
	runtime.LockOSThread() // the system ends the worker with the thread that has started it
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	worker := exec.CommandContext(context.Background(), program)
	worker.Stdout, worker.Stderr = os.Stdout, os.Stderr
	worker.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := worker.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	go func() {
		<-term
		time.Sleep(3500 * time.Millisecond)
		_ = worker.Process.Signal(syscall.SIGTERM) // fails only if it has ended
	}()
	_ = worker.Wait() // the exit code tells all
	return worker.ProcessState.ExitCode()
}

func TestMain(m *testing.M) {
	if program := os.Getenv(lateEnv); program != "" {
		os.Exit(stopLate(program))
	}
	fault := os.Getenv(faultEnv)
	if fault == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	n, err := strconv.Atoi(os.Getenv(inFlightEnv))
	if err == nil {
		err = reference.Run(ctx, reference.Config{Endpoint: os.Getenv(endpointEnv), TokenFile: os.Getenv(tokenFileEnv), InFlight: n, Fault: fault, Out: os.Stdout})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// worker is the command of the reference worker.
func worker(t *testing.T, fault string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"env", faultEnv + "=" + fault, inFlightEnv + "=2500", self}
}

func TestGoodWorkerPasses(t *testing.T) {
	t.Parallel()
	passes(t, worker(t, noFault))
}

// TestKitThatNoticesLate: the worker has dialed again before the scene goes on, as on a busy machine.
func TestKitThatNoticesLate(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Command, o.late = worker(t, noFault), 300*time.Millisecond
	passesWith(t, o)
}

// TestKitThatNoticesManyDials: a worker that is refused dials every 50 ms until the kit notices.
func TestKitThatNoticesManyDials(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Command, o.Only, o.late = worker(t, noFault), []string{"version"}, 3*time.Second
	passesWith(t, o)
}

// TestStarvedWorker: a worker that a busy machine keeps from renewing the lease of a handler gets another try.
func TestStarvedWorker(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Command, o.Only, o.starves = worker(t, noFault), []string{"deadline-moves", "draining"}, true
	passesWith(t, o)
}

func TestGoSDKPasses(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the Go SDK's worker")
	}
	t.Parallel()
	program := filepath.Join(t.TempDir(), "worker")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../../../examples/conformance").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	t.Run("at once", func(t *testing.T) {
		t.Parallel()
		passes(t, []string{program})
	})
	t.Run("stops late", func(t *testing.T) { // when a handler that ran at SIGTERM has ended, as on a busy machine
		t.Parallel()
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		passes(t, []string{"env", lateEnv + "=" + program, self}, "drain", "drain-receipt")
	})
}

// TestWorkerWithoutState: a worker that does not declare state is not judged by the rules about it.
func TestWorkerWithoutState(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Command, o.Only, o.Patience = worker(t, "undeclared"), []string{"state", "state-dropped", "state-lost"}, 2*time.Minute
	verdicts, err := Run(t.Context(), o)
	if err != nil || !Passed(verdicts) {
		t.Errorf("the verdicts do not pass: %+v, %v", verdicts, err)
	}
	for _, v := range verdicts {
		if v.Result != Absent {
			t.Errorf("%s: %s, want %s: %s", v.Name, v.Result, Absent, v.Reason)
		}
	}
}

// TestWorkerThatLeavesAProcessBehind: a process that outlives the worker keeps its standard output open, and that holds no scene up.
func TestWorkerThatLeavesAProcessBehind(t *testing.T) {
	t.Parallel()
	note := filepath.Join(t.TempDir(), "pid")
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	o := DefaultOptions()
	o.Command, o.Only = []string{"sh", "-c", `setsid sleep 300 & echo $! >"$0"; exit 3`, note}, []string{"drain"}
	verdicts, err := Run(ctx, o)
	text, readErr := os.ReadFile(note)
	pid, convErr := strconv.Atoi(strings.TrimSpace(string(text)))
	if readErr != nil || convErr != nil || syscall.Kill(pid, syscall.SIGKILL) != nil {
		t.Errorf("the process that was left behind has ended: %q, %v", text, readErr)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(verdicts) != 1 || verdicts[0].Result != Fail || !strings.Contains(verdicts[0].Reason, "exit code 3") {
		t.Errorf("verdicts are %+v, want that drain fails by exit code 3", verdicts)
	}
}

// passes checks that a worker keeps all rules, or some.
func passes(t *testing.T, command []string, only ...string) {
	t.Helper()
	o := DefaultOptions()
	o.Command, o.Only = command, only
	passesWith(t, o)
}

func passesWith(t *testing.T, o Options) {
	t.Helper()
	o.Patience = 2 * time.Minute // for a busy machine: it ends long before
	verdicts, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	want := len(o.Only)
	if want == 0 {
		want = len(rules)
	}
	if len(verdicts) != want {
		t.Errorf("%d verdicts, want one for each of %d rules", len(verdicts), want)
	}
	for _, v := range verdicts {
		if v.Result != Pass {
			t.Errorf("%s: %s: %s", v.Name, v.Result, v.Reason)
		}
	}
}

// tries are for a machine that is so busy that a faulty worker does nothing wrong in time.
const tries = 3

// The workers mostly wait, so more of them run at once than go test runs tests.
func TestFaultsAreFound(t *testing.T) {
	t.Parallel()
	var all errgroup.Group
	all.SetLimit(16)
	for fault, rule := range reference.Faults {
		all.Go(func() error {
			o := DefaultOptions()
			o.Command, o.Only, o.Patience = worker(t, fault), []string{rule}, 4*time.Second
			var verdicts []Verdict
			for range tries {
				var err error
				if verdicts, err = Run(t.Context(), o); err != nil {
					return fmt.Errorf("%s: %w", fault, err)
				}
				if len(verdicts) == 1 && verdicts[0].Result == Fail {
					break
				}
			}
			if len(verdicts) != 1 || verdicts[0].Result != Fail {
				t.Errorf("%s: verdicts are %+v, want that %s fails", fault, verdicts, rule)
				return nil
			}
			t.Logf("%s: %s", fault, verdicts[0].Reason)
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
}

func TestEachRuleHasASceneAndAFault(t *testing.T) {
	broken := slices.Collect(maps.Values(reference.Faults))
	for _, rule := range rules {
		if !slices.ContainsFunc(scenes, func(s scene) bool { return slices.Contains(s.rules, rule.Name) }) {
			t.Errorf("no scene checks %s", rule.Name)
		}
		if !slices.Contains(broken, rule.Name) {
			t.Errorf("no planted fault breaks %s", rule.Name)
		}
	}
}

// TestProtocolPageListsTheRules: docs/sdk-protocol.md has a table of the rules, in their order.
func TestProtocolPageListsTheRules(t *testing.T) {
	page, err := os.ReadFile("../../../docs/sdk-protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Check your worker\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var want strings.Builder
	for _, rule := range rules {
		fmt.Fprintf(&want, "| `%s` | %s |\n", rule.Name, rule.Why)
	}
	if !strings.Contains(section, want.String()) {
		t.Errorf("its section \"Check your worker\" lacks this table:\n%s", want.String())
	}
}

func TestOptions(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no command":      func(o *Options) { o.Command = nil },
		"no such rule":    func(o *Options) { o.Only = []string{"hallo"} },
		"no patience":     func(o *Options) { o.Patience = 0 },
		"no scene at all": func(o *Options) { o.Parallel = 0 },
	} {
		o := DefaultOptions()
		o.Command = []string{"true"}
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		if change(&o); o.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
