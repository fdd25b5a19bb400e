package event

import "github.com/ringfence/router/internal/base/partition"

// Message is an event as it came from the broker, with the fields that keys are made of.
type Message struct {
	Event       *Event
	Key         string // the message key, "" when there is none
	OrderingKey string // the ordering key, "" when there is none
}

// Entry is the events that came together: those of one entry of the broker, or those that a peer has relayed together. It is what a
// consumer node retains until they have their verdicts; an event is named by its index.
//
// The events of a batch are not objects but bytes: where each of them lies in the batch. [Entry.Event] makes an object where one is
// needed. An Entry is immutable once its consumer node has handed it on, and then safe for concurrent use.
type Entry struct {
	First Handle // of the event with index 0, given by the source of the consumer node
	Fresh Bits   // the events that are handed on: the others are settled already, or have no key
	Bytes int    // its size in every memory bound

	// What the events of a batch have in common.
	Ledger, Entry  int64  // see MessageID
	TopicPartition int32  // see MessageID
	Batched        bool   // their ids have an index; otherwise there is one event, and its id has none
	Topic          string // full name
	PublishTime    int64  // Unix milliseconds, by the producer's clock
	Redelivery     uint32 // how often Pulsar has delivered the entry before
	SchemaVersion  string // see Event

	parts      []Part
	properties []Property // of all parts, one after the other
	ordering   map[int]string
	keys       []Key     // if they are not the message keys
	messages   []Message // instead of parts; those that are not Fresh may have no event
}

// Part is the place of one event in a batch, which is never written to.
type Part struct {
	Key       string // the message key, "" when there is none
	payload   string
	EventTime int64 // Unix milliseconds, 0 when the producer gave none

	index                     int32 // of the event in its entry at the broker
	properties, propertiesEnd uint32
	partition                 partition.ID
	null                      bool // there is no payload
}

// NewEntry returns the entry of events that are objects.
func NewEntry(messages ...Message) *Entry {
	e := &Entry{messages: messages}
	for i := range messages {
		if ev := messages[i].Event; ev != nil {
			e.Bytes += ev.Bytes()
		}
	}
	return e
}

// NewBatch returns an entry with room for the events of a batch of so many bytes, of which [Entry.AddPart] adds one after the other.
func NewBatch(events, bytes int) *Entry {
	return &Entry{parts: make([]Part, 0, events), Bytes: bytes + events*eventOverhead}
}

// AddPart adds the next event of a batch. Its strings and its payload alias the batch; a nil payload is a null value.
func (e *Entry) AddPart(p Part, payload []byte, orderingKey string, properties []Property) {
	p.index = int32(len(e.parts))
	e.add(p, payload, orderingKey, properties)
}

// Holds reports whether an event can be added by AddPartOf.
func (e *Entry) Holds(ev *Event) bool {
	batch := int32(-1)
	if e.Batched {
		batch = int32(ev.Handle.Index())
	}
	return ev.Handle.First() == e.First && ev.ID == MessageID{Ledger: e.Ledger, Entry: e.Entry, Batch: batch, TopicPartition: e.TopicPartition} &&
		ev.Attempts|ev.Crashes|ev.Round == 0 && ev.Call == nil && ev.FirstError == "" && ev.LastError == "" &&
		ev.Topic == e.Topic && ev.PublishTime == e.PublishTime && ev.Redelivery == e.Redelivery && ev.SchemaVersion == e.SchemaVersion && len(e.parts) < cap(e.parts)
}

// PartOf returns an entry with room for so many events that came with ev, at a node that received them from their consumer node.
func PartOf(ev *Event, events int) *Entry {
	return &Entry{
		parts: make([]Part, 0, events), First: ev.Handle.First(),
		Ledger: ev.ID.Ledger, Entry: ev.ID.Entry, TopicPartition: ev.ID.TopicPartition, Batched: ev.ID.Batch >= 0,
		Topic: ev.Topic, PublishTime: ev.PublishTime, Redelivery: ev.Redelivery, SchemaVersion: ev.SchemaVersion,
	}
}

// AddPartOf adds an event that e holds. Its key, payload and properties are not copied.
func (e *Entry) AddPartOf(ev *Event) {
	e.add(Part{Key: string(ev.Key), EventTime: ev.EventTime, index: int32(ev.Handle.Index()), partition: ev.Partition}, ev.Payload, "", ev.Properties)
}

// propertiesGuessMax bounds the memory that is taken for properties in advance, as if all events had as many as the first that has some.
const propertiesGuessMax = 1024

func (e *Entry) add(p Part, payload []byte, orderingKey string, properties []Property) {
	p.payload, p.null = Alias(payload), payload == nil
	if e.properties == nil && len(properties) > 0 {
		e.properties = make([]Property, 0, max(len(properties), min(len(properties)*cap(e.parts), propertiesGuessMax)))
	}
	p.properties = uint32(len(e.properties))
	e.properties = append(e.properties, properties...)
	e.Bytes += len(properties) * propertyOverhead
	p.propertiesEnd = uint32(len(e.properties))
	if orderingKey != "" {
		if e.ordering == nil {
			e.ordering = make(map[int]string)
		}
		e.ordering[len(e.parts)] = orderingKey
	}
	e.parts = append(e.parts, p)
}

// Len returns the number of events.
func (e *Entry) Len() int { return max(len(e.parts), len(e.messages)) }

// Handle returns the handle of an event. It has its index, unless the entry is a part of one at another node, see [Entry.AddPartOf].
func (e *Entry) Handle(i int) Handle {
	if e.messages == nil {
		i = int(e.parts[i].index)
	}
	return e.First | Handle(i)
}

// Objects reports whether the events are objects, not bytes.
func (e *Entry) Objects() bool { return e.messages != nil }

// Message returns an event as an object, a new one if it is bytes, with the producer's keys.
func (e *Entry) Message(i int) Message {
	if e.messages != nil {
		return e.messages[i]
	}
	return Message{Event: e.Event(i), Key: e.parts[i].Key, OrderingKey: e.ordering[i]}
}

// Event returns an event as an object, a new one if it is bytes.
func (e *Entry) Event(i int) *Event {
	if e.messages != nil {
		return e.messages[i].Event
	}
	ev := new(Event)
	e.fill(i, ev)
	return ev
}

// fill writes an event of a batch into ev, which is zero.
func (e *Entry) fill(i int, ev *Event) {
	p := &e.parts[i]
	ev.Handle, ev.ID, ev.Topic, ev.Key, ev.Partition = e.Handle(i), e.ID(i), e.Topic, e.Key(i), p.partition
	ev.Payload, ev.Properties = p.Payload(), e.propertiesOf(p)
	ev.PublishTime, ev.EventTime, ev.Redelivery, ev.SchemaVersion = e.PublishTime, p.EventTime, e.Redelivery, e.SchemaVersion
}

// MakeObjects makes objects of all events. It must be called before the entry is handed on.
func (e *Entry) MakeObjects() {
	if e.messages != nil {
		return
	}
	messages, events := make([]Message, len(e.parts)), make([]Event, len(e.parts))
	for i := range messages {
		messages[i] = Message{Event: &events[i], Key: e.parts[i].Key, OrderingKey: e.ordering[i]}
		e.fill(i, &events[i])
	}
	e.messages, e.parts = messages, nil
}

// ID returns the id of an event.
func (e *Entry) ID(i int) MessageID {
	if e.messages != nil {
		return e.messages[i].Event.ID
	}
	id := MessageID{Ledger: e.Ledger, Entry: e.Entry, Batch: -1, TopicPartition: e.TopicPartition}
	if e.Batched {
		id.Batch = e.parts[i].index
	}
	return id
}

// Key returns the key of an event, "" before it has one.
func (e *Entry) Key(i int) Key {
	switch {
	case e.messages != nil:
		return e.messages[i].Event.Key
	case e.keys != nil:
		return e.keys[i]
	}
	return Key(e.parts[i].Key)
}

// Partition returns the partition of an event.
func (e *Entry) Partition(i int) partition.ID {
	if e.messages != nil {
		return e.messages[i].Event.Partition
	}
	return e.parts[i].partition
}

// SetKey gives an event its key and partition. It must be called when the entry has all its events, and before it is handed on.
func (e *Entry) SetKey(i int, key Key, p partition.ID) {
	if e.messages != nil {
		e.messages[i].Event.Key, e.messages[i].Event.Partition = key, p
		return
	}
	e.parts[i].partition = p
	if e.keys == nil {
		if string(key) == e.parts[i].Key {
			return
		}
		e.keys = make([]Key, len(e.parts))
		for i := range e.keys {
			e.keys[i] = Key(e.parts[i].Key)
		}
	}
	e.keys[i] = key
}

// SetFirst gives the events their handles. It must be called before the entry is handed on.
func (e *Entry) SetFirst(first Handle) {
	e.First = first
	for i := range e.messages {
		if ev := e.messages[i].Event; ev != nil {
			ev.Handle = e.Handle(i)
		}
	}
}

// Keys returns the message key and the ordering key of an event.
func (e *Entry) Keys(i int) (message, ordering string) {
	if e.messages != nil {
		return e.messages[i].Key, e.messages[i].OrderingKey
	}
	return e.parts[i].Key, e.ordering[i]
}

// Call returns what an event has that is a call, nil for all others.
func (e *Entry) Call(i int) *Call {
	if e.messages != nil {
		return e.messages[i].Event.Call
	}
	return nil
}

// Payload returns the payload of an event, nil if it is a null value. It is never written to.
func (e *Entry) Payload(i int) []byte {
	if e.messages != nil {
		return e.messages[i].Event.Payload
	}
	return e.parts[i].Payload()
}

// Properties returns the properties of an event. They are never written to.
func (e *Entry) Properties(i int) []Property {
	if e.messages != nil {
		return e.messages[i].Event.Properties
	}
	return e.propertiesOf(&e.parts[i])
}

func (e *Entry) propertiesOf(p *Part) []Property {
	if p.properties == p.propertiesEnd {
		return nil
	}
	return e.properties[p.properties:p.propertiesEnd:p.propertiesEnd]
}

// Part returns the place of an event of a batch.
func (e *Entry) Part(i int) *Part { return &e.parts[i] }

// Payload returns the bytes of the event, nil if it is a null value. They are never written to.
func (p *Part) Payload() []byte {
	if p.null {
		return nil
	}
	return bytesOf(p.payload)
}

// Weight returns the size of one event in every memory bound, see [Event.Bytes].
func (e *Entry) Weight(i int) int {
	if e.messages != nil {
		return e.messages[i].Event.Bytes()
	}
	p := &e.parts[i]
	n := eventOverhead + len(e.Key(i)) + len(p.payload) + len(e.SchemaVersion)
	for _, one := range e.properties[p.properties:p.propertiesEnd] {
		n += one.bytes()
	}
	return n
}

// Ref names an event: of an entry, or an object of its own.
type Ref struct {
	Object *Event // in place of that of the entry, if it is not nil
	Entry  *Entry // may be nil if Object is not
	Index  int32
}

// RefTo names an event that is an object.
func RefTo(e *Event) Ref { return Ref{Object: e} }

// RefsTo names events that are objects.
func RefsTo(events ...*Event) []Ref {
	refs := make([]Ref, len(events))
	for i, e := range events {
		refs[i].Object = e
	}
	return refs
}

// object returns the event if it is an object, otherwise nil.
func (r *Ref) object() *Event {
	if r.Object == nil && r.Entry.messages != nil {
		return r.Entry.messages[r.Index].Event
	}
	return r.Object
}

// Event returns the event as an object, a new one if it is bytes.
func (r *Ref) Event() *Event {
	if ev := r.object(); ev != nil {
		return ev
	}
	return r.Entry.Event(int(r.Index))
}

// Read is Event, but an event that is bytes is written into scratch, which only Read has written to.
func (r *Ref) Read(scratch *Event) *Event {
	if ev := r.object(); ev != nil {
		return ev
	}
	r.Entry.fill(int(r.Index), scratch)
	return scratch
}

// Call returns what the event has that is a call, nil for all others.
func (r *Ref) Call() *Call {
	if ev := r.object(); ev != nil {
		return ev.Call
	}
	return nil
}

// Handle returns the event's handle.
func (r *Ref) Handle() Handle {
	if ev := r.object(); ev != nil {
		return ev.Handle
	}
	return r.Entry.Handle(int(r.Index))
}

// MessageID returns the event's id.
func (r *Ref) MessageID() MessageID {
	if ev := r.object(); ev != nil {
		return ev.ID
	}
	return r.Entry.ID(int(r.Index))
}

// Topic returns the event's original topic.
func (r *Ref) Topic() string {
	if ev := r.object(); ev != nil {
		return ev.Topic
	}
	return r.Entry.Topic
}

// Key returns the event's key.
func (r *Ref) Key() Key {
	if ev := r.object(); ev != nil {
		return ev.Key
	}
	return r.Entry.Key(int(r.Index))
}

// Partition returns the event's partition.
func (r *Ref) Partition() partition.ID {
	if ev := r.object(); ev != nil {
		return ev.Partition
	}
	return r.Entry.Partition(int(r.Index))
}

// Failures returns how often the application has failed the event, and how often a worker crashed that had it.
func (r *Ref) Failures() (attempts, crashes uint32) {
	if ev := r.object(); ev != nil {
		return ev.Attempts, ev.Crashes
	}
	return 0, 0
}

// Rounds returns how often Pulsar has delivered the event before, and how often it was copied to the retry topic.
func (r *Ref) Rounds() (redelivery, round uint32) {
	if ev := r.object(); ev != nil {
		return ev.Redelivery, ev.Round
	}
	return r.Entry.Redelivery, 0
}

// Weight returns the size of the event in every memory bound, see [Event.Bytes].
func (r *Ref) Weight() int {
	if ev := r.object(); ev != nil {
		return ev.Bytes()
	}
	return r.Entry.Weight(int(r.Index))
}

// Set names events of one entry, for a verdict on all of them.
type Set struct {
	First  Handle // of the event with index 0
	Events Bits
	Entry  *Entry // nil: the sender of the verdict does not know it
}
