package source

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/ring"
)

// Tracing configures the spans and log lines of single events. The zero Tracing writes no
// spans and no keys.
type Tracing struct {
	Tracer trace.Tracer // nil: no traces
	Keys   bool         // dead letters are logged with their keys
}

// SetTracing configures the tracing of single events. Call it before Run.
func (s *Source) SetTracing(t Tracing) { s.tracing = t }

// noteCopy logs the result of a copy, for a dead letter as a warning, and answers the sender of a new event.
func (s *Source) noteCopy(r *copyResult) {
	if r.answer != nil {
		s.answer(r)
		return
	}
	ev, d := r.message.Event, r.verdict.DetailOrZero()
	attrs := []any{"message_id", ev.ID.String(), "attempts", attempts(ev, &d), "round", ev.Round}
	if r.err != nil {
		s.log.Debug("copy failed; it will be sent again", append(attrs, "error", r.err)...)
		return
	}
	switch s.kindOf(&r.outgoingEvent) {
	case copyLetter:
		if s.tracing.Keys {
			attrs = append(attrs, "key", string(ev.Key))
		}
		s.log.Warn("dead letter", append(attrs, "topic", s.cfg.DeadLetterTopic, "error", ev.HideIn(reasonOf(&r.message, &r.verdict)))...)
	case copyParked:
		s.log.Debug("copied to the parking topic", append(attrs, "mark", d.Reason)...)
		if s.isAway != nil && !s.isAway(ev.Key) { // nothing brings it back by itself
			s.metrics.parkedLate.Inc()
			s.log.Warn("an event reached the parking topic although its key is no longer parked: run router unpark KEY to bring it back",
				"message_id", ev.ID.String(), "key_hash", ring.HashOf(string(ev.Key)).String())
		}
	case copySpilled:
		s.log.Debug("open for a long time; copied to the retry topic", attrs...)
	case copyRetry:
		s.log.Debug("failed; copied to the retry topic", append(attrs, "delay", d.Delay, "error", ev.HideIn(d.Reason))...)
	case copyHop:
		s.metrics.timerHops.Inc()
	}
}

// reasonOf returns why an event is a dead letter.
func reasonOf(m *event.Message, v *event.Verdict) string {
	switch {
	case v.Kind == event.Rejected:
		return v.DetailOrZero().Reason
	case headBytes(m) > headMax:
		return reasonHead(m)
	}
	return tooManyRounds(m.Event.Round)
}

// sending begins the span of a copy and writes its context into the copy; end ends it. A
// copy has a span for each attempt to send it.
func (s *Source) sending(ctx context.Context, ev *event.Event, c *outgoing) (end func(error)) {
	if s.tracing.Tracer == nil {
		return func(error) {}
	}
	var w3c propagation.TraceContext
	ctx = w3c.Extract(ctx, &event.Carrier{Properties: ev.Properties})
	if !trace.SpanContextFromContext(ctx).IsSampled() {
		return func(error) {}
	}
	ctx, span := s.tracing.Tracer.Start(ctx, "send "+c.topic, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		semconv.MessagingSystemPulsar, semconv.MessagingOperationTypeSend, semconv.MessagingOperationName("send"),
		semconv.MessagingDestinationName(c.topic), semconv.MessagingMessageID(ev.ID.String()), semconv.MessagingMessageBodySize(len(c.payload)),
	))
	if !span.IsRecording() {
		return func(error) {}
	}
	for name := range c.properties {
		if strings.EqualFold(name, "traceparent") || strings.EqualFold(name, "tracestate") {
			delete(c.properties, name)
		}
	}
	w3c.Inject(ctx, propagation.MapCarrier(c.properties))
	return func(err error) {
		if err != nil {
			span.RecordError(err)
			span.SetStatus(codes.Error, "the copy was not taken")
		}
		span.End()
	}
}
