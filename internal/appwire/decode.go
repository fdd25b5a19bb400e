package appwire

import (
	"unicode/utf8"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/event"
)

// The parsers below read frames as our writers write them. At anything else
// (another frame, an unknown field, a field of another wire type, a string that is
// not UTF-8, a number cut short) they return false, and the generated code decides.

// reader takes fields off a message. Once it has met something that it does not
// know, ok is false, and what it returned since means nothing.
type reader struct {
	b  []byte
	ok bool
}

// next returns the next tag, and false at the end of the message.
func (r *reader) next() (tag uint64, more bool) {
	if !r.ok || len(r.b) == 0 {
		return 0, false
	}
	return r.varint(), r.ok
}

func (r *reader) varint() uint64 {
	if len(r.b) > 0 && r.b[0] < 0x80 { // nearly always
		v := uint64(r.b[0])
		r.b = r.b[1:]
		return v
	}
	v, n := protowire.ConsumeVarint(r.b)
	if n < 0 {
		r.ok = false
		return 0
	}
	r.b = r.b[n:]
	return v
}

// bytes returns the next field of a length, aliasing the message.
func (r *reader) bytes() []byte {
	n := r.varint()
	if !r.ok || n > uint64(len(r.b)) {
		r.ok = false
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

// text returns the next string, aliasing the message.
func (r *reader) text() string {
	b := r.bytes()
	if !utf8.Valid(b) {
		r.ok = false
	}
	return alias(b)
}

// alias returns b as a string without copying it. b must never be written to again.
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Tags: field number and wire type.
const (
	varint = uint64(protowire.VarintType)
	length = uint64(protowire.BytesType)
)

// frame takes a receipt and the hot frame off b: exactly one of each at most, in
// this order.
func frame(b []byte) (receipt uint64, hot []byte, ok bool) {
	r := reader{b: b, ok: true}
	tag, more := r.next()
	if more && tag == 1<<3|varint {
		receipt = r.varint()
		tag, more = r.next()
	}
	if !more || tag != 3<<3|length {
		return 0, nil, false
	}
	hot = r.bytes()
	return receipt, hot, r.ok && len(r.b) == 0
}

// parse reads a Deliveries frame and leaves the indexes of topics and tokens
// unresolved.
func (f *FromRouter) parse(b []byte) bool {
	receipt, body, ok := frame(b)
	if !ok {
		return false
	}
	f.Receipt = receipt
	r := reader{b: body, ok: true}
	for {
		at := r // our writers put the tables first; the deliveries may rely on that
		tag, more := r.next()
		if !more {
			return r.ok
		}
		switch tag {
		case 1<<3 | varint:
			f.Number = r.varint()
		case 2<<3 | length:
			f.topics = append(f.topics, r.text())
		case 3<<3 | length:
			f.readTokens(&r)
		case 4<<3 | length:
			f.names = append(f.names, r.text())
		case 5<<3 | length:
			return f.readDeliveries(at)
		default:
			return false
		}
	}
}

func (f *FromRouter) readTokens(r *reader) {
	packed := reader{b: r.bytes(), ok: r.ok}
	for packed.ok && len(packed.b) > 0 {
		f.tokens = append(f.tokens, int64(packed.varint()))
	}
	r.ok = packed.ok
}

// readDeliveries reads the deliveries, which are the rest of the frame.
func (f *FromRouter) readDeliveries(r reader) bool {
	deliveries, properties := count(r)
	if cap(f.Deliveries) < deliveries {
		f.Deliveries = make([]Delivery, 0, deliveries)
	}
	if properties > 0 {
		f.properties = make([]event.Property, 0, properties)
	}
	for {
		tag, more := r.next()
		if !more {
			return r.ok
		}
		if tag != 5<<3|length {
			return false
		}
		f.Deliveries = append(f.Deliveries, Delivery{})
		if !f.readDelivery(r.bytes(), &f.Deliveries[len(f.Deliveries)-1]) || !r.ok {
			return false
		}
	}
}

// count returns how many deliveries and properties there are, so that each gets one
// allocation. It stops at what it does not know.
func count(r reader) (deliveries, properties int) {
	for {
		tag, more := r.next()
		if !more || tag != 5<<3|length {
			return deliveries, properties
		}
		deliveries++
		d := reader{b: r.bytes(), ok: r.ok}
		properties += countProperties(d)
	}
}

// countProperties skips over a delivery and counts its properties.
func countProperties(d reader) (n int) {
	for {
		tag, more := d.next()
		if !more {
			return n
		}
		switch tag & 7 {
		case varint:
			d.varint()
		case length:
			d.bytes()
		default:
			return n
		}
		if tag == 5<<3|length {
			n++
		}
	}
}

func (f *FromRouter) readDelivery(b []byte, d *Delivery) bool {
	r := reader{b: b, ok: true}
	first := len(f.properties)
	for {
		tag, more := r.next()
		if !more {
			break
		}
		switch tag {
		case 1<<3 | varint:
			d.ID = r.varint()
		case 2<<3 | varint:
			d.Partition = uint32(r.varint())
		case 3<<3 | length:
			d.Key = alias(r.bytes())
		case 4<<3 | length:
			d.Payload = r.bytes()
		case 5<<3 | length:
			if !f.readProperty(r.bytes()) {
				return false
			}
		case 6<<3 | varint:
			d.Ledger = int64(r.varint())
		case 7<<3 | varint:
			d.Entry = int64(r.varint())
		case 8<<3 | varint:
			d.Batch = unzigzag(r.varint())
		case 9<<3 | varint:
			d.TopicPartition = unzigzag(r.varint())
		case 10<<3 | varint:
			d.topic = uint32(r.varint())
		case 11<<3 | varint:
			d.token = uint32(r.varint())
		case 12<<3 | varint:
			d.PublishTime = int64(r.varint())
		case 13<<3 | varint:
			d.EventTime = int64(r.varint())
		case 14<<3 | varint:
			d.Attempt = uint32(r.varint())
		case 15<<3 | length:
			d.Traceparent = r.text()
		case 16<<3 | varint:
			d.Redelivery = uint32(r.varint())
		default:
			return false
		}
	}
	if n := len(f.properties); n > first {
		d.Properties = f.properties[first:n:n]
	}
	return r.ok
}

func (f *FromRouter) readProperty(b []byte) bool {
	r := reader{b: b, ok: true}
	var name uint32
	var value string
	for {
		tag, more := r.next()
		if !more {
			break
		}
		switch tag {
		case 1<<3 | varint:
			name = uint32(r.varint())
		case 2<<3 | length:
			value = r.text()
		default:
			return false
		}
	}
	if !r.ok || int(name) >= len(f.names) {
		return false
	}
	f.properties = append(f.properties, event.Property{Name: f.names[name], Value: value})
	return true
}

func unzigzag(v uint64) int32 { return int32(protowire.DecodeZigZag(v & (1<<32 - 1))) }

// parse reads a Results frame.
func (f *FromWorker) parse(b []byte) bool {
	receipt, body, ok := frame(b)
	if !ok {
		return false
	}
	f.Receipt = receipt
	r := reader{b: body, ok: true}
	for {
		tag, more := r.next()
		if !more {
			return r.ok
		}
		switch tag {
		case 1<<3 | varint:
			f.Number = r.varint()
		case 2<<3 | length:
			var result event.Result
			if !readResult(r.bytes(), &result) || !r.ok {
				return false
			}
			f.Results = append(f.Results, result)
		default:
			return false
		}
	}
}

func readResult(b []byte, result *event.Result) bool {
	r := reader{b: b, ok: true}
	result.Kind = kindOf(0)
	for {
		tag, more := r.next()
		if !more {
			return r.ok
		}
		switch tag {
		case 1<<3 | varint:
			result.Delivery = event.DeliveryID(r.varint())
		case 2<<3 | varint:
			result.Kind = kindOf(r.varint())
		case 3<<3 | varint:
			result.After = afterOf(r.varint())
		case 4<<3 | length:
			reason := r.bytes()
			if !utf8.Valid(reason) {
				return false
			}
			result.Reason = string(reason) // the frame's buffer goes back to its pool
		default:
			return false
		}
	}
}
