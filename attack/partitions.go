package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/base/backoff"
)

const (
	partitionClients = 60
	partitionsTime   = 6 * time.Second
	partitionsBeats  = 5 // at least: one is due every 500 ms
)

// askInLoops asks a page with so many clients, each as soon as it is answered, until ctx ends.
func (r *router) askInLoops(ctx context.Context, clients int, path string) (answered int64) {
	var all sync.WaitGroup
	var n atomic.Int64
	for range clients {
		all.Go(func() {
			for ctx.Err() == nil {
				code, _, err := r.ask(ctx, path)
				if err == nil && code == http.StatusOK {
					n.Add(1)
					continue
				}
				_ = backoff.Sleep(ctx, 20*time.Millisecond) // ctx may have ended, and so does the loop
			}
		})
	}
	all.Wait()
	return n.Load()
}

// handlersWaiting takes goroutine profiles until ctx ends. It counts the goroutines in them that
// answer a request, and those of them that wait for the goroutine that renews the lease.
func (r *router) handlersWaiting(ctx context.Context) (profiles, handlers, waiting int) {
	for backoff.Sleep(ctx, 200*time.Millisecond) == nil {
		code, text, err := askAt(ctx, r.debug(), http.MethodGet, "/debug/pprof/goroutine?debug=2", "", "Authorization", "Bearer "+adminToken)
		if err != nil || code != http.StatusOK {
			continue
		}
		profiles++
		for stack := range strings.SplitSeq(text, "\n\n") {
			if !strings.Contains(stack, "net/http.(*conn).serve") {
				continue
			}
			handlers++
			if asksOwnership(stack) {
				waiting++
			}
		}
	}
	return profiles, handlers, waiting
}

// asksOwnership reports whether a handler waits for an answer of the goroutine that renews the
// lease: it is blocked in the package of that goroutine. One that waits for a picture which that
// goroutine publishes on its own, for all that look at once, has asked it nothing.
func asksOwnership(stack string) bool {
	_, state, _ := strings.Cut(stack, "[")
	blocked := strings.HasPrefix(state, "select") || strings.HasPrefix(state, "chan ")
	return blocked && strings.Contains(stack, "/internal/node.(") && !strings.Contains(stack, "/internal/node.(*shown).look(")
}

// leaseLosses returns how often a lease was lost between two looks at the metrics.
func leaseLosses(before, after map[string]float64) (lost float64) {
	for _, kind := range []string{"lease_lapsed", "removed", "rejoin"} {
		series := fmt.Sprintf("ringfence_ownership_notes_total{kind=%q}", kind)
		lost += after[series] - before[series]
	}
	return lost
}

const beatsSeries = `ringfence_controllog_appends_total{record="beat",result="ok"}`

// partitionsInLoops: questions are answered without the goroutine that renews the lease.
func partitionsInLoops(ctx context.Context, l *lab) (finding, error) {
	return with(nil, "partitions", func(ctx context.Context, r *router) (finding, error) {
		working, stop := context.WithCancel(ctx)
		defer stop()
		var worker errgroup.Group
		worker.Go(func() error {
			return r.work(working, func(context.Context, *client.Event) error { return nil })
		})
		if err := r.owns(ctx); err != nil {
			return finding{}, err
		}
		before, err := r.metrics(ctx)
		if err != nil {
			return finding{}, err
		}
		asking, cancel := context.WithTimeout(ctx, partitionsTime)
		defer cancel()
		var answered int64
		var asked sync.WaitGroup
		asked.Go(func() { answered = r.askInLoops(asking, partitionClients, "/v1/partitions") })
		profiles, handlers, waiting := r.handlersWaiting(asking)
		asked.Wait()
		after, err := r.metrics(ctx)
		if err != nil {
			return finding{}, err
		}
		if profiles == 0 || handlers == 0 {
			return finding{}, fmt.Errorf("%d goroutine profiles with %d handlers: this proves nothing", profiles, handlers)
		}
		lost, beats := leaseLosses(before, after), after[beatsSeries]-before[beatsSeries]
		stop()
		seen := fmt.Sprintf("%d answers in %v; of %d handlers in %d profiles %d wait for an answer of the ownership goroutine; %.0f Beats, leases lost: %.0f",
			answered, partitionsTime, handlers, profiles, waiting, beats, lost)
		return finding{waiting > 0 || lost > 0 || beats < partitionsBeats, seen}, worker.Wait()
	})(ctx, l)
}
