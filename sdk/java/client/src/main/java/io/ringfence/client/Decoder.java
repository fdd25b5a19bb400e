package io.ringfence.client;

/**
 * Decodes a payload.
 *
 * @param <T> the type of the payload
 */
@FunctionalInterface
public interface Decoder<T> {
    /**
     * Decodes a payload. It is called from many threads at once.
     *
     * @param payload the producer's bytes
     * @return the value; null counts as a payload that cannot be decoded
     * @throws Exception if the payload cannot be decoded
     */
    T decode(byte[] payload) throws Exception;
}
