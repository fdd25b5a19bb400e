package io.ringfence.junit5;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import io.opentelemetry.context.propagation.ContextPropagators;
import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.testing.exporter.InMemorySpanExporter;
import io.opentelemetry.sdk.trace.ReadWriteSpan;
import io.opentelemetry.sdk.trace.ReadableSpan;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.SpanProcessor;
import io.opentelemetry.sdk.trace.data.SpanData;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import io.ringfence.client.Call;
import io.ringfence.client.Event;
import io.ringfence.client.OpenTelemetryTraces;
import io.ringfence.client.RejectException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

@RingfenceTest
class TracesTest {
    private static final String TRACE = "0af7651916cd43dd8448eb211c80319c";

    private final InMemorySpanExporter spans = InMemorySpanExporter.create();
    private final OpenTelemetrySdk openTelemetry = OpenTelemetrySdk.builder()
            .setTracerProvider(SdkTracerProvider.builder().addSpanProcessor(SimpleSpanProcessor.create(spans)).build())
            .setPropagators(ContextPropagators.create(W3CTraceContextPropagator.getInstance())).build();
    private final BlockingQueue<String> current = new LinkedBlockingQueue<>();

    @AfterEach
    void reset() {
        GlobalOpenTelemetry.resetForTest();
        openTelemetry.close();
    }

    private static Event.Builder event(String key) {
        return Event.of(key).topic("t").property("TraceParent", "00-" + TRACE + "-b7ad6b7169203331-01");
    }

    private void handle(Event event) {
        current.add(Span.current().getSpanContext().getTraceId());
        if (event.key().equals("bad")) {
            throw new RejectException("bad");
        } else if (event.key().equals("fails")) {
            throw new IllegalStateException("fails");
        }
    }

    @Test
    void eachHandlerHasASpanInTheTraceOfItsEvent(TestRouter router) {
        GlobalOpenTelemetry.set(openTelemetry);
        router.start(this::handle);
        for (String key : List.of("good", "bad", "fails")) {
            router.deliver(event(key)).outcome();
        }
        assertEquals(List.of(TRACE, TRACE, TRACE), List.copyOf(current), "the span is current in the handler");
        List<SpanData> ended = spans.getFinishedSpanItems();
        assertEquals(3, ended.size());
        List<String> results = List.of("done", "reject", "retry");
        for (int i = 0; i < 3; i++) {
            SpanData span = ended.get(i);
            assertEquals("process t", span.getName());
            assertEquals("b7ad6b7169203331", span.getParentSpanId());
            assertEquals(results.get(i), span.getAttributes().get(AttributeKey.stringKey("ringfence.result")));
            assertEquals("pulsar", span.getAttributes().get(AttributeKey.stringKey("messaging.system")));
            assertEquals(i == 0 ? StatusCode.UNSET : StatusCode.ERROR, span.getStatus().getStatusCode());
        }
    }

    @Test
    void aCancelledHandlerIsNoFailure(TestRouter router) {
        router.start(event -> {
            router.expire();
            event.checkActive();
        }, options -> options.interceptors(new OpenTelemetryTraces(openTelemetry)));
        assertEquals(Outcome.Kind.CANCELLED, router.deliver(event("k")).outcome().kind());
        SpanData span = spans.getFinishedSpanItems().get(0);
        assertEquals("cancelled", span.getAttributes().get(AttributeKey.stringKey("ringfence.result")));
        assertEquals(StatusCode.UNSET, span.getStatus().getStatusCode());
    }

    @Test
    void withoutAnOpenTelemetryThereAreNoSpans(TestRouter router) {
        router.start(this::handle);
        router.deliver(event("k")).outcome();
        assertEquals("00000000000000000000000000000000", current.remove());
        assertTrue(!GlobalOpenTelemetry.isSet(), "the SDK has set the global OpenTelemetry");
    }

    /** A span processor of the application that is broken. */
    private record Broken(boolean atStart) implements SpanProcessor {
        private static void fail() {
            throw new IllegalStateException("the processor is broken");
        }

        @Override
        public void onStart(Context parent, ReadWriteSpan span) {
            if (atStart) {
                fail();
            }
        }

        @Override
        public boolean isStartRequired() {
            return true;
        }

        @Override
        public void onEnd(ReadableSpan span) {
            if (!atStart) {
                fail();
            }
        }

        @Override
        public boolean isEndRequired() {
            return true;
        }
    }

    @Test
    void aSpanThatFailsDoesNotFailItsEvent() {
        for (boolean atStart : List.of(true, false)) {
            OpenTelemetrySdk broken = OpenTelemetrySdk.builder().setTracerProvider(SdkTracerProvider.builder().addSpanProcessor(new Broken(atStart)).build())
                    .setPropagators(ContextPropagators.create(W3CTraceContextPropagator.getInstance())).build();
            try (TestRouter router = new TestRouter()) {
                router.start(this::handle, options -> options.interceptors(new OpenTelemetryTraces(broken)));
                assertEquals(Outcome.Kind.DONE, router.deliver(event("good")).outcome().kind());
                assertEquals(new Outcome(Outcome.Kind.REJECT, Duration.ZERO, "bad"), router.deliver(event("bad")).outcome());
                assertEquals(2, current.size(), "each handler ran once");
                current.clear();
            } finally {
                broken.close();
            }
        }
    }

    @Test
    void aCallWithoutAHandlerIsNoFailure(TestRouter router) {
        router.start(this::handle, options -> options.call("do", Call::payload).interceptors(new OpenTelemetryTraces(openTelemetry)));
        assertEquals(Outcome.Kind.NOT_STARTED, router.call("k", "other", new byte[0]).outcome().kind());
        SpanData span = spans.getFinishedSpanItems().get(0);
        assertEquals("not_started", span.getAttributes().get(AttributeKey.stringKey("ringfence.result")));
        assertEquals(StatusCode.UNSET, span.getStatus().getStatusCode());
    }
}
