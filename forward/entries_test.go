package forward

import (
	"encoding/binary"

	"github.com/ringfence/router/internal/base/event"
)

// entryOf returns the entry of fresh events that are objects, which it gives their handles.
func entryOf(first event.Handle, events ...*event.Event) *event.Entry {
	messages := make([]event.Message, len(events))
	for i, ev := range events {
		messages[i].Event = ev
	}
	e := event.NewEntry(messages...)
	e.Fresh = event.AllBits(len(events))
	e.SetFirst(first)
	return e
}

// bytesEntryOf returns an entry of bytes with the keys, payloads, times and properties of events. All else is that of the first event; their
// ids have an index.
func bytesEntryOf(first event.Handle, events ...*event.Event) *event.Entry {
	bytes := 0
	for _, ev := range events {
		bytes += len(ev.Payload)
	}
	e, common := event.NewBatch(len(events), bytes), events[0]
	e.Ledger, e.Entry, e.TopicPartition, e.Batched = common.ID.Ledger, common.ID.Entry, common.ID.TopicPartition, true
	e.Topic, e.PublishTime, e.Redelivery, e.SchemaVersion = common.Topic, common.PublishTime, common.Redelivery, common.SchemaVersion
	for i, ev := range events { // each second key is not the message key
		message := string(ev.Key)
		if i%2 == 1 {
			message = "message key"
		}
		e.AddPart(event.Part{Key: message, EventTime: ev.EventTime}, ev.Payload, "", ev.Properties)
	}
	for i, ev := range events {
		e.SetKey(i, ev.Key, ev.Partition)
	}
	e.Fresh = event.AllBits(len(events))
	e.SetFirst(first)
	return e
}

// refsTo returns all events of an entry as a sender has them.
func refsTo(e *event.Entry) []event.Ref {
	refs := make([]event.Ref, e.Len())
	for i := range refs {
		refs[i] = event.Ref{Entry: e, Index: int32(i)}
	}
	return refs
}

// setOf returns the set of the events of one entry with these indexes.
func setOf(first event.Handle, indexes ...int) event.Set {
	most := 0
	for _, i := range indexes {
		most = max(most, i)
	}
	s := event.Set{First: first, Events: event.NewBits(most + 1)}
	for _, i := range indexes {
		s.Events.Add(i)
	}
	return s
}

// setsOf returns the sets of events, one for each entry, in the order of their first events.
func setsOf(handles ...event.Handle) (sets []event.Set) {
	indexes := map[event.Handle][]int{}
	var firsts []event.Handle
	for _, h := range handles {
		if indexes[h.First()] == nil {
			firsts = append(firsts, h.First())
		}
		indexes[h.First()] = append(indexes[h.First()], h.Index())
	}
	for _, first := range firsts {
		sets = append(sets, setOf(first, indexes[first]...))
	}
	return sets
}

// handlesIn returns the handles of the events in sets.
func handlesIn(sets []event.Set) (handles []event.Handle) {
	for _, s := range sets {
		for i := range s.Events.All() {
			handles = append(handles, s.First|event.Handle(i))
		}
	}
	return handles
}

// wordsOf returns a set as the writer has it: from its first word that is not zero on; none if the set is empty.
func wordsOf(s event.Set) (from event.Handle, words event.Bits) {
	if s.Events.Len() == 0 {
		return 0, nil
	}
	word := s.Events.First() / 64
	return s.First | event.Handle(64*word), s.Events[word:]
}

// bytesOfWords returns a set as the wire has it, with all its zeros.
func bytesOfWords(words event.Bits) (b []byte) {
	for _, word := range words {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return b
}
