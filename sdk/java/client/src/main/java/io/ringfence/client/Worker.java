package io.ringfence.client;

import io.grpc.ChannelCredentials;
import io.grpc.ManagedChannel;
import java.io.IOException;
import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Supplier;

/**
 * The application's side of the stream to the router beside it: calls a {@link Handler} for the events of a key one by
 * one, and for many keys at once. No two handlers of one key run at the same time, on any machine of the group.
 *
 * <pre>{@code
 * Worker.run(event -> store.apply(event.key(), event.fence(), event.payload()));
 * }</pre>
 *
 * <p>{@link #run} blocks until SIGTERM; {@link Builder#start} does not, and {@link #close} drains. Whenever the session
 * breaks, the worker reconnects, without a limit of attempts. One worker per process is enough.
 */
public final class Worker implements AutoCloseable {
    /** The environment variable with the router's endpoint, used without {@link Builder#endpoint}. */
    public static final String ENDPOINT_ENV = "RINGFENCE_APP_ENDPOINT";

    /** The environment variable that names the token file, used without {@link Builder#tokenFile}. */
    public static final String TOKEN_FILE_ENV = "RINGFENCE_APP_TOKEN_FILE";

    /** The default address of a router. */
    public static final String DEFAULT_ENDPOINT = "127.0.0.1:16650";

    /** The most unanswered events of a worker: the bound of the protocol. */
    public static final int IN_FLIGHT_MAX = 100_000;

    /** The default of {@link Builder#maxInFlight}. */
    public static final int IN_FLIGHT_DEFAULT = 1_000;

    /** The default of {@link Builder#maxThreads} if handlers run in threads of the platform. */
    public static final int THREADS_DEFAULT = 1_000;

    /** The default of {@link Builder#stateMax}. */
    public static final int STATE_MAX_DEFAULT = 100_000;

    /** The most schedules of a worker. */
    public static final int SCHEDULES_MAX = 256;

    /** The longest {@link Builder#drainGrace}. */
    public static final Duration DRAIN_GRACE_MAX = Duration.ofDays(365);

    /** The default of {@link Builder#drainGrace}. */
    public static final Duration DRAIN_GRACE_DEFAULT = Duration.ofSeconds(30);

    /**
     * How long the worker waits for handlers that were cancelled at the end of the drain grace, and for a router that has
     * not answered its Hello when it is closed.
     */
    static final Duration PATIENCE = Duration.ofSeconds(1);

    static final Duration BACKOFF_MIN = Duration.ofMillis(50);
    static final Duration BACKOFF_MAX = Duration.ofSeconds(2);

    /** The longest pause that a router may ask for: its settings may be wrong, and the next one at the endpoint has no part in it. */
    private static final Duration AWAY_MAX = Duration.ofMinutes(1);

    /** Two threads: a log that blocks in the check of deadlines must not keep Pings back. */
    private static final int TIMER_THREADS = 2;

    /** The name of this SDK in Hello. */
    static final String SDK = "ringfence-java/" + version();

    private final Builder options;
    private final Logger log;
    private final Runner runner;
    private final ScheduledThreadPoolExecutor timer;
    private final Supplier<ManagedChannel> channels;
    private final Thread supervisor;
    private final CountDownLatch stopped = new CountDownLatch(1); // stop was called
    private final CountDownLatch over = new CountDownLatch(1);

    // Guarded by this.
    private Stream current;
    private boolean stopping;
    private long hardEnd; // when stop gives up, by System.nanoTime

    private volatile RingfenceException failure; // set before over

    private Worker(Builder options, Handler handler, ThreadFactory threads, int threadsMax, Supplier<ManagedChannel> channels) {
        this.options = options;
        this.log = options.logger;
        this.channels = channels;
        runner = new Runner(options, handler, threads, threadsMax, this::isStopping);
        timer = new ScheduledThreadPoolExecutor(TIMER_THREADS, Threads.platform("ringfence-timer-"));
        timer.setRemoveOnCancelPolicy(true);
        timer.setExecuteExistingDelayedTasksAfterShutdownPolicy(false);
        timer.setRejectedExecutionHandler(new ThreadPoolExecutor.DiscardPolicy()); // the worker has ended, perhaps while stop() ran: nothing is left to be timed
        supervisor = new Thread(this::supervise, "ringfence-worker"); // not a daemon: the process lives while it works
    }

    private static String version() {
        String version = Worker.class.getPackage().getImplementationVersion();
        return version != null ? version : "dev";
    }

    /**
     * Calls a handler for every event, with default options, until SIGTERM or SIGINT. It then requests no more events,
     * waits up to 30 s for the running handlers, delivers their results and returns.
     *
     * @param handler the handler
     * @throws RingfenceException as {@link #close}
     */
    public static void run(Handler handler) {
        builder(handler).run();
    }

    /**
     * Begins a worker with options.
     *
     * @param handler the handler
     * @return a builder
     */
    public static Builder builder(Handler handler) {
        return new Builder(handler);
    }

    /**
     * Begins to end the worker, and returns at once: it requests no more events, and lets running handlers finish.
     * {@link #close} also waits. More calls have no effect.
     */
    public void stop() {
        Stream stream;
        synchronized (this) {
            if (stopping) {
                return;
            }
            stopping = true;
            stream = current;
            hardEnd = System.nanoTime() + options.drainGrace.plus(PATIENCE).toNanos();
            timer.schedule(guarded(() -> runner.cancelAll(Event.Cancellation.DRAIN_TIMEOUT)), options.drainGrace.toNanos(), TimeUnit.NANOSECONDS);
            timer.schedule(guarded(this::giveUp), options.drainGrace.plus(PATIENCE).toNanos(), TimeUnit.NANOSECONDS);
        }
        stopped.countDown();
        if (stream != null) {
            stream.drain();
            if (!stream.welcomed()) { // perhaps there is no router; or it has delivered events just now
                timer.schedule(guarded(() -> {
                    if (!stream.welcomed()) {
                        stream.giveUp(RingfenceException.Kind.UNREACHABLE);
                    }
                }), PATIENCE.toNanos(), TimeUnit.NANOSECONDS);
            }
        }
    }

    /** Begins to stop, as {@link #stop} does; a second call cancels the handlers that run, and waits for them no longer than at the end of the grace. */
    void signalled() {
        synchronized (this) {
            if (stopping) {
                log.log(Level.WARNING, "a second signal: cancelling the running handlers");
                hardEnd = Math.min(hardEnd, System.nanoTime() + PATIENCE.toNanos());
                timer.execute(guarded(() -> runner.cancelAll(Event.Cancellation.DRAIN_TIMEOUT)));
                timer.schedule(guarded(this::giveUp), PATIENCE.toNanos(), TimeUnit.NANOSECONDS);
                return;
            }
        }
        stop();
    }

    boolean isStopping() {
        return stopped.getCount() == 0;
    }

    private synchronized void giveUp() {
        if (current != null) {
            current.giveUp(RingfenceException.Kind.DRAIN_TIMEOUT);
        }
    }

    /**
     * Ends the worker: requests no more events, waits for the running handlers and delivers their results. At the end of
     * the drain grace it cancels them. A handler must not call it.
     *
     * @throws RingfenceException of kind DRAIN_TIMEOUT if handlers ignored even that; of kind FAULT if the worker had ended by itself; of kind
     *     REFUSED if it had ended because the router refuses one of its schedules
     */
    @Override
    public void close() {
        stop();
        boolean interrupted = false;
        while (true) {
            try {
                over.await();
                break;
            } catch (InterruptedException e) { // the grace bounds the wait
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        if (failure != null) {
            throw failure;
        }
    }

    /**
     * Waits for the end of the worker, which {@link #stop} begins.
     *
     * @param most how long to wait
     * @return whether the worker has ended
     * @throws InterruptedException if the thread is interrupted; the worker goes on
     */
    public boolean awaitEnd(Duration most) throws InterruptedException {
        return over.await(most.toNanos(), TimeUnit.NANOSECONDS);
    }

    private void supervise() {
        try {
            timer.scheduleWithFixedDelay(guarded(this::check), Stream.CHECK_EVERY.toMillis(), Stream.CHECK_EVERY.toMillis(), TimeUnit.MILLISECONDS);
            try {
                connect();
            } finally {
                options.clock.ended();
            }
            runner.retire();
            long left;
            synchronized (this) {
                left = hardEnd - System.nanoTime();
            }
            int running = runner.awaitIdle(Duration.ofNanos(Math.max(0, left)));
            if (running > 0 && failure == null) {
                failure = new RingfenceException(RingfenceException.Kind.DRAIN_TIMEOUT, running + " are still running", null);
            }
        } catch (Throwable fault) { // also an interruption, which is not the SDK's
            failure = new RingfenceException(RingfenceException.Kind.FAULT, fault.toString(), fault);
            runner.retire();
            options.disconnected(runner, failure);
            log.log(Level.ERROR, "the worker ends without a drain", fault);
        } finally {
            try {
                endTimer();
                if (channels instanceof Channels ours) {
                    ours.close();
                }
            } finally {
                over.countDown();
            }
        }
    }

    private void check() {
        runner.check();
        if (over.getCount() == 0) {
            endTimer();
        }
    }

    /** Ends the timer of a worker that has ended, once no handler runs: until then deadlines are checked. */
    private void endTimer() {
        if (runner.running() == 0) {
            timer.shutdownNow();
        }
    }

    /** A task of the timer: an exception would end its repetition in silence. */
    private Runnable guarded(Runnable task) {
        return () -> {
            try {
                task.run();
            } catch (Throwable fault) {
                log.log(Level.ERROR, "a timer of the SDK failed: please report this", fault);
            }
        };
    }

    /** Runs one stream after the other until the worker is stopped. */
    private void connect() throws InterruptedException {
        Duration delay = BACKOFF_MIN;
        while (stopped.getCount() > 0) {
            boolean worked = false;
            long begun = System.nanoTime();
            Duration away = Duration.ZERO;
            RingfenceException why;
            Stream stream = null;
            ManagedChannel channel = null;
            try {
                try {
                    String token = options.token();
                    channel = channels.get();
                    stream = new Stream(runner, channel, timer);
                    if (begin(stream)) {
                        stream.open(token);
                        stream.await();
                    }
                    worked = stream.welcomed();
                    away = stream.away();
                    why = stream.failure();
                } finally {
                    end(stream, channel);
                }
            } catch (InterruptedException e) {
                throw e;
            } catch (RingfenceException e) {
                why = e;
            } catch (RuntimeException e) { // such as a Unix socket in a folder that does not exist
                why = new RingfenceException(RingfenceException.Kind.UNREACHABLE, e.toString(), e);
            } catch (Throwable e) { // such as a class of another release of gRPC, or no memory
                log.log(Level.ERROR, "the SDK failed to connect", e);
                why = new RingfenceException(RingfenceException.Kind.UNREACHABLE, e.toString(), e);
            }
            if (stopped.getCount() == 0) {
                options.disconnected(runner, null);
                return;
            }
            options.disconnected(runner, why);
            if (stream != null && stream.refusedSchedule()) {
                log.log(Level.ERROR, "the router at {0} refuses a schedule: this worker ends: {1}", options.where(), why.getMessage());
                failure = why;
                stop();
                return;
            }
            if (worked && System.nanoTime() - begun >= BACKOFF_MAX.toNanos()) { // a router may end each session right after its Welcome
                delay = BACKOFF_MIN;
            }
            // The router is on this machine: a short delay is cheap and finds a restarted router soon. The jitter keeps the
            // workers of one router apart.
            long nanos = delay.toNanos() - ThreadLocalRandom.current().nextLong(delay.toNanos() / 2 + 1);
            away = away.compareTo(AWAY_MAX) < 0 ? away : AWAY_MAX;
            Duration pause = away.compareTo(Duration.ofNanos(nanos)) > 0 ? away : Duration.ofNanos(nanos);
            delay = delay.multipliedBy(2).compareTo(BACKOFF_MAX) > 0 ? BACKOFF_MAX : delay.multipliedBy(2);
            log.log(Level.WARNING, "no stream to the router at {0}: {1}; again in {2} ms", options.where(), why.getMessage(), Long.toString(pause.toMillis())); // as text: the format would group the digits of a number
            if (stopped.await(pause.toNanos(), TimeUnit.NANOSECONDS)) {
                return;
            }
        }
    }

    /** Makes a stream the current one, unless the worker was stopped. */
    private synchronized boolean begin(Stream stream) {
        if (stopping) {
            return false;
        }
        current = stream;
        runner.begin(stream);
        return true;
    }

    private void end(Stream stream, ManagedChannel channel) {
        boolean began;
        synchronized (this) {
            began = current != null;
            current = null;
        }
        if (began) {
            runner.end(stream);
            stream.closeWindow();
        }
        if (channel != null) {
            channel.shutdownNow();
        }
    }

    /** The options of a worker. Its methods return the builder itself. It is not safe for concurrent use. */
    public static final class Builder {
        static final Hooks NO_HOOKS = new Hooks() {};

        private final Handler handler;
        private String endpoint;
        String name = "";
        int maxInFlight = IN_FLIGHT_DEFAULT;
        private int maxThreads; // 0: the default
        private Boolean virtualThreads; // null: the default
        Duration drainGrace = DRAIN_GRACE_DEFAULT;
        boolean leaveGroup;
        int stateMax = STATE_MAX_DEFAULT;
        Logger logger = System.getLogger("io.ringfence.client");
        final Map<String, CallHandler> calls = new HashMap<>();
        private final List<String> badCalls = new ArrayList<>();
        final Schedules schedules = new Schedules();
        private final List<Interceptor> interceptors = new ArrayList<>();
        private boolean traces = true;
        Hooks hooks = NO_HOOKS;
        private Consumer<Boolean> ready = up -> { };
        private Path tokenFile;
        private boolean tokenFileSet;
        private ChannelCredentials credentials;
        private Supplier<ManagedChannel> channels;
        LeaseClock clock = LeaseClock.system();
        private String where;
        private final Object hookLock = new Object(); // Connected, Disconnected and Window come one at a time

        private Builder(Handler handler) {
            this.handler = handler;
        }

        /**
         * Sets the address of the router. By default the environment variable RINGFENCE_APP_ENDPOINT has it, else it is
         * 127.0.0.1:16650.
         *
         * @param endpoint host:port, unix:///path or unix:/path; null or empty for the default
         * @return this
         */
        public Builder endpoint(String endpoint) {
            this.endpoint = endpoint;
            return this;
        }

        /**
         * Names this worker in the router's logs. By default the router chooses a name.
         *
         * @param name the name; a name in use gets a suffix
         * @return this
         */
        public Builder name(String name) {
            this.name = name == null ? "" : name;
            return this;
        }

        /**
         * Bounds the unanswered events of this worker, and so the handlers that run at once. The router may have a lower
         * bound.
         *
         * @param events 1 to 100,000; 1,000 by default
         * @return this
         */
        public Builder maxInFlight(int events) {
            this.maxInFlight = events;
            return this;
        }

        /**
         * Bounds the threads that handlers run in. They are started as needed. Events beyond them wait, and count as not
         * started. A thread whose handler was cancelled and has not returned does not count.
         *
         * @param threads 1 or more. By default it is maxInFlight, but at most 1,000 if they are threads of the platform
         * @return this
         */
        public Builder maxThreads(int threads) {
            this.maxThreads = threads;
            if (threads < 1) {
                this.maxThreads = -1; // refused by start, with all other options
            }
            return this;
        }

        /**
         * Chooses between virtual threads and threads of the platform for handlers. By default they are virtual from Java
         * 24 on. Java 21 to 23 have them too, but there a virtual thread that waits in a synchronized block, as old drivers
         * do, holds up others. Handlers that compute for long without waiting hold up others in any release: choose threads
         * of the platform for them.
         *
         * @param virtual whether they are virtual; true is refused where Java has none
         * @return this
         */
        public Builder virtualThreads(boolean virtual) {
            this.virtualThreads = virtual;
            return this;
        }

        /**
         * Sets how long handlers may continue after the worker was stopped. Then they are cancelled with
         * {@link DrainTimeoutException}.
         *
         * @param grace 0 to {@link Worker#DRAIN_GRACE_MAX}; 30 s by default
         * @return this
         */
        public Builder drainGrace(Duration grace) {
            this.drainGrace = grace;
            return this;
        }

        /**
         * Makes the router leave its group at the end of the worker: it hands all its keys over in order. It suits an
         * application that ends with its worker.
         *
         * @param leave false by default
         * @return this
         */
        public Builder leaveGroup(boolean leave) {
            this.leaveGroup = leave;
            return this;
        }

        /**
         * Sets the number of keys whose states are kept, see {@link Event#state}: those that were used last.
         *
         * @param keys 0 or more; 100,000 by default. With 0 nothing is kept, and {@code state} always loads
         * @return this
         */
        public Builder stateMax(int keys) {
            this.stateMax = keys;
            return this;
        }

        /**
         * Sets the log for connections, failed handlers and lost keys. The SDK never logs a key or a payload: the line about a
         * failure, one a second at most, has the class and the place of an exception and not its message, which
         * {@link Hooks#finished} gets. What the log itself throws does no harm: the line goes to standard error.
         *
         * @param logger that of io.ringfence.client by default
         * @return this
         */
        public Builder logger(Logger logger) {
            this.logger = logger;
            return this;
        }

        /**
         * Registers the handler of calls of a method. All workers of a group should have the same ones, since a call goes to the worker of
         * its key, whatever methods that has. Threads, interceptors and hooks are as for events.
         *
         * @param method 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-', once each
         * @param handler the handler
         * @return this
         */
        public Builder call(String method, CallHandler handler) {
            if (handler == null || !Call.isMethod(method) || calls.putIfAbsent(method, handler) != null) {
                badCalls.add("\"" + method + "\""); // refused by start, with all other options
            }
            return this;
        }

        /**
         * Declares a schedule, with default options, as {@link #schedule(String, Times, FiringHandler, ScheduleOptions)} does.
         *
         * @param name 1 to 128 bytes of printable text, once each
         * @param times when it runs
         * @param handler the handler
         * @return this
         */
        public Builder schedule(String name, Times times, FiringHandler handler) {
            return schedule(name, times, handler, ScheduleOptions.NONE);
        }

        /**
         * Declares a schedule: the handler runs at these times, once in the whole group, on the member that owns the key schedule/NAME, and never
         * beside itself. It is stored nowhere: a schedule that no application of the group still declares does not run. All workers of a group
         * should declare the same schedules, at most {@link Worker#SCHEDULES_MAX}. Threads, interceptors and hooks are as for events.
         *
         * <p>The router checks the schedules. If it refuses one, the worker ends, and {@link #run} and {@link Worker#close} throw a
         * {@link RingfenceException} of the kind REFUSED that names it.
         *
         * <p>A firing runs at least once. It runs twice if the owner dies between the end of the handler and the ack, so pass the fence, and
         * compare the time, in your writes.
         *
         * @param name 1 to 128 bytes of printable text, once each
         * @param times when it runs
         * @param handler the handler
         * @param options what becomes of missed times, and how firings are spread
         * @return this
         */
        public Builder schedule(String name, Times times, FiringHandler handler, ScheduleOptions options) {
            schedules.add(name, times, handler, options); // what is wrong is refused by start, with all other options
            return this;
        }

        /**
         * Puts interceptors around the handler. The first one is the outermost: it is called first and returns last. A
         * second call adds inner ones.
         *
         * @param interceptors the interceptors
         * @return this
         */
        public Builder interceptors(Interceptor... interceptors) {
            this.interceptors.addAll(Arrays.asList(interceptors));
            return this;
        }

        /**
         * Chooses whether each handler gets a span in the trace of its event, if the application has OpenTelemetry's API
         * on its class path and has set GlobalOpenTelemetry before the start of the worker. For an OpenTelemetry that is
         * not global, pass {@link OpenTelemetryTraces} to {@link #interceptors}.
         *
         * @param traces true by default
         * @return this
         */
        public Builder traces(boolean traces) {
            this.traces = traces;
            return this;
        }

        /**
         * Sets the hooks for metrics.
         *
         * @param hooks the hooks
         * @return this
         */
        public Builder hooks(Hooks hooks) {
            this.hooks = hooks;
            return this;
        }

        /**
         * Sets a function for a readiness probe: it gets true when a session is established, before its first event, and
         * false when it is lost or an attempt to establish one fails. Calls come one at a time and must not block. The set
         * of an AtomicBoolean will do. A second call adds a function.
         *
         * @param ready the function
         * @return this
         */
        public Builder ready(Consumer<Boolean> ready) {
            Consumer<Boolean> before = this.ready;
            this.ready = before == null || ready == null ? null : before.andThen(ready); // null is refused by start
            return this;
        }

        /**
         * Names a file with the token that a router with app.token_file requires. The file is read for each stream. By
         * default the environment variable RINGFENCE_APP_TOKEN_FILE names it.
         *
         * @param file the file; null for no token
         * @return this
         */
        public Builder tokenFile(Path file) {
            this.tokenFile = file;
            this.tokenFileSet = true;
            return this;
        }

        /**
         * Encrypts the connection, for a router on another machine. The router requires a client certificate, so the
         * credentials need one.
         *
         * <pre>{@code
         * TlsChannelCredentials.newBuilder().trustManager(ca).keyManager(certificate, key).build()
         * }</pre>
         *
         * @param credentials gRPC's credentials
         * @return this
         */
        public Builder tls(ChannelCredentials credentials) {
            this.credentials = credentials;
            return this;
        }

        /**
         * Replaces the connections to the router, for test routers. Each stream has a channel of its own, which the worker
         * shuts down.
         *
         * @param channels makes a channel whose executor is direct or serial
         * @return this
         */
        public Builder channels(Supplier<ManagedChannel> channels) {
            this.channels = channels;
            return this;
        }

        /**
         * Replaces the clock that leases run on, for test routers.
         *
         * @param clock the clock
         * @return this
         */
        public Builder leaseClock(LeaseClock clock) {
            this.clock = clock;
            return this;
        }

        /**
         * Starts the worker and returns at once. Its threads keep the process alive until {@link Worker#close}. A SIGTERM ends the
         * process without a drain, unless the application closes the worker, for example in a shutdown hook: {@link #run} does.
         *
         * @return the running worker
         * @throws IllegalArgumentException if an option is out of range: the message names all of them
         */
        public Worker start() {
            List<String> refused = new ArrayList<>();
            try {
                endpointOrDefault();
            } catch (IllegalArgumentException e) {
                refused.add(e.getMessage());
            }
            refuse(refused, handler == null, "handler = null");
            refuse(refused, maxInFlight < 1 || maxInFlight > IN_FLIGHT_MAX, "maxInFlight = " + maxInFlight + ", want 1 to " + IN_FLIGHT_MAX);
            refuse(refused, maxThreads < 0, "maxThreads, want 1 or more");
            refuse(refused, drainGrace == null || drainGrace.isNegative() || drainGrace.compareTo(DRAIN_GRACE_MAX) > 0,
                    "drainGrace = " + drainGrace + ", want 0 to " + DRAIN_GRACE_MAX);
            refuse(refused, stateMax < 0, "stateMax = " + stateMax + ", want 0 or more");
            refuse(refused, !badCalls.isEmpty(), "call: " + String.join(", ", badCalls) + ": want a handler for each method, once, and methods of 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'");
            schedules.check(refused);
            refuse(refused, logger == null, "logger = null");
            refuse(refused, hooks == null, "hooks = null");
            refuse(refused, ready == null, "ready = null");
            refuse(refused, clock == null, "leaseClock = null");
            boolean wantsVirtual = virtualThreads != null ? virtualThreads : Runtime.version().feature() >= Threads.VIRTUAL_BY_DEFAULT_SINCE;
            ThreadFactory threads = wantsVirtual ? Threads.virtual("ringfence-handler-") : Threads.platform("ringfence-handler-");
            refuse(refused, threads == null, "virtualThreads = true, but this Java has none: use Java 21 or later");
            if (!refused.isEmpty()) {
                throw new IllegalArgumentException(String.join("; ", refused));
            }
            logger = new GuardedLogger(logger);
            int threadsMax = maxThreads > 0 ? maxThreads : wantsVirtual ? maxInFlight : Math.min(maxInFlight, THREADS_DEFAULT);
            Handler wrapped = intercepted();
            Supplier<ManagedChannel> dial = connection();
            Worker worker = new Worker(this, wrapped, threads, threadsMax, dial);
            worker.supervisor.start();
            return worker;
        }

        /**
         * Starts the worker and waits for its end, which SIGTERM or SIGINT begins, or an interruption of this thread. A second
         * signal cancels the running handlers at once.
         *
         * @throws IllegalArgumentException as {@link #start}
         * @throws RingfenceException as {@link Worker#close}
         */
        public void run() {
            Worker worker = start();
            Signals signals = null;
            try {
                signals = new Signals(worker::signalled);
            } catch (IllegalStateException e) {
                logger.log(Level.WARNING, "cannot handle SIGTERM ({0}): call Worker.stop in time, or start Java without -Xrs", e.getMessage());
            }
            try {
                worker.over.await();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            } finally {
                try {
                    worker.close();
                } finally {
                    if (signals != null) {
                        signals.close();
                    }
                }
            }
        }

        /** Returns what dials the router, after the token file and the endpoint have been found. */
        Supplier<ManagedChannel> connection() {
            Endpoint at = endpointOrDefault();
            if (!tokenFileSet) {
                String path = System.getenv(TOKEN_FILE_ENV);
                tokenFile = path == null || path.isEmpty() ? null : Path.of(path);
            }
            where = at.toString();
            if (channels == null && credentials == null && !at.isLocal()) {
                logger.log(Level.WARNING, "the endpoint {0} is not on this machine, and the connection is not encrypted: set tls", where);
            }
            return channels != null ? channels : new Channels(at, credentials);
        }

        private static void refuse(List<String> refused, boolean is, String what) {
            if (is) {
                refused.add(what);
            }
        }

        private Endpoint endpointOrDefault() {
            String text = endpoint;
            if (text == null || text.isEmpty()) {
                text = System.getenv(ENDPOINT_ENV);
            }
            return Endpoint.parse(text == null || text.isEmpty() ? DEFAULT_ENDPOINT : text);
        }

        private Handler intercepted() {
            List<Interceptor> all = new ArrayList<>(interceptors);
            if (traces) {
                Interceptor global = globalTraces();
                if (global != null) {
                    all.add(0, global);
                }
            }
            Handler wrapped = schedules.withFirings(calls.isEmpty() ? handler : withCalls(Map.copyOf(calls), handler));
            for (int i = all.size() - 1; i >= 0; i--) {
                wrapped = all.get(i) == null ? null : all.get(i).intercept(wrapped);
                if (wrapped == null) {
                    throw new IllegalArgumentException("interceptors: number " + (i + 1) + " is null, or returned null");
                }
            }
            return wrapped;
        }

        /** Returns a handler of events and calls. The reply of a call is in its event. */
        private static Handler withCalls(Map<String, CallHandler> calls, Handler events) {
            return event -> {
                if (event.arrival == null) {
                    events.handle(event);
                    return;
                }
                CallHandler handler = calls.get(event.method());
                if (handler == null) {
                    throw new NoHandlerException();
                }
                byte[] reply = handler.call(new Call(event));
                if (reply != null && reply.length > Call.REPLY_MAX) {
                    throw new CallFailureException(Call.TOO_LARGE, "a reply of " + reply.length + " bytes: want at most " + Call.REPLY_MAX);
                }
                event.reply = reply;
            };
        }

        private static Interceptor globalTraces() {
            try {
                return OpenTelemetryTraces.global();
            } catch (LinkageError absent) { // OpenTelemetry is not on the class path, or older than GlobalOpenTelemetry.isSet
                return null;
            }
        }

        String where() {
            return where;
        }

        /** Reads the token, null if there is none. */
        String token() {
            if (tokenFile == null) {
                return null;
            }
            try {
                String token = Files.readString(tokenFile, StandardCharsets.UTF_8).strip();
                if (!token.isEmpty()) {
                    return token;
                }
                throw new RingfenceException(RingfenceException.Kind.UNAUTHENTICATED, "the token file " + tokenFile + " is empty", null);
            } catch (IOException e) {
                throw new RingfenceException(RingfenceException.Kind.UNAUTHENTICATED, "the token file " + tokenFile + " cannot be read: " + e, e);
            }
        }

        void connected(Runner runner, Session session) {
            synchronized (hookLock) {
                runner.hook(() -> hooks.connected(session));
                runner.hook(() -> ready.accept(true));
            }
        }

        void disconnected(Runner runner, RingfenceException why) {
            synchronized (hookLock) {
                runner.hook(() -> ready.accept(false));
                runner.hook(() -> hooks.disconnected(why));
            }
        }

        void window(Runner runner, int held, int limit) {
            synchronized (hookLock) {
                runner.hook(() -> hooks.window(held, limit));
            }
        }
    }
}
