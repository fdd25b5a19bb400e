package io.ringfence.client;

import io.ringfence.client.proto.Schedule;
import java.time.Duration;
import java.time.Instant;
import java.util.Objects;

/** The times of a schedule, see {@link Worker.Builder#schedule(String, Times, FiringHandler)}. The router checks them. */
public final class Times {
    private static final Instant LEAST = Instant.ofEpochMilli(Long.MIN_VALUE);
    private static final Instant MOST = Instant.ofEpochMilli(Long.MAX_VALUE);

    /** A schedule with times alone. */
    final Schedule wire;

    private Times(Schedule.Builder wire) {
        this.wire = wire.build();
    }

    /**
     * Returns the times of a cron expression in UTC.
     *
     * @param expression as for {@link #cron(String, String)}
     * @return the times
     */
    public static Times cron(String expression) {
        return cron(expression, "");
    }

    /**
     * Returns the times of a cron expression in a time zone. A fixed hour follows the clock on the wall: a time that is skipped when the
     * clock goes forward fires when the gap ends, and a time that comes twice when the clock goes back fires the first time. An hour of *
     * fires by elapsed time.
     *
     * @param expression five fields (minute, hour, day of the month, month, day of the week), or one of {@code @hourly}, {@code @daily},
     *     {@code @weekly}, {@code @monthly} and {@code @yearly}; up to 256 bytes
     * @param zone a name of the IANA database such as Europe/Berlin, up to 64 bytes; empty or null for UTC
     * @return the times
     */
    public static Times cron(String expression, String zone) {
        Schedule.Builder wire = Schedule.newBuilder().setCron(Objects.requireNonNull(expression, "expression"));
        return new Times(wire.setZone(zone == null ? "" : zone));
    }

    /**
     * Returns the multiples of a period since 1970 in UTC, whenever the application has started.
     *
     * @param period 10 seconds to 366 days; parts of a millisecond are lost
     * @return the times
     */
    public static Times every(Duration period) {
        return new Times(Schedule.newBuilder().setEveryMs(milliseconds(period)));
    }

    /**
     * Returns a single time. A schedule that is declared after its time does not run.
     *
     * @param time from 1970 to 2199; parts of a millisecond are lost
     * @return the time
     */
    public static Times at(Instant time) {
        Instant fits = time.isBefore(LEAST) ? LEAST : time.isAfter(MOST) ? MOST : time;
        long ms = fits.toEpochMilli();
        return new Times(Schedule.newBuilder().setAtMs(ms == 0 ? 1 : ms)); // 0 would be no time
    }

    /** The milliseconds of a duration: none of a negative one, and of one that is too long for a number as many as fit, which the router refuses. */
    static long milliseconds(Duration duration) {
        if (duration.isNegative()) {
            return 0;
        }
        return duration.compareTo(Duration.ofMillis(Long.MAX_VALUE)) < 0 ? duration.toMillis() : Long.MAX_VALUE;
    }
}
