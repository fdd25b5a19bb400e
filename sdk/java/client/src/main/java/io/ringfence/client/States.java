package io.ringfence.client;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.time.temporal.TemporalAccessor;
import java.time.temporal.TemporalAmount;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.IntPredicate;

/**
 * The values that the turns of keys on one stream have left for the next ones. Whatever is in doubt is dropped: a value that is
 * dropped costs a query, and one that is kept wrongly shows a handler old data. It is safe for concurrent use.
 */
final class States {
    /** The states of one key. */
    private static final class Kept {
        private final int partition;
        private final long token;
        private final long generation;
        private Fence newest; // of the newest turn
        private Event user; // the turn that has them; null: none runs
        private Map<Class<?>, Object> values = new HashMap<>(2);
        private Map<Class<?>, Object> used = new HashMap<>(2); // those of the values that the user has asked for

        Kept(Event user) {
            partition = user.partition;
            token = user.fencingToken();
            generation = user.generation;
            newest = user.fence();
            this.user = user;
        }

        /** Reports whether an event that begins is the next turn of the key, anywhere, after the turn that left the states. */
        boolean isFor(Event event) {
            return user == null && generation == event.generation && token == event.fencingToken();
        }
    }

    /** Classes of values that no handler can change in place, beside enums and times: after a write of the handler they would be outdated. */
    private static final Set<Class<?>> FIXED = Set.of(String.class, Boolean.class, Character.class, Byte.class, Short.class, Integer.class, Long.class,
            Float.class, Double.class, BigInteger.class, BigDecimal.class);

    private final ReentrantLock lock = new ReentrantLock();

    // Guarded by the lock.
    private int max; // 0 after the end of the stream
    private final Map<String, Kept> byKey = new LinkedHashMap<>(16, 0.75f, true); // the last used comes last
    private volatile int size; // of byKey: read without the lock, since a handler that uses no state looks at nothing else

    /** Keeps the states of at most {@code max} keys. */
    States(int max) {
        this.max = max;
    }

    /** Whether there are states. */
    boolean any() {
        return size > 0;
    }

    /**
     * Called before a handler starts. What the last turn has left is for this one alone, whether it asks or not: the handler may be running still,
     * without its key, when the next one starts.
     */
    void begins(Event event) {
        if (!any()) {
            return;
        }
        lock.lock();
        try {
            String key = event.keyText();
            Kept kept = byKey.get(key);
            if (kept == null || event.fence().isBefore(kept.newest)) {
                return;
            }
            if (!kept.isFor(event)) {
                remove(key);
                return;
            }
            kept.user = event;
            kept.used = new HashMap<>(2);
            kept.newest = event.fence();
        } finally {
            lock.unlock();
        }
    }

    /** Returns the state that the last turn has left, or loads it. */
    @SuppressWarnings("unchecked") // a value was loaded as one of this type
    <T, X extends Exception> T of(Event event, Class<T> type, Loader<? extends T, X> load) throws X {
        Object left = get(event, type);
        if (left != null) {
            return (T) left;
        }
        T loaded = load.load();
        if (loaded != null) {
            put(event, type, loaded);
        }
        return loaded;
    }

    private Object get(Event event, Class<?> type) {
        lock.lock();
        try {
            Kept kept = byKey.get(event.keyText());
            if (kept == null || kept.user != event) { // the states may be those of a later turn: then the handler continues without its key
                return null;
            }
            Object value = kept.values.get(type);
            if (value != null) {
                kept.used.put(type, value);
            }
            return value;
        } finally {
            lock.unlock();
        }
    }

    private void put(Event event, Class<?> type, Object value) {
        lock.lock();
        try {
            if (max == 0 || event.generation == 0 || event.hasReturned() || isFixed(value)) { // a task that the handler left behind leaves nothing
                return;
            }
            String key = event.keyText();
            Kept kept = byKey.get(key);
            if (kept == null || kept.user != event) {
                if (kept != null && event.fence().isBefore(kept.newest)) {
                    return;
                }
                kept = new Kept(event);
                byKey.put(key, kept);
                if (byKey.size() > max) {
                    byKey.remove(byKey.keySet().iterator().next());
                }
                size = byKey.size();
            }
            kept.values.put(type, value);
            kept.used.put(type, value);
        } finally {
            lock.unlock();
        }
    }

    private static boolean isFixed(Object value) {
        return FIXED.contains(value.getClass()) || value instanceof Enum || value instanceof TemporalAccessor || value instanceof TemporalAmount;
    }

    private void remove(String key) {
        byKey.remove(key);
        size = byKey.size();
    }

    /**
     * Called when a handler has returned. If {@code done}, the values that it has asked for are kept: it has succeeded while the key was its
     * own. All others of the key are dropped.
     */
    void ended(Event event, boolean done) {
        if (!any()) {
            return;
        }
        lock.lock();
        try {
            String key = event.keyText();
            Kept kept = byKey.get(key);
            if (kept == null || kept.user != null && kept.user != event) {
                return; // that of a later turn: this handler had lost the key to it
            }
            if (kept.user == event && done && !kept.used.isEmpty()) {
                kept.user = null;
                kept.values = kept.used;
                kept.used = null;
            } else {
                remove(key);
            }
        } finally {
            lock.unlock();
        }
    }

    /** Drops the states of partitions that are taken back. */
    void forget(IntPredicate partitions) {
        if (!any()) {
            return;
        }
        lock.lock();
        try {
            byKey.values().removeIf(kept -> partitions.test(kept.partition));
            size = byKey.size();
        } finally {
            lock.unlock();
        }
    }

    /** Ends it with its stream: no turn on another one may use these states, and handlers that still run leave none. */
    void close() {
        lock.lock();
        try {
            max = 0;
            byKey.clear();
            size = 0;
        } finally {
            lock.unlock();
        }
    }

    /** How many keys have states: for tests. */
    int size() {
        return size;
    }
}
