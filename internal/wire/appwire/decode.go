package appwire

import (
	"bytes"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/hotframe"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// The parsers below read frames as our writers write them: fields in the order of their
// numbers, each at most once where it is not repeated. At anything else (another frame,
// an unknown field, a field of another wire type, a string that is not UTF-8, a number
// cut short) something is left over at the end. Then they return false, and the
// generated code decides.

// parse reads a Deliveries frame and gives its deliveries to f.To.
func (f *FromRouter) parse(b []byte) bool {
	receipt, hot, ok := hotframe.Open(b)
	if !ok || hot == nil {
		return false
	}
	f.Receipt = receipt
	return f.parseHot(hot)
}

// parseHot reads a Deliveries message.
func (f *FromRouter) parseHot(b []byte) bool {
	f.Number, b = hotframe.Number(b, 1)
	f.topics, b = hotframe.Strings(b, 2, len(b), f.topics)
	packed, b := hotframe.Chunk(b, 3)
	f.names, b = hotframe.Strings(b, 4, len(b), f.names)
	return f.readTokens(packed) && valid(f.topics) && valid(f.names) && f.readDeliveries(b)
}

func valid(texts []string) bool {
	for _, text := range texts {
		if !utf8.ValidString(text) {
			return false
		}
	}
	return true
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

// readDeliveries reads the deliveries, and the tables behind them, to which they refer by index.
func (f *FromRouter) readDeliveries(b []byte) bool {
	n, tail := count(b)
	if f.schemas, tail = hotframe.Strings(tail, 7, len(tail), f.schemas); len(tail) > 0 {
		return false
	}
	f.To.Begin(n)
	d := &f.delivery
	for range n {
		var body []byte
		if body, b = hotframe.Chunk(b, 5); !f.readDelivery(body, d) {
			return false
		}
		f.To.Deliver(d)
	}
	return true
}

// count returns the number of readable deliveries, and the rest of the frame.
func count(b []byte) (n int, rest []byte) {
	for {
		body, rest := hotframe.Chunk(b, 5)
		if body == nil {
			return n, b
		}
		n, b = n+1, rest
	}
}

func (f *FromRouter) readDelivery(b []byte, d *Delivery) bool {
	d.ID, b = hotframe.Number(b, 1)
	partition, b := hotframe.Number(b, 2)
	key, b := hotframe.Chunk(b, 3)
	d.Payload, b = hotframe.Chunk(b, 4)
	d.Properties = d.Properties[:0]
	for {
		body, rest := hotframe.Chunk(b, 5)
		if body == nil {
			break
		}
		if !f.readProperty(body, d) {
			return false
		}
		b = rest
	}
	ledger, b := hotframe.Number(b, 6)
	entry, b := hotframe.Number(b, 7)
	batch, b := hotframe.Number(b, 8)
	topicPartition, b := hotframe.Number(b, 9)
	topic, b := hotframe.Number(b, 10)
	token, b := hotframe.Number(b, 11)
	published, b := hotframe.Number(b, 12)
	happened, b := hotframe.Number(b, 13)
	attempt, b := hotframe.Number(b, 14)
	trace, b := hotframe.Chunk(b, 15)
	redelivery, b := hotframe.Number(b, 16)
	d.Turn, b = hotframe.Number(b, 17)
	d.Call = nil
	if body, rest := hotframe.Chunk(b, 18); body != nil {
		c := hotframe.ReadCall(body, 0)
		if c == nil || !utf8.ValidString(c.Method) || !utf8.ValidString(c.ID) {
			return false
		}
		d.Call, b = callOf(c), rest
	}
	d.Generation, b = hotframe.Number(b, 19)
	d.Timer = nil
	if body, rest := hotframe.Chunk(b, 20); body != nil {
		var timer appv1.Timer
		if proto.Unmarshal(body, &timer) != nil {
			return false
		}
		d.Timer, b = timerOf(&timer), rest
	}
	schema, b := hotframe.Number(b, 21)
	if len(b) > 0 || !utf8.Valid(trace) || uint64(uint32(schema)) > uint64(len(f.schemas)) || uint32(topic) >= uint32(len(f.topics)) || uint32(token) >= uint32(len(f.tokens)) {
		return false
	}
	d.Partition, d.Key, d.Traceparent = uint32(partition), event.Alias(key), event.Alias(trace)
	d.Ledger, d.Entry, d.Batch, d.TopicPartition = int64(ledger), int64(entry), hotframe.Unzigzag(batch), hotframe.Unzigzag(topicPartition)
	d.Topic, d.Token = f.topics[uint32(topic)], f.tokens[uint32(token)]
	d.PublishTime, d.EventTime = int64(published), int64(happened)
	d.Attempt, d.Redelivery = uint32(attempt), uint32(redelivery)
	d.SchemaVersion = ""
	if i := uint32(schema); i > 0 {
		d.SchemaVersion = f.schemas[i-1]
	}
	return true
}

func (f *FromRouter) readProperty(b []byte, d *Delivery) bool {
	name, b := hotframe.Number(b, 1)
	value, b := hotframe.Chunk(b, 2)
	if len(b) > 0 || !utf8.Valid(value) || int(uint32(name)) >= len(f.names) {
		return false
	}
	d.Properties = append(d.Properties, event.Property{Name: f.names[uint32(name)], Value: event.Alias(value)})
	return true
}

// parse reads a Results frame of at most as many results as f.Bounds allows; of one that
// holds more it reads no more than these, and the rest is judged as any other frame is.
func (f *FromWorker) parse(b []byte) bool {
	receipt, b, ok := hotframe.Open(b)
	if !ok || b == nil {
		return false
	}
	f.Receipt = receipt
	f.Number, b = hotframe.Number(b, 1)
	for len(b) > 0 {
		body, rest := hotframe.Chunk(b, 2)
		if body == nil || len(f.Results) == f.Bounds.Results {
			return false
		}
		f.Results = append(f.Results, event.Result{})
		if !readResult(body, &f.Results[len(f.Results)-1]) {
			return false
		}
		b = rest
	}
	return true
}

func readResult(b []byte, result *event.Result) bool {
	id, b := hotframe.Number(b, 1)
	kind, b := hotframe.Number(b, 2)
	result.Delivery, result.Kind = event.DeliveryID(id), kindOf(kind)
	if len(b) == 0 { // nearly always: it was done
		return true
	}
	after, b := hotframe.Number(b, 3)
	reason, b := hotframe.Chunk(b, 4)
	reply, b := hotframe.Chunk(b, 5)
	code, b := hotframe.Chunk(b, 6)
	started, b := hotframe.Number(b, 8)
	took, b := hotframe.Number(b, 9)
	if len(b) > 0 || !utf8.Valid(reason) || !utf8.Valid(code) {
		return false
	}
	result.Reply = replyOf(bytes.Clone(reply), string(code))
	result.Ran = ranOf(started, took)
	result.After, result.Reason = hotframe.Duration(after, afterMax), string(reason) // the frame's buffer goes back to its pool
	return true
}
