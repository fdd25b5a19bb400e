package io.ringfence.client;

/** Thrown by a handler: the event will never succeed. It goes to the dead letter topic, with the message as a property. */
public class RejectException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /**
     * Makes one.
     *
     * @param reason why, for people; it must not contain the key or the payload if these are secret
     */
    public RejectException(String reason) {
        super(reason);
    }

    /**
     * Makes one with a cause.
     *
     * @param reason why, for people
     * @param cause the cause, for the log of the application; may be null
     */
    public RejectException(String reason, Throwable cause) {
        super(reason, cause);
    }
}
