package io.ringfence.client;

/** Thrown by {@link Lane#send}, and fails a handler whose timers are not published: the event was not published. It can be sent again. */
public final class NotSentException extends RuntimeException {
    private static final long serialVersionUID = 1;

    NotSentException(String text, Throwable cause) {
        super("the event was not published: " + text, cause);
    }
}
