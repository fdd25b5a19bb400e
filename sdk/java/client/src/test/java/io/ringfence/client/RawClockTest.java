package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledForJreRange;
import org.junit.jupiter.api.condition.EnabledOnOs;
import org.junit.jupiter.api.condition.OS;

class RawClockTest {
    private static final long MS = 1_000_000;

    private static final class Machine implements RawClock.Source {
        long raw = 500 * MS;
        long monotonic = 1_000 * MS;
        long asleep;
        long wallOffset;
        long interruption; // between the readings of the boot clock and the monotonic one
        int readings;

        @Override
        public long raw() {
            readings++;
            return raw;
        }

        @Override
        public long boot() {
            long boot = monotonic + asleep;
            monotonic += interruption;
            raw += interruption;
            return boot;
        }

        @Override
        public long monotonic() {
            return monotonic;
        }

        @Override
        public long nanoTime() {
            return monotonic;
        }

        @Override
        public long wall() {
            return (monotonic + wallOffset) / MS * MS;
        }

        void pass(long nanos) {
            raw += nanos;
            monotonic += nanos;
        }

        void sleep(long nanos) {
            asleep += nanos;
            wallOffset += nanos;
        }
    }

    private final Machine machine = new Machine();
    private final RawClock clock = new RawClock(machine);

    @Test
    void isTheRawCounterPlusTheTimeAsleep() {
        assertEquals(500 * MS, clock.now());
        machine.pass(20 * MS);
        assertEquals(520 * MS, clock.now());
        machine.sleep(3_600_000 * MS);
        assertEquals(520 * MS + 3_600_000 * MS, clock.now());
        assertEquals(machine.boot(), clock.bootNanos());
        assertTrue(clock.isRaw());
    }

    @Test
    void ntpDoesNotSlewIt() {
        long before = clock.now();
        machine.raw += 1_000 * MS;
        machine.monotonic += 1_100 * MS; // NTP makes it faster
        assertEquals(1_000 * MS, clock.now() - before);
    }

    @Test
    void anInterruptionMovesNothing() {
        machine.interruption = 400 * MS;
        long before = clock.now();
        assertEquals(400 * MS, clock.now() - before, "the interruption of the first reading, no more");
    }

    @Test
    void fastExtrapolatesAndNoticesASuspend() {
        long before = clock.fast();
        int readings = machine.readings;
        machine.pass(RawClock.FAST_NANOS - 1);
        assertEquals(RawClock.FAST_NANOS - 1, clock.fast() - before);
        assertEquals(readings, machine.readings, "it read the clock again");
        machine.sleep(60_000 * MS);
        assertTrue(clock.fast() - before >= 60_000 * MS, "the suspend is missing");
        machine.pass(RawClock.FAST_NANOS);
        readings = machine.readings;
        clock.fast();
        assertEquals(readings + 1, machine.readings, "it did not read the clock after a millisecond");
    }

    @Test
    @EnabledForJreRange(minVersion = 22)
    @EnabledOnOs(OS.LINUX)
    void readsTheRealClocks() {
        NativeClock real = NativeClock.open();
        assertNotNull(real, "no clock_gettime: run the tests with --enable-native-access=ALL-UNNAMED");
        long before = System.nanoTime();
        long monotonic = real.monotonic();
        long after = System.nanoTime();
        assertTrue(before <= monotonic && monotonic <= after, before + ", " + monotonic + ", " + after);
        assertTrue(real.boot() >= monotonic);
        assertTrue(real.raw() > 0);
    }
}
