package source

import (
	"strconv"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// openBatch is a batch whose events are being handed on.
type openBatch struct {
	of           *entries.Delivered // nil: none
	from         *origin
	counting     Counting
	singles      []wire.Single
	at           int // the next one
	compactedOut int // events that are not handed on
	index        int32
	total        int32
	slab         []messageEvent
}

// begin opens a batch, and reports false if it is broken.
func (b *openBatch) begin(d *entries.Delivered, from *origin, counting Counting) bool {
	var ok bool
	if b.singles, ok = d.Split(b.singles[:0]); !ok {
		return false
	}
	b.of, b.from, b.counting, b.at, b.index, b.compactedOut = d, from, counting, 0, 0, 0
	for i := range b.singles {
		if b.singles[i].CompactedOut {
			b.compactedOut++
		}
	}
	b.total = int32(len(b.singles))
	if counting == CountEntries {
		b.total -= int32(b.compactedOut) // otherwise the ledger would wait for them
	}
	return true
}

// end forgets the batch, to which singles refer.
func (b *openBatch) end() {
	clear(b.singles)
	b.of, b.slab = nil, nil
}

// events appends receipts until batch has batchMax.
//
// Under CountEntries, events that are acked already are handed on again: a member that acked single events is gone, or wrongly configured,
// and without them the entry would never be complete.
func (b *openBatch) events(batch []Receipt, batchMax int) []Receipt {
	acked := wire.Delivery{AckSet: b.of.AckSet}
	for ; b.at < len(b.singles) && len(batch) < batchMax; b.at++ {
		s := &b.singles[b.at]
		if b.counting == CountEvents {
			b.index = int32(b.at)
			if acked.Acked(b.at) {
				continue
			}
		}
		if s.CompactedOut {
			continue
		}
		batch = append(batch, Receipt{})
		b.receipt(&batch[len(batch)-1], s)
		b.index++
	}
	return batch
}

// slabMax bounds the events in one allocation.
const slabMax = 64

func (b *openBatch) receipt(to *Receipt, s *wire.Single) {
	if len(b.slab) == 0 {
		b.slab = make([]messageEvent, min(slabMax, len(b.singles)-b.at))
	}
	a := &b.slab[0]
	b.slab = b.slab[1:]
	common(to, a, b.of, b.from)
	to.Index, to.Total = b.index, b.total
	ev := &a.event
	if len(b.singles) > 1 {
		ev.ID.Batch = int32(b.at)
	}
	ev.Properties = propertiesOf(s.Properties)
	ev.EventTime = s.EventTime
	if !s.NullValue {
		ev.Payload = s.Payload
	}
	a.message.Key, a.message.OrderingKey = string(s.Key), string(s.OrderingKey)
}

// common fills in what all receipts of an entry have, as if it was the only event.
func common(to *Receipt, a *messageEvent, d *entries.Delivered, from *origin) {
	to.Message, to.Ref, to.Origin, to.Copy, to.Total = &a.message, d, from.number, from.retry, 1
	m, ev := &d.Entry.Metadata, &a.event
	id := d.ID
	if d.Chunks != nil {
		id = d.Chunks[m.Chunks-1] // the same at each delivery, in whatever order the chunks come
	}
	to.Entry = EntryID(id)
	ev.ID.Ledger, ev.ID.Entry, ev.ID.TopicPartition, ev.ID.Batch = id.Ledger, id.Entry, from.partition, -1
	ev.Topic, ev.PublishTime, ev.Redelivery = from.base, m.PublishTime, d.Redelivery
	ev.SchemaVersion = from.version(m.SchemaVersion)
	a.message.Event = ev
}

// described fills in what the metadata say about the only event.
func described(to *Receipt, m *wire.Metadata) {
	to.Event.EventTime = m.EventTime
	to.Event.Properties = propertiesOf(m.Properties)
	to.Key, to.OrderingKey = string(m.Key), string(m.OrderingKey)
}

// aloneReceipt returns the receipt of an event outside a batch.
func aloneReceipt(d *entries.Delivered, from *origin) (r Receipt) {
	d.Raw = nil
	common(&r, new(messageEvent), d, from)
	described(&r, &d.Entry.Metadata)
	if !d.Entry.Metadata.NullValue {
		r.Event.Payload = d.Entry.Payload
	}
	return r
}

// encryptedReceipt returns the receipt of an entry that nobody here can read.
func encryptedReceipt(d *entries.Delivered, from *origin) (r Receipt) {
	common(&r, new(messageEvent), d, from)
	described(&r, &d.Entry.Metadata)
	r.Event.Payload = d.Entry.Payload
	r.Event.Properties = append(r.Event.Properties, entryEncryption(&d.Entry))
	r.Unreadable = reasonEncrypted
	return r
}

// brokenReceipt returns the receipt of an entry that cannot be read: its bytes, and what its metadata say if they can be trusted.
func brokenReceipt(d *entries.Delivered, from *origin) (r Receipt) {
	m, reason := &d.Entry.Metadata, d.Broken.Reason
	if reason == wire.ReasonChecksum || reason == wire.ReasonMetadata {
		*m = wire.Metadata{Chunks: m.Chunks}
	}
	common(&r, new(messageEvent), d, from)
	described(&r, m)
	r.Event.Payload = d.Raw
	r.Event.Properties = append(r.Event.Properties, event.Property{Name: PropertyBroken, Value: reason.String()})
	r.Unreadable = brokenReason(d)
	return r
}

// brokenReason returns the reason in the dead letter of an entry that cannot be read.
func brokenReason(d *entries.Delivered) string {
	why := "the entry cannot be read (" + d.Broken.Reason.String() + ": " + d.Broken.What + "): "
	if m := &d.Entry.Metadata; d.Chunks != nil {
		return why + "the payload here is that of its " + strconv.Itoa(int(m.Chunks)) + " chunks, with compression " +
			strconv.Itoa(int(m.Compression)) + " in Pulsar's numbers and an uncompressed size of " +
			strconv.FormatUint(uint64(m.UncompressedSize), 10)
	}
	return why + "the payload here is the whole entry as it came"
}

// searchedMax is the number of properties among which a name is searched one by one.
const searchedMax = 16

// propertiesOf returns properties in the producer's order. Of those with one name the last value counts, as it does for Pulsar's clients.
func propertiesOf(from wire.Properties) []event.Property {
	if from.Len() == 0 {
		return nil
	}
	list := make([]event.Property, 0, from.Len())
	var places map[string]int
	if from.Len() > searchedMax {
		places = make(map[string]int, from.Len())
	}
	for name, value := range from.All() {
		at, known := len(list), false
		if places != nil {
			if place, ok := places[string(name)]; ok {
				at, known = place, true
			}
		} else {
			for i := range list {
				if list[i].Name == string(name) {
					at, known = i, true
				}
			}
		}
		if known {
			list[at].Value = string(value)
			continue
		}
		p := event.Property{Name: string(name), Value: string(value)}
		if places != nil {
			places[p.Name] = at
		}
		list = append(list, p)
	}
	return list
}
