package outcome

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ringfence/router/internal/base/event"
)

func TestOfCall(t *testing.T) {
	const again = event.CallOutcome(0)
	reply := func(payload, code string) *event.CallReply {
		return &event.CallReply{Payload: []byte(payload), Code: code}
	}
	tests := map[string]struct {
		result           event.Result
		once, unwanted   bool
		want             event.CallOutcome // again: it waits on
		code, reason, of string            // of: the payload
	}{
		"a reply":                               {result: event.Result{Kind: event.ResultDone, Reply: reply("r", "")}, want: event.CallReplied, of: "r"},
		"an empty reply":                        {result: event.Result{Kind: event.ResultDone}, want: event.CallReplied},
		"a reply for nobody":                    {result: event.Result{Kind: event.ResultDone, Reply: reply("r", "")}, unwanted: true, want: event.CallReplied, of: "r"}, // a repeat may ask for it
		"the largest reply":                     {result: event.Result{Kind: event.ResultDone, Reply: reply(strings.Repeat("r", event.CallPayloadMax), "")}, want: event.CallReplied, of: strings.Repeat("r", event.CallPayloadMax)},
		"too large a reply":                     {result: event.Result{Kind: event.ResultDone, Reply: reply(strings.Repeat("r", event.CallPayloadMax+1), "")}, want: event.CallFailed, code: event.CodeTooLarge, reason: "the reply is larger than 1 MiB"},
		"a failure":                             {result: event.Result{Kind: event.ResultRetry, Reason: "no", Reply: reply("", "odd")}, want: event.CallFailed, code: "odd", reason: "no"},
		"a rejection":                           {result: event.Result{Kind: event.ResultReject, Reason: "no"}, want: event.CallFailed, reason: "no"},
		"a failure's payload":                   {result: event.Result{Kind: event.ResultReject, Reply: reply("r", "odd")}, want: event.CallFailed, code: "odd"},
		"too long a code":                       {result: event.Result{Kind: event.ResultRetry, Reply: reply("", strings.Repeat("c", event.CallCodeMax+1))}, want: event.CallFailed},
		"timed out":                             {result: event.Result{Kind: event.ResultRetry, TimedOut: true, Reason: "slow"}, want: event.CallUnknown, reason: "slow"},
		"no handler":                            {result: event.Result{Kind: event.ResultNotStarted, Reason: "none", Reply: reply("", event.CodeNoHandler)}, want: event.CallNotRun, code: event.CodeNoHandler, reason: "none"},
		"no handler, no text":                   {result: event.Result{Kind: event.ResultNotStarted, Reply: reply("", event.CodeNoHandler)}, want: event.CallNotRun, code: event.CodeNoHandler, reason: "the worker of the key has no handler of this method"},
		"too large a call":                      {result: event.Result{Kind: event.ResultNotStarted, Reason: "large", Reply: reply("", event.CodeTooLarge)}, want: event.CallNotRun, code: event.CodeTooLarge, reason: "large"},
		"not started":                           {result: event.Result{Kind: event.ResultNotStarted}, once: true, want: again},
		"an application's code for not started": {result: event.Result{Kind: event.ResultNotStarted, Reply: reply("", "odd")}, want: again},
		"put off":                               {result: event.Result{Kind: event.ResultPutOff}, once: true, want: again},
		"not started, too late":                 {result: event.Result{Kind: event.ResultNotStarted}, unwanted: true, want: event.CallNotRun, code: event.CodeTimeout, reason: "its time was up before it could begin"},
		"cut, with an id":                       {result: event.Result{Kind: event.ResultCancelled}, want: again},
		"cut, without an id":                    {result: event.Result{Kind: event.ResultCancelled}, once: true, want: event.CallUnknown, reason: "its handler was cancelled, or lost its key"},
		"cut for its caller":                    {result: event.Result{Kind: event.ResultCancelled}, unwanted: true, want: event.CallUnknown, reason: "its handler was cancelled, or lost its key"},
		"lost, with an id":                      {result: event.Result{Kind: event.ResultLost}, want: again},
		"lost, without an id":                   {result: event.Result{Kind: event.ResultLost}, once: true, want: event.CallUnknown, reason: "its handler was cancelled, or lost its key"},
		"a crash ends it":                       {result: event.Result{Kind: event.ResultCrashed}, want: event.CallUnknown, reason: "its worker crashed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := OfCall(test.once, !test.unwanted, &test.result)
			if got.Again != (test.want == again) || got.Reply.Outcome != test.want || got.Reply.Code != test.code || got.Reason != test.reason || string(got.Reply.Payload) != test.of {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// Whatever a worker says, a call that may have begun does not count as one that has not run, one that must not run twice is not tried again
// after it may have begun, and nothing is told that is too long.
func TestOfCallIsHonest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := event.Result{
			Kind: event.ResultKind(rapid.IntRange(0, 10).Draw(t, "kind")), TimedOut: rapid.Bool().Draw(t, "timed out"),
			Reason: strings.Repeat("é", rapid.SampledFrom([]int{0, 1, 5000}).Draw(t, "reason")),
		}
		if rapid.Bool().Draw(t, "reply") {
			r.Reply = &event.CallReply{Payload: []byte("r"), Code: rapid.SampledFrom([]string{"", "odd", event.CodeNoHandler, event.CodeTimeout, event.CodeNotCovered, strings.Repeat("c", 65)}).Draw(t, "code")}
		}
		once, wanted := rapid.Bool().Draw(t, "once"), rapid.Bool().Draw(t, "wanted")
		o := OfCall(once, wanted, &r)
		notStarted := r.Kind == event.ResultNotStarted || r.Kind == event.ResultPutOff || r.Kind == event.ResultHandedOver
		if r.Kind == event.ResultLost && r.Reply != nil && r.Reply.Code == event.CodeNotCovered {
			if o.Again || o.Reply.Outcome != event.CallNotRun || o.Reply.Code != event.CodeNotCovered {
				t.Fatalf("a reservation that was not covered: %+v", o)
			}
			return
		}
		switch {
		case o.Again && (!wanted || once && !notStarted):
			t.Fatalf("it is tried again: %+v", o)
		case !o.Again && (o.Reply.Outcome == event.CallNotRun) != notStarted:
			t.Fatalf("not run: %+v", o)
		case !o.Again && (o.Reply.Outcome < event.CallReplied || o.Reply.Outcome > event.CallUnknown):
			t.Fatalf("no outcome: %+v", o)
		case len(o.Reply.Code) > event.CallCodeMax || len(o.Reason) > 4096:
			t.Fatalf("%d and %d bytes of text", len(o.Reply.Code), len(o.Reason))
		}
	})
}
