package io.ringfence.client;

import java.time.Duration;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.Map;

/** Options of one event that is sent. They are immutable: each method returns others. */
public final class SendOptions {
    /** No options: due at once. */
    public static final SendOptions NONE = new SendOptions(0, 0, "", "", Map.of(), Sender.TIMEOUT_DEFAULT);

    private static final Instant MOST = Instant.ofEpochMilli(Long.MAX_VALUE);

    final long afterMs;
    final long atMs; // 0: afterMs counts
    final String name;
    final String id;
    final Map<String, String> properties;
    final Duration timeout;

    private SendOptions(long afterMs, long atMs, String name, String id, Map<String, String> properties, Duration timeout) {
        this.afterMs = afterMs;
        this.atMs = atMs;
        this.name = name;
        this.id = id;
        this.properties = properties;
        this.timeout = timeout;
    }

    /**
     * Makes the event due after a time, instead of at one. After a negative one it is due at once.
     *
     * @param delay at most 366 days; parts of a millisecond are lost
     * @return options with it
     * @throws IllegalArgumentException if it is longer
     */
    public SendOptions after(Duration delay) {
        return new SendOptions(Sender.checkedDelay(delay), 0, name, id, properties, timeout);
    }

    /**
     * Makes the event due at a time, instead of after one. One in the past is due at once.
     *
     * @param time at most 366 days from now
     * @return options with it
     */
    public SendOptions at(Instant time) {
        return new SendOptions(0, epochMillis(time), name, id, properties, timeout);
    }

    /** One in the past is due at once, and of one that is too far in the future the router says so. */
    private static long epochMillis(Instant time) {
        if (time.compareTo(Instant.EPOCH) <= 0) {
            return 1;
        }
        return time.compareTo(MOST) < 0 ? Math.max(1, time.toEpochMilli()) : Long.MAX_VALUE;
    }

    /**
     * Gives the event a name, see {@link Timer}.
     *
     * @param name up to 128 bytes of printable text
     * @return options with it
     */
    public SendOptions name(String name) {
        return new SendOptions(afterMs, atMs, name, id, properties, timeout);
    }

    /**
     * Gives the event an id: another one with the same key and id counts as the same, as long as the owner of the key remembers it.
     *
     * @param id up to 256 bytes
     * @return options with it
     */
    public SendOptions id(String id) {
        return new SendOptions(afterMs, atMs, name, id, properties, timeout);
    }

    /**
     * Gives the event one more property.
     *
     * @param property its name; there may be 64
     * @param value its value
     * @return options with it
     */
    public SendOptions property(String property, String value) {
        Map<String, String> all = new LinkedHashMap<>(properties);
        all.put(property, value);
        return new SendOptions(afterMs, atMs, name, id, all, timeout);
    }

    /**
     * Sets how long to wait for the broker; an attempt that is under way then has a second more.
     *
     * @param timeout 35 s by default: the router itself waits 30 s
     * @return options with it
     * @throws IllegalArgumentException if it is not positive
     */
    public SendOptions timeout(Duration timeout) {
        if (timeout.isNegative() || timeout.isZero()) {
            throw new IllegalArgumentException("timeout = " + timeout + ", want more than 0");
        }
        return new SendOptions(afterMs, atMs, name, id, properties, timeout);
    }
}
