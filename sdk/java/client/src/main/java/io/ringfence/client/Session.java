package io.ringfence.client;

/**
 * A session with the router.
 *
 * @param node the router's member name
 * @param group the router's group
 * @param worker the router's name for this worker, as in its logs
 * @param inFlightMax the most unanswered events: {@link Worker.Builder#maxInFlight}, or the router's lower bound
 */
public record Session(String node, String group, String worker, int inFlightMax) {}
