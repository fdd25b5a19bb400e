package io.ringfence.client;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;

/**
 * A request for a handler of a key, whose caller waits for the reply. It belongs to its handler until the handler returns. Its
 * methods are safe for concurrent use.
 */
public final class Call {
    /** Bytes of a reply. */
    static final int REPLY_MAX = 1 << 20;
    /** Bytes of the code of a failure. */
    static final int CODE_MAX = 64;

    static final Duration TIMEOUT_DEFAULT = Duration.ofSeconds(10);

    static final String NO_HANDLER = "no_handler";
    static final String TOO_LARGE = "too_large";

    /** What an event has that is a call. */
    record Arrival(String method, String id, Instant deadline, long[] path) {}

    final Event event;

    Call(Event event) {
        this.event = event;
    }

    /**
     * Returns a call that no router delivered, without an id, for a test that calls a handler.
     *
     * @param key its key
     * @param method its method
     * @param payload its argument
     * @return a call that is never cancelled
     */
    public static Call of(String key, String method, byte[] payload) {
        return new Call(Event.of(key).payload(payload).call(io.ringfence.client.proto.Call.newBuilder()
                .setMethod(method).setTimeoutMs(TIMEOUT_DEFAULT.toMillis()).build()).build());
    }

    /** Whether a text is the name of a method. */
    static boolean isMethod(String text) {
        return text != null && text.matches("[A-Za-z0-9._-]{1,64}");
    }

    /** The code of what the handler of a call has thrown, empty if it has none that fits. */
    static String codeOf(Throwable thrown) {
        if (!(thrown instanceof CallFailureException failure)) {
            return "";
        }
        return failure.code().getBytes(StandardCharsets.UTF_8).length <= CODE_MAX ? failure.code() : "";
    }

    /**
     * Returns the key: while the handler runs, no event and no other call of it is handled.
     *
     * @return the key as UTF-8; bytes that are not become U+FFFD, see {@link #keyBytes}
     */
    public String key() {
        return event.key();
    }

    /**
     * Returns the bytes of the key.
     *
     * @return up to 4,096 bytes of any value, a copy
     */
    public byte[] keyBytes() {
        return event.keyBytes();
    }

    /**
     * Returns the name under which the handler is registered.
     *
     * @return the method
     */
    public String method() {
        return event.method();
    }

    /**
     * Returns the argument. Each call returns the same array; the handler may write to it.
     *
     * @return the payload, not null
     */
    public byte[] payload() {
        return event.payload();
    }

    /**
     * Returns the caller's id of the call. Only a call with an id may run twice, with two fences.
     *
     * @return the id, empty if the caller gave none
     */
    public String id() {
        return event.arrival.id;
    }

    /**
     * Returns when the caller stops waiting. The handler is cancelled then.
     *
     * @return wall time by this machine's clock
     */
    public Instant deadline() {
        return event.arrival.deadline;
    }

    /**
     * Returns the fence, which is greater than that of any earlier delivery of the key, event or call. Pass it to your database with
     * every write.
     *
     * @return the fence
     */
    public Fence fence() {
        return event.fence();
    }

    /**
     * Returns the present end of the handler's lease, as {@link Event#leaseUntil} does.
     *
     * @return wall time; empty for a call that no router delivered
     */
    public Optional<Instant> leaseUntil() {
        return event.leaseUntil();
    }

    /**
     * Reports whether the handler must stop and write nothing, as {@link Event#isCancelled} does.
     *
     * @return whether the key is lost, the caller is no longer waiting, the handler has returned, or the drain has ended
     */
    public boolean isCancelled() {
        return event.isCancelled();
    }

    /**
     * Throws if the handler must stop: call it before each write. It reads the clock itself and does not block. A call is
     * over when its handler has returned: from then on this always throws.
     *
     * @throws KeyLostException if another handler may work on the key now, as it may once this call's handler has returned
     * @throws CallerGoneException if the caller is no longer waiting
     * @throws DrainTimeoutException if the handler outlasted the drain grace
     */
    public void checkActive() {
        event.checkActive();
    }

    /**
     * Restarts the handler timeout of the router, if it has one, as {@link Event#progress} does, but not the timeout of the caller.
     *
     * @throws HandlerCancelledException as {@link #checkActive}
     */
    public void progress() {
        event.progress();
    }

    /**
     * Sets a timer, as {@link Event#after} does: it is published before the caller gets its reply. The handler of events gets it.
     *
     * @param delay at most 366 days
     * @param name up to 128 bytes of printable text, may be empty
     * @param payload up to 1 MiB
     * @throws IllegalArgumentException if one of them is out of range, or the call has 100 timers
     * @throws KeyLostException if the handler has returned: the timer is not set
     */
    public void after(Duration delay, String name, byte[] payload) {
        event.after(delay, name, payload);
    }

    /**
     * Returns the value that the last turn of the key has left in this process, or otherwise loads it, as {@link Event#state} does: events and
     * calls of a key share it.
     *
     * @param <T> the type of the value
     * @param <X> what {@code load} throws
     * @param type the class of the value
     * @param load loads the value
     * @return the value
     * @throws X as {@code load} does
     */
    public <T, X extends Exception> T state(Class<T> type, Loader<? extends T, X> load) throws X {
        return event.state(type, load);
    }

    @Override
    public String toString() { // without the key and the payload, which must not get into logs
        return "Call[" + method() + "]";
    }
}
