package lane

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/netx/listen"
	"github.com/ringfence/router/internal/telemetry/loglimit"
)

const heldID = "69696969696969696969696969696969-30000"

// ttlOwner owns one key. It answers asks as it is told, and renewals with its permission.
type ttlOwner struct {
	lane  *Lane
	asked chan *event.Event // gets what was asked for; of a capacity that suffices

	mu         sync.Mutex // guards the fields below
	answer     *event.Verdict
	permission *event.Permission // nil: it is not said
	gone       int               // calls and reservations that were given up
}

func newTTLOwner() *ttlOwner {
	o := &ttlOwner{asked: make(chan *event.Event, 100)}
	o.lane = New(DefaultConfig(), o, nil, clock.Now, NewMetrics(prometheus.NewRegistry()))
	o.lane.Covers = func() bool { return true }
	return o
}

// says sets the answers to asks and to renewals; nil: there is none.
func (o *ttlOwner) says(answer *event.Verdict, permission *event.Permission) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer, o.permission = answer, permission
}

func (o *ttlOwner) givenUp() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.gone
}

func (o *ttlOwner) Call(call *event.Event) {
	o.mu.Lock()
	answer := o.answer
	o.mu.Unlock()
	if answer != nil {
		v := *answer
		v.Handle = call.Handle
		o.lane.Answered([]event.Verdict{v})
	}
	o.asked <- call
}

func (o *ttlOwner) GiveUp(h event.Handle) {
	o.mu.Lock()
	o.gone++
	o.mu.Unlock()
	o.lane.Answered([]event.Verdict{event.Unknown(h, "its caller is no longer waiting")})
}

func (o *ttlOwner) RenewReservation(r event.Renewal) {
	o.mu.Lock()
	permission := o.permission
	o.mu.Unlock()
	if permission != nil {
		r.Permission = *permission
		o.lane.Renewed([]event.Renewal{r})
	}
}

func (*ttlOwner) ForgetReservation(event.Handle) {}

var (
	granted = &event.Verdict{Kind: event.Granted, Detail: &event.Detail{Grant: &event.Grant{Fence: event.Fence{Token: 3, Turn: 4}}}}
	covered = &event.Permission{Remaining: 29 * time.Second, Covered: true}
)

// listenHTTP answers by a Handler behind the listener that routers have, and returns its address.
func (o *ttlOwner) listenHTTP(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	server := listen.HTTP{
		Name: "lane", Listener: listener, ConnectionsMax: 10, Bodies: []string{"POST " + BodyPath}, Header: Refused(),
		Bounds:  listen.Bounds{BodyBytesMax: event.CallPayloadMax, AnswerMax: AnswerMax, RequestsPerSecond: 1000, KeptMax: 10},
		Metrics: listen.NewMetrics(registry), LogMetrics: loglimit.NewMetrics(registry), Log: slog.New(slog.DiscardHandler),
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(ctx, &Handler{o.lane}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		serving.Wait()
	})
	return listener.Addr().String()
}

// ask sends a request by a connection of its own. With half it closes its side of it as soon as the owner was asked.
func (o *ttlOwner) ask(t *testing.T, address, method, path, body string, half bool) (status int, header http.Header) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "%s /v1/keys/k/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body); err != nil {
		t.Fatal(err)
	}
	<-o.asked
	if half {
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	return r.StatusCode, r.Header
}

// TestReservationOutcomes: every answer of the listener says what has become of the request.
func TestReservationOutcomes(t *testing.T) {
	t.Parallel()
	o := newTTLOwner()
	address := o.listenHTTP(t)
	notRun := func(code string) *event.Verdict { v := event.NotRun(0, code, "as told"); return &v }
	for _, test := range []struct {
		name, method, path string
		answer             *event.Verdict
		permission         *event.Permission
		status             int
		outcome, code      string
	}{
		{"a new one", http.MethodPost, "?ttl=30s", granted, covered, 201, "RESERVED", ""},
		{"one that waits", http.MethodPost, "?ttl=30s", notRun(event.CodeTimeout), nil, 423, "NOT_RUN", "timeout"},
		{"one that is not covered", http.MethodPost, "?ttl=30s", notRun(event.CodeNotCovered), nil, 503, "NOT_RUN", "not_covered"},
		{"renewed", http.MethodPut, "/" + heldID, granted, covered, 200, "RENEWED", ""},
		{"renewed too late", http.MethodPut, "/" + heldID, notRun(event.CodeLost), nil, 410, "NOT_RUN", "lost"},
		{"renewed for an hour", http.MethodPut, "/" + heldID, granted, &event.Permission{Covered: true}, 410, "NOT_RUN", "too_old"},
		{"renewed in vain", http.MethodPut, "/" + heldID, notRun(event.CodeTimeout), nil, 504, "UNKNOWN", "timeout"},
		{"released", http.MethodDelete, "/" + heldID, granted, nil, 204, "RELEASED", ""},
		{"released, and old", http.MethodDelete, "/" + heldID, granted, &event.Permission{Covered: true}, 204, "RELEASED", ""},
	} {
		o.says(test.answer, test.permission)
		begun := time.Now()
		status, header := o.ask(t, address, test.method, "reservations"+test.path, "", false)
		if status != test.status || header.Get(headerOutcome) != test.outcome || header.Get(headerCode) != test.code {
			t.Errorf("%s: %d, outcome %q, code %q; want %d, %q, %q", test.name, status, header.Get(headerOutcome), header.Get(headerCode), test.status, test.outcome, test.code)
		}
		if took := time.Since(begun); took > httpWait/2 {
			t.Errorf("%s: it took %v", test.name, took)
		}
	}
}

// TestHalfClosedConnections: a caller that has closed only its side of the connection reads on, and is told the truth.
// What it may have reserved is released: it has no id.
func TestHalfClosedConnections(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		path, body string
		answer     *event.Verdict
	}{
		"a call that runs":              {"calls/m", "5", nil},
		"a call without a payload":      {"calls/m", "", nil},
		"a reservation that waits":      {"reservations?ttl=30s&wait=1m", "", nil},
		"a reservation that is granted": {"reservations?ttl=30s&wait=1m", "", granted},
		"one with a body that waits":    {"reservations?ttl=30s&wait=1m", "{}", nil},
		"one with a body, granted":      {"reservations?ttl=30s&wait=1m", "{}", granted},
	} {
		o := newTTLOwner()
		o.says(test.answer, nil)
		status, header := o.ask(t, o.listenHTTP(t), http.MethodPost, test.path, test.body, true)
		if status != http.StatusGatewayTimeout || header.Get(headerOutcome) != "UNKNOWN" || o.givenUp() != 1 {
			t.Errorf("%s: %d, outcome %q, given up %d times; want 504, UNKNOWN, once", name, status, header.Get(headerOutcome), o.givenUp())
		}
	}
}

// TestReservationByHTTPThatIsNeverCovered: the holder learns no id, so that the key is not kept for it.
func TestReservationByHTTPThatIsNeverCovered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newTTLOwner()
		o.says(granted, nil)
		w := httptest.NewRecorder()
		(&Handler{o.lane}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/keys/k/reservations?ttl=30s", http.NoBody))
		if w.Code != http.StatusGatewayTimeout || w.Header().Get(headerOutcome) != "UNKNOWN" || o.givenUp() != 1 {
			t.Errorf("%d %v, given up %d times; want 504, UNKNOWN, once", w.Code, w.Header(), o.givenUp())
		}
		w = httptest.NewRecorder()
		(&Handler{o.lane}).ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/v1/keys/k/reservations/"+heldID, http.NoBody))
		if w.Code != http.StatusGatewayTimeout || o.givenUp() != 1 || !strings.Contains(w.Body.String(), "has not answered") {
			t.Errorf("%d %s, given up %d times in all; want 504, and nothing released", w.Code, w.Body, o.givenUp())
		}
	})
}

// TestReservationByHTTPAtARouterThatLeaves: its holder asks another router, as the caller of a call does. The key may be free.
func TestReservationByHTTPAtARouterThatLeaves(t *testing.T) {
	o := newTTLOwner()
	o.lane.Leave()
	w := httptest.NewRecorder()
	(&Handler{o.lane}).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/keys/k/reservations?ttl=30s", http.NoBody))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get(headerOutcome) != "NOT_RUN" || w.Header().Get(headerCode) != event.CodeLeaving {
		t.Errorf("%d %v; want 503, NOT_RUN, %s", w.Code, w.Header(), event.CodeLeaving)
	}
}
