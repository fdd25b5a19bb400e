package io.ringfence.client;

import java.util.HashMap;
import java.util.Map;

/**
 * How long the holder of a reservation may go on: rules R1 to R3 of docs/sdk-protocol.md. It reads no clock: instants are nanoseconds of a
 * {@link LeaseClock}, and come from outside. Its methods are safe for concurrent use.
 */
final class Permission {
    /** Renewals without an answer that are remembered. */
    static final int RENEWALS_MAX = 64;

    /**
     * The bounds of the time between two renewals: a third of what the last answer gave, so that one renewal may fail also with short
     * leases.
     */
    static final long RENEW_MOST = 500_000_000;
    static final long RENEW_LEAST = 20_000_000;

    /** The longest time between two renewals of a reservation with a ttl: a sixth of the ttl. */
    static final long RENEW_COVERED_MOST = 10_000_000_000L;

    private final long ttl; // 0: none
    private final Map<Long, Long> renewals = new HashMap<>();
    private long asked;
    private long k;
    private boolean given;
    private long until;
    private long every = RENEW_MOST;
    private boolean covered;

    /** Of a reservation with a ttl in nanoseconds; 0 is none. */
    Permission(long ttl) {
        this.ttl = ttl;
    }

    /** Notes when the Ask of the present stream is sent; call it before. */
    synchronized void ask(long now) {
        asked = now;
    }

    /** Notes when a Renew is sent, and returns its number; call it before. */
    synchronized long renew(long now) {
        k++;
        if (renewals.size() < RENEWALS_MAX) {
            renewals.put(k, now);
        }
        return k;
    }

    /** Takes the permission of a Granted on the present stream. With half of it gone the holder renews before it begins. */
    synchronized void granted(long remaining, long now) {
        if (asked + remaining - now > remaining / 2) {
            extend(asked, remaining, now);
        }
        renewLive(now); // at a next owner the permission of a covered reservation is that of a live one at first
    }

    /** Nanoseconds until the next renewal. */
    synchronized long every() {
        return every;
    }

    /** Takes the permission of a Renewed. */
    synchronized void renewed(long number, long remaining, boolean isCovered, long now) {
        Long sent = renewals.get(number);
        renewals.keySet().removeIf(older -> older <= number);
        boolean extended = sent != null && extend(sent, remaining, now);
        if (isCovered && ttl > 0 && !isOverdue(now)) {
            covered = true;
            every = Math.max(RENEW_LEAST, Math.min(RENEW_COVERED_MOST, ttl / 6));
        } else if (extended) {
            renewLive(now);
        }
    }

    private boolean extend(long sent, long remaining, long now) {
        if (remaining <= 0 || isOverdue(now)) { // a passed deadline is never extended
            return false;
        }
        long to = sent + remaining;
        if (now - to >= 0 || given && to - until <= 0) {
            return false;
        }
        given = true;
        until = to;
        return true;
    }

    private void renewLive(long now) {
        if (given) {
            every = Math.max(RENEW_LEAST, Math.min(RENEW_MOST, (until - now) / 3));
        }
    }

    /** Whether there was permission, and it has passed. */
    synchronized boolean isOverdue(long now) {
        return given && now - until >= 0;
    }

    /** Whether there is permission, or was; with a ttl only once the control log has the reservation. */
    synchronized boolean mayBegin() {
        return given && (ttl == 0 || covered);
    }

    /** Nanoseconds that are left. */
    synchronized long left(long now) {
        return given ? Math.max(0, until - now) : 0;
    }
}
