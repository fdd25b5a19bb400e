package io.ringfence.client;

import java.time.Duration;

/** Options of one reservation. They are immutable: each method returns others. */
public final class ReserveOptions {
    /** No options: the key must be free. */
    public static final ReserveOptions NONE = new ReserveOptions(Duration.ZERO, Duration.ZERO, null);

    private static final Duration TTL_MIN = Duration.ofMillis(1);
    private static final Duration TTL_MAX = Duration.ofMillis(Integer.MAX_VALUE); // that an Ask can carry

    final Duration wait;
    final Duration ttl; // zero: none
    final Event caller; // null: none

    private ReserveOptions(Duration wait, Duration ttl, Event caller) {
        this.wait = wait;
        this.ttl = ttl;
        this.caller = caller;
    }

    /**
     * Sets how long to wait for the key.
     *
     * @param time up to an hour; zero by default
     * @return options with it
     * @throws IllegalArgumentException if it is negative
     */
    public ReserveOptions waitFor(Duration time) {
        if (time.isNegative()) {
            throw new IllegalArgumentException("waitFor = " + time + ", want 0 or more");
        }
        return new ReserveOptions(Pauses.bounded(time), ttl, caller);
    }

    /**
     * Makes the reservation last for a time from each renewal on, also if the owner of the key dies or moves meanwhile: no next owner gives the key to
     * anybody else before. It begins when the control log has it. A key whose holder has died is free only after that time.
     *
     * @param time 5 seconds to 5 minutes; by default the reservation ends with the lease of the key's owner
     * @return options with it
     * @throws IllegalArgumentException if it is less than a millisecond or more than 24 days; routers refuse what else is out of range
     */
    public ReserveOptions ttl(Duration time) {
        if (time.compareTo(TTL_MAX) > 0 || time.compareTo(TTL_MIN) < 0) {
            throw new IllegalArgumentException("ttl = " + time + ", want 5 seconds to 5 minutes");
        }
        return new ReserveOptions(wait, time, caller);
    }

    /**
     * Names the event whose handler reserves: a reservation of the caller's own key is then refused at once, with the code cycle.
     *
     * @param event the event
     * @return options with it
     */
    public ReserveOptions caller(Event event) {
        return new ReserveOptions(wait, ttl, event);
    }

    /**
     * Names the call whose handler reserves, as {@link #caller(Event)} names an event.
     *
     * @param call the call
     * @return options with it
     */
    public ReserveOptions caller(Call call) {
        return new ReserveOptions(wait, ttl, call.event);
    }

    /**
     * Names the firing whose handler reserves, as {@link #caller(Event)} names an event.
     *
     * @param firing the firing
     * @return options with it
     */
    public ReserveOptions caller(Firing firing) {
        return new ReserveOptions(wait, ttl, firing.event);
    }
}
