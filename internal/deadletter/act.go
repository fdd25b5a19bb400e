package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/topicname"
	"github.com/ringfence/router/internal/source"
)

// Options of an act.
type Options struct {
	Who, Why         string
	Rate             int  // events a second, at least 1
	Max              int  // letters or events selected, at least 1
	DryRun           bool // count only
	Again            bool // send a letter though its event was sent before
	AcceptDuplicates bool // send letters of which it cannot be known whether they were sent
}

// once returns the name by which an act sends something only once: that of the event, or with Again that of the
// letter, since a letter comes a second time after a reconnect.
func (o *Options) once(s Sent) string {
	if o.Again {
		return s.Letter
	}
	return string(s.Identity) + s.Topic
}

// List calls show with the letters that are selected, and returns what it read.
func (b *Broker) List(ctx context.Context, sel Selection, show func(*Letter) error) (c Counts, err error) {
	c.Reach, err = b.letters(ctx, func(l *received) error {
		c.Read++
		if !sel.has(&l.Letter) {
			return nil
		}
		c.Selected++
		return show(&l.Letter)
	}, nothing)
	return c, err
}

// Find returns the letter with this id, nil if there is none.
func (b *Broker) Find(ctx context.Context, id string) (found *Letter, err error) {
	_, err = b.letters(ctx, func(l *received) error {
		if l.ID.String() != id {
			return nil
		}
		found = &l.Letter
		return errStop
	}, nothing)
	return found, err
}

// CheckTarget reports the fault of a topic to which letters are to be sent.
func (b *Broker) CheckTarget(topic string) error {
	full := source.FullTopicName(topic)
	whole, _ := topicname.Split(full)
	own := []string{b.cfg.LettersTopic, b.cfg.RetryTopic, b.cfg.ReplaysTopic()}
	if slices.Contains(own, full) || slices.Contains(own, whole) {
		return fmt.Errorf("deadletter: letters are not sent to %s, which is a topic of the group's own", topic)
	}
	if !strings.HasPrefix(full, "persistent://") {
		return fmt.Errorf("deadletter: letters are not sent to %s, which is not persistent", topic) // the broker confirms, and stores nothing
	}
	return nil
}

// ReplayLetters sends the selected letters again, each to its topic or to sel.To, and removes them
// from the dead letters when the broker has confirmed that. With [ErrNotSent] it has sent all but those to topics that the error names.
func (b *Broker) ReplayLetters(ctx context.Context, sel Selection, o Options) (c Counts, err error) {
	if o.DryRun {
		return b.wouldReplay(ctx, sel, o)
	}
	a, err := b.begin(ctx, Record{What: ActReplayLetters, Who: o.Who, Why: o.Why, Selection: &sel}, o.AcceptDuplicates)
	if err != nil {
		return c, err
	}
	defer a.close()
	s := newSender(a, o.Rate)
	defer s.close()
	seen := map[string]bool{}
	send := func(l *received, e batched) error {
		if err := s.open(ctx, e.topic); err != nil {
			c.obstacle(ObstacleNotOpened)
			return ctx.Err()
		}
		if seen[o.once(e.sent)] {
			c.Repeated++
			if err := s.flush(ctx, &c); err != nil || s.remain[e.sent.Identity] { // the other one may wait in the batch
				return err
			}
			return l.ack()
		}
		seen[o.once(e.sent)] = true
		return s.add(ctx, e, &c)
	}
	if err := b.replayLetters(ctx, sel, o, a.memory, &c, send, func(l *received) error { return l.ack() }, func() error { return s.flush(ctx, &c) }); err != nil {
		s.drop(&c)
		return c, err
	}
	return c, cmp.Or(a.end(ctx, c), s.notSent(c.Missing))
}

// wouldReplay counts what a replay would do.
func (b *Broker) wouldReplay(ctx context.Context, sel Selection, o Options) (c Counts, err error) {
	memory, err := b.remember(ctx)
	if errors.Is(err, errQuiet) { // see acting.start
		c.Unsure, err = []string{"the last message of the replays topic does not come: letters that were sent may be among those that would be"}, nil
	}
	if err != nil {
		return c, err
	}
	doubt := map[string]bool{}
	for _, r := range memory.interrupted() {
		for _, s := range r.Letters {
			doubt[s.Letter] = true
		}
	}
	seen := map[string]bool{}
	send := func(_ *received, e batched) error {
		switch {
		case doubt[e.sent.Letter]:
			c.Doubt++
		case seen[o.once(e.sent)]:
			c.Repeated++
		default:
			c.Sent++
			if e.message.Schema {
				c.Schema++
			}
		}
		seen[o.once(e.sent)] = true
		return nil
	}
	err = b.replayLetters(ctx, sel, o, memory, &c, send, func(*received) error { return nil }, nothing)
	return c, err
}

// replayLetters decides about each letter: send gets those to be sent, remove those that were sent before.
func (b *Broker) replayLetters(ctx context.Context, sel Selection, o Options, memory *Memory, c *Counts,
	send func(*received, batched) error, remove func(*received) error, flush func() error,
) (err error) {
	c.Foreign = memory.foreign
	targets := newTargets(b)
	defer func() { c.Missing, c.Unsure = targets.missing(), append(c.Unsure, targets.unsure...) }()
	c.Reach, err = b.letters(ctx, func(l *received) error {
		c.Read++
		id := l.sent()
		if memory.letters[id.Letter] { // selected or not: an act has sent it, and the ack was lost
			c.SentBefore++
			return remove(l)
		}
		if !sel.has(&l.Letter) {
			return nil
		}
		c.Selected++
		if why := l.obstacle(b.cfg.Topics, sel.To); why != "" {
			c.obstacle(why)
			return nil
		}
		if memory.repeats(&l.Letter, id) && !o.Again {
			c.Repeated++
			return remove(l)
		}
		if c.Sent >= o.Max { // of a batch that is not sent yet: see sender.add
			c.Left++
			return nil
		}
		topic := cmp.Or(sel.To, l.Topic)
		if targets.fault(ctx, topic) != "" {
			c.obstacle(ObstacleUnheld)
			return ctx.Err()
		}
		marks := map[string]string{PropertyReplayLetter: id.Letter}
		return send(l, batched{outgoing: l.again(topic, l.origin(), marks), sent: id, ack: l.ack})
	}, flush)
	return err
}

// Purge removes the selected letters.
func (b *Broker) Purge(ctx context.Context, sel Selection, o Options) (c Counts, err error) {
	ack := func(*received) error { return nil }
	var a *acting
	if !o.DryRun {
		if a, err = b.begin(ctx, Record{What: ActPurge, Who: o.Who, Why: o.Why, Selection: &sel}, o.AcceptDuplicates); err != nil {
			return c, err
		}
		defer a.close()
		ack = func(l *received) error { return l.ack() }
	}
	entry := sharedEntry{ack: ack, counts: &c, removed: map[event.MessageID]bool{}}
	c.Reach, err = b.letters(ctx, func(l *received) error {
		c.Read++
		if !sel.has(&l.Letter) {
			return nil
		}
		if entry.removed[l.ID] { // it comes again after a reconnect
			return ack(l)
		}
		if c.Selected++; c.Selected > o.Max {
			c.Left++
			return nil
		}
		return entry.remove(l)
	}, nothing)
	if err != nil {
		return c, err
	}
	entry.leave()
	if o.DryRun {
		return c, nil
	}
	return c, a.end(ctx, c)
}

// sharedEntry holds the letters of one entry until all of it are to be removed: Pulsar cannot remember the ack of a part.
type sharedEntry struct {
	ack     func(*received) error
	counts  *Counts
	letters map[int32]*received // by place in the entry; after a reconnect an entry comes again from its first letter on
	removed map[event.MessageID]bool
}

func (e *sharedEntry) remove(l *received) error {
	for _, held := range e.letters {
		if other := held.ID; other.Ledger != l.ID.Ledger || other.Entry != l.ID.Entry || other.TopicPartition != l.ID.TopicPartition {
			e.leave()
		}
		break
	}
	if e.letters == nil {
		e.letters = map[int32]*received{}
	}
	e.letters[l.ID.Batch] = l
	if len(e.letters) < l.shared {
		return nil
	}
	for _, one := range e.letters {
		if err := e.ack(one); err != nil {
			return fmt.Errorf("deadletter: ack of %s: %w", one.ID, err)
		}
		e.removed[one.ID] = true
	}
	e.counts.Purged += len(e.letters)
	e.letters = nil
	return nil
}

// leave counts the held letters of an entry as not removed, because others of the entry are not to be removed.
func (e *sharedEntry) leave() {
	e.counts.Shared += len(e.letters)
	e.letters = nil
}

// ErrTooMany says that more events were selected than the limit.
var ErrTooMany = errors.New("more events are selected than --max: narrow the selection, or raise --max")

// Continues reports whether an act that has failed continues when it is done again.
func Continues(err error) bool { return !errors.Is(err, ErrNotSent) && !errors.Is(err, ErrTooMany) }

// ReplayEvents sends events of topics again, to the topic of each. sel.Since, sel.Until and sel.Run
// must be set. Events of which the topic holds a copy made by a replay of the same name are not sent.
func (b *Broker) ReplayEvents(ctx context.Context, sel Selection, o Options) (c Counts, err error) {
	var a *acting
	if !o.DryRun {
		if a, err = b.begin(ctx, Record{What: ActReplayEvents, Who: o.Who, Why: o.Why, Selection: &sel}, o.AcceptDuplicates); err != nil {
			return c, err
		}
		defer a.close()
	}
	p, err := b.plan(ctx, sel, o, &c)
	if err != nil {
		return c, err
	}
	if o.DryRun {
		c.Sent = len(p.chosen)
		for _, schema := range p.chosen {
			if schema {
				c.Schema++
			}
		}
		return c, nil
	}
	s := newSender(a, o.Rate)
	defer s.close()
	marks := map[string]string{PropertyReplayRun: sel.Run}
	for _, at := range p.partitions {
		_, _, err := b.readSince(ctx, at.partition, sel.Since, func(one *message) error {
			if at.end.before(one.place()) {
				return errStop
			}
			id := one.identity(one.originOfEvent())
			if _, chosen := p.chosen[id]; !chosen || !b.selects(&sel, one) {
				return nil
			}
			delete(p.chosen, id)
			return s.add(ctx, batched{outgoing: one.again(at.topic, one.originOfEvent(), marks), sent: Sent{Identity: id}}, &c)
		})
		if err != nil && !errors.Is(err, errStop) {
			s.drop(&c)
			return c, err
		}
	}
	if err := s.flush(ctx, &c); err != nil {
		return c, err
	}
	if len(p.chosen) > 0 {
		return c, fmt.Errorf("deadletter: %d of the selected events are no longer in their topics", len(p.chosen))
	}
	return c, cmp.Or(a.end(ctx, c), s.notSent(nil))
}

// plan is what a replay of events sends.
type plan struct {
	partitions []span
	chosen     map[Identity]bool // → whether it has a schema version
}

// span is a topic partition with its end when the plan was made: copies come after it.
type span struct {
	topic, partition string
	end              Place
}

func (m *message) originOfEvent() string {
	return cmp.Or(m.property(PropertyReplayOf), m.ID.String())
}

func (b *Broker) selects(sel *Selection, m *message) bool {
	return !m.Encrypted && m.Unreadable == "" && sel.hasTime(m.Published) && sel.hasKey(m.key(b.cfg.Key))
}

// plan reads the topics to their ends, for the events and for their copies: these may be in any topic partition.
func (b *Broker) plan(ctx context.Context, sel Selection, o Options, c *Counts) (plan, error) {
	p := plan{chosen: map[Identity]bool{}}
	copies := map[Identity]bool{}
	topics := sel.Topics
	if len(topics) == 0 {
		topics = b.cfg.Topics
	}
	targets := newTargets(b)
	for _, topic := range topics {
		if fault := targets.fault(ctx, topic); fault != "" {
			return p, fmt.Errorf("deadletter: %s, so Pulsar would delete what it gets: start a router, which makes it", fault)
		}
		partitions, err := b.client.TopicPartitions(topic)
		if err != nil {
			return p, fmt.Errorf("deadletter: %s: %w", topic, err)
		}
		for _, partition := range partitions {
			end, unsure, err := b.readSince(ctx, partition, sel.Since, func(m *message) error {
				return b.choose(&sel, o, c, m, p.chosen, copies)
			})
			if err != nil {
				return p, err
			}
			if unsure != "" {
				c.Unsure = append(c.Unsure, partition+" "+unsure)
			}
			p.partitions = append(p.partitions, span{topic, partition, end})
		}
	}
	c.Unsure = append(c.Unsure, targets.unsure...)
	for id := range copies {
		if _, chosen := p.chosen[id]; chosen {
			delete(p.chosen, id)
			c.SentBefore++
		}
	}
	return p, nil
}

func (b *Broker) choose(sel *Selection, o Options, c *Counts, m *message, chosen, copies map[Identity]bool) error {
	c.Read++
	if m.Unreadable != "" {
		if m.Published.IsZero() || sel.hasTime(m.Published) {
			c.obstacle(ObstacleBroken)
		}
		return nil
	}
	id := m.identity(m.originOfEvent()) // with the content, so that no false claim hides an event
	if m.property(PropertyReplayRun) == sel.Run && m.property(PropertyReplayOf) != "" {
		if len(copies) >= o.Max {
			return fmt.Errorf("deadletter: %w: there are more copies of the replay %q", ErrTooMany, sel.Run)
		}
		copies[id] = true
		return nil
	}
	if m.Encrypted && sel.hasTime(m.Published) {
		c.obstacle(ObstacleEncrypted)
		return nil
	}
	if !b.selects(sel, m) {
		return nil
	}
	c.Selected++
	if m.headBytes() > headMax {
		c.obstacle(ObstacleHead)
		return nil
	}
	if _, again := chosen[id]; again {
		c.Repeated++
		return nil
	}
	if len(chosen) >= o.Max {
		return fmt.Errorf("deadletter: %w: %d", ErrTooMany, o.Max)
	}
	chosen[id] = m.Schema
	return nil
}
