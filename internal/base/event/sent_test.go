package event_test

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
)

// What a router publishes is read as it was meant, whatever bytes the key has, and its id is neither a broker's nor a call's.
func TestSentIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := event.Sent{
			Key: event.Key(rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "key")), Due: rapid.Int64Min(0).Draw(t, "due"),
			Name: rapid.StringMatching(`[a-z ]{0,20}`).Draw(t, "name"),
		}
		if rapid.Bool().Draw(t, "firing") {
			s.Firing = &event.Firing{Definition: rapid.Uint64().Draw(t, "definition"), Time: rapid.Int64().Draw(t, "time"), Missed: rapid.Uint32().Draw(t, "missed")}
		}
		own := []event.Property{{Name: "a", Value: "1"}}
		got, err := event.ParseSent(s.Properties(own))
		if err != nil || got.Key != s.Key || got.Due != s.Due || got.Name != s.Name || (got.Firing == nil) != (s.Firing == nil) || s.Firing != nil && *got.Firing != *s.Firing {
			t.Fatalf("%+v is read as %+v (%v)", s, got, err)
		}
		if len(own) != 1 || slices.ContainsFunc(own, func(p event.Property) bool { return event.IsOfSent(p.Name) }) {
			t.Fatalf("the sender's properties were written to: %v", own)
		}
		id := event.SentMessageID(s.Key, "k", s.Name)
		text, err := event.ParseMessageID(id.String())
		if !id.IsSent() || id.IsCall() || err != nil || text != id || id == event.SentMessageID(s.Key, "k2", s.Name) || id == event.SentMessageID(s.Key+"k", "", s.Name) {
			t.Fatalf("id %v (%v)", id, err)
		}
		if call := event.CallMessageID(s.Key, s.Name, 1); call.IsSent() || (event.MessageID{Ledger: 1 << 60}).IsSent() {
			t.Fatal("another id counts as published by a router")
		}
	})
}

// Each property of a published event says one thing, and stands behind the sender's own: what there is nothing to say of has none.
func TestSentHasNoEmptyProperties(t *testing.T) {
	own := make([]event.Property, 1, 4) // with room that is not the router's to write to
	own[0] = event.Property{Name: "a", Value: "1"}
	key := event.Property{Name: "ringfence-sent-key", Value: "aw"}
	due := event.Property{Name: "ringfence-sent-due", Value: "1"}
	name := event.Property{Name: "ringfence-sent-timer", Value: "n"}
	firing := event.Property{Name: "ringfence-sent-firing", Value: "00000000000000ff:2:3"}
	for what, test := range map[string]struct {
		sent event.Sent
		want []event.Property
	}{
		"at once, without a name": {event.Sent{Key: "k"}, []event.Property{own[0], key}},
		"due":                     {event.Sent{Key: "k", Due: 1}, []event.Property{own[0], key, due}},
		"with a name":             {event.Sent{Key: "k", Name: "n"}, []event.Property{own[0], key, name}},
		"a firing":                {event.Sent{Key: "k", Due: 1, Name: "n", Firing: &event.Firing{Definition: 255, Time: 2, Missed: 3}}, []event.Property{own[0], key, due, name, firing}},
	} {
		if got := test.sent.Properties(own); !slices.Equal(got, test.want) {
			t.Errorf("%s: properties %v, want %v", what, got, test.want)
		}
	}
	if behind := own[:2][1]; behind != (event.Property{}) {
		t.Errorf("%v was written behind the sender's properties", behind)
	}
	for _, p := range []string{"ringfence-message-id", "ringfence-", "ringfence-sent", "sent-key"} {
		if event.IsOfSent(p) {
			t.Errorf("%s counts as a property of a published event", p)
		}
	}
}

func TestSentOfOthers(t *testing.T) {
	for _, properties := range [][]event.Property{
		nil,
		{{Name: "ringfence-sent-due", Value: "1"}},
		{{Name: "ringfence-sent-key", Value: "*"}},
		{{Name: "ringfence-sent-key", Value: ""}},
		{{Name: "ringfence-sent-key", Value: "YQ"}, {Name: "ringfence-sent-due", Value: "-1"}},
		{{Name: "ringfence-sent-key", Value: "YQ"}, {Name: "ringfence-sent-due", Value: "99999999999999999999"}},
		{{Name: "ringfence-sent-key", Value: "YQ"}, {Name: "ringfence-sent-timer", Value: strings.Repeat("n", 129)}},
		{{Name: "ringfence-sent-key", Value: base64.RawURLEncoding.EncodeToString(make([]byte, event.KeyMax+1))}},
		{{Name: "ringfence-sent-key", Value: "YQ"}, {Name: "ringfence-sent-firing", Value: "1:2"}},
		{{Name: "ringfence-sent-key", Value: "YQ"}, {Name: "ringfence-sent-firing", Value: "zz:2:3"}},
	} {
		if s, err := event.ParseSent(properties); err == nil {
			t.Errorf("%v is read as %+v", properties, s)
		}
	}
}

func TestSentIsBounded(t *testing.T) {
	const now = 1_000_000
	good := event.Sent{Key: "user-1", Due: now + 5, Name: "expire"}
	if err := good.Check(now, event.SentPayloadMax, make([]event.Property, 0)); err != nil {
		t.Errorf("a good one: %v", err)
	}
	most := event.Sent{Key: event.Key(strings.Repeat("k", event.KeyMax)), Due: now + event.SentAfterMax.Milliseconds(), Name: strings.Repeat("n", event.SentNameMax)}
	properties := slices.Repeat([]event.Property{{Name: "a", Value: strings.Repeat("v", event.SentPropertyMax-1)}}, event.SentPropertiesMax)
	if err := most.Check(now, event.SentPayloadMax, properties); err != nil {
		t.Errorf("one at all of its bounds: %v", err)
	}
	// SDKs add the trace context of a sender that has one: it is none of the sender's properties.
	if err := most.Check(now, event.SentPayloadMax, append(properties, event.Property{Name: "traceparent", Value: "00-1-2-01"})); err != nil {
		t.Errorf("one at all of its bounds, with a trace: %v", err)
	}
	for name, test := range map[string]struct {
		change     func(*event.Sent)
		payload    int
		properties []event.Property
	}{
		"no key":              {change: func(s *event.Sent) { s.Key = "" }},
		"a long key":          {change: func(s *event.Sent) { s.Key = event.Key(strings.Repeat("k", event.KeyMax+1)) }},
		"a long name":         {change: func(s *event.Sent) { s.Name = strings.Repeat("n", event.SentNameMax+1) }},
		"a line in the name":  {change: func(s *event.Sent) { s.Name = "a\nb" }},
		"broken UTF-8":        {change: func(s *event.Sent) { s.Name = "a\xff" }},
		"too late":            {change: func(s *event.Sent) { s.Due = now + event.SentAfterMax.Milliseconds() + 1 }},
		"a negative time":     {change: func(s *event.Sent) { s.Due = -1 }},
		"a large payload":     {payload: event.SentPayloadMax + 1},
		"many properties":     {properties: make([]event.Property, event.SentPropertiesMax+1)},
		"no property name":    {properties: []event.Property{{Value: "v"}}},
		"a large property":    {properties: []event.Property{{Name: "a", Value: strings.Repeat("v", event.SentPropertyMax)}}},
		"a router's property": {properties: []event.Property{{Name: "Ringfence-Sent-Due", Value: "1"}}},
	} {
		s := good
		if test.change != nil {
			test.change(&s)
		}
		if err := s.Check(now, test.payload, test.properties); err == nil {
			t.Errorf("%s is permitted", name)
		}
	}
}
