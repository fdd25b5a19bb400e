package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/ring"
)

// cli runs a command as main would, and returns its output and its exit code.
func cli(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out bytes.Buffer
	root := rootCommand()
	root.SetArgs(append([]string{}, args...)) // nil would be the arguments of this process
	root.SetOut(&out)
	root.SetErr(&out)
	err := root.ExecuteContext(t.Context())
	if err != nil {
		stderr = err.Error()
	}
	return out.String(), stderr, exitCode(err)
}

// answered is cli for questions to all members. It asks again when one does not answer in time, as on a busy machine.
func answered(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	eventually.NoError(t, eventually.Most, "all members answer in time", func() error {
		if stdout, stderr, code = cli(t, args...); strings.Contains(stdout+stderr, "no answer in time") {
			return errors.New(stderr + "\n" + stdout)
		}
		return nil
	})
	return stdout, stderr, code
}

// shape replaces values that differ between runs, so that the rest can be compared.
func shape(text string) string {
	for _, r := range []struct{ pattern, with string }{
		{`127\.0\.0\.1:\d+`, "ADDRESS"},
		{`\b[0-9a-f]{16}\b`, "TABLE"},
		{`\b[0-9a-f]{8}\b`, "INC"},
		{`\b\d+:\d+(:-?\d+:-?\d+)?\b`, "POSITION"},
		{`token \d+`, "token N"},
		{`\b\d+(\.\d+)?(ms|s)\b`, "TIME"},
		{`\d+\.\d %`, "P %"},
		{`[ ]{2,}`, "  "},
		{`\b\d+/\d+  TIME  \d+  (TIME|-)`, "N/N  TIME  N  TIME"},
		{`(?m)[ ]+$`, ""},
		{`(?m)^(.*  KEPT  TIME(  \d+){4})  \d+(  \d+ of \d+)( \(\d+ undecided\))?$`, "$1  N$3"}, // leases lapse on a slow machine and former owners report late, which is no harm
	} {
		text = regexp.MustCompile(r.pattern).ReplaceAllString(text, r.with)
	}
	return text
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	got = shape(got)
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := read(t, path); got != want {
		t.Errorf("%s:\n%s\nwant\n%s\n(UPDATE=1 writes it)", name, got, want)
	}
}

// TestCommandsOfAGroup: the commands' output for a group in which one event runs and another
// event of its key waits.
func TestCommandsOfAGroup(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	defer close(release)
	g := startGroup(t, func(ctx context.Context, _ *client.Event) error {
		select {
		case <-release:
		case <-ctx.Done():
		}
		return ctx.Err()
	}, "router-0", "router-1", "router-2")
	t.Run("drain", func(t *testing.T) { testDrain(t, g) })
	t.Run("reports", func(t *testing.T) { testReports(t, g) })
	admin := "--admin=" + g.members["router-0"].admin
	good := func(t *testing.T, args ...string) string {
		t.Helper()
		out, says, code := answered(t, append(args, admin)...)
		if code != exitOK {
			t.Fatalf("%v: exit code %d: %s", args, code, says)
		}
		return out
	}
	const key = "a key/with?all&of ä\x00\xff"
	t.Run("members", func(t *testing.T) { golden(t, "members", good(t, "members")) })
	t.Run("locate", func(t *testing.T) {
		text := good(t, "locate", key)
		for _, want := range []string{"partition  ", "owner      router-", "fencing token ", "waits for the handler (worker 1), for ", "1 more wait behind it", "as router-0 has it, at epoch "} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is missing in\n%s", want, text)
			}
		}
		if held := regexp.MustCompile(`holds (1 event|[2-9] events) that it has received: with router-`); !held.MatchString(text) {
			t.Errorf("%v is missing in\n%s", held, text)
		}
		if same := good(t, "locate", "--base64", "YSBrZXkvd2l0aD9hbGwmb2Ygw6QA/w=="); shape(same) != shape(text) {
			t.Errorf("in base64 it is\n%s\nwant\n%s", same, text)
		}
		if idle := good(t, "locate", "nobody's"); !strings.Contains(idle, "no event of it waits or runs here; gate open") {
			t.Errorf("a key without events is\n%s", idle)
		}
	})
	t.Run("exclusivity", func(t *testing.T) { golden(t, "exclusivity", good(t, "exclusivity")) })
	t.Run("ring show", func(t *testing.T) {
		golden(t, "ring-show", regexp.MustCompile(`(?m)^(router-\d +)\d+ `).ReplaceAllString(good(t, "ring", "show", "--member", "router-2"), "${1}N "))
		all := good(t, "ring", "show", "--partitions")
		if lines := strings.Count(all, "\n"); lines != 4093+3 || !strings.Contains(all, "GATE AT ROUTER-0") {
			t.Errorf("%d lines, beginning with %.80q", lines, all)
		}
	})
	t.Run("ring diff", func(t *testing.T) {
		golden(t, "ring-diff", good(t, "ring", "diff"))
		golden(t, "ring-diff-two", good(t, "ring", "diff", "router-2", "router-1"))
		if _, says, code := cli(t, "ring", "diff", "router-1", "router-9", admin); code != exitFailed || !strings.Contains(says, `unknown member "router-9": there are router-0, router-1, router-2`) {
			t.Errorf("exit code %d: %s", code, says)
		}
		if _, says, code := cli(t, "ring", "diff", "router-1", admin); code != exitUsage || !strings.Contains(says, "name two members") {
			t.Errorf("exit code %d: %s", code, says)
		}
	})
	t.Run("ring simulate", func(t *testing.T) {
		var s simulation
		if err := json.Unmarshal([]byte(good(t, "ring", "simulate", "--members", "-1", "-o", "json")), &s); err != nil {
			t.Fatal(err)
		}
		if len(s.Before) != 3 || len(s.After) != 2 || s.Members[2].After != 0 || s.Unavoidable != s.Members[2].Before {
			t.Errorf("one less is %+v", s)
		}
	})
	t.Run("forms", func(t *testing.T) {
		var fromJSON report.Members
		if err := json.Unmarshal([]byte(good(t, "members", "-o", "json")), &fromJSON); err != nil || len(fromJSON.Members) != 3 {
			t.Errorf("JSON of %d members (%v)", len(fromJSON.Members), err)
		}
		var fromYAML struct {
			Member  string
			Members []struct {
				Name   string
				Status struct{ Phase string }
			}
		}
		text := good(t, "members", "-o", "yaml")
		if err := yaml.Unmarshal([]byte(text), &fromYAML); err != nil || len(fromYAML.Members) != 3 || fromYAML.Members[1].Status.Phase != "current" || fromYAML.Member != "router-0" {
			t.Errorf("YAML is %+v (%v) of\n%s", fromYAML, err, text)
		}
		if strings.Contains(text, "{") || strings.Contains(text, "\x1b") {
			t.Errorf("YAML has braces or colours:\n%s", text)
		}
	})
	t.Run("gate", func(t *testing.T) { testGate(t, g, key) })
}

// testGate drains the owner of a key while its handler runs: the next owner waits, and names
// the member that it waits for.
func testGate(t *testing.T, g *testGroup, key string) {
	path := "/v1/keys?key=" + url.QueryEscape(key)
	var k report.Key
	g.get(t, "router-0", path, &k)
	before := k.Owner
	if out, says, code := cli(t, "drain", "--admin", g.members[before].admin); code != exitOK || !strings.HasPrefix(out, "draining") {
		t.Fatalf("drain: %q, exit code %d: %s", out, code, says)
	}
	eventually.NoError(t, eventually.Most, "the next owner reports whose release it waits for", func() error {
		k = report.Key{}
		g.get(t, before, path, &k)
		if k.Owner == before || len(k.At) == 0 || len(k.At[0].Blockers) == 0 {
			return fmt.Errorf("the key is at %+v", k)
		}
		return nil
	})
	if at := k.At[0]; at.Wait != "gate" || at.Blockers[0].Member != before {
		t.Errorf("%s waits for %s: %+v, want the gate and %s", at.Member, at.Wait, at.Blockers, before)
	}
	var all report.Partitions
	g.get(t, before, "/v1/partitions?member="+k.Owner, &all)
	if p := all.Partitions[k.Partition]; p.Gate != "waiting" && p.Gate != "open" || len(p.Blockers) != 1 || p.Blockers[0].Member != before || p.Blockers[0].Start == "" {
		t.Errorf("its owner's report is %+v, want that it waits for %s", p, before)
	}
	out, _, _ := answered(t, "locate", key, "--admin", g.members[before].admin)
	for _, want := range []string{"waits for its gate", "the gate waits for " + before + ", the owner since ", "at         " + before + ": waits for the handler"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
}

// testDrain drains a member, and brings it back.
func testDrain(t *testing.T, g *testGroup) {
	const idle = "router-1"
	admin := "--admin=" + g.members[idle].admin
	if out, says, code := cli(t, "drain", "--wait", "2m", admin); code != exitOK || out != "drained\n" {
		t.Fatalf("drain: %q, exit code %d: %s", out, code, says)
	}
	g.await(t, idle, "it is out", func(m report.Members) bool {
		for _, one := range m.Members {
			if one.Name == idle {
				return !one.Listed
			}
		}
		return false
	})
	if out, says, code := cli(t, "undrain", "--wait", "2m", admin); code != exitOK || out != "undrained\n" {
		t.Fatalf("undrain: %q, exit code %d: %s", out, code, says)
	}
	g.await(t, idle, "it is back", func(m report.Members) bool {
		for _, one := range m.Members {
			if one.Name == idle && one.Listed && one.Partitions > 0 {
				return true
			}
		}
		return false
	})
}

// occupied returns an address on which another process listens.
func occupied(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().String()
}

// answering is an admin endpoint with a fixed answer.
func answering(t *testing.T, code int, says string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer hush" && code == http.StatusUnauthorized {
			_, _ = w.Write([]byte(`{"member":"router-0","members":[],"disagreements":[]}`))
			return
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(says))
	}))
	t.Cleanup(server.Close)
	return "--admin=" + server.URL
}

// tables is an admin endpoint of a group whose member a has a whole table, and b one with a single partition.
func tables(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := report.Partitions{View: report.View{Member: r.URL.Query().Get("member")}, Partitions: make([]report.Partition, 1)}
		if answer.Member == "a" {
			answer.Partitions = make([]report.Partition, ring.Partitions)
		}
		_ = json.NewEncoder(w).Encode(answer) // the command reports a broken answer
	}))
	t.Cleanup(server.Close)
	return "--admin=" + server.URL
}

// formerMembers is the answer of a router of the former release (commit 07a84d18), m1, beside one of this version: it leaves out what it does not know of
// the other's word.
const formerMembers = `{"member":"m1","incarnation":"ac2f4371","position":"130:33","epoch":"130:22","members":[` +
	`{"name":"m1","incarnation":"ac2f4371","address":"127.0.0.1:1","listed":true,"partitions":1974,"reach":"self","status":{"member":"m1","mode":"strict","phase":"fresh","listed":true,` +
	`"checks":[{"name":"drain"},{"name":"member"},{"name":"application"},{"name":"lease"},{"name":"source"}],"gates":{},"events":{},"exclusivity":{"seconds":9.4}}},` +
	`{"name":"m2","incarnation":"650877a9","address":"127.0.0.1:2","listed":true,"partitions":2119,"reach":"alive","status":{"member":"m2","mode":"strict","phase":"current","listed":true,` +
	`"checks":[{"name":"drain"},{"name":"broker"},{"name":"claim"},{"name":"member"},{"name":"application"},{"name":"lease"},{"name":"source"}],"gates":{},"events":{},"exclusivity":{"seconds":2.5}}}],` +
	`"disagreements":[]}`

// TestAFormerRouterTellsLessOfOthers: a router of the former release does not pass on which schedules, acts and overlaps newer members know. A
// command that asks it says so, and does not take what is missing for what there is.
func TestAFormerRouterTellsLessOfOthers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/members":
			_, _ = io.WriteString(w, formerMembers)
		case r.URL.Path == "/v1/keys" && r.URL.Query().Get("key") == "":
			http.Error(w, "say which key: /v1/keys?key=KEY, percent-encoded", http.StatusBadRequest)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	for command, want := range map[string]struct {
		code          int
		says, saysToo string
		saysNot       string
	}{
		"schedules":   {code: exitOK, says: "m1 is of an earlier version, and does not pass on the schedules of m2: ask one of them", saysNot: "no application of the group declares"},
		"members":     {code: exitOK, says: "m1 is of an earlier version, and does not pass on whether these take acts: m2", saysToo: "m1 takes no acts", saysNot: "m2 takes no acts"},
		"exclusivity": {code: exitFailed, says: "m2: m1, which was asked, is of an earlier version, and does not pass on what the auditor of this member has found", saysToo: "UNKNOWN"},
		"keys":        {code: exitFailed, says: "an older version of the router", saysNot: "say which key"},
		"acts":        {code: exitFailed, says: "an older version of the router"},
	} {
		out, says, code := cli(t, command, "--admin="+server.URL)
		if all := out + says; code != want.code || !strings.Contains(all, want.says) || !strings.Contains(all, want.saysToo) || want.saysNot != "" && strings.Contains(all, want.saysNot) {
			t.Errorf("router %s exits with %d, want %d, and says:\n%s", command, code, want.code, all)
		}
	}
}

// The tables in the documents have the columns that the commands print.
func TestDocumentedTables(t *testing.T) {
	header := regexp.MustCompile(`(?m)^[A-Z]{4,} .*$`)
	columns := func(text string) string { return strings.Join(strings.Fields(header.FindString(text)), " ") }
	shown := map[string]string{}
	for _, b := range blocksOf(t, "../../docs/cli.md") {
		if command, out, ok := strings.Cut(strings.TrimPrefix(b.text, "$ router "), "\n"); ok {
			shown[command] = columns(out)
		}
	}
	for command, golden := range map[string]string{"members": "members", "exclusivity": "exclusivity", "ring simulate --members +2": "ring-simulate"} {
		want := columns(read(t, filepath.Join("testdata", golden+".golden")))
		if got := shown[command]; want == "" || got != want {
			t.Errorf("router %s prints\n%s\nand docs/cli.md shows\n%s", command, want, got)
		}
	}
}

// notHTTP returns the address of a listener that answers with HTTP/2 alone, as those for applications and peers do.
func notHTTP(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

// TestAnotherPortSpeaksFirst: a port with another protocol, whose server may write before the request comes, is no admin endpoint.
func TestAnotherPortSpeaksFirst(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00@\x00")
				_, _ = conn.Read(make([]byte, 4<<10)) // the request: it is no preface, so the connection ends
			}()
		}
	}()
	a := &asker{address: l.Addr().String(), settings: &settings(t).Config}
	for range 300 {
		if _, _, err := a.call(t.Context(), http.MethodGet, "/v1/members", time.Minute); err == nil || !strings.Contains(err.Error(), "its answer is not HTTP") {
			t.Fatalf("the error is %v", err)
		}
	}
}

// TestErrorsSayWhatToDo: every failure of a command, with its message and its exit code.
func TestErrorsSayWhatToDo(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	members := `{"members":[{"name":"router-0","reach":"self","status":{"mode":"gossip"}},{"name":"router-1","error":"report: ask x: refused"}]}`
	for name, test := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no command":        {nil, exitUsage, "; see `router --help`"},
		"unknown command":   {[]string{"member"}, exitUsage, "there is no router member; did you mean members?"},
		"another word":      {[]string{"owner", "alice"}, exitUsage, "there is no router owner; did you mean locate?"},
		"unknown verb":      {[]string{"ring", "draw"}, exitUsage, "there is no router ring draw; there are diff, show, simulate"},
		"no verb":           {[]string{"config"}, exitUsage, "router config needs a subcommand: example|lint|print|schema"},
		"unknown shell":     {[]string{"completion", "nushell"}, exitUsage, "there is no router completion nushell; there are bash, fish, powershell, zsh"},
		"a shell too many":  {[]string{"completion", "bash", "zsh"}, exitUsage, "router completion bash takes no argument"},
		"no shell":          {[]string{"completion"}, exitUsage, "router completion needs a subcommand: bash|fish|powershell|zsh"},
		"no settings":       {[]string{"doctor"}, exitUsage, "\nno file with settings was named: use --config FILE"},
		"file without flag": {[]string{"run", "router.yaml"}, exitUsage, `unexpected argument "router.yaml"; the application's command comes after --, a file with settings after --config`},
		"help on nothing":   {[]string{"help", "mebers"}, exitUsage, "there is no router mebers; did you mean members?"},
		"help on no verb":   {[]string{"help", "ring", "draw"}, exitUsage, "there is no router ring draw; there are diff, show, simulate"},
		"help on a verb":    {[]string{"help", "ring", "show"}, exitOK, ""},
		"misspelt command":  {[]string{"mebers"}, exitUsage, "there is no router mebers; did you mean members?"},
		"unknown flag":      {[]string{"members", "--colour"}, exitUsage, "unknown flag: --colour: see `router members --help`"},
		"port in use": {
			[]string{"run", "--node.group", "g", "--pulsar.topics", "t", "--pulsar.subscription", "s", "--peer.insecure=true", "--gossip.insecure=true", "--node.advertise_ip", "127.0.0.1", "--app.listen", occupied(t)},
			exitFailed, "address already in use; does another router run here?",
		},
		"misspelt flag":       {[]string{"members", "--admn", "x"}, exitUsage, "unknown flag: --admn; did you mean --admin?"},
		"argument too many":   {[]string{"members", "x"}, exitUsage, "router members takes no argument"},
		"no key":              {[]string{"locate"}, exitUsage, "router locate takes one argument, KEY, and was given 0"},
		"an empty key":        {[]string{"locate", ""}, exitUsage, "KEY has 0 bytes, want 1 to 4096"},
		"a key too long":      {[]string{"history", strings.Repeat("k", 4097)}, exitUsage, "KEY has 4097 bytes, want 1 to 4096"},
		"nothing to hold":     {[]string{"hold", "", "--reason", "r", "--admin", "127.0.0.1:1"}, exitUsage, "KEY has 0 bytes, want 1 to 4096"},
		"nothing in base64":   {[]string{"park", "--base64", "", "--reason", "r", "--admin", "127.0.0.1:1"}, exitUsage, "KEY has 0 bytes, want 1 to 4096"},
		"time without unit":   {[]string{"drain", "--wait", "30"}, exitUsage, `--wait = "30", want a duration with its unit (500ms, 2s, 5m)`},
		"number in words":     {[]string{"rollout", "--last", "x"}, exitUsage, `--last = "x", want a whole number`},
		"number too great":    {[]string{"rollout", "--last", "99999999999999999999"}, exitUsage, `--last = "99999999999999999999", want a whole number`},
		"maybe":               {[]string{"locate", "alice", "--base64=maybe"}, exitUsage, `--base64 = "maybe", want true or false`},
		"watch apart":         {[]string{"members", "--watch", "5s"}, exitUsage, `"5s" is one; for --watch write --watch=5s: see `},
		"watch a key apart":   {[]string{"locate", "alice", "--watch", "5s"}, exitUsage, "was given 2; for --watch write --watch=5s: see "},
		"a second key":        {[]string{"locate", "alice", "5s"}, exitUsage, "was given 2: see "},
		"settings apart":      {[]string{"doctor", "router.yaml"}, exitUsage, `"router.yaml" is one; a file with settings comes after --config: see `},
		"key and settings":    {[]string{"locate", "alice", "router.yml"}, exitUsage, "was given 2; a file with settings comes after --config: see "},
		"demo takes none":     {[]string{"demo", "now"}, exitUsage, `router demo takes no argument, and "now" is one: see `},
		"key not base64":      {[]string{"locate", "--base64", "!"}, exitUsage, "KEY is not base64"},
		"not a hash":          {[]string{"history", "--hash", "zz", answering(t, 400, "the hash of a key has 16 hexadecimal digits")}, exitUsage, "KEY: the hash of a key has 16 hexadecimal digits"},
		"bad form":            {[]string{"members", "-o", "xml"}, exitUsage, `--output = "xml", want table, json or yaml`},
		"bad address":         {[]string{"members", "--admin", "router"}, exitUsage, `--admin = "router", want HOST:PORT or a URL`},
		"nobody there":        {[]string{"members", "--admin", "127.0.0.1:1"}, exitFailed, "cannot reach http://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused; check that the router runs"},
		"keys are not told":   {[]string{"locate", "hidden", "--admin", "127.0.0.1:1"}, exitFailed, "cannot reach http://127.0.0.1:1: dial"},
		"no token file":       {[]string{"members", "--token-file", "/nowhere", "--admin", "127.0.0.1:1"}, exitUsage, "--token-file: open /nowhere"},
		"empty token file":    {[]string{"members", "--token-file", write(t, filepath.Join(t.TempDir(), "empty"), "\n"), "--admin", "127.0.0.1:1"}, exitUsage, "empty is empty"},
		"no time to hold":     {[]string{"hold", "alice", "--reason", "r", "--for", "0s", "--admin", "127.0.0.1:1"}, exitUsage, "--for = 0s, want a duration such as 30m"},
		"no time to park":     {[]string{"park", "alice", "--reason", "r", "--for", "0s", "--admin", "127.0.0.1:1"}, exitUsage, "--for = 0s, want a duration such as 30m"},
		"no time to unpark":   {[]string{"unpark", "alice", "--reason", "r", "--for", "-1s", "--admin", "127.0.0.1:1"}, exitUsage, "--for = -1s, want a duration such as 30m"},
		"two selections":      {[]string{"keys", "--waiting", "--hot", "--admin", "127.0.0.1:1"}, exitUsage, "--hot and --waiting exclude each other"},
		"nobody to invoke":    {[]string{"invoke", "alice", "m", "--endpoint", "127.0.0.1:1"}, exitNotRun, "check that the router runs and that this is its app.listen, or use --endpoint"},
		"nobody to send by":   {[]string{"send", "alice", "--endpoint", "127.0.0.1:1"}, exitNotRun, "check that the router runs and that this is its app.listen, or use --endpoint"},
		"nobody to lock with": {[]string{"lock", "alice", "--endpoint", "127.0.0.1:1", "--", "true"}, exitNotLocked, "check that the router runs and that this is its app.listen, or use --endpoint"},
		"token wanted":        {[]string{"members", answering(t, 401, "a token is needed")}, exitFailed, "requires a token (a token is needed): use --token-file"},
		"wrong token":         {[]string{"members", "--token-file", write(t, filepath.Join(t.TempDir(), "wrong"), "wrong"), answering(t, 401, "not for you")}, exitFailed, "rejects the token (not for you)"},
		"nobody's page":       {[]string{"members", "--token-file", token, answering(t, 403, "not in the clear")}, exitFailed, "refuses the request with any token: not in the clear"},
		"right token":         {[]string{"members", "--token-file", token, answering(t, 401, "a token is needed")}, exitOK, ""},
		"older router":        {[]string{"members", answering(t, 404, "404 page not found")}, exitFailed, "does not know this request: it is an older version"},
		"a broker's page":     {[]string{"members", answering(t, 404, "<html>\n<head>")}, exitFailed, " is no admin endpoint: it answers with a page and status 404; check that this is the router's admin.listen, or use --admin HOST:PORT"},
		"not a router":        {[]string{"members", answering(t, 200, "<html>")}, exitFailed, "unexpected answer to /v1/members"},
		"another port":        {[]string{"members", "--admin", notHTTP(t)}, exitFailed, " is no admin endpoint: its answer is not HTTP; check that this is the router's admin.listen, or use --admin HOST:PORT"},
		"no table yet":        {[]string{"ring", "show", answering(t, 200, `{"member":"router-0","partitions":[]}`)}, exitFailed, "router-0 has no table yet: it waits for the state of the group, see `router members`"},
		"nothing to compare":  {[]string{"ring", "diff", answering(t, 200, `{"members":[]}`)}, exitUsage, "there is nothing to compare"},
		"a table with a hole": {[]string{"ring", "diff", "a", "b", tables(t)}, exitFailed, "b reported 1 partitions, want 4093"},
		"wait beyond an hour": {[]string{"drain", "--wait", "61m", answering(t, 202, "draining")}, exitUsage, "--wait = 1h1m0s, want at most 1h0m0s"},
		"wait without an end": {[]string{"drain", "--wait", "2562047h", answering(t, 202, "draining")}, exitUsage, "want at most 1h0m0s"},
		"not exclusive":       {[]string{"exclusivity", answering(t, 200, members)}, exitFailed, "exclusivity cannot be confirmed"},
		"nobody to judge":     {[]string{"exclusivity", answering(t, 200, `{}`)}, exitFailed, "no member was judged"},
		"negative wait":       {[]string{"drain", "--wait", "-1s"}, exitUsage, "--wait = -1s, want a duration such as 30s"},
		"drain takes longer":  {[]string{"drain", "--wait", "1ms", answering(t, 202, "draining")}, exitUndrain, "after 1ms: draining; see `router members` and /readyz"},
		"drain does not wait": {[]string{"drain", answering(t, 202, "draining")}, exitOK, ""},
		"undrain too late":    {[]string{"undrain", answering(t, 409, "the process is about to end")}, exitFailed, "the process is about to end"},
		"bad settings":        {[]string{"members", "--config", "/nowhere.yaml"}, exitUsage, "/nowhere.yaml: the file cannot be read: no such file or directory"},

		"nothing changes":      {[]string{"ring", "simulate", "--from", "a,b"}, exitUsage, "a change is missing: --members +2, -1, +NAME,-NAME, or NAME,NAME"},
		"all leave":            {[]string{"ring", "simulate", "--from", "a,b", "--members", "-2"}, exitUsage, "there are only 2: one has to remain"},
		"too many come":        {[]string{"ring", "simulate", "--from", "a,b", "--members", "+300"}, exitUsage, "want at most +256"},
		"group too large":      {[]string{"ring", "simulate", "--from", "a,b", "--members", "+256"}, exitUsage, "258 members, want 1 … 256"},
		"member twice":         {[]string{"ring", "simulate", "--from", "a,b", "--members", "+a"}, exitUsage, "a is a member already"},
		"unknown member":       {[]string{"ring", "simulate", "--from", "a,b", "--members", "-c,+d"}, exitUsage, "c is not a member; the members are a, b"},
		"half signed":          {[]string{"ring", "simulate", "--from", "a,b", "--members", "-a,d"}, exitUsage, `"d" has no sign`},
		"empty name":           {[]string{"ring", "simulate", "--from", "a,,b", "--members", "+1"}, exitUsage, "a member has no name"},
		"fewer than none":      {[]string{"ring", "simulate", "--from", "a,b", "--members=-9223372036854775808"}, exitUsage, "one has to remain"},
		"simulate needs group": {[]string{"ring", "simulate", "--members", "+1", "--admin", "127.0.0.1:1"}, exitFailed, "to simulate without a group, use --from NAME,NAME"},
	} {
		t.Run(name, func(t *testing.T) {
			out, says, code := cli(t, test.args...)
			if code != test.code || !strings.Contains(says, test.says) {
				t.Errorf("exit code %d, want %d; stderr %q, want %q; output\n%s", code, test.code, says, test.says, out)
			}
			if strings.Contains(out+says, "hidden") {
				t.Errorf("a key is printed: %s%s", out, says)
			}
		})
	}
}

func TestSimulate(t *testing.T) {
	out, says, code := cli(t, "ring", "simulate", "--from", "a,b,c", "--members", "+2")
	if code != exitOK {
		t.Fatal(says)
	}
	golden(t, "ring-simulate", out)
	for change, after := range map[string]string{"-1": "a,b", "+d,-a": "b,c,d", "c,d": "c,d", "+1": "a,b,c,new-1"} {
		got, err := changed([]string{"c", "a", "b"}, change)
		if err != nil || strings.Join(got, ",") != after {
			t.Errorf("a,b,c with %s is %v (%v), want %s", change, got, err, after)
		}
	}
}

// TestDifferences: differences between members are given as ranges of partitions, and lagging
// members are named.
func TestDifferences(t *testing.T) {
	view := func(name, epoch string, owners ...string) report.Partitions {
		p := report.Partitions{View: report.View{Member: name, Epoch: epoch}}
		for i, owner := range owners {
			p.Partitions = append(p.Partitions, report.Partition{Number: uint16(i), Owner: owner, Token: 7})
		}
		return p
	}
	d := differencesOf(views{
		seen:   []report.Partitions{view("a", "1:5", "a", "a", "b", "b", "a"), view("b", "1:2", "b", "b", "b", "b", "b")},
		silent: []string{"c: it is gone"},
	})
	var out bytes.Buffer
	differencesPage(&page{out: &out}, d)
	want := "PARTITIONS  A AT 1:5     B AT 1:2\n0-1,4       a (token 7)  b (token 7)\n\n3 partitions differ\nno word of c: it is gone\n"
	if out.String() != want || d.Partitions != 3 {
		t.Errorf("%d partitions:\n%s\nwant\n%s", d.Partitions, out.String(), want)
	}
}

func TestSeconds(t *testing.T) {
	for s, want := range map[float64]string{0: "-", 0.0123: "12ms", 3.14159: "3.1s", 90: "1m30s", -1.5: "-1.5s"} {
		if got := report.Seconds(s); got != want {
			t.Errorf("Seconds(%v) = %s, want %s", s, got, want)
		}
	}
}

// TestVersionAndCompletion: they need no settings and no router.
func TestVersionAndCompletion(t *testing.T) {
	if out, says, code := cli(t, "version", "-o", "json"); code != exitOK || !strings.Contains(out, `"hash_id": "xxhash64/4093/1"`) {
		t.Errorf("%s%s", out, says)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out, says, code := cli(t, "completion", shell); code != exitOK || !strings.Contains(out, "router") {
			t.Errorf("%s: %.100s %s", shell, out, says)
		}
	}
}
