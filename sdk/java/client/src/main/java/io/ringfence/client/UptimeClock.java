package io.ringfence.client;

/**
 * The lease clock of a runtime without foreign functions, such as Java 17: CLOCK_BOOTTIME, made of what Java can read. It
 * never stops in a suspend. NTP can slew it, so it does not count as raw, and routers shorten its deadlines by 11 %.
 *
 * <p>{@code System.nanoTime} is CLOCK_MONOTONIC on Linux: it counts the time awake. CLOCK_BOOTTIME is the same clock plus
 * the time asleep; NTP slews both alike. So {@code now = nanoTime + asleep}, and only {@code asleep} has to be found out.
 * /proc/uptime shows CLOCK_BOOTTIME, rounded down to 10 ms. So {@code uptime - nanoTime}, with nanoTime read last, is never
 * greater than the time asleep, whatever interrupts the reading, and less by 10 ms at most, plus the interruption. The
 * greatest of these differences is the estimate; it never falls. Hence, with R the reading after the latest suspend:
 *
 * <ul>
 *   <li>now() never runs ahead of CLOCK_BOOTTIME: a deadline, which counts from the sending of a Ping, is never too late
 *       for that reason;
 *   <li>after R it is behind by 10 ms at most: a deadline may pass 10 ms late. The router's margin
 *       ({@code app.deadline_margin}) is 200 ms, of which the check of deadlines needs 50.
 * </ul>
 *
 * <p>Reading a file costs microseconds, too much for each event. When is a reading needed? The clock is compared with the
 * wall clock, which costs 20 ns: both are slewed alike, so that the one moves against the other only when it is set, and
 * in a suspend, by exactly the time asleep, before any process runs again. If they have moved against each other by 2 ms,
 * or the last reading is 10 ms old, the file is read again. The time that the wall clock shows decides nothing: setting it
 * costs one reading. A suspend escapes this check only if it took less than 2 ms, or if the wall clock was set back by its
 * length within 2 ms, and then for 10 ms of nanoTime only.
 *
 * <p>Where there is no /proc/uptime (macOS, Windows), the steps forward of the wall clock against nanoTime count as time
 * asleep. Setting it forward then cancels handlers early, which is safe; setting it back in the same moment as a suspend
 * would hide the suspend.
 */
final class UptimeClock implements LeaseClock {
    /** What the clock is made of. Values in nanoseconds. */
    interface Source {
        /** The value of {@link #uptime} if it cannot be read. */
        long UNKNOWN = -1;

        /** The time awake: stops in a suspend. */
        long monotonic();

        /** The time of day, in steps of 1 ms or less. */
        long wall();

        /** The time awake and asleep, rounded down; or {@link #UNKNOWN}. Calls come one at a time. */
        long uptime();
    }

    /** A reading of {@link Source#uptime} serves for so long. */
    static final long READING_MAX_NANOS = 10_000_000;

    /** A change of the wall clock against the monotonic one that makes a reading necessary: more than its step of 1 ms. */
    static final long STEP_NANOS = 2_000_000;

    /** Values at a reading. */
    private record Reading(long monotonic, long wallAhead, long asleep) {}

    private final Source source;
    private volatile Reading reading;

    UptimeClock(Source source) {
        this.source = source;
        long monotonic = source.monotonic();
        long ahead = source.wall() - monotonic;
        long uptime = source.uptime();
        // Without /proc/uptime the origin does not matter: instants are only compared with one another.
        reading = new Reading(monotonic, ahead, uptime == Source.UNKNOWN ? 0 : uptime - source.monotonic());
    }

    @Override
    public long now() {
        // The monotonic clock is read first: a suspend after it shows in the wall clock.
        long monotonic = source.monotonic();
        long ahead = source.wall() - monotonic;
        Reading r = reading;
        if (monotonic - r.monotonic >= READING_MAX_NANOS || Math.abs(ahead - r.wallAhead) > STEP_NANOS) {
            r = read();
        }
        return monotonic + r.asleep;
    }

    private synchronized Reading read() {
        Reading before = reading;
        long monotonic = source.monotonic();
        long ahead = source.wall() - monotonic;
        long uptime = source.uptime();
        long asleep = before.asleep;
        if (uptime != Source.UNKNOWN) {
            asleep = Math.max(asleep, uptime - source.monotonic());
        } else if (ahead - before.wallAhead > STEP_NANOS) {
            asleep += ahead - before.wallAhead;
        }
        Reading r = new Reading(monotonic, ahead, asleep);
        reading = r;
        return r;
    }
}
