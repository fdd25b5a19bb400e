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

	"github.com/ringfence/router/internal/base/clock"
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
	for i := range f.events {
		ev := f.events[i].Event()
		e := &peerv1.Event{
			Handle: uint64(ev.Handle), Partition: uint32(ev.Partition), Key: []byte(ev.Key), Payload: ev.Payload,
			LedgerId: ev.ID.Ledger, EntryId: ev.ID.Entry, BatchIndex: ev.ID.Batch, TopicPartition: ev.ID.TopicPartition,
			Topic: uint32(topics.Index(ev.Topic)), Attempts: ev.Attempts, PublishTimeMs: ev.PublishTime, EventTimeMs: ev.EventTime,
			RedeliveryCount: ev.Redelivery, Round: ev.Round, Crashes: ev.Crashes, FirstError: ev.FirstError, LastError: ev.LastError,
		}
		if ev.SchemaVersion != "" {
			e.SchemaVersion = 1 + uint32(schemas.Index(ev.SchemaVersion))
		}
		if c := ev.Call; c != nil {
			e.Call = &peerv1.Call{Method: c.Method, TimeoutMs: uint64(time.Duration(c.Deadline) / time.Millisecond), Id: c.ID, Reservation: c.Reservation, Resume: c.Resume, TtlMs: uint32(c.TTL / time.Millisecond)}
			for _, key := range c.Path {
				e.Call.Path = append(e.Call.Path, uint64(key))
			}
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
		verdict := &peerv1.Verdict{
			Handle: uint64(v.Handle), Kind: peerv1.VerdictKind(v.Kind), DelayMs: uint64(d.Delay.Milliseconds()), Attempts: d.Attempts, Crashes: d.Crashes,
			Reason: d.Reason, FirstError: d.FirstError, Epoch: protoPosition(d.Epoch), Owner: d.Owner,
		}
		if r := d.Reply; r != nil {
			verdict.Outcome, verdict.Reply, verdict.Code = peerv1.CallOutcome(r.Outcome), r.Payload, r.Code
		}
		if g := d.Grant; g != nil {
			verdict.Token, verdict.Turn, verdict.RemainingNs = g.Fence.Token, g.Fence.Turn, uint64(g.Remaining)
		}
		body.Verdicts = append(body.Verdicts, verdict)
	}
	for _, set := range f.done {
		from, words := wordsOf(set)
		body.Done = append(body.Done, &peerv1.DoneSet{Handle: uint64(from), Events: bytes.TrimRight(bytesOfWords(words), "\x00")})
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
	if rapid.IntRange(0, 3).Draw(t, "call") == 0 {
		ev.Call = drawCall(t)
		ev.ID = event.CallMessageID(ev.Key, ev.Call.ID, 1)
	}
	return ev
}

// drawCall draws a call with a deadline that is as long after [atZero] as a frame can say.
func drawCall(t *rapid.T) *event.Call {
	text := rapid.OneOf(rapid.Just(""), rapid.String())
	c := &event.Call{Method: text.Draw(t, "method"), ID: text.Draw(t, "call id")}
	c.Reservation, c.Resume = rapid.Bool().Draw(t, "reservation"), rapid.Bool().Draw(t, "resume")
	c.TTL = time.Duration(rapid.IntRange(0, int(event.TTLMost/time.Millisecond)).Draw(t, "ttl")) * time.Millisecond
	c.Deadline = clock.Instant(time.Duration(rapid.Int64Range(0, hotframe.CallTimeoutMax.Milliseconds()).Draw(t, "ms left")) * time.Millisecond)
	for range rapid.IntRange(0, event.CallPathMax+1).Draw(t, "path") {
		c.Path = append(c.Path, ring.KeyHash(rapid.Uint64().Draw(t, "key before")))
	}
	return c
}

// drawReply draws the answer to a call.
func drawReply(t *rapid.T) *event.Reply {
	return &event.Reply{
		Outcome: event.CallOutcome(rapid.IntRange(1, 4).Draw(t, "outcome")), Payload: rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "reply"),
		Code: rapid.OneOf(rapid.Just(""), rapid.String()).Draw(t, "code"),
	}
}

func drawEvents(t *rapid.T) *eventsFrame {
	f := &eventsFrame{
		receipt: rapid.Uint64().Draw(t, "receipt"), number: rapid.Uint64Min(1).Draw(t, "number"),
		epoch: drawPosition(t), relay: rapid.Bool().Draw(t, "relay"),
	}
	for range rapid.IntRange(0, 20).Draw(t, "events") {
		ev := drawEvent(t)
		f.events = append(f.events, event.RefTo(ev))
		for range rapid.SampledFrom([]int{0, 0, 0, 1, 5, 100}).Draw(t, "others of its entry") {
			ev = drawNext(t, ev)
			f.events = append(f.events, event.RefTo(ev))
		}
	}
	return f
}

// drawNext draws an event of the same entry, mostly one that differs in nothing that the events of a batch have in common.
func drawNext(t *rapid.T, ev *event.Event) *event.Event {
	next := *ev
	next.Handle = max(1, ev.Handle.First()|event.Handle(rapid.IntRange(0, 200).Draw(t, "index")))
	next.ID.Batch = int32(next.Handle.Index())
	next.Key, next.EventTime = event.Key(rapid.SampledFrom([]string{"", "k", "l"}).Draw(t, "next key")), rapid.Int64().Draw(t, "event time")
	next.Payload = rapid.SampledFrom([][]byte{nil, []byte("next")}).Draw(t, "next payload")
	next.Attempts, next.Round, next.Crashes, next.FirstError, next.LastError = 0, 0, 0, "", ""
	next.Call = nil
	switch rapid.IntRange(0, 40).Draw(t, "differs in") {
	case 13:
		next.Call, next.ID = drawCall(t), event.CallMessageID(next.Key, "next", 1)
	case 0:
		next.ID.Ledger++
	case 1:
		next.ID.Batch = -1
	case 2:
		next.ID.TopicPartition++
	case 3:
		next.Topic = "other"
	case 4:
		next.PublishTime++
	case 5:
		next.Redelivery++
	case 6:
		next.SchemaVersion = "other"
	case 7:
		next.Attempts = 1
	case 8:
		next.Round = 1
	case 9:
		next.Crashes = 1
	case 10:
		next.FirstError = "first"
	case 11:
		next.LastError = "last"
	case 12:
		next.Properties = []event.Property{{Name: "a", Value: "next"}}
	}
	return &next
}

// drawGrant draws the beginning of a reservation, nil if all its fields are zero.
func drawGrant(t *rapid.T) *event.Grant {
	return grantOf(
		rapid.OneOf(rapid.Just[int64](0), rapid.Int64()).Draw(t, "token"), rapid.OneOf(rapid.Just[uint64](0), rapid.Uint64()).Draw(t, "turn"),
		rapid.Uint64Max(uint64(time.Hour)).Draw(t, "remaining"),
	)
}

func drawVerdicts(t *rapid.T) *verdictsFrame {
	f := &verdictsFrame{receipt: rapid.Uint64().Draw(t, "receipt"), number: rapid.Uint64Min(1).Draw(t, "number"), epoch: drawPosition(t)}
	for range rapid.IntRange(0, 20).Draw(t, "verdicts") {
		v := event.Verdict{
			Handle: event.Handle(rapid.OneOf(rapid.Uint64(), rapid.Uint64Max(1<<50)).Draw(t, "handle")),
			Kind:   event.VerdictKind(rapid.IntRange(1, int(event.Granted)).Draw(t, "kind")),
		}
		if rapid.Bool().Draw(t, "detail") {
			v.Detail = &event.Detail{
				Delay:    time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "ms")) * time.Millisecond,
				Attempts: rapid.Uint32().Draw(t, "attempts"), Crashes: rapid.Uint32().Draw(t, "crashes"), Reason: rapid.String().Draw(t, "reason"),
				FirstError: rapid.String().Draw(t, "first error"), Epoch: drawPosition(t), Owner: rapid.String().Draw(t, "owner"),
			}
			if rapid.Bool().Draw(t, "answers") {
				v.Detail.Reply = drawReply(t)
			}
			if rapid.Bool().Draw(t, "grants") {
				v.Detail.Grant = drawGrant(t)
			}
		}
		f.verdicts = append(f.verdicts, v)
	}
	for n := range rapid.IntRange(0, 8).Draw(t, "sets") { // as many as have room, wherever their events are
		f.done = append(f.done, drawSet(t, n+1))
	}
	return f
}

// drawSet draws a set of events of the n-th entry, as long as its last event demands.
func drawSet(t *rapid.T, n int) event.Set {
	first := event.NewHandle(uint64(n), 0)
	if rapid.Bool().Draw(t, "relayed") {
		first = event.NewRelayedHandle(uint64(n), 0)
	}
	return setOf(first, rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 70), rapid.IntRange(0, event.EntryEventsMax-1)), 1, 20).Draw(t, "indexes")...)
}

// equalSets compares sets of events, word by word.
func equalSets(a, b []event.Set) bool {
	return slices.EqualFunc(a, b, func(x, y event.Set) bool { return x.First == y.First && slices.Equal(x.Events, y.Events) })
}

// equalVerdicts compares verdicts and their details; none equals an empty one.
func equalVerdicts(a, b []event.Verdict) bool {
	return slices.EqualFunc(a, b, func(x, y event.Verdict) bool {
		d, e := x.DetailOrZero(), y.DetailOrZero()
		same := equalReplies(d.Reply, e.Reply) && equalGrants(d.Grant, e.Grant)
		d.Reply, e.Reply, d.Grant, e.Grant = nil, nil, nil, nil
		return x.Handle == y.Handle && x.Kind == y.Kind && d == e && same
	})
}

func equalGrants(a, b *event.Grant) bool { return a == b || a != nil && b != nil && *a == *b }

func equalReplies(a, b *event.Reply) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Outcome == b.Outcome && bytes.Equal(a.Payload, b.Payload) && a.Code == b.Code
}

// equalEvents compares frames as a receiver sees them; a nil payload equals an empty one.
func equalEvents(a, b *eventsFrame) bool {
	if a.receipt != b.receipt || a.number != b.number || a.epoch != b.epoch || a.relay != b.relay || len(a.events) != len(b.events) {
		return false
	}
	for i := range a.events {
		x, y := *a.events[i].Event(), *b.events[i].Event()
		if a.events[i].Handle() != x.Handle || b.events[i].Handle() != y.Handle || a.events[i].MessageID() != x.ID || b.events[i].MessageID() != y.ID {
			return false
		}
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

// batchOf encodes verdicts as a Server does, those that are done as sets if the peer reads these.
func batchOf(verdicts []event.Verdict, sets bool) verdictBatch {
	config := DefaultConfig()
	config.FrameEventsMax, config.FrameBytesMax = frameItemsMax+1, testFrameMax
	batch := verdictBatch{sets: sets, buf: new([]byte)}
	if rest := batch.add(verdicts, &config); len(rest) > 0 {
		panic("too many verdicts for one frame")
	}
	return batch
}

// encode encodes a frame. Those of events and verdicts are given as their receiver sees them.
func encode(t interface{ Fatal(...any) }, v any) []byte {
	switch f := v.(type) {
	case *verdictsFrame:
		f.batch = batchOf(f.verdicts, false)
		for _, set := range f.done {
			if from, words := wordsOf(set); words != nil {
				f.batch.done = append(f.batch.done, doneSet{from, words})
			}
		}
	case *eventsFrame:
		if f.events != nil {
			f.refs = f.events
		}
	}
	out, err := codec{frameMax: testFrameMax, now: atZero}.Marshal(v)
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
		if err := (&eventsFrame{now: atZero}).parseOurs(b, testFrameMax); err != nil {
			t.Fatalf("our reader left our writer's frame to the generated code: %v", err)
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
			if err := (codec{frameMax: testFrameMax, now: atZero}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, decoded); err != nil || decoded.err != nil {
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
		if err := new(verdictsFrame).parseOurs(b); err != nil {
			t.Fatalf("our reader left our writer's frame to the generated code: %v", err)
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
			if err := (codec{now: atZero}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, decoded); err != nil || decoded.err != nil {
				t.Fatal(err, decoded.err)
			}
			if !equalVerdictsFrames(decoded, f) {
				t.Fatalf("read %+v, want %+v", decoded, f)
			}
		}
	})
}

func TestOtherFramesAreProtobuf(t *testing.T) {
	var request eventsFrame
	ping := &peerv1.ForwardRequest{Receipt: 3, Frame: &peerv1.ForwardRequest_Ping{Ping: &peerv1.Ping{K: 7}}}
	if err := request.parse(encode(t, ping), testFrameMax, atZero); err != nil || request.receipt != 3 || request.other.GetPing().GetK() != 7 {
		t.Errorf("ping: %+v, %v", request, err)
	}
	if err := request.parse(encode(t, &eventsFrame{receipt: 4}), testFrameMax, atZero); err != nil || request.receipt != 4 || request.other != nil {
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
	if err := new(eventsFrame).parse(frame(func(*peerv1.Events) {}), testFrameMax, atZero); err != nil {
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
			if err := new(eventsFrame).parse(b, testFrameMax, atZero); !errors.Is(err, errFrame) {
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
	err := new(eventsFrame).parse(b, frameMax, atZero)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, errFrame) {
		t.Errorf("err = %v, want %v", err, errFrame)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 8*frameMax {
		t.Errorf("allocated %d bytes for a frame of %d", grown, len(b))
	}
}

// A frame that is not hot, at any place of a stream, must not grow so either.
func TestHostileSmallFramesAllocateLittle(t *testing.T) {
	const frameMax = 4 << 20
	frame := func(num, item protowire.Number) []byte {
		items := bytes.Repeat([]byte{byte(item)<<3 | 2, 0}, frameMax/2-100)
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), items)
	}
	parseEvents := func(b []byte) error { return new(eventsFrame).parse(b, frameMax, atZero) }
	parseVerdicts := func(b []byte) error { return new(verdictsFrame).parse(b) }
	for name, c := range map[string]struct {
		b     []byte
		parse func([]byte) error
	}{
		"settings of a caller":       {frame(fieldHello, helloIdentity), parseEvents},
		"capabilities of a caller":   {frame(fieldHello, helloCapabilities), parseEvents},
		"settings of an answer":      {frame(fieldHello, helloIdentity), parseVerdicts},
		"capabilities of an answer":  {frame(fieldHello, helloCapabilities), parseVerdicts},
		"keys of a Credit":           {frame(fieldCredit, creditKeys), parseVerdicts},
		"settings, and events first": {append([]byte{fieldHot<<3 | 2, 0}, frame(fieldHello, helloIdentity)...), parseEvents},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := c.parse(c.b)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, errFrame) {
				t.Errorf("err = %v, want %v", err, errFrame)
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 2*frameMax {
				t.Errorf("allocated %d bytes for a frame of %d", grown, len(c.b))
			}
		})
	}
}

func TestHostileVerdictsFrames(t *testing.T) {
	frame := func(number uint64, fields ...[]byte) []byte {
		body := hotframe.AppendNumber(nil, verdictsNumber, number)
		body = append(body, slices.Concat(fields...)...)
		return protowire.AppendBytes(protowire.AppendTag(nil, fieldHot, protowire.BytesType), body)
	}
	field := func(num protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), content)
	}
	set := func(h event.Handle, size int) []byte {
		content := hotframe.AppendNumber(nil, doneHandle, uint64(h))
		return field(verdictsDone, append(content, field(doneEvents, bytes.Repeat([]byte{0xff}, size))...))
	}
	verdict := field(verdictsVerdicts, []byte{verdictHandle << 3, 1, verdictKind << 3, 1})
	const lastWord = event.EntryEventsMax - 64
	sets := func(n int, index int) (sets []byte) { // of as many entries
		for i := range n {
			sets = append(sets, set(event.NewHandle(uint64(i+1), index), 1)...)
		}
		return sets
	}
	for name, b := range map[string][]byte{
		"verdicts and sets":     frame(1, verdict, set(event.NewHandle(1, 64), 3), verdict),
		"as many sets as may":   frame(1, sets(frameItemsMax, 0)),
		"the last events":       frame(1, set(event.NewHandle(1, lastWord), 8)),
		"all events":            frame(1, set(event.NewHandle(1, 0), event.EntryEventsMax/8)),
		"as many words as may":  frame(1, sets(setWordsMax/2048, lastWord)),
		"bytes that are zero":   frame(1, field(verdictsDone, append([]byte{doneHandle << 3, 0}, field(doneEvents, []byte{0, 0})...))),
		"a set without a first": frame(1, field(verdictsDone, field(doneEvents, []byte{1}))),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := bothVerdicts(t, b); err != nil {
				t.Errorf("a good frame: %v", err)
			}
		})
	}
	tests := map[string][]byte{
		"too many":                    frame(1, bytes.Repeat(field(verdictsVerdicts, nil), frameItemsMax+1)),
		"no number":                   protowire.AppendBytes(protowire.AppendTag(nil, fieldHot, protowire.BytesType), nil),
		"cut off":                     {fieldHot<<3 | 2, 9, 1},
		"sets without a number":       frame(0, set(event.NewHandle(1, 0), 1)),
		"too many sets":               frame(1, sets(frameItemsMax+1, 0)),
		"an empty set":                frame(1, set(event.NewHandle(1, 0), 0)),
		"a set without bits":          frame(1, field(verdictsDone, hotframe.AppendNumber(nil, doneHandle, 1<<17))),
		"nothing in a set":            frame(1, field(verdictsDone, nil)),
		"not a multiple of 64":        frame(1, set(event.NewHandle(1, 65), 1)),
		"not a multiple by 63":        frame(1, set(event.NewHandle(1, 63), 1)),
		"a set beyond its entry":      frame(1, set(event.NewHandle(1, lastWord), 9)),
		"a set longer than an entry":  frame(1, set(event.NewHandle(1, 0), event.EntryEventsMax/8+1)),
		"a set as long as it can":     frame(1, set(event.NewHandle(1, 0), 1<<20)),
		"too many words":              frame(1, sets(setWordsMax/2048+1, lastWord)),
		"too many words by one":       frame(1, sets(setWordsMax/2048, lastWord), set(event.NewHandle(99, 0), 1)),
		"a bad set behind a good one": frame(1, verdict, set(event.NewHandle(1, 0), 1), set(event.NewHandle(1, 1), 1)),
		"a bad set before a good one": frame(1, set(event.NewHandle(1, 1), 1), set(event.NewHandle(1, 0), 1)),
	}
	for name, b := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := bothVerdicts(t, b); !errors.Is(err, errFrame) {
				t.Errorf("err = %v, want %v", err, errFrame)
			}
		})
	}
}

// A frame of sets must not grow to many times its size in memory.
func TestHostileSetsAllocateLittle(t *testing.T) {
	body := hotframe.AppendNumber(nil, verdictsNumber, 1)
	for i := range frameItemsMax {
		set := hotframe.AppendNumber(nil, doneHandle, uint64(event.NewHandle(uint64(i), event.EntryEventsMax-64)))
		set = hotframe.AppendBytes(set, doneEvents, []byte{1})
		body = protowire.AppendBytes(protowire.AppendTag(body, verdictsDone, protowire.BytesType), set)
	}
	b := protowire.AppendBytes(protowire.AppendTag(nil, fieldHot, protowire.BytesType), body)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := new(verdictsFrame).parse(b)
	runtime.ReadMemStats(&after)
	if !errors.Is(err, errFrame) {
		t.Errorf("err = %v, want %v", err, errFrame)
	}
	if grown, most := after.TotalAlloc-before.TotalAlloc, uint64(64*8*setWordsMax); grown > most { // both readers, whose arrays grow
		t.Errorf("allocated %d bytes for a frame of %d, want %d at most", grown, len(b), most)
	}
}

// A verdict of a later version makes us send the event again; a delay that does not
// fit is a long one.
func TestUnknownVerdictIsNotYet(t *testing.T) {
	for _, kind := range []peerv1.VerdictKind{0, peerv1.VerdictKind_VERDICT_KIND_GRANTED + 1, 1000} {
		b := encode(t, &peerv1.ForwardResponse{Frame: &peerv1.ForwardResponse_Verdicts{Verdicts: &peerv1.Verdicts{
			Number: 1, Verdicts: []*peerv1.Verdict{{Handle: 1, Kind: kind, DelayMs: math.MaxUint64}},
		}}})
		var f verdictsFrame
		if err := f.parse(b); err != nil || f.verdicts[0].Kind != event.NotYet || f.verdicts[0].DetailOrZero().Delay < 24*time.Hour {
			t.Errorf("kind %d: read %+v, %v", kind, f.verdicts, err)
		}
	}
}

// However long a peer's delay is, its sums with clocks do not overflow: neither that of an answer's caller, who rounds it up to seconds, nor the
// time at which the broker delivers a copy, which its client counts in nanoseconds since 1970.
func TestLongestDelayOfAVerdict(t *testing.T) {
	for _, ms := range []uint64{1 << 43, 1 << 60, math.MaxUint64} {
		b := encode(t, &peerv1.ForwardResponse{Frame: &peerv1.ForwardResponse_Verdicts{Verdicts: &peerv1.Verdicts{
			Number: 1, Verdicts: []*peerv1.Verdict{{Handle: 1, Kind: peerv1.VerdictKind_VERDICT_KIND_FAILED, DelayMs: ms}},
		}}})
		var f, other verdictsFrame
		if err := errors.Join(f.parse(b), other.parseAny(b)); err != nil {
			t.Fatal(err)
		}
		for _, v := range []event.Verdict{f.verdicts[0], other.verdicts[0]} {
			delay := v.DetailOrZero().Delay
			if at := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).Add(delay); delay+time.Second < delay || time.Unix(0, at.UnixNano()).Year() != at.Year() {
				t.Errorf("%d ms are %v", ms, delay)
			}
		}
	}
}

// A text of a verdict that is not UTF-8 is read as one that is, and nothing else changes. No router sends one.
func TestTextsOfAVerdictAreUTF8(t *testing.T) {
	b := encode(t, &verdictsFrame{number: 1, verdicts: []event.Verdict{{
		Handle: 1, Kind: event.Answered,
		Detail: &event.Detail{Reason: "grün #", FirstError: "#", Owner: "n#", Reply: &event.Reply{Outcome: event.CallFailed, Code: "c#", Payload: []byte("#")}},
	}}})
	var f verdictsFrame
	if err := f.parse(bytes.ReplaceAll(b, []byte("#"), []byte{0xff})); err != nil {
		t.Fatal(err)
	}
	if d := f.verdicts[0].DetailOrZero(); d.Reason != "grün ?" || d.FirstError != "?" || d.Owner != "n?" || d.Reply.Code != "c?" || string(d.Reply.Payload) != "\xff" {
		t.Errorf("%+v, %+v", d, d.Reply)
	}
}

// An event's weight is never less than its encoding, so a frame that was filled by
// weight is never too large to send.
func TestWeightCoversEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ev := drawEvent(t)
		f := &eventsFrame{number: math.MaxUint64, receipt: math.MaxUint64, epoch: event.Position{Ledger: -1, Entry: -1}, relay: true, events: event.RefsTo(ev)}
		if got, most := len(encode(t, f)), weightOf(&f.refs[0])+1<<10; got > most {
			t.Fatalf("encoded in %d bytes, weighs %d", got, most)
		}
		batch := drawBatch(t, 1)
		f = &eventsFrame{number: math.MaxUint64, receipt: math.MaxUint64, epoch: event.Position{Ledger: -1, Entry: -1}, relay: true, refs: refsTo(batch)}
		if got, most := len(encode(t, f)), weightOf(&f.refs[0])+1<<10; got > most {
			t.Fatalf("bytes are encoded in %d bytes, and weigh %d", got, most)
		}
	})
}

// Events that are objects, such as relayed ones, may each have a topic of their own: it is part of their weight.
func TestWeightCoversTheTopicsOfObjects(t *testing.T) {
	const topicLen, count = 100_000, 20
	tt := newTableTest(t, false)
	events := make([]*event.Event, count)
	for i := range events {
		events[i] = &event.Event{Key: "k", Topic: strings.Repeat(string(rune('a'+i)), topicLen)}
	}
	tt.holdEntry(1, entryOf(event.NewRelayedHandle(1, 0), events...))
	const most = 10 * topicLen
	batch, _ := tt.Take(peerNumber(1), count, most, nil)
	if got := len(encode(t, &eventsFrame{number: 1, refs: batch})); got > most {
		t.Errorf("%d events for a frame of %d bytes are encoded in %d", len(batch), most, got)
	}
}

// Decoding takes a few allocations for a frame of many events, whatever entries they are of.
func TestDecodeAllocatesPerFrame(t *testing.T) {
	for name, c := range map[string]struct {
		perEntry int
		most     float64
	}{"each of its own entry": {1, 25}, "of few entries": {250, 100}} {
		t.Run(name, func(t *testing.T) {
			perEntry := c.perEntry
			f := &eventsFrame{number: 1}
			for i := range 500 {
				f.events = append(f.events, event.RefTo(&event.Event{
					Handle: event.NewHandle(uint64(1+i/perEntry), i%perEntry), ID: event.MessageID{Entry: int64(i / perEntry), Batch: int32(i % perEntry)},
					Key: "some key", Payload: make([]byte, 100), Topic: "topic",
					Properties: []event.Property{{Name: "a", Value: "b"}, {Name: "c", Value: strings.Repeat("d", 10)}},
				}))
			}
			b := encode(t, f)
			var got eventsFrame
			allocs := testing.AllocsPerRun(20, func() {
				if err := got.parse(b, testFrameMax, atZero); err != nil {
					t.Fatal(err)
				}
			})
			if allocs > c.most {
				t.Errorf("decoding 500 events takes %.0f allocations, want %.0f at most", allocs, c.most)
			}
		})
	}
}

func FuzzEventsFrame(f *testing.F) {
	f.Add(encode(f, &eventsFrame{receipt: 1, number: 2, epoch: event.Position{Ledger: 1}, events: event.RefsTo(
		&event.Event{Handle: 1, Key: "k", Topic: "t", Payload: []byte("p"), Properties: []event.Property{{Name: "n", Value: "v"}}, FirstError: "e"},
		&event.Event{Handle: 2, ID: event.MessageID{Batch: 2}, Key: "k", Topic: "t", Payload: []byte("p")},
		&event.Event{Handle: 3, ID: event.MessageID{Batch: 3}, Topic: "t", Properties: []event.Property{{Name: "n", Value: "v"}}},
		&event.Event{Handle: 4, Key: "k", Payload: []byte("p"), Call: &event.Call{Method: "m", ID: "i", Deadline: clock.Instant(time.Second), Path: []ring.KeyHash{1, 1 << 63}}},
		&event.Event{Handle: 6, Key: "k", Call: &event.Call{ID: "0123456789abcdef", Deadline: clock.Instant(time.Second), Reservation: true, Resume: true, TTL: event.TTLLeast}},
		&event.Event{Handle: 5, Key: "k", Call: new(event.Call)},
	)}))
	f.Add(encode(f, &peerv1.ForwardRequest{Frame: &peerv1.ForwardRequest_Hello{Hello: &peerv1.Hello{Group: "g"}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := bothEvents(t, b)
		if err != nil || frame.number == 0 {
			return
		}
		var again eventsFrame
		if err := again.parse(encode(t, withText(frame)), 1<<20, atZero); err != nil || !equalEvents(frame, &again) {
			t.Fatalf("read %+v, then %+v (%v)", frame, again, err)
		}
	})
}

func FuzzVerdictsFrame(f *testing.F) {
	f.Add(encode(f, &verdictsFrame{receipt: 1, number: 2, verdicts: []event.Verdict{{Handle: 1, Kind: event.Failed, Detail: &event.Detail{Delay: time.Second, Reason: "r", Owner: "o"}}}}))
	f.Add(encode(f, &verdictsFrame{receipt: 1, number: 2, verdicts: []event.Verdict{
		{Handle: 1, Kind: event.Answered, Detail: &event.Detail{Reply: &event.Reply{Outcome: event.CallReplied, Payload: []byte("p")}}},
		event.NotRun(2, event.CodeCycle, "why"), event.Unknown(3, "why"),
		{Handle: 4, Kind: event.Granted, Detail: &event.Detail{Grant: &event.Grant{Fence: event.Fence{Token: 1, Turn: 2}, Remaining: time.Second}}},
	}}))
	f.Add(encode(f, &verdictsFrame{receipt: 1, number: 2, verdicts: doneOf(1), done: []event.Set{setOf(event.NewHandle(3, 0), 0, 65, 200), setOf(event.NewRelayedHandle(9, 0), event.EntryEventsMax-1)}}))
	f.Add(encode(f, &peerv1.ForwardResponse{Frame: &peerv1.ForwardResponse_Pong{Pong: &peerv1.Pong{K: 1}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := bothVerdicts(t, b)
		if err != nil || frame.number == 0 {
			return
		}
		for i, v := range frame.verdicts { // as the writer writes them
			d := v.DetailOrZero()
			d.Reason, d.FirstError, d.Owner = hotframe.Text(clip(d.Reason)), hotframe.Text(clip(d.FirstError)), hotframe.Text(d.Owner)
			if d.Reply != nil {
				r := *d.Reply
				r.Code = hotframe.Text(r.Code)
				d.Reply = &r
			}
			frame.verdicts[i].Detail = &d
		}
		var again verdictsFrame
		if err := again.parse(encode(t, frame)); err != nil || !equalVerdicts(frame.verdicts, again.verdicts) || !slices.Equal(handlesIn(frame.done), handlesIn(again.done)) {
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
		f := &eventsFrame{number: 1, events: event.RefsTo(ev, small, ev)}
		f.refs = f.events
		if got, most := len(f.appendBody(nil, new(hotframe.Tables))), f.bodyMax(); got > most {
			t.Errorf("a payload of %d bytes: the body has %d bytes, at most %d were expected", len(ev.Payload), got, most)
		}
		var read eventsFrame
		if err := read.parse(encode(t, f), testFrameMax*2, atZero); err != nil || !equalEvents(f, &read) {
			t.Errorf("a payload of %d bytes does not come back (%v)", len(ev.Payload), err)
		}
	}
}

// drawBatch draws an entry of bytes with so many events.
func drawBatch(t *rapid.T, n int) *event.Entry {
	text := rapid.OneOf(rapid.Just(""), rapid.String())
	e := event.NewBatch(n, 0)
	e.Ledger, e.Entry, e.TopicPartition = rapid.Int64().Draw(t, "ledger"), rapid.Int64().Draw(t, "entry"), rapid.Int32Min(-1).Draw(t, "topic partition")
	e.Batched = n > 1 || rapid.Bool().Draw(t, "batched")
	e.Topic = rapid.SampledFrom([]string{"", "persistent://a/b/c", strings.Repeat("t", 3000)}).Draw(t, "topic")
	e.PublishTime, e.Redelivery = rapid.Int64().Draw(t, "publish time"), rapid.Uint32().Draw(t, "redelivery")
	e.SchemaVersion = rapid.SampledFrom([]string{"", "\x00\x00\x00\x01", "\xff"}).Draw(t, "schema version")
	e.Fresh = event.AllBits(n)
	for range n {
		payload := rapid.SampledFrom([][]byte{nil, {}, []byte("payload"), bytes.Repeat([]byte{7}, 200)}).Draw(t, "payload")
		var properties []event.Property
		for range rapid.SampledFrom([]int{0, 0, 1, 3}).Draw(t, "properties") {
			name := rapid.SampledFrom([]string{"", "a", "b", "traceparent"}).Draw(t, "name")
			properties = append(properties, event.Property{Name: name, Value: text.Draw(t, "value")})
		}
		key := rapid.SampledFrom([]string{"", "k", "\xff key"}).Draw(t, "key")
		ordering := rapid.SampledFrom([]string{"", "", "", "ordering"}).Draw(t, "ordering key")
		e.AddPart(event.Part{Key: key, EventTime: rapid.Int64().Draw(t, "event time")}, payload, ordering, properties)
	}
	for i := range n {
		key, ordering := e.Keys(i)
		if ordering != "" {
			key = ordering
		}
		e.SetKey(i, event.Key(key), ring.Partition(rapid.IntRange(0, ring.Partitions-1).Draw(t, "partition")))
	}
	e.SetFirst(event.NewHandle(rapid.Uint64Range(1, 1<<40).Draw(t, "serial"), 0))
	return e
}

// The events of a batch are encoded as the same events that are objects, also between others that are and whose failures were
// reported.
func TestEventsOfBytesAreEncodedAsObjects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawBatch(t, rapid.IntRange(1, 70).Draw(t, "n"))
		var objects []*event.Event
		for i := range e.Len() { // as the fields of the entry say, not as it makes objects
			ev := &event.Event{
				Handle: e.First + event.Handle(i), Key: e.Key(i), Partition: e.Partition(i), Topic: e.Topic,
				ID:      event.MessageID{Ledger: e.Ledger, Entry: e.Entry, Batch: -1, TopicPartition: e.TopicPartition},
				Payload: e.Payload(i), Properties: e.Properties(i), EventTime: e.Event(i).EventTime,
				PublishTime: e.PublishTime, Redelivery: e.Redelivery, SchemaVersion: e.SchemaVersion,
			}
			if e.Batched {
				ev.ID.Batch = int32(i)
			}
			objects = append(objects, ev)
		}
		refs := refsTo(e)
		for range rapid.IntRange(0, 3).Draw(t, "with failures") {
			i := rapid.IntRange(0, e.Len()-1).Draw(t, "which")
			newer := *objects[i]
			newer.Attempts, newer.Crashes, newer.FirstError, newer.LastError = 3, 1, "first", "last"
			objects[i], refs[i].Object = &newer, &newer
		}
		f := &eventsFrame{receipt: 1, number: 2, epoch: drawPosition(t), relay: rapid.Bool().Draw(t, "relay")}
		ofBytes, ofObjects := *f, *f
		ofBytes.refs, ofObjects.events = refs, event.RefsTo(objects...)
		got, want := encode(t, &ofBytes), encode(t, &ofObjects)
		if !bytes.Equal(got, want) {
			t.Fatalf("bytes are encoded as %x, objects as %x", got, want)
		}
		var read eventsFrame
		if err := read.parse(got, testFrameMax, atZero); err != nil || !equalEvents(&read, withText(&ofObjects)) {
			t.Fatalf("read %+v (%v), want %+v", read, err, ofObjects)
		}
		for i := range refs {
			if refs[i].Object == nil && refs[i].Weight() != objects[i].Bytes() {
				t.Fatalf("event %d weighs %d as bytes, %d as an object", i, refs[i].Weight(), objects[i].Bytes())
			}
		}
		e.MakeObjects()
		if again := encode(t, &ofBytes); !bytes.Equal(again, want) {
			t.Fatalf("the objects that an entry makes are encoded as %x, want %x", again, want)
		}
	})
}

// Consecutive events of one entry are received as bytes, and keep little of the others alive; those that have what a batch has not are
// objects.
func TestEventsOfAnEntryAreReceivedAsBytes(t *testing.T) {
	const perEntry = 100
	var events []*event.Event
	for i := range 3 * perEntry {
		index := i % perEntry
		events = append(events, &event.Event{
			Handle: event.NewHandle(uint64(1+i/perEntry), 2*index), ID: event.MessageID{Ledger: 7, Entry: int64(i / perEntry), Batch: int32(2 * index)},
			Topic: "t", Key: "k", Payload: []byte{byte(i)},
		})
	}
	events[20].Attempts, events[50].FirstError, events[130].Round = 1, "e", 2
	f := &eventsFrame{number: 1, events: event.RefsTo(events...)}
	var read eventsFrame
	if err := read.parseOurs(encode(t, f), testFrameMax); err != nil || !equalEvents(&read, f) {
		t.Fatalf("read %+v (%v)", read, err)
	}
	var objects []int
	entries := map[*event.Entry]int{}
	for i, ref := range read.events {
		if ref.Object != nil {
			objects = append(objects, i)
			continue
		}
		entries[ref.Entry]++
	}
	if want := []int{20, 50, 130}; !slices.Equal(objects, want) {
		t.Errorf("objects are %v, want %v", objects, want)
	}
	for e, n := range entries {
		if n != e.Len() || n > blockMax+1 {
			t.Errorf("an entry of %d events has %d of the frame, want %d at most", e.Len(), n, blockMax+1)
		}
	}
	if n := len(entries); n > 12 {
		t.Errorf("the events are in %d entries", n)
	}
}

func atZero() clock.Instant { return 0 }
