package io.ringfence.client;

/**
 * One property of an event, as the producer set it.
 *
 * @param name its name; not unique in an event
 * @param value its value
 */
public record Property(String name, String value) {}
