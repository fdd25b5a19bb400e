package client

import (
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/ringfence/router/internal/base/event"
)

// carrier lets a propagator read what an event carries. What the routers have put there
// makes them the parent; what the producer has, such as baggage, is still there.
type carrier []Property

// Get returns the value of a property, "" when there is none. Names have no case.
func (c carrier) Get(name string) string {
	for i := range c {
		if strings.EqualFold(c[i].Name, name) {
			return c[i].Value
		}
	}
	return ""
}

// Set does nothing: nothing is sent on.
func (carrier) Set(string, string) {}

// Keys returns the names of all properties.
func (c carrier) Keys() []string {
	names := make([]string, len(c))
	for i := range c {
		names[i] = c[i].Name
	}
	return names
}

// trace puts the trace of an event, and the span of its handler, into the handler's
// context; end ends the span. An event that is in no trace begins one, if the
// application's sampler likes.
func (r *runner) trace(e *Event) (end func(event.Result)) {
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
