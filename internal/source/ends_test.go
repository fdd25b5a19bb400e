package source

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// pinning delivers an entry of 20 events that were copied so often before, and settles all but the last one.
func (h *timing) pinning(round uint32) event.Handle {
	h.t.Helper()
	messages := make([]event.Message, 20)
	for i := range messages {
		messages[i].Event = &event.Event{ID: event.MessageID{Ledger: 8, Entry: 1, Batch: int32(i), TopicPartition: -1}, Payload: []byte("p"), Round: round}
	}
	entry := event.NewEntry(messages...)
	h.broker.receipts <- []Receipt{{Entry: entry, ID: EntryID{8, 1}, Has: event.AllBits(20)}}
	var last event.Handle
	for range 20 {
		last = (<-h.got).Event.Handle
	}
	done := event.AllBits(20)
	done.Remove(19)
	h.Settle([]event.Set{{First: last.First(), Events: done}}, nil)
	return last
}

// awaitCopy waits until a copy is sent: the ages of events follow the clock of leases, which no bubble moves.
func (h *timing) awaitCopy(topic string) {
	for h.broker.sentTo(topic) == 0 {
		time.Sleep(spillEvery)
	}
	synctest.Wait()
}

// spills makes events be spilled soon, beyond ten unacked ones.
func spills(c *Config) { c.Spill.PinnedMax, c.Spill.RoundsMax, c.Spill.After = 10, 3, time.Millisecond }

// Nothing is on its way to the parking topic when the copies are safe there, or in the dead letter topic, nor when a source has ended: the events are the broker's
// again. A member that says otherwise keeps the unpark of the key from its end.
func TestNothingIsOnItsWayToTheParkingTopicAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t)
		park := func(properties map[string]string) event.Key {
			h.deliver(outgoing{topic: "t", payload: []byte("p"), properties: properties}, 0)
			m := <-h.got
			h.Settle(nil, []event.Verdict{{Handle: m.Event.Handle, Kind: event.Parked, Detail: &event.Detail{}}})
			synctest.Wait()
			if n := h.Parking(m.Event.Key); n != 1 {
				t.Fatalf("%d events are on their way, want 1", n)
			}
			return m.Event.Key
		}
		for topic, properties := range map[string]map[string]string{h.cfg.ParkingTopic(): nil, h.cfg.DeadLetterTopic: {"large": strings.Repeat("x", headMax)}} {
			key := park(properties)
			h.broker.answer(topic)
			synctest.Wait()
			if n := h.Parking(key); n != 0 {
				t.Errorf("%d events are on their way when the copy is in %s", n, topic)
			}
		}
		key := park(nil)
		h.stop()
		if n := h.Parking(key); n != 0 {
			t.Errorf("%d events are on their way when the source has ended", n)
		}
	})
}

// An event that is stuck after its last round ends once: as a dead letter.
func TestADeadLetterIsNotSpilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t, spills)
		h.pinning(3)
		h.awaitCopy(h.cfg.DeadLetterTopic)
		if n := h.broker.answer(h.cfg.DeadLetterTopic); n != 1 {
			t.Fatalf("%d dead letters, want 1", n)
		}
		synctest.Wait()
		if letters, spilled := testutil.ToFloat64(h.metrics.deadLettered), testutil.ToFloat64(h.metrics.spilled); letters != 1 || spilled != 0 {
			t.Errorf("the event counts as %v dead letters and %v spilled events, want 1 and 0", letters, spilled)
		}
	})
}

// An event that was done while its copy was sent ends once: as done.
func TestADoneEventIsNotSpilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t, spills)
		stuck := h.pinning(0)
		h.awaitCopy(h.cfg.RetryTopic)
		h.Settle(nil, []event.Verdict{{Handle: stuck, Kind: event.Done}})
		if n := h.broker.answer(h.cfg.RetryTopic); n != 1 {
			t.Fatalf("%d copies, want 1", n)
		}
		synctest.Wait()
		if acked, spilled := testutil.ToFloat64(h.metrics.acked), testutil.ToFloat64(h.metrics.spilled); acked != 20 || spilled != 0 {
			t.Errorf("of 20 events, %v count as done and %v as spilled, want 20 and 0", acked, spilled)
		}
	})
}

// The end of an event pays for its four spills once.
func TestAnEndPaysOnce(t *testing.T) {
	s := spill{bounds: Bounds{Spill: Spill{RateMax: 100}}, ended: 1}
	for i := range 3 {
		s.earn(clock.Instant(time.Duration(i+1) * time.Second))
	}
	if s.budget != spillsPerEnd {
		t.Errorf("one end pays for %v spills", s.budget)
	}
}

// A source that has ended holds no timers.
func TestNoTimersAreHeldAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t)
		h.send(earlyMax / 2)
		h.deliver(h.newest(1), 0)
		if n := testutil.ToFloat64(h.metrics.timersHeld); n != 1 {
			t.Fatalf("%v timers are held, want 1", n)
		}
		h.stop()
		if n := testutil.ToFloat64(h.metrics.timersHeld); n != 0 {
			t.Errorf("%v timers are held when the source has ended", n)
		}
	})
}

// Alerts ask for the increase of a count, which begins when the count is there.
func TestFirstCountsAreIncreases(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	if n := testutil.CollectAndCount(m.copiesRefused); n != 4 {
		t.Errorf("%d counts of refused copies at the start, want one for each of 4 reasons", n)
	}
	if n := testutil.CollectAndCount(m.received); n != 4 {
		t.Errorf("%d counts of received events at the start, want one for each of 4 kinds", n)
	}
}
