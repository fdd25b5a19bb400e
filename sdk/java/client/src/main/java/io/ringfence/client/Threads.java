package io.ringfence.client;

import java.lang.reflect.Method;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.atomic.AtomicLong;

/** The kinds of threads that handlers can run in. */
final class Threads {
    /** The first release whose virtual threads give their carrier up while they wait in a synchronized block (JEP 491). */
    static final int VIRTUAL_BY_DEFAULT_SINCE = 24;

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
