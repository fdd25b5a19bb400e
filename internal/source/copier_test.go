package source

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/event"
)

// fakeBroker delivers the test's messages, and keeps copies until the test answers.
type fakeBroker struct {
	receipts chan []Receipt

	mu     sync.Mutex
	acks   []Ack
	sent   map[string]int // copies that were sent, by topic
	held   map[string][]func(error)
	bytes  int        // of copies that are held
	most   int        // most copies at a time
	copies []outgoing // all that were sent
	bounds []int      // of unacked events, as they were set
}

func (f *fakeBroker) bound(unacked int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bounds = append(f.bounds, unacked)
}

func (*fakeBroker) timers() error { return nil }

func (f *fakeBroker) receive(ctx context.Context, batch []Receipt) ([]Receipt, error) {
	select {
	case r := <-f.receipts:
		return append(batch, r...), nil
	case <-ctx.Done():
		return batch, ctx.Err()
	}
}

func (f *fakeBroker) ack(a Ack) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acks = append(f.acks, a)
	return nil
}

func (*fakeBroker) limits(context.Context) (limits, bool, error) { return limits{}, false, nil }
func (*fakeBroker) ends(context.Context) ([]End, bool, error)    { return nil, false, nil }

func (*fakeBroker) close() {}

func (f *fakeBroker) send(_ context.Context, c outgoing, done func(error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent[c.topic]++
	f.copies = append(f.copies, c)
	f.bytes += len(c.payload)
	f.most = max(f.most, f.bytes)
	f.held[c.topic] = append(f.held[c.topic], func(err error) {
		f.mu.Lock()
		f.bytes -= len(c.payload)
		f.mu.Unlock()
		done(err)
	})
}

// answer ends all copies for a topic that are held, and returns how many.
func (f *fakeBroker) answer(topic string) int {
	f.mu.Lock()
	held := f.held[topic]
	f.held[topic] = nil
	f.mu.Unlock()
	for _, done := range held {
		done(nil)
	}
	return len(held)
}

func (f *fakeBroker) sentTo(topic string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent[topic]
}

// collector is a sink that keeps the handles of received events.
type collector struct{ handles chan event.Handle }

func (c collector) Received(_ context.Context, batch []*event.Entry) {
	for _, e := range batch {
		for i := range e.Fresh.All() {
			c.handles <- e.Handle(i)
		}
	}
}

func (collector) Newest(handles []event.Handle, dst []*event.Event) []*event.Event {
	return append(dst, make([]*event.Event, len(handles))...)
}

func (collector) Drop([]event.Handle, event.Drop) {}

// runFake runs a source on a fake broker that has brought an entry of n events.
func runFake(t *testing.T, n int, shape func(*event.Event), adjust func(*Config)) (*Source, *fakeBroker, []event.Handle) {
	cfg := DefaultConfig()
	cfg.Topics, cfg.Subscription = []string{"t"}, "s"
	adjust(&cfg)
	broker := &fakeBroker{receipts: make(chan []Receipt, 1), sent: map[string]int{}, held: map[string][]func(error){}}
	messages := make([]event.Message, n)
	for i := range messages {
		messages[i].Event = &event.Event{ID: event.MessageID{Ledger: 1, Entry: 1, Batch: int32(i)}}
		shape(messages[i].Event)
	}
	broker.receipts <- []Receipt{{Entry: event.NewEntry(messages...), ID: EntryID{1, 1}, Has: event.AllBits(n)}}
	src := newSource(cfg, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler),
		func(context.Context, Config, int, *slog.Logger) (connection, error) { return broker, nil })
	sink := collector{make(chan event.Handle, n)}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := src.Run(ctx, sink); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	handles := make([]event.Handle, n)
	for i := range handles {
		handles[i] = <-sink.handles
	}
	return src, broker, handles
}

func settleAll(src *Source, kind event.VerdictKind, handles []event.Handle) {
	for _, h := range handles {
		src.Settle(nil, []event.Verdict{{Handle: h, Kind: kind}})
	}
}

// A dead letter topic that accepts nothing fills only its own queue of copies, and retries continue.
func TestTopicsForCopiesDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const copies = 4
		src, broker, handles := runFake(t, 30, func(*event.Event) {}, func(cfg *Config) { cfg.CopiesMax = copies })
		settleAll(src, event.Rejected, handles[:20])
		synctest.Wait()
		settleAll(src, event.Failed, handles[20:])
		synctest.Wait()
		retried := 0
		for range 3 {
			retried += broker.answer(src.cfg.RetryTopic)
			synctest.Wait()
		}
		if retried != 10 {
			t.Errorf("%d retries got through beside dead letters that do not, want 10", retried)
		}
		if n := broker.sentTo(src.cfg.DeadLetterTopic); n != copies {
			t.Errorf("%d dead letters are on their way, want %d", n, copies)
		}
		for range 5 {
			broker.answer(src.cfg.DeadLetterTopic)
			synctest.Wait()
		}
		if open := src.Stats().Unsettled; open != 0 {
			t.Errorf("%d events are unsettled", open)
		}
	})
}

// Large copies wait for their turn; they do not fail for want of room.
func TestCopiesOnTheirWayAreBoundedByBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		payload := make([]byte, copyBytesMax/10)
		src, broker, handles := runFake(t, 35, func(ev *event.Event) { ev.Payload = payload }, func(*Config) {})
		settleAll(src, event.Failed, handles)
		synctest.Wait()
		for broker.answer(src.cfg.RetryTopic) > 0 {
			synctest.Wait()
		}
		if open := src.Stats().Unsettled; open != 0 {
			t.Errorf("%d events are unsettled", open)
		}
		if broker.most < copyBytesMax || broker.most > copyBytesMax+len(payload) {
			t.Errorf("up to %d bytes were on their way, want %d or a copy more", broker.most, copyBytesMax)
		}
	})
}

// An event that is in the way of others for the last time is spilled to the dead letter
// topic, and waits its turn there.
func TestWhatIsSpilledTooOftenIsADeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, broker, handles := runFake(t, 20, func(ev *event.Event) { ev.Round = 1 }, func(cfg *Config) {
			cfg.CopiesMax = 1
			cfg.Spill.PinnedMax, cfg.Spill.RoundsMax = 10, 1
			cfg.Spill.After, cfg.Spill.StuckAfter = time.Millisecond, time.Millisecond
		})
		settleAll(src, event.Rejected, handles[1:2])
		settleAll(src, event.Done, handles[2:])
		for range 100_000 { // until it is open for a millisecond of the real clock
			if time.Sleep(spillEvery); src.Stats().Spilling > 0 {
				break
			}
		}
		synctest.Wait()
		for sent := 1; sent <= 2; sent++ {
			if n := broker.sentTo(src.cfg.DeadLetterTopic); n != sent {
				t.Errorf("%d dead letters were sent, want %d", n, sent)
			}
			broker.answer(src.cfg.DeadLetterTopic)
			synctest.Wait()
		}
		if s, n := src.Stats(), broker.sentTo(src.cfg.RetryTopic); s.Unsettled != 0 || n != 0 {
			t.Errorf("stats = %+v, and %d copies to the retry topic, want none", s, n)
		}
	})
}

// An ack that was lost is sent again as soon as the broker delivers its events again, and for all of them at once.
func TestALostAckIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 70
		src, broker, handles := runFake(t, events, func(*event.Event) {}, func(cfg *Config) { cfg.Counting = CountEvents })
		done := event.AllBits(events)
		done.Remove(1)
		src.Settle([]event.Set{{First: handles[0].First(), Events: done}}, nil)
		synctest.Wait()
		broker.receipts <- []Receipt{{Entry: event.NewEntry(make([]event.Message, events)...), ID: EntryID{1, 1}, Has: event.AllBits(events), Ref: "again"}}
		synctest.Wait()
		broker.mu.Lock()
		want := []Ack{{Entry: EntryID{1, 1}, Events: done, Total: events}, {Entry: EntryID{1, 1}, Events: done, Total: events, Ref: "again"}}
		if !reflect.DeepEqual(broker.acks, want) {
			t.Errorf("acks = %+v, want %+v", broker.acks, want)
		}
		broker.mu.Unlock()
	})
}
