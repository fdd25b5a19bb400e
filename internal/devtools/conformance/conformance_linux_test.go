package conformance

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/ringfence/router/internal/devtools/conformance/reference"
)

// faultEnv makes this binary the reference worker, with this fault.
const (
	faultEnv    = "RINGFENCE_TEST_FAULT"
	inFlightEnv = "RINGFENCE_TEST_IN_FLIGHT"
	noFault     = "none"
)

func TestMain(m *testing.M) {
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
	return []string{"env", faultEnv + "=" + fault, inFlightEnv + "=4096", self}
}

func TestGoodWorkerPasses(t *testing.T) {
	t.Parallel()
	o := DefaultOptions()
	o.Command, o.Patience = worker(t, noFault), 30*time.Second
	verdicts, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(verdicts) != len(rules) {
		t.Errorf("%d verdicts, want one for each of %d rules", len(verdicts), len(rules))
	}
	for _, v := range verdicts {
		if v.Result != Pass {
			t.Errorf("%s: %s: %s", v.Name, v.Result, v.Reason)
		}
	}
}

func TestFaultsAreFound(t *testing.T) {
	t.Parallel()
	for fault, rule := range reference.Faults {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			o := DefaultOptions()
			o.Command, o.Only, o.Patience = worker(t, fault), []string{rule}, 4*time.Second
			verdicts, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if len(verdicts) != 1 || verdicts[0].Result != Fail {
				t.Fatalf("verdicts are %+v, want that %s fails", verdicts, rule)
			}
			t.Log(verdicts[0].Reason)
		})
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
