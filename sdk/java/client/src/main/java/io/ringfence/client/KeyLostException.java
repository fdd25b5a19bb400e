package io.ringfence.client;

/** The lease on the key has ended. Another handler may work on the key now. */
public final class KeyLostException extends HandlerCancelledException {
    private static final long serialVersionUID = 1;

    /** Makes one. */
    public KeyLostException() {
        super("the key is lost: another handler may work on it now, so write nothing");
    }

    KeyLostException(String why) {
        super("the key is lost: another handler may work on it now, so write nothing (" + why + ")");
    }
}
