package pipeline

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/ringfence/router/internal/base/event"
	"github.com/ringfence/router/internal/history"
)

// traces makes the spans of sampled events. An arrow points from parent to child:
//
//	producer ─▶ receive ─┬─▶ forward ══▶ accept ─▶ deliver ─▶ process
//	                     └─▶ ack, retry or dead_letter
//
//	receive    consumer node: from Pulsar to the table of held events
//	forward    consumer node: until its verdict, so it contains all of the following
//	accept     owner: a peer has delivered it; absent when the owner is the consumer node
//	deliver    owner: one attempt of the application; before it, the event waited in its mailbox
//	process    application: its handler, by the SDK
//	ack, …     consumer node: the verdict is carried out
//
// The context travels in the properties of the event, where the producer has put it. So it
// needs no place on the wire, and goes through routers that do not trace.
//
// Whether an event is sampled is decided once, at its consumer node. All other nodes follow; a
// node whose own sampler declines omits its spans, and passes the context on.
type traces struct {
	tracer trace.Tracer
	roots  bool
	keys   bool
	common []attribute.KeyValue

	open atomic.Int64 // entries of both maps: while it is 0, nothing is looked for

	mu      sync.Mutex
	held    map[event.Handle]journey     // sampled events that are held here
	running map[event.DeliveryID]attempt // deliveries of sampled events

	handled, settled history.Exemplars
}

// attempt is the trace state of a delivery.
type attempt struct {
	span  trace.Span
	began time.Time
}

// journey is a consumer node's trace state of a sampled event.
type journey struct {
	receive trace.SpanContext // not valid for a relayed event
	forward trace.Span
	about   []attribute.KeyValue
	began   time.Time
}

var w3c propagation.TraceContext

func newTraces(s *Tracing) *traces {
	t := &traces{
		tracer: s.Tracer, roots: s.Roots, keys: s.Keys,
		common:  []attribute.KeyValue{semconv.MessagingSystemPulsar},
		held:    make(map[event.Handle]journey),
		running: make(map[event.DeliveryID]attempt),
	}
	if s.Subscription != "" {
		t.common = append(t.common, semconv.MessagingDestinationSubscriptionName(s.Subscription))
	}
	return t
}

// sampled reports whether the event's trace context is sampled: mostly it is not, and then
// nothing else is done for the event.
func sampled(e *event.Event) bool {
	const flags, length = len("00-") + 32 + len("-") + 16 + len("-"), 55
	v := e.Trace()
	if len(v) < length {
		return false
	}
	n, err := strconv.ParseUint(v[flags:length], 16, 8)
	return err == nil && trace.TraceFlags(n).IsSampled()
}

// parent returns the context that an event has brought.
func parent(e *event.Event) context.Context {
	return w3c.Extract(context.Background(), &event.Carrier{Properties: e.Properties})
}

// carrying returns the properties of e with the context ctx instead of its own.
func carrying(ctx context.Context, e *event.Event) []event.Property {
	c := event.Carrier{Properties: e.Properties}
	w3c.Inject(ctx, &c)
	return c.Properties
}

// about returns the attributes of all spans of an event.
func (t *traces) about(e *event.Event) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, len(t.common)+6)
	attrs = append(append(attrs, t.common...),
		semconv.MessagingDestinationName(e.Topic),
		semconv.MessagingMessageID(e.ID.String()),
		semconv.MessagingMessageBodySize(len(e.Payload)),
		attribute.Int("ringfence.partition", int(e.Partition)),
	)
	if n := e.ID.PartitionNumber(); n >= 0 {
		attrs = append(attrs, semconv.MessagingDestinationPartitionID(strconv.Itoa(int(n))))
	}
	if t.keys {
		attrs = append(attrs, attribute.String("ringfence.key", string(e.Key)))
	}
	return attrs
}

// receive begins the journey of an event that no other goroutine knows yet.
func (t *traces) receive(e *event.Event, local bool) {
	if !sampled(e) && !t.roots {
		return
	}
	ctx := parent(e)
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient)}
	if producer := trace.SpanContextFromContext(ctx); producer.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: producer}))
	}
	ctx, span := t.tracer.Start(ctx, "receive "+e.Topic, options...)
	if !span.IsRecording() {
		return
	}
	about := t.about(e)
	span.SetAttributes(about...)
	span.SetAttributes(semconv.MessagingOperationTypeReceive, semconv.MessagingOperationName("receive"),
		attribute.Int("ringfence.redelivery", int(e.Redelivery)), attribute.Int("ringfence.round", int(e.Round)))
	span.End()
	t.forward(ctx, e, journey{receive: span.SpanContext(), about: about}, local)
}

// relay begins the span of a relayed event.
func (t *traces) relay(entry *event.Entry) {
	for i := range entry.Len() {
		if e := entry.Event(i); sampled(e) {
			t.forward(parent(e), e, journey{about: t.about(e)}, false)
		}
	}
}

func (t *traces) forward(ctx context.Context, e *event.Event, j journey, local bool) {
	kind := trace.SpanKindClient
	if local {
		kind = trace.SpanKindInternal
	}
	ctx, j.forward = t.tracer.Start(ctx, "forward "+e.Topic, trace.WithSpanKind(kind), trace.WithAttributes(j.about...))
	if !j.forward.IsRecording() {
		return // this node's sampler declines; the event keeps the trace that it is in
	}
	e.Properties = carrying(ctx, e)
	j.began = wallNow()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held[e.Handle] = j
	t.open.Add(1)
}

// areOpen reports whether an event here has a span. t may be nil.
func (t *traces) areOpen() bool { return t != nil && t.open.Load() > 0 }

// settling ends the forward spans of events that have their verdicts, and begins the spans of
// their settlements.
func (t *traces) settling(verdicts []event.Verdict, events []*event.Event) (begun spans) {
	for i := range verdicts {
		v := &verdicts[i]
		j, ok := t.takeHeld(v.Handle)
		if !ok {
			continue
		}
		j.forward.SetAttributes(attribute.String("ringfence.verdict", v.Kind.String()), attribute.Int("ringfence.attempts", int(v.DetailOrZero().Attempts)))
		if v.Kind != event.Done {
			j.forward.SetStatus(codes.Error, v.Kind.String())
		}
		j.forward.End()
		if v.Kind.Final() && j.receive.IsValid() {
			t.settled.Add(exemplar(j.forward, j.began))
		}
		if name := settlementOf(v.Kind); name != "" && j.receive.IsValid() {
			_, span := t.tracer.Start(trace.ContextWithSpanContext(context.Background(), j.receive), name+" "+events[i].Topic,
				trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(j.about...),
				trace.WithAttributes(semconv.MessagingOperationTypeSettle, semconv.MessagingOperationName(name)))
			begun = append(begun, span)
		}
	}
	return begun
}

// settlementOf names the settlement of an event with a verdict.
func settlementOf(kind event.VerdictKind) string {
	switch kind {
	case event.Done:
		return "ack"
	case event.Failed:
		return "retry"
	case event.Rejected:
		return "dead_letter"
	case event.Parked:
		return "park"
	case event.NotOwner, event.NotYet, event.Overloaded, event.Attempted:
	}
	return "" // a relayed event: it goes back to its consumer node
}

// dropped ends the journeys of events that will come back by another way.
func (t *traces) dropped(handles []event.Handle) {
	if t.open.Load() == 0 {
		return
	}
	for _, h := range handles {
		if j, ok := t.takeHeld(h); ok {
			j.forward.SetAttributes(attribute.Bool("ringfence.dropped", true))
			j.forward.End()
		}
	}
}

func (t *traces) takeHeld(h event.Handle) (journey, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	j, ok := t.held[h]
	if ok {
		delete(t.held, h)
		t.open.Add(-1)
	}
	return j, ok
}

// accept marks where a hop ends: at the owner, which alone knows these events yet.
func (t *traces) accept(events []event.Ref) {
	for i := range events {
		e := events[i].Event()
		if !sampled(e) {
			continue
		}
		ctx, span := t.tracer.Start(parent(e), "accept "+e.Topic, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(t.about(e)...))
		if span.IsRecording() {
			e.Properties = carrying(ctx, e)
			events[i] = event.RefTo(e)
		}
		span.End()
	}
}

// deliver begins an attempt of the application at each of the deliveries. Others hold
// the events: one that is sampled is replaced by a copy with the context of its attempt.
func (t *traces) deliver(deliveries []event.Delivery) {
	for i := range deliveries {
		d := &deliveries[i]
		old := d.Event()
		if !sampled(old) {
			continue
		}
		ctx, span := t.tracer.Start(parent(old), "deliver "+old.Topic, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(t.about(old)...),
			trace.WithAttributes(attribute.Int("ringfence.attempt", int(d.Attempt)), attribute.Int64("ringfence.fencing_token", d.Token), attribute.Int64("ringfence.turn", int64(d.Turn))))
		if !span.IsRecording() {
			continue
		}
		e := *old
		e.Properties = carrying(ctx, &e)
		d.Object, d.Size = &e, uint32(e.Bytes())
		t.mu.Lock()
		t.running[d.ID] = attempt{span, wallNow()}
		t.open.Add(1)
		t.mu.Unlock()
	}
}

// finish ends attempts.
func (t *traces) finish(results []event.Result) {
	if t.open.Load() == 0 {
		return
	}
	for i := range results {
		r := &results[i]
		t.mu.Lock()
		a, ok := t.running[r.Delivery]
		if ok {
			delete(t.running, r.Delivery)
			t.open.Add(-1)
		}
		t.mu.Unlock()
		if !ok {
			continue
		}
		a.span.SetAttributes(attribute.String("ringfence.result", r.Kind.String()))
		if history.Failed(r.Kind) {
			a.span.SetStatus(codes.Error, r.Kind.String())
		}
		a.span.End()
		t.handled.Add(exemplar(a.span, a.began))
	}
}

// exemplar is the time since an instant, under the trace of a span.
func exemplar(span trace.Span, began time.Time) history.Exemplar {
	now := wallNow()
	return history.Exemplar{Trace: span.SpanContext().TraceID().String(), Took: now.Sub(began), At: now}
}

// wallNow is for exemplars, which databases of metrics want with the time of day: nothing is decided by it.
func wallNow() time.Time { return time.Now() } //nolint:forbidigo // see above
