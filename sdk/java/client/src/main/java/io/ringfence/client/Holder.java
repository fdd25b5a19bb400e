package io.ringfence.client;

import com.google.protobuf.ByteString;
import io.grpc.ClientCall;
import io.grpc.Status;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import io.ringfence.client.proto.Ask;
import io.ringfence.client.proto.Granted;
import io.ringfence.client.proto.Over;
import io.ringfence.client.proto.Release;
import io.ringfence.client.proto.Renew;
import io.ringfence.client.proto.ReserveRequest;
import io.ringfence.client.proto.ReserveResponse;
import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.function.LongConsumer;

/**
 * Gets and keeps one reservation, in a thread of its own: it takes what the router says, renews, compares the deadline with the clock, and comes
 * back on another stream when one breaks. Nothing that it does waits for the network.
 */
final class Holder {
    /** So long beyond the wait for a key there may be no connection with room for the Ask, and then no answer of the router. */
    private static final Duration GRACE = Duration.ofSeconds(5);

    /**
     * How long the next stream of a reservation has at least until its Ask is sent. Then it gets another connection: with a ttl after a third of what
     * is left of the permission, if that is longer, and after GRACE at most.
     */
    private static final long REDIAL_LEAST = Duration.ofSeconds(1).toNanos();

    /** How long it may take from a grant until there is permission to begin, at least. */
    private static final long BEGIN_MAX = Duration.ofSeconds(10).toNanos();

    /** How long the router's last frame is waited for when the wait for a key is given up. */
    private static final long RELEASE_MAX = Duration.ofMillis(500).toNanos();

    /** The pauses before the next stream when one breaks: doubled from the first to the second. */
    private static final long PAUSE_MIN = Duration.ofMillis(20).toNanos();
    private static final long PAUSE_MAX = Duration.ofMillis(500).toNanos();

    /** The pauses between renewals while the control log does not have a reservation with a ttl: doubled from the first to the second. */
    private static final long COVER_MIN = Duration.ofMillis(4).toNanos();
    private static final long COVER_MAX = Duration.ofMillis(50).toNanos();

    /**
     * So many renewals of a covered reservation in a row without any frame, and the connection is given up when the next one is due: half of the ttl is left.
     * A live one has no time for that: it is lost, and then the connection is given up.
     */
    private static final int UNHEARD_MAX = 2;

    private static final int ID_BYTES = 16;
    private static final String UNREACHABLE = "unreachable";
    private static final String OVERLOADED = "overloaded";
    private static final String PASSED = "its permission has passed";
    private static final ThreadFactory THREADS = Threads.platform("ringfence-reservation-");
    private static final SecureRandom RANDOM = new SecureRandom();
    private static final ReserveRequest RELEASE = ReserveRequest.newBuilder().setRelease(Release.getDefaultInstance()).build();

    /** What happened: a frame on a stream, its end, or without a stream that the application wants to release. */
    private record News(Link link, ReserveResponse frame, Throwable failure) {}

    private static final News NOTHING = new News(null, null, null);
    private static final News WISH = new News(null, null, null); // to release

    private final LeaseClock clock;
    private final Logger log;
    private final Function<Attempt, ClientCall<ReserveRequest, ReserveResponse>> streams; // throws NotReservedException
    private final LongConsumer silent; // takes an instant of System.nanoTime since which nothing was heard
    private final Ask.Builder ask;
    private final Duration wait;
    private final Permission permission;
    private final LinkedBlockingQueue<News> news = new LinkedBlockingQueue<>();
    private final CompletableFuture<Void> begun = new CompletableFuture<>();
    private final CompletableFuture<Void> lost = new CompletableFuture<>();
    private final CompletableFuture<Void> over = new CompletableFuture<>();

    private volatile Fence fence = Fence.NONE;
    private volatile Long unheard; // when the first request since the newest frame was sent, by System.nanoTime; null: there was none
    private volatile Thread thread;
    private Link link; // the newest; of the thread alone, as the three below
    private long end; // of the wait for the key
    private boolean connected; // an Ask was sent
    private NotReservedException crowded; // of the last ask that was not taken in

    private final Object lock = new Object(); // guards the fields below
    private String why; // it is lost; null: it is not
    private boolean released;

    Holder(LeaseClock clock, Logger log, Function<Attempt, ClientCall<ReserveRequest, ReserveResponse>> streams, LongConsumer silent, Ask.Builder ask,
            Duration wait, Duration ttl) {
        this.clock = clock;
        this.log = log;
        this.streams = streams;
        this.silent = silent;
        this.wait = wait;
        this.permission = new Permission(ttl.toNanos());
        byte[] id = new byte[ID_BYTES];
        RANDOM.nextBytes(id);
        this.ask = ask.setId(ByteString.copyFrom(id)).setWaitMs(wait.toMillis()).setRawClock(clock.isRaw()).setTtlMs((int) ttl.toMillis());
    }

    /** Starts the thread, and returns what is complete when the reservation may begin, or will not. */
    CompletableFuture<Void> start() {
        thread = THREADS.newThread(this::run);
        thread.start();
        return begun;
    }

    /** Ends the reservation, or the wait for it. It does not block. */
    void release() {
        synchronized (lock) {
            if (released) {
                return;
            }
            released = true;
        }
        news.add(WISH);
    }

    boolean isReleased() {
        synchronized (lock) {
            return released;
        }
    }

    /** Returns why the key is lost, or null. It reads the clock. */
    String lost() {
        if (permission.isOverdue(clock.now())) {
            giveUpSilent();
            lose(PASSED);
        }
        synchronized (lock) {
            return why;
        }
    }

    /** Runs an action when the key is lost: in the thread of the reservation, or in the one that finds it out. */
    void onLost(Runnable action) {
        lost.thenRun(() -> {
            try {
                action.run();
            } catch (Throwable failure) { // the future would keep it
                log.log(Level.ERROR, "a callback for the loss of a reserved key failed", failure);
            }
        });
    }

    /** Waits until there is nothing left to do. An action that runs in the thread of the reservation does not wait for itself. */
    void awaitOver() {
        if (Thread.currentThread() != thread) {
            over.join();
        }
    }

    Fence fence() {
        return fence;
    }

    long leftNanos() {
        return permission.left(clock.now());
    }

    /** Replaces the connection if a request had no answer, and nothing else was heard on it since: the next reservation gets another one. */
    private void giveUpSilent() {
        Long since = unheard;
        if (since != null) {
            silent.accept(since);
        }
    }

    private void lose(String because) {
        synchronized (lock) {
            if (why != null || released) {
                return;
            }
            why = because;
        }
        lost.complete(null);
    }

    private void run() {
        try {
            if (get()) {
                begun.complete(null);
                keep();
            }
        } catch (NotReservedException e) {
            begun.completeExceptionally(e);
        } catch (Throwable e) { // such as a class that is missing: nobody may wait, nor go on
            lose(e.toString());
            begun.completeExceptionally(new NotReservedException("", e.toString(), Duration.ZERO, e));
        } finally {
            begun.cancel(false); // if it was released before
            if (link != null) {
                link.end();
            }
            over.complete(null);
        }
    }

    /** Returns the next of the news, or NOTHING when the time is up. */
    private News next(long nanos) throws InterruptedException {
        News next = news.poll(Math.max(nanos, 1), TimeUnit.NANOSECONDS);
        return next == null ? NOTHING : next;
    }

    /** Asks until the router takes the ask in, and waits for the grant. Returns false if it was released before. */
    private boolean get() throws InterruptedException {
        end = clock.now() + wait.plus(GRACE).toNanos();
        Pauses pauses = new Pauses(wait.plus(GRACE), Pauses.CALL_MAX);
        while (true) {
            link = new Link();
            try {
                return await();
            } catch (NotReservedException e) {
                boolean again = e.getCause() != null && Status.fromThrowable(e.getCause()).getCode() == Status.Code.RESOURCE_EXHAUSTED;
                long pause = again ? pauses.next() : -1;
                if (pause < 0) {
                    throw e;
                }
                crowded = e;
                link.end();
                if (next(pause) == WISH) { // of a stream that has ended there are no other news
                    return false;
                }
            }
            // The router has taken nothing in: too many calls of its callers are just beginning.
            ask.setWaitMs(Math.max(0, Math.min(ask.getWaitMs(), pauses.left().minus(GRACE).toMillis())));
        }
    }

    /** Waits for the grant, and then for permission to begin. Returns false if it was released before. */
    private boolean await() throws InterruptedException {
        boolean granted = false;
        long renewAt = 0;
        long pause = hasTtl() ? COVER_MIN : Permission.RENEW_MOST;
        long pauseMax = hasTtl() ? COVER_MAX : Permission.RENEW_MOST;
        while (true) {
            long now = clock.now();
            News next = next(granted ? Math.min(end - now, renewAt - now) : end - now);
            now = clock.now();
            if (next == WISH) {
                sayRelease();
                return false;
            }
            if (next.failure != null) {
                throw refused(next.failure);
            }
            if (next.frame != null) {
                if (next.frame.hasOver()) {
                    Over told = next.frame.getOver();
                    throw new NotReservedException(told.getCode(), told.getText(), Duration.ofMillis(told.getRetryAfterMs()), null);
                }
                extend(next.frame);
                if (permission.mayBegin()) {
                    return true;
                }
                if (next.frame.hasGranted() && !granted) { // it took long until the grant, or the control log does not have it yet
                    granted = true;
                    end = Math.max(end, now + BEGIN_MAX);
                    renewAt = now; // at once
                }
            }
            if (now - end >= 0 && !granted && !connected && link.attempt.isSent()) { // the time until the first Ask was sent does not count, up to a bound
                connected = true;
                end += Math.min(GRACE.toNanos(), link.attempt.sentAfter());
            }
            if (now - end >= 0) {
                link.send(RELEASE);
                if (!granted) {
                    silent.accept(link.attempt.begun());
                }
                throw crowded != null ? crowded : late();
            }
            if (granted && now - renewAt >= 0) {
                renewAt = now + pause;
                pause = Math.min(2 * pause, pauseMax);
                renew();
            }
        }
    }

    /** The exception for an ask without an answer in time. */
    private NotReservedException late() {
        if (link.attempt.isSent()) {
            return new NotReservedException(UNREACHABLE, "the router has not answered in time", Duration.ZERO, null);
        } else if (link.attempt.foundNoRoom()) {
            return new NotReservedException(OVERLOADED, "the connection had no free stream: other calls and reservations use them all", Duration.ZERO, null);
        }
        return new NotReservedException(UNREACHABLE, "no connection to the router in time", Duration.ZERO, null);
    }

    private boolean hasTtl() {
        return ask.getTtlMs() != 0;
    }

    private void extend(ReserveResponse frame) {
        long now = clock.now();
        if (frame.hasGranted()) {
            Granted grant = frame.getGranted();
            permission.granted(grant.getRemainingNs(), now);
            Fence granted = new Fence(grant.getToken(), grant.getTurn());
            if (fence.isBefore(granted)) { // a former owner that does not know yet that it is one answers with its own, and no permission
                fence = granted;
            }
        } else if (frame.hasRenewed()) {
            permission.renewed(frame.getRenewed().getK(), frame.getRenewed().getRemainingNs(), frame.getRenewed().getCovered(), now);
        }
    }

    private void renew() {
        long k = permission.renew(clock.now());
        link.send(ReserveRequest.newBuilder().setRenew(Renew.newBuilder().setK(k)).build());
    }

    /**
     * Renews the reservation until it is lost, or its release was told. A release is told on another stream if one breaks, until the permission
     * has passed: then the key is free without it.
     */
    private void keep() throws InterruptedException {
        boolean releasing = false;
        long renewAt = clock.now() + permission.every();
        boolean broken = false;
        long redialAt = 0;
        boolean opening = false; // until the Ask of the present stream must be sent
        long openBy = 0;
        long pause = 0;
        boolean answered = true; // the owner has granted it on the present stream; before, it may be waited for in silence
        int renewals = 0; // since the newest frame
        while (true) {
            News next = next(Math.min(Stream.CHECK_EVERY.toNanos(), Math.max(renewAt - clock.now(), Permission.RENEW_LEAST)));
            if (lost() != null || permission.isOverdue(clock.now())) {
                return;
            }
            if (next == WISH) {
                releasing = true;
                link.send(RELEASE);
            }
            if (next.link == link && next.failure != null) { // the stream broke; the reservation goes on until its deadline
                broken = true;
                pause = Math.min(Math.max(2 * pause, PAUSE_MIN), PAUSE_MAX);
                redialAt = clock.now() + pause;
            } else if (next.link == link && next.frame != null) {
                renewals = 0;
                answered |= next.frame.hasGranted();
                if (next.frame.hasOver()) {
                    Over told = next.frame.getOver();
                    lose(told.getText().isEmpty() ? told.getCode() : told.getText());
                    return;
                }
                if (releasing) {
                    if (next.frame.hasGranted()) { // the owner has answered on a new stream: before, the router would not have told it
                        link.send(RELEASE);
                    }
                    continue;
                }
                pause = 0;
                extend(next.frame);
                renewAt = clock.now() + permission.every();
                if (next.frame.hasGranted()) {
                    renew();
                }
            }
            long now = clock.now();
            if (broken && now - redialAt >= 0) {
                try {
                    link.end();
                    // The owner of a covered reservation may have died: the next one is waited for as long as the permission lasts.
                    ask.setResume(true).setWaitMs(hasTtl() ? Duration.ofNanos(leftNanos()).toMillis() : 0);
                    link = new Link();
                    broken = false;
                    answered = false;
                    renewals = 0;
                    opening = true;
                    openBy = now + Math.max(REDIAL_LEAST, Math.min(GRACE.toNanos(), leftNanos() / 3));
                } catch (NotReservedException e) {
                    if (releasing && e.getCause() == null) { // the lane was closed; a token may come back
                        return;
                    }
                    pause = Math.min(2 * pause, PAUSE_MAX);
                    redialAt = now + pause;
                }
            }
            if (opening && now - openBy >= 0) {
                opening = false;
                if (!broken && !answered && !link.attempt.isSent()) { // another attempt may meet a router that answers
                    silent.accept(link.attempt.begun());
                    link.end(); // its end is the next of the news
                    continue;
                }
            }
            if (!broken && !releasing && now - renewAt >= 0) {
                renewAt = now + permission.every();
                if (hasTtl() && answered && renewals >= UNHEARD_MAX) {
                    renewals = 0;
                    giveUpSilent();
                    link.end(); // its end is the next of the news
                    continue;
                }
                renewals++;
                renew();
            }
        }
    }

    /** Releases, and waits for the router's last frame. */
    private void sayRelease() throws InterruptedException {
        link.send(RELEASE);
        long end = clock.now() + RELEASE_MAX;
        for (long now = clock.now(); now - end < 0; now = clock.now()) {
            News next = next(end - now);
            if (next.link == link && (next.failure != null || next.frame.hasOver())) {
                return;
            }
        }
    }

    /** The exception for an ask that the router has not answered. */
    private static NotReservedException refused(Throwable failure) {
        Status status = Status.fromThrowable(failure);
        String code = switch (status.getCode()) {
            case INVALID_ARGUMENT, UNIMPLEMENTED, UNAUTHENTICATED, PERMISSION_DENIED -> "";
            case RESOURCE_EXHAUSTED -> OVERLOADED;
            default -> UNREACHABLE;
        };
        return new NotReservedException(code, Stream.text(status), Duration.ZERO, failure);
    }

    /** One stream. What comes on it goes into the news. */
    private final class Link implements StreamObserver<ReserveResponse> {
        private final Attempt attempt = new Attempt();
        private final ClientCall<ReserveRequest, ReserveResponse> call;
        private final StreamObserver<ReserveRequest> requests;
        private boolean ended;

        /** Opens a stream, and asks. It does not wait for a connection. */
        Link() {
            permission.ask(clock.now());
            unheard = null;
            call = streams.apply(attempt);
            requests = ClientCalls.asyncBidiStreamingCall(call, this);
            send(ReserveRequest.newBuilder().setAsk(ask).build());
        }

        void send(ReserveRequest frame) {
            if (!ended) {
                if (unheard == null) {
                    unheard = System.nanoTime();
                }
                requests.onNext(frame);
            }
        }

        void end() {
            ended = true;
            call.cancel("the reservation has ended, or is kept on another stream", null);
        }

        @Override
        public void onNext(ReserveResponse frame) {
            unheard = null;
            news.add(new News(this, frame, null));
        }

        @Override
        public void onError(Throwable failure) {
            news.add(new News(this, null, failure));
        }

        @Override
        public void onCompleted() {
            news.add(new News(this, null, Status.UNAVAILABLE.withDescription("the router ended the stream").asRuntimeException()));
        }
    }
}
