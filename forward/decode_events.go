package forward

import (
	"fmt"
	"strings"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/hotframe"
	"github.com/ringfence/router/ring"
)

// eventsParser decodes the body of one Events message. Consecutive events of one entry become an [event.Entry] of bytes, all others
// objects, which are allocated in blocks: both small enough that an event that stays long keeps few others alive. Only topics and schema
// versions are copied, since they outlive their events in labels and copies.
type eventsParser struct {
	topics, names, schemas []string

	events []event.Ref
	entry  *event.Entry  // of which the next event becomes a part; nil: it begins one, or becomes an object
	block  []event.Event // for objects

	properties    []event.Property // the present block
	propertiesN   int              // of the frame
	propertiesMax int              // bound for the frame, for names too
	usual         int              // number of properties of the previous event

	now func() clock.Instant

	size, rest int // of the present event, and of the data behind it
}

// blockMax bounds the events of a block and of an entry, and the events whose properties share a block.
const blockMax = 64

// errOther says that a message is encoded in another way than ours.
var errOther = fmt.Errorf("%w: fields that are not those of our writer", errFrame)

// parseHot decodes an Events message that is encoded as our writer does it. It returns an error for any other, good or bad. The bytes of
// strings may be any, as the bytes of a producer's properties are: the generated code refuses some.
func (f *eventsFrame) parseHot(b []byte, propertiesMax int) error {
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
	var events [2]event.Event // the present one, and the one before it, which is added when it is known what follows
	n := 0
	for body, rest := hotframe.Chunk(b, eventsEvents); body != nil; body, rest = hotframe.Chunk(b, eventsEvents) {
		p.size, p.rest = len(b)-len(rest), len(rest)
		if n == 0 {
			p.events = make([]event.Ref, 0, min(frameItemsMax, 1+p.rest/p.size))
		}
		if n == frameItemsMax {
			return errOther
		}
		ev, before := &events[n%2], &events[(n+1)%2]
		*ev = event.Event{}
		if err := p.parseEvent(body, ev); err != nil {
			return err
		}
		if n > 0 {
			p.add(before, ev)
		}
		n, b = n+1, rest
	}
	if n > 0 {
		p.add(&events[(n-1)%2], nil)
	}
	f.events = p.events
	switch {
	case len(b) > 0:
		return errOther
	case f.number == 0:
		return fmt.Errorf("%w: events without a number", errFrame)
	}
	return nil
}

// add adds an event. Together with the next one, nil if there is none, it may begin an entry.
func (p *eventsParser) add(ev, next *event.Event) {
	continues := next != nil && event.Together(ev, next)
	if p.entry == nil && continues {
		p.entry = event.PartOf(ev, 1+p.expected())
	}
	if p.entry != nil {
		p.events = append(p.events, event.Ref{Entry: p.entry, Index: int32(p.entry.Len())})
		if p.entry.AddPartOf(ev); !continues || p.entry.Len() == blockMax {
			p.entry = nil
		}
		return
	}
	if len(p.block) == 0 {
		p.block = make([]event.Event, p.expected())
	}
	p.block[0] = *ev
	p.events = append(p.events, event.RefTo(&p.block[0]))
	p.block = p.block[1:]
}

// expected estimates the number of remaining events, the present one included, by its size,
// at most a block.
func (p *eventsParser) expected() int { return min(blockMax, 1+p.rest/p.size) }

// parseEvent decodes one event into ev, which is zero.
func (p *eventsParser) parseEvent(b []byte, ev *event.Event) (err error) {
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
		if start, err = p.parseProperty(property, start); err != nil {
			return err
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
		if err := p.parseRare(b, ev); err != nil {
			return err
		}
	}
	if uint64(uint32(topic)) >= uint64(len(p.topics)) {
		return fmt.Errorf("%w: topic %d of %d", errFrame, uint32(topic), len(p.topics))
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
	return checkEvent(ev)
}

// parseRare decodes the fields that few events have.
func (p *eventsParser) parseRare(b []byte, ev *event.Event) error {
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
			return errOther
		}
		b = rest
	}
	schema, b := hotframe.Number(b, eventSchema)
	switch i := uint32(schema); {
	case len(b) > 0:
		return errOther
	case uint64(i) > uint64(len(p.schemas)):
		return fmt.Errorf("%w: schema version %d of %d", errFrame, i, len(p.schemas))
	case i > 0:
		ev.SchemaVersion = p.schemas[i-1]
	}
	return nil
}

// parseProperty appends one property to the present block. An event's properties begin at start,
// which moves when a new block is needed: the result is the new start.
func (p *eventsParser) parseProperty(b []byte, start int) (int, error) {
	name, b := hotframe.Number(b, 1)
	value, b := hotframe.Chunk(b, 2)
	p.propertiesN++
	switch {
	case len(b) > 0 || p.propertiesN > p.propertiesMax:
		return 0, errOther
	case uint64(uint32(name)) >= uint64(len(p.names)):
		return 0, fmt.Errorf("%w: name %d of %d", errFrame, uint32(name), len(p.names))
	}
	if len(p.properties) == cap(p.properties) {
		own := p.properties[start:]
		room := min(max(len(own)+1, p.usual)*p.expected(), p.propertiesMax-p.propertiesN+1)
		p.properties = append(make([]event.Property, 0, len(own)+room), own...)
		start = 0
	}
	p.properties = append(p.properties, event.Property{Name: p.names[uint32(name)], Value: event.Alias(value)})
	return start, nil
}

// partitionOf reads a partition. checkEvent notices one that is too high.
func partitionOf(n uint32) ring.Partition { return ring.Partition(min(n, ring.Partitions)) }

// checkEvent returns what is wrong with an event. One that is no call may have the id of a call: it is a copy with a false id, which a member
// of an earlier release passes on, and for which its stream must not end. Its mailbox gives it another id.
func checkEvent(ev *event.Event) error {
	switch {
	case ev.Handle == 0:
		return fmt.Errorf("%w: an event without a handle", errFrame)
	case ev.Partition >= ring.Partitions:
		return fmt.Errorf("%w: partition %d of %d", errFrame, ev.Partition, ring.Partitions)
	case len(ev.Key) > event.KeyMax:
		return fmt.Errorf("%w: a key of %d bytes, at most %d", errFrame, len(ev.Key), event.KeyMax)
	case ev.Call != nil && !ev.ID.IsCall():
		return fmt.Errorf("%w: a call with the id %s of an event", errFrame, ev.ID)
	}
	return nil
}
