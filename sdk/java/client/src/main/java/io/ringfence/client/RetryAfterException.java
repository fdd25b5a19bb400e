package io.ringfence.client;

import java.time.Duration;

/** Thrown by a handler: the event failed and should be retried after a delay. The key waits meanwhile. */
public class RetryAfterException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** The longest delay that an answer can carry. */
    private static final Duration DELAY_MAX = Duration.ofMillis(Long.MAX_VALUE);

    /** The delay. */
    private final Duration delay;

    /**
     * Makes one.
     *
     * @param delay how long to wait, in steps of 1 ms, at most the router's {@code retry.after_max}; zero or less means
     *     after the router's own back-off
     * @param reason why, for people
     */
    public RetryAfterException(Duration delay, String reason) {
        this(delay, reason, null);
    }

    /**
     * Makes one with a cause.
     *
     * @param delay as for the other constructor
     * @param reason why, for people
     * @param cause the cause; may be null
     */
    public RetryAfterException(Duration delay, String reason, Throwable cause) {
        super(reason, cause);
        this.delay = delay.isNegative() ? Duration.ZERO : delay.compareTo(DELAY_MAX) > 0 ? DELAY_MAX : delay;
    }

    /**
     * Returns the delay.
     *
     * @return the delay, zero for the router's own back-off
     */
    public Duration delay() {
        return delay;
    }
}
