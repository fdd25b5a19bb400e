package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledOnOs;
import org.junit.jupiter.api.condition.OS;

class UptimeClockTest {
    private static final long MS = 1_000_000;
    private static final long TICK = 10 * MS; // of /proc/uptime

    /** A machine: its clocks, and what happens to it. */
    private static final class Machine implements UptimeClock.Source {
        long awake = 1_000 * MS;
        long asleep;
        long wallOffset = 1_763_000_000_000L * MS;
        boolean hasUptime = true;
        int readings;
        /** Runs between any two readings of clocks. */
        Runnable between = () -> { };

        long boot() {
            return awake + asleep;
        }

        void sleep(long nanos) {
            asleep += nanos;
            wallOffset += nanos; // the kernel adds the time asleep to both clocks
        }

        @Override
        public long monotonic() {
            between.run();
            return awake;
        }

        @Override
        public long wall() {
            between.run();
            return (awake + wallOffset) / MS * MS;
        }

        @Override
        public long uptime() {
            between.run();
            readings++;
            return hasUptime ? boot() / TICK * TICK : UNKNOWN;
        }
    }

    private final Machine machine = new Machine();
    private final UptimeClock clock = new UptimeClock(machine);

    @Test
    void goesOnInASuspend() {
        long before = clock.now();
        machine.sleep(3_600_000 * MS);
        long slept = clock.now() - before;
        assertTrue(slept >= 3_600_000 * MS - TICK && slept <= 3_600_000 * MS + TICK, "an hour asleep counts as " + slept);
    }

    /** Even if nobody asks the clock for long, and even for a suspend in the middle of a reading. */
    @Test
    void noticesASuspendBetweenTwoReadingsOfItsParts() {
        for (int at = 0; at < 6; at++) {
            Machine slept = new Machine();
            UptimeClock ofIt = new UptimeClock(slept);
            int[] countdown = {at};
            slept.between = () -> {
                if (countdown[0]-- == 0) {
                    slept.sleep(5_000 * MS);
                }
            };
            ofIt.now();
            slept.between = () -> { };
            if (countdown[0] >= 0) {
                slept.sleep(5_000 * MS); // now has made fewer readings
            }
            assertTrue(slept.boot() - ofIt.now() <= TICK, "a suspend before reading " + at + " is missing");
        }
    }

    @Test
    void readsTheFileRarely() {
        machine.readings = 0;
        for (int i = 0; i < 1_000; i++) {
            machine.awake += 100_000; // 0.1 ms
            clock.now();
        }
        assertTrue(machine.readings <= 11, machine.readings + " readings in 100 ms, want one every 10 ms");
    }

    @Test
    void theTimeOfDayDecidesNothing() {
        long before = clock.now();
        machine.wallOffset += 86_400_000 * MS;
        assertTrue(clock.now() - before <= TICK, "a wall clock that was set forward counts as time");
        machine.wallOffset -= 2 * 86_400_000 * MS;
        assertTrue(clock.now() - before >= 0 && clock.now() - before <= TICK, "a wall clock that was set back moves the clock");
    }

    /** The clock was set back by the time asleep, in the same moment: then the next regular reading finds the suspend. */
    @Test
    void aSuspendThatTheWallClockHidesIsFoundWithin10Ms() {
        machine.sleep(60_000 * MS);
        machine.wallOffset -= 60_000 * MS;
        machine.awake += UptimeClock.READING_MAX_NANOS;
        assertTrue(machine.boot() - clock.now() <= TICK, "the suspend was not found");
    }

    @Test
    void withoutUptimeTheWallClockTellsOfASuspend() {
        Machine other = new Machine();
        other.hasUptime = false;
        UptimeClock ofIt = new UptimeClock(other);
        long before = ofIt.now();
        other.sleep(60_000 * MS);
        assertEquals(60_000 * MS, ofIt.now() - before);
        other.wallOffset -= 60_000 * MS; // set back later
        assertEquals(60_000 * MS, ofIt.now() - before, "the clock goes back");
    }

    /**
     * For any suspends, settings of the wall clock and interruptions: the clock never runs ahead of CLOCK_BOOTTIME, is never
     * behind it by more than 10 ms, one step and what interrupted the reading, and never goes back.
     */
    @Test
    void staysCloseToTheBootClock() {
        long first = System.nanoTime();
        for (long seed = first; seed < first + 300; seed++) {
            Random random = new Random(seed);
            Machine m = new Machine();
            long[] interrupted = {0};
            m.between = () -> {
                if (random.nextInt(20) == 0) {
                    long pause = random.nextInt(3) * MS;
                    m.awake += pause;
                    interrupted[0] += pause;
                }
            };
            UptimeClock c = new UptimeClock(m);
            long last = Long.MIN_VALUE;
            long ofReading = 0; // what interrupted the newest reading
            for (int i = 0; i < 300; i++) {
                switch (random.nextInt(5)) {
                    case 0 -> m.sleep(random.nextInt(100) * MS);
                    case 1 -> m.wallOffset += random.nextInt(1_000) * MS;
                    default -> m.awake += random.nextInt(12 * (int) MS);
                }
                interrupted[0] = 0;
                int readings = m.readings;
                long now = c.now();
                ofReading = m.readings > readings ? interrupted[0] : ofReading;
                String at = "seed " + seed + ", step " + i;
                assertTrue(now <= m.boot(), at + ": ahead of the boot clock by " + (now - m.boot()));
                long behind = m.boot() - now - interrupted[0] - ofReading;
                assertTrue(behind <= TICK + UptimeClock.STEP_NANOS + MS, at + ": behind the boot clock by " + behind);
                assertTrue(now >= last, at + ": it went back");
                last = now;
            }
        }
    }

    @Test
    void parsesUptime() {
        assertEquals(14_690_110_000_000L, SystemClocks.ProcUptime.parse("14690.11 7675.33\n"));
        assertEquals(50_000_000L, SystemClocks.ProcUptime.parse("0.05 0.00\n"));
        for (String broken : new String[] {"", "\n", ".5 1", "1 2", "x.1 2", "5."}) {
            assertEquals(UptimeClock.Source.UNKNOWN, SystemClocks.ProcUptime.parse(broken), broken);
        }
    }

    /** Reading must also work in the thread of a cancelled handler, which is interrupted. */
    @Test
    @EnabledOnOs(OS.LINUX)
    void readsTheRealClocks() throws IOException {
        SystemClocks.ProcUptime real = new SystemClocks.ProcUptime();
        Thread.currentThread().interrupt();
        long first = real.uptime();
        assertTrue(Thread.interrupted(), "the interruption was lost");
        long second = SystemClocks.ProcUptime.parse(Files.readString(Path.of("/proc/uptime")));
        long third = real.uptime();
        assertTrue(0 < first && first <= second && second <= third, first + ", " + second + ", " + third);
        assertTrue(real.wall() > 1_700_000_000_000L * MS, "the wall clock shows " + real.wall());
    }
}
