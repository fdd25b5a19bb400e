package forward

import (
	"encoding/binary"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/base/event"
)

// Field numbers of Events and Event.
const (
	eventsNumber = 1
	eventsEpoch  = 2
	eventsTopics = 3
	eventsNames  = 4
	eventsEvents = 5
	eventsRelay  = 6
	eventsSchema = 7

	eventHandle     = 1
	eventPartition  = 2
	eventKey        = 3
	eventPayload    = 4
	eventProperties = 5
	eventLedger     = 6
	eventEntry      = 7
	eventBatch      = 8
	eventTopicPart  = 9
	eventTopic      = 10
	eventAttempts   = 11
	eventPublished  = 12
	eventTime       = 13
	eventRedelivery = 14
	eventRound      = 15
	eventFirstError = 16
	eventLastError  = 17
	eventCrashes    = 18
	eventSchema     = 20
)

// eventsScratch is the encoder's state, reused for the next frame.
type eventsScratch struct {
	topics  stringTable
	names   stringTable
	schemas stringTable
	read    byte // keeps the loads of readAhead alive
}

// aheadMax is the number of events that readAhead loads at a time: they must still be in
// the cache when they are encoded.
const aheadMax = 32

// scanMax is the number of strings that are searched linearly. A frame usually has one
// topic and a few names.
const scanMax = 8

// stringTable numbers strings in the order of their coming.
type stringTable struct {
	list  []string
	index map[string]int
}

func (t *stringTable) reset() {
	clear(t.list)
	clear(t.index)
	t.list = t.list[:0]
}

func (t *stringTable) add(s string) int {
	for i, known := range t.list[:min(len(t.list), scanMax)] {
		if known == s {
			return i
		}
	}
	if i, ok := t.index[s]; ok {
		return i
	}
	i := len(t.list)
	t.list = append(t.list, s)
	if i < scanMax {
		return i
	}
	if t.index == nil {
		t.index = make(map[string]int)
	}
	t.index[s] = i
	return i
}

func (t *stringTable) size() int {
	n := 0
	for _, s := range t.list {
		n += 1 + protowire.SizeBytes(len(s))
	}
	return n
}

func (t *stringTable) append(b []byte, num protowire.Number) []byte {
	for _, s := range t.list {
		b = append(appendLen(b, num, len(s)), s...)
	}
	return b
}

// headMax is the maximum size of the data before the tables of a frame: its receipt, its
// length, its number, its epoch, and the relay flag.
const headMax = 64

// marshal encodes the frame, the events in one pass. The length and the string tables
// precede the events and depend on them, so they have a buffer of their own.
func (f *eventsFrame) marshal() mem.BufferSlice {
	if f.number == 0 {
		return mem.BufferSlice{mem.SliceBuffer(appendUint(nil, fieldReceipt, f.receipt))}
	}
	body := pooled(f.bodyMax(), f.putBody)
	s := &f.scratch
	tables := s.topics.size() + s.names.size() + s.schemas.size()
	length := sizeUint(f.number) + tables + body.Len()
	if !f.epoch.IsZero() {
		length += sizeBytes(sizePosition(f.epoch))
	}
	if f.relay {
		length += sizeUint(1)
	}
	head := appendUint(make([]byte, 0, headMax+tables), fieldReceipt, f.receipt)
	head = appendLen(head, fieldHot, length)
	head = appendUint(head, eventsNumber, f.number)
	head = appendPosition(head, eventsEpoch, f.epoch)
	if f.relay {
		head = appendUint(head, eventsRelay, 1)
	}
	head = s.topics.append(head, eventsTopics)
	head = s.names.append(head, eventsNames)
	head = s.schemas.append(head, eventsSchema)
	return mem.BufferSlice{mem.SliceBuffer(head), body}
}

// bodyMax returns an upper bound of the bytes that putBody writes, overwritten ones
// included. Its small loop over all events lets their cache misses overlap.
func (f *eventsFrame) bodyMax() int {
	n := 0
	for _, ev := range f.events {
		n += weightOf(ev)
	}
	return n
}

// readAhead loads the beginnings of some events' data, so that the cache misses overlap:
// copied one after the other, each would wait for its own miss.
func (s *eventsScratch) readAhead(events []*event.Event) {
	read := byte(0) // not s.read: each read would wait until the one before is written
	for _, ev := range events {
		if len(ev.Key) > 0 {
			read ^= ev.Key[0]
		}
		if len(ev.Payload) > 0 {
			read ^= ev.Payload[0]
		}
		for i := range ev.Properties {
			if value := ev.Properties[i].Value; value != "" {
				read ^= value[0]
			}
		}
	}
	s.read ^= read
}

// putBody writes the events into b and returns their length.
func (f *eventsFrame) putBody(b []byte) int {
	s := &f.scratch
	s.topics.reset()
	s.names.reset()
	s.schemas.reset()
	i := 0
	for at, ev := range f.events {
		if at%aheadMax == 0 {
			s.readAhead(f.events[at:min(at+aheadMax, len(f.events))])
		}
		i = s.putEvent(b, i, ev)
	}
	return i
}

// putEvent writes one event as a field of its frame.
func (s *eventsScratch) putEvent(b []byte, i int, ev *event.Event) int {
	const others = 64 // approximate size of everything but key and payload
	room := protowire.SizeVarint(uint64(len(ev.Key) + len(ev.Payload) + others))
	b[i] = eventsEvents<<3 | bytesType
	start := i + 1 + room
	end := s.putFields(b, start, ev)
	return setLen(b, start, end, room)
}

// setLen writes the length of b[start:end] into the room bytes before it, and returns the
// end. It moves the data if the length needs another number of bytes.
func setLen(b []byte, start, end, room int) int {
	length := uint64(end - start)
	if size := protowire.SizeVarint(length); size != room {
		copy(b[start-room+size:], b[start:end])
		end += size - room
	}
	binary.PutUvarint(b[start-room:], length)
	return end
}

// putFields writes the fields in the order of their numbers, which parseInOrder expects.
func (s *eventsScratch) putFields(b []byte, i int, ev *event.Event) int {
	i = putNumber(b, i, eventHandle<<3, uint64(ev.Handle))
	i = putNumber(b, i, eventPartition<<3, uint64(ev.Partition))
	i = putText(b, i, eventKey<<3|bytesType, ev.Key)
	i = putText(b, i, eventPayload<<3|bytesType, ev.Payload)
	for j := range ev.Properties {
		i = s.putProperty(b, i, &ev.Properties[j])
	}
	i = putNumber(b, i, eventLedger<<3, uint64(ev.ID.Ledger))
	i = putNumber(b, i, eventEntry<<3, uint64(ev.ID.Entry))
	i = putNumber(b, i, eventBatch<<3, zigzag(ev.ID.Batch))
	i = putNumber(b, i, eventTopicPart<<3, zigzag(ev.ID.TopicPartition))
	i = putNumber(b, i, eventTopic<<3, uint64(s.topics.add(ev.Topic)))
	i = putNumber(b, i, eventAttempts<<3, uint64(ev.Attempts))
	i = putNumber(b, i, eventPublished<<3, uint64(ev.PublishTime))
	i = putNumber(b, i, eventTime<<3, uint64(ev.EventTime))
	i = putNumber(b, i, eventRedelivery<<3, uint64(ev.Redelivery))
	i = putNumber(b, i, eventRound<<3, uint64(ev.Round))
	if ev.FirstError == "" && ev.LastError == "" && ev.Crashes == 0 && ev.SchemaVersion == "" {
		return i
	}
	b = appendString(b[:i], eventFirstError, ev.FirstError) // their tags have two bytes
	b = appendString(b, eventLastError, ev.LastError)
	b = appendUint(b, eventCrashes, uint64(ev.Crashes))
	if ev.SchemaVersion != "" {
		b = appendUint(b, eventSchema, 1+uint64(s.schemas.add(ev.SchemaVersion)))
	}
	return len(b)
}

func (s *eventsScratch) putProperty(b []byte, i int, p *event.Property) int {
	name := uint64(s.names.add(p.Name))
	b[i] = eventProperties<<3 | bytesType
	i = putVarint(b, i+1, uint64(sizeUint(name)+sizeBytes(len(p.Value))))
	i = putNumber(b, i, 1<<3, name)
	return putText(b, i, 2<<3|bytesType, p.Value)
}
