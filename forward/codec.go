package forward

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for all other messages
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ringfence/router/internal/base/event"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
)

// Field numbers of ForwardRequest and ForwardResponse. The hot frame has the same
// number in both.
const (
	fieldReceipt  = 1
	fieldHot      = 3 // Events, Verdicts
	fieldFrameMin = 2 // the fields of the oneof
	fieldFrameMax = 6
	fieldProof    = 8 // another one of the oneof, in requests
)

// errFrame is wrapped by every error about malformed frames.
var errFrame = errors.New("forward: malformed frame")

// eventsFrame is a ForwardRequest as the codec encodes and decodes it.
type eventsFrame struct {
	receipt uint64
	number  uint64 // 0: this frame carries no events
	epoch   event.Position
	relay   bool
	events  []*event.Event

	// other is the frame's content if it is not events. When sending, only for frames that are
	// not hot; when receiving, nil or a message with its frame set.
	other *peerv1.ForwardRequest
	err   error // the frame was received, and is garbage

	// bytesMax is set by the receiver before each frame: of a longer one nothing is decoded. 0: any.
	bytesMax int

	scratch eventsScratch
}

// verdictsFrame is a ForwardResponse as the codec encodes and decodes it.
type verdictsFrame struct {
	receipt  uint64
	number   uint64 // 0: this frame carries no verdicts
	epoch    event.Position
	batch    verdictBatch    // when sending
	verdicts []event.Verdict // when receiving

	other *peerv1.ForwardResponse
	err   error // the frame was received, and is garbage
}

// codec is the gRPC codec of peer streams: the two hot frames by hand, straight
// between the wire and the router's own types, and everything else as protobuf. On
// the wire all of it is protobuf. Safe for concurrent use.
type codec struct{ frameMax int }

// Name implements [encoding.CodecV2]: the content type is that of protobuf.
func (codec) Name() string { return "proto" }

// Marshal implements [encoding.CodecV2].
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *eventsFrame:
		if v.other == nil {
			return v.marshal(), nil
		}
		return plain().Marshal(v.other)
	case *verdictsFrame:
		if v.other == nil {
			return v.marshal(), nil
		}
		return plain().Marshal(v.other)
	}
	return plain().Marshal(v)
}

// Unmarshal implements [encoding.CodecV2]. Errors of hot frames are returned in the frame.
// Events alias a copy of data, which lives as long as any of them; nothing else aliases
// data.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch v := v.(type) {
	case *eventsFrame:
		if n := data.Len(); v.bytesMax > 0 && n > v.bytesMax {
			v.err = fmt.Errorf("%w: %d bytes, want at most %d", errFrame, n, v.bytesMax)
			return nil
		}
		v.err = v.parse(data.Materialize(), c.frameMax)
		return nil // an error here would make gRPC end the stream with a status of its own
	case *verdictsFrame:
		buf := data.MaterializeToBuffer(&frameBuffers)
		defer buf.Free()
		v.err = v.parse(buf.ReadOnlyData())
		return nil
	}
	return plain().Unmarshal(data, v)
}

func plain() encoding.CodecV2 { return encoding.GetCodecV2("proto") }

// pooled calls put with a buffer of size bytes; put returns the number of bytes written.
// gRPC returns the buffer to the pool.
func pooled(size int, put func([]byte) int) mem.Buffer {
	if mem.IsBelowBufferPoolingThreshold(size) {
		buf := make([]byte, size)
		return mem.SliceBuffer(buf[:put(buf)])
	}
	buf := frameBuffers.Get(size)
	*buf = (*buf)[:put(*buf)]
	return mem.NewBuffer(buf, &frameBuffers)
}

// envelope is the part that requests and responses share: a receipt and one frame.
type envelope struct {
	receipt uint64
	hot     []byte // the hot frame's bytes
	field   protowire.Number
}

// parseEnvelope finds the frame. Protobuf would merge a repeated frame; here it is an
// error, since no sender writes one.
func parseEnvelope(b []byte) (e envelope, err error) {
	r := reader{rest: b}
	for {
		ok, err := r.next()
		switch {
		case !ok:
			return e, err
		case r.is(fieldReceipt, protowire.VarintType):
			e.receipt = r.n
		case r.num >= fieldFrameMin && r.num <= fieldFrameMax || r.num == fieldProof:
			if e.field != 0 || r.typ != protowire.BytesType {
				return e, fmt.Errorf("%w: two frames in one, or no frame", errFrame)
			}
			e.field, e.hot = r.num, r.value
		}
	}
}

// parse decodes b. The events alias it.
func (f *eventsFrame) parse(b []byte, frameMax int) error {
	*f = eventsFrame{scratch: f.scratch}
	env, err := parseEnvelope(b)
	if err != nil {
		return err
	}
	f.receipt = env.receipt
	switch env.field {
	case 0:
		return nil
	case fieldHot:
		return f.parseEvents(env.hot, frameMax)
	}
	f.other = new(peerv1.ForwardRequest)
	if err := proto.Unmarshal(b, f.other); err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	return nil
}

// parse decodes b and does not keep it.
func (f *verdictsFrame) parse(b []byte) error {
	*f = verdictsFrame{verdicts: f.verdicts[:0]}
	env, err := parseEnvelope(b)
	if err != nil {
		return err
	}
	f.receipt = env.receipt
	switch env.field {
	case 0:
		return nil
	case fieldHot:
		return f.parseVerdicts(env.hot)
	}
	f.other = new(peerv1.ForwardResponse)
	if err := proto.Unmarshal(b, f.other); err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	return nil
}
