package audit

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

func delivery(key string, entry int64) event.Delivery {
	e := &event.Event{Key: event.Key(key), Topic: "orders", ID: event.MessageID{Ledger: 7, Entry: entry, Batch: -1}}
	return event.Delivery{Ref: event.RefTo(e), Key: partition.HashOf(key), Token: 1, Attempt: 1}
}

// TestInversionsAgainstAModel: with room for all keys the count is that of a list of all that began.
func TestInversionsAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := NewInversions(1 << 20)
		greatest, want := map[string]int64{}, uint64(0)
		for range rapid.IntRange(0, 200).Draw(t, "events") {
			k, topicPartition := fmt.Sprint("user-", rapid.IntRange(0, 5).Draw(t, "key")), int32(rapid.IntRange(0, 2).Draw(t, "topic partition"))
			d := delivery(k, int64(rapid.IntRange(1, 50).Draw(t, "entry")))
			d.Object.ID.TopicPartition = topicPartition
			d.Attempt = uint32(rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "attempt"))
			of := fmt.Sprint(k, topicPartition)
			if d.Attempt == 1 {
				if d.Object.ID.Entry < greatest[of] {
					want++
				}
				greatest[of] = max(greatest[of], d.Object.ID.Entry)
			}
			v.Began(clock.Instant(time.Hour), []event.Delivery{d})
		}
		if got := v.Counts().Sum(); got != want {
			t.Fatalf("%d inversions, want %d", got, want)
		}
	})
}

func TestCausesOfInversions(t *testing.T) {
	for name, test := range map[string]struct {
		change func(d *event.Delivery)
		after  time.Duration
		want   Cause
	}{
		"received so":     {func(*event.Delivery) {}, time.Minute, Received},
		"redelivered":     {func(d *event.Delivery) { d.Object.Redelivery = 1 }, time.Minute, Retried},
		"a copy":          {func(d *event.Delivery) { d.Object.Round = 1 }, time.Minute, Retried},
		"after a move":    {func(d *event.Delivery) { d.Object.Redelivery = 1 }, time.Second, Moved},
		"another tenure":  {func(d *event.Delivery) { d.Token = 2 }, time.Minute, Moved},
		"relayed, moving": {func(d *event.Delivery) { d.Object.Handle = event.NewRelayedHandle(1, 0) }, time.Second, Relayed},
	} {
		v := NewInversions(1 << 16)
		v.Began(clock.Instant(time.Hour), []event.Delivery{delivery("a", 2)})
		late := delivery("a", 1)
		test.change(&late)
		v.Began(clock.Instant(time.Hour).Add(test.after), []event.Delivery{late})
		if c := v.Counts(); c.Inversions[test.want] != 1 || c.Sum() != 1 {
			t.Errorf("%s: %+v, want one by %v", name, c, test.want)
		}
	}
}

// Many keys make each other forgotten, and the count only falls.
func TestInversionsOfForgottenKeysAreNotSeen(t *testing.T) {
	v := NewInversions(4 << 10)
	for i := range 10_000 {
		v.Began(clock.Instant(time.Hour), []event.Delivery{delivery(fmt.Sprint(i), 2)})
	}
	v.Began(clock.Instant(time.Hour), []event.Delivery{delivery("0", 1), delivery("9999", 1)})
	if c := v.Counts(); c.Sum() != 1 || c.Forgotten < 9000 || c.First != 10_002 {
		t.Errorf("%+v, want the inversion of the newest key alone", c)
	}
}

// Of the keys that share a place the one that had no event for the longest time is forgotten.
func TestBusyKeysAreNotForgotten(t *testing.T) {
	for _, first := range [][]string{{"busy", "0"}, {"0", "busy"}} {
		v := NewInversions(0)
		for _, k := range first {
			v.Began(clock.Instant(time.Hour), []event.Delivery{delivery(k, 2)})
		}
		for i := range int64(10) {
			v.Began(clock.Instant(time.Hour), []event.Delivery{delivery("busy", 3+i), delivery(fmt.Sprint(1+i), 2)})
		}
		v.Began(clock.Instant(time.Hour), []event.Delivery{delivery("busy", 1)})
		if c := v.Counts(); c.Sum() != 1 {
			t.Errorf("%v: %+v, want one inversion", first, c)
		}
	}
}

// Repeats, and events whose ids no broker has given, have no order.
func TestEventsWithoutOrder(t *testing.T) {
	for name, change := range map[string]func(*event.Delivery){
		"a retry":       func(d *event.Delivery) { d.Attempt = 2 },
		"after a crash": func(d *event.Delivery) { d.Crashes = 1 },
		"a call":        func(d *event.Delivery) { d.Object.ID = event.CallMessageID("a", "id", 1) },
	} {
		v := NewInversions(1 << 16)
		other := delivery("a", 1)
		change(&other)
		v.Began(clock.Instant(time.Hour), []event.Delivery{delivery("a", 2), other, delivery("a", 3)})
		if c := v.Counts(); c.Sum() != 0 || c.First != 2 {
			t.Errorf("%s: %+v, want no inversion of 2 events", name, c)
		}
	}
}

// Events of two topics have no order, whatever their ids.
func TestTopicsHaveNoOrder(t *testing.T) {
	v := NewInversions(1 << 16)
	other := delivery("a", 1)
	other.Object.Topic = "payments"
	v.Began(clock.Instant(time.Hour), []event.Delivery{delivery("a", 2), other, delivery("a", 3)})
	if c := v.Counts(); c.Sum() != 0 {
		t.Errorf("%+v, want no inversion", c)
	}
}

func BenchmarkBegan(b *testing.B) {
	v := NewInversions(1 << 20)
	deliveries := make([]event.Delivery, 256)
	for i := range deliveries {
		deliveries[i] = delivery(fmt.Sprint(i), 1)
	}
	b.ReportAllocs()
	for i := 0; i < b.N; i += len(deliveries) {
		for j := range deliveries {
			deliveries[j].Object.ID.Entry++
		}
		v.Began(clock.Instant(time.Hour), deliveries)
	}
}

// Among many keys with an inversion each, the one with the most is the first of the list, and no count is too great.
func TestKeysWithTheMostInversions(t *testing.T) {
	v := NewInversions(1 << 20)
	invert := func(key string, times int) {
		for i := range times {
			v.Began(clock.Instant(time.Hour).Add(time.Duration(i)*time.Minute), []event.Delivery{delivery(key, 2*int64(i)+2), delivery(key, 2*int64(i)+1)})
		}
	}
	const others = 10_000
	for i := range others {
		invert(fmt.Sprint("user-", i), 1)
		if i%100 == 0 {
			v.Began(clock.Instant(time.Hour), []event.Delivery{delivery("worst", 1000), delivery("worst", int64(i/100)+1)})
		}
	}
	long := strings.Repeat("k", invertedNameMax+1)
	invert(long, 200)
	keys := v.Keys()
	if len(keys) != invertedSets*invertedWays {
		t.Errorf("%d keys, want a counter of each", len(keys))
	}
	if k := keys[0]; k.Name != "" || k.Hash != partition.HashOf(long) || k.Sum() != 200 {
		t.Errorf("the first is %+v, want 200 of a long key without its name", k)
	}
	if k := keys[1]; k.Name != "worst" || k.Sum() > 100 || k.Sum() < 100-others/invertedSets/invertedWays || k.Last != clock.Instant(time.Hour) {
		t.Errorf("the second is %+v, want nearly 100 of the other one", k)
	}
	if keys[2].Sum() > 3 {
		t.Errorf("the third is %+v, and each has one", keys[2])
	}
}

// TestInversionInTheFirstEntry: the events of the first entry of a broker's first ledger have an order, too.
func TestInversionInTheFirstEntry(t *testing.T) {
	v := NewInversions(1 << 16)
	of := func(batch int32) event.Delivery {
		d := delivery("a", 0)
		d.Object.ID.Ledger, d.Object.ID.Batch = 0, batch
		return d
	}
	v.Began(clock.Instant(time.Hour), []event.Delivery{of(5), of(2)})
	if c := v.Counts(); c.Sum() != 1 || c.First != 2 {
		t.Errorf("%+v, want one inversion of 2 events", c)
	}
}

// Sum returns the number of inversions.
func (c OrderCounts) Sum() (all uint64) {
	for _, n := range c.Inversions {
		all += n
	}
	return all
}
