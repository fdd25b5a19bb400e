//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/ringfence/router/client"
	"github.com/ringfence/router/internal/broker/membroker"
	"github.com/ringfence/router/internal/devtools/procgroup"
	"github.com/ringfence/router/internal/telemetry/otlptest"
	"github.com/ringfence/router/internal/testing/eventually"
)

// spans is a collector of OTLP over HTTP: the spans of each trace, by the id of the span.
type spans struct {
	mu sync.Mutex
	of map[string]map[string]span // hex
}

// span holds the parts of a span that the test compares.
type span struct{ name, process, parent string }

func (s *spans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var all []otlptest.Span
	if err == nil {
		all, err = otlptest.Decode(body)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, one := range all {
		name, _, _ := strings.Cut(one.Name, " ")
		s.put(one.Trace, one.ID, span{name, one.Instance, one.Parent})
	}
}

func (s *spans) put(trace, id string, one span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[trace] == nil {
		s.of[trace] = make(map[string]span)
	}
	s.of[trace][id] = one
}

// ofApplication takes the spans that the application in this process exports.
type ofApplication struct{ *spans }

func (a ofApplication) ExportSpans(_ context.Context, all []sdktrace.ReadOnlySpan) error {
	for _, one := range all {
		name, _, _ := strings.Cut(one.Name(), " ")
		a.put(one.SpanContext().TraceID().String(), one.SpanContext().SpanID().String(), span{name, "application", one.Parent().SpanID().String()})
	}
	return nil
}

func (ofApplication) Shutdown(context.Context) error { return nil }

// ways returns the ways from the roots of a trace to each of its spans, sorted, and its
// processes.
func (s *spans) ways(trace string) (ways []string, processes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := make(map[string]bool)
	for _, one := range s.of[trace] {
		way := one.name
		for up, ok := s.of[trace][one.parent]; ok; up, ok = s.of[trace][up.parent] {
			way = up.name + " " + way
		}
		ways = append(ways, way)
		at[one.process] = true
	}
	slices.Sort(ways)
	return ways, slices.Sorted(maps.Keys(at))
}

// Two routers, which export their spans as the environment tells them, and an application that
// exports its own: an event that its owner did not receive itself has one trace at the collector,
// through all three processes.
func TestOneTraceThroughThreeProcesses(t *testing.T) {
	t.Parallel()
	collected := &spans{of: make(map[string]map[string]span)}
	collector := httptest.NewServer(collected)
	t.Cleanup(collector.Close)
	environ := []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.URL, "OTEL_BSP_SCHEDULE_DELAY=50"}

	a := newPod(t, "")
	b := a.beside("pod-1")
	for _, p := range []*pod{a, b} {
		p.sidecar = p.start(environ, "demo", "member", "--config", p.file, "--broker", p.address)
		startTraced(t, p.endpoint, collected)
	}
	a.answers("/readyz")
	b.answers("/readyz")

	const n = 40
	trace := func(i int) string { return fmt.Sprintf("%032x", i+1) }
	for i := range n {
		e := membroker.Message{
			Key: fmt.Sprintf("user-%d", i), Payload: []byte("{}"),
			Properties: map[string]string{"traceparent": "00-" + trace(i) + "-00000000000000aa-01"},
		}
		if _, err := a.broker.Publish(t.Context(), topicOfPod, []membroker.Message{e}); err != nil {
			t.Fatal(err)
		}
	}
	local := []string{"receive", "receive ack", "receive forward", "receive forward deliver", "receive forward deliver process"}
	remote := []string{
		"receive", "receive ack", "receive forward", "receive forward accept", "receive forward accept deliver",
		"receive forward accept deliver process",
	}
	through := 0
	for i := range n {
		var ways, processes []string
		eventually.True(a.t, "the trace is complete", func() bool {
			ways, processes = collected.ways(trace(i))
			return slices.Equal(ways, local) || slices.Equal(ways, remote)
		})
		if slices.Equal(ways, remote) && slices.Equal(processes, []string{"application", "pod-0", "pod-1"}) {
			through++
		}
	}
	if through == 0 {
		t.Error("no event went through both routers and the application: this run proved nothing")
	}
}

// beside returns another pod on the same broker, of the same group.
func (p *pod) beside(name string) *pod {
	p.t.Helper()
	ports := freePorts(p.t, 3)
	first, err := os.ReadFile(p.file)
	if err != nil {
		p.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(first), `gossip:     {listen: "`)
	seed, _, _ := strings.Cut(rest, `"`)
	dir := p.t.TempDir()
	other := &pod{t: p.t, broker: p.broker, address: p.address, admin: procgroup.Loopback(ports[1]), file: filepath.Join(dir, "router.yaml")}
	var listen string
	listen, other.endpoint = procgroup.AppAddress(filepath.Join(dir, "app.sock"), ports[2])
	yaml := procgroup.Settings{
		Group: "orders", Name: name, Topics: []string{topicOfPod}, Subscription: "orders", Namespace: "public/default",
		App: listen, Gossip: procgroup.Loopback(ports[0]), Admin: other.admin, Seeds: []string{seed},
	}.YAML()
	if err := os.WriteFile(other.file, yaml, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return other
}

// startTraced runs an application that has a tracer of its own.
func startTraced(t *testing.T, endpoint string, collected *spans) {
	t.Helper()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(ofApplication{collected}), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() {
		handle := func(context.Context, *client.Event) error { return nil }
		err := client.Run(ctx, endpoint, handle, client.WithLogger(slog.New(slog.DiscardHandler)), client.WithTraces(provider, propagation.TraceContext{}))
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
}
