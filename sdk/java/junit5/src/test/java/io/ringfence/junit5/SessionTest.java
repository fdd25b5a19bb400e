package io.ringfence.junit5;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import io.grpc.BindableService;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Server;
import io.grpc.ServerBuilder;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerCredentials;
import io.grpc.ServerInterceptor;
import io.grpc.ServerInterceptors;
import io.grpc.Status;
import io.grpc.TlsChannelCredentials;
import io.grpc.TlsServerCredentials;
import io.grpc.inprocess.InProcessChannelBuilder;
import io.grpc.inprocess.InProcessServerBuilder;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.netty.shaded.io.netty.channel.ChannelOption;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollServerDomainSocketChannel;
import io.grpc.netty.shaded.io.netty.channel.unix.DomainSocketAddress;
import io.grpc.stub.StreamObserver;
import io.ringfence.client.Event;
import io.ringfence.client.Fence;
import io.ringfence.client.Hooks;
import io.ringfence.client.KeyLostException;
import io.ringfence.client.MessageId;
import io.ringfence.client.RejectException;
import io.ringfence.client.RingfenceException;
import io.ringfence.client.Times;
import io.ringfence.client.Worker;
import io.ringfence.client.proto.AppServiceGrpc;
import io.ringfence.client.proto.Deliveries;
import io.ringfence.client.proto.Delivery;
import io.ringfence.client.proto.GoAway;
import io.ringfence.client.proto.Hello;
import io.ringfence.client.proto.Welcome;
import io.ringfence.client.proto.WorkRequest;
import io.ringfence.client.proto.WorkResponse;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.logging.Level;
import java.util.logging.Logger;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.condition.EnabledOnOs;
import org.junit.jupiter.api.condition.OS;
import org.junit.jupiter.api.io.TempDir;

/** How sessions begin and end, over real sockets and with routers that refuse. */
class SessionTest {
    private static final long WAIT_SECONDS = 30;

    /** gRPC's servers log the connections that the tests break. Kept, since the log of the JDK does not keep it. */
    private static final Logger GRPC = Logger.getLogger("io.grpc.netty.shaded.io.grpc.netty.NettyServerTransport");

    static {
        GRPC.setLevel(Level.OFF);
    }

    private static <T> T take(BlockingQueue<T> queue) throws InterruptedException {
        T item = queue.poll(WAIT_SECONDS, TimeUnit.SECONDS);
        assertTrue(item != null, "nothing came for " + WAIT_SECONDS + " s");
        return item;
    }

    private static final Event SENT = Event.of(new byte[] {'u', (byte) 0xff}).payload("payload").topic("persistent://public/default/orders")
            .property("source", "web").property("TraceParent", "00-1-2-01").messageId(new MessageId(7, 8, -1, 3))
            .publishTime(Instant.ofEpochMilli(1_763_000_000_123L)).eventTime(Instant.ofEpochMilli(5)).attempt(3).redelivery(2)
            .fence(new Fence(1L << 60, 1L << 40)).schemaVersion(new byte[] {4}).build();

    private static void handle(Event event) {
        List<Object> got = fields(event);
        if (!got.equals(fields(SENT))) {
            throw new RejectException("got " + got);
        }
    }

    private static List<Object> fields(Event event) {
        return List.of(event.key(), event.keyBytes()[1], new String(event.payload()), event.topic(), event.properties(), event.messageId(),
                event.publishTime(), event.eventTime(), event.attempt(), event.redelivery(), event.fence(), event.fence().toString(), event.fencingToken(),
                event.turn(), event.traceparent(), event.schemaVersion().orElseThrow()[0]);
    }

    /** Rule 8: the fence, and all other fields, pass unchanged over every kind of connection. */
    private static void passes(TestRouter router, String endpoint) {
        Worker.Builder options = Worker.builder(SessionTest::handle);
        router.connect(options);
        try (Worker worker = options.channels(null).endpoint(endpoint).start()) {
            assertEquals(new Outcome(Outcome.Kind.DONE, Duration.ZERO, ""), router.deliver(SENT).outcome());
        }
    }

    @Test
    void memory() {
        try (TestRouter router = new TestRouter()) {
            router.start(SessionTest::handle);
            assertEquals(new Outcome(Outcome.Kind.DONE, Duration.ZERO, ""), router.deliver(SENT).outcome());
        }
    }

    @Test
    void tcp() throws IOException {
        try (TestRouter router = new TestRouter()) {
            Server server = ServerBuilder.forPort(0).addService(router.service()).build().start();
            passes(router, "127.0.0.1:" + server.getPort());
            passes(router, "localhost:" + server.getPort());
            server.shutdownNow();
        }
    }

    @Test
    @EnabledOnOs(OS.LINUX)
    void unixSockets(@TempDir Path folder) throws IOException {
        Path socket = folder.resolve("s");
        EpollEventLoopGroup loop = new EpollEventLoopGroup(1);
        try (TestRouter router = new TestRouter()) {
            Server server = NettyServerBuilder.forAddress(new DomainSocketAddress(socket.toString())).channelType(EpollServerDomainSocketChannel.class)
                    .withChildOption(ChannelOption.SO_KEEPALIVE, null) // as in Channels
                    .bossEventLoopGroup(loop).workerEventLoopGroup(loop).addService(router.service()).build().start();
            passes(router, "unix://" + socket);
            passes(router, "unix:" + socket);
            server.shutdownNow();
        } finally {
            loop.shutdownGracefully(0, 1, TimeUnit.SECONDS);
        }
    }

    /** The token is read for each stream, and sent without white space around it. */
    @Test
    void theTokenIsReadForEachStream(@TempDir Path folder) throws Exception {
        BlockingQueue<String> tokens = new LinkedBlockingQueue<>();
        ServerInterceptor reader = new ServerInterceptor() {
            @Override
            public <Q, R> ServerCall.Listener<Q> interceptCall(ServerCall<Q, R> call, Metadata headers, ServerCallHandler<Q, R> next) {
                tokens.add(String.valueOf(headers.get(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER))));
                return next.startCall(call, headers);
            }
        };
        String name = UUID.randomUUID().toString();
        BlockingQueue<String> failures = new LinkedBlockingQueue<>();
        BlockingQueue<Boolean> connections = new LinkedBlockingQueue<>();
        Path file = folder.resolve("token");
        Files.writeString(file, " first\n");
        try (TestRouter router = new TestRouter()) {
            Server server = InProcessServerBuilder.forName(name).addService(ServerInterceptors.intercept(router.service(), reader)).build().start();
            router.start(event -> { }, options -> options.tokenFile(file).hooks(failuresTo(failures)).ready(up -> {
                if (up) {
                    connections.add(true);
                }
            }).channels(() -> InProcessChannelBuilder.forName(name).build()));
            assertEquals("Bearer first", take(tokens));
            take(connections);
            Files.writeString(file, "second");
            router.disconnect();
            assertTrue(take(failures).startsWith("BROKEN"));
            assertEquals("Bearer second", take(tokens));
            take(connections);
            Files.writeString(file, "\n");
            router.disconnect();
            assertTrue(take(failures).startsWith("BROKEN"));
            assertEquals("UNAUTHENTICATED: no valid token: the token file " + file + " is empty", take(failures));
            Files.delete(file);
            for (String why = take(failures); !why.contains("cannot be read"); why = take(failures)) {
                assertTrue(why.contains("is empty"), why);
            }
            Files.writeString(file, "third");
            String next = take(tokens);
            assertEquals("Bearer third", next, "there is no attempt without a token");
            server.shutdownNow();
        }
    }

    private static Hooks failuresTo(BlockingQueue<String> failures) {
        return new Hooks() {
            @Override
            public void disconnected(RingfenceException failure) {
                if (failure != null) {
                    failures.add(failure.kind() + ": " + failure.getMessage());
                }
            }
        };
    }

    /** A router that does one thing to each stream, after its Hello. */
    private static final class OneThing extends AppServiceGrpc.AppServiceImplBase {
        private final BlockingQueue<Hello> hellos = new LinkedBlockingQueue<>();
        private final Consumer<StreamObserver<WorkResponse>> thing;

        OneThing(Consumer<StreamObserver<WorkResponse>> thing) {
            this.thing = thing;
        }

        @Override
        public StreamObserver<WorkRequest> work(StreamObserver<WorkResponse> out) {
            return new StreamObserver<>() {
                @Override
                public void onNext(WorkRequest frame) {
                    if (frame.hasHello()) {
                        hellos.add(frame.getHello());
                        thing.accept(out);
                    }
                }

                @Override
                public void onError(Throwable failure) {}

                @Override
                public void onCompleted() {
                    out.onCompleted();
                }
            };
        }
    }

    private static Consumer<StreamObserver<WorkResponse>> fails(Status status) {
        Status described = status.getDescription() == null ? status.withDescription("the reason") : status;
        return out -> out.onError(described.asRuntimeException());
    }

    private static WorkResponse welcome(int version) {
        return WorkResponse.newBuilder().setWelcome(Welcome.newBuilder().setVersion(version)).build();
    }

    /** Each end of a session has its kind, and the worker dials again after all of them. */
    @TestFactory
    Stream<DynamicTest> endsOfSessions() {
        Map<String, Consumer<StreamObserver<WorkResponse>>> ends = Map.of(
                "UNREACHABLE", fails(Status.UNAVAILABLE), "UNAUTHENTICATED", fails(Status.UNAUTHENTICATED), "VERSION", fails(Status.FAILED_PRECONDITION),
                "TOO_MANY_WORKERS", fails(Status.RESOURCE_EXHAUSTED), "REFUSED", fails(Status.INVALID_ARGUMENT),
                "VERSION ", out -> out.onNext(welcome(2)),
                "BROKEN", out -> {
                    out.onNext(welcome(1));
                    fails(Status.INVALID_ARGUMENT).accept(out);
                },
                "BROKEN: the session broke: CANCELLED: the router sent a receipt for Results frame 7, but only 0 were sent", out -> { // no result would follow it
                    out.onNext(welcome(1));
                    out.onNext(WorkResponse.newBuilder().setReceipt(7).build());
                },
                "BROKEN: the session broke: CANCELLED: deliveries without a number", out -> { // no receipt could tell the router that they have come
                    out.onNext(welcome(1));
                    out.onNext(WorkResponse.newBuilder().setDeliveries(Deliveries.newBuilder().addDeliveries(Delivery.newBuilder().setDeliveryId(1))).build());
                },
                "GO_AWAY", out -> {
                    out.onNext(welcome(1));
                    out.onNext(WorkResponse.newBuilder().setGoAway(GoAway.newBuilder().setReason("stops")).build());
                    fails(Status.UNAVAILABLE).accept(out);
                });
        return ends.entrySet().stream().map(end -> DynamicTest.dynamicTest(end.getKey(), () -> {
            OneThing router = new OneThing(end.getValue());
            BlockingQueue<String> failures = new LinkedBlockingQueue<>();
            try (Running running = Running.beside(router, options -> options.hooks(failuresTo(failures)).name("w").maxInFlight(9))) {
                Hello hello = take(router.hellos);
                assertEquals("w", hello.getWorker());
                assertEquals(9, hello.getMaxInFlight());
                assertTrue(hello.getSdk().startsWith("ringfence-java/"), hello.getSdk());
                assertTrue(hello.getCapabilitiesList().contains("conformant"));
                String failure = take(failures);
                assertTrue(failure.startsWith(end.getKey().contains(":") ? end.getKey() : end.getKey().trim() + ":"), failure);
                take(router.hellos); // it has dialed again
            }
        }));
    }

    private static Worker.Builder withSchedule(Worker.Builder options) {
        return options.schedule("report", Times.cron("0 25 * * *", "Europe/Berlin"), firing -> { });
    }

    private static final Status WRONG = Status.INVALID_ARGUMENT.withDescription("app: schedule \"report\": hour = 25\nand more");

    /** A schedule that the router refuses would be refused again: the worker says what is wrong with it, and ends. */
    @Test
    void aRefusedScheduleEndsTheWorker() throws Exception {
        OneThing refusing = new OneThing(fails(WRONG));
        BlockingQueue<String> failures = new LinkedBlockingQueue<>();
        BlockingQueue<String> lines = new LinkedBlockingQueue<>();
        BlockingQueue<Boolean> ready = new LinkedBlockingQueue<>();
        TestLog log = new TestLog((line, thrown, parameters) -> lines.add(line));
        String name = UUID.randomUUID().toString();
        Server server = InProcessServerBuilder.forName(name).addService(refusing).build().start();
        try (TestRouter quiet = new TestRouter()) {
            Worker.Builder options = withSchedule(quiet.worker(event -> { })).hooks(failuresTo(failures)).ready(ready::add).logger(log)
                    .channels(() -> InProcessChannelBuilder.forName(name).build());
            RingfenceException refused = assertThrows(RingfenceException.class, options::run);
            assertEquals(RingfenceException.Kind.REFUSED, refused.kind());
            String says = "the router refused the session: INVALID_ARGUMENT: app: schedule \"report\": hour = 25; and more";
            assertEquals(says, refused.getMessage());
            assertEquals(List.of("REFUSED: " + says), List.copyOf(failures));
        }
        assertEquals(List.of(false), List.copyOf(ready));
        assertTrue(lines.contains("the router at {0} refuses a schedule: this worker ends: {1}"), lines.toString());
        Hello hello = take(refusing.hellos);
        assertEquals(1, hello.getSchedulesCount());
        assertEquals("report", hello.getSchedules(0).getName());
        assertEquals(0, refusing.hellos.size(), "it has dialed again");
        server.shutdownNow();
    }

    /** After any other end of a session a worker with schedules dials again. */
    @TestFactory
    Stream<DynamicTest> otherEndsEndNoWorkerWithSchedules() {
        Map<String, Consumer<StreamObserver<WorkResponse>>> ends = Map.of("TOO_MANY_WORKERS:", fails(Status.RESOURCE_EXHAUSTED),
                "REFUSED:", fails(Status.INVALID_ARGUMENT.withDescription("app: schedule \"other\": hour = 25")), "BROKEN:", out -> {
            out.onNext(welcome(1));
            fails(WRONG).accept(out);
        });
        return ends.entrySet().stream().map(end -> DynamicTest.dynamicTest(end.getKey(), () -> {
            OneThing router = new OneThing(end.getValue());
            BlockingQueue<String> failures = new LinkedBlockingQueue<>();
            try (Running running = Running.beside(router, options -> withSchedule(options).hooks(failuresTo(failures)))) {
                take(router.hellos);
                String failure = take(failures);
                assertTrue(failure.startsWith(end.getKey()), failure);
                take(router.hellos); // it has dialed again
            }
        }));
    }

    /** A handler of an earlier session may be running when the next router refuses the schedule. */
    @Test
    void aRefusedScheduleLetsHandlersEnd() throws Exception {
        String first = UUID.randomUUID().toString();
        String second = UUID.randomUUID().toString();
        AtomicReference<String> next = new AtomicReference<>(first);
        BlockingQueue<String> failures = new LinkedBlockingQueue<>();
        BlockingQueue<Boolean> cancelled = new LinkedBlockingQueue<>();
        CountDownLatch started = new CountDownLatch(1);
        CountDownLatch release = new CountDownLatch(1);
        Server refusing = InProcessServerBuilder.forName(second).addService(new OneThing(fails(WRONG))).build().start();
        try (TestRouter router = new TestRouter()) {
            Server server = InProcessServerBuilder.forName(first).addService(router.service()).build().start();
            Worker worker = withSchedule(router.worker(event -> {
                started.countDown();
                assertTrue(release.await(WAIT_SECONDS, TimeUnit.SECONDS));
                cancelled.add(event.isCancelled());
            })).hooks(failuresTo(failures)).drainGrace(Duration.ofMinutes(5)).channels(() -> InProcessChannelBuilder.forName(next.get()).build()).start();
            router.deliver(Event.of("k"));
            assertTrue(started.await(WAIT_SECONDS, TimeUnit.SECONDS));
            next.set(second);
            router.disconnect();
            assertTrue(take(failures).startsWith("BROKEN"));
            assertTrue(take(failures).startsWith("REFUSED"));
            assertFalse(worker.awaitEnd(Duration.ofMillis(100)), "it has not waited for its handler");
            release.countDown();
            assertEquals(false, take(cancelled));
            assertTrue(worker.awaitEnd(Duration.ofSeconds(WAIT_SECONDS)));
            assertEquals(RingfenceException.Kind.REFUSED, assertThrows(RingfenceException.class, worker::close).kind());
            server.shutdownNow();
        }
        refusing.shutdownNow();
    }

    /** A router whose settings are wrong keeps no worker away for weeks. */
    @Test
    void goAwayKeepsTheWorkerAwayForAMinuteAtMost() throws Exception {
        BlockingQueue<String> lines = new LinkedBlockingQueue<>();
        TestLog log = new TestLog((line, thrown, parameters) -> {
            if (line.startsWith("no stream")) {
                lines.add(String.valueOf(parameters[2]));
            }
        });
        OneThing router = new OneThing(out -> {
            out.onNext(welcome(1));
            out.onNext(WorkResponse.newBuilder().setGoAway(GoAway.newBuilder().setRetryAfterMs(-1)).build());
            fails(Status.UNAVAILABLE).accept(out);
        });
        try (Running running = Running.beside(router, options -> options.logger(log))) {
            assertEquals("60000", take(lines));
        }
    }

    /** A router that ends each session right after its Welcome is not asked twenty times a second. */
    @Test
    void sessionsThatDoNotLastAreFurtherAndFurtherApart() throws Exception {
        BlockingQueue<Long> pauses = new LinkedBlockingQueue<>();
        TestLog log = new TestLog((line, thrown, parameters) -> {
            if (line.startsWith("no stream")) {
                pauses.add(Long.parseLong((String) parameters[2]));
            }
        });
        OneThing router = new OneThing(out -> {
            out.onNext(welcome(1));
            fails(Status.UNAVAILABLE).accept(out);
        });
        try (Running running = Running.beside(router, options -> options.logger(log))) {
            for (int i = 0; i < 4; i++) {
                take(pauses);
            }
            long fifth = take(pauses);
            assertTrue(fifth >= 400, fifth + " ms");
        }
    }

    /** A worker beside a router in memory. */
    private record Running(Server server, Worker worker) implements AutoCloseable {
        static Running beside(BindableService router, Consumer<Worker.Builder> options) throws IOException {
            String name = UUID.randomUUID().toString();
            Server server = InProcessServerBuilder.forName(name).addService(router).build().start();
            try (TestRouter quiet = new TestRouter()) { // for its log
                Worker.Builder builder = quiet.worker(event -> { });
                options.accept(builder);
                return new Running(server, builder.channels(() -> InProcessChannelBuilder.forName(name).build()).start());
            }
        }

        @Override
        public void close() {
            worker.close();
            server.shutdownNow();
        }
    }

    /** An Error, such as that of a class of another release of gRPC, ends an attempt to connect, or a session, as any exception does: the worker dials again. */
    @TestFactory
    Stream<DynamicTest> errorsEndNoWorker() {
        Map<String, Integer> faults = Map.of("UNREACHABLE: cannot reach the router: java.lang.NoSuchMethodError: planted", 0, "BROKEN: ", 4);
        return faults.entrySet().stream().map(fault -> DynamicTest.dynamicTest(fault.getKey(), () -> {
            BlockingQueue<String> failures = new LinkedBlockingQueue<>();
            BlockingQueue<Boolean> ready = new LinkedBlockingQueue<>();
            String name = UUID.randomUUID().toString();
            AtomicInteger steps = new AtomicInteger(fault.getValue()); // the channel is made, and then frames are sent
            Runnable step = () -> {
                if (steps.getAndDecrement() == 0) {
                    throw new NoSuchMethodError("planted");
                }
            };
            ClientInterceptor failing = new ClientInterceptor() {
                @Override
                public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, CallOptions options, Channel next) {
                    return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
                        @Override
                        public void sendMessage(Q frame) {
                            step.run();
                            super.sendMessage(frame);
                        }
                    };
                }
            };
            try (TestRouter router = new TestRouter()) {
                Server server = InProcessServerBuilder.forName(name).addService(router.service()).build().start();
                router.start(event -> { }, options -> options.hooks(failuresTo(failures)).ready(ready::add).channels(() -> {
                    step.run();
                    return InProcessChannelBuilder.forName(name).intercept(failing).build();
                }));
                String failure = take(failures);
                assertTrue(failure.startsWith(fault.getKey()), failure);
                while (take(ready)) { } // it was told
                assertTrue(take(ready));
                assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("k")).outcome().kind());
                server.shutdownNow();
            }
        }));
    }

    /** While a frame is being written, reports of progress gather: those of one handler are one, and leave room for another's. */
    @Test
    void manyReportsOfOneHandlerLeaveRoomForAnother() throws Exception {
        BlockingQueue<List<Long>> reports = new LinkedBlockingQueue<>();
        CountDownLatch written = new CountDownLatch(1);
        ClientInterceptor slow = new ClientInterceptor() {
            @Override
            public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, CallOptions options, Channel next) {
                return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
                    @Override
                    public void sendMessage(Q frame) {
                        if (frame instanceof WorkRequest request && request.hasProgress()) {
                            reports.add(request.getProgress().getDeliveryIdsList());
                            try {
                                assertTrue(written.await(WAIT_SECONDS, TimeUnit.SECONDS));
                            } catch (InterruptedException e) {
                                throw new AssertionError(e);
                            }
                        }
                        super.sendMessage(frame);
                    }
                };
            }
        };
        String name = UUID.randomUUID().toString();
        BlockingQueue<Event> running = new LinkedBlockingQueue<>();
        CountDownLatch release = new CountDownLatch(1);
        try (TestRouter router = new TestRouter()) {
            Server server = InProcessServerBuilder.forName(name).addService(router.service()).build().start();
            router.start(event -> {
                running.add(event);
                assertTrue(release.await(WAIT_SECONDS, TimeUnit.SECONDS));
            }, options -> options.maxInFlight(2).channels(() -> InProcessChannelBuilder.forName(name).intercept(slow).build()));
            List<TestRouter.Delivery> deliveries = List.of(router.deliver(Event.of("a")), router.deliver(Event.of("b")));
            Event loud = take(running);
            Event quiet = take(running);
            Thread writer = new Thread(loud::progress);
            writer.start();
            assertEquals(1, take(reports).size());
            for (int i = 0; i < 10; i++) {
                loud.progress(); // waits for the writer, as the next one does
            }
            quiet.progress();
            written.countDown();
            List<Long> gathered = take(reports);
            assertEquals(2, gathered.size(), gathered.toString());
            assertEquals(2, Set.copyOf(gathered).size(), gathered.toString());
            writer.join();
            release.countDown();
            deliveries.forEach(delivery -> assertEquals(Outcome.Kind.DONE, delivery.outcome().kind()));
            server.shutdownNow();
        }
    }

    /** A handler that reports faster than frames are written holds up neither the results of others nor the thread that writes. */
    @Test
    void reportsWithoutEndLeaveRoomForResults() throws Exception {
        int most = 500;
        AtomicInteger reports = new AtomicInteger();
        AtomicReference<Event> loud = new AtomicReference<>();
        ClientInterceptor faster = new ClientInterceptor() {
            @Override
            public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, CallOptions options, Channel next) {
                return new SimpleForwardingClientCall<>(next.newCall(method, options)) {
                    @Override
                    public void sendMessage(Q frame) {
                        super.sendMessage(frame);
                        if (frame instanceof WorkRequest request && request.hasProgress() && reports.incrementAndGet() < most) {
                            loud.get().progress(); // the next report is there before the sender looks again
                        }
                    }
                };
            }
        };
        String name = UUID.randomUUID().toString();
        CountDownLatch running = new CountDownLatch(1);
        CountDownLatch release = new CountDownLatch(1);
        try (TestRouter router = new TestRouter()) {
            Server server = InProcessServerBuilder.forName(name).addService(router.service()).build().start();
            router.start(event -> {
                if (event.key().equals("loud")) {
                    loud.set(event);
                    running.countDown();
                    assertTrue(release.await(WAIT_SECONDS, TimeUnit.SECONDS));
                } else {
                    loud.get().progress();
                }
            }, options -> options.channels(() -> InProcessChannelBuilder.forName(name).intercept(faster).build()));
            TestRouter.Delivery first = router.deliver(Event.of("loud"));
            assertTrue(running.await(WAIT_SECONDS, TimeUnit.SECONDS));
            assertEquals(Outcome.Kind.DONE, router.deliver(Event.of("other")).outcome().kind());
            assertTrue(reports.get() < most, reports + " frames went before the result");
            release.countDown();
            assertEquals(Outcome.Kind.DONE, first.outcome().kind());
            server.shutdownNow();
        }
    }

    /** A worker that has ended by itself says so, and still cancels its handlers at their deadlines. */
    @Test
    void aFaultIsReported() throws Exception {
        BlockingQueue<String> failures = new LinkedBlockingQueue<>();
        CountDownLatch started = new CountDownLatch(1);
        CountDownLatch cancelled = new CountDownLatch(1);
        try (TestRouter router = new TestRouter()) {
            Worker worker = router.worker(event -> {
                started.countDown();
                try {
                    new CountDownLatch(1).await();
                } catch (InterruptedException e) {
                    assertThrows(KeyLostException.class, event::checkActive);
                    cancelled.countDown();
                }
            }).hooks(failuresTo(failures)).logger(new TestLog((line, thrown, parameters) -> {
                if (line.startsWith("no stream")) {
                    Thread.currentThread().interrupt(); // the worker's own, which nobody interrupts
                }
            })).start();
            router.deliver(Event.of("k"));
            assertTrue(started.await(WAIT_SECONDS, TimeUnit.SECONDS));
            router.disconnect();
            assertTrue(take(failures).startsWith("BROKEN"));
            assertEquals("FAULT: the worker has ended by itself: java.lang.InterruptedException", take(failures));
            assertTrue(worker.awaitEnd(Duration.ofSeconds(WAIT_SECONDS)));
            assertEquals(RingfenceException.Kind.FAULT, assertThrows(RingfenceException.class, worker::close).kind());
            router.expire();
            assertTrue(cancelled.await(WAIT_SECONDS, TimeUnit.SECONDS), "the handler has outlasted its deadline");
        }
    }

    /** A worker that is closed before its router has answered does not wait for the drain grace. */
    @Test
    void closesWithoutARouterThatAnswers() throws Exception {
        OneThing silent = new OneThing(out -> { });
        long began;
        try (Running running = Running.beside(silent, options -> options.drainGrace(Duration.ofMinutes(5)))) {
            take(silent.hellos);
            began = System.nanoTime();
        }
        assertTrue(System.nanoTime() - began < TimeUnit.MINUTES.toNanos(4), "it waited for the grace");
    }

    /** The worker may end while close() still asks for its end. */
    @Test
    void closesAsItEnds() throws Exception {
        for (int i = 0; i < 100; i++) {
            OneThing silent = new OneThing(out -> { });
            try (Running running = Running.beside(silent, options -> options.drainGrace(Duration.ofMinutes(5)))) {
                take(silent.hellos);
            }
        }
    }

    @Test
    void closesWhileThereIsNoRouter() throws InterruptedException {
        BlockingQueue<String> failures = new LinkedBlockingQueue<>();
        try (TestRouter quiet = new TestRouter()) {
            Worker worker = quiet.worker(event -> { }).channels(null).endpoint("127.0.0.1:1").hooks(failuresTo(failures)).start();
            assertTrue(take(failures).startsWith("UNREACHABLE"));
            worker.close();
        }
    }

    /** A router with TLS refuses a worker without it, and the other way round; the worker says so and does not hang. */
    @Test
    void tlsAgainstARouterWithoutItIsUnreachable() throws Exception {
        BlockingQueue<String> failures = new LinkedBlockingQueue<>();
        try (TestRouter router = new TestRouter()) {
            Server server = ServerBuilder.forPort(0).addService(router.service()).build().start();
            Worker.Builder options = router.worker(event -> { }).channels(null).endpoint("127.0.0.1:" + server.getPort())
                    .tls(TlsChannelCredentials.create()).hooks(failuresTo(failures));
            try (Worker worker = options.start()) {
                assertTrue(take(failures).startsWith("UNREACHABLE"));
            }
            server.shutdownNow();
        }
        assertThrows(IllegalArgumentException.class, () -> Worker.builder(event -> { }).endpoint("unix:relative").start());
    }

    private static void openssl(Path folder, String... arguments) throws Exception {
        List<String> command = new ArrayList<>(List.of("openssl"));
        command.addAll(List.of(arguments));
        Process process = new ProcessBuilder(command).directory(folder.toFile()).redirectErrorStream(true).start();
        String output = new String(process.getInputStream().readAllBytes());
        assertEquals(0, process.waitFor(), () -> command + ": " + output);
    }

    /** Makes NAME.pem and NAME.key: a certificate for localhost, also its own CA. */
    private static void certificate(Path folder, String name) throws Exception {
        openssl(folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", name + ".key", "-out", name + ".pem",
                "-days", "2", "-subj", "/CN=" + name, "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1");
    }

    private static ChannelCredentials client(Path folder, String trusted, String own) throws IOException {
        return TlsChannelCredentials.newBuilder().trustManager(folder.resolve(trusted + ".pem").toFile())
                .keyManager(folder.resolve(own + ".pem").toFile(), folder.resolve(own + ".key").toFile()).build();
    }

    /** Events pass over mutual TLS. A router of another CA, and one that refuses the worker's certificate, are named as such; no event passes. */
    @Test
    void mutualTls(@TempDir Path folder) throws Exception {
        for (String name : List.of("router", "app", "stranger")) {
            certificate(folder, name);
        }
        ServerCredentials credentials = TlsServerCredentials.newBuilder().keyManager(folder.resolve("router.pem").toFile(), folder.resolve("router.key").toFile())
                .trustManager(folder.resolve("app.pem").toFile()).clientAuth(TlsServerCredentials.ClientAuth.REQUIRE).build();
        try (TestRouter router = new TestRouter()) {
            Server server = NettyServerBuilder.forPort(0, credentials).addService(router.service()).build().start();
            String endpoint = "localhost:" + server.getPort();

            Map<ChannelCredentials, String> refused = Map.of(
                    client(folder, "stranger", "app"), "UNREACHABLE: cannot reach the router: UNAVAILABLE: io exception: TLS failed: .*certificat.*",
                    client(folder, "router", "stranger"), "UNREACHABLE: cannot reach the router: UNAVAILABLE: .*",
                    TlsChannelCredentials.newBuilder().trustManager(folder.resolve("router.pem").toFile()).build(), "UNREACHABLE: cannot reach the router: UNAVAILABLE: .*");
            for (Map.Entry<ChannelCredentials, String> one : refused.entrySet()) {
                BlockingQueue<String> failures = new LinkedBlockingQueue<>();
                Worker.Builder options = router.worker(event -> fail("a worker without trust got an event")).channels(null).endpoint(endpoint)
                        .tls(one.getKey()).hooks(failuresTo(failures));
                try (Worker worker = options.start()) {
                    String failure = take(failures);
                    assertTrue(failure.matches(one.getValue()), failure);
                    assertTrue(take(failures).matches(one.getValue()), "it has dialed again, and failed in the same way");
                }
            }

            Worker.Builder options = Worker.builder(SessionTest::handle);
            router.connect(options);
            try (Worker worker = options.channels(null).endpoint(endpoint).tls(client(folder, "router", "app")).start()) {
                assertEquals(new Outcome(Outcome.Kind.DONE, Duration.ZERO, ""), router.deliver(SENT).outcome());
            }
            server.shutdownNow();
        }
    }
}
