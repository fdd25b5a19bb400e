package io.ringfence.junit5;

import com.google.protobuf.ByteString;
import io.grpc.BindableService;
import io.grpc.Server;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.inprocess.InProcessChannelBuilder;
import io.grpc.inprocess.InProcessServerBuilder;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.StreamObserver;
import io.ringfence.client.Event;
import io.ringfence.client.Fence;
import io.ringfence.client.Handler;
import io.ringfence.client.Lane;
import io.ringfence.client.LeaseClock;
import io.ringfence.client.MessageId;
import io.ringfence.client.Property;
import io.ringfence.client.Timer;
import io.ringfence.client.Worker;
import io.ringfence.client.proto.AppServiceGrpc;
import io.ringfence.client.proto.Call;
import io.ringfence.client.proto.Deliveries;
import io.ringfence.client.proto.Firing;
import io.ringfence.client.proto.Hello;
import io.ringfence.client.proto.InvokeRequest;
import io.ringfence.client.proto.InvokeResponse;
import io.ringfence.client.proto.LaneServiceGrpc;
import io.ringfence.client.proto.Limits;
import io.ringfence.client.proto.Pong;
import io.ringfence.client.proto.Result;
import io.ringfence.client.proto.Results;
import io.ringfence.client.proto.Revoke;
import io.ringfence.client.proto.SendRequest;
import io.ringfence.client.proto.SendResponse;
import io.ringfence.client.proto.Welcome;
import io.ringfence.client.proto.WorkRequest;
import io.ringfence.client.proto.WorkResponse;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.ResourceBundle;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.regex.Pattern;

/**
 * A router in memory: it tests a handler through the real SDK and a real stream, without a router process or a broker.
 *
 * <pre>{@code
 * router.start(handler);
 * TestRouter.Delivery delivery = router.deliver(Event.of("user-7").payload("hello"));
 * assertEquals(Outcome.Kind.DONE, delivery.outcome().kind());
 * }</pre>
 *
 * <p>Events of one key are given to the handler one at a time, in the order of {@link #deliver}; different keys run at
 * once. The router retries nothing: it records the outcome, and {@link Delivery#redeliver} makes the next attempt.
 * {@link #lose} moves a key to another machine while its handler runs, {@link #expire} lets the lease run out, and
 * {@link #disconnect} breaks the streams. Leases last for an hour of the router's own clock, which lose and expire move
 * forward, so a slow machine cancels nothing by accident. What handlers set as timers, and what a lane sends, is recorded ({@link #sent}), and comes
 * back when the test says so.
 *
 * <p>All methods are safe for concurrent use.
 */
public final class TestRouter implements AutoCloseable {
    /** The time between the router's clock and the end of its lease. */
    static final Duration LEASE = Duration.ofHours(1);

    /** How long {@link Delivery#outcome}, {@link #start} and {@link #lose} wait before they fail the test. */
    public static final Duration WAIT_MAX = Duration.ofSeconds(30);

    private static final InvokeResponse NOT_RUN = InvokeResponse.newBuilder().setOutcome(io.ringfence.client.proto.Outcome.OUTCOME_NOT_RUN).build();

    /** Of the ids of events that a test gives none, and of those that routers make themselves. */
    private static final MessageId NO_ID = new MessageId(0, 0, -1, -1);
    private static final long SENT_LEDGER = 1L << 61;

    // What routers take, in bytes unless stated otherwise.
    private static final Pattern METHOD = Pattern.compile("[A-Za-z0-9._-]{1,64}");
    private static final int KEY_MAX = 4096;
    private static final int CALL_ID_MAX = 128;
    private static final int SEND_ID_MAX = 256;
    private static final int PROPERTY_MAX = 4096; // of name and value
    private static final int PATH_MAX = 8; // hashes
    private static final int PROPERTIES_MAX = 64; // in one event
    private static final Duration CALL_TIMEOUT_MAX = Duration.ofMinutes(10);
    private static final long CALL_LEDGER = 1L << 62;

    private static final int PARTITIONS = 4_093;
    private static final int PING_INTERVAL_MS = 20;
    private static final int REASON_BYTES_MAX = 1024;
    private static final int FRAME_BYTES_MAX = 9 << 20;
    private static final int DELIVERIES_MAX = 2_048; // in one frame

    private final Server server;
    private final String address = "ringfence-" + UUID.randomUUID();
    private final Duration handlerTimeout; // null: none
    private final ScheduledExecutorService timer; // null without a timeout

    /** How far the router's clock is ahead of the real one. Written under the lock. */
    private volatile long ahead;

    // Guarded by this.
    private long until; // end of the lease
    private final List<Session> sessions = new ArrayList<>();
    private final Map<ByteBuffer, Box> boxes = new LinkedHashMap<>();
    private final ArrayDeque<Box> ready = new ArrayDeque<>(); // keys with waiting deliveries and no running one, in order
    private final Map<Integer, Long> tokens = new HashMap<>(); // of partitions that have moved
    private final Map<WorkerClock, Long> deadlines = new HashMap<>();
    private final List<Worker> workers = new ArrayList<>();
    private final List<Sent> sent = new ArrayList<>();
    private long entries; // of the ids that the router has given
    private long deliveries; // counts them, and is the turn of the newest one
    private int partitions;
    private long connections; // Welcomes so far
    private boolean closed;

    /** Starts a router without a timeout for handlers. */
    public TestRouter() {
        this(null);
    }

    /**
     * Starts a router.
     *
     * @param handlerTimeout as handler.timeout of a router: a handler that takes longer without {@link Event#progress} is
     *     cancelled, up to a quarter of the timeout later. It runs on the real time. Null for none
     */
    public TestRouter(Duration handlerTimeout) {
        this.handlerTimeout = handlerTimeout;
        until = now() + LEASE.toNanos();
        try {
            server = InProcessServerBuilder.forName(address).addService(new Service()).addService(new LaneService()).build().start();
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        if (handlerTimeout == null) {
            timer = null;
            return;
        }
        timer = Executors.newSingleThreadScheduledExecutor(task -> {
            Thread thread = new Thread(task, "ringfence-test-router");
            thread.setDaemon(true);
            return thread;
        });
        long every = Math.max(1, handlerTimeout.toMillis() / 4);
        timer.scheduleWithFixedDelay(this::cutOverlong, every, every, TimeUnit.MILLISECONDS);
    }

    /**
     * Begins a worker beside this router, with the options of {@link #connect}.
     *
     * @param handler the handler
     * @return a builder for one worker
     */
    public Worker.Builder worker(Handler handler) {
        Worker.Builder options = Worker.builder(handler);
        connect(options);
        return options;
    }

    /**
     * Makes a worker connect to this router: sets its connections, its clock, no token, and a log that discards everything.
     * It is for a worker that is not built by this class, such as that of a framework.
     *
     * @param options the options of one worker
     */
    public void connect(Worker.Builder options) {
        options.channels(() -> InProcessChannelBuilder.forName(address).maxInboundMessageSize(Integer.MAX_VALUE).build())
                .leaseClock(new WorkerClock()).tokenFile(null).logger(new NoLog());
    }

    /**
     * Starts a worker, and returns when its stream is established. It ends with the router.
     *
     * @param handler the handler
     * @return the worker
     */
    public Worker start(Handler handler) {
        return start(handler, options -> { });
    }

    /**
     * Starts a worker with options, and returns when its stream is established. It ends with the router.
     *
     * @param handler the handler
     * @param options sets options
     * @return the worker
     * @throws IllegalArgumentException if an option is refused
     */
    public Worker start(Handler handler, Consumer<Worker.Builder> options) {
        Worker.Builder builder = worker(handler);
        options.accept(builder);
        synchronized (this) {
            long before = connections;
            Worker worker = builder.start();
            workers.add(worker);
            await(() -> connections > before, "the worker did not connect");
            return worker;
        }
    }

    /**
     * Queues an event for the handler, as {@link #deliver(Event)} does.
     *
     * @param event the event to build
     * @return its delivery
     */
    public Delivery deliver(Event.Builder event) {
        return deliver(event.build());
    }

    /**
     * Queues an event for the handler. All fields reach the handler unchanged, but a fence of which a number is 0, and the id
     * 0:0:-1:-1: the router sets them. Each delivery has a greater turn than the one before.
     *
     * @param event the event
     * @return its delivery
     */
    public Delivery deliver(Event event) {
        return add(new Delivery(event, event.attempt(), event.messageId().equals(NO_ID) ? nextId(1) : event.messageId()));
    }

    /**
     * Delivers a call, as its owner does, behind what waits for the key already. Its reply is in its outcome. Nobody waits for it here:
     * {@link Delivery#giveUp} is what its caller does when it waits no longer. {@link #lane} calls by the real protocol.
     *
     * @param key its key
     * @param method its method
     * @param payload its argument
     * @return the delivery
     */
    public Delivery call(String key, String method, byte[] payload) {
        return call(Event.of(key).payload(payload).build(), Call.newBuilder().setMethod(method).setTimeoutMs(WAIT_MAX.toMillis()).build());
    }

    /**
     * Delivers a firing of a schedule, behind what waits for the key schedule/NAME already. Whether it is one of the times of the schedule is
     * not looked at, and {@link Delivery#redeliver} makes the next attempt.
     *
     * @param schedule the name of the schedule
     * @param time the time that the firing is for, and when it was due: there is no jitter
     * @param missed how many earlier times it is for, too
     * @return the delivery
     */
    public Delivery fire(String schedule, Instant time, long missed) {
        Event event = Event.of("schedule/" + schedule).timer(new Timer(schedule, time)).messageId(nextId(SENT_LEDGER)).build();
        Delivery delivery = new Delivery(event, 1, event.messageId());
        delivery.firing = Firing.newBuilder().setTimeMs(time.toEpochMilli()).setMissed((int) missed).build();
        return add(delivery);
    }

    private Delivery call(Event event, Call call) {
        Delivery delivery = new Delivery(event, 1, nextId(CALL_LEDGER));
        delivery.call = call;
        return add(delivery);
    }

    private synchronized MessageId nextId(long ledger) {
        return new MessageId(ledger, ++entries, -1, -1);
    }

    /**
     * Returns what the router was to publish, in the order of its coming: timers of handlers that have returned, and what lanes have sent.
     *
     * @return a copy
     */
    public synchronized List<Sent> sent() {
        return List.copyOf(sent);
    }

    /** An event that the router was to publish. */
    public final class Sent {
        private final SendRequest request;
        private final MessageId id;
        private final Instant due;

        Sent(SendRequest request, MessageId id) {
            this.request = request;
            this.id = id;
            this.due = request.getAtMs() > 0 ? Instant.ofEpochMilli(request.getAtMs()) : Instant.ofEpochMilli(System.currentTimeMillis() + request.getAfterMs());
        }

        /**
         * Returns the key.
         *
         * @return the key as UTF-8
         */
        public String key() {
            return request.getKey().toStringUtf8();
        }

        /**
         * Returns the payload.
         *
         * @return a copy
         */
        public byte[] payload() {
            return request.getPayload().toByteArray();
        }

        /**
         * Returns the name of the timer.
         *
         * @return the name, empty for none
         */
        public String name() {
            return request.getName();
        }

        /**
         * Returns the sender's id: a second event with the same key and id is not recorded.
         *
         * @return the id, empty for none
         */
        public String id() {
            return request.getId();
        }

        /**
         * Returns the properties.
         *
         * @return the properties
         */
        public Map<String, String> properties() {
            return request.getPropertiesMap();
        }

        /**
         * Returns after which time it is due.
         *
         * @return zero if it is due at once, or at a time
         */
        public Duration after() {
            return Duration.ofMillis(request.getAfterMs());
        }

        /**
         * Returns when it is due.
         *
         * @return the time
         */
        public Instant due() {
            return due;
        }

        /**
         * Returns the id that the sender was told.
         *
         * @return the id
         */
        public MessageId messageId() {
            return id;
        }

        /**
         * Gives the event to the handler, as when it is due.
         *
         * @return its delivery
         */
        public Delivery deliver() {
            Event.Builder event = Event.of(request.getKey().toByteArray()).payload(payload()).messageId(id).timer(new Timer(name(), due));
            request.getPropertiesMap().forEach(event::property);
            return TestRouter.this.deliver(event);
        }
    }

    private static int bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8).length;
    }

    private static boolean isKey(ByteString key) {
        return !key.isEmpty() && key.size() <= KEY_MAX;
    }

    /** Whether routers take a call. */
    private static boolean isCallable(InvokeRequest request) {
        return isKey(request.getKey()) && METHOD.matcher(request.getMethod()).matches() && bytes(request.getId()) <= CALL_ID_MAX
                && request.getPathCount() <= PATH_MAX && Long.compareUnsigned(request.getTimeoutMs(), CALL_TIMEOUT_MAX.toMillis()) <= 0;
    }

    /** Whether routers take an event, whose name, payload and delay have been checked as those of a timer. Its time is not checked: a test may have a fixed one. */
    private static boolean isSendable(SendRequest request) {
        long properties = request.getPropertiesMap().keySet().stream().filter(name -> !name.equals("traceparent")).count(); // SDKs add that, and not the sender
        return isKey(request.getKey()) && (request.getAfterMs() == 0 || request.getAtMs() == 0) && bytes(request.getId()) <= SEND_ID_MAX
                && properties <= PROPERTIES_MAX
                && request.getPropertiesMap().entrySet().stream().allMatch(property -> isProperty(property.getKey(), property.getValue()));
    }

    private static boolean isProperty(String name, String value) {
        return !name.isEmpty() && bytes(name) + bytes(value) <= PROPERTY_MAX && !name.toLowerCase(Locale.ROOT).startsWith("ringfence-");
    }

    /** Records an event, as a router publishes it. Returns null if routers refuse it. */
    private synchronized Sent publish(SendRequest request) {
        try {
            Event.of(request.getKey().toByteArray()).build().after(Duration.ofMillis(request.getAfterMs()), request.getName(), request.getPayload().toByteArray());
        } catch (IllegalArgumentException refused) {
            return null;
        }
        if (!isSendable(request)) {
            return null;
        }
        for (Sent one : sent) {
            if (!request.getId().isEmpty() && one.id().equals(request.getId()) && one.request.getKey().equals(request.getKey())) {
                return one;
            }
        }
        Sent one = new Sent(request, nextId(SENT_LEDGER));
        sent.add(one);
        return one;
    }

    /**
     * Returns a lane to this router.
     *
     * @return the lane; close it
     */
    public Lane lane() {
        return Lane.builder().channels(() -> InProcessChannelBuilder.forName(address).build()).tokenFile(null).dial();
    }

    private synchronized Delivery add(Delivery delivery) {
        if (closed) {
            throw new IllegalStateException("the test router is closed");
        }
        Box box = boxes.computeIfAbsent(ByteBuffer.wrap(delivery.event.keyBytes()), key -> new Box(partitions++ % PARTITIONS));
        box.queue.add(delivery);
        if (box.running == null && box.queue.size() == 1) {
            ready.add(box);
        }
        dispatch();
        return delivery;
    }

    /**
     * Moves a key away: its waiting deliveries are not started, and its running handler is cancelled with KeyLostException.
     * Other keys are not affected. When it returns, the router's clock is past the deadline of the handler, which is
     * cancelled within 50 ms. Later deliveries have a fence with a higher token.
     *
     * @param key the key
     */
    public synchronized void lose(String key) {
        Box box = boxes.get(ByteBuffer.wrap(key.getBytes(StandardCharsets.UTF_8)));
        if (box == null) {
            throw new IllegalArgumentException("no event of the key \"" + key + "\" was delivered");
        }
        tokens.merge(box.partition, 1L, Long::sum);
        ready.removeIf(other -> other.partition == box.partition);
        for (Box other : boxes.values()) {
            if (other.partition == box.partition) {
                other.queue.forEach(delivery -> delivery.end(Outcome.Kind.NOT_STARTED));
                other.queue.clear();
            }
        }
        Revoke revoke = Revoke.newBuilder().addPartitions(box.partition).setReason("the key moves").build();
        sessions.forEach(session -> session.send(WorkResponse.newBuilder().setRevoke(revoke)));

        // The running handler may continue until the end of the present lease. Renew it for the other keys, and when all
        // workers know, move the clock past the old end.
        long old = until;
        until += LEASE.toNanos();
        await(() -> sessions.isEmpty() || deadlines.values().stream().allMatch(deadline -> deadline > old), "the workers sent no Pings");
        passTo(old);
    }

    /**
     * Lets the lease run out, as happens to a router that has lost its broker: every running handler is cancelled with
     * KeyLostException, and deliveries whose stream has broken are lost. Then there is a new lease.
     */
    public synchronized void expire() {
        passTo(until);
        until += LEASE.toNanos();
        for (Box box : boxes.values()) {
            box.session = null;
            if (box.running != null && box.running.session.gone) {
                finish(box, box.running, new Outcome(Outcome.Kind.LOST, Duration.ZERO, ""));
            }
        }
        dispatch();
    }

    /** Breaks the streams of all workers. They reconnect by themselves; their running deliveries are LOST at {@link #expire}. */
    public synchronized void disconnect() {
        List<Session> all = new ArrayList<>(sessions);
        sessions.clear();
        all.forEach(session -> session.fail(Status.UNAVAILABLE.withDescription("the test broke the stream")));
    }

    /** Ends all workers, which drain, and the router. */
    @Override
    public void close() {
        List<Worker> all;
        synchronized (this) {
            if (closed) {
                return;
            }
            closed = true;
            all = new ArrayList<>(workers);
        }
        all.forEach(Worker::stop);
        RuntimeException failed = null;
        for (Worker worker : all) {
            try {
                worker.close();
            } catch (RuntimeException e) {
                failed = e;
            }
        }
        server.shutdownNow();
        if (timer != null) {
            timer.shutdownNow();
        }
        if (failed != null) {
            throw failed;
        }
    }

    private long now() {
        return System.nanoTime() + ahead;
    }

    /** Moves the clock forward to an instant. The lock is held. */
    private void passTo(long instant) {
        ahead += Math.max(0, instant - now());
    }

    /** A condition that a test waits for. */
    private interface Condition {
        boolean holds();
    }

    /** Waits for a condition, which changes with notifyAll. The lock is held, but not while it waits. */
    private void await(Condition condition, String otherwise) {
        long end = System.nanoTime() + WAIT_MAX.toNanos();
        while (!condition.holds()) {
            long left = end - System.nanoTime();
            if (left <= 0) {
                throw new AssertionError(otherwise + " for " + WAIT_MAX);
            }
            try {
                TimeUnit.NANOSECONDS.timedWait(this, left);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new AssertionError("the test was interrupted while " + otherwise, e);
            }
        }
    }

    /** Gives ready deliveries to workers. The lock is held. */
    private void dispatch() {
        for (Session session : sessions) {
            if (!session.takes() || ready.isEmpty()) {
                continue;
            }
            Deliveries.Builder frame = Deliveries.newBuilder().setNumber(session.framesSent + 1);
            while (!ready.isEmpty() && session.running.size() < session.window && frame.getDeliveriesCount() < DELIVERIES_MAX) {
                Box box = ready.poll();
                Delivery delivery = box.queue.poll();
                if (delivery.call != null && !session.calls) {
                    delivery.code = "no_handler";
                    finish(box, delivery, new Outcome(Outcome.Kind.NOT_STARTED, Duration.ZERO, "the worker takes no calls"));
                    continue;
                }
                box.give(delivery, session);
                delivery.box = box;
                delivery.session = session;
                delivery.since = System.nanoTime();
                long id = ++deliveries;
                session.running.put(id, delivery);
                delivery.write(frame, id, new Fence(1 + tokens.getOrDefault(box.partition, 0L), id));
            }
            if (frame.getDeliveriesCount() > 0) {
                session.framesSent++;
                session.send(WorkResponse.newBuilder().setDeliveries(frame));
            }
        }
    }

    /** Ends a delivery and makes the next one of its key ready. The lock is held. */
    private void finish(Box box, Delivery delivery, Outcome outcome) {
        box.running = null;
        if (!box.queue.isEmpty()) {
            ready.add(box);
        }
        delivery.future.complete(outcome);
    }

    private synchronized void cutOverlong() {
        long before = System.nanoTime() - handlerTimeout.toNanos();
        for (Session session : sessions) {
            Revoke.Builder revoke = Revoke.newBuilder().setTimedOut(true).setReason("handler.timeout");
            session.running.forEach((id, delivery) -> {
                if (!delivery.timedOut && delivery.since - before < 0) {
                    delivery.timedOut = true;
                    revoke.addDeliveryIds(id);
                }
            });
            if (revoke.getDeliveryIdsCount() > 0) {
                session.send(WorkResponse.newBuilder().setRevoke(revoke));
            }
        }
    }

    /** One key with deliveries. */
    private static final class Box {
        private final int partition;
        private final ArrayDeque<Delivery> queue = new ArrayDeque<>();
        private Delivery running;
        private Session session; // that of the last turn; null: another router may have had a turn since
        private long generation; // counts its changes

        Box(int partition) {
            this.partition = partition;
        }

        /** Begins a turn of the key. */
        void give(Delivery delivery, Session to) {
            running = delivery;
            if (session != to) {
                session = to;
                generation++;
            }
        }
    }

    /** The lease clock of one worker. */
    private final class WorkerClock implements LeaseClock {
        @Override
        public long now() {
            return TestRouter.this.now();
        }

        @Override
        public long bootNanos() {
            return LeaseClock.system().bootNanos();
        }

        @Override
        public void renewed(long deadline) {
            synchronized (TestRouter.this) {
                deadlines.put(this, deadline);
                TestRouter.this.notifyAll();
            }
        }

        @Override
        public void ended() {
            synchronized (TestRouter.this) {
                deadlines.remove(this);
                TestRouter.this.notifyAll();
            }
        }
    }

    /**
     * Returns the router as a gRPC service, for a server of the test's with a real socket. Its workers need the options of
     * {@link #connect} too, with other channels.
     *
     * @return the service
     */
    public BindableService service() {
        return new Service();
    }

    private final class Service extends AppServiceGrpc.AppServiceImplBase {
        @Override
        public StreamObserver<WorkRequest> work(StreamObserver<WorkResponse> out) {
            return new Session(out);
        }
    }

    /**
     * Returns the router's service for lanes, beside {@link #service}.
     *
     * @return the service
     */
    public BindableService laneService() {
        return new LaneService();
    }

    private final class LaneService extends LaneServiceGrpc.LaneServiceImplBase {
        @Override
        public void invoke(InvokeRequest request, StreamObserver<InvokeResponse> out) {
            if (!isCallable(request)) {
                out.onError(Status.INVALID_ARGUMENT.withDescription("a key, a method, an id, a path or a timeout that routers refuse").asRuntimeException());
                return;
            }
            long ms = request.getTimeoutMs() > 0 ? request.getTimeoutMs() : TimeUnit.SECONDS.toMillis(10);
            Call call = Call.newBuilder().setMethod(request.getMethod()).setId(request.getId()).setTimeoutMs(ms).addAllPath(request.getPathList()).build();
            Delivery delivery = call(Event.of(request.getKey().toByteArray()).payload(request.getPayload().toByteArray()).build(), call);
            ((ServerCallStreamObserver<InvokeResponse>) out).setOnCancelHandler(delivery::giveUp); // the caller is no longer waiting
            delivery.future.orTimeout(ms, TimeUnit.MILLISECONDS);
            delivery.future.whenComplete((outcome, late) -> {
                if (outcome != null) {
                    answer(out, responseOf(delivery, outcome));
                } else if (delivery.takeBack()) {
                    answer(out, NOT_RUN.toBuilder().setCode("timeout").setText("its time was up before it could begin"));
                } else {
                    answer(out, InvokeResponse.newBuilder().setOutcome(io.ringfence.client.proto.Outcome.OUTCOME_UNKNOWN).setText("its time was up while its handler ran"));
                }
            });
        }

        @Override
        public void send(SendRequest request, StreamObserver<SendResponse> out) {
            Sent one = publish(request);
            if (one == null) {
                out.onError(Status.INVALID_ARGUMENT.withDescription("a key, a name, an id, a property, a payload or a time that routers refuse").asRuntimeException());
                return;
            }
            out.onNext(SendResponse.newBuilder().setMessageId(one.id.toString()).setDueMs(one.due.toEpochMilli()).build());
            out.onCompleted();
        }

        private InvokeResponse.Builder responseOf(Delivery delivery, Outcome outcome) {
            InvokeResponse.Builder response = InvokeResponse.newBuilder().setCode(delivery.code).setText(outcome.reason());
            return switch (outcome.kind()) {
                case DONE -> response.setOutcome(io.ringfence.client.proto.Outcome.OUTCOME_REPLIED).setReply(ByteString.copyFrom(delivery.reply));
                case RETRY, REJECT -> response.setOutcome(io.ringfence.client.proto.Outcome.OUTCOME_FAILED);
                case NOT_STARTED -> response.setOutcome(io.ringfence.client.proto.Outcome.OUTCOME_NOT_RUN);
                default -> response.setOutcome(io.ringfence.client.proto.Outcome.OUTCOME_UNKNOWN).setText("its handler was " + outcome.kind());
            };
        }

        private void answer(StreamObserver<InvokeResponse> out, InvokeResponse.Builder response) {
            try {
                out.onNext(response.build());
                out.onCompleted();
            } catch (StatusRuntimeException gone) { // the caller is no longer waiting
                return;
            }
        }
    }

    /** The stream of one worker. Its fields are guarded by the router's lock. */
    private final class Session implements StreamObserver<WorkRequest> {
        private final StreamObserver<WorkResponse> out;
        private final Map<Long, Delivery> running = new LinkedHashMap<>();
        private int window;
        private long framesSent;
        private long receipt; // the newest of our frames that the worker has received
        private long results; // Results frames received
        private boolean draining;
        private boolean gone;
        private boolean calls; // the worker takes calls
        private boolean state; // it keeps state

        Session(StreamObserver<WorkResponse> out) {
            this.out = out;
        }

        boolean takes() {
            return !draining && receipt == framesSent && running.size() < window;
        }

        void send(WorkResponse.Builder frame) {
            if (!gone) {
                out.onNext(frame.setReceipt(results).build());
            }
        }

        void fail(Status status) {
            if (!gone) {
                gone = true;
                out.onError(status.asRuntimeException());
            }
            leave();
        }

        private void leave() {
            gone = true;
            sessions.remove(this);
            TestRouter.this.notifyAll();
        }

        @Override
        public void onNext(WorkRequest frame) {
            synchronized (TestRouter.this) {
                if (gone) {
                    return;
                }
                receipt = Math.max(receipt, frame.getReceipt());
                switch (frame.getFrameCase()) {
                    case HELLO -> hello(frame.getHello());
                    case PING -> send(WorkResponse.newBuilder().setPong(Pong.newBuilder().setK(frame.getPing().getK()).setRemainingNs(until - now())));
                    case RESULTS -> results(frame.getResults());
                    case PROGRESS -> frame.getProgress().getDeliveryIdsList().forEach(id -> {
                        Delivery delivery = running.get(id);
                        if (delivery != null) {
                            delivery.since = System.nanoTime();
                        }
                    });
                    case DRAIN -> draining = true;
                    default -> { } // only a receipt
                }
                dispatch();
            }
        }

        private void hello(Hello hello) {
            window = hello.getMaxInFlight();
            calls = hello.getCapabilitiesList().contains("calls");
            state = hello.getCapabilitiesList().contains("state");
            sessions.add(this);
            connections++;
            Limits limits = Limits.newBuilder().setMaxInFlight(window).setFrameMaxBytes(FRAME_BYTES_MAX)
                    .setPingIntervalMs(PING_INTERVAL_MS).setReasonMaxBytes(REASON_BYTES_MAX).build();
            send(WorkResponse.newBuilder().setWelcome(Welcome.newBuilder().setNode("test-router").setGroup("test").setVersion(1)
                    .setWorker(hello.getWorker().isEmpty() ? "worker-" + connections : hello.getWorker()).setLimits(limits).addCapabilities("intervals")));
            TestRouter.this.notifyAll();
        }

        private void results(Results frame) {
            if (frame.getNumber() != results + 1) {
                fail(Status.INVALID_ARGUMENT.withDescription("Results number " + frame.getNumber() + " after " + results));
                return;
            }
            results++;
            for (Result result : frame.getResultsList()) {
                Delivery delivery = running.remove(result.getDeliveryId());
                if (delivery == null || delivery.box.running != delivery) {
                    fail(Status.INVALID_ARGUMENT.withDescription("an answer for delivery " + result.getDeliveryId() + ", which is not running"));
                    return;
                }
                finish(delivery.box, delivery, delivery.outcomeOf(result));
            }
            send(WorkResponse.newBuilder()); // the receipt
        }

        @Override
        public void onError(Throwable failure) {
            synchronized (TestRouter.this) {
                leave();
            }
        }

        @Override
        public void onCompleted() {
            synchronized (TestRouter.this) {
                if (!gone) {
                    leave();
                    out.onCompleted();
                }
            }
        }
    }

    /** One delivery of an event to the handler, with its outcome. */
    public final class Delivery {
        private final Event event;
        private final int attempt;
        private final MessageId message;
        private final CompletableFuture<Outcome> future = new CompletableFuture<>();

        // Guarded by the router's lock.
        private Box box; // while it runs
        private Session session;
        private long since; // when it was delivered, or its newest Progress
        private boolean timedOut;
        private Call call; // null: an event. Set before it is added
        private Firing firing; // null: none. Set before it is added
        private volatile byte[] reply = new byte[0]; // this and the code are set before the outcome
        private volatile String code = "";

        Delivery(Event event, int attempt, MessageId message) {
            this.event = event;
            this.attempt = attempt;
            this.message = message;
        }

        private void write(Deliveries.Builder frame, long id, Fence next) {
            Fence chosen = event.fence();
            Fence fence = new Fence(chosen.token() != 0 ? chosen.token() : next.token(), chosen.turn() != 0 ? chosen.turn() : next.turn());
            io.ringfence.client.proto.Delivery.Builder delivery = frame.addDeliveriesBuilder();
            for (Property property : event.properties()) {
                delivery.addPropertiesBuilder().setName(frame.getNamesCount()).setValue(property.value());
                frame.addNames(property.name());
            }
            event.schemaVersion().ifPresent(version -> {
                frame.addSchemaVersions(ByteString.copyFrom(version));
                delivery.setSchemaVersion(frame.getSchemaVersionsCount());
            });
            event.eventTime().ifPresent(time -> delivery.setEventTimeMs(time.toEpochMilli()));
            event.timer().ifPresent(timer -> delivery.setTimer(io.ringfence.client.proto.Timer.newBuilder().setName(timer.name()).setDueMs(timer.due().toEpochMilli())));
            if (firing != null) {
                delivery.getTimerBuilder().setFiring(firing);
            }
            delivery.setDeliveryId(id).setPartition(box.partition)
                    .setKey(ByteString.copyFrom(event.keyBytes())).setPayload(ByteString.copyFrom(event.payload()))
                    .setLedgerId(message.ledger()).setEntryId(message.entry()).setBatchIndex(message.batch()).setTopicPartition(message.topicPartition())
                    .setTopic(frame.getTopicsCount()).setToken(frame.getTokensCount()).setTurn(fence.turn())
                    .setPublishTimeMs(event.publishTime().toEpochMilli()).setAttempt(attempt).setRedeliveryCount(event.redelivery());
            if (call != null) {
                delivery.setCall(call);
            }
            if (session.state) {
                delivery.setGeneration(box.generation);
            }
            frame.addTopics(event.topic()).addTokens(fence.token());
        }

        private Outcome outcomeOf(Result result) {
            Duration after = Duration.ofMillis(result.getAfterMs());
            reply = result.getReply().toByteArray();
            code = result.getCode();
            return switch (result.getKind()) {
                case RESULT_KIND_DONE -> new Outcome(Outcome.Kind.DONE, after, "");
                case RESULT_KIND_REJECT -> new Outcome(Outcome.Kind.REJECT, after, result.getReason());
                case RESULT_KIND_NOT_STARTED -> new Outcome(Outcome.Kind.NOT_STARTED, after, result.getReason());
                // A handler that took longer than handler.timeout has failed.
                case RESULT_KIND_CANCELLED -> timedOut ? new Outcome(Outcome.Kind.RETRY, after, "handler.timeout")
                        : new Outcome(Outcome.Kind.CANCELLED, after, "");
                default -> new Outcome(Outcome.Kind.RETRY, after, result.getReason());
            };
        }

        /** Takes a call back, as when its caller is no longer waiting: its handler is cancelled with CallerGoneException, if it runs. */
        public void giveUp() {
            if (takeBack()) {
                end(Outcome.Kind.NOT_STARTED);
            }
        }

        /** Takes the delivery out of its queue, or tells the worker to cancel it. Returns whether it was in the queue. */
        private boolean takeBack() {
            synchronized (TestRouter.this) {
                for (Box other : boxes.values()) {
                    if (other.queue.remove(this)) {
                        ready.removeIf(one -> one == other && one.queue.isEmpty());
                        return true;
                    }
                }
                if (session != null) {
                    session.running.forEach((id, delivery) -> {
                        if (delivery == this) {
                            Revoke revoke = Revoke.newBuilder().addDeliveryIds(id).setReason("the caller is no longer waiting").build();
                            session.send(WorkResponse.newBuilder().setRevoke(revoke));
                        }
                    });
                }
                return false;
            }
        }

        private void end(Outcome.Kind kind) {
            future.complete(new Outcome(kind, Duration.ZERO, ""));
        }

        /**
         * Waits for the end of the delivery. It fails the test after {@link #WAIT_MAX}.
         *
         * @return the outcome
         */
        public Outcome outcome() {
            try {
                return future.get(WAIT_MAX.toNanos(), TimeUnit.NANOSECONDS);
            } catch (TimeoutException e) {
                throw new AssertionError("no outcome after " + WAIT_MAX);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                throw new AssertionError("the test was interrupted while it waited for an outcome", e);
            } catch (ExecutionException e) {
                throw new AssertionError(e);
            }
        }

        /**
         * Waits for the end of a call, as {@link #outcome} does, and returns its reply.
         *
         * @return the reply, empty unless the outcome is DONE
         */
        public byte[] reply() {
            outcome();
            return reply;
        }

        /**
         * Waits for the end of a call, as {@link #outcome} does, and returns the code of its failure.
         *
         * @return the code, no_handler if the worker has no handler of the method; empty if there is none
         */
        public String code() {
            outcome();
            return code;
        }

        /**
         * Reports whether the delivery has ended.
         *
         * @return whether {@link #outcome} would return at once
         */
        public boolean isOver() {
            return future.isDone();
        }

        /**
         * Gives the same event to the handler again, as the router would, after the end of this delivery: with a greater
         * fence, unless the test chose one, and with the next attempt if the handler failed.
         *
         * @return the next delivery
         */
        public Delivery redeliver() {
            Delivery next = new Delivery(event, outcome().kind() == Outcome.Kind.RETRY ? attempt + 1 : attempt, message);
            next.call = call;
            next.firing = firing;
            return add(next);
        }
    }

    /** Discards everything: the outcomes say what went wrong. */
    private static final class NoLog implements System.Logger {
        @Override
        public String getName() {
            return "io.ringfence.junit5";
        }

        @Override
        public boolean isLoggable(Level level) {
            return false;
        }

        @Override
        public void log(Level level, ResourceBundle bundle, String message, Throwable thrown) {}

        @Override
        public void log(Level level, ResourceBundle bundle, String format, Object... parameters) {}
    }
}
