package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/internal/testing/written"
)

// lines fails the test for each pattern that no line of a text matches.
func lines(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		if !regexp.MustCompile(`(?m)` + pattern).MatchString(text) {
			t.Errorf("no line matches %s in\n%s", pattern, text)
		}
	}
}

// shows waits until an output has a text.
func shows(t *testing.T, s *written.Text, text string) {
	t.Helper()
	eventually.NoError(t, time.Minute, "the output has "+text, func() error {
		if !strings.Contains(s.String(), text) {
			return errors.New(s.String())
		}
		return nil
	})
}

// warnings returns the lines at level WARN and ERROR, except those of ownership and of gossip: a machine
// under load may pause a member for longer than its lease.
func warnings(text string) (all []string) {
	for line := range strings.Lines(text) {
		if regexp.MustCompile(`level=(WARN|ERROR)`).MatchString(line) && !regexp.MustCompile(`msg=(ownership|memberlist)`).MatchString(line) {
			all = append(all, line)
		}
	}
	return all
}

// Each failure, retry and dead letter is a line, and the end counts them.
func TestDevTellsHowEventsEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("runs six processes for 10 s")
	}
	t.Parallel()
	script := filepath.Join(t.TempDir(), "handle.sh")
	if err := os.WriteFile(script, []byte(`#!/bin/sh
[ "$RINGFENCE_KEY" = user-2 ] && [ "$RINGFENCE_ATTEMPT" = 1 ] && exit 75
[ "$RINGFENCE_KEY" = user-3 ] && exit 65
[ "$RINGFENCE_KEY" = user-4 ] && exit 1
exit 0
`), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd, shown, _ := devProcess(t, "--exec", script, "--members", "2", "--keys", "4", "--rate", "100", "--events", "8",
		"--set", "retry.backoff_min=10ms", "--set", "retry.attempts_max=3")
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, shown)
	}
	lines(t, shown.String(),
		`^dev +\| ownership.profile is fast, for development: leases of 1s. Production has 2s`,
		`^node-[12] +\| key user-2, attempt 1 failed, again in \d+ms: \S+/handle.sh: exit status 75$`,
		`^node-[12] +\| key user-3, attempt 1: to the dead letter topic: \S+/handle.sh: exit status 65$`,
		`^node-[12] +\| key user-4, attempt 2 failed, again in \d+ms: \S+/handle.sh: exit status 1$`,
		`^node-[12] +\| key user-4, attempt 3: to the dead letter topic: failed 3 times: \S+/handle.sh: exit status 1$`,
		`^dev +\| 4 done, 4 dead-lettered, 0 pending$`)
}

// What router dev says about looking at its group works as it is written, and names the keys.
func TestDevNamesKeysToItsUser(t *testing.T) {
	if testing.Short() {
		t.Skip("runs four processes for 10 s")
	}
	t.Parallel()
	cmd, shown, _ := devProcess(t, "--members", "1", "--keys", "1", "--rate", "20", "--exec", "sleep 2")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	shows(t, shown, " ready: ")
	admin := regexp.MustCompile(`--admin \S+`).FindString(shown.String())
	eventually.NoError(t, eventually.Most, "the key has its name", func() error {
		out, says, _ := cli(t, append([]string{"keys"}, strings.Fields(admin)...)...)
		if !strings.Contains(out, "user-1 ") {
			return errors.New(out + says)
		}
		return nil
	})
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v\n%s", err, shown)
	}
}

// An application that ends at once again and again ends the run, with a reason.
func TestDevGivesUpOnAnApplicationThatNeverStarts(t *testing.T) {
	if testing.Short() {
		t.Skip("waits 8 s between the starts of an application")
	}
	t.Parallel()
	script := filepath.Join(t.TempDir(), "app.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho no such module >&2\nexit 2\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd, shown, folder := devProcess(t, "--members", "2", "--events", "3", "--", script)
	_ = cmd.Run() // the exit code is checked
	if code := cmd.ProcessState.ExitCode(); code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
	lines(t, shown.String(),
		`app-[12] +\| no such module$`, `starting it again in 500ms$`,
		`^router: dev: the application ended within 10s of its start, 5 times in a row, and no event was ever handled: the lines of app-[12] above show why$`)
	if left := childrenOf(t, folder); len(left) > 0 {
		t.Errorf("it left %v", left)
	}
}

// A drain says what it waits for, and events that were not handled are counted as pending.
func TestDevTellsWhatADrainWaitsFor(t *testing.T) {
	if testing.Short() {
		t.Skip("runs six processes for 15 s")
	}
	t.Parallel()
	script := filepath.Join(t.TempDir(), "slow.sh")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho began\nexec sleep 6\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd, shown, _ := devProcess(t, "--members", "1", "--keys", "1", "--rate", "20", "--exec", script)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	shows(t, shown, "began")
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	lines(t, shown.String(), `^dev +\| node-1 is draining: 1 handler still running$`, `^dev +\| [01] done, 0 dead-lettered, [1-9]\d* pending$`)
}

// What is missing is one clear error, before anything starts.
func TestDevNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	here := t.TempDir()
	for name, mode := range map[string]os.FileMode{"plain.sh": 0o600, "run.sh": 0o700} {
		if err := os.WriteFile(filepath.Join(here, name), []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for want, arguments := range map[string][]string{
		`dev: --exec: exec: "./nope.sh": stat ./nope.sh: no such file or directory`:                      {"--exec", "./nope.sh now"},
		`dev: --exec: exec: "./plain.sh": permission denied`:                                             {"--exec", "./plain.sh"},
		`dev: --exec: the shell finds no command run.sh; for the file in this folder, write ./run.sh`:    {"--exec", "run.sh"},
		`dev: the application cannot be started: exec: "no-such-command": executable file not found`:     {"--", "no-such-command"},
		`dev: --set retry.bakoff_min: there is no setting of that name; did you mean retry.backoff_min?`: {"--exec", "true", "--set", "retry.bakoff_min=1s"},
		`dev: --set no.where: there is no setting of that name; ` + "`router config example` lists all":  {"--exec", "true", "--set", "no.where=1"},
		`dev: --set pulsar.token: a secret has no place in a command line: want pulsar.token_file`:       {"--exec", "true", "--set", "pulsar.token=x"},
		`retry.backoff_min = "3", want a duration with its unit`:                                         {"--exec", "true", "--set", "retry.backoff_min=3"},
	} {
		cmd, shown, _ := devProcess(t, arguments...)
		cmd.Dir = here
		_ = cmd.Run() // the exit code is checked
		text := strings.TrimSpace(shown.String())
		if code := cmd.ProcessState.ExitCode(); code != exitUsage || !strings.Contains(text, want) || strings.Count(text, "\n") > 0 {
			t.Errorf("%v: exit code %d, want %d; output\n%s\nwant one line with\n%s", arguments, code, exitUsage, text, want)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	t.Parallel()
	flag, _, code := cli(t, "--version")
	command, _, _ := cli(t, "version")
	if code != exitOK || flag != command || strings.TrimSpace(flag) == "" {
		t.Errorf("--version prints %q, version prints %q", flag, command)
	}
}

// config lint and print take the file as an argument, too.
func TestConfigTakesAFile(t *testing.T) {
	t.Parallel()
	file := settingsFile(t, least)
	for _, verb := range []string{"lint", "print"} {
		byArgument, says, code := cli(t, "config", verb, file)
		byFlag, _, _ := cli(t, "config", verb, "--config", file)
		if code != exitOK || byArgument != byFlag {
			t.Errorf("%s: exit code %d, %s; by argument it prints\n%s\nand by flag\n%s", verb, code, says, byArgument, byFlag)
		}
		for _, args := range [][]string{{file, file}, {file, "--config", file}} {
			if _, says, code := cli(t, append([]string{"config", verb}, args...)...); code != exitUsage || !strings.Contains(says, "takes one file, as its argument or by --config") {
				t.Errorf("%v: exit code %d, %s", args, code, says)
			}
		}
	}
	bad := settingsFile(t, least+"mailbox: {depht_max: 5}\n")
	if _, says, code := cli(t, "config", "lint", bad); code != exitUsage || !strings.Contains(says, "the nearest is mailbox.depth_max") {
		t.Errorf("a bad file: exit code %d, %s", code, says)
	}
}

func TestConfigLintNamesMisspelledVariables(t *testing.T) {
	t.Setenv("RINGFENCE_PULSAR_URL", "pulsar://elsewhere:6650")
	out, _, code := cli(t, "config", "lint", settingsFile(t, least))
	if code != exitOK || !strings.Contains(out, "# RINGFENCE_PULSAR_URL is ignored: settings have two underscores, as RINGFENCE__PULSAR__URL\n") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// A clean run, from the start to the drain, has no warning but the one that is provoked here.
func TestMembersWarnOfMisspelledVariablesAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("runs seven processes for 10 s")
	}
	t.Parallel()
	var all []string
	for range 3 { // a busy machine gives warnings of its own
		cmd, shown, _ := devProcess(t, "--members", "2", "--rate", "100", "--events", "1", "--exec", "true", "--set", "log.level=warn", "--set", "log.keys=hide")
		cmd.Env = append(cmd.Env, "RINGFENCE_PULSAR_TOPICS=a,b")
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, shown)
		}
		lines(t, shown.String(), `level=WARN msg="an environment variable is ignored: the name of a setting has two underscores" .*variable=RINGFENCE_PULSAR_TOPICS want=RINGFENCE__PULSAR__TOPICS$`)
		if all = warnings(shown.String()); len(all) == 2 {
			return
		}
		t.Logf("%d warnings: %q", len(all), all)
	}
	t.Errorf("%d warnings, want this one of both members: %q", len(all), all)
}

func TestSimulateSaysWhatItTook(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]string{
		"3":    "took --members 3 as the name of the only member; write +3 for 3 more members\n",
		"+1":   "took --members +1 as: the members then are a, b, new-1\n",
		"b,c":  "took --members b,c as: the members then are b, c\n",
		"-a":   "took --members -a as: the members then are b\n",
		"1,2":  "took --members 1,2 as: the members then are 1, 2\n",
		"-1":   "took --members -1 as: the members then are a\n",
		"+a 1": "took --members +a 1 as: the members then are a, b, a 1\n",
	} {
		out, says, code := cli(t, "ring", "simulate", "--from", "a,b", "--members", change)
		if code != exitOK || !strings.HasPrefix(out, want) {
			t.Errorf("--members %s: exit code %d, %s\n%s\nwant %s", change, code, says, out, want)
		}
	}
}

func TestCompletionsOfValues(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args []string
		want string // all completions, or the beginning of them with ...
	}{
		{[]string{"run", "--ownership.profile", ""}, "default fast calm"},
		{[]string{"run", "--pulsar.batch_index_acks", ""}, "true false"},
		{[]string{"config", "lint", "--log.level", ""}, "debug info warn error"},
		{[]string{"dev", "--set", "ownership.profile="}, "ownership.profile=default ownership.profile=fast ownership.profile=calm"},
		{[]string{"dev", "--set", "ownership.prof"}, "ownership.profile="},
		{[]string{"dev", "--set", "admin.drain_tok"}, ""}, // a secret
		{[]string{"members", "--output", ""}, "table json yaml"},
		{[]string{"demo", "--output", ""}, "table json"},
		{[]string{"run", "--config", ""}, "yaml yml"},
		{[]string{"ring", "show", answering(t, 200, `{"members":[{"name":"pod-0"},{"name":"pod-1"}]}`), "--member", ""}, "pod-0 pod-1"},
		{[]string{"ring", "show", "--admin", "127.0.0.1:1", "--member", ""}, ""},                                                                                  // nobody answers
		{[]string{"ring", "show", answering(t, 200, `{"members":[{"name":"pod-0"},{"name":"$(reboot)\u001b[2J\npod-9"},{"name":""}]}`), "--member", ""}, "pod-0"}, // shells may evaluate what they complete
	} {
		out, _, _ := cli(t, append([]string{"__complete"}, test.args...)...)
		got, _, _ := strings.Cut(out, ":") // of the directive
		if got = strings.Join(strings.Fields(got), " "); got != test.want {
			t.Errorf("%v is completed by %q, want %q", test.args, got, test.want)
		}
	}
}
