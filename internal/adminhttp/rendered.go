package adminhttp

import (
	"bytes"
	"context"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
)

// Limits of pages that callers without a token may request.
const (
	renderedFor   = 500 * time.Millisecond // how old an answer may be that is given again
	renderedMax   = 64                     // answers that are remembered of one page
	renderTimeout = 10 * time.Second       // of one rendering
)

// Rendered returns page so that it is computed at most twice a second for each form of it:
// further requests get the same answer. form names all parts of a request that the answer
// depends on.
//
// The context that page gets does not end when the first caller goes away, since others wait
// for the answer too.
func Rendered(page http.Handler, form func(*http.Request) string) http.Handler {
	p := &renderedPage{page: page, answers: make(map[string]*rendering)}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := form(r)
		answer, ours := p.find(name)
		if ours {
			p.render(answer, name, r)
		}
		select {
		case <-answer.done:
			answer.give(w)
		case <-r.Context().Done():
		}
	})
}

type renderedPage struct {
	page http.Handler

	mu      sync.Mutex
	answers map[string]*rendering
}

// rendering is an answer, or will be one.
type rendering struct {
	done chan struct{} // closed when the rest is there

	header http.Header
	status int
	body   bytes.Buffer
}

// find returns the answer of a form; ours says that the caller has to render it.
func (p *renderedPage) find(form string) (answer *rendering, ours bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if answer := p.answers[form]; answer != nil {
		return answer, false
	}
	answer = &rendering{done: make(chan struct{}), header: http.Header{}}
	if len(p.answers) < renderedMax {
		p.answers[form] = answer
	}
	return answer, true
}

func (p *renderedPage) render(answer *rendering, form string, r *http.Request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), renderTimeout)
	defer cancel()
	complete := false
	defer func() {
		if !complete { // the page has panicked: the server logs it for the first caller, and the others must not get an empty answer
			answer.header, answer.status = http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, http.StatusInternalServerError
			answer.body.Reset()
			answer.body.WriteString("the page cannot be shown: see the log of the router\n")
		}
		close(answer.done)
		time.AfterFunc(renderedFor, func() { p.forget(answer, form) })
	}()
	p.page.ServeHTTP(answer, r.WithContext(ctx))
	complete = true
}

func (p *renderedPage) forget(answer *rendering, form string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answers[form] == answer {
		delete(p.answers, form)
	}
}

// Header implements http.ResponseWriter.
func (a *rendering) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *rendering) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write implements http.ResponseWriter.
func (a *rendering) Write(text []byte) (int, error) { return a.body.Write(text) }

func (a *rendering) give(w http.ResponseWriter) {
	maps.Copy(w.Header(), a.header)
	if a.status != 0 {
		w.WriteHeader(a.status)
	}
	_, _ = w.Write(a.body.Bytes()) // a client that has gone does not need it
}

// metricsPage shows metrics in one of few forms, for any request.
func metricsPage(page http.Handler, openMetrics bool) http.Handler {
	formats := expfmt.DefaultAcceptedFormats()
	if openMetrics {
		formats = expfmt.DefaultOpenMetricsAcceptedFormats()
	}
	form := func(r *http.Request) http.Header {
		asked := http.Header{"Accept": {string(expfmt.NegotiateAccept(r.Header, formats...))}}
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			asked.Set("Accept-Encoding", "gzip")
		}
		return asked
	}
	return Rendered(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.Clone(r.Context())
		r.Header = form(r)
		page.ServeHTTP(w, r)
	}), func(r *http.Request) string {
		asked := form(r)
		return asked.Get("Accept") + " " + asked.Get("Accept-Encoding")
	})
}
