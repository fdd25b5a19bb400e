package io.ringfence.client;

/**
 * A failure between the SDK and the router, as opposed to a failure of a handler. {@link Worker.Builder#run} and
 * {@link Worker#close} throw only {@link Kind#DRAIN_TIMEOUT}, {@link Kind#FAULT}, and {@link Kind#REFUSED} if the router refuses a schedule of
 * the worker. After all other failures the worker reconnects: the log and {@link Hooks#disconnected} report them.
 */
public final class RingfenceException extends RuntimeException {
    private static final long serialVersionUID = 1;

    /** The kinds of failures. */
    public enum Kind {
        /** Handlers ignored even the cancellation after the drain grace. */
        DRAIN_TIMEOUT("handlers did not end within the drain grace"),
        /** The worker has ended by itself, by a fault of the SDK or of the runtime, or since its thread was interrupted. */
        FAULT("the worker has ended by itself"),
        /** There is no router at the endpoint, TLS failed, or the router is stopping. */
        UNREACHABLE("cannot reach the router"),
        /** The token file cannot be read, or the router refuses its token. */
        UNAUTHENTICATED("no valid token"),
        /** The router and this SDK have no protocol version in common. */
        VERSION("no common protocol version"),
        /** The router already serves app.workers_max workers. */
        TOO_MANY_WORKERS("the router has too many workers: see app.workers_max"),
        /** The router refused the session for another reason, which the message has, such as a schedule that is wrong. */
        REFUSED("the router refused the session"),
        /** The router ended the session in order, because it is stopping. */
        GO_AWAY("the router ended the session"),
        /** The router sent nothing for 10 s, though it answers Pings every 0.2 s. */
        SILENT("the router has been silent for 10 s: it, its machine or the network may be down"),
        /** An established session broke. */
        BROKEN("the session broke");

        private final String text;

        Kind(String text) {
            this.text = text;
        }
    }

    /** The kind. */
    private final Kind kind;

    RingfenceException(Kind kind, String detail, Throwable cause) {
        super(detail == null ? kind.text : kind.text + ": " + detail, cause);
        this.kind = kind;
    }

    /**
     * Returns the kind.
     *
     * @return the kind
     */
    public Kind kind() {
        return kind;
    }
}
