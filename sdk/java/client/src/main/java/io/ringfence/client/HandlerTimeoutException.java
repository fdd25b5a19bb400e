package io.ringfence.client;

/**
 * The handler took longer than the router's handler.timeout without {@link Event#progress}, and it counts as a failure. Or an operator has skipped the event
 * (router skip): it goes to the dead letter topic, unless the handler returns.
 */
public final class HandlerTimeoutException extends HandlerCancelledException {
    private static final long serialVersionUID = 1;

    /** Makes one. */
    public HandlerTimeoutException() {
        super("the handler took longer than its timeout (handler.timeout): call Event.progress during long work");
    }
}
