package io.ringfence.client;

import java.lang.reflect.Method;
import java.util.concurrent.Executor;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** The threads of the SDK, and the kinds of those that handlers can run in. */
final class Threads {
    /** The first release whose virtual threads give their carrier up while they wait in a synchronized block (JEP 491). */
    static final int VIRTUAL_BY_DEFAULT_SINCE = 24;

    private static final long IDLE_MAX_SECONDS = 10;

    /**
     * Runs what the router answers, and the stages of futures that wait for it, in threads as they are needed. Not in the common pool: on a small machine
     * that has one thread, and any task of the application may block it.
     */
    static final Executor ANSWERS = new ThreadPoolExecutor(0, Integer.MAX_VALUE, IDLE_MAX_SECONDS, TimeUnit.SECONDS, new SynchronousQueue<>(), platform("ringfence-lane-"));

    private Threads() {}

    /** Returns a factory of virtual threads, or null where there are none. */
    static ThreadFactory virtual(String prefix) {
        try {
            Object builder = Thread.class.getMethod("ofVirtual").invoke(null);
            Class<?> type = Class.forName("java.lang.Thread$Builder");
            Method name = type.getMethod("name", String.class, long.class);
            return (ThreadFactory) type.getMethod("factory").invoke(name.invoke(builder, prefix, 0L));
        } catch (ReflectiveOperationException | UnsupportedOperationException e) {
            return null;
        }
    }

    /** Returns a factory of daemon threads of the platform. */
    static ThreadFactory platform(String prefix) {
        AtomicLong number = new AtomicLong();
        return task -> {
            Thread thread = new Thread(task, prefix + number.getAndIncrement());
            thread.setDaemon(true);
            return thread;
        };
    }
}
