package deadletter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/entries/wire"
	"github.com/ringfence/router/internal/broker/topicname"
)

// errQuiet says that no message came in time.
var errQuiet = errors.New("deadletter: no message came")

// receive returns the next message of a reader, with a timeout.
func receive(ctx context.Context, from reader, within time.Duration) (*message, error) {
	timed, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	m, err := from.next(timed)
	if err != nil && ctx.Err() == nil && timed.Err() != nil {
		return nil, errQuiet
	}
	if err != nil {
		return nil, fmt.Errorf("deadletter: receive: %w", err)
	}
	return m, nil
}

// read reads a topic partition up to its present end, from a place (inclusive). It returns that end, and the number of messages of which chunks stand there,
// and not all. Such a message is not part of the range: if the rest still comes, it is whole only behind that end, and belongs to a read that reaches it.
func (b *Broker) read(ctx context.Context, topic string, from Place, each func(*message) error) (end Place, unfinished int, err error) {
	messages, err := b.client.read(ctx, topic, startAt(from), readQueueMax)
	if err != nil {
		return end, 0, err
	}
	defer messages.close()
	if end, err = messages.end(ctx); err != nil || end.Entry < 0 || end.before(from) {
		return end, 0, err
	}
	for {
		m, err := receive(ctx, messages, b.cfg.AnswerMax)
		if err != nil {
			return end, unfinished, fmt.Errorf("%w: %s up to %v", err, topic, end)
		}
		if end.before(m.place()) {
			return end, unfinished, nil
		}
		unfinished = m.unfinished
		if !m.Void {
			if err := each(m); err != nil {
				return end, unfinished, err
			}
		}
		if m.isLast(end) {
			return end, unfinished, nil
		}
	}
}

// readSince reads a topic partition up to its present end, from about a time on, or from the beginning
// if it is zero: each may see older messages. It returns that end. Producers claim the
// times: unsure says why messages that were published since then may have been missed, or that some are not whole, "" if nothing tells so.
func (b *Broker) readSince(ctx context.Context, topic string, since time.Time, each func(*message) error) (end Place, unsure string, err error) {
	start := Place{Entry: -1}
	if !since.IsZero() {
		since = since.Add(-b.cfg.SkewMax) // an older message may stand behind one published since then
		if end, err = b.endOf(ctx, topic); err != nil || end.Entry < 0 {
			return end, "", err
		}
		last, err := b.firstFrom(ctx, topic, end)
		switch {
		case err != nil:
			return end, "", err
		case last == nil || !last.wasBefore(since):
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
	end, unfinished, err := b.read(ctx, topic, start, func(m *message) error {
		at := m.Published
		if start.Entry >= 0 && m.wasBefore(newest.Add(-b.cfg.SkewMax)) {
			unsure = fmt.Sprintf("has events of clocks that differ by more than %v, so events before %v may be missing", b.cfg.SkewMax, start)
		}
		if at.After(newest) {
			newest = at
		}
		return each(m)
	})
	if unfinished > 0 {
		lacks := fmt.Sprintf("has chunks of messages that are not whole at its end %v: at least %d, which were passed over", end, unfinished)
		if unsure != "" {
			unsure += ", and "
		}
		unsure += lacks
	}
	return end, unsure, err
}

// tailMax is the number of entries at the end of a topic partition that are searched for a new message if the last
// one is old. Publish times are those of the producers' clocks, so an old last message may follow new ones.
const tailMax = 100

// hides reports whether, among the last entries of its ledger, the last message follows one that was published at or
// after a time, although it is older itself.
func (b *Broker) hides(ctx context.Context, topic string, end Place, since time.Time) (bool, error) {
	_, _, err := b.read(ctx, topic, Place{end.Ledger, max(0, end.Entry-tailMax+1)}, func(m *message) error {
		if m.Published.Before(since) {
			return nil
		}
		return errStop
	})
	if errors.Is(err, errStop) {
		return true, nil
	}
	return false, err
}

// wasBefore reports whether it was published before a time. Nobody knows of one whose time cannot be read.
func (m *message) wasBefore(t time.Time) bool { return !m.Published.IsZero() && m.Published.Before(t) }

// before returns the place of a message published before a time, with few messages between, or the
// beginning of the topic partition.
//
// The broker's place alone does not do: its clock may be another one, and times are not in order. So the first message that it shows must be older than the time.
func (b *Broker) before(ctx context.Context, topic string, t time.Time) (Place, error) {
	beginning := Place{Entry: -1}
	first, err := b.firstFrom(ctx, topic, beginning)
	if err != nil || first == nil || !first.wasBefore(t) {
		return beginning, err
	}
	slack := time.Minute
	for range 6 { // up to 23 days
		m, err := b.firstSince(ctx, topic, t.Add(-slack))
		if err != nil || m == nil {
			return beginning, err
		}
		if m.wasBefore(t) {
			return m.place(), nil
		}
		slack *= 8
	}
	return beginning, nil
}

// firstFrom returns the first message at a place or after it, nil if none comes within QuietMax.
func (b *Broker) firstFrom(ctx context.Context, topic string, from Place) (*message, error) {
	return b.first(ctx, topic, startAt(from))
}

// firstSince returns about the first message since a time, nil if none comes within QuietMax.
func (b *Broker) firstSince(ctx context.Context, topic string, t time.Time) (*message, error) {
	return b.first(ctx, topic, entries.Start{Since: t})
}

func (b *Broker) first(ctx context.Context, topic string, start entries.Start) (*message, error) {
	from, err := b.client.read(ctx, topic, start, 1)
	if err != nil {
		return nil, err
	}
	defer from.close()
	m, err := receive(ctx, from, b.cfg.QuietMax)
	if errors.Is(err, errQuiet) {
		err = nil
	}
	return m, err
}

// readQueueMax bounds the messages that a reader fetches ahead.
const readQueueMax = 100

// startAt begins at a place (inclusive), or with the first message if from.Entry is -1.
func startAt(from Place) entries.Start {
	if from.Entry < 0 {
		return entries.Start{ID: entries.Earliest}
	}
	return entries.Start{ID: wire.ID(from)}
}

// endOf returns the place of the last message of a topic partition.
func (b *Broker) endOf(ctx context.Context, topic string) (Place, error) {
	from, err := b.client.read(ctx, topic, entries.Start{ID: entries.Latest}, 1)
	if err != nil {
		return Place{}, err
	}
	defer from.close()
	return from.end(ctx)
}

// ends returns the place of the last message of each topic partition.
func (b *Broker) ends(ctx context.Context, topic string) (map[string]Place, error) {
	partitions, err := b.client.TopicPartitions(topic)
	if err != nil {
		return nil, fmt.Errorf("deadletter: %s: %w", topic, err)
	}
	all := make(map[string]Place, len(partitions))
	for _, one := range partitions {
		if all[one], err = b.endOf(ctx, one); err != nil {
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

// partitionOf returns the number of a topic partition, -1 if the topic is not partitioned.
func partitionOf(topic string) int32 {
	_, n := topicname.Split(topic)
	return n
}
