package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/netx/mtls/tlstest"
	"github.com/ringfence/router/internal/testing/eventually"
)

const lanePage = "../../docs/lane.md"

const laneSecret = "the-token-of-callers"

// laneGroup is a group of members that take calls by HTTP, with workers that have handlers of calls.
type laneGroup struct {
	*testGroup
	apps, lanes []string      // addresses
	begun       chan string   // keys of calls of the method wait that have begun
	release     chan struct{} // ends them
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
			client.WithCall("charge", charge), client.WithCall("wait", g.wait), client.WithLogger(slog.New(slog.DiscardHandler)))
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
	caller, err := client.Dial(g.apps[0])
	if err != nil {
		t.Fatal(err)
	}
	defer caller.Close()
	eventually.NoError(t, time.Minute, "calls are answered", func() error {
		for i := range 16 {
			if _, err := caller.Invoke(t.Context(), fmt.Sprintf("first-%d", i), "charge", []byte("1"), client.WithCallTimeout(2*time.Second)); err != nil {
				return err
			}
		}
		return nil
	})
}

// TestLanePage: the commands of docs/lane.md, as they stand there, against a router of a group of two.
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
	for _, b := range blocksOf(t, lanePage) {
		if b.isCommands() {
			b.marker = "" // this is the test
			blocks = append(blocks, b)
		}
	}
	script, wanted := scriptOf(blocks, false)
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
	for _, b := range blocksOf(t, lanePage) {
		if _, err := exec.LookPath("grpcurl"); err == nil && strings.HasPrefix(b.text, "grpcurl ") {
			root, err := filepath.Abs("../..")
			if err != nil {
				t.Fatal(err)
			}
			answer := runPage(t, "cd "+root+"\n"+strings.ReplaceAll(b.text, "127.0.0.1:16650", g.apps[0]), bin, root)
			if !strings.Contains(answer, "OUTCOME_REPLIED") {
				t.Errorf("grpcurl: %s", answer)
			}
		}
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
		"no time":       {[]string{"invoke", "user-1", "wait", "--timeout", "300ms", at}, exitUnknown, "", "UNKNOWN"},
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
}

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
	shows("a call runs, 1 call waits", "locate", "user-9")
	shows("a call runs, 1 call waits", "keys")
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

// post makes a call by HTTP at the first member.
func (g *laneGroup) post(ctx context.Context, path, token string) (text string, status int, header http.Header) {
	return postTo(ctx, http.DefaultClient, "http://"+g.lanes[0]+path, token)
}

func postTo(ctx context.Context, by *http.Client, url, token string) (text string, status int, header http.Header) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("5"))
	if err != nil {
		return err.Error(), 0, nil
	}
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

// A listener for calls that is exposed without protection ends the start with exit code 2, and the error names the setting.
func TestLaneIsNotExposed(t *testing.T) {
	_, says, code := cli(t, "run", "--node.group", "g", "--pulsar.topics", "t", "--pulsar.subscription", "s", "--peer.insecure=true", "--gossip.insecure=true", "--lane.listen", "0.0.0.0:16655")
	if code != exitUsage || !strings.Contains(says, `lane.listen = "0.0.0.0:16655", want a loopback address, or lane.token_file and lane.tls set`) {
		t.Errorf("exit code %d: %s", code, says)
	}
}

// TestCallsOfManyAreTaken: the bounds for strangers concern no caller: neither the first message of a connection, however large, nor hundreds
// of calls that begin at once.
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
	if _, err := large.Invoke(t.Context(), "user-1", "charge", payload); err != nil {
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
				if _, err := one.Invoke(t.Context(), fmt.Sprintf("user-%d", i), "charge", []byte("1")); err != nil {
					t.Errorf("one of 400 calls at once: %v", err)
				}
			})
		}
	}
	calling.Wait()
}
