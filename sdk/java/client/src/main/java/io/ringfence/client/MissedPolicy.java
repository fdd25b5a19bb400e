package io.ringfence.client;

/** Decides about firings that did not run in time, because no member was running or an earlier firing took too long. */
public enum MissedPolicy {
    /** The newest firing runs for all of them, and {@link Firing#missed} says for how many; the default. */
    LATEST(io.ringfence.client.proto.MissedPolicy.MISSED_POLICY_LATEST),
    /** All run, one after the other; at most the newest 100. */
    ALL(io.ringfence.client.proto.MissedPolicy.MISSED_POLICY_ALL),
    /** Firings that are more than a minute late do not run. */
    SKIP(io.ringfence.client.proto.MissedPolicy.MISSED_POLICY_SKIP);

    final io.ringfence.client.proto.MissedPolicy wire;

    MissedPolicy(io.ringfence.client.proto.MissedPolicy wire) {
        this.wire = wire;
    }
}
