package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.Context;
import io.grpc.Contexts;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.TlsChannelCredentials;
import io.grpc.inprocess.InProcessChannelBuilder;
import io.grpc.inprocess.InProcessServerBuilder;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.StreamObserver;
import io.ringfence.client.CallException.Outcome;
import io.ringfence.client.proto.Deliveries;
import io.ringfence.client.proto.Delivery;
import io.ringfence.client.proto.InvokeRequest;
import io.ringfence.client.proto.InvokeResponse;
import io.ringfence.client.proto.LaneServiceGrpc;
import io.ringfence.client.proto.ResultKind;
import io.ringfence.client.proto.WorkRequest;
import io.ringfence.client.proto.WorkResponse;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Function;
import java.util.function.IntSupplier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;

/** Calls on the wire, and the lane by which they are made. */
class CallTest {
    private static final byte[] NOTHING = new byte[0];
    private static final long WAIT_SECONDS = 30;

    @Test
    void xxh64() {
        Map<String, Long> hashes = Map.of("", 0xef46db3751d8e999L, "a", 0xd24ec4f1a98c6e5bL, "abc", 0x44bc2cf5ad770999L,
                "message digest", 0x066ed728fceeb3beL, "abcdefghijklmnopqrstuvwxyz", 0xcfe1f278fa89835cL,
                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", 0xaaa46907d3047814L,
                "1234567890".repeat(8), 0xe04a477f19ee145dL, "y".repeat(100), 0xcd300b25f4b8a0bfL);
        hashes.forEach((text, hash) -> assertEquals(hash, Xxh64.hash(text.getBytes(StandardCharsets.UTF_8)), text));
    }

    private static Event arrived(io.ringfence.client.proto.Call call) {
        return Frame.parse(WorkResponse.newBuilder().setDeliveries(Deliveries.newBuilder().setNumber(1)
                .addDeliveries(Delivery.newBuilder().setDeliveryId(1).setKey(ByteString.copyFromUtf8("a")).setCall(call).setSchemaVersion(1))).build().toByteArray())
                .events.get(0);
    }

    @Test
    void decodesCalls() {
        Instant before = Instant.now();
        Event event = arrived(io.ringfence.client.proto.Call.newBuilder().setMethod("do").setTimeoutMs(60_000).setId("id-1").addPath(1).addPath(-1).build());
        Call call = new Call(event);
        assertEquals("do", event.method());
        assertEquals("do", call.method());
        assertEquals("id-1", call.id());
        assertFalse(call.deadline().isBefore(before.plusSeconds(60)));
        assertFalse(call.deadline().isAfter(Instant.now().plusSeconds(60)));
        assertArrayEquals(new long[] {1, -1}, event.arrival.path());
        assertEquals("Call[do]", call.toString());

        assertEquals(List.of(1L, -1L, 0xd24ec4f1a98c6e5bL), Lane.pathOf(event));
        assertEquals(List.of(0xd24ec4f1a98c6e5bL), Lane.pathOf(Event.of("a").build()));
        assertEquals(List.of(), Lane.pathOf(null));
        assertEquals("", Event.of("a").build().method());
    }

    @Test
    void aCallThatIsNoProtobufIsRefused() {
        byte[] frame = WorkResponse.newBuilder().setDeliveries(Deliveries.newBuilder().setNumber(1).addDeliveries(
                Delivery.newBuilder().setCall(io.ringfence.client.proto.Call.newBuilder().setMethod("xxxx")))).build().toByteArray();
        frame[frame.length - 5] = 0x7f; // the length of the method
        assertThrows(IllegalArgumentException.class, () -> Frame.parse(frame));
    }

    @Test
    void encodesReplies() throws Exception {
        Event done = Event.of("k").build();
        done.id = 1;
        done.kind = io.ringfence.client.ResultKind.DONE;
        done.reply = new byte[Call.REPLY_MAX];
        done.startedNs = 5;
        Event failed = Event.of("k").build();
        failed.id = 2;
        failed.kind = io.ringfence.client.ResultKind.RETRY;
        failed.reason = "é";
        failed.code = "told";
        ResultsFrame frame = new ResultsFrame(7, 1, 2);
        frame.add(done, 100);
        frame.add(failed, 100);
        var results = WorkRequest.parseFrom(frame.toBytes()).getResults();
        assertEquals(Call.REPLY_MAX, results.getResults(0).getReply().size());
        assertEquals(5, results.getResults(0).getStartedNs());
        assertEquals(ResultKind.RESULT_KIND_RETRY, results.getResults(1).getKind());
        assertEquals("é", results.getResults(1).getReason());
        assertEquals("told", results.getResults(1).getCode());
        assertTrue(results.getResults(1).getReply().isEmpty());
    }

    @Test
    void wrongHandlersAreRefused() {
        CallHandler handler = call -> NOTHING;
        for (String method : List.of("", "a b", "a\n", "x".repeat(65))) {
            IllegalArgumentException refused = assertThrows(IllegalArgumentException.class, () -> Worker.builder(event -> { }).call(method, handler).start());
            assertTrue(refused.getMessage().contains("call: \"" + method + "\""), refused.getMessage());
        }
        assertThrows(IllegalArgumentException.class, () -> Worker.builder(event -> { }).call("do", null).start());
        assertThrows(IllegalArgumentException.class, () -> Worker.builder(event -> { }).call("do", handler).call("do", handler).start());
        assertThrows(IllegalArgumentException.class, () -> CallOptions.NONE.timeout(Duration.ZERO));
        assertThrows(IllegalArgumentException.class, () -> Lane.dial("nowhere"));
    }

    @Test
    void aHandlerCanBeCalledInATest() {
        Call call = Call.of("user-7", "charge", new byte[] {1});
        assertEquals("user-7", call.key());
        assertArrayEquals(new byte[] {1}, call.payload());
        assertEquals("", call.id());
        assertFalse(call.isCancelled());
        call.checkActive();
    }

    /** A router that answers each Invoke as the test says, and a lane to it. */
    private static final class Routed implements AutoCloseable {
        private static final Metadata.Key<String> AUTHORIZATION = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

        final BlockingQueue<InvokeRequest> requests = new LinkedBlockingQueue<>();
        final BlockingQueue<String> tokens = new LinkedBlockingQueue<>();
        final BlockingQueue<Long> deadlines = new LinkedBlockingQueue<>(); // as of System.nanoTime
        private final Server server;
        final Lane lane;

        Routed(Path tokenFile, Function<InvokeRequest, Object> answer, ClientInterceptor... interceptors) throws Exception {
            String name = "lane-" + UUID.randomUUID();
            server = InProcessServerBuilder.forName(name).intercept(new ServerInterceptor() {
                @Override
                public <Q, R> ServerCall.Listener<Q> interceptCall(ServerCall<Q, R> call, Metadata headers, ServerCallHandler<Q, R> next) {
                    String token = headers.get(AUTHORIZATION);
                    tokens.add(token == null ? "" : token);
                    deadlines.add(System.nanoTime() + Context.current().getDeadline().timeRemaining(TimeUnit.NANOSECONDS));
                    return Contexts.interceptCall(Context.current(), call, headers, next);
                }
            }).addService(new LaneServiceGrpc.LaneServiceImplBase() {
                @Override
                public void invoke(InvokeRequest request, StreamObserver<InvokeResponse> out) {
                    requests.add(request);
                    Object is = answer.apply(request);
                    if (is instanceof Status status) {
                        out.onError(status.withDescription("as told").asRuntimeException());
                    } else if (is instanceof InvokeResponse response) {
                        out.onNext(response);
                        out.onCompleted();
                    }
                }
            }).build().start();
            ManagedChannel channel = InProcessChannelBuilder.forName(name).intercept(interceptors).build();
            lane = Lane.builder().channels(() -> channel).tokenFile(tokenFile).dial();
        }

        @Override
        public void close() {
            lane.close();
            server.shutdownNow();
        }
    }

    @Test
    void statusesAreOutcomes() throws Exception {
        List<Status.Code> refusals = List.of(Status.Code.INVALID_ARGUMENT, Status.Code.UNIMPLEMENTED, Status.Code.UNAUTHENTICATED,
                Status.Code.PERMISSION_DENIED, Status.Code.RESOURCE_EXHAUSTED);
        for (Status.Code code : Status.Code.values()) {
            if (code == Status.Code.OK) {
                continue;
            }
            try (Routed router = new Routed(null, request -> code.toStatus())) {
                boolean again = code == Status.Code.RESOURCE_EXHAUSTED; // until the call's time is over
                CallOptions options = CallOptions.NONE.timeout(Duration.ofSeconds(again ? 2 : WAIT_SECONDS));
                CallException failure = assertThrows(CallException.class, () -> router.lane.invoke("k", "do", NOTHING, options));
                assertEquals(again ? "overloaded" : "", failure.code(), code.name());
                assertEquals(refusals.contains(code) ? Outcome.NOT_RUN : Outcome.UNKNOWN, failure.outcome(), code.name());
                assertTrue(failure.getMessage().contains("as told"), failure.getMessage());
            }
        }
    }

    @Test
    void aCallInACrowd() throws Exception {
        InvokeResponse response = InvokeResponse.newBuilder().setOutcomeValue(1).setReply(ByteString.copyFromUtf8("r")).build();
        AtomicInteger count = new AtomicInteger();
        try (Routed router = new Routed(null, request -> count.incrementAndGet() < 20 ? Status.RESOURCE_EXHAUSTED : response)) { // more often than gRPC itself would try
            assertArrayEquals(new byte[] {'r'}, router.lane.invoke("k", "do", NOTHING, CallOptions.NONE.timeout(Duration.ofSeconds(WAIT_SECONDS))));
            List<InvokeRequest> requests = List.copyOf(router.requests);
            assertEquals(20, requests.size());
            long last = requests.get(19).getTimeoutMs();
            assertTrue(requests.get(0).getTimeoutMs() > last && last > 1000, "its time is not longer for that: " + last);
        }
        try (Routed router = new Routed(null, request -> Status.RESOURCE_EXHAUSTED)) {
            CompletableFuture<byte[]> reply = router.lane.invokeAsync("k".getBytes(StandardCharsets.UTF_8), "do", NOTHING, CallOptions.NONE);
            while (router.requests.size() < 3) {
                Thread.sleep(1);
            }
            reply.cancel(false);
            assertEnds(router.requests::size, "it asks on");
        }
    }

    /** Waits until a count grows no more: attempts may be under way, on a busy machine for some time. */
    static void assertEnds(IntSupplier count, String otherwise) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_SECONDS);
        for (int before = -1; before != count.getAsInt();) {
            assertTrue(System.nanoTime() - end < 0, otherwise);
            before = count.getAsInt();
            Thread.sleep(300);
        }
    }

    /** The application may block the common pool, which has one thread on a small machine. */
    @Test
    void aCallWhileTheCommonPoolIsBlocked() throws Exception {
        InvokeResponse response = InvokeResponse.newBuilder().setOutcomeValue(1).setReply(ByteString.copyFromUtf8("r")).build();
        int threads = Math.max(1, ForkJoinPool.getCommonPoolParallelism());
        CountDownLatch blocked = new CountDownLatch(threads);
        CountDownLatch end = new CountDownLatch(1);
        for (int i = 0; i < threads; i++) {
            ForkJoinPool.commonPool().execute(() -> {
                blocked.countDown();
                try {
                    end.await();
                } catch (InterruptedException e) {
                    Thread.currentThread().interrupt();
                }
            });
        }
        AtomicInteger count = new AtomicInteger();
        try (Routed router = new Routed(null, request -> count.incrementAndGet() < 3 ? Status.RESOURCE_EXHAUSTED : response)) {
            assertTrue(blocked.await(WAIT_SECONDS, TimeUnit.SECONDS));
            CompletableFuture<byte[]> reply = router.lane.invokeAsync("k".getBytes(StandardCharsets.UTF_8), "do", NOTHING, CallOptions.NONE);
            assertArrayEquals(new byte[] {'r'}, reply.get(WAIT_SECONDS, TimeUnit.SECONDS));
        } finally {
            end.countDown();
        }
    }

    /** An exception of an attempt in a thread of the pool completes the future. */
    @Test
    void anAttemptThatThrows() throws Exception {
        for (int bad : new int[] {1, 3}) {
            AtomicInteger count = new AtomicInteger();
            try (Routed router = new Routed(null, request -> Status.RESOURCE_EXHAUSTED, throwsAt(bad, count))) {
                CompletableFuture<byte[]> reply = router.lane.invokeAsync("k".getBytes(StandardCharsets.UTF_8), "do", NOTHING, CallOptions.NONE);
                ExecutionException failed = assertThrows(ExecutionException.class, () -> reply.get(WAIT_SECONDS, TimeUnit.SECONDS));
                CallException failure = assertInstanceOf(CallException.class, failed.getCause());
                assertEquals(Outcome.UNKNOWN, failure.outcome());
                assertTrue(failure.getMessage().contains("an agent failed"), failure.getMessage());
            }
            assertEquals(bad, count.get());
        }
    }

    /** An interceptor that throws at the nth attempt, as one of an agent may. */
    static ClientInterceptor throwsAt(int bad, AtomicInteger count) {
        return new ClientInterceptor() {
            @Override
            public <Q, R> ClientCall<Q, R> interceptCall(MethodDescriptor<Q, R> method, io.grpc.CallOptions options, Channel next) {
                if (count.incrementAndGet() == bad) {
                    throw new IllegalStateException("an agent failed");
                }
                return next.newCall(method, options);
            }
        };
    }

    /** gRPC answers what is larger than a router reads with the status that means "again". */
    @Test
    void whatIsTooLargeIsNotCalled() throws Exception {
        InvokeResponse response = InvokeResponse.newBuilder().setOutcomeValue(1).setReply(ByteString.copyFromUtf8("r")).build();
        try (Routed router = new Routed(null, request -> response)) {
            CallOptions briefly = CallOptions.NONE.timeout(Duration.ofMillis(200));
            assertArrayEquals(new byte[] {'r'}, router.lane.invoke("k", "do", new byte[Sender.PAYLOAD_MAX]));
            for (int size : new int[] {Sender.PAYLOAD_MAX + 1, 3 * Sender.PAYLOAD_MAX}) {
                CallException failure = assertThrows(CallException.class, () -> router.lane.invoke("k", "do", new byte[size], briefly));
                assertEquals(Outcome.NOT_RUN, failure.outcome());
                assertEquals("too_large", failure.code());
                assertEquals("a payload of " + size + " bytes: want at most 1048576", failure.text());
            }
            CallException failure = assertThrows(CallException.class, () -> router.lane.invoke(new byte[Sender.REQUEST_MAX], "do", NOTHING, briefly));
            assertEquals("too_large", failure.code());
            assertTrue(failure.text().matches("a request of 20971\\d\\d bytes: want at most 2097152"), failure.text());
            assertEquals(1, router.requests.size());
        }
    }

    /** Java would write half of a surrogate pair as a question mark: the key, or the id, would be another one. */
    @Test
    void whatIsNoTextIsNotCalled() throws Exception {
        InvokeResponse response = InvokeResponse.newBuilder().setOutcomeValue(1).build();
        try (Routed router = new Routed(null, request -> response)) {
            for (Executable call : List.<Executable>of(
                    () -> router.lane.invoke("k\ud800", "do", NOTHING), () -> router.lane.invoke("k", "do\udfff", NOTHING),
                    () -> router.lane.invoke("k", "do", NOTHING, CallOptions.NONE.id("order\ud800x")))) {
                CallException failure = assertThrows(CallException.class, call);
                assertEquals(Outcome.NOT_RUN, failure.outcome());
                assertEquals("", failure.code());
                assertTrue(failure.text().endsWith("has no UTF-8"), failure.text());
            }
            assertTrue(assertThrows(NotReservedException.class, () -> router.lane.reserve("k\ud800", Duration.ZERO)).text().endsWith("has no UTF-8"));
            router.lane.invoke("k\ud83d\ude00", "do", NOTHING);
            assertEquals(1, router.requests.size());
        }
    }

    @Test
    void outcomesOfARouter() throws Exception {
        List<Outcome> want = List.of(Outcome.UNKNOWN, Outcome.FAILED, Outcome.NOT_RUN, Outcome.UNKNOWN, Outcome.DONE_BEFORE, Outcome.UNKNOWN);
        int[] numbers = {0, 2, 3, 4, 5, 99};
        for (int i = 0; i < numbers.length; i++) {
            int number = numbers[i];
            try (Routed router = new Routed(null, request -> InvokeResponse.newBuilder().setOutcomeValue(number).setCode("c").setText("why").setRetryAfterMs(1500).build())) {
                CallException failure = assertThrows(CallException.class, () -> router.lane.invoke("k", "do", NOTHING));
                assertEquals(want.get(i), failure.outcome(), "outcome " + number);
                assertEquals("c", failure.code());
                assertEquals("why", failure.text());
                assertEquals(Duration.ofMillis(1500), failure.retryAfter());
            }
        }
    }

    @Test
    void aLaneSendsWhatTheCallerSays(@TempDir Path folder) throws Exception {
        Path token = folder.resolve("token");
        Files.writeString(token, "one\n");
        byte[] reply = new byte[Call.REPLY_MAX];
        InvokeResponse response = InvokeResponse.newBuilder().setOutcomeValue(1).setReply(ByteString.copyFrom(reply)).build();
        try (Routed router = new Routed(token, request -> response)) {
            CallOptions options = CallOptions.NONE.id("id-1").timeout(Duration.ofMillis(2500)).caller(Event.of("a").build());
            long begun = System.nanoTime();
            assertArrayEquals(reply, router.lane.invoke("é", "do", new byte[] {1}, options));
            InvokeRequest request = router.requests.take();
            assertEquals(InvokeRequest.newBuilder().setKey(ByteString.copyFromUtf8("é")).setMethod("do").setPayload(ByteString.copyFrom(new byte[] {1}))
                    .setId("id-1").setTimeoutMs(2500).addPath(0xd24ec4f1a98c6e5bL).build(), request);
            assertEquals("Bearer one", router.tokens.take());
            long deadline = router.deadlines.take();
            long sinceCall = TimeUnit.NANOSECONDS.toMillis(deadline - begun);
            long fromNow = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
            assertTrue(sinceCall >= 3000 && fromNow <= 3500, "the router's own answer comes first: " + sinceCall + ", " + fromNow);
            Files.writeString(token, "two");
            router.lane.invoke("k", "do", NOTHING, CallOptions.NONE.caller(Call.of("a", "do", NOTHING)));
            request = router.requests.take();
            assertEquals("Bearer two", router.tokens.take());
            assertEquals(10_000, request.getTimeoutMs());
            assertEquals(List.of(0xd24ec4f1a98c6e5bL), request.getPathList());
            Files.delete(token);
            CallException failure = assertThrows(CallException.class, () -> router.lane.invoke("k", "do", NOTHING));
            assertEquals(Outcome.NOT_RUN, failure.outcome());
            assertTrue(failure.text().contains("token file"), failure.text());
        }
    }

    @Test
    void aWaitThatIsInterruptedOrCancelledTakesTheCallBack() throws Exception {
        CountDownLatch gone = new CountDownLatch(2);
        try (Routed router = new Routed(null, request -> {
            Context.current().addListener(context -> gone.countDown(), Runnable::run);
            return null; // no answer
        })) {
            Thread.currentThread().interrupt();
            CallException failure = assertThrows(CallException.class, () -> router.lane.invoke("k", "do", NOTHING));
            assertTrue(Thread.interrupted());
            assertEquals(Outcome.UNKNOWN, failure.outcome());
            CompletableFuture<byte[]> reply = router.lane.invokeAsync("k".getBytes(StandardCharsets.UTF_8), "do", NOTHING, CallOptions.NONE);
            router.requests.take();
            reply.cancel(false);
            router.lane.invokeAsync("k".getBytes(StandardCharsets.UTF_8), "do", NOTHING, CallOptions.NONE.timeout(Duration.ofMillis(1)));
            assertTrue(gone.await(WAIT_SECONDS, TimeUnit.SECONDS));
        }
    }

    @Test
    void withoutARouterACallHasNotRun(@TempDir Path folder) {
        for (String endpoint : List.of("127.0.0.1:1", "unix://" + folder.resolve("none.sock"))) {
            Lane lane = Lane.dial(endpoint);
            for (int i = 0; i < 2; i++) {
                CallException failure = assertThrows(CallException.class, () -> lane.invoke("k", "do", NOTHING));
                assertEquals(Outcome.NOT_RUN, failure.outcome(), failure.getMessage());
                assertEquals("unreachable", failure.code());
            }
            lane.close();
            assertEquals("the lane was closed", assertThrows(CallException.class, () -> lane.invoke("k", "do", NOTHING)).text());
        }
    }

    /** A connection that no attempt has made, in time or at all: nothing was sent, whatever the reason is. */
    @Test
    void withoutAConnectionACallHasNotRun() throws Exception {
        SendOptions send = SendOptions.NONE.timeout(Duration.ofMillis(100));
        try (ServerSocket mute = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
                ServerSocket plain = new ServerSocket(0, 50, InetAddress.getLoopbackAddress())) {
            Thread answers = new Thread(() -> {
                try {
                    while (true) {
                        try (Socket socket = plain.accept()) {
                            socket.getOutputStream().write("no TLS at all\n".getBytes(StandardCharsets.US_ASCII));
                        }
                    }
                } catch (IOException closed) { // the end of the test
                    return;
                }
            });
            answers.setDaemon(true);
            answers.start();
            Map<Integer, Lane.Builder> lanes = Map.of(mute.getLocalPort(), Lane.builder(), plain.getLocalPort(), Lane.builder().tls(TlsChannelCredentials.create()));
            for (Map.Entry<Integer, Lane.Builder> one : lanes.entrySet()) {
                try (Lane lane = one.getValue().endpoint("127.0.0.1:" + one.getKey()).dial()) {
                    CallException failure = assertThrows(CallException.class, () -> lane.invoke("k", "do", NOTHING, CallOptions.NONE.timeout(Duration.ofMillis(100))));
                    assertEquals(List.of(Outcome.NOT_RUN, "unreachable"), List.of(failure.outcome(), failure.code()), failure.getMessage());
                    assertThrows(NotSentException.class, () -> lane.send("k", NOTHING, send));
                }
            }
        }
    }

    /** A call that has waited in vain for room on its connection was not sent. */
    @Test
    void withoutRoomOnTheConnectionACallHasNotRun() throws Exception {
        CountDownLatch first = new CountDownLatch(1);
        Server server = NettyServerBuilder.forAddress(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0)).maxConcurrentCallsPerConnection(1)
                .addService(new LaneServiceGrpc.LaneServiceImplBase() {
                    @Override
                    public void invoke(InvokeRequest request, StreamObserver<InvokeResponse> out) {
                        first.countDown(); // and never answers
                    }
                }).build().start();
        try (Lane lane = Lane.dial("127.0.0.1:" + server.getPort())) {
            lane.invokeAsync("k".getBytes(StandardCharsets.UTF_8), "do", NOTHING, CallOptions.NONE.timeout(Duration.ofMinutes(5)));
            assertTrue(first.await(WAIT_SECONDS, TimeUnit.SECONDS));
            CallException failure = assertThrows(CallException.class, () -> lane.invoke("k", "do", NOTHING, CallOptions.NONE.timeout(Duration.ofMillis(100))));
            assertEquals(List.of(Outcome.NOT_RUN, "overloaded"), List.of(failure.outcome(), failure.code()), failure.getMessage());
        } finally {
            server.shutdownNow();
        }
    }
}
