package lane

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ringfence/router/internal/base/event"
	lanev1 "github.com/ringfence/router/proto/ringfence/lane/v1"
)

// Publish implements Publisher: the broker answers at once, unless the test holds its answers.
func (o *owner) Publish(e *event.Event, answer func(error)) error {
	if o.refuse != nil {
		return o.refuse
	}
	o.published = append(o.published, e)
	if o.broker != nil {
		o.broker <- answer
		return nil
	}
	answer(nil)
	return nil
}

// TestSend: what is sent is published with its key, its time and an id; the same id of the sender gives the same id of the event, none a new one.
func TestSend(t *testing.T) {
	o := newOwner(DefaultConfig(), echo)
	service := &Service{Lane: o.lane}
	send := func(r *lanev1.SendRequest) *lanev1.SendResponse {
		t.Helper()
		answer, err := service.Send(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	before := time.Now().UnixMilli()
	first := send(&lanev1.SendRequest{
		Key: []byte("user-\xff"), Payload: []byte("p"), Name: "expire", Properties: map[string]string{"a": "1"}, AfterMs: 60_000, Id: "one",
	})
	e := o.published[0]
	sent, err := event.ParseSent(e.Properties)
	if err != nil || sent.Key != "user-\xff" || sent.Name != "expire" || sent.Firing != nil || sent.Due < before+60_000 || sent.Due > before+70_000 ||
		first.GetDueMs() != sent.Due || string(e.Payload) != "p" || !e.ID.IsSent() || first.GetMessageId() != e.ID.String() {
		t.Errorf("published %+v as %+v (%v)", sent, e, err)
	}
	if value, _ := e.Property("a"); value != "1" {
		t.Errorf("its property is %q", value)
	}
	again := send(&lanev1.SendRequest{Key: []byte("user-\xff"), Id: "one"})
	another := send(&lanev1.SendRequest{Key: []byte("user-2"), Id: "one"})
	none, none2 := send(&lanev1.SendRequest{Key: []byte("user-\xff")}), send(&lanev1.SendRequest{Key: []byte("user-\xff")})
	if again.GetMessageId() != first.GetMessageId() || another.GetMessageId() == first.GetMessageId() || none.GetMessageId() == none2.GetMessageId() {
		t.Errorf("the ids are %v, %v, %v, %v, %v", first, again, another, none, none2)
	}
	if o.published[1].Payload == nil {
		t.Error("an empty payload is published as a null value")
	}
	if past := send(&lanev1.SendRequest{Key: []byte("k"), AtMs: 5}); past.GetDueMs() != 5 {
		t.Errorf("due at %d, want 5", past.GetDueMs())
	}
	if n := testutil.ToFloat64(o.lane.metrics.sends.WithLabelValues(sendPublished)); n != 6 {
		t.Errorf("%v are counted", n)
	}
}

// TestSendIsRefused: a sender learns whether its event can have been published.
func TestSendIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		r      *lanev1.SendRequest
		refuse error
		want   codes.Code
	}{
		"no key":      {r: &lanev1.SendRequest{}, want: codes.InvalidArgument},
		"a long id":   {r: &lanev1.SendRequest{Key: []byte("k"), Id: strings.Repeat("i", 257)}, want: codes.InvalidArgument},
		"two times":   {r: &lanev1.SendRequest{Key: []byte("k"), AfterMs: 1, AtMs: 1}, want: codes.InvalidArgument},
		"too late":    {r: &lanev1.SendRequest{Key: []byte("k"), AfterMs: 1 << 62}, want: codes.InvalidArgument},
		"far future":  {r: &lanev1.SendRequest{Key: []byte("k"), AtMs: 1 << 62}, want: codes.InvalidArgument},
		"a property":  {r: &lanev1.SendRequest{Key: []byte("k"), Properties: map[string]string{"ringfence-sent-due": "1"}}, want: codes.InvalidArgument},
		"a large one": {r: &lanev1.SendRequest{Key: []byte("k"), Payload: make([]byte, event.SentPayloadMax+1)}, want: codes.InvalidArgument},
		"no topic":    {r: &lanev1.SendRequest{Key: []byte("k")}, refuse: errors.New("forbidden"), want: codes.FailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOwner(DefaultConfig(), echo)
			o.refuse = test.refuse
			_, err := (&Service{Lane: o.lane}).Send(t.Context(), test.r)
			if status.Code(err) != test.want || len(o.published) != 0 || testutil.ToFloat64(o.lane.metrics.sends.WithLabelValues(sendRefused)) != 1 {
				t.Errorf("%v, %d published", err, len(o.published))
			}
			if o.lane.sends != 0 || o.lane.bytes != 0 {
				t.Errorf("it keeps %d places and %d bytes", o.lane.sends, o.lane.bytes)
			}
		})
	}
}

// TestSendsAreBounded: an event has its place until the broker has answered, also when its sender waits no longer.
func TestSendsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := DefaultConfig()
		config.SendsMax = 1
		o := newOwner(config, echo)
		o.broker = make(chan func(error), 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := o.lane.Send(ctx, Sending{Key: "k", Payload: []byte("p")})
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNotSent) {
			t.Errorf("not answered: %v", err)
		}
		if _, err := o.lane.Send(t.Context(), Sending{Key: "k"}); !errors.Is(err, ErrTooManySends) || codeOf(err) != codes.ResourceExhausted {
			t.Errorf("one too many: %v", err)
		}
		(<-o.broker)(nil)
		if o.lane.sends != 0 || o.lane.bytes != 0 {
			t.Errorf("it keeps %d places and %d bytes", o.lane.sends, o.lane.bytes)
		}
		begun := time.Now()
		_, err = o.lane.Send(t.Context(), Sending{Key: "k"})
		if !errors.Is(err, errNoAnswer) || time.Since(begun) != SendTimeout || codeOf(err) != codes.Unavailable {
			t.Errorf("a silent broker: %v after %v", err, time.Since(begun))
		}
		(<-o.broker)(nil)
	})
}

// TestHTTPSendWithoutRoom: a send that finds no room is counted as that, and the sender told that it may try again.
func TestHTTPSendWithoutRoom(t *testing.T) {
	for name, fill := range map[string]func(*owner){
		"bytes": func(o *owner) { o.lane.bytes = o.lane.config.CallsBytesMax },
		"sends": func(o *owner) { o.lane.sends = o.lane.config.SendsMax },
	} {
		o := newOwner(DefaultConfig(), echo)
		fill(o)
		w := httptest.NewRecorder()
		(&Handler{Lane: o.lane}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/keys/user-1/events", strings.NewReader("body")))
		if w.Code != 503 || w.Header().Get(headerOutcome) != "NOT_RUN" || w.Header().Get(headerCode) != event.CodeOverloaded || len(o.published) > 0 {
			t.Errorf("no room for %s: %d %v: %s", name, w.Code, w.Header(), w.Body)
		}
		m := o.lane.metrics
		if asked, refused := testutil.ToFloat64(m.refused.WithLabelValues(badRequest)), testutil.ToFloat64(m.sends.WithLabelValues(sendRefused)); asked != 0 || refused != 1 {
			t.Errorf("no room for %s: %v requests are counted as breaking the rules, want none, and %v sends as refused, want 1", name, asked, refused)
		}
	}
}

// TestHTTPSend: events by HTTP have the time and the id of the request.
func TestHTTPSend(t *testing.T) {
	for name, test := range map[string]struct {
		target, id string
		refuse     error
		status     int
		outcome    string
		after      time.Duration // less than 0: nothing is published
	}{
		"at once":       {target: "/v1/keys/user-1/events", status: 202, outcome: "SENT"},
		"later":         {target: "/v1/keys/user-1/events?after=15m&name=expire", id: "one", status: 202, outcome: "SENT", after: 15 * time.Minute},
		"at a time":     {target: "/v1/keys/user-1/events?at=2100-01-01T00:00:00Z", status: 400, outcome: "NOT_RUN", after: -1},
		"not a time":    {target: "/v1/keys/user-1/events?at=tomorrow", status: 400, outcome: "NOT_RUN", after: -1},
		"negative":      {target: "/v1/keys/user-1/events?after=-1s", status: 400, outcome: "NOT_RUN", after: -1},
		"twice":         {target: "/v1/keys/user-1/events?after=1s&after=2s", status: 400, outcome: "NOT_RUN", after: -1},
		"unknown":       {target: "/v1/keys/user-1/events?afer=1s", status: 400, outcome: "NOT_RUN", after: -1},
		"bad encoding":  {target: "/v1/keys/user-1/events?after=%zz", status: 400, outcome: "NOT_RUN", after: -1},
		"not published": {target: "/v1/keys/user-1/events", refuse: errors.New("forbidden"), status: 503, outcome: "NOT_RUN", after: -1},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOwner(DefaultConfig(), echo)
			o.refuse = test.refuse
			r := httptest.NewRequest(http.MethodPost, test.target, strings.NewReader("body"))
			if test.id != "" {
				r.Header.Set(headerID, test.id)
			}
			now := time.Now().UnixMilli()
			w := httptest.NewRecorder()
			(&Handler{Lane: o.lane}).ServeHTTP(w, r)
			if w.Code != test.status || w.Header().Get(headerOutcome) != test.outcome {
				t.Errorf("%d, outcome %q: %s", w.Code, w.Header().Get(headerOutcome), w.Body)
			}
			broken := 0.0
			if test.status == http.StatusBadRequest {
				broken = 1
			}
			if got := testutil.ToFloat64(o.lane.metrics.refused.WithLabelValues(badRequest)); got != broken {
				t.Errorf("%v requests are counted as breaking the rules, want %v", got, broken)
			}
			if test.after < 0 {
				if len(o.published) != 0 {
					t.Error("it is published")
				}
				return
			}
			sent, err := event.ParseSent(o.published[0].Properties)
			if err != nil || sent.Key != "user-1" || sent.Due < now+test.after.Milliseconds() || sent.Due > now+test.after.Milliseconds()+10_000 || string(o.published[0].Payload) != "body" ||
				w.Header().Get(headerMessageID) != o.published[0].ID.String() {
				t.Errorf("published %+v (%v)", sent, err)
			}
		})
	}
}
