package io.ringfence.client;

/** The handler did not end within the grace period of the drain ({@link Worker.Builder#drainGrace}). */
public final class DrainTimeoutException extends HandlerCancelledException {
    private static final long serialVersionUID = 1;

    /** Makes one. */
    public DrainTimeoutException() {
        super("the handler did not end within the drain grace of its worker");
    }
}
