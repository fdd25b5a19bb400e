package telemetry

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
)

// Traces exports spans as the OTEL_ variables of the environment say.
type Traces struct {
	Tracer trace.Tracer // nil: tracing is off
	Roots  bool         // OTEL_TRACES_SAMPLER is set, so a trace may begin here; else it follows the producer

	provider *sdktrace.TracerProvider
	drops    *drops
}

// tracesWanted are the variables of which one must be set.
var tracesWanted = []string{"OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"}

// NewTraces returns the exporter and sampler that the environment sets: none, unless one of
// OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is
// set. OTEL_SDK_DISABLED=true and OTEL_TRACES_EXPORTER=none take precedence over all others.
//
// Unless OTEL_TRACES_SAMPLER is set, exactly those events are traced whose producer has sampled
// them. A wrong value is an error. Later errors that are reported to package otel, such as a
// failing exporter, go to log.
func NewTraces(ctx context.Context, version, group, node string, log *slog.Logger) (*Traces, error) {
	wanted := false
	for _, name := range tracesWanted {
		wanted = wanted || os.Getenv(name) != ""
	}
	if !wanted || strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return &Traces{}, nil
	}
	if err := checkSampler(); err != nil {
		return nil, err
	}
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("telemetry: traces: OTEL_TRACES_EXPORTER=%s: %w; otlp, console and none are known", os.Getenv("OTEL_TRACES_EXPORTER"), err)
	}
	if autoexport.IsNoneSpanExporter(exporter) {
		return &Traces{}, nil
	}
	drops := newDrops(log.With("component", "traces"))
	traces, err := newTraces(ctx, sdktrace.WithSpanProcessor(drops.batcher(exporter)), version, group, node, log)
	if err != nil {
		return nil, err
	}
	traces.drops = drops
	return traces, nil
}

func newTraces(ctx context.Context, export sdktrace.TracerProviderOption, version, group, node string, log *slog.Logger) (*Traces, error) {
	log = log.With("component", "traces")
	failures := &failures{log: log}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(failures.tell))
	about, err := resource.New(ctx,
		resource.WithTelemetrySDK(),
		resource.WithAttributes(
			semconv.ServiceName("ringfence-router"), semconv.ServiceVersion(version), semconv.ServiceInstanceID(node),
			attribute.String("ringfence.group", group),
		),
		resource.WithFromEnv(), // the user's values come last, and take precedence
	)
	if err != nil {
		return nil, fmt.Errorf("telemetry: traces: %w", err)
	}
	options := []sdktrace.TracerProviderOption{export, sdktrace.WithResource(about)}
	roots := strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER")) != ""
	if !roots { // else the SDK goes by it
		options = append(options, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))
	}
	provider := sdktrace.NewTracerProvider(options...)
	log.Info("tracing", "exporter", cmp.Or(os.Getenv("OTEL_TRACES_EXPORTER"), "otlp"), "sampler", cmp.Or(os.Getenv("OTEL_TRACES_SAMPLER"), "as the producer"))
	return &Traces{
		Tracer: provider.Tracer("github.com/ringfence/router", trace.WithInstrumentationVersion(version)), Roots: roots,
		provider: provider,
	}, nil
}

// checkSampler reports a sampler that the SDK does not know, or whose argument it cannot read: the SDK would trace everything.
func checkSampler() error {
	sampler, argument := os.Getenv("OTEL_TRACES_SAMPLER"), strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER_ARG"))
	switch strings.ToLower(strings.TrimSpace(sampler)) {
	case "", "always_on", "always_off", "parentbased_always_on", "parentbased_always_off":
		return nil
	case "traceidratio", "parentbased_traceidratio":
		if part, err := strconv.ParseFloat(argument, 64); argument != "" && (err != nil || !(part >= 0 && part <= 1)) { // NaN is neither
			return fmt.Errorf("telemetry: traces: OTEL_TRACES_SAMPLER_ARG=%s, want a number from 0 to 1", argument)
		}
		return nil
	}
	return fmt.Errorf("telemetry: traces: OTEL_TRACES_SAMPLER=%s; always_on, always_off, traceidratio, and these with parentbased_ before them are known", sampler)
}

// Close exports the remaining spans, until ctx ends.
func (t *Traces) Close(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	err := t.provider.Shutdown(ctx)
	t.drops.tell(0)
	if err != nil {
		return fmt.Errorf("telemetry: traces: %w", err)
	}
	return nil
}
