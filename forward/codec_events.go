package forward

import (
	"fmt"
	"strings"
	"unsafe"

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
)

// eventsScratch is what encoding a frame needs besides the frame. It is kept for the next one.
type eventsScratch struct {
	body   int
	sizes  []int // of the events, in their order
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
	if i, ok := t.find(s); ok {
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

func (t *table) find(s string) (int, bool) {
	if len(t.list) > 0 && t.list[0] == s { // a frame usually has one topic
		return 0, true
	}
	i, ok := t.index[s]
	return i, ok
}

// at returns the number of a string that was added.
func (t *table) at(s string) int {
	i, _ := t.find(s)
	return i
}

func (t *table) size() int {
	n := 0
	for _, s := range t.list {
		n += 1 + protowire.SizeBytes(len(s)) // an empty one too: places count
	}
	return n
}

func (t *table) append(b []byte, num protowire.Number) []byte {
	for _, s := range t.list {
		b = protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
	}
	return b
}

// size returns how long the encoding is, and prepares append.
func (f *eventsFrame) size() int {
	n := sizeUint(f.receipt)
	if f.number == 0 {
		return n
	}
	s := &f.scratch
	s.sizes = s.sizes[:0]
	s.topics.reset()
	s.names.reset()
	s.body = sizeUint(f.number)
	if !f.epoch.IsZero() {
		s.body += sizeBytes(sizePosition(f.epoch))
	}
	for _, ev := range f.events {
		size := s.sizeEvent(ev)
		s.sizes = append(s.sizes, size)
		s.body += 1 + protowire.SizeBytes(size)
	}
	s.body += s.topics.size() + s.names.size()
	if f.relay {
		s.body += 2
	}
	return n + 1 + protowire.SizeBytes(s.body)
}

// append encodes the frame behind b. It needs size called before.
func (f *eventsFrame) append(b []byte) []byte {
	b = appendUint(b, fieldReceipt, f.receipt)
	if f.number == 0 {
		return b
	}
	s := &f.scratch
	b = appendLen(b, fieldHot, s.body)
	b = appendUint(b, eventsNumber, f.number)
	b = appendPosition(b, eventsEpoch, f.epoch)
	b = s.topics.append(b, eventsTopics)
	b = s.names.append(b, eventsNames)
	for i, ev := range f.events {
		b = appendLen(b, eventsEvents, s.sizes[i])
		b = s.appendEvent(b, ev)
	}
	if f.relay {
		b = appendUint(b, eventsRelay, 1)
	}
	return b
}

func (s *eventsScratch) sizeEvent(ev *event.Event) int {
	n := sizeUint(uint64(ev.Handle)) +
		sizeUint(uint64(ev.Partition)) +
		sizeBytes(len(ev.Key)) +
		sizeBytes(len(ev.Payload)) +
		sizeUint(uint64(ev.ID.Ledger)) +
		sizeUint(uint64(ev.ID.Entry)) +
		sizeUint(zigzag(ev.ID.Batch)) +
		sizeUint(zigzag(ev.ID.TopicPartition)) +
		sizeUint(uint64(s.topics.add(ev.Topic))) +
		sizeUint(uint64(ev.Attempts)) +
		sizeUint(uint64(ev.PublishTime)) +
		sizeUint(uint64(ev.EventTime)) +
		sizeUint(uint64(ev.Redelivery)) +
		sizeUint(uint64(ev.Round))
	for _, p := range ev.Properties {
		n += 1 + protowire.SizeBytes(sizeUint(uint64(s.names.add(p.Name)))+sizeBytes(len(p.Value)))
	}
	if ev.FirstError != "" { // their tags have two bytes
		n += 1 + sizeBytes(len(ev.FirstError))
	}
	if ev.LastError != "" {
		n += 1 + sizeBytes(len(ev.LastError))
	}
	return n
}

func (s *eventsScratch) appendEvent(b []byte, ev *event.Event) []byte {
	b = appendUint(b, eventHandle, uint64(ev.Handle))
	b = appendUint(b, eventPartition, uint64(ev.Partition))
	b = appendString(b, eventKey, string(ev.Key))
	b = appendBytes(b, eventPayload, ev.Payload)
	for _, p := range ev.Properties {
		name := uint64(s.names.at(p.Name))
		b = appendLen(b, eventProperties, sizeUint(name)+sizeBytes(len(p.Value)))
		b = appendUint(b, 1, name)
		b = appendString(b, 2, p.Value)
	}
	b = appendUint(b, eventLedger, uint64(ev.ID.Ledger))
	b = appendUint(b, eventEntry, uint64(ev.ID.Entry))
	b = appendUint(b, eventBatch, zigzag(ev.ID.Batch))
	b = appendUint(b, eventTopicPart, zigzag(ev.ID.TopicPartition))
	b = appendUint(b, eventTopic, uint64(s.topics.at(ev.Topic)))
	b = appendUint(b, eventAttempts, uint64(ev.Attempts))
	b = appendUint(b, eventPublished, uint64(ev.PublishTime))
	b = appendUint(b, eventTime, uint64(ev.EventTime))
	b = appendUint(b, eventRedelivery, uint64(ev.Redelivery))
	b = appendUint(b, eventRound, uint64(ev.Round))
	b = appendString(b, eventFirstError, ev.FirstError)
	return appendString(b, eventLastError, ev.LastError)
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
	p.events = make([]event.Event, 0, count)
	err = fields(b, func(num protowire.Number, fl field) error {
		if num != eventsEvents {
			return nil
		}
		return p.parseEvent(fl.value)
	})
	if err != nil {
		return err
	}
	f.events = make([]*event.Event, count)
	for i := range p.events {
		f.events[i] = &p.events[i]
	}
	return nil
}

// parseTables reads everything but the events, which it counts: what they refer to
// may stand behind them.
func (f *eventsFrame) parseTables(b []byte, p *eventsParser) (count int, err error) {
	err = fields(b, func(num protowire.Number, fl field) error {
		switch num {
		case eventsNumber:
			f.number, err = fl.varint()
		case eventsEpoch:
			err = parsePosition(fl, &f.epoch)
		case eventsTopics:
			var s []byte
			s, err = fl.bytes()
			p.topics = append(p.topics, strings.Clone(alias(s)))
		case eventsNames:
			var s []byte
			s, err = fl.bytes()
			p.names = append(p.names, alias(s))
		case eventsEvents:
			_, err = fl.bytes()
			count++
		case eventsRelay:
			var n uint64
			n, err = fl.varint()
			f.relay = n != 0
		}
		switch {
		case err != nil:
			return err
		case count > frameItemsMax, len(p.topics) > frameItemsMax:
			return fmt.Errorf("%w: more than %d events or topics", errFrame, frameItemsMax)
		case len(p.names) > p.propertiesMax:
			return fmt.Errorf("%w: more than %d names", errFrame, p.propertiesMax)
		}
		return nil
	})
	return count, err
}

// parseEvent appends one event.
func (p *eventsParser) parseEvent(b []byte) error {
	p.events = p.events[:len(p.events)+1]
	ev := &p.events[len(p.events)-1]
	start := len(p.properties)
	var topic uint64
	for len(b) > 0 { // not by fields: a closure that writes to all this costs an allocation
		f, n, err := nextField(b)
		if err != nil {
			return err
		}
		b = b[n:]
		if f.num == eventTopic {
			topic, err = f.varint()
		} else if f.num == eventProperties {
			start, err = p.parseProperty(f, start)
		} else {
			err = parseEventField(ev, f)
		}
		if err != nil {
			return err
		}
	}
	if topic >= uint64(len(p.topics)) {
		return fmt.Errorf("%w: topic %d of %d", errFrame, topic, len(p.topics))
	}
	if ev.Handle == 0 {
		return fmt.Errorf("%w: an event without a handle", errFrame)
	}
	ev.Topic = p.topics[topic]
	if end := len(p.properties); end > start {
		ev.Properties = p.properties[start:end:end]
	}
	return nil
}

// parseEventField reads one field that stands for itself.
func parseEventField(ev *event.Event, f field) error {
	switch f.num {
	case eventKey, eventPayload, eventFirstError, eventLastError:
		return parseEventBytes(ev, f)
	case eventHandle, eventPartition, eventLedger, eventEntry, eventBatch, eventTopicPart, eventAttempts,
		eventPublished, eventTime, eventRedelivery, eventRound:
		return parseEventNumber(ev, f)
	}
	return nil // of a later version
}

func parseEventBytes(ev *event.Event, f field) error {
	v, err := f.bytes()
	if err != nil {
		return err
	}
	switch f.num {
	case eventKey:
		if len(v) > event.KeyMax {
			return fmt.Errorf("%w: a key of %d bytes, at most %d", errFrame, len(v), event.KeyMax)
		}
		ev.Key = event.Key(alias(v))
	case eventPayload:
		ev.Payload = v[:len(v):len(v)]
	case eventFirstError:
		ev.FirstError = alias(v)
	case eventLastError:
		ev.LastError = alias(v)
	}
	return nil
}

func parseEventNumber(ev *event.Event, f field) error {
	n, err := f.varint()
	if err != nil {
		return err
	}
	switch f.num {
	case eventHandle:
		ev.Handle = event.Handle(n)
	case eventPartition:
		if n >= ring.Partitions {
			return fmt.Errorf("%w: partition %d of %d", errFrame, n, ring.Partitions)
		}
		ev.Partition = ring.Partition(n)
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
	case eventRound:
		ev.Round = uint32(n)
	}
	return nil
}

// parseProperty appends one property to the present block. An event's properties
// stand together: they begin at start, which moves when a new block is needed.
func (p *eventsParser) parseProperty(f field, start int) (int, error) {
	b, err := f.bytes()
	if err != nil {
		return start, err
	}
	if p.propertiesMax--; p.propertiesMax < 0 {
		return start, fmt.Errorf("%w: too many properties", errFrame)
	}
	var name uint64
	var property event.Property
	for len(b) > 0 {
		f, n, err := nextField(b)
		if err != nil {
			return start, err
		}
		b = b[n:]
		switch f.num {
		case 1:
			name, err = f.varint()
		case 2:
			var v []byte
			v, err = f.bytes()
			property.Value = alias(v)
		}
		if err != nil {
			return start, err
		}
	}
	if name >= uint64(len(p.names)) {
		return start, fmt.Errorf("%w: name %d of %d", errFrame, name, len(p.names))
	}
	property.Name = p.names[name]
	if len(p.properties) == cap(p.properties) {
		own := p.properties[start:]
		p.properties = append(make([]event.Property, 0, 2*len(own)+2*cap(p.events)), own...)
		start = 0
	}
	p.properties = append(p.properties, property)
	return start, nil
}

// alias returns b as a string without a copy. Nobody writes to a received frame.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
