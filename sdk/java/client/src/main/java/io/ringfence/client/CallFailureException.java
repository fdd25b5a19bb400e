package io.ringfence.client;

/**
 * Thrown by the handler of a call: the call failed, and the caller gets the code and the message. Any other exception fails the call
 * too, with an empty code.
 */
public class CallFailureException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** The code. */
    private final String code;

    /**
     * Makes one.
     *
     * @param code of your own, up to 64 bytes of UTF-8; a longer one is dropped
     * @param reason why, for people; it must not contain the key or the payload if these are secret
     */
    public CallFailureException(String code, String reason) {
        this(code, reason, null);
    }

    /**
     * Makes one with a cause.
     *
     * @param code as for the other constructor
     * @param reason why, for people
     * @param cause the cause, for the log of the application; may be null
     */
    public CallFailureException(String code, String reason, Throwable cause) {
        super(reason, cause);
        this.code = code == null ? "" : code;
    }

    /**
     * Returns the code.
     *
     * @return the code, not null
     */
    public String code() {
        return code;
    }
}
