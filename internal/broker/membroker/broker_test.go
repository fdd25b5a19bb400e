package membroker_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newBroker(change func(*membroker.Config)) *membroker.Broker {
	cfg := membroker.DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	return membroker.New(cfg)
}

func publish(t *testing.T, b *membroker.Broker, topic string, messages ...membroker.Message) membroker.EntryID {
	t.Helper()
	id, err := b.Publish(t.Context(), topic, messages)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func subscribe(t *testing.T, b *membroker.Broker, permits int, topics ...string) membroker.Consumer {
	t.Helper()
	c, err := b.Subscribe(t.Context(), membroker.SubscribeOptions{Subscription: "s", Topics: topics})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	c.Permit(permits)
	return c
}

// drain returns the available entries, without waiting.
func drain(t *testing.T, c membroker.Consumer) []membroker.Entry {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	entries, err := c.Receive(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	return entries
}

func ids(entries []membroker.Entry) string {
	var list []string
	for _, e := range entries {
		list = append(list, fmt.Sprintf("%d:%d/%d", e.ID.Ledger, e.ID.Entry, e.Redelivery))
	}
	return strings.Join(list, " ")
}

func want(t *testing.T, c membroker.Consumer, entries string) {
	t.Helper()
	if got := ids(drain(t, c)); got != entries {
		t.Errorf("got entries %q, want %q (ledger:entry/redelivery)", got, entries)
	}
}

func TestEntriesGoRoundAndCostTheirEvents(t *testing.T) {
	b := newBroker(nil)
	one, two := subscribe(t, b, 3, "t"), subscribe(t, b, 100, "t")
	for range 6 {
		publish(t, b, "t", make([]membroker.Message, 2)...)
	}
	want(t, one, "1:0/0 1:2/0") // 3 permits: 2, and 2 more that overdraw them
	want(t, two, "1:1/0 1:3/0 1:4/0 1:5/0")
	one.Permit(1) // pays the debt only
	publish(t, b, "t", membroker.Message{})
	want(t, one, "")
}

func TestPartialAcksAreForgottenWithTheDelivery(t *testing.T) {
	b := newBroker(nil)
	one := subscribe(t, b, 100, "t")
	id := publish(t, b, "t", make([]membroker.Message, 3)...)
	want(t, one, "1:0/0")
	one.Ack(membroker.Ack{ID: id, Index: 0}, membroker.Ack{ID: id, Index: 1}, membroker.Ack{ID: id, Index: 1})
	if s := b.SubscriptionStats("s"); s.Unacked != 3 || s.Acked != 0 {
		t.Errorf("stats = %+v: a stock broker counts the entry whole", s)
	}
	b.Unload("t")
	want(t, one, "1:0/1")
	one.Ack(membroker.Ack{ID: id, Index: 2})
	if s := b.SubscriptionStats("s"); s.Unacked != 3 {
		t.Errorf("stats = %+v: the acks before the redelivery still count", s)
	}
	one.Ack(membroker.Ack{ID: id, Index: 0}, membroker.Ack{ID: id, Index: 1})
	if s := b.SubscriptionStats("s"); s.Unacked != 0 || s.Acked != 3 || s.Backlog != 0 {
		t.Errorf("stats = %+v, want all acked", s)
	}
}

func TestAClosedConsumerGivesBackBeforeNewEntries(t *testing.T) {
	b := newBroker(nil)
	one := subscribe(t, b, 3, "t")
	for range 4 {
		publish(t, b, "t", membroker.Message{})
	}
	want(t, one, "1:0/0 1:1/0 1:2/0")
	one.Ack(membroker.Ack{ID: membroker.EntryID{Ledger: 1, Entry: 1}, Index: -1})
	one.Close()
	if _, err := one.Receive(t.Context()); !errors.Is(err, membroker.ErrClosed) {
		t.Errorf("Receive after Close = %v", err)
	}
	two := subscribe(t, b, 100, "t")
	want(t, two, "1:0/1 1:2/1 1:3/0")
	// The first one's late ack counts, as in Pulsar: the entry is the subscription's.
	one.Ack(membroker.Ack{ID: membroker.EntryID{Ledger: 1}, Index: -1})
	if s := b.SubscriptionStats("s"); s.Acked != 2 || s.Consumers != 1 {
		t.Errorf("stats = %+v, want 2 acked and 1 consumer", s)
	}
}

func TestAnUnloadedTopicComesAgainBeforeNewEntries(t *testing.T) {
	b := newBroker(nil)
	one, other := subscribe(t, b, 3, "t"), subscribe(t, b, 1, "u")
	for range 4 {
		publish(t, b, "t", membroker.Message{})
	}
	publish(t, b, "u", membroker.Message{})
	want(t, one, "1:0/0 1:1/0 1:2/0")
	want(t, other, "2:0/0")
	one.Ack(membroker.Ack{ID: membroker.EntryID{Ledger: 1, Entry: 1}, Index: -1})
	b.Unload("t")
	one.Permit(100)
	want(t, one, "1:0/1 1:2/1 1:3/0")
	want(t, other, "")
	if s := b.SubscriptionStats("s"); s.Unacked != 4 || s.Acked != 1 || s.Backlog != 0 {
		t.Errorf("stats = %+v, want 4 unacked and 1 acked", s)
	}
}

func TestUnackedBoundsStopDispatch(t *testing.T) {
	b := newBroker(func(c *membroker.Config) { c.UnackedMax, c.SubscriptionUnackedMax = 2, 3 })
	one, two := subscribe(t, b, 100, "t"), subscribe(t, b, 100, "t")
	for range 10 {
		publish(t, b, "t", membroker.Message{})
	}
	want(t, one, "1:0/0 1:2/0")
	want(t, two, "1:1/0") // the subscription's bound
	one.Ack(membroker.Ack{ID: membroker.EntryID{Ledger: 1}, Index: -1})
	if got := ids(drain(t, one)) + ids(drain(t, two)); got != "1:3/0" {
		t.Errorf("an ack let through %q, want one entry", got)
	}
}

func TestDelayedMessagesWaitForTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(nil)
		c := subscribe(t, b, 100, "t")
		start := time.Now()
		at := func(d time.Duration) membroker.Message {
			return membroker.Message{DeliverAt: start.Add(d).UnixMilli()}
		}
		publish(t, b, "t", at(2*time.Second))
		publish(t, b, "t", at(time.Second))
		publish(t, b, "t", membroker.Message{})
		want(t, c, "1:2/0")
		for _, w := range []struct {
			after time.Duration
			entry string
		}{{time.Second, "1:1/0"}, {2 * time.Second, "1:0/0"}} {
			entries, err := c.Receive(t.Context())
			if got := ids(entries); err != nil || got != w.entry || time.Since(start) != w.after {
				t.Errorf("%q came after %v (%v), want %q after %v", got, time.Since(start), err, w.entry, w.after)
			}
		}
		c.Close()
	})
}

func TestSubscriptionsAreApartAndTheFirstSeesWhatIsRetained(t *testing.T) {
	b := newBroker(func(c *membroker.Config) { c.RetainedMax = 2 })
	for range 3 {
		publish(t, b, "t", membroker.Message{})
	}
	first := subscribe(t, b, 100, "t")
	want(t, first, "1:1/0 1:2/0")
	other, err := b.Subscribe(t.Context(), membroker.SubscribeOptions{Subscription: "other", Topics: []string{"t"}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	other.Permit(10)
	publish(t, b, "t", membroker.Message{})
	want(t, first, "1:3/0")
	want(t, other, "1:3/0")
}

func TestTypesDoNotMix(t *testing.T) {
	b := newBroker(nil)
	shared := subscribe(t, b, 1, "t")
	asExclusive := membroker.SubscribeOptions{Subscription: "s", Type: membroker.Exclusive, Topics: []string{"t"}}
	if _, err := b.Subscribe(t.Context(), asExclusive); !errors.Is(err, membroker.ErrSubscriptionType) {
		t.Errorf("Exclusive beside Shared: %v", err)
	}
	shared.Close()
	exclusive, err := b.Subscribe(t.Context(), asExclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer exclusive.Close()
	if _, err := b.Subscribe(t.Context(), asExclusive); !errors.Is(err, membroker.ErrSubscriptionType) {
		t.Errorf("Exclusive beside Exclusive: %v", err)
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	b := newBroker(nil)
	_, noTopic := b.Publish(t.Context(), "", make([]membroker.Message, 1))
	_, noMessage := b.Publish(t.Context(), "t", nil)
	_, noSubscription := b.Subscribe(t.Context(), membroker.SubscribeOptions{Topics: []string{"t"}})
	_, noTopics := b.Subscribe(t.Context(), membroker.SubscribeOptions{Subscription: "s"})
	_, noType := b.Subscribe(t.Context(), membroker.SubscribeOptions{Subscription: "s", Topics: []string{"t"}, Type: "Sharde"})
	_, noLog := b.AppendRecord("", nil)
	for name, err := range map[string]error{
		"topic": noTopic, "message": noMessage, "subscription": noSubscription, "topics": noTopics, "type": noType, "log": noLog,
		"partitions": b.CreatePartitionedTopic("p", 0),
	} {
		if !errors.Is(err, membroker.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	c := subscribe(t, b, 10, "t")
	c.Ack(membroker.Ack{ID: membroker.EntryID{Ledger: 99}, Index: 7})
	id := publish(t, b, "t", make([]membroker.Message, 2)...)
	c.Ack(membroker.Ack{ID: id, Index: 2})
	if s := b.SubscriptionStats(""); s.Unacked != 2 {
		t.Errorf("stats = %+v after an ack beyond the batch", s)
	}
}

func TestALogIsOneOrderForAllAndBounded(t *testing.T) {
	b := newBroker(func(c *membroker.Config) { c.RecordsMax, c.LedgerEntriesMax = 8, 3 })
	var positions []event.Position
	for i := range 20 {
		at, err := b.AppendRecord("log", []byte{byte(i)})
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && !positions[i-1].Before(at) {
			t.Fatalf("record %d is at %v, after %v", i, at, positions[i-1])
		}
		positions = append(positions, at)
	}
	read := func(from event.Position, until byte) (got []byte) {
		errEnough := errors.New("enough")
		err := b.TailRecords(t.Context(), "log", from, func() {}, func(r membroker.Record) error {
			if r.At != positions[r.Data[0]] {
				t.Errorf("record %d is at %v, was put at %v", r.Data[0], r.At, positions[r.Data[0]])
			}
			got = append(got, r.Data[0])
			if r.Data[0] == until {
				return errEnough
			}
			return nil
		})
		if !errors.Is(err, errEnough) {
			t.Fatal(err)
		}
		return got
	}
	if got := read(positions[17], 19); !slices.Equal(got, []byte{17, 18, 19}) {
		t.Errorf("from 17 on: %v", got)
	}
	all := read(event.Position{Entry: -1}, 19)
	if len(all) < 8 || len(all) > 11 || all[len(all)-1] != 19 {
		t.Errorf("%d records are left with a bound of 8", len(all))
	}
}

func TestTailFromNowOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(nil)
		if _, err := b.AppendRecord("log", []byte("before")); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		opened, over := make(chan struct{}), make(chan error, 1)
		var got []string
		go func() {
			over <- b.TailRecords(ctx, "log", event.Position{}, func() { close(opened) }, func(r membroker.Record) error {
				got = append(got, string(r.Data))
				return nil
			})
		}()
		<-opened
		if _, err := b.AppendRecord("log", []byte("after")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cancel()
		if err := <-over; !errors.Is(err, context.Canceled) || !slices.Equal(got, []string{"after"}) {
			t.Errorf("got %q, %v; want after", got, err)
		}
	})
}
