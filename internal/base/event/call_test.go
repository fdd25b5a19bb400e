package event_test

import (
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

// All repeats of a call have one message id, which no other call has and no broker gives.
func TestCallMessageID(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 8, -1)
		key, id := event.Key(text.Draw(t, "key")), text.Draw(t, "id")
		nonce, other := rapid.Uint64().Draw(t, "nonce"), rapid.Uint64().Draw(t, "other nonce")
		m := event.CallMessageID(key, id, nonce)
		if !m.IsCall() || m.Entry < 0 || m.Ledger < 0 || m.Batch != -1 || m.TopicPartition != -1 {
			t.Fatalf("the id %+v", m)
		}
		if m != event.CallMessageID(key, id, nonce) || id != "" && m != event.CallMessageID(key, id, other) {
			t.Fatal("a repeat has another id")
		}
		if id == "" && nonce != other && m == event.CallMessageID(key, id, other) {
			t.Fatal("two calls without an id of their callers have one")
		}
		if m == event.CallMessageID(key+"x", id, nonce) || m == event.CallMessageID(key, id+"x", nonce) {
			t.Fatal("two calls have one id")
		}
		if key != "" && m == event.CallMessageID(key[:len(key)-1], string(key[len(key)-1:])+id, nonce) {
			t.Fatal("a byte of the key counts as one of the id")
		}
		if s := m.String(); !strings.HasPrefix(s, "call:") || len(s) != len("call:")+16 {
			t.Fatalf("it reads %s", s)
		}
		if _, err := event.ParseMessageID(m.String()); err == nil {
			t.Fatal("it can be parsed: an operator could name a call as if it was an event")
		}
	})
	for _, id := range []event.MessageID{{}, {Ledger: -1}, {Ledger: 1<<62 - 1, Entry: 1<<63 - 1}} {
		if id.IsCall() {
			t.Errorf("%+v counts as the id of a call", id)
		}
	}
}

func TestCallCheck(t *testing.T) {
	long := strings.Repeat("m", event.CallMethodMax)
	tests := map[string]struct {
		call    event.Call
		payload int
		want    string // of the error; "": none
	}{
		"least":                       {call: event.Call{Method: "m"}},
		"most":                        {call: event.Call{Method: long, ID: strings.Repeat("i", event.CallIDMax), Path: make([]partition.KeyHash, event.CallPathMax)}, payload: event.CallPayloadMax},
		"all characters":              {call: event.Call{Method: "azAZ09._-"}},
		"no method":                   {want: "method"},
		"a long method":               {call: event.Call{Method: long + "m"}, want: "method"},
		"a slash":                     {call: event.Call{Method: "a/b"}, want: "method"},
		"a space":                     {call: event.Call{Method: "a b"}, want: "method"},
		"not ASCII":                   {call: event.Call{Method: "é"}, want: "method"},
		"a long id":                   {call: event.Call{Method: "m", ID: strings.Repeat("i", event.CallIDMax+1)}, want: "an id of 129 bytes"},
		"a long path":                 {call: event.Call{Method: "m", Path: make([]partition.KeyHash, event.CallPathMax+1)}, want: "a call behind 9 others"},
		"a large payload":             {call: event.Call{Method: "m"}, payload: event.CallPayloadMax + 1, want: "a payload of 1048577 bytes"},
		"a reservation":               {call: event.Call{Reservation: true, ID: "i"}},
		"one with the least ttl":      {call: event.Call{Reservation: true, ID: "i", TTL: event.TTLLeast}},
		"one with the longest":        {call: event.Call{Reservation: true, ID: "i", TTL: event.TTLMost}},
		"one with a shorter ttl":      {call: event.Call{Reservation: true, ID: "i", TTL: event.TTLLeast - 1}, want: "a ttl of"},
		"one with a longer ttl":       {call: event.Call{Reservation: true, ID: "i", TTL: event.TTLMost + 1}, want: "a ttl of"},
		"one with a ttl below 0":      {call: event.Call{Reservation: true, ID: "i", TTL: -1}, want: "a ttl of"},
		"a ttl of a call":             {call: event.Call{Method: "m", TTL: event.TTLLeast}, want: "a ttl of"},
		"a reservation of a method":   {call: event.Call{Reservation: true, ID: "i", Method: "m"}, want: "a reservation with"},
		"a reservation without an id": {call: event.Call{Reservation: true}, want: "a reservation with"},
		"one with a payload":          {call: event.Call{Reservation: true, ID: "i"}, payload: 1, want: "a reservation with"},
		"a hostile method":            {call: event.Call{Method: strings.Repeat("\n", 1<<20)}, want: "method"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := test.call.Check(test.payload)
			if (err == nil) != (test.want == "") || err != nil && (!strings.HasPrefix(err.Error(), test.want) || len(err.Error()) > 1000) {
				t.Errorf("error = %v, want %q", err, test.want)
			}
		})
	}
	if !(&event.Call{}).Once() || (&event.Call{ID: "i"}).Once() {
		t.Error("a call must not run twice if and only if it has no id")
	}
}

// The clone of a call shares no memory with it, and its size counts.
func TestCloneOfACall(t *testing.T) {
	ev := event.Event{Key: "k", Payload: []byte("p"), Call: &event.Call{Method: "method", ID: "id", Deadline: 7, Path: []partition.KeyHash{1, 2}}}
	ev.Properties = []event.Property{{Name: "n", Value: "v"}, {Name: "m", Value: "w"}}
	c := ev.Clone()
	if &c.Properties[0] == &ev.Properties[0] {
		t.Error("the clone shares its properties")
	}
	if !reflect.DeepEqual(&ev, c) || c.Call == ev.Call || &c.Call.Path[0] == &ev.Call.Path[0] {
		t.Errorf("the clone %+v of %+v", c.Call, ev.Call)
	}
	without := ev
	without.Call = nil
	if more := ev.Bytes() - without.Bytes(); more < len("method")+len("id")+16 {
		t.Errorf("a call weighs %d bytes", more)
	}
}

// Outcomes have the numbers of the wire, and only those of this node's verdicts end a call.
func TestVerdictsOnCalls(t *testing.T) {
	names := map[event.CallOutcome]string{0: "unspecified", event.CallReplied: "replied", event.CallFailed: "failed", event.CallNotRun: "not_run", event.CallUnknown: "unknown", event.CallDoneBefore: "done_before", 6: "unspecified"}
	for o, want := range names {
		if o.String() != want {
			t.Errorf("outcome %d is %s, want %s", uint8(o), o, want)
		}
	}
	if !event.Answered.Final() {
		t.Error("an answer leaves its call open")
	}
	notRun, unknown := event.NotRun(5, event.CodeCycle, "why"), event.Unknown(5, "why")
	for _, v := range []event.Verdict{notRun, unknown} {
		if v.Handle != 5 || v.Kind != event.Answered || v.Detail.Reason != "why" {
			t.Errorf("verdict %+v", v)
		}
	}
	if r := notRun.Detail.Reply; r.Outcome != event.CallNotRun || r.Code != event.CodeCycle {
		t.Errorf("reply %+v", r)
	}
	if r := unknown.Detail.Reply; r.Outcome != event.CallUnknown || r.Code != "" {
		t.Errorf("reply %+v", r)
	}
}
