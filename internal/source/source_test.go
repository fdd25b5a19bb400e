package source_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/broker/pulsartest"
	"github.com/ringfence/router/internal/source"
	"github.com/ringfence/router/internal/source/sourcetest"
	"github.com/ringfence/router/internal/testing/eventually"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, append(pulsartest.LeftBehind(),
		// The Pulsar client (v0.21.0) leaves these goroutines running for some time after Close.
		goleak.IgnoreAnyFunction("github.com/apache/pulsar-client-go/pulsar/internal.(*connectionPool).checkAndCleanIdleConnections"),
		goleak.IgnoreAnyFunction("github.com/apache/pulsar-client-go/pulsar.(*partitionProducer).failTimeoutMessages"),
		// And this one for good, when it has given up on a producer: Close does nothing then.
		goleak.IgnoreAnyFunction("github.com/apache/pulsar-client-go/pulsar.(*partitionProducer).runEventsLoop.func1"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
	)...)
}

// flaky is a broker that temporarily accepts no copies.
type flaky struct {
	*membroker.Broker

	mu       sync.Mutex
	refuse   int
	attempts []time.Time
}

var errFlaky = errors.New("not now")

func (f *flaky) Publish(ctx context.Context, topic string, messages []membroker.Message) (membroker.EntryID, error) {
	f.mu.Lock()
	f.attempts = append(f.attempts, time.Now())
	refuse := f.refuse > 0
	f.refuse--
	f.mu.Unlock()
	if refuse {
		return membroker.EntryID{}, errFlaky
	}
	return f.Broker.Publish(ctx, topic, messages)
}

// A copy that fails leaves its original unacked, and is sent again ever more slowly, until one is safe.
func TestACopyThatFailsIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := &flaky{Broker: membroker.New(membroker.DefaultConfig()), refuse: 4}
		if _, err := broker.Broker.Publish(t.Context(), "persistent://public/default/t", []membroker.Message{{Payload: []byte("x")}}); err != nil {
			t.Fatal(err)
		}
		cfg := sourcetest.Config("t")
		reg := prometheus.NewRegistry()
		src := source.NewMem(cfg, broker, source.NewMetrics(reg), sourcetest.Quiet())
		m := sourcetest.Start(t, src)
		got := m.Take(1)
		m.Settle(nil, []event.Verdict{{Handle: got[0].Event.Handle, Kind: event.Rejected, Detail: &event.Detail{Reason: "no use"}}})

		time.Sleep(cfg.CopyBackoffMin + cfg.CopyBackoffMin/2) // 2 of 5 attempts are over
		stats := broker.SubscriptionStats(cfg.Subscription)
		if m.Stats().Unsettled != 1 || stats.Unacked != 1 {
			t.Errorf("unsettled %d, unacked %d while the copy is not safe; want 1, 1", m.Stats().Unsettled, stats.Unacked)
		}
		m.AwaitIdle()
		synctest.Wait()
		if stats := broker.SubscriptionStats(cfg.Subscription); stats.Unacked != 0 || stats.Acked != 1 {
			t.Errorf("stats = %+v, want all acked", stats)
		}
		for i, want := 1, cfg.CopyBackoffMin; i < len(broker.attempts); i, want = i+1, 2*want {
			if gap := broker.attempts[i].Sub(broker.attempts[i-1]); gap != want {
				t.Errorf("attempt %d came after %v, want %v", i+1, gap, want)
			}
		}
		if len(broker.attempts) != 5 {
			t.Errorf("%d attempts, want 5", len(broker.attempts))
		}
		if failures := metric(t, reg, "ringfence_source_copy_failures_total"); failures != 4 {
			t.Errorf("copy failures = %v, want 4", failures)
		}
		broker.refuse = 1 // and no attempt is under way
		if _, err := broker.Broker.Publish(t.Context(), "persistent://public/default/t", []membroker.Message{{Payload: []byte("y")}}); err != nil {
			t.Fatal(err)
		}
		got = m.Take(1)
		m.Settle(nil, []event.Verdict{{Handle: got[0].Event.Handle, Kind: event.Rejected, Detail: &event.Detail{Reason: "no use"}}})
		m.AwaitIdle()
		if gap := broker.attempts[6].Sub(broker.attempts[5]); gap != cfg.CopyBackoffMin {
			t.Errorf("after a copy that was safe, the next attempt came after %v, want %v", gap, cfg.CopyBackoffMin)
		}
		m.Stop()
	})
}

func metric(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			total := 0.0
			for _, m := range f.GetMetric() {
				total += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
			return total
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// The gauges move while nothing else does: an operator sees one stuck event grow old.
func TestMetricsTellOfAStuckEvent(t *testing.T) {
	broker := membroker.New(membroker.DefaultConfig())
	if _, err := broker.Publish(t.Context(), "persistent://public/default/t", make([]membroker.Message, 10)); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	m := sourcetest.Start(t, source.NewMem(sourcetest.Config("t"), broker, source.NewMetrics(reg), sourcetest.Quiet()))
	m.Done(m.Take(10)[1:]...)
	for name, want := range map[string]float64{
		"ringfence_source_unsettled": 1, "ringfence_source_pinned_entries": 1, "ringfence_source_pinned_events": 9,
		"ringfence_source_allowance_used": 10, "ringfence_source_acked_total": 9, "ringfence_source_received_total": 10,
	} {
		eventually.True(t, fmt.Sprintf("%s = %v", name, want), func() bool { return metric(t, reg, name) == want })
	}
	eventually.True(t, "it is a second old", func() bool { return metric(t, reg, "ringfence_source_oldest_unsettled_seconds") >= 1 })
	m.Stop()
}

// BenchmarkSource measures our side of an event: from the broker's entry through
// the ledger to the sink, and from its verdict to the ack of its entry.
func BenchmarkSource(b *testing.B) {
	broker := membroker.New(membroker.DefaultConfig())
	cfg := sourcetest.Config("t")
	src := source.NewMem(cfg, broker, sourcetest.NewMetrics(), sourcetest.Quiet())
	const batch = 500
	entry := make([]membroker.Message, batch)
	for i := range entry {
		entry[i] = membroker.Message{Key: "k", Payload: make([]byte, 200), PublishTime: 1}
	}
	done := make(chan int, 1024)
	ctx, stop := context.WithCancel(b.Context())
	var run sync.WaitGroup
	run.Go(func() {
		verdicts := make([]event.Verdict, 0, cfg.BatchMax)
		_ = src.Run(ctx, sourcetest.Sink(func(_ context.Context, events []event.Message) {
			verdicts = verdicts[:0]
			for _, e := range events {
				verdicts = append(verdicts, event.Verdict{Handle: e.Event.Handle, Kind: event.Done})
			}
			src.Settle(nil, verdicts)
			done <- len(events)
		}))
	})
	<-src.Ready()
	b.ReportAllocs()
	b.ResetTimer()
	for settled, sent := 0, 0; settled < b.N; {
		for sent < b.N && sent-settled < 20*batch {
			if _, err := broker.Publish(ctx, "persistent://public/default/t", entry); err != nil {
				b.Fatal(err)
			}
			sent += batch
		}
		settled += <-done
	}
	b.StopTimer()
	stop()
	for {
		select {
		case <-done:
			continue
		default:
		}
		break
	}
	run.Wait()
}

// recordingSink is a sink that reports two failures of every event.
type recordingSink struct {
	sourcetest.Sink

	mu      sync.Mutex
	batches chan []event.Message
	events  map[event.Handle]*event.Event
	dropped []event.Handle
	why     event.Drop // of the newest of them
}

func (w *recordingSink) Received(_ context.Context, entries []*event.Entry) {
	var batch []event.Message
	w.mu.Lock()
	for _, e := range entries {
		for i := range e.Fresh.All() {
			m := e.Message(i)
			w.events[m.Event.Handle] = m.Event
			batch = append(batch, m)
		}
	}
	w.mu.Unlock()
	w.batches <- batch
}

func (w *recordingSink) Newest(handles []event.Handle, dst []*event.Event) []*event.Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range handles {
		ev := *w.events[h]
		ev.Attempts, ev.LastError = 2, "second error"
		dst = append(dst, &ev)
	}
	return dst
}

func (w *recordingSink) Drop(handles []event.Handle, why event.Drop) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropped = append(w.dropped, handles...)
	w.why = why
}

// runWithSink runs a source until stop is called, which waits for its end.
func runWithSink(t *testing.T, src *source.Source) (sink *recordingSink, stop func()) {
	t.Helper()
	sink = &recordingSink{batches: make(chan []event.Message, 10), events: map[event.Handle]*event.Event{}}
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		if err := src.Run(ctx, sink); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return sink, func() {
		cancel()
		run.Wait()
	}
}

// Events that are open when the subscription is closed are dropped from the sink, and the
// next consumer gets them.
func TestWhatIsOpenAtTheEndIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const topic = "persistent://public/default/t"
		broker := membroker.New(membroker.DefaultConfig())
		for range 3 { // entries of their own
			if _, err := broker.Publish(t.Context(), topic, make([]membroker.Message, 1)); err != nil {
				t.Fatal(err)
			}
		}
		reg := prometheus.NewRegistry()
		src := source.NewMem(sourcetest.Config("t"), broker, source.NewMetrics(reg), sourcetest.Quiet())
		sink, stop := runWithSink(t, src)
		synctest.Wait()
		open := slices.Sorted(maps.Keys(sink.events))
		src.Settle(nil, []event.Verdict{{Handle: open[0], Kind: event.Done}})
		stop()
		slices.Sort(sink.dropped)
		if !slices.Equal(sink.dropped, open[1:]) || len(open) != 3 || sink.why != event.Returned {
			t.Errorf("dropped %v of %v because of %d, want all but the first, returned", sink.dropped, open, sink.why)
		}
		src.Settle(nil, []event.Verdict{{Handle: open[1], Kind: event.Done}}) // late
		for name, want := range map[string]float64{
			"ringfence_source_abandoned_total": 2, "ringfence_source_acked_total": 1,
			"ringfence_source_unsettled": 0, "ringfence_source_open_entries": 0, "ringfence_source_ignored_verdicts_total": 1,
		} {
			if got := metric(t, reg, name); got != want {
				t.Errorf("%s = %v, want %v", name, got, want)
			}
		}
		next := sourcetest.Start(t, source.NewMem(sourcetest.Config("t"), broker, sourcetest.NewMetrics(), sourcetest.Quiet()))
		next.Done(next.Take(2)...)
		next.AwaitIdle()
		next.Stop()
	})
}

// A stuck event is copied with all that is known of it, although the broker does not
// take the copy at first; when it fails after as many rounds as are allowed, it is a dead
// letter.
func TestAStuckEventGoesByWayOfTheRetryTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const topic = "persistent://public/default/t"
		broker := &flaky{Broker: membroker.New(membroker.DefaultConfig()), refuse: 2}
		if _, err := broker.Broker.Publish(t.Context(), topic, make([]membroker.Message, 20)); err != nil {
			t.Fatal(err)
		}
		cfg := sourcetest.Config("t")
		cfg.Spill.PinnedMax, cfg.Spill.RoundsMax = 10, 1
		reg := prometheus.NewRegistry()
		src := source.NewMem(cfg, broker, source.NewMetrics(reg), sourcetest.Quiet())
		sink, stop := runWithSink(t, src)
		batch := <-sink.batches
		for _, m := range batch[1:] {
			src.Settle(nil, []event.Verdict{{Handle: m.Event.Handle, Kind: event.Done}})
		}
		again := (<-sink.batches)[0].Event
		stuck := batch[0].Event
		if again.ID != stuck.ID || again.Round != 1 || again.Attempts != 2 || again.LastError != "second error" {
			t.Errorf("the copy came as %+v of %+v", again, stuck)
		}
		sink.mu.Lock()
		if !slices.Equal(sink.dropped, []event.Handle{stuck.Handle}) || sink.why != event.Spilled {
			t.Errorf("dropped %v, want %v", sink.dropped, stuck.Handle)
		}
		sink.mu.Unlock()
		src.Settle(nil, []event.Verdict{{Handle: stuck.Handle, Kind: event.Done}}) // late: it has had its end
		src.Settle(nil, []event.Verdict{{Handle: again.Handle, Kind: event.Failed, Detail: &event.Detail{Attempts: 3, Reason: "third error"}}})
		synctest.Wait()
		time.Sleep(2 * time.Second) // the gauges follow
		for name, want := range map[string]float64{
			"ringfence_source_spilled_total": 1, "ringfence_source_copy_failures_total": 2, "ringfence_source_retried_total": 0,
			"ringfence_source_dead_lettered_total": 1, "ringfence_source_unsettled": 0, "ringfence_source_spilling": 0,
			"ringfence_source_acked_total": 19, "ringfence_source_ignored_verdicts_total": 1, "ringfence_source_allowance_used_ratio": 0,
		} {
			if got := metric(t, reg, name); got != want {
				t.Errorf("%s = %v, want %v", name, got, want)
			}
		}
		stop()
		letters := sourcetest.Start(t, source.NewMem(sourcetest.Config(topic+"-ringfence-DLQ"), broker, sourcetest.NewMetrics(), sourcetest.Quiet()))
		letter := letters.Take(1)[0]
		reason, _ := letter.Event.Property(source.PropertyReason)
		last, _ := letter.Event.Property(source.PropertyLastError)
		if reason != "copied to the retry topic 1 times without coming to an end" || last != "third error" {
			t.Errorf("the dead letter's reason is %q, its last error %q", reason, last)
		}
		letters.Done(letter)
		letters.AwaitIdle()
		letters.Stop()
	})
}

// All events of an entry are handed on together, also if they are more than pulsar.batch_max. A set settles each of its events once, also
// if another verdict was given on one before.
func TestSetsSettleTheEventsOfAnEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broker := membroker.New(membroker.DefaultConfig())
		for range 3 {
			if _, err := broker.Publish(t.Context(), "persistent://public/default/t", make([]membroker.Message, 10)); err != nil {
				t.Fatal(err)
			}
		}
		cfg := sourcetest.Config("t")
		cfg.BatchMax = 7
		reg := prometheus.NewRegistry()
		src := source.NewMem(cfg, broker, source.NewMetrics(reg), sourcetest.Quiet())
		sink, stop := runWithSink(t, src)
		var firsts []event.Handle
		for range 3 {
			batch := <-sink.batches
			if len(batch) != 10 {
				t.Fatalf("%d events came at a time, want the 10 of an entry", len(batch))
			}
			firsts = append(firsts, batch[0].Event.Handle.First())
		}
		set := func(entry int, indexes ...int) event.Set {
			return event.Set{First: firsts[entry], Events: bits(10, indexes...)}
		}
		unknown := event.Set{First: event.NewHandle(1000, 0), Events: bits(2)}
		src.Settle(
			[]event.Set{set(0, 0, 1, 2), set(0, 2, 3), unknown, set(1)}, // of 17 verdicts 3 are for nothing
			[]event.Verdict{{Handle: firsts[0] | 3, Kind: event.Rejected}, {Handle: firsts[0] | 4, Kind: event.Done}, {Handle: firsts[0] | 5, Kind: event.Rejected}},
		)
		synctest.Wait()
		for name, want := range map[string]float64{
			"ringfence_source_acked_total": 15, "ringfence_source_ignored_verdicts_total": 4, "ringfence_source_dead_lettered_total": 1,
		} {
			if got := metric(t, reg, name); got != want {
				t.Errorf("%s = %v, want %v", name, got, want)
			}
		}
		if s := src.Stats(); s.Unsettled != 14 || s.Entries != 2 || s.Pinned != 6 {
			t.Errorf("stats = %+v, want 14 open events of two entries", s)
		}
		src.Settle([]event.Set{set(0), set(2)}, nil)
		synctest.Wait()
		if stats := broker.SubscriptionStats(cfg.Subscription); stats.Unacked != 0 || stats.Acked != 30 {
			t.Errorf("stats = %+v, want all acked", stats)
		}
		stop()
	})
}
