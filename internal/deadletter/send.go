package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"golang.org/x/time/rate"

	"github.com/ringfence/router/internal/broker/pulsarsend"
	"github.com/ringfence/router/internal/source"
)

// Bounds of a batch, which is what an interrupted act leaves in doubt.
const (
	batchMax      = 100
	batchBytesMax = 8 << 20
)

// sender sends batches at a bounded rate.
type sender struct {
	acting    *acting
	limiter   *rate.Limiter
	size      int // of a batch
	producers map[string]pulsar.Producer
	ends      map[string]map[string]Place // topic → topic partition → its last message that is known
	failed    map[string]error            // topic → why it cannot be opened
	refused   map[string]refusal          // topic → what it has not taken
	remain    map[Identity]bool           // events that were not taken

	batch []batched
	bytes int
}

// batched is one event of a batch.
type batched struct {
	outgoing
	sent Sent         // without a letter for an event of a topic
	ack  func() error // nil: nothing to ack
}

func newSender(a *acting, perSecond int) *sender {
	size := min(batchMax, perSecond)
	return &sender{
		acting: a, size: size, limiter: rate.NewLimiter(rate.Limit(perSecond), size),
		producers: map[string]pulsar.Producer{}, ends: map[string]map[string]Place{}, failed: map[string]error{},
		refused: map[string]refusal{}, remain: map[Identity]bool{},
	}
}

func (s *sender) close() {
	for _, p := range s.producers {
		p.Close()
	}
}

// add adds an event to the batch, and sends the batch when it is full. c.Sent counts the event at
// once, since it is one of the limited number of events of the act.
func (s *sender) add(ctx context.Context, e batched, c *Counts) error {
	e.properties[PropertyReplayAct] = s.acting.act.Act
	if s.isRefused(&e) {
		s.refuseUntried(&e, c)
		return nil
	}
	s.batch = append(s.batch, e)
	s.bytes += len(e.message.Payload)
	c.Sent++
	if len(s.batch) < s.size && s.bytes < batchBytesMax {
		return nil
	}
	return s.flush(ctx, c)
}

// flush sends the batch, and takes from c.Sent what is not in its topic. After an error the
// act must not go on: the next one finds out what was sent.
func (s *sender) flush(ctx context.Context, c *Counts) error {
	batch := s.batch
	s.batch, s.bytes = nil, 0
	if len(batch) == 0 {
		return nil
	}
	sent, left, err := s.sendRecorded(ctx, batch, c)
	c.Sent -= len(batch) - sent
	if err != nil {
		return err
	}
	return s.sendAlone(ctx, left, c)
}

// drop takes from c.Sent the events that wait for their batch, of an act that has failed.
func (s *sender) drop(c *Counts) {
	c.Sent -= len(s.batch)
	s.batch = nil
}

// sendRecorded records the batch before it sends it. It returns how many of it are in their topics, and those that are not, though the broker is there.
func (s *sender) sendRecorded(ctx context.Context, batch []batched, c *Counts) (sent int, left []batched, err error) {
	if err := s.limiter.WaitN(ctx, len(batch)); err != nil {
		return 0, nil, err
	}
	r := Record{Act: s.acting.act.Act, Step: StepSending, From: map[string]Place{}}
	for _, e := range batch {
		if err := s.open(ctx, e.topic); err != nil {
			return 0, nil, err
		}
		maps.Copy(r.From, s.ends[e.topic])
		if e.sent.Letter != "" {
			r.Letters = append(r.Letters, e.sent)
		}
	}
	if r.Ends, err = s.acting.lastLetters(ctx); err != nil {
		return 0, nil, err
	}
	if err := s.acting.record(ctx, r); err != nil {
		return 0, nil, err
	}
	confirmed, unanswered, err := s.send(ctx, batch, c)
	if err != nil || len(unanswered) == 0 {
		return len(confirmed), nil, err
	}
	found, left, err := s.find(ctx, confirmed, unanswered, c)
	return len(confirmed) + found, left, err
}

// send sends a batch, waits for all answers, and acks what was confirmed. It is not interrupted by ctx: the answers of a batch that is under way are awaited.
func (s *sender) send(ctx context.Context, batch []batched, c *Counts) (confirmed []Sent, unanswered []batched, err error) {
	ctx = context.WithoutCancel(ctx)
	type result struct {
		at  int
		err error
	}
	ids := make([]pulsar.MessageID, len(batch))
	results := make(chan result, len(batch))
	for i := range batch {
		done := pulsarsend.Within(s.acting.broker.cfg.AnswerMax, func(err error) { results <- result{i, err} })
		s.producers[batch[i].topic].SendAsync(ctx, batch[i].producerMessage(), func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			ids[i] = id
			done(err)
		})
	}
	var errs []error
	for range batch {
		r := <-results
		e := &batch[r.at]
		switch {
		case r.err == nil:
			s.moveEnd(e.topic, ids[r.at])
			confirmed = append(confirmed, e.sent)
			r.err = e.settle(c)
		case errors.Is(r.err, pulsarsend.ErrTimeout):
			unanswered = append(unanswered, *e)
			continue
		}
		if r.err != nil {
			errs = append(errs, fmt.Errorf("deadletter: %s to %s: %w", e.message.ID, e.topic, r.err))
		}
	}
	return confirmed, unanswered, errors.Join(errs[:min(len(errs), 3)]...)
}

// settle counts what an event that is in its topic has lost, and acks its letter.
func (e *batched) settle(c *Counts) error {
	if e.message.Schema {
		c.Schema++
	}
	if e.ack == nil {
		return nil
	}
	return e.ack()
}

func (s *sender) moveEnd(topic string, id pulsar.MessageID) {
	for partition := range s.ends[topic] {
		if n := partitionOf(partition); n == id.PartitionIdx() || n < 0 {
			if at := placeOf(id); s.ends[topic][partition].before(at) {
				s.ends[topic][partition] = at
			}
		}
	}
}

// ErrNotSent says that letters remain whose topics cannot be opened, have no subscription, or have not taken them.
var ErrNotSent = errors.New("letters or events were not sent")

// notSent returns an [ErrNotSent] that names the topics that cannot be opened or have not taken all, and the missing subscriptions, nil if there are none.
func (s *sender) notSent(missing []string) error {
	errs := slices.SortedFunc(maps.Values(s.failed), func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	for _, m := range missing {
		errs = append(errs, errors.New(m))
	}
	for _, topic := range slices.Sorted(maps.Keys(s.refused)) {
		errs = append(errs, s.refused[topic].err(topic))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrNotSent, errors.Join(errs...))
}

// open opens a producer for a topic, after it has learned the topic's end. It tries once.
func (s *sender) open(ctx context.Context, topic string) (err error) {
	if s.producers[topic] != nil || s.failed[topic] != nil {
		return s.failed[topic]
	}
	defer func() {
		if err != nil {
			s.failed[topic] = err
		}
	}()
	if s.ends[topic], err = s.acting.broker.ends(ctx, topic); err != nil {
		return err
	}
	s.producers[topic], err = s.acting.broker.client.CreateProducer(pulsar.ProducerOptions{
		Topic: topic, SendTimeout: pulsarsend.NoTimeout, DisableBatching: true, EnableChunking: true,
		DisableBlockIfQueueFull: true, MaxPendingMessages: 10 * batchMax, // an event may be several chunks
		PartitionsAutoDiscoveryInterval: math.MaxInt64, // never: records name the ends of the partitions that there were, and copies elsewhere would not be found
	})
	if err != nil {
		delete(s.producers, topic)
		return fmt.Errorf("deadletter: producer for %s: %w", topic, err)
	}
	return nil
}

func (o *outgoing) producerMessage() *pulsar.ProducerMessage {
	m := &pulsar.ProducerMessage{
		Payload: o.message.Payload, Key: o.message.MessageKey, OrderingKey: o.message.OrderingKey, Properties: o.properties,
	}
	if o.message.Null {
		m.Payload = nil
	} else if m.Payload == nil {
		m.Payload = []byte{}
	}
	if at := o.message.EventTime; at > 0 && at <= source.EventTimeMax {
		m.EventTime = time.UnixMilli(o.message.EventTime)
	}
	return m
}
