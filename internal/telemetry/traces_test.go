package telemetry_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/ringfence/router/internal/telemetry"
	"github.com/ringfence/router/internal/telemetry/otlptest"
)

// collector receives spans over OTLP, and records their names and services.
type collector struct {
	*httptest.Server

	mu    sync.Mutex
	spans map[string]string // name → service.instance.id
}

func newCollector(t *testing.T) *collector {
	c := &collector{spans: make(map[string]string)}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var spans []otlptest.Span
		if err == nil {
			spans, err = otlptest.Decode(body)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", r.URL.Path, err)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, span := range spans {
			c.spans[span.Name] = span.Instance
		}
	}))
	t.Cleanup(c.Close)
	return c
}

func newTraces(t *testing.T) *telemetry.Traces {
	t.Helper()
	traces, err := telemetry.NewTraces(t.Context(), "v1", "orders", "a", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return traces
}

// Traces are off, and cost nothing, unless requested.
func TestTracesAreOffUnlessAskedFor(t *testing.T) {
	for name, environ := range map[string]map[string]string{
		"nothing set":  {},
		"no exporter":  {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
		"SDK disabled": {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
		"sampler only": {"OTEL_TRACES_SAMPLER": "always_on"},
	} {
		t.Run(name, func(t *testing.T) {
			for key, value := range environ {
				t.Setenv(key, value)
			}
			if traces := newTraces(t); traces.Tracer != nil || traces.Close(t.Context()) != nil {
				t.Error("there is a tracer")
			}
		})
	}
	t.Setenv("OTEL_TRACES_EXPORTER", "smoke signals")
	if _, err := telemetry.NewTraces(t.Context(), "v1", "orders", "a", slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "smoke signals") {
		t.Errorf("error %v, want the unknown exporter in it", err)
	}
}

// A wrong sampler is an error: the SDK would trace everything instead.
func TestAWrongSamplerIsAnError(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
	for _, test := range []struct {
		sampler, argument string
		wrong             bool
	}{
		{"sometimes", "", true},
		{"traceidratio", "0,1", true},
		{"parentbased_traceidratio", "1.5", true},
		{"traceidratio", "-1", true},
		{"traceidratio", "NaN", true},
		{"traceidratio", "0.1", false},
		{" ParentBased_TraceIDRatio ", "", false},
		{"always_off", "unused", false},
		{"parentbased_always_on", "", false},
	} {
		t.Setenv("OTEL_TRACES_SAMPLER", test.sampler)
		t.Setenv("OTEL_TRACES_SAMPLER_ARG", test.argument)
		traces, err := telemetry.NewTraces(t.Context(), "v1", "orders", "a", slog.New(slog.DiscardHandler))
		if (err != nil) != test.wrong || err != nil && !strings.Contains(err.Error(), "OTEL_TRACES_SAMPLER") {
			t.Errorf("%q with %q: error %v", test.sampler, test.argument, err)
		}
		if err == nil {
			_ = traces.Close(t.Context())
		}
	}
}

// Without a sampler of its own a router follows the producers.
func TestTracesFollowTheProducer(t *testing.T) {
	remote := func(flags trace.TraceFlags) context.Context {
		return trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: flags, Remote: true,
		}))
	}
	for name, test := range map[string]struct {
		sampler, argument string
		roots             bool
		exported          []string
	}{
		"as the producer": {"", "", false, []string{"sampled"}},
		"also a share":    {"parentbased_traceidratio", "1", true, []string{"sampled", "root"}},
		"everything":      {"always_on", "", true, []string{"sampled", "root", "unsampled"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollector(t)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
			t.Setenv("OTEL_TRACES_SAMPLER", test.sampler)
			t.Setenv("OTEL_TRACES_SAMPLER_ARG", test.argument)
			traces := newTraces(t)
			if traces.Roots != test.roots {
				t.Errorf("Roots = %v, want %v", traces.Roots, test.roots)
			}
			for name, ctx := range map[string]context.Context{"sampled": remote(trace.FlagsSampled), "unsampled": remote(0), "root": t.Context()} {
				_, span := traces.Tracer.Start(ctx, name)
				span.End()
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := traces.Close(ctx); err != nil {
				t.Fatal(err)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if len(c.spans) != len(test.exported) {
				t.Errorf("exported %v, want %v", c.spans, test.exported)
			}
			for _, name := range test.exported {
				if c.spans[name] != "a" {
					t.Errorf("span %q comes from %q, want a", name, c.spans[name])
				}
			}
		})
	}
}

// TestDroppedSpansAreTold: spans that the queue has no room for are counted in the log.
func TestDroppedSpansAreTold(t *testing.T) {
	stuck := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stuck }))
	defer slow.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", slow.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	t.Setenv("OTEL_TRACES_SAMPLER", "always_on")
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
	var text strings.Builder
	traces, err := telemetry.NewTraces(t.Context(), "v1", "orders", "a", slog.New(slog.NewTextHandler(&text, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		_, span := traces.Tracer.Start(t.Context(), "work")
		span.End()
	}
	close(stuck)
	if err := traces.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "spans were dropped") {
		t.Errorf("the log is\n%s", text.String())
	}
}

// TestFailedExportsAreToldOnce: a collector that refuses each batch at once costs no line for each batch.
func TestFailedExportsAreToldOnce(t *testing.T) {
	refusing := httptest.NewServer(http.NotFoundHandler())
	defer refusing.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", refusing.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
	t.Setenv("OTEL_TRACES_SAMPLER", "always_on")
	t.Setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
	var text strings.Builder
	traces, err := telemetry.NewTraces(t.Context(), "v1", "orders", "a", slog.New(slog.NewTextHandler(&text, nil)))
	if err != nil {
		t.Fatal(err)
	}
	const batches = 200
	for range batches {
		_, span := traces.Tracer.Start(t.Context(), "work")
		span.End()
	}
	_ = traces.Close(t.Context()) // waits for the exports, and returns the last error or none
	lines := strings.Count(text.String(), "traces are not exported")
	if lines == 0 || lines > batches/10 { // some more on a machine so slow that the exports take minutes
		t.Errorf("%d lines about %d failed exports\n%.500s", lines, batches, text.String())
	}
}
