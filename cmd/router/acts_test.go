package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/testing/eventually"
)

// TestActsOfAGroup: the commands that act on a key, at any member of its group.
func TestActsOfAGroup(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	g := startGroup(t, func(context.Context, *client.Event) error {
		ran.Add(1)
		return nil
	}, "router-0", "router-1")
	const key = "a key/with?all&of ä\x00\xff"
	const encoded = "YSBrZXkvd2l0aD9hbGwmb2Ygw6QA/w=="
	run := func(member string, args ...string) (string, string, int) {
		t.Helper()
		return cli(t, append(args, "--admin="+g.members[member].admin)...)
	}
	good := func(member string, args ...string) string {
		t.Helper()
		out, says, code := answered(t, append(args, "--admin="+g.members[member].admin)...)
		if code != exitOK {
			t.Fatalf("%v: exit code %d: %s\n%s", args, code, says, out)
		}
		return out
	}
	if _, says, code := run("router-0", "hold", key); code != exitUsage || !strings.Contains(says, "--reason is missing") {
		t.Errorf("a hold without a reason: %d %s", code, says)
	}
	if _, says, code := run("router-0", "hold", key, "--reason", "r", "--for", "1000h"); code != exitFailed || !strings.Contains(says, "acts.hold_for_max") {
		t.Errorf("a long hold: %d %s", code, says)
	}
	for member, args := range map[string][]string{"router-0": {key}, "router-1": {"--base64", encoded}} { // of whom one does not own the key
		args = append([]string{"hold", "--reason", "wrong totals", "--by", "alice", "--for", "30m"}, args...)
		eventually.NoError(t, eventually.Most, "the owner knows the hold", func() error { // on a busy machine it takes more than one command
			out, says, code := run(member, args...)
			if code != exitOK || !strings.HasPrefix(out, "held until 20") || !strings.Contains(out, `by alice because "wrong totals"`) || !strings.Contains(out, "no event of it waits or runs here; gate open") {
				return fmt.Errorf("%s: exit code %d: %s\n%s", member, code, says, out)
			}
			return nil
		})
	}
	g.publish(t, key)
	g.publish(t, "another key")
	eventually.True(t, "the other key goes on", func() bool { return ran.Load() == 1 })
	eventually.NoError(t, eventually.Most, "locate says who holds the key", func() error {
		out := good("router-1", "locate", key)
		for _, want := range []string{"waits for its release, for ", "held until ", ` by alice because "wrong totals", since `} {
			if !strings.Contains(out, want) {
				return fmt.Errorf("%q is missing in\n%s", want, out)
			}
		}
		return nil
	})
	if table := good("router-0", "acts"); !strings.Contains(table, "base64 "+encoded) || !strings.Contains(table, "alice") || strings.Contains(table, "\x00") {
		t.Errorf("acts lists\n%s", table)
	}
	var done act.Done
	if err := json.Unmarshal([]byte(good("router-1", "release", key, "--reason", "fixed", "-o", "json")), &done); err != nil || done.Result != act.Released || done.Act.By == "" {
		t.Errorf("the release is %+v (%v)", done, err)
	}
	eventually.True(t, "the held event runs", func() bool { return ran.Load() == 2 })
	if out := good("router-0", "release", key, "--reason", "again"); out != "the key was not held; nothing has changed\n" {
		t.Errorf("another release: %s", out)
	}
	eventually.NoError(t, eventually.Most, "the other member has the whole trail", func() error {
		var acts act.Acts
		g.get(t, "router-1", "/v1/acts", &acts)
		var trail []string
		for _, one := range acts.Acts {
			trail = append(trail, one.Act+": "+one.Reason)
			if !strings.Contains(one.Via, ", asked from 127.0.0.1:") {
				t.Errorf("taken via %q", one.Via)
			}
		}
		if got := strings.Join(slices.Compact(trail), "; "); got != "release: again; release: fixed; hold: wrong totals" {
			return fmt.Errorf("the trail is %s", got)
		}
		return nil
	})
}

// TestSkipCommand: the command at any member ends the event that runs, and says what became of it; repeated, it ends no other one.
func TestSkipCommand(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	g := startGroup(t, func(ctx context.Context, e *client.Event) error {
		ran.Add(1)
		if string(e.Payload) == "poison" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}, "router-0", "router-1")
	const key = "a key"
	run := func(member string, args ...string) (string, string, int) {
		t.Helper()
		return cli(t, append(args, "--admin="+g.members[member].admin)...)
	}
	if _, says, code := run("router-0", "skip", key); code != exitUsage || !strings.Contains(says, "--reason is missing") {
		t.Errorf("a skip without a reason: %d %s", code, says)
	}
	if _, says, code := run("router-0", "skip", key, "--reason", "r", "--event", "1:2"); code != exitUsage || !strings.Contains(says, "--event") {
		t.Errorf("a skip of no message id: %d %s", code, says)
	}
	if _, says, code := run("router-0", "skip", key, "--reason", "r"); code != exitFailed || !strings.Contains(says, "nothing to skip") {
		t.Errorf("a skip of a key without events: %d %s", code, says)
	}
	for i, payload := range []string{"poison", "good"} { // one after the other: two routers may receive them the other way round
		if _, err := g.broker.Publish(t.Context(), "persistent://public/default/orders", []membroker.Message{{Key: key, Payload: []byte(payload)}}); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			eventually.True(t, "the event runs", func() bool { return ran.Load() == 1 })
		}
	}
	var first act.Done
	eventually.NoError(t, eventually.Most, "the event is skipped", func() error { // on a busy machine it takes more than one command
		out, says, code := run("router-0", "skip", key, "--reason", "poison pill", "--by", "alice", "-o", "json")
		if code != exitOK {
			return fmt.Errorf("exit code %d: %s\n%s", code, says, out)
		}
		if err := json.Unmarshal([]byte(out), &first); err != nil || first.Act.End != "dead_letter" {
			return fmt.Errorf("%+v: %w", first, errors.Join(err, errors.New("no end yet")))
		}
		return nil
	})
	eventually.True(t, "the next one runs", func() bool { return ran.Load() == 2 })
	eventually.NoError(t, eventually.Most, "a second command skips nothing", func() error {
		out, says, code := run("router-1", "skip", key, "--reason", "again")
		for _, want := range []string{"a skip of this key is in effect already; nothing was done", "event " + first.Act.Event + " went to the dead letter topic; skipped by alice because \"poison pill\", until 20"} {
			if code != exitOK || !strings.Contains(out, want) {
				return fmt.Errorf("exit code %d, %q is missing: %s\n%s", code, want, says, out)
			}
		}
		return nil
	})
	for _, member := range []string{"router-0", "router-1"} {
		eventually.NoError(t, eventually.Most, "acts lists the skip and its end", func() error {
			out, _, _ := run(member, "acts")
			rows := strings.Split(out, "\n")
			if len(rows) < 2 || !strings.Contains(rows[0], "EVENT") || !strings.Contains(rows[1], first.Act.Event) || !strings.Contains(rows[1], "dead_letter") || strings.Count(out, "poison pill") != 1 {
				return fmt.Errorf("it says\n%s", out)
			}
			return nil
		})
	}
	if n := ran.Load(); n != 2 {
		t.Errorf("%d handlers ran, want 2", n)
	}
}

// TestOlderMembersAreNamed: who skips an event learns which members would run it.
func TestOlderMembersAreNamed(t *testing.T) {
	skips := 0
	got := withoutSkips(report.Members{Members: []report.Member{
		{Name: "new", Status: &report.Status{Mode: "strict", Acts: &report.Acts{Skips: &skips}}},
		{Name: "old", Status: &report.Status{Mode: "strict", Acts: &report.Acts{}}},
		{Name: "off", Status: &report.Status{Mode: "strict"}},
	}})
	if len(got) != 2 || !strings.HasPrefix(got[0], "off takes no acts") || !strings.HasPrefix(got[1], "old does not know skips") {
		t.Errorf("named are %q", got)
	}
}

// TestHoldIsNotAnOlderOne: a key that is held already is known to be held again only once its owner tells of the new hold.
func TestHoldIsNotAnOlderOne(t *testing.T) {
	t.Parallel()
	older := time.Date(2026, 11, 28, 9, 0, 0, 0, time.UTC)
	ours := older.Add(time.Hour)
	since := []time.Time{older, older, ours}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/members" {
			_, _ = w.Write([]byte("{}"))
			return
		}
		answer, err := json.Marshal(report.Key{At: []report.KeyAt{{Hold: &report.Hold{Since: since[0]}}}})
		if err != nil {
			t.Error(err)
		}
		since = since[min(1, len(since)-1):]
		_, _ = w.Write(answer)
	}))
	defer server.Close()
	held := heldKey{Done: act.Done{Act: act.Shown{At: ours}}}
	known, err := held.find(t.Context(), &asker{address: server.URL, settings: &settings(t).Config}, "alice")
	if err != nil || !known || !held.State.At[0].Hold.Since.Equal(ours) {
		t.Errorf("known %v, the hold of %v, %v, want the one of %v", known, held.State.At[0].Hold.Since, err, ours)
	}
}

// TestHoldEndsBeforeTheRoundsOfAnEvent: no hold is so long that an event of it becomes a dead letter by being copied.
func TestHoldEndsBeforeTheRoundsOfAnEvent(t *testing.T) {
	cfg := config.Default()
	if got := holdMax(cfg); got < cfg.Acts.HoldForMax {
		t.Errorf("by the defaults a hold lasts at most %v, less than acts.hold_for_max", got)
	}
	cfg.Pulsar.Spill.RoundsMax, cfg.Pulsar.Spill.DelayMax = 10, time.Minute
	if got := holdMax(cfg); got != 5*time.Minute {
		t.Errorf("with ten rounds of a minute a hold lasts at most %v, want 5m", got)
	}
	cfg.Pulsar.Spill.RoundsMax, cfg.Pulsar.Spill.DelayMax = 1<<31-1, 24*365*time.Hour
	if got := holdMax(cfg); got != act.DurationMax {
		t.Errorf("with endless rounds a hold lasts at most %v", got)
	}
}

// TestHoldNamesMembersWithoutActs: who holds a key learns which members would run it, and exits with 1 if its owner does.
func TestHoldNamesMembersWithoutActs(t *testing.T) {
	t.Parallel()
	g := newTestGroup()
	handle := func(context.Context, *client.Event) error { return nil }
	g.start(t, "router-0", handle)
	g.acts = nil // of the next one
	g.start(t, "router-1", handle)
	g.await(t, "router-0", "two members own something", func(m report.Members) bool {
		return len(m.Members) == 2 && m.Members[0].Partitions > 0 && m.Members[1].Partitions > 0
	})
	known, unknown := "", ""
	for i := 0; known == "" || unknown == ""; i++ {
		var k report.Key
		name := fmt.Sprintf("key-%d", i)
		g.get(t, "router-0", "/v1/keys?key="+url.QueryEscape(name), &k)
		if k.Owner == "router-0" {
			known = name
		} else {
			unknown = name
		}
		time.Sleep(100 * time.Millisecond) // questions about keys are limited
	}
	for key, want := range map[string]int{known: exitOK, unknown: exitFailed} {
		// On a busy machine a member may not answer in time, which the command says.
		eventually.NoError(t, eventually.Most, "hold names the other member", func() error {
			out, says, code := cli(t, "hold", key, "--reason", "r", "--admin="+g.members["router-0"].admin)
			if code != want || !strings.Contains(out, "router-1 takes no acts") {
				return fmt.Errorf("exit code %d, want %d: %s\n%s", code, want, says, out)
			}
			return nil
		})
	}
	eventually.NoError(t, eventually.Most, "members says who takes no acts", func() error {
		if out, _, _ := cli(t, "members", "--admin="+g.members["router-0"].admin); !strings.Contains(out, "router-1 takes no acts") {
			return fmt.Errorf("it says\n%s", out)
		}
		return nil
	})
	if _, says, code := cli(t, "hold", known, "--reason", "r", "--admin="+g.members["router-1"].admin); code != exitFailed || !strings.Contains(says, "takes no acts on keys") {
		t.Errorf("a hold at it: %d %s", code, says)
	}
}
