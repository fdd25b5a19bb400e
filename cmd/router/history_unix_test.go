//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/devtools/procgroup"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/testing/eventually"
)

// newPods returns the pods of the members of one group.
func newPods(t *testing.T, names ...string) map[string]*pod {
	t.Helper()
	first := newPod(t, "")
	pods := map[string]*pod{first.name: first}
	gossip := []string{first.gossip}
	for _, name := range names {
		if name == first.name {
			continue
		}
		ports, dir := freePorts(t, 3), t.TempDir()
		p := &pod{
			t: t, broker: first.broker, address: first.address, name: name, gossip: procgroup.Loopback(ports[0]),
			admin: procgroup.Loopback(ports[1]), file: filepath.Join(dir, "router.yaml"),
		}
		p.listen, p.endpoint = procgroup.AppAddress(filepath.Join(dir, "app.sock"), ports[2])
		pods[name], gossip = p, append(gossip, p.gossip)
	}
	for _, p := range pods {
		p.seeds = gossip
		p.writeSettings("")
	}
	return pods
}

// ask puts a member's answer into answer, and returns an error if it gives none.
func (p *pod) ask(path string, answer any) error {
	status, body := p.get(path)
	if status != http.StatusOK {
		return fmt.Errorf("%s: %d %s", path, status, body)
	}
	return json.Unmarshal([]byte(body), answer)
}

// TestHistoryOverAKillAndAMove: an event is with the handler of its owner when that is killed,
// with that of the next owner when its partition moves on as planned, and done by the third.
// `router history` tells all of it that a living member knows, in order: the receipt, each move
// with its token, each delivery with a greater fence than the one before, and the end.
func TestHistoryOverAKillAndAMove(t *testing.T) {
	t.Parallel()
	const key = "alice"
	pods := newPods(t, "pod-0", "pod-1", "pod-2")
	first := pods["pod-0"]
	var mu sync.Mutex
	deliveries := 0
	started := make(chan string, 10) // the member at which a delivery began
	moved := make(chan struct{})     // closed when the partition has moved away from the second owner
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var apps sync.WaitGroup
	t.Cleanup(func() {
		stop()
		apps.Wait()
	})
	for name, p := range pods {
		p.startSidecar()
		apps.Go(func() {
			err := client.Run(ctx, p.endpoint, func(ctx context.Context, _ *client.Event) error {
				mu.Lock()
				deliveries++
				last := deliveries == 3
				mu.Unlock()
				started <- name
				if last {
					return nil
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-moved:
					return errors.New("it does not work any more")
				}
			}, client.WithLogger(slog.New(slog.DiscardHandler)))
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("application of %s: %v", name, err)
			}
		})
	}
	eventually.NoError(t, eventually.Most, "all members own something", func() error {
		var m report.Members
		if err := first.ask("/v1/members", &m); err != nil {
			return err
		}
		for _, one := range m.Members {
			if one.Status == nil || one.Partitions == 0 || one.Status.Gates.Open != one.Partitions || len(m.Members) < len(pods) {
				return fmt.Errorf("the group is %+v", m)
			}
		}
		return nil
	})
	if _, err := first.broker.Publish(t.Context(), topicOfPod, []membroker.Message{{Key: key, Payload: []byte("{}")}}); err != nil {
		t.Fatal(err)
	}
	killed := <-started
	first.signal(pods[killed].sidecar, syscall.SIGKILL)
	drained := <-started
	if drained == killed {
		t.Fatalf("%s was killed and goes on", killed)
	}
	if status, body := pods[drained].get("/drain"); status != http.StatusOK && status != http.StatusAccepted {
		t.Fatalf("/drain: %d %s", status, body)
	}
	var at report.Key
	eventually.NoError(t, eventually.Most, "the partition moves on", func() error {
		if err := pods[drained].ask("/v1/keys?key="+key, &at); err != nil {
			return err
		}
		if at.Owner == drained {
			return fmt.Errorf("the key is at %+v", at)
		}
		return nil
	})
	close(moved)
	last := <-started
	first.settled()
	if status, body := pods[drained].get("/undrain?wait=30s"); status != http.StatusOK && status != http.StatusAccepted {
		t.Fatalf("/undrain: %d %s", status, body)
	}
	var h report.History
	eventually.NoError(t, eventually.Most, "the member that was drained is back and tells what it knows", func() error {
		h = report.History{}
		if err := pods[last].ask("/v1/history?key="+key, &h); err != nil {
			return err
		}
		for _, r := range h.Reach {
			if r.Member == drained {
				return nil
			}
		}
		return fmt.Errorf("%s does not tell: %+v", drained, h)
	})
	told, _ := json.MarshalIndent(h, "", " ")
	next := 0
	find := func(what string, is func(s *report.Step) bool) *report.Step {
		for i := next; i < len(h.Steps); i++ {
			if is(&h.Steps[i]) {
				next = i
				return &h.Steps[i]
			}
		}
		t.Fatalf("%s is missing, after step %d of\n%s", what, next, told)
		return nil
	}
	is := func(kind, member string) func(*report.Step) bool {
		return func(s *report.Step) bool { return s.Kind == kind && s.Member == member && s.Event != "" }
	}
	moves := func(from string) func(*report.Step) bool {
		return func(s *report.Step) bool { return s.Kind == report.StepMoved && s.Event == "" && s.From == from }
	}
	taken := find("the move away from the killed member", moves(killed))
	find("the mailbox of the second owner", is(report.StepQueued, drained))
	second := find("the delivery at the second owner", is(report.StepDelivered, drained))
	handed := find("the planned move", moves(drained))
	find("the answer of the second owner", is(report.StepAnswered, drained))
	find("the event's move", is(report.StepMoved, drained))
	find("the mailbox of the third owner", is(report.StepQueued, last))
	third := find("the delivery at the third owner", is(report.StepDelivered, last))
	from := next
	answer := find("its answer", is(report.StepAnswered, last))
	next = from // members' clocks differ by some microseconds, which is longer than the way home
	end := find("the end", func(s *report.Step) bool { return s.Kind == report.StepSettled && s.Result == "acked" })
	if taken.To != drained || handed.To != last || taken.Token >= handed.Token || answer.Result != "done" || end.Event != second.Event {
		t.Errorf("moves %+v and %+v, answer %+v, end %+v", taken, handed, answer, end)
	}
	before, err := event.ParseFence(second.Fence)
	after, err2 := event.ParseFence(third.Fence)
	if err != nil || err2 != nil || !before.Before(after) || before.Token != taken.Token || after.Token != handed.Token {
		t.Errorf("the fences are %q and %q", second.Fence, third.Fence)
	}
	next = 0
	find("the receipt", func(s *report.Step) bool { return s.Kind == report.StepReceived && s.Event == end.Event })

	out, says, code := answered(t, "history", key, "--admin="+pods[last].admin, "--event", end.Event)
	if owner := "owner      (" + last + "|" + drained + "), "; !regexp.MustCompile(owner).MatchString(out) { // the drained member may have it again
		t.Errorf("no %q in\n%s", owner, out)
	}
	for _, want := range []string{"partition  ", "TIME (UTC)", "received", "from " + killed + " to " + drained, "from " + drained + " to " + last, "done after ", "acked after ", "remembered: "} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("exit code %d %s: %q is missing in\n%s", code, says, want, out)
		}
	}
	eventually.NoError(t, eventually.Most, "by its hash it has the same history", func() error { // the key may move and members become known between two questions
		byName, _, _ := answered(t, "history", key, "--admin="+pods[last].admin, "--event", end.Event)
		byHash, says, code := answered(t, "history", h.Hash, "--hash", "--admin="+pods[last].admin, "--event", end.Event)
		if strings.Count(byHash, "\n") != strings.Count(byName, "\n") || code != exitOK {
			return fmt.Errorf("it is, with exit code %d %s,\n%s\nand by its name\n%s", code, says, byHash, byName)
		}
		return nil
	})

	var r report.Rollouts
	out, says, code = answered(t, "rollout", "-o", "json", "--admin="+pods[last].admin)
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK || len(r.Rollouts) != 1 {
		t.Fatalf("exit code %d %s, %v:\n%s", code, says, err, out)
	}
	seen := map[string]bool{}
	for _, m := range r.Rollouts[0].Moves {
		killedNow := strings.Contains(m.Reason, "silent "+killed) || strings.Contains(m.Reason, "unreachable "+killed)
		left := strings.Contains(m.Reason, "leave "+drained)
		seen["kill"], seen["leave"] = seen["kill"] || killedNow, seen["leave"] || left
		if killedNow && (!slices.Equal(m.Unknown, []string{killed}) || m.Pause < 0.5 || m.Partitions == 0) {
			t.Errorf("the move after the kill is %+v", m)
		}
		if left && (len(m.Unknown) > 0 || m.Answered+m.Cut != 1 || m.Partitions == 0) {
			t.Errorf("the planned move is %+v", m)
		}
	}
	if !seen["kill"] || !seen["leave"] {
		t.Errorf("no move of %s, killed, or %s, drained:\n%s", killed, drained, out)
	}
	out, says, code = answered(t, "rollout", "--last=3", "--admin="+pods[last].admin)
	for _, want := range []string{"rollout of ", "PAUSE", "leave " + drained, killed + " ", "was gone", "what the handlers of " + killed + " did when its partitions moved is not known"} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("exit code %d %s: %q is missing in\n%s", code, says, want, out)
		}
	}
	if _, _, code := cli(t, "rollout", "--last=0", "--admin="+pods[last].admin); code != exitUsage {
		t.Errorf("--last=0: exit code %d", code)
	}
}
