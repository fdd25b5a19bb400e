package io.ringfence.client;

import java.time.Duration;
import java.time.Instant;
import java.util.Optional;

/** One run of a schedule. It belongs to its handler until the handler returns. Its methods are safe for concurrent use. */
public final class Firing {
    private static final String KEY_PREFIX = "schedule/";

    final Event event;

    Firing(Event event) {
        this.event = event;
    }

    /**
     * Returns a firing that no router delivered, for a test that calls a handler.
     *
     * @param schedule the name of the schedule
     * @param time the time that it is for; parts of a millisecond are lost
     * @param missed how many earlier times it is for, too
     * @return a firing that is never cancelled
     */
    public static Firing of(String schedule, Instant time, long missed) {
        return new Firing(Event.of(KEY_PREFIX + schedule).firing(schedule, time, missed).build());
    }

    /**
     * Returns the name of the schedule.
     *
     * @return the name
     */
    public String schedule() {
        return event.timer().orElseThrow().name();
    }

    /**
     * Returns the time of the schedule that this run is for, before jitter.
     *
     * @return the time, in steps of 1 ms
     */
    public Instant time() {
        return Instant.ofEpochMilli(event.firing.getTimeMs());
    }

    /**
     * Returns the number of earlier times that did not run, and that this run stands for, too.
     *
     * @return 0 or more
     */
    public long missed() {
        return Integer.toUnsignedLong(event.firing.getMissed());
    }

    /**
     * Returns the number of this attempt: 1 for the first run. It grows by one with each failed run.
     *
     * @return 1 or more
     */
    public int attempt() {
        return event.attempt();
    }

    /**
     * Returns the fence, which is greater than that of any earlier run of this schedule. Pass it to your database with every write.
     *
     * @return the fence
     */
    public Fence fence() {
        return event.fence();
    }

    /**
     * Returns the present end of the handler's lease, as {@link Event#leaseUntil} does.
     *
     * @return wall time; empty for a firing that no router delivered
     */
    public Optional<Instant> leaseUntil() {
        return event.leaseUntil();
    }

    /**
     * Reports whether the handler must stop and write nothing, as {@link Event#isCancelled} does.
     *
     * @return whether the key of the schedule is lost, the handler took too long or has returned, or the drain has ended
     */
    public boolean isCancelled() {
        return event.isCancelled();
    }

    /**
     * Throws if the handler must stop: call it before each write. It reads the clock itself and does not block. A firing is
     * over when its handler has returned: from then on this always throws.
     *
     * @throws KeyLostException if the schedule may run elsewhere now, as it may once this firing's handler has returned
     * @throws HandlerTimeoutException if the handler took longer than the router's handler.timeout
     * @throws DrainTimeoutException if the handler outlasted the drain grace
     */
    public void checkActive() {
        event.checkActive();
    }

    /**
     * Restarts the handler timeout of the router, if it has one, as {@link Event#progress} does.
     *
     * @throws HandlerCancelledException as {@link #checkActive}
     */
    public void progress() {
        event.progress();
    }

    /**
     * Sets a timer of the key schedule/NAME, as {@link Event#after} does. The handler of events gets it.
     *
     * @param delay at most 366 days
     * @param name up to 128 bytes of printable text, may be empty
     * @param payload up to 1 MiB
     * @throws IllegalArgumentException if one of them is out of range, or the firing has 100 timers
     * @throws KeyLostException if the handler has returned: the timer is not set
     */
    public void after(Duration delay, String name, byte[] payload) {
        event.after(delay, name, payload);
    }

    /**
     * Returns the value that the last turn of the key schedule/NAME has left in this process, such as the last run, or otherwise loads it, as
     * {@link Event#state} does.
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
    public String toString() {
        return "Firing[" + schedule() + " of " + time() + "]";
    }
}
