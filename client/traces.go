package client

import (
	"runtime/debug"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/ringfence/router/internal/base/event"
)

// carrier lets a propagator read the properties of an event: the routers' trace context, which
// makes the router's span the parent, and the producer's other fields, such as baggage.
type carrier []Property

// Get returns the value of a property, or "". Names are case-insensitive.
func (c carrier) Get(name string) string {
	for i := range c {
		if strings.EqualFold(c[i].Name, name) {
			return c[i].Value
		}
	}
	return ""
}

// Set does nothing: the carrier is only read.
func (carrier) Set(string, string) {}

// Keys returns the names of all properties.
func (c carrier) Keys() []string {
	names := make([]string, len(c))
	for i := range c {
		names[i] = c[i].Name
	}
	return names
}

// trace puts the trace of an event and the span of its handler into the handler's context, and
// returns what ends the span. An event without a trace starts one if the application's sampler
// decides so. What of it panics is logged: it would end the process, not the event.
func (r *runner) trace(e *Event) func(event.Result) {
	end := func(event.Result) {}
	r.guardSpan(e, func() { end = r.startSpan(e) })
	return func(result event.Result) { r.guardSpan(e, func() { end(result) }) }
}

func (r *runner) guardSpan(e *Event, call func()) {
	defer func() {
		if thrown := recover(); thrown != nil {
			r.log.Error("a span failed", "message_id", e.ID.String(), "panic", thrown, "stack", string(debug.Stack()))
		}
	}()
	call()
}

func (r *runner) startSpan(e *Event) (end func(event.Result)) {
	ctx := r.propagator.Extract(r.base, carrier(e.Properties))
	ctx, span := r.tracer.Start(ctx, "process "+e.Topic, trace.WithSpanKind(trace.SpanKindConsumer))
	e.run.derive(ctx)
	if !span.IsRecording() {
		return func(event.Result) {}
	}
	span.SetAttributes(
		semconv.MessagingSystemPulsar, semconv.MessagingOperationTypeProcess, semconv.MessagingOperationName("process"),
		semconv.MessagingDestinationName(e.Topic), semconv.MessagingMessageID(e.ID.String()), semconv.MessagingMessageBodySize(len(e.Payload)),
		attribute.Int("ringfence.partition", int(e.run.item.Partition)), attribute.Int("ringfence.attempt", e.Attempt),
	)
	return func(result event.Result) {
		span.SetAttributes(attribute.String("ringfence.result", result.Kind.String()))
		if result.Kind == event.ResultRetry || result.Kind == event.ResultReject {
			span.SetStatus(codes.Error, result.Kind.String())
		}
		span.End()
	}
}
