package membroker

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/broker/topicname"
)

// The types of subscription that are served, as Pulsar names them. Exclusive is
// here so that two types can meet: it is Shared with one consumer.
const (
	Shared    = "Shared"
	Exclusive = "Exclusive"
)

var (
	// ErrSubscriptionType says that a subscription has another type. It is wrapped
	// with the names of both.
	ErrSubscriptionType = errors.New("membroker: subscription is of different type")
	// ErrClosed says that the consumer or its connection is closed.
	ErrClosed = errors.New("membroker: closed")
	// ErrInvalid says that a request is invalid.
	ErrInvalid = errors.New("membroker: invalid request")
)

// Config holds the limits of a broker.
type Config struct {
	// UnackedMax is the number of unacked events at which a consumer gets no more (Pulsar's
	// maxUnackedMessagesPerConsumer). At least 1.
	UnackedMax int
	// SubscriptionUnackedMax is the same for all consumers of a topic's subscription
	// together (maxUnackedMessagesPerSubscription). At least 1.
	SubscriptionUnackedMax int
	// LedgerEntriesMax is the number of entries in a ledger of a topic or log. At least 1.
	LedgerEntriesMax int
	// RetainedMax is the number of entries that a topic keeps for its first subscription;
	// older ones are forgotten. At least 1.
	RetainedMax int
	// RecordsMax is the number of kept records of a log; older ones are forgotten. At least 1.
	RecordsMax int
}

// DefaultConfig returns the limits of a stock Pulsar, and bounds on memory.
func DefaultConfig() Config {
	return Config{
		UnackedMax: 50_000, SubscriptionUnackedMax: 200_000, LedgerEntriesMax: 50_000,
		RetainedMax: 1_000_000, RecordsMax: 100_000,
	}
}

// Message is one event as a producer sends it.
type Message struct {
	Key         string
	OrderingKey string
	Payload     []byte // never written to
	Properties  map[string]string
	PublishTime int64 // Unix milliseconds; 0 becomes the broker's time
	EventTime   int64 // Unix milliseconds, 0 when there is none
	DeliverAt   int64 // Unix milliseconds, 0 for at once
}

// EntryID names an entry; ledgers are unique in a broker.
type EntryID struct{ Ledger, Entry int64 }

// Entry is one delivery of an entry, with all its events.
type Entry struct {
	ID         EntryID
	Topic      string // with the partition
	Messages   []Message
	Batched    bool   // the producer sent a batch
	Redelivery uint32 // how often it was delivered before
}

// Ack names events of an entry: the one at Index, or all when Index is negative.
type Ack struct {
	ID    EntryID
	Index int32
}

// SubscribeOptions are the options of a consumer.
type SubscribeOptions struct {
	Subscription string
	Type         string // "" is Shared
	Topics       []string
	FromLatest   bool // a new subscription begins with the next entry, not with the oldest
}

// Stats is a subscription in numbers, over all its topics.
type Stats struct {
	Backlog   int // events that no consumer has
	Unacked   int // events that consumers have and that are not acked
	Published int // events, ever
	Acked     int // events, ever
	Consumers int
}

// Broker is the broker.
type Broker struct {
	cfg Config

	mu         sync.Mutex
	ledgers    int64
	partitions map[string]int // of partitioned topics
	rotation   map[string]int // next partition for messages without a key
	topics     map[string]*topic
	logs       map[string]*recordLog
	timer      *time.Timer // the next delayed entry
}

// New returns an empty broker.
func New(cfg Config) *Broker {
	return &Broker{
		cfg: cfg, partitions: make(map[string]int), rotation: make(map[string]int),
		topics: make(map[string]*topic), logs: make(map[string]*recordLog),
	}
}

// topic is a topic or a topic partition.
type topic struct {
	name          string
	next          EntryID
	subscriptions map[string]*subscription
	retained      fifo // kept for the first subscription, until it comes
	published     int
}

// stored is an entry in a topic.
type stored struct {
	id        EntryID
	messages  []Message
	deliverAt int64
}

// subscription is one subscription of one topic.
type subscription struct {
	name      string
	kind      string // of its present consumers
	topic     *topic
	waiting   fifo // new entries
	again     fifo // entries to deliver again, before new ones
	delayed   delayed
	out       map[EntryID]*delivery
	consumers []*consumer
	turn      int // whose turn it is
	unacked   int
	acked     int
}

// queued is an entry that no consumer has.
type queued struct {
	*stored
	redelivery uint32
}

// delivery is an entry that a consumer has.
type delivery struct {
	queued
	to    *consumer
	acked []bool
	left  int
}

// CreatePartitionedTopic makes topic a partitioned one.
func (b *Broker) CreatePartitionedTopic(topic string, partitions int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if partitions < 1 || b.topics[topic] != nil || b.partitions[topic] != 0 {
		return fmt.Errorf("%w: %s: %d partitions, or the topic is there", ErrInvalid, topic, partitions)
	}
	b.partitions[topic] = partitions
	return nil
}

// Publish appends one entry to a topic, which is made if it is not there. A batch
// goes to one partition: that of its first key, or the next one in turn.
func (b *Broker) Publish(_ context.Context, topic string, messages []Message) (EntryID, error) {
	if topic == "" || len(messages) == 0 {
		return EntryID{}, fmt.Errorf("%w: publish %d messages to %q", ErrInvalid, len(messages), topic)
	}
	now := wallClock()
	for i := range messages {
		if messages[i].PublishTime == 0 {
			messages[i].PublishTime = now
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.topic(b.route(topic, messages[0].Key))
	e := &stored{id: t.next, messages: messages, deliverAt: messages[0].DeliverAt}
	t.next.Entry++
	if t.next.Entry == int64(b.cfg.LedgerEntriesMax) {
		t.next = EntryID{Ledger: b.newLedger()}
	}
	t.published += len(messages)
	if len(t.subscriptions) == 0 {
		t.retained.push(queued{stored: e})
		if t.retained.len() > b.cfg.RetainedMax {
			t.retained.pop()
		}
	}
	for _, s := range t.subscriptions {
		s.add(queued{stored: e}, now)
		s.dispatch(b.cfg)
	}
	if e.deliverAt > now {
		b.setTimer(now)
	}
	return e.id, nil
}

// Last returns the last entry of each partition of a topic, by their names. That of an
// empty ledger is -1.
func (b *Broker) Last(topic string) map[string]EntryID {
	b.mu.Lock()
	defer b.mu.Unlock()
	names := b.expand([]string{topic})
	last := make(map[string]EntryID, len(names))
	for _, name := range names {
		next := b.topic(name).next
		last[name] = EntryID{Ledger: next.Ledger, Entry: next.Entry - 1}
	}
	return last
}

func (b *Broker) route(topic, key string) string {
	n := b.partitions[topic]
	if n == 0 {
		return topic
	}
	at := b.rotation[topic]
	if key == "" {
		b.rotation[topic] = (at + 1) % n
	} else {
		hash := fnv.New32a()
		hash.Write([]byte(key))
		at = int(hash.Sum32() % uint32(n))
	}
	return topicname.Partition(topic, at)
}

func (b *Broker) newLedger() int64 { b.ledgers++; return b.ledgers }

func (b *Broker) topic(name string) *topic {
	t := b.topics[name]
	if t == nil {
		t = &topic{name: name, next: EntryID{Ledger: b.newLedger()}, subscriptions: make(map[string]*subscription)}
		b.topics[name] = t
	}
	return t
}

// Subscribe attaches a consumer to a subscription of one or more topics, which are
// made if they are not there. It gets nothing before its first Permit.
func (b *Broker) Subscribe(_ context.Context, o SubscribeOptions) (Consumer, error) {
	if o.Subscription == "" || len(o.Topics) == 0 || slices.Contains(o.Topics, "") {
		return nil, fmt.Errorf("%w: subscribe %q to %q", ErrInvalid, o.Subscription, o.Topics)
	}
	switch o.Type {
	case "":
		o.Type = Shared
	case Shared, Exclusive:
	default:
		return nil, fmt.Errorf("%w: no subscription is served as %s", ErrInvalid, o.Type)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	names := b.expand(o.Topics)
	for _, name := range names {
		if err := b.topic(name).admits(o); err != nil {
			return nil, err
		}
	}
	c := &consumer{broker: b, wake: make(chan struct{}, 1)}
	now := wallClock()
	for _, name := range names {
		s := b.subscription(b.topic(name), o, now)
		s.consumers = append(s.consumers, c)
		c.subscriptions = append(c.subscriptions, s)
	}
	b.setTimer(now)
	return c, nil
}

// admits checks that the subscription may have a consumer of this type.
func (t *topic) admits(o SubscribeOptions) error {
	s := t.subscriptions[o.Subscription]
	if s == nil || len(s.consumers) == 0 {
		return nil
	}
	if s.kind != o.Type || s.kind == Exclusive {
		return fmt.Errorf("%w: %q on %s has %d consumers as %s and is asked for as %s",
			ErrSubscriptionType, o.Subscription, t.name, len(s.consumers), s.kind, o.Type)
	}
	return nil
}

// expand replaces partitioned topics by their partitions and removes doubles.
func (b *Broker) expand(topics []string) []string {
	var names []string
	for _, name := range topics {
		if n := b.partitions[name]; n > 0 {
			for i := range n {
				names = append(names, topicname.Partition(name, i))
			}
		} else {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (b *Broker) subscription(t *topic, o SubscribeOptions, now int64) *subscription {
	s := t.subscriptions[o.Subscription]
	if s != nil {
		s.kind = o.Type
		return s
	}
	s = &subscription{kind: o.Type, name: o.Subscription, topic: t, out: make(map[EntryID]*delivery)}
	if len(t.subscriptions) == 0 {
		if !o.FromLatest {
			for t.retained.len() > 0 {
				s.add(t.retained.pop(), now)
			}
		}
		t.retained = fifo{}
	}
	t.subscriptions[o.Subscription] = s
	return s
}

// add queues an entry, or holds it back.
func (s *subscription) add(q queued, now int64) {
	switch {
	case q.deliverAt > now:
		heap.Push(&s.delayed, q)
	case q.redelivery > 0:
		s.again.push(q)
	default:
		s.waiting.push(q)
	}
}

// dispatch delivers waiting entries to consumers with permits.
func (s *subscription) dispatch(cfg Config) {
	for s.unacked < cfg.SubscriptionUnackedMax {
		from := &s.again
		if from.len() == 0 {
			from = &s.waiting
		}
		if from.len() == 0 {
			return
		}
		c := s.nextConsumer(cfg)
		if c == nil {
			return
		}
		s.deliver(from.pop(), c)
	}
}

// nextConsumer returns consumers in round robin, or nil when none can take an entry.
func (s *subscription) nextConsumer(cfg Config) *consumer {
	for range s.consumers {
		c := s.consumers[s.turn%len(s.consumers)]
		s.turn = (s.turn + 1) % len(s.consumers)
		if c.permits > 0 && c.unacked < cfg.UnackedMax {
			return c
		}
	}
	return nil
}

func (s *subscription) deliver(q queued, c *consumer) {
	n := len(q.messages)
	s.out[q.id] = &delivery{queued: q, to: c, acked: make([]bool, n), left: n}
	s.unacked += n
	c.unacked += n
	c.permits -= n
	c.inbox = append(c.inbox, Entry{ID: q.id, Topic: s.topic.name, Messages: q.messages, Batched: len(q.messages) > 1, Redelivery: q.redelivery})
	signal.Set(c.wake)
}

// takeBack makes an entry ready for another delivery.
func (s *subscription) takeBack(d *delivery, now int64) {
	delete(s.out, d.id)
	s.unacked -= len(d.messages)
	d.to.unacked -= len(d.messages)
	s.add(queued{stored: d.stored, redelivery: d.redelivery + 1}, now)
}

// ack marks events of an entry, and forgets it when all are.
func (s *subscription) ack(a Ack) bool {
	d := s.out[a.ID]
	if d == nil {
		return false
	}
	switch {
	case a.Index < 0:
		d.left = 0
	case int(a.Index) < len(d.acked) && !d.acked[a.Index]:
		d.acked[a.Index] = true
		d.left--
	}
	if d.left == 0 {
		delete(s.out, a.ID)
		s.unacked -= len(d.messages)
		d.to.unacked -= len(d.messages)
		s.acked += len(d.messages)
	}
	return true
}

// Unload has the effect on consumers of a topic's move between Pulsar brokers: everything
// unacked is redelivered.
func (b *Broker) Unload(topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := wallClock()
	for _, name := range b.expand([]string{topic}) {
		for _, s := range b.topic(name).subscriptions {
			for _, c := range s.consumers {
				for _, d := range s.heldBy(c) {
					s.takeBack(d, now)
				}
			}
			s.dispatch(b.cfg)
		}
	}
}

// SubscriptionStats returns the sums over all topics of a subscription but those
// given; of all subscriptions when its name is empty. Published counts each topic once.
func (b *Broker) SubscriptionStats(name string, except ...string) Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	topics := slices.Sorted(maps.Keys(b.topics))
	return b.sum(slices.DeleteFunc(topics, func(topic string) bool { return slices.Contains(except, topic) }), name)
}

// TopicStats is SubscriptionStats for one topic, with all its partitions.
func (b *Broker) TopicStats(topic, subscription string) Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sum(b.expand([]string{topic}), subscription)
}

func (b *Broker) sum(topics []string, name string) Stats {
	var stats Stats
	consumers := make(map[*consumer]bool)
	for _, topic := range topics {
		t := b.topics[topic]
		if t == nil {
			continue
		}
		stats.Published += t.published
		for _, s := range t.subscriptions {
			if name != "" && s.name != name {
				continue
			}
			stats.Backlog += s.waiting.events() + s.again.events() + s.delayed.events()
			stats.Unacked += s.unacked
			stats.Acked += s.acked
			for _, c := range s.consumers {
				consumers[c] = true
			}
		}
	}
	stats.Consumers = len(consumers)
	return stats
}

// setTimer arranges for the next delayed entry.
func (b *Broker) setTimer(now int64) {
	next := int64(0)
	for _, t := range b.topics {
		for _, s := range t.subscriptions {
			if len(s.delayed) > 0 && (next == 0 || s.delayed[0].deliverAt < next) {
				next = s.delayed[0].deliverAt
			}
		}
	}
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	if next != 0 {
		b.timer = time.AfterFunc(time.Duration(next-now)*time.Millisecond, b.release)
	}
}

// release moves delayed entries that are due.
func (b *Broker) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := wallClock()
	for _, t := range b.topics {
		for _, s := range t.subscriptions {
			for len(s.delayed) > 0 && s.delayed[0].deliverAt <= now {
				q, _ := heap.Pop(&s.delayed).(queued)
				s.add(q, now)
			}
			s.dispatch(b.cfg)
		}
	}
	b.setTimer(now)
}

// wallClock returns Unix milliseconds, the unit of publish times and delays.
func wallClock() int64 {
	return time.Now().UnixMilli() //nolint:forbidigo // messages carry wall-clock times; no lease depends on this
}
