package main

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"time"

	"github.com/ringfence/router/internal/adminhttp"
	"github.com/ringfence/router/internal/adminhttp/statuspage"
	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/config"
	"github.com/ringfence/router/internal/controllog/act"
	"github.com/ringfence/router/internal/netx/listen"
	"github.com/ringfence/router/internal/node"
	"github.com/ringfence/router/internal/pipeline"
	"github.com/ringfence/router/internal/report"
	"github.com/ringfence/router/internal/telemetry"
)

// flushTimeout is how long the last spans may take to get out of an ending process.
const flushTimeout = 3 * time.Second

// pagesOf returns the pages about a member's group, as JSON and as HTML.
func pagesOf(n *node.Node, prover report.Prover, keysRevealed bool) map[string]http.Handler {
	group := n.Reports(prover)
	pages := report.Handlers(group, func(r *http.Request) bool { return keysRevealed || listen.ShowsToken(r) })
	// No page shows an answer from before the newest drain or undrain of this router.
	whole := func(*http.Request) string { return n.DrainStage() }
	member := func(r *http.Request) string { return n.DrainStage() + " " + r.URL.Query().Get("member") }
	maps.Copy(pages, statuspage.New(group, statuspage.Callers{
		MayNameKeys: func(r *http.Request) bool { return listen.ShowsToken(r) || keysRevealed && listen.MayAct(r) },
		MayAct:      listen.MayAct,
		Ending:      listen.Ending,
	}).Handlers())
	pages["GET /v1/members"] = adminhttp.Rendered(pages["GET /v1/members"], whole)
	pages["GET /v1/status"] = adminhttp.Rendered(pages["GET /v1/status"], member)
	pages["GET /v1/partitions"] = adminhttp.Rendered(pages["GET /v1/partitions"], member)
	pages["POST /forget-done"] = forgetPage(n)
	maps.Copy(pages, act.Handlers(n.Acts(), noActs, func(ctx context.Context, key event.Key) (event.MessageID, error) {
		return node.FirstEvent(ctx, group, key)
	}, func(ctx context.Context) error { return node.Parkable(ctx, group) }))
	return pages
}

// sightOf returns the member's tracing configuration, and the function that exports the last
// spans.
func sightOf(ctx context.Context, cfg config.Config, log *slog.Logger) (pipeline.Tracing, func(), error) {
	traces, err := telemetry.NewTraces(ctx, version(), cfg.Node.Group, cfg.Node.Name, log)
	if err != nil {
		return pipeline.Tracing{}, nil, usageError{err}
	}
	if cfg.Log.Keys == telemetry.KeysRevealed {
		log.Warn("keys are shown in log lines and spans", "setting", "log.keys")
	}
	tracing := pipeline.Tracing{
		Tracer: traces.Tracer, Roots: traces.Roots, Subscription: cfg.Pulsar.Subscription, Keys: cfg.Log.Keys == telemetry.KeysRevealed,
	}
	return tracing, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
		defer cancel()
		if err := traces.Close(ctx); err != nil {
			log.Warn("the last spans are not exported", "error", err)
		}
	}, nil
}
