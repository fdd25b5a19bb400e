package io.ringfence.junit5;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.ringfence.client.CallFailureException;
import io.ringfence.client.DrainTimeoutException;
import io.ringfence.client.Event;
import io.ringfence.client.Fence;
import io.ringfence.client.Handler;
import io.ringfence.client.HandlerTimeoutException;
import io.ringfence.client.Handlers;
import io.ringfence.client.Hooks;
import io.ringfence.client.KeyLostException;
import io.ringfence.client.RejectException;
import io.ringfence.client.Result;
import io.ringfence.client.ResultKind;
import io.ringfence.client.RetryAfterException;
import io.ringfence.client.RingfenceException;
import io.ringfence.client.Session;
import io.ringfence.client.Worker;
import io.ringfence.client.proto.Hello;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** The SDK against the router in memory. */
@RingfenceTest
class WorkerTest {
    private static final long WAIT_SECONDS = 30;

    private static void await(CountDownLatch latch) throws InterruptedException {
        assertTrue(latch.await(WAIT_SECONDS, TimeUnit.SECONDS), "nothing happened for " + WAIT_SECONDS + " s");
    }

    private static <T> T take(BlockingQueue<T> queue) throws InterruptedException {
        T item = queue.poll(WAIT_SECONDS, TimeUnit.SECONDS);
        assertTrue(item != null, "nothing came for " + WAIT_SECONDS + " s");
        return item;
    }

    private static final class Unprintable extends Exception {
        private static final long serialVersionUID = 1;

        @Override
        public String getMessage() {
            throw new IllegalStateException("no message");
        }
    }

    @TestFactory
    Stream<DynamicTest> outcomes() {
        Map<String, Handler> handlers = Map.of(
                "DONE after 0: ", event -> { },
                "RETRY after 0: java.io.IOException: no database", event -> {
                    throw new java.io.IOException("no database");
                },
                "RETRY after 90000: busy", event -> {
                    throw new RetryAfterException(Duration.ofSeconds(90), "busy");
                },
                "RETRY after 0: later", event -> {
                    throw new RetryAfterException(Duration.ofSeconds(-1), "later");
                },
                "REJECT after 0: not JSON", event -> {
                    throw new RejectException("not JSON");
                },
                "REJECT after 0: java.lang.RuntimeException: around", event -> {
                    throw new RuntimeException("around", new RejectException("inside")) {
                        private static final long serialVersionUID = 1;

                        @Override
                        public String getMessage() {
                            return "java.lang.RuntimeException: around";
                        }
                    };
                },
                "RETRY after 0: java.lang.StackOverflowError", event -> {
                    throw new StackOverflowError();
                },
                "RETRY after 0: io.ringfence.junit5.WorkerTest$Unprintable", event -> {
                    throw new Unprintable();
                },
                "REJECT after 0: decode JSON: not 5", Handlers.json(bytes -> {
                    throw new IllegalArgumentException("not 5");
                }, (event, value) -> { }),
                "REJECT after 0: decode JSON: the payload holds no value", Handlers.json(bytes -> null, (event, value) -> { }));
        return handlers.entrySet().stream().map(entry -> DynamicTest.dynamicTest(entry.getKey(), () -> {
            try (TestRouter router = new TestRouter()) {
                router.start(entry.getValue());
                TestRouter.Delivery delivery = router.deliver(Event.of("k"));
                for (Outcome got : List.of(delivery.outcome(), delivery.redeliver().outcome())) {
                    assertEquals(entry.getKey(), got.kind() + " after " + got.after().toMillis() + ": " + got.reason());
                }
            }
        }));
    }

    /** An exception of the application whose methods are not as they should be. */
    private static final class Odd extends RetryAfterException {
        private static final long serialVersionUID = 1;

        Odd() {
            super(Duration.ofSeconds(90), "odd");
        }

        @Override
        public Duration delay() {
            return ChronoUnit.FOREVER.getDuration(); // more milliseconds than a long has
        }
    }

    private static final class Causeless extends Exception {
        private static final long serialVersionUID = 1;

        Causeless() {
            super("around");
        }

        @Override
        public synchronized Throwable getCause() {
            throw new IllegalStateException("no cause");
        }
    }

    /** Whatever a handler throws, its event is answered: otherwise its key would be held for ever. */
    @TestFactory
    Stream<DynamicTest> whateverIsThrownIsAnAnswer() {
        Map<String, Handler> handlers = Map.of(
                "RETRY after " + Long.MAX_VALUE + ": for ever", event -> {
                    throw new RetryAfterException(ChronoUnit.FOREVER.getDuration(), "for ever");
                },
                "RETRY after 1: soon", event -> { // 0 would be the router's back-off
                    throw new RetryAfterException(Duration.ofNanos(1), "soon");
                },
                "RETRY after 2: about", event -> {
                    throw new RetryAfterException(Duration.ofNanos(1_000_001), "about");
                },
                "RETRY after 0: io.ringfence.junit5.WorkerTest$Odd: odd", event -> {
                    throw new Odd();
                },
                "RETRY after 0: io.ringfence.junit5.WorkerTest$Causeless: around", event -> {
                    throw new Causeless();
                });
        TestLog printing = new TestLog((line, thrown, parameters) -> {
            if (thrown != null) {
                thrown.printStackTrace(new PrintWriter(new StringWriter())); // as any log does; it asks for the cause
            }
        });
        return handlers.entrySet().stream().map(entry -> DynamicTest.dynamicTest(entry.getKey(), () -> {
            try (TestRouter router = new TestRouter()) {
                router.start(entry.getValue(), options -> options.logger(printing));
                Outcome got = router.deliver(Event.of("k")).outcome();
                assertEquals(entry.getKey(), got.kind() + " after " + got.after().toMillis() + ": " + got.reason());
            }
        }));
    }

    /** A failure is logged by its place, without its message, which may hold parts of the event; and many are one line. */
    @Test
    void failuresAreLoggedByTheirPlaceAndNotEachAlone(TestRouter router) {
        BlockingQueue<String> lines = new LinkedBlockingQueue<>();
        router.start(event -> {
            throw new IllegalStateException("planted " + new String(event.payload(), StandardCharsets.UTF_8));
        }, options -> options.logger(new TestLog((line, thrown, parameters) -> lines.add(line + thrown))));
        long begun = System.nanoTime();
        int events = 50;
        for (int i = 0; i < events; i++) {
            assertEquals(Outcome.Kind.RETRY, router.deliver(Event.of("k" + i).payload("planted")).outcome().kind());
        }
        long seconds = Duration.ofNanos(System.nanoTime() - begun).toSeconds();
        List<String> failed = lines.stream().filter(line -> line.startsWith("handler failed: ")).toList();
        assertTrue(!failed.isEmpty() && failed.size() <= 1 + seconds, failed.toString());
        assertTrue(failed.get(0).contains("attempt 1: java.lang.IllegalStateException at io.ringfence.junit5.WorkerTest."), failed.get(0));
        assertFalse(lines.toString().contains("planted"), lines.toString());
    }

    /** A handler that has done nothing yet may give its event back, once the worker was told to stop. */
    @Test
    void aHandlerGivesAnEventBackDuringADrain(TestRouter router) throws InterruptedException {
        BlockingQueue<String> started = new LinkedBlockingQueue<>();
        CountDownLatch told = new CountDownLatch(1);
        Worker worker = router.start(event -> {
            if (event.key().equals("waits")) {
                started.add("waits");
                await(told);
            }
            throw new DrainTimeoutException();
        });
        assertEquals(Outcome.Kind.RETRY, router.deliver(Event.of("early")).outcome().kind());
        TestRouter.Delivery delivery = router.deliver(Event.of("waits"));
        take(started);
        worker.stop();
        told.countDown();
        assertEquals(Outcome.Kind.CANCELLED, delivery.outcome().kind());
    }

    @Test
    void typedHandlersGetTheirPayload(TestRouter router) {
        BlockingQueue<String> seen = new LinkedBlockingQueue<>();
        router.start(Handlers.proto(Hello.parser(), (event, hello) -> seen.add(event.key() + " " + hello.getWorker())));
        assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("a").payload(Hello.newBuilder().setWorker("w").build().toByteArray())).outcome().kind());
        assertEquals(List.of("a w"), List.copyOf(seen));
        Outcome broken = router.deliver(Event.of("a").payload("\n")).outcome();
        assertEquals(Outcome.Kind.REJECT, broken.kind());
        assertTrue(broken.reason().startsWith("decode protobuf: "), broken.reason());
    }

    /** Each delivery of a key has a greater fence than the one before; one that the test chooses is kept. */
    @Test
    void fencesGrow(TestRouter router) throws InterruptedException {
        BlockingQueue<Event> seen = new LinkedBlockingQueue<>();
        router.start(event -> {
            seen.add(event);
            throw new IllegalStateException("again");
        });
        TestRouter.Delivery delivery = router.deliver(Event.of("k"));
        delivery.outcome();
        Fence first = take(seen).fence();
        assertTrue(first.token() > 0 && first.turn() > 0, first.toString());
        delivery.redeliver().outcome();
        Event again = take(seen);
        assertTrue(first.isBefore(again.fence()), again.fence() + " after " + first);
        assertEquals(2, again.attempt());
        router.lose("k");
        router.deliver(Event.of("k")).outcome();
        Event moved = take(seen);
        assertTrue(moved.fencingToken() > again.fencingToken(), moved.fence() + " after " + again.fence());
        router.deliver(Event.of("k").fence(new Fence(99, 7))).outcome();
        assertEquals(new Fence(99, 7), take(seen).fence());
    }

    @Test
    void oneAtATimePerKeyAndManyKeysAtOnce(TestRouter router) {
        int keys = 50;
        int each = 10;
        AtomicInteger[] running = new AtomicInteger[keys];
        AtomicInteger[] handled = new AtomicInteger[keys];
        for (int i = 0; i < keys; i++) {
            running[i] = new AtomicInteger();
            handled[i] = new AtomicInteger();
        }
        CyclicBarrier all = new CyclicBarrier(keys); // passes only if every key has a running handler
        router.start(event -> {
            int key = Integer.parseInt(event.key());
            int number = event.payload()[0];
            if (running[key].incrementAndGet() != 1) {
                throw new RejectException("two handlers of one key run");
            }
            if (number == 0) {
                all.await(WAIT_SECONDS, TimeUnit.SECONDS);
            }
            if (handled[key].getAndIncrement() != number) {
                throw new RejectException("event " + number + " out of order");
            }
            running[key].decrementAndGet();
        });
        List<TestRouter.Delivery> deliveries = new ArrayList<>();
        for (int i = 0; i < each; i++) {
            for (int key = 0; key < keys; key++) {
                deliveries.add(router.deliver(Event.of(String.valueOf(key)).payload(new byte[] {(byte) i})));
            }
        }
        deliveries.forEach(delivery -> assertEquals(new Outcome(Outcome.Kind.DONE, Duration.ZERO, ""), delivery.outcome()));
    }

    /** One thread runs several handlers that return at once. If one blocks, the later events run elsewhere. */
    @Test
    void aBlockedHandlerDelaysNoOtherEvent(TestRouter router) {
        CountDownLatch release = new CountDownLatch(1);
        router.start(event -> {
            if (event.payload()[0] == 1 && !release.await(WAIT_SECONDS, TimeUnit.SECONDS)) {
                throw new IllegalStateException("not released");
            }
        });
        List<TestRouter.Delivery> quick = new ArrayList<>();
        List<TestRouter.Delivery> stuck = new ArrayList<>();
        for (int i = 0; i < 400; i++) {
            boolean blocks = i % 7 == 3;
            (blocks ? stuck : quick).add(router.deliver(Event.of("k" + i).payload(new byte[] {(byte) (blocks ? 1 : 0)})));
        }
        quick.forEach(delivery -> assertEquals(Outcome.Kind.DONE, delivery.outcome().kind()));
        assertTrue(stuck.stream().noneMatch(TestRouter.Delivery::isOver));
        release.countDown();
        stuck.forEach(delivery -> assertEquals(Outcome.Kind.DONE, delivery.outcome().kind()));
    }

    @TestFactory
    Stream<DynamicTest> handlersAreBounded() {
        Map<String, Consumer<Worker.Builder>> bounds = Map.of(
                "maxInFlight", options -> options.maxInFlight(3), "maxThreads", options -> options.maxThreads(3));
        return bounds.entrySet().stream().map(bound -> DynamicTest.dynamicTest(bound.getKey(), () -> {
            try (TestRouter router = new TestRouter()) {
                AtomicInteger running = new AtomicInteger();
                AtomicInteger most = new AtomicInteger();
                CyclicBarrier three = new CyclicBarrier(3);
                router.start(event -> {
                    most.accumulateAndGet(running.incrementAndGet(), Math::max);
                    three.await(WAIT_SECONDS, TimeUnit.SECONDS); // as many as may run at once do
                    running.decrementAndGet();
                }, bound.getValue());
                List<TestRouter.Delivery> deliveries = new ArrayList<>();
                for (int i = 0; i < 30; i++) {
                    deliveries.add(router.deliver(Event.of("k" + i)));
                }
                deliveries.forEach(delivery -> assertEquals(Outcome.Kind.DONE, delivery.outcome().kind()));
                assertEquals(3, most.get());
            }
        }));
    }

    @Test
    void aLostKeyInterruptsItsHandler(TestRouter router) throws InterruptedException {
        CountDownLatch started = new CountDownLatch(2);
        BlockingQueue<String> learned = new LinkedBlockingQueue<>();
        CountDownLatch release = new CountDownLatch(1);
        router.start(event -> {
            started.countDown();
            if (event.key().equals("stays")) {
                await(release);
                event.checkActive();
                return;
            }
            try {
                new CountDownLatch(1).await();
            } catch (InterruptedException e) {
                learned.add("interrupted, cancelled = " + event.isCancelled());
            }
            assertThrows(KeyLostException.class, event::progress);
            event.checkActive();
        });
        TestRouter.Delivery moves = router.deliver(Event.of("moves"));
        TestRouter.Delivery stays = router.deliver(Event.of("stays"));
        await(started);
        TestRouter.Delivery waits = router.deliver(Event.of("moves"));
        router.lose("moves");
        assertEquals(Outcome.Kind.NOT_STARTED, waits.outcome().kind());
        assertEquals(new Outcome(Outcome.Kind.CANCELLED, Duration.ZERO, ""), moves.outcome());
        assertEquals("interrupted, cancelled = true", take(learned));
        assertFalse(stays.isOver());
        release.countDown();
        assertEquals(Outcome.Kind.DONE, stays.outcome().kind());
    }

    /** A task that a handler has left behind must not write: its event is over, though the lease of the worker goes on. */
    @Test
    void anEventIsOverWhenItsHandlerHasReturned(TestRouter router) throws InterruptedException {
        BlockingQueue<Event> seen = new LinkedBlockingQueue<>();
        router.start(event -> {
            event.checkActive();
            seen.add(event); // for a task, which calls checkActive before each write
            if (event.attempt() == 1) {
                throw new TimeoutException("the task takes too long");
            }
        });
        TestRouter.Delivery first = router.deliver(Event.of("k"));
        assertEquals(Outcome.Kind.RETRY, first.outcome().kind());
        Event failed = take(seen);
        isOver(failed);
        router.lose("k");
        assertEquals(Outcome.Kind.DONE, first.redeliver().outcome().kind());
        isOver(failed);
        isOver(take(seen)); // also after a success
    }

    private static void isOver(Event event) {
        assertTrue(event.isCancelled());
        assertThrows(KeyLostException.class, event::progress);
        assertTrue(assertThrows(KeyLostException.class, event::checkActive).getMessage().contains("returned"));
        assertFalse(event.leaseUntil().orElseThrow().isAfter(Instant.now()), "its lease goes on");
        assertTrue(assertThrows(KeyLostException.class, () -> event.after(Duration.ZERO, "", new byte[0])).getMessage().contains("returned"));
    }

    /** Rule 6: the check asks the clock itself, before the check of all deadlines has come around. */
    @Test
    void checkActiveAsksTheClock(TestRouter router) {
        AtomicReference<Thread> handler = new AtomicReference<>();
        router.start(event -> {
            event.checkActive();
            assertTrue(event.leaseUntil().orElseThrow().isAfter(java.time.Instant.now()));
            router.expire(); // the clock is past the deadline now
            assertTrue(event.isCancelled());
            assertThrows(KeyLostException.class, event::checkActive);
            handler.set(Thread.currentThread());
            assertTrue(Thread.interrupted());
            throw new IllegalStateException("no failure: the key was lost");
        });
        assertEquals(Outcome.Kind.CANCELLED, router.deliver(Event.of("k")).outcome().kind());
    }

    @Test
    void successCountsEvenAfterACancellation(TestRouter router) {
        router.start(event -> {
            router.expire();
            assertTrue(event.isCancelled());
        });
        assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("k")).outcome().kind());
    }

    /** An interruption is for one event: the next one on the same thread must not see it. */
    @Test
    void anInterruptionDoesNotReachTheNextEvent(TestRouter router) {
        AtomicBoolean interrupted = new AtomicBoolean();
        router.start(event -> {
            if (event.key().equals("first")) {
                router.expire();
                assertTrue(event.isCancelled()); // leaves the thread interrupted
                return;
            }
            interrupted.set(Thread.interrupted());
        }, options -> options.maxThreads(1));
        TestRouter.Delivery first = router.deliver(Event.of("first"));
        TestRouter.Delivery second = router.deliver(Event.of("second"));
        assertEquals(Outcome.Kind.DONE, first.outcome().kind());
        assertEquals(Outcome.Kind.DONE, second.outcome().kind());
        assertFalse(interrupted.get());
    }

    @Test
    void handlersThatTakeTooLongAreCancelled() throws InterruptedException {
        try (TestRouter router = new TestRouter(Duration.ofSeconds(1))) {
            BlockingQueue<RuntimeException> learned = new LinkedBlockingQueue<>();
            router.start(event -> {
                try {
                    new CountDownLatch(1).await();
                } catch (InterruptedException e) {
                    learned.add(assertThrows(HandlerTimeoutException.class, event::checkActive));
                    throw e;
                }
            });
            Outcome outcome = router.deliver(Event.of("k")).outcome();
            assertEquals(new Outcome(Outcome.Kind.RETRY, Duration.ZERO, "handler.timeout"), outcome);
            assertTrue(take(learned).getMessage().contains("handler.timeout"));
        }
    }

    @Test
    void progressRestartsTheTimeout() {
        Duration timeout = Duration.ofSeconds(2);
        try (TestRouter router = new TestRouter(timeout)) {
            router.start(event -> {
                long end = System.nanoTime() + timeout.multipliedBy(2).toNanos();
                while (System.nanoTime() - end < 0) {
                    event.progress();
                    Thread.sleep(20); // the work
                }
            }, options -> options.call("do", call -> {
                long end = System.nanoTime() + timeout.multipliedBy(2).toNanos();
                while (System.nanoTime() - end < 0) {
                    call.progress();
                    Thread.sleep(20);
                }
                return null;
            }));
            TestRouter.Delivery event = router.deliver(Event.of("k"));
            TestRouter.Delivery call = router.call("l", "do", new byte[0]);
            assertEquals(Outcome.Kind.DONE, event.outcome().kind());
            assertEquals(Outcome.Kind.DONE, call.outcome().kind());
        }
    }

    @Test
    void closeDrains(TestRouter router) throws Exception {
        CountDownLatch started = new CountDownLatch(1);
        CountDownLatch release = new CountDownLatch(1);
        Worker worker = router.start(event -> {
            started.countDown();
            await(release);
        }, options -> options.maxThreads(1));
        TestRouter.Delivery running = router.deliver(Event.of("a"));
        await(started);
        TestRouter.Delivery waiting = router.deliver(Event.of("b"));
        CompletableFuture<Void> closed = CompletableFuture.runAsync(worker::close);
        assertEquals(Outcome.Kind.NOT_STARTED, waiting.outcome().kind());
        assertFalse(running.isOver());
        assertFalse(closed.isDone());
        release.countDown();
        assertEquals(Outcome.Kind.DONE, running.outcome().kind());
        closed.get(WAIT_SECONDS, TimeUnit.SECONDS);
        worker.close(); // once more
    }

    @Test
    void handlersThatOutlastTheGraceAreCancelled(TestRouter router) throws InterruptedException {
        CountDownLatch started = new CountDownLatch(1);
        BlockingQueue<RuntimeException> learned = new LinkedBlockingQueue<>();
        Worker worker = router.start(event -> {
            started.countDown();
            try {
                new CountDownLatch(1).await();
            } catch (InterruptedException e) {
                learned.add(assertThrows(DrainTimeoutException.class, event::checkActive));
                throw e;
            }
        }, options -> options.drainGrace(Duration.ofMillis(50)));
        TestRouter.Delivery delivery = router.deliver(Event.of("k"));
        await(started);
        worker.close();
        assertEquals(Outcome.Kind.CANCELLED, delivery.outcome().kind());
        take(learned);
    }

    @Test
    void handlersThatIgnoreEvenThatAreReported() throws InterruptedException {
        CountDownLatch started = new CountDownLatch(1);
        CountDownLatch release = new CountDownLatch(1);
        try (TestRouter router = new TestRouter()) {
            Worker worker = router.worker(event -> {
                started.countDown();
                while (release.getCount() > 0) {
                    try {
                        release.await();
                    } catch (InterruptedException ignored) {
                        // as told
                    }
                }
            }).drainGrace(Duration.ZERO).start();
            router.deliver(Event.of("k"));
            await(started);
            RingfenceException failure = assertThrows(RingfenceException.class, worker::close);
            assertEquals(RingfenceException.Kind.DRAIN_TIMEOUT, failure.kind());
            assertTrue(failure.getMessage().contains("1 are still running"), failure.getMessage());
            release.countDown();
        }
    }

    /** After a broken stream its handlers run on until their deadline, and their answers are not sent on the new one. */
    @Test
    void aBrokenStreamIsReplaced(TestRouter router) throws InterruptedException {
        CountDownLatch started = new CountDownLatch(1);
        CountDownLatch release = new CountDownLatch(1);
        BlockingQueue<String> happened = new LinkedBlockingQueue<>();
        router.start(event -> {
            if (event.key().equals("old")) {
                started.countDown();
                await(release);
                happened.add(event.isCancelled() ? "cancelled" : "active");
            }
        });
        TestRouter.Delivery old = router.deliver(Event.of("old"));
        await(started);
        router.disconnect();
        assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("new")).outcome().kind(), "over the new stream");
        release.countDown();
        assertEquals("active", take(happened), "the deadline lies ahead");
        router.deliver(Event.of("new")).outcome(); // results of the new stream have come; the old answer was dropped
        assertFalse(old.isOver());
        router.expire();
        assertEquals(Outcome.Kind.LOST, old.outcome().kind());
        assertEquals(Outcome.Kind.DONE, old.redeliver().outcome().kind());
    }

    /** A log that throws, as one whose server is away, costs no stream, no answer and no thread. */
    @Test
    void aLogThatThrowsHoldsUpNothing(TestRouter router) throws InterruptedException {
        CountDownLatch started = new CountDownLatch(1);
        BlockingQueue<String> learned = new LinkedBlockingQueue<>();
        Worker worker = router.start(event -> {
            if (event.key().equals("fails")) {
                throw new IllegalStateException("no database");
            } else if (event.key().equals("moves")) {
                started.countDown();
                try {
                    new CountDownLatch(1).await();
                } catch (InterruptedException e) {
                    learned.add("interrupted");
                }
            }
        }, options -> options.maxThreads(1).hooks(new Hooks() {
            @Override
            public void finished(Event event, Result result) {
                throw new IllegalStateException("logged too");
            }
        }).logger(new TestLog((line, thrown, parameters) -> {
            throw new IllegalStateException("no log server");
        })));
        assertEquals(new Outcome(Outcome.Kind.RETRY, Duration.ZERO, "java.lang.IllegalStateException: no database"), router.deliver(Event.of("fails")).outcome());
        assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("next")).outcome().kind(), "in the only thread");
        router.disconnect();
        assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("next")).outcome().kind(), "over the new stream");
        router.deliver(Event.of("moves"));
        await(started);
        router.lose("moves");
        assertEquals("interrupted", take(learned));
        assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("next")).outcome().kind());
        assertFalse(worker.awaitEnd(Duration.ZERO));
    }

    /** A handler that ignores its cancellation holds up neither the next delivery of its key nor that of others. */
    @Test
    void aHandlerThatIgnoresItsCancellationHoldsUpNothing(TestRouter router) throws InterruptedException {
        ignoresItsCancellation(router, options -> { });
    }

    /** With one thread the next delivery takes another one. When the handler has returned after all, one thread runs handlers again. */
    @Test
    void theOnlyThreadIsReplacedIfItsHandlerIgnoresItsCancellation(TestRouter router) throws InterruptedException {
        int most = ignoresItsCancellation(router, options -> options.maxThreads(1));
        assertEquals(1, most);
    }

    /** Returns the most handlers that have run at once since the first one was cancelled, without it. */
    private static int ignoresItsCancellation(TestRouter router, Consumer<Worker.Builder> options) throws InterruptedException {
        CountDownLatch started = new CountDownLatch(1);
        CountDownLatch release = new CountDownLatch(1);
        AtomicInteger calls = new AtomicInteger();
        AtomicInteger running = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        router.start(event -> {
            if (calls.incrementAndGet() == 1) {
                started.countDown();
                while (release.getCount() > 0) {
                    try {
                        release.await();
                    } catch (InterruptedException ignored) {
                        // as told
                    }
                }
                return;
            }
            most.accumulateAndGet(running.incrementAndGet(), Math::max);
            Thread.sleep(1); // the work
            running.decrementAndGet();
        }, options);
        TestRouter.Delivery late = router.deliver(Event.of("k"));
        await(started);
        router.disconnect();
        router.expire();
        assertEquals(Outcome.Kind.LOST, late.outcome().kind());
        assertEquals(Outcome.Kind.DONE, late.redeliver().outcome().kind());
        List<TestRouter.Delivery> deliveries = new ArrayList<>();
        for (int i = 0; i < 100; i++) {
            deliveries.add(router.deliver(Event.of("k" + i)));
            if (i == 50) {
                release.countDown();
            }
        }
        deliveries.forEach(delivery -> assertEquals(Outcome.Kind.DONE, delivery.outcome().kind()));
        return most.get();
    }

    @Test
    void hooksSeeEverything(TestRouter router) throws InterruptedException {
        Queue<String> events = new ConcurrentLinkedQueue<>();
        BlockingQueue<String> sessions = new LinkedBlockingQueue<>();
        BlockingQueue<Boolean> ready = new LinkedBlockingQueue<>();
        AtomicInteger held = new AtomicInteger(-1);
        Hooks hooks = new Hooks() {
            @Override
            public void started(Event event) {
                events.add("started " + event.key());
                throw new IllegalStateException("hooks that fail change nothing");
            }

            @Override
            public void finished(Event event, Result result) {
                events.add("finished " + result.kind() + " " + result.failure() + " " + !result.duration().isNegative());
            }

            @Override
            public void connected(Session session) {
                sessions.add("connected " + session.node() + " " + session.inFlightMax());
            }

            @Override
            public void disconnected(RingfenceException failure) {
                sessions.add("disconnected " + (failure == null ? null : failure.kind()));
            }

            @Override
            public void window(int now, int limit) {
                held.set(now);
            }
        };
        Worker worker = router.start(event -> {
            if (event.key().equals("bad")) {
                throw new RejectException("bad");
            }
        }, options -> options.hooks(hooks).ready(ready::add).maxInFlight(7));
        assertEquals("connected test-router 7", take(sessions));
        router.deliver(Event.of("good")).outcome();
        router.deliver(Event.of("bad")).outcome();
        router.disconnect();
        assertEquals("disconnected BROKEN", take(sessions));
        assertEquals("connected test-router 7", take(sessions));
        worker.close();
        assertEquals("disconnected null", take(sessions));
        assertEquals(List.of("started good", "finished DONE null true", "started bad",
                "finished REJECT io.ringfence.client.RejectException: bad true"), List.copyOf(events));
        assertEquals(List.of(true, false, true, false), List.copyOf(ready));
        assertEquals(0, held.get());
    }

    @Test
    void interceptorsWrapTheHandler(TestRouter router) throws InterruptedException {
        BlockingQueue<String> order = new LinkedBlockingQueue<>();
        router.start(event -> order.add("handler"), options -> options.interceptors(
                next -> event -> {
                    order.add("outer");
                    next.handle(event);
                    order.add("end");
                }, next -> event -> {
                    order.add("inner");
                    next.handle(event);
                }));
        router.deliver(Event.of("k")).outcome();
        assertEquals(List.of("outer", "inner", "handler", "end"), List.copyOf(order));
    }

    @Test
    void virtualThreadsWorkWhereTheyAre(TestRouter router) throws InterruptedException {
        boolean has = Runtime.version().feature() >= 21;
        BlockingQueue<Boolean> daemons = new LinkedBlockingQueue<>();
        BlockingQueue<String> names = new LinkedBlockingQueue<>();
        router.start(event -> {
            names.add(Thread.currentThread().getName());
            daemons.add(Thread.currentThread().isDaemon());
        }, options -> options.virtualThreads(has));
        for (int i = 0; i < 100; i++) {
            router.deliver(Event.of("k" + i)).outcome();
            assertTrue(take(names).startsWith("ringfence-handler-"));
            assertTrue(take(daemons), "a handler's thread keeps the process alive");
        }
    }

    @Test
    void largeEventsAndManyEventsPass(TestRouter router) {
        AtomicInteger bytes = new AtomicInteger();
        router.start(event -> bytes.addAndGet(event.payload().length));
        byte[] large = "x".repeat(8 << 20).getBytes(StandardCharsets.US_ASCII);
        List<TestRouter.Delivery> deliveries = new ArrayList<>();
        deliveries.add(router.deliver(Event.of("large").payload(large)));
        for (int i = 0; i < 5_000; i++) {
            deliveries.add(router.deliver(Event.of("k" + i % 100).payload(new byte[1])));
        }
        deliveries.forEach(delivery -> assertEquals(Outcome.Kind.DONE, delivery.outcome().kind()));
        assertEquals(large.length + 5_000, bytes.get());
    }

    /** A log's format writes a number of 1234 as 1,234 or 1.234, by the country. */
    @Test
    void numbersInTheLogAreText(TestRouter router) throws InterruptedException {
        BlockingQueue<String> lines = new LinkedBlockingQueue<>();
        Queue<Object> numbers = new ConcurrentLinkedQueue<>();
        CountDownLatch started = new CountDownLatch(1);
        router.start(event -> {
            started.countDown();
            Thread.sleep(TimeUnit.SECONDS.toMillis(WAIT_SECONDS));
        }, options -> options.logger(new TestLog((line, thrown, parameters) -> {
            Stream.of(parameters).filter(parameter -> parameter instanceof Number).forEach(numbers::add);
            lines.add(line);
        })));
        TestRouter.Delivery delivery = router.deliver(Event.of("k").attempt(1234));
        await(started);
        router.lose("k");
        assertEquals(Outcome.Kind.CANCELLED, delivery.outcome().kind());
        router.disconnect();
        List<String> seen = new ArrayList<>();
        while (seen.stream().noneMatch(line -> line.startsWith("no stream"))) {
            seen.add(take(lines));
        }
        assertTrue(seen.stream().anyMatch(line -> line.startsWith("handler cancelled")), seen.toString());
        assertEquals(List.of(), List.copyOf(numbers));
    }

    /** A CallFailureException is an answer to a caller, and an event has none. */
    @Test
    void anEventThatFailsAsACallIsLogged(TestRouter router) {
        Queue<String> lines = new ConcurrentLinkedQueue<>();
        router.start(event -> {
            throw new CallFailureException("no_stock", "none left");
        }, options -> options.logger(new TestLog((line, thrown, parameters) -> lines.add(line))));
        assertEquals(new Outcome(Outcome.Kind.RETRY, Duration.ZERO, "none left"), router.deliver(Event.of("k")).outcome());
        assertTrue(lines.stream().anyMatch(line -> line.startsWith("handler failed: message ") && line.contains("CallFailureException")), lines.toString());
    }
}
