package io.ringfence.client;

/**
 * Works on one event. A normal return means done: the event is acked. {@link RejectException} means that the event will
 * never succeed: it goes to the dead letter topic. {@link RetryAfterException} and any other exception mean that the
 * handler failed: the event is retried, after your delay or the router's back-off.
 *
 * <p>When the key is lost, the thread of the handler is interrupted, {@link Event#isCancelled} returns true and
 * {@link Event#checkActive} throws {@link KeyLostException}. From then on another machine may work on the key: stop at
 * once, and write nothing. An exception that such a handler throws counts as neither failure nor success; a normal return
 * counts as success.
 *
 * <p>A handler is called for the events of one key one at a time, and for many keys at once, from many threads.
 */
@FunctionalInterface
public interface Handler {
    /**
     * Works on one event.
     *
     * @param event the event; it belongs to the handler until it returns
     * @throws Exception if the work failed
     */
    void handle(Event event) throws Exception;
}
