package io.ringfence.client;

import java.time.Instant;

/**
 * What an event has that a router published: one that a handler set with {@link Event#after}, or that {@link Lane#send} sent.
 *
 * @param name the name that the sender gave it, empty for none
 * @param due when it was due, by the clocks of the routers: the handler does not run earlier
 */
public record Timer(String name, Instant due) {}
