package io.ringfence.client;

/** There is no handler of the method of a call. */
final class NoHandlerException extends RuntimeException {
    private static final long serialVersionUID = 1;

    NoHandlerException() {
        super("this worker has no handler for the method", null, false, false);
    }
}
