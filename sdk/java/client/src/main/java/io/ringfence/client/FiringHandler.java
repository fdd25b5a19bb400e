package io.ringfence.client;

/**
 * Runs one firing of a schedule. A normal return and exceptions mean what they mean for a {@link Handler} of events, and it is cancelled as
 * one: a failed firing is retried until the next firing supersedes it. No other firing of the schedule runs at the same time.
 */
@FunctionalInterface
public interface FiringHandler {
    /**
     * Runs one firing.
     *
     * @param firing the firing; it belongs to the handler until it returns
     * @throws Exception if the work failed
     */
    void run(Firing firing) throws Exception;
}
