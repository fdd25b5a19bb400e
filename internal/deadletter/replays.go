package deadletter

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/ringfence/router/internal/base/backoff"
	"github.com/ringfence/router/internal/broker/pulsarsend"
	"github.com/ringfence/router/internal/broker/topicname"
)

// replaysSubscription keeps the broker from deleting records. Nobody acks on it.
const replaysSubscription = "ringfence"

// ErrActing says that another command acts.
var ErrActing = errors.New("another command acts on this group's dead letters, or replays its events")

// ErrTrimmed says that a topic does not show, or no longer holds, the messages that would tell whether a letter was sent.
var ErrTrimmed = errors.New("it cannot be known whether letters of an interrupted replay were sent")

// acting is an act under way. It holds the lock of the replays topic.
type acting struct {
	broker   *Broker
	producer pulsar.Producer
	memory   *Memory
	act      Record // act, what, who, why and selection

	acceptDuplicates bool // see Options
}

// recordsTopic returns the name of the topic of the records: the replays topic, or its first topic partition if the broker has created it with some.
func (b *Broker) recordsTopic() (string, error) {
	partitions, err := b.client.TopicPartitions(b.cfg.ReplaysTopic())
	if err != nil {
		return "", fmt.Errorf("deadletter: %s: %w", b.cfg.ReplaysTopic(), err)
	}
	return partitions[0], nil
}

// records calls each for each record of the replays topic. It returns the number of messages that are none: an error would
// let a stranger prevent all acts.
func (b *Broker) records(ctx context.Context, each func(Record)) (foreign int, err error) {
	topic, err := b.recordsTopic()
	if err != nil {
		return 0, err
	}
	_, _, err = b.read(ctx, topic, Place{Entry: -1}, func(m *message) error {
		if r, err := decodeRecord(m.Payload); err != nil || m.Unreadable != "" {
			foreign++
		} else {
			each(r)
		}
		return nil
	})
	return foreign, err
}

// remember reads the replays topic.
func (b *Broker) remember(ctx context.Context) (memory *Memory, err error) {
	memory = newMemory()
	memory.foreign, err = b.records(ctx, memory.apply)
	return memory, err
}

// begin takes the lock, resolves interrupted acts and records the beginning of one. The caller
// must close the returned one.
func (b *Broker) begin(ctx context.Context, act Record, acceptDuplicates bool) (*acting, error) {
	topic, err := b.recordsTopic()
	if err != nil {
		return nil, err
	}
	if err := b.client.keep(ctx, topic, replaysSubscription); err != nil {
		return nil, err
	}
	var producer pulsar.Producer
	locked := func(err error) bool {
		return strings.Contains(err.Error(), "ProducerFenced") || strings.Contains(err.Error(), "ProducerBusy")
	}
	err = b.patiently(ctx, ErrActing, locked, func() (err error) {
		producer, err = b.client.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, ProducerAccessMode: pulsar.ProducerAccessModeExclusive,
			SendTimeout: pulsarsend.NoTimeout, DisableBatching: true, DisableBlockIfQueueFull: true,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("deadletter: producer for %s: %w", topic, err)
	}
	a := &acting{broker: b, producer: producer, act: act, acceptDuplicates: acceptDuplicates}
	if err := a.start(ctx); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func (a *acting) start(ctx context.Context) (err error) {
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	a.act.Act = hex.EncodeToString(id[:])
	a.memory, err = a.broker.remember(ctx)
	if errors.Is(err, errQuiet) { // brokers without apache/pulsar#22572 may name a marker of their own as the last message: so end with a record that says nothing
		if err = a.record(ctx, Record{Act: a.act.Act, Step: StepResolved, Who: a.act.Who}); err == nil {
			a.memory, err = a.broker.remember(ctx)
		}
	}
	if err != nil {
		return err
	}
	interrupted := a.memory.interrupted()
	if len(interrupted) > 0 {
		if err := backoff.Sleep(ctx, a.broker.cfg.LateMax); err != nil { // the broker may still be handling its last messages
			return err
		}
	}
	for _, r := range interrupted {
		if _, err := a.resolve(ctx, r, nil); err != nil {
			return err
		}
	}
	began := a.act
	began.Step = StepBegan
	return a.record(ctx, began)
}

// resolve looks for the letters of a batch that is in doubt. It records those that were sent, and those of the batch that are known to be.
func (a *acting) resolve(ctx context.Context, doubt Record, known []Sent) (found []Sent, err error) {
	found, err = a.broker.findSent(ctx, doubt)
	if errors.Is(err, ErrTrimmed) && a.acceptDuplicates {
		err = nil // it is certain that those that were found were sent
	}
	if err != nil {
		return nil, err
	}
	letters := slices.DeleteFunc(slices.Concat(known, found), func(s Sent) bool { return s.Letter == "" }) // events of topics are not recorded
	return found, a.record(ctx, Record{Act: doubt.Act, Step: StepResolved, Letters: letters, Who: a.act.Who})
}

func (a *acting) close() { a.producer.Close() }

// end records the end of the act.
func (a *acting) end(ctx context.Context, counts Counts) (err error) {
	r := a.act
	r.Step, r.Counts = StepEnded, &counts
	if r.Ends, err = a.lastLetters(ctx); err != nil {
		return err
	}
	return a.record(ctx, r)
}

// lastLetters returns the place of the last letter of each topic partition, nil for an act that sends no letters.
func (a *acting) lastLetters(ctx context.Context) (map[string]Place, error) {
	if a.act.What != ActReplayLetters {
		return nil, nil
	}
	return a.broker.ends(ctx, a.broker.cfg.LettersTopic)
}

// record writes a lasting record. It fails if another command holds the lock.
func (a *acting) record(ctx context.Context, r Record) error {
	r.At = a.broker.cfg.Now().UTC()
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("deadletter: record: %w", err)
	}
	if err := pulsarsend.Send(ctx, a.producer, &pulsar.ProducerMessage{Payload: data, DisableReplication: true}, a.broker.cfg.AnswerMax); err != nil {
		return fmt.Errorf("deadletter: record in %s: %w", a.broker.cfg.ReplaysTopic(), err)
	}
	a.memory.apply(r)
	if r.Step == StepBegan || r.Step == StepEnded {
		a.broker.cfg.Audit(r)
	}
	return nil
}

// findSent looks for the letters of the last batch of an act that was interrupted, in their topics. With [ErrTrimmed] it returns those
// that it has found; if these are all, nothing is in doubt.
func (b *Broker) findSent(ctx context.Context, doubt Record) (found []Sent, err error) {
	wanted := map[copied]Sent{}
	for _, s := range doubt.Letters {
		wanted[copied{s.Letter, s.Identity}] = s
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	var doubts []error
	for topic, place := range doubt.From {
		late := 0
		why, err := b.readBehind(ctx, topic, place, func(one *message) error {
			if !one.Published.After(doubt.At.Add(b.cfg.SkewMax)) {
				late = 0
			} else if late++; late > b.cfg.AheadMax {
				return errStop
			}
			original := one.property(PropertyReplayOf)
			if original == "" {
				return nil
			}
			name := copied{one.property(PropertyReplayLetter), one.identity(original)}
			if s, is := wanted[name]; is {
				found = append(found, s)
				delete(wanted, name)
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			if !b.isGone(topic, err) {
				return nil, err
			}
			why = "does not exist any more"
		}
		if why != "" {
			doubts = append(doubts, fmt.Errorf("deadletter: %w: %d letters of act %s of %v, and %s %s; --accept-duplicates sends those that remain",
				ErrTrimmed, len(doubt.Letters), doubt.Act, doubt.At, topic, why))
		}
	}
	if len(wanted) == 0 {
		return found, nil
	}
	return found, errors.Join(doubts...)
}

// isGone reports whether a topic partition cannot be read because it does not exist: its topic was deleted, or made again with other partitions.
func (b *Broker) isGone(partition string, failed error) bool {
	if strings.Contains(failed.Error(), "TopicNotFound") {
		return true
	}
	base, _ := topicname.Split(partition) // other releases of brokers answer NotAllowedError, in texts of their own
	all, err := b.client.TopicPartitions(base)
	return err == nil && !slices.Contains(all, partition)
}

// errLater says that the first message that a reader shows is behind the place where it should begin.
var errLater = errors.New("deadletter: messages are missing")

// readBehind calls each for the messages behind a place, which was the end of the topic partition, up to its present end. why says
// why it is not known that these were all; "" if it is.
//
// They are all if the reader shows the message at the place, or one before it, first: brokers delete messages from
// the beginning. A chunked message has the place of its last chunk, and a reader that begins there does not get it.
// So each further reader begins farther before the place, until the first message of one proves that none is missing.
func (b *Broker) readBehind(ctx context.Context, topic string, place Place, each func(*message) error) (why string, err error) {
	if place.Ledger < 0 {
		if _, _, err = b.read(ctx, topic, place, each); errors.Is(err, errQuiet) {
			err = nil
		}
		return emptyBefore, err
	}
	end, err := b.endOf(ctx, topic)
	if err != nil || end == place {
		return "", err // nothing was published since
	}
	for back := int64(0); ; back = max(8, 8*back) {
		from := Place{place.Ledger, place.Entry - back}
		if place.Entry < back {
			from = Place{Entry: -1} // the beginning: earlier ledgers, too
		}
		begun := false
		end, _, err = b.read(ctx, topic, from, func(m *message) error {
			at := m.place()
			if !begun && !place.precedes(m.first, at) {
				why = fmt.Sprintf("begins at %v, after %v", at, place)
				return errLater
			}
			begun = true
			if place.before(at) {
				return each(m)
			}
			return nil
		})
		quiet := errors.Is(err, errQuiet)
		switch {
		case quiet && begun:
			return fmt.Sprintf("shows no message up to its end at %v: it may be a marker of the broker", end), nil
		case err == nil && begun, err != nil && !quiet && !errors.Is(err, errLater):
			return "", err
		case from.Entry >= 0: // also if it shows none
		case err == nil:
			return fmt.Sprintf("holds nothing behind %v", place), nil
		case quiet:
			return fmt.Sprintf("shows no message up to its end at %v", end), nil
		default:
			return why, nil
		}
	}
}

// emptyBefore is a reason of readBehind: the broker named no ledger of a topic partition without messages (Pulsar 4.0.8).
const emptyBefore = "was empty before, so nothing tells which messages have been deleted since"

// precedes reports whether the first message found, with its first chunk at begin and itself at end, shows that no message behind p
// is missing: it is the message at p, or one before, or the first of p's ledger.
func (p Place) precedes(begin, end Place) bool {
	if p.Entry < 0 {
		return begin.Entry == 0 && p.Ledger == begin.Ledger
	}
	return !p.before(end)
}
