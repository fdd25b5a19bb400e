package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
)

// testApp makes the test binary the application of a user, which prints the handled events. With
// TEST_APP_CRASHED, the first of these applications crashes over an event of user-2 and leaves that
// file behind. With TEST_APP_HOLDS, the first handler runs until it is cancelled. With TEST_APP_LATER
// there is more to do than events: handlers set timers, and a schedule fires.
const testApp = "test-app"

func runTestApp() int {
	ctx, stop := signalContext()
	defer stop()
	marker := os.Getenv("TEST_APP_CRASHED")
	var held atomic.Bool
	held.Store(os.Getenv("TEST_APP_HOLDS") == "")
	later := os.Getenv("TEST_APP_LATER") != ""
	handle := func(ctx context.Context, e *client.Event) error {
		if e.Key == "user-2" && marker != "" && crashOnce(marker) {
			fmt.Println("crashing")
			os.Exit(1)
		}
		if held.CompareAndSwap(false, true) {
			fmt.Println("holding")
			<-ctx.Done()
			fmt.Println("cancelled:", context.Cause(ctx))
			return ctx.Err()
		}
		fmt.Printf("handled %s\n", e.Payload)
		if later {
			e.After(time.Hour, "later", nil)
		}
		return nil
	}
	options := []client.Option{client.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil)))}
	if later {
		options = append(options, client.WithSchedule("again", client.Every(10*time.Second), func(context.Context, *client.Firing) error { return nil }))
	}
	if err := client.Run(ctx, "", handle, options...); err != nil {
		return exitFailed
	}
	return exitOK
}

// crashOnce reports whether no application has crashed before.
func crashOnce(marker string) bool {
	f, err := os.OpenFile(marker, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return false
	}
	return f.Close() == nil
}

// devProcess returns `router dev` as a process of its own, with its files in a folder of the test.
func devProcess(t *testing.T, arguments ...string) (cmd *exec.Cmd, shown *written.Text, folder string) {
	t.Helper()
	cmd, folder = process(t, "dev", arguments...)
	shown = &written.Text{}
	cmd.Stdout, cmd.Stderr = shown, shown
	return cmd, shown, folder
}

// devOfTestApp is devProcess with the application testApp.
func devOfTestApp(t *testing.T, arguments ...string) (cmd *exec.Cmd, shown *written.Text, folder string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return devProcess(t, append(arguments, "--", self, testApp)...)
}

func TestDevExec(t *testing.T) {
	if testing.Short() {
		t.Skip("runs seven processes for 10 s")
	}
	t.Parallel()
	script := filepath.Join(t.TempDir(), "handle.sh")
	if err := os.WriteFile(script, []byte(`#!/bin/sh
read -r payload
echo "$RINGFENCE_KEY attempt $RINGFENCE_ATTEMPT token $RINGFENCE_FENCING_TOKEN turn $RINGFENCE_TURN fence $RINGFENCE_FENCE: $payload"
printf 'without an end of %s' "$RINGFENCE_KEY"
[ "$RINGFENCE_KEY" = user-3 ] && exit 65
[ "$RINGFENCE_KEY" = user-2 ] && [ "$RINGFENCE_ATTEMPT" = 1 ] && exit 75
exit 0
`), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd, shown, folder := devProcess(t, "--exec", script, "--members", "2", "--keys", "4", "--rate", "100", "--events", "4", "--set", "retry.backoff_min=50ms")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, shown)
	}
	for _, line := range []string{
		`app-[12]  *\| user-1 attempt 1 token [1-9][0-9]* turn [1-9][0-9]* fence [0-9]{19}\.[0-9]{20}: {"number":1,"user":"user-1","turn":1}`,
		`user-2 attempt 1 `, `user-2 attempt 2 `, // it failed, and came again
		`user-3 attempt 1 `,                        // it was rejected
		`app-[12]  *\| without an end of user-1\n`, // two commands do not share a line
		`dev +\| all 4 events are handled`, `dev +\| drained`,
	} {
		if !regexp.MustCompile(line).MatchString(shown.String()) {
			t.Errorf("no line says %s", line)
		}
	}
	if strings.Contains(shown.String(), "user-3 attempt 2") {
		t.Error("a rejected event came again")
	}
	if strings.Contains(shown.String(), "no stream to the router") {
		t.Error("an application is started before its member listens")
	}
	if t.Failed() {
		t.Log(shown)
	}
	if left, _ := os.ReadDir(folder); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
}

func TestDevCommand(t *testing.T) {
	if testing.Short() {
		t.Skip("runs seven processes for 10 s")
	}
	t.Parallel()
	cmd, shown, folder := devOfTestApp(t, "--members", "2", "--keys", "5", "--rate", "50")
	cmd.Env = append(cmd.Env, "TEST_APP_CRASHED="+filepath.Join(t.TempDir(), "crashed"))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	says := func(line string) {
		t.Helper()
		form := regexp.MustCompile(line)
		eventually.NoError(t, eventually.Most, "a line says "+line, func() error {
			if !form.MatchString(shown.String()) {
				return errors.New(shown.String())
			}
			return nil
		})
	}
	says(`app-[12] +\| crashing`)
	says(`the application has ended \(exit status 1\); starting it again in 500ms`)
	says(`app-[12] +\| handled {"number":2,"user":"user-2","turn":1}`) // at its present owner
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	says(`dev +\| drained`)
	if left, _ := os.ReadDir(folder); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
	if left := childrenOf(t, folder); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
	if strings.Contains(shown.String(), "has not drained") {
		t.Errorf("a member did not drain:\n%s", shown)
	}
}

// TestDevEndsBeforeTimers: it does not wait for timers and firings, of which one may be due in days, and there is always a next one.
func TestDevEndsBeforeTimers(t *testing.T) {
	if testing.Short() {
		t.Skip("runs four processes for 10 s")
	}
	t.Parallel()
	cmd, shown, _ := devOfTestApp(t, "--members", "1", "--keys", "2", "--rate", "100", "--events", "4")
	cmd.Env = append(cmd.Env, "TEST_APP_LATER=yes")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually.NoError(t, eventually.Most, "it ends", func() error {
		if !strings.Contains(shown.String(), "all 4 events are handled") {
			return errors.New(shown.String())
		}
		return nil
	})
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, shown)
	}
	if handled := strings.Count(shown.String(), "handled {"); handled < 4 {
		t.Errorf("it ends after %d events:\n%s", handled, shown)
	}
}

func TestDevWithBadOptions(t *testing.T) {
	t.Parallel()
	for want, arguments := range map[string][]string{
		"--members = 0":                                 {"--members", "0", "--exec", "true"},
		"want your application's command":               {},
		"and not both":                                  {"--exec", "true", "--", "true"},
		"--pulsar needs --topic":                        {"--exec", "true", "--pulsar", "pulsar://localhost"},
		`--set "lease", want`:                           {"--exec", "true", "--set", "lease"},
		"no-such-command":                               {"--", "no-such-command"},
		"--set ownership.nonsense: there is no setting": {"--exec", "true", "--set", "ownership.nonsense=1"},
		"--events is for generated events":              {"--exec", "true", "--pulsar", "pulsar://localhost", "--topic", "a", "--events", "1"},
		"--topic needs --pulsar":                        {"--exec", "true", "--topic", "a"},
		"--rate 0 never come":                           {"--exec", "true", "--rate", "0", "--events", "1"},
		"--group and --subscription must not":           {"--exec", "true", "--group", ""},
	} {
		cmd, shown, _ := devProcess(t, arguments...)
		_ = cmd.Run() // the exit code is checked
		if code := cmd.ProcessState.ExitCode(); code != exitUsage || !strings.Contains(shown.String(), want) {
			t.Errorf("%v: exit code %d, want %d; output %q, want %q", arguments, code, exitUsage, shown, want)
		}
	}
}
