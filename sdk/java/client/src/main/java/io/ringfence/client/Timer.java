package io.ringfence.client;

import java.time.Instant;

/**
 * What an event has that a router published: one that a handler set with {@link Event#after}, or that {@link Lane#send} sent, or for hooks and
 * interceptors a firing of a schedule.
 *
 * @param name the name that the sender gave it, empty for none; that of the schedule for a firing
 * @param due when it was due, by the clocks of the routers: the handler does not run earlier
 */
public record Timer(String name, Instant due) {}
