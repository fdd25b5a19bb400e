package forward

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/hotframe"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
	"github.com/ringfence/router/ring"
)

const testFrameMax = 8 << 20

// protoEvents is the frame as the generated code sees it.
func protoEvents(f *eventsFrame) *peerv1.ForwardRequest {
	var topics, names, schemas hotframe.Table[string]
	body := &peerv1.Events{Number: f.number, Relay: f.relay, Epoch: protoPosition(f.epoch)}
	for _, ev := range f.events {
		e := &peerv1.Event{
			Handle: uint64(ev.Handle), Partition: uint32(ev.Partition), Key: []byte(ev.Key), Payload: ev.Payload,
			LedgerId: ev.ID.Ledger, EntryId: ev.ID.Entry, BatchIndex: ev.ID.Batch, TopicPartition: ev.ID.TopicPartition,
			Topic: uint32(topics.Index(ev.Topic)), Attempts: ev.Attempts, PublishTimeMs: ev.PublishTime, EventTimeMs: ev.EventTime,
			RedeliveryCount: ev.Redelivery, Round: ev.Round, Crashes: ev.Crashes, FirstError: ev.FirstError, LastError: ev.LastError,
		}
		if ev.SchemaVersion != "" {
			e.SchemaVersion = 1 + uint32(schemas.Index(ev.SchemaVersion))
		}
		for _, p := range ev.Properties {
			e.Properties = append(e.Properties, &peerv1.Property{Name: uint32(names.Index(p.Name)), Value: p.Value})
		}
		body.Events = append(body.Events, e)
	}
	body.Topics, body.Names = topics.List(), names.List()
	for _, version := range schemas.List() {
		body.SchemaVersions = append(body.SchemaVersions, []byte(version))
	}
	return &peerv1.ForwardRequest{Receipt: f.receipt, Frame: &peerv1.ForwardRequest_Events{Events: body}}
}

func protoVerdicts(f *verdictsFrame) *peerv1.ForwardResponse {
	body := &peerv1.Verdicts{Number: f.number, Epoch: protoPosition(f.epoch)}
	for _, v := range f.verdicts {
		d := v.DetailOrZero()
		body.Verdicts = append(body.Verdicts, &peerv1.Verdict{
			Handle: uint64(v.Handle), Kind: peerv1.VerdictKind(v.Kind), DelayMs: uint64(d.Delay.Milliseconds()), Attempts: d.Attempts, Crashes: d.Crashes,
			Reason: d.Reason, FirstError: d.FirstError, Epoch: protoPosition(d.Epoch), Owner: d.Owner,
		})
	}
	return &peerv1.ForwardResponse{Receipt: f.receipt, Frame: &peerv1.ForwardResponse_Verdicts{Verdicts: body}}
}

func protoPosition(p event.Position) *peerv1.Position {
	if p.IsZero() {
		return nil
	}
	return &peerv1.Position{LedgerId: p.Ledger, EntryId: p.Entry}
}

func drawPosition(t *rapid.T) event.Position {
	return event.Position{Ledger: rapid.Int64().Draw(t, "ledger"), Entry: rapid.Int64().Draw(t, "entry")}
}

func drawEvent(t *rapid.T) *event.Event {
	text := rapid.OneOf(rapid.Just(""), rapid.String())
	ev := &event.Event{
		Handle:    event.Handle(rapid.Uint64Min(1).Draw(t, "handle")),
		Partition: ring.Partition(rapid.IntRange(0, ring.Partitions-1).Draw(t, "partition")),
		Key:       event.Key(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "key")),
		Payload:   rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload"),
		ID: event.MessageID{
			Ledger: rapid.Int64().Draw(t, "ledger"), Entry: rapid.Int64().Draw(t, "entry"),
			Batch: rapid.Int32().Draw(t, "batch"), TopicPartition: rapid.Int32Min(-1).Draw(t, "topic partition"),
		},
		Topic:       rapid.SampledFrom([]string{"", "persistent://a/b/c", "persistent://a/b/d"}).Draw(t, "topic"),
		Attempts:    rapid.Uint32().Draw(t, "attempts"),
		PublishTime: rapid.Int64().Draw(t, "publish time"), EventTime: rapid.Int64().Draw(t, "event time"),
		Redelivery: rapid.Uint32().Draw(t, "redelivery"), Round: rapid.Uint32().Draw(t, "round"), Crashes: rapid.Uint32().Draw(t, "crashes"),
		FirstError: text.Draw(t, "first error"), LastError: text.Draw(t, "last error"),
		SchemaVersion: rapid.SampledFrom([]string{"", "\x00\x00\x00\x01", "\xff"}).Draw(t, "schema version"),
	}
	for range rapid.IntRange(0, 5).Draw(t, "properties") {
		name := rapid.SampledFrom([]string{"", "a", "b", "traceparent"}).Draw(t, "name")
		ev.Properties = append(ev.Properties, event.Property{Name: name, Value: text.Draw(t, "value")})
	}
	return ev
}

func drawEvents(t *rapid.T) *eventsFrame {
	f := &eventsFrame{
		receipt: rapid.Uint64().Draw(t, "receipt"), number: rapid.Uint64Min(1).Draw(t, "number"),
		epoch: drawPosition(t), relay: rapid.Bool().Draw(t, "relay"),
	}
	for range rapid.IntRange(0, 20).Draw(t, "events") {
		f.events = append(f.events, drawEvent(t))
	}
	return f
}

func drawVerdicts(t *rapid.T) *verdictsFrame {
	f := &verdictsFrame{receipt: rapid.Uint64().Draw(t, "receipt"), number: rapid.Uint64Min(1).Draw(t, "number"), epoch: drawPosition(t)}
	for range rapid.IntRange(0, 20).Draw(t, "verdicts") {
		v := event.Verdict{
			Handle: event.Handle(rapid.OneOf(rapid.Uint64(), rapid.Uint64Max(1<<50)).Draw(t, "handle")),
			Kind:   event.VerdictKind(rapid.IntRange(1, 7).Draw(t, "kind")),
		}
		if rapid.Bool().Draw(t, "detail") {
			v.Detail = &event.Detail{
				Delay:    time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "ms")) * time.Millisecond,
				Attempts: rapid.Uint32().Draw(t, "attempts"), Crashes: rapid.Uint32().Draw(t, "crashes"), Reason: rapid.String().Draw(t, "reason"),
				FirstError: rapid.String().Draw(t, "first error"), Epoch: drawPosition(t), Owner: rapid.String().Draw(t, "owner"),
			}
		}
		f.verdicts = append(f.verdicts, v)
	}
	return f
}

// equalVerdicts compares verdicts and their details; none equals an empty one.
func equalVerdicts(a, b []event.Verdict) bool {
	return slices.EqualFunc(a, b, func(x, y event.Verdict) bool {
		return x.Handle == y.Handle && x.Kind == y.Kind && x.DetailOrZero() == y.DetailOrZero()
	})
}

// equalEvents compares frames as a receiver sees them; a nil payload equals an empty one.
func equalEvents(a, b *eventsFrame) bool {
	if a.receipt != b.receipt || a.number != b.number || a.epoch != b.epoch || a.relay != b.relay || len(a.events) != len(b.events) {
		return false
	}
	for i := range a.events {
		x, y := *a.events[i], *b.events[i]
		if !bytes.Equal(x.Payload, y.Payload) {
			return false
		}
		x.Payload, y.Payload = nil, nil
		if !reflect.DeepEqual(x, y) {
			return false
		}
	}
	return true
}

// batchOf encodes verdicts as a Server does.
func batchOf(verdicts []event.Verdict) verdictBatch {
	config := DefaultConfig()
	config.FrameEventsMax, config.FrameBytesMax = frameItemsMax+1, testFrameMax
	batch := verdictBatch{buf: new([]byte)}
	if rest := batch.add(verdicts, &config); len(rest) > 0 {
		panic("too many verdicts for one frame")
	}
	return batch
}

func encode(t interface{ Fatal(...any) }, v any) []byte {
	if f, ok := v.(*verdictsFrame); ok {
		f.batch = batchOf(f.verdicts)
	}
	out, err := codec{frameMax: testFrameMax}.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Free()
	return out.Materialize()
}

// The generated code reads our frames, and the other way round.
func TestEventsFrameIsProtobuf(t *testing.T) {
	decoded := &eventsFrame{}
	rapid.Check(t, func(t *rapid.T) {
		f := drawEvents(t)
		b := encode(t, f)
		if !new(eventsFrame).parseOurs(b, testFrameMax) {
			t.Fatal("our reader left our writer's frame to the generated code")
		}
		var got peerv1.ForwardRequest
		if err := proto.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		want := protoEvents(f)
		if !proto.Equal(&got, want) {
			t.Fatalf("generated code reads %v, want %v", &got, want)
		}
		for _, b := range [][]byte{b, encode(t, want)} {
			if err := (codec{frameMax: testFrameMax}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, decoded); err != nil || decoded.err != nil {
				t.Fatal(err, decoded.err)
			}
			if !equalEvents(decoded, f) {
				t.Fatalf("read %+v, want %+v", decoded, f)
			}
		}
	})
}

func TestVerdictsFrameIsProtobuf(t *testing.T) {
	decoded := &verdictsFrame{}
	rapid.Check(t, func(t *rapid.T) {
		f := drawVerdicts(t)
		b := encode(t, f)
		if !new(verdictsFrame).parseOurs(b) {
			t.Fatal("our reader left our writer's frame to the generated code")
		}
		var got peerv1.ForwardResponse
		if err := proto.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		want := protoVerdicts(f)
		if !proto.Equal(&got, want) {
			t.Fatalf("generated code reads %v, want %v", &got, want)
		}
		for _, b := range [][]byte{b, encode(t, want)} {
			if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, decoded); err != nil || decoded.err != nil {
				t.Fatal(err, decoded.err)
			}
			if decoded.receipt != f.receipt || decoded.number != f.number || decoded.epoch != f.epoch || !equalVerdicts(decoded.verdicts, f.verdicts) {
				t.Fatalf("read %+v, want %+v", decoded, f)
			}
		}
	})
}

func TestOtherFramesAreProtobuf(t *testing.T) {
	var request eventsFrame
	ping := &peerv1.ForwardRequest{Receipt: 3, Frame: &peerv1.ForwardRequest_Ping{Ping: &peerv1.Ping{K: 7}}}
	if err := request.parse(encode(t, ping), testFrameMax); err != nil || request.receipt != 3 || request.other.GetPing().GetK() != 7 {
		t.Errorf("ping: %+v, %v", request, err)
	}
	if err := request.parse(encode(t, &eventsFrame{receipt: 4}), testFrameMax); err != nil || request.receipt != 4 || request.other != nil {
		t.Errorf("receipt: %+v, %v", request, err)
	}
	var response verdictsFrame
	credit := &peerv1.ForwardResponse{Frame: &peerv1.ForwardResponse_Credit{Credit: &peerv1.Credit{Keys: [][]byte{{1}}}}}
	if err := response.parse(encode(t, credit)); err != nil || len(response.other.GetCredit().GetKeys()) != 1 {
		t.Errorf("credit: %+v, %v", response, err)
	}
	if err := response.parse(encode(t, &verdictsFrame{receipt: 4})); err != nil || response.receipt != 4 || response.other != nil {
		t.Errorf("receipt: %+v, %v", response, err)
	}
}

func TestHostileEventsFrames(t *testing.T) {
	good := func() *peerv1.Events {
		return &peerv1.Events{Number: 1, Topics: []string{"t"}, Events: []*peerv1.Event{{Handle: 1}}}
	}
	frame := func(change func(*peerv1.Events)) []byte {
		events := good()
		change(events)
		b, err := proto.Marshal(&peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Events{Events: events}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if err := new(eventsFrame).parse(frame(func(*peerv1.Events) {}), testFrameMax); err != nil {
		t.Fatalf("the good frame: %v", err)
	}
	tests := map[string][]byte{
		"a key beyond KeyMax":      frame(func(e *peerv1.Events) { e.Events[0].Key = make([]byte, event.KeyMax+1) }),
		"no such partition":        frame(func(e *peerv1.Events) { e.Events[0].Partition = ring.Partitions }),
		"no such topic":            frame(func(e *peerv1.Events) { e.Events[0].Topic = 1 }),
		"no topics":                frame(func(e *peerv1.Events) { e.Topics = nil }),
		"no such name":             frame(func(e *peerv1.Events) { e.Events[0].Properties = []*peerv1.Property{{}} }),
		"no handle":                frame(func(e *peerv1.Events) { e.Events[0].Handle = 0 }),
		"no number":                frame(func(e *peerv1.Events) { e.Number = 0 }),
		"too many events":          frame(func(e *peerv1.Events) { e.Events = make([]*peerv1.Event, frameItemsMax+1) }),
		"too many topics":          frame(func(e *peerv1.Events) { e.Topics = make([]string, frameItemsMax+1) }),
		"too many schema versions": frame(func(e *peerv1.Events) { e.SchemaVersions = make([][]byte, frameItemsMax+1) }),
		"no such schema version":   frame(func(e *peerv1.Events) { e.Events[0].SchemaVersion = 1 }),
		"cut off":                  frame(func(*peerv1.Events) {})[:6],
		"a ping that is not one":   protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), []byte{0xff}),
		"field number zero":        {0x00, 0x01},
		"a length beyond the end":  {fieldHot<<3 | 2, 0xff, 0xff, 0xff, 0xff, 0x0f},
	}
	for name, b := range tests {
		t.Run(name, func(t *testing.T) {
			if err := new(eventsFrame).parse(b, testFrameMax); !errors.Is(err, errFrame) {
				t.Errorf("err = %v, want %v", err, errFrame)
			}
		})
	}
}

// A frame of tiny properties must not grow to many times its size in memory.
func TestHostileFrameAllocatesLittle(t *testing.T) {
	const frameMax = 1 << 20
	body := hotframe.AppendNumber(nil, eventsNumber, 1)
	body = hotframe.AppendBytes(body, eventsTopics, "t")
	body = hotframe.AppendBytes(body, eventsNames, "n")
	ev := append(hotframe.AppendNumber(nil, eventHandle, 1), bytes.Repeat([]byte{eventProperties<<3 | 2, 0}, frameMax/2-100)...)
	body = protowire.AppendBytes(protowire.AppendTag(body, eventsEvents, protowire.BytesType), ev)
	b := protowire.AppendBytes(protowire.AppendTag(nil, fieldHot, protowire.BytesType), body)

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := new(eventsFrame).parse(b, frameMax)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, errFrame) {
		t.Errorf("err = %v, want %v", err, errFrame)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 8*frameMax {
		t.Errorf("allocated %d bytes for a frame of %d", grown, len(b))
	}
}

func TestHostileVerdictsFrames(t *testing.T) {
	body := hotframe.AppendNumber(nil, verdictsNumber, 1)
	for range frameItemsMax + 1 {
		body = protowire.AppendBytes(protowire.AppendTag(body, verdictsVerdicts, protowire.BytesType), nil)
	}
	tests := map[string][]byte{
		"too many":  protowire.AppendBytes(protowire.AppendTag(nil, fieldHot, protowire.BytesType), body),
		"no number": protowire.AppendBytes(protowire.AppendTag(nil, fieldHot, protowire.BytesType), nil),
		"cut off":   {fieldHot<<3 | 2, 9, 1},
	}
	for name, b := range tests {
		t.Run(name, func(t *testing.T) {
			if err := new(verdictsFrame).parse(b); !errors.Is(err, errFrame) {
				t.Errorf("err = %v, want %v", err, errFrame)
			}
		})
	}
}

// A verdict of a later version makes us send the event again; a delay that does not
// fit is a long one.
func TestUnknownVerdictIsNotYet(t *testing.T) {
	for _, kind := range []peerv1.VerdictKind{0, 9, 1000} {
		b := encode(t, &peerv1.ForwardResponse{Frame: &peerv1.ForwardResponse_Verdicts{Verdicts: &peerv1.Verdicts{
			Number: 1, Verdicts: []*peerv1.Verdict{{Handle: 1, Kind: kind, DelayMs: math.MaxUint64}},
		}}})
		var f verdictsFrame
		if err := f.parse(b); err != nil || f.verdicts[0].Kind != event.NotYet || f.verdicts[0].DetailOrZero().Delay < 24*time.Hour {
			t.Errorf("kind %d: read %+v, %v", kind, f.verdicts, err)
		}
	}
}

// An event's weight is never less than its encoding, so a frame that was filled by
// weight is never too large to send.
func TestWeightCoversEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ev := drawEvent(t)
		f := &eventsFrame{number: math.MaxUint64, receipt: math.MaxUint64, epoch: event.Position{Ledger: -1, Entry: -1}, relay: true, events: []*event.Event{ev}}
		if got, most := len(encode(t, f)), weightOf(ev)+1<<10; got > most {
			t.Fatalf("encoded in %d bytes, weighs %d", got, most)
		}
	})
}

func TestDecodeAllocatesPerFrame(t *testing.T) {
	f := &eventsFrame{number: 1}
	for i := range 500 {
		f.events = append(f.events, &event.Event{
			Handle: event.Handle(i + 1), Key: "some key", Payload: make([]byte, 100), Topic: "topic",
			Properties: []event.Property{{Name: "a", Value: "b"}, {Name: "c", Value: strings.Repeat("d", 10)}},
		})
	}
	b := encode(t, f)
	var got eventsFrame
	allocs := testing.AllocsPerRun(20, func() {
		if err := got.parse(b, testFrameMax); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 20 {
		t.Errorf("decoding 500 events takes %.0f allocations, want a few per frame", allocs)
	}
}

func FuzzEventsFrame(f *testing.F) {
	f.Add(encode(f, &eventsFrame{receipt: 1, number: 2, epoch: event.Position{Ledger: 1}, events: []*event.Event{
		{Handle: 1, Key: "k", Topic: "t", Payload: []byte("p"), Properties: []event.Property{{Name: "n", Value: "v"}}, FirstError: "e"},
	}}))
	f.Add(encode(f, &peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Hello{Hello: &peerv1.Hello{Group: "g"}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := bothEvents(t, b)
		if err != nil || frame.number == 0 {
			return
		}
		var again eventsFrame
		if err := again.parse(encode(t, withText(frame)), 1<<20); err != nil || !equalEvents(frame, &again) {
			t.Fatalf("read %+v, then %+v (%v)", frame, again, err)
		}
	})
}

func FuzzVerdictsFrame(f *testing.F) {
	f.Add(encode(f, &verdictsFrame{receipt: 1, number: 2, verdicts: []event.Verdict{{Handle: 1, Kind: event.Failed, Detail: &event.Detail{Delay: time.Second, Reason: "r", Owner: "o"}}}}))
	f.Add(encode(f, &peerv1.ForwardResponse{Frame: &peerv1.ForwardResponse_Pong{Pong: &peerv1.Pong{K: 1}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := bothVerdicts(t, b)
		if err != nil || frame.number == 0 {
			return
		}
		for i, v := range frame.verdicts { // as the writer writes them
			d := v.DetailOrZero()
			d.Reason, d.FirstError, d.Owner = hotframe.Text(clip(d.Reason)), hotframe.Text(clip(d.FirstError)), hotframe.Text(d.Owner)
			frame.verdicts[i].Detail = &d
		}
		var again verdictsFrame
		if err := again.parse(encode(t, frame)); err != nil || !equalVerdicts(frame.verdicts, again.verdicts) {
			t.Fatalf("read %+v, then %+v (%v)", frame, again, err)
		}
	})
}

// The length before an event is guessed and corrected, and the room for all is never
// too small, whatever the sizes are.
func TestEventLengths(t *testing.T) {
	sizes := []int{1 << 20}
	for _, edge := range []int{1 << 7, 1 << 14} { // where a length gets one byte more
		for d := range 130 {
			sizes = append(sizes, edge-d)
		}
	}
	for _, size := range sizes {
		ev := &event.Event{Handle: 1, Payload: bytes.Repeat([]byte{7}, max(0, size-1))}
		small := &event.Event{Handle: math.MaxUint64, ID: event.MessageID{Ledger: -1, Entry: -1, Batch: math.MinInt32}, Key: "k"}
		f := &eventsFrame{number: 1, events: []*event.Event{ev, small, ev}}
		if got, most := len(f.appendBody(nil, new(hotframe.Tables))), f.bodyMax(); got > most {
			t.Errorf("a payload of %d bytes: the body has %d bytes, at most %d were expected", len(ev.Payload), got, most)
		}
		var read eventsFrame
		if err := read.parse(encode(t, f), testFrameMax*2); err != nil || !equalEvents(f, &read) {
			t.Errorf("a payload of %d bytes does not come back (%v)", len(ev.Payload), err)
		}
	}
}
