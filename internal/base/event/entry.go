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
	keys       []Key    // if they are not the message keys
	objects    []*Event // in place of the parts, which have only the producer's keys then; those that are not Fresh may be nil
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
	e := &Entry{parts: make([]Part, 0, len(messages)), objects: make([]*Event, len(messages))}
	for i, m := range messages {
		e.AddPart(Part{Key: m.Key}, nil, m.OrderingKey, nil)
		if e.objects[i] = m.Event; m.Event != nil {
			e.Bytes += m.Event.Bytes()
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

// Together reports whether two events can be parts of one entry: they have the same in common as those of a batch, and nothing that these
// have not.
func Together(a, b *Event) bool {
	return a.isPart() && b.isPart() && a.Handle.First() == b.Handle.First() &&
		a.ID.Ledger == b.ID.Ledger && a.ID.Entry == b.ID.Entry && a.ID.TopicPartition == b.ID.TopicPartition &&
		a.Topic == b.Topic && a.PublishTime == b.PublishTime && a.Redelivery == b.Redelivery && a.SchemaVersion == b.SchemaVersion
}

// isPart reports whether an event has the id that its index in the entry gives it, and nothing that those of a batch have not.
func (e *Event) isPart() bool {
	return e.ID.Batch == int32(e.Handle.Index()) && e.Attempts|e.Crashes|e.Round == 0 && e.Call == nil && e.FirstError == "" && e.LastError == ""
}

// PartOf returns an entry with room for so many events that came with ev, at a node that received them from their consumer node, see [Together].
func PartOf(ev *Event, events int) *Entry {
	return &Entry{
		parts: make([]Part, 0, events), First: ev.Handle.First(),
		Ledger: ev.ID.Ledger, Entry: ev.ID.Entry, TopicPartition: ev.ID.TopicPartition, Batched: true,
		Topic: ev.Topic, PublishTime: ev.PublishTime, Redelivery: ev.Redelivery, SchemaVersion: ev.SchemaVersion,
	}
}

// AddPartOf adds the next event to an entry of PartOf. Its key, payload and properties are not copied.
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
func (e *Entry) Len() int { return len(e.parts) }

// Handle returns the handle of an event. It has its index, unless the entry is a part of one at another node, see [Entry.AddPartOf].
func (e *Entry) Handle(i int) Handle { return e.First | Handle(e.parts[i].index) }

// Objects reports whether the events are objects, not bytes.
func (e *Entry) Objects() bool { return e.objects != nil }

// Message returns an event as an object, a new one if it is bytes, with the producer's keys.
func (e *Entry) Message(i int) Message {
	return Message{Event: e.Event(i), Key: e.parts[i].Key, OrderingKey: e.ordering[i]}
}

// Event returns an event as an object, a new one if it is bytes.
func (e *Entry) Event(i int) *Event {
	if e.objects != nil {
		return e.objects[i]
	}
	ev := new(Event)
	e.fill(i, ev)
	return ev
}

// fill writes an event of a batch into ev, which is zero.
func (e *Entry) fill(i int, ev *Event) {
	p := &e.parts[i]
	ev.Handle, ev.ID, ev.Topic, ev.Key, ev.Partition = e.Handle(i), e.ID(i), e.Topic, e.Key(i), p.partition
	ev.Payload, ev.Properties = p.bytes(), e.propertiesOf(p)
	ev.PublishTime, ev.EventTime, ev.Redelivery, ev.SchemaVersion = e.PublishTime, p.EventTime, e.Redelivery, e.SchemaVersion
}

// MakeObjects makes objects of all events. It must be called before the entry is handed on.
func (e *Entry) MakeObjects() {
	if e.objects != nil {
		return
	}
	objects, events := make([]*Event, len(e.parts)), make([]Event, len(e.parts))
	for i := range objects {
		objects[i] = &events[i]
		e.fill(i, objects[i])
	}
	e.objects = objects
}

// ID returns the id of an event.
func (e *Entry) ID(i int) MessageID {
	if e.objects != nil {
		return e.objects[i].ID
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
	case e.objects != nil:
		return e.objects[i].Key
	case e.keys != nil:
		return e.keys[i]
	}
	return Key(e.parts[i].Key)
}

// Partition returns the partition of an event.
func (e *Entry) Partition(i int) partition.ID {
	if e.objects != nil {
		return e.objects[i].Partition
	}
	return e.parts[i].partition
}

// SetKey gives an event its key and partition. It must be called when the entry has all its events, and before it is handed on.
func (e *Entry) SetKey(i int, key Key, p partition.ID) {
	if e.objects != nil {
		e.objects[i].Key, e.objects[i].Partition = key, p
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
	for i, ev := range e.objects {
		if ev != nil {
			ev.Handle = e.Handle(i)
		}
	}
}

// Keys returns the message key and the ordering key of an event.
func (e *Entry) Keys(i int) (message, ordering string) {
	return e.parts[i].Key, e.ordering[i]
}

// Call returns what an event has that is a call, nil for all others.
func (e *Entry) Call(i int) *Call {
	if e.objects != nil {
		return e.objects[i].Call
	}
	return nil
}

// Payload returns the payload of an event, nil if it is a null value. It is never written to.
func (e *Entry) Payload(i int) []byte {
	if e.objects != nil {
		return e.objects[i].Payload
	}
	return e.parts[i].bytes()
}

// Properties returns the properties of an event. They are never written to.
func (e *Entry) Properties(i int) []Property {
	if e.objects != nil {
		return e.objects[i].Properties
	}
	return e.propertiesOf(&e.parts[i])
}

func (e *Entry) propertiesOf(p *Part) []Property {
	if p.properties == p.propertiesEnd {
		return nil
	}
	return e.properties[p.properties:p.propertiesEnd:p.propertiesEnd]
}

// bytes returns the payload, nil if it is a null value.
func (p *Part) bytes() []byte {
	if p.null {
		return nil
	}
	return bytesOf(p.payload)
}

// Weight returns the size of one event in every memory bound, see [Event.Bytes].
func (e *Entry) Weight(i int) int {
	if e.objects != nil {
		return e.objects[i].Bytes()
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
	if r.Object == nil && r.Entry.objects != nil {
		return r.Entry.objects[r.Index]
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
