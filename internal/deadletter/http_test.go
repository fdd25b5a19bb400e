package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/source"
)

// asked is an endpoint whose answers a test gives.
type asked struct {
	Endpoint
	mux  *http.ServeMux
	log  strings.Builder
	last Question
}

func newAsked(answer func(context.Context, Question) (Answer, error)) *asked {
	a := &asked{mux: http.NewServeMux()}
	token := func(r *http.Request) bool { return r.Header.Get("Authorization") != "" }
	a.Endpoint = Endpoint{
		Node: "pod-0", Metrics: NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.NewTextHandler(&a.log, nil)),
		Named: token, Reads: token,
		Ask: func(ctx context.Context, q Question) (Answer, error) {
			a.last = q
			return answer(ctx, q)
		},
	}
	for pattern, page := range a.Handlers() {
		a.mux.Handle(pattern, page)
	}
	return a
}

func (a *asked) call(method, path string, named bool) (int, string) {
	r := httptest.NewRequest(method, path, nil)
	if named {
		r.Header.Set("Authorization", "Bearer token")
	}
	w := httptest.NewRecorder()
	a.mux.ServeHTTP(w, r)
	if h := w.Header(); (w.Code == http.StatusOK || strings.HasPrefix(w.Body.String(), "{")) && (h.Get("Content-Type") != "application/json" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store") {
		return 0, fmt.Sprintf("the headers are %v", h) // with them browsers neither guess the type nor keep what strangers wrote
	}
	text, _ := io.ReadAll(w.Result().Body)
	return w.Code, string(text)
}

// TestEndpointRefuses: what is no good question is refused, and not asked.
func TestEndpointRefuses(t *testing.T) {
	a := newAsked(func(context.Context, Question) (Answer, error) {
		t.Error("it was asked")
		return Answer{}, nil
	})
	long := strings.Repeat("x", 2000)
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/v1/deadletters?limit=0", 400},
		{"GET", "/v1/deadletters?limit=201", 400},
		{"GET", "/v1/deadletters?limit=x", 400},
		{"GET", "/v1/deadletters?match=" + long[:askedTextMax+1], 400},
		{"GET", "/v1/deadletters/letter", 400},
		{"GET", "/v1/deadletters/letter?id=1:2", 400},
		{"GET", "/v1/deadletters/replay?id=1:2:-1:-1", 405},
		{"POST", "/v1/deadletters/replay", 400},
		{"POST", "/v1/deadletters/replay?id=1:2:-1:-1&key=a", 400},
		{"POST", "/v1/deadletters/purge?key=a&yes=true&by=alice", 400},
		{"POST", "/v1/deadletters/purge?key=a&yes=true&reason=x&by=%20", 400},
		{"POST", "/v1/deadletters/purge?key=a&yes=true&by=alice&reason=" + long[:askedWhyMax+1], 400},
		{"POST", "/v1/deadletters/purge?key=a&yes=true&reason=x&by=" + long[:askedByMax+1], 400},
		{"GET", "/v1/replay?key=a", 405},
		{"POST", "/v1/replay?since=2026-11-25T14:00:00Z&until=2026-11-25T15:00:00Z", 400},
		{"POST", "/v1/replay?key=a&since=1h&until=2026-11-25T15:00:00Z", 400},
		{"POST", "/v1/replay?key=a&since=2026-11-25T14:00:00Z", 400},
		{"POST", "/v1/replay?key=a&since=2026-11-25T15:00:00Z&until=2026-11-25T15:00:00Z", 400},
		{"POST", "/v1/replay?key=a&since=2026-11-25T14:00:00Z&until=2026-11-25T15:00:00Z&yes=true&by=alice", 400},
	} {
		if got, says := a.call(c.method, c.path, true); got != c.want {
			t.Errorf("%s %.80s: %d %s, want %d", c.method, c.path, got, says, c.want)
		}
	}
	if got, _ := a.call("GET", "/v1/deadletters/letter?id=1:2:-1:-1&payload=true", false); got != http.StatusForbidden {
		t.Errorf("without the token the content of a letter has the answer %d", got)
	}
	none := Endpoint{None: "there is no broker"}.Handlers()["GET /v1/deadletters"]
	w := httptest.NewRecorder()
	none.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/deadletters", nil))
	if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "there is no broker") {
		t.Errorf("without dead letters the answer is %d %s", w.Code, w.Body)
	}
}

// TestEndpointAsks: a question arrives as it was asked, keys of any bytes included; an act happens only with yes.
func TestEndpointAsks(t *testing.T) {
	a := newAsked(func(_ context.Context, q Question) (Answer, error) {
		return Answer{Acted: &Acted{DryRun: !q.Yes, Act: "f00d", Counts: Counts{Sent: 1}}}, nil
	})
	full := "?key=a&yes=true&by=" + strings.Repeat("b", askedByMax) + "&reason=" + strings.Repeat("r", askedWhyMax)
	if code, says := a.call("POST", "/v1/deadletters/purge"+full, false); code != 200 || len(a.last.Why) != askedWhyMax {
		t.Errorf("an act of a caller on loopback without a token, with the longest words: %d %s", code, says)
	}
	a.log.Reset()
	for limit, want := range map[string]int{"1": 1, strconv.Itoa(askedListMax): askedListMax} {
		a.call("GET", "/v1/deadletters?limit="+limit+"&match="+strings.Repeat("m", askedTextMax), true)
		if a.last.What != AskList || a.last.Limit != want || len(a.last.Match) != askedTextMax {
			t.Errorf("asked %+v, want the limit %d", a.last, want)
		}
	}
	key := "\xff\x00<b>\x1b[31m"
	if code, says := a.call("POST", "/v1/deadletters/replay?key="+url.QueryEscape(key), true); code != 200 || a.last.Yes || !a.last.ByKey || string(a.last.Key) != key || !strings.Contains(says, `"dry_run":true`) {
		t.Errorf("a dry run: %d %s, asked %+v", code, says, a.last)
	}
	if a.log.Len() > 0 {
		t.Errorf("a dry run is in the log: %s", a.log.String())
	}
	code, _ := a.call("POST", "/v1/deadletters/replay?id=1:2:-1:-1&yes=true&by=ali%0Ace&reason=fixed%1b[2J", true)
	if code != 200 || !a.last.Yes || a.last.ID != "1:2:-1:-1" || a.last.By != "ali\nce, at the admin endpoint of pod-0" || a.last.Why != "fixed\x1b[2J" {
		t.Errorf("an act: %d, asked %+v", code, a.last)
	}
	if code, _ := a.call("POST", "/v1/replay?key=a&since=2026-11-25T14:00:00.5Z&until=2026-11-25T16:00:00%2B01:00", true); code != 200 || a.last.What != AskEvents || a.last.Yes ||
		a.last.Until.Sub(a.last.Since) != time.Hour-time.Second/2 {
		t.Errorf("a dry run of a replay of events: %d, asked %+v", code, a.last)
	}
	for _, want := range []string{"act on dead letters begins", "act on dead letters ended", "act=f00d", "sent=1", `ali\nce`} {
		if !strings.Contains(a.log.String(), want) {
			t.Errorf("the log has no %q:\n%s", want, a.log.String())
		}
	}
	if strings.Contains(a.log.String(), "\x1b") {
		t.Error("the log has an escape character")
	}
}

// TestEndpointFails: each failure of the process that answers is told, and counted.
func TestEndpointFails(t *testing.T) {
	for name, c := range map[string]struct {
		a    Answer
		err  error
		want int
	}{
		"process":     {Answer{}, errors.New("exit status 2"), 502},
		"no answer":   {Answer{}, nil, 502},
		"consumed":    {Answer{Error: "busy", Status: statusOf(ErrConsumed)}, nil, 409},
		"too many":    {Answer{Error: "501", Status: statusOf(ErrTooMany)}, nil, 409},
		"no letter":   {Answer{Error: "none", Status: statusOf(errNoLetter)}, nil, 404},
		"false state": {Answer{Error: "x", Status: 200}, nil, 502},
		"acting":      {Answer{Error: "x", Status: statusOf(ErrActing)}, nil, 409},
		"trimmed":     {Answer{Error: "x", Status: statusOf(ErrTrimmed)}, nil, 409},
		"least state": {Answer{Error: "x", Status: 400}, nil, 400},
		"last state":  {Answer{Error: "x", Status: 599}, nil, 599},
		"no state":    {Answer{Error: "x", Status: 600}, nil, 502},
	} {
		a := newAsked(func(context.Context, Question) (Answer, error) { return c.a, c.err })
		if code, says := a.call("POST", "/v1/deadletters/purge?key=a&yes=true&by=b&reason=c", true); code != c.want || strings.Count(says, "\n") != 1 {
			t.Errorf("%s: %d %q, want %d", name, code, says, c.want)
		}
		if n := testutil.ToFloat64(a.Metrics.questions.WithLabelValues(AskPurge, "failed")); n != 1 {
			t.Errorf("%s: %v failures are counted", name, n)
		}
		if !strings.Contains(a.log.String(), "act on dead letters failed") || strings.Contains(a.log.String(), "ended") {
			t.Errorf("%s: the log has no line about it:\n%s", name, a.log.String())
		}
	}
}

// TestEndpointTellsWhatAFailedActDid: an act that has sent a part of the letters tells which, with the status of its error.
func TestEndpointTellsWhatAFailedActDid(t *testing.T) {
	counts := Counts{Read: 3, Selected: 3, Sent: 2, Obstacles: map[string]int{ObstacleRefused: 1}, Refused: []string{"1:2:-1:-1 of 2000 bytes: orders has not taken it"}}
	act := "f00d"
	a := newAsked(func(context.Context, Question) (Answer, error) {
		return Answer{Acted: &Acted{Act: act, Says: counts.Words(false), Counts: counts}, Error: "letters were not sent: <orders>", Status: http.StatusBadGateway}, nil
	})
	const path = "/v1/deadletters/replay?key=a&yes=true&by=b&reason=c"
	code, says := a.call("POST", path, true)
	var got Acted
	if err := json.Unmarshal([]byte(says), &got); err != nil || code != http.StatusBadGateway {
		t.Fatalf("%d %s: %v", code, says, err)
	}
	if got.Error != "letters were not sent: <orders>" || got.Act != act || got.Counts.Sent != 2 || len(got.Counts.Refused) != 1 || !strings.Contains(fmt.Sprint(got.Says), counts.Refused[0]) {
		t.Errorf("the answer is %+v", got)
	}
	if n := testutil.ToFloat64(a.Metrics.questions.WithLabelValues(AskReplay, "failed")); n != 1 || !strings.Contains(a.log.String(), "act on dead letters failed") || !strings.Contains(a.log.String(), "sent=2") {
		t.Errorf("%v failures are counted, and the log is:\n%s", n, a.log.String())
	}
	act = "" // it has not begun
	if code, says := a.call("POST", path, true); code != http.StatusBadGateway || says != "letters were not sent: <orders>\n" {
		t.Errorf("of an act that has not begun: %d %q", code, says)
	}
}

// TestEndpointAnswersOneAtATime: the second question gets 429 while the first is answered.
func TestEndpointAnswersOneAtATime(t *testing.T) {
	begun, end := make(chan struct{}), make(chan struct{})
	a := newAsked(func(context.Context, Question) (Answer, error) {
		close(begun)
		<-end
		return Answer{List: &AskedList{Whole: false}}, nil
	})
	first := make(chan int)
	go func() {
		code, _ := a.call("GET", "/v1/deadletters", true)
		first <- code
	}()
	<-begun
	if code, _ := a.call("GET", "/v1/deadletters", true); code != http.StatusTooManyRequests {
		t.Errorf("the second question has the answer %d", code)
	}
	close(end)
	if code := <-first; code != 200 {
		t.Errorf("the first question has the answer %d", code)
	}
	for _, result := range []string{"busy", "cut"} {
		if n := testutil.ToFloat64(a.Metrics.questions.WithLabelValues(AskList, result)); n != 1 {
			t.Errorf("%s is counted %v times", result, n)
		}
	}
}

// TestHostileLetterShown: whatever a stranger has written into a letter, answers have printable texts of bounded length, and
// without the token no key.
func TestHostileLetterShown(t *testing.T) {
	const hostile = "<img src=x onerror=alert(1)>\x1b[2J\u202e\xff"
	m := written()
	m.MessageKey, m.Payload = "key "+hostile, []byte(strings.Repeat("\xffab", 20_000))
	for _, name := range []string{source.PropertyReason, source.PropertyFirstError, source.PropertyOwner, source.PropertyTopic, "own " + hostile} {
		m = set(m, name, strings.Repeat(hostile, 1000))
	}
	for i := range 300 {
		m = set(m, "more"+string(rune('a'+i%26))+strings.Repeat("x", i), "1")
	}
	cfg := DefaultConfig()
	cfg.Topics, cfg.Now = []string{orders}, func() time.Time { return time.UnixMilli(65_000) }
	b := New(cfg, nil)
	l := newLetter(m, extractor(t))
	listed, whole := b.asked(shownOf(&l, shownTextMax), &l), b.whole(&l)
	whole.setHexPayload(l.Payload)
	if listed.Key != "" || listed.KeyBase64 == "" || len(listed.Hash) != 16 || listed.Age != 60 || listed.Obstacle != ObstacleTopic {
		t.Errorf("it is listed as %+v", listed)
	}
	if len(whole.Properties) != askedOwnMax || whole.More < 200 {
		t.Errorf("%d properties are shown, %d are cut", len(whole.Properties), whole.More)
	}
	if !strings.HasPrefix(*whole.Payload, "ff 61 62 ff") || whole.PayloadIs != "hex, the first 16384 of 60000 bytes" || len(*whole.Payload) > 3*askedPayloadMax {
		t.Errorf("its payload is %s: %.40q", whole.PayloadIs, *whole.Payload)
	}
	a := newAsked(func(_ context.Context, q Question) (Answer, error) {
		if q.What == AskShow {
			return Answer{Letter: whole}, nil
		}
		copied := *listed
		return Answer{List: &AskedList{Whole: true, Letters: []*AskedLetter{&copied}}}, nil
	})
	_, list := a.call("GET", "/v1/deadletters", true)
	_, show := a.call("GET", "/v1/deadletters/letter?id=7:8:-1:-1&payload=true", true)
	if !strings.Contains(show, whole.PayloadIs) {
		t.Errorf("it is shown as %.300s", show)
	}
	_, strange := a.call("GET", "/v1/deadletters", false)
	for where, text := range map[string]string{"list": list, "show": show, "list of a stranger": strange} {
		var told any
		if err := json.Unmarshal([]byte(text), &told); err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		eachText(told, func(s string) {
			if strings.ContainsAny(s, "\x1b\u202e\ufffd") || len(s) > 5*shownPropertyMax && where == "list" {
				t.Errorf("%s has the text %.60q of %d bytes", where, s, len(s))
			}
		})
	}
	if len(list) > 8<<10 || !strings.Contains(list, listed.KeyBase64) {
		t.Errorf("the list has %d bytes", len(list))
	}
	if strings.Contains(strange, listed.KeyBase64) || strings.Contains(strange, `"first_error":"<`) || !strings.Contains(strange, listed.Hash) {
		t.Errorf("without the token the list is %.300s", strange)
	}
}

func eachText(v any, do func(string)) {
	switch v := v.(type) {
	case string:
		do(v)
	case []any:
		for _, one := range v {
			eachText(one, do)
		}
	case map[string]any:
		for name, one := range v {
			do(name)
			eachText(one, do)
		}
	}
}

// TestTextPayload: lines stay lines, and nothing else in a payload reaches a terminal or changes the direction of a text.
func TestTextPayload(t *testing.T) {
	var l AskedLetter
	l.setHexPayload([]byte("one\n<b>two</b>\x1b[31m\u202e"))
	if *l.Payload != "one\n<b>two</b>\\x1b[31m\\u202e" || l.PayloadIs != "text" {
		t.Errorf("%s: %q", l.PayloadIs, *l.Payload)
	}
}

func TestNote(t *testing.T) {
	for want, l := range map[string]AskedList{
		"0 dead letters wait.": {Whole: true},
		"1 dead letter waits.": {Whole: true, Selected: 1, Letters: make([]*AskedLetter, 1)},
		"At least 10000 dead letters wait; the 2 newest of them are listed; enough.": {Selected: 10_000, Cut: 9998, Reach: "enough", Letters: make([]*AskedLetter, 2)},
	} {
		if got := l.note(true); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	l := AskedList{Whole: true, Read: 7, Selected: 2, Letters: make([]*AskedLetter, 2)}
	if got := l.note(false); got != "2 dead letters wait, selected from 7 that were read." {
		t.Errorf("%q", got)
	}
}

// TestNewest: the newest of many letters are listed, in that order.
func TestNewest(t *testing.T) {
	var all []*AskedLetter
	for i := range 10 {
		one := &AskedLetter{}
		one.ID, one.Published = event.MessageID{Entry: int64(i)}.String(), time.UnixMilli(int64(i*7%10))
		all = append(all, one)
	}
	newest := newestOf(all, 3)
	if len(newest) != 3 || newest[0].Published.UnixMilli() != 9 || newest[1].Published.UnixMilli() != 8 || newest[2].Published.UnixMilli() != 7 {
		t.Errorf("the newest are %v", newest)
	}
}
