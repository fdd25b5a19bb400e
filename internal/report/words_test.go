package report

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// TestWords: each thing that a key can wait for has words of its own, and whatever a member reports has some.
func TestWords(t *testing.T) {
	seen := map[string]string{}
	for _, wait := range []string{"handler", "retry", "gate", "worker", "slot", "hold", "park", "a later release's"} {
		at := KeyAt{Wait: wait, Worker: 7, RetryIn: 2, Seconds: 65, Age: 70, Event: "7:8:-1:-1", Failures: 2, Queued: 3}
		words := at.Words()
		if len(words) != 1 || !strings.HasSuffix(words[0], "for 1m5s; event 7:8:-1:-1 came 1m10s ago, failed 2 times; 3 more wait behind it") {
			t.Errorf("%s: %q", wait, words)
		}
		if before, known := seen[words[0]]; known {
			t.Errorf("%s and %s have the same words", before, wait)
		}
		seen[words[0]] = wait
	}
	for want, at := range map[string]KeyAt{
		"waits for the handler (worker 7), for 2s; a call came 3s ago; 1 event waits behind it|a call runs":                                        {Wait: "handler", Worker: 7, Seconds: 2, Age: 3, Call: true, Queued: 1},
		"waits for the handler (worker 7), for 2s; a call came 3s ago; 0 events wait behind it|a call runs, 2 calls or reservations wait":          {Wait: "handler", Worker: 7, Seconds: 2, Age: 3, Call: true, Calls: 2},
		"is reserved, for 2s; 1 event waits behind it|2 calls or reservations wait":                                                                {Wait: "handler", Seconds: 2, Age: 3, Call: true, Calls: 2, Queued: 1},
		"waits for its gate, for 2s; a call came 3s ago; 0 events wait behind it|1 call or reservation waits":                                      {Wait: "gate", Seconds: 2, Age: 3, Call: true, Calls: 1},
		"waits for the handler (worker 7), for 2s; event 7:8:-1:-1 came 3s ago, failed 1 time; 0 more wait behind it":                              {Wait: "handler", Worker: 7, Seconds: 2, Age: 3, Event: "7:8:-1:-1", Failures: 1},
		"waits for the handler (worker 7), for 2s; event 7:8:-1:-1 came 3s ago, failed 0 times; 0 more wait behind it|1 call or reservation waits": {Wait: "handler", Worker: 7, Seconds: 2, Age: 3, Event: "7:8:-1:-1", Calls: 1},
	} {
		if got := strings.Join(at.Words(), "|"); got != want {
			t.Errorf("of calls: %q, want %q", got, want)
		}
	}
	idle := KeyAt{Gate: "closed", Wait: WaitsForNothing, NoApplication: true}
	if got, want := idle.Words(), []string{"no event of it waits or runs here; gate closed", "no application is connected: without one this member takes no events from the broker"}; !slices.Equal(got, want) {
		t.Errorf("without an application: %q, want %q", got, want)
	}
	if got := (&KeyAt{Wait: "worker", NoApplication: true}).Words(); len(got) != 1 {
		t.Errorf("a key that waits for an application: %q", got)
	}
	failed := KeyAt{Wait: "retry", Seconds: 1, RetryIn: 2, Age: 3, Event: "7:8:-1:-1", Failures: 4, LastError: "no stock\x1b[31m"}
	if got, want := strings.Join(failed.Words(), "|"), "waits for its next attempt, due in 2s, for 1s; event 7:8:-1:-1 came 3s ago, failed 4 times; 0 more wait behind it|"+
		`its newest failure: "no stock\x1b[31m"`; got != want {
		t.Errorf("of a failed event: %q, want %q", got, want)
	}
	if got, want := (&ListedKey{Wait: "handler", Worker: 7, Call: true, Method: "pay", Calls: 2}).Reason(), "the handler (worker 7); a call of pay runs, 2 calls or reservations wait"; got != want {
		t.Errorf("of a list: %q, want %q", got, want)
	}
	if got, want := (&ListedKey{Wait: "handler", Call: true}).Reason(), "the end of its reservation"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	reserved := KeyAt{
		Wait: "handler", Call: true, Seconds: 12, Via: "pod-2", Queued: 1, Calls: 4, Reservation: &Reservation{Token: 17, Turn: 3, Left: 1.4},
		Waiting: []Waiting{{Method: "pay", Via: "pod-1", Seconds: 3, Left: 7, Callers: 2}, {Seconds: 2, Left: 60, Callers: 1}},
	}
	if got, want := strings.Join(reserved.Words(), "|"), "is reserved, for 12s, through pod-2, fence 17.3; it ends in 1.4s unless its holder renews it; 1 event waits behind it|4 calls or reservations wait|"+
		"a call of pay, made at pod-1, has waited for 3s and waits for 7s more; 2 callers want its answer|a reservation has waited for 2s and waits for 1m0s more|2 more of these are not listed"; got != want {
		t.Errorf("of a reserved key: %q, want %q", got, want)
	}
	runs := KeyAt{Wait: "handler", Call: true, Worker: 7, Method: "pay", Via: "pod-2", CallerWaits: 8, Seconds: 2, Age: 3}
	if got, want := strings.Join(runs.Words(), "|"), "waits for the handler (worker 7), for 2s; a call of pay, made at pod-2, whose caller waits for 8s more, came 3s ago; 0 events wait behind it|a call runs"; got != want {
		t.Errorf("of a running call: %q, want %q", got, want)
	}
	at := KeyAt{
		Wait: WaitsForNothing, Gate: "waiting", Hold: &Hold{By: "alice", Reason: "INC-7", Until: time.Unix(60, 0)}, Skips: []Skip{{Event: "7:9:-1:-1", By: "bob", Reason: "pill", ID: "f00d"}}, MoreSkips: 2,
		Blockers: []Blocker{{Member: "pod-1", Start: "7:1", Seconds: 3}, {Start: "6:1", Seconds: 4}, {Seconds: 5}}, Held: []Held{{Place: "sent", With: "pod-2", Events: 2, Seconds: 1}},
	}
	want := []string{
		`held until 1970-01-01 00:01:00 UTC by alice because "INC-7", since 0001-01-01 00:00:00 UTC`,
		`event 7:9:-1:-1 has not come to its end; skipped by bob because "pill", until 0001-01-01 00:00:00 UTC (act f00d)`,
		"2 older skips are in effect: see router acts",
		"the gate waits for pod-1, the owner since 7:1: until it says that nothing runs, or for 3s of silence",
		"the gate waits for leases of the group's earlier log to expire, for at most 4s",
		"the gate waits for this member's own application, which still works under an earlier tenure",
		"holds 2 events that it has received: with pod-2, the oldest for 1s",
	}
	if got := at.Words(); !slices.Equal(got, want) {
		t.Errorf("%q, want\n%q", got, want)
	}
	if got := (&KeyAt{Wait: WaitsForNothing, Gate: "open"}).Words(); !slices.Equal(got, []string{"no event of it waits or runs here; gate open"}) {
		t.Errorf("of nothing: %q", got)
	}
	if got := (&KeyAt{Error: "no answer", Wait: "gate"}).Words(); got != nil {
		t.Errorf("of a silent member: %q", got)
	}
}
