package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/netx/mtls/tlstest"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/testing/eventually"
)

const (
	lanePage   = "../../docs/lane.md"
	timersPage = "../../docs/timers.md"
)

const laneSecret = "the-token-of-callers"

// laneGroup is a group of members that take calls by HTTP, with workers that have handlers of calls.
type laneGroup struct {
	*testGroup
	apps, lanes []string        // addresses
	begun       chan string     // keys of calls of the method wait that have begun
	release     chan struct{}   // ends them
	options     []client.Option // of the applications and of callers
}

// startLane starts a group. Each member has the settings that further returns.
func startLane(t *testing.T, further func() []string, names ...string) *laneGroup {
	t.Helper()
	g := &laneGroup{testGroup: newTestGroup(), begun: make(chan string, 16), release: make(chan struct{})}
	for _, name := range names {
		g.environ = append([]string{"RINGFENCE__LANE__LISTEN=" + freeAddress(t)}, further()...)
		cfg := g.settingsOf(t, name)
		g.members[name] = &testMember{admin: cfg.Admin.Listen}
		g.apps, g.lanes = append(g.apps, cfg.App.Listen), append(g.lanes, cfg.Lane.Listen)
		g.member(t, cfg)
	}
	g.await(t, names[0], "all members own something and agree", agree(len(names)))
	return g
}

func (g *laneGroup) member(t *testing.T, cfg config.Config) {
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	appCtx, stopApp := context.WithCancel(context.WithoutCancel(t.Context()))
	var router, app sync.WaitGroup
	memory := g.memory()
	router.Go(func() {
		if err := run(ctx, cfg, memory); err != nil {
			t.Errorf("%s: %v", cfg.Node.Name, err)
		}
	})
	app.Go(func() {
		err := client.Run(appCtx, cfg.App.Listen, func(context.Context, *client.Event) error { return nil },
			append(g.options, client.WithCall("charge", charge), client.WithCall("wait", g.wait), client.WithLogger(slog.New(slog.DiscardHandler)))...)
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("application of %s: %v", cfg.Node.Name, err)
		}
	})
	t.Cleanup(func() {
		stop()
		router.Wait()
		stopApp()
		app.Wait()
	})
}

// charge is a handler of calls.
func charge(_ context.Context, c *client.Call) ([]byte, error) {
	amount, err := strconv.Atoi(strings.TrimSpace(string(c.Payload)))
	switch {
	case err != nil:
		return nil, err
	case amount > 100:
		return nil, client.FailCall("no_funds", errors.New("a balance of 100"))
	}
	return fmt.Appendf(nil, "%s pays %d\n", c.Key, amount), nil
}

// wait runs until the test lets it go, or nobody wants it any more.
func (g *laneGroup) wait(ctx context.Context, c *client.Call) ([]byte, error) {
	g.begun <- c.Key
	select {
	case <-g.release:
		return []byte("released"), nil
	case <-ctx.Done():
		g.begun <- context.Cause(ctx).Error()
		return nil, context.Cause(ctx)
	}
}

// serves waits until calls of keys of all members are answered.
func (g *laneGroup) serves(t *testing.T) {
	t.Helper()
	caller, err := client.Dial(g.apps[0], g.options...)
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()
	eventually.NoError(t, eventually.Most, "calls are answered", func() error {
		for i := range 16 {
			if _, err := caller.Invoke(t.Context(), fmt.Sprintf("first-%d", i), "charge", []byte("1")); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestLanePage: the commands of docs/lane.md and docs/timers.md, as they stand there, against a router of a group of two.
func TestLanePage(t *testing.T) {
	if testing.Short() {
		t.Skip("runs what a document tells a user to run")
	}
	t.Parallel()
	bin := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, asRouter)); err != nil {
		t.Skipf("no links here: %v", err)
	}
	token := write(t, filepath.Join(bin, "lane.token"), laneSecret+"\n")
	g := startLane(t, func() []string { return []string{"RINGFENCE__LANE__TOKEN_FILE=" + token} }, "router-0", "router-1")
	g.serves(t)
	var blocks []docBlock
	for _, page := range []string{lanePage, timersPage} {
		for _, b := range blocksOf(t, page) {
			if b.isCommands() {
				b.marker = "" // this is the test
				blocks = append(blocks, b)
			}
		}
	}
	script, wanted := scriptOf(blocks, false)
	// The page's callers wait for two seconds, and a busy machine may need longer.
	script = strings.NewReplacer("--timeout 2s", "--timeout 2m", "Ringfence-Timeout: 2s", "Ringfence-Timeout: 2m").Replace(script)
	script = "export RINGFENCE_APP_ENDPOINT=" + g.apps[0] + "\ncp " + token + " lane.token\n" + strings.ReplaceAll(script, "127.0.0.1:16655", g.lanes[0])
	shown := runPage(t, script, bin, bin)
	if len(wanted) < 10 || !strings.Contains(script, "curl") {
		t.Errorf("%d lines of output: this test does not see all of them", len(wanted))
	}
	for _, line := range wanted {
		if !strings.Contains(strings.ReplaceAll(shown, "\r", ""), line+"\n") {
			t.Errorf("the page shows %q, and nothing prints it", line)
		}
	}
	if t.Failed() {
		t.Log(shown)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	built, err := exec.Command(filepath.Join(root, "tools", "tool.sh"), "grpcurl").Output()
	if err != nil {
		t.Fatalf("grpcurl, which the page shows, cannot be built: %v", err)
	}
	if err := os.Symlink(strings.TrimSpace(string(built)), filepath.Join(bin, "grpcurl")); err != nil {
		t.Fatal(err)
	}
	grpcurls := 0
	for _, b := range blocksOf(t, lanePage) {
		if strings.HasPrefix(b.text, "grpcurl ") {
			grpcurls++
			answer := runPage(t, "cd "+root+"\n"+strings.ReplaceAll(b.text, "127.0.0.1:16650", g.apps[0]), bin, root)
			if !strings.Contains(answer, "OUTCOME_REPLIED") {
				t.Errorf("grpcurl: %s", answer)
			}
		}
	}
	if grpcurls == 0 {
		t.Error("the page shows no grpcurl")
	}
}

// TestInvoke: the exit codes and the messages of router invoke.
func TestInvoke(t *testing.T) {
	t.Parallel()
	g := startLane(t, func() []string { return nil }, "router-0")
	g.serves(t)
	at := "--endpoint=" + g.apps[0]
	large := write(t, filepath.Join(t.TempDir(), "large"), strings.Repeat("x", 1<<20+1))
	small := write(t, filepath.Join(t.TempDir(), "small"), "6")
	for name, test := range map[string]struct {
		args        []string
		code        int
		out, stderr string
	}{
		"a reply":       {[]string{"invoke", "user-1", "charge", "-d", "5", at}, exitOK, "user-1 pays 5\n", ""},
		"from a file":   {[]string{"invoke", "user-1", "charge", "-d", "@" + small, at}, exitOK, "user-1 pays 6\n", ""},
		"a binary key":  {[]string{"invoke", "--base64", "/wA=", "charge", "-d", "5", at}, exitOK, "\xff\x00 pays 5\n", ""},
		"it fails":      {[]string{"invoke", "user-1", "charge", "-d", "101", at}, exitFailed, "", "FAILED (no_funds): a balance of 100"},
		"without code":  {[]string{"invoke", "user-1", "charge", at}, exitFailed, "", "FAILED: strconv.Atoi"},
		"no handler":    {[]string{"invoke", "user-1", "nothing", at}, exitNotRun, "", "NOT_RUN (no_handler): client: no handler is registered"},
		"no router":     {[]string{"invoke", "user-1", "charge", "--endpoint=127.0.0.1:1"}, exitNotRun, "", "NOT_RUN (unreachable): "},
		"no method":     {[]string{"invoke", "user-1", at}, exitUsage, "", "takes two arguments, KEY and METHOD, and was given 1"},
		"no key":        {[]string{"invoke", "", "charge", at}, exitUsage, "", "KEY has 0 bytes"},
		"bad method":    {[]string{"invoke", "user-1", "a b", at}, exitUsage, "", `method "a b"`},
		"bad endpoint":  {[]string{"invoke", "user-1", "charge", "--endpoint", "nowhere"}, exitUsage, "", "nowhere"},
		"bad time":      {[]string{"invoke", "user-1", "charge", "--timeout", "11m", at}, exitUsage, "", "--timeout = 11m0s, want 1ms to 10m0s"},
		"a long id":     {[]string{"invoke", "user-1", "charge", "--id", strings.Repeat("i", 129), at}, exitUsage, "", "an id of 129 bytes"},
		"much to say":   {[]string{"invoke", "user-1", "charge", "-d", "@" + large, at}, exitUsage, "", "a payload of 1048577 bytes"},
		"nothing there": {[]string{"invoke", "user-1", "charge", "-d", "@/nowhere", at}, exitUsage, "", "--data: open /nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			out, says, code := cli(t, test.args...)
			if code != test.code || out != test.out || !strings.Contains(says, test.stderr) {
				t.Errorf("exit code %d, %q, %q; want %d, %q, %q", code, out, says, test.code, test.out, test.stderr)
			}
		})
	}

	for timeout := 300 * time.Millisecond; ; timeout *= 4 { // on a busy machine the call may be over before its handler begins
		out, says, code := cli(t, "invoke", "user-1", "wait", "--timeout", timeout.String(), at)
		if code == exitNotRun && len(g.begun) == 0 && timeout < time.Minute {
			continue
		}
		if code != exitUnknown || out != "" || !strings.Contains(says, "UNKNOWN") {
			t.Errorf("no time: exit code %d, %q, %q; want %d, UNKNOWN", code, out, says, exitUnknown)
		}
		break
	}

	// A handler that has replied did not fail, also if the reply is lost on its way to a full disk.
	root := rootCommand()
	root.SetArgs([]string{"invoke", "user-1", "charge", "-d", "5", at})
	root.SetOut(full{})
	if err := root.ExecuteContext(t.Context()); exitCode(err) != exitUnknown || !strings.Contains(err.Error(), "REPLIED") {
		t.Errorf("a reply that cannot be written: exit code %d, %v", exitCode(err), err)
	}
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// TestCallsAreShown: router locate and router keys say which calls run and wait, and the caller who goes ends its call.
func TestCallsAreShown(t *testing.T) {
	t.Parallel()
	g := startLane(t, func() []string { return nil }, "router-0")
	g.serves(t)
	admin := "--admin=" + g.members["router-0"].admin
	ctx, leave := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	post := func(ctx context.Context) {
		callers.Go(func() {
			if _, status, _ := g.post(ctx, "/v1/keys/user-9/calls/wait", ""); ctx.Err() == nil && status != http.StatusOK {
				t.Errorf("the second call: status %d", status)
			}
		})
	}
	post(ctx)
	if key := <-g.begun; key != "user-9" {
		t.Fatalf("%s has begun", key)
	}
	post(t.Context())
	shows := func(what string, args ...string) {
		t.Helper()
		eventually.NoError(t, eventually.Most, what, func() error {
			if out, says, code := cli(t, append(args, admin)...); code != exitOK || !strings.Contains(out, what) {
				return fmt.Errorf("exit code %d: %s%s", code, out, says)
			}
			return nil
		})
	}
	shows("a call runs, 1 call or reservation waits", "locate", "user-9")
	shows("a call of wait, made at router-0, has waited for ", "locate", "user-9")
	shows("a call of wait, made at router-0, whose caller waits for ", "locate", "user-9")
	shows("a call of wait runs, 1 call or reservation waits", "keys")
	if out, _, _ := cli(t, "locate", "user-9", admin); strings.Contains(out, "event 4") || !strings.Contains(out, "0 events wait behind it") {
		t.Errorf("a call is shown as an event: %s", out)
	}
	leave()
	if why := <-g.begun; why != client.ErrCallerGone.Error() {
		t.Errorf("the caller has gone: %s", why)
	}
	<-g.begun
	close(g.release)
	callers.Wait()
}

// TestReservationsAreShown: router locate, asked at any member, tells of the holder of a key, and of a call and a reservation that wait for it.
func TestReservationsAreShown(t *testing.T) {
	t.Parallel()
	g := startLane(t, func() []string { return nil }, "router-0", "router-1")
	g.serves(t)
	dial := func(i int) *client.Lane {
		through, err := client.Dial(g.apps[i])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = through.Close() })
		return through
	}
	here, there := dial(0), dial(1)
	held, err := here.Reserve(t.Context(), "user-9", client.WithWait(eventually.Most))
	if err != nil {
		t.Fatal(err)
	}
	var waiting sync.WaitGroup
	waiting.Go(func() {
		if _, err := there.Invoke(t.Context(), "user-9", "charge", []byte("5"), client.WithCallTimeout(2*eventually.Most)); err != nil {
			t.Errorf("the call that waited: %v", err)
		}
	})
	waiting.Go(func() {
		next, err := there.Reserve(t.Context(), "user-9", client.WithWait(2*eventually.Most))
		if err != nil {
			t.Errorf("the reservation that waited: %v", err)
			return
		}
		next.Release()
	})
	token, turn := held.Fence().Token, held.Fence().Turn
	for _, m := range g.members {
		eventually.NoError(t, eventually.Most, "locate tells of all three", func() error {
			out, says, code := cli(t, "locate", "user-9", "--admin="+m.admin)
			for _, want := range []string{
				fmt.Sprintf(", through router-0, fence %d.%d; it ends in ", token, turn), "2 calls or reservations wait", "a call of charge, made at router-1, has waited for ", "a reservation, made at router-1, has waited for ",
			} {
				if !strings.Contains(out, want) {
					return fmt.Errorf("exit code %d, without %q: %s%s", code, want, out, says)
				}
			}
			return nil
		})
	}
	eventually.NoError(t, eventually.Most, "the members count them", func() error {
		var sum report.Visits
		for _, m := range g.members {
			out, says, code := cli(t, "members", "-o", "json", "--admin="+m.admin)
			var all report.Members
			if err := json.Unmarshal([]byte(out), &all); err != nil {
				return fmt.Errorf("exit code %d: %w: %s%s", code, err, out, says)
			}
			sum = report.Visits{}
			used := map[string]int{}
			for _, one := range all.Members {
				if one.Status == nil || one.Status.Visits == nil {
					return fmt.Errorf("%s tells nothing", one.Name)
				}
				v := one.Status.Visits
				sum.Waiting, sum.Running, sum.Reserved = sum.Waiting+v.Waiting, sum.Running+v.Running, sum.Reserved+v.Reserved
				for _, b := range v.Bounds {
					used[b.Setting] += b.Used
				}
			}
			if sum.Waiting != 2 || sum.Running != 0 || sum.Reserved != 1 || used["lane.reservations_max"] != 2 || used["reservations of an owner"] != 2 || used["lane.calls_max"] != 1 || used["mailbox.calls_max"] != 3 {
				return fmt.Errorf("%+v, used %v", sum, used)
			}
		}
		return nil
	})
	held.Release()
	waiting.Wait()
}

// post makes a call by HTTP at the first member.
func (g *laneGroup) post(ctx context.Context, path, token string) (text string, status int, header http.Header) {
	return postTo(ctx, http.DefaultClient, "http://"+g.lanes[0]+path, token)
}

func postTo(ctx context.Context, by *http.Client, url, token string) (text string, status int, header http.Header) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("5"))
	if err != nil {
		return err.Error(), 0, nil
	}
	r.Header.Set("Ringfence-Timeout", "10m") // for a busy machine, and for callers that wait until they are looked at
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := by.Do(r)
	if err != nil {
		return err.Error(), 0, nil
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return string(body), answer.StatusCode, answer.Header
}

// TestLaneListener: beyond loopback callers need TLS and the token, whose file is read again when it changes; pages of other sites are refused.
func TestLaneListener(t *testing.T) {
	t.Parallel()
	ca := tlstest.NewCA(t)
	pair := ca.Issue(t, "orders-router")
	token := write(t, filepath.Join(t.TempDir(), "token"), laneSecret+"\n")
	g := startLane(t, func() []string {
		return []string{"RINGFENCE__LANE__TOKEN_FILE=" + token, "RINGFENCE__LANE__TLS__CERT_FILE=" + pair.CertFile, "RINGFENCE__LANE__TLS__KEY_FILE=" + pair.KeyFile}
	}, "router-0")
	g.serves(t)
	by := &http.Client{Transport: &http.Transport{TLSClientConfig: ca.ClientConfig(t, "orders-router")}}
	defer by.CloseIdleConnections()
	const path = "/v1/keys/user-1/calls/charge"
	ask := func(token string) (string, int, http.Header) {
		return postTo(t.Context(), by, "https://"+g.lanes[0]+path, token)
	}
	if text, status, h := ask(laneSecret); status != http.StatusOK || text != "user-1 pays 5\n" || h.Get("Ringfence-Outcome") != "REPLIED" {
		t.Errorf("with the token: %d %s %v", status, text, h)
	}
	for _, wrong := range []string{"", "another-token-of-callers"} {
		if text, status, h := ask(wrong); status != http.StatusUnauthorized || h.Get("Ringfence-Outcome") != "NOT_RUN" || strings.Contains(text, "admin") {
			t.Errorf("with the token %q: %d %s %v", wrong, status, text, h)
		}
	}
	if _, status, _ := g.post(t.Context(), path, laneSecret); status == http.StatusOK {
		t.Error("a call in the clear was taken")
	}
	if _, err := tls.Dial("tcp", g.lanes[0], ca.ClientConfig(t, "another")); err == nil {
		t.Error("the listener has the certificate of another")
	}
	write(t, token, "the-newer-token-of-callers\n")
	eventually.True(t, "the newer token is taken", func() bool { _, status, _ := ask("the-newer-token-of-callers"); return status == http.StatusOK })
	if _, status, _ := ask(laneSecret); status != http.StatusUnauthorized {
		t.Errorf("the former token gets status %d", status)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+g.lanes[0]+path, bytes.NewReader(nil))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer the-newer-token-of-callers")
	r.Header.Set("Origin", "https://evil.example")
	answer, err := by.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusForbidden || answer.Header.Get("Ringfence-Outcome") != "NOT_RUN" {
		t.Errorf("a page of another site gets %s", answer.Status)
	}
}

// TestCommandsThroughTLS: router invoke and router lock reach a router whose app.listen requires a certificate and a token, by flags and by the variables of the SDKs; without them they
// say that nothing has run.
func TestCommandsThroughTLS(t *testing.T) {
	ca, other := tlstest.NewCA(t), tlstest.NewCA(t)
	router, app, stranger := ca.Issue(t, "orders-router", "127.0.0.1"), ca.Issue(t, "orders-app"), other.Issue(t, "orders-app")
	dir := t.TempDir()
	token := write(t, filepath.Join(dir, "token"), laneSecret+"\n")
	wrong := write(t, filepath.Join(dir, "wrong"), "another-token-of-workers\n")
	t.Setenv(client.TokenFileEnv, token)
	g := newTestGroup()
	g.environ = []string{
		"RINGFENCE__APP__TOKEN_FILE=" + token, "RINGFENCE__APP__TLS__CERT_FILE=" + router.CertFile, "RINGFENCE__APP__TLS__KEY_FILE=" + router.KeyFile,
		"RINGFENCE__APP__TLS__CA_FILE=" + ca.File, "RINGFENCE__APP__TLS__NAME=orders-app",
	}
	cfg := g.settingsOf(t, "router-0")
	all := &laneGroup{testGroup: g, apps: []string{cfg.App.Listen}, begun: make(chan string, 16), release: make(chan struct{}), options: []client.Option{client.WithTLS(ca.ClientConfig(t, "orders-router", app))}}
	all.member(t, cfg)
	all.serves(t)

	at, pair, authority := "--endpoint="+cfg.App.Listen, []string{"--cert-file=" + app.CertFile, "--key-file=" + app.KeyFile}, "--ca-file="+ca.File
	named := append(slices.Clone(pair), authority, "--tls-name=orders-router")
	invoke := func(further ...string) []string {
		return append([]string{"invoke", "user-1", "charge", "-d", "5", at}, further...)
	}
	lock := func(further ...string) []string {
		return append(append([]string{"lock", "user-1", at}, further...), "--", "echo", "held")
	}
	for name, test := range map[string]struct {
		args      []string
		code      int
		out, says string
	}{
		"all":                        {invoke(named...), exitOK, "user-1 pays 5\n", ""},
		"the name is the host":       {invoke(append(slices.Clone(pair), authority)...), exitOK, "user-1 pays 5\n", ""},
		"a key is held":              {lock(named...), exitOK, "held\n", ""},
		"in the clear":               {invoke(), exitNotRun, "", "NOT_RUN"},
		"the key in the clear":       {lock("--wait=1s"), exitNotLocked, "", "the key was not obtained"},
		"a certificate of strangers": {invoke("--cert-file="+stranger.CertFile, "--key-file="+stranger.KeyFile, authority), exitNotRun, "", "NOT_RUN"},
		"another router":             {invoke(append(slices.Clone(pair), authority, "--tls-name=payments-router")...), exitNotRun, "", "not for payments-router"},
		"another authority":          {invoke(append(slices.Clone(pair), "--ca-file="+other.File)...), exitNotRun, "", "certificate"},
		"a wrong token":              {invoke(append(slices.Clone(named), "--token-file="+wrong)...), exitNotRun, "", "token"},
		"a wrong token for a key":    {lock(append(slices.Clone(named), "--wait=1s", "--token-file="+wrong)...), exitNotLocked, "", "token"},
		"half a pair":                {invoke(pair[0]), exitUsage, "", "--cert-file and --key-file go together"},
		"an authority alone":         {lock(authority), exitUsage, "", "--cert-file and --key-file go together"},
		"no such file":               {invoke("--cert-file=/nowhere", "--key-file=/nowhere"), exitUsage, "", "/nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(test.out, "held") && runtime.GOOS == "windows" {
				t.Skip("router lock does not run here")
			}
			out, says, code := cli(t, test.args...)
			if code != test.code || out != test.out || !strings.Contains(says, test.says) || (test.says == "") != (says == "") {
				t.Errorf("exit code %d, %q, %q; want %d, %q, %q", code, out, says, test.code, test.out, test.says)
			}
		})
	}
}

// A listener for calls that is exposed without protection ends the start with exit code 2, and the error names the setting.
func TestLaneIsNotExposed(t *testing.T) {
	_, says, code := cli(t, "run", "--node.group", "g", "--pulsar.topics", "t", "--pulsar.subscription", "s", "--peer.insecure=true", "--gossip.insecure=true", "--lane.listen", "0.0.0.0:16655")
	if code != exitUsage || !strings.Contains(says, `lane.listen = "0.0.0.0:16655", want a loopback address, or lane.token_file and lane.tls set`) {
		t.Errorf("exit code %d: %s", code, says)
	}
}

// TestCallsOfManyAreTaken: the bounds for strangers concern no caller: neither the first message of a connection, however large, nor hundreds
// of calls and reservations that begin at once.
func TestCallsOfManyAreTaken(t *testing.T) {
	t.Parallel()
	g := startLane(t, func() []string { return nil }, "pod-0")
	g.serves(t)
	large, err := client.Dial(g.apps[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = large.Close() }()
	payload := append(bytes.Repeat([]byte(" "), 1<<20-2), "42"...)
	if _, err := large.Invoke(t.Context(), "user-1", "charge", payload, client.WithCallTimeout(eventually.Most)); err != nil {
		t.Errorf("the first call of a connection, of 1 MiB: %v", err)
	}
	var calling sync.WaitGroup
	for range 4 {
		one, err := client.Dial(g.apps[0])
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = one.Close() }()
		for i := range 100 {
			calling.Go(func() {
				if _, err := one.Invoke(t.Context(), fmt.Sprintf("user-%d", i), "charge", []byte("1"), client.WithCallTimeout(eventually.Most)); err != nil { // the crowd, not the wait, is at stake
					t.Errorf("one of 400 calls at once: %v", err)
				}
			})
		}
	}
	calling.Wait()
	for range 4 {
		one, err := client.Dial(g.apps[0])
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = one.Close() }()
		for i := range 50 {
			calling.Go(func() {
				r, err := one.Reserve(t.Context(), fmt.Sprintf("user-%d", i), client.WithWait(eventually.Most))
				if err != nil {
					t.Errorf("one of 200 reservations at once: %v", err)
					return
				}
				r.Release()
			})
		}
	}
	calling.Wait()
}
