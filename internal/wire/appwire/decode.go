package appwire

import (
	"unicode/utf8"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/base/event"
)

// The parsers below read frames as our writers write them: fields in the order of their
// numbers, each at most once where it is not repeated. At anything else (another frame,
// an unknown field, a field of another wire type, a string that is not UTF-8, a number
// cut short) something is left over at the end. Then they return false, and the
// generated code decides.

// Wire types.
const (
	varint = byte(protowire.VarintType)
	length = byte(protowire.BytesType)
)

// number takes the field with a tag of one byte off the front of b, if it is there: an absent
// field is 0.
func number(b []byte, tag byte) (v uint64, rest []byte) {
	if len(b) < 2 || b[0] != tag {
		return 0, b
	}
	if v = uint64(b[1]); v < 0x80 {
		return v, b[2:]
	}
	v, n := protowire.ConsumeVarint(b[1:])
	if n < 0 {
		return 0, b
	}
	return v, b[1+n:]
}

// chunk is number for a field with a length. Its result aliases b; nil means that there is no
// such field, or that it is truncated and still in rest.
func chunk(b []byte, tag byte) (v, rest []byte) {
	if len(b) < 2 || b[0] != tag {
		return nil, b
	}
	n, head := uint64(b[1]), 2
	if n >= 0x80 {
		var size int
		if n, size = protowire.ConsumeVarint(b[1:]); size < 0 {
			return nil, b
		}
		head = 1 + size
	}
	if n > uint64(len(b)-head) {
		return nil, b
	}
	end := head + int(n)
	return b[head:end:end], b[end:]
}

// begins reports whether a field with the tag is next.
func begins(b []byte, tag byte) bool { return len(b) > 0 && b[0] == tag }

// alias returns b as a string without copying it. b must never be written to again.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) } //nolint:gosec // pointer and length are those of b

// hotFrame takes a receipt and the hot frame off b: exactly one of each at most.
func hotFrame(b []byte) (receipt uint64, hot []byte, ok bool) {
	receipt, b = number(b, 1<<3|varint)
	if !begins(b, 3<<3|length) {
		return 0, nil, false
	}
	hot, b = chunk(b, 3<<3|length)
	return receipt, hot, len(b) == 0
}

// parse reads a Deliveries frame and gives its deliveries to f.To.
func (f *FromRouter) parse(b []byte) bool {
	receipt, b, ok := hotFrame(b)
	if !ok {
		return false
	}
	f.Receipt = receipt
	f.Number, b = number(b, 1<<3|varint)
	if f.topics, b, ok = texts(b, 2<<3|length, f.topics); !ok {
		return false
	}
	packed, b := chunk(b, 3<<3|length)
	if !f.readTokens(packed) {
		return false
	}
	f.names, b, ok = texts(b, 4<<3|length, f.names)
	return ok && f.readDeliveries(b)
}

// texts takes repeated strings off the front of b and appends them to dst.
func texts(b []byte, tag byte, dst []string) (_ []string, rest []byte, ok bool) {
	for begins(b, tag) {
		var text []byte
		if text, b = chunk(b, tag); text == nil || !utf8.Valid(text) {
			return dst, b, false
		}
		dst = append(dst, alias(text))
	}
	return dst, b, true
}

func (f *FromRouter) readTokens(packed []byte) bool {
	for len(packed) > 0 {
		v, n := protowire.ConsumeVarint(packed)
		if n < 0 {
			return false
		}
		f.tokens, packed = append(f.tokens, int64(v)), packed[n:]
	}
	return true
}

// readDeliveries reads the deliveries, which are the rest of the frame.
func (f *FromRouter) readDeliveries(b []byte) bool {
	n, tail := count(b)
	b = b[:len(b)-len(tail)]
	for len(tail) > 0 { // tables that the deliveries refer to by index, although they follow them
		var version []byte
		if version, tail = chunk(tail, 7<<3|length); version == nil {
			return false
		}
		f.schemas = append(f.schemas, alias(version))
	}
	f.To.Begin(n)
	d := &f.delivery
	for len(b) > 0 {
		if !begins(b, 5<<3|length) {
			return false
		}
		var body []byte
		if body, b = chunk(b, 5<<3|length); body == nil || !f.readDelivery(body, d) {
			return false
		}
		f.To.Deliver(d)
	}
	return true
}

// count returns the number of readable deliveries, and the rest of the frame.
func count(b []byte) (n int, rest []byte) {
	for begins(b, 5<<3|length) {
		before := len(b)
		if _, b = chunk(b, 5<<3|length); len(b) == before {
			break
		}
		n++
	}
	return n, b
}

func (f *FromRouter) readDelivery(b []byte, d *Delivery) bool {
	var partition, batch, topicPartition, topic, token, published, happened, attempt, redelivery, schema uint64
	var ledger, entry uint64
	var key, trace []byte
	d.ID, b = number(b, 1<<3|varint)
	partition, b = number(b, 2<<3|varint)
	key, b = chunk(b, 3<<3|length)
	d.Payload, b = chunk(b, 4<<3|length)
	d.Properties = d.Properties[:0]
	for begins(b, 5<<3|length) {
		var body []byte
		if body, b = chunk(b, 5<<3|length); body == nil || !f.readProperty(body, d) {
			return false
		}
	}
	ledger, b = number(b, 6<<3|varint)
	entry, b = number(b, 7<<3|varint)
	batch, b = number(b, 8<<3|varint)
	topicPartition, b = number(b, 9<<3|varint)
	topic, b = number(b, 10<<3|varint)
	token, b = number(b, 11<<3|varint)
	published, b = number(b, 12<<3|varint)
	happened, b = number(b, 13<<3|varint)
	attempt, b = number(b, 14<<3|varint)
	trace, b = chunk(b, 15<<3|length)
	redelivery, b = farNumber(b, redeliveryTag)
	d.Turn, b = farNumber(b, turnTag)
	schema, b = farNumber(b, schemaTag)
	if len(b) > 0 || !utf8.Valid(trace) || schema > uint64(len(f.schemas)) || uint32(topic) >= uint32(len(f.topics)) || uint32(token) >= uint32(len(f.tokens)) {
		return false
	}
	d.Partition, d.Key, d.Traceparent = uint32(partition), alias(key), alias(trace)
	d.Ledger, d.Entry, d.Batch, d.TopicPartition = int64(ledger), int64(entry), unzigzag(batch), unzigzag(topicPartition)
	d.Topic, d.Token = f.topics[uint32(topic)], f.tokens[uint32(token)]
	d.PublishTime, d.EventTime = int64(published), int64(happened)
	d.Attempt, d.Redelivery = uint32(attempt), uint32(redelivery)
	d.SchemaVersion = ""
	if schema > 0 {
		d.SchemaVersion = f.schemas[schema-1]
	}
	return true
}

// Tags of two bytes: those of the fields from 16 on.
var (
	redeliveryTag = [2]byte(protowire.AppendTag(nil, 16, protowire.VarintType))
	turnTag       = [2]byte(protowire.AppendTag(nil, 17, protowire.VarintType))
	schemaTag     = [2]byte(protowire.AppendTag(nil, 21, protowire.VarintType))
)

// farNumber is number for a field with a tag of two bytes. From the second byte on it reads
// like a field with a tag of one.
func farNumber(b []byte, tag [2]byte) (v uint64, rest []byte) {
	if len(b) < 3 || b[0] != tag[0] || b[1] != tag[1] {
		return 0, b
	}
	if v, rest = number(b[1:], tag[1]); len(rest) == len(b)-1 {
		return 0, b // cut short
	}
	return v, rest
}

func (f *FromRouter) readProperty(b []byte, d *Delivery) bool {
	name, b := number(b, 1<<3|varint)
	value, b := chunk(b, 2<<3|length)
	if len(b) > 0 || !utf8.Valid(value) || int(uint32(name)) >= len(f.names) {
		return false
	}
	d.Properties = append(d.Properties, event.Property{Name: f.names[uint32(name)], Value: alias(value)})
	return true
}

func unzigzag(v uint64) int32 { return int32(protowire.DecodeZigZag(v & (1<<32 - 1))) }

// parse reads a Results frame of at most as many results as f.Bounds allows; of one that
// holds more it reads no more than these, and the rest is judged as any other frame is.
func (f *FromWorker) parse(b []byte) bool {
	receipt, b, ok := hotFrame(b)
	if !ok {
		return false
	}
	f.Receipt = receipt
	f.Number, b = number(b, 1<<3|varint)
	for begins(b, 2<<3|length) {
		var body []byte
		if body, b = chunk(b, 2<<3|length); body == nil || len(f.Results) == f.Bounds.Results {
			return false
		}
		f.Results = append(f.Results, event.Result{})
		if !readResult(body, &f.Results[len(f.Results)-1]) {
			return false
		}
	}
	return len(b) == 0
}

func readResult(b []byte, result *event.Result) bool {
	id, b := number(b, 1<<3|varint)
	kind, b := number(b, 2<<3|varint)
	result.Delivery, result.Kind = event.DeliveryID(id), kindOf(kind)
	if len(b) == 0 { // nearly always: it was done
		return true
	}
	after, b := number(b, 3<<3|varint)
	reason, b := chunk(b, 4<<3|length)
	if len(b) > 0 || !utf8.Valid(reason) {
		return false
	}
	result.After, result.Reason = afterOf(after), string(reason) // the frame's buffer goes back to its pool
	return true
}
