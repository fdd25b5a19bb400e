package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/mailbox"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/testing/eventually"
)

// publishAll sends events, one for each key.
func (g *testGroup) publishAll(t *testing.T, keys ...string) {
	t.Helper()
	messages := make([]membroker.Message, len(keys))
	for i, key := range keys {
		messages[i] = membroker.Message{Key: key, Payload: []byte("{}")}
	}
	if _, err := g.broker.Publish(t.Context(), "persistent://public/default/orders", messages); err != nil {
		t.Fatal(err)
	}
}

// repeated is a key, n times.
func repeated(key string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = key
	}
	return keys
}

// TestKeys: among 10,000 keys that get events all the time, one that is stuck, one that fails
// again and again and one that gets more events than its handler can do are each found by the
// one command `router keys`, and named to callers with the token alone.
func TestKeys(t *testing.T) {
	t.Parallel()
	const keys = 10_000
	const token = "0123456789abcdef"
	g := newTestGroup()
	g.environ = []string{"RINGFENCE__ADMIN__TOKEN=" + token}
	var handled atomic.Int64
	over := make(chan struct{})
	handle := func(ctx context.Context, e *client.Event) error {
		select {
		case <-over:
			return nil
		default:
		}
		switch e.Key {
		case "stuck":
			return waitFor(ctx, over)
		case "poison":
			return errors.New("it cannot be read")
		case "hot":
			time.Sleep(100 * time.Millisecond)
		}
		handled.Add(1)
		return nil
	}
	g.startAll(t, handle, "router-0", "router-1", "router-2")
	t.Cleanup(func() { close(over) })

	var ordinary []string
	for i := range keys {
		ordinary = append(ordinary, fmt.Sprint("user-", i))
	}
	g.publishAll(t, "stuck", "stuck", "poison", "poison")
	g.publishAll(t, repeated("hot", 300)...)
	g.publishAll(t, ordinary...)

	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	admin, tokenFile := "--admin="+g.members["router-1"].admin, "--token-file="+file
	list := func(t *testing.T, args ...string) (k report.Keys) {
		t.Helper()
		out, says, code := answered(t, append([]string{"keys", "-o", "json", admin, tokenFile}, args...)...)
		if code != exitOK {
			t.Fatalf("exit code %d: %s", code, says)
		}
		if err := json.Unmarshal([]byte(out), &k); err != nil {
			t.Fatal(err)
		}
		return k
	}
	eventually.NoError(t, eventually.Most, "the three keys are the first of the list", func() error {
		g.publishAll(t, ordinary[:100]...)
		g.publishAll(t, repeated("hot", 10)...) // it must not come to its end before all keys are handled
		worst := list(t)
		found := map[string]report.ListedKey{}
		for _, k := range worst.Keys[:min(3, len(worst.Keys))] {
			found[k.Key] = k
		}
		stuck, poison, hot := found["stuck"], found["poison"], found["hot"]
		if handled.Load() < keys || stuck.Wait != "handler" || stuck.Behind != 1 || poison.Failures == 0 || hot.Behind < 10 {
			return fmt.Errorf("%d events were handled, the first keys are %+v", handled.Load(), found)
		}
		for _, k := range found {
			if k.At != k.Owner || k.Event == "" || k.Age <= 0 || k.EventSeconds < k.Age || len(k.Hash) != 16 {
				return fmt.Errorf("it is listed as %+v", k)
			}
		}
		return nil
	})
	if failing := list(t, "--failing", "--limit", "1"); len(failing.Keys) != 1 || failing.Keys[0].Key != "poison" {
		t.Errorf("failing keys: %+v", failing)
	}
	for _, k := range list(t, "--running").Keys {
		if k.Wait != "handler" {
			t.Errorf("a running key: %+v", k)
		}
	}

	t.Run("table", func(t *testing.T) {
		out, says, code := answered(t, "keys", admin, tokenFile)
		if code != exitOK {
			t.Fatalf("exit code %d: %s", code, says)
		}
		for _, want := range []string{"KEY ", "PARTITION", "OWNER", "WAITS FOR", "BEHIND", "\nstuck ", "the handler (worker ", "\nhot ", "\npoison ", "as router-1 has it"} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is missing in\n%s", want, out)
			}
		}
	})
	t.Run("hot", func(t *testing.T) {
		eventually.NoError(t, eventually.Most, "the stuck key is always busy, and the hot key comes next", func() error {
			g.publishAll(t, repeated("hot", 10)...)
			k := list(t, "--hot", "--limit", "2")
			if len(k.Keys) != 2 || k.Keys[0].Key != "stuck" || k.Keys[0].Busy < 0.9 || k.Keys[1].Key != "hot" || k.Keys[1].Busy < 0.5 || k.Keys[1].Rate <= 0 {
				return fmt.Errorf("hot keys: %+v", k)
			}
			return nil
		})
		out, says, code := answered(t, "keys", "--hot", admin, tokenFile)
		for _, want := range []string{"EVENTS/S", "BUSY", "OUTGROWS ITS TURN", "\nhot "} {
			if code != exitOK || !strings.Contains(out, want) {
				t.Errorf("exit code %d %s: %q is missing in\n%s", code, says, want, out)
			}
		}
	})
	t.Run("inverted", func(t *testing.T) {
		eventually.NoError(t, eventually.Most, "events that several members receive begin out of order", func() error {
			for range 60 { // in entries of their own, which go to all members
				g.publish(t, "shuffled")
			}
			for _, k := range list(t, "--inverted").Keys {
				if k.Key == "shuffled" && k.Order != nil && k.Order.Inversions > 0 && len(k.Order.Causes) > 0 {
					return nil
				}
			}
			return errors.New("no inversion is listed")
		})
		out, says, code := answered(t, "keys", "--inverted", admin, tokenFile)
		for _, want := range []string{"INVERSIONS", "CAUSES", "LAST", "\nshuffled ", " ago"} {
			if code != exitOK || !strings.Contains(out, want) {
				t.Errorf("exit code %d %s: %q is missing in\n%s", code, says, want, out)
			}
		}
	})
	t.Run("without the token", func(t *testing.T) {
		if out, says, code := cli(t, "keys", admin); code != exitFailed || !strings.Contains(says, "requires a token") {
			t.Errorf("exit code %d: %s\n%s", code, says, out)
		}
	})
	t.Run("wrong", func(t *testing.T) {
		for _, args := range [][]string{{"--failing", "--running"}, {"--failing", "--hot"}, {"--hot", "--inverted"}, {"--limit", "0"}, {"--limit", "1001"}, {"--watch=1ms"}} {
			if _, says, code := cli(t, append([]string{"keys", admin, tokenFile}, args...)...); code != exitUsage {
				t.Errorf("%v: exit code %d: %s", args, code, says)
			}
		}
	})
	t.Run("watch", func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		out := &stopsAfter{rounds: 3, stop: stop}
		root := rootCommand()
		root.SetArgs([]string{"keys", "--watch=500ms", "--limit=1", admin, tokenFile})
		root.SetOut(out)
		if err := root.ExecuteContext(ctx); err != nil || strings.Count(out.String(), "WAITS FOR") != 3 {
			t.Errorf("%v, and it shows\n%s", err, out)
		}
	})
}

// TestKeysWithoutAToken: keys are hashes to callers without a token, also where none is set.
func TestKeysWithoutAToken(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	g := startGroup(t, func(ctx context.Context, _ *client.Event) error { return waitFor(ctx, over) }, "router-0")
	t.Cleanup(func() { close(over) })
	g.publish(t, "secret")
	eventually.NoError(t, eventually.Most, "the key is listed by its hash", func() error {
		out, says, code := cli(t, "keys", "--admin="+g.members["router-0"].admin)
		if code != exitOK || strings.Contains(out, "secret") {
			t.Fatalf("exit code %d: %s\n%s", code, says, out)
		}
		if !strings.Contains(out, "HASH") || !strings.Contains(out, "the handler (worker 1)") || !strings.Contains(out, "keys are shown as hashes") {
			return errors.New(out)
		}
		return nil
	})
}

// waitFor is a handler that does nothing until over is closed.
func waitFor(ctx context.Context, over <-chan struct{}) error {
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stopsAfter stops a command that has written so many times.
type stopsAfter struct {
	bytes.Buffer

	rounds int
	stop   func()
}

func (s *stopsAfter) Write(text []byte) (int, error) {
	if s.rounds--; s.rounds == 0 {
		s.stop()
	}
	return s.Buffer.Write(text)
}

// TestHelpOfLocateHasEachReason: in the words of the output, and by its name in JSON.
func TestHelpOfLocateHasEachReason(t *testing.T) {
	help := locateCommand().Long
	reasons := 0
	for wait := mailbox.WaitNothing + 1; wait.String() != "unknown"; wait++ {
		reasons++
		line := regexp.MustCompile(`(?m)^  (.*\S)  +` + wait.String() + `  +\S`).FindStringSubmatch(help)
		if reason := (&report.ListedKey{Wait: wait.String()}).Reason(); line == nil || !strings.HasPrefix(reason, line[1]) {
			t.Errorf("the help says %q of %s, the output %q", line, wait, reason)
		}
	}
	if lines := strings.Count(help, "\n  "); lines != reasons+1 { // one is of two lines
		t.Errorf("the help has %d lines of reasons, want %d", lines, reasons+1)
	}
}
