package io.ringfence.client;

import java.time.Duration;

/**
 * How the handler of an event ended.
 *
 * @param kind DONE, RETRY, REJECT or CANCELLED; NOT_STARTED for a call of a method without a handler
 * @param failure what the handler threw; null for DONE
 * @param duration how long the handler and all interceptors took
 */
public record Result(ResultKind kind, Throwable failure, Duration duration) {}
