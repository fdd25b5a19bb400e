package deadletter

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/key"
	"github.com/ringfence/router/internal/source"
)

const orders = "persistent://public/default/orders"

func extractor(t *testing.T) key.Extractor {
	t.Helper()
	x, err := key.Parse("message_key", key.Reject)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// written is a letter as a router writes it.
func written() message {
	return message{
		ID: event.MessageID{Ledger: 7, Entry: 8, Batch: -1, TopicPartition: -1}, MessageKey: "alice", Payload: []byte("{}"),
		Published: time.UnixMilli(5000),
		Properties: []event.Property{
			{Name: "colour", Value: "red"},
			{Name: source.PropertyAttempts, Value: "10"},
			{Name: source.PropertyFirstError, Value: "no such order"},
			{Name: source.PropertyMessageID, Value: "1:2:-1:3"},
			{Name: source.PropertyOwner, Value: "pod-0"},
			{Name: source.PropertyPublishTime, Value: "4000"},
			{Name: source.PropertyReason, Value: "failed 10 times"},
			{Name: source.PropertyTopic, Value: orders},
			{Name: PropertyReplayAct, Value: "of an earlier replay"},
		},
	}
}

func set(m message, name, value string) message {
	m.Properties = slices.Clone(m.Properties)
	m.Properties = slices.DeleteFunc(m.Properties, func(p event.Property) bool { return p.Name == name })
	m.Properties = append(m.Properties, event.Property{Name: name, Value: value})
	return m
}

// With key.missing: spread an event without a key has one of its id: its dead letter is found by that key, and not by one of the letter's own id.
func TestLetterOfASpreadEventHasItsKey(t *testing.T) {
	x, err := key.Parse("property:none", key.Spread)
	if err != nil {
		t.Fatal(err)
	}
	want, err := x.Extract(&key.Message{ID: event.MessageID{Ledger: 1, Entry: 2, Batch: 3, TopicPartition: -1}})
	if err != nil {
		t.Fatal(err)
	}
	if l := newLetter(written(), x); l.Key != want {
		t.Errorf("the letter has the key %q, its event %q", l.Key, want)
	}
}

func TestLetter(t *testing.T) {
	marked := set(set(set(written(), source.PropertyCrashes, "3"), source.PropertySchema, "AAE="), source.PropertyEncryption, "{}")
	if l := newLetter(marked, extractor(t)); l.Crashes != 3 || !l.Schema || !l.Encrypted {
		t.Errorf("%d crashes, a schema: %v, encrypted: %v", l.Crashes, l.Schema, l.Encrypted)
	}
	own := written()
	own.Schema, own.Encrypted = true, true
	if l := newLetter(own, extractor(t)); !l.Schema || !l.Encrypted {
		t.Errorf("of its own: a schema: %v, encrypted: %v", l.Schema, l.Encrypted)
	}
	l := newLetter(written(), extractor(t))
	if l.Key != "alice" || l.Original != "1:2:-1:3" || l.Topic != orders || l.Attempts != 10 || l.Reason != "failed 10 times" ||
		l.FirstError != "no such order" || l.Owner != "pod-0" || !l.OriginalPublished.Equal(time.UnixMilli(4000)) {
		t.Errorf("the letter is %+v", l)
	}
	o := l.again(orders, l.origin(), map[string]string{PropertyReplayLetter: "7:8:-1:-1"})
	want := map[string]string{"colour": "red", PropertyReplayOf: "1:2:-1:3", PropertyReplayLetter: "7:8:-1:-1"}
	if len(o.properties) != len(want) {
		t.Errorf("it is sent with %v, want %v", o.properties, want)
	}
	for name, value := range want {
		if o.properties[name] != value {
			t.Errorf("it is sent with %v, want %v", o.properties, want)
		}
	}
}

// TestLetterOfAnyTime: a producer may claim that it published in the year 300000, which JSON cannot tell.
func TestLetterOfAnyTime(t *testing.T) {
	for _, ms := range []int64{math.MinInt64, -62_200_000_000_000, -1, 0, 253_402_300_800_000, math.MaxInt64} {
		l := newLetter(set(written(), source.PropertyPublishTime, strconv.FormatInt(ms, 10)), extractor(t))
		if _, err := json.Marshal(ShowWhole(&l)); err != nil {
			t.Errorf("a letter of %d ms cannot be shown: %v", ms, err)
		}
	}
}

// TestHostileLetter: nothing that a stranger writes is taken for what it is not.
func TestHostileLetter(t *testing.T) {
	x := extractor(t)
	for _, text := range []string{"", "-1", "99999999999999999999", "\x00", strings.Repeat("9", 1<<20), "1:2", "1:2:3:4:5"} {
		m := written()
		for _, name := range []string{source.PropertyMessageID, source.PropertyAttempts, source.PropertyPublishTime, source.PropertyCrashes} {
			m = set(m, name, text)
		}
		l := newLetter(m, x)
		if l.Original != "" || l.origin() != "7:8:-1:-1" {
			t.Errorf("with %.20q its original is %q, its origin %q", text, l.Original, l.origin())
		}
	}
}

func TestObstacle(t *testing.T) {
	x := extractor(t)
	sent := event.Sent{Key: "user-\xff", Due: 5, Name: "expire"}
	timer := set(set(written(), source.PropertyMessageID, event.SentMessageID(sent.Key, "id", "1").String()), source.PropertyTopic, orders+"-s-TIMER")
	timer.Properties = sent.Properties(timer.Properties)
	if l := newLetter(timer, x); l.Key != sent.Key {
		t.Errorf("a timer has the key %q", string(l.Key))
	}
	batched := written()
	batched.Batched = true
	half := strings.Repeat("x", headMax/2)
	full, byKey, byOrdering, byName, byValue := written(), written(), written(), written(), written()
	full.Properties, full.MessageKey, full.OrderingKey = append(slices.Clone(full.Properties), event.Property{Name: half[:headMax/4], Value: half[:headMax/4-len("colour"+"red")]}), half[:headMax/4], half[:headMax/4]
	byKey.MessageKey, byOrdering.OrderingKey = half+half, half+half
	byName, byValue = set(byName, half+half, ""), set(byValue, "large", half+half)
	larger := full
	larger.MessageKey += "x"
	for name, c := range map[string]struct {
		m        message
		to, want string
	}{
		"of a router":         {written(), "", ""},
		"foreign topic":       {set(written(), source.PropertyTopic, "persistent://public/default/payments"), "", ObstacleTopic},
		"foreign topic, to":   {set(written(), source.PropertyTopic, "persistent://public/default/payments"), orders, ""},
		"a topic's lookalike": {set(written(), source.PropertyTopic, orders+"-partition-0"), "", ObstacleTopic},
		"no topic":            {set(written(), source.PropertyTopic, ""), "", ObstacleTopic},
		"encrypted":           {set(written(), source.PropertyEncryption, "{}"), orders, ObstacleEncrypted},
		"broken":              {set(written(), source.PropertyBroken, "checksum"), orders, ObstacleBroken},
		"a timer":             {timer, "", ObstacleTimer},
		"a timer, to":         {timer, orders, ""},
		"batched":             {batched, orders, ObstacleBatched},
		"as large as may be":  {full, orders, ""},
		"one byte larger":     {larger, orders, ObstacleHead},
		"a large key":         {byKey, orders, ObstacleHead},
		"a large order":       {byOrdering, orders, ObstacleHead},
		"a large name":        {byName, orders, ObstacleHead},
		"a large value":       {byValue, orders, ObstacleHead},
		"claims to be sent":   {set(timer, source.PropertyMessageID, "1:2:-1:3"), "", ObstacleTopic},
	} {
		l := newLetter(c.m, x)
		if got := l.obstacle([]string{orders}, c.to); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestIdentity: letters are the same only with the same original and the same content; what a router adds
// is no content.
func TestIdentity(t *testing.T) {
	first := written()
	of := func(m message) Identity { l := newLetter(m, extractor(t)); return l.identity(l.origin()) }
	same := map[string]message{
		"failed again": set(first, source.PropertyAttempts, "11"), "traced": set(set(first, "traceparent", "00-1"), "Tracestate", "a=1"),
		"replayed": set(first, PropertyReplayOf, "1:1:1:1"),
	}
	other := map[string]message{
		"original": set(first, source.PropertyMessageID, "1:2:-1:4"), "property": set(first, "colour", "blue"),
		"invalid text": set(first, "colour", "red\xff"), "another": set(first, "colour", "red\xfe"),
	}
	withKey, withPayload, withTime, withOrdering := first, first, first, first
	withKey.MessageKey, withPayload.Payload, withTime.EventTime, withOrdering.OrderingKey = "bob", []byte("{ }"), 1, "alice"
	other["key"], other["payload"], other["event time"], other["ordering key"] = withKey, withPayload, withTime, withOrdering
	for name, m := range same {
		if of(m) != of(first) {
			t.Errorf("%s: it is another one", name)
		}
	}
	seen := map[Identity]string{of(first): "the first"}
	for name, m := range other {
		if before, ok := seen[of(m)]; ok {
			t.Errorf("%s: it is %s", name, before)
		}
		seen[of(m)] = name
	}
	empty, null := first, first
	empty.Payload, null.Payload, null.Null = []byte{}, nil, true
	if of(empty) != of(null) {
		t.Error("an empty value and a null value differ, which a reader of the topic cannot tell in all cases")
	}
}

func TestSelection(t *testing.T) {
	l := newLetter(set(written(), source.PropertyLastError, "connection reset"), extractor(t))
	for name, c := range map[string]struct {
		s    Selection
		want bool
	}{
		"all":            {Selection{}, true},
		"key":            {Selection{Keys: []string{"bob", "alice"}}, true},
		"other key":      {Selection{Keys: []string{"bob"}}, false},
		"reason":         {Selection{Match: "10 times"}, true},
		"first error":    {Selection{Match: "no such"}, true},
		"last error":     {Selection{Match: "reset"}, true},
		"no match":       {Selection{Match: "timeout"}, false},
		"since":          {Selection{Since: time.UnixMilli(5000)}, true},
		"later":          {Selection{Since: time.UnixMilli(5001)}, false},
		"until":          {Selection{Until: time.UnixMilli(5000)}, false},
		"until later":    {Selection{Until: time.UnixMilli(5001)}, true},
		"id":             {Selection{IDs: []string{"7:8:-1:-1"}}, true},
		"id of original": {Selection{IDs: []string{"1:2:-1:3"}}, false},
	} {
		if got := c.s.has(&l); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		if c.s.Empty() != (name == "all") {
			t.Errorf("%s: Empty() = %v", name, c.s.Empty())
		}
	}
}

// TestCheckTarget: no letter is sent to a topic of the group's own, nor to one of its topic partitions, nor to one whose messages no broker stores.
func TestCheckTarget(t *testing.T) {
	t.Parallel()
	const letters = "persistent://public/default/orders-DLQ"
	b := New(Config{LettersTopic: letters, RetryTopic: "persistent://public/default/orders-RETRY-partition-1"}, nil)
	for topic, fine := range map[string]bool{
		letters: false, "orders-DLQ": false, "orders-DLQ-REPLAYS": false, "orders-DLQ-partition-0": false, letters + "-REPLAYS-partition-2": false,
		"orders-RETRY-partition-1": false, "orders": true, "orders-partition-0": true, "orders-DLQ-partition-x": true, "orders-DLQ-2": true,
		"non-persistent://public/default/orders": false, "topic://public/default/orders": false, "persistent://public/default/orders": true,
	} {
		if err := b.CheckTarget(topic); (err == nil) != fine {
			t.Errorf("%s: %v", topic, err)
		}
	}
}
