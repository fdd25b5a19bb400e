package outcome

import (
	"cmp"

	"github.com/ringfence/router/internal/base/event"
)

// CallOutcome is the consequence of a result for its call.
type CallOutcome struct {
	Again  bool        // it waits on, here or at the next owner; the other fields are not set
	Reply  event.Reply // otherwise
	Reason string      // why there is no reply, as Outcome.Reason
}

// OfCall maps the result of a call's delivery to the call's outcome. once says that the call must not run twice, wanted that somebody
// still waits for it and its time is not up. Unlike an event, a call is never tried again after it has failed, and a crash ends it even if it may
// run twice: it may be the cause.
func OfCall(once, wanted bool, r *event.Result) CallOutcome {
	var sent event.CallReply
	if r.Reply != nil {
		sent = *r.Reply
	}
	end := func(outcome event.CallOutcome, code, reason string) CallOutcome {
		return CallOutcome{Reply: event.Reply{Outcome: outcome, Code: code}, Reason: clip(reason)}
	}
	switch r.Kind {
	case event.ResultDone:
		if len(sent.Payload) > event.CallPayloadMax {
			return end(event.CallFailed, event.CodeTooLarge, "the reply is larger than 1 MiB")
		}
		return CallOutcome{Reply: event.Reply{Outcome: event.CallReplied, Payload: sent.Payload}}
	case event.ResultNotStarted, event.ResultPutOff, event.ResultHandedOver:
		switch {
		case sent.Code == event.CodeNoHandler, sent.Code == event.CodeTooLarge:
			return end(event.CallNotRun, sent.Code, cmp.Or(r.Reason, "the worker of the key has no handler of this method"))
		case wanted:
			return CallOutcome{Again: true}
		}
		return end(event.CallNotRun, event.CodeTimeout, "its time was up before it could begin")
	case event.ResultCancelled, event.ResultLost:
		if r.Kind == event.ResultLost && sent.Code == event.CodeNotCovered { // the router says so: nothing runs of a reservation but its holder
			return end(event.CallNotRun, sent.Code, r.Reason)
		}
		if !once && wanted {
			return CallOutcome{Again: true}
		}
		return end(event.CallUnknown, "", "its handler was cancelled, or lost its key")
	case event.ResultCrashed:
		return end(event.CallUnknown, "", "its worker crashed")
	case event.ResultRetry, event.ResultReject:
	}
	if r.TimedOut {
		return end(event.CallUnknown, "", r.Reason)
	}
	if len(sent.Code) > event.CallCodeMax {
		sent.Code = ""
	}
	return end(event.CallFailed, sent.Code, r.Reason)
}
