package source

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/pulsarsend"
	"github.com/ringfence/router/internal/broker/topicname"
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

	outlets *outlets                    // if it is set, copies take this way
	take    func(outgoing, func(error)) // or this one
}

func (f *fakeBroker) bound(unacked int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bounds = append(f.bounds, unacked)
}

func (*fakeBroker) unreadTopics() map[string]error { return nil }

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

func (f *fakeBroker) release(topic string, from int) {
	if f.outlets != nil {
		f.outlets.release(topic, from)
	}
}

func (f *fakeBroker) send(ctx context.Context, c outgoing, done func(error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent[c.topic]++
	if f.outlets != nil {
		f.outlets.send(ctx, c, done)
		return
	}
	if f.take != nil {
		f.take(c, done)
		return
	}
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

// A topic that takes in few copies, as by a publish rate, confirms them later than CopyTimeout when many are under way. Such a confirmation counts:
// else each copy would be sent again and again behind its own duplicates, and none would ever be safe.
func TestCopiesThatAreConfirmedLateAreSafe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 100
		src, broker, handles := runFake(t, events, func(*event.Event) {}, func(*Config) {})
		var queue []func(error) // of the client, and of the socket
		broker.outlets = fakeLink(&fakeClient{produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) {
			return &fakeProducer{answer: func(_ *pulsar.ProducerMessage, done func(error)) { queue = append(queue, done) }}, nil
		}}).outlets
		settleAll(src, event.Failed, handles)
		for seconds := 0; src.Stats().Unsettled > 0; seconds++ {
			if seconds == 1000 {
				t.Fatalf("%d of %d events are open, and %d copies were sent", src.Stats().Unsettled, events, broker.sentTo(src.cfg.RetryTopic))
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if len(queue) > 0 {
				first := queue[0]
				queue = queue[1:]
				first(nil)
			}
			synctest.Wait()
		}
		if n := broker.sentTo(src.cfg.RetryTopic); n > 4*events {
			t.Errorf("%d copies were sent of %d events", n, events)
		}
	})
}

// A copy that the broker refuses takes the receipts of the others of its producer with it, once: from then on it is sent alone.
func TestARefusedCopyDoesNotHaveTheOthersSentOverAndOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 20
		n := 0
		src, broker, handles := runFake(t, events, func(ev *event.Event) { ev.Payload = []byte(strconv.Itoa(n)); n++ }, func(*Config) {})
		const refused = "7"
		var refuses atomic.Bool
		refuses.Store(true)
		var mu sync.Mutex
		sent := map[string]int{}
		refusing := &forgetful{timeout: src.cfg.CopyTimeout, refuses: func(c *outgoing) bool { return refuses.Load() && string(c.payload) == refused }}
		broker.take = func(c outgoing, done func(error)) {
			mu.Lock()
			sent[string(c.payload)]++
			mu.Unlock()
			refusing.take(c, done)
		}
		settleAll(src, event.Failed, handles)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if open := src.Stats().Unsettled; open != 1 {
			t.Errorf("%d events are open, want the refused one", open)
		}
		mu.Lock()
		for payload, times := range sent {
			if payload != refused && times > 2 {
				t.Errorf("copy %s was sent %d times", payload, times)
			}
		}
		if sent[refused] < 10 {
			t.Errorf("the refused copy was sent %d times", sent[refused])
		}
		mu.Unlock()
		refuses.Store(false)
		time.Sleep(time.Minute)
		synctest.Wait()
		if open := src.Stats().Unsettled; open != 0 {
			t.Errorf("%d events are open", open)
		}
	})
}

// forgetful is a broker that refuses some copies. The client forgets a producer after a refusal, until another takes its place.
type forgetful struct {
	refuses   func(*outgoing) bool
	timeout   time.Duration
	forgotten [1 + loneMax]atomic.Bool // by producer, that of the copies that are sent together first

	mu   sync.Mutex
	made []weak.Pointer[pulsarsend.Sender]
}

func (f *forgetful) take(c outgoing, done func(error)) {
	producer := &f.forgotten[0]
	if c.after != nil {
		producer = &f.forgotten[1+c.producer]
	}
	if f.refuses(&c) {
		producer.Store(true)
	}
	time.AfterFunc(time.Millisecond, func() {
		if !producer.Load() {
			done(nil)
			return
		}
		time.AfterFunc(f.timeout, func() {
			producer.Store(false)
			sender := pulsarsend.NewSender(nil)
			f.mu.Lock()
			f.made = append(f.made, weak.Make(sender))
			f.mu.Unlock()
			done(&unanswered{pulsarsend.ErrTimeout, sender})
		})
	})
}

// numberOf returns the number that is the payload of a copy.
func numberOf(c *outgoing) int { n, _ := strconv.Atoi(string(c.payload)); return n }

// kept counts the producers that are still in memory.
func (f *forgetful) kept() (n int) {
	runtime.GC()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, sender := range f.made {
		if sender.Value() != nil {
			n++
		}
	}
	return n
}

// Copies that are probably refused are sent after those that have lost their receipts with another.
func TestCopiesThatWereRefusedAloneComeLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const refused, others = 20, 20
		n := 0
		src, broker, handles := runFake(t, refused+others+1, func(ev *event.Event) { ev.Payload = []byte(strconv.Itoa(n)); n++ }, func(*Config) {})
		refusing := &forgetful{timeout: src.cfg.CopyTimeout, refuses: func(c *outgoing) bool { return numberOf(c) <= refused }}
		broker.take = refusing.take
		settleAll(src, event.Failed, handles[1:1+refused])
		time.Sleep((refused + 2) * src.cfg.CopyTimeout) // each is tried alone
		settleAll(src, event.Failed, append(handles[:1:1], handles[1+refused:]...))
		time.Sleep(4 * src.cfg.CopyTimeout)
		synctest.Wait()
		if open := src.Stats().Unsettled; open != 1+refused {
			t.Errorf("%d events are open, want the %d that are refused", open, 1+refused)
		}
		time.Sleep(refused * src.cfg.CopyTimeout)
		synctest.Wait()
		if kept := refusing.kept(); kept > refused/2 {
			t.Errorf("%d closed producers are kept in memory for %d refused copies", kept, 1+refused)
		}
	})
}

// The producers of lone copies are closed when these have ended, but for the first one while copies are refused: a topic may permit few producers.
func TestProducersOfLoneCopiesAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lost = 10
		n := 0
		src, broker, handles := runFake(t, 1+lost, func(ev *event.Event) { ev.Payload = []byte(strconv.Itoa(n)); n++ }, func(*Config) {})
		var mu sync.Mutex
		var made []*fakeProducer
		var refuses atomic.Bool
		refuses.Store(true)
		broker.outlets = fakeLink(&fakeClient{produce: func(pulsar.ProducerOptions) (pulsar.Producer, error) {
			mu.Lock()
			defer mu.Unlock()
			forgets := len(made) == 0 // the common one loses the receipts of all copies with that of the refused one
			made = append(made, &fakeProducer{answer: func(m *pulsar.ProducerMessage, done func(error)) {
				if !forgets && !(refuses.Load() && string(m.Payload) == "0") {
					time.AfterFunc(time.Millisecond, func() { done(nil) })
				}
			}})
			return made[len(made)-1], nil
		}}).outlets
		open := func() (all, open int) {
			mu.Lock()
			defer mu.Unlock()
			for _, one := range made {
				if one.closed.Load() == 0 {
					open++
				}
			}
			return len(made), open
		}
		settleAll(src, event.Failed, handles)
		time.Sleep(10 * src.cfg.CopyTimeout)
		synctest.Wait()
		all, left := open()
		if unsettled := src.Stats().Unsettled; unsettled != 1 || all < 1+loneMax || left > 2 {
			t.Errorf("with a refused copy %d events are open, and %d of %d producers, want 1 and at most 2 of more than %d", unsettled, left, all, loneMax)
		}
		refuses.Store(false)
		time.Sleep(10 * src.cfg.CopyTimeout)
		synctest.Wait()
		if all, left := open(); src.Stats().Unsettled != 0 || left > 1 {
			t.Errorf("at the end %d events are open, and %d of %d producers, want none and at most the common one", src.Stats().Unsettled, left, all)
		}
	})
}

// A copy that is probably refused leaves producers to the others, and each lone copy has its own.
func TestProducersOfLoneCopies(t *testing.T) {
	q := copyQueue{last: make([]outgoingEvent, 2)}
	q.last[0].after, q.last[1].after = refused, refused
	send := func(want bool) {
		t.Helper()
		out, some := q.next()
		if some != want || some && q.busy[out.producer] {
			t.Errorf("a copy is to be sent: %v, want %v; the producers %v are busy, and its is %d", some, want, q.busy, out.producer)
		}
		if some {
			q.begin(&out)
		}
	}
	send(true)
	send(false)
	for range loneMax {
		q.lone = append(q.lone, outgoingEvent{message: event.Message{Event: new(event.Event)}, after: pulsarsend.NewSender(nil)})
	}
	for range loneMax - 1 {
		send(true)
	}
	send(false)
}

// Copies that have failed with an answer are sent together again, in the same room as others. Of equal lone copies the first is sent first.
func TestFailedCopiesWaitForRoom(t *testing.T) {
	q := copyQueue{copiesMax: 1, underWay: 1}
	event := event.Message{Event: new(event.Event)}
	q.fail([]outgoingEvent{{message: event}})
	q.retry()
	if out, some := q.next(); some {
		t.Errorf("%+v is to be sent beside another copy", out)
	}
	q.lone = []outgoingEvent{{message: event, after: refused, hop: true}, {message: event, after: refused}}
	if out, some := q.next(); !some || !out.hop {
		t.Errorf("%+v is to be sent, want the first lone copy", out)
	}
}

// A lone copy that was confirmed late, or whose sender waits no longer, needs no turn, however many are before it.
func TestLoneCopiesThatNeedNoTurn(t *testing.T) {
	now, late := clock.Now().Add(time.Hour), new(atomic.Bool)
	late.Store(true)
	safe, waits := outgoingEvent{confirmedLate: late}, outgoingEvent{confirmedLate: new(atomic.Bool)}
	asked := func(ago time.Duration) outgoingEvent {
		return outgoingEvent{answer: func(error) {}, asked: now.Add(-ago)}
	}
	q := copyQueue{lone: []outgoingEvent{waits, safe, asked(senderWait), asked(senderWait + 1)}, last: []outgoingEvent{waits, safe}}
	var errs []error
	for _, l := range q.takeEnded(now) {
		errs = append(errs, l.err)
	}
	if !slices.Equal(errs, []error{nil, pulsarsend.ErrTimeout, nil}) || len(q.lone) != 2 || len(q.last) != 1 {
		t.Errorf("%v have ended, and %d and %d wait", errs, len(q.lone), len(q.last))
	}
}

// Copies that were not sent yet go on beside those that are sent alone.
func TestRefusedCopiesLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const refused, others = 5, 5
		n := 0
		src, broker, handles := runFake(t, refused+others, func(ev *event.Event) { ev.Payload = []byte(strconv.Itoa(n)); n++ }, func(cfg *Config) { cfg.CopiesMax = 1 })
		broker.take = (&forgetful{timeout: src.cfg.CopyTimeout, refuses: func(c *outgoing) bool { return numberOf(c) < refused }}).take
		settleAll(src, event.Failed, handles[:refused])
		time.Sleep(3 * refused * src.cfg.CopyTimeout) // each is tried alone
		settleAll(src, event.Failed, handles[refused:])
		time.Sleep(src.cfg.CopyTimeout)
		synctest.Wait()
		if open := src.Stats().Unsettled; open != refused {
			t.Errorf("%d events are open, want the %d that are refused", open, refused)
		}
	})
}

// Most copies that are refused are too large for their topic. Smaller ones, which have lost their receipts with them, do not wait for these, however many they are.
func TestCopiesThatAreTooLargeDoNotDelayTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const refused, others = 4 * loneMax, 100
		n := 0
		src, broker, handles := runFake(t, refused+others, func(ev *event.Event) {
			ev.Payload = make([]byte, 10)
			if n++; n <= refused {
				ev.Payload = make([]byte, 1000)
			}
		}, func(*Config) {})
		broker.take = (&forgetful{timeout: src.cfg.CopyTimeout, refuses: func(c *outgoing) bool { return len(c.payload) == 1000 }}).take
		settleAll(src, event.Failed, handles)
		time.Sleep(src.cfg.CopyTimeout + src.cfg.CopyBackoffMax) // until the others are sent alone
		synctest.Wait()
		if open := src.Stats().Unsettled; open != refused {
			t.Errorf("%d events are open, want the %d that are refused", open, refused)
		}
	})
}

// Copies may also be refused for their delays. Those with shorter ones do not wait for these either, even if they are larger.
func TestCopiesThatAreDelayedTooLongDoNotDelayTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const refused, others = 4 * loneMax, 100
		n := 0
		src, broker, handles := runFake(t, refused+others, func(ev *event.Event) {
			ev.Payload = make([]byte, 1000)
			if n++; n <= refused {
				ev.Payload = make([]byte, 10)
			}
		}, func(*Config) {})
		broker.take = (&forgetful{timeout: src.cfg.CopyTimeout, refuses: func(c *outgoing) bool { return c.delay > time.Minute }}).take
		for i, h := range handles {
			delay := time.Second
			if i < refused {
				delay = time.Hour
			}
			src.Settle(nil, []event.Verdict{{Handle: h, Kind: event.Failed, Detail: &event.Detail{Delay: delay, Attempts: 1}}})
		}
		time.Sleep(src.cfg.CopyTimeout + src.cfg.CopyBackoffMax) // until the others are sent alone
		synctest.Wait()
		if open := src.Stats().Unsettled; open != refused {
			t.Errorf("%d events are open, want the %d that are refused", open, refused)
		}
	})
}

// Copies that have lost their receipts with refused ones do not wait for these, if they are few.
func TestSomeRefusedCopiesDoNotDelayTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const refused, others = loneMax - 1, 100
		n := 0
		src, broker, handles := runFake(t, refused+others, func(ev *event.Event) { ev.Payload = []byte(strconv.Itoa(n)); n++ }, func(*Config) {})
		broker.take = (&forgetful{timeout: src.cfg.CopyTimeout, refuses: func(c *outgoing) bool { return numberOf(c) < refused }}).take
		settleAll(src, event.Failed, handles)
		time.Sleep(src.cfg.CopyTimeout + src.cfg.CopyBackoffMax) // until the others are sent alone
		synctest.Wait()
		if open := src.Stats().Unsettled; open != refused {
			t.Errorf("%d events are open, want the %d that are refused", open, refused)
		}
	})
}

// An event whose copy is confirmed late does not wait for copies that are sent alone.
func TestALateConfirmationDoesNotWaitForRefusedCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const refused, others = 20, 20
		n := 0
		src, broker, handles := runFake(t, refused+others, func(ev *event.Event) { ev.Payload = []byte(strconv.Itoa(n)); n++ }, func(*Config) {})
		sender := pulsarsend.NewSender(nil)
		broker.take = func(c outgoing, done func(error)) {
			time.AfterFunc(src.cfg.CopyTimeout, func() { done(&unanswered{pulsarsend.ErrTimeout, sender}) })
			if numberOf(&c) >= refused {
				time.AfterFunc(src.cfg.CopyTimeout*3/2, func() { done(nil) })
			}
		}
		settleAll(src, event.Failed, handles)
		time.Sleep(3 * src.cfg.CopyTimeout)
		synctest.Wait()
		if open := src.Stats().Unsettled; open != refused {
			t.Errorf("%d events are open, want the %d that are refused", open, refused)
		}
	})
}

// Spilled events whose copies are confirmed late are settled while they wait to be sent alone, too, and copies that fail are sent again.
func TestLateConfirmationsOfSpilledEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 20
		src, broker, _ := runFake(t, events, func(*event.Event) {}, func(cfg *Config) {
			cfg.Spill.PinnedMax, cfg.Spill.After, cfg.Spill.StuckAfter = 1, time.Millisecond, time.Millisecond
		})
		sender, timeout := pulsarsend.NewSender(nil), src.cfg.CopyTimeout
		broker.mu.Lock()
		broker.take = func(c outgoing, done func(error)) {
			time.AfterFunc(timeout, func() { done(&unanswered{pulsarsend.ErrTimeout, sender}) })
			if c.after == nil {
				time.AfterFunc(timeout*3/2, func() { done(nil) })
			}
		}
		broker.mu.Unlock()
		broker.answer(src.cfg.RetryTopic) // on a slow machine the first copies have been sent
		for range 100_000 {               // until they are open for a millisecond of the real clock
			if time.Sleep(spillEvery); broker.sentTo(src.cfg.RetryTopic) > 0 {
				break
			}
		}
		time.Sleep(3 * timeout)
		synctest.Wait()
		if open, spilled := src.Stats().Unsettled, testutil.ToFloat64(src.metrics.spilled); open != 0 || spilled != events {
			t.Errorf("%d events are open, and %v count as spilled, want 0 and %d", open, spilled, events)
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
		if src.gauges(); testutil.ToFloat64(src.metrics.spilling) != 1 {
			t.Errorf("%v events are spilling, want 1", testutil.ToFloat64(src.metrics.spilling))
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

// Entries that cannot be read are given to no sink: they are dead letters, and acked when these are safe.
func TestUnreadableEntriesAreDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, broker, handles := runFake(t, 1, func(*event.Event) {}, func(*Config) {})
		settleAll(src, event.Done, handles)
		const reason = "nobody has its key"
		entry := event.NewEntry(event.Message{Event: &event.Event{ID: event.MessageID{Ledger: 1, Entry: 2, Batch: -1}, Payload: []byte("secret")}})
		receipt := []Receipt{{Entry: entry, ID: EntryID{1, 2}, Has: event.AllBits(1), Copy: true, Unreadable: reason}} // in the retry topic
		broker.receipts <- receipt
		synctest.Wait()
		broker.mu.Lock()
		acks, copies := len(broker.acks), len(broker.copies)
		if acks != 1 || copies != 1 || broker.copies[0].topic != src.cfg.DeadLetterTopic || broker.copies[0].properties[PropertyReason] != reason || broker.copies[0].properties[PropertySeal] != "" || string(broker.copies[0].payload) != "secret" {
			t.Errorf("%d acks before the copies %+v are safe, want 1 before a dead letter without a seal", acks, broker.copies)
		}
		broker.mu.Unlock()
		if n := testutil.ToFloat64(src.metrics.received.WithLabelValues("unreadable")); n != 1 {
			t.Errorf("%v unreadable events are counted, want 1", n)
		}
		for _, reason := range []string{copyNoID, copyUnsigned, copyAltered, copyUntimely} {
			if n := testutil.ToFloat64(src.metrics.copiesRefused.WithLabelValues(reason)); n != 0 {
				t.Errorf("it counts as a copy that does not count (%s), though nobody can read it", reason)
			}
		}
		broker.answer(src.cfg.DeadLetterTopic)
		synctest.Wait()
		broker.mu.Lock()
		defer broker.mu.Unlock()
		if open := src.Stats().Unsettled; open != 0 || len(broker.acks) != 2 || broker.acks[1].Entry != (EntryID{1, 2}) {
			t.Errorf("%d events are open, and acked are %+v", open, broker.acks)
		}
	})
}

// A copy of an event that is not of this source is sent until it is safe, and its sender is told once.
func TestCopyTellsWhenItIsSafe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, broker, _ := runFake(t, 1, func(*event.Event) {}, func(*Config) {})
		safe := 0
		src.Copy(event.Message{Event: &event.Event{ID: event.MessageID{Ledger: 9, Batch: -1}, Key: "k"}}, event.Verdict{Kind: event.Failed}, func() { safe++ })
		synctest.Wait()
		broker.mu.Lock()
		held := broker.held[src.cfg.RetryTopic]
		broker.held[src.cfg.RetryTopic] = nil
		broker.mu.Unlock()
		if len(held) != 1 {
			t.Fatalf("%d copies were sent, want 1", len(held))
		}
		held[0](errEnded) // any error
		synctest.Wait()
		if safe != 0 {
			t.Error("a copy that was refused is called safe")
		}
		time.Sleep(time.Minute)
		if n := broker.answer(src.cfg.RetryTopic); n != 1 {
			t.Errorf("%d copies were sent after the refusal, want 1", n)
		}
		synctest.Wait()
		if s := src.Stats(); safe != 1 || s.Unsettled != 1 {
			t.Errorf("it was called safe %d times, and %d events are open, want 1 and the other one", safe, s.Unsettled)
		}
	})
}

// The rounds of an event become longer, up to a bound.
func TestDelaysOfRounds(t *testing.T) {
	c := DefaultSpill()
	for rounds, want := range map[uint32]time.Duration{0: 5 * time.Second, 1: 40 * time.Second, 2: 5 * time.Minute, 3: 5 * time.Minute, 1<<32 - 1: 5 * time.Minute} {
		if got := c.delay(rounds); got != want {
			t.Errorf("after %d rounds: %v, want %v", rounds, got, want)
		}
	}
	c.DelayMin, c.DelayMax = time.Minute, time.Minute
	if got := c.delay(7); got != time.Minute {
		t.Errorf("with one delay for all: %v", got)
	}
}

// knowing is a broker that tells its limits.
type knowing struct {
	*fakeBroker
	told   limits
	closed int
}

func (k *knowing) limits(context.Context) (limits, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.told, true, nil
}

func (k *knowing) close() { k.closed++ }

// A broker that counts otherwise than is configured would lose acks of single events: the source does not begin.
func TestCountingHasToFitTheBroker(t *testing.T) {
	for acks, want := range map[string]map[Counting]error{
		"false": {CountEvents: errCounting, CountEntries: nil},
		"true":  {CountEvents: nil, CountEntries: nil},
		"":      {CountEvents: nil, CountEntries: nil},
	} {
		for counting, want := range want {
			synctest.Test(t, func(t *testing.T) {
				cfg := DefaultConfig()
				cfg.Topics, cfg.Subscription, cfg.Counting = []string{"t"}, "s", counting
				broker := &knowing{fakeBroker: &fakeBroker{receipts: make(chan []Receipt)}, told: limits{unackedConsumer: 1234, unackedSubscription: 5678, batchIndexAcks: acks}}
				src := newSource(cfg, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler),
					func(context.Context, Config, int, *slog.Logger) (connection, error) { return broker, nil })
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := src.Run(ctx, collector{}); !errors.Is(err, want) || (err == nil) != (want == nil) {
					t.Errorf("the broker acks single events: %q, counting %d: Run = %v, want %v", acks, counting, err, want)
				}
				if broker.closed != 1 {
					t.Errorf("the connection was closed %d times", broker.closed)
				}
				if adopted := src.cfg.UnackedConsumerMax == 1234 && src.cfg.UnackedSubscriptionMax == 5678; adopted != (want == nil) {
					t.Errorf("the limits of the broker are adopted: %t", adopted)
				}
			})
		}
	}
}

// Policies may change the limits while the source reads.
func TestLimitsOfTheBrokerAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.Topics, cfg.Subscription = []string{"t"}, "s"
		broker := &knowing{fakeBroker: &fakeBroker{receipts: make(chan []Receipt)}, told: limits{unackedConsumer: 1000, unackedSubscription: 5000}}
		src := newSource(cfg, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler),
			func(context.Context, Config, int, *slog.Logger) (connection, error) { return broker, nil })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- src.Run(ctx, collector{}) }()
		bound := func() int {
			broker.mu.Lock()
			defer broker.mu.Unlock()
			return broker.bounds[len(broker.bounds)-1]
		}
		time.Sleep(cfg.DiscoverEvery - time.Second)
		if got := bound(); got != 900 {
			t.Errorf("the bound is %d at first", got)
		}
		broker.mu.Lock()
		broker.told.unackedConsumer = 20
		broker.mu.Unlock()
		time.Sleep(2 * time.Second)
		src.mu.Lock()
		pinned := src.ledger.spill.bounds.PinnedMax
		src.mu.Unlock()
		if got := bound(); got != 18 || pinned != 9 {
			t.Errorf("the bound is %d, and %d events may be pinned, after the limit was lowered to 20", got, pinned)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A late verdict on an event of an earlier source settles nothing of a later one.
func TestHandlesOfALaterSourceAreNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		earlier, _, given := runFake(t, 1, func(*event.Event) {}, func(*Config) {})
		later := newSource(earlier.cfg, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler), nil)
		later.ContinueAfter(earlier)
		r := Receipt{Entry: event.NewEntry(event.Message{Event: &event.Event{}}), ID: EntryID{1, 1}, Has: event.AllBits(1)}
		later.enter([]Receipt{r}, nil)
		later.Settle(nil, []event.Verdict{{Handle: given[0], Kind: event.Done}})
		if open := later.Stats().Unsettled; open != 1 || r.Entry.First == given[0].First() {
			t.Errorf("%d events are open under %d after a verdict on %d", open, r.Entry.First, given[0])
		}
	})
}

// noting is a reader that notes its subscriptions.
type noting struct {
	reader
	mu         sync.Mutex
	subscribed map[string]subscription
}

func (*noting) partitions(_ context.Context, topic string) ([]string, error) {
	return []string{topic + "-partition-0", topic + "-partition-1"}, nil
}

func (n *noting) subscribe(_ context.Context, s subscription) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.subscribed[s.topic] = s
	return nil
}

// growing is a reader of a topic that gets partitions.
type growing struct {
	noting
	partitionsNow int
}

func (g *growing) partitions(_ context.Context, topic string) (names []string, _ error) {
	for i := range g.partitionsNow {
		names = append(names, topic+"-partition-"+strconv.Itoa(i))
	}
	return names, nil
}

func (g *growing) fetchAhead(name string, queue int) {
	s := g.subscribed[name]
	s.queue = queue
	g.subscribed[name] = s
}

// TestAddedPartitionsShareTheQueue: ReceiverQueueMax bounds what is fetched ahead of all partitions of a topic, those that were added too.
func TestAddedPartitionsShareTheQueue(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Topics, cfg.Subscription, cfg.Timers = []string{"t"}, "s", false
	cfg = cfg.Resolved()
	g := &growing{noting: noting{subscribed: map[string]subscription{}}}
	d := &discovery{cfg: cfg, reader: g, metrics: NewMetrics(prometheus.NewRegistry()), log: slog.New(slog.DiscardHandler), reading: map[string]struct{}{}, unread: map[string]*error{}, begun: new(Begun)}
	for _, g.partitionsNow = range []int{1, 2, 3, 8, 16} {
		if err := d.look(t.Context(), cfg.Topics[0]); err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, s := range g.subscribed {
			sum += s.queue
		}
		if sum > cfg.ReceiverQueueMax || len(g.subscribed) != g.partitionsNow {
			t.Errorf("%d events are fetched ahead of %d partitions, want %d at most", sum, len(g.subscribed), cfg.ReceiverQueueMax)
		}
	}
}

// A new subscription skips what lies in the topics of events, unless it is told otherwise, but no copy: that is an event that was acked.
func TestCopiesAreNeverSkipped(t *testing.T) {
	for _, all := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Topics, cfg.Subscription, cfg.FromEarliest, cfg.Timers = []string{"t"}, "s", all, false
			cfg = cfg.Resolved()
			n := &noting{subscribed: map[string]subscription{}}
			d := &discovery{cfg: cfg, reader: n, metrics: NewMetrics(prometheus.NewRegistry()), log: slog.New(slog.DiscardHandler), reading: map[string]struct{}{}, unread: map[string]*error{}, begun: new(Begun)}
			again := FullTopicName("t") + "-partition-1" // an earlier source has read it: its subscription should be there
			d.begun.add(again)
			if err := d.start(t.Context()); err != nil {
				t.Fatal(err)
			}
			d.stop()
			if len(n.subscribed) != 4 {
				t.Errorf("subscribed: %v, want 2 topics of 2 partitions", n.subscribed)
			}
			for name, s := range n.subscribed {
				base, _ := topicname.Split(name)
				if want := all || base == cfg.RetryTopic || name == again; s.earliest != want {
					t.Errorf("from earliest %t: %s begins with the oldest entry: %t", all, name, s.earliest)
				}
			}
		})
	}
}

func TestALargeBatchMaxTakesNoMemoryInAdvance(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	runFake(t, 1, func(*event.Event) {}, func(c *Config) { c.BatchMax = 4 << 20 })
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
		t.Errorf("%d MiB for one event", took>>20)
	}
}
