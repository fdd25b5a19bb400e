// Package statuspage serves the HTML status page on the admin endpoint: the ring, the members,
// their unfinished events, and whether exclusivity held.
//
// It shows the members' own reports ([report.Group]), as collected by the member that serves
// the page. A member that does not answer is shown as silent, with the consequences for its
// partitions; the page never guesses its state.
//
//	report.Group ─▶ look ─▶ newView (pure) ─▶ page.html
//
// # Concurrency
//
// Everything is safe for concurrent use.
package statuspage

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"html/template"
	"net/http"

	"github.com/ringfence/router/internal/report"
)

//go:embed page.html
var pageHTML string

var page = template.Must(template.New("page").Parse(pageHTML))

// Group is the source of the page, a [report.Group] except in tests.
type Group interface {
	Members(ctx context.Context) report.Members
	Partitions(ctx context.Context, member string) (report.Partitions, error)
}

// NewPage returns the handler of the page. It shows no key. While it is open in a browser it
// reloads itself every second, or as often as the members answer.
func NewPage(group Group) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := newView(look(r.Context(), group))
		v.Nonce = rand.Text()
		var html bytes.Buffer
		if err := page.Execute(&html, v); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'nonce-"+v.Nonce+"'; script-src 'nonce-"+v.Nonce+
			"'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		_, _ = w.Write(html.Bytes()) // a client that has gone does not need it
	})
}

// seen is the input of the page.
type seen struct {
	members report.Members
	ring    report.Partitions                      // as the asked member sees it
	gates   map[string]map[uint16]report.Partition // by member: the word of each that waits for others, or others for it
}

// look asks the group. Whose gates are all open, for all keys, is asked for no partition:
// that is every member, but in a change.
func look(ctx context.Context, group Group) seen {
	s := seen{members: group.Members(ctx), gates: make(map[string]map[uint16]report.Partition)}
	s.ring, _ = group.Partitions(ctx, "") // the asked member answers itself
	for _, m := range s.members.Members {
		if m.Status == nil || m.Status.Gates.Waiting+m.Status.Gates.Draining+m.Status.Gates.Withheld == 0 {
			continue
		}
		word, err := group.Partitions(ctx, m.Name)
		if err != nil {
			continue // it has gone silent meanwhile, which the next look tells
		}
		gates := make(map[uint16]report.Partition)
		for _, p := range word.Partitions {
			gates[p.Number] = p
		}
		s.gates[m.Name] = gates
	}
	return s
}
