package io.ringfence.client;

/**
 * The handler did not end within the grace period of the drain ({@link Worker.Builder#drainGrace}). A handler that has done nothing yet may
 * throw one once its worker was told to stop: the event goes back to the router at once, and it counts as no failure.
 */
public final class DrainTimeoutException extends HandlerCancelledException {
    private static final long serialVersionUID = 1;

    /** Makes one. */
    public DrainTimeoutException() {
        super("the handler did not end within the drain grace of its worker");
    }
}
