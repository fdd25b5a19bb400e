package source

import (
	"slices"
	"strconv"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// batches turns Pulsar's batches into entries. Its memory is reused for the next one.
type batches struct {
	singles    []wire.Single
	properties []event.Property
}

// scratchMax bounds the values of each kind that are kept for the next batch: all of them are cleared after each.
const scratchMax = 4096

// clear forgets what refers to the batch.
func (b *batches) clear() {
	b.singles, b.properties = cleared(b.singles), cleared(b.properties)
}

func cleared[T any](scratch []T) []T {
	if cap(scratch) > scratchMax {
		return nil
	}
	clear(scratch[:cap(scratch)])
	return scratch[:0]
}

// receipt returns the receipt of a batch, and the events that compaction has removed, nil if it has removed none: they are not handed on.
// It reports false if the batch is broken.
//
// Under CountEntries, events that are acked already are handed on again: a member that acked single events is gone, or wrongly configured,
// and without them the entry would never be complete.
func (b *batches) receipt(d *entries.Delivered, from *origin, counting Counting) (r Receipt, removed event.Bits, ok bool) {
	defer b.clear()
	if b.singles, ok = d.Split(b.singles[:0]); !ok {
		return r, nil, false
	}
	e := event.NewBatch(len(b.singles), len(d.Entry.Payload))
	e.Batched = len(b.singles) > 1
	acked, has := wire.Delivery{AckSet: d.AckSet}, event.NewBits(len(b.singles))
	for i := range b.singles {
		s := &b.singles[i]
		b.properties = propertiesOf(s.Properties, b.properties[:0])
		payload := s.Payload
		if s.NullValue {
			payload = nil
		}
		e.AddPart(event.Part{Key: event.Alias(s.Key), EventTime: s.EventTime}, payload, event.Alias(s.OrderingKey), b.properties)
		switch {
		case s.CompactedOut:
			if removed == nil {
				removed = event.NewBits(len(b.singles))
			}
			removed.Add(i)
		case counting == CountEntries || !acked.Acked(i):
			has.Add(i)
		}
	}
	if d.Entry.Metadata.Compression == wire.CompressionNone {
		e.Bytes = max(e.Bytes, len(d.Raw)) // all of it stays in memory, with the properties of the batch and what no reader knows
	}
	return receiptOf(e, d, from, has), removed, true
}

// receiptOf returns the receipt of an entry, and sets the fields that all its events share.
func receiptOf(e *event.Entry, d *entries.Delivered, from *origin, has event.Bits) Receipt {
	id := idOf(d)
	e.Ledger, e.Entry, e.TopicPartition = id.Ledger, id.Entry, marked(from.partition, d.Mark())
	e.Topic, e.PublishTime, e.Redelivery = from.base, d.Entry.Metadata.PublishTime, d.Redelivery
	e.SchemaVersion = from.version(d.Entry.Metadata.SchemaVersion)
	return Receipt{Entry: e, ID: id, Cluster: d.Cluster, Has: has, Origin: from.number, Ref: d, Copy: from.copies}
}

// marked returns the number of a topic partition as the ids of its events contain it. If the topic has moved to
// another cluster, the number bears that cluster's mark: that cluster may use the same ledgers and entries again, and
// an event under the id of a finished one would not run.
func marked(partition, mark int32) int32 { return partition + mark<<event.ClusterShift }

// idOf returns the id of an entry. That of a complete message in chunks is the same at each delivery, in whatever order they come.
func idOf(d *entries.Delivered) EntryID {
	if d.Chunks != nil {
		return EntryID(d.Chunks[int(d.Entry.Metadata.Chunks)-d.Missing-1])
	}
	return EntryID(d.ID)
}

// oneEventReceipt returns the receipt of an entry with one event, as its metadata describe it.
func oneEventReceipt(d *entries.Delivered, from *origin, payload []byte, more ...event.Property) Receipt {
	m := &d.Entry.Metadata
	e := event.NewBatch(1, len(payload))
	r := receiptOf(e, d, from, event.AllBits(1))
	e.AddPart(event.Part{Key: event.Alias(m.Key), EventTime: m.EventTime}, payload, event.Alias(m.OrderingKey), append(propertiesOf(m.Properties, nil), more...))
	e.Bytes = max(e.Bytes, e.Weight(0)) // key and properties are not in the payload
	if m.Compression == wire.CompressionNone {
		e.Bytes = max(e.Bytes, len(d.Raw)) // all of it stays in memory
	} else {
		e.Bytes += len(d.Raw) // which key and properties keep in memory
	}
	return r
}

// unbatchedReceipt returns the receipt of an event outside a batch.
func unbatchedReceipt(d *entries.Delivered, from *origin) Receipt {
	payload := d.Entry.Payload
	if d.Entry.Metadata.NullValue {
		payload = nil
	}
	return oneEventReceipt(d, from, payload)
}

// encryptedReceipt returns the receipt of an entry that this process cannot decrypt.
func encryptedReceipt(d *entries.Delivered, from *origin) Receipt {
	r := oneEventReceipt(d, from, d.Entry.Payload, entryEncryption(&d.Entry))
	r.Unreadable = reasonEncrypted
	return r
}

// brokenReceipt returns the receipt of an entry that cannot be read: its bytes, and what its metadata say if they can be trusted.
func brokenReceipt(d *entries.Delivered, from *origin) Receipt {
	m, reason := &d.Entry.Metadata, d.Broken.Reason
	if reason == wire.ReasonChecksum || reason == wire.ReasonMetadata {
		*m = wire.Metadata{Chunks: m.Chunks}
	}
	r := oneEventReceipt(d, from, d.Raw, event.Property{Name: PropertyBroken, Value: reason.String()})
	r.Unreadable = brokenReason(d)
	return r
}

// brokenReason returns the reason in the dead letter of an entry that cannot be read.
func brokenReason(d *entries.Delivered) string {
	why := "the entry cannot be read (" + d.Broken.Reason.String() + ": " + d.Broken.What + "): "
	if m := &d.Entry.Metadata; d.Chunks != nil {
		came := ""
		if d.Missing > 0 {
			came = strconv.Itoa(int(m.Chunks)-d.Missing) + " of "
		}
		return why + "the payload here is that of " + came + "its " + strconv.Itoa(int(m.Chunks)) + " chunks, with compression " +
			strconv.Itoa(int(m.Compression)) + " in Pulsar's numbers and an uncompressed size of " +
			strconv.FormatUint(uint64(m.UncompressedSize), 10)
	}
	return why + "the payload here is the whole entry as it came"
}

// searchedMax is the number of properties among which a name is searched one by one.
const searchedMax = 16

// propertiesOf appends properties to list, which is empty, in the producer's order. They alias the entry. Of those with one name the last
// value counts, as it does for Pulsar's clients.
func propertiesOf(from wire.Properties, list []event.Property) []event.Property {
	if from.Len() == 0 {
		return list
	}
	var places map[string]int
	if from.Len() > searchedMax {
		places = make(map[string]int, min(from.Len(), scratchMax)) // many may have one name
	}
	for name, value := range from.All() {
		at, known := places[string(name)]
		if places == nil {
			at = slices.IndexFunc(list, func(p event.Property) bool { return p.Name == string(name) })
			known = at >= 0
		}
		if known {
			list[at].Value = event.Alias(value)
			continue
		}
		p := event.Property{Name: event.Alias(name), Value: event.Alias(value)}
		if places != nil {
			places[p.Name] = len(list)
		}
		list = append(list, p)
	}
	return list
}
