package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/entries/wire"
	"github.com/ringfence/router/internal/source"
)

// stream reads a topic partition with package entries.
type stream struct {
	topic    string
	consumer *entries.Consumer
	queue    *entries.Queue
	parser   wire.Parser
	singles  []wire.Single
	waiting  []*message               // of the newest entry
	acked    map[Place]map[int32]bool // of entries with several messages: those that were acked, by number

	ackMu  sync.Mutex // guards the fields below
	unsure []wire.ID  // entries of the ack that is waited for, without a receipt
	failed error      // of one of its receipts
	done   chan error // gets its result
}

func newStream(topic string) *stream {
	return &stream{topic: topic, queue: entries.NewQueue(), acked: map[Place]map[int32]bool{}}
}

func (s *stream) open(ctx context.Context, client *entries.Client, sub entries.Subscription) (err error) {
	sub.Topic, sub.Type, sub.Queue = s.topic, entries.Exclusive, s.queue
	s.consumer, err = client.Subscribe(ctx, sub)
	return err
}

// next implements reader.
func (s *stream) next(ctx context.Context) (*message, error) {
	if len(s.waiting) == 0 {
		got, err := s.queue.Receive(ctx, nil, 1)
		if err != nil {
			return nil, err
		}
		d := got[0]
		d.Open(&s.parser)
		s.waiting = s.messagesOf(d)
		d.Entry, d.Raw = wire.Entry{}, nil // the messages have what they need of it
		entries.Take(d)
	}
	m := s.waiting[0]
	s.waiting = s.waiting[1:]
	return m, nil
}

// end implements reader.
func (s *stream) end(ctx context.Context) (Place, error) {
	id, err := s.consumer.End(ctx)
	if err != nil {
		return Place{}, fmt.Errorf("deadletter: end of %s: %w", s.topic, err)
	}
	return Place{id.Ledger, max(-1, id.Entry)}, nil
}

// close implements reader.
func (s *stream) close() { s.consumer.Close() }

// messagesOf returns the messages of an entry, at least one, of which the last is the last of the entry.
func (s *stream) messagesOf(d *entries.Delivered) []*message {
	if d.Broken == nil && d.Entry.Batched && !d.Entry.Metadata.Encryption.Present() {
		if s.singles, _ = d.Split(s.singles[:0]); d.Broken == nil {
			defer clear(s.singles)
			return s.batchOf(d)
		}
	}
	m := s.headOf(d)
	if d.Waits {
		m.Void = true
		return []*message{&m}
	}
	from := &d.Entry.Metadata
	m.MessageKey, m.OrderingKey, m.Properties, m.EventTime = string(from.Key), string(from.OrderingKey), propertiesOf(from.Properties), eventTimeOf(from.EventTime)
	m.Payload, m.Null = d.Entry.Payload, from.NullValue
	m.Encrypted, m.Void = from.Encryption.Present(), from.Marker
	if d.Broken != nil {
		m.Payload, m.Null, m.Encrypted, m.Void = d.Raw, false, false, false
		m.Unreadable = d.Broken.Reason.String() + ": " + d.Broken.What
		if strings.HasSuffix(m.Unreadable, "beyond the limit") {
			m.Unreadable += " pulsar.payload_bytes_max"
		}
	}
	return []*message{&m}
}

// headOf returns what all messages of an entry share. The metadata of an entry with a wrong checksum mean nothing.
func (s *stream) headOf(d *entries.Delivered) message {
	from := &d.Entry.Metadata
	id := d.ID
	if d.Chunks != nil { // the same at each delivery
		id = d.Chunks[int(from.Chunks)-d.Missing-1]
	}
	if d.Broken != nil && (d.Broken.Reason == wire.ReasonChecksum || d.Broken.Reason == wire.ReasonMetadata) {
		*from = wire.Metadata{}
	}
	m := message{
		ID:     event.MessageID{Ledger: id.Ledger, Entry: id.Entry, Batch: -1, TopicPartition: partitionOf(s.topic)},
		Schema: len(from.SchemaVersion) > 0, first: Place(id), of: 1, shared: 1, unfinished: d.Unfinished, entry: d,
	}
	if from.PublishTime != 0 {
		m.Published = time.UnixMilli(min(max(0, from.PublishTime), source.EventTimeMax)).UTC() // JSON has no times of any year
	}
	if d.Chunks != nil {
		m.first = Place(d.Chunks[0])
	}
	return m
}

// batchOf returns the messages of a batch, without those that were acked or that compaction has removed.
func (s *stream) batchOf(d *entries.Delivered) (all []*message) {
	head, acked := s.headOf(d), wire.Delivery{AckSet: d.AckSet}
	head.of = int32(len(s.singles))
	head.Batched = head.of > 1
	for i := range s.singles {
		from := &s.singles[i]
		if from.CompactedOut || acked.Acked(i) {
			continue
		}
		m := head
		if m.index = int32(i); m.Batched {
			m.ID.Batch = m.index
		}
		m.MessageKey, m.OrderingKey, m.Properties, m.EventTime = string(from.Key), string(from.OrderingKey), propertiesOf(from.Properties), eventTimeOf(from.EventTime)
		m.Payload, m.Null = from.Payload, from.NullValue
		all = append(all, &m)
	}
	for _, m := range all {
		m.shared = len(all)
	}
	if len(all) == 0 || all[len(all)-1].index < head.of-1 {
		head.index, head.Void = head.of-1, true
		all = append(all, &head)
	}
	return all
}

// eventTimeOf returns the time that a copy can have, 0 if it can have none.
func eventTimeOf(ms int64) int64 {
	if ms < 0 || ms > source.EventTimeMax {
		return 0
	}
	return ms
}

// propertiesOf returns properties ascending by name. Of those with one name the last value counts, as it does for Pulsar's clients.
func propertiesOf(from wire.Properties) (list []event.Property) {
	if from.Len() == 0 {
		return nil
	}
	values := map[string]string{}
	for name, value := range from.All() {
		values[string(name)] = string(value)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		list = append(list, event.Property{Name: name, Value: values[name]})
	}
	return list
}

// ackMax bounds the wait for the confirmation of an ack, also across reconnects.
const ackMax = time.Minute

var errNoReceipt = errors.New("deadletter: the broker has not confirmed the ack of a letter in time")

// ack implements reader.
func (s *stream) ack(m *message) error {
	if m.of > 1 {
		acked := s.acked[m.place()]
		if acked == nil {
			acked = map[int32]bool{}
			s.acked[m.place()] = acked
		}
		if acked[m.index] = true; len(acked) < m.shared {
			return nil
		}
		delete(s.acked, m.place())
	}
	d, done := m.entry, make(chan error, 1)
	s.ackMu.Lock()
	s.unsure, s.failed, s.done = []wire.ID{d.ID}, nil, done
	if d.Chunks != nil {
		s.unsure = slices.Clone(d.Chunks)
	}
	s.ackMu.Unlock()
	if err := d.Ack(); err != nil {
		return err
	}
	patience := time.NewTimer(ackMax)
	defer patience.Stop()
	select {
	case err := <-done:
		return err
	case <-patience.C:
		return errNoReceipt
	}
}

// receipt is told of confirmed acks, and of those that failed.
func (s *stream) receipt(ids []wire.AckID, err error) {
	s.ackMu.Lock()
	defer s.ackMu.Unlock()
	for _, id := range ids {
		at := slices.Index(s.unsure, id.ID)
		if at < 0 { // it was waited for too long
			continue
		}
		s.failed = cmp.Or(s.failed, err)
		if s.unsure = slices.Delete(s.unsure, at, at+1); len(s.unsure) == 0 {
			s.done <- s.failed
		}
	}
}
