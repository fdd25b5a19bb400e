package appwire

import (
	"slices"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/base/event"
)

// Fields are in the order of their numbers and zero values are left out, as the
// generated code does it.

// marshal returns the wire form of the frame, in pooled buffers: one for the deliveries,
// and one for the fields before them, which are known last. So each event, which is
// usually not cached by now, is read once.
func (f *ToWorker) marshal() mem.BufferSlice {
	e := encoders.Get().(*encoder)
	defer encoders.Put(e)
	defer e.reset() // it must not keep the strings of its tables alive
	size := 0       // an event's weight exceeds its wire form, unless invalid UTF-8 has to be replaced
	for i := range f.Deliveries {
		size += f.Deliveries[i].Event.Bytes()
	}
	deliveries := pooled(size, func(b []byte) []byte {
		for at := range f.Deliveries {
			if at%aheadMax == 0 {
				e.readAhead(f.Deliveries[at:min(at+aheadMax, len(f.Deliveries))])
			}
			b = e.appendDelivery(b, &f.Deliveries[at])
		}
		return b
	})
	head := e.sizeHead(f.Number)
	tail := e.tail()
	body := head + deliveries.Len() + len(tail)
	front := pooled(sizeVarint(f.Receipt)+1+protowire.SizeVarint(uint64(body))+head, func(b []byte) []byte {
		b = appendVarint(b, 1, f.Receipt)
		b = appendLen(b, 3, body)
		return e.appendHead(b, f.Number)
	})
	if len(tail) == 0 {
		return mem.BufferSlice{front, deliveries}
	}
	return mem.BufferSlice{front, deliveries, mem.SliceBuffer(tail)}
}

// tail returns the part behind the deliveries: the schema versions, which most frames lack.
func (e *encoder) tail() (b []byte) {
	for _, version := range e.schemas.list {
		b = appendLen(b, 7, len(version))
		b = append(b, version...)
	}
	return b
}

// marshal returns the wire form of the frame, in buffers like those of ToWorker.
func (f *ToRouter) marshal() mem.BufferSlice {
	const most = 40 // of a result without its reason
	size := most
	for i := range f.Results {
		size += most + len(f.Results[i].Reason)
	}
	results := pooled(size, func(b []byte) []byte {
		b = appendVarint(b, 1, f.Number)
		for i := range f.Results {
			b = appendResult(b, &f.Results[i])
		}
		return b
	})
	head := appendLen(appendVarint(make([]byte, 0, most), 1, f.Receipt), 3, results.Len())
	return mem.BufferSlice{mem.SliceBuffer(head), results}
}

// appendResult writes r, as field 2 of the Results message.
func appendResult(b []byte, r *event.Result) []byte {
	const room = 1 // for the length
	b = append(b, 2<<3|length, 0)
	begin := len(b)
	b = appendVarint(b, 1, uint64(r.Delivery))
	b = appendVarint(b, 2, uint64(r.Kind))
	if r.After > 0 || r.Reason != "" {
		b = appendVarint(b, 3, afterWire(r.After))
		b = appendString(b, 4, text(r.Reason))
	}
	return fillLen(b, begin, room)
}

// encoder holds the tables of one Deliveries frame.
type encoder struct {
	topics  indexed[string]
	tokens  indexed[int64]
	names   indexed[string]
	schemas indexed[string]
	read    byte // keeps the loads of readAhead alive
}

// aheadMax is the number of events that readAhead loads at a time: they must still be in
// the cache when they are encoded.
const aheadMax = 32

// readAhead loads the cache lines of some events' data, so that their cache misses overlap:
// copied one after the other, each event would wait for its own misses.
func (e *encoder) readAhead(deliveries []event.Delivery) {
	const line, most = 64, 512 // bytes; the processor prefetches long data by itself
	read := byte(0)            // not e.read: each read would wait until the one before is written
	for i := range deliveries {
		ev := deliveries[i].Event
		if len(ev.Key) > 0 {
			read ^= ev.Key[0]
		}
		payload := ev.Payload[:min(len(ev.Payload), most)]
		for at := 0; at < len(payload); at += line {
			read ^= payload[at]
		}
		for j := range ev.Properties {
			if value := ev.Properties[j].Value; value != "" {
				read ^= value[0]
			}
		}
	}
	e.read ^= read
}

var encoders = sync.Pool{New: func() any {
	return &encoder{topics: newIndexed[string](), tokens: newIndexed[int64](), names: newIndexed[string](), schemas: newIndexed[string]()}
}}

func (e *encoder) reset() {
	e.topics.reset()
	e.tokens.reset()
	e.names.reset()
	e.schemas.reset()
}

// sizeHead returns the size of a Deliveries message without its deliveries.
func (e *encoder) sizeHead(number uint64) int {
	n := sizeVarint(number)
	for _, t := range e.topics.list {
		n += 1 + protowire.SizeBytes(len(t))
	}
	if len(e.tokens.list) > 0 {
		n += 1 + protowire.SizeBytes(e.sizeTokens())
	}
	for _, name := range e.names.list {
		n += 1 + protowire.SizeBytes(len(name))
	}
	return n
}

func (e *encoder) sizeTokens() int {
	n := 0
	for _, t := range e.tokens.list {
		n += protowire.SizeVarint(uint64(t))
	}
	return n
}

// appendHead writes a Deliveries message up to its deliveries, whose values are in
// the tables by now.
func (e *encoder) appendHead(b []byte, number uint64) []byte {
	b = appendVarint(b, 1, number)
	for _, t := range e.topics.list {
		b = appendLen(b, 2, len(t))
		b = append(b, t...)
	}
	if len(e.tokens.list) > 0 {
		b = appendLen(b, 3, e.sizeTokens())
		for _, t := range e.tokens.list {
			b = protowire.AppendVarint(b, uint64(t))
		}
	}
	for _, name := range e.names.list {
		b = appendLen(b, 4, len(name))
		b = append(b, name...)
	}
	return b
}

// appendDelivery writes d, as field 5 of the Deliveries message, and adds its repeated strings
// to the tables.
func (e *encoder) appendDelivery(b []byte, d *event.Delivery) []byte {
	const room = 2 // for the length, which nearly always fills it
	ev := d.Event
	b = append(b, 5<<3|length, 0, 0)
	begin := len(b)
	b = appendVarint(b, 1, uint64(d.ID))
	b = appendVarint(b, 2, uint64(d.Partition))
	b = appendString(b, 3, string(ev.Key))
	if len(ev.Payload) > 0 {
		b = appendLen(b, 4, len(ev.Payload))
		b = append(b, ev.Payload...)
	}
	for i := range ev.Properties {
		name, value := uint64(indexText(&e.names, ev.Properties[i].Name)), text(ev.Properties[i].Value)
		b = appendLen(b, 5, sizeVarint(name)+sizeString(value))
		b = appendVarint(b, 1, name)
		b = appendString(b, 2, value)
	}
	b = slices.Grow(b, numbersMax)
	n := numbers{b: (*[numbersMax]byte)(b[len(b):][:numbersMax])}
	n.put(6, uint64(ev.ID.Ledger))
	n.put(7, uint64(ev.ID.Entry))
	n.put(8, zigzag(ev.ID.Batch))
	n.put(9, zigzag(ev.ID.TopicPartition))
	n.put(10, uint64(indexText(&e.topics, ev.Topic)))
	n.put(11, uint64(e.tokens.index(d.Token)))
	n.put(12, uint64(ev.PublishTime))
	n.put(13, uint64(ev.EventTime))
	n.put(14, uint64(d.Attempt))
	b = b[:len(b)+int(n.len)]
	b = appendString(b, 15, text(ev.Trace()))
	if ev.Redelivery != 0 {
		b = append(b, redeliveryTag[0], redeliveryTag[1])
		b = protowire.AppendVarint(b, uint64(ev.Redelivery))
	}
	if d.Turn != 0 {
		b = append(b, turnTag[0], turnTag[1])
		b = protowire.AppendVarint(b, d.Turn)
	}
	if ev.SchemaVersion != "" {
		b = append(b, schemaTag[0], schemaTag[1])
		b = protowire.AppendVarint(b, 1+uint64(e.schemas.index(ev.SchemaVersion)))
	}
	return fillLen(b, begin, room)
}

// numbers are varint fields in a row, written to where they stay. There are at most
// nine, of at most eleven bytes each.
type numbers struct {
	b   *[numbersMax]byte
	len uint
}

const numbersMax = 128

func (n *numbers) put(field int, v uint64) {
	if v == 0 {
		return
	}
	at := n.len
	n.b[at%numbersMax] = byte(field<<3) | varint
	at++
	for ; v >= 0x80; v >>= 7 {
		n.b[at%numbersMax] = byte(v) | 0x80
		at++
	}
	n.b[at%numbersMax] = byte(v)
	n.len = at + 1
}

// fillLen writes the length of b[begin:] in front of it, where room bytes are kept
// free, and moves it if the length needs more or less than these.
func fillLen(b []byte, begin, room int) []byte {
	n := len(b) - begin
	need := protowire.SizeVarint(uint64(n))
	switch {
	case need > room:
		b = slices.Insert(b, begin, make([]byte, need-room)...)
	case need < room:
		b = slices.Delete(b, begin-room+need, begin)
	}
	protowire.AppendVarint(b[:begin-room], uint64(n))
	return b
}

// indexed gives the strings or numbers that repeat in a frame their indexes.
type indexed[T comparable] struct {
	list   []T
	lookup map[T]uint32
	last   int
}

func newIndexed[T comparable]() indexed[T] { return indexed[T]{lookup: make(map[T]uint32)} }

// index returns the index of v, which it adds if it is new.
func (t *indexed[T]) index(v T) uint32 {
	if i, ok := t.recent(v); ok {
		return i
	}
	i, ok := t.lookup[v]
	if !ok {
		i = uint32(len(t.list))
		t.list = append(t.list, v)
		t.lookup[v] = i
	}
	t.last = int(i)
	return i
}

// recent returns the index of v if it is the last one that was asked for, or the one
// after it. Events of one topic carry the same values in the same order: this nearly
// always saves the map.
func (t *indexed[T]) recent(v T) (uint32, bool) {
	n := len(t.list)
	if n == 0 {
		return 0, false
	}
	if t.list[t.last] == v {
		return uint32(t.last), true
	}
	if next := (t.last + 1) % n; t.list[next] == v {
		t.last = next
		return uint32(next), true
	}
	return 0, false
}

// indexText is index for strings that may not be UTF-8. A string that equals an entry is
// valid.
func indexText(t *indexed[string], s string) uint32 {
	if i, ok := t.recent(s); ok {
		return i
	}
	return t.index(text(s))
}

func (t *indexed[T]) reset() {
	clear(t.list)
	clear(t.lookup)
	t.list, t.last = t.list[:0], 0
}

// pooled runs write on an empty pooled buffer that has room for size bytes.
func pooled(size int, write func([]byte) []byte) mem.Buffer {
	if mem.IsBelowBufferPoolingThreshold(size) {
		return mem.SliceBuffer(write(make([]byte, 0, size)))
	}
	buf := frameBuffers.Get(size)
	*buf = write((*buf)[:0])
	return mem.NewBuffer(buf, &frameBuffers)
}

func zigzag(v int32) uint64 { return uint64(uint32(v)<<1 ^ uint32(v>>31)) }

// The helpers below are for fields 1 to 15, whose tag is one byte.

func sizeVarint(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}

func sizeLen(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + protowire.SizeBytes(n)
}

func sizeString(s string) int { return sizeLen(len(s)) }

func appendVarint(b []byte, field int, v uint64) []byte {
	switch tag := byte(field<<3) | varint; {
	case v == 0:
		return b
	case v < 0x80:
		return append(b, tag, byte(v))
	default:
		return protowire.AppendVarint(append(b, tag), v)
	}
}

// appendLen writes the tag and the length of a field of n bytes.
func appendLen(b []byte, field, n int) []byte {
	tag := byte(field<<3) | length
	if n < 0x80 {
		return append(b, tag, byte(n))
	}
	return protowire.AppendVarint(append(b, tag), uint64(n))
}

func appendString(b []byte, field int, s string) []byte {
	if s == "" {
		return b
	}
	b = appendLen(b, field, len(s))
	return append(b, s...)
}
