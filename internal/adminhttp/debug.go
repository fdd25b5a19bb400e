package adminhttp

import (
	"net/http"
	"net/http/pprof"
	"strconv"
	"sync/atomic"
	"time"
)

// Of Go's profiles. Each takes processor time from the router, and some stop it for a moment.
const (
	profileMax   = 30 * time.Second // of one profile
	traceMax     = 5 * time.Second  // of one execution trace
	profilePause = 5 * time.Second  // after a profile, before the next: as long as the profile took, and this at least
)

// NewDebugHandler serves Go's profiles under /debug/pprof/, one at a time, each for a bounded
// time and with a pause after it. Earlier requests get the status 429.
func NewDebugHandler() http.Handler {
	var turn profileTurn
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/{$}", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.Handle("GET /debug/pprof/profile", turn.bounded(http.HandlerFunc(pprof.Profile), profileMax, profileMax))
	mux.Handle("GET /debug/pprof/trace", turn.bounded(http.HandlerFunc(pprof.Trace), time.Second, traceMax))
	for _, name := range []string{"allocs", "block", "goroutine", "heap", "mutex", "threadcreate"} {
		mux.Handle("GET /debug/pprof/"+name, turn.bounded(pprof.Handler(name), 0, profileMax))
	}
	return mux
}

// profileTurn lets one profile run at a time.
type profileTurn struct {
	taken atomic.Bool // from the begin of a profile to the end of the pause after it
}

// bounded returns profile for ?seconds=, which is usual if nothing is said, and most at most.
func (t *profileTurn) bounded(profile http.Handler, usual, most time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		took, err := secondsOf(r, usual)
		if err != nil || took > most {
			answer(w, http.StatusBadRequest, "seconds: want a whole number, at most "+strconv.Itoa(int(most.Seconds()))+"\n")
			return
		}
		if !t.taken.CompareAndSwap(false, true) {
			w.Header().Set("Retry-After", strconv.Itoa(int(profilePause.Seconds())))
			answer(w, http.StatusTooManyRequests, "another profile runs, or was taken a moment ago\n")
			return
		}
		defer func() { time.AfterFunc(max(profilePause, took), func() { t.taken.Store(false) }) }()
		query := r.URL.Query()
		query.Del("seconds")
		if took > 0 {
			query.Set("seconds", strconv.Itoa(int(took.Seconds())))
		}
		r = r.Clone(r.Context())
		r.URL.RawQuery = query.Encode()
		profile.ServeHTTP(w, r)
	})
}

// secondsOf reads ?seconds= as profiles do, but takes whole seconds only.
func secondsOf(r *http.Request, usual time.Duration) (time.Duration, error) {
	text := r.URL.Query().Get("seconds")
	if text == "" {
		return usual, nil
	}
	seconds, err := strconv.ParseUint(text, 10, 16)
	if err == nil && seconds == 0 { // as profiles take it
		return usual, nil
	}
	return time.Duration(seconds) * time.Second, err
}
