package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/report"
)

// Names of others reach the terminal in every form without anything that it obeys: escape
// sequences in either form, new lines, and marks that turn the text around.
func TestNamesOfStrangersAreShownHarmless(t *testing.T) {
	const hostile = "a\x1b]0;owned\x07\x1b[2J\u009b31m\u202egnp\r\nrouter-9 alive\x7f"
	m := report.Members{
		View: report.View{Member: hostile, Incarnation: hostile, Epoch: hostile, Position: hostile},
		Members: []report.Member{
			{Name: hostile, Incarnation: hostile, Address: hostile, Reach: hostile, Error: hostile},
			{Name: "b", Status: &report.Status{Phase: hostile, Version: hostile, UncheckedWorkers: []report.Worker{{Name: hostile, SDK: hostile}}, Checks: []report.Check{{Name: hostile, Error: hostile}}}},
		},
		Disagreements: []string{hostile},
	}
	key := report.Key{Owner: hostile, OwnerAddress: hostile, At: []report.KeyAt{
		{View: m.View, Error: hostile},
		{Wait: hostile, Event: hostile, Held: []report.Held{{Place: hostile, With: hostile}}, Blockers: []report.Blocker{{Member: hostile, Start: hostile}}},
	}}
	parts := report.Partitions{View: m.View, Partitions: []report.Partition{{Owner: hostile, Gate: hostile}}}
	for name, page := range map[string]struct {
		data  any
		table func(*page)
	}{
		"members":     {m, func(p *page) { membersTable(p, m) }},
		"key":         {key, func(p *page) { keyPage(p, key) }},
		"partitions":  {parts, func(p *page) { partitionsTable(p, parts) }},
		"shares":      {parts, func(p *page) { sharesTable(p, sharesOf(parts)) }},
		"exclusivity": {judge(m), func(p *page) { judgedTable(p, judge(m)) }},
		"differences": {m, func(p *page) {
			differencesPage(p, differences{Silent: []string{hostile}, Views: []report.View{{Member: hostile, Epoch: hostile}}})
		}},
		"doctor": {m, func(p *page) {
			(&doctor{findings: []finding{{Check: hostile, Result: resultFail, Says: hostile, Advice: hostile}}}).page(p)
		}},
	} {
		for _, form := range []string{"table", "json", "yaml"} {
			var out strings.Builder
			if err := (&outputForm{form: form}).show(&out, page.data, page.table); err != nil {
				t.Fatal(err)
			}
			for _, r := range out.String() {
				if r != '\n' && (unicode.IsControl(r) || form != "yaml" && !unicode.IsPrint(r)) {
					t.Errorf("%s as %s: %q in\n%q", name, form, r, out.String())
					break
				}
			}
			if form == "table" && strings.Contains(out.String(), "\nrouter-9 alive") {
				t.Errorf("%s: a name makes a row of its own:\n%s", name, out.String())
			}
			if form == "json" && !json.Valid([]byte(out.String())) {
				t.Errorf("%s is not JSON:\n%s", name, out.String())
			}
		}
	}
}

// TestListsCanBeWatched: what a router tells about its group can be shown again and again.
func TestListsCanBeWatched(t *testing.T) {
	var visit func(*cobra.Command)
	watched := 0
	visit = func(c *cobra.Command) {
		has := func(flag string) bool { return c.Flags().Lookup(flag) != nil }
		ofTheGroup := has("admin") || strings.HasPrefix(c.CommandPath(), "router deadletters ") || c.CommandPath() == "router group show"
		if ofTheGroup && has("output") && !has("reason") && !has("wait") {
			watched++
			if once := c.Name() == "simulate" || c.CommandPath() == "router deadletters show"; !has("watch") && !once {
				t.Errorf("%s shows data of a router, and has no --watch", c.CommandPath())
			}
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(rootCommand())
	if watched < 8 {
		t.Errorf("only %d commands show data of a router", watched)
	}
}

// TestYAMLOfAnyKey: -o yaml shows every key that -o json shows.
func TestYAMLOfAnyKey(t *testing.T) {
	for _, key := range []string{
		"flag-\U0001F3F4\U000E0067\U000E0062\U000E0065\U000E006E\U000E0067\U000E007F", // the flag of England
		"private-\U000F0000", "tag-\U000E0001", "\u202ebidi", "\u009b", "\x00", "\uffff", "<<", "a\nb", "-", "? x", "null", "1:2", "'", "\ufeffx", "x\u2028y", "\u0085", "\x7f",
	} {
		k := report.Keys{Named: true, Keys: []report.ListedKey{{Key: key}, {Key: "user-1"}}}
		var out, asJSON strings.Builder
		if err := (&outputForm{form: "json"}).show(&asJSON, k, nil); err != nil || !json.Valid([]byte(asJSON.String())) {
			t.Errorf("json of %q: %v", key, err)
		}
		if err := (&outputForm{form: "yaml"}).show(&out, k, nil); err != nil {
			t.Errorf("-o yaml of %q: %v", key, err)
			continue
		}
		var back struct{ Keys []struct{ Key string } }
		if err := yaml.Unmarshal([]byte(out.String()), &back); err != nil || len(back.Keys) != 2 || back.Keys[0].Key != key {
			t.Errorf("%q comes back as %+v: %v\n%s", key, back, err, out.String())
		}
	}
}

// TestTablesAreAligned: a row that ends in empty cells, or has fewer, does not end the columns.
func TestTablesAreAligned(t *testing.T) {
	var out strings.Builder
	(&page{out: &out}).table([]string{"STEP", "FENCE", ""}, [][]string{{"received", "", "for node-1"}, {"queued", "", ""}, {"silent"}, {"delivered", "4194352.17", ""}, {"answered", "4194352.17", "done"}})
	const want = "STEP       FENCE\nreceived               for node-1\nqueued\nsilent\ndelivered  4194352.17\nanswered   4194352.17  done\n"
	if out.String() != want {
		t.Errorf("the table is\n%swant\n%s", out.String(), want)
	}
}

// TestYAMLForOlderParsers: what they would take for another type is quoted. Position 3:39 is a number of base 60 to PyYAML.
func TestYAMLForOlderParsers(t *testing.T) {
	var out strings.Builder
	if err := writeYAML(&out, []string{"3:39", "1:162", "-1:30:00.5", "on", "No", "y", "node-1", "7:4412:-1:-1"}); err != nil {
		t.Fatal(err)
	}
	const want = "- \"3:39\"\n- 1:162\n- \"-1:30:00.5\"\n- \"on\"\n- \"No\"\n- \"y\"\n- node-1\n- 7:4412:-1:-1\n"
	if out.String() != want {
		t.Errorf("the YAML is\n%swant\n%s", out.String(), want)
	}
}

// fullDisk fails as a file on a full disk does.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

var errFull = errors.New("no space left on device")

// TestOutputThatCannotBeWritten: no form of output passes over an error.
func TestOutputThatCannotBeWritten(t *testing.T) {
	for _, form := range []string{"table", "json", "yaml"} {
		err := (&outputForm{form: form}).show(fullDisk{}, []string{"a"}, func(p *page) { p.table([]string{"A"}, [][]string{{"a"}}) })
		if !errors.Is(err, errFull) && (form != "yaml" || err == nil || !strings.Contains(err.Error(), errFull.Error())) {
			t.Errorf("%s: %v, want %v", form, err, errFull)
		}
	}
}

// TestOneLineThatCannotBeWritten: nor does a command that prints a line or a file.
func TestOneLineThatCannotBeWritten(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "router.yaml"), lintable)
	for name, args := range map[string][]string{
		"example":     {"config", "example"},
		"lint":        {"config", "lint", "--config", file},
		"drain":       {"drain", answering(t, 200, "drained")},
		"forget-done": {"forget-done", answering(t, 200, "forgot 0 ids")},
	} {
		root := rootCommand()
		root.SetArgs(args)
		root.SetOut(fullDisk{})
		root.SetErr(fullDisk{})
		if err := root.ExecuteContext(t.Context()); !errors.Is(err, errFull) {
			t.Errorf("%s: %v, want %v", name, err, errFull)
		}
	}
}

// lintable is a file of settings without an error.
const lintable = `node: {group: g, name: a, advertise_ip: 127.0.0.1}
pulsar: {topics: [t], subscription: s}
peer: {insecure: true}
gossip: {insecure: true}
`

// TestTokenGoesToTheRouterAlone: a proxy that the environment names would read the admin token.
func TestTokenGoesToTheRouterAlone(t *testing.T) {
	client, err := (&asker{}).client(config.AdminTLS{})
	if err != nil {
		t.Fatal(err)
	}
	if transport, ok := client.Transport.(*http.Transport); !ok || transport.Proxy != nil {
		t.Errorf("the transport %+v goes by a proxy of the environment", client.Transport)
	}
}

// TestReasonsAreAList: scripts that count the reasons of a member whose exclusivity is kept find a list without any.
func TestReasonsAreAList(t *testing.T) {
	text, err := json.Marshal(judge(report.Members{Members: []report.Member{{Name: "a", Status: &report.Status{Mode: "strict"}}}}))
	if err != nil || !strings.Contains(string(text), `"reasons":[`) {
		t.Errorf("%s, %v", text, err)
	}
}

// TestActOfTheEmptyKey: the column of a key is never blank.
func TestActOfTheEmptyKey(t *testing.T) {
	var out strings.Builder
	actsTable(&page{out: &out}, act.Acts{Acts: []act.Shown{{Act: "hold", By: "ann"}}})
	if !strings.Contains(out.String(), ` hold  ""  `) {
		t.Errorf("the page is\n%s", out.String())
	}
}

// TestWatchInJSON: an error of a round does not come between the objects of a program that reads them.
func TestWatchInJSON(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out strings.Builder
	fault := stopsAfter{rounds: 1, stop: cancel}
	root := rootCommand()
	root.SetArgs([]string{"members", "-o", "json", "--watch=1h", answering(t, 500, "broken")})
	root.SetOut(&out)
	root.SetErr(&fault)
	if err := root.ExecuteContext(ctx); err != nil {
		t.Fatal(err)
	}
	if out.String() != "" || !strings.Contains(fault.String(), "router: broken") {
		t.Errorf("the output is %q, and the error output %q", out.String(), fault.String())
	}
}
