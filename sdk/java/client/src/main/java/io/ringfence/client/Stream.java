package io.ringfence.client;

import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.ringfence.client.proto.Drain;
import io.ringfence.client.proto.Hello;
import io.ringfence.client.proto.Ping;
import io.ringfence.client.proto.Pong;
import io.ringfence.client.proto.Progress;
import io.ringfence.client.proto.Revoke;
import io.ringfence.client.proto.Welcome;
import io.ringfence.client.proto.WorkRequest;
import io.ringfence.client.proto.WorkResponse;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.IntPredicate;
import java.util.stream.Collectors;
import javax.net.ssl.SSLException;

/**
 * One connection to the router. Frames are received in gRPC's thread, one at a time and in order, and sent by whichever
 * thread has something to send, one at a time.
 */
final class Stream {
    static final int VERSION = 1;
    /** More than the largest frame of any router. */
    static final int FRAME_BYTES_MAX = 72 << 20;

    /** Deadlines are compared with the clock so often while a stream, or one of its handlers, lives. */
    static final Duration CHECK_EVERY = Duration.ofMillis(50);

    /**
     * How long the router may leave Pings unanswered. A machine that vanishes closes no connection, and TCP notices only
     * after a quarter of an hour. It is counted in checks, so that time asleep does not count.
     */
    static final Duration SILENCE_MAX = Duration.ofSeconds(10);

    /** How long a receipt or a result waits to share a frame. */
    private static final long HOLD_MAX_NANOS = 200_000;

    /** The least time between two Progress frames: a handler that reports with each row would leave no room for anything else. */
    private static final long PROGRESS_EVERY_NANOS = 10_000_000;

    /** Bounds a Results frame, unless one reply is larger. The router takes 2 MiB. */
    private static final int RESULT_BYTES_MAX = 1 << 20;

    private static final Duration PING_EVERY = Duration.ofMillis(200); // until the router's Welcome sets another interval
    private static final int REASON_BYTES_MAX = 1 << 10; // until the router's Welcome sets another bound

    static final Metadata.Key<String> AUTHORIZATION = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);
    private static final WorkRequest HALF_CLOSE = WorkRequest.newBuilder().build(); // this very object

    private final Runner runner;
    private final ScheduledExecutorService timer;
    private final ClientCall<Object, Frame> call;
    final Sender sender; // of timers, over the same connection
    final States states; // of its turns
    private final CountDownLatch over = new CountDownLatch(1);

    // Guarded by the runner's lock.
    final Inbox<Event> inbox = new Inbox<>();
    private final ArrayDeque<WorkRequest.Builder> control = new ArrayDeque<>(); // goes before everything else
    private long given; // number of the newest Deliveries frame received
    private long told; // number of the newest Deliveries frame for which a receipt was sent
    private long sent; // number of the newest Results frame sent
    private long receipt; // number of the newest Results frame that the router has received
    private List<Event> ongoing = new ArrayList<>(0); // those with progress to be reported, each once
    private long progressAt = System.nanoTime(); // when the next Progress may be sent
    private int checksInSilence;
    private long holding; // since when something has been pending to send; 0 if nothing is
    private int reasonBytesMax = REASON_BYTES_MAX;
    private boolean halfClosed;
    private boolean sending; // a thread sends frames; it looks again before it stops
    private boolean finished;
    private ScheduledFuture<?> pinging;
    private Duration pingEvery = PING_EVERY;
    private RingfenceException.Kind gaveUp;

    /** An instant before which no handler's deadline passes. */
    private volatile long sure = Long.MIN_VALUE;

    /** The router asks when handlers ran. Set before the first delivery arrives. */
    volatile boolean intervals;

    private volatile Session session; // null before the Welcome
    private volatile boolean goingAway;
    private volatile Duration away = Duration.ZERO;
    private volatile Status end;

    private int held; // at the last call of the Window hook; used by the sending thread

    Stream(Runner runner, ManagedChannel channel, ScheduledExecutorService timer) {
        this.runner = runner;
        this.timer = timer;
        this.call = channel.newCall(Codec.WORK, CallOptions.DEFAULT);
        this.states = new States(runner.options.stateMax, runner::hasLost);
        this.sender = new Sender(channel, runner.options, Runnable::run); // a thread of a handler waits: nothing else is run by an answer
    }

    /** Opens the stream, with a token or null. */
    void open(String token) {
        Metadata headers = new Metadata();
        if (token != null) {
            headers.put(AUTHORIZATION, "Bearer " + token);
        }
        call.start(new Listener(), headers);
        call.request(Integer.MAX_VALUE); // receipts and the window bound what the router sends
        Worker.Builder o = runner.options;
        Hello.Builder hello = Hello.newBuilder().setWorker(o.name).setMaxInFlight(o.maxInFlight).setSdk(Worker.SDK)
                .setVersionMin(VERSION).setVersionMax(VERSION).addCapabilities("conformant");
        if (runner.clock.isRaw()) {
            hello.addCapabilities("raw_clock");
        }
        if (!o.calls.isEmpty()) {
            hello.addCapabilities("calls");
        }
        if (o.stateMax > 0) {
            hello.addCapabilities("state");
        }
        hello.addAllSchedules(o.schedules.declared);
        runner.lock.lock();
        try {
            control.add(WorkRequest.newBuilder().setHello(hello));
            queuePing(); // at once, so that the first deliveries need not wait for their deadline
            schedulePings();
        } finally {
            runner.lock.unlock();
        }
        flush();
    }

    /** Waits for the end of the stream. */
    void await() throws InterruptedException {
        over.await();
    }

    /** Waits for the end of the stream for some time, and reports whether it has come. */
    boolean await(Duration most) throws InterruptedException {
        return over.await(most.toNanos(), TimeUnit.NANOSECONDS);
    }

    boolean welcomed() {
        return session != null;
    }

    /** The least delay before the next stream. */
    Duration away() {
        return away;
    }

    /** Why the stream has ended. */
    RingfenceException failure() {
        Status status = end;
        String detail = status == null ? null : text(status);
        Throwable cause = status == null ? null : status.getCause();
        if (gaveUp != null) {
            return new RingfenceException(gaveUp, gaveUp == RingfenceException.Kind.SILENT ? null : detail, cause);
        } else if (goingAway) {
            return new RingfenceException(RingfenceException.Kind.GO_AWAY, detail, cause);
        } else if (welcomed()) {
            return new RingfenceException(RingfenceException.Kind.BROKEN, detail, cause);
        }
        RingfenceException.Kind kind = switch (status == null ? Status.Code.UNKNOWN : status.getCode()) {
            case UNAVAILABLE -> RingfenceException.Kind.UNREACHABLE;
            case UNAUTHENTICATED -> RingfenceException.Kind.UNAUTHENTICATED;
            case FAILED_PRECONDITION -> RingfenceException.Kind.VERSION;
            case RESOURCE_EXHAUSTED -> RingfenceException.Kind.TOO_MANY_WORKERS;
            default -> RingfenceException.Kind.REFUSED;
        };
        return new RingfenceException(kind, detail, cause);
    }

    /** Whether the router has refused the Hello because of one of the schedules, and named it. It would do so each time. */
    boolean refusedSchedule() {
        Status status = end;
        return status != null && status.getCode() == Status.Code.INVALID_ARGUMENT && !welcomed() && status.getDescription() != null
                && runner.options.schedules.areNamedIn(status.getDescription());
    }

    /** What a status says, in one line, with its innermost cause: gRPC describes a handshake that failed as "io exception" and a list of its pipeline. */
    static String text(Status status) {
        StringBuilder text = new StringBuilder(status.getCode().name());
        if (status.getDescription() != null) {
            long lines = status.getCode() == Status.Code.INVALID_ARGUMENT ? Long.MAX_VALUE : 1; // each of a router's says what else is wrong
            text.append(": ").append(status.getDescription().lines().limit(lines).collect(Collectors.joining("; ")));
        }
        Throwable root = null;
        boolean tls = false;
        for (Throwable cause = status.getCause(); cause != null; cause = cause.getCause()) {
            tls |= cause instanceof SSLException;
            root = cause;
        }
        if (root != null && root.getMessage() != null && text.indexOf(root.getMessage()) < 0) {
            text.append(tls ? ": TLS failed: " : ": ").append(root.getMessage());
        }
        return text.toString();
    }

    /** Ends the stream at once. Its handlers may continue until their deadlines. */
    void giveUp(RingfenceException.Kind why) {
        runner.lock.lock();
        try {
            if (gaveUp == null) {
                gaveUp = why;
            }
        } finally {
            runner.lock.unlock();
        }
        call.cancel("the worker gives the stream up: " + why, null);
    }

    /** Tells the router to send no further deliveries. The stream ends when all are answered. */
    void drain() {
        runner.lock.lock();
        try {
            if (inbox.draining() || finished) {
                return;
            }
            inbox.drain();
            control.add(WorkRequest.newBuilder().setDrain(Drain.newBuilder().setReason("the application ends").setNode(runner.options.leaveGroup)));
        } finally {
            runner.lock.unlock();
        }
        flush();
    }

    /** Receives frames. */
    private final class Listener extends ClientCall.Listener<Frame> {
        @Override
        public void onMessage(Frame frame) {
            try {
                handle(frame);
            } catch (Throwable failure) { // gRPC would only cancel the call
                runner.log.log(Level.ERROR, "the SDK failed at a frame of the router: please report this", failure);
                giveUp(RingfenceException.Kind.BROKEN);
            }
        }

        @Override
        public void onClose(Status status, Metadata trailers) {
            runner.lock.lock();
            try {
                finished = true;
                if (pinging != null) {
                    pinging.cancel(false);
                }
                control.clear();
            } finally {
                runner.lock.unlock();
            }
            end = status;
            over.countDown();
        }
    }

    private void handle(Frame frame) {
        List<Event> lost = new ArrayList<>(0);
        List<Event> slow = new ArrayList<>(0);
        boolean first = false;
        boolean telling;
        Runner.HandlerThread woken;
        runner.lock.lock();
        try {
            checksInSilence = 0;
            if (Long.compareUnsigned(frame.receipt, sent) > 0) { // no result would follow it
                call.cancel("the router sent a receipt for Results frame " + Long.toUnsignedString(frame.receipt) + ", but only " + sent + " were sent", null);
                return;
            }
            if (frame.number == 0 && !frame.events.isEmpty()) { // no receipt could tell the router that they have come
                call.cancel("deliveries without a number", null);
                return;
            }
            receipt = Math.max(receipt, frame.receipt);
            if (frame.number != 0) {
                given = frame.number;
                for (Event event : frame.events) {
                    event.stream = this;
                    inbox.give(event);
                }
            } else if (frame.other != null) {
                first = control(frame.other, lost, slow);
            }
            woken = runner.live == this ? runner.wakeOne() : null;
            telling = tell(runner.clock.fast());
        } finally {
            runner.lock.unlock();
        }
        runner.go(woken);
        runner.cancel(lost, Event.Cancellation.KEY_LOST);
        if (!slow.isEmpty()) {
            List<Event> calls = new ArrayList<>(slow);
            boolean timedOut = frame.other.getRevoke().getTimedOut();
            calls.removeIf(event -> timedOut || event.arrival == null);
            slow.removeAll(calls);
            runner.cancel(slow, Event.Cancellation.HANDLER_TIMEOUT);
            runner.cancel(calls, Event.Cancellation.CALLER_GONE);
        }
        if (first) {
            runner.options.connected(runner, session); // before its first event
        }
        if (telling) {
            flush();
        }
    }

    /** Processes any frame but Deliveries. Reports whether it was the first Welcome. The lock is held. */
    private boolean control(WorkResponse frame, List<Event> lost, List<Event> slow) {
        switch (frame.getFrameCase()) {
            case WELCOME -> {
                return welcome(frame.getWelcome());
            }
            case PONG -> {
                Pong pong = frame.getPong();
                inbox.pong(runner.clock.now(), pong.getK(), pong.getRemainingNs(), pong.getDrainingList(), lost::add);
                if (inbox.shared()) {
                    sure = inbox.newest();
                }
                runner.clock.renewed(inbox.newest());
            }
            case REVOKE -> revoke(frame.getRevoke(), slow);
            case SUSPEND -> inbox.suspend();
            case RESUME -> inbox.resume();
            case GO_AWAY -> {
                goingAway = true;
                away = Duration.ofMillis(Integer.toUnsignedLong(frame.getGoAway().getRetryAfterMs()));
                runner.log.log(Level.INFO, "the router ends the stream: {0}", frame.getGoAway().getReason());
            }
            default -> { } // a frame of a later router
        }
        return false;
    }

    private boolean welcome(Welcome welcome) {
        if (welcome.getVersion() != VERSION) {
            gaveUp = RingfenceException.Kind.VERSION;
            call.cancel("the router chose version " + welcome.getVersion() + ", this SDK supports " + VERSION, null);
            return false;
        }
        if (session != null) {
            return false; // Welcome is the first frame, and only that
        }
        intervals = welcome.getCapabilitiesList().contains("intervals");
        int inFlightMax = runner.options.maxInFlight;
        if (welcome.getLimits().getMaxInFlight() > 0) {
            inFlightMax = Math.min(inFlightMax, welcome.getLimits().getMaxInFlight());
        }
        if (welcome.getLimits().getReasonMaxBytes() > 0) {
            reasonBytesMax = welcome.getLimits().getReasonMaxBytes();
        }
        if (welcome.getLimits().getPingIntervalMs() > 0) {
            pingEvery = Duration.ofMillis(welcome.getLimits().getPingIntervalMs());
            schedulePings();
        }
        session = new Session(welcome.getNode(), welcome.getGroup(), welcome.getWorker(), inFlightMax);
        runner.log.log(Level.INFO, "connected to the router: node {0}, group {1}, worker {2}", session.node(), session.group(), session.worker());
        return true;
    }

    /**
     * Takes back partitions, whose handlers may continue until their deadline, and single deliveries whose handler took too
     * long: {@code slow} gets those that run.
     */
    private void revoke(Revoke revoke, List<Event> slow) {
        if (revoke.getAll() || revoke.getPartitionsCount() > 0) {
            Set<Integer> partitions = new HashSet<>(revoke.getPartitionsList());
            IntPredicate hit = partition -> revoke.getAll() || partitions.contains(partition);
            inbox.revoke(event -> hit.test(event.partition));
            states.forget(hit);
        }
        if (revoke.getDeliveryIdsCount() > 0) {
            Set<Long> single = new HashSet<>(revoke.getDeliveryIdsList());
            inbox.cut(event -> single.contains(event.id), slow::add);
        }
    }

    /** Schedules Pings at the present interval. The lock is held. */
    private void schedulePings() {
        if (finished) {
            return;
        }
        if (pinging != null) {
            pinging.cancel(false);
        }
        // With a fixed delay: a process that was frozen does not make up for the Pings of that time.
        pinging = timer.scheduleWithFixedDelay(this::ping, pingEvery.toMillis(), pingEvery.toMillis(), TimeUnit.MILLISECONDS);
    }

    private void ping() {
        try {
            runner.lock.lock();
            try {
                if (finished || halfClosed) {
                    return;
                }
                queuePing();
            } finally {
                runner.lock.unlock();
            }
            flush();
        } catch (Throwable failure) { // it would end the timer in silence
            runner.log.log(Level.ERROR, "a Ping could not be sent", failure);
        }
    }

    /** Queues a Ping. The clock is read before the frame is sent: deadlines count from that instant. The lock is held. */
    private void queuePing() {
        control.add(WorkRequest.newBuilder().setPing(Ping.newBuilder().setK(inbox.sendPing(runner.clock.now()))));
    }

    /** Counts a check of deadlines, and reports whether the router has sent nothing for too long. The lock is held. */
    boolean silentFor() {
        return ++checksInSilence > SILENCE_MAX.dividedBy(CHECK_EVERY);
    }

    /**
     * Reports whether there is something to send now: results, of which one frame is under way at a time, or the receipt,
     * which asks for the next deliveries. Both wait up to {@link #HOLD_MAX_NANOS} while a woken thread has not taken its
     * event yet: it asks again within microseconds, and most handlers end soon, so that one frame replaces three. The lock
     * is held.
     */
    boolean tell(long now) {
        if (inbox.draining() || !control.isEmpty() || progressDue()) {
            return true;
        }
        if (told == given && (receipt != sent || inbox.results.isEmpty())) {
            return false;
        }
        if (holding == 0) {
            holding = now;
        }
        return !runner.waking || now - holding >= HOLD_MAX_NANOS;
    }

    /** Sends all that may be sent. If another thread is sending, that one does it. */
    void flush() {
        runner.lock.lock();
        try {
            if (sending) {
                return; // it holds no lock while it writes, and looks again
            }
            sending = true;
            for (Object frame = next(); frame != null; frame = next()) {
                runner.lock.unlock();
                try {
                    write(frame);
                } finally {
                    runner.lock.lock();
                }
            }
            sending = false;
        } catch (RuntimeException | Error failure) {
            sending = false;
            if (!finished) { // else the stream has ended meanwhile, and its status says why
                call.cancel("a frame could not be sent", failure);
            }
        } finally {
            runner.lock.unlock();
        }
    }

    private void write(Object frame) {
        if (frame == HALF_CLOSE) {
            call.halfClose();
            return;
        }
        call.sendMessage(frame);
        Session current = session;
        if (current != null && runner.options.hooks != Worker.Builder.NO_HOOKS) {
            tellWindow(current);
        }
    }

    private void tellWindow(Session current) {
        int now;
        runner.lock.lock();
        try {
            now = inbox.held();
        } finally {
            runner.lock.unlock();
        }
        if (now != held) {
            held = now;
            runner.options.window(runner, now, current.inFlightMax());
        }
    }

    /** Tells the hook that no event of this stream is unanswered any more. */
    void closeWindow() {
        if (held != 0) {
            runner.options.window(runner, 0, session.inFlightMax());
        }
    }

    /** The next frame to send, or null. The lock is held. */
    private Object next() {
        if (finished || halfClosed) {
            return null;
        }
        WorkRequest.Builder first = control.poll();
        if (first != null) {
            told = given;
            return first.setReceipt(given).build();
        }
        holding = 0;
        if (progressDue()) {
            progressAt = System.nanoTime() + PROGRESS_EVERY_NANOS;
            Progress.Builder progress = Progress.newBuilder();
            for (Event event : ongoing) {
                event.reports = false;
                if (!event.hasReturned()) { // no report follows an answer
                    progress.addDeliveryIds(event.id);
                }
            }
            ongoing = new ArrayList<>(0);
            if (progress.getDeliveryIdsCount() > 0) {
                told = given;
                return WorkRequest.newBuilder().setReceipt(given).setProgress(progress).build();
            }
        }
        if (!inbox.results.isEmpty() && receipt == sent) {
            told = given;
            sent++;
            return results();
        }
        if (told < given) {
            told = given;
            return WorkRequest.newBuilder().setReceipt(given).build();
        }
        if (inbox.draining() && inbox.held() == 0 && inbox.results.isEmpty() && receipt == sent) {
            halfClosed = true; // the router closes its side when it has read everything
            return HALF_CLOSE;
        }
        return null;
    }

    /** Takes results, as many as fit into a frame. The lock is held. */
    private ResultsFrame results() {
        ResultsFrame frame = new ResultsFrame(given, sent, inbox.results.size());
        boolean any = false;
        while (!inbox.results.isEmpty() && frame.size() < RESULT_BYTES_MAX) {
            byte[] reply = inbox.results.peek().reply;
            if (any && reply != null && frame.size() + reply.length > RESULT_BYTES_MAX) {
                break;
            }
            frame.add(inbox.results.poll(), reasonBytesMax);
            any = true;
        }
        return frame;
    }

    /** Whether a Progress is to be sent now. Otherwise the next frame, or check of deadlines, looks again. The lock is held. */
    private boolean progressDue() {
        return !ongoing.isEmpty() && System.nanoTime() - progressAt >= 0;
    }

    /** Queues a Progress for an event. None follows its answer. */
    void progress(Event event) {
        if (event.reports) {
            return; // it is queued
        }
        runner.lock.lock();
        try {
            if (finished || event.reports || event.hasReturned()) {
                return;
            }
            event.reports = true;
            ongoing.add(event);
        } finally {
            runner.lock.unlock();
        }
        flush();
    }

    /**
     * Reports whether the deadline of a running delivery has passed, and then cancels all overdue handlers. The lock is
     * taken only near the deadline.
     */
    boolean overdue(Event event) {
        if (runner.clock.fast() < sure) {
            return false;
        }
        List<Event> lost = new ArrayList<>();
        runner.lock.lock();
        try {
            long now = runner.clock.now();
            if (now < inbox.deadline(event)) {
                return false;
            }
            inbox.check(now, lost::add);
        } finally {
            runner.lock.unlock();
        }
        runner.cancel(lost, Event.Cancellation.KEY_LOST);
        event.cancel(Event.Cancellation.KEY_LOST); // another thread may have found it overdue and not cancelled it yet
        return true;
    }

    /** Reports whether the deadline of a running delivery has passed. Unlike {@link #overdue} it cancels nothing. */
    boolean passed(Event event) {
        if (runner.clock.fast() < sure) {
            return false;
        }
        runner.lock.lock();
        try {
            return runner.clock.now() >= inbox.deadline(event);
        } finally {
            runner.lock.unlock();
        }
    }

    /** How long the lease of a delivery still lasts. */
    Duration left(Event event) {
        long now = runner.clock.now();
        runner.lock.lock();
        try {
            return Duration.ofNanos(Math.max(0, inbox.deadline(event) - now));
        } finally {
            runner.lock.unlock();
        }
    }
}
