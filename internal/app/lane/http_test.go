package lane

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
)

// owner answers calls at once, as it is told.
type owner struct {
	lane   *Lane
	answer func(call *event.Event) *event.Verdict // nil: there is no answer
	calls  []*event.Event
	gone   []event.Handle

	published []*event.Event
	refuse    error            // why nothing is published
	broker    chan func(error) // gets the answers that the broker owes; nil: it answers at once
}

func (o *owner) Call(call *event.Event) {
	o.calls = append(o.calls, call)
	if v := o.answer(call); v != nil {
		v.Handle = call.Handle
		o.lane.Answered([]event.Verdict{*v})
	}
}

func (o *owner) GiveUp(h event.Handle) {
	o.gone = append(o.gone, h)
	o.lane.Answered([]event.Verdict{event.Unknown(h, "its time was up")})
}

func newOwner(config Config, answer func(*event.Event) *event.Verdict) *owner {
	o := &owner{answer: answer}
	o.lane = New(config, o, o, clock.Now, NewMetrics(prometheus.NewRegistry()))
	return o
}

func verdict(reply event.Reply, reason string, delay time.Duration) func(*event.Event) *event.Verdict {
	return func(*event.Event) *event.Verdict {
		return &event.Verdict{Kind: event.Answered, Detail: &event.Detail{Reason: reason, Delay: delay, Reply: &reply}}
	}
}

var echo = func(call *event.Event) *event.Verdict {
	return &event.Verdict{Kind: event.Answered, Detail: &event.Detail{Reply: &event.Reply{Outcome: event.CallReplied, Payload: call.Payload}}}
}

// TestHTTPAnswers: each outcome has its status and its headers.
func TestHTTPAnswers(t *testing.T) {
	notRun := func(code string) event.Reply { return event.Reply{Outcome: event.CallNotRun, Code: code} }
	for name, test := range map[string]struct {
		answer                      func(*event.Event) *event.Verdict
		status                      int
		outcome, code, retry, whole string
	}{
		"replied":        {verdict(event.Reply{Outcome: event.CallReplied, Payload: []byte("a\x00b")}, "", 0), 200, "REPLIED", "", "", "a\x00b"},
		"replied, empty": {verdict(event.Reply{Outcome: event.CallReplied}, "", 0), 200, "REPLIED", "", "", ""},
		"failed":         {verdict(event.Reply{Outcome: event.CallFailed, Code: "no funds\r\nX: 1%"}, "card refused", 0), 422, "FAILED", "no%20funds%0D%0AX:%201%25", "", "card refused\n"},
		"timeout":        {verdict(notRun(event.CodeTimeout), "late", 0), 503, "NOT_RUN", "timeout", "", "late\n"},
		"overloaded":     {verdict(notRun(event.CodeOverloaded), "full", 1001*time.Millisecond), 503, "NOT_RUN", "overloaded", "2", "full\n"},
		"soon":           {verdict(notRun(event.CodeOverloaded), "full", time.Millisecond), 503, "NOT_RUN", "overloaded", "1", "full\n"},
		"parked":         {verdict(notRun(event.CodeParked), "parked", 0), 503, "NOT_RUN", "parked", "", "parked\n"},
		"unreachable":    {verdict(notRun(event.CodeUnreachable), "cut", 0), 503, "NOT_RUN", "unreachable", "", "cut\n"},
		"no handler":     {verdict(notRun(event.CodeNoHandler), "none", 0), 404, "NOT_RUN", "no_handler", "", "none\n"},
		"cycle":          {verdict(notRun(event.CodeCycle), "waits", 0), 508, "NOT_RUN", "cycle", "", "waits\n"},
		"too large":      {verdict(notRun(event.CodeTooLarge), "large", 0), 413, "NOT_RUN", "too_large", "", "large\n"},
		"unknown":        {verdict(event.Reply{Outcome: event.CallUnknown}, "its worker crashed", 0), 504, "UNKNOWN", "", "", "its worker crashed\n"},
		"done before":    {func(*event.Event) *event.Verdict { return &event.Verdict{Kind: event.Done} }, 409, "DONE_BEFORE", "", "", "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOwner(DefaultConfig(), test.answer)
			w := httptest.NewRecorder()
			(&Handler{o.lane}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/keys/user-1/calls/charge", strings.NewReader("5")))
			h := w.Header()
			if w.Code != test.status || h.Get(headerOutcome) != test.outcome || h.Get(headerCode) != test.code || h.Get("Retry-After") != test.retry || w.Body.String() != test.whole {
				t.Errorf("%d %v %q", w.Code, h, w.Body)
			}
			if h.Get("X-Content-Type-Options") != "nosniff" {
				t.Error("a browser may take the answer for a page")
			}
			if len(o.lane.waiting) > 0 || o.lane.bytes != 0 {
				t.Errorf("%d calls wait with %d bytes", len(o.lane.waiting), o.lane.bytes)
			}
		})
	}
}

// TestHTTPRequests: a call is what its request says, and a request that says it wrongly is none.
func TestHTTPRequests(t *testing.T) {
	long := strings.Repeat("x", event.CallPayloadMax)
	for name, test := range map[string]struct {
		method, path, body string
		header             http.Header
		status             int
		want               event.Event // of a call that is made, with Call
	}{
		"all of it": {
			path: "/v1/keys/a%2Fb%20%FF%00/calls/x.y-z_1", body: "body", header: http.Header{headerID: {"7"}, headerTimeout: {"1.5"}, headerTraceparent: {"00-1-2-3"}},
			status: 200, want: event.Event{Key: "a/b \xff\x00", Payload: []byte("body"), Call: &event.Call{Method: "x.y-z_1", ID: "7"}},
		},
		"nothing but a key": {path: "/v1/keys/../calls/m", status: 200, want: event.Event{Key: "..", Call: &event.Call{Method: "m"}}},
		"the largest":       {path: "/v1/keys/k/calls/m", body: long, status: 200, want: event.Event{Key: "k", Payload: []byte(long), Call: &event.Call{Method: "m"}}},
		"too large":         {path: "/v1/keys/k/calls/m", body: long + "x", status: 413},
		"another method":    {method: http.MethodGet, path: "/v1/keys/k/calls/m", status: 405},
		"another path":      {path: "/v1/keys/k", status: 404},
		"a deeper path":     {path: "/v1/keys/k/calls/m/n", status: 404},
		"a key in two":      {path: "/v1/keys/a/b/calls/m", status: 404},
		"no key":            {path: "/v1/keys//calls/m", status: 400},
		"a long key":        {path: "/v1/keys/" + strings.Repeat("k", event.KeyMax+1) + "/calls/m", status: 400},
		"no method":         {path: "/v1/keys/k/calls/", status: 400},
		"a bad method":      {path: "/v1/keys/k/calls/m%20n", status: 400},
		"an empty id":       {path: "/v1/keys/k/calls/m", header: http.Header{headerID: {""}}, status: 400},
		"two ids":           {path: "/v1/keys/k/calls/m", header: http.Header{headerID: {"1", "2"}}, status: 400},
		"a long id":         {path: "/v1/keys/k/calls/m", header: http.Header{headerID: {strings.Repeat("i", event.CallIDMax+1)}}, status: 400},
		"no time":           {path: "/v1/keys/k/calls/m", header: http.Header{headerTimeout: {"0"}}, status: 400},
		"time back":         {path: "/v1/keys/k/calls/m", header: http.Header{headerTimeout: {"-1s"}}, status: 400},
		"too much time":     {path: "/v1/keys/k/calls/m", header: http.Header{headerTimeout: {"601"}}, status: 400},
		"another time":      {path: "/v1/keys/k/calls/m", header: http.Header{headerTimeout: {"soon"}}, status: 400},
		"two times in one":  {path: "/v1/keys/k/calls/m", header: http.Header{headerTimeout: {"1s1"}}, status: 400},
		"a long trace":      {path: "/v1/keys/k/calls/m", header: http.Header{headerTraceparent: {strings.Repeat("0", traceparentMax+1)}}, status: 400},
	} {
		t.Run(name, func(t *testing.T) {
			for _, chunked := range []bool{false, true} {
				o := newOwner(DefaultConfig(), echo)
				r := httptest.NewRequest(http.MethodPost, test.path, strings.NewReader(test.body))
				if test.method != "" {
					r.Method = test.method
				}
				if r.Header = test.header; r.Header == nil {
					r.Header = http.Header{}
				}
				if chunked {
					r.ContentLength = -1
				}
				w := httptest.NewRecorder()
				(&Handler{o.lane}).ServeHTTP(w, r)
				if w.Code != test.status || o.lane.bytes != 0 {
					t.Fatalf("%d %s; %d bytes are held", w.Code, w.Body, o.lane.bytes)
				}
				if test.want.Call == nil {
					if len(o.calls) > 0 || w.Header().Get(headerOutcome) != "NOT_RUN" {
						t.Errorf("%d calls, %v", len(o.calls), w.Header())
					}
					continue
				}
				call := o.calls[0]
				if call.Key != test.want.Key || string(call.Payload) != string(test.want.Payload) || call.Call.Method != test.want.Call.Method || call.Call.ID != test.want.Call.ID {
					t.Errorf("%q %q of %d bytes, %+v", call.Key, call.Payload[:min(9, len(call.Payload))], len(call.Payload), call.Call)
				}
				if traced := test.header.Get(headerTraceparent); traced != "" && (len(call.Properties) != 1 || call.Properties[0].Value != traced) {
					t.Errorf("properties %v", call.Properties)
				}
				if left := call.Call.Deadline.Sub(clock.Now()); test.header.Get(headerTimeout) == "1.5" && (left > 1500*time.Millisecond || left < 0) {
					t.Errorf("%v are left", left)
				}
			}
		})
	}
}

// TestHTTPBodiesHaveRoom: the bodies that are being read count among the payloads of the calls that wait.
func TestHTTPBodiesHaveRoom(t *testing.T) {
	o := newOwner(Config{CallsMax: 9, CallsBytesMax: event.CallPayloadMax}, echo)
	post := func(body string) int {
		w := httptest.NewRecorder()
		(&Handler{o.lane}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/keys/k/calls/m", strings.NewReader(body)))
		return w.Code
	}
	if !o.lane.takeRoom(event.CallPayloadMax - 4) { // of another body
		t.Fatal("there is no room for the first one")
	}
	if small, large := post("four"), post("fives"); small != http.StatusOK || large != http.StatusServiceUnavailable {
		t.Errorf("the last four bytes of room get %d, five get %d", small, large)
	}
	o.lane.freeRoom(event.CallPayloadMax - 4)
	if again := post("fives"); again != http.StatusOK {
		t.Errorf("with room they get %d", again)
	}
}

// TestHTTPBodiesThatBreak: a body that does not arrive is no call.
func TestHTTPBodiesThatBreak(t *testing.T) {
	o := newOwner(DefaultConfig(), echo)
	for _, length := range []int64{-1, 10} {
		r := httptest.NewRequest(http.MethodPost, "/v1/keys/k/calls/m", iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader("0123456789"))))
		r.ContentLength = length
		w := httptest.NewRecorder()
		(&Handler{o.lane}).ServeHTTP(w, r)
		if w.Code != http.StatusBadRequest || len(o.calls) > 0 || o.lane.bytes != 0 {
			t.Errorf("%d %s, %d calls, %d bytes", w.Code, w.Body, len(o.calls), o.lane.bytes)
		}
	}
}

// TestHTTPCallersThatGo: the end of a request gives its call up.
func TestHTTPCallersThatGo(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	o := newOwner(DefaultConfig(), func(*event.Event) *event.Verdict { leave(); return nil })
	w := httptest.NewRecorder()
	(&Handler{o.lane}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/keys/k/calls/m", http.NoBody).WithContext(ctx))
	if len(o.calls) != 1 || len(o.gone) != 1 || o.gone[0] != o.calls[0].Handle {
		t.Errorf("%d calls, given up: %v", len(o.calls), o.gone)
	}
}

func (o *owner) RenewReservation(event.Renewal) {}
func (o *owner) ForgetReservation(event.Handle) {}
