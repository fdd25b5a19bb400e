package forward

import (
	"strings"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/hotframe"
)

// eventsParser decodes the body of one Events message. Consecutive events of one entry become an [event.Entry] of bytes, all others
// objects, which are allocated in blocks: both small enough that an event that stays long keeps few others alive. Only topics and schema
// versions are copied, since they outlive their events in labels and copies.
type eventsParser struct {
	topics, names, schemas []string

	events []event.Ref
	entry  *event.Entry  // the entry that the last event became a part of; nil if it became an object, or waits
	last   event.Event   // the last event, if waits
	waits  bool          // the last event is in neither form yet: the next one tells whether it begins an entry
	block  []event.Event // for objects
	count  int           // events so far

	properties    []event.Property // the present block
	propertiesN   int              // of the frame
	propertiesMax int              // bound for the frame, for names too
	usual         int              // number of properties of the previous event

	now func() clock.Instant

	size, rest int // of the present event, and of the data behind it
}

// blockMax bounds the events of a block and of an entry, and the events whose properties share a block.
const blockMax = 64

// parseOurs decodes the frame if it is only a receipt, or carries events and is encoded as our
// writer does it. It returns false for any other frame, good or bad. The bytes of strings may be
// any, as the bytes of a producer's properties are: the generated code refuses some.
func (f *eventsFrame) parseOurs(b []byte, propertiesMax int) bool {
	receipt, b, ok := hotframe.Open(b)
	if !ok {
		return false
	}
	f.receipt = receipt
	if b == nil {
		return true
	}
	p := eventsParser{propertiesMax: propertiesMax, now: f.now}
	f.number, b = hotframe.Number(b, eventsNumber)
	f.epoch, b = readPosition(b, eventsEpoch)
	relay, b := hotframe.Number(b, eventsRelay)
	f.relay = relay != 0
	p.topics, b = hotframe.Strings(b, eventsTopics, frameItemsMax, nil)
	p.names, b = hotframe.Strings(b, eventsNames, propertiesMax, nil)
	p.schemas, b = hotframe.Strings(b, eventsSchema, frameItemsMax, nil)
	for i := range p.topics {
		p.topics[i] = strings.Clone(p.topics[i])
	}
	for i := range p.schemas {
		p.schemas[i] = strings.Clone(p.schemas[i])
	}
	var ev event.Event
	for len(b) > 0 {
		body, rest := hotframe.Chunk(b, eventsEvents)
		if body == nil || p.count == frameItemsMax {
			return false
		}
		p.count++
		p.size, p.rest = len(b)-len(rest), len(rest)
		if p.events == nil {
			p.events = make([]event.Ref, 0, min(frameItemsMax, 1+p.rest/p.size))
		}
		ev = event.Event{}
		if !p.parseEvent(body, &ev) {
			return false
		}
		p.add(&ev)
		b = rest
	}
	p.addObject()
	f.events = p.events
	return f.number > 0
}

// add adds the present event.
func (p *eventsParser) add(ev *event.Event) {
	if p.entry == nil && p.waits && p.last.Handle.First() == ev.Handle.First() && p.last.ID.Ledger == ev.ID.Ledger && p.last.ID.Entry == ev.ID.Entry &&
		(p.last.Attempts|p.last.Crashes|p.last.Round)|(ev.Attempts|ev.Crashes|ev.Round) == 0 && p.last.Call == nil {
		if e := event.PartOf(&p.last, 1+p.expected()); e.Holds(&p.last) {
			p.entry, p.waits = e, false
			p.addPart(&p.last)
		}
	}
	if p.entry != nil && p.entry.Holds(ev) {
		p.addPart(ev)
		return
	}
	p.addObject()
	p.entry, p.last, p.waits = nil, *ev, true
}

func (p *eventsParser) addPart(ev *event.Event) {
	p.events = append(p.events, event.Ref{Entry: p.entry, Index: int32(p.entry.Len())})
	p.entry.AddPartOf(ev)
}

// addObject adds the last event, if it waits, as an object.
func (p *eventsParser) addObject() {
	if !p.waits {
		return
	}
	if len(p.block) == 0 {
		p.block = make([]event.Event, p.expected())
	}
	p.block[0] = p.last
	p.events = append(p.events, event.RefTo(&p.block[0]))
	p.block, p.waits = p.block[1:], false
}

// expected estimates the number of remaining events, the present one included, by its size,
// at most a block.
func (p *eventsParser) expected() int { return min(blockMax, 1+p.rest/p.size) }

// parseEvent decodes one event into ev, which is zero. It returns false if the event is invalid,
// or encoded in another way than ours.
func (p *eventsParser) parseEvent(b []byte, ev *event.Event) bool {
	handle, b := hotframe.Number(b, eventHandle)
	part, b := hotframe.Number(b, eventPartition)
	key, b := hotframe.Chunk(b, eventKey)
	ev.Payload, b = hotframe.Chunk(b, eventPayload)
	start := len(p.properties) // of this event's: they stand together
	for {
		property, rest := hotframe.Chunk(b, eventProperties)
		if property == nil {
			break
		}
		if start = p.parseProperty(property, start); start < 0 {
			return false
		}
		b = rest
	}
	ledger, b := hotframe.Number(b, eventLedger)
	entry, b := hotframe.Number(b, eventEntry)
	batch, b := hotframe.Number(b, eventBatch)
	topicPartition, b := hotframe.Number(b, eventTopicPart)
	topic, b := hotframe.Number(b, eventTopic)
	attempts, b := hotframe.Number(b, eventAttempts)
	published, b := hotframe.Number(b, eventPublished)
	if len(b) > 0 { // rarely
		if b = p.parseRare(b, ev); len(b) > 0 {
			return false
		}
	}
	if uint64(uint32(topic)) >= uint64(len(p.topics)) {
		return false
	}
	ev.Handle, ev.Partition, ev.Key = event.Handle(handle), partitionOf(uint32(part)), event.Key(event.Alias(key))
	ev.ID = event.MessageID{
		Ledger: int64(ledger), Entry: int64(entry), Batch: hotframe.Unzigzag(batch), TopicPartition: hotframe.Unzigzag(topicPartition),
	}
	ev.Topic, ev.Attempts, ev.PublishTime = p.topics[uint32(topic)], uint32(attempts), int64(published)
	end := len(p.properties)
	if p.usual = end - start; end > start {
		ev.Properties = p.properties[start:end:end]
	}
	return checkEvent(ev) == nil
}

// parseRare decodes the fields that few events have. What it cannot read, it returns.
func (p *eventsParser) parseRare(b []byte, ev *event.Event) []byte {
	happened, b := hotframe.Number(b, eventTime)
	redelivery, b := hotframe.Number(b, eventRedelivery)
	round, b := hotframe.Number(b, eventRound)
	first, b := hotframe.Chunk(b, eventFirstError)
	last, b := hotframe.Chunk(b, eventLastError)
	crashes, b := hotframe.Number(b, eventCrashes)
	ev.EventTime, ev.Redelivery, ev.Round, ev.Crashes = int64(happened), uint32(redelivery), uint32(round), uint32(crashes)
	ev.FirstError, ev.LastError = event.Alias(first), event.Alias(last)
	if call, rest := hotframe.Chunk(b, eventCall); call != nil {
		if ev.Call = hotframe.ReadCall(call, p.now()); ev.Call == nil {
			return b
		}
		b = rest
	}
	schema, rest := hotframe.Number(b, eventSchema)
	switch i := uint32(schema); {
	case i == 0:
	case uint64(i) > uint64(len(p.schemas)):
		return b
	default:
		ev.SchemaVersion = p.schemas[i-1]
	}
	return rest
}

// parseProperty appends one property to the present block. An event's properties begin at start,
// which moves when a new block is needed. The result is the new start, and negative if the property
// is invalid, or encoded in another way than ours.
func (p *eventsParser) parseProperty(b []byte, start int) int {
	if p.propertiesN++; p.propertiesN > p.propertiesMax {
		return -1
	}
	name, b := hotframe.Number(b, 1)
	value, b := hotframe.Chunk(b, 2)
	if len(b) > 0 || uint64(uint32(name)) >= uint64(len(p.names)) {
		return -1
	}
	if len(p.properties) == cap(p.properties) {
		own := p.properties[start:]
		room := min(max(len(own)+1, p.usual)*p.expected(), p.propertiesMax-p.propertiesN+1)
		p.properties = append(make([]event.Property, 0, len(own)+room), own...)
		start = 0
	}
	p.properties = append(p.properties, event.Property{Name: p.names[uint32(name)], Value: event.Alias(value)})
	return start
}
