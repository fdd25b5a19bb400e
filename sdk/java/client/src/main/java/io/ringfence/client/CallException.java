package io.ringfence.client;

import java.time.Duration;

/** Thrown by {@link Lane#invoke}: the call has no reply. */
public final class CallException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** What became of a call without a reply. */
    public enum Outcome {
        /** The handler threw an exception. */
        FAILED("the call failed"),
        /** The call has not run, and never will. It can be repeated. */
        NOT_RUN("the call has not run"),
        /** It may have run, and may still run until its timeout. Only a call with an id can be repeated safely. */
        UNKNOWN("the call may have run"),
        /** A call with its id was answered before, and its reply is no longer known. */
        DONE_BEFORE("the call was already done");

        private final String text;

        Outcome(String text) {
            this.text = text;
        }
    }

    /** The outcome. */
    private final Outcome outcome;
    /** The code. */
    private final String code;
    /** Why. */
    private final String text;
    /** When to call again. */
    private final Duration retryAfter;

    CallException(Outcome outcome, String code, String text, Duration retryAfter, Throwable cause) {
        super(outcome.text + (code.isEmpty() ? "" : " (" + code + ")") + (text.isEmpty() ? "" : ": " + text), cause);
        this.outcome = outcome;
        this.code = code;
        this.text = text;
        this.retryAfter = retryAfter;
    }

    /**
     * Returns what became of the call.
     *
     * @return the outcome
     */
    public Outcome outcome() {
        return outcome;
    }

    /**
     * Returns the code.
     *
     * @return FAILED: that of the handler's {@link CallFailureException}, else empty. NOT_RUN: timeout, overloaded, no_handler, cycle,
     *     parked, too_large, leaving or unreachable; empty if the router refused the request
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
     * Returns when to call again after NOT_RUN.
     *
     * @return zero: as you like
     */
    public Duration retryAfter() {
        return retryAfter;
    }
}
