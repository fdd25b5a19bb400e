package forward

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec for all other messages
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/framepool"
	"github.com/ringfence/router/internal/wire/hotframe"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
)

// fieldHot is the number of Events in ForwardRequest, and of Verdicts in ForwardResponse.
const fieldHot = 3

// The numbers of the other fields whose content repeats something of two bytes that takes fifty in memory or more.
const (
	fieldHello        = 2 // in both
	helloCapabilities = 8
	helloIdentity     = 10
	fieldCredit       = 5 // in ForwardResponse
	creditKeys        = 1
)

// errFrame is wrapped by every error about malformed frames.
var errFrame = errors.New("forward: malformed frame")

// eventsFrame is a ForwardRequest as the codec encodes and decodes it.
type eventsFrame struct {
	receipt uint64
	number  uint64 // 0: this frame carries no events
	epoch   event.Position
	relay   bool
	refs    []event.Ref // when sending
	events  []event.Ref // when receiving

	other *peerv1.ForwardRequest // when receiving: the frame if it carries no events; nil: it is only a receipt
	err   error                  // the frame was received, and is garbage

	now func() clock.Instant // set by the codec

	// bytesMax is set by the receiver before each frame: of a longer one nothing is decoded. 0: any.
	bytesMax int
}

// verdictsFrame is a ForwardResponse as the codec encodes and decodes it.
type verdictsFrame struct {
	receipt  uint64
	number   uint64 // 0: this frame carries no verdicts
	epoch    event.Position
	batch    verdictBatch    // when sending
	verdicts []event.Verdict // when receiving; valid until the next frame, like done and words
	done     []event.Set     // when receiving
	words    []uint64        // memory of the sets in done

	other *peerv1.ForwardResponse // when receiving: the frame if it carries no verdicts; nil: it is only a receipt
	err   error                   // the frame was received, and is garbage
}

// codec is the gRPC codec of peer streams: the two hot frames by hand, straight
// between the wire and the router's own types, and everything else as protobuf. On
// the wire all of it is protobuf. Safe for concurrent use.
type codec struct {
	frameMax int
	now      func() clock.Instant // for the time that callers still wait
}

// Name implements [encoding.CodecV2]: the content type is that of protobuf.
func (codec) Name() string { return "proto" }

// Marshal implements [encoding.CodecV2].
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	switch v := v.(type) {
	case *eventsFrame:
		v.now = c.now
		return v.marshal(), nil
	case *verdictsFrame:
		return v.marshal(), nil
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
		v.err = v.parse(data.Materialize(), c.frameMax, c.now)
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

// frameBuffers is shared by all streams.
var frameBuffers framepool.Pool

// parse decodes b. The events alias it.
func (f *eventsFrame) parse(b []byte, frameMax int, now func() clock.Instant) error {
	receipt, hot, ok := hotframe.Open(b)
	*f = eventsFrame{now: now, receipt: receipt}
	propertiesMax := frameMax / propertyBytesMin
	if ok && (hot == nil || f.parseHot(hot, propertiesMax) == nil) {
		return nil
	}
	*f = eventsFrame{now: now}
	return f.parseAny(b, propertiesMax)
}

// parse decodes b and does not keep it.
func (f *verdictsFrame) parse(b []byte) error {
	receipt, hot, ok := hotframe.Open(b)
	f.reset()
	f.receipt = receipt
	if ok && (hot == nil || f.parseHot(hot) == nil) {
		return nil
	}
	f.reset()
	return f.parseAny(b)
}

// reset empties the frame, which keeps its memory.
func (f *verdictsFrame) reset() {
	*f = verdictsFrame{verdicts: f.verdicts[:0], done: f.done[:0], words: f.words[:0]}
}

// appendPosition appends a Position, and nothing when it is zero.
func appendPosition(b []byte, num protowire.Number, p event.Position) []byte {
	if p.IsZero() {
		return b
	}
	const room = 1 // for the length
	b, begin := hotframe.Begin(b, num, room)
	b = hotframe.AppendNumber(b, 1, uint64(p.Ledger))
	b = hotframe.AppendNumber(b, 2, uint64(p.Entry))
	return hotframe.End(b, begin, room)
}

// readPosition is the inverse of appendPosition: it takes a Position off the front of b. What it
// cannot read, it leaves in rest.
func readPosition(b []byte, num protowire.Number) (p event.Position, rest []byte) {
	body, rest := hotframe.Chunk(b, num)
	ledger, body := hotframe.Number(body, 1)
	entry, body := hotframe.Number(body, 2)
	if len(body) > 0 {
		return event.Position{}, b
	}
	return event.Position{Ledger: int64(ledger), Entry: int64(entry)}, rest
}
