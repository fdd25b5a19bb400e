package forward

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/event"
	"github.com/ringfence/router/ring"
)

// Field numbers of Events and Event.
const (
	eventsNumber = 1
	eventsEpoch  = 2
	eventsTopics = 3
	eventsNames  = 4
	eventsEvents = 5
	eventsRelay  = 6

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
)

// eventsScratch is what encoding a frame needs besides the frame. It is kept for the next one.
type eventsScratch struct {
	topics table
	names  table
}

// table numbers strings in the order of their coming.
type table struct {
	list  []string
	index map[string]int
}

func (t *table) reset() {
	clear(t.list)
	clear(t.index)
	t.list = t.list[:0]
}

func (t *table) add(s string) int {
	if len(t.list) > 0 && t.list[0] == s { // a frame usually has one topic
		return 0
	}
	if i, ok := t.index[s]; ok {
		return i
	}
	i := len(t.list)
	t.list = append(t.list, s)
	if t.index == nil {
		t.index = make(map[string]int)
	}
	t.index[s] = i
	return i
}

func (t *table) append(b []byte, num protowire.Number) []byte {
	for _, s := range t.list {
		b = protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
	}
	return b
}

// headMax is the most that stands before the events of a frame: its receipt, its
// length, its number and its epoch.
const headMax = 64

// marshal encodes the frame, the events in one pass: what stands before them, which
// depends on their length, is a buffer of its own, and what they refer to follows.
func (f *eventsFrame) marshal() mem.BufferSlice {
	head := appendUint(make([]byte, 0, headMax), fieldReceipt, f.receipt)
	if f.number == 0 {
		return mem.BufferSlice{mem.SliceBuffer(head)}
	}
	body := pooled(f.bodyMax(), f.appendBody)
	length := sizeUint(f.number) + body.Len()
	if !f.epoch.IsZero() {
		length += sizeBytes(sizePosition(f.epoch))
	}
	head = appendLen(head, fieldHot, length)
	head = appendUint(head, eventsNumber, f.number)
	head = appendPosition(head, eventsEpoch, f.epoch)
	return append(mem.BufferSlice{mem.SliceBuffer(head)}, body...)
}

// bodyMax is never less than what appendBody appends. It reads the heads of all
// events in a small loop, in which the cache misses of many are under way at once.
func (f *eventsFrame) bodyMax() int {
	n := 2 // relay
	for _, ev := range f.events {
		n += weightOf(ev)
	}
	return n
}

func (f *eventsFrame) appendBody(b []byte) []byte {
	s := &f.scratch
	s.topics.reset()
	s.names.reset()
	for _, ev := range f.events {
		b = s.appendEvent(b, ev)
	}
	b = s.topics.append(b, eventsTopics)
	b = s.names.append(b, eventsNames)
	if f.relay {
		b = appendUint(b, eventsRelay, 1)
	}
	return b
}

// appendEvent appends one event as a field of its frame.
func (s *eventsScratch) appendEvent(b []byte, ev *event.Event) []byte {
	const others = 64 // about what all but key and payload need
	guess := len(ev.Key) + len(ev.Payload) + others
	b = appendLen(b, eventsEvents, guess)
	start := len(b)
	b = s.appendFields(b, ev)
	return setLen(b, start, protowire.SizeBytes(guess)-guess)
}

// setLen writes the length of b[start:] before it, where room bytes were left for it.
// If that is what the length needs, nothing has to move.
func setLen(b []byte, start, room int) []byte {
	length := uint64(len(b) - start)
	if protowire.SizeVarint(length) == room {
		binary.PutUvarint(b[start-room:start], length)
		return b
	}
	return slices.Replace(b, start-room, start, binary.AppendUvarint(nil, length)...)
}

func (s *eventsScratch) appendFields(b []byte, ev *event.Event) []byte {
	b = appendUint(b, eventHandle, uint64(ev.Handle))
	b = appendUint(b, eventPartition, uint64(ev.Partition))
	b = appendString(b, eventKey, string(ev.Key))
	b = appendBytes(b, eventPayload, ev.Payload)
	for _, p := range ev.Properties {
		name := uint64(s.names.add(p.Name))
		b = appendLen(b, eventProperties, sizeUint(name)+sizeBytes(len(p.Value)))
		b = appendUint(b, 1, name)
		b = appendString(b, 2, p.Value)
	}
	b = appendUint(b, eventLedger, uint64(ev.ID.Ledger))
	b = appendUint(b, eventEntry, uint64(ev.ID.Entry))
	b = appendUint(b, eventBatch, zigzag(ev.ID.Batch))
	b = appendUint(b, eventTopicPart, zigzag(ev.ID.TopicPartition))
	b = appendUint(b, eventTopic, uint64(s.topics.add(ev.Topic)))
	b = appendUint(b, eventAttempts, uint64(ev.Attempts))
	b = appendUint(b, eventPublished, uint64(ev.PublishTime))
	b = appendUint(b, eventTime, uint64(ev.EventTime))
	b = appendUint(b, eventRedelivery, uint64(ev.Redelivery))
	b = appendUint(b, eventRound, uint64(ev.Round))
	b = appendString(b, eventFirstError, ev.FirstError)
	b = appendString(b, eventLastError, ev.LastError)
	if ev.Crashes == 0 {
		return b
	}
	return appendUint(b, eventCrashes, uint64(ev.Crashes)) // a tag of two bytes: room is left for it, see bodyMax
}

// eventsParser decodes the body of one Events message. All that it makes is
// allocated per frame, not per event; only topics are copied, since they outlive
// their events in labels and copies.
type eventsParser struct {
	topics, names []string
	events        []event.Event
	properties    []event.Property // what is left of the present block
	propertiesMax int              // how many more the frame may have
}

func (f *eventsFrame) parseEvents(b []byte, frameMax int) error {
	p := eventsParser{propertiesMax: frameMax / propertyBytesMin}
	count, err := f.parseTables(b, &p)
	if err != nil {
		return err
	}
	if f.number == 0 {
		return fmt.Errorf("%w: events without a number", errFrame)
	}
	p.events = make([]event.Event, count)
	f.events = make([]*event.Event, 0, count)
	r := reader{rest: b}
	for {
		switch ok, err := r.next(); {
		case !ok:
			return err
		case !r.is(eventsEvents, protowire.BytesType):
			continue
		}
		ev := &p.events[len(f.events)]
		if err := p.parseEvent(r.value, ev); err != nil {
			return err
		}
		f.events = append(f.events, ev)
	}
}

// parseTables reads everything but the events, which it counts: what they refer to
// may stand behind them.
func (f *eventsFrame) parseTables(b []byte, p *eventsParser) (count int, err error) {
	r := reader{rest: b}
	for {
		ok, err := r.next()
		switch {
		case !ok:
			return count, err
		case r.is(eventsNumber, protowire.VarintType):
			f.number = r.n
		case r.is(eventsRelay, protowire.VarintType):
			f.relay = r.n != 0
		case r.is(eventsEpoch, protowire.BytesType):
			if err := parsePosition(r.value, &f.epoch); err != nil {
				return 0, err
			}
		case r.is(eventsTopics, protowire.BytesType):
			p.topics = append(p.topics, string(r.value))
		case r.is(eventsNames, protowire.BytesType):
			p.names = append(p.names, alias(r.value))
		case r.is(eventsEvents, protowire.BytesType):
			count++
		}
		switch {
		case count > frameItemsMax, len(p.topics) > frameItemsMax:
			return 0, fmt.Errorf("%w: more than %d events or topics", errFrame, frameItemsMax)
		case len(p.names) > p.propertiesMax:
			return 0, fmt.Errorf("%w: more than %d names", errFrame, p.propertiesMax)
		}
	}
}

// parseEvent decodes one event into ev, which is zero.
func (p *eventsParser) parseEvent(b []byte, ev *event.Event) error {
	var topic uint64
	start := len(p.properties) // of this event's: they stand together
	r := reader{rest: b}
	for {
		ok, err := r.next()
		if !ok {
			if err != nil {
				return err
			}
			break
		}
		switch {
		case r.is(eventTopic, protowire.VarintType):
			topic = r.n
		case r.is(eventProperties, protowire.BytesType):
			if start, err = p.parseProperty(r.value, start); err != nil {
				return err
			}
		case r.typ == protowire.VarintType:
			setNumber(ev, r.num, r.n)
		default:
			setBytes(ev, r.num, r.value)
		}
	}
	if end := len(p.properties); end > start {
		ev.Properties = p.properties[start:end:end]
	}
	switch {
	case topic >= uint64(len(p.topics)):
		return fmt.Errorf("%w: topic %d of %d", errFrame, topic, len(p.topics))
	case ev.Handle == 0:
		return fmt.Errorf("%w: an event without a handle", errFrame)
	case ev.Partition >= ring.Partitions:
		return fmt.Errorf("%w: partition %d of %d", errFrame, ev.Partition, ring.Partitions)
	case len(ev.Key) > event.KeyMax:
		return fmt.Errorf("%w: a key of %d bytes, at most %d", errFrame, len(ev.Key), event.KeyMax)
	}
	ev.Topic = p.topics[topic]
	return nil
}

func setNumber(ev *event.Event, num protowire.Number, n uint64) {
	switch num {
	case eventHandle:
		ev.Handle = event.Handle(n)
	case eventPartition:
		ev.Partition = ring.Partition(min(n, ring.Partitions)) // one too high is noticed later
	case eventLedger:
		ev.ID.Ledger = int64(n)
	case eventEntry:
		ev.ID.Entry = int64(n)
	case eventBatch:
		ev.ID.Batch = unzigzag(n)
	case eventTopicPart:
		ev.ID.TopicPartition = unzigzag(n)
	case eventAttempts:
		ev.Attempts = uint32(n)
	case eventPublished:
		ev.PublishTime = int64(n)
	case eventTime:
		ev.EventTime = int64(n)
	case eventRedelivery:
		ev.Redelivery = uint32(n)
	case eventCrashes:
		ev.Crashes = uint32(n)
	case eventRound:
		ev.Round = uint32(n)
	}
}

func setBytes(ev *event.Event, num protowire.Number, v []byte) {
	switch num {
	case eventKey:
		ev.Key = event.Key(alias(v))
	case eventPayload:
		ev.Payload = slices.Clip(v)
	case eventFirstError:
		ev.FirstError = alias(v)
	case eventLastError:
		ev.LastError = alias(v)
	}
}

// parseProperty appends one property to the present block. An event's properties
// begin at start, which moves when a new block is needed.
func (p *eventsParser) parseProperty(b []byte, start int) (int, error) {
	if p.propertiesMax--; p.propertiesMax < 0 {
		return start, fmt.Errorf("%w: too many properties", errFrame)
	}
	var name uint64
	var property event.Property
	r := reader{rest: b}
	for {
		ok, err := r.next()
		if err != nil {
			return start, err
		}
		if !ok {
			break
		}
		switch {
		case r.is(1, protowire.VarintType):
			name = r.n
		case r.is(2, protowire.BytesType):
			property.Value = alias(r.value)
		}
	}
	if name >= uint64(len(p.names)) {
		return start, fmt.Errorf("%w: name %d of %d", errFrame, name, len(p.names))
	}
	property.Name = p.names[name]
	if len(p.properties) == cap(p.properties) {
		own := p.properties[start:]
		p.properties = append(make([]event.Property, 0, 2*len(own)+2*len(p.events)), own...)
		start = 0
	}
	p.properties = append(p.properties, property)
	return start, nil
}

// alias returns b as a string without a copy. Nobody writes to a received frame.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
