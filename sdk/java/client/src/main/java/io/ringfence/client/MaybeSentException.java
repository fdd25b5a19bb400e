package io.ringfence.client;

/** Thrown as {@link NotSentException} is: the event may have been published. Only one with an id can be sent again safely. */
public final class MaybeSentException extends RuntimeException {
    private static final long serialVersionUID = 1;

    MaybeSentException(String text, Throwable cause) {
        super("the event may have been published: " + text, cause);
    }
}
