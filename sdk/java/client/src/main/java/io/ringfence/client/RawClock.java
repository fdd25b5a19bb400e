package io.ringfence.client;

import java.util.concurrent.atomic.AtomicLong;

/**
 * The lease clock of a runtime with foreign functions (Java 22 and later, Linux): the hardware counter, which NTP cannot
 * slew, plus the time asleep. That is CLOCK_MONOTONIC_RAW + (CLOCK_BOOTTIME - CLOCK_MONOTONIC), as in docs/exclusivity.md.
 */
final class RawClock implements LeaseClock {
    /** The clocks of Linux, in nanoseconds. */
    interface Source {
        /** CLOCK_MONOTONIC_RAW. */
        long raw();

        /** CLOCK_BOOTTIME. */
        long boot();

        /** CLOCK_MONOTONIC. */
        long monotonic();

        /** CLOCK_MONOTONIC by Java, which reads it at less cost. */
        long nanoTime();

        /** The time of day, in steps of 1 ms. */
        long wall();
    }

    /** A smaller difference is the time between two readings. */
    static final long NOISE_NANOS = 1_000_000;

    /** How long {@link #fast} extrapolates from one reading. NTP slews the extrapolation by 0.11 ms at most meanwhile. */
    static final long FAST_NANOS = 1_000_000;

    /**
     * A change of the wall clock against the monotonic one, both of which NTP slews alike, that makes {@link #fast} read the
     * clock again: the wall clock was set, or the machine has slept for so long. It is more than the wall clock's step.
     */
    static final long STEP_NANOS = 2_000_000;

    /** The values of the clocks at a reading for {@link #fast}. */
    private record Reading(long nanoTime, long wallAhead, long now) {}

    private volatile Reading reading = new Reading(0, Long.MIN_VALUE / 2, 0); // as if the wall clock had been set since

    private final Source source;
    private final AtomicLong asleep = new AtomicLong();

    RawClock(Source source) {
        this.source = source;
    }

    @Override
    public long now() {
        long raw = source.raw();
        long boot = source.boot();
        long measured = boot - source.monotonic(); // read last: an interruption makes this too small, never too great
        long known = asleep.get();
        while (measured - known > NOISE_NANOS && !asleep.compareAndSet(known, measured)) {
            known = asleep.get();
        }
        return raw + asleep.get();
    }

    @Override
    public long fast() {
        long nanoTime = source.nanoTime(); // read first: an interruption makes the result too great
        long ahead = source.wall() - nanoTime;
        Reading r = reading;
        if (nanoTime - r.nanoTime >= FAST_NANOS || Math.abs(ahead - r.wallAhead) > STEP_NANOS) {
            r = new Reading(nanoTime, ahead, now());
            reading = r;
        }
        return r.now + (nanoTime - r.nanoTime);
    }

    @Override
    public long bootNanos() {
        return source.boot();
    }

    @Override
    public boolean isRaw() {
        return true;
    }
}
