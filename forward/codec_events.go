package forward

import (
	"slices"

	"google.golang.org/grpc/mem"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/hotframe"
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
	eventCall       = 19
	eventSchema     = 20
)

// headRoom is the usual size of the fields before the events of a frame.
const headRoom = 256

// marshal encodes the frame, the events in one pass. The string tables precede the events and
// depend on them, so they are encoded afterwards.
func (f *eventsFrame) marshal() mem.BufferSlice {
	if f.number == 0 {
		return hotframe.Receipt(f.receipt)
	}
	tables := hotframe.NewTables()
	defer tables.Free()
	body := frameBuffers.Buffer(f.bodyMax(), func(b []byte) []byte { return f.appendBody(b, tables) })
	head := hotframe.AppendNumber(make([]byte, 0, headRoom), eventsNumber, f.number)
	head = appendPosition(head, eventsEpoch, f.epoch)
	if f.relay {
		head = hotframe.AppendNumber(head, eventsRelay, 1)
	}
	head = hotframe.AppendStrings(head, eventsTopics, &tables.Topics)
	head = hotframe.AppendStrings(head, eventsNames, &tables.Names)
	head = hotframe.AppendStrings(head, eventsSchema, &tables.Schemas)
	return hotframe.Frame(f.receipt, head, body)
}

// bodyMax returns an upper bound of the bytes that appendBody appends.
func (f *eventsFrame) bodyMax() int {
	n := 0
	for i := range f.refs {
		n += weightOf(&f.refs[i])
	}
	return n
}

// appendBody appends the events, some at a time, so that their cache misses overlap.
func (f *eventsFrame) appendBody(b []byte, tables *hotframe.Tables) []byte {
	var scratch [hotframe.AheadMax]event.Event
	var events [hotframe.AheadMax]*event.Event
	for refs := range slices.Chunk(f.refs, hotframe.AheadMax) {
		for i := range refs {
			events[i] = refs[i].Read(&scratch[i])
		}
		hotframe.Load(events[:len(refs)])
		for _, ev := range events[:len(refs)] {
			b = f.appendEvent(b, ev, tables)
		}
	}
	return b
}

// appendEvent appends ev as a field of its frame. Its fields are in the order that
// eventsParser expects.
func (f *eventsFrame) appendEvent(b []byte, ev *event.Event, tables *hotframe.Tables) []byte {
	const room = 2 // for the length, which nearly always fills it
	b, begin := hotframe.Begin(b, eventsEvents, room)
	b = hotframe.AppendNumber(b, eventHandle, uint64(ev.Handle))
	b = hotframe.AppendNumber(b, eventPartition, uint64(ev.Partition))
	b = hotframe.AppendBytes(b, eventKey, ev.Key)
	b = hotframe.AppendBytes(b, eventPayload, ev.Payload)
	for i := range ev.Properties {
		b = hotframe.AppendProperty(b, eventProperties, &ev.Properties[i], &tables.Names)
	}
	b = hotframe.AppendNumbers(b, eventLedger, // to eventRound
		uint64(ev.ID.Ledger), uint64(ev.ID.Entry), hotframe.Zigzag(ev.ID.Batch), hotframe.Zigzag(ev.ID.TopicPartition),
		uint64(hotframe.IndexText(&tables.Topics, ev.Topic)), uint64(ev.Attempts),
		uint64(ev.PublishTime), uint64(ev.EventTime), uint64(ev.Redelivery), uint64(ev.Round))
	b = hotframe.AppendText(b, eventFirstError, ev.FirstError)
	b = hotframe.AppendText(b, eventLastError, ev.LastError)
	b = hotframe.AppendNumber(b, eventCrashes, uint64(ev.Crashes))
	if ev.Call != nil {
		b = hotframe.AppendCall(b, eventCall, ev.Call, f.now())
	}
	if ev.SchemaVersion != "" {
		b = hotframe.AppendNumber(b, eventSchema, 1+uint64(tables.Schemas.Index(ev.SchemaVersion)))
	}
	return hotframe.End(b, begin, room)
}
