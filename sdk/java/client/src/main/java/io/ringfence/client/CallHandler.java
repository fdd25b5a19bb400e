package io.ringfence.client;

/**
 * Answers one call. It runs when no event and no other call of the key is handled, before events that wait. It is cancelled as a
 * {@link Handler} is, and also when the caller is no longer waiting, with {@link CallerGoneException}.
 */
@FunctionalInterface
public interface CallHandler {
    /**
     * Answers one call.
     *
     * @param call the call; it belongs to the handler until it returns
     * @return the reply, up to 1 MiB; null is an empty one
     * @throws Exception if the call failed. It is not tried again: the caller gets the message, and the code of a
     *     {@link CallFailureException}
     */
    byte[] call(Call call) throws Exception;
}
