package io.ringfence.client;

/**
 * Returns a handler that does something before or after it calls the next one, changes the outcome, or does not call it.
 * A worker calls each interceptor once, so its setup is shared by all events; the handlers that it returns are called
 * from many threads at once.
 */
@FunctionalInterface
public interface Interceptor {
    /**
     * Wraps a handler.
     *
     * @param next the handler inside
     * @return the handler around it, not null
     */
    Handler intercept(Handler next);
}
