package io.ringfence.bench;

import io.ringfence.client.Worker;

/** The SDK with a handler that returns at once. */
public final class Empty {
    private Empty() {}

    /**
     * Runs the worker until SIGTERM.
     *
     * @param arguments none
     */
    public static void main(String[] arguments) {
        Worker.builder(event -> { }).maxInFlight(1_000).run();
    }
}
