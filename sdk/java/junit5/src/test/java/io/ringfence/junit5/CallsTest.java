package io.ringfence.junit5;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.ringfence.client.Call;
import io.ringfence.client.CallException;
import io.ringfence.client.CallFailureException;
import io.ringfence.client.CallHandler;
import io.ringfence.client.CallOptions;
import io.ringfence.client.CallerGoneException;
import io.ringfence.client.Event;
import io.ringfence.client.Handler;
import io.ringfence.client.HandlerCancelledException;
import io.ringfence.client.Hooks;
import io.ringfence.client.KeyLostException;
import io.ringfence.client.Lane;
import io.ringfence.client.NotSentException;
import io.ringfence.client.RejectException;
import io.ringfence.client.Result;
import io.ringfence.client.RetryAfterException;
import io.ringfence.client.SendOptions;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.function.Executable;

/** Calls against the router in memory. */
@RingfenceTest
class CallsTest {
    private static final long WAIT_SECONDS = 30;
    private static final Handler IGNORE = event -> { };
    private static final int REPLY_MAX = 1 << 20;

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static CallHandler failing(Exception failure) {
        return call -> {
            throw failure;
        };
    }

    @Test
    void theRouterRefusesWhatRoutersRefuse(TestRouter router) {
        router.start(IGNORE, options -> options.call("do", Call::payload));
        CallOptions call = CallOptions.NONE;
        SendOptions sending = SendOptions.NONE;
        for (int i = 0; i < 64; i++) {
            sending = sending.property("p" + i, "");
        }
        SendOptions full = sending;
        String longest = "k".repeat(4096);
        byte[] nothing = {};
        try (Lane lane = router.lane()) {
            lane.invoke(longest, "do", nothing, call.id("i".repeat(128)).timeout(Duration.ofMinutes(10)));
            for (Executable refused : List.<Executable>of(
                    () -> lane.invoke("", "do", nothing), () -> lane.invoke(longest + "k", "do", nothing), () -> lane.invoke("k", "", nothing),
                    () -> lane.invoke("k", "m".repeat(65), nothing), () -> lane.invoke("k", "do it", nothing),
                    () -> lane.invoke("k", "do", nothing, call.id("i".repeat(129))), () -> lane.invoke("k", "do", nothing, call.timeout(Duration.ofMillis(600_001))))) {
                CallException failure = assertThrows(CallException.class, refused);
                assertEquals(CallException.Outcome.NOT_RUN, failure.outcome());
                assertEquals("", failure.code());
            }
            lane.send(longest, nothing, full.id("i".repeat(256)).property("p0", "v".repeat(4094)).property("traceparent", ""));
            SendOptions none = SendOptions.NONE;
            for (Executable refused : List.<Executable>of(
                    () -> lane.send("", nothing, none), () -> lane.send(longest + "k", nothing, none), () -> lane.send("k", nothing, none.id("i".repeat(257))),
                    () -> lane.send("k", nothing, full.property("more", "")), () -> lane.send("k", nothing, none.property("", "v")),
                    () -> lane.send("k", nothing, none.property("p", "v".repeat(4096))), () -> lane.send("k", nothing, none.property("Ringfence-Key", "v")))) {
                assertThrows(NotSentException.class, refused);
            }
        }
    }

    @TestFactory
    Stream<DynamicTest> outcomes() {
        Map<String, CallHandler> handlers = Map.of(
                "DONE 5 bytes, code , ", Call::payload,
                "DONE 0 bytes, code , ", call -> null,
                "DONE 1048576 bytes, code , ", call -> new byte[REPLY_MAX],
                "RETRY 0 bytes, code too_large, a reply of 1048577 bytes: want at most 1048576", call -> new byte[REPLY_MAX + 1],
                "RETRY 0 bytes, code no_stock, none left", failing(new CallFailureException("no_stock", "none left")),
                "RETRY 0 bytes, code inside, java.lang.IllegalStateException: around", failing(new IllegalStateException("around", new CallFailureException("inside", "x")) {
                    private static final long serialVersionUID = 1;

                    @Override
                    public String getMessage() {
                        return "java.lang.IllegalStateException: around";
                    }
                }),
                "RETRY 0 bytes, code , long", failing(new CallFailureException("é".repeat(33), "long")),
                "RETRY 0 bytes, code , java.io.IOException: no database", failing(new java.io.IOException("no database")),
                "RETRY 0 bytes, code , later", failing(new RetryAfterException(Duration.ofSeconds(5), "later")),
                "REJECT 0 bytes, code , never", failing(new RejectException("never")));
        return handlers.entrySet().stream().map(entry -> DynamicTest.dynamicTest(entry.getKey(), () -> {
            try (TestRouter router = new TestRouter()) {
                router.start(IGNORE, options -> options.call("do", entry.getValue()));
                TestRouter.Delivery call = router.call("k", "do", bytes("hello"));
                assertEquals(Duration.ZERO, call.outcome().after());
                assertEquals(entry.getKey(), call.outcome().kind() + " " + call.reply().length + " bytes, code " + call.code() + ", " + call.outcome().reason());
                assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("k")).outcome().kind());
            }
        }));
    }

    @Test
    void aMethodWithoutAHandler(TestRouter router) {
        router.start(IGNORE, options -> options.call("do", Call::payload));
        TestRouter.Delivery call = router.call("k", "other", bytes(""));
        assertEquals(new Outcome(Outcome.Kind.NOT_STARTED, Duration.ZERO, "this worker has no handler for the method"), call.outcome());
        assertEquals("no_handler", call.code());
    }

    @Test
    void aWorkerWithoutCalls(TestRouter router) {
        router.start(IGNORE);
        TestRouter.Delivery call = router.call("k", "do", bytes(""));
        TestRouter.Delivery event = router.deliver(Event.of("k"));
        assertEquals("no_handler", call.code());
        assertEquals(Outcome.Kind.DONE, event.outcome().kind());
    }

    /** Starts a worker whose handler waits until it is cancelled. */
    private static BlockingQueue<Object> waiting(TestRouter router, CountDownLatch started) {
        BlockingQueue<Object> causes = new LinkedBlockingQueue<>();
        router.start(IGNORE, options -> options.call("do", call -> {
            started.countDown();
            try {
                Thread.sleep(TimeUnit.SECONDS.toMillis(WAIT_SECONDS));
            } catch (InterruptedException e) {
                HandlerCancelledException cause = assertThrows(HandlerCancelledException.class, call::checkActive);
                causes.add(cause);
                throw cause;
            }
            return null;
        }));
        return causes;
    }

    @Test
    void aCallerThatIsGone(TestRouter router) throws InterruptedException {
        CountDownLatch started = new CountDownLatch(1);
        BlockingQueue<Object> causes = waiting(router, started);
        TestRouter.Delivery call = router.call("k", "do", bytes(""));
        assertTrue(started.await(WAIT_SECONDS, TimeUnit.SECONDS));
        TestRouter.Delivery waits = router.call("k", "do", bytes(""));
        waits.giveUp();
        call.giveUp();
        assertEquals(CallerGoneException.class, causes.poll(WAIT_SECONDS, TimeUnit.SECONDS).getClass());
        assertEquals(Outcome.Kind.CANCELLED, call.outcome().kind());
        assertEquals(Outcome.Kind.NOT_STARTED, waits.outcome().kind());
    }

    @Test
    void aCallerWhoseLaneIsClosed(TestRouter router) throws InterruptedException {
        CountDownLatch started = new CountDownLatch(1);
        BlockingQueue<Object> causes = waiting(router, started);
        try (Lane lane = router.lane()) {
            lane.invokeAsync(bytes("k"), "do", bytes(""), CallOptions.NONE.timeout(java.time.Duration.ofSeconds(10 * WAIT_SECONDS)));
            assertTrue(started.await(WAIT_SECONDS, TimeUnit.SECONDS));
        }
        assertEquals(CallerGoneException.class, causes.poll(WAIT_SECONDS, TimeUnit.SECONDS).getClass());
    }

    @Test
    void aHandlerTimeoutIsNotACallerThatIsGone() throws InterruptedException {
        try (TestRouter router = new TestRouter(java.time.Duration.ofSeconds(1))) {
            BlockingQueue<Object> causes = waiting(router, new CountDownLatch(1));
            TestRouter.Delivery call = router.call("k", "do", bytes(""));
            assertEquals(io.ringfence.client.HandlerTimeoutException.class, causes.poll(WAIT_SECONDS, TimeUnit.SECONDS).getClass());
            call.outcome();
        }
    }

    @Test
    void aLostKey(TestRouter router) throws InterruptedException {
        CountDownLatch started = new CountDownLatch(1);
        BlockingQueue<Object> causes = waiting(router, started);
        TestRouter.Delivery call = router.call("k", "do", bytes(""));
        assertTrue(started.await(WAIT_SECONDS, TimeUnit.SECONDS));
        router.lose("k");
        assertEquals(KeyLostException.class, causes.poll(WAIT_SECONDS, TimeUnit.SECONDS).getClass());
        assertEquals(Outcome.Kind.CANCELLED, call.outcome().kind());
    }

    @Test
    void hooksAndInterceptorsSeeCalls(TestRouter router) {
        List<String> seen = new java.util.concurrent.CopyOnWriteArrayList<>();
        CountDownLatch all = new CountDownLatch(3);
        router.start(IGNORE, options -> options.call("do", Call::payload).interceptors(next -> event -> {
            seen.add("interceptor " + event.method());
            next.handle(event);
        }).hooks(new Hooks() {
            @Override
            public void finished(Event event, Result result) {
                seen.add("hook " + event.method() + " " + result.kind());
                all.countDown();
            }
        }));
        router.call("k", "do", bytes("")).outcome();
        router.call("k", "other", bytes("")).outcome();
        router.deliver(Event.of("k")).outcome();
        assertEquals(List.of("interceptor do", "hook do DONE", "interceptor other", "hook other NOT_STARTED", "interceptor ", "hook  DONE"), seen);
    }

    @Test
    void aCallIsRedeliveredAsACall(TestRouter router) {
        router.start(IGNORE, options -> options.call("do", Call::payload));
        TestRouter.Delivery again = router.call("k", "do", bytes("hello")).redeliver();
        assertArrayEquals(bytes("hello"), again.reply());
        assertEquals(Outcome.Kind.DONE, again.outcome().kind());
    }

    @Test
    void aLane(TestRouter router) {
        CountDownLatch begun = new CountDownLatch(1);
        router.start(IGNORE, options -> options.call("echo", call -> bytes(call.key() + " " + call.id() + " " + new String(call.payload(), StandardCharsets.UTF_8)))
                .call("fail", failing(new CallFailureException("no_stock", "none left"))).call("sleep", call -> {
                    begun.countDown();
                    Thread.sleep(TimeUnit.SECONDS.toMillis(WAIT_SECONDS));
                    return null;
                }));
        try (Lane lane = router.lane()) {
            assertArrayEquals(bytes("k id-1 x"), lane.invoke("k", "echo", bytes("x"), CallOptions.NONE.id("id-1")));
            CallException failed = assertThrows(CallException.class, () -> lane.invoke("k", "fail", bytes("")));
            assertEquals("the call failed (no_stock): none left", failed.getMessage());
            assertEquals(CallException.Outcome.FAILED, failed.outcome());
            CallException unknown = assertThrows(CallException.class, () -> lane.invoke("k", "other", bytes("")));
            assertEquals(CallException.Outcome.NOT_RUN, unknown.outcome());
            assertEquals("no_handler", unknown.code());
            CallException late = null;
            for (Duration timeout = Duration.ofMillis(100); begun.getCount() > 0 && timeout.toSeconds() < WAIT_SECONDS; timeout = timeout.multipliedBy(2)) {
                CallOptions options = CallOptions.NONE.timeout(timeout); // on a busy machine a call may be over before its handler begins
                late = assertThrows(CallException.class, () -> lane.invoke("k", "sleep", bytes(""), options));
            }
            assertEquals(CallException.Outcome.UNKNOWN, late.outcome());
            assertArrayEquals(bytes("k  "), lane.invoke("k", "echo", bytes("")), "the handler was cancelled, and its key is free");
        }
    }
}
