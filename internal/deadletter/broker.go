package deadletter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/broker/pulsarread"
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
	client Client
}

// New returns a Broker. The client remains the caller's.
func New(cfg Config, client Client) *Broker { return &Broker{cfg: cfg, client: client} }

// ErrConsumed says that somebody else consumes the dead letters.
var ErrConsumed = errors.New("another consumer is attached: stop it first")

// errStop ends a reading early.
var errStop = errors.New("enough")

func nothing() error { return nil }

// received is a letter on its subscription.
type received struct {
	Letter
	ack func() error
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
	from, err := b.attach(ctx, topic)
	if err != nil {
		return "", err
	}
	defer from.close()
	defer func() {
		if err == nil {
			err = flush()
		}
	}()
	end, err := from.end(ctx)
	if err != nil || end.Entry < 0 {
		return "", err // or it holds nothing
	}
	for !left.isOver() {
		m, err := receive(ctx, from, b.cfg.QuietMax)
		switch {
		case errors.Is(err, errQuiet):
			return fmt.Sprintf("no further letter of %s came within %v", topic, b.cfg.QuietMax), nil
		case err != nil:
			return "", err
		}
		if !m.Void {
			left.spend(m)
			if err := each(&received{Letter: newLetter(*m, b.cfg.Key), ack: func() error { return from.ack(m) }}); err != nil {
				return "", err
			}
		}
		if m.isLast(end) {
			return "", nil
		}
	}
	return left.why(), nil
}

// attach subscribes to the letters. Its consumer is exclusive, so that no letter goes to two commands.
func (b *Broker) attach(ctx context.Context, topic string) (from reader, err error) {
	err = b.patiently(ctx, ErrConsumed, pulsarread.IsTaken, func() (err error) {
		from, err = b.client.letters(ctx, topic, b.cfg.Subscription, b.cfg.QueueMax)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("deadletter: subscription %q on %s: %w", b.cfg.Subscription, topic, err)
	}
	return from, nil
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
