package lane

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/base/partition"
)

// keyOwner notes what it is asked for, and answers nothing by itself, but that somebody has given up.
type keyOwner struct {
	lane *Lane

	mu      sync.Mutex // guards gone and forgot
	calls   []*event.Event
	gone    []event.Handle
	forgot  []event.Handle
	renewed []event.Renewal

	beforeGone func() // called before an answer to GiveUp; nil: nothing
}

func (o *keyOwner) Call(call *event.Event) { o.calls = append(o.calls, call) }

func (o *keyOwner) GiveUp(h event.Handle) {
	o.mu.Lock()
	o.gone = append(o.gone, h)
	before := o.beforeGone
	o.mu.Unlock()
	if before != nil {
		before()
	}
	o.lane.Answered([]event.Verdict{event.NotRun(h, event.CodeTimeout, "its time was up")})
}

func (o *keyOwner) RenewReservation(r event.Renewal) { o.renewed = append(o.renewed, r) }
func (o *keyOwner) ForgetReservation(reserved event.Handle) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.forgot = append(o.forgot, reserved)
}

func newKeyOwner(most int) *keyOwner {
	o := new(keyOwner)
	config := DefaultConfig()
	config.ReservationsMax = most
	o.lane = New(config, o, nil, clock.Now, NewMetrics(prometheus.NewRegistry()))
	return o
}

var anID = strings.Repeat("i", 16)

func (o *keyOwner) reserve(t *testing.T, wait time.Duration) *Reservation {
	t.Helper()
	r, err := o.lane.Reserve(Ask{Key: "k", ID: anID, Wait: wait})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (o *keyOwner) grant(r *Reservation, g event.Grant) {
	o.lane.Answered([]event.Verdict{{Handle: r.handle, Kind: event.Granted, Detail: &event.Detail{Grant: &g}}})
}

// news reports whether there is something for Next.
func news(r *Reservation) bool {
	select {
	case <-r.news:
		return true
	default:
		return false
	}
}

func TestAskCheck(t *testing.T) {
	for name, ask := range map[string]Ask{
		"no key":      {ID: anID},
		"a long key":  {Key: event.Key(strings.Repeat("k", event.KeyMax+1)), ID: anID},
		"no id":       {Key: "k"},
		"a short id":  {Key: "k", ID: anID[1:]},
		"a long id":   {Key: "k", ID: anID + "i"},
		"no time":     {Key: "k", ID: anID, Wait: -1},
		"a long wait": {Key: "k", ID: anID, Wait: WaitMax + 1},
		"a long path": {Key: "k", ID: anID, Path: make([]partition.KeyHash, event.CallPathMax+1)},
	} {
		o := newKeyOwner(1)
		if _, err := o.lane.Reserve(ask); !errors.Is(err, ErrRequest) || len(o.calls) > 0 || o.lane.Stats().Calls > 0 {
			t.Errorf("%s: error %v, want one of the request; %d asks were sent", name, err, len(o.calls))
		}
	}
}

// An ask is a call without a method, by which all its repeats are known, and its wait is at least as long as an owner takes to answer.
func TestReserveAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct{ wait, want time.Duration }{{0, 100 * time.Millisecond}, {time.Minute, time.Minute}} {
			o := newKeyOwner(2)
			now := clock.Now()
			first := o.reserve(t, test.wait)
			again, err := o.lane.Reserve(Ask{Key: "k", ID: anID, Wait: test.wait, Resume: true, Path: []partition.KeyHash{7}})
			if err != nil {
				t.Fatal(err)
			}
			one, two := o.calls[0], o.calls[1]
			if !one.Call.Reservation || one.Call.Check(len(one.Payload)) != nil || one.Key != "k" || one.Partition != partition.HashOf("k").Partition() || one.Call.Resume {
				t.Errorf("the ask is %+v of %+v", one.Call, one)
			}
			if one.ID != two.ID || one.Handle == two.Handle || !two.Call.Resume || !slices.Equal(two.Call.Path, []partition.KeyHash{7}) {
				t.Errorf("the repeat is %+v of %+v", two.Call, two)
			}
			if got := one.Call.Deadline.Sub(now); got < test.want || got > test.want+time.Second {
				t.Errorf("a wait of %v is one of %v, want %v", test.wait, got, test.want)
			}
			first.Forget()
			again.Forget()
			if n := o.lane.Stats().Calls; n > 0 {
				t.Errorf("%d still wait", n)
			}
		}
	})
}

// A holder is told each thing once: the grant, the newest answer to its renewals, and the end.
func TestReservationTells(t *testing.T) {
	o := newKeyOwner(1)
	r := o.reserve(t, time.Minute)
	defer r.Forget()
	if news(r) {
		t.Fatal("there are news before an answer")
	}
	fence := event.Fence{Token: 3, Turn: 4}
	o.grant(r, event.Grant{Fence: fence, Remaining: time.Second})
	if !news(r) {
		t.Fatal("nobody hears of the grant")
	}
	if g, a, over := r.Next(); g == nil || *g != (event.Grant{Fence: fence, Remaining: time.Second}) || a != nil || over != nil {
		t.Fatalf("granted %+v, %+v, %+v", g, a, over)
	}
	r.Renew(1)
	r.Renew(2)
	if len(o.renewed) != 2 || o.renewed[1] != (event.Renewal{Handle: r.handle, Number: 2}) {
		t.Fatalf("renewed %+v", o.renewed)
	}
	for n := range uint64(2) {
		o.lane.Renewed([]event.Renewal{{Handle: r.handle, Number: n + 1, Permission: event.Permission{Remaining: time.Second}}, {Handle: r.handle + 100}})
	}
	if g, a, over := r.Next(); !news(r) || g != nil || a == nil || a.Number != 2 || over != nil {
		t.Fatalf("renewed: %+v, %+v, %+v", g, a, over)
	}
	o.grant(r, event.Grant{Fence: fence}) // its owner's stream broke, and it was resumed
	if g, a, over := r.Next(); !news(r) || g == nil || *g != (event.Grant{Fence: fence}) || a != nil || over != nil {
		t.Fatalf("resumed: %+v, %+v, %+v", g, a, over)
	}
	o.lane.Answered([]event.Verdict{event.Unknown(r.handle, "lost")})
	if g, a, over := r.Next(); !news(r) || g != nil || a != nil || over == nil || over.Outcome != event.CallUnknown || over.Text != "lost" {
		t.Fatalf("over: %+v, %+v, %+v", g, a, over)
	}
	r.Forget()
	if len(o.gone)+len(o.forgot) > 0 || o.lane.Stats().Calls > 0 {
		t.Errorf("given up %v, forgotten %v, after its end", o.gone, o.forgot)
	}
}

// A release is told as such, whatever the verdict of the owner is.
func TestReservationRelease(t *testing.T) {
	o := newKeyOwner(1)
	r := o.reserve(t, time.Minute)
	o.grant(r, event.Grant{Fence: event.Fence{Token: 1}})
	r.Release()
	if _, _, over := r.Next(); over == nil || over.Outcome != event.CallReplied || len(o.gone) != 1 {
		t.Errorf("over: %+v, given up %v", over, o.gone)
	}
	r.Forget()
	if len(o.gone) != 1 || len(o.forgot) != 0 {
		t.Errorf("given up %v, forgotten %v", o.gone, o.forgot)
	}
}

// A release of a reservation that is being resumed waits for the owner's answer: an owner that was not asked yet would not hear of it.
func TestReleaseBeforeTheOwnerHasAnswered(t *testing.T) {
	for _, granted := range []bool{true, false} {
		o := newKeyOwner(1)
		r, err := o.lane.Reserve(Ask{Key: "k", ID: anID, Wait: time.Minute, Resume: true})
		if err != nil {
			t.Fatal(err)
		}
		r.Release()
		if _, _, over := r.Next(); over != nil || len(o.gone) > 0 {
			t.Fatalf("over %+v, given up %v, before the owner has answered", over, o.gone)
		}
		if granted {
			o.grant(r, event.Grant{Fence: event.Fence{Token: 1}})
			r.Next()
		} else {
			o.lane.Answered([]event.Verdict{event.NotRun(r.handle, event.CodeLost, "the reservation is over")})
		}
		if _, _, over := r.Next(); over == nil || over.Outcome != event.CallReplied || (len(o.gone) == 1) != granted {
			t.Errorf("granted %t: over %+v, given up %v", granted, over, o.gone)
		}
		r.Forget()
	}
}

// The end of a stream ends a wait; a reservation that is held goes on at its owner.
func TestReservationForget(t *testing.T) {
	for _, granted := range []bool{false, true} {
		o := newKeyOwner(1)
		r := o.reserve(t, time.Minute)
		if granted {
			o.grant(r, event.Grant{Fence: event.Fence{Token: 1}})
			r.Next()
		}
		r.Forget()
		if gone, forgot := len(o.gone) == 1, len(o.forgot) == 1; gone == granted || forgot != granted || o.lane.Stats().Calls > 0 {
			t.Errorf("granted %t: given up %v, forgotten %v, %d wait", granted, o.gone, o.forgot, o.lane.Stats().Calls)
		}
	}
}

// A wait without an answer ends here a little after its time; one that was granted goes on.
func TestReservationTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newKeyOwner(2)
		waits, held := o.reserve(t, time.Second), o.reserve(t, time.Second)
		o.grant(held, event.Grant{Fence: event.Fence{Token: 1}})
		time.Sleep(time.Second + OwnerGrace - time.Millisecond)
		o.mu.Lock()
		early := len(o.gone) > 0
		o.mu.Unlock()
		if early {
			t.Fatal("given up early")
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if !slices.Equal(o.gone, []event.Handle{waits.handle}) {
			t.Errorf("given up %v, want %v", o.gone, waits.handle)
		}
		if _, _, over := waits.Next(); over == nil || over.Code != event.CodeTimeout {
			t.Errorf("over: %+v", over)
		}
		waits.Forget()
		held.Forget()
	})
}

// Those beyond the bound are refused, until one of the others has ended, and all are without exclusive ownership.
func TestReservationsAreBounded(t *testing.T) {
	o := newKeyOwner(1)
	first := o.reserve(t, time.Minute)
	second := o.reserve(t, time.Minute)
	if _, _, over := second.Next(); !news(second) || over == nil || over.Outcome != event.CallNotRun || over.Code != event.CodeOverloaded {
		t.Errorf("the second: %+v", over)
	}
	if s := o.lane.Stats(); s.Refused != 1 || s.Reservations != 1 || s.ReservationsMax != 1 || s.Calls != 1 {
		t.Errorf("stats %+v", s)
	}
	second.Forget()
	o.grant(first, event.Grant{Fence: event.Fence{Token: 1}})
	first.Forget()
	third := o.reserve(t, time.Minute)
	if _, _, over := third.Next(); over != nil {
		t.Errorf("the third: %+v", over)
	}
	third.Forget()
	shared := newKeyOwner(1)
	shared.lane.NotExclusive = true
	r := shared.reserve(t, time.Minute)
	if _, _, over := r.Next(); over == nil || over.Outcome != event.CallNotRun || over.Code != event.CodeNotExclusive || len(shared.calls) > 0 {
		t.Errorf("in gossip: %+v", over)
	}
	r.Forget()
}

// TestReservationsTakeNoPlacesOfCalls: they have a bound of their own, and last for longer than calls.
func TestReservationsTakeNoPlacesOfCalls(t *testing.T) {
	o := newKeyOwner(2)
	o.lane.config.CallsMax = 1
	held := o.reserve(t, time.Minute)
	o.grant(held, event.Grant{Fence: event.Fence{Token: 1}})
	if _, no := o.lane.admitCall(&Request{Key: "other"}, nil); no != nil {
		t.Errorf("the only call beside a reservation: %+v", *no)
	}
	if _, no := o.lane.admitCall(&Request{Key: "other"}, nil); no == nil || no.Code != event.CodeOverloaded {
		t.Errorf("the second call: %+v", no)
	}
	held.Forget()
}

// A holder that comes back has a place though others have taken its own: a refusal would end its reservation. These places are bounded, too.
func TestResumeAtAFullRouter(t *testing.T) {
	o := newKeyOwner(1)
	held := o.reserve(t, time.Minute)
	o.grant(held, event.Grant{Fence: event.Fence{Token: 1}})
	held.Forget() // its stream broke
	o.reserve(t, time.Minute)
	for n, want := range []string{"", event.CodeOverloaded} {
		again, err := o.lane.Reserve(Ask{Key: "k", ID: anID, Wait: time.Minute, Resume: true, TTL: event.TTLLeast})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, over := again.Next(); (over == nil) != (want == "") || over != nil && over.Code != want {
			t.Errorf("the holder that comes back as number %d: %+v, want %q", n+1, over, want)
		}
	}
	if s := o.lane.Stats(); s.Refused != 1 || s.Reservations != 2 || len(o.calls) != 3 {
		t.Errorf("stats %+v, %d asks were sent", s, len(o.calls))
	}
}

// TestLaneThatLeaves: a router that leaves refuses new calls and reservations, and takes those of handlers and of
// holders that come back; it waits for calls, and not for reservations.
func TestLaneThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newKeyOwner(10)
		held := o.reserve(t, time.Minute)
		begin := func(path ...partition.KeyHash) chan Answer {
			answered := make(chan Answer, 1)
			go func() {
				a, err := o.lane.Invoke(t.Context(), Request{Key: "k", Method: "m", Timeout: time.Minute, Path: path})
				if err != nil {
					t.Error(err)
				}
				answered <- a
			}()
			synctest.Wait()
			return answered
		}
		before := begin()
		o.lane.Leave()
		if a := <-begin(); a.Outcome != event.CallNotRun || a.Code != event.CodeLeaving || a.RetryAfter != 0 {
			t.Errorf("a new call: %+v", a)
		}
		ofHandler := begin(7)
		if _, _, over := o.reserve(t, 0).Next(); over == nil || over.Code != event.CodeLeaving {
			t.Errorf("a new reservation: %+v", over)
		}
		again, err := o.lane.Reserve(Ask{Key: "k", ID: anID, Resume: true})
		if err != nil || again.handle == 0 {
			t.Errorf("a holder that comes back: %+v, %v", again, err)
		}
		if s := o.lane.Stats(); s.Unanswered != 2 || s.Calls != 4 || s.Refused != 2 {
			t.Errorf("stats %+v", s)
		}
		finished := make(chan struct{})
		go func() {
			o.lane.Finish(t.Context())
			close(finished)
		}()
		for _, call := range o.calls {
			if call.Call.Reservation {
				continue
			}
			synctest.Wait()
			select {
			case <-finished:
				t.Fatal("it has finished before the last answer")
			default:
			}
			o.lane.Answered([]event.Verdict{{Handle: call.Handle, Kind: event.Done}})
		}
		<-finished
		if a, b := <-before, <-ofHandler; a.Outcome != event.CallDoneBefore || b.Outcome != event.CallDoneBefore {
			t.Errorf("the calls that were taken: %+v, %+v", a, b)
		}
		o.lane.TakeCalls()
		after := begin()
		o.lane.Answered([]event.Verdict{{Handle: o.calls[len(o.calls)-1].Handle, Kind: event.Done}})
		if a := <-after; a.Outcome != event.CallDoneBefore {
			t.Errorf("after it takes calls again: %+v", a)
		}
		held.Forget()
		again.Forget()
		cut, cancel := context.WithCancel(t.Context())
		last := begin()
		time.AfterFunc(time.Second, cancel)
		o.lane.Finish(cut)
		o.lane.Answered([]event.Verdict{{Handle: o.calls[len(o.calls)-1].Handle, Kind: event.Done}})
		<-last
	})
}

// A holder that comes back and gets no answer is no release: its permission may still run, and the owner must not give
// the key away. It is told to come back again, by the end of its stream.
func TestResumeWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, end := range map[string]func(o *keyOwner, r *Reservation){
			"its time is up":           func(*keyOwner, *Reservation) { time.Sleep(resumeWait + OwnerGrace + time.Millisecond) },
			"its holder's stream ends": func(_ *keyOwner, r *Reservation) { r.Forget() },
		} {
			o := newKeyOwner(1)
			r, err := o.lane.Reserve(Ask{Key: "k", ID: anID, Resume: true})
			if err != nil {
				t.Fatal(err)
			}
			end(o, r)
			synctest.Wait()
			o.mu.Lock()
			if len(o.gone) != 0 || len(o.forgot) != 1 || o.forgot[0] != r.handle {
				t.Errorf("%s: the owner is told that it is not wanted: %v, forgotten %v", name, o.gone, o.forgot)
			}
			o.mu.Unlock()
			if name != "its time is up" {
				continue
			}
			frames := make(chan Frame)
			told := 0
			err = r.serve(t.Context(), frames, func(g *event.Grant, a *event.Renewal, over *Answer) error {
				if g != nil || a != nil || over != nil {
					told++
				}
				return nil
			})
			if !errors.Is(err, ErrUnreached) || told != 0 {
				t.Errorf("%s: %v, %d frames", name, err, told)
			}
			o.grant(r, event.Grant{Fence: event.Fence{Token: 1, Turn: 1}, Remaining: time.Second}) // too late
			r.Forget()
			if n := o.lane.Stats().Calls; n > 0 {
				t.Errorf("%s: %d still wait", name, n)
			}
		}
	})
}

// A grant that comes while the owner is being told that it is not wanted is not told: the owner gives the key away.
func TestGrantAfterGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newKeyOwner(1)
		r := o.reserve(t, 0)
		o.mu.Lock()
		o.beforeGone = func() { o.grant(r, event.Grant{Fence: event.Fence{Token: 1, Turn: 1}, Remaining: time.Second}) }
		o.mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		if g, _, over := r.Next(); g != nil || over == nil || over.Code != event.CodeTimeout {
			t.Errorf("granted %+v, over %+v", g, over)
		}
		r.Forget()
	})
}

// slowSender takes so long to send a call.
type slowSender struct {
	*keyOwner

	takes time.Duration
}

func (s *slowSender) Call(call *event.Event) {
	time.Sleep(s.takes)
	s.keyOwner.Call(call)
}

func (s *slowSender) GiveUp(h event.Handle) {
	if len(s.calls) > 0 { // else it is unknown
		s.keyOwner.GiveUp(h)
	}
}

// A wait does not end before its ask is sent: the owner would not be told that nobody waits, and would grant it to nobody.
func TestWaitBeginsBehindTheAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newKeyOwner(1)
		o.lane.sender = &slowSender{o, time.Second}
		r := o.reserve(t, 0)
		time.Sleep(time.Second)
		synctest.Wait()
		if len(o.gone) != 1 || len(o.calls) != 1 {
			t.Errorf("given up: %v of %d asks, want the one", o.gone, len(o.calls))
		}
		r.Forget()
	})
}

// late brings the verdict on a call while it is given up, as the goroutine does that has just received it.
type late struct{ *keyOwner }

func (o *late) GiveUp(h event.Handle) {
	go func() {
		time.Sleep(time.Millisecond)
		o.lane.Answered([]event.Verdict{{Handle: h, Kind: event.Answered, Detail: &event.Detail{Reply: &event.Reply{Outcome: event.CallReplied}}}})
	}()
}

// A verdict that comes just when its call is given up counts.
func TestAnswerOnItsWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newKeyOwner(1)
		o.lane.sender = &late{o}
		a, err := o.lane.Invoke(t.Context(), Request{Key: "k", Method: "m", Timeout: time.Second})
		if err != nil || a.Outcome != event.CallReplied {
			t.Errorf("%+v, %v, want the reply", a, err)
		}
		time.Sleep(time.Second)
	})
}
