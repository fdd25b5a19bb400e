package forward

import (
	"fmt"
	"slices"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// eventsParser decodes the body of one Events message. It allocates events in blocks,
// small enough that an event that stays long keeps few others alive. Only topics and schema
// versions are copied, since they outlive their events in labels and copies.
type eventsParser struct {
	topics, names []string
	schemas       []string
	tabled        bool // all fields but the events are read

	full  [][]event.Event // blocks
	block []event.Event   // the present one
	count int             // events in all of them

	properties    []event.Property // the present block
	propertiesN   int              // of the frame
	propertiesMax int              // bound for the frame, for names too
	usual         int              // number of properties of the previous event

	size, rest int    // of the present event, and of the data behind it
	schema     uint64 // of the present event: the index of its schema version plus 1, 0 when it has none
}

// blockMax bounds the events of a block, and the events whose properties share a block.
const blockMax = 128

// parseEvents decodes the events in one pass if the string tables precede them, as this
// version writes them. Earlier versions and other encoders may write the tables after them.
func (f *eventsFrame) parseEvents(b []byte, frameMax int) error {
	p := eventsParser{propertiesMax: frameMax / propertyBytesMin}
	if p.parse(f, b) == nil {
		return nil
	}
	*f = eventsFrame{receipt: f.receipt, scratch: f.scratch}
	p = eventsParser{propertiesMax: frameMax / propertyBytesMin}
	if err := p.parseTables(f, b); err != nil {
		return err
	}
	return p.parse(f, b)
}

// parse decodes the events, and the other fields unless they were read before.
func (p *eventsParser) parse(f *eventsFrame, b []byte) error {
	r := reader{rest: b}
	for len(r.rest) > 0 {
		body, next := text(r.rest, 0, eventsEvents<<3|bytesType)
		if next == 0 {
			if err := p.parseOther(f, &r); err != nil {
				return err
			}
			continue
		}
		r.rest = r.rest[next:]
		p.size, p.rest = next, len(r.rest)
		if p.count++; p.count > frameItemsMax {
			return fmt.Errorf("%w: more than %d events", errFrame, frameItemsMax)
		}
		if err := p.parseEvent(body, p.nextEvent()); err != nil {
			return err
		}
	}
	if f.number == 0 {
		return fmt.Errorf("%w: events without a number", errFrame)
	}
	f.events = p.all()
	return nil
}

// parseTables reads all fields but the events.
func (p *eventsParser) parseTables(f *eventsFrame, b []byte) error {
	r := reader{rest: b}
	for len(r.rest) > 0 {
		if err := p.parseOther(f, &r); err != nil {
			return err
		}
	}
	p.tabled = true
	return nil
}

// parseOther reads the next field if it is not an event, and not read before.
func (p *eventsParser) parseOther(f *eventsFrame, r *reader) error {
	_, err := r.next()
	switch {
	case err != nil:
		return err
	case p.tabled:
	case r.is(eventsNumber, protowire.VarintType):
		f.number = r.n
	case r.is(eventsRelay, protowire.VarintType):
		f.relay = r.n != 0
	case r.is(eventsEpoch, protowire.BytesType):
		return parsePosition(r.value, &f.epoch)
	case r.is(eventsTopics, protowire.BytesType):
		if p.topics = append(p.topics, string(r.value)); len(p.topics) > frameItemsMax {
			return fmt.Errorf("%w: more than %d topics", errFrame, frameItemsMax)
		}
	case r.is(eventsNames, protowire.BytesType):
		if p.names = append(p.names, alias(r.value)); len(p.names) > p.propertiesMax {
			return fmt.Errorf("%w: more than %d names", errFrame, p.propertiesMax)
		}
	case r.is(eventsSchema, protowire.BytesType):
		if p.schemas = append(p.schemas, string(r.value)); len(p.schemas) > frameItemsMax {
			return fmt.Errorf("%w: more than %d schema versions", errFrame, frameItemsMax)
		}
	}
	return nil
}

// nextEvent returns memory for the present event, which is zero.
func (p *eventsParser) nextEvent() *event.Event {
	if len(p.block) == cap(p.block) {
		if p.block != nil {
			p.full = append(p.full, p.block)
		}
		p.block = make([]event.Event, 0, p.expected())
	}
	p.block = p.block[:len(p.block)+1]
	return &p.block[len(p.block)-1]
}

// expected estimates the number of remaining events, the present one included, by its size,
// at most a block.
func (p *eventsParser) expected() int { return min(blockMax, 1+p.rest/p.size) }

// all returns the events.
func (p *eventsParser) all() []*event.Event {
	events := make([]*event.Event, 0, p.count)
	for _, block := range append(p.full, p.block) {
		for i := range block {
			events = append(events, &block[i])
		}
	}
	return events
}

// parseEvent decodes one event into ev, which is zero. Our writer puts the fields in the order
// of their numbers, so each is expected in its place. A field in another place, or with a tag
// of two bytes, is left to parseFields.
func (p *eventsParser) parseEvent(b []byte, ev *event.Event) (err error) {
	var n uint64
	var v []byte
	n, i := number(b, 0, eventHandle<<3)
	ev.Handle = event.Handle(n)
	n, i = number(b, i, eventPartition<<3)
	ev.Partition = partitionOf(n)
	v, i = text(b, i, eventKey<<3|bytesType)
	ev.Key = event.Key(alias(v))
	ev.Payload, i = text(b, i, eventPayload<<3|bytesType)
	p.schema = 0
	start := len(p.properties) // of this event's: they stand together
	for {
		property, next := text(b, i, eventProperties<<3|bytesType)
		if next == i {
			break
		}
		if start, err = p.parseProperty(property, start); err != nil {
			return err
		}
		i = next
	}
	n, i = number(b, i, eventLedger<<3)
	ev.ID.Ledger = int64(n)
	n, i = number(b, i, eventEntry<<3)
	ev.ID.Entry = int64(n)
	n, i = number(b, i, eventBatch<<3)
	ev.ID.Batch = unzigzag(n)
	n, i = number(b, i, eventTopicPart<<3)
	ev.ID.TopicPartition = unzigzag(n)
	topic, i := number(b, i, eventTopic<<3)
	n, i = number(b, i, eventAttempts<<3)
	ev.Attempts = uint32(n)
	n, i = number(b, i, eventPublished<<3)
	ev.PublishTime = int64(n)
	if i < len(b) {
		if start, topic, err = p.parseFields(b[i:], ev, start, topic); err != nil {
			return err
		}
	}
	end := len(p.properties)
	if p.usual = end - start; end > start {
		ev.Properties = p.properties[start:end:end]
	}
	return p.complete(ev, topic)
}

// complete looks up the topic and judges the event.
func (p *eventsParser) complete(ev *event.Event, topic uint64) error {
	switch {
	case topic >= uint64(len(p.topics)):
		return fmt.Errorf("%w: topic %d of %d", errFrame, topic, len(p.topics))
	case p.schema > uint64(len(p.schemas)):
		return fmt.Errorf("%w: schema version %d of %d", errFrame, p.schema, len(p.schemas))
	case ev.Handle == 0:
		return fmt.Errorf("%w: an event without a handle", errFrame)
	case ev.Partition >= ring.Partitions:
		return fmt.Errorf("%w: partition %d of %d", errFrame, ev.Partition, ring.Partitions)
	case len(ev.Key) > event.KeyMax:
		return fmt.Errorf("%w: a key of %d bytes, at most %d", errFrame, len(ev.Key), event.KeyMax)
	}
	ev.Topic = p.topics[topic]
	if p.schema > 0 {
		ev.SchemaVersion = p.schemas[p.schema-1]
	}
	return nil
}

// parseFields decodes fields of ev in any order, as protobuf has it: of those that come
// twice the last one counts. The event's properties begin at start; see parseProperty.
func (p *eventsParser) parseFields(b []byte, ev *event.Event, start int, topic uint64) (int, uint64, error) {
	r := reader{rest: b}
	for {
		ok, err := r.next()
		switch {
		case !ok:
			return start, topic, err
		case r.is(eventTopic, protowire.VarintType):
			topic = r.n
		case r.is(eventSchema, protowire.VarintType):
			p.schema = r.n
		case r.is(eventProperties, protowire.BytesType):
			if start, err = p.parseProperty(r.value, start); err != nil {
				return start, topic, err
			}
		case r.typ == protowire.VarintType:
			setNumber(ev, r.num, r.n)
		default:
			setBytes(ev, r.num, r.value)
		}
	}
}

func setNumber(ev *event.Event, num protowire.Number, n uint64) {
	switch num {
	case eventHandle:
		ev.Handle = event.Handle(n)
	case eventPartition:
		ev.Partition = partitionOf(n)
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

// partitionOf reads a partition. One too high is noticed later.
func partitionOf(n uint64) ring.Partition { return ring.Partition(min(n, ring.Partitions)) }

// parseProperty appends one property to the present block. An event's properties
// begin at start, which moves when a new block is needed.
func (p *eventsParser) parseProperty(b []byte, start int) (int, error) {
	if p.propertiesN++; p.propertiesN > p.propertiesMax {
		return start, fmt.Errorf("%w: too many properties", errFrame)
	}
	name, i := number(b, 0, 1<<3)
	value, i := text(b, i, 2<<3|bytesType)
	r := reader{rest: b[i:]} // fields in other places
	for len(r.rest) > 0 {
		_, err := r.next()
		switch {
		case err != nil:
			return start, err
		case r.is(1, protowire.VarintType):
			name = r.n
		case r.is(2, protowire.BytesType):
			value = r.value
		}
	}
	if name >= uint64(len(p.names)) {
		return start, fmt.Errorf("%w: name %d of %d", errFrame, name, len(p.names))
	}
	if len(p.properties) == cap(p.properties) {
		own := p.properties[start:]
		room := min(max(len(own)+1, p.usual)*p.expected(), p.propertiesMax-p.propertiesN+1)
		p.properties = append(make([]event.Property, 0, len(own)+room), own...)
		start = 0
	}
	p.properties = append(p.properties, event.Property{Name: p.names[name], Value: alias(value)})
	return start, nil
}

// alias returns b as a string without a copy. Received frames are never written to.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) } //nolint:gosec // pointer and length are those of b
