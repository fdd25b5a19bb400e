package io.ringfence.client;

/** Thrown by {@link Event#checkActive} in a handler that was cancelled: let it pass, and write nothing more. */
public abstract class HandlerCancelledException extends RuntimeException {
    private static final long serialVersionUID = 1;

    HandlerCancelledException(String message) {
        super(message);
    }
}
