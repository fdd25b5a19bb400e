//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
)

// besideRun is a member of a group in memory with an application that it has started.
type besideRun struct {
	*testGroup
	out  *written.Text
	stop context.CancelFunc
	end  chan error
}

func startBeside(t *testing.T, grace time.Duration, command ...string) *besideRun {
	t.Helper()
	r := &besideRun{
		testGroup: newTestGroup(),
		out:       &written.Text{}, end: make(chan error, 1),
	}
	cfg := r.settingsOf(t, "a")
	r.members["a"] = &testMember{admin: cfg.Admin.Listen}
	var ctx context.Context
	ctx, r.stop = context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		r.end <- runBeside(ctx, cfg, r.memory(), &application{command: command, grace: grace, stdout: r.out, stderr: r.out})
	})
	t.Cleanup(func() {
		r.stop()
		running.Wait()
		if t.Failed() {
			t.Logf("the application printed:\n%s", r.out)
		}
	})
	return r
}

func (r *besideRun) says(t *testing.T, line string) {
	t.Helper()
	eventually.NoError(t, eventually.Most, "the application prints "+line, func() error {
		if out := r.out.String(); !strings.Contains(out, line) {
			return fmt.Errorf("it has printed %q", out)
		}
		return nil
	})
}

// The application finds the router, and ends after the router has drained.
func TestRunStartsAnApplication(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := startBeside(t, eventually.Most, self, testApp)
	r.await(t, "a", "the application is connected", func(m report.Members) bool {
		return len(m.Members) == 1 && m.Members[0].Status != nil && m.Members[0].Status.Gates.Open > 0 && m.Members[0].Status.Workers == 1
	})
	r.publish(t, "user-1")
	r.says(t, "handled {}")
	r.stop()
	if err := <-r.end; err != nil {
		t.Errorf("the run ended with %v", err)
	}
	if s := r.broker.SubscriptionStats("orders"); s.Published != 1 || s.Acked != 1 {
		t.Errorf("%+v, want the event acked", s)
	}
}

// The environment of the application has the way to the router, and none of its settings.
func TestRunHidesSettingsFromTheApplication(t *testing.T) {
	t.Setenv("RINGFENCE__PULSAR__TOKEN", "secret")
	t.Setenv("RINGFENCE_APP_ENDPOINT", "of another router")
	r := startBeside(t, eventually.Most, "sh", "-c", `env | grep ^RINGFENCE_; echo over; exec sleep 600`)
	r.says(t, "over\n")
	if out := r.out.String(); strings.Contains(out, "secret") || strings.Contains(out, "another") || strings.Count(out, "RINGFENCE_APP_ENDPOINT=") != 1 {
		t.Errorf("the environment is\n%s", out)
	}
}

// The timer slack of a router is not that of its application.
func TestRunLeavesTheApplicationTheTimersOfTheSystem(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return // only Linux has a slack
	}
	r := startBeside(t, eventually.Most, "sh", "-c", `cat /proc/self/timerslack_ns; echo over; exec sleep 600`)
	r.says(t, "over\n")
	if out := r.out.String(); !strings.HasPrefix(out, "50000\n") {
		t.Errorf("its slack is\n%s", out)
	}
}

// An application that ends takes the router along: in order, and with its failure.
func TestRunEndsWithItsApplication(t *testing.T) {
	t.Parallel()
	for command, says := range map[string]string{"exit 0": "", "exit 3": "the application has ended: exit status 3"} {
		r := startBeside(t, eventually.Most, "sh", "-c", command)
		err := <-r.end
		if says == "" && err != nil || says != "" && (!errors.Is(err, errApplication) || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", command, err, says)
		}
	}
}

// An application that ignores SIGTERM is killed, with all that it has started, and it gets other signals.
func TestRunKillsAnApplicationThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	for grace := 100 * time.Millisecond; ; grace *= 4 { // on a busy machine the application may be killed before it can print
		r := startBeside(t, grace, "sh", "-c", `trap 'echo told to end' TERM; echo ready; while :; do sleep 0.05; done`)
		r.says(t, "ready\n")
		r.stop()
		if err := <-r.end; err != nil {
			t.Errorf("the run ended with %v", err)
		}
		if strings.Contains(r.out.String(), "told to end\n") {
			return
		}
		if grace > 20*time.Second {
			t.Fatalf("the application got no SIGTERM within %v", grace)
		}
	}
}

func TestRunRefusesCommands(t *testing.T) {
	t.Parallel()
	r := startBeside(t, time.Second, "no-such-command-anywhere")
	if err := <-r.end; exitCode(err) != exitUsage || !strings.Contains(err.Error(), "no-such-command-anywhere") {
		t.Errorf("an unknown command: %v, exit code %d", err, exitCode(err))
	}
	for _, arguments := range [][]string{{"run", "app"}, {"run", "app", "--", "app"}} {
		root := rootCommand()
		root.SetArgs(arguments)
		if err := root.Execute(); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "comes after --") {
			t.Errorf("%q: %v", arguments, err)
		}
	}
}
