package io.ringfence.client;

/**
 * The clock that leases run on. Applications use that of {@link #system}; test routers replace it.
 *
 * <p>Its methods are called from many threads; they must neither block nor call back into the SDK. Instants are
 * nanoseconds from an arbitrary origin; they go on while the machine sleeps, and nobody can set them.
 */
public interface LeaseClock {
    /**
     * Returns the present instant. A lease or a deadline may be counted from it.
     *
     * @return nanoseconds
     */
    long now();

    /**
     * Returns the present instant at less cost, for every event: only to decide that something must not start, or not go on.
     * It may be ahead of {@link #now}, and behind it by 2.2 ms at most; a lease or a deadline must never be counted from it.
     *
     * @return nanoseconds
     */
    default long fast() {
        return now();
    }

    /**
     * Returns the present instant of the boot clock of this machine, CLOCK_BOOTTIME on Linux, or the best guess of it:
     * for the times at which handlers ran.
     *
     * @return nanoseconds since the machine was started
     */
    default long bootNanos() {
        return now();
    }

    /**
     * Reports whether NTP cannot slew this clock: the worker declares it to the router as {@code raw_clock}.
     *
     * @return whether the clock runs at the rate of the hardware
     */
    default boolean isRaw() {
        return false;
    }

    /**
     * Told the newest deadline after each Pong.
     *
     * @param until an instant of this clock
     */
    default void renewed(long until) {}

    /** Told that the worker has ended: there will be no more Pongs. */
    default void ended() {}

    /**
     * Returns the clock of this process.
     *
     * @return the best one that this runtime can read
     */
    static LeaseClock system() {
        return SystemClocks.BEST;
    }
}
