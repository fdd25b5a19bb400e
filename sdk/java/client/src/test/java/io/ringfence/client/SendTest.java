package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.ClientInterceptor;
import io.grpc.Context;
import io.grpc.Contexts;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.inprocess.InProcessChannelBuilder;
import io.grpc.inprocess.InProcessServerBuilder;
import io.grpc.stub.StreamObserver;
import io.ringfence.client.proto.LaneServiceGrpc;
import io.ringfence.client.proto.SendRequest;
import io.ringfence.client.proto.SendResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntFunction;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;

/** Sends on the wire, against a router that answers as the test says. */
class SendTest {
    private static final byte[] NOTHING = new byte[0];
    private static final long WAIT_SECONDS = 30;
    private static final SendOptions BRIEFLY = SendOptions.NONE.timeout(Duration.ofSeconds(2));

    private static final class Router implements AutoCloseable {
        final AtomicInteger count = new AtomicInteger();
        final BlockingQueue<String> tokens = new LinkedBlockingQueue<>();
        final CountDownLatch gone = new CountDownLatch(1);
        private final Server server;
        final Lane lane;

        /** The nth answer, from 1, is a status, the text of an id, or none at all. */
        Router(Path tokenFile, IntFunction<Object> answer, ClientInterceptor... interceptors) throws Exception {
            String name = "send-" + UUID.randomUUID();
            server = InProcessServerBuilder.forName(name).intercept(new ServerInterceptor() {
                @Override
                public <Q, R> ServerCall.Listener<Q> interceptCall(ServerCall<Q, R> call, Metadata headers, ServerCallHandler<Q, R> next) {
                    tokens.add(String.valueOf(headers.get(Stream.AUTHORIZATION)));
                    return Contexts.interceptCall(Context.current(), call, headers, next);
                }
            }).addService(new LaneServiceGrpc.LaneServiceImplBase() {
                @Override
                public void send(SendRequest request, StreamObserver<SendResponse> out) {
                    Object is = answer.apply(count.incrementAndGet());
                    if (is instanceof Status status) {
                        out.onError(status.withDescription("as told").asRuntimeException());
                    } else if (is instanceof String id) {
                        out.onNext(SendResponse.newBuilder().setMessageId(id).build());
                        out.onCompleted();
                    } else {
                        Context.current().addListener(context -> gone.countDown(), Runnable::run);
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
    void statusesSayWhetherItWasSent() throws Exception {
        List<Status.Code> refusals = List.of(Status.Code.INVALID_ARGUMENT, Status.Code.UNIMPLEMENTED, Status.Code.UNAUTHENTICATED,
                Status.Code.PERMISSION_DENIED, Status.Code.FAILED_PRECONDITION, Status.Code.RESOURCE_EXHAUSTED);
        for (Status.Code code : Status.Code.values()) {
            if (code == Status.Code.OK) {
                continue;
            }
            try (Router router = new Router(null, n -> code.toStatus())) {
                RuntimeException failure = assertThrows(RuntimeException.class, () -> router.lane.send("k", NOTHING, BRIEFLY));
                assertEquals(refusals.contains(code) ? NotSentException.class : MaybeSentException.class, failure.getClass(), code.name());
                assertTrue(failure.getMessage().contains("as told"), failure.getMessage());
                assertEquals(code == Status.Code.RESOURCE_EXHAUSTED, router.count.get() > 1, code.name());
            }
        }
    }

    /** A time in the past, as a run after a crash may ask for, is due at once. */
    @Test
    void delaysAreChecked() {
        assertEquals(0, Sender.checkedDelay(Duration.ofSeconds(-5)));
        assertEquals(5000, Sender.checkedDelay(Duration.ofSeconds(5)));
        assertThrows(IllegalArgumentException.class, () -> Sender.checkedDelay(Sender.AFTER_MAX.plusMillis(1)));
    }

    @Test
    void idsAreRead() throws Exception {
        for (String text : List.of("", "1:2:3", "1:2:3:4:5", "a:2:3:4", "9223372036854775808:1:-1:-1")) {
            try (Router router = new Router(null, n -> text)) {
                assertThrows(MaybeSentException.class, () -> router.lane.send("k", NOTHING, SendOptions.NONE), text);
            }
        }
        try (Router router = new Router(null, n -> "9223372036854775807:2:-1:3")) {
            assertEquals(new MessageId(Long.MAX_VALUE, 2, 3, -1), router.lane.send("k", NOTHING, SendOptions.NONE));
        }
    }

    /** As of a call. */
    @Test
    void anAttemptThatThrows() throws Exception {
        for (int bad : new int[] {1, 3}) {
            AtomicInteger count = new AtomicInteger();
            try (Router router = new Router(null, n -> Status.RESOURCE_EXHAUSTED, CallTest.throwsAt(bad, count))) {
                CompletableFuture<MessageId> id = router.lane.sendAsync("k".getBytes(StandardCharsets.UTF_8), NOTHING, SendOptions.NONE);
                ExecutionException failed = assertThrows(ExecutionException.class, () -> id.get(WAIT_SECONDS, TimeUnit.SECONDS));
                MaybeSentException failure = assertInstanceOf(MaybeSentException.class, failed.getCause());
                assertTrue(failure.getMessage().contains("an agent failed"), failure.getMessage());
            }
            assertEquals(bad, count.get());
        }
    }

    @Test
    void aSendInACrowd() throws Exception {
        try (Router router = new Router(null, n -> n < 20 ? Status.RESOURCE_EXHAUSTED : "1:2:-1:-1")) {
            assertEquals(new MessageId(1, 2, -1, -1), router.lane.send("k", NOTHING, SendOptions.NONE));
            assertEquals(20, router.count.get());
        }
        try (Router router = new Router(null, n -> Status.RESOURCE_EXHAUSTED)) {
            CompletableFuture<MessageId> id = router.lane.sendAsync("k".getBytes(StandardCharsets.UTF_8), NOTHING, SendOptions.NONE);
            while (router.count.get() < 3) {
                Thread.sleep(1);
            }
            id.cancel(false);
            CallTest.assertEnds(router.count::get, "it asks on");
        }
    }

    /** gRPC answers what is larger than a router reads with the status that means "again". */
    @Test
    void whatIsTooLargeIsNotSent() throws Exception {
        try (Router router = new Router(null, n -> "1:2:-1:-1")) {
            assertEquals(new MessageId(1, 2, -1, -1), router.lane.send("k", new byte[Sender.PAYLOAD_MAX], SendOptions.NONE));
            for (int size : new int[] {Sender.PAYLOAD_MAX + 1, 3 * Sender.PAYLOAD_MAX}) {
                NotSentException failure = assertThrows(NotSentException.class, () -> router.lane.send("k", new byte[size], BRIEFLY));
                assertTrue(failure.getMessage().endsWith("a payload of " + size + " bytes: want at most 1048576"), failure.getMessage());
            }
            NotSentException failure = assertThrows(NotSentException.class, () -> router.lane.send(new byte[Sender.REQUEST_MAX], NOTHING, BRIEFLY));
            assertTrue(failure.getMessage().endsWith("a request of 2097157 bytes: want at most 2097152"), failure.getMessage());
            assertEquals(1, router.count.get());
        }
    }

    /** Java would write half of a surrogate pair as a question mark: the key, or the id, would be another one. */
    @Test
    void whatIsNoTextIsNotSent() throws Exception {
        try (Router router = new Router(null, n -> "1:2:-1:-1")) {
            String half = "a\ud800";
            for (Executable send : List.<Executable>of(
                    () -> router.lane.send(half, NOTHING, BRIEFLY), () -> router.lane.send("k", NOTHING, BRIEFLY.id(half)),
                    () -> router.lane.send("k", NOTHING, BRIEFLY.name(half)), () -> router.lane.send("k", NOTHING, BRIEFLY.property(half, "v")),
                    () -> router.lane.send("k", NOTHING, BRIEFLY.property("p", half)))) {
                assertTrue(assertThrows(NotSentException.class, send).getMessage().endsWith("has no UTF-8"));
            }
            assertEquals(0, router.count.get());
        }
    }

    @Test
    void aWaitThatIsInterruptedGivesTheSendUp() throws Exception {
        try (Router router = new Router(null, n -> null)) {
            assertThrows(MaybeSentException.class, () -> router.lane.send("k", NOTHING, BRIEFLY));
            Thread.currentThread().interrupt();
            assertThrows(MaybeSentException.class, () -> router.lane.send("k", NOTHING, SendOptions.NONE));
            assertTrue(Thread.interrupted());
            assertTrue(router.gone.await(WAIT_SECONDS, TimeUnit.SECONDS));
        }
    }

    @Test
    void theTokenIsThatOfTheTime(@TempDir Path folder) throws Exception {
        Path token = folder.resolve("token");
        try (Router router = new Router(token, n -> "1:2:-1:-1")) {
            for (String text : List.of("one\n", "two")) {
                Files.writeString(token, text);
                router.lane.send("k", NOTHING, SendOptions.NONE);
                assertEquals("Bearer " + text.trim(), router.tokens.take());
            }
            Files.delete(token);
            NotSentException failure = assertThrows(NotSentException.class, () -> router.lane.send("k", NOTHING, SendOptions.NONE));
            assertTrue(failure.getMessage().contains("token file"), failure.getMessage());
        }
    }

    @Test
    void withoutARouterItIsNotSent() {
        Lane lane = Lane.dial("127.0.0.1:1");
        assertThrows(NotSentException.class, () -> lane.send("k", NOTHING, SendOptions.NONE));
        lane.close();
        assertTrue(assertThrows(NotSentException.class, () -> lane.send("k", NOTHING, SendOptions.NONE)).getMessage().contains("was closed"));
    }
}
