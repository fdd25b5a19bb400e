package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/testing/eventually"
)

// parked returns the message ids of the originals of the letters that the parking topic has ever got, ascending by their marks.
func parked(t *testing.T, topic string) []string {
	t.Helper()
	reader, err := pulsartest.Client(t).CreateReader(pulsar.ReaderOptions{Topic: topic + "-e2e-PARKED", StartMessageID: pulsar.EarliestMessageID()})
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	type letter struct{ fence, id string }
	var letters []letter
	for reader.HasNext() {
		ctx, cancel := context.WithTimeout(t.Context(), eventually.Most)
		m, err := reader.Next(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		if mark := m.Properties()["ringfence-parked"]; mark != "" {
			letters = append(letters, letter{mark[33:], m.Properties()["ringfence-message-id"]})
		}
	}
	slices.SortFunc(letters, func(a, b letter) int {
		if a.fence < b.fence {
			return -1
		}
		return 1
	})
	var ids []string
	for _, l := range letters {
		ids = append(ids, l.id)
	}
	return ids
}

// TestParkOverAKill: the events of a parked key leave their owner, and come back in their order before all later ones, although the owner is
// killed while the key is parked, and the next owner while the letters come back. Another key does not wait.
func TestParkOverAKill(t *testing.T) {
	t.Parallel()
	topic := pulsartest.Topic(t, 0)
	c := newCluster(t, "message_key", 0, topic)
	members := map[string]*member{"a": c.start("a"), "b": c.start("b"), "d": c.start("d"), "e": c.start("e")}
	for _, m := range members {
		c.ready(m)
	}
	there := func() *member {
		for _, name := range []string{"a", "b", "d", "e"} {
			if m := members[name]; m != nil {
				return m
			}
		}
		return nil
	}
	var where report.Key
	locate := func(what string, ok func(report.KeyAt) bool) {
		t.Helper()
		eventually.NoError(t, 2*time.Minute, what, func() error {
			where = report.Key{}
			if err := json.Unmarshal([]byte(c.command(there(), "locate", "ann", "-o", "json")), &where); err != nil {
				t.Fatal(err)
			}
			if at := where.At[0]; at.Error != "" || !ok(at) {
				return fmt.Errorf("the key is at %+v", where)
			}
			return nil
		})
	}
	one := func(key string, asked task) string {
		return publish(t, topic, func(int) string { return key }, []task{asked})[0]
	}
	kill := func() {
		c.killMember(members[where.Owner])
		delete(members, where.Owner)
	}
	others := []string{one("bob", task{})}
	// Some events run until the test has seen what it waits for.
	gate := func(name string) (file string, open func()) {
		file = filepath.Join(c.dir, name)
		return file, func() {
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	untilParked, endFirst := gate("parked")
	untilKilled, endLetter := gate("killed")

	// One runs, and is to be tried again; two wait.
	names := []string{one("ann", task{Gate: untilParked, Fails: 1})}
	locate("the first event runs", func(at report.KeyAt) bool { return at.Wait == "handler" })
	for i := range 2 {
		names = append(names, one("ann", task{Works: 300 * time.Millisecond}))
		locate("the next event waits", func(at report.KeyAt) bool { return at.Queued == i+1 })
	}
	c.command(there(), "park", "ann", "--reason", "wrong totals", "--by", "alice")
	endFirst()
	inTopic := func(what string) {
		t.Helper()
		eventually.NoError(t, eventually.Most, what, func() error {
			if got := parked(t, topic); !slices.Equal(got, names) {
				return fmt.Errorf("the parking topic has %v, want %v", got, names)
			}
			return nil
		})
	}
	inTopic("the events before the park are in the parking topic")
	for i := range 3 {
		asked := task{Works: 300 * time.Millisecond}
		if i == 0 {
			asked = task{Gate: untilKilled}
		}
		names = append(names, one("ann", asked))
		inTopic("the next event is in the parking topic")
	}
	locate("the key has an owner", func(at report.KeyAt) bool { return at.Wait == "nothing" && where.Owner != "" })
	kill()
	others = append(others, one("bob", task{}))
	for range 3 {
		names = append(names, one("ann", task{Works: 300 * time.Millisecond, Fails: 1, After: 200 * time.Millisecond}))
		inTopic("the next event is in the parking topic, by the next owner")
	}
	if got := len(c.handlings()); got > 1+len(others) {
		t.Errorf("%d handlings, while the key was parked", got)
	}
	c.command(there(), "unpark", "ann", "--reason", "totals are right", "--by", "alice")
	var later []string
	for range 4 {
		later = append(later, one("ann", task{}))
	}
	others = append(others, one("bob", task{}))
	locate("letters come back", func(at report.KeyAt) bool { return at.Park != nil && at.Park.Unparking && at.Park.Letters >= 2 })
	kill()
	endLetter()
	others = append(others, one("bob", task{}))

	eventually.NoError(t, 2*time.Minute, "the trail tells the end", func() error {
		var acts act.Acts
		if err := json.Unmarshal([]byte(c.command(there(), "acts", "-o", "json")), &acts); err != nil {
			t.Fatal(err)
		}
		if len(acts.Acts) != 2 {
			return fmt.Errorf("the trail is %+v", acts)
		}
		back, away := acts.Acts[0], acts.Acts[1]
		if away.Act != "park" || away.Reason != "wrong totals" || away.Active || back.Act != "unpark" || back.Reason != "totals are right" || back.By != "alice" || back.End != "empty" || back.Active {
			return fmt.Errorf("the trail is %+v", acts)
		}
		return nil
	})
	c.settled()
	c.check(slices.Concat(names, later, others))
	done, failed := map[string]int{}, map[string]int{}
	var order []string
	for _, h := range c.handlings() {
		switch {
		case h.outcome == journal.Failed:
			failed[h.event]++
		case h.outcome == journal.Done && h.key == "ann":
			if done[h.event]++; done[h.event] == 1 {
				order = append(order, h.event)
			}
		}
	}
	if n := len(names); len(order) != n+len(later) || !slices.Equal(order[:n], names) {
		t.Errorf("the letters were done in the order %v, want %v, and then %v", order, names, later)
	}
	again := 0
	for event, n := range done {
		again += n - 1
		if slices.Contains(later, event) && n != 1 {
			t.Errorf("event %s, which came during the unpark, was done %d times", event, n)
		}
	}
	if again > 1 { // the one whose letter the killed owner had not acked
		t.Errorf("%d letters were done again: %v", again, done)
	}
	if failed[names[0]] != 1 {
		t.Errorf("the first event failed %d times: its count is lost", failed[names[0]])
	}
	if s := pulsartest.Stats(t, topic+"-e2e-PARKED", "ringfence"); s.Backlog != 0 {
		t.Error(errors.New("letters are left in the parking topic"), s)
	}
}
