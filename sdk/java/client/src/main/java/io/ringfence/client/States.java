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
import java.util.function.Predicate;

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

        /** Lets the turn that has them leave none: its handler may still change these, so what it loads from now on is not kept. */
        void drop() {
            if (user != null) {
                user.generation = 0;
            }
        }
    }

    /** Classes of values that no handler can change in place, beside enums and times: after a write of the handler they would be outdated. */
    private static final Set<Class<?>> FIXED = Set.of(String.class, Boolean.class, Character.class, Byte.class, Short.class, Integer.class, Long.class,
            Float.class, Double.class, BigInteger.class, BigDecimal.class);

    private final ReentrantLock lock = new ReentrantLock();
    private final Predicate<String> hasLost; // whether a handler of a key runs that has lost it, on any stream: it may write. Not called with the lock

    // Guarded by the lock.
    private int max; // 0 after the end of the stream
    private final Map<String, Kept> byKey = new LinkedHashMap<>(16, 0.75f, true); // the last used comes last
    private volatile int size; // of byKey: read without the lock, since a handler that uses no state looks at nothing else

    /** Keeps the states of at most {@code max} keys. {@code hasLost} tells whether a handler of a key runs that has lost it. */
    States(int max, Predicate<String> hasLost) {
        this.max = max;
        this.hasLost = hasLost;
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
        String key = event.keyText();
        Kept kept;
        boolean added = false;
        lock.lock();
        try {
            kept = byKey.get(key);
            if (kept == null || kept.user != event) {
                kept = add(event, key, kept);
                added = kept != null;
            }
            Object left = kept == null ? null : kept.values.get(type);
            if (left != null) {
                kept.used.put(type, left);
                return (T) left;
            }
        } finally {
            lock.unlock();
        }
        if (added && hasLost.test(key)) { // once they are added: from then on, lose drops them
            lose(key);
        }
        T loaded = load.load();
        if (kept != null && loaded != null && !isFixed(loaded)) {
            put(event, kept, type, loaded);
        }
        return loaded;
    }

    /**
     * Makes a turn the user of states that it has not loaded yet: a handler may lose the key, write and end during the load. Returns null if the
     * turn may leave none. {@code present} are the states of the key, or null. The lock is held.
     */
    private Kept add(Event event, String key, Kept present) {
        // A task that the handler left behind leaves nothing. The states may be those of a later turn: then the handler continues without its key.
        if (max == 0 || event.generation == 0 || event.hasReturned() || present != null && event.fence().isBefore(present.newest)) {
            return null;
        }
        if (present != null) {
            remove(key);
        }
        Kept kept = new Kept(event);
        byKey.put(key, kept);
        if (byKey.size() > max) {
            remove(byKey.keySet().iterator().next());
        }
        size = byKey.size();
        return kept;
    }

    /** Keeps what a turn has loaded, unless its states were dropped meanwhile. */
    private void put(Event event, Kept kept, Class<?> type, Object value) {
        lock.lock();
        try {
            if (byKey.get(event.keyText()) == kept && kept.user == event) {
                kept.values.put(type, value);
                kept.used.put(type, value);
            }
        } finally {
            lock.unlock();
        }
    }

    private static boolean isFixed(Object value) {
        return FIXED.contains(value.getClass()) || value instanceof Enum || value instanceof TemporalAccessor || value instanceof TemporalAmount;
    }

    private void remove(String key) {
        byKey.remove(key).drop();
        size = byKey.size();
    }

    /** Drops the states of a key that a running handler has lost: a later turn may have loaded them before the handler's last write. */
    void lose(String key) {
        if (!any()) {
            return;
        }
        lock.lock();
        try {
            if (byKey.containsKey(key)) {
                remove(key);
            }
        } finally {
            lock.unlock();
        }
    }

    /**
     * Called when a handler has returned. If {@code done}, the values that it has asked for are kept: it has succeeded while the key was its
     * own. All others of the key are dropped. So a handler whose loss of the key nobody has noticed drops those of the turn that runs now: that may
     * have loaded them before this one's last write.
     */
    void ended(Event event, boolean done) {
        if (!any()) {
            return;
        }
        lock.lock();
        try {
            String key = event.keyText();
            Kept kept = byKey.get(key);
            if (kept == null) {
                return;
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
            byKey.values().removeIf(kept -> {
                boolean hit = partitions.test(kept.partition);
                if (hit) {
                    kept.drop();
                }
                return hit;
            });
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
