//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/broker/pulsaradmin"
	"github.com/ringfence/router/internal/devtools/prove"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/testing/eventually"
)

// provenGroup is a group whose broker other processes reach.
type provenGroup struct {
	*testGroup
	address string
}

func newProvenGroup(t *testing.T) provenGroup {
	t.Helper()
	g := provenGroup{testGroup: newTestGroup()}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.address = listener.Addr().String()
	server := grpc.NewServer()
	membroker.Register(server, g.broker)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	g.environ = []string{"RINGFENCE__OWNERSHIP__PROFILE=fast", "RINGFENCE__PROVE__ENABLED=true", "RINGFENCE__ADMIN__TOKEN=0123456789abcdef"}
	return g
}

// start starts a member and an application.
func (g provenGroup) start(t *testing.T, name string, handle client.Handler, more ...string) {
	t.Helper()
	before := g.environ
	g.environ = append(before, more...)
	cfg := g.settingsOf(t, name)
	g.environ = before
	g.members[name] = &testMember{admin: cfg.Admin.Listen}
	through, err := throughMemory(cfg, g.address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	appCtx, stopApp := context.WithCancel(context.WithoutCancel(t.Context()))
	var router, app sync.WaitGroup
	router.Go(func() {
		if err := run(ctx, cfg, through); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
	app.Go(func() {
		if err := client.Run(appCtx, cfg.App.Listen, handle, client.WithLogger(slog.New(slog.DiscardHandler))); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("application of %s: %v", name, err)
		}
	})
	t.Cleanup(func() { stop(); router.Wait(); stopApp(); app.Wait() })
}

// prove runs router prove against a member.
func (g provenGroup) prove(t *testing.T, member string, arguments ...string) (out, says string, code int) {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	return cli(t, append([]string{"prove", "--admin=" + g.members[member].admin, "--token-file=" + token}, arguments...)...)
}

// TestProve: three members on a broker in memory are proved, with processes that are killed and stopped, while the user's events flow: the report
// says that every promise held, and the user's handlers see no event of the proof.
func TestProve(t *testing.T) {
	t.Parallel()
	g := newProvenGroup(t)
	var users, strangers atomic.Int64
	handle := func(_ context.Context, e *client.Event) error {
		if strings.HasPrefix(string(e.Key), "user-") {
			users.Add(1)
		} else {
			strangers.Add(1)
		}
		return nil
	}
	names := []string{"router-0", "router-1", "router-2"}
	for _, name := range names {
		g.start(t, name, handle)
	}
	eventually.NoError(t, eventually.Most, "all members answer", func() error { // without the token no keys are shown, but members are
		_, says, code := g.prove(t, "router-0") // without --yes
		if code != exitUsage || !strings.Contains(says, "router-0, router-1, router-2") || !strings.Contains(says, "--yes") {
			return errors.New(says)
		}
		return nil
	})
	ctx, stop := context.WithCancel(t.Context())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for ctx.Err() == nil {
			g.publish(t, "user-7")
			_ = backoff.Sleep(ctx, 20*time.Millisecond) // the context is looked at above
		}
	})
	out := t.TempDir()
	var printed, says string
	code := -1
	for range 6 { // so few faults may all hit a member whose handlers rest: the command then says that the proof shows too little
		printed, says, code = g.prove(t, "router-0", "--for=3s", "--every=1s", "--fault-max=1s", "--faults=kill,drain", "--rate=500", "--keys=60", "--out="+out, "--yes")
		if code == exitOK || strings.Contains(says+printed, "BROKEN") {
			break
		}
		t.Logf("once more: %s\n%s", says, printed)
	}
	stop()
	publishing.Wait()
	if code != exitOK {
		t.Fatalf("exit code %d: %s\n%s", code, says, printed)
	}
	var v prove.Verdict
	text := read(t, filepath.Join(out, "report.json"))
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	if !v.Held || !v.Exercised || v.Handled < 100 || v.Handled < v.Published || len(v.Faults) == 0 || v.Moves == 0 || len(v.Members) != 3 || v.Machines != 1 || len(v.Remain) != 0 {
		t.Errorf("the verdict is %s", text)
	}
	if page := read(t, filepath.Join(out, "report.html")); !strings.Contains(page, "Every promise held") {
		t.Error("the page does not say that every promise held")
	}
	if users.Load() == 0 || strangers.Load() != 0 {
		t.Errorf("the user's handlers saw %d events of their own and %d others", users.Load(), strangers.Load())
	}
	var m report.Members
	g.get(t, "router-1", "/v1/members", &m)
	if len(m.Members) != 3 || len(m.Disagreements) != 0 {
		t.Errorf("afterwards the user's group is %+v", m)
	}
}

// TestProveRefuses: a proof does not begin unless every member takes part, and says which do not.
func TestProveRefuses(t *testing.T) {
	t.Parallel()
	g := newProvenGroup(t)
	handle := func(context.Context, *client.Event) error { return nil }
	g.start(t, "router-0", handle)
	g.start(t, "router-1", handle, "RINGFENCE__PROVE__ENABLED=false")
	out := filepath.Join(t.TempDir(), "proof")
	eventually.NoError(t, eventually.Most, "the member that is off is named", func() error {
		if _, says, code := g.prove(t, "router-0", "--yes", "--for=2s", "--out="+out); code != exitFailed || !strings.Contains(says, "prove.enabled is false at router-1: ") {
			return errors.New(says)
		}
		return nil
	})
	for want, arguments := range map[string][]string{
		"--for 3h0m0s is longer than prove.for_max of router-0, 1h0m0s": {"--for=3h"},
		"--keys 20000 is more than prove.keys_max":                      {"--keys=20000"},
		"more than prove.rate_max of router-0, 1000":                    {"--rate=2002"},
		`no such fault: "meteor"`:                                       {"--faults=meteor"},
	} {
		if _, says, _ := g.prove(t, "router-0", append(arguments, "--yes", "--out="+out)...); !strings.Contains(says, want) {
			t.Errorf("%v: %s", arguments, says)
		}
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("wrong-token-wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, token := range map[string][]string{"rejects the token": {"--token-file=" + file}, "requires a token": nil} {
		if _, says, code := cli(t, append([]string{"prove", "--yes", "--out=" + out, "--admin=" + g.members["router-0"].admin}, token...)...); code == exitOK || !strings.Contains(says, want) {
			t.Errorf("with %q: %s", token, says)
		}
	}
}

// TestDeleteTopic: a topic counts as removed only if it is, or was not there.
func TestDeleteTopic(t *testing.T) {
	const there, gone, no = http.StatusNoContent, http.StatusNotFound, http.StatusInternalServerError
	for name, test := range map[string]struct {
		asked             int // the status of the question for topic partitions
		has               int // topic partitions
		partitions, plain int // the statuses of the deletions
		removed           bool
	}{
		"a topic with topic partitions": {http.StatusOK, 2, there, http.StatusConflict, true},
		"a plain topic":                 {http.StatusOK, 0, http.StatusConflict, there, true},
		"a plain topic, not known so":   {gone, 0, gone, there, true},
		"no topic":                      {gone, 0, gone, gone, true},
		"a broker that does not answer": {no, 0, there, there, false},
		"topic partitions that stay":    {http.StatusOK, 2, no, gone, false},
		"a topic that stays":            {http.StatusOK, 0, gone, http.StatusForbidden, false},
		"a topic that stays unknown":    {gone, 0, gone, http.StatusForbidden, false},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				code := test.plain
				switch {
				case r.Method == http.MethodGet:
					w.WriteHeader(test.asked)
					_, _ = fmt.Fprintf(w, `{"partitions":%d}`, test.has) // the caller checks it
					return
				case strings.HasSuffix(r.URL.Path, "/partitions"):
					code = test.partitions
				}
				w.WriteHeader(code)
			}))
			t.Cleanup(server.Close)
			err := deleteTopic(t.Context(), pulsaradmin.Client{URL: server.URL}, "persistent://public/default/__prove-orders-4040ab")
			if (err == nil) != test.removed {
				t.Errorf("err = %v, want that it is removed: %t", err, test.removed)
			}
		})
	}
}
