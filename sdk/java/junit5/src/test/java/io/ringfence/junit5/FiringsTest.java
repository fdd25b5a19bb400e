package io.ringfence.junit5;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.ringfence.client.Event;
import io.ringfence.client.Firing;
import io.ringfence.client.FiringHandler;
import io.ringfence.client.Handler;
import io.ringfence.client.HandlerTimeoutException;
import io.ringfence.client.Hooks;
import io.ringfence.client.KeyLostException;
import io.ringfence.client.RejectException;
import io.ringfence.client.Result;
import io.ringfence.client.RetryAfterException;
import io.ringfence.client.Timer;
import io.ringfence.client.Times;
import io.ringfence.client.Worker;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** Firings of schedules against the router in memory. */
@RingfenceTest
class FiringsTest {
    private static final long WAIT_SECONDS = 30;
    private static final Instant SIX = Instant.parse("2026-11-30T05:00:00.007Z");
    private static final Duration PERIOD = Duration.ofSeconds(30);

    /** Of workers whose schedules fire: a firing is none of its. */
    private static final Handler NO_FIRINGS = event -> {
        throw new AssertionError("the handler of events got a firing");
    };

    private static Consumer<Worker.Builder> report(FiringHandler handler) {
        return options -> options.schedule("report", Times.cron("0 6 * * 1-5", "Europe/Berlin"), handler)
                .schedule("sweep", Times.every(PERIOD), firing -> {
                    throw new AssertionError("another schedule");
                });
    }

    private static <T> T take(BlockingQueue<T> queue) throws InterruptedException {
        T item = queue.poll(WAIT_SECONDS, TimeUnit.SECONDS);
        assertTrue(item != null, "nothing came for " + WAIT_SECONDS + " s");
        return item;
    }

    @Test
    void aFiringReachesTheHandlerOfItsSchedule(TestRouter router) throws InterruptedException {
        BlockingQueue<Object> seen = new LinkedBlockingQueue<>();
        router.start(NO_FIRINGS, report(firing -> {
            seen.add(List.of(firing.schedule(), firing.time(), firing.missed(), firing.attempt()));
            seen.add(firing.fence());
            firing.checkActive();
            firing.progress();
            assertTrue(firing.leaseUntil().orElseThrow().isAfter(Instant.now()));
            assertFalse(firing.isCancelled());
            seen.add(firing);
            if (firing.attempt() == 1) {
                throw new IllegalStateException("no database");
            }
        }));
        TestRouter.Delivery first = router.fire("report", SIX, 4_294_967_295L);
        assertEquals(new Outcome(Outcome.Kind.RETRY, Duration.ZERO, "java.lang.IllegalStateException: no database"), first.outcome());
        assertEquals(List.of("report", SIX, 4_294_967_295L, 1), take(seen));
        String fence = take(seen).toString();
        Firing over = (Firing) take(seen);
        assertEquals(Outcome.Kind.DONE, first.redeliver().outcome().kind());
        assertEquals(List.of("report", SIX, 4_294_967_295L, 2), take(seen));
        assertTrue(take(seen).toString().compareTo(fence) > 0, "the fence has not grown");
        assertTrue(over.isCancelled());
        assertThrows(KeyLostException.class, over::checkActive);
        assertThrows(KeyLostException.class, () -> over.after(Duration.ZERO, "", new byte[0]));
    }

    @TestFactory
    Stream<DynamicTest> outcomes() {
        Map<Outcome, FiringHandler> handlers = Map.of(
                new Outcome(Outcome.Kind.DONE, Duration.ZERO, ""), firing -> { },
                new Outcome(Outcome.Kind.REJECT, Duration.ZERO, "never"), firing -> {
                    throw new RejectException("never");
                },
                new Outcome(Outcome.Kind.RETRY, Duration.ofSeconds(90), "later"), firing -> {
                    throw new RetryAfterException(Duration.ofSeconds(90), "later");
                },
                new Outcome(Outcome.Kind.RETRY, Duration.ZERO, "java.lang.Exception: checked"), firing -> {
                    throw new Exception("checked");
                },
                new Outcome(Outcome.Kind.RETRY, Duration.ZERO, "java.lang.StackOverflowError: deep"), firing -> {
                    throw new StackOverflowError("deep");
                });
        return handlers.entrySet().stream().map(entry -> DynamicTest.dynamicTest(entry.getKey().toString(), () -> {
            try (TestRouter router = new TestRouter()) {
                router.start(NO_FIRINGS, report(entry.getValue()));
                assertEquals(entry.getKey(), router.fire("report", SIX, 0).outcome());
            }
        }));
    }

    /** A router sends no such firing. Neither the handler of events nor that of another schedule gets it. */
    @TestFactory
    Stream<DynamicTest> aFiringOfAnUndeclaredScheduleFails() {
        Map<String, Consumer<Worker.Builder>> workers = Map.of("none", options -> { }, "others", report(firing -> { }));
        return workers.entrySet().stream().map(worker -> DynamicTest.dynamicTest(worker.getKey(), () -> {
            try (TestRouter router = new TestRouter()) {
                router.start(NO_FIRINGS, worker.getValue());
                Outcome failed = router.fire("backup", SIX, 0).outcome();
                assertEquals(Outcome.Kind.RETRY, failed.kind());
                assertTrue(failed.reason().contains("this worker does not declare the schedule \"backup\""), failed.reason());
            }
        }));
    }

    /** What only looks like a firing is an event. */
    @Test
    void timersAndEventsOfTheKeyAreNoFirings(TestRouter router) {
        List<String> seen = new CopyOnWriteArrayList<>();
        router.start(event -> seen.add(event.key() + event.timer().map(Timer::name).orElse("")), report(firing -> {
            throw new AssertionError("no firing");
        }));
        assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("schedule/report").timer(new Timer("report", SIX))).outcome().kind());
        assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("schedule/report")).outcome().kind());
        assertEquals(List.of("schedule/reportreport", "schedule/report"), seen);
    }

    @Test
    void timersOfAFiringBelongToItsKey(TestRouter router) {
        List<String> seen = new CopyOnWriteArrayList<>();
        router.start(event -> seen.add(event.key() + " " + event.timer().orElseThrow().name() + " " + new String(event.payload(), StandardCharsets.UTF_8)), report(firing -> {
            firing.after(Duration.ofMinutes(1), "check", "é".getBytes(StandardCharsets.UTF_8));
            firing.after(Duration.ZERO, "", new byte[0]);
            if (firing.attempt() == 1) {
                throw new IllegalStateException("its timers are dropped");
            }
        }));
        TestRouter.Delivery first = router.fire("report", SIX, 0);
        assertEquals(Outcome.Kind.RETRY, first.outcome().kind());
        assertEquals(List.of(), router.sent());
        TestRouter.Delivery second = first.redeliver();
        assertEquals(Outcome.Kind.DONE, second.outcome().kind());
        assertEquals(Outcome.Kind.DONE, second.redeliver().outcome().kind());
        assertEquals(Set.of("schedule/report check", "schedule/report "), router.sent().stream().map(sent -> sent.key() + " " + sent.name()).collect(Collectors.toSet()));
        assertEquals(2, router.sent().size(), "another run of the firing has set other timers");
        assertEquals(Outcome.Kind.DONE, router.fire("report", SIX.plus(PERIOD), 0).redeliver().outcome().kind());
        router.sent().stream().filter(sent -> sent.name().equals("check")).findFirst().orElseThrow().deliver().outcome();
        assertEquals(List.of("schedule/report check é"), seen);
    }

    @Test
    void hooksAndInterceptorsSeeFirings(TestRouter router) {
        List<String> seen = new CopyOnWriteArrayList<>();
        router.start(NO_FIRINGS, report(firing -> seen.add("handler")).andThen(options -> options.interceptors(next -> event -> {
            seen.add("interceptor " + event.key() + " " + event.timer().orElseThrow());
            next.handle(event);
        }).hooks(new Hooks() {
            @Override
            public void started(Event event) {
                seen.add("started " + event.timer().orElseThrow().name() + event.method());
            }

            @Override
            public void finished(Event event, Result result) {
                seen.add("finished " + event.timer().orElseThrow().name() + " " + result.kind());
            }
        })));
        assertEquals(Outcome.Kind.DONE, router.fire("report", SIX, 0).outcome().kind());
        assertEquals(List.of("started report", "interceptor schedule/report " + new Timer("report", SIX), "handler", "finished report DONE"), seen);
    }

    @Test
    void aLostKeyCancelsItsFiring(TestRouter router) throws InterruptedException {
        CountDownLatch started = new CountDownLatch(1);
        BlockingQueue<Object> causes = new LinkedBlockingQueue<>();
        router.start(NO_FIRINGS, report(firing -> {
            started.countDown();
            try {
                Thread.sleep(TimeUnit.SECONDS.toMillis(WAIT_SECONDS));
            } catch (InterruptedException e) {
                assertTrue(firing.isCancelled());
                causes.add(assertThrows(KeyLostException.class, firing::checkActive));
                throw e;
            }
        }));
        TestRouter.Delivery running = router.fire("report", SIX, 0);
        assertTrue(started.await(WAIT_SECONDS, TimeUnit.SECONDS));
        router.lose("schedule/report");
        take(causes);
        assertEquals(Outcome.Kind.CANCELLED, running.outcome().kind());
    }

    @Test
    void aFiringThatTakesTooLong() throws InterruptedException {
        BlockingQueue<Object> causes = new LinkedBlockingQueue<>();
        try (TestRouter router = new TestRouter(Duration.ofSeconds(1))) {
            router.start(NO_FIRINGS, report(firing -> {
                try {
                    Thread.sleep(TimeUnit.SECONDS.toMillis(WAIT_SECONDS));
                } catch (InterruptedException e) {
                    causes.add(assertThrows(HandlerTimeoutException.class, firing::checkActive));
                    throw e;
                }
            }));
            assertEquals(new Outcome(Outcome.Kind.RETRY, Duration.ZERO, "handler.timeout"), router.fire("report", SIX, 0).outcome());
            take(causes);
        }
    }
}
