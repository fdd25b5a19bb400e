package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/netx/untrusted"
)

// Of requests.
const (
	AskMax       = 45 * time.Second // until the process that answers is ended
	answerTime   = 10 * time.Second // for a caller to take an answer
	askedByMax   = 200              // bytes of by
	askedWhyMax  = 1 << 10          // bytes of reason
	askedTextMax = 200              // bytes of match
)

// Metrics count the questions of one router's admin endpoint.
type Metrics struct{ questions *prometheus.CounterVec }

// NewMetrics registers them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{promauto.With(registry).NewCounterVec(prometheus.CounterOpts{
		Name: "ringfence_deadletter_questions_total",
		Help: "Questions about dead letters, and acts on them, at the admin endpoint, by result.",
	}, []string{"what", "result"})}
	for _, what := range []string{AskList, AskShow, AskReplay, AskPurge, AskEvents} {
		for _, result := range []string{"ok", "cut", "busy", "failed"} {
			m.questions.WithLabelValues(what, result)
		}
	}
	return m
}

// Endpoint serves the dead letters of a group on the admin endpoint. All its fields are set before Handlers is called.
type Endpoint struct {
	// Ask answers a question, in a process of its own: letters are bytes of strangers, and take memory that the router has
	// no bound for. It returns an error if the process fails.
	Ask func(context.Context, Question) (Answer, error)

	None    string                   // why no question can be answered: the answer to every request; "": questions are answered
	Node    string                   // name of the router, for records
	Named   func(*http.Request) bool // whether the caller may know keys and errors
	Reads   func(*http.Request) bool // whether the caller may know properties and payloads
	Metrics *Metrics
	Log     *slog.Logger
}

// Handlers returns the pages of the endpoint, by pattern of [http.ServeMux]. They are safe for concurrent use; one question is
// answered at a time, and a further one gets the status 429 meanwhile. Answers are JSON objects.
//
//	GET  /v1/deadletters[?key=KEY][&match=TEXT][&limit=N]                                   AskedList
//	GET  /v1/deadletters/letter?id=ID[&payload=true]                                        AskedLetter
//	POST /v1/deadletters/replay?id=ID|key=KEY[&yes=true&by=WHO&reason=WHY]                  Acted
//	POST /v1/deadletters/purge?id=ID|key=KEY[&yes=true&by=WHO&reason=WHY]                   Acted
//	POST /v1/replay?key=KEY&since=TIME&until=TIME[&yes=true&by=WHO&reason=WHY]              Acted
//
// The last replays events of the group's topics, and not letters. KEY may have any bytes, percent-encoded; TIME is as in RFC 3339. Without yes=true an act counts only. An answer 504 to an act means that some of it may be
// done; the same request, sent again, finds out what was sent and continues. An act that has failed after its beginning has the status of its error, and
// is an Acted with that error.
func (e Endpoint) Handlers() map[string]http.Handler {
	turn := make(chan struct{}, 1)
	page := func(question func(*http.Request) (Question, error)) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if e.None != "" {
				http.Error(w, e.None, http.StatusConflict)
				return
			}
			q, err := question(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			if q.What == AskShow && !e.Reads(r) {
				http.Error(w, "the content of a letter is shown with the admin token only: set admin.token", http.StatusForbidden)
				return
			}
			select {
			case turn <- struct{}{}:
				defer func() { <-turn }()
			default:
				e.Metrics.questions.WithLabelValues(q.What, "busy").Inc()
				w.Header().Set("Retry-After", "5")
				http.Error(w, "another request about dead letters is being answered: try again in a moment", http.StatusTooManyRequests)
				return
			}
			e.serve(w, r, q)
		})
	}
	return map[string]http.Handler{
		"GET /v1/deadletters":         page(listQuestion),
		"GET /v1/deadletters/letter":  page(showQuestion),
		"POST /v1/deadletters/replay": page(func(r *http.Request) (Question, error) { return actQuestion(r, AskReplay) }),
		"POST /v1/deadletters/purge":  page(func(r *http.Request) (Question, error) { return actQuestion(r, AskPurge) }),
		"POST /v1/replay":             page(eventsQuestion),
	}
}

func (e Endpoint) serve(w http.ResponseWriter, r *http.Request, q Question) {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Now().Add(AskMax + answerTime)) //nolint:forbidigo // the deadlines of connections go by the wall clock; an error means that this is no connection
	who := q.By
	if q.Yes {
		q.By += ", at the admin endpoint of " + e.Node
		e.Log.Info("act on dead letters begins", "what", q.What, "by", untrusted.Text(who), "reason", untrusted.Text(q.Why), "from", r.RemoteAddr, "letter", q.ID)
	}
	ctx, cancel := context.WithTimeout(r.Context(), AskMax)
	defer cancel()
	a, err := e.Ask(ctx, q)
	if err == nil && a.Error == "" && a.List == nil && a.Letter == nil && a.Acted == nil {
		err = fmt.Errorf("no answer to the question %q", q.What)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		a = Answer{Error: fmt.Sprintf("no answer within %v", AskMax), Status: http.StatusGatewayTimeout}
	case err != nil:
		a = Answer{Error: untrusted.Short(err.Error(), shownPropertyMax), Status: http.StatusBadGateway}
	}
	if q.Yes {
		e.logEnd(q, who, &a)
	}
	if a.Error != "" {
		e.Metrics.questions.WithLabelValues(q.What, "failed").Inc()
		if a.Status < 400 || a.Status > 599 {
			a.Status = http.StatusBadGateway
		}
		if a.Acted == nil || a.Acted.Act == "" {
			http.Error(w, a.Error, a.Status)
			return
		}
		a.Acted.Error = a.Error // some of it may be done
	} else {
		e.Metrics.questions.WithLabelValues(q.What, a.result()).Inc()
	}
	if a.List != nil && !e.Named(r) {
		for _, l := range a.List.Letters {
			l.hide()
		}
	}
	text, err := json.Marshal(a.part())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if a.Error != "" {
		w.WriteHeader(a.Status)
	}
	_, _ = w.Write(append(text, '\n')) // a client that has gone does not need it
}

func (e Endpoint) logEnd(q Question, who string, a *Answer) {
	attrs := []any{"what", q.What, "by", untrusted.Text(who), "reason", untrusted.Text(q.Why), "letter", q.ID}
	if a.Acted != nil {
		c := a.Acted.Counts
		attrs = append(attrs, "act", a.Acted.Act, "sent", c.Sent, "purged", c.Purged, "sent_before", c.SentBefore, "repeated", c.Repeated)
	}
	if a.Error != "" {
		e.Log.Warn("act on dead letters failed", append(attrs, "error", a.Error)...)
		return
	}
	e.Log.Info("act on dead letters ended", attrs...)
}

// part returns what the caller gets.
func (a *Answer) part() any {
	switch {
	case a.List != nil:
		return a.List
	case a.Letter != nil:
		return a.Letter
	}
	return a.Acted
}

// result is the word of the metric.
func (a *Answer) result() string {
	if a.List != nil && !a.List.Whole || a.Acted != nil && (a.Acted.Counts.Reach != "" || a.Acted.Counts.Left > 0) {
		return "cut"
	}
	return "ok"
}

func listQuestion(r *http.Request) (Question, error) {
	form := r.URL.Query()
	q := Question{What: AskList, ByKey: form.Has("key"), Key: []byte(form.Get("key")), Match: form.Get("match")}
	if len(q.Match) > askedTextMax {
		return q, fmt.Errorf("match has %d bytes, at most %d are possible", len(q.Match), askedTextMax)
	}
	if text := form.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > askedListMax {
			return q, fmt.Errorf("limit = %.40q, want 1 to %d", text, askedListMax)
		}
		q.Limit = n
	}
	return q, nil
}

func showQuestion(r *http.Request) (Question, error) {
	form := r.URL.Query()
	id, err := letterID(form.Get("id"))
	return Question{What: AskShow, ID: id, Payload: form.Get("payload") == "true"}, err
}

// letterID reads the id of a letter, in its one form.
func letterID(text string) (string, error) {
	id, err := event.ParseMessageID(text)
	if err != nil {
		return "", fmt.Errorf("id = %.100q, want the id of a letter as ledger:entry:partition:batch", text)
	}
	return id.String(), nil
}

func actQuestion(r *http.Request, what string) (q Question, err error) {
	form := r.URL.Query()
	q = Question{What: what, ByKey: form.Has("key"), Key: []byte(form.Get("key")), Yes: form.Get("yes") == "true"}
	if form.Has("id") {
		if q.ID, err = letterID(form.Get("id")); err != nil {
			return q, err
		}
	}
	if (q.ID != "") == q.ByKey {
		return q, errors.New("say which letters: id=ID or key=KEY, percent-encoded")
	}
	return q, q.sign(form)
}

func eventsQuestion(r *http.Request) (Question, error) {
	form := r.URL.Query()
	q := Question{What: AskEvents, ByKey: form.Has("key"), Key: []byte(form.Get("key")), Yes: form.Get("yes") == "true"}
	if !q.ByKey {
		return q, errors.New("say which key: key=KEY, percent-encoded")
	}
	for name, at := range map[string]*time.Time{"since": &q.Since, "until": &q.Until} {
		var err error
		if *at, err = time.Parse(time.RFC3339Nano, form.Get(name)); err != nil {
			return q, fmt.Errorf("%s = %.60q, want a time as in RFC 3339: 2026-11-25T14:00:00Z", name, form.Get(name))
		}
	}
	if !q.Since.Before(q.Until) {
		return q, errors.New("since must be before until")
	}
	return q, q.sign(form)
}

// sign says who acts and why, if the question is to do something.
func (q *Question) sign(form url.Values) error {
	if !q.Yes {
		return nil
	}
	q.By, q.Why = strings.TrimSpace(form.Get("by")), strings.TrimSpace(form.Get("reason"))
	switch {
	case q.By == "" || q.Why == "":
		return errors.New("an act needs by=WHO and reason=WHY, for the audit trail")
	case len(q.By) > askedByMax || len(q.Why) > askedWhyMax:
		return fmt.Errorf("by has at most %d bytes, and reason %d", askedByMax, askedWhyMax)
	}
	return nil
}
