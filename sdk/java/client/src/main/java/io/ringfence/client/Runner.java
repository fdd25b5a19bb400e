package io.ringfence.client;

import java.lang.System.Logger;
import java.lang.System.Logger.Level;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;

/**
 * The threads that handlers run in, and the streams whose deliveries they take.
 *
 * <p>One lock guards the threads and the inboxes of all streams, so that a thread answers an event and takes the next one
 * under one acquisition. It is held for short calls into the machine, never while a handler runs or a frame is written.
 */
final class Runner {
    /** How long a thread of the platform waits for work before it ends. Virtual threads cost nothing and stay. */
    private static final Duration IDLE_MAX = Duration.ofSeconds(30);

    private static final int CAUSES_MAX = 16;

    /** The least time between two lines about failed handlers, and the innermost frames that tell a place. */
    private static final long FAILURES_EVERY = Duration.ofSeconds(1).toNanos();
    private static final int FRAMES = 3;

    final Worker.Builder options;
    final LeaseClock clock;
    final Logger log;
    private final Hooks hooks;
    private final Handler handler;
    private final ThreadFactory threads;
    private final int threadsMax;

    final ReentrantLock lock = new ReentrantLock();
    private final Condition idle = lock.newCondition(); // signalled when no handler runs after retire

    // Guarded by the lock.
    /** The stream whose deliveries start; null while disconnected. A handler reads it without the lock when it ends. */
    volatile Stream live;
    /** The streams that are live or have running handlers. */
    private final List<Stream> watched = new ArrayList<>();
    private final ArrayDeque<HandlerThread> parked = new ArrayDeque<>(); // the last one in is the first to work: its caches are warm
    private int pool;
    private int running;
    /** A woken thread has not taken the lock yet; it will wake the next. */
    boolean waking;
    private boolean retired;

    private final BooleanSupplier stopping;
    private final Object failuresLock = new Object(); // guards the fields below
    private long failures; // not logged yet
    private long failuresLogged = System.nanoTime() - FAILURES_EVERY;

    Runner(Worker.Builder options, Handler handler, ThreadFactory threads, int threadsMax, BooleanSupplier stopping) {
        this.stopping = stopping;
        this.options = options;
        this.clock = options.clock;
        this.log = options.logger;
        this.hooks = options.hooks;
        this.handler = handler;
        this.threads = threads;
        this.threadsMax = threadsMax;
    }

    /** A thread of the pool. */
    final class HandlerThread implements Runnable {
        private Thread thread; // set before it is parked for the first time
        private volatile boolean signalled;

        @Override
        public void run() {
            thread = Thread.currentThread();
            try {
                for (Event event = next(null); event != null; event = next(event)) {
                    call(event);
                }
            } catch (Throwable failure) { // a fault of the SDK: its other threads go on
                leave();
                log.log(Level.ERROR, "a thread of the SDK failed: please report this", failure);
            }
        }

        /** Answers the ended event, null in a new thread, and returns the next one, or null if the thread has to end. */
        private Event next(Event ended) {
            lock.lock();
            try {
                if (ended == null) {
                    waking = false;
                } else {
                    running--;
                    ended.stream.inbox.end(ended);
                    if (retired && running == 0) {
                        idle.signalAll();
                    }
                }
                while (true) {
                    hand();
                    if (surplus()) {
                        pool--;
                        return null;
                    }
                    // The clock is read right before the start: the machine may have been asleep.
                    Event event = live == null ? null : live.inbox.take(clock.fast());
                    if (event != null) {
                        running++;
                        event.starts(thread);
                        return event;
                    }
                    if (retired || !await()) {
                        pool--;
                        return null;
                    }
                }
            } finally {
                lock.unlock();
            }
        }

        /** Wakes a thread for the events beyond the one that this thread will take, and sends what is to be sent. */
        private void hand() {
            if (live == null) {
                return;
            }
            HandlerThread woken = live.inbox.waiting() > 1 ? wakeOne() : null;
            Stream telling = live.tell(clock.fast()) ? live : null;
            if (woken == null && telling == null) {
                return;
            }
            lock.unlock(); // before the event is taken: no work lies between its start and the look at the clock
            try {
                go(woken);
                flush(telling);
            } finally {
                lock.lock();
            }
        }

        /** Waits for work. Returns false if none came for long. The lock is held, but not while it waits. */
        private boolean await() {
            signalled = false;
            parked.addLast(this);
            lock.unlock();
            boolean woken;
            try {
                woken = park();
            } finally {
                lock.lock();
            }
            if (signalled) { // perhaps after park has given up
                waking = false;
                return true;
            }
            parked.remove(this);
            return woken || live != null && live.inbox.startable();
        }

        /** Blocks until the thread is signalled. Returns false if that took too long. */
        private boolean park() {
            long end = System.nanoTime() + IDLE_MAX.toNanos();
            while (!signalled) {
                long left = end - System.nanoTime();
                if (left <= 0) {
                    return false;
                }
                LockSupport.parkNanos(this, left);
                Thread.interrupted(); // left behind by a handler: it would make the thread spin
            }
            return true;
        }
    }

    /**
     * Chooses a thread to wake if there is work for it: pass it to {@link #go} without the lock. The lock is held.
     *
     * <p>Only one thread is being woken at a time: it wakes the next before it starts a handler. So handlers that block
     * spread over as many threads as there are events, and handlers that return at once run in a few threads, without a
     * switch for each event.
     */
    HandlerThread wakeOne() {
        if (waking || live == null || !live.inbox.startable()) {
            return null;
        }
        HandlerThread woken = parked.pollLast();
        if (woken != null) {
            waking = true;
            woken.signalled = true;
        } else if (pool < threadsMax || pool - late() < threadsMax) {
            waking = true;
            pool++;
            woken = new HandlerThread();
        }
        return woken;
    }

    /** Reports whether a late handler has returned whose place another thread has taken. The lock is held. */
    private boolean surplus() {
        return pool > threadsMax && pool - late() > threadsMax;
    }

    /** How many handlers were cancelled and have not returned. Their threads do not count, or they would hold up other deliveries. The lock is held. */
    private int late() {
        int late = 0;
        for (Stream stream : watched) {
            late += stream.inbox.late();
        }
        return late;
    }

    /** Wakes or starts a thread. */
    void go(HandlerThread woken) {
        if (woken == null) {
            return;
        }
        if (woken.thread != null) {
            LockSupport.unpark(woken.thread);
            return;
        }
        try {
            threads.newThread(woken).start();
        } catch (OutOfMemoryError noThread) { // the next check of deadlines tries again
            leave();
            log.log(Level.ERROR, "cannot start a thread for handlers: raise the limit of threads, or lower maxThreads", noThread);
        }
    }

    /** Sends what a stream has to send; null is none. */
    static void flush(Stream stream) {
        if (stream != null) {
            stream.flush();
        }
    }

    /** Takes a thread out of the pool that has not answered {@link HandlerThread#next}. */
    private void leave() {
        lock.lock();
        try {
            pool--;
            waking = false;
        } finally {
            lock.unlock();
        }
    }

    /** Makes the threads of the pool end when they have no work left. */
    void retire() {
        List<HandlerThread> idle;
        lock.lock();
        try {
            retired = true;
            idle = new ArrayList<>(parked);
            parked.clear();
            for (HandlerThread thread : idle) {
                thread.signalled = true;
            }
        } finally {
            lock.unlock();
        }
        idle.forEach(this::go);
    }

    /** How many handlers run. */
    int running() {
        lock.lock();
        try {
            return running;
        } finally {
            lock.unlock();
        }
    }

    /** Waits until no handler runs, and returns how many still do at the end. {@link #retire} must have been called. */
    int awaitIdle(Duration most) throws InterruptedException {
        lock.lockInterruptibly();
        try {
            long left = most.toNanos();
            while (running > 0 && left > 0) {
                left = idle.awaitNanos(left);
            }
            return running;
        } finally {
            lock.unlock();
        }
    }

    /** Makes a stream the one whose deliveries start. */
    void begin(Stream stream) {
        lock.lock();
        try {
            live = stream;
            watched.add(stream);
        } finally {
            lock.unlock();
        }
    }

    /** Marks the live stream as broken. Its handlers may continue until their deadlines. */
    void end(Stream stream) {
        lock.lock();
        try {
            stream.inbox.breakOff();
            live = null;
        } finally {
            lock.unlock();
        }
        stream.states.close();
    }

    /** Cancels the handlers whose deadline has passed, and notices a silent router. Runs every {@link Stream#CHECK_EVERY}. */
    void check() {
        List<Event> lost = new ArrayList<>();
        Stream silent = null;
        HandlerThread woken;
        Stream telling = null;
        long now = clock.now();
        lock.lock();
        try {
            for (Stream stream : watched) {
                stream.inbox.check(now, lost::add);
                if (stream == live && stream.silentFor()) {
                    silent = stream;
                }
            }
            watched.removeIf(stream -> stream != live && stream.inbox.started() == 0);
            woken = wakeOne();
            if (live != null && live.tell(now)) {
                telling = live;
            }
        } finally {
            lock.unlock();
        }
        go(woken);
        cancel(lost, Event.Cancellation.KEY_LOST);
        if (silent != null) {
            silent.giveUp(RingfenceException.Kind.SILENT);
        }
        flush(telling);
    }

    /** Cancels all handlers that run. */
    void cancelAll(Event.Cancellation why) {
        List<Event> all = new ArrayList<>();
        lock.lock();
        try {
            for (Stream stream : watched) {
                stream.inbox.forStarted(all::add);
            }
        } finally {
            lock.unlock();
        }
        cancel(all, why);
    }

    /** Reports whether a handler of a key runs that has lost it, on any stream: it may still write. */
    boolean hasLost(String key) {
        lock.lock();
        try {
            for (Stream stream : watched) {
                if (stream.inbox.hasLate(event -> event.keyText().equals(key))) {
                    return true;
                }
            }
            return false;
        } finally {
            lock.unlock();
        }
    }

    /** Cancels running handlers: first all of them, then the log. */
    void cancel(List<Event> events, Event.Cancellation why) {
        if (events.isEmpty()) {
            return;
        }
        Stream present = live; // the present turns of their keys may be on the next stream
        if (present != null && present.states.any()) {
            events.forEach(event -> present.states.lose(event.keyText()));
        }
        events.removeIf(event -> !event.cancel(why));
        for (Event event : events) {
            log.log(Level.WARNING, "handler cancelled: message {0}, attempt {1}: {2}", event.messageId(), Integer.toString(event.attempt()), why);
        }
    }

    /** Runs the handler of an event and stores its answer in it. */
    private void call(Event event) {
        boolean asked = event.stream.intervals;
        boolean observed = hooks != Worker.Builder.NO_HOOKS;
        long began = asked ? clock.bootNanos() : 0;
        long begun = observed ? System.nanoTime() : 0;
        Throwable failure = null;
        boolean own = false; // the handler has succeeded while the key was its own
        try {
            event.stream.states.begins(event);
            if (observed) {
                hook(() -> hooks.started(event));
            }
            handler.handle(event);
            List<Sender.Setting> timers = event.timersSet();
            if (!timers.isEmpty()) {
                event.stream.sender.publish(event, timers);
            }
            // A handler that had lost its key may have written after the next turn had read. That matters only to states, and costs a look at the clock.
            own = event.stream.states.any() && event.holds();
            event.returns();
            event.kind = ResultKind.DONE;
        } catch (NoHandlerException none) {
            failure = none;
            event.returns();
            event.kind = ResultKind.NOT_STARTED;
            event.reason = none.getMessage();
            event.code = Call.NO_HANDLER;
        } catch (Throwable thrown) { // also an Error: the answer is a retry, and the process lives on
            failure = thrown;
            answer(event, thrown, event.returns());
        }
        event.stream.states.ended(event, own);
        Stream present = live;
        if (present != null && present != event.stream) {
            present.states.ended(event, false); // the present turn of its key may be on the next stream
        }
        if (asked && event.kind != ResultKind.NOT_STARTED) {
            event.startedNs = began;
            event.tookNs = Math.max(0, clock.bootNanos() - began);
        }
        Thread.interrupted(); // the interruption was for this event alone
        if (observed) {
            Result result = new Result(event.kind, failure, Duration.ofNanos(System.nanoTime() - begun));
            hook(() -> hooks.finished(event, result));
        }
    }

    /** Calls a hook. */
    void hook(Runnable call) {
        try {
            call.run();
        } catch (Throwable failure) {
            log.log(Level.ERROR, "a hook failed", failure);
        }
    }

    /** Turns what a handler threw into the answer to the router. An exception after a cancellation is not a failure. */
    private void answer(Event event, Throwable thrown, Event.Cancellation cancelled) {
        event.reply = null; // perhaps an interceptor has thrown
        if (cancelled != null || thrown instanceof DrainTimeoutException && stopping.getAsBoolean()) {
            event.kind = ResultKind.CANCELLED;
            return;
        }
        Throwable verdict = null;
        try {
            verdict = judge(event, thrown);
        } catch (Throwable broken) { // the handler's own exception class: without an answer the key would be held for ever
            event.kind = ResultKind.RETRY;
            event.afterMs = 0;
            event.code = null;
        }
        try {
            event.reason = verdict != null && thrown.getMessage() != null ? thrown.getMessage() : thrown.toString();
        } catch (Throwable broken) { // as above
            event.reason = thrown.getClass().getName();
        }
        if (verdict == null || verdict instanceof CallFailureException && event.arrival == null) { // that is for calls alone
            logFailure(event, thrown);
        }
    }

    /** Logs the failure of a handler, by its place: its message may hold parts of the event. Most of many failures are only counted. */
    private void logFailure(Event event, Throwable thrown) {
        long count;
        synchronized (failuresLock) {
            failures++;
            if (System.nanoTime() - failuresLogged < FAILURES_EVERY) {
                return;
            }
            count = failures;
            failures = 0;
            failuresLogged = System.nanoTime();
        }
        String what = event.arrival == null ? "message " + event.messageId() + ", attempt " + event.attempt() : "method " + event.method();
        log.log(Level.WARNING, () -> "handler failed: " + what + ": " + placeOf(thrown) + "; failures since the last such line: " + count);
    }

    /** Returns the class of what was thrown, and where. */
    private static String placeOf(Throwable thrown) {
        String name = thrown.getClass().getName();
        try {
            String at = Arrays.stream(thrown.getStackTrace()).limit(FRAMES).map(StackTraceElement::toString).collect(Collectors.joining(" < "));
            Throwable cause = thrown.getCause();
            return name + (at.isEmpty() ? "" : " at " + at) + (cause == null ? "" : ", caused by " + cause.getClass().getName());
        } catch (Throwable broken) { // the handler's own exception class
            return name;
        }
    }

    /** Sets the kind of the answer to what a handler threw. Returns the exception of the SDK among its causes, or null. */
    private static Throwable judge(Event event, Throwable thrown) {
        event.kind = ResultKind.RETRY;
        Throwable verdict = verdictOf(thrown);
        if (verdict instanceof RejectException) {
            event.kind = ResultKind.REJECT;
        } else if (verdict instanceof RetryAfterException retry) {
            event.afterMs = event.arrival == null ? milliseconds(retry.delay()) : 0; // a call is not tried again
        } else if (event.arrival != null) {
            event.code = Call.codeOf(verdict);
        }
        return verdict;
    }

    /** Rounds up, so that a short delay does not become 0, which asks for the router's own. */
    private static long milliseconds(Duration delay) {
        long whole = delay.toMillis();
        return whole < Long.MAX_VALUE && delay.compareTo(Duration.ofMillis(whole)) > 0 ? whole + 1 : whole;
    }

    /** Returns the first RejectException, RetryAfterException or CallFailureException among an exception and its causes, or null. */
    static Throwable verdictOf(Throwable thrown) {
        Throwable cause = thrown;
        for (int i = 0; cause != null && i < CAUSES_MAX; i++, cause = cause.getCause()) {
            if (cause instanceof RejectException || cause instanceof RetryAfterException || cause instanceof CallFailureException) {
                return cause;
            }
        }
        return null;
    }
}
