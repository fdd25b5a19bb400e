package forward

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
	peerv1 "github.com/ringfence/router/proto/ringfence/peer/v1"
)

func someParser() *eventsParser {
	return &eventsParser{topics: []string{"t0", "t1", "t2"}, names: []string{"n0", "n1", "n2", "n3"}, schemas: []string{"s0", "s1"}, propertiesMax: 100, size: 1}
}

// generally decodes an event as parseEvent does, but expects no field in any place.
func generally(b []byte) (*event.Event, error) {
	p, ev, topic := someParser(), &event.Event{}, uint64(0)
	r := reader{rest: b}
	for {
		ok, err := r.next()
		switch {
		case err != nil:
			return nil, err
		case !ok:
			return ev, p.complete(ev, topic)
		case r.is(eventTopic, protowire.VarintType):
			topic = r.n
		case r.is(eventSchema, protowire.VarintType):
			p.schema = r.n
		case r.is(eventProperties, protowire.BytesType):
			name, value := uint64(0), ""
			for inner := (reader{rest: r.value}); ; {
				ok, err := inner.next()
				if err != nil {
					return nil, err
				}
				if !ok {
					break
				}
				if inner.is(1, protowire.VarintType) {
					name = inner.n
				} else if inner.is(2, protowire.BytesType) {
					value = alias(inner.value)
				}
			}
			if name >= uint64(len(p.names)) || len(ev.Properties) == p.propertiesMax {
				return nil, errFrame
			}
			ev.Properties = append(ev.Properties, event.Property{Name: p.names[name], Value: value})
		case r.typ == protowire.VarintType:
			setNumber(ev, r.num, r.n)
		default:
			setBytes(ev, r.num, r.value)
		}
	}
}

// checkEvent reports whether b is an event, of which both ways must be of one mind.
func checkEvent(t interface{ Fatalf(string, ...any) }, b []byte) bool {
	want, wantErr := generally(b)
	var got event.Event
	err := someParser().parseEvent(b, &got)
	if (err == nil) != (wantErr == nil) || err == nil && !reflect.DeepEqual(&got, want) {
		t.Fatalf("%x is read as %+v, %v, want %+v, %v", b, got, err, want, wantErr)
	}
	if err != nil && !errors.Is(err, errFrame) {
		t.Fatalf("%x: %v", b, err)
	}
	return err == nil
}

// An event is decoded the same for every order of its fields. A truncated or changed one gives the
// same result in any order.
func TestEventInAnyOrder(t *testing.T) {
	good := 0
	rapid.Check(t, func(t *rapid.T) {
		ev := drawEvent(t)
		var s eventsScratch
		for _, topic := range someParser().topics {
			s.topics.add(topic)
		}
		ev.Topic = rapid.SampledFrom(s.topics.list).Draw(t, "one of the topics")
		if ev.SchemaVersion != "" {
			ev.SchemaVersion = rapid.SampledFrom(someParser().schemas).Draw(t, "one of the schema versions")
		}
		for _, version := range someParser().schemas {
			s.schemas.add(version)
		}
		for _, name := range someParser().names {
			s.names.add(name)
		}
		for i := range ev.Properties {
			ev.Properties[i].Name = rapid.SampledFrom(s.names.list).Draw(t, "name")
		}
		room := make([]byte, weightOf(ev))
		b := room[:s.putFields(room, 0, ev)]
		if !checkEvent(t, b) {
			t.Fatalf("%x is not read", b)
		}
		var fields [][]byte
		for rest := b; len(rest) > 0; {
			_, _, n := protowire.ConsumeField(rest)
			fields, rest = append(fields, rest[:n]), rest[n:]
		}
		unknown := [][]byte{{19<<3&0x7f | 0x80, 1, 7}, {1<<3 | 5, 1, 2, 3, 4}, {5 << 3, 3}, {3<<3 | 3, 3<<3 | 4}}
		fields = append(fields, rapid.SliceOfN(rapid.SampledFrom(append(unknown, fields...)), 0, 3).Draw(t, "more")...)
		if rapid.Bool().Draw(t, "permute") {
			fields = rapid.Permutation(fields).Draw(t, "fields")
		}
		b = slices.Concat(fields...)
		if checkEvent(t, b) {
			good++
		}
		b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		checkEvent(t, b[:rapid.IntRange(0, len(b)).Draw(t, "length")])
	})
	if good == 0 {
		t.Error("no event was read; this run proves nothing")
	}
}

func FuzzEvent(f *testing.F) {
	ev := &event.Event{Handle: 1 << 40, Key: "k", Topic: "t", Payload: []byte("p"), Properties: []event.Property{{Value: "v"}}, FirstError: "e", Crashes: 1}
	room := make([]byte, weightOf(ev))
	f.Add(room[:new(eventsScratch).putFields(room, 0, ev)])
	f.Fuzz(func(t *testing.T, b []byte) { checkEvent(t, b) })
}

// Earlier versions write topics and names behind the events, and protobuf lets them stand
// anywhere.
func TestTablesBehindEvents(t *testing.T) {
	written := &eventsFrame{}
	rapid.Check(t, func(t *rapid.T) {
		f := drawEvents(t)
		scratch := written.scratch
		*written = *f
		written.scratch = scratch
		var frame peerv1.ForwardRequest
		if err := proto.Unmarshal(encode(t, written), &frame); err != nil {
			t.Fatal(err)
		}
		events := frame.GetEvents()
		half := rapid.IntRange(0, len(events.GetTopics())).Draw(t, "topics before")
		first := &peerv1.Events{Number: events.GetNumber() + 1, Topics: events.GetTopics()[:half], Events: events.GetEvents()}
		events.Events, events.Topics = nil, events.GetTopics()[half:]
		b := appendUint(nil, fieldReceipt, f.receipt)
		b = protowire.AppendBytes(appendTag(b, fieldHot, protowire.BytesType), append(encode(t, first), encode(t, events)...))
		var got eventsFrame
		if err := got.parse(b, testFrameMax); err != nil || !equalEvents(&got, f) {
			t.Fatalf("read %+v (%v), want %+v", got, err, f)
		}
	})
}
