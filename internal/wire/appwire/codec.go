package appwire

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that every other message goes through
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/wire/framepool"
	appv1 "github.com/ringfence/router/proto/ringfence/app/v1"
)

// RawClock is the capability of a worker whose deadlines run on a clock that NTP cannot
// slew, see internal/base/clock. Workers without it get shorter deadlines.
const RawClock = "raw_clock"

// Conformant is the capability of a worker whose SDK passes all rules of `router conformance`.
// The router names workers without it.
const Conformant = "conformant"

// Calls is the capability of a worker that takes calls.
const Calls = "calls"

// State is the capability of a worker that keeps state between the turns of a key.
const State = "state"

// Intervals is a capability of the router: it asks for [event.Result.Ran].
const Intervals = "intervals"

// frameBuffers is shared by all streams.
var frameBuffers framepool.Pool

// Codec is the gRPC codec of the application's stream. It replaces the standard one, under the
// same name and so the same content type: our own frames take the fast path, any other message
// the standard one. Use it with grpc.ForceServerCodecV2 and grpc.ForceCodecV2. Safe for
// concurrent use.
type Codec struct{}

var _ encoding.CodecV2 = Codec{}

// Name returns the name of the codec that this one is compatible with.
func (Codec) Name() string { return "proto" }

// Marshal returns the wire form of v.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *ToWorker:
		return v.marshal(), nil
	case *ToRouter:
		return v.marshal(), nil
	}
	return encoding.GetCodecV2("proto").Marshal(v)
}

// Unmarshal parses data into v.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *FromRouter:
		return v.unmarshal(data.Materialize())
	case *FromWorker:
		if v.reset(); data.Len() > v.Bounds.Bytes {
			v.Err = fmt.Errorf("%w: %d bytes, want at most %d", ErrBounds, data.Len(), v.Bounds.Bytes)
			return nil
		}
		buf := data.MaterializeToBuffer(&frameBuffers)
		defer buf.Free()
		return v.unmarshal(buf.ReadOnlyData())
	}
	return encoding.GetCodecV2("proto").Unmarshal(data, v)
}

// unmarshal parses b. The deliveries alias it.
func (f *FromRouter) unmarshal(b []byte) error {
	f.reset()
	if f.parse(b) {
		return nil
	}
	f.reset()
	m := new(appv1.WorkResponse)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, m); err != nil {
		return fmt.Errorf("appwire: frame of the router: %w", err)
	}
	f.Receipt = m.GetReceipt()
	if m.GetDeliveries() == nil {
		f.Other = m
		return nil
	}
	ours, err := proto.Marshal(m.GetDeliveries()) // its fields come in the order of our writer
	switch {
	case err != nil:
		return fmt.Errorf("appwire: frame of the router: %w", err)
	case !f.parseHot(ours):
		return ErrIndex
	}
	return nil
}

func (f *FromRouter) reset() {
	clear(f.topics) // they alias the frame before
	clear(f.names)
	clear(f.schemas)
	*f = FromRouter{
		To:       f.To,
		delivery: Delivery{Properties: f.delivery.Properties[:0]},
		topics:   f.topics[:0], names: f.names[:0], schemas: f.schemas[:0], tokens: f.tokens[:0],
	}
}

// unmarshal parses b and does not keep it.
func (f *FromWorker) unmarshal(b []byte) error {
	f.reset()
	if f.parse(b) {
		return nil
	}
	f.reset()
	if f.Err = f.Bounds.judge(b); f.Err != nil {
		return nil //nolint:nilerr // as an error it would make gRPC end the stream with a status of its own
	}
	m := new(appv1.WorkRequest)
	if err := proto.Unmarshal(b, m); err != nil {
		return fmt.Errorf("appwire: frame of the worker: %w", err)
	}
	f.fromMessage(m)
	return nil
}

func (f *FromWorker) reset() {
	clear(f.Results)
	*f = FromWorker{Bounds: f.Bounds, Results: f.Results[:0]}
}
