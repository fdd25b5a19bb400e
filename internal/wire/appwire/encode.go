package appwire

import (
	"slices"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/hotframe"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// Fields are in the order of their numbers and zero values are left out, as the
// generated code does it.

// headRoom is the usual size of the fields before the deliveries or results of a frame.
const headRoom = 256

// marshal returns the wire form of the frame, with a pooled buffer for the deliveries. The fields
// before them are known last. So each event, which is usually not cached by now, is read once.
func (f *ToWorker) marshal() mem.BufferSlice {
	tables := hotframe.NewTables()
	defer tables.Free()
	size := 0 // an event's weight exceeds its wire form
	for i := range f.Deliveries {
		size += int(f.Deliveries[i].Size)
	}
	deliveries := frameBuffers.Buffer(size, func(b []byte) []byte {
		var scratch [hotframe.AheadMax]event.Event
		var ahead [hotframe.AheadMax]*event.Event
		for deliveries := range slices.Chunk(f.Deliveries, len(ahead)) {
			for i := range deliveries {
				ahead[i] = deliveries[i].Read(&scratch[i])
			}
			hotframe.Load(ahead[:len(deliveries)])
			for i := range deliveries {
				b = f.appendDelivery(b, &deliveries[i], ahead[i], tables)
			}
		}
		return hotframe.AppendStrings(b, 7, &tables.Schemas)
	})
	head := hotframe.AppendNumber(make([]byte, 0, headRoom), 1, f.Number)
	head = hotframe.AppendStrings(head, 2, &tables.Topics)
	head = appendTokens(head, tables.Tokens.List())
	head = hotframe.AppendStrings(head, 4, &tables.Names)
	return hotframe.Frame(f.Receipt, head, deliveries)
}

// marshal returns the wire form of the frame, with a pooled buffer for the results.
func (f *ToRouter) marshal() mem.BufferSlice {
	const most = 60 // of a result without its reason
	size := 0
	for i := range f.Results {
		size += most + len(f.Results[i].Reason)
		if r := f.Results[i].Reply; r != nil {
			size += most + len(r.Payload) + len(r.Code)
		}
	}
	results := frameBuffers.Buffer(size, func(b []byte) []byte {
		for i := range f.Results {
			b = appendResult(b, &f.Results[i])
		}
		return b
	})
	return hotframe.Frame(f.Receipt, hotframe.AppendNumber(nil, 1, f.Number), results)
}

// appendResult writes r, as field 2 of the Results message.
func appendResult(b []byte, r *event.Result) []byte {
	const room = 1 // for the length
	b, begin := hotframe.Begin(b, 2, room)
	b = hotframe.AppendNumber(b, 1, uint64(r.Delivery))
	b = hotframe.AppendNumber(b, 2, uint64(r.Kind))
	if r.After > 0 || r.Reason != "" {
		b = hotframe.AppendNumber(b, 3, hotframe.Milliseconds(r.After, afterMax))
		b = hotframe.AppendText(b, 4, r.Reason)
	}
	if r.Reply != nil {
		b = hotframe.AppendBytes(b, 5, r.Reply.Payload)
		b = hotframe.AppendText(b, 6, r.Reply.Code)
	}
	if r.Ran.Start > 0 {
		b = hotframe.AppendNumber(b, 8, uint64(r.Ran.Start))
		b = hotframe.AppendNumber(b, 9, uint64(r.Ran.Length))
	}
	return hotframe.End(b, begin, room)
}

// appendTokens writes the fencing tokens, packed, as field 3 of the Deliveries message.
func appendTokens(b []byte, tokens []int64) []byte {
	if len(tokens) == 0 {
		return b
	}
	const room = 1
	b, begin := hotframe.Begin(b, 3, room)
	for _, token := range tokens {
		b = protowire.AppendVarint(b, uint64(token))
	}
	return hotframe.End(b, begin, room)
}

// appendTimer writes what the properties of an event say that the router has published, as field 20 of the Delivery message.
func appendTimer(b []byte, properties []event.Property) []byte {
	s, err := event.ParseSent(properties)
	if err != nil {
		return b // forged in the retry topic: it is delivered as an ordinary event
	}
	timer := &appv1.Timer{Name: s.Name, DueMs: s.Due}
	if s.Firing != nil {
		timer.Firing = &appv1.Firing{TimeMs: s.Firing.Time, Missed: s.Firing.Missed}
	}
	body, err := proto.Marshal(timer)
	if err != nil {
		return b // a name that is not UTF-8, likewise
	}
	return protowire.AppendBytes(protowire.AppendTag(b, 20, protowire.BytesType), body)
}

// appendDelivery writes d, of the event ev, as field 5 of the Deliveries message, and adds its repeated values to
// the tables.
func (f *ToWorker) appendDelivery(b []byte, d *event.Delivery, ev *event.Event, tables *hotframe.Tables) []byte {
	const room = 2 // for the length, which nearly always fills it
	b, begin := hotframe.Begin(b, 5, room)
	b = hotframe.AppendNumber(b, 1, uint64(d.ID))
	b = hotframe.AppendNumber(b, 2, uint64(d.Partition))
	b = hotframe.AppendBytes(b, 3, ev.Key)
	b = hotframe.AppendBytes(b, 4, ev.Payload)
	sent := ev.ID.IsSent()
	for i := range ev.Properties {
		if sent && event.IsOfSent(ev.Properties[i].Name) {
			continue
		}
		b = hotframe.AppendProperty(b, 5, &ev.Properties[i], &tables.Names)
	}
	b = hotframe.AppendNumbers(b, 6, // to 14
		uint64(ev.ID.Ledger), uint64(ev.ID.Entry), hotframe.Zigzag(ev.ID.Batch), hotframe.Zigzag(ev.ID.TopicPartition),
		uint64(hotframe.IndexText(&tables.Topics, ev.Topic)), uint64(tables.Tokens.Index(d.Token)),
		uint64(ev.PublishTime), uint64(ev.EventTime), uint64(d.Attempt))
	b = hotframe.AppendText(b, 15, ev.Trace())
	b = hotframe.AppendNumber(b, 16, uint64(ev.Redelivery))
	b = hotframe.AppendNumber(b, 17, d.Turn)
	if ev.Call != nil {
		b = hotframe.AppendCall(b, 18, ev.Call, f.Now)
	}
	if f.State {
		b = hotframe.AppendNumber(b, 19, d.Generation)
	}
	if sent {
		b = appendTimer(b, ev.Properties)
	}
	if ev.SchemaVersion != "" {
		b = hotframe.AppendNumber(b, 21, 1+uint64(tables.Schemas.Index(ev.SchemaVersion)))
	}
	return hotframe.End(b, begin, room)
}
