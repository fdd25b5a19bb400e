package io.ringfence.client;

/**
 * Reports the SDK's activity to the application, for its metrics. A hook must not block: events and Pings wait for it.
 * What it throws is logged and changes nothing.
 */
public interface Hooks {
    /**
     * Called before all interceptors and the handler of an event, in the handler's thread. Many calls may run at once.
     *
     * @param event the event
     */
    default void started(Event event) {}

    /**
     * Called once for each {@link #started}, in the same thread.
     *
     * @param event the event
     * @param result how its handler ended
     */
    default void finished(Event event, Result result) {}

    /**
     * Called when a session with the router is established, before its first event. Calls of this method, of
     * {@link #disconnected} and of {@link #window} come one at a time.
     *
     * @param session the session
     */
    default void connected(Session session) {}

    /**
     * Called at the end of a session, and after a failed attempt to establish one.
     *
     * @param failure why; null if the worker was closed
     */
    default void disconnected(RingfenceException failure) {}

    /**
     * Called when the number of unanswered events has changed, about once for each frame. At the end of a session
     * {@code held} becomes 0.
     *
     * @param held the unanswered events
     * @param limit their maximum
     */
    default void window(int held, int limit) {}
}
