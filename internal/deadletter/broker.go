package deadletter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/pulsarread"
	"github.com/ringfence/router/internal/broker/topicname"
	"github.com/ringfence/router/internal/key"
)

// Config of a [Broker].
type Config struct {
	LettersTopic string        // full name
	Subscription string        // of the dead letter topic
	RetryTopic   string        // full name; nothing is sent to it
	Topics       []string      // full names of the topics of the group
	Group        string        // the subscription of these topics
	Key          key.Extractor // of the group

	ReadMax   int           // letters that one command reads
	BytesMax  int           // of the letters that one command reads; 0: any number
	ReadFor   time.Duration // how long one command reads letters, and sends those that it has read; 0: for as long as it takes
	QueueMax  int           // letters that the client fetches ahead
	QuietMax  time.Duration // silence that counts as the end of the letters, if the topic's last message is acked
	AnswerMax time.Duration // for an answer of the broker
	BusyMax   time.Duration // to wait for another consumer of the letters: routers attach one for a moment once a minute
	LateMax   time.Duration // for which messages of a command that was killed may still arrive
	SkewMax   time.Duration // between the clocks of producers
	AheadMax  int           // consecutive messages that end the search for a batch if all are later than it by more than SkewMax; fewer may come from producers whose clocks are ahead

	Now   func() time.Time // wall clock, for records
	Audit func(Record)     // called with the beginning and the end of an act that the replays topic has accepted

	// Subscriptions returns the names of the durable subscriptions of each of a topic's partitions, none of one that is not there; nil: they cannot be
	// known. It is asked before anything is sent to the topic.
	Subscriptions func(ctx context.Context, topic string) (map[string][]string, error)
}

// DefaultConfig returns the defaults, without topics and clock.
func DefaultConfig() Config {
	return Config{
		ReadMax: 1_000_000, QueueMax: 100, QuietMax: 5 * time.Second, AnswerMax: 30 * time.Second, BusyMax: 10 * time.Second,
		LateMax: 3 * time.Second, SkewMax: 10 * time.Minute, AheadMax: 100_000, Audit: func(Record) {},
	}
}

// ReplaysTopic returns the name of the replays topic.
func (c Config) ReplaysTopic() string { return c.LettersTopic + "-REPLAYS" }

// Broker performs acts with a client of Pulsar. New makes it without I/O.
type Broker struct {
	cfg    Config
	client pulsar.Client
}

// New returns a Broker. The client remains the caller's.
func New(cfg Config, client pulsar.Client) *Broker { return &Broker{cfg: cfg, client: client} }

// ErrConsumed says that somebody else consumes the dead letters.
var ErrConsumed = errors.New("another consumer is attached: stop it first")

// errStop ends a reading early.
var errStop = errors.New("enough")

func nothing() error { return nil }

// received is a letter on its subscription.
type received struct {
	Letter
	shared int // messages of its entry, itself included
	ack    func() error
}

// letters reads the letters that are not acked, in the order of each topic partition, until each
// returns errStop. At the end of each topic partition it calls flush: after that its letters cannot be
// acked. reach says why it ended, "" at the end of the topic.
func (b *Broker) letters(ctx context.Context, each func(*received) error, flush func() error) (reach string, err error) {
	topics, err := b.client.TopicPartitions(b.cfg.LettersTopic)
	if err != nil {
		return "", fmt.Errorf("deadletter: %s: %w", b.cfg.LettersTopic, err)
	}
	left := b.newBudget(ctx)
	defer left.end()
	var reaches []string
	for i, topic := range topics {
		if why := left.why(); why != "" {
			reaches = append(reaches, fmt.Sprintf("%s; %d of %d topic partitions were not read", why, len(topics)-i, len(topics)))
			break
		}
		reach, err := b.lettersOf(ctx, topic, left, each, flush)
		if errors.Is(err, errStop) {
			break
		}
		if err != nil {
			return "", err
		}
		if reach != "" && (i == len(topics)-1 || !left.isOver()) { // else the next round says why
			reaches = append(reaches, reach)
		}
	}
	return strings.Join(reaches, "; "), nil
}

// budget is what is left for the reading of one command.
type budget struct {
	cfg            *Config
	letters, bytes int
	time           context.Context //nolint:containedctx // it is a timer
	end            func()
}

func (b *Broker) newBudget(ctx context.Context) *budget {
	left := &budget{cfg: &b.cfg, letters: b.cfg.ReadMax, bytes: b.cfg.BytesMax, time: ctx, end: func() {}}
	if b.cfg.ReadFor > 0 {
		left.time, left.end = context.WithTimeout(ctx, b.cfg.ReadFor)
	}
	return left
}

func (l *budget) spend(m *message) {
	l.letters--
	l.bytes -= len(m.Payload) + len(m.MessageKey) + len(m.OrderingKey)
	for _, p := range m.Properties {
		l.bytes -= len(p.Name) + len(p.Value)
	}
}

func (l *budget) isOver() bool { return l.why() != "" }

// why says which limit has ended the reading, "" if none has.
func (l *budget) why() string {
	switch {
	case l.letters <= 0:
		return fmt.Sprintf("%d letters were read, which is the most that one command reads", l.cfg.ReadMax)
	case l.cfg.BytesMax > 0 && l.bytes <= 0:
		return fmt.Sprintf("letters of %d MiB were read, which is the most that one command reads", l.cfg.BytesMax>>20)
	case l.time.Err() != nil:
		return fmt.Sprintf("letters were read for %v, which is the longest that one command reads", l.cfg.ReadFor)
	}
	return ""
}

func (b *Broker) lettersOf(ctx context.Context, topic string, left *budget, each func(*received) error, flush func() error) (reach string, err error) {
	consumer, err := b.attach(ctx, topic)
	if err != nil {
		return "", err
	}
	defer consumer.Close()
	defer func() {
		if err == nil {
			err = flush()
		}
	}()
	ends, err := consumer.GetLastMessageIDs()
	if err != nil {
		return "", fmt.Errorf("deadletter: end of %s: %w", topic, err)
	}
	if len(ends) != 1 || ends[0].EntryID() < 0 {
		return "", nil // it holds nothing
	}
	end := placeOf(ends[0])
	for !left.isOver() {
		m, err := receive(ctx, consumer.Receive, b.cfg.QuietMax)
		switch {
		case errors.Is(err, errQuiet):
			return fmt.Sprintf("no further letter of %s came within %v", topic, b.cfg.QuietMax), nil
		case err != nil:
			return "", err
		}
		letter := &received{
			Letter: newLetter(messageOf(m, topic), b.cfg.Key), shared: int(m.ID().BatchSize()), ack: func() error { return consumer.AckID(m.ID()) },
		}
		left.spend(&letter.message)
		if err := each(letter); err != nil {
			return "", err
		}
		if isLast(m, end) {
			return "", nil
		}
	}
	return left.why(), nil
}

// attach subscribes to the letters. The consumer is exclusive, so that no letter goes to two commands.
func (b *Broker) attach(ctx context.Context, topic string) (consumer pulsar.Consumer, err error) {
	err = b.patiently(ctx, ErrConsumed, pulsarread.IsTaken, func() (err error) {
		consumer, err = pulsarread.Subscribe(b.client, pulsar.ConsumerOptions{
			Topic: topic, SubscriptionName: b.cfg.Subscription, Type: pulsar.Exclusive,
			SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
			ReceiverQueueSize:           b.cfg.QueueMax, AckWithResponse: true,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("deadletter: subscription %q on %s: %w", b.cfg.Subscription, topic, err)
	}
	return consumer, nil
}

// patiently calls try again while its error is that the broker has another consumer or producer, for at most BusyMax: the
// broker may not have noticed yet that an earlier command was killed.
func (b *Broker) patiently(ctx context.Context, busy error, isBusy func(error) bool, try func() error) error {
	patience, cancel := context.WithTimeout(ctx, b.cfg.BusyMax)
	defer cancel()
	delays := backoff.Backoff{Min: 100 * time.Millisecond, Max: time.Second}
	for {
		err := try()
		if err == nil || !isBusy(err) {
			return err
		}
		if backoff.Sleep(patience, delays.Next()) != nil {
			return fmt.Errorf("%w: %w", busy, err)
		}
	}
}

// errQuiet says that no message came in time.
var errQuiet = errors.New("deadletter: no message came")

// receive calls next with a timeout.
func receive(ctx context.Context, next func(context.Context) (pulsar.Message, error), within time.Duration) (pulsar.Message, error) {
	timed, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	m, err := next(timed)
	if err != nil && ctx.Err() == nil && timed.Err() != nil {
		return nil, errQuiet
	}
	if err != nil {
		return nil, fmt.Errorf("deadletter: receive: %w", err)
	}
	return m, nil
}

// read reads a topic partition up to its present end, from a place (inclusive). It returns that end.
func (b *Broker) read(ctx context.Context, topic string, from Place, each func(pulsar.Message) error) (end Place, err error) {
	reader, err := b.readerAt(topic, from)
	if err != nil {
		return end, err
	}
	defer reader.Close()
	if end, err = lastOf(reader, topic); err != nil || end.Entry < 0 || end.before(from) {
		return end, err
	}
	messages := whole{
		open: func(from Place) (pulsar.Reader, error) { return b.readerAt(topic, from) }, reader: reader, from: from, end: end, within: b.cfg.AnswerMax,
	}
	for {
		m, err := messages.next(ctx)
		if err != nil {
			return end, fmt.Errorf("%w: %s up to %v", err, topic, end)
		}
		if end.before(placeOf(m.ID())) {
			return end, nil
		}
		if err := each(m); err != nil {
			return end, err
		}
		if isLast(m, end) {
			return end, nil
		}
	}
}

// readSince reads a topic partition up to its present end, from about a time on, or from the beginning
// if it is zero: each may see older messages. It returns that end. Producers claim the
// times: unsure says why messages that were published since then may have been missed, "" if nothing tells so.
func (b *Broker) readSince(ctx context.Context, topic string, since time.Time, each func(pulsar.Message) error) (end Place, unsure string, err error) {
	start := Place{Entry: -1}
	if !since.IsZero() {
		since = since.Add(-b.cfg.SkewMax) // an older message may stand behind one published since then
		if end, err = b.endOf(topic); err != nil || end.Entry < 0 {
			return end, "", err
		}
		last, err := b.firstFrom(ctx, topic, end)
		switch {
		case err != nil:
			return end, "", err
		case last == nil || !last.PublishTime().Before(since):
			if start, err = b.before(ctx, topic, since); err != nil {
				return end, "", err
			}
		default: // a seek would find nothing either: brokers look at the last message first
			if hides, err := b.hides(ctx, topic, end, since); err != nil || !hides {
				return end, "was not read, since its last events claim to be older", err
			}
		}
	}
	var newest time.Time
	end, err = b.read(ctx, topic, start, func(m pulsar.Message) error {
		at := m.PublishTime()
		if start.Entry >= 0 && at.Before(newest.Add(-b.cfg.SkewMax)) {
			unsure = fmt.Sprintf("has events of clocks that differ by more than %v, so events before %v may be missing", b.cfg.SkewMax, start)
		}
		if at.After(newest) {
			newest = at
		}
		return each(m)
	})
	return end, unsure, err
}

// tailMax is the number of entries at the end of a topic partition that are searched for a new message if the last
// one is old. Publish times are those of the producers' clocks, so an old last message may follow new ones.
const tailMax = 100

// hides reports whether, among the last entries of its ledger, the last message follows one that was published at or
// after a time, although it is older itself.
func (b *Broker) hides(ctx context.Context, topic string, end Place, since time.Time) (bool, error) {
	_, err := b.read(ctx, topic, Place{end.Ledger, max(0, end.Entry-tailMax+1)}, func(m pulsar.Message) error {
		if m.PublishTime().Before(since) {
			return nil
		}
		return errStop
	})
	if errors.Is(err, errStop) {
		return true, nil
	}
	return false, err
}

// before returns the place of a message published before a time, with few messages between, or the
// beginning of the topic partition.
//
// A seek alone does not tell the place: the client drops the messages that it receives after the seek
// and before it clears its queue. So the first message that it shows must be older than the time.
func (b *Broker) before(ctx context.Context, topic string, t time.Time) (Place, error) {
	beginning := Place{Entry: -1}
	first, err := b.firstFrom(ctx, topic, beginning)
	if err != nil || first == nil || !first.PublishTime().Before(t) {
		return beginning, err
	}
	slack := time.Minute
	for range 6 { // up to 23 days
		m, err := b.firstSince(ctx, topic, t.Add(-slack))
		if err != nil || m == nil {
			return beginning, err
		}
		if m.PublishTime().Before(t) {
			return placeOf(m.ID()), nil
		}
		slack *= 8
	}
	return beginning, nil
}

// firstFrom returns the first message at a place or after it, nil if none comes within QuietMax.
func (b *Broker) firstFrom(ctx context.Context, topic string, from Place) (pulsar.Message, error) {
	reader, err := b.readerAt(topic, from)
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	return b.first(ctx, reader)
}

// firstSince returns the first message that a reader shows after it has sought a time, nil if none
// comes within QuietMax. It may be later than the first one since then.
func (b *Broker) firstSince(ctx context.Context, topic string, t time.Time) (pulsar.Message, error) {
	reader, err := b.reader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.LatestMessageID(), ReceiverQueueSize: 10})
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	if err := reader.SeekByTime(t); err != nil {
		return nil, fmt.Errorf("deadletter: %s at %v: %w", topic, t, err)
	}
	return b.first(ctx, reader)
}

// first returns the first message of a reader, nil if none comes within QuietMax.
func (b *Broker) first(ctx context.Context, reader pulsar.Reader) (pulsar.Message, error) {
	m, err := receive(ctx, reader.Next, b.cfg.QuietMax)
	if errors.Is(err, errQuiet) {
		err = nil
	}
	return m, err
}

// readerAt returns a reader that begins at a place (inclusive), or with the first message if from.Entry is -1.
func (b *Broker) readerAt(topic string, from Place) (pulsar.Reader, error) {
	options := pulsar.ReaderOptions{
		Topic: topic, StartMessageID: pulsar.EarliestMessageID(), ReceiverQueueSize: 500,
	}
	if from.Entry >= 0 {
		options.StartMessageID = pulsar.NewMessageID(from.Ledger, from.Entry, -1, max(0, partitionOf(topic)))
		options.StartMessageIDInclusive = true
	}
	return b.reader(options)
}

func (b *Broker) reader(o pulsar.ReaderOptions) (pulsar.Reader, error) {
	reader, err := pulsarread.Reader(b.client, o)
	if err != nil {
		return nil, fmt.Errorf("deadletter: reader of %s: %w", o.Topic, err)
	}
	return reader, nil
}

func lastOf(reader pulsar.Reader, topic string) (Place, error) {
	last, err := reader.GetLastMessageID()
	if err != nil {
		return Place{}, fmt.Errorf("deadletter: end of %s: %w", topic, err)
	}
	return placeOf(last), nil
}

// endOf returns the place of the last message of a topic partition.
func (b *Broker) endOf(topic string) (Place, error) {
	reader, err := b.reader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.LatestMessageID(), ReceiverQueueSize: 1})
	if err != nil {
		return Place{}, err
	}
	defer reader.Close()
	return lastOf(reader, topic)
}

// ends returns the place of the last message of each topic partition.
func (b *Broker) ends(topic string) (map[string]Place, error) {
	partitions, err := b.client.TopicPartitions(topic)
	if err != nil {
		return nil, fmt.Errorf("deadletter: %s: %w", topic, err)
	}
	all := make(map[string]Place, len(partitions))
	for _, one := range partitions {
		if all[one], err = b.endOf(one); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func placeOf(id pulsar.MessageID) Place {
	p := Place{Ledger: id.LedgerID(), Entry: id.EntryID()}
	if p.Entry < 0 || p.Entry == math.MaxInt64 {
		p.Entry = -1
	}
	return p
}

func (p Place) before(other Place) bool { return event.Position(p).Before(event.Position(other)) }

// isLast reports whether m is the last message of the entry at end, or later.
func isLast(m pulsar.Message, end Place) bool {
	id := m.ID()
	at := placeOf(id)
	return end.before(at) || at == end && id.BatchIdx() >= id.BatchSize()-1
}

// partitionOf returns the number of a topic partition, -1 if the topic is not partitioned.
func partitionOf(topic string) int32 {
	_, n := topicname.Split(topic)
	return n
}

func messageOf(m pulsar.Message, topic string) message {
	id := m.ID()
	r := message{
		ID:         event.MessageID{Ledger: id.LedgerID(), Entry: id.EntryID(), Batch: -1, TopicPartition: partitionOf(topic)},
		MessageKey: m.Key(), OrderingKey: m.OrderingKey(), Payload: m.Payload(), Null: m.IsNullValue(),
		EventTime: max(0, m.EventTime().UnixMilli()), // no copy can have a time before 1970
		Published: m.PublishTime().UTC(), Schema: len(m.SchemaVersion()) > 0,
	}
	if encryption := m.GetEncryptionContext(); encryption != nil && len(encryption.Keys) > 0 {
		r.Encrypted = true
	}
	if id.BatchSize() > 1 {
		r.ID.Batch, r.Batched = id.BatchIdx(), true
	}
	for name, value := range m.Properties() {
		r.Properties = append(r.Properties, event.Property{Name: name, Value: value})
	}
	slices.SortFunc(r.Properties, func(a, b event.Property) int { return strings.Compare(a.Name, b.Name) })
	return r
}
