package io.ringfence.client;

import java.time.Duration;

/** Thrown by {@link Lane#reserve}: the key was not reserved. */
public final class NotReservedException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** The code. */
    private final String code;
    /** Why. */
    private final String text;
    /** When to ask again. */
    private final Duration retryAfter;

    NotReservedException(String code, String text, Duration retryAfter, Throwable cause) {
        super("the key is not reserved" + (code.isEmpty() ? "" : " (" + code + ")") + (text.isEmpty() ? "" : ": " + text), cause);
        this.code = code;
        this.text = text;
        this.retryAfter = retryAfter;
    }

    /**
     * Returns the code.
     *
     * @return timeout: it was not free in time. Else overloaded, cycle, parked, too_large, leaving, unreachable, not_exclusive (the routers' ownership.mode is
     *     gossip), not_covered (the group cannot promise the ttl), or lost (granted, and over before it could begin); empty if the router refused the request
     */
    public String code() {
        return code;
    }

    /**
     * Returns why, in words.
     *
     * @return the text, not null
     */
    public String text() {
        return text;
    }

    /**
     * Returns when to ask again.
     *
     * @return zero: as you like
     */
    public Duration retryAfter() {
        return retryAfter;
    }
}
