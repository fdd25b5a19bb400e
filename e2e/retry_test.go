package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/devtools/journal"
	"github.com/ringfence/router/internal/testing/eventually"
)

// The retries of these tests: the third failure is final, delays of up to a second are held at
// the owner, and Pulsar redelivers copies up to a second early.
const (
	attemptsMax  = 3
	retryHoldMax = time.Second
	deliverTick  = time.Second
)

var retries = []string{
	"--retry.attempts_max=3", "--retry.retry_hold_max=1s", "--retry.backoff_min=50ms", "--retry.backoff_max=200ms",
}

// handled is one handling, as the journals tell it.
type handled struct {
	event      string
	key        event.Key
	start, end clock.Instant
	outcome    journal.Outcome
}

// handlings reads the journals: all handlings that have ended, in the order of their starts.
func (c *cluster) handlings() []*handled {
	c.t.Helper()
	type name struct {
		file     int
		handling journal.Handling
	}
	var all []*handled
	running := map[name]*handled{}
	err := c.walk(func(s journal.Step) error {
		if s.Outcome == 0 {
			h := &handled{event: s.Event, key: s.Key, start: s.At}
			running[name{s.File, s.Handling}] = h
			all = append(all, h)
			return nil
		}
		h := running[name{s.File, s.Handling}]
		h.end, h.outcome = s.At, s.Outcome
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(h *handled) bool { return h.outcome == 0 })
}

// publish sends one event for each task, in order, and returns their names.
func publish(t *testing.T, topic string, keyOf func(int) string, tasks []task) []string {
	t.Helper()
	client := pulsartest.Client(t)
	partitions, err := client.TopicPartitions(topic)
	if err != nil {
		t.Fatal(err)
	}
	producer, err := client.CreateProducer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	names := make([]string, len(tasks))
	for i, asked := range tasks {
		b, err := json.Marshal(asked)
		if err != nil {
			t.Fatal(err)
		}
		producer.SendAsync(t.Context(), &pulsar.ProducerMessage{Key: keyOf(i), Payload: b},
			func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
				if err != nil {
					t.Errorf("produce: %v", err)
					return
				}
				name := event.MessageID{Ledger: id.LedgerID(), Entry: id.EntryID(), Batch: -1, TopicPartition: -1}
				if partitions[0] != topic {
					name.TopicPartition = id.PartitionIdx()
				}
				names[i] = name.String()
			})
	}
	if err := producer.FlushWithCtx(t.Context()); err != nil {
		t.Fatal(err)
	}
	return names
}

// awaitHandlings waits until so many handlings have ended.
func (c *cluster) awaitHandlings(n int) {
	c.t.Helper()
	eventually.NoError(c.t, eventually.Most, fmt.Sprintf("%d handlings have ended", n), func() error {
		if got := len(c.handlings()); got < n {
			return fmt.Errorf("%d so far", got)
		}
		return nil
	})
}

// TestOrderOfOneKeysRetries: the events of a key are handled in the order of their arrival. An
// event that fails is retried before the next event begins, until it succeeds or is given up.
// Only an event whose delay is too long for the owner lets later events pass, and comes back when
// it is due.
func TestOrderOfOneKeysRetries(t *testing.T) {
	t.Parallel()
	const n, later, latest, poison = 30, 7, 12, 21
	topic := pulsartest.Topic(t, 0)
	c := newCluster(t, "message_key", 0, topic)
	c.more = retries
	tasks := make([]task, n)
	for i := range tasks {
		switch i % 5 {
		case 1:
			tasks[i] = task{Fails: 2, After: 100 * time.Millisecond} // as the application asks
		case 3:
			tasks[i] = task{Fails: 1} // as the router has it
		}
	}
	tasks[later] = task{Fails: 1, After: 2 * time.Second}
	tasks[latest] = task{Fails: 2, After: 2500 * time.Millisecond}
	tasks[poison] = task{Fails: attemptsMax, After: 100 * time.Millisecond}
	names := publish(t, topic, func(int) string { return "ann" }, tasks)

	// The expectations for events that never leave the owner, and for all.
	var order []string
	total := 0
	aside := func(i int) bool { return i == later || i == latest }
	for i, asked := range tasks {
		times := int(min(asked.Fails+1, attemptsMax))
		total += times
		if !aside(i) {
			order = append(order, slices.Repeat(names[i:i+1], times)...)
		}
	}
	c.ready(c.start("a"))
	c.awaitHandlings(total)
	c.settled()
	c.check(slices.Delete(slices.Clone(names), poison, poison+1))

	var stayed []string
	all := c.handlings()
	for _, h := range all {
		if h.event != names[later] && h.event != names[latest] {
			stayed = append(stayed, h.event)
		}
	}
	if !slices.Equal(stayed, order) {
		t.Errorf("the order was\n%v, want\n%v", strings.Join(stayed, " "), strings.Join(order, " "))
	}
	wantDelays(t, all, names, tasks)
	wantDeadLetter(t, topic, "ann", attemptsMax)
}

// wantDelays fails the test if an event came back before its time, or was not handled
// as often as it had to be.
func wantDelays(t *testing.T, all []*handled, names []string, tasks []task) {
	t.Helper()
	of := map[string][]*handled{}
	for _, h := range all {
		of[h.event] = append(of[h.event], h)
	}
	for i, name := range names {
		if got, want := len(of[name]), int(min(tasks[i].Fails+1, attemptsMax)); got != want {
			t.Errorf("event %d was handled %d times, want %d", i, got, want)
		}
		least := tasks[i].After
		if least > retryHoldMax {
			least -= deliverTick
		}
		for k := 1; k < len(of[name]); k++ {
			if gap := of[name][k].start.Sub(of[name][k-1].end); gap < least {
				t.Errorf("event %d came back after %v, want %v at least", i, gap, least)
			}
		}
	}
}

// deadLetter returns the first dead letter of the cluster that consumes topic.
func deadLetter(t *testing.T, topic string) pulsar.Message {
	t.Helper()
	dead, err := pulsartest.Client(t).Subscribe(pulsar.ConsumerOptions{
		Topic: topic + "-e2e-DLQ", SubscriptionName: "test", SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	ctx, cancel := context.WithTimeout(t.Context(), eventually.Most)
	defer cancel()
	m, err := dead.Receive(ctx)
	if err != nil {
		t.Fatalf("no dead letter: %v", err)
	}
	return m
}

// wantDeadLetter fails the test unless the first dead letter is of this key, after so
// many attempts.
func wantDeadLetter(t *testing.T, topic, key string, attempts int) {
	t.Helper()
	m := deadLetter(t, topic)
	if m.Key() != key || m.Properties()["ringfence-attempts"] != fmt.Sprint(attempts) {
		t.Errorf("the dead letter is of %q with %v, want of %q with %d attempts", m.Key(), m.Properties(), key, attempts)
	}
}

// TestRetriesKeepOrderOnManyMembers: with several members and topic partitions the order in
// which a key's events reach their owner is the broker's. At the owner the same rule holds: the
// event to be retried is the next of its key.
func TestRetriesKeepOrderOnManyMembers(t *testing.T) {
	t.Parallel()
	const n, keys = 3000, 60
	topic := pulsartest.Topic(t, 4)
	c := newCluster(t, "message_key", 0, topic)
	c.more = retries
	for _, name := range []string{"a", "b", "d"} {
		c.ready(c.start(name))
	}
	tasks := make([]task, n)
	total, short, long := 0, 0, 0
	for i := range tasks {
		switch {
		case i%10 == 3:
			tasks[i] = task{Fails: uint32(1 + i%2), After: 20 * time.Millisecond}
			short++
		case i%100 == 7:
			tasks[i] = task{Fails: 1, After: 2 * time.Second}
			long++
		}
		total += int(tasks[i].Fails) + 1
	}
	var all []*handled
	var names, published []string
	for try := 1; ; try++ {
		before, lapses := len(c.handlings()), c.lapses()
		names = publish(t, topic, func(i int) string { return fmt.Sprint("user-", i%keys) }, tasks)
		published = append(published, names...)
		c.awaitHandlings(before + total)
		c.settled()
		if all = c.handlings()[before:]; c.lapses() == lapses {
			break
		}
		if try == 5 {
			t.Fatalf("in each of %d tries a member has lost its lease", try)
		}
		t.Log("a member has lost its lease: again")
	}
	c.check(published)

	asked := make(map[string]task, n)
	for i, name := range names {
		asked[name] = tasks[i]
	}
	wantDelays(t, all, names, tasks)
	last := map[event.Key]*handled{}
	overtaken := 0
	for _, h := range all {
		before := last[h.key]
		last[h.key] = h
		if before == nil || before.outcome != journal.Failed || before.event == h.event {
			continue
		}
		if after := asked[before.event].After; after <= retryHoldMax {
			t.Errorf("%s, which was to be tried again after %v, was overtaken by %s of its key", before.event, after, h.event)
		} else {
			overtaken++
		}
	}
	if overtaken == 0 {
		t.Errorf("none of %d events that had to step aside was overtaken: this run proved less than it claims", long)
	}
}

// lapses counts how often a member has lost its lease. One that a busy machine keeps from renewing it loses its keys, and their next owners know
// nothing of the retries that waited there.
func (c *cluster) lapses() (n float64) {
	c.t.Helper()
	for _, m := range c.members {
		eventually.NoError(c.t, eventually.Most, m.name+" tells its metrics", func() error {
			lapses, err := c.metric(m, `ringfence_ownership_notes_total\{kind="lease_lapsed"\}`)
			if err == nil {
				n += lapses
			}
			return err
		})
	}
	return n
}
