package io.ringfence.client;

import io.ringfence.client.proto.MissedPolicy;
import java.time.Duration;

/** Options of one schedule. They are immutable: each method returns others. The router checks them. */
public final class ScheduleOptions {
    /** No options: of missed firings the newest runs, unless it is an hour late. */
    public static final ScheduleOptions NONE = new ScheduleOptions(MissedPolicy.MISSED_POLICY_UNSPECIFIED, 0, 0);

    final MissedPolicy missed;
    final long graceMs; // 0: an hour
    final long jitterMs;

    private ScheduleOptions(MissedPolicy missed, long graceMs, long jitterMs) {
        this.missed = missed;
        this.graceMs = graceMs;
        this.jitterMs = jitterMs;
    }

    /**
     * Sets the policy for firings that did not run in time.
     *
     * @param policy {@link io.ringfence.client.MissedPolicy#LATEST} by default
     * @return options with it
     */
    public ScheduleOptions missed(io.ringfence.client.MissedPolicy policy) {
        return new ScheduleOptions(policy.wire, graceMs, jitterMs);
    }

    /**
     * Sets the greatest delay with which a firing still runs.
     *
     * @param delay at most a day, an hour by default; less than a millisecond counts as one
     * @return options with it
     */
    public ScheduleOptions grace(Duration delay) {
        return new ScheduleOptions(missed, Math.max(1, Times.milliseconds(delay)), jitterMs);
    }

    /**
     * Spreads schedules of the same time: this schedule fires later by a time less than this one, which is computed from its name.
     *
     * @param most at most an hour, and less than the time between two firings; zero by default
     * @return options with it
     */
    public ScheduleOptions jitter(Duration most) {
        return new ScheduleOptions(missed, graceMs, Times.milliseconds(most));
    }
}
