package source

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/pulsarsend"
)

// timing is a source on a fake broker, in a bubble.
type timing struct {
	*Source

	t      *testing.T
	broker *fakeBroker
	got    chan event.Message
	log    strings.Builder // guarded by the handler of the log
	stop   func()
	entry  int64
}

// Received implements Sink.
func (h *timing) Received(_ context.Context, batch []*event.Entry) {
	for _, e := range batch {
		for i := range e.Fresh.All() {
			h.got <- e.Message(i)
		}
	}
}

func (*timing) Newest(handles []event.Handle, dst []*event.Event) []*event.Event {
	return append(dst, make([]*event.Event, len(handles))...)
}

func (*timing) Drop([]event.Handle, event.Drop) {}

func startTiming(t *testing.T, set ...func(*Config)) *timing {
	cfg := DefaultConfig()
	cfg.Topics, cfg.Subscription = []string{"t"}, "s"
	for _, change := range set {
		change(&cfg)
	}
	broker := &fakeBroker{receipts: make(chan []Receipt), sent: map[string]int{}, held: map[string][]func(error){}}
	h := &timing{t: t, broker: broker, got: make(chan event.Message, 10)}
	h.Source = newSource(cfg, NewMetrics(prometheus.NewRegistry()), slog.New(slog.NewTextHandler(&h.log, nil)),
		func(context.Context, Config, int, *slog.Logger) (connection, error) { return broker, nil })
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := h.Run(ctx, h); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	h.stop = func() { cancel(); running.Wait() }
	t.Cleanup(h.stop)
	<-h.Ready()
	return h
}

// send publishes an event that is due after a while, and returns its answer.
func (h *timing) send(after time.Duration) chan error {
	h.t.Helper()
	return h.publish(event.Sent{Key: "user-1", Due: wall() + after.Milliseconds(), Name: "expire"})
}

func (h *timing) publish(sent event.Sent) chan error {
	h.t.Helper()
	answers := make(chan error, 1)
	e := &event.Event{
		ID: event.SentMessageID("user-1", "test", "1"), Key: "user-1", Payload: []byte("p"), PublishTime: wall(),
		Properties: sent.Properties([]event.Property{{Name: "mine", Value: "1"}}),
	}
	if err := h.Send(e, func(err error) { answers <- err }); err != nil {
		h.t.Fatal(err)
	}
	synctest.Wait()
	return answers
}

// newest returns the newest of so many copies in the timer topic.
func (h *timing) newest(copies int) outgoing {
	h.t.Helper()
	synctest.Wait()
	h.broker.mu.Lock()
	defer h.broker.mu.Unlock()
	if len(h.broker.copies) != copies || h.broker.copies[copies-1].topic != h.cfg.TimerTopic() {
		h.t.Fatalf("%d copies, want %d: %+v", len(h.broker.copies), copies, h.broker.copies)
	}
	return h.broker.copies[copies-1]
}

// deliver brings a copy as the broker does, published so long ago.
func (h *timing) deliver(c outgoing, ago time.Duration) {
	h.entry++
	e := &event.Event{
		ID: event.MessageID{Ledger: 7, Entry: h.entry, Batch: -1, TopicPartition: -1}, Topic: c.topic, Payload: c.payload, PublishTime: wall() - ago.Milliseconds(),
	}
	for name, value := range c.properties {
		e.Properties = append(e.Properties, event.Property{Name: name, Value: value})
	}
	entry := event.NewEntry(event.Message{Event: e, Key: c.key})
	h.broker.receipts <- []Receipt{{Entry: entry, ID: EntryID{7, h.entry}, Has: event.AllBits(1), Copy: true}}
	synctest.Wait()
}

func (h *timing) acked() int {
	synctest.Wait()
	h.broker.mu.Lock()
	defer h.broker.mu.Unlock()
	return len(h.broker.acks)
}

// A timer of two and a half hours goes by way of three copies, none delayed for more than an hour. Each is acked when
// the next one is safe, and the last one is handed on when the timer is due, not before, with the sender's key, payload
// and properties.
func TestTimersHop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t, func(c *Config) { c.Spill.RoundsMax = 1 }) // hops are no rounds
		begun := time.Now()
		answers := h.send(150 * time.Minute)
		if c := h.newest(1); c.delay != HopMax || c.key != "user-1" || !c.awaited {
			t.Fatalf("the first copy: %+v", c)
		}
		select {
		case err := <-answers:
			t.Fatalf("answered before the broker has: %v", err)
		default:
		}
		h.broker.answer(h.cfg.TimerTopic())
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
		for hop, delay := range []time.Duration{HopMax, 30 * time.Minute} {
			c := h.newest(hop + 1)
			tick := time.Duration(hop) * time.Second // by which the broker may be too early
			time.Sleep(HopMax - tick)
			h.deliver(c, HopMax-tick)
			if c := h.newest(hop + 2); c.delay != delay+tick || c.awaited {
				t.Fatalf("copy %d is delayed for %v, want %v", hop+2, c.delay, delay)
			}
			if h.acked() != hop {
				t.Fatalf("hop %d is acked before the next copy is safe", hop)
			}
			h.broker.answer(h.cfg.TimerTopic())
			if h.acked() != hop+1 {
				t.Fatalf("hop %d is not acked", hop)
			}
			time.Sleep(tick)
		}
		time.Sleep(30*time.Minute - time.Second) // Pulsar's ticks
		h.deliver(h.newest(3), 30*time.Minute-time.Second)
		if len(h.got) != 0 {
			t.Fatal("it is handed on before it is due")
		}
		m := <-h.got
		sent, err := event.ParseSent(m.Event.Properties)
		if late := time.Since(begun) - 150*time.Minute; late < 0 || late > 10*time.Millisecond {
			t.Errorf("%v late", late)
		}
		if err != nil || sent.Key != "user-1" || sent.Name != "expire" || m.Event.ID != event.SentMessageID("user-1", "test", "1") || string(m.Event.Payload) != "p" ||
			m.Event.Topic != h.cfg.TimerTopic() || m.Event.Attempts != 0 {
			t.Errorf("got %+v (%v)", m.Event, err)
		}
		var own []string
		for _, p := range m.Event.Properties {
			if !event.IsOfSent(p.Name) {
				own = append(own, p.Name+"="+p.Value)
			}
		}
		if !slices.Equal(own, []string{"mine=1"}) {
			t.Errorf("its own properties are %q", own)
		}
		h.mu.Lock()
		held := h.ledger.bySerial[m.Event.Handle.Serial()].held
		h.mu.Unlock()
		if n := testutil.ToFloat64(h.metrics.timersHeld); held || n != 0 {
			t.Errorf("handed on, it counts as held: %v, and %v in the metric", held, n)
		}
		if n := testutil.ToFloat64(h.metrics.timersUndelayed); n != 0 {
			t.Errorf("%v copies count as not delayed", n)
		}
		h.Settle(nil, []event.Verdict{{Handle: m.Event.Handle, Kind: event.Done}})
		sends := testutil.ToFloat64(h.metrics.timersSent.WithLabelValues("confirmed"))
		if retried := testutil.ToFloat64(h.metrics.retried); h.acked() != 3 || testutil.ToFloat64(h.metrics.timerHops) != 2 || sends != 1 || retried != 0 {
			t.Errorf("%d acks, %v hops, %v confirmed, %v retried", h.acked(), testutil.ToFloat64(h.metrics.timerHops), sends, retried)
		}
	})
}

// A broker that delays nothing is reported, and does not make the router copy as fast as it can.
func TestTimersOfABrokerThatDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t)
		const after = 55 * time.Second // half a pause after the last copy
		h.send(after)
		h.broker.answer(h.cfg.TimerTopic())
		begun, copies := time.Now(), 1
		for time.Since(begun) < 45*time.Second {
			h.deliver(h.newest(copies), 0)
			time.Sleep(undelayedPause)
			copies++
			h.newest(copies)
			h.broker.answer(h.cfg.TimerTopic())
		}
		h.deliver(h.newest(copies), 0)
		if m := <-h.got; time.Since(begun) != after || m.Event.ID != event.SentMessageID("user-1", "test", "1") {
			t.Errorf("after %v: %+v", time.Since(begun), m.Event)
		}
		if n := testutil.ToFloat64(h.metrics.timersUndelayed); copies != 6 || n < 5 {
			t.Errorf("%d copies, %v noticed", copies, n)
		}
		if n := strings.Count(h.log.String(), "the broker delivers timers at once"); n != 1 {
			t.Errorf("%d lines say so, want one", n)
		}
	})
}

// A firing that is due in years, as that of a 29 February, hops until then, as a timer does; its first copies were taken for forged ones.
func TestFiringsInYearsHop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t)
		h.publish(event.Sent{Key: "schedule/leap", Due: event.FiringDueMax, Name: "leap", Firing: &event.Firing{Definition: 1, Time: event.FiringDueMax}})
		for hop := range 3 {
			c := h.newest(hop + 1)
			if c.delay != HopMax {
				t.Fatalf("hop %d is delayed by %v", hop, c.delay)
			}
			time.Sleep(HopMax)
			h.deliver(c, HopMax)
		}
		h.newest(4)
		if n := testutil.ToFloat64(h.metrics.copiesRefused.WithLabelValues(copyUntimely)); n != 0 || len(h.got) != 0 {
			t.Errorf("%v copies are refused, and %d handed on", n, len(h.got))
		}
	})
}

// What cannot be one of our timers, since its seal does not fit or it came in a batch, is an event of its own at once.
func TestTimersOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t)
		h.send(time.Hour)
		c := h.newest(1)
		c.payload = []byte("another")
		h.deliver(c, 0)
		m := <-h.got
		if m.Event.ID.IsSent() || len(m.Event.Properties) != 1 || testutil.ToFloat64(h.metrics.copiesRefused.WithLabelValues(copyAltered)) != 1 {
			t.Errorf("altered: %+v", m.Event)
		}
	})
}

// A copy with a good seal, but without a key, or with a time beyond all bounds, is an event of its own, and does not wait at the broker for ever.
func TestTimersWithoutATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t)
		for i, properties := range [][]event.Property{
			{{Name: "ringfence-sent-due", Value: "5"}},
			(&event.Sent{Key: "user-1", Due: wall() + 1000*event.SentAfterMax.Milliseconds()}).Properties(nil),
			(&event.Sent{Key: "user-1", Due: event.FiringDueMax + 1, Firing: &event.Firing{}}).Properties(nil),
		} {
			forged := newCopy(h.cfg.TimerTopic(), event.Message{Key: "user-1", Event: &event.Event{
				ID: event.SentMessageID("user-1", "test", "1"), Topic: h.cfg.TimerTopic(), Payload: []byte("p"), Properties: properties,
			}}, &event.Detail{}, 1, "")
			forged.seal(nil)
			h.deliver(forged, 0)
			m := <-h.got
			if m.Event.ID.IsSent() || len(m.Event.Properties) != 0 {
				t.Errorf("%v: %+v", properties, m.Event)
			}
			if n := testutil.ToFloat64(h.metrics.copiesRefused.WithLabelValues(copyUntimely)); n != float64(i+1) {
				t.Errorf("%v are refused", n)
			}
		}
	})
}

// A timer of the longest time counts, also where the clock is behind that of its sender.
func TestLongestTimerIsTimely(t *testing.T) {
	const now = 1_000_000
	at := func(due int64) *event.Event {
		id := event.Property{Name: PropertyMessageID, Value: event.SentMessageID("user-1", "test", "1").String()}
		return &event.Event{Properties: append((&event.Sent{Key: "user-1", Due: due}).Properties(nil), id)}
	}
	latest := now + (event.SentAfterMax + HopMax).Milliseconds()
	if !isTimely(at(latest), now) || isTimely(at(latest+1), now) {
		t.Error("the bound is not that of the longest timer and an hour")
	}
}

// Nothing can be sent before there is a subscription, whatever the caller believes; and the key of a message is text, whatever that of its event is.
func TestSendOfAnyKey(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Topics, cfg.Subscription = []string{"t"}, "s"
	unready := newSource(cfg, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler), nil)
	if err := unready.Send(&event.Event{}, nil); !errors.Is(err, errNotReady) {
		t.Errorf("before there is a subscription: %v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t)
		e := &event.Event{ID: event.SentMessageID("a\xffb", "test", "1"), Key: "a\xffb", Properties: (&event.Sent{Key: "a\xffb", Due: wall()}).Properties(nil)}
		if err := h.Send(e, func(error) {}); err != nil {
			t.Fatal(err)
		}
		if c := h.newest(1); c.key != "a\uFFFDb" {
			t.Errorf("the key of its message is %q", c.key)
		}
		if e.Topic != "" || e.Round != 0 {
			t.Errorf("the caller's event was changed: %+v", e)
		}
	})
}

// Held events are kept in the order of their next checks, whatever the order in which they come.
func TestHeldEventsAreInOrder(t *testing.T) {
	s := new(Source)
	for _, until := range []int64{5, 9, 1, 7, 5} {
		s.hold(held{until: until})
	}
	if !slices.IsSortedFunc(s.holding, func(a, b held) int { return cmp.Compare(a.until, b.until) }) || len(s.holding) != 5 {
		t.Errorf("%+v", s.holding)
	}
}

// Whoever sends learns how it ended: also when the broker refuses, or the source ends meanwhile.
func TestSendIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t)
		answers := h.send(time.Second)
		h.broker.mu.Lock()
		held := h.broker.held[h.cfg.TimerTopic()]
		h.broker.held[h.cfg.TimerTopic()] = nil
		h.broker.mu.Unlock()
		broken := errors.New("broken")
		held[0](broken)
		if err := <-answers; !errors.Is(err, broken) {
			t.Errorf("refused: %v", err)
		}
		time.Sleep(time.Minute)
		if h.newest(1); h.acked() != 0 { // the sender decides
			t.Error("acked")
		}
		answers = h.send(time.Second)
		h.stop()
		h.broker.answer(h.cfg.TimerTopic())
		if err := <-answers; err != nil { // the broker has it
			t.Errorf("answered late: %v", err)
		}
		if n := testutil.ToFloat64(h.metrics.timersSent.WithLabelValues("failed")); n != 1 {
			t.Errorf("%v count as failed, want 1", n)
		}
		if err := h.Send(&event.Event{}, nil); !errors.Is(err, errEnded) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// At the end of a source, sends that still wait for their turn are answered as not sent.
func TestUnsentIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t, func(c *Config) { c.CopiesMax = 1 })
		first, second := h.send(time.Second), h.send(time.Second)
		h.newest(1)
		h.stop()
		synctest.Wait()
		if len(second) != 1 || !errors.Is(<-second, errEnded) {
			t.Error("the second one was not answered by an error")
		}
		h.broker.answer(h.cfg.TimerTopic())
		synctest.Wait()
		if len(first) != 1 || len(second) != 0 {
			t.Errorf("%d answers to the first one, and %d further ones to the second", len(first), len(second))
		}
	})
}

// The same holds for a send that comes so late that the copier has not taken it yet.
func TestUntakenIsAnswered(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Topics, cfg.Subscription = []string{"t"}, "s"
	s := newSource(cfg, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler), nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 64 { // the copier may look for work first
		c := newCopier("")
		c.add(outgoingEvent{answer: func(error) {}})
		s.copy(ended, c, nil, nil)
		if n := len(c.unanswered()); n != 1 {
			t.Fatalf("%d sends are to be answered, want 1", n)
		}
	}
}

// A new event that the broker refuses takes the receipts of others with it: these are sent once more, alone, and its sender learns that it has failed.
func TestARefusedEventFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t)
		h.broker.take = (&forgetful{timeout: sendTimeout, refuses: func(c *outgoing) bool { return c.delay > time.Minute }}).take
		refused := []chan error{h.send(time.Hour), h.send(time.Hour)}
		var others []chan error
		for range 100 {
			others = append(others, h.send(0))
		}
		time.Sleep(sendTimeout + time.Second)
		synctest.Wait()
		for i, answers := range others {
			if len(answers) != 1 {
				t.Fatalf("event %d is not answered", i)
			}
			if err := <-answers; err != nil {
				t.Errorf("event %d: %v", i, err)
			}
		}
		time.Sleep(sendTimeout)
		synctest.Wait()
		for i, answers := range refused {
			if len(answers) != 1 {
				t.Fatalf("refused event %d is not answered", i)
			}
			if err := <-answers; !errors.Is(err, pulsarsend.ErrTimeout) {
				t.Errorf("refused event %d: %v", i, err)
			}
		}
		sent := h.broker.sentTo(h.cfg.TimerTopic())
		time.Sleep(time.Hour)
		if again := h.broker.sentTo(h.cfg.TimerTopic()); again != sent || sent != 2*(2+100) {
			t.Errorf("%d copies were sent, and %d later, want two of each event", sent, again-sent)
		}
	})
}

// silent sends one event more than are sent alone at a time, which the broker does not confirm, and waits until all but one are under way alone. late
// confirms the first attempts; answered returns the answers since its last call.
func (h *timing) silent() (late func(), answered func() []error) {
	var mu sync.Mutex
	var firsts []func(error)
	h.broker.take = func(c outgoing, done func(error)) {
		mu.Lock()
		defer mu.Unlock()
		if c.after == nil {
			firsts = append(firsts, done)
		}
		time.AfterFunc(sendTimeout, func() { done(&unanswered{pulsarsend.ErrTimeout, pulsarsend.NewSender(nil)}) })
	}
	var answers []chan error
	for range loneMax + 1 {
		answers = append(answers, h.send(0))
	}
	time.Sleep(sendTimeout)
	synctest.Wait()
	late = func() {
		for _, done := range firsts {
			done(nil)
		}
	}
	return late, func() (errs []error) {
		synctest.Wait()
		for _, one := range answers {
			if len(one) > 0 {
				errs = append(errs, <-one)
			}
		}
		return errs
	}
}

// A confirmation that comes while an event waits to be sent alone counts at once, and that of one that is under way after its attempt.
func TestALateConfirmationAnswersASend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late, answered := startTiming(t).silent()
		late()
		if got := answered(); !slices.Equal(got, []error{nil}) {
			t.Errorf("answers %v, want one without an error", got)
		}
		time.Sleep(sendTimeout)
		if got := answered(); !slices.Equal(got, make([]error, loneMax)) {
			t.Errorf("answers %v, want %d without an error", got, loneMax)
		}
	})
}

// At the end of a source, an event that waits to be sent alone is answered, too.
func TestUnsentLoneEventIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t)
		_, answered := h.silent()
		h.stop()
		if got := answered(); !slices.Equal(got, []error{errEnded}) {
			t.Errorf("answers %v, want that of one that was not sent", got)
		}
		time.Sleep(sendTimeout)
		if got := answered(); len(got) != loneMax {
			t.Errorf("answers %v, want %d", got, loneMax)
		}
	})
}

// Events whose senders wait no longer give their turns to others, so that refused ones cannot fill the queue.
func TestAnEventThatIsTooLateIsNotSentAlone(t *testing.T) {
	const now = clock.Instant(time.Hour)
	answer := func(error) {}
	q := copyQueue{lone: []outgoingEvent{
		{answer: answer, asked: now.Add(-senderWait - 1), hop: true}, {answer: answer, asked: now.Add(-senderWait)}, {asked: now.Add(-time.Minute)},
	}}
	if ended := q.takeEnded(now); len(ended) != 1 || !ended[0].hop || !errors.Is(ended[0].err, pulsarsend.ErrTimeout) || len(q.lone) != 2 {
		t.Errorf("%+v are ended, and %d wait, want the first to be ended", ended, len(q.lone))
	}
}

// A full source reads nothing more while it holds a timer, neither when something is settled nor when the timer is due: that one is open already.
func TestHeldTimerMakesNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t, func(c *Config) { c.UnsettledMax = 3 })
		answers := h.send(2 * time.Second)
		c := h.newest(1)
		h.broker.answer(h.cfg.TimerTopic())
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
		h.deliver(c, 0)
		batch := event.NewBatch(4, 4)
		for range 4 {
			batch.AddPart(event.Part{Key: "user-2"}, []byte("p"), "", nil)
		}
		h.broker.receipts <- []Receipt{{Entry: batch, ID: EntryID{100, 0}, Has: event.AllBits(4)}}
		open := []event.Message{<-h.got, <-h.got, <-h.got, <-h.got}
		reads := func() bool {
			synctest.Wait()
			select {
			case h.broker.receipts <- nil:
				return true
			default:
				return false
			}
		}
		h.Settle(nil, []event.Verdict{{Handle: open[0].Event.Handle, Kind: event.Done}})
		if reads() {
			t.Error("it reads with four open events of three, after one was settled")
		}
		time.Sleep(3 * time.Second)
		if len(h.got) == 0 {
			t.Fatal("the timer is late because the source is full")
		}
		if got := <-h.got; !got.Event.ID.IsSent() || reads() {
			t.Errorf("%v was handed on, want the timer, and nothing read with four open events", got.Event.ID)
		}
		h.Settle(nil, []event.Verdict{{Handle: open[1].Event.Handle, Kind: event.Done}, {Handle: open[2].Event.Handle, Kind: event.Done}})
		if !reads() {
			t.Error("it reads nothing with two open events of three")
		}
	})
}

// A timer that no copy can carry becomes a dead letter, and waits for its turn behind the others: one goroutine sends the copies of a topic.
func TestATimerThatNoCopyCanCarryWaitsBehindOtherDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := startTiming(t, func(c *Config) { c.CopiesMax = 1 })
		h.send(3 * HopMax)
		c := h.newest(1)
		h.broker.answer(h.cfg.TimerTopic())
		batch := event.NewBatch(1, 1)
		batch.AddPart(event.Part{Key: "user-2"}, []byte("p"), "", nil)
		h.broker.receipts <- []Receipt{{Entry: batch, ID: EntryID{100, 0}, Has: event.AllBits(1)}}
		h.Settle(nil, []event.Verdict{{Handle: (<-h.got).Event.Handle, Kind: event.Rejected}})
		c.properties["large"] = strings.Repeat("x", headMax)
		c.seal(nil)
		h.deliver(c, HopMax)
		for sent := 1; sent <= 2; sent++ {
			if n := h.broker.sentTo(h.cfg.DeadLetterTopic); n != sent {
				t.Errorf("%d dead letters were sent, want %d", n, sent)
			}
			h.broker.answer(h.cfg.DeadLetterTopic)
			synctest.Wait()
		}
		if open := h.Stats().Unsettled; open != 0 {
			t.Errorf("%d events are open", open)
		}
	})
}

// A timer that is held is not spilled, however old its copy is: it has not been handed on, and the sink may be writing its key.
func TestHeldTimerIsNotSpilled(t *testing.T) {
	l := NewLedger(CountEntries)
	b := DefaultSpill()
	b.PinnedMax = 1
	l.Bound(Bounds{Spill: b, UnsettledMax: 100, BytesMax: 1 << 20})
	r := func(entry int64, events int, h held) *Receipt {
		e := event.NewBatch(events, events)
		for range events {
			e.AddPart(event.Part{Key: "user-1"}, []byte("p"), "", nil)
		}
		return &Receipt{Entry: e, ID: EntryID{7, entry}, Has: event.AllBits(events), early: h}
	}
	timer := r(1, 1, held{until: 5, due: 5})
	l.Received(0, timer, nil)
	l.Received(0, r(2, 4, held{}), nil)
	l.HandedOn()
	old := clock.Instant(b.StuckAfter)
	if chosen := l.Spill(old); len(chosen) != 4 || slices.Contains(chosen, timer.Entry.First) {
		t.Fatalf("%v are spilled, want the four events and not the timer %v", chosen, timer.Entry.First)
	}
	l.due(timer.Entry.First)
	if chosen := l.Spill(old); len(chosen) != 0 {
		t.Errorf("%v are spilled while the timer is being handed on", chosen)
	}
	l.HandedOn()
	if chosen := l.Spill(old); !slices.Equal(chosen, []event.Handle{timer.Entry.First}) {
		t.Errorf("%v are spilled, want the timer %v", chosen, timer.Entry.First)
	}
}

// A wait for a held event is short even if the clock was set back meanwhile: when it is right again, the event is due at once.
func TestWaitForAHeldEventIsShort(t *testing.T) {
	s := &Source{holding: []held{{until: wall() + (24 * time.Hour).Milliseconds()}}}
	ctx, cancel := s.untilDue(t.Context())
	defer cancel()
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > earlyMax {
		t.Errorf("the wait ends at %v", end)
	}
	s.hold(held{until: wall() + 1000})
	ctx, cancel = s.untilDue(t.Context())
	defer cancel()
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > time.Second {
		t.Errorf("the wait for the first of two ends at %v", end)
	}
}
