package io.ringfence.client;

import java.time.Duration;

/** Options of one call. They are immutable: each method returns others. */
public final class CallOptions {
    /** No options. */
    public static final CallOptions NONE = new CallOptions("", Call.TIMEOUT_DEFAULT, null);

    final String id;
    final Duration timeout;
    final Event caller; // null: none

    private CallOptions(String id, Duration timeout, Event caller) {
        this.id = id;
        this.timeout = timeout;
        this.caller = caller;
    }

    /**
     * Gives the call an id. It then runs at least once within its timeout, even if the owner of the key dies, unless it is refused; and a
     * repeat with the same key and id gets the reply of the first one, or the outcome DONE_BEFORE. Without an id it runs at most once.
     *
     * @param id up to 128 bytes
     * @return options with it
     */
    public CallOptions id(String id) {
        return new CallOptions(id, timeout, caller);
    }

    /**
     * Sets how long the call may take.
     *
     * @param timeout 1 ms to 10 minutes; 10 s by default
     * @return options with it
     * @throws IllegalArgumentException if it is not positive
     */
    public CallOptions timeout(Duration timeout) {
        if (timeout.isNegative() || timeout.isZero()) {
            throw new IllegalArgumentException("timeout = " + timeout + ", want more than 0");
        }
        return new CallOptions(id, Pauses.bounded(timeout), caller);
    }

    /**
     * Names the event whose handler calls. A call that would wait for the caller's own key is then refused, with the code cycle, and
     * does not wait for its timeout.
     *
     * @param caller the event
     * @return options with it
     */
    public CallOptions caller(Event caller) {
        return new CallOptions(id, timeout, caller);
    }

    /**
     * Names the call whose handler calls, as {@link #caller(Event)} names an event.
     *
     * @param caller the call
     * @return options with it
     */
    public CallOptions caller(Call caller) {
        return new CallOptions(id, timeout, caller.event);
    }

    /**
     * Names the firing whose handler calls, as {@link #caller(Event)} names an event.
     *
     * @param firing the firing
     * @return options with it
     */
    public CallOptions caller(Firing firing) {
        return new CallOptions(id, timeout, firing.event);
    }
}
