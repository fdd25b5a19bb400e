package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import io.grpc.Server;
import io.grpc.Status;
import io.grpc.inprocess.InProcessChannelBuilder;
import io.grpc.inprocess.InProcessServerBuilder;
import io.grpc.stub.StreamObserver;
import io.ringfence.client.proto.AppServiceGrpc;
import io.ringfence.client.proto.Deliveries;
import io.ringfence.client.proto.Delivery;
import io.ringfence.client.proto.Hello;
import io.ringfence.client.proto.Limits;
import io.ringfence.client.proto.Pong;
import io.ringfence.client.proto.Result;
import io.ringfence.client.proto.ResultKind;
import io.ringfence.client.proto.Revoke;
import io.ringfence.client.proto.Welcome;
import io.ringfence.client.proto.WorkRequest;
import io.ringfence.client.proto.WorkResponse;
import java.io.IOException;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.ResourceBundle;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.logging.Level;
import java.util.logging.Logger;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** States of a real worker, whose turns do what the test says. */
class StateTest {
    private static final long WAIT_SECONDS = 120;
    private static final long LEASE = TimeUnit.HOURS.toNanos(1);
    private static final int PARTITION = 7;

    /** Kept, since the log of the JDK does not keep it. */
    private static final Logger LOG = Logger.getLogger("state-test");

    static {
        LOG.setLevel(Level.OFF);
    }

    private static final class Cart {}

    private static <T> T take(BlockingQueue<T> queue) throws InterruptedException {
        T item = queue.poll(WAIT_SECONDS, TimeUnit.SECONDS);
        assertTrue(item != null, "nothing came for " + WAIT_SECONDS + " s");
        return item;
    }

    /** What a handler does next. */
    private interface Step {
        /** Returns what the test gets; null: the handler returns. */
        Object in(Event event) throws Exception;
    }

    /** One delivery, and its handler. */
    private static final class Turn {
        private final BlockingQueue<Step> steps = new LinkedBlockingQueue<>();
        private final BlockingQueue<Object> answers = new LinkedBlockingQueue<>();
        private final BlockingQueue<ResultKind> results = new LinkedBlockingQueue<>();

        /** Does what the test says, whatever else happens. */
        void handle(Event event) throws Exception {
            while (true) {
                try {
                    Object answer = steps.take().in(event);
                    if (answer == null) {
                        return;
                    }
                    answers.add(answer);
                } catch (InterruptedException cancelled) {
                    answers.add("interrupted");
                }
            }
        }

        /** Whether the handler has to load its state. */
        boolean loads() throws InterruptedException {
            steps.add(event -> {
                boolean[] loaded = new boolean[1];
                event.state(Cart.class, () -> {
                    loaded[0] = true;
                    return new Cart();
                });
                return loaded[0];
            });
            return (Boolean) take(answers);
        }

        Event event() throws InterruptedException {
            steps.add(event -> event);
            return (Event) take(answers);
        }

        void isInterrupted() throws InterruptedException {
            assertEquals("interrupted", take(answers));
        }

        void ends() throws InterruptedException {
            steps.add(event -> null);
            assertEquals(ResultKind.RESULT_KIND_DONE, take(results));
        }

        void fails() throws InterruptedException {
            steps.add(event -> {
                throw new IOException("told to fail");
            });
            assertEquals(ResultKind.RESULT_KIND_RETRY, take(results));
        }
    }

    /** A router with one worker, and the clock of both. */
    private static final class Router extends AppServiceGrpc.AppServiceImplBase implements LeaseClock, AutoCloseable {
        final BlockingQueue<Hello> hellos = new LinkedBlockingQueue<>();
        final Map<Long, Turn> turns = new ConcurrentHashMap<>();
        private final BlockingQueue<StreamObserver<WorkResponse>> streams = new LinkedBlockingQueue<>();
        private final Server server;
        private final Worker worker;
        private StreamObserver<WorkResponse> stream; // guarded by this
        private StreamObserver<WorkResponse> broken; // guarded by this
        private long frames; // guarded by this
        private long results; // guarded by this
        private long deliveries; // guarded by this
        private volatile long now;
        private volatile Thread late; // it alone knows that the deadlines have passed

        Router(Consumer<Worker.Builder> options) throws IOException, InterruptedException {
            String name = "state-" + UUID.randomUUID();
            server = InProcessServerBuilder.forName(name).addService(this).build().start();
            Worker.Builder builder = Worker.builder(event -> turns.get(event.turn()).handle(event)).leaseClock(this).tokenFile(null).logger(System.getLogger(LOG.getName()))
                    .call("do", call -> {
                        turns.get(call.event.turn()).handle(call.event);
                        return null;
                    })
                    .schedule("s", Times.every(Duration.ofHours(1)), firing -> turns.get(firing.event.turn()).handle(firing.event))
                    .channels(() -> InProcessChannelBuilder.forName(name).build());
            options.accept(builder);
            worker = builder.start();
            connected();
        }

        Router() throws IOException, InterruptedException {
            this(options -> { });
        }

        private void connected() throws InterruptedException {
            StreamObserver<WorkResponse> next = take(streams);
            synchronized (this) {
                stream = next;
            }
        }

        @Override
        public long now() {
            return Thread.currentThread() == late ? now + LEASE : now;
        }

        @Override
        public StreamObserver<WorkRequest> work(StreamObserver<WorkResponse> out) {
            return new StreamObserver<>() {
                @Override
                public void onNext(WorkRequest frame) {
                    handle(frame, out);
                }

                @Override
                public void onError(Throwable gone) {}

                @Override
                public void onCompleted() {
                    out.onCompleted();
                }
            };
        }

        private synchronized void handle(WorkRequest frame, StreamObserver<WorkResponse> out) {
            if (out == broken) {
                return;
            }
            if (frame.hasHello()) {
                hellos.add(frame.getHello());
                frames = 0;
                results = 0;
                out.onNext(WorkResponse.newBuilder().setWelcome(Welcome.newBuilder().setVersion(1).setLimits(Limits.newBuilder().setPingIntervalMs(20))).build());
                streams.add(out);
            } else if (frame.hasPing()) {
                out.onNext(WorkResponse.newBuilder().setReceipt(results).setPong(Pong.newBuilder().setK(frame.getPing().getK()).setRemainingNs(LEASE)).build());
            } else if (frame.hasResults()) {
                results = frame.getResults().getNumber();
                for (Result result : frame.getResults().getResultsList()) {
                    turns.get(result.getDeliveryId()).results.add(result.getKind());
                }
                out.onNext(WorkResponse.newBuilder().setReceipt(results).build());
            }
        }

        /** Delivers an event of a key, as the next turn of any key. Its delivery id is its turn. */
        synchronized Turn deliver(String key, long generation, Consumer<Delivery.Builder> more) {
            long number = ++deliveries;
            Delivery.Builder delivery = Delivery.newBuilder().setDeliveryId(number).setTurn(number).setKey(ByteString.copyFromUtf8(key)).setPartition(PARTITION)
                    .setGeneration(generation).setAttempt(1);
            more.accept(delivery);
            Turn turn = new Turn();
            turns.put(number, turn);
            send(WorkResponse.newBuilder().setDeliveries(Deliveries.newBuilder().setNumber(++frames).addTokens(1).addDeliveries(delivery)));
            return turn;
        }

        Turn deliver(String key) {
            return deliver(key, 1, delivery -> { });
        }

        /** Delivers an event, whose handler asks for its state and ends. Returns whether it has loaded it. */
        boolean turnLoads(String key) throws InterruptedException {
            Turn turn = deliver(key);
            boolean loaded = turn.loads();
            turn.ends();
            return loaded;
        }

        synchronized void send(WorkResponse.Builder frame) {
            stream.onNext(frame.setReceipt(results).build());
        }

        void revoke(Revoke.Builder revoke) {
            send(WorkResponse.newBuilder().setRevoke(revoke));
        }

        /** Lets the deadlines of all handlers pass. The next Pong is good for later ones. */
        synchronized void deadlinesPass() {
            now += LEASE;
        }

        void breakStream() throws InterruptedException {
            synchronized (this) {
                broken = stream;
                stream.onError(Status.UNAVAILABLE.asRuntimeException());
            }
            connected();
        }

        @Override
        public void close() {
            worker.close();
            server.shutdownNow();
        }
    }

    @Test
    void theNextTurnGetsTheState() throws Exception {
        try (Router router = new Router()) {
            assertTrue(router.turnLoads("k"));
            assertFalse(router.turnLoads("k"));
            assertTrue(router.turnLoads("another"));
            assertFalse(router.turnLoads("k"));
            router.deliver("k").ends(); // it may have written something
            assertTrue(router.turnLoads("k"));
            Turn failed = router.deliver("k");
            assertFalse(failed.loads());
            failed.fails();
            assertTrue(router.turnLoads("k"));
            for (long generation : List.of(2L, 0L, 0L)) {
                Turn other = router.deliver("k", generation, delivery -> { });
                assertTrue(other.loads(), "the generation is " + generation);
                other.ends();
            }
        }
    }

    /** Events, calls, timers and firings of a key: each is a turn. */
    @Test
    void callsAndFiringsAreTurns() throws Exception {
        try (Router router = new Router()) {
            var timer = io.ringfence.client.proto.Timer.newBuilder().setName("s");
            Map<String, Consumer<Delivery.Builder>> kinds = new LinkedHashMap<>();
            kinds.put("a call", delivery -> delivery.setCall(io.ringfence.client.proto.Call.newBuilder().setMethod("do")));
            kinds.put("a timer", delivery -> delivery.setTimer(timer));
            kinds.put("a firing", delivery -> delivery.setTimer(timer.clone().setFiring(io.ringfence.client.proto.Firing.newBuilder())));
            kinds.put("an event", delivery -> { });
            Consumer<Delivery.Builder> before = kinds.get("an event");
            assertTrue(router.turnLoads("schedule/s"));
            for (Map.Entry<String, Consumer<Delivery.Builder>> kind : kinds.entrySet()) {
                Turn first = router.deliver("schedule/s", 1, before);
                assertFalse(first.loads());
                first.ends();
                Turn second = router.deliver("schedule/s", 1, kind.getValue());
                assertFalse(second.loads(), kind.getKey());
                second.ends();
                before = kind.getValue();
            }
            router.deliver("schedule/s", 1, kinds.get("a call")).ends();
            assertTrue(router.turnLoads("schedule/s"), "a call that has not asked has left a state");
            Turn unknown = router.deliver("schedule/s", 1, delivery -> delivery.setCall(io.ringfence.client.proto.Call.newBuilder().setMethod("none")));
            assertEquals(ResultKind.RESULT_KIND_NOT_STARTED, take(unknown.results));
        }
    }

    /** The router has no service that publishes timers: the answer is a RETRY, whatever the handler has done. */
    @Test
    void aTurnWhoseTimersAreNotPublishedHasFailed() throws Exception {
        try (Router router = new Router()) {
            Turn turn = router.deliver("k");
            assertTrue(turn.loads());
            turn.event().after(Duration.ZERO, "", new byte[0]);
            turn.steps.add(event -> null);
            assertEquals(ResultKind.RESULT_KIND_RETRY, take(turn.results));
            assertTrue(router.turnLoads("k"));
        }
    }

    /** A Revoke of all partitions, or of its own, ends the state of a key, and one of others does not. */
    @TestFactory
    Stream<DynamicTest> whatIsTakenBack() {
        record Case(String name, Revoke.Builder revoke, boolean loads) {}

        return Stream.of(
                new Case("all partitions", Revoke.newBuilder().setAll(true), true),
                new Case("its own", Revoke.newBuilder().addPartitions(3).addPartitions(PARTITION), true),
                new Case("another partition", Revoke.newBuilder().addPartitions(8), false),
                new Case("one delivery", Revoke.newBuilder().addDeliveryIds(1), false)).map(one -> DynamicTest.dynamicTest(one.name, () -> {
                    try (Router router = new Router()) {
                        assertTrue(router.turnLoads("k"));
                        router.revoke(one.revoke);
                        assertEquals(one.loads, router.turnLoads("k"));
                    }
                }));
    }

    /** A handler whose partition is taken back leaves nothing that it has asked for before. */
    @Test
    void aRunningHandlerWhosePartitionIsTakenBack() throws Exception {
        try (Router router = new Router()) {
            Turn running = router.deliver("k");
            assertTrue(running.loads());
            router.revoke(Revoke.newBuilder().addPartitions(PARTITION));
            assertTrue(router.turnLoads("another")); // the Revoke has come
            running.ends();
            assertTrue(router.turnLoads("k"));
        }
    }

    @Test
    void aHandlerThatHasLostItsKeyLeavesNothing() throws Exception {
        try (Router router = new Router()) {
            Turn lost = router.deliver("k");
            assertTrue(lost.loads());
            router.deadlinesPass();
            lost.isInterrupted();
            Turn second = router.deliver("k");
            assertTrue(second.loads(), "the next turn got the state of a handler that still runs");
            assertTrue(lost.loads(), "the handler that goes on got the state of the next turn");
            second.ends();
            for (int i = 0; i < 3; i++) {
                assertTrue(router.turnLoads("k"), "the handler that goes on may have written since the turn before had loaded");
            }
            Turn last = router.deliver("k");
            assertTrue(last.loads());
            lost.ends();
            last.ends();
            assertTrue(router.turnLoads("k"), "the handler that went on may have written after that turn had read");
            assertFalse(router.turnLoads("k"));
        }
    }

    /** It is noticed only when the next turn has loaded its state. */
    @Test
    void aHandlerThatIsNoticedLate() throws Exception {
        try (Router router = new Router()) {
            Turn lost = router.deliver("k");
            lost.event(); // it runs
            Turn second = router.deliver("k");
            assertTrue(second.loads());
            router.revoke(Revoke.newBuilder().addDeliveryIds(1).setTimedOut(true));
            lost.isInterrupted();
            second.ends();
            assertTrue(router.turnLoads("k"), "the handler may have written since the second turn had loaded");
            lost.ends();
        }
    }

    /** It loses its key after its stream has ended. */
    @Test
    void aHandlerOfAnEarlierStreamGoesOnForFurtherTurns() throws Exception {
        try (Router router = new Router()) {
            Turn lost = router.deliver("k");
            lost.event(); // it runs
            router.breakStream();
            Turn second = router.deliver("k");
            assertTrue(second.loads());
            router.deadlinesPass();
            lost.isInterrupted();
            second.isInterrupted();
            second.ends();
            for (int i = 0; i < 3; i++) {
                assertTrue(router.turnLoads("k"));
            }
            lost.steps.add(event -> null);
            long end = System.nanoTime() + Duration.ofSeconds(30).toNanos();
            boolean kept = false;
            while (!kept && System.nanoTime() - end < 0) { // nothing tells when the handler has returned
                kept = !router.turnLoads("k");
            }
            assertTrue(kept, "states are not kept again");
        }
    }

    /** It may have written something before it lost the key, though it has not asked for the state. */
    @Test
    void aTurnDoesNotGetTheStateOfTheLastButOne() throws Exception {
        try (Router router = new Router()) {
            assertTrue(router.turnLoads("k"));
            Turn lost = router.deliver("k");
            lost.event(); // it runs
            router.deadlinesPass();
            lost.isInterrupted();
            assertTrue(router.turnLoads("k"));
            lost.ends();
        }
    }

    /** The handler succeeds, and nobody has noticed yet that its deadline has passed: it may have written after a turn elsewhere has read. */
    @Test
    void theClockIsAskedAtTheEnd() throws Exception {
        try (Router router = new Router()) {
            Turn late = router.deliver("k");
            assertTrue(late.loads());
            late.steps.add(event -> {
                router.deadlinesPass();
                return null;
            });
            assertEquals(ResultKind.RESULT_KIND_DONE, take(late.results));
            assertTrue(router.turnLoads("k"));
        }
    }

    /** Nobody has noticed before that its deadline has passed. Its state is not kept, and the log does not say that it was cancelled. */
    @Test
    void aHandlerThatReturnsLateWasNotCancelled() throws Exception {
        List<String> log = new CopyOnWriteArrayList<>();
        System.Logger logger = new System.Logger() {
            @Override
            public String getName() {
                return "late";
            }

            @Override
            public boolean isLoggable(System.Logger.Level level) {
                return true;
            }

            @Override
            public void log(System.Logger.Level level, ResourceBundle bundle, String message, Throwable thrown) {
                log.add(message);
            }

            @Override
            public void log(System.Logger.Level level, ResourceBundle bundle, String format, Object... values) {
                log.add(format);
            }
        };
        try (Router router = new Router(options -> options.logger(logger))) {
            Turn late = router.deliver("k");
            assertTrue(late.loads());
            late.steps.add(event -> {
                router.late = Thread.currentThread();
                return null;
            });
            assertEquals(ResultKind.RESULT_KIND_DONE, take(late.results));
            router.late = null;
            assertTrue(router.turnLoads("k"));
        }
        assertEquals(List.of(), log.stream().filter(line -> line.startsWith("handler cancelled")).toList());
    }

    /** Its answer is DONE, but it may have done its work too late. */
    @Test
    void aHandlerThatIsCancelledLeavesNothing() throws Exception {
        try (Router router = new Router()) {
            assertTrue(router.turnLoads("k"));
            Turn overlong = router.deliver("k");
            assertFalse(overlong.loads());
            router.revoke(Revoke.newBuilder().addDeliveryIds(2).setTimedOut(true));
            overlong.isInterrupted();
            overlong.ends();
            assertTrue(router.turnLoads("k"));
        }
    }

    /** Not even if the router says the same of both, and no memory is held by streams that have ended. */
    @Test
    void anotherStreamHasOtherStates() throws Exception {
        try (Router router = new Router()) {
            assertTrue(router.turnLoads("k"));
            Turn running = router.deliver("running");
            assertTrue(running.loads());
            Event event = running.event();
            assertEquals(2, event.stream.states.size());
            router.breakStream();
            assertEquals(0, event.stream.states.size());
            assertTrue(router.turnLoads("k"));
            assertFalse(router.turnLoads("k"));
            running.steps.add(done -> null);
            assertTrue(router.turnLoads("running"));
            assertEquals(0, event.stream.states.size());
        }
    }

    /** It may have written after the turn on the next stream had loaded. */
    @Test
    void aHandlerOfAnEarlierStreamEndsDuringATurn() throws Exception {
        try (Router router = new Router()) {
            Turn lost = router.deliver("k");
            lost.event(); // it runs
            router.breakStream();
            Turn second = router.deliver("k");
            assertTrue(second.loads());
            States present = second.event().stream.states;
            assertEquals(1, present.size());
            lost.steps.add(event -> null);
            long end = System.nanoTime() + Duration.ofSeconds(30).toNanos();
            while (present.any() && System.nanoTime() - end < 0) {
                Thread.sleep(1);
            }
            second.ends();
            assertTrue(router.turnLoads("k"));
            assertFalse(router.turnLoads("k"));
        }
    }

    @Test
    void theWorkerDeclaresState() throws Exception {
        try (Router router = new Router()) {
            assertTrue(router.hellos.take().getCapabilitiesList().contains("state"));
        }
        try (Router router = new Router(options -> options.stateMax(0))) {
            assertFalse(router.hellos.take().getCapabilitiesList().contains("state"));
            assertTrue(router.turnLoads("k"));
            assertTrue(router.turnLoads("k"));
        }
    }

    @Test
    void asManyKeysAsTheOptionSays() throws Exception {
        try (Router router = new Router(options -> options.stateMax(1))) {
            assertTrue(router.turnLoads("a"));
            assertFalse(router.turnLoads("a"));
            assertTrue(router.turnLoads("b"));
            assertTrue(router.turnLoads("a"));
        }
    }
}
