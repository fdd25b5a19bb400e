package appwire

import (
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/event"
)

// Writers go over a frame twice: first they measure, then they write into a buffer
// of exactly that size. Fields are in the order of their numbers and zero values
// are left out, as the generated code does it.

// marshal returns the wire form of the frame, in a pooled buffer.
func (f *ToWorker) marshal() mem.BufferSlice {
	e := encoders.Get().(*encoder)
	defer encoders.Put(e)
	defer e.reset() // it must not keep the strings of its tables alive
	body := e.measure(f)
	return pooled(sizeVarint(f.Receipt)+1+protowire.SizeVarint(uint64(body))+body, func(b []byte) []byte {
		b = appendVarint(b, 1, f.Receipt)
		b = appendLen(b, 3, body)
		return e.append(b, f)
	})
}

// marshal returns the wire form of the frame, in a pooled buffer.
func (f *ToRouter) marshal() mem.BufferSlice {
	body := sizeVarint(f.Number)
	for i := range f.Results {
		n := sizeResult(&f.Results[i])
		body += 1 + protowire.SizeVarint(uint64(n)) + n
	}
	return pooled(sizeVarint(f.Receipt)+1+protowire.SizeVarint(uint64(body))+body, func(b []byte) []byte {
		b = appendVarint(b, 1, f.Receipt)
		b = appendLen(b, 3, body)
		b = appendVarint(b, 1, f.Number)
		for i := range f.Results {
			r := &f.Results[i]
			b = appendLen(b, 2, sizeResult(r))
			b = appendVarint(b, 1, uint64(r.Delivery))
			b = appendVarint(b, 2, uint64(r.Kind))
			b = appendVarint(b, 3, afterWire(r.After))
			b = appendString(b, 4, text(r.Reason))
		}
		return b
	})
}

func sizeResult(r *event.Result) int {
	return sizeVarint(uint64(r.Delivery)) + sizeVarint(uint64(r.Kind)) + sizeVarint(afterWire(r.After)) + sizeString(text(r.Reason))
}

// encoder is the scratch of one Deliveries frame: its tables, and what the first
// pass found out for the second.
type encoder struct {
	topics table[string]
	tokens table[int64]
	names  table[string]
	sizes  []int    // per delivery
	refs   []uint32 // in the order of use: per delivery its topic, token, and the names of its properties
}

var encoders = sync.Pool{New: func() any {
	return &encoder{topics: newTable[string](), tokens: newTable[int64](), names: newTable[string]()}
}}

func (e *encoder) reset() {
	e.topics.reset()
	e.tokens.reset()
	e.names.reset()
	e.sizes, e.refs = e.sizes[:0], e.refs[:0]
}

// measure fills the tables and returns the size of the Deliveries message.
func (e *encoder) measure(f *ToWorker) int {
	n := sizeVarint(f.Number)
	for i := range f.Deliveries {
		size := e.measureDelivery(&f.Deliveries[i])
		e.sizes = append(e.sizes, size)
		n += 1 + protowire.SizeVarint(uint64(size)) + size
	}
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

func (e *encoder) measureDelivery(d *event.Delivery) int {
	ev := d.Event
	topic, token := e.topics.index(text(ev.Topic)), e.tokens.index(d.Token)
	e.refs = append(e.refs, topic, token)
	n := sizeVarint(uint64(d.ID)) + sizeVarint(uint64(d.Partition)) + sizeString(string(ev.Key)) + sizeLen(len(ev.Payload))
	for i := range ev.Properties {
		p := &ev.Properties[i]
		name := e.names.index(text(p.Name))
		e.refs = append(e.refs, name)
		n += 1 + protowire.SizeBytes(sizeVarint(uint64(name))+sizeString(text(p.Value)))
	}
	n += sizeVarint(uint64(ev.ID.Ledger)) + sizeVarint(uint64(ev.ID.Entry))
	n += sizeVarint(zigzag(ev.ID.Batch)) + sizeVarint(zigzag(ev.ID.TopicPartition))
	n += sizeVarint(uint64(topic)) + sizeVarint(uint64(token))
	n += sizeVarint(uint64(ev.PublishTime)) + sizeVarint(uint64(ev.EventTime)) + sizeVarint(uint64(d.Attempt))
	n += sizeString(text(ev.Trace()))
	if ev.Redelivery != 0 {
		n += 2 + protowire.SizeVarint(uint64(ev.Redelivery)) // field 16 is the first with a tag of two bytes
	}
	return n
}

// append writes the Deliveries message that measure has measured.
func (e *encoder) append(b []byte, f *ToWorker) []byte {
	b = appendVarint(b, 1, f.Number)
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
	refs := e.refs
	for i := range f.Deliveries {
		b = appendLen(b, 5, e.sizes[i])
		b, refs = appendDelivery(b, &f.Deliveries[i], refs)
	}
	return b
}

// appendDelivery writes d and returns the refs of the next one.
func appendDelivery(b []byte, d *event.Delivery, refs []uint32) ([]byte, []uint32) {
	ev := d.Event
	topic, token, names := refs[0], refs[1], refs[2:]
	b = appendVarint(b, 1, uint64(d.ID))
	b = appendVarint(b, 2, uint64(d.Partition))
	b = appendString(b, 3, string(ev.Key))
	if len(ev.Payload) > 0 {
		b = appendLen(b, 4, len(ev.Payload))
		b = append(b, ev.Payload...)
	}
	for i := range ev.Properties {
		name, value := uint64(names[i]), text(ev.Properties[i].Value)
		b = appendLen(b, 5, sizeVarint(name)+sizeString(value))
		b = appendVarint(b, 1, name)
		b = appendString(b, 2, value)
	}
	b = appendVarint(b, 6, uint64(ev.ID.Ledger))
	b = appendVarint(b, 7, uint64(ev.ID.Entry))
	b = appendVarint(b, 8, zigzag(ev.ID.Batch))
	b = appendVarint(b, 9, zigzag(ev.ID.TopicPartition))
	b = appendVarint(b, 10, uint64(topic))
	b = appendVarint(b, 11, uint64(token))
	b = appendVarint(b, 12, uint64(ev.PublishTime))
	b = appendVarint(b, 13, uint64(ev.EventTime))
	b = appendVarint(b, 14, uint64(d.Attempt))
	b = appendString(b, 15, text(ev.Trace()))
	if ev.Redelivery != 0 {
		b = protowire.AppendTag(b, 16, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(ev.Redelivery))
	}
	return b, names[len(ev.Properties):]
}

// table gives the strings or numbers that repeat in a frame their indexes.
type table[T comparable] struct {
	list   []T
	lookup map[T]uint32
	last   int
}

func newTable[T comparable]() table[T] { return table[T]{lookup: make(map[T]uint32)} }

// index returns the index of v, which it adds if it is new. Events of one topic
// carry the same values in the same order: looking at the last index, and at the
// one after it, nearly always saves the map.
func (t *table[T]) index(v T) uint32 {
	if n := len(t.list); n > 0 {
		if t.list[t.last] == v {
			return uint32(t.last)
		}
		if next := (t.last + 1) % n; t.list[next] == v {
			t.last = next
			return uint32(next)
		}
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

func (t *table[T]) reset() {
	clear(t.list)
	clear(t.lookup)
	t.list, t.last = t.list[:0], 0
}

// pooled runs write on a pooled buffer of size bytes.
func pooled(size int, write func([]byte) []byte) mem.BufferSlice {
	if mem.IsBelowBufferPoolingThreshold(size) {
		return mem.BufferSlice{mem.SliceBuffer(write(make([]byte, 0, size)))}
	}
	pool := mem.DefaultBufferPool()
	buf := pool.Get(size)
	*buf = write((*buf)[:0])
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}
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
	if v == 0 {
		return b
	}
	b = append(b, byte(field<<3)|byte(protowire.VarintType))
	return protowire.AppendVarint(b, v)
}

// appendLen writes the tag and the length of a field of n bytes.
func appendLen(b []byte, field, n int) []byte {
	b = append(b, byte(field<<3)|byte(protowire.BytesType))
	return protowire.AppendVarint(b, uint64(n))
}

func appendString(b []byte, field int, s string) []byte {
	if s == "" {
		return b
	}
	b = appendLen(b, field, len(s))
	return append(b, s...)
}
