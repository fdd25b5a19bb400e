package io.ringfence.client;

import java.time.Instant;

/**
 * A key that this process holds: no handler of the key runs, and nobody else holds it, until {@link #close} or until it is lost.
 * {@link Lane#reserve} makes it. Its methods are safe for concurrent use.
 *
 * <pre>{@code
 * try (Reservation r = lane.reserve("user-7", Duration.ofSeconds(30))) {
 *     store.repair("user-7", r.fence().toString());
 * }
 * }</pre>
 */
public final class Reservation implements AutoCloseable {
    private final Holder holder;

    Reservation(Holder holder) {
        this.holder = holder;
    }

    /**
     * Returns the fence: pass it to your database with every write.
     *
     * @return a fence that is greater than that of any earlier delivery, call or reservation of the key. That of a reservation with a ttl grows
     *     when the key has another owner; the earlier one is as good
     */
    public Fence fence() {
        return holder.fence();
    }

    /**
     * Reports whether the key is lost: stop at once, and write nothing. It reads the clock itself.
     *
     * @return whether it is; not after {@link #close}
     */
    public boolean isLost() {
        return holder.lost() != null;
    }

    /**
     * Throws if the key is lost, or was released. Call it before a write that must not be late.
     *
     * @throws KeyLostException if it is
     */
    public void checkActive() {
        String why = holder.isReleased() ? "the reservation was released" : holder.lost();
        if (why != null) {
            throw new KeyLostException(why);
        }
    }

    /**
     * Runs an action when the key is lost: at most 50 ms after the last permission has passed, or when the router says so; at once if it is
     * lost already. The action must not block. It may close the reservation. What it throws is logged. It does not run after {@link #close}.
     *
     * @param action the action
     * @return this
     */
    public Reservation onLost(Runnable action) {
        holder.onLost(action);
        return this;
    }

    /**
     * Returns the time at which the reservation ends if no further renewal succeeds. For planning only.
     *
     * @return the instant, not in the future if the key is lost or was released
     */
    public Instant leaseUntil() {
        return Instant.now().plusNanos(holder.isReleased() || holder.lost() != null ? 0 : holder.leftNanos());
    }

    /**
     * Ends the reservation, and waits until its owner knows, at most as long as it would last without a renewal: if the connection is broken, it is
     * made again for that. Further calls do nothing but wait.
     */
    @Override
    public void close() {
        holder.release();
        holder.awaitOver();
    }
}
