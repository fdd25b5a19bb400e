// Package adminhttp serves the admin endpoint: probes, metrics, drain and undrain, the
// log level, and Go's profiles on the debug endpoint. Package statuspage adds the page for
// people, and internal/netx/listen decides which requests get here.
//
// # Concurrency
//
// Everything is safe for concurrent use after its construction. Health checks run in the
// goroutines of the HTTP server: they may be called at any time, several at once, and must
// answer from known state, without waiting.
package adminhttp

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ringfence/router/internal/base/signal"
)

// Check is one condition of health. Ask returns nil when it holds.
type Check struct {
	Name string
	Ask  func() error
}

// Options are the parts that [NewHandler] serves.
type Options struct {
	// Startup, Ready and Live are the conditions of the three probes. A broker
	// outage or a slow application is not part of Live: a restart fixes neither.
	Startup, Ready, Live []Check

	// Notice is a line that /readyz adds to every answer; empty: none.
	Notice string

	// Metrics is gathered for /metrics.
	Metrics prometheus.Gatherer

	// Exemplars makes /metrics answer in OpenMetrics, which has exemplars, to callers that accept it.
	Exemplars bool

	// Pages are additional pages, by pattern of [http.ServeMux].
	Pages map[string]http.Handler

	// Drain begins to drain, or does nothing if that has begun, and returns a
	// channel that is closed when nothing is left. It does not end the process.
	Drain func() <-chan struct{}

	// DrainWaits returns what a drain waits for, "" for nothing; nil: that is not known.
	DrainWaits func() string

	// Undrain makes a node that drains, or has drained, take part again, and returns a
	// channel that is closed when that begins: at once if it does not drain. An error
	// means that it never will.
	Undrain func() (<-chan struct{}, error)
}

// NewHandler serves /startupz, /readyz, /livez, /metrics, /drain and /undrain.
//
// A probe answers 200 when all of its checks hold, and otherwise 503 with a line for each
// failing check. /drain (GET, since Kubernetes hooks cannot POST, or POST) answers 200 when
// everything is drained, and 202 when that takes longer than the duration ?wait=, which is 0 by
// default and an hour at most. /undrain (POST) takes ?wait= too: 200 when the node takes part
// again, or never stopped to, 202 while its drain is still in progress, and 409 when the
// process is about to end.
func NewHandler(a Options) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /startupz", probe(a.Startup, ""))
	mux.Handle("GET /readyz", probe(a.Ready, a.Notice))
	mux.Handle("GET /livez", probe(a.Live, ""))
	mux.Handle("GET /metrics", metricsPage(promhttp.HandlerFor(a.Metrics, promhttp.HandlerOpts{EnableOpenMetrics: a.Exemplars}), a.Exemplars))
	for pattern, page := range a.Pages {
		mux.Handle(pattern, page)
	}
	// Changes need POST. The one exception is /drain, because hooks of Kubernetes can only GET.
	mux.Handle("GET /drain", drain(a.Drain, a.DrainWaits))
	mux.Handle("POST /drain", drain(a.Drain, a.DrainWaits))
	mux.Handle("POST /undrain", undrain(a.Undrain))
	return mux
}

func probe(checks []Check, notice string) http.Handler {
	if notice != "" {
		notice += "\n"
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		var failing strings.Builder
		for _, check := range checks {
			if err := check.Ask(); err != nil {
				fmt.Fprintf(&failing, "%s: %s\n", check.Name, strings.ReplaceAll(err.Error(), "\n", "; ")) // joined errors have a line each
			}
		}
		if failing.Len() > 0 {
			answer(w, http.StatusServiceUnavailable, failing.String()+notice)
			return
		}
		answer(w, http.StatusOK, "ok\n"+notice)
	})
}

func drain(begin func() <-chan struct{}, waits func() string) http.Handler {
	doing := func() string {
		if waits != nil {
			if what := waits(); what != "" {
				return "draining: " + what
			}
		}
		return "draining"
	}
	return verb("drained", doing, func() (<-chan struct{}, error) { return begin(), nil })
}

func undrain(begin func() (<-chan struct{}, error)) http.Handler {
	return verb("undrained", func() string { return "it comes back when its drain is over" }, begin)
}

// verb answers done if the operation that begin starts has ended within ?wait=, and otherwise
// doing.
func verb(done string, doing func() string, begin func() (<-chan struct{}, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead { // which a pattern for GET matches too
			answer(w, http.StatusMethodNotAllowed, "")
			return
		}
		wait, err := waitOf(r)
		if err != nil {
			answer(w, http.StatusBadRequest, err.Error()+"\n")
			return
		}
		defer patient(w)()
		timeout := time.NewTimer(wait)
		defer timeout.Stop()
		ended, err := begin()
		if err != nil {
			answer(w, http.StatusConflict, err.Error()+"\n")
			return
		}
		if signal.IsClosed(ended) { // with no time to wait, both cases below would be ready
			answer(w, http.StatusOK, done+"\n")
			return
		}
		select {
		case <-ended:
			answer(w, http.StatusOK, done+"\n")
		case <-timeout.C:
			answer(w, http.StatusAccepted, doing()+"\n")
		case <-r.Context().Done():
		}
	})
}

// answerTimeout is how long a client may take to read its answer.
const answerTimeout = 10 * time.Second

// patient lifts the deadline for an intentionally slow answer, and returns a function that
// restores it: the answer is sent when the handler has returned.
func patient(w http.ResponseWriter) (answers func()) {
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Time{})                                     // an error means that this is no connection
	return func() { _ = control.SetWriteDeadline(time.Now().Add(answerTimeout)) } //nolint:forbidigo // the deadlines of connections go by the wall clock
}

// WaitMax is the longest wait that a request may ask for.
const WaitMax = time.Hour

func waitOf(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("wait")
	if text == "" {
		return 0, nil
	}
	wait, err := time.ParseDuration(text)
	if err != nil || wait < 0 {
		return 0, fmt.Errorf("wait = %.40q, want a duration such as 30s", text)
	}
	return min(wait, WaitMax), nil
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) //nolint:gosec // plain text, not HTML; a client that has gone does not need it
}
