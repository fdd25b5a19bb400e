// Package statuspage serves the status page for people on the admin endpoint: what is wrong, the
// keys that are stuck, failing or hot, rates, members, partitions, and whether exclusivity held.
//
// The page itself ([Page.Handlers]) is a constant document with its script and style. The script
// asks for a [snapshot]: JSON whose words and severities are ready for display, of bounded
// length. It comes as a stream of server-sent events, or by polling if there is no stream.
//
//	report.Group ─▶ look ─▶ newSnapshot (pure) ─▶ JSON ─▶ page.js, which sets texts and nothing else
//
// The data are the members' own reports ([report.Group]), as collected by the member that serves
// the page. A member that does not answer is shown as silent, with the consequences for its
// partitions; the page never guesses its state. Names of keys, members and errors come from
// outside: they are made printable here, and the page never takes them for markup.
//
// # Concurrency
//
// Everything is safe for concurrent use.
package statuspage

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ringfence/router/internal/base/clock"
	"github.com/ringfence/router/internal/base/signal"
	"github.com/ringfence/router/internal/report"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

//go:embed page.js
var pageJS string

// Group is the source of the page, a [report.Group] except in tests.
type Group interface {
	Members(ctx context.Context) report.Members
	Partitions(ctx context.Context, member string) (report.Partitions, error)
	Keys(ctx context.Context, q report.KeysQuestion) report.Keys
}

// Callers tells what the caller of a request may do, and when its answer has to end.
type Callers struct {
	MayNameKeys func(*http.Request) bool // sees the names of keys; others see hashes
	MayAct      func(*http.Request) bool // may ask for everything, as to hold a key
	Ending      func(*http.Request) <-chan struct{}
}

// Of streams and snapshots.
const (
	streamsMax   = 16               // at a time; further callers get the status 429, and poll
	streamMax    = 15 * time.Minute // of each; the script then opens another one
	writeTimeout = 10 * time.Second // for a caller to take one event

	lookEvery   = time.Second     // between snapshots, or as long as the last one took
	keysEvery   = 2 * time.Second // between lists of keys: a member makes four a second, for all who ask
	lookTimeout = 8 * time.Second // of one snapshot: less than an answer may take
)

// Page is the status page of one member.
type Page struct {
	callers Callers
	streams chan struct{} // a token for each
	named   watcher
	hashed  watcher
}

// New returns the page of a group.
func New(group Group, callers Callers) *Page {
	return &Page{
		callers: callers, streams: make(chan struct{}, streamsMax),
		named: newWatcher(group, true), hashed: newWatcher(group, false),
	}
}

// Handlers returns the handlers of the page, by pattern of [http.ServeMux].
//
//	GET /                The page, without data
//	GET /v1/page         Its data, as one JSON object
//	GET /v1/page/events  The same as a stream of server-sent events, each with the parts that have changed
func (p *Page) Handlers() map[string]http.Handler {
	return map[string]http.Handler{
		"GET /{$}":            http.HandlerFunc(serveDocument),
		"GET /v1/page":        http.HandlerFunc(p.serveSnapshot),
		"GET /v1/page/events": http.HandlerFunc(p.serveEvents),
	}
}

// document is the page, and policy what a browser may do with it: run this script, apply this style,
// and ask this host. No text can become markup (Trusted Types).
var document, policy = assemble()

func assemble() (html []byte, policy string) {
	put := strings.NewReplacer("/*page.css*/", pageCSS, "/*page.js*/", pageJS)
	return []byte(put.Replace(pageHTML)), fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; connect-src 'self'; img-src data:; base-uri 'none'; "+
		"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'", digest(pageJS), digest(pageCSS))
}

// digest names an inline script or style in a policy.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

func serveDocument(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	guarded(h)
	_, _ = w.Write(document) // a client that has gone does not need it
}

// guarded sets the headers of all answers.
func guarded(h http.Header) {
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
}

// watch returns the watcher whose data a caller may see.
func (p *Page) watch(r *http.Request) *watcher {
	if p.callers.MayNameKeys(r) {
		return &p.named
	}
	return &p.hashed
}

// caller is the part of an answer about who asks.
func (p *Page) caller(r *http.Request) json.RawMessage {
	text, _ := json.Marshal(struct { // cannot fail
		MayAct bool `json:"may_act"`
		Named  bool `json:"named"`
	}{p.callers.MayAct(r), p.callers.MayNameKeys(r)})
	return text
}

func (p *Page) serveSnapshot(w http.ResponseWriter, r *http.Request) {
	seen, err := p.watch(r).newest(r.Context())
	if err != nil {
		http.Error(w, "no snapshot in time", http.StatusServiceUnavailable)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	guarded(h)
	_, _ = w.Write(append(join(seen.with(p.caller(r))), '\n')) // a client that has gone does not need it
}

// serveEvents sends snapshots until the caller goes, reads too slowly, has had its time, or has other rights than at first.
func (p *Page) serveEvents(w http.ResponseWriter, r *http.Request) {
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		w.Header().Set("Retry-After", "30")
		http.Error(w, fmt.Sprintf("%d streams are open, which is the most: poll /v1/page", streamsMax), http.StatusTooManyRequests)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), streamMax)
	defer cancel()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // a proxy must hand on each event at once
	guarded(h)
	control, watch, caller := http.NewResponseController(w), p.watch(r), p.caller(r)
	sent := map[string][]byte{}
	for {
		newest, err := watch.newest(ctx)
		if err != nil || !bytes.Equal(p.caller(r), caller) { // the token may have been replaced
			return
		}
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout)) //nolint:forbidigo // the deadlines of connections go by the wall clock
		event := join(changed(newest.with(caller), sent))
		if _, err := fmt.Fprintf(w, "data: %s\n\n", event); err != nil || control.Flush() != nil {
			return
		}
		pause := time.NewTimer(newest.pause)
		select {
		case <-pause.C:
		case <-ctx.Done():
		case <-p.callers.Ending(r):
		}
		pause.Stop()
		if ctx.Err() != nil || signal.IsClosed(p.callers.Ending(r)) {
			return
		}
	}
}

// part is a part of a snapshot, as JSON.
type part struct {
	name string
	text json.RawMessage
}

// changed returns the parts that differ from those of the last call, which sent remembers.
func changed(parts []part, sent map[string][]byte) (news []part) {
	for _, p := range parts {
		if !bytes.Equal(p.text, sent[p.name]) {
			sent[p.name] = p.text
			news = append(news, p)
		}
	}
	return news
}

// join makes one JSON object, in one line, of parts.
func join(parts []part) []byte {
	out := []byte{'{'}
	for i, p := range parts {
		if i > 0 {
			out = append(out, ',')
		}
		out = fmt.Appendf(out, "%q:", p.name)
		out = append(out, p.text...)
	}
	return append(out, '}')
}

// watcher looks at the group for all callers that may see the same.
type watcher struct {
	group Group
	named bool
	now   func() clock.Instant
	turn  chan struct{} // cap 1: held by the goroutine that uses the fields below

	last   *shot
	at     clock.Instant // of last
	keys   keyLists
	keysAt clock.Instant
}

// shot is a snapshot, ready to be sent. It does not change.
type shot struct {
	parts []part
	pause time.Duration // until the next one
}

// with returns the parts, and the one about the caller.
func (s *shot) with(caller json.RawMessage) []part {
	return append(slices.Clone(s.parts), part{"caller", caller})
}

func newWatcher(group Group, named bool) watcher {
	return watcher{group: group, named: named, now: clock.Now, turn: make(chan struct{}, 1)}
}

// newest returns a snapshot that is younger than its pause. One caller makes it, and all others wait for it.
func (w *watcher) newest(ctx context.Context) (*shot, error) {
	select {
	case w.turn <- struct{}{}:
		defer func() { <-w.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	begun := w.now()
	if w.last != nil && begun.Sub(w.at) < w.last.pause*9/10 { // the timer of a stream may be early
		return w.last, nil
	}
	looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout) // others wait for it, too
	defer cancel()
	known := &w.keys
	if w.keysAt == 0 || begun.Sub(w.keysAt) >= keysEvery*9/10 {
		known, w.keysAt = nil, begun
	}
	s := look(looking, w.group, w.named, known)
	w.keys = s.keys
	parts, err := encode(newSnapshot(s))
	if err != nil {
		return nil, err
	}
	w.at = w.now()
	w.last = &shot{parts: parts, pause: max(lookEvery, w.at.Sub(begun))}
	return w.last, nil
}
