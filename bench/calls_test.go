package main

import (
	"bytes"
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/clock"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

func TestInvokeBringsItsComparisons(t *testing.T) {
	for _, args := range [][]string{{"--modes", "invoke"}, {"--workloads", "calls"}, {"--modes", "invoke", "--workloads", "calls"}} {
		o, err := parseWith(args...)
		if err != nil {
			t.Fatal(err)
		}
		if len(o.Modes) != 3 || o.Modes[0].name != modeInvoke || len(o.Workloads) != 1 || o.Workloads[0] != workloadCalls {
			t.Errorf("%v: modes %v, workloads %v", args, o.Modes, o.Workloads)
		}
		if o.Rate != goalRate || o.Keys != 10_000 || o.Nodes != 3 {
			t.Errorf("%v: %d/s on %d keys and %d nodes, want what the goals are about", args, o.Rate, o.Keys, o.Nodes)
		}
	}
	if o, err := parseWith("--modes", "invoke,unary"); err != nil || len(o.Modes) != 2 {
		t.Errorf("modes %v, %v", o.Modes, err)
	}
	for _, args := range [][]string{
		{"--modes", "invoke,shared"},
		{"--modes", "invoke", "--workloads", "kill"},
		{"--modes", "shared", "--workloads", "calls"},
		{"--modes", "invoke", "--suite", "core"},
		{"--modes", "invoke", "--callers", "2"},
		{"--modes", "invoke", "--callers", "20000"},
	} {
		if _, err := parseWith(args...); err == nil {
			t.Errorf("%v was taken", args)
		}
	}
}

// callTo makes calls to a bare server, and returns what both sides have counted.
func callTo(t *testing.T, call func(*caller)) (*caller, tally) {
	t.Helper()
	w := &worker{callee: callee{node: 1}}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	lanev1.RegisterLaneServiceServer(server, &unaryServer{worker: w})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	lane, err := client.Dial(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lane.Close() }()
	c := &caller{
		call: newHistogram(), due: newHistogram(), file: callsFile{Failed: map[string]uint64{}}, pick: keyPicker(distributionUniform, 100), size: 256,
		begin: clock.Now().Add(10 * time.Millisecond), warmUp: 50 * time.Millisecond, count: 100 * time.Millisecond,
		invoke: func(ctx context.Context, key string, payload []byte) ([]byte, error) {
			return lane.Invoke(ctx, key, callMethod, payload)
		},
	}
	call(c)
	return c, w.callee.tally()
}

func TestCallersAndHandlersCountAlike(t *testing.T) {
	for name, call := range map[string]func(*caller){
		"paced":     func(c *caller) { c.paced(t.Context(), 1000) },
		"saturated": func(c *caller) { c.saturate(t.Context(), 4) },
	} {
		c, handled := callTo(t, call)
		for range 20 { // a busy machine may let no call begin in the whole 100 ms
			if c.file.Calls > 0 {
				break
			}
			c, handled = callTo(t, call)
		}
		f := c.file
		if f.Replies != handled || f.Replies.Calls == 0 || f.Calls != f.Replies.Calls || f.Elsewhere != f.Calls || len(f.Failed) > 0 {
			t.Errorf("%s: callers have %+v, handlers %+v", name, f, handled)
		}
		if name == "paced" && f.Calls != 100 {
			t.Errorf("%d calls in 100 ms, want 100", f.Calls)
		}
		if n := c.call.TotalCount(); n != int64(f.Calls) {
			t.Errorf("%s: %d latencies of %d calls", name, n, f.Calls)
		}
	}
}

// A reply that no handler of this call can have given, and a call without one, are found.
func TestWrongRepliesAreFound(t *testing.T) {
	callers := func(c *caller) {
		invoke, n := c.invoke, 0
		c.invoke = func(ctx context.Context, key string, payload []byte) ([]byte, error) {
			if n++; n%3 == 0 {
				return invoke(ctx, key+"x", payload)
			} else if n%3 == 1 {
				return nil, &client.CallError{Kind: client.ErrNotRun, Code: client.CodeOverloaded}
			}
			return invoke(ctx, key, payload)
		}
		c.saturate(t.Context(), 1)
	}
	c, _ := callTo(t, callers)
	for range 20 { // a busy machine may let fewer than three calls begin in the whole 100 ms
		if c.file.Calls > 2 {
			break
		}
		c, _ = callTo(t, callers)
	}
	if c.file.Failed["a wrong reply"] == 0 || c.file.Failed[client.CodeOverloaded] == 0 || c.file.Replies.Calls == 0 {
		t.Errorf("found %+v", c.file)
	}
	path := filepath.Join(t.TempDir(), "caller")
	if err := c.write(path); err != nil {
		t.Fatal(err)
	}
	if _, err := mergeCalls([]string{path}); err == nil || !strings.Contains(err.Error(), client.CodeOverloaded) {
		t.Errorf("the calls were taken: %v", err)
	}
	c.file.Replies, c.file.Calls, c.file.Failed = tally{}, 0, nil
	if err := c.write(path); err != nil {
		t.Fatal(err)
	}
	if _, err := mergeCalls([]string{path}); err == nil {
		t.Error("a caller without a call was taken")
	}
}

func TestVerifyCallsComparesTheCounts(t *testing.T) {
	none := &cluster{}
	good := callsPhase{replies: tally{3, 42}, handled: tally{3, 42}}
	if err := verifyCalls(none, good); err != nil {
		t.Error(err)
	}
	for name, p := range map[string]callsPhase{
		"none":      {},
		"too few":   {replies: tally{3, 42}, handled: tally{2, 42}},
		"other sum": {replies: tally{3, 42}, handled: tally{3, 43}},
	} {
		if verifyCalls(none, p) == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestCallsReport(t *testing.T) {
	o, err := parseWith("--modes", "invoke")
	if err != nil {
		t.Fatal(err)
	}
	r := newReport(o, "", workloadCalls)
	for i, m := range o.Modes {
		s := callsSample{call: newHistogram(), due: newHistogram(), saturated: newHistogram(), perSecond: 13_000, cpu: map[string]float64{roleRouter: 40}, elsewhere: 0.66, verified: 7}
		for us := range int64(1000) {
			_ = s.call.RecordValue(us * int64(i+1))
		}
		r.Modes = append(r.Modes, callsResult(o, m, []callsSample{s, s}))
	}
	r.compare()
	var b bytes.Buffer
	r.print(&b)
	for _, want := range []string{"p90   0.90", "128 callers:   13000 calls/s", "router 40.0 µs", "66 % elsewhere, 14 verified", "goal of invoke", "p99 <= 3 ms: reached; >= 12000 calls/s: reached"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the table has no %q:\n%s", want, b.String())
		}
	}
	if got := charts(Run{Reports: []Report{r}}); len(got) != 1 || got[0].file != "calls" || len(got[0].parts) != 3 {
		t.Errorf("charts = %+v", got)
	}
	c := &Calls{Call: Quantiles{P90: 1.1}, PerS: 11_999}
	if text := c.goals(goalRate); strings.Count(text, "missed") != 2 {
		t.Errorf("goals: %s", text)
	}
	if text := c.goals(100); !strings.Contains(text, "not measured") {
		t.Errorf("goals: %s", text)
	}
}
