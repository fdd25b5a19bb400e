package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/testing/eventually"
	"github.com/ringfence/router/ring"
)

// testReports: every member reports the location of each key, the reason of its wait, and the status
// of all other members, from their own reports.
func testReports(t *testing.T, g *testGroup) {
	members := g.await(t, "router-1", "three members that are listed and have a lease", func(m report.Members) bool {
		return len(m.Members) == 3 && !slices.ContainsFunc(m.Members, func(one report.Member) bool {
			return one.Status == nil || !one.Status.Listed || one.Status.LeaseSeconds <= 0 || one.Status.Table != m.Table
		})
	})
	sum := 0
	for _, m := range members.Members {
		sum += m.Partitions
		if verdict, reasons := m.Status.Verdict(); verdict != report.Kept {
			t.Errorf("exclusivity of %s is %s: %v", m.Name, verdict, reasons)
		}
		if m.Status.Member != m.Name || m.Status.Table != members.Table || !m.Status.Listed || m.Status.LeaseSeconds <= 0 {
			t.Errorf("%s reports %+v", m.Name, m.Status)
		}
		if want := map[bool]string{true: report.ReachSelf, false: "alive"}[m.Name == "router-1"]; m.Reach != want {
			t.Errorf("reach of %s is %s, want %s", m.Name, m.Reach, want)
		}
	}
	if sum != ring.Partitions || members.Member != "router-1" || members.Epoch == "0:0" || members.Position == "0:0" {
		t.Errorf("%d partitions, by %+v", sum, members.View)
	}

	seesPage(t, g, "router-1")

	const key = "a key/with?all&of ä\x00\xff"
	g.publish(t, key)
	g.publish(t, key)
	path := "/v1/keys?key=" + url.QueryEscape(key)
	var got report.Key
	eventually.NoError(t, eventually.Most, "one event runs and one waits", func() error {
		got = report.Key{}
		g.get(t, "router-0", path, &got)
		if len(got.At) == 0 || got.At[0].Wait != "handler" || got.At[0].Queued != 1 {
			return fmt.Errorf("the key is at %+v", got)
		}
		held := 0
		for _, at := range got.At { // asked one after the other: one may have been asked before it sent an event
			for _, h := range at.Held {
				held += h.Events
				if h.Place != "sent" || h.With != got.Owner {
					return fmt.Errorf("%s holds %+v, want it sent to %s", at.Member, h, got.Owner)
				}
			}
		}
		if held != 2 {
			return fmt.Errorf("%d events are held; the key is at %+v", held, got)
		}
		return nil
	})
	if owner := got.At[0]; owner.Member != got.Owner || owner.Gate != "open" || owner.Event == "" || owner.Worker == 0 || got.Token == 0 {
		t.Errorf("the key is at %+v", got)
	}

	for _, name := range []string{"router-0", "router-2"} {
		var seen report.Partitions
		g.get(t, "router-0", "/v1/partitions?member="+name, &seen)
		if p := seen.Partitions[got.Partition]; seen.Member != name || p.Owner != got.Owner || p.Token != got.Token ||
			(p.Gate == "open") != (name == got.Owner) || (p.Running == 1) != (name == got.Owner) {
			t.Errorf("%s sees partition %d as %+v", name, got.Partition, p)
		}
	}
}

func TestReportsOfNothing(t *testing.T) {
	t.Parallel()
	g := startGroup(t, func(context.Context, *client.Event) error { return nil }, "router-0")
	for path, want := range map[string]struct {
		code int
		says string
	}{
		"/v1/keys?which=best":                       {http.StatusBadRequest, "want waiting, running, failing, hot or inverted"},
		"/v1/keys?key=" + strings.Repeat("k", 5000): {http.StatusBadRequest, "5000 bytes, want at most 4096"},
		"/v1/status?member=router-7":                {http.StatusNotFound, `unknown member "router-7": there are router-0`},
		"/v1/partitions?member=router-7":            {http.StatusNotFound, `unknown member "router-7"`},
	} {
		response, err := http.Get("http://" + g.members["router-0"].admin + path)
		if err != nil {
			t.Fatal(err)
		}
		var body strings.Builder
		_ = response.Write(&body)
		response.Body.Close()
		if response.StatusCode != want.code || !strings.Contains(body.String(), want.says) {
			t.Errorf("%.40s: %s, want %d and %q", path, body.String(), want.code, want.says)
		}
	}
	var idle report.Key
	g.get(t, "router-0", "/v1/keys?key=", &idle) // a key may be empty
	if len(idle.At) != 1 || idle.At[0].Wait != report.WaitsForNothing {
		t.Errorf("a key without events is %+v", idle)
	}
}

// TestKeysNamesMembersWithoutApplication: without an application events wait at the broker, and no list of keys has them.
func TestKeysNamesMembersWithoutApplication(t *testing.T) {
	const want = "no application is connected to router-0, router-2: without one a member takes no events from the broker"
	out, says, code := cli(t, "keys", answering(t, 200, `{"without_application":["router-0","router-2"]}`))
	if code != exitOK || !strings.Contains(out, want) {
		t.Errorf("exit code %d, %s; it says\n%s\nwant %s", code, says, out, want)
	}
}

// A failed attempt does not read as if it was tried again after the time that its handler took.
func TestHistoryWordsOfAFailure(t *testing.T) {
	t.Parallel()
	if got, want := stepWords(&report.Step{Kind: report.StepAnswered, Result: event.ResultRetry.String(), Seconds: 0.004}), "failed after 4ms"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestHistorySaysWhyItIsEmpty: an event that is no message id is a wrong command line, and a history without steps says so.
func TestHistorySaysWhyItIsEmpty(t *testing.T) {
	steps := []report.Step{{Kind: report.StepReceived, Event: "7:4412:-1:-1"}, {Kind: report.StepQueued, Event: "call:00000000000000ab"}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(report.History{Steps: steps})
	}))
	defer server.Close()
	nothing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(report.History{})
	}))
	defer nothing.Close()
	if out, _, _ := cli(t, "history", "user-1", "--admin="+nothing.URL); !strings.Contains(out, "no member remembers an event of this key\n\n") || strings.Contains(out, "TIME") {
		t.Errorf("of an unknown key:\n%s", out)
	}
	for id, want := range map[string]struct {
		code int
		says string
	}{
		"7:4412:-1":             {exitUsage, "--event"}, // as Pulsar's own tools show it
		"(7,4412,-1,-1)":        {exitUsage, "--event"},
		"7:4413:-1:-1":          {0, "no member remembers event 7:4413:-1:-1 of this key"},
		"7:4412:-1:-1":          {0, "received"},
		"call:00000000000000ab": {0, "queued"},
	} {
		out, says, code := cli(t, "history", "user-1", "--event", id, "--admin="+server.URL)
		if code != want.code || !strings.Contains(out+says, want.says) {
			t.Errorf("%s: exit code %d, want %d: %q", id, code, want.code, out+says)
		}
	}
}
