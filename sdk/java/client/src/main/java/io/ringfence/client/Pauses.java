package io.ringfence.client;

import java.time.Duration;
import java.util.concurrent.ThreadLocalRandom;

/** The pauses before a request that the router has refused unread is made again, until its time is up. Not safe for concurrent use. */
final class Pauses {
    /** Pauses are doubled from the first to the second, for events to the third. */
    private static final Duration MIN = Duration.ofMillis(1);
    static final Duration CALL_MAX = Duration.ofMillis(20);
    static final Duration SEND_MAX = Duration.ofMillis(100);

    private static final Duration LONG = Duration.ofDays(1);

    private final long begun = System.nanoTime();
    private final Duration timeout;
    private final Duration most;
    private Duration next = MIN;
    private boolean again;

    Pauses(Duration timeout, Duration most) {
        this.timeout = timeout;
        this.most = most;
    }

    /** Returns a time that is not too long for numbers. Routers refuse a call of more than 10 minutes, and a wait of more than an hour, by their own words. */
    static Duration bounded(Duration time) {
        return time.compareTo(LONG) < 0 ? time : LONG;
    }

    /** What is left of the time: for the first attempt all. */
    Duration left() {
        return again ? timeout.minusNanos(System.nanoTime() - begun) : timeout;
    }

    /** How many nanoseconds to wait; negative if the time would be up then. */
    long next() {
        again = true;
        long pause = ThreadLocalRandom.current().nextLong(next.toNanos() / 2, next.toNanos());
        next = next.multipliedBy(2).compareTo(most) < 0 ? next.multipliedBy(2) : most;
        return left().compareTo(Duration.ofNanos(pause)) > 0 ? pause : -1;
    }
}
