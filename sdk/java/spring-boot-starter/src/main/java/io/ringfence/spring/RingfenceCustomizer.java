package io.ringfence.spring;

import io.ringfence.client.Worker;

/** A bean that sets options of the worker which are no properties, such as interceptors and hooks. */
@FunctionalInterface
public interface RingfenceCustomizer {
    /**
     * Sets options, after those of the properties.
     *
     * @param options the options
     */
    void customize(Worker.Builder options);
}
