package io.ringfence.junit5;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Server;
import io.grpc.Status;
import io.grpc.inprocess.InProcessChannelBuilder;
import io.grpc.inprocess.InProcessServerBuilder;
import io.grpc.stub.StreamObserver;
import io.ringfence.client.Event;
import io.ringfence.client.Handler;
import io.ringfence.client.Hooks;
import io.ringfence.client.KeyLostException;
import io.ringfence.client.Lane;
import io.ringfence.client.MessageId;
import io.ringfence.client.NotSentException;
import io.ringfence.client.RejectException;
import io.ringfence.client.Result;
import io.ringfence.client.RetryAfterException;
import io.ringfence.client.SendOptions;
import io.ringfence.client.Timer;
import io.ringfence.client.proto.LaneServiceGrpc;
import io.ringfence.client.proto.SendRequest;
import io.ringfence.client.proto.SendResponse;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntFunction;
import org.junit.jupiter.api.Test;

/** Timers of handlers, and events that a lane sends, against the router in memory. */
@RingfenceTest
class TimersTest {
    private static final long WAIT_SECONDS = 30;
    private static final int TIMERS_MAX = 100;

    /** What sets a timer: an event or a call. */
    private interface Timing {
        void after(Duration delay, String name, byte[] payload);
    }

    private static void setTwo(Timing of) {
        of.after(Duration.ofMillis(1500), "first", bytes("1"));
        of.after(Duration.ZERO, "", bytes("2"));
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static List<TestRouter.Sent> byId(TestRouter router) {
        List<TestRouter.Sent> sent = new ArrayList<>(router.sent());
        sent.sort(Comparator.comparing(TestRouter.Sent::id));
        return sent;
    }

    @Test
    void aTimer(TestRouter router) throws InterruptedException {
        BlockingQueue<Event> got = new LinkedBlockingQueue<>();
        router.start(event -> {
            if (event.timer().isPresent()) {
                got.add(event);
            } else {
                setTwo(event::after);
            }
        });
        Instant before = Instant.now();
        assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("k").messageId(new MessageId(1L << 62, 8, 3, 2))).outcome().kind());
        List<TestRouter.Sent> sent = byId(router); // DONE says that both are there
        assertEquals(2, sent.size());
        TestRouter.Sent first = sent.get(0);
        assertEquals(List.of("k", "first", "after/4611686018427387904:8:2:3/0", Duration.ofMillis(1500)), List.of(first.key(), first.name(), first.id(), first.after()));
        assertEquals(List.of("k", "", "after/4611686018427387904:8:2:3/1", Duration.ZERO), List.of(sent.get(1).key(), sent.get(1).name(), sent.get(1).id(), sent.get(1).after()));
        assertArrayEquals(bytes("2"), sent.get(1).payload());
        assertFalse(first.due().isBefore(before.plusMillis(1500 - 1)) || first.due().isAfter(Instant.now().plusMillis(1500)), first.due().toString());

        assertEquals(Outcome.Kind.DONE, first.deliver().outcome().kind());
        Event event = got.poll(WAIT_SECONDS, TimeUnit.SECONDS);
        assertEquals(Optional.of(new Timer("first", first.due())), event.timer());
        assertEquals(List.of("k", first.messageId()), List.of(event.key(), event.messageId()));
        assertArrayEquals(bytes("1"), event.payload());
        assertEquals(2, router.sent().size());
    }

    @Test
    void aHandlerThatFailsSetsNone(TestRouter router) {
        router.start(event -> {
            setTwo(event::after);
            if (event.attempt() == 1) {
                throw new RetryAfterException(Duration.ofSeconds(1), "later");
            }
            if (event.payloadSize() > 0) {
                throw new RejectException("no");
            }
        });
        TestRouter.Delivery failed = router.deliver(Event.of("k"));
        assertEquals(Outcome.Kind.RETRY, failed.outcome().kind());
        assertEquals(Outcome.Kind.REJECT, router.deliver(Event.of("k").payload("reject").attempt(2)).outcome().kind());
        assertEquals(List.of(), router.sent());
        TestRouter.Delivery again = failed.redeliver();
        assertEquals(Outcome.Kind.DONE, again.outcome().kind());
        assertEquals(2, router.sent().size());
        assertEquals(Outcome.Kind.DONE, again.redeliver().outcome().kind());
        assertEquals(2, router.sent().size(), "a second run sets the same timers");
        assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("k").attempt(2)).outcome().kind());
        assertEquals(4, router.sent().size(), "another event has timers of its own");
    }

    @Test
    void callsSetTimers(TestRouter router) {
        router.start(event -> { }, options -> options.call("do", call -> {
            setTwo(call::after);
            return bytes("r");
        }));
        for (int n = 1; n <= 2; n++) {
            assertArrayEquals(bytes("r"), router.call("k", "do", bytes("")).reply());
            Set<String> ids = new HashSet<>();
            router.sent().forEach(sent -> ids.add(sent.id()));
            assertEquals(2 * n, ids.size(), "each call has timers of its own");
        }
    }

    @Test
    void manyTimers(TestRouter router) {
        AtomicInteger refused = new AtomicInteger();
        router.start(event -> {
            for (int n = 0; n < TIMERS_MAX; n++) {
                event.after(Duration.ofMillis(n), "n-" + n, bytes(""));
            }
            try {
                event.after(Duration.ZERO, "", bytes(""));
            } catch (IllegalArgumentException e) {
                refused.incrementAndGet();
            }
            Thread.currentThread().interrupt(); // it is left behind, and does no harm
        });
        assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("k")).outcome().kind());
        Set<String> names = new HashSet<>();
        router.sent().forEach(sent -> names.add(sent.name()));
        assertEquals(TIMERS_MAX, names.size());
        assertEquals(TIMERS_MAX, router.sent().size());
        assertEquals(1, refused.get());
    }

    @Test
    void timerInThePastIsDueAtOnce(TestRouter router) {
        router.start(event -> event.after(Duration.ofMillis(-1), "past", bytes("")));
        assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("k")).outcome().kind());
        assertEquals(1, router.sent().size());
        assertFalse(router.sent().get(0).due().isAfter(Instant.now()));
    }

    @Test
    void badTimersFailTheEvent(TestRouter router) {
        router.start(event -> event.after(Duration.ofDays(366).plusMillis(1), "", bytes("")));
        assertEquals(Outcome.Kind.RETRY, router.deliver(Event.of("k")).outcome().kind());
        Event event = Event.of("k").build();
        event.after(Duration.ofDays(366), "é".repeat(64), new byte[1 << 20]);
        for (String name : List.of("n".repeat(129), "a\nb", "\ud800", "\ufffd", "\u2028", "\u00a0")) {
            assertThrows(IllegalArgumentException.class, () -> event.after(Duration.ZERO, name, bytes("")), name);
        }
        assertThrows(IllegalArgumentException.class, () -> event.after(Duration.ofDays(366).plusNanos(1), "n", bytes("")));
        assertThrows(IllegalArgumentException.class, () -> event.after(Duration.ZERO, "n", new byte[(1 << 20) + 1]));
        assertThrows(IllegalArgumentException.class, () -> SendOptions.NONE.after(Duration.ofDays(367)));
        assertThrows(IllegalArgumentException.class, () -> SendOptions.NONE.timeout(Duration.ZERO));
    }

    /** A server for workers of a router, whose Sends end as the test says: the nth, from 1, with a status, null for no answer. */
    private static final class Odd implements AutoCloseable {
        final AtomicInteger count = new AtomicInteger();
        final CountDownLatch begun = new CountDownLatch(1);
        private final String name = "odd-" + UUID.randomUUID();
        private final Server server;

        Odd(TestRouter router, IntFunction<Status> answer) throws Exception {
            server = InProcessServerBuilder.forName(name).addService(router.service()).addService(new LaneServiceGrpc.LaneServiceImplBase() {
                @Override
                public void send(SendRequest request, StreamObserver<SendResponse> out) {
                    Status status = answer.apply(count.incrementAndGet());
                    begun.countDown();
                    if (status == null) {
                        return;
                    }
                    if (!status.isOk()) {
                        out.onError(status.withDescription("as told").asRuntimeException());
                        return;
                    }
                    out.onNext(SendResponse.newBuilder().setMessageId("1:2:-1:-1").build());
                    out.onCompleted();
                }
            }).build().start();
        }

        void start(TestRouter router, Handler handler, Hooks hooks) {
            router.start(handler, options -> options.channels(() -> InProcessChannelBuilder.forName(name).build()).hooks(hooks).call("do", call -> {
                setTwo(call::after);
                return bytes("r");
            }));
        }

        @Override
        public void close() {
            server.shutdownNow();
        }
    }

    @Test
    void aSendThatFails() throws Exception {
        Map<Status, String> reasons = Map.of(
                Status.FAILED_PRECONDITION, "io.ringfence.client.NotSentException: the event was not published: FAILED_PRECONDITION: as told",
                Status.UNAVAILABLE, "io.ringfence.client.MaybeSentException: the event may have been published: UNAVAILABLE: as told");
        for (Map.Entry<Status, String> entry : reasons.entrySet()) {
            List<Object> finished = new CopyOnWriteArrayList<>();
            try (TestRouter router = new TestRouter(); Odd odd = new Odd(router, n -> entry.getKey())) {
                odd.start(router, event -> setTwo(event::after), new Hooks() {
                    @Override
                    public void finished(Event event, Result result) {
                        finished.add(result.kind().name());
                    }
                });
                assertEquals(new Outcome(Outcome.Kind.RETRY, Duration.ZERO, entry.getValue()), router.deliver(Event.of("k")).outcome());
                TestRouter.Delivery call = router.call("k", "do", bytes(""));
                assertEquals(new Outcome(Outcome.Kind.RETRY, Duration.ZERO, entry.getValue()), call.outcome());
                assertEquals(0, call.reply().length);
                assertEquals("", call.code());
            }
            assertEquals(List.of("RETRY", "RETRY"), finished);
        }
    }

    @Test
    void aSendInACrowd() throws Exception {
        try (TestRouter router = new TestRouter(); Odd odd = new Odd(router, n -> n <= 20 ? Status.RESOURCE_EXHAUSTED : Status.OK)) {
            odd.start(router, event -> setTwo(event::after), new Hooks() { });
            assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("k")).outcome().kind());
            assertEquals(22, odd.count.get());
        }
    }

    @Test
    void aLostKeyGivesSendsUp() throws Exception {
        for (Status status : new Status[] {null, Status.RESOURCE_EXHAUSTED}) {
            try (TestRouter router = new TestRouter(); Odd odd = new Odd(router, n -> status)) {
                odd.start(router, event -> setTwo(event::after), new Hooks() { });
                TestRouter.Delivery delivery = router.deliver(Event.of("k"));
                assertTrue(odd.begun.await(WAIT_SECONDS, TimeUnit.SECONDS));
                router.lose("k");
                assertEquals(Outcome.Kind.CANCELLED, delivery.outcome().kind());
            }
        }
    }

    @Test
    void aHandlerThatHasLostItsKeySetsNone(TestRouter router) {
        router.start(event -> {
            setTwo(event::after);
            router.expire();
            assertTrue(event.isCancelled());
        }, options -> options.call("do", call -> {
            setTwo(call::after);
            router.expire();
            return bytes("r");
        }));
        assertEquals(Outcome.Kind.CANCELLED, router.deliver(Event.of("k")).outcome().kind());
        TestRouter.Delivery call = router.call("k", "do", bytes(""));
        assertEquals(Outcome.Kind.CANCELLED, call.outcome().kind());
        assertEquals(0, call.reply().length);
        assertEquals(List.of(), router.sent());
    }

    /** A task that the handler has left behind is told that its timer is too late, also while those of the handler are being published. */
    @Test
    void aTimerIsNotSetWhileOthersArePublished(TestRouter router) throws Exception {
        BlockingQueue<Event> publishing = new LinkedBlockingQueue<>();
        CountDownLatch told = new CountDownLatch(1);
        try (Odd odd = new Odd(router, n -> {
            try {
                return told.await(WAIT_SECONDS, TimeUnit.SECONDS) ? Status.OK : Status.ABORTED;
            } catch (InterruptedException e) {
                return Status.ABORTED;
            }
        })) {
            odd.start(router, event -> {
                event.after(Duration.ZERO, "", bytes("in time"));
                publishing.add(event);
            }, new Hooks() {});
            TestRouter.Delivery delivery = router.deliver(Event.of("k"));
            Event event = publishing.poll(WAIT_SECONDS, TimeUnit.SECONDS);
            while (odd.count.get() == 0) {
                Thread.sleep(1);
            }
            assertThrows(KeyLostException.class, () -> event.after(Duration.ZERO, "", bytes("too late")));
            told.countDown();
            assertEquals(Outcome.Kind.DONE, delivery.outcome().kind());
        }
    }

    @Test
    void aLaneSends(TestRouter router) throws InterruptedException {
        Instant at = Instant.parse("2100-01-02T03:04:05.678Z");
        BlockingQueue<Event> got = new LinkedBlockingQueue<>();
        router.start(got::add);
        try (Lane lane = router.lane()) {
            SendOptions options = SendOptions.NONE.after(Duration.ofMillis(2500)).name("mine").id("order-8").property("a", "1").property("b", "2");
            MessageId id = lane.send("é", bytes("payload"), options);
            MessageId other = lane.send(new byte[] {(byte) 0xff}, bytes(""), SendOptions.NONE.at(at));
            assertEquals(id, lane.send("é", bytes("payload"), SendOptions.NONE.id("order-8")));
            List<TestRouter.Sent> sent = router.sent();
            assertEquals(List.of(id, other), sent.stream().map(TestRouter.Sent::messageId).toList());
            assertEquals(List.of("é", "mine", "order-8", Map.of("a", "1", "b", "2"), Duration.ofMillis(2500)),
                    List.of(sent.get(0).key(), sent.get(0).name(), sent.get(0).id(), sent.get(0).properties(), sent.get(0).after()));
            assertEquals(at, sent.get(1).due());
            assertEquals(Outcome.Kind.DONE, sent.get(0).deliver().outcome().kind());
            Event event = got.poll(WAIT_SECONDS, TimeUnit.SECONDS);
            assertEquals(Optional.of("1"), event.property("a"));
            assertEquals("mine", event.timer().orElseThrow().name());
            assertEquals(id, event.messageId());
            assertThrows(NotSentException.class, () -> lane.send("", bytes(""), SendOptions.NONE));
            assertThrows(NotSentException.class, () -> lane.send("k", bytes(""), SendOptions.NONE.name("a\nb")));
        }
    }
}
