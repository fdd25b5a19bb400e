package mailbox

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/ownership"
	"github.com/ringfence/router/ring"
)

// awaiting are mailboxes with one key, which can wait for the holder of a covered reservation.
type awaiting struct {
	*Boxes
	t     *testing.T
	key   event.Key
	now   clock.Instant
	lease ownership.Lease
	token ownership.Token
}

func newAwaiting(t *testing.T) *awaiting {
	a := &awaiting{New(modelConfig, modelRetry, "me"), t, "key", clock.Instant(time.Hour), ownership.Lease{Until: clock.Forever}, 1}
	a.SetCovers(true)
	a.WorkerUp(a.now, 1, new(Output))
	return a
}

func callID(id string) event.MessageID { return event.CallMessageID("key", id, 0) }

// gate sets the gate of the key, which waits for the reservation of that id; "": for none; "?": for one of which nobody knows.
func (a *awaiting) gate(g ownership.Gate, awaited string) []Answer {
	c := ownership.GateChange{Partition: ring.PartitionOf(string(a.key)), Gate: g, Token: a.token}
	if awaited != "" {
		held := ownership.ReservedKey{Key: ring.HashOf(string(a.key))}
		if awaited != "?" {
			held.ID = ownership.ReservationOf(callID(awaited))
		}
		c.Reserved = []ownership.ReservedKey{held}
	}
	var out Output
	a.SetGates(a.now, []ownership.GateChange{c}, event.Position{}, &out)
	return out.Answers
}

func (a *awaiting) accept(h event.Handle, id string, call *event.Call) []Answer {
	if call != nil && call.Deadline == 0 {
		call.Deadline = a.now.Add(time.Minute)
	}
	var out Output
	a.Accept(a.now, Local, event.Position{}, event.RefsTo(&event.Event{Handle: h, ID: callID(id), Key: a.key, Partition: ring.PartitionOf(string(a.key)), Call: call}), &out)
	return out.Answers
}

func reservation(id string, resume bool) *event.Call {
	return &event.Call{ID: id, Reservation: true, Resume: resume, TTL: event.TTLLeast}
}

func (a *awaiting) takes(w event.WorkerID) string {
	a.t.Helper()
	got := a.Take(a.now, a.lease, w, 5, nil)
	switch {
	case len(got) == 0:
		return ""
	case len(got) > 1:
		a.t.Fatalf("%d deliveries of a key", len(got))
	case got[0].Call() == nil:
		return "event"
	}
	return got[0].Call().ID
}

func codeIn(answers []Answer) string {
	if len(answers) != 1 || len(answers[0].Verdicts) != 1 {
		return ""
	}
	if r := answers[0].Verdicts[0].DetailOrZero().Reply; r != nil {
		return r.Code
	}
	return answers[0].Verdicts[0].Kind.String()
}

// A key that waits for the holder of a reservation is given to that one alone, before all that wait longer, and to the others when the wait ends.
func TestOnlyTheHolderMayResume(t *testing.T) {
	a := newAwaiting(t)
	a.gate(ownership.Waiting, "")
	a.accept(1, "e", nil)
	a.accept(2, "call", &event.Call{Method: "m", ID: "call"})
	a.accept(3, "other", reservation("other", false))
	if got := a.accept(4, "mine", reservation("mine", true)); len(got) > 0 {
		t.Fatalf("before the gate is open its holder is answered %+v", got)
	}
	a.gate(ownership.Open, "mine")
	if got := a.takes(1); got != "" {
		t.Fatalf("a worker gets %q", got)
	}
	if got := a.takes(event.Keeper); got != "mine" {
		t.Fatalf("the keeper gets %q", got)
	}
	d := a.find(a.visits.by[address{Local, 4}].delivery).delivery
	var out Output
	a.Finish(a.now, []event.Result{{Delivery: d, Kind: event.ResultLost}}, &out)
	if got := a.takes(event.Keeper) + a.takes(1); got != "" {
		t.Fatalf("while the key is awaited still, %q begins", got)
	}
	a.gate(ownership.Open, "")
	var order []string
	for range 3 {
		for _, w := range []event.WorkerID{1, event.Keeper} {
			if got := a.takes(w); got != "" {
				order = append(order, got)
				a.Finish(a.now, []event.Result{{Delivery: a.turnNow(), Kind: event.ResultDone}}, &out)
			}
		}
	}
	if len(order) != 3 {
		t.Errorf("afterwards %q run, want three", order)
	}
}

// turnNow returns the delivery of the key that runs.
func (a *awaiting) turnNow() event.DeliveryID {
	for actor := a.part(ring.PartitionOf(string(a.key))).actors; actor != nil; actor = actor.inPart.next {
		if actor.running != nil {
			return actor.running.delivery
		}
	}
	return 0
}

// Who says that it resumes and is not awaited is told that the reservation is over: at once if the gate is open, or when it opens.
func TestResumesThatCannot(t *testing.T) {
	for name, c := range map[string]struct {
		gate    ownership.Gate
		awaited string
		call    *event.Call
		now     string // the code at once
		later   string // and when the gate opens so
	}{
		"another is awaited":         {ownership.Open, "other", reservation("mine", true), event.CodeLost, ""},
		"nobody is":                  {ownership.Open, "", reservation("mine", true), event.CodeLost, ""},
		"one of two is":              {ownership.Open, "?", reservation("mine", true), event.CodeLost, ""},
		"the gate opens for another": {ownership.Waiting, "other", reservation("mine", true), "", event.CodeLost},
		"the gate opens for nobody":  {ownership.Waiting, "", reservation("mine", true), "", event.CodeLost},
		"a live one":                 {ownership.Waiting, "mine", &event.Call{ID: "mine", Reservation: true, Resume: true}, event.CodeLost, ""},
		"it may":                     {ownership.Waiting, "mine", reservation("mine", true), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAwaiting(t)
			if c.gate == ownership.Open {
				a.gate(c.gate, c.awaited)
			} else {
				a.gate(c.gate, "")
			}
			if got := codeIn(a.accept(1, "mine", c.call)); got != c.now {
				t.Fatalf("answered %q, want %q", got, c.now)
			}
			if got := codeIn(a.gate(ownership.Open, c.awaited)); got != c.later {
				t.Errorf("when the gate opens it is answered %q, want %q", got, c.later)
			}
		})
	}
}

// The calls that wait for a key take no place from a holder that comes back, who would lose the key: reservations alone bound it.
func TestResumeOfACrowdedKey(t *testing.T) {
	for _, g := range []ownership.Gate{ownership.Waiting, ownership.Open} {
		a := newAwaiting(t)
		a.gate(g, "mine")
		for h := range event.Handle(modelConfig.KeyCallsMax) {
			a.accept(h+1, fmt.Sprint(h), &event.Call{Method: "m", ID: fmt.Sprint(h)})
		}
		if got := codeIn(a.accept(50, "new", reservation("new", false))); got != event.Overloaded.String() {
			t.Errorf("gate %v: a new one is answered %q", g, got)
		}
		if got := codeIn(a.accept(60, "mine", reservation("mine", true))); got != "" {
			t.Errorf("gate %v: the holder is answered %q", g, got)
		}
	}
}

// A key that is parked or held goes on to a holder that comes back, who would lose it: its turn is not over. Others are refused, or wait.
func TestResumeOfAKeyThatAnOperatorStops(t *testing.T) {
	park := func(state event.ParkState) func(*awaiting, *Output) {
		return func(a *awaiting, out *Output) { a.Park(a.now, []event.Park{{Key: a.key, State: state}}, out) }
	}
	for name, c := range map[string]struct {
		stop func(*awaiting, *Output)
		code string // of a new reservation
	}{
		"parked":                {park(event.ParkOn), event.CodeParked},
		"its letters come back": {park(event.ParkEnds), event.CodeParked},
		"held":                  {func(a *awaiting, out *Output) { a.Hold(a.now, []event.Key{a.key}, out) }, ""},
	} {
		for _, g := range []ownership.Gate{ownership.Waiting, ownership.Open} {
			for _, before := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s, gate %v, before %t", name, g, before), func(t *testing.T) {
					a, out := newAwaiting(t), new(Output)
					a.gate(g, map[bool]string{true: "mine"}[g == ownership.Open])
					if before {
						c.stop(a, out)
					}
					if got := a.accept(1, "mine", reservation("mine", true)); len(got) > 0 {
						t.Fatalf("the holder is answered %+v", got)
					}
					if !before {
						c.stop(a, out)
					}
					if len(out.Answers) > 0 {
						t.Fatalf("the operator's act answers %+v", out.Answers)
					}
					if got := codeIn(a.accept(2, "new", reservation("new", false))); got != c.code {
						t.Errorf("a new one is answered %q, want %q", got, c.code)
					}
					a.gate(ownership.Open, "mine")
					if got := a.takes(event.Keeper); got != "mine" {
						t.Fatalf("the keeper gets %q", got)
					}
					a.Finish(a.now, []event.Result{{Delivery: a.turnNow(), Kind: event.ResultNotStarted}}, out) // its lease has ended meanwhile
					if got := a.takes(event.Keeper); got != "mine" || len(out.Answers) > 0 {
						t.Errorf("as it could not begin, the keeper gets %q next, and it is answered %+v", got, out.Answers)
					}
				})
			}
		}
	}
}

// TestResumesAreBoundedByTheirBytes: holders that come back pass the bound of bytes, and a peer that sends what no router does is refused.
func TestResumesAreBoundedByTheirBytes(t *testing.T) {
	a := newAwaiting(t)
	a.gate(ownership.Waiting, "")
	resume := func(h event.Handle, more int) string {
		var out Output
		call, id := reservation(strings.Repeat("i", event.CallIDMax), true), event.CallMessageID(a.key, fmt.Sprint(h), 0)
		call.Path = make([]ring.KeyHash, event.CallPathMax)
		a.Accept(a.now, 7, event.Position{}, event.RefsTo(&event.Event{
			Handle: h, ID: id, Key: a.key, Partition: ring.PartitionOf(string(a.key)), Call: call, FirstError: strings.Repeat("x", more),
		}), &out)
		return codeIn(out.Answers)
	}
	for h := range event.Handle(16) {
		if got := resume(h+1, event.KeyMax-len(a.key)); got != "" {
			t.Fatalf("holder %d, of as many bytes as one with the longest key, is answered %q", h, got)
		}
	}
	if a.bytes <= modelConfig.BytesMax {
		t.Fatalf("%d bytes are no more than %d", a.bytes, modelConfig.BytesMax)
	}
	if got := resume(50, 4<<20); got != event.Overloaded.String() {
		t.Errorf("one of 4 MiB is answered %q; %d bytes wait", got, a.bytes)
	}
}

// A resume waits until its gate opens, however long ago its first wait ended; then the wait of the key ends.
func TestResumeOutlastsItsWait(t *testing.T) {
	a := newAwaiting(t)
	a.gate(ownership.Waiting, "")
	call := reservation("mine", true)
	call.Deadline = a.now.Add(-time.Hour)
	a.accept(1, "mine", call)
	a.now = a.now.Add(event.TTLMost)
	var out Output
	a.Tick(a.now, &out)
	a.gate(ownership.Open, "mine")
	if got := a.takes(event.Keeper); got != "mine" || len(out.Answers) > 0 {
		t.Errorf("the keeper gets %q, and it is answered %+v", got, out.Answers)
	}
}

// A covered reservation whose key moves goes to the next owner at once; nothing of it is left here.
func TestHandedOverGoesToTheNextOwner(t *testing.T) {
	a := newAwaiting(t)
	a.gate(ownership.Open, "")
	a.accept(1, "mine", reservation("mine", false))
	if a.takes(event.Keeper) != "mine" {
		t.Fatal("it does not begin")
	}
	d := a.turnNow()
	a.Grant(d, event.Grant{Fence: event.Fence{Token: 1, Turn: 1}}, new(Output))
	a.gate(ownership.Closed, "")
	var out Output
	a.Finish(a.now, []event.Result{{Delivery: d, Kind: event.ResultHandedOver}}, &out)
	if got := codeIn(out.Answers); got != event.NotOwner.String() || len(a.Busy(ring.PartitionOf(string(a.key)))) > 0 || len(a.visits.state) != 0 {
		t.Errorf("answered %q, busy %v, %d visits", got, a.Busy(ring.PartitionOf(string(a.key))), len(a.visits.state))
	}
}

// A group that cannot cover refuses a ttl, and no other reservation.
func TestTTLIsRefusedWithoutCover(t *testing.T) {
	a := newAwaiting(t)
	a.gate(ownership.Open, "")
	a.SetCovers(false)
	if got := codeIn(a.accept(1, "mine", reservation("mine", false))); got != event.CodeNotCovered {
		t.Errorf("answered %q", got)
	}
	if got := a.accept(2, "live", &event.Call{ID: "live", Reservation: true}); len(got) > 0 {
		t.Errorf("a live one is answered %+v", got)
	}
}
