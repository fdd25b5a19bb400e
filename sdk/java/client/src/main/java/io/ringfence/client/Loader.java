package io.ringfence.client;

/**
 * Loads the state of a key, usually from a database: see {@link Event#state}.
 *
 * @param <T> the type of the state
 * @param <X> what loading throws; for a lambda that throws several exceptions it is their common class
 */
@FunctionalInterface
public interface Loader<T, X extends Exception> {
    /**
     * Loads the state. It is called in the thread that asks for it.
     *
     * @return the state; null is returned to the handler, and not kept
     * @throws X if the state could not be loaded
     */
    T load() throws X;
}
