package io.ringfence.junit5;

import java.time.Duration;

/**
 * The router's record of the end of a delivery.
 *
 * @param kind how it ended
 * @param after RETRY: the delay that the handler asked for, zero for none
 * @param reason RETRY, REJECT: the text of the exception, else empty
 */
public record Outcome(Kind kind, Duration after, String reason) {
    /** The kinds of outcome. */
    public enum Kind {
        /** The handler returned. */
        DONE,
        /** The handler failed. */
        RETRY,
        /** The handler threw RejectException. */
        REJECT,
        /** The handler was not called. */
        NOT_STARTED,
        /** The handler was cancelled, and did not succeed. */
        CANCELLED,
        /** The stream broke, and the lease ran out without an answer. */
        LOST
    }
}
