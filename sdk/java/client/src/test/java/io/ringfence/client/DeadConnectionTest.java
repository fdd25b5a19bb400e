package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeout;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Server;
import io.grpc.stub.StreamObserver;
import io.ringfence.client.proto.Granted;
import io.ringfence.client.proto.InvokeRequest;
import io.ringfence.client.proto.InvokeResponse;
import io.ringfence.client.proto.LaneServiceGrpc;
import io.ringfence.client.proto.Over;
import io.ringfence.client.proto.Renewed;
import io.ringfence.client.proto.ReserveRequest;
import io.ringfence.client.proto.ReserveResponse;
import io.ringfence.client.proto.SendRequest;
import io.ringfence.client.proto.SendResponse;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** A lane whose connection does not end, though its other end is gone: nothing comes on it any more. */
class DeadConnectionTest {
    private static final byte[] NOTHING = new byte[0];
    private static final Duration LEASE = Duration.ofMillis(1500);
    private static final Duration WAIT = Duration.ofSeconds(30);
    private static final Duration TTL = Duration.ofSeconds(6);

    /** A router behind a proxy that can stop to forward on the connections that there are. */
    private static final class Router extends LaneServiceGrpc.LaneServiceImplBase implements AutoCloseable {
        final List<Boolean> resumes = new CopyOnWriteArrayList<>();
        private final Server server = Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create()).addService(this).build().start();
        private final ServerSocket proxy = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
        private final Set<Socket> sockets = ConcurrentHashMap.newKeySet();
        private final Set<Socket> muted = ConcurrentHashMap.newKeySet();
        final AtomicInteger muteNext = new AtomicInteger(); // so many connections from now on forward nothing
        volatile boolean slow; // the broker does not answer
        volatile Duration connecting = Duration.ZERO; // how long it takes until a connection forwards anything
        final Lane lane = Lane.dial("127.0.0.1:" + proxy.getLocalPort());

        Router() throws IOException {
            thread(() -> {
                while (true) {
                    Socket near = proxy.accept();
                    Socket far = new Socket(InetAddress.getLoopbackAddress(), server.getPort());
                    sockets.addAll(List.of(near, far));
                    if (muteNext.getAndUpdate(n -> Math.max(0, n - 1)) > 0) {
                        muted.addAll(List.of(near, far));
                    }
                    thread(() -> forward(near, far));
                    thread(() -> forward(far, near));
                }
            });
        }

        private interface Work {
            void run() throws IOException;
        }

        private static void thread(Work work) {
            Thread thread = new Thread(() -> {
                try {
                    work.run();
                } catch (IOException ended) {
                    return;
                }
            });
            thread.setDaemon(true);
            thread.start();
        }

        private void forward(Socket from, Socket to) throws IOException {
            try {
                Thread.sleep(connecting.toMillis());
            } catch (InterruptedException e) {
                return;
            }
            byte[] buffer = new byte[1 << 16];
            for (int n = from.getInputStream().read(buffer); n > 0; n = from.getInputStream().read(buffer)) {
                if (!muted.contains(from)) {
                    to.getOutputStream().write(buffer, 0, n);
                }
            }
        }

        void mute() {
            muted.addAll(sockets);
        }

        void cut() throws IOException {
            for (Socket socket : sockets) {
                socket.close();
            }
        }

        @Override
        public void invoke(InvokeRequest request, StreamObserver<InvokeResponse> out) {
            out.onNext(InvokeResponse.newBuilder().setOutcomeValue(1).build());
            out.onCompleted();
        }

        @Override
        public void send(SendRequest request, StreamObserver<SendResponse> out) {
            if (slow) {
                return;
            }
            out.onNext(SendResponse.newBuilder().setMessageId("1:2:-1:-1").build());
            out.onCompleted();
        }

        @Override
        public StreamObserver<ReserveRequest> reserve(StreamObserver<ReserveResponse> out) {
            return new StreamObserver<>() {
                @Override
                public void onNext(ReserveRequest request) {
                    ReserveResponse.Builder answer = ReserveResponse.newBuilder();
                    if (request.hasAsk()) {
                        resumes.add(request.getAsk().getResume());
                        answer.setGranted(Granted.newBuilder().setToken(7).setTurn(8).setRemainingNs(LEASE.toNanos()));
                    } else if (request.hasRenew()) {
                        answer.setRenewed(Renewed.newBuilder().setK(request.getRenew().getK()).setRemainingNs(TTL.toNanos()).setCovered(true));
                    } else {
                        answer.setOver(Over.newBuilder().setCode("released"));
                    }
                    out.onNext(answer.build());
                    if (request.hasRelease()) {
                        out.onCompleted();
                    }
                }

                @Override
                public void onError(Throwable gone) {}

                @Override
                public void onCompleted() {}
            };
        }

        @Override
        public void close() throws IOException {
            lane.close();
            server.shutdownNow();
            proxy.close();
            cut();
        }
    }

    @Test
    void theNextCallUsesAnotherOne() throws Exception {
        try (Router router = new Router()) {
            CallOptions briefly = CallOptions.NONE.timeout(Duration.ofMillis(300));
            router.lane.invoke("k", "do", NOTHING);
            router.mute();
            assertEquals(CallException.Outcome.UNKNOWN, assertThrows(CallException.class, () -> router.lane.invoke("k", "do", NOTHING, briefly)).outcome());
            router.lane.invoke("k", "do", NOTHING);
            router.mute();
            assertThrows(MaybeSentException.class, () -> router.lane.send("k", NOTHING, SendOptions.NONE.timeout(Duration.ofMillis(300))));
            router.lane.send("k", NOTHING, SendOptions.NONE);
        }
    }

    /** The broker is slower than its callers wait, and the router is there. */
    @Test
    void aSendWithoutAnAnswerSaysNothingAboutTheConnection() throws Exception {
        try (Router router = new Router()) {
            router.lane.send("k", NOTHING, SendOptions.NONE);
            router.slow = true;
            for (int i = 0; i < 3; i++) {
                assertThrows(MaybeSentException.class, () -> router.lane.send("k", NOTHING, SendOptions.NONE.timeout(Duration.ofMillis(1))));
            }
            router.lane.invoke("k", "do", NOTHING);
            assertEquals(2, router.sockets.size(), "both ends of one connection");
        }
    }

    /** Calls replace the attempt to connect of those before them, but not before that has had its time. */
    @Test
    void aTimeoutMayBeShorterThanConnecting() throws Exception {
        try (Router router = new Router()) {
            router.connecting = Duration.ofMillis(2500); // longer than a call waits for its answer
            CallOptions briefly = CallOptions.NONE.timeout(Duration.ofMillis(100));
            long end = System.nanoTime() + 2 * WAIT.toNanos();
            while (true) {
                try {
                    router.lane.invoke("k", "do", NOTHING, briefly);
                    return;
                } catch (CallException e) {
                    assertTrue(System.nanoTime() < end, () -> "no call has reached the router: " + e);
                }
            }
        }
    }

    /** Without a ttl it is lost at its deadline, or its release is given up then. */
    @Test
    void aReservationAfterALiveOneUsesAnotherOne() throws Exception {
        try (Router router = new Router()) {
            Reservation lost = router.lane.reserve("user-1", WAIT);
            router.mute();
            while (!lost.isLost()) {
                Thread.sleep(1);
            }
            Reservation released = router.lane.reserve("user-1", WAIT);
            router.mute();
            released.close();
            router.lane.reserve("user-1", WAIT).close();
        }
    }

    /** A key that is free is reserved without a wait. */
    @Test
    void aConnectionMayTakeLongerThanASecond() throws Exception {
        try (Router router = new Router()) {
            router.connecting = Duration.ofMillis(1500);
            router.lane.reserve("user-1", Duration.ZERO).close();
        }
    }

    @Test
    void aConnectionThatIsNeverMadeHasABound() throws Exception {
        try (Router router = new Router()) {
            router.muteNext.set(1);
            NotReservedException refused = assertTimeout(WAIT, () -> assertThrows(NotReservedException.class, () -> router.lane.reserve("user-1", Duration.ZERO)));
            assertEquals("unreachable", refused.code());
            assertEquals("no connection to the router in time", refused.text());
            router.lane.reserve("user-1", WAIT).close();
        }
    }

    @Test
    void aReservationWithATtlGoesOnAfterAConnectionThatIsNeverMade() throws Exception {
        try (Router router = new Router(); Reservation held = router.lane.reserve("user-1", ReserveOptions.NONE.ttl(TTL))) {
            router.muteNext.set(1);
            router.cut();
            long end = System.nanoTime() + WAIT.toNanos();
            while (router.resumes.size() < 2 && System.nanoTime() < end) {
                Thread.sleep(10);
            }
            assertEquals(List.of(false, true), router.resumes);
            assertFalse(held.isLost());
        }
    }

    @Test
    void aReservationWithATtlGoesOnByAnotherOne() throws Exception {
        try (Router router = new Router()) {
            Reservation held = router.lane.reserve("user-1", ReserveOptions.NONE.ttl(TTL));
            router.mute();
            Thread.sleep(TTL.plusMillis(500).toMillis());
            assertFalse(held.isLost());
            assertEquals(List.of(false, true), router.resumes);
            held.close();
            router.mute();
            NotReservedException refused = assertThrows(NotReservedException.class, () -> router.lane.reserve("user-1", Duration.ZERO));
            assertTrue(refused.getMessage().contains("unreachable"), refused.getMessage());
            router.lane.reserve("user-1", WAIT).close();
        }
    }
}
