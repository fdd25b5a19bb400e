package io.ringfence.client;

import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.OpenTelemetry;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.context.Context;
import io.opentelemetry.context.Scope;
import io.opentelemetry.context.propagation.TextMapGetter;
import io.opentelemetry.context.propagation.TextMapPropagator;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/**
 * Gives each handler a span in the trace of its event. The span is the current one while the handler runs, so its calls of
 * other services continue the trace. It needs OpenTelemetry's API, which is an optional dependency.
 */
public final class OpenTelemetryTraces implements Interceptor {
    private static final System.Logger LOG = new GuardedLogger(System.getLogger("io.ringfence.client"));

    private static final AttributeKey<String> SYSTEM = AttributeKey.stringKey("messaging.system");
    private static final AttributeKey<String> OPERATION_TYPE = AttributeKey.stringKey("messaging.operation.type");
    private static final AttributeKey<String> OPERATION_NAME = AttributeKey.stringKey("messaging.operation.name");
    private static final AttributeKey<String> DESTINATION = AttributeKey.stringKey("messaging.destination.name");
    private static final AttributeKey<String> MESSAGE_ID = AttributeKey.stringKey("messaging.message.id");
    private static final AttributeKey<Long> BODY_SIZE = AttributeKey.longKey("messaging.message.body.size");
    private static final AttributeKey<Long> PARTITION = AttributeKey.longKey("ringfence.partition");
    private static final AttributeKey<Long> ATTEMPT = AttributeKey.longKey("ringfence.attempt");
    private static final AttributeKey<String> RESULT = AttributeKey.stringKey("ringfence.result");

    /** Reads the properties of an event: the routers' trace context, and the producer's other fields, such as baggage. */
    private static final TextMapGetter<Event> PROPERTIES = new TextMapGetter<>() {
        @Override
        public Iterable<String> keys(Event event) {
            return event.properties().stream().map(Property::name).toList();
        }

        @Override
        public String get(Event event, String name) {
            if (event == null) {
                return null;
            }
            return name.equals("traceparent") ? event.traceparent().orElse(null) : event.propertyOfAnyCase(name).orElse(null);
        }
    };

    private final Tracer tracer;
    private final TextMapPropagator propagator;

    /**
     * Makes the interceptor. Let it be the outermost one.
     *
     * @param openTelemetry has the provider of tracers and the propagator
     */
    public OpenTelemetryTraces(OpenTelemetry openTelemetry) {
        tracer = openTelemetry.getTracer("io.ringfence.client");
        propagator = openTelemetry.getPropagators().getTextMapPropagator();
    }

    /** Returns the interceptor of GlobalOpenTelemetry, or null if the application has not set that, or no propagator. */
    static Interceptor global() {
        if (!GlobalOpenTelemetry.isSet()) { // get would set it
            return null;
        }
        OpenTelemetry openTelemetry = GlobalOpenTelemetry.get();
        return openTelemetry.getPropagators().getTextMapPropagator().fields().isEmpty() ? null : new OpenTelemetryTraces(openTelemetry);
    }

    /** Returns the current trace context, empty without one. */
    static String currentTraceparent() {
        if (!GlobalOpenTelemetry.isSet()) { // get would set it
            return "";
        }
        Map<String, String> carrier = new HashMap<>();
        GlobalOpenTelemetry.get().getPropagators().getTextMapPropagator().inject(Context.current(), carrier, Map::put);
        return carrier.getOrDefault("traceparent", "");
    }

    @Override
    public Handler intercept(Handler next) {
        return event -> handle(next, event);
    }

    /** Calls the next handler in a span. A span that fails is logged, and its event goes on. */
    private void handle(Handler next, Event event) throws Exception {
        Span span = null;
        Scope scope = null;
        try {
            Context parent = propagator.extract(Context.root(), event, PROPERTIES);
            span = start(event, parent);
            scope = parent.with(span).makeCurrent();
        } catch (Throwable failure) {
            LOG.log(System.Logger.Level.ERROR, "a span failed", failure);
        }
        ResultKind kind = ResultKind.DONE;
        try {
            next.handle(event);
        } catch (Throwable thrown) {
            kind = kindOf(event, thrown);
            throw thrown;
        } finally {
            end(span, scope, kind);
        }
    }

    private Span start(Event event, Context parent) {
        Span span = tracer.spanBuilder(event.method().isEmpty() ? "process " + event.topic() : "call " + event.method()).setParent(parent).setSpanKind(SpanKind.CONSUMER).startSpan();
        if (span.isRecording()) {
            span.setAttribute(SYSTEM, "pulsar").setAttribute(OPERATION_TYPE, "process").setAttribute(OPERATION_NAME, "process")
                    .setAttribute(DESTINATION, event.topic()).setAttribute(MESSAGE_ID, event.messageId().toString())
                    .setAttribute(BODY_SIZE, (long) event.payloadSize()).setAttribute(PARTITION, (long) event.partition())
                    .setAttribute(ATTEMPT, (long) event.attempt());
        }
        return span;
    }

    private static ResultKind kindOf(Event event, Throwable thrown) {
        if (event.isCancelled()) {
            return ResultKind.CANCELLED;
        } else if (thrown instanceof NoHandlerException) {
            return ResultKind.NOT_STARTED;
        }
        return Runner.verdictOf(thrown) instanceof RejectException ? ResultKind.REJECT : ResultKind.RETRY;
    }

    private static void end(Span span, Scope scope, ResultKind kind) {
        try {
            if (scope != null) {
                scope.close();
            }
            if (span == null) {
                return;
            }
            span.setAttribute(RESULT, kind.name().toLowerCase(Locale.ROOT));
            if (List.of(ResultKind.RETRY, ResultKind.REJECT).contains(kind)) {
                span.setStatus(StatusCode.ERROR, kind.name().toLowerCase(Locale.ROOT));
            }
            span.end();
        } catch (Throwable failure) { // thrown, it would make a failure of an event that is done
            LOG.log(System.Logger.Level.ERROR, "a span failed", failure);
        }
    }
}
