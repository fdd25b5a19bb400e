package source

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/broker/entries/wire"
)

// A retry copy is restored to its original event, with its history.
func TestRestoreUndoesRetryCopy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-z]{1,3}`)
		original := event.Event{
			ID: event.MessageID{
				Ledger: rapid.Int64Max(1<<62-1).Draw(t, "ledger"), Entry: rapid.Int64().Draw(t, "entry"),
				Batch: rapid.Int32Min(-1).Draw(t, "batch"), TopicPartition: rapid.Int32Min(-1).Draw(t, "partition"),
			},
			Topic:         "persistent://a/b/" + name.Draw(t, "topic"),
			Payload:       []byte("p"),
			SchemaVersion: rapid.SampledFrom([]string{"", "\x00\x00\x00\x01", "\xff"}).Draw(t, "schema version"),
			PublishTime:   rapid.Int64Min(0).Draw(t, "publish time"),
			EventTime:     rapid.Int64().Draw(t, "event time"),
			Crashes:       rapid.Uint32Max(3).Draw(t, "crashes"),
			Round:         rapid.Uint32Max(10).Draw(t, "round"),
		}
		for property := range rapid.MapOf(name, rapid.Just("v")).Draw(t, "properties") {
			original.Properties = append(original.Properties, event.Property{Name: property, Value: "v"})
		}
		d := event.Detail{
			Attempts: rapid.Uint32().Draw(t, "attempts"),
			Crashes:  rapid.Uint32Max(3).Draw(t, "more crashes"),
			Reason:   name.Draw(t, "last"), FirstError: name.Draw(t, "first"),
		}
		c := retryCopy("retry", event.Message{Event: &original, Key: "k", OrderingKey: "o"}, &d)
		back := event.Event{
			ID: event.MessageID{Ledger: 9}, Topic: "retry", Payload: c.payload,
			Properties: make([]event.Property, 0), PublishTime: 1,
		}
		if c.eventTime != 0 { // as the client writes it, and readers read it
			back.EventTime = int64(uint64(time.UnixMilli(c.eventTime).UnixNano()) / uint64(time.Millisecond))
		}
		for property, value := range c.properties {
			back.Properties = append(back.Properties, event.Property{Name: property, Value: value})
		}
		restore(&back)

		want := original
		want.Round++
		want.Crashes = max(want.Crashes, d.Crashes)
		want.Attempts, want.FirstError, want.LastError = d.Attempts, d.FirstError, d.Reason
		if len(back.Properties) != len(want.Properties) {
			t.Fatalf("properties = %v, want %v", back.Properties, want.Properties)
		}
		for _, p := range want.Properties {
			if _, ok := back.Property(p.Name); !ok {
				t.Fatalf("property %s is lost", p.Name)
			}
		}
		back.Properties, want.Properties = nil, nil
		if !reflect.DeepEqual(back, want) {
			t.Fatalf("restored %+v, want %+v", back, want)
		}
		if c.key != "k" || c.orderingKey != "o" {
			t.Fatalf("keys = %q, %q", c.key, c.orderingKey)
		}
	})
}

// Anybody may write to a retry topic.
func FuzzRestore(f *testing.F) {
	f.Add("1:2:3:4", "persistent://a/b/c", "1", "2")
	f.Add("1:2:3", "", "-1", "x")
	f.Add("1:2:3:4:5", "t", "99999999999", "")
	f.Add("", "", "", "")
	f.Fuzz(func(t *testing.T, id, topic, attempts, round string) {
		own := event.MessageID{Ledger: 5, Entry: 6, Batch: -1, TopicPartition: -1}
		ev := event.Event{ID: own, Topic: "retry", Properties: []event.Property{
			{Name: PropertyMessageID, Value: id},
			{Name: PropertyTopic, Value: topic},
			{Name: PropertyAttempts, Value: attempts},
			{Name: PropertyRound, Value: round},
			{Name: "mine", Value: "v"},
		}}
		restore(&ev)
		if len(ev.Properties) != 1 || ev.Properties[0].Name != "mine" {
			t.Fatalf("properties = %v, want the application's own", ev.Properties)
		}
		if ev.ID == own && (ev.Topic != "retry" || ev.Attempts != 0 || ev.Round != 0) {
			t.Fatalf("an event of its own took over %q, %d, %d", ev.Topic, ev.Attempts, ev.Round)
		}
		if parsed, err := event.ParseMessageID(id); err == nil && ev.ID != parsed {
			t.Fatalf("message id = %v, want %v", ev.ID, parsed)
		}
	})
}

func TestMessageIDsReadBackAsWritten(t *testing.T) {
	want := event.MessageID{Ledger: 12, Entry: 34, Batch: -1, TopicPartition: 5}
	if got, err := event.ParseMessageID(want.String()); got != want || err != nil {
		t.Errorf("event.ParseMessageID(%q) = %v, %v", want, got, err)
	}
	for _, bad := range []string{"", "1", "1:2:3", "1:2:3:4:5", "1:2:3:", "a:2:3:4", "1:2:3:4294967296", " 1:2:3:4"} {
		if got, err := event.ParseMessageID(bad); err == nil {
			t.Errorf("event.ParseMessageID(%q) = %v, want an error", bad, got)
		}
	}
}

// An event that never came to the application has neither errors nor an owner.
func TestDeadLetterOfAnEventWithoutAKey(t *testing.T) {
	ev := event.Event{ID: event.MessageID{Ledger: 1, Entry: 2, Batch: -1, TopicPartition: -1}, Topic: "t"}
	c := deadLetterCopy("dead", event.Message{Event: &ev}, &event.Detail{}, "no key")
	if c.topic != "dead" || c.properties[PropertyReason] != "no key" || c.properties[PropertyAttempts] != "0" {
		t.Errorf("copy = %+v", c)
	}
	for _, absent := range []string{PropertyFirstError, PropertyLastError, PropertyOwner} {
		if value, ok := c.properties[absent]; ok {
			t.Errorf("%s = %q, want none", absent, value)
		}
	}
}

func TestDefaultNamesDoNotDependOnOrder(t *testing.T) {
	a := RetryTopicName([]string{"z", "persistent://public/default/orders-partition-3"}, "s")
	b := RetryTopicName([]string{"orders-partition-3", "public/default/z"}, "s")
	if want := "persistent://public/default/orders-s-RETRY"; a != want || b != want {
		t.Errorf("retry topics %q and %q, want %q", a, b, want)
	}
	if got, want := DeadLetterTopicName([]string{"x/y/t"}, "s"), "persistent://x/y/t-s-DLQ"; got != want {
		t.Errorf("dead letter topic %q, want %q", got, want)
	}
}

// The client keeps only one word of a broker's error about a missing namespace, and no broker names a remedy.
func TestHint(t *testing.T) {
	for said, remedy := range map[string]string{
		"server error: TopicNotFound":        "tenant and namespace",
		"AuthorizationError":                 "grant the router's role produce and consume",
		"server error: TopicTerminatedError": "pulsar-admin topics delete",
	} {
		if got := hint(errors.New(said)); !strings.Contains(got, remedy) {
			t.Errorf("hint = %q for %q, want %q in it", got, said, remedy)
		}
		if got := subscribeError("t", "s", errors.New(said)).Error(); !strings.Contains(got, remedy) {
			t.Errorf("subscribeError = %q for %q, want %q in it", got, said, remedy)
		}
	}
	if got := hint(errors.New("server error: ServiceNotReady")); got != "" {
		t.Errorf("hint = %q, want none: the error has it", got)
	}
}

// An event whose properties no copy can carry is a dead letter instead of a copy that is tried for ever, and the letter has all of it in its payload.
func TestEventsWithTooLargePropertiesBecomeDeadLetters(t *testing.T) {
	large := strings.Repeat("x", headMax)
	ev := &event.Event{
		ID: event.MessageID{Ledger: 1, Entry: 2, Batch: 3, TopicPartition: -1}, Key: "user-1", Topic: "t", Payload: []byte("pay"), EventTime: 5, PublishTime: 8,
		Properties: []event.Property{{Name: "large", Value: large}},
	}
	s := &Source{cfg: DefaultConfig(), retries: newCopier(""), letters: newCopier(""), parked: newCopier(""), timers: newCopier("")}
	s.cfg.DeadLetterTopic = "dead"
	for name, v := range map[string]event.Verdict{
		"failed": {Kind: event.Failed}, "parked": {Kind: event.Parked, Detail: &event.Detail{Reason: "m"}}, "rejected": {Kind: event.Rejected, Detail: &event.Detail{Reason: "bad"}},
	} {
		out := outgoingEvent{message: event.Message{Event: ev, Key: "user-1", OrderingKey: "o"}, verdict: v}
		if s.copierOf(&out) != s.letters {
			t.Fatalf("%s: the copy is not a dead letter", name)
		}
		c := s.copyOf(&out)
		if c.topic != "dead" || c.properties["large"] != "" || c.properties[PropertyBroken] != brokenHead || c.key != "" || c.properties[PropertyReason] == "" {
			t.Errorf("%s: the letter has the key %q and the properties %v", name, c.key, c.properties)
		}
		e := wire.Entry{Batched: true, Events: 1, Payload: c.payload}
		singles, err := e.Split(nil)
		if err != nil || len(singles) != 1 {
			t.Fatalf("%s: the payload is no batch of one: %d events, %v", name, len(singles), err)
		}
		back := propertiesOf(singles[0].Properties, nil)
		if one := &singles[0]; string(one.Payload) != "pay" || string(one.Key) != "user-1" || string(one.OrderingKey) != "o" || one.EventTime != 5 || len(back) != 1 || back[0].Value != large {
			t.Errorf("%s: the payload has the event %q of key %q and %q at %d with %d properties", name, one.Payload, one.Key, one.OrderingKey, one.EventTime, len(back))
		}
	}
	small := outgoingEvent{message: event.Message{Event: &event.Event{Properties: []event.Property{{Name: "l", Value: large[:headMax-1]}}}}, verdict: event.Verdict{Kind: event.Failed}}
	if s.copierOf(&small) != s.retries {
		t.Error("an event with properties of a MiB is not retried")
	}
}
