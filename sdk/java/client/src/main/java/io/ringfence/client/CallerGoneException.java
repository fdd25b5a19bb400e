package io.ringfence.client;

/** The caller waits no longer for the call that the handler answers. What the handler then returns is told to nobody. */
public final class CallerGoneException extends HandlerCancelledException {
    private static final long serialVersionUID = 1;

    /** Makes one. */
    public CallerGoneException() {
        super("the caller waits no longer: what the handler returns is told to nobody");
    }
}
