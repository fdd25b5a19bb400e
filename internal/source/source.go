package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/base/tally"
	"github.com/ringfence/router/internal/broker/entries"
)

// ErrSubscriptionType says that the subscription is in use with another type than
// Shared. It is wrapped with the names of both.
var ErrSubscriptionType = errors.New("the subscription has consumers of another type than Shared")

// Sink receives the events of a source.
type Sink interface {
	// Received takes the fresh events of entries, in the order in which the broker delivered them,
	// and gives each its key before it returns. The slice is valid during the call only.
	// It may block to hold the source back; when ctx ends
	// it takes the batch without more waiting.
	Received(ctx context.Context, batch []*event.Entry)
	// Newest appends to dst, for each handle, the event with all failures reported since it
	// was handed on, or nil when the sink no longer holds it.
	Newest(handles []event.Handle, dst []*event.Event) []*event.Event
	// Drop says that the source ignores verdicts on these events from now on, and why.
	Drop(handles []event.Handle, why event.Drop)
}

// connection is a source's connection to a broker. receive is called by one goroutine, ack by
// another one, send by one for each topic; close by any, once, and it makes all other calls
// return.
type connection interface {
	// receive blocks until there is something, and appends receipts of about BatchMax events: the last one may exceed it.
	receive(ctx context.Context, batch []Receipt) ([]Receipt, error)
	// ack may block while the broker is away.
	ack(a Ack) error
	// bound sets the most unacked events of each topic partition, as the broker counts them, if the reader can keep such a bound. It
	// does not block; any goroutine may call it.
	bound(unacked int)
	// limits returns the broker's limits, and false when the broker cannot be asked.
	limits(ctx context.Context) (limits, bool, error)
	// unreadTopics returns the topics that were read and cannot be read any more, or not all of their partitions, and why; nil: none. Any
	// goroutine may call it.
	unreadTopics() map[string]error
	// timers returns why the timer topic is not read, nil if it is. Any goroutine may call it.
	timers() error
	// ends returns the ends of the topic partitions, and false when the broker cannot be
	// asked. Any goroutine may call it.
	ends(ctx context.Context) ([]End, bool, error)
	// send calls done once, from any goroutine, possibly before it returns, and after a timeout once more, without an error,
	// if the broker confirms the copy after all. It never waits for another topic.
	send(ctx context.Context, c outgoing, done func(error))
	// release closes the producers of a topic that send one copy at a time, from a number on: none of these has a copy under way.
	release(topic string, from int)
	// close returns all unacked entries to the broker.
	close()
}

// Source reads a SHARED subscription and settles its events. The package documentation
// describes the concurrency of its methods.
type Source struct {
	cfg     Config
	open    func(ctx context.Context, cfg Config, unackedMax int, log *slog.Logger) (connection, error) // see connection.bound
	metrics *Metrics
	log     *slog.Logger
	tracing Tracing

	broker    connection      // nil until Run has subscribed; written once, under mu, before ready is closed
	copyKeys  func() [][]byte // see openCopyKeys; written by Run before anything uses it
	refused   tally.Tally     // messages that are no valid copies; used by the reader alone
	holding   []held          // events that are not due yet, ascending by until; used by the reader alone
	undelayed bool            // the broker has delivered a timer too early; used by the reader alone
	ready     chan struct{}   // closed when the subscription is open
	stopped   chan struct{}   // closed when nothing more is handed on
	draining  chan struct{}   // closed by the first Drain
	drainOnce sync.Once

	mu      sync.Mutex
	ledger  *Ledger
	acks    []Ack                // to be sent by the acker
	acking  int                  // acks that the acker has taken and not yet sent
	retries *copier              // for the retry topic
	letters *copier              // for the dead letter topic
	parked  *copier              // for the parking topic
	timers  *copier              // for the timer topic
	ended   bool                 // Run has ended
	parking map[event.Key]int    // number of copies for the parking topic that are not safe yet, by key
	isAway  func(event.Key) bool // whether a key is parked or comes back; nil: that is not known
	changed chan struct{}        // capacity 1: tells the reader that something was settled
	members int                  // members that share the subscription, this one included
	ramp    int                  // number of times that the share has doubled since Run began, at most rampSteps
	fresh   struct {             // fresh events received since the last call of heavier
		events, bytes int
	}
	idle  chan struct{} // not nil during Drain; closed when nothing is open
	toAck chan struct{} // capacity 1: tells the acker that there are acks
}

func newSource(cfg Config, metrics *Metrics, log *slog.Logger, open func(context.Context, Config, int, *slog.Logger) (connection, error)) *Source {
	cfg = cfg.Resolved()
	s := &Source{
		cfg: cfg, open: open, metrics: metrics, log: log.With("component", "source"),
		ready: make(chan struct{}), stopped: make(chan struct{}), draining: make(chan struct{}),
		ledger:  NewLedger(cfg.Counting),
		retries: newCopier(cfg.RetryTopic), letters: newCopier(cfg.DeadLetterTopic), parked: newCopier(cfg.ParkingTopic()), timers: newCopier(cfg.TimerTopic()), parking: map[event.Key]int{},
		changed: make(chan struct{}, 1), toAck: make(chan struct{}, 1),
	}
	s.SetMembers(1)
	return s
}

// Ready is closed once Run has subscribed to all topics.
func (s *Source) Ready() <-chan struct{} { return s.ready }

// ContinueAfter makes the handles of s differ from all that an earlier source of this
// node has given. Call it when earlier has ended and before Run.
func (s *Source) ContinueAfter(earlier *Source) {
	earlier.mu.Lock()
	defer earlier.mu.Unlock()
	s.ledger.ContinueAfter(earlier.ledger)
}

// Run subscribes and hands events to sink until ctx ends; then it sends the due acks, closes
// the subscription, which returns all open events to the broker, and returns nil. Any other
// return is an error: the subscription is unavailable ([ErrSubscriptionType]), or lost for
// good. It may be called once.
func (s *Source) Run(ctx context.Context, sink Sink) error {
	if err := s.cfg.Validate(); err != nil {
		return err
	}
	if err := s.openKeys(); err != nil {
		return err
	}
	broker, err := s.open(ctx, s.cfg, s.unackedMax(), s.log)
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was asked to stop while it connected
		}
		return err
	}
	if err := s.adoptLimits(ctx, broker); err != nil {
		broker.close()
		return err
	}
	s.mu.Lock()
	s.broker = broker
	s.share()
	s.mu.Unlock()
	s.log.Info("subscribed", "topics", s.cfg.Topics, "subscription", s.cfg.Subscription, "retry_topic", s.cfg.RetryTopic)
	close(s.ready)

	group, ctx := errgroup.WithContext(ctx)
	acked := make(chan struct{})
	reading, stopReading := context.WithCancel(ctx)
	group.Go(func() error { return s.read(reading, broker, sink) })
	group.Go(func() error {
		select {
		case <-s.draining:
		case <-ctx.Done():
		}
		stopReading()
		return nil
	})
	group.Go(func() error { defer close(acked); s.ack(ctx, broker); return nil })
	for _, c := range []*copier{s.retries, s.letters, s.parked, s.timers} {
		group.Go(func() error { s.copy(ctx, c, broker, sink); return nil })
	}
	group.Go(func() error { s.growShare(ctx); return nil })
	group.Go(func() error { s.followLimits(ctx, broker); return nil })
	group.Go(func() error { s.spill(ctx); return nil })
	group.Go(func() error { s.publishGauges(ctx); return nil })
	group.Go(func() error {
		<-ctx.Done()
		stopReading() // before the connection is closed, which the reader would take for an error
		// A connection may block in ack while the broker is away; closing ends that.
		select {
		case <-acked:
		case <-time.After(s.cfg.CloseTimeout):
		}
		broker.close()
		return nil
	})
	err = group.Wait()
	s.abandon(sink)
	return err
}

// abandon drops the events that are still open: they have returned to the broker.
func (s *Source) abandon(sink Sink) {
	s.mu.Lock()
	open := s.ledger.Close()
	clear(s.parking) // what was on its way is the broker's again
	s.ended = true
	unsent := s.timers.unanswered()
	s.noteSettled()
	s.mu.Unlock()
	for _, answer := range unsent {
		answer(errEnded)
	}
	if len(open) > 0 {
		s.metrics.abandoned.Add(float64(len(open)))
		sink.Drop(open, event.Returned)
	}
	s.metrics.timersHeld.Set(0)
	s.gauges()
}

// Drain stops reading for good, and waits until every event that was handed on is settled or
// ctx ends. Run must be running; it continues and must be ended soon afterwards, because the
// reader's prefetched events wait for that. The broker delivers unsettled events to other
// members, where they join the running execution at their owner.
func (s *Source) Drain(ctx context.Context) error {
	s.drainOnce.Do(func() { close(s.draining) })
	select {
	case <-s.stopped:
	case <-ctx.Done():
		return fmt.Errorf("source: reading has not stopped: %w", context.Cause(ctx))
	}
	for {
		s.mu.Lock()
		if s.idle == nil {
			s.idle = make(chan struct{})
		}
		idle, open := s.idle, s.ledger.Stats().Unsettled
		if open == 0 {
			s.idle = nil
			s.mu.Unlock()
			return nil
		}
		s.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return fmt.Errorf("source: %d events are not settled: %w", open, context.Cause(ctx))
		}
	}
}

// End is the last entry of a topic partition.
type End struct {
	Topic     string // full name
	Partition int32  // -1 when the topic is not partitioned
	Last      EntryID
}

// errNotReady says that there is no subscription yet: to any topic, or, as the answer of connection.timers, to the timer topic.
var errNotReady = errors.New("source: not subscribed")

// ErrNotReading is returned by [Source.Ends] alone: the source has no subscription, not yet or no longer.
var ErrNotReading = errors.New("source: no subscription is open")

// unknownEnd is the end of a topic partition that cannot be read now. It equals the end of an empty one, behind which
// everything is new.
func unknownEnd(topic string, partition int32) End {
	return End{Topic: topic, Partition: partition, Last: EntryID{Ledger: -1, Entry: -1}}
}

// Ends asks the broker for the last entry of each topic partition that s reads. In the end of an empty one, and of one
// that s has lost, the ledger is -1 or has no entry. known is false if this kind of broker has no such question. The
// error is [ErrNotReading] before s is Ready and after it has ended. Ends is safe for concurrent use.
func (s *Source) Ends(ctx context.Context) (ends []End, known bool, err error) {
	if !signal.IsClosed(s.ready) {
		return nil, true, ErrNotReading
	}
	ends, known, err = s.broker.ends(ctx)
	s.mu.Lock()
	ended := s.ended
	s.mu.Unlock()
	if ended || errors.Is(err, entries.ErrClosed) {
		return nil, true, ErrNotReading
	}
	return ends, known, err
}

// ErrPartlyRead says that a topic has other partitions, which are read.
var ErrPartlyRead = errors.New("the other partitions are read")

// Unread returns the topics that s has lost, wholly or in part, each with the reason; nil if none. The reason wraps
// ErrPartlyRead if other partitions of the topic are read. The broker refuses such a topic, for example because a
// right is missing. s tries again to read it, and reads the others meanwhile. Any goroutine may call Unread.
func (s *Source) Unread() map[string]error {
	if !signal.IsClosed(s.ready) {
		return nil
	}
	return s.broker.unreadTopics()
}

// Stats returns the ledger in numbers.
func (s *Source) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Stats()
}

// read is the reader's goroutine: it hands events to the sink until ctx ends, and returns an error only if the
// subscription is lost.
func (s *Source) read(ctx context.Context, broker connection, sink Sink) error {
	defer close(s.stopped)
	var receipts []Receipt // they grow as they are needed: BatchMax may be any number
	var batch []*event.Entry
	for {
		room := s.waitForRoom(ctx)
		if ctx.Err() != nil {
			return nil
		}
		receipts = receipts[:0]
		if room {
			waiting, cancel := s.untilDue(ctx)
			var err error
			receipts, err = broker.receive(waiting, receipts)
			woken := waiting.Err() != nil
			cancel()
			if err != nil && (!woken || errors.Is(err, errLost)) {
				return fmt.Errorf("source: receive: %w", err)
			}
		}
		s.restoreCopies(receipts)
		batch = s.due(s.enter(receipts, batch[:0]))
		if len(batch) > 0 {
			sink.Received(ctx, batch)
		}
		clear(receipts) // so that settled events can be collected
		clear(batch)
	}
}

// waitForRoom blocks while too much is open. It reports false when nothing may be received: ctx has ended, or a held
// event is to be checked, which needs no room since it is open already.
func (s *Source) waitForRoom(ctx context.Context) bool {
	for ctx.Err() == nil {
		s.mu.Lock()
		s.ledger.HandedOn()
		stats := s.ledger.Stats()
		// Acks that cannot be sent while the broker is away count, too.
		full := stats.Unsettled+len(s.acks)+s.acking >= s.cfg.UnsettledMax || stats.Bytes >= s.cfg.UnsettledBytesMax
		s.mu.Unlock()
		if !full {
			return true
		}
		waiting, cancel := s.untilDue(ctx)
		select {
		case <-s.changed:
		case <-waiting.Done():
		}
		due := waiting.Err() != nil
		cancel()
		if due {
			return false
		}
	}
	return false
}

// enter takes receipts into the ledger and appends the entries with fresh events to batch.
func (s *Source) enter(receipts []Receipt, batch []*event.Entry) []*event.Entry {
	now := clock.Now()
	var sum Reception
	var unreadable []event.Verdict
	s.mu.Lock()
	for i := range receipts {
		r := &receipts[i]
		var got Reception
		got, s.acks = s.ledger.Received(now, r, s.acks)
		sum.Joined += got.Joined
		sum.Repeated += got.Repeated
		if got.Fresh == 0 {
			continue
		}
		if r.Unreadable != "" {
			unreadable = append(unreadable, event.Verdict{Handle: r.Entry.First, Kind: event.Rejected, Detail: &event.Detail{Reason: r.Unreadable}})
			continue
		}
		if r.early.entry = r.Entry; r.early.until != 0 {
			s.hold(r.early)
		} else {
			batch = append(batch, r.Entry)
		}
		sum.Fresh += got.Fresh
		s.fresh.events += got.Fresh
		s.fresh.bytes += r.Entry.Bytes
	}
	again := len(s.acks) > 0
	s.mu.Unlock()
	if again {
		signal.Set(s.toAck)
	}
	if len(unreadable) > 0 {
		s.Settle(nil, unreadable)
		s.metrics.received.WithLabelValues("unreadable").Add(float64(len(unreadable)))
	}
	s.metrics.received.WithLabelValues("fresh").Add(float64(sum.Fresh))
	if sum.Joined+sum.Repeated > 0 {
		s.metrics.received.WithLabelValues("joined").Add(float64(sum.Joined))
		s.metrics.received.WithLabelValues("repeated").Add(float64(sum.Repeated))
	}
	return batch
}

// Settle brings events to their end: done is acked, failed is copied to the retry
// topic with its delay and then acked, rejected is copied to the dead letter topic
// and then acked, parked likewise to the parking topic. Of the verdicts about one event the
// first counts; other kinds than these four are not for the source. The events of the sets are done. Settle is safe for
// concurrent use, does not block, and keeps neither slice.
func (s *Source) Settle(sets []event.Set, verdicts []event.Verdict) {
	var doneInSets, inSets int
	s.mu.Lock()
	for i := range sets {
		var n int
		s.acks, n = s.ledger.Done(sets[i], s.acks)
		doneInSets += n
		inSets += sets[i].Events.Len()
	}
	var claims []Claimed
	var done int
	s.acks, claims, done = s.ledger.Settle(verdicts, s.acks)
	done += doneInSets
	ignored := inSets + len(verdicts) - done - len(claims)
	for _, c := range claims {
		s.queueCopy(outgoingEvent{message: c.Message, verdict: c.Verdict})
		if c.Verdict.Kind == event.Parked {
			s.countParking(c.Message.Event.Key, 1)
		}
	}
	s.noteSettled()
	s.mu.Unlock()
	s.metrics.acked.Add(float64(done))
	s.metrics.ignored.Add(float64(ignored))
}

// SetParked sets the function that tells whether a key is parked or comes back from the parking topic, as this member knows it. A copy that
// becomes safe while the key is neither is reported. Call it before Run.
func (s *Source) SetParked(is func(event.Key) bool) { s.isAway = is }

// countParking counts copies for the parking topic that are under way. The caller holds the lock.
func (s *Source) countParking(key event.Key, n int) {
	if _, known := s.parking[key]; !known {
		key = event.Key(strings.Clone(string(key)))
	}
	if s.parking[key] += n; s.parking[key] == 0 {
		delete(s.parking, key)
	}
}

// Parking returns how many events of a key are on their way to the parking topic: they have the verdict, and their copies are not safe yet.
func (s *Source) Parking(key event.Key) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parking[key]
}

// Copy copies an event that is not of this source to the topic that its verdict, Failed or Rejected, demands. done is called when the
// copy is safe, from another goroutine, and never if Run ends before.
func (s *Source) Copy(m event.Message, v event.Verdict, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queueCopy(outgoingEvent{message: m, verdict: v, done: done})
}

// noteSettled wakes the goroutines that wait for settlements. It is called under the lock
// and does not block.
func (s *Source) noteSettled() {
	if len(s.acks) > 0 {
		signal.Set(s.toAck)
	}
	signal.Set(s.changed)
	if s.idle != nil && s.ledger.Stats().Unsettled == 0 {
		close(s.idle)
		s.idle = nil
	}
}

// ack is the acker's goroutine. When ctx ends it sends due acks and returns.
func (s *Source) ack(ctx context.Context, broker connection) {
	var acks []Ack
	var refused tally.Tally // if a topic is lost, the acks of all its open events are refused
	for ended := false; !ended; {
		select {
		case <-s.toAck:
		case <-ctx.Done():
			ended = true
		}
		s.mu.Lock()
		acks, s.acks = s.acks, acks[:0]
		s.acking = len(acks)
		s.mu.Unlock()
		for _, a := range acks {
			if err := broker.ack(a); err != nil {
				s.metrics.ackFailures.Inc()
				if acks, due := refused.Add(clock.Now(), 1, tallyEvery); due {
					s.log.Warn("ack refused, the broker will deliver the entry again", "acks", acks, "message_id", a.Entry, "error", err)
				}
			}
		}
		clear(acks)
		s.mu.Lock()
		s.acking = 0
		s.mu.Unlock()
		signal.Set(s.changed)
	}
}

// tallyEvery is the least time between two lines in the log about incidents that can come in thousands.
const tallyEvery = 10 * time.Second

// spillEvery is the interval at which the ledger is asked for events to spill.
const spillEvery = 100 * time.Millisecond

// spill is a goroutine. It passes the events that the ledger chooses for spilling to the copier of the retry topic.
func (s *Source) spill(ctx context.Context) {
	var spilled tally.Tally
	every(ctx, spillEvery, func() (again bool) {
		now := clock.Now()
		s.mu.Lock()
		chosen := s.ledger.Spill(now)
		for _, h := range chosen {
			s.retries.add(outgoingEvent{verdict: event.Verdict{Handle: h}, spilled: true})
		}
		stats := s.ledger.Stats()
		s.mu.Unlock()
		if events, due := spilled.Add(now, len(chosen), tallyEvery); due {
			s.log.Warn("events that are open for a long time are copied to the retry topic",
				"events", events, "unsettled", stats.Unsettled, "pinned", stats.Pinned, "open_entries", stats.Entries)
		}
		return true
	})
}

// every calls do after each interval until it returns false or ctx ends.
func every(ctx context.Context, interval time.Duration, do func() (again bool)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if !do() {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
