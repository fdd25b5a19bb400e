package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

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
import io.ringfence.client.proto.Ask;
import io.ringfence.client.proto.Granted;
import io.ringfence.client.proto.LaneServiceGrpc;
import io.ringfence.client.proto.Over;
import io.ringfence.client.proto.Renewed;
import io.ringfence.client.proto.ReserveRequest;
import io.ringfence.client.proto.ReserveResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Consumer;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Reservations: the permission of a holder, and lanes to a router that answers as the test says. */
class ReservationTest {
    private static final long WAIT_SECONDS = 30;
    private static final Duration LEASE = Duration.ofMillis(1500); // of the routers here
    private static final Duration LONG = Duration.ofMillis(3000); // of those that are renewed, which may be late, too
    private static final Duration LATE = Duration.ofSeconds(5); // that a busy machine may be
    private static final Duration HOURS = Duration.ofHours(2);

    // The permission, which needs no clock.

    @Test
    void permissionCountsFromTheAsk() {
        Permission p = new Permission(0);
        p.ask(100);
        assertFalse(p.mayBegin());
        p.granted(50, 120);
        assertFalse(p.isOverdue(149));
        assertTrue(p.isOverdue(150));
        assertEquals(10, p.left(140));
    }

    @Test
    void aGrantAfterALongWaitGivesNone() {
        for (long remaining : new long[] {0, -5, 50, 1800}) {
            Permission p = new Permission(0);
            p.ask(100);
            p.granted(remaining, 1000);
            assertFalse(p.mayBegin());
            p.renewed(p.renew(1001), 50, false, 1010);
            assertEquals(41, p.left(1010));
        }
    }

    @Test
    void renewalsExtendFromTheirSending() {
        Permission p = new Permission(0);
        p.ask(0);
        p.granted(100, 1);
        long first = p.renew(10);
        long second = p.renew(20);
        p.renewed(second, 100, false, 50);
        p.renewed(first, 1000, false, 51); // older: it was answered with the second
        p.renewed(99, 1000, false, 52); // never sent
        p.renewed(second, 1000, false, 53); // twice
        p.renewed(p.renew(60), 0, false, 61);
        p.renewed(p.renew(62), 10, false, 63); // less than before
        assertEquals(20, p.left(100));
    }

    @Test
    void shortLeasesAreRenewedMoreOften() {
        for (long[] test : new long[][] {{1760, 500}, {600, 200}, {30, 20}}) {
            Permission p = new Permission(0);
            p.granted(test[0] * 1_000_000, 0);
            assertEquals(test[1] * 1_000_000, p.every());
        }
    }

    @Test
    void aTtlBeginsWhenTheControlLogHasIt() {
        long second = 1_000_000_000;
        Permission p = new Permission(30 * second);
        p.ask(0);
        p.granted(2 * second, 0);
        assertFalse(p.mayBegin());
        p.renewed(p.renew(0), 2 * second, false, 0);
        assertFalse(p.mayBegin());
        assertEquals(Permission.RENEW_MOST, p.every());
        p.renewed(p.renew(0), 30 * second, true, 0);
        assertTrue(p.mayBegin());
        assertEquals(5 * second, p.every());
        p.granted(2 * second, second); // at the next owner it is live at first
        p.renewed(p.renew(second), 2 * second, false, second);
        assertEquals(29 * second, p.left(second));
        assertEquals(Permission.RENEW_MOST, p.every());
        p.renewed(p.renew(2 * second), 30 * second, true, 2 * second);
        assertEquals(30 * second, p.left(2 * second));
        assertEquals(5 * second, p.every());
        Permission late = new Permission(30 * second);
        late.ask(0);
        late.granted(second, 0);
        late.renewed(late.renew(0), 30 * second, true, second);
        assertFalse(late.mayBegin());
        Permission longest = new Permission(300 * second);
        longest.renewed(longest.renew(0), 300 * second, true, 0);
        assertEquals(10 * second, longest.every());
    }

    @Test
    void aPassedDeadlineIsNeverExtended() {
        Permission p = new Permission(0);
        p.ask(0);
        p.granted(100, 1);
        p.renewed(p.renew(90), 100, false, 100);
        p.ask(101);
        p.granted(1000, 102);
        assertTrue(p.isOverdue(100));
    }

    @Test
    void renewalsAreBounded() {
        Permission p = new Permission(0);
        p.ask(0);
        p.granted(10_000, 0);
        for (int i = 0; i <= Permission.RENEWALS_MAX; i++) {
            p.renew(i);
        }
        p.renewed(Permission.RENEWALS_MAX + 1, 1L << 60, false, 100);
        assertTrue(p.isOverdue(10_000));
    }

    @Test
    void permissionAtRandom() {
        for (long seed = 0; seed < 500; seed++) {
            Random random = new Random(seed);
            long ttl = random.nextInt(2) * 30L;
            Permission p = new Permission(ttl);
            boolean covered = false;
            Map<Long, Long> sent = new HashMap<>();
            long now = 1_000_000;
            long asked = now;
            long owner = Long.MIN_VALUE; // until when the router has promised, at most
            p.ask(now);
            boolean lost = false;
            for (int i = 0; i < 60; i++) {
                now += new long[] {0, 1, 5, 30}[random.nextInt(4)];
                lost |= p.isOverdue(now);
                long before = p.left(0);
                long remaining = random.nextInt(65) - 5;
                switch (random.nextInt(4)) {
                    case 0 -> sent.put(p.renew(now), now);
                    case 1 -> {
                        asked = now;
                        p.ask(now);
                    }
                    case 2 -> {
                        owner = Math.max(owner, asked + remaining);
                        p.granted(remaining, now);
                    }
                    default -> {
                        long k = random.nextInt(40) + 1;
                        owner = sent.containsKey(k) ? Math.max(owner, sent.get(k) + remaining) : owner;
                        boolean says = random.nextInt(5) == 0;
                        covered |= says;
                        p.renewed(k, remaining, says, now);
                    }
                }
                assertTrue(p.left(0) <= Math.max(0, owner), "seed " + seed);
                assertTrue(!p.mayBegin() || p.left(0) > 0 && (covered || ttl == 0), "seed " + seed);
                assertTrue(p.left(0) >= before, "seed " + seed);
                assertTrue(!lost || p.left(0) == before, "seed " + seed);
                assertTrue(p.every() >= Permission.RENEW_LEAST, "seed " + seed);
            }
        }
    }

    // Lanes and a router.

    /** The router's end of one stream. */
    private static final class Stream implements StreamObserver<ReserveRequest> {
        final StreamObserver<ReserveResponse> out;
        final Router router;
        int number;
        Ask ask;
        volatile Consumer<Long> renewed = k -> { };
        volatile boolean failed;

        Stream(Router router, StreamObserver<ReserveResponse> out) {
            this.router = router;
            this.out = out;
        }

        @Override
        public void onNext(ReserveRequest frame) {
            if (frame.hasAsk()) {
                ask = frame.getAsk();
                synchronized (router.streams) {
                    router.streams.add(this);
                    number = router.streams.size();
                }
                router.serve.accept(this);
            } else if (frame.hasRenew()) {
                renewed.accept(frame.getRenew().getK());
            } else if (!failed) {
                router.releases.incrementAndGet();
                router.gone.countDown();
                over("released", "");
            }
        }

        @Override
        public void onError(Throwable gone) {
            router.gone.countDown();
        }

        @Override
        public void onCompleted() { }

        synchronized void send(ReserveResponse.Builder frame) {
            out.onNext(frame.build());
        }

        void grant(Duration remaining) {
            grant(remaining, 7);
        }

        void grant(Duration remaining, long token) {
            send(ReserveResponse.newBuilder().setGranted(Granted.newBuilder().setToken(token).setTurn(8).setRemainingNs(remaining.toNanos())));
        }

        void renew(long k, Duration remaining) {
            renew(k, remaining, false);
        }

        void renew(long k, Duration remaining, boolean covered) {
            send(ReserveResponse.newBuilder().setRenewed(Renewed.newBuilder().setK(k).setRemainingNs(remaining.toNanos()).setCovered(covered)));
        }

        void over(String code, String text) {
            send(ReserveResponse.newBuilder().setOver(Over.newBuilder().setCode(code).setText(text).setRetryAfterMs(1500)));
            out.onCompleted();
        }

        void fail(Status status) {
            failed = true;
            out.onError(status.withDescription("as told").asRuntimeException());
        }

        /** Answers each renewal. */
        Stream keep(Duration remaining) {
            renewed = k -> renew(k, remaining);
            return this;
        }
    }

    /** A router that answers each stream of Reserve as the test says, and a lane to it. */
    private static final class Router implements AutoCloseable {
        private static final Metadata.Key<String> AUTHORIZATION = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

        final List<Stream> streams = new ArrayList<>();
        final List<String> tokens = new ArrayList<>();
        final AtomicInteger releases = new AtomicInteger();
        final CountDownLatch gone = new CountDownLatch(1);
        final AtomicLong frozen = new AtomicLong(); // nanoseconds by which the clock is ahead, as in a process that has just thawed
        final Consumer<Stream> serve;
        final Server server;
        final Lane lane;

        Router(Path tokenFile, Consumer<Stream> serve) throws Exception {
            this.serve = serve;
            String name = "reserve-" + UUID.randomUUID();
            server = InProcessServerBuilder.forName(name).intercept(new ServerInterceptor() {
                @Override
                public <Q, R> ServerCall.Listener<Q> interceptCall(ServerCall<Q, R> call, Metadata headers, ServerCallHandler<Q, R> next) {
                    synchronized (streams) {
                        tokens.add(headers.get(AUTHORIZATION));
                    }
                    return Contexts.interceptCall(Context.current(), call, headers, next);
                }
            }).addService(new LaneServiceGrpc.LaneServiceImplBase() {
                @Override
                public StreamObserver<ReserveRequest> reserve(StreamObserver<ReserveResponse> out) {
                    return new Stream(Router.this, out);
                }
            }).build().start();
            ManagedChannel channel = InProcessChannelBuilder.forName(name).build();
            LeaseClock system = LeaseClock.system();
            lane = Lane.builder().channels(() -> channel).tokenFile(tokenFile).leaseClock(() -> system.now() + frozen.get()).dial();
        }

        List<Ask> asks() {
            synchronized (streams) {
                return streams.stream().map(s -> s.ask).toList();
            }
        }

        @Override
        public void close() {
            lane.close();
            server.shutdownNow();
        }
    }

    private static Router router(Consumer<Stream> serve) throws Exception {
        return new Router(null, serve);
    }

    /** Waits until a reservation is lost, and checks when that is. */
    private static void lostAfter(Reservation r, long begun, Duration want) throws InterruptedException {
        CountDownLatch lost = new CountDownLatch(1);
        r.onLost(lost::countDown);
        assertTrue(lost.await(WAIT_SECONDS, TimeUnit.SECONDS));
        Duration took = Duration.ofNanos(System.nanoTime() - begun);
        assertTrue(took.compareTo(want.minusMillis(15)) >= 0 && took.compareTo(want.plus(LATE)) <= 0, "lost after " + took + ", want " + want);
        assertTrue(r.isLost());
        assertThrows(KeyLostException.class, r::checkActive);
    }

    private static void after(long millis, Runnable action) {
        Thread thread = new Thread(() -> {
            try {
                Thread.sleep(millis);
                action.run();
            } catch (InterruptedException | RuntimeException e) {
                return; // the stream has ended
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    @Test
    void isHeldUntilItsRelease() throws Exception {
        try (Router router = router(s -> s.keep(LONG).grant(LONG))) {
            AtomicBoolean told = new AtomicBoolean();
            Reservation kept;
            try (Reservation r = router.lane.reserve("user-1", ReserveOptions.NONE.waitFor(Duration.ofSeconds(30)).caller(Event.of("a").build()))) {
                kept = r;
                r.onLost(() -> told.set(true));
                Ask ask = router.asks().get(0);
                assertEquals("user-1", ask.getKey().toStringUtf8());
                assertEquals(16, ask.getId().size());
                assertEquals(30_000, ask.getWaitMs());
                assertFalse(ask.getResume() || ask.getRawClock());
                assertEquals(List.of(0xd24ec4f1a98c6e5bL), ask.getPathList());
                assertEquals(new Fence(7, 8), r.fence());
                Thread.sleep(LONG.toMillis() + 1000);
                assertFalse(r.isLost());
                r.checkActive();
                assertFalse(r.leaseUntil().isAfter(Instant.now().plus(LONG)));
                assertTrue(r.leaseUntil().isAfter(Instant.now()));
                assertEquals(0, router.releases.get());
            }
            kept.close();
            assertEquals(1, router.releases.get());
            assertFalse(kept.isLost() || told.get());
            assertTrue(assertThrows(KeyLostException.class, kept::checkActive).getMessage().contains("released"));
        }
    }

    @Test
    void isRenewedFirstAfterALongWait() throws Exception {
        AtomicBoolean answered = new AtomicBoolean();
        try (Router router = router(s -> {
            s.renewed = k -> after(200, () -> {
                answered.set(true);
                s.renew(k, LONG);
            });
            s.grant(Duration.ZERO);
        }); Reservation r = router.lane.reserve("user-1", Duration.ofSeconds(1))) {
            assertTrue(answered.get(), "it began without permission");
            r.checkActive();
        }
    }

    @Test
    void isLostAtItsDeadlineWithoutAnAnswer() throws Exception {
        try (Router router = router(s -> after(300, () -> s.grant(LEASE)))) { // which does not add to the permission
            long begun = System.nanoTime();
            try (Reservation r = router.lane.reserve("user-1", Duration.ofSeconds(WAIT_SECONDS))) {
                lostAfter(r, begun, LEASE);
            }
        }
    }

    @Test
    void isLostAtItsDeadlineIfRenewalsGiveNoMoreOrComeTooLate() throws Exception {
        try (Router router = router(s -> {
            s.renewed = k -> {
                s.renew(k, Duration.ZERO);
                after(LEASE.toMillis(), () -> s.renew(k, HOURS));
            };
            s.grant(LEASE);
        })) {
            long begun = System.nanoTime();
            try (Reservation r = router.lane.reserve("user-1", Duration.ZERO)) {
                lostAfter(r, begun, LEASE);
            }
        }
    }

    @Test
    void isLostAtOnceWhenItIsOver() throws Exception {
        try (Router router = router(s -> {
            s.grant(HOURS);
            after(200, () -> s.over("lost", "its owner is gone"));
        })) {
            long begun = System.nanoTime();
            try (Reservation r = router.lane.reserve("user-1", Duration.ZERO)) {
                lostAfter(r, begun, Duration.ofMillis(200));
                assertTrue(assertThrows(KeyLostException.class, r::checkActive).getMessage().contains("its owner is gone"));
            }
        }
    }

    /** Such as a class that is missing. Nobody would hear that the key is lost. */
    @Test
    void anErrorIsNoSilence() {
        Holder holder = new Holder(LeaseClock.system(), System.getLogger("test"), attempt -> {
            throw new NoClassDefFoundError("planted");
        }, since -> { }, Ask.newBuilder(), Duration.ZERO, Duration.ZERO);
        ExecutionException failure = assertThrows(ExecutionException.class, () -> holder.start().get(WAIT_SECONDS, TimeUnit.SECONDS));
        assertTrue(failure.getCause() instanceof NotReservedException && failure.getMessage().contains("planted"), failure.getMessage());
        assertNotNull(holder.lost());
    }

    /** The action runs in the thread of the reservation, which close would wait for. */
    @Test
    void mayBeClosedWhenItIsLost() throws Exception {
        CountDownLatch begun = new CountDownLatch(1);
        try (Router router = router(s -> {
            s.grant(HOURS);
            after(0, () -> {
                try {
                    assertTrue(begun.await(WAIT_SECONDS, TimeUnit.SECONDS));
                } catch (InterruptedException e) {
                    return;
                }
                s.over("lost", "its owner is gone");
            });
        })) {
            Reservation r = router.lane.reserve("user-1", Duration.ZERO);
            CountDownLatch closed = new CountDownLatch(1);
            r.onLost(() -> {
                r.close();
                closed.countDown();
            });
            begun.countDown();
            assertTrue(closed.await(5, TimeUnit.SECONDS), "close waits for its own thread");
            r.close();
        }
    }

    /** Nothing is left of a permission when the reservation has ended. */
    @Test
    void hasNoLeaseWhenItHasEnded() throws Exception {
        try (Router router = router(s -> {
            s.grant(HOURS);
            if (s.number == 1) {
                after(200, () -> s.over("lost", "its owner is gone"));
            }
        })) {
            Reservation lost = router.lane.reserve("user-1", Duration.ZERO);
            lostAfter(lost, System.nanoTime(), Duration.ZERO);
            assertFalse(lost.leaseUntil().isAfter(Instant.now()), "lost");
            Reservation released = router.lane.reserve("user-2", Duration.ZERO);
            assertTrue(released.leaseUntil().isAfter(Instant.now()));
            released.close();
            assertFalse(released.leaseUntil().isAfter(Instant.now()), "released");
        }
    }

    /** What the action throws is not lost in silence. */
    @Test
    void anActionThatThrowsIsLogged() throws Exception {
        BlockingQueue<LogRecord> lines = new LinkedBlockingQueue<>();
        Handler log = new Handler() {
            @Override
            public void publish(LogRecord line) {
                lines.add(line);
            }

            @Override
            public void flush() { }

            @Override
            public void close() { }
        };
        Logger logger = Logger.getLogger("io.ringfence.client");
        logger.addHandler(log);
        try (Router router = router(s -> {
            s.grant(HOURS);
            after(200, () -> s.over("lost", "its owner is gone"));
        }); Reservation r = router.lane.reserve("user-1", Duration.ZERO)) {
            r.onLost(() -> {
                throw new IllegalStateException("planted");
            });
            LogRecord line = lines.poll(5, TimeUnit.SECONDS);
            assertNotNull(line, "silence");
            assertEquals("planted", line.getThrown().getMessage());
        } finally {
            logger.removeHandler(log);
        }
    }

    @Test
    void outlastsABrokenStream() throws Exception {
        try (Router router = router(s -> {
            if (s.number == 1) {
                s.grant(LONG);
                after(200, () -> s.fail(Status.UNAVAILABLE));
            } else if (s.number < 4) {
                s.fail(Status.UNAVAILABLE); // routers that are still starting
            } else {
                s.keep(LONG).grant(LONG);
            }
        })) {
            try (Reservation r = router.lane.reserve("user-1", Duration.ZERO)) {
                Thread.sleep(LONG.toMillis() + 1000);
                r.checkActive();
            }
            assertEquals(List.of(false, true, true, true), router.asks().stream().map(Ask::getResume).toList());
            Set<Object> ids = new HashSet<>();
            router.asks().forEach(ask -> ids.add(ask.getId()));
            assertEquals(1, ids.size());
            assertEquals(1, router.releases.get());
        }
    }

    /** It begins when the control log has it, is renewed seldom then, and goes on at the next owner, which is waited for as long as it lasts. */
    @Test
    void aTtlOutlastsTheOwnerOfItsKey() throws Exception {
        Duration ttl = Duration.ofSeconds(12);
        AtomicInteger renewals = new AtomicInteger();
        try (Router router = router(s -> {
            if (s.number == 1) {
                s.renewed = k -> s.renew(k, ttl, renewals.incrementAndGet() > 5);
                s.grant(LEASE);
            } else if (s.number == 2) {
                s.grant(Duration.ZERO, 6); // a former owner that does not know yet that it is one
                s.fail(Status.UNAVAILABLE);
            } else {
                s.renewed = k -> s.renew(k, ttl, true);
                after(LEASE.toMillis() + 500, () -> s.grant(LEASE, 9));
            }
        })) {
            try (Reservation r = router.lane.reserve("user-1", ReserveOptions.NONE.waitFor(Duration.ofSeconds(30)).ttl(ttl))) {
                int before = renewals.get();
                assertTrue(before > 5, "it began before the control log had it");
                assertEquals(new Fence(7, 8), r.fence());
                Thread.sleep(3000);
                assertTrue(renewals.get() > before && renewals.get() <= before + 2, renewals.get() - before + " renewals, want one in 2 s");
                router.streams.get(0).fail(Status.UNAVAILABLE); // its owner is killed
                long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_SECONDS);
                while (r.fence().token() == 7 && System.nanoTime() < end) {
                    Thread.sleep(10);
                }
                assertEquals(new Fence(9, 8), r.fence());
                while (!r.leaseUntil().isAfter(Instant.now().plus(LEASE)) && System.nanoTime() < end) { // until it is renewed with the ttl
                    Thread.sleep(10);
                }
                r.checkActive();
                assertTrue(r.leaseUntil().isAfter(Instant.now().plus(LEASE)));
                assertFalse(r.leaseUntil().isAfter(Instant.now().plus(ttl)));
            }
            List<Ask> asks = router.asks();
            assertEquals(List.of(false, true, true), asks.stream().map(Ask::getResume).toList());
            assertTrue(asks.stream().allMatch(ask -> ask.getTtlMs() == ttl.toMillis()));
            assertEquals(30_000, asks.get(0).getWaitMs());
            long first = asks.get(1).getWaitMs();
            long second = asks.get(2).getWaitMs();
            assertTrue(first <= ttl.toMillis() && second <= first && second > 1000, "waits of " + first + " and " + second + " ms");
            assertEquals(1, router.releases.get());
        }
    }

    @Test
    void ttlsOutOfRange() throws Exception {
        for (Duration bad : List.of(Duration.ZERO, Duration.ofNanos(1), Duration.ofSeconds(-1), Duration.ofDays(30))) {
            assertThrows(IllegalArgumentException.class, () -> ReserveOptions.NONE.ttl(bad));
        }
        try (Router router = router(s -> s.fail(Status.INVALID_ARGUMENT))) { // the router says what it allows
            assertThrows(NotReservedException.class, () -> router.lane.reserve("k", ReserveOptions.NONE.ttl(Duration.ofMillis(1))));
            assertEquals(1, router.asks().get(0).getTtlMs());
        }
    }

    /** The first stream breaks before the release, and the next one too: the third tells the owner, after that has answered there. */
    @Test
    void aReleaseIsToldOnTheNextStream() throws Exception {
        CountDownLatch broken = new CountDownLatch(1);
        try (Router router = router(s -> {
            if (s.number == 1) {
                s.grant(HOURS);
                after(100, () -> {
                    s.fail(Status.UNAVAILABLE);
                    broken.countDown();
                });
            } else if (s.number == 2) {
                s.fail(Status.UNAVAILABLE);
            } else {
                after(200, () -> s.keep(HOURS).grant(HOURS));
            }
        })) {
            try (Reservation r = router.lane.reserve("user-1", Duration.ZERO)) {
                assertTrue(broken.await(WAIT_SECONDS, TimeUnit.SECONDS));
                r.checkActive();
            }
            assertEquals(List.of(false, true, true), router.asks().stream().map(Ask::getResume).toList());
            assertEquals(1, router.releases.get());
        }
    }

    /** The token file is being replaced when the stream breaks: the release is told once it is there again. */
    @Test
    void aReleaseIsToldWhenTheTokenIsBack(@TempDir Path folder) throws Exception {
        Path token = Files.writeString(folder.resolve("token"), "one");
        CompletableFuture<Stream> first = new CompletableFuture<>();
        try (Router router = new Router(token, s -> {
            s.keep(HOURS).grant(HOURS);
            first.complete(s);
        })) {
            Reservation r = router.lane.reserve("user-1", Duration.ZERO);
            Files.delete(token);
            first.get().fail(Status.UNAVAILABLE);
            CompletableFuture<Void> released = CompletableFuture.runAsync(r::close);
            assertThrows(TimeoutException.class, () -> released.get(300, TimeUnit.MILLISECONDS), "the release was told to nobody");
            Files.writeString(token, "two");
            released.get(WAIT_SECONDS, TimeUnit.SECONDS);
            assertEquals(1, router.releases.get());
        }
    }

    @Test
    void aReleaseThatCannotBeToldEndsWithThePermission() throws Exception {
        try (Router router = router(s -> {
            if (s.number > 1) { // at once, or a release could be told
                s.fail(Status.UNAVAILABLE);
                return;
            }
            s.grant(LEASE);
            after(50, () -> s.fail(Status.UNAVAILABLE));
        })) {
            long begun = System.nanoTime();
            Reservation r = router.lane.reserve("user-1", Duration.ZERO);
            Thread.sleep(200);
            r.close();
            Duration took = Duration.ofNanos(System.nanoTime() - begun);
            assertTrue(took.compareTo(LEASE.minusMillis(15)) >= 0 && took.compareTo(LEASE.plus(LATE)) <= 0, "ended after " + took);
            assertFalse(r.isLost());
            assertEquals(0, router.releases.get());
        }
    }

    @Test
    void isLostAtItsDeadlineIfThereIsNoWayBack() throws Exception {
        try (Router router = router(s -> s.grant(LEASE))) {
            long begun = System.nanoTime();
            try (Reservation r = router.lane.reserve("user-1", Duration.ZERO)) {
                router.server.shutdownNow();
                lostAfter(r, begun, LEASE);
            }
        }
    }

    @Test
    void asksTheClockAfterAFreeze() throws Exception {
        try (Router router = router(s -> s.keep(HOURS).grant(Duration.ofMinutes(1))); Reservation r = router.lane.reserve("user-1", Duration.ZERO)) {
            r.checkActive();
            router.frozen.set(HOURS.multipliedBy(2).toNanos());
            assertThrows(KeyLostException.class, r::checkActive);
            assertTrue(r.isLost());
        }
    }

    @Test
    void refusals() throws Exception {
        for (String code : List.of("timeout", "overloaded", "cycle", "parked", "unreachable", "not_exclusive", "not_covered")) {
            try (Router router = router(s -> s.over(code, "as told"))) {
                NotReservedException failure = assertThrows(NotReservedException.class, () -> router.lane.reserve("k", Duration.ZERO));
                assertEquals(code, failure.code());
                assertEquals("as told", failure.text());
                assertEquals(Duration.ofMillis(1500), failure.retryAfter());
                assertEquals("the key is not reserved (" + code + "): as told", failure.getMessage());
            }
        }
    }

    @Test
    void statusesAreCodes() throws Exception {
        Map<Status, String> codes = Map.of(Status.INVALID_ARGUMENT, "", Status.UNIMPLEMENTED, "", Status.UNAUTHENTICATED, "",
                Status.PERMISSION_DENIED, "", Status.RESOURCE_EXHAUSTED, "overloaded", Status.UNAVAILABLE, "unreachable");
        for (Map.Entry<Status, String> entry : codes.entrySet()) {
            try (Router router = router(s -> s.fail(entry.getKey()))) {
                NotReservedException failure = assertThrows(NotReservedException.class, () -> router.lane.reserve("k", Duration.ZERO));
                assertEquals(entry.getValue(), failure.code(), entry.getKey().toString());
                assertTrue(failure.text().contains("as told"), failure.text());
            }
        }
    }

    @Test
    void aReservationInACrowd() throws Exception {
        Duration wait = Duration.ofSeconds(WAIT_SECONDS);
        try (Router router = router(s -> {
            if (s.number < 20) { // more often than gRPC itself would try
                s.fail(Status.RESOURCE_EXHAUSTED);
            } else {
                s.keep(LONG).grant(LONG);
            }
        })) {
            try (Reservation r = router.lane.reserve("k", wait)) {
                r.checkActive();
            }
            List<Ask> asks = router.asks();
            assertEquals(20, asks.size());
            assertEquals(1, asks.stream().map(Ask::getId).distinct().count());
            assertEquals(wait.toMillis(), asks.get(0).getWaitMs());
            long last = asks.get(19).getWaitMs();
            assertTrue(last < wait.toMillis() && last > 0, "the wait is not longer for that: " + last);
        }
        Thread waiting = Thread.currentThread();
        try (Router router = router(s -> {
            if (s.number == 3) {
                waiting.interrupt();
            }
            s.fail(Status.RESOURCE_EXHAUSTED);
        })) {
            NotReservedException failure = assertThrows(NotReservedException.class, () -> router.lane.reserve("k", wait));
            assertTrue(Thread.interrupted());
            assertEquals("timeout", failure.code());
            CallTest.assertEnds(() -> router.asks().size(), "it asks on");
            assertTrue(router.asks().size() > 1);
        }
    }

    @Test
    void aRouterThatDoesNotAnswer() throws Exception {
        try (Router router = router(s -> { })) {
            NotReservedException failure = assertThrows(NotReservedException.class, () -> router.lane.reserve("k", Duration.ofMillis(50)));
            assertEquals("unreachable", failure.code());
        }
    }

    @Test
    void anInterruptionEndsTheWait() throws Exception {
        try (Router router = router(s -> { })) {
            Thread.currentThread().interrupt();
            NotReservedException failure = assertThrows(NotReservedException.class, () -> router.lane.reserve("k", Duration.ofMinutes(1)));
            assertTrue(Thread.interrupted());
            assertEquals("timeout", failure.code());
            assertTrue(router.gone.await(WAIT_SECONDS, TimeUnit.SECONDS));
            assertEquals(1, router.releases.get());
        }
    }

    /** gRPC would answer it with the status that means "again", until the wait is over. */
    @Test
    void isNotAskedForIfItIsTooLarge() {
        try (Lane lane = Lane.dial("127.0.0.1:1")) {
            NotReservedException failure = assertThrows(NotReservedException.class,
                    () -> lane.reserve(new byte[Sender.REQUEST_MAX], ReserveOptions.NONE.waitFor(Duration.ofMinutes(1))));
            assertEquals("too_large", failure.code());
            assertTrue(failure.getMessage().endsWith("want at most 2097152"), failure.getMessage());
        }
    }

    @Test
    void withoutARouterOrALane() {
        Lane lane = Lane.dial("127.0.0.1:1");
        assertEquals("unreachable", assertThrows(NotReservedException.class, () -> lane.reserve("k", Duration.ZERO)).code());
        assertThrows(IllegalArgumentException.class, () -> lane.reserve("k", Duration.ofMillis(-1)));
        lane.close();
        NotReservedException failure = assertThrows(NotReservedException.class, () -> lane.reserve("k", Duration.ZERO));
        assertEquals("", failure.code());
        assertEquals("the lane was closed", failure.text());
    }

    @Test
    void sendsTheTokenOfEachStream(@TempDir Path folder) throws Exception {
        Path token = folder.resolve("token");
        Files.writeString(token, "one\n");
        CountDownLatch back = new CountDownLatch(2);
        try (Router router = new Router(token, s -> {
            s.keep(LONG).grant(LONG);
            if (s.number == 1) {
                try {
                    Files.writeString(token, "two");
                } catch (java.io.IOException e) {
                    throw new java.io.UncheckedIOException(e);
                }
                s.fail(Status.UNAVAILABLE);
            }
            back.countDown();
        })) {
            try (Reservation r = router.lane.reserve("k", Duration.ZERO)) {
                assertTrue(back.await(WAIT_SECONDS, TimeUnit.SECONDS));
                r.checkActive();
            }
            assertEquals(List.of("Bearer one", "Bearer two"), router.tokens);
            Files.delete(token);
            assertTrue(assertThrows(NotReservedException.class, () -> router.lane.reserve("k", Duration.ZERO)).text().contains("token file"));
        }
    }
}
