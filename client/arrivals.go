package client

import (
	"time"
	"unsafe"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/appwire"
)

// slab is the number of events, or of properties, in one allocation. A long-running handler
// keeps its whole slab in memory, so a slab is smaller than a frame. Events fill slabBytes,
// which is one of the allocator's size classes.
const (
	slabBytes = 8 << 10
	slab      = slabBytes / int(unsafe.Sizeof(Event{}))
)

// arrivals builds events from the deliveries of a frame while the frame is decoded.
type arrivals struct {
	stream     *stream
	events     []*Event
	left       int        // estimate of the events that follow
	unused     []Event    // the rest of the newest slab
	properties []Property // the used part of the newest slab of properties
}

var _ appwire.Receiver = (*arrivals)(nil)

// Begin implements appwire.Receiver.
func (a *arrivals) Begin(deliveries int) {
	a.reset()
	a.left = deliveries
}

// reset drops the events.
func (a *arrivals) reset() {
	clear(a.events)
	a.events, a.left = a.events[:0], 0
}

// Deliver implements appwire.Receiver.
func (a *arrivals) Deliver(d *appwire.Delivery) {
	if len(a.unused) == 0 {
		a.unused = make([]Event, min(slab, max(1, a.left)))
	}
	e := &a.unused[0]
	a.unused = a.unused[1:]
	a.left--
	a.events = append(a.events, e)
	e.Properties = a.propertiesOf(d)
	a.stream.fill(e, d)
}

// propertiesOf copies the properties of a delivery.
func (a *arrivals) propertiesOf(d *appwire.Delivery) []Property {
	n := len(d.Properties)
	if n == 0 {
		return nil
	}
	if cap(a.properties)-len(a.properties) < n {
		a.properties = make([]Property, 0, max(slab, n))
	}
	first := len(a.properties)
	for _, p := range d.Properties {
		a.properties = append(a.properties, Property(p))
	}
	return a.properties[first : first+n : first+n]
}

// fill copies a delivery into an event of this stream. The strings and the payload of d are the event's from then on.
func (s *stream) fill(e *Event, d *appwire.Delivery) {
	e.Key, e.Payload, e.Topic = d.Key, d.Payload, d.Topic
	e.ID = MessageID{Ledger: d.Ledger, Entry: d.Entry, Batch: int(d.Batch), TopicPartition: int(d.TopicPartition)}
	e.PublishTime = time.UnixMilli(d.PublishTime)
	if d.EventTime != 0 {
		e.EventTime = time.UnixMilli(d.EventTime)
	}
	e.Attempt, e.Redelivery = int(d.Attempt), int(d.Redelivery)
	e.Fence, e.FencingToken = Fence{Token: d.Token, Turn: d.Turn}, d.Token
	if d.SchemaVersion != "" {
		e.SchemaVersion = []byte(d.SchemaVersion)
	}
	if d.Call != nil {
		s.fillCall(e, d.Call)
	}
	if d.Timer != nil {
		fillTimer(e, d.Timer)
	}
	e.run.item.Of, e.run.item.ID, e.run.item.Partition = e, event.DeliveryID(d.ID), d.Partition
	e.run.stream, e.run.generation = s, d.Generation
}
