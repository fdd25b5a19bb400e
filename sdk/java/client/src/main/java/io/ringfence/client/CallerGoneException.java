package io.ringfence.client;

/** The caller of the call that the handler answers has stopped waiting. The result of the handler reaches nobody. */
public final class CallerGoneException extends HandlerCancelledException {
    private static final long serialVersionUID = 1;

    /** Makes one. */
    public CallerGoneException() {
        super("the caller is no longer waiting: the handler's return value is discarded");
    }
}
