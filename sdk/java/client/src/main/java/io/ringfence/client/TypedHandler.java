package io.ringfence.client;

/**
 * A handler that gets the decoded payload.
 *
 * @param <T> the type of the payload
 * @see Handlers
 */
@FunctionalInterface
public interface TypedHandler<T> {
    /**
     * Works on one event.
     *
     * @param event the event
     * @param payload its decoded payload
     * @throws Exception as for {@link Handler#handle}
     */
    void handle(Event event, T payload) throws Exception;
}
