package forward

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/wire/hotframe"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
	"github.com/ringfence/router/ring"
)

type fatal interface{ Fatalf(string, ...any) }

// agree fails if the errors of both decoders differ. Only ours takes strings that are not UTF-8.
func agree(t fatal, b []byte, ours, generated error) {
	if ours != nil && !errors.Is(ours, errFrame) {
		t.Fatalf("%x: %v", b, ours)
	}
	if (ours == nil) == (generated == nil) || ours == nil && strings.Contains(generated.Error(), "invalid UTF-8") {
		return
	}
	t.Fatalf("%x: ours: %v; generated: %v", b, ours, generated)
}

// parseOurs decodes a frame as parse does, and leaves nothing to the generated code.
func (f *eventsFrame) parseOurs(b []byte, propertiesMax int) error {
	receipt, hot, ok := hotframe.Open(b)
	f.receipt = receipt
	switch {
	case !ok:
		return errOther
	case hot == nil:
		return nil
	}
	return f.parseHot(hot, propertiesMax)
}

func (f *verdictsFrame) parseOurs(b []byte) error {
	receipt, hot, ok := hotframe.Open(b)
	f.receipt = receipt
	switch {
	case !ok:
		return errOther
	case hot == nil:
		return nil
	}
	return f.parseHot(hot)
}

// generatedEvents decodes a frame with the generated code alone, within the bounds of ours.
func generatedEvents(b []byte, propertiesMax int) (*eventsFrame, error) {
	m := new(peerv1.ForwardRequest)
	if err := errors.Join(boundEvents(b, propertiesMax), proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m)); err != nil {
		return nil, err
	}
	all := m.GetEvents()
	f := &eventsFrame{receipt: m.GetReceipt(), number: all.GetNumber(), epoch: positionOf(all.GetEpoch()), relay: all.GetRelay()}
	if all == nil {
		f.other = m
		return f, nil
	}
	if f.number == 0 {
		return nil, errors.New("no number")
	}
	for _, m := range all.GetEvents() {
		ev, err := eventOf(all, m)
		if err != nil {
			return nil, err
		}
		f.events = append(f.events, event.RefTo(ev))
	}
	return f, nil
}

// eventOf returns m with its indexes resolved through the frame's tables.
func eventOf(all *peerv1.Events, m *peerv1.Event) (*event.Event, error) {
	topics, names, schemas := all.GetTopics(), all.GetNames(), all.GetSchemaVersions()
	if uint64(m.GetTopic()) >= uint64(len(topics)) || uint64(m.GetSchemaVersion()) > uint64(len(schemas)) {
		return nil, errors.New("no such topic or schema version")
	}
	ev := &event.Event{
		Handle: event.Handle(m.GetHandle()), Partition: partitionOf(m.GetPartition()), Key: event.Key(m.GetKey()), Payload: m.GetPayload(),
		ID: event.MessageID{
			Ledger: m.GetLedgerId(), Entry: m.GetEntryId(), Batch: m.GetBatchIndex(), TopicPartition: m.GetTopicPartition(),
		},
		Topic: topics[m.GetTopic()], Attempts: m.GetAttempts(), PublishTime: m.GetPublishTimeMs(), EventTime: m.GetEventTimeMs(),
		Redelivery: m.GetRedeliveryCount(), Round: m.GetRound(), Crashes: m.GetCrashes(), FirstError: m.GetFirstError(), LastError: m.GetLastError(),
	}
	if i := m.GetSchemaVersion(); i > 0 {
		ev.SchemaVersion = string(schemas[i-1])
	}
	if c := m.GetCall(); c != nil {
		ev.Call = &event.Call{
			Method: c.GetMethod(), ID: c.GetId(), Reservation: c.GetReservation(), Resume: c.GetResume(),
			Deadline: clock.Instant(min(c.GetTimeoutMs(), uint64(time.Hour/time.Millisecond))) * clock.Instant(time.Millisecond),
			TTL:      min(time.Duration(c.GetTtlMs())*time.Millisecond, event.TTLMost+time.Millisecond),
		}
		for _, key := range c.GetPath()[:min(len(c.GetPath()), event.CallPathMax+1)] {
			ev.Call.Path = append(ev.Call.Path, ring.KeyHash(key))
		}
	}
	for _, p := range m.GetProperties() {
		if uint64(p.GetName()) >= uint64(len(names)) {
			return nil, errors.New("no such name")
		}
		ev.Properties = append(ev.Properties, event.Property{Name: names[p.GetName()], Value: p.GetValue()})
	}
	return ev, checkEvent(ev)
}

// generatedVerdicts is generatedEvents for verdicts.
func generatedVerdicts(b []byte) (*verdictsFrame, error) {
	m := new(peerv1.ForwardResponse)
	if err := errors.Join(boundVerdicts(b), proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b, m)); err != nil {
		return nil, err
	}
	all := m.GetVerdicts()
	f := &verdictsFrame{receipt: m.GetReceipt(), number: all.GetNumber(), epoch: positionOf(all.GetEpoch())}
	if all == nil {
		f.other = m
		return f, nil
	}
	if f.number == 0 {
		return nil, errors.New("no number")
	}
	for _, m := range all.GetVerdicts() {
		f.verdicts = append(f.verdicts, event.Verdict{
			Handle: event.Handle(m.GetHandle()), Kind: kindOf(uint64(m.GetKind())),
			Detail: &event.Detail{
				Delay: hotframe.Duration(m.GetDelayMs(), delayMax), Attempts: m.GetAttempts(), Crashes: m.GetCrashes(),
				Reason: m.GetReason(), FirstError: m.GetFirstError(), Epoch: positionOf(m.GetEpoch()), Owner: m.GetOwner(),
				Reply: replyOf(uint64(m.GetOutcome()), m.GetReply(), m.GetCode()), Grant: grantOf(m.GetToken(), m.GetTurn(), m.GetRemainingNs()),
			},
		})
	}
	for _, m := range all.GetDone() {
		if err := f.addDone(event.Handle(m.GetHandle()), m.GetEvents()); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func positionOf(m *peerv1.Position) event.Position {
	return event.Position{Ledger: m.GetLedgerId(), Entry: m.GetEntryId()}
}

// bothEvents decodes b with the fast decoder, and fails if the generated code decodes something else.
func bothEvents(t fatal, b []byte) (*eventsFrame, error) {
	const frameMax = 1 << 20
	got := new(eventsFrame)
	want, wantErr := generatedEvents(b, frameMax/propertyBytesMin)
	err := got.parse(bytes.Clone(b), frameMax, atZero)
	agree(t, b, err, wantErr)
	if wantErr == nil && (!equalEvents(got, want) || !sameOther(got.other, want.other)) {
		t.Fatalf("%x is read as %+v, want %+v", b, got, want)
	}
	return got, err
}

// bothVerdicts is bothEvents for verdicts.
func bothVerdicts(t fatal, b []byte) (*verdictsFrame, error) {
	got := new(verdictsFrame)
	want, wantErr := generatedVerdicts(b)
	err := got.parse(bytes.Clone(b))
	agree(t, b, err, wantErr)
	if wantErr == nil && (!equalVerdictsFrames(got, want) || !sameOther(got.other, want.other)) {
		t.Fatalf("%x is read as %+v, want %+v", b, got, want)
	}
	return got, err
}

func equalVerdictsFrames(a, b *verdictsFrame) bool {
	return a.receipt == b.receipt && a.number == b.number && a.epoch == b.epoch && equalVerdicts(a.verdicts, b.verdicts) && equalSets(a.done, b.done)
}

// sameOther compares frames that are not hot. A frame that is only a receipt may have a message.
func sameOther[M interface {
	comparable
	proto.Message
}](got, want M) bool {
	var none M
	if got != none {
		return proto.Equal(got, want)
	}
	m := want.ProtoReflect()
	return m.WhichOneof(m.Descriptor().Oneofs().ByName("frame")) == nil
}

// withText returns the frame as its receiver sees it: with strings in UTF-8.
func withText(f *eventsFrame) *eventsFrame {
	for i := range f.events {
		ev := f.events[i].Event()
		f.events[i] = event.RefTo(ev)
		ev.Topic, ev.FirstError, ev.LastError = hotframe.Text(ev.Topic), hotframe.Text(ev.FirstError), hotframe.Text(ev.LastError)
		for i, p := range ev.Properties {
			ev.Properties[i] = event.Property{Name: hotframe.Text(p.Name), Value: hotframe.Text(p.Value)}
		}
		if ev.Call != nil {
			call := *ev.Call
			call.Method, call.ID = hotframe.Text(call.Method), hotframe.Text(call.ID)
			ev.Call = &call
		}
	}
	return f
}

// shape says which fields of a message mix may change.
type shape struct {
	numbers, texts []protowire.Number // the last one counts
	messages       map[protowire.Number]shape
}

var (
	positionShape = shape{numbers: []protowire.Number{1, 2}}
	requestShape  = shape{numbers: []protowire.Number{1}, messages: map[protowire.Number]shape{fieldHot: {
		numbers: []protowire.Number{eventsNumber, eventsRelay},
		messages: map[protowire.Number]shape{eventsEpoch: positionShape, eventsEvents: {
			numbers: []protowire.Number{
				eventHandle, eventPartition, eventLedger, eventEntry, eventBatch, eventTopicPart, eventTopic, eventAttempts, eventPublished, eventTime,
				eventRedelivery, eventRound, eventCrashes, eventSchema,
			},
			texts: []protowire.Number{eventKey, eventPayload, eventFirstError, eventLastError},
			messages: map[protowire.Number]shape{
				eventProperties: {numbers: []protowire.Number{1}, texts: []protowire.Number{2}},
				eventCall:       {numbers: []protowire.Number{2, 5, 6}, texts: []protowire.Number{1, 3}},
			},
		}},
	}}}
	responseShape = shape{numbers: []protowire.Number{1}, messages: map[protowire.Number]shape{fieldHot: {
		numbers: []protowire.Number{verdictsNumber},
		messages: map[protowire.Number]shape{verdictsEpoch: positionShape, verdictsVerdicts: {
			numbers:  []protowire.Number{verdictHandle, verdictKind, verdictDelay, verdictAttempts, verdictCrashes, verdictOutcome, verdictToken, verdictTurn, verdictRemaining},
			texts:    []protowire.Number{verdictReason, verdictFirstError, verdictOwner, verdictReply, verdictCode},
			messages: map[protowire.Number]shape{verdictEpoch: positionShape},
		}, verdictsDone: {
			numbers: []protowire.Number{doneHandle},
			texts:   []protowire.Number{doneEvents},
		}},
	}}}
)

// unknown are fields of a later version, of all wire types, and a known number of another type.
var unknown = [][]byte{
	protowire.AppendVarint(protowire.AppendTag(nil, 200, protowire.VarintType), 7),
	protowire.AppendBytes(protowire.AppendTag(nil, 29, protowire.BytesType), []byte("new")),
	{1<<3 | 5, 1, 2, 3, 4},
	{1<<3 | 1, 1, 2, 3, 4, 5, 6, 7, 8},
	{14<<3 | 3, 14<<3 | 4},
}

// fieldsOf splits a message.
func fieldsOf(b []byte) (nums []protowire.Number, fields [][]byte) {
	for len(b) > 0 {
		num, _, n := protowire.ConsumeField(b)
		nums, fields, b = append(nums, num), append(fields, b[:n]), b[n:]
	}
	return nums, fields
}

// mix returns a message of the same content in another form: fields of different numbers change
// places, others come twice, some are unknown, and hot messages come in two parts.
func mix(t *rapid.T, b []byte, s shape) []byte {
	queues := map[protowire.Number][][]byte{}
	nums, fields := fieldsOf(b)
	for i, num := range nums {
		inner, ok := s.messages[num]
		if !ok {
			queues[num] = append(queues[num], fields[i])
			continue
		}
		_, _, head := protowire.ConsumeTag(fields[i])
		body, _ := protowire.ConsumeBytes(fields[i][head:])
		body = mix(t, body, inner)
		if num == fieldHot && inner.messages != nil && rapid.Bool().Draw(t, "two parts") {
			_, parts := fieldsOf(body)
			n := rapid.IntRange(0, len(parts)).Draw(t, "first part")
			queues[num] = append(queues[num], protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), slices.Concat(parts[:n]...)))
			body = slices.Concat(parts[n:]...)
		}
		queues[num] = append(queues[num], protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), body))
	}
	for _, num := range slices.Sorted(maps.Keys(queues)) {
		if !rapid.Bool().Draw(t, "twice") {
			continue
		}
		switch {
		case slices.Contains(s.numbers, num):
			earlier := protowire.AppendVarint(protowire.AppendTag(nil, num, protowire.VarintType), rapid.Uint64().Draw(t, "earlier"))
			queues[num] = slices.Insert(queues[num], 0, earlier)
		case slices.Contains(s.texts, num):
			queues[num] = slices.Insert(queues[num], 0, protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), []byte("earlier")))
		}
	}
	var order []protowire.Number
	for _, num := range slices.Sorted(maps.Keys(queues)) {
		order = append(order, slices.Repeat([]protowire.Number{num}, len(queues[num]))...)
	}
	order = append(order, make([]protowire.Number, rapid.IntRange(0, 2).Draw(t, "unknown fields"))...)
	if len(order) > 0 {
		order = rapid.Permutation(order).Draw(t, "order")
	}
	var out []byte
	for _, num := range order {
		if num == 0 {
			out = append(out, rapid.SampledFrom(unknown).Draw(t, "unknown")...)
			continue
		}
		out, queues[num] = append(out, queues[num][0]...), queues[num][1:]
	}
	return out
}

// Frames of other encoders and of later versions are read as protobuf has it: in any order, without
// unknown fields, and of what comes twice the last one.
func TestForeignEventsFrames(t *testing.T) {
	foreign, bad := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		f := drawEvents(t)
		b := mix(t, encode(t, f), requestShape)
		got, err := bothEvents(t, b)
		if err != nil || !equalEvents(got, f) {
			t.Fatalf("read %+v (%v), want %+v", got, err, f)
		}
		if (&eventsFrame{now: atZero}).parseOurs(b, testFrameMax) != nil {
			foreign++
		}
		b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		if _, err := bothEvents(t, b[:rapid.IntRange(0, len(b)).Draw(t, "length")]); err != nil {
			bad++
		}
	})
	if foreign == 0 || bad == 0 {
		t.Errorf("%d frames were foreign and %d were bad; this run proves little", foreign, bad)
	}
}

func TestForeignVerdictsFrames(t *testing.T) {
	foreign, bad := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		f := drawVerdicts(t)
		b := mix(t, encode(t, f), responseShape)
		got, err := bothVerdicts(t, b)
		if err != nil || !equalVerdictsFrames(got, f) {
			t.Fatalf("read %+v (%v), want %+v", got, err, f)
		}
		if new(verdictsFrame).parseOurs(b) != nil {
			foreign++
		}
		b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		if _, err := bothVerdicts(t, b[:rapid.IntRange(0, len(b)).Draw(t, "length")]); err != nil {
			bad++
		}
	})
	if foreign == 0 || bad == 0 {
		t.Errorf("%d frames were foreign and %d were bad; this run proves little", foreign, bad)
	}
}

// A call has the id of a call: with that of an event it could join this one at its owner. An event with the id of a call is a copy with a false
// id, which must not end the stream.
func TestIDsOfCalls(t *testing.T) {
	call, id := &event.Call{Method: "m", ID: "i"}, event.CallMessageID("k", "i", 0)
	for _, c := range []struct {
		event event.Event
		ok    bool
	}{
		{event.Event{Handle: 1, Call: call, ID: id}, true},
		{event.Event{Handle: 1, ID: id}, true},
		{event.Event{Handle: 1, Call: call, ID: event.MessageID{Ledger: 7, Entry: 1}}, false},
		{event.Event{Handle: 1, Call: call, ID: event.SentMessageID("k", "send", "i")}, false},
	} {
		f := &eventsFrame{number: 1, events: event.RefsTo(&c.event)}
		if _, err := bothEvents(t, encode(t, f)); (err == nil) != c.ok {
			t.Errorf("%s, a call: %t: %v", c.event.ID, c.event.Call != nil, err)
		}
	}
}

// A producer may put any bytes into a property. They must not make a frame unreadable to the
// generated code, nor an event larger than its weight.
func TestStringsAreText(t *testing.T) {
	garbage := strings.Repeat("a\xff", 100)
	f := &eventsFrame{number: 1, events: event.RefsTo(&event.Event{
		Handle: 1, Topic: garbage, FirstError: garbage, LastError: garbage, Properties: []event.Property{{Name: garbage, Value: garbage}},
	})}
	b := encode(t, f)
	if most := weightOf(&f.refs[0]); len(b) > most {
		t.Errorf("encoded in %d bytes, weighs %d", len(b), most)
	}
	read := eventsFrame{now: atZero}
	if err := read.parseAny(b, testFrameMax); err != nil || !equalEvents(&read, withText(f)) {
		t.Errorf("the generated code reads %+v, %v", read, err)
	}
	var verdicts verdictsFrame
	v := event.Verdict{Handle: 1, Kind: event.Failed, Detail: &event.Detail{Reason: garbage, FirstError: garbage, Owner: garbage}}
	if err := verdicts.parseAny(encode(t, &verdictsFrame{number: 1, verdicts: []event.Verdict{v}})); err != nil {
		t.Errorf("the generated code does not read the verdict: %v", err)
	}
}

// FuzzEvent puts any bytes as an event into a frame with some tables.
func FuzzEvent(f *testing.F) {
	ev := &event.Event{Handle: 1 << 40, Key: "k", Topic: "t0", Payload: []byte("p"), Properties: []event.Property{{Name: "n0", Value: "v"}}, FirstError: "e", Crashes: 1}
	body, _ := hotframe.Chunk((&eventsFrame{now: atZero}).appendEvent(nil, ev, new(hotframe.Tables)), eventsEvents)
	f.Add(body)
	ev.Call, ev.ID = &event.Call{Method: "m", ID: "i", Deadline: 1e9, Path: []ring.KeyHash{1, 2}}, event.CallMessageID("k", "i", 0)
	body, _ = hotframe.Chunk((&eventsFrame{now: atZero}).appendEvent(nil, ev, new(hotframe.Tables)), eventsEvents)
	f.Add(body)
	f.Fuzz(func(t *testing.T, b []byte) {
		head := hotframe.AppendNumber(nil, eventsNumber, 1)
		for _, topic := range []string{"t0", "t1", "t2"} {
			head = hotframe.AppendBytes(head, eventsTopics, topic)
		}
		for _, name := range []string{"n0", "n1", "n2", "n3"} {
			head = hotframe.AppendBytes(head, eventsNames, name)
		}
		for _, version := range []string{"s0", "s1"} {
			head = hotframe.AppendBytes(head, eventsSchema, version)
		}
		hot := append(hotframe.AppendLen(head, eventsEvents, len(b)), b...)
		_, _ = bothEvents(t, append(hotframe.AppendLen(nil, fieldHot, len(hot)), hot...))
	})
}
