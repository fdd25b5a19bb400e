package io.ringfence.client;

import java.time.Duration;

/** Options of one reservation. They are immutable: each method returns others. */
public final class ReserveOptions {
    /** No options: the key must be free. */
    public static final ReserveOptions NONE = new ReserveOptions(Duration.ZERO, null);

    final Duration wait;
    final Event caller; // null: none

    private ReserveOptions(Duration wait, Event caller) {
        this.wait = wait;
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
        return new ReserveOptions(time, caller);
    }

    /**
     * Names the event whose handler reserves: a reservation of the caller's own key is then refused at once, with the code cycle.
     *
     * @param event the event
     * @return options with it
     */
    public ReserveOptions caller(Event event) {
        return new ReserveOptions(wait, event);
    }

    /**
     * Names the call whose handler reserves, as {@link #caller(Event)} names an event.
     *
     * @param call the call
     * @return options with it
     */
    public ReserveOptions caller(Call call) {
        return new ReserveOptions(wait, call.event);
    }
}
