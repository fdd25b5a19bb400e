package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/testing/eventually"
)

// command runs a command of the router at a member and returns its output.
func (c *cluster) command(m *member, args ...string) string {
	c.t.Helper()
	out, err := exec.CommandContext(c.t.Context(), routerBinary, append(args, "--admin", m.ip+":16653")...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("router %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// TestHoldOutlastsAKill: a key that is on hold waits although its owner is killed, and so does each event that the broker
// delivers again. After the release each of its events is handled once.
func TestHoldOutlastsAKill(t *testing.T) {
	t.Parallel()
	topic := pulsartest.Topic(t, 0)
	c := newCluster(t, "message_key", 0, topic)
	members := map[string]*member{"a": c.start("a"), "b": c.start("b"), "d": c.start("d")}
	for _, m := range members {
		c.ready(m)
	}
	c.command(members["a"], "hold", "ann", "--reason", "a look", "--by", "alice", "--for", "20m")
	var where report.Key
	locate := func(m *member) report.KeyAt {
		where = report.Key{}
		if err := json.Unmarshal([]byte(c.command(m, "locate", "ann", "-o", "json")), &where); err != nil {
			t.Fatal(err)
		}
		return where.At[0]
	}
	const n = 20
	names := publish(t, topic, func(i int) string { return []string{"ann", "bob"}[i%2] }, make([]task, 2*n))
	waits := func(m *member) {
		t.Helper()
		eventually.NoError(t, 2*time.Minute, "all events of the key are on hold at its owner", func() error {
			if at := locate(m); at.Wait != "hold" || at.Queued != n-1 || at.Hold == nil || at.Hold.By != "alice" {
				return fmt.Errorf("the key is at %+v", where)
			}
			return nil
		})
	}
	waits(members["a"])
	owner := members[where.Owner]
	c.killMember(owner)
	delete(members, where.Owner)
	var left []*member
	for _, m := range members {
		left = append(left, m)
	}
	waits(left[0])
	if where.Owner == owner.name {
		t.Fatalf("the killed member still owns the key: %+v", where)
	}
	for _, h := range c.handlings() {
		if slices.Index(names, h.event)%2 == 0 {
			t.Errorf("event %s of the held key was handled", h.event)
		}
	}
	c.command(left[1], "release", "ann", "--reason", "fixed")
	c.settled()
	report := c.check(names)
	if report.Keys != 2 {
		t.Errorf("%d keys were handled", report.Keys)
	}
	done := map[string]int{}
	for _, h := range c.handlings() {
		done[h.event]++
	}
	for i, name := range names {
		if i%2 == 0 && done[name] != 1 {
			t.Errorf("event %s of the held key was handled %d times", name, done[name])
		}
	}
	var acts act.Acts
	if err := json.Unmarshal([]byte(c.command(left[0], "acts", "-o", "json")), &acts); err != nil {
		t.Fatal(err)
	}
	if got := slices.Collect(func(yield func(string) bool) {
		for _, one := range acts.Acts {
			yield(one.Act + " " + one.Key + ": " + one.Reason)
		}
	}); !slices.Equal(got, []string{"release ann: fixed", "hold ann: a look"}) || acts.Error != "" {
		t.Errorf("the trail is %q (%s)", got, acts.Error)
	}
}

// TestSkipOverAKill: an event that never ends is skipped while its owner has just been killed. Whether the next owner runs it already or not,
// it becomes a dead letter, and the key goes on.
func TestSkipOverAKill(t *testing.T) {
	t.Parallel()
	topic := pulsartest.Topic(t, 0)
	c := newCluster(t, "message_key", 0, topic)
	members := map[string]*member{"a": c.start("a"), "b": c.start("b"), "d": c.start("d")}
	for _, m := range members {
		c.ready(m)
	}
	const n = 10
	keyOf := func(i int) string { return []string{"ann", "bob"}[i%2] }
	var where report.Key
	waits := func(queued int) {
		eventually.NoError(t, 2*time.Minute, "the event that never ends runs, and all others of its key wait", func() error {
			where = report.Key{}
			if err := json.Unmarshal([]byte(c.command(members["a"], "locate", "ann", "-o", "json")), &where); err != nil {
				t.Fatal(err)
			}
			if at := where.At[0]; at.Wait != "handler" || at.Queued != queued || at.Seconds < 0.5 {
				return fmt.Errorf("the key is at %+v", where)
			}
			return nil
		})
	}
	names := publish(t, topic, keyOf, []task{{Works: time.Hour}})
	waits(0) // the others come later by the broker, too
	names = append(names, publish(t, topic, func(i int) string { return keyOf(i + 1) }, make([]task, 2*n-1))...)
	waits(n - 1)
	c.killMember(members[where.Owner])
	delete(members, where.Owner)
	var left []*member
	for _, m := range members {
		left = append(left, m)
	}
	// The command exits with 1 if there is no owner yet: what counts is what becomes of the event.
	skip := exec.CommandContext(t.Context(), routerBinary, "skip", "ann", "--event", where.At[0].Event, "--reason", "never ends", "--by", "alice", "--admin", left[0].ip+":16653")
	out, err := skip.CombinedOutput()
	t.Logf("skip: %v\n%s", err, out)
	c.settled()
	letter := deadLetter(t, topic)
	if got := letter.Properties()["ringfence-reason"]; letter.Key() != "ann" || !strings.HasPrefix(got, "skipped by alice: never ends (act ") || letter.Properties()["ringfence-message-id"] != where.At[0].Event {
		t.Errorf("the dead letter is of %q with %v", letter.Key(), letter.Properties())
	}
	done := map[string]int{}
	for _, h := range c.handlings() {
		if h.outcome == journal.Done {
			done[h.event]++
		}
	}
	for i, name := range names {
		switch {
		case keyOf(i) == "ann" && done[name] != min(i, 1):
			t.Errorf("event %d of the key with the skip was done %d times", i, done[name])
		case keyOf(i) == "bob" && done[name] == 0: // what was not acked when the member was killed may be repeated
			t.Errorf("event %d of the other key was not done", i)
		}
	}
	c.check(names[1:])
	eventually.NoError(t, time.Minute, "the trail tells the end", func() error {
		var acts act.Acts
		if err := json.Unmarshal([]byte(c.command(left[1], "acts", "-o", "json")), &acts); err != nil {
			t.Fatal(err)
		}
		if len(acts.Acts) != 1 || acts.Acts[0].Act != "skip" || acts.Acts[0].End != "dead_letter" || acts.Acts[0].Event != where.At[0].Event || acts.Acts[0].Reason != "never ends" {
			return fmt.Errorf("it is %+v", acts)
		}
		return nil
	})
}
