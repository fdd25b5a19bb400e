package key_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/key"
)

func parse(t testing.TB, spec string, missing key.Missing) key.Extractor {
	t.Helper()
	x, err := key.Parse(spec, missing)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestExtract(t *testing.T) {
	props := []event.Property{{Name: "user", Value: "u1"}, {Name: "empty", Value: ""}, {Name: "user", Value: "u2"}}
	binary := "\xff\x00\xfe"
	cases := map[string]struct {
		spec string
		msg  key.Message
		want event.Key
		err  error
	}{
		"message key":                      {"message_key", key.Message{MessageKey: "a", OrderingKey: "b"}, "a", nil},
		"default is the message key":       {"", key.Message{MessageKey: "a"}, "a", nil},
		"ordering key where there is none": {"message_key", key.Message{OrderingKey: "b"}, "b", nil},
		"neither":                          {"message_key", key.Message{}, "", key.ErrMissing},
		"any bytes":                        {"message_key", key.Message{MessageKey: binary}, event.Key(binary), nil},
		"longest":                          {"message_key", key.Message{MessageKey: strings.Repeat("k", event.KeyMax)}, event.Key(strings.Repeat("k", event.KeyMax)), nil},
		"too long":                         {"message_key", key.Message{MessageKey: strings.Repeat("k", event.KeyMax+1)}, "", key.ErrTooLong},
		"first property of the name":       {"property:user", key.Message{Properties: props}, "u1", nil},
		"property with a colon":            {"property:a:b", key.Message{Properties: []event.Property{{Name: "a:b", Value: "x"}}}, "x", nil},
		"empty property":                   {"property:empty", key.Message{Properties: props}, "", key.ErrMissing},
		"no such property":                 {"property:nope", key.Message{Properties: props, MessageKey: "a"}, "", key.ErrMissing},
		"json string":                      {"json:user.id", key.Message{Payload: []byte(`{"x":1,"user":{"id":"u\u0031"}}`)}, "u1", nil},
		"json number as spelled":           {"json:n", key.Message{Payload: []byte(`{"n":1.0}`)}, "1.0", nil},
		"json big number keeps its digits": {"json:n", key.Message{Payload: []byte(`{"n":12345678901234567890}`)}, "12345678901234567890", nil},
		"json boolean":                     {"json:b", key.Message{Payload: []byte(`{"b":false}`)}, "false", nil},
		"json array index":                 {"json:a.1.k", key.Message{Payload: []byte(`{"a":[{},{"k":"z"}]}`)}, "z", nil},
		"json name with a dot":             {`json:a\.b`, key.Message{Payload: []byte(`{"a.b":"z"}`)}, "z", nil},
		"json name with a hash":            {`json:\#tag`, key.Message{Payload: []byte(`{"#tag":"z"}`)}, "z", nil},
		"json first of two":                {"json:a", key.Message{Payload: []byte(`{"a":"1","a":"2"}`)}, "1", nil},
		"json dollars in names":            {"json:a.$.$b", key.Message{Payload: []byte(`{"a":{"$":{"$b":"k"}}}`)}, "k", nil},
		"json first name a dollar":         {`json:\$.a`, key.Message{Payload: []byte(`{"$":{"a":"k"}}`)}, "k", nil},
		"json null":                        {"json:a", key.Message{Payload: []byte(`{"a":null}`)}, "", key.ErrMissing},
		"json empty string":                {"json:a", key.Message{Payload: []byte(`{"a":""}`)}, "", key.ErrMissing},
		"json path to nothing":             {"json:a.b", key.Message{Payload: []byte(`{"a":1}`)}, "", key.ErrMissing},
		"json object":                      {"json:a", key.Message{Payload: []byte(`{"a":{"b":1}}`)}, "", key.ErrNotScalar},
		"json array":                       {"json:a", key.Message{Payload: []byte(`{"a":[1]}`)}, "", key.ErrNotScalar},
		"not json":                         {"json:a", key.Message{Payload: []byte("\x00\x01\xff")}, "", key.ErrMissing},
		"no payload":                       {"json:a", key.Message{}, "", key.ErrMissing},
		"json too long":                    {"json:a", key.Message{Payload: []byte(`{"a":"` + strings.Repeat("k", event.KeyMax+1) + `"}`)}, "", key.ErrTooLong},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := parse(t, c.spec, key.Reject).Extract(&c.msg)
			if string(got) != string(c.want) || !errors.Is(err, c.err) {
				t.Errorf("Extract = %q, %v; want %q, %v", string(got), err, string(c.want), c.err)
			}
		})
	}
}

func TestSpreadGivesEachEventItsOwnKeyAndItsCopyTheSame(t *testing.T) {
	x := parse(t, "json:user", key.Spread)
	first := key.Message{ID: event.MessageID{Ledger: 1, Entry: 2, Batch: 3, TopicPartition: 0}, Payload: []byte(`{"user":{}}`)}
	second := first
	second.ID.Batch = 4
	a, errA := x.Extract(&first)
	b, errB := x.Extract(&second)
	again, errC := x.Extract(&key.Message{ID: first.ID})
	if err := errors.Join(errA, errB, errC); err != nil {
		t.Fatal(err)
	}
	if a == b || a != again {
		t.Errorf("keys %q, %q, %q; want two different ones, and the first again", string(a), string(b), string(again))
	}
	if want := "\x00id:1:2:3"; string(a) != want { // the same at members of all versions, and none that people choose
		t.Errorf("the key is %q, want %q", string(a), want)
	}
	if _, err := x.Extract(&key.Message{Payload: []byte(`{"user":"` + strings.Repeat("k", event.KeyMax+1) + `"}`)}); !errors.Is(err, key.ErrTooLong) {
		t.Errorf("a key that is too long gave %v, want ErrTooLong: it has a key, so it may not be spread", err)
	}
}

func TestParseSaysWhatIsWrong(t *testing.T) {
	cases := map[string]string{
		"messagekey":    "want message_key, property:NAME or json:PATH",
		"message_key:x": "takes no name",
		"property":      "want property:NAME",
		"property:":     "want property:NAME",
		"json":          "empty path",
		"json:":         "empty path",
		"json:a..b":     "empty name",
		"json:.a":       "empty name",
		"json:a.":       "empty name",
		`json:a\`:       "ends in a backslash",
		"json:a.#.b":    "meaning of its own",
		"json:*":        "meaning of its own",
		"json:@reverse": "meaning of its own",
		"json:a|b":      "meaning of its own",
		"json:$.a":      "not the document",
		"json:$":        "not the document",
		"json:" + strings.TrimSuffix(strings.Repeat("a.", 33), "."): "33 names",
	}
	for spec, want := range cases {
		if _, err := key.Parse(spec, key.Reject); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Parse(%q) = %v, want an error with %q", spec, err, want)
		}
	}
	if _, err := key.Parse("message_key", 0); err == nil {
		t.Error("Parse accepted an unknown policy")
	}
}

func TestPolicies(t *testing.T) {
	for word, want := range map[string]key.Missing{"reject": key.Reject, "spread": key.Spread} {
		if got, err := key.ParseMissing(word); got != want || err != nil {
			t.Errorf("ParseMissing(%q) = %v, %v", word, got, err)
		}
	}
	if _, err := key.ParseMissing("drop"); err == nil {
		t.Error("ParseMissing accepted drop")
	}
}

// A document of any depth is read in linear time and on a flat stack: five million
// brackets would overflow a stack that grew with them.
func TestDepthIsHarmless(t *testing.T) {
	const deep = 5 << 20
	payloads := map[string]string{
		"arrays open":       strings.Repeat("[", deep),
		"objects open":      strings.Repeat(`{"a":`, deep/5),
		"deep before key":   `{"x":` + strings.Repeat("[", deep) + strings.Repeat("]", deep) + `,"user":"u"}`,
		"deep at the key":   `{"user":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `}`,
		"nested named path": strings.Repeat(`{"user":`, 10_000) + "1" + strings.Repeat("}", 10_000),
	}
	for name, payload := range payloads {
		t.Run(name, func(t *testing.T) {
			for _, spec := range []string{"json:user", "json:a.a.a.user", "json:0.0.user"} {
				started := time.Now()
				got, err := parse(t, spec, key.Reject).Extract(&key.Message{Payload: []byte(payload)})
				if took := time.Since(started); took > 5*time.Second {
					t.Errorf("%s took %v", spec, took)
				}
				if name == "deep before key" && spec == "json:user" && (got != "u" || err != nil) {
					t.Errorf("Extract = %q, %v; want u", string(got), err)
				}
			}
		})
	}
}

func TestTheKeyDoesNotAliasThePayload(t *testing.T) {
	payload := []byte(`{"user":"abc"}`)
	k, err := parse(t, "json:user", key.Reject).Extract(&key.Message{Payload: payload})
	if err != nil {
		t.Fatal(err)
	}
	for i := range payload {
		payload[i] = 'z'
	}
	if k != "abc" {
		t.Errorf("the key changed with the payload: %q", string(k))
	}
}

func FuzzExtract(f *testing.F) {
	f.Add("json:user.id", "k", "o", []byte(`{"user":{"id":"x"}}`))
	f.Add("json:a.0", "", "", []byte(`{"a":[1,2,{"b":"\ud800"}]}`))
	f.Add("json:a", "", "", []byte(`{"a":"\u12`))
	f.Add("property:p", "", "", []byte(nil))
	f.Add("message_key", "\xff", "", []byte("[[[["))
	f.Fuzz(func(t *testing.T, spec, messageKey, orderingKey string, payload []byte) {
		reject, err := key.Parse(spec, key.Reject)
		if err != nil {
			return
		}
		m := key.Message{
			MessageKey: messageKey, OrderingKey: orderingKey, Payload: payload,
			Properties: []event.Property{{Name: "p", Value: messageKey}},
		}
		k, err := reject.Extract(&m)
		if again, errAgain := reject.Extract(&m); again != k || !errors.Is(errAgain, err) {
			t.Fatalf("two keys for one message: %q, %v and %q, %v", string(k), err, string(again), errAgain)
		}
		if err == nil && (len(k) == 0 || len(k) > event.KeyMax) || err != nil && k != "" {
			t.Fatalf("key of %d bytes with error %v", len(k), err)
		}
		spread := parse(t, spec, key.Spread)
		if s, errSpread := spread.Extract(&m); err == nil && s != k || errSpread == nil && s == "" {
			t.Fatalf("spread changed the key %q to %q, %v", string(k), string(s), errSpread)
		}
	})
}

func BenchmarkExtract(b *testing.B) {
	m := key.Message{
		MessageKey: "user-12345",
		Properties: []event.Property{{Name: "a", Value: "b"}, {Name: "user", Value: "user-12345"}},
		Payload:    []byte(`{"type":"click","at":1700000000,"tags":["a","b"],"user":{"name":"n","id":"user-12345"},"rest":"` + strings.Repeat("x", 150) + `"}`),
	}
	for _, spec := range []string{"message_key", "property:user", "json:user.id"} {
		x := parse(b, spec, key.Reject)
		b.Run(spec, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if k, err := x.Extract(&m); len(k) != 10 || err != nil {
					b.Fatal(string(k), err)
				}
			}
		})
	}
}

func ExampleParse() {
	x, err := key.Parse("json:user.id", key.Reject)
	if err != nil {
		fmt.Println(err)
		return
	}
	k, err := x.Extract(&key.Message{Payload: []byte(`{"user":{"id":"alice"}}`)})
	fmt.Println(string(k), err)
	// Output: alice <nil>
}

// The key of a timer is that of its sender, whatever the settings say of producers' messages.
func TestKeysOfTimers(t *testing.T) {
	sent := event.Sent{Key: "user-\xff", Due: 5}
	m := key.Message{MessageKey: "another", Payload: []byte(`{"id":"third"}`), ID: event.SentMessageID(sent.Key, "id", "1"), Properties: sent.Properties(nil)}
	for _, spec := range []string{"message_key", "json:id", "property:absent"} {
		x, err := key.Parse(spec, key.Reject)
		if err != nil {
			t.Fatal(err)
		}
		if k, err := x.Extract(&m); err != nil || k != sent.Key {
			t.Errorf("%s: %q, %v", spec, string(k), err)
		}
	}
	x, err := key.Parse("message_key", key.Reject)
	if err != nil {
		t.Fatal(err)
	}
	m.ID = event.MessageID{Ledger: 7, Entry: 8, Batch: -1, TopicPartition: -1} // a producer's message with such properties
	if k, err := x.Extract(&m); err != nil || k != "another" {
		t.Errorf("of a producer: %q, %v", string(k), err)
	}
}
