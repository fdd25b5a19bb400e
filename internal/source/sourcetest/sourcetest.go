// Package sourcetest is the contract between a source and its sink, as a test suite that
// runs against any broker: [Run] takes a [Broker] and checks that sources on it hand on
// every event, settle each one once, and rely only on the guarantees of a stock SHARED
// subscription.
//
// [Member] is a running source with a sink that records events; other tests use it too.
package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/testing/eventually"
)

// Message is an event as a producer sends it.
type Message struct {
	Key         string
	OrderingKey string
	Payload     string
	Properties  map[string]string
	EventTime   int64 // Unix milliseconds
}

// Broker is the suite's interface to a broker.
type Broker interface {
	// Topic makes a topic for this test only; with 0 partitions it is not partitioned.
	Topic(t testing.TB, partitions int) string
	// Publish sends one entry: a batch, or, if it is one message, a message of its own.
	Publish(t testing.TB, topic string, messages ...Message)
	// Source makes a source that has not run yet.
	Source(t testing.TB, cfg source.Config) *source.Source
	// Unload makes the broker redeliver the unacked events of a topic, as it does when the
	// topic moves to another broker. It returns when this has begun.
	Unload(t testing.TB, topic string)
	// Occupy attaches an exclusive consumer to a subscription, for the rest of the test.
	Occupy(t testing.TB, topic, subscription string)
	// Unacked returns the number of events or entries of the subscription that the broker still
	// keeps: 0 when all are acked.
	Unacked(t testing.TB, topic, subscription string) int
}

// patience bounds every wait.
const patience = eventually.Most

// Subscription is the subscription that [Config] names.
const Subscription = "ringfence"

// Config returns a configuration for a topic, with short times.
func Config(topics ...string) source.Config {
	cfg := source.DefaultConfig()
	cfg.Topics = topics
	cfg.Subscription = Subscription
	return cfg
}

// NewMetrics returns metrics in a registry of their own.
func NewMetrics() *source.Metrics { return source.NewMetrics(prometheus.NewRegistry()) }

// Quiet is a log that discards everything.
func Quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func awaitAcked(t testing.TB, b Broker, topic string) {
	t.Helper()
	eventually.True(t, "the broker keeps nothing of "+topic, func() bool { return b.Unacked(t, topic, Subscription) == 0 })
}

// batch makes n messages with payloads prefix-0 … and keys.
func batch(prefix string, n int) []Message {
	messages := make([]Message, n)
	for i := range messages {
		messages[i] = Message{Key: fmt.Sprintf("key-%d", i), Payload: fmt.Sprintf("%s-%d", prefix, i)}
	}
	return messages
}

func payloads(events []event.Message) []string {
	list := make([]string, len(events))
	for i, e := range events {
		list[i] = string(e.Event.Payload)
	}
	slices.Sort(list)
	return list
}

// Run is the suite.
func Run(t *testing.T, b Broker) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, Broker)
	}{
		{"EveryEventComesOnceAndIsAcked", everyEventComesOnceAndIsAcked},
		{"OneUnsettledEventBringsItsEntryBackWhole", oneUnsettledEventBringsItsEntryBackWhole},
		{"AnEntryThatComesAgainIsJoined", anEntryThatComesAgainIsJoined},
		{"TwoConsumersShare", twoConsumersShare},
		{"Partitions", partitions},
		{"Ends", ends},
		{"SeveralTopics", severalTopics},
		{"RetryThenDeadLetter", retryThenDeadLetter},
		{"Timers", timers},
		{"AnotherTypeIsRefused", anotherTypeIsRefused},
		{"DrainWaitsForSettlement", drainWaitsForSettlement},
		{"ReadingStopsAtTheBound", readingStopsAtTheBound},
		{"TheFirstVerdictCounts", theFirstVerdictCounts},
		{"RawKeysAndTimes", rawKeysAndTimes},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, b) })
	}
}

func everyEventComesOnceAndIsAcked(t *testing.T, b Broker) {
	topic := b.Topic(t, 0)
	var want []string
	for i := range 10 {
		messages := batch(fmt.Sprintf("batch%d", i), 20)
		b.Publish(t, topic, messages...)
		single := batch(fmt.Sprintf("single%d", i), 1)
		b.Publish(t, topic, single...)
		for _, m := range append(messages, single...) {
			want = append(want, m.Payload)
		}
	}
	slices.Sort(want)
	m := Start(t, b.Source(t, Config(topic)))
	got := m.Take(len(want))
	if have := payloads(got); !slices.Equal(have, want) {
		t.Fatalf("received %v, want %v", have, want)
	}
	ids, handles := map[event.MessageID]bool{}, map[event.Handle]bool{}
	for _, e := range got {
		ids[e.Event.ID], handles[e.Event.Handle] = true, true
		if e.Event.Topic != source.FullTopicName(topic) || e.Event.ID.TopicPartition != -1 || e.Event.Redelivery != 0 {
			t.Fatalf("event %v of %q, redelivery %d", e.Event.ID, e.Event.Topic, e.Event.Redelivery)
		}
	}
	if len(ids) != len(want) || len(handles) != len(want) {
		t.Errorf("%d message ids and %d handles for %d events", len(ids), len(handles), len(want))
	}
	if s := m.Stats(); s.Unsettled != len(want) || s.Entries != 20 || s.Allowance != len(want) {
		t.Errorf("stats = %+v; want %d unsettled in 20 entries", s, len(want))
	}
	m.Done(got...)
	awaitAcked(t, b, topic)
	if s := m.Stats(); s.Entries != 0 || s.Bytes != 0 || s.Allowance != 0 || s.Pinned != 0 || s.PinnedEntries != 0 {
		t.Errorf("stats after all = %+v, want zeroes", s)
	}
	if m.Left() != 0 {
		t.Errorf("%d more events came", m.Left())
	}
}

func oneUnsettledEventBringsItsEntryBackWhole(t *testing.T, b Broker) {
	topic := b.Topic(t, 0)
	b.Publish(t, topic, batch("b", 10)...)
	first := Start(t, b.Source(t, Config(topic)))
	got := first.Take(10)
	first.Done(got[:4]...)
	first.Done(got[5:]...)
	if s := first.Stats(); s.Unsettled != 1 || s.Entries != 1 || s.PinnedEntries != 1 || s.Pinned != 9 || s.Allowance != 10 {
		t.Errorf("stats = %+v; want 1 unsettled event pinning 9, and an allowance of 10", s)
	}
	first.Stop()

	second := Start(t, b.Source(t, Config(topic)))
	again := second.Take(10)
	if have, want := payloads(again), payloads(got); !slices.Equal(have, want) {
		t.Fatalf("redelivered %v, want all of %v", have, want)
	}
	for _, e := range again {
		if !slices.ContainsFunc(got, func(o event.Message) bool { return o.Event.ID == e.Event.ID }) {
			t.Errorf("event %v was not known by this id before", e.Event.ID)
		}
	}
	second.Done(again...)
	awaitAcked(t, b, topic)
}

// anEntryThatComesAgainIsJoined: when the broker unloads a topic it redelivers unacked events
// while they are still open here. All of them are joined, none is handed on twice, and the acks
// that are sent afterwards count.
func anEntryThatComesAgainIsJoined(t *testing.T, b Broker) {
	topic := b.Topic(t, 0)
	for i := range 3 {
		b.Publish(t, topic, batch(fmt.Sprint(i), 50)...)
	}
	m := Start(t, b.Source(t, Config(topic)))
	got := m.Take(150)
	m.Done(got[:20]...)
	b.Unload(t, topic)
	b.Publish(t, topic, Message{Payload: "after"}) // arrives behind the redelivered events
	after := m.Take(1)
	if string(after[0].Event.Payload) != "after" {
		t.Errorf("event %v was handed on twice", after[0].Event.ID)
	}
	if s := m.Stats(); s.Unsettled != 131 || s.Entries != 4 || s.Allowance != 151 {
		t.Errorf("stats = %+v; want 131 unsettled in 4 entries", s)
	}
	m.Done(after...)
	m.Done(got[20:]...)
	awaitAcked(t, b, topic)
	if m.Left() != 0 {
		t.Errorf("%d events were handed on twice", m.Left())
	}
}

func twoConsumersShare(t *testing.T, b Broker) {
	topic := b.Topic(t, 0)
	one, two := Start(t, b.Source(t, Config(topic))), Start(t, b.Source(t, Config(topic)))
	entries := 0
	publish := func() {
		b.Publish(t, topic, batch(fmt.Sprint(entries), 1)...)
		entries++
	}
	eventually.True(t, "both get some", func() bool { // on a busy machine the first may take all before the second asks
		publish()
		return one.Left() > 0 && two.Left() > 0
	})
	for range 200 {
		publish()
	}
	eventually.True(t, "all events came to one of two", func() bool { return one.Left()+two.Left() == entries })
	var all []event.Message
	for _, m := range []*Member{one, two} {
		got := m.Take(m.Left())
		m.Done(got...)
		all = append(all, got...)
	}
	if distinct := slices.Compact(payloads(all)); len(distinct) != entries {
		t.Errorf("%d different events came, want %d", len(distinct), entries)
	}
	awaitAcked(t, b, topic)
}

func partitions(t *testing.T, b Broker) {
	topic := b.Topic(t, 3)
	m := Start(t, b.Source(t, Config(topic)))
	const n = 60
	for i := range n {
		b.Publish(t, topic, Message{Key: fmt.Sprint(i), Payload: fmt.Sprint(i)})
	}
	got := m.Take(n)
	seen := map[int32]bool{}
	for _, e := range got {
		seen[e.Event.ID.TopicPartition] = true
		if e.Event.Topic != source.FullTopicName(topic) {
			t.Errorf("topic = %q, want it without the partition", e.Event.Topic)
		}
	}
	if len(seen) != 3 || !seen[0] || !seen[1] || !seen[2] {
		t.Errorf("topic partitions = %v, want 0, 1 and 2", seen)
	}
	m.Done(got...)
	awaitAcked(t, b, topic)
}

// ends: a source learns from the broker where its topic partitions end, even if other consumers
// have received the events. A failed query is an error.
func ends(t *testing.T, b Broker) {
	topic := b.Topic(t, 2)
	m := Start(t, b.Source(t, Config(topic)))
	const n = 20
	for i := range n {
		b.Publish(t, topic, Message{Key: fmt.Sprint(i), Payload: fmt.Sprint(i)})
	}
	got := m.Take(n)
	m.Done(got...)
	want := map[int32]source.EntryID{}
	for _, e := range got {
		id := source.EntryID{Ledger: e.Event.ID.Ledger, Entry: e.Event.ID.Entry}
		if last, ok := want[e.Event.ID.TopicPartition]; !ok || last.Ledger < id.Ledger || last.Ledger == id.Ledger && last.Entry < id.Entry {
			want[e.Event.ID.TopicPartition] = id
		}
	}
	told, known, err := m.Ends(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !known {
		t.Log("this broker cannot be asked")
		return
	}
	found := 0
	for _, e := range told {
		if e.Topic != source.FullTopicName(topic) {
			continue // the retry topic
		}
		if found++; e.Last != want[e.Partition] {
			t.Errorf("topic partition %d ends at %v, want %v", e.Partition, e.Last, want[e.Partition])
		}
	}
	if found != 2 {
		t.Errorf("told %v, want the ends of 2 topic partitions of %s", told, topic)
	}
	awaitAcked(t, b, topic)
}

func severalTopics(t *testing.T, b Broker) {
	first, second := b.Topic(t, 0), b.Topic(t, 2)
	m := Start(t, b.Source(t, Config(first, second)))
	b.Publish(t, first, batch("first", 5)...)
	b.Publish(t, second, Message{Key: "k", Payload: "second"})
	got := m.Take(6)
	byTopic := map[string]int{}
	for _, e := range got {
		byTopic[e.Event.Topic]++
	}
	if byTopic[source.FullTopicName(first)] != 5 || byTopic[source.FullTopicName(second)] != 1 {
		t.Errorf("events by topic = %v", byTopic)
	}
	m.Done(got...)
	awaitAcked(t, b, first)
	awaitAcked(t, b, second)
}

func retryThenDeadLetter(t *testing.T, b Broker) {
	topic := b.Topic(t, 0)
	sent := Message{
		Key: "user-1", OrderingKey: "order-1", Payload: "p", EventTime: 1_700_000_000_123,
		Properties: map[string]string{"a": "1", "b": "2"},
	}
	b.Publish(t, topic, append([]Message{sent}, batch("other", 2)...)...)
	m := Start(t, b.Source(t, Config(topic)))
	got := m.Take(3)
	original := got[0]
	const delay = 1500 * time.Millisecond
	started := clock.Now()
	m.Settle(nil, []event.Verdict{{
		Handle: original.Event.Handle, Kind: event.Failed,
		Detail: &event.Detail{Delay: delay, Attempts: 3, Reason: "third error", FirstError: "first error"},
	}})
	m.Done(got[1:]...)
	awaitAcked(t, b, topic)

	retried := m.Take(1)[0]
	if waited := clock.Now().Sub(started); waited < delay-100*time.Millisecond {
		t.Errorf("the copy came after %v, want %v", waited, delay)
	}
	want := *original.Event
	want.Handle, want.Attempts, want.Round = retried.Event.Handle, 3, 1
	want.FirstError, want.LastError, want.Redelivery = "first error", "third error", retried.Event.Redelivery
	if !reflect.DeepEqual(ordered(*retried.Event), ordered(want)) || retried.Key != sent.Key || retried.OrderingKey != sent.OrderingKey {
		t.Errorf("the copy came with the keys %q and %q as %+v, want %+v", retried.Key, retried.OrderingKey, retried.Event, want)
	}

	m.Settle(nil, []event.Verdict{{
		Handle: retried.Event.Handle, Kind: event.Rejected, Detail: &event.Detail{Attempts: 4, Reason: "no use", Owner: "node-7"},
	}})
	retryTopic := source.RetryTopicName([]string{topic}, Subscription)
	awaitAcked(t, b, retryTopic)
	checkDeadLetter(t, b, topic, sent, original.Event)
}

// timers: an event that a member publishes comes back when it is due, not before; when it fails, its copy in the retry topic still is that event; and
// one that nobody has settled comes to another member.
func timers(t *testing.T, b Broker) {
	topic := b.Topic(t, 0)
	cfg := Config(topic)
	m := Start(t, b.Source(t, cfg))
	<-m.Ready()
	const after = 2500 * time.Millisecond
	sent := event.Sent{Key: "user-\xff", Due: wall() + after.Milliseconds(), Name: "expire"}
	id := event.SentMessageID(sent.Key, "test", topic)
	answered := make(chan error, 1)
	err := m.Send(&event.Event{
		ID: id, Key: sent.Key, Payload: []byte("p"), PublishTime: wall(), Properties: sent.Properties([]event.Property{{Name: "a", Value: "1"}}),
	}, func(err error) { answered <- err })
	if err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	check := func(what string, e *event.Event) {
		t.Helper()
		if now := wall(); now < sent.Due {
			t.Errorf("%s: %d ms before its time", what, sent.Due-now)
		}
		got, err := event.ParseSent(e.Properties)
		if err != nil || got.Key != sent.Key || got.Name != sent.Name || e.ID != id || string(e.Payload) != "p" {
			t.Errorf("%s: %+v (%v)", what, e, err)
		}
		if value, _ := e.Property("a"); value != "1" {
			t.Errorf("%s: its own property is %q", what, value)
		}
	}
	first := m.Take(1)[0]
	check("a timer", first.Event)
	if late := wall() - sent.Due; late > time.Minute.Milliseconds() { // on a busy machine it takes some seconds
		t.Errorf("a timer comes %d ms after its time", late)
	}
	m.Settle(nil, []event.Verdict{{Handle: first.Event.Handle, Kind: event.Failed, Detail: &event.Detail{Delay: time.Millisecond, Attempts: 1, Reason: "no"}}})
	second := m.Take(1)[0]
	check("one that has failed", second.Event)
	awaitAcked(t, b, cfg.TimerTopic()) // the copy may come before its receipt; without the ack the event would come twice after the stop
	m.Stop()
	other := Start(t, b.Source(t, cfg))
	third := other.Take(1)[0]
	check("one that nobody has settled", third.Event)
	other.Done(third)
	awaitAcked(t, b, source.RetryTopicName([]string{topic}, Subscription))
	awaitAcked(t, b, cfg.TimerTopic())
}

func wall() int64 {
	return time.Now().UnixMilli() //nolint:forbidigo // timers follow the wall clock
}

func checkDeadLetter(t *testing.T, b Broker, topic string, sent Message, original *event.Event) {
	t.Helper()
	cfg := Config(source.DeadLetterTopicName([]string{topic}, Subscription))
	cfg.Subscription = cfg.DeadLetterSubscription
	reader := Start(t, b.Source(t, cfg))
	letter := reader.Take(1)[0]
	wantProperties := map[string]string{
		"a": "1", "b": "2",
		source.PropertyMessageID:   original.ID.String(),
		source.PropertyTopic:       original.Topic,
		source.PropertyPublishTime: fmt.Sprint(original.PublishTime),
		source.PropertyAttempts:    "4",
		source.PropertyRound:       "1",
		source.PropertyFirstError:  "first error",
		source.PropertyLastError:   "no use",
		source.PropertyReason:      "no use",
		source.PropertyOwner:       "node-7",
	}
	properties := map[string]string{}
	for _, p := range letter.Event.Properties {
		properties[p.Name] = p.Value
	}
	if !maps.Equal(properties, wantProperties) {
		t.Errorf("dead letter properties = %v, want %v", properties, wantProperties)
	}
	if letter.Key != sent.Key || letter.OrderingKey != sent.OrderingKey ||
		string(letter.Event.Payload) != sent.Payload || letter.Event.EventTime != sent.EventTime {
		t.Errorf("dead letter = %q, %q, %q, %d; want it as it was sent: %+v",
			letter.Key, letter.OrderingKey, letter.Event.Payload, letter.Event.EventTime, sent)
	}
	reader.Done(letter)
}

// ordered returns an event with its properties in the order of their names.
func ordered(e event.Event) event.Event {
	e.Properties = slices.SortedFunc(slices.Values(e.Properties), func(a, b event.Property) int { return strings.Compare(a.Name, b.Name) })
	return e
}

func anotherTypeIsRefused(t *testing.T, b Broker) {
	topic := b.Topic(t, 0)
	b.Occupy(t, topic, Subscription)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := b.Source(t, Config(topic)).Run(ctx, Sink(func(context.Context, []event.Message) {}))
	if !errors.Is(err, source.ErrSubscriptionType) || !strings.Contains(err.Error(), Subscription) || !strings.Contains(err.Error(), topic) {
		t.Errorf("Run = %v, want ErrSubscriptionType with the names of subscription and topic", err)
	}
}

func drainWaitsForSettlement(t *testing.T, b Broker) {
	topic := b.Topic(t, 0)
	b.Publish(t, topic, batch("b", 5)...)
	first := Start(t, b.Source(t, Config(topic)))
	got := first.Take(5)
	hurried, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := first.Drain(hurried); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "5 events") {
		t.Errorf("Drain with open events = %v, want a timeout that names 5 events", err)
	}
	drained := make(chan error, 1)
	go func() { drained <- first.Drain(t.Context()) }()
	first.Done(got[1:]...)
	select {
	case err := <-drained:
		t.Fatalf("Drain = %v with an event open", err)
	case <-time.After(50 * time.Millisecond):
	}
	first.Done(got[0])
	select {
	case err := <-drained:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("Drain did not return")
	}
	// Later events are for other consumers, once this one is closed.
	b.Publish(t, topic, batch("later", 3)...)
	first.Stop()
	second := Start(t, b.Source(t, Config(topic)))
	later := second.Take(3)
	if first.Left() != 0 || !slices.Equal(payloads(later), []string{"later-0", "later-1", "later-2"}) {
		t.Errorf("after Drain the first got %d events and the second %v", first.Left(), payloads(later))
	}
	second.Done(later...)
	awaitAcked(t, b, topic)
}

func readingStopsAtTheBound(t *testing.T, b Broker) {
	topic := b.Topic(t, 0)
	cfg := Config(topic)
	cfg.UnsettledMax, cfg.BatchMax, cfg.ReceiverQueueMax = 20, 5, 10
	m := Start(t, b.Source(t, cfg))
	const n = 100
	for i := range n {
		b.Publish(t, topic, batch(fmt.Sprint(i), 1)...)
	}
	eventually.True(t, "20 events", func() bool { return m.Left() >= cfg.UnsettledMax })
	time.Sleep(200 * time.Millisecond) // more of them would come now
	if got := m.Stats().Unsettled; got >= cfg.UnsettledMax+cfg.BatchMax {
		t.Errorf("unsettled = %d with a bound of %d", got, cfg.UnsettledMax)
	}
	came := make(map[event.MessageID]bool, n)
	for len(came) < n {
		e := m.Take(1)[0]
		came[e.Event.ID] = true
		m.Done(e)
	}
	// A connection that breaks on a busy machine brings events again, and with a full source they wait in the reader's queue: one that is
	// acked meanwhile is handed on a second time.
	eventually.True(t, "nothing is open, and the broker keeps nothing", func() bool {
		again := m.Take(m.Left())
		for _, e := range again {
			if !came[e.Event.ID] {
				t.Errorf("event %v came beyond the %d that were sent", e.Event.ID, n)
			}
		}
		m.Done(again...)
		return m.Stats().Unsettled == 0 && b.Unacked(t, topic, Subscription) == 0
	})
}

func theFirstVerdictCounts(t *testing.T, b Broker) {
	topic := b.Topic(t, 0)
	b.Publish(t, topic, batch("b", 2)...)
	m := Start(t, b.Source(t, Config(topic)))
	got := m.Take(2)
	m.Done(got[0], got[0])
	m.Settle(nil, []event.Verdict{{Handle: got[0].Event.Handle, Kind: event.Rejected, Detail: &event.Detail{Reason: "too late"}}})
	m.Done(event.Message{Event: &event.Event{Handle: 12345}}) // never given
	m.Done(event.Message{Event: &event.Event{}})
	if got := m.Stats(); got.Unsettled != 1 || got.Pinned != 1 {
		t.Errorf("stats = %+v, want 1 unsettled, 1 pinned", got)
	}
	m.Done(got[1])
	awaitAcked(t, b, topic)
}

func rawKeysAndTimes(t *testing.T, b Broker) {
	topic := b.Topic(t, 0)
	now := time.Now() //nolint:forbidigo // publish times are of the wall clock
	b.Publish(t, topic, Message{Key: "k", OrderingKey: "o", Payload: "x", EventTime: 42, Properties: map[string]string{"p": "v"}})
	b.Publish(t, topic, Message{Payload: ""}, Message{Payload: ""})
	m := Start(t, b.Source(t, Config(topic)))
	got := m.Take(3)
	slices.SortFunc(got, func(a, b event.Message) int { return strings.Compare(b.Key, a.Key) })
	first, second := got[0], got[1]
	if value, _ := first.Event.Property("p"); first.Key != "k" || first.OrderingKey != "o" || first.Event.EventTime != 42 || value != "v" {
		t.Errorf("got %q, %q, %+v", first.Key, first.OrderingKey, first.Event)
	}
	if second.Key != "" || second.OrderingKey != "" || len(second.Event.Payload) != 0 || second.Event.EventTime != 0 || len(second.Event.Properties) != 0 {
		t.Errorf("got %q, %q, %+v; want nothing in it", second.Key, second.OrderingKey, second.Event)
	}
	for _, e := range got {
		if published := time.UnixMilli(e.Event.PublishTime); published.Sub(now).Abs() > time.Minute {
			t.Errorf("published at %v, it is %v", published, now)
		}
	}
	m.Done(got...)
	awaitAcked(t, b, topic)
}
