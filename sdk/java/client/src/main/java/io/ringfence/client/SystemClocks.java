package io.ringfence.client;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.nio.charset.StandardCharsets;

/** Chooses the clock of this process. */
final class SystemClocks {
    private static final System.Logger LOG = System.getLogger("io.ringfence.client");

    /**
     * The system property that keeps the SDK from calling clock_gettime: {@code false} makes every runtime use the clock
     * of Java 17. For a JVM that denies native access, where the attempt itself is not wanted.
     */
    static final String RAW_CLOCK_PROPERTY = "ringfence.rawClock";

    static final LeaseClock BEST = choose();

    private SystemClocks() {}

    private static LeaseClock choose() {
        if (!"false".equals(System.getProperty(RAW_CLOCK_PROPERTY))) {
            NativeClock clocks = NativeClock.open();
            if (clocks != null) {
                return new RawClock(clocks);
            }
        }
        return new UptimeClock(new ProcUptime());
    }

    /** The clocks that any Java can read. */
    static class ProcUptime implements UptimeClock.Source {
        private static final String PATH = "/proc/uptime";
        private static final int LINE_MAX = 64;

        // Not a FileChannel: an interrupted thread, such as that of a cancelled handler, would close it by reading.
        private final RandomAccessFile file;
        private final byte[] line = new byte[LINE_MAX];

        ProcUptime() {
            RandomAccessFile opened = null;
            try {
                opened = new RandomAccessFile(PATH, "r");
            } catch (IOException | SecurityException e) {
                LOG.log(System.Logger.Level.WARNING, "cannot read {0} ({1}): time asleep is measured by the wall clock, so do not"
                        + " set it back on this machine; on Linux, make {0} readable", PATH, e.getMessage());
            }
            file = opened;
        }

        @Override
        public long monotonic() {
            return System.nanoTime();
        }

        @Override
        public long wall() {
            return System.currentTimeMillis() * 1_000_000;
        }

        @Override
        public long uptime() {
            if (file == null) {
                return UNKNOWN;
            }
            try {
                file.seek(0);
                int n = file.read(line, 0, LINE_MAX);
                return n <= 0 ? UNKNOWN : parse(new String(line, 0, n, StandardCharsets.ISO_8859_1));
            } catch (IOException e) {
                return UNKNOWN;
            }
        }

        /** Returns the first number of /proc/uptime in nanoseconds: seconds with two decimals. */
        static long parse(String line) {
            int end = line.indexOf(' ');
            int point = line.indexOf('.');
            if (point < 1 || end < point) {
                return UNKNOWN;
            }
            try {
                long nanos = Long.parseLong(line, 0, point, 10) * 1_000_000_000;
                long unit = 100_000_000;
                for (int i = point + 1; i < end; i++, unit /= 10) {
                    nanos += unit * Character.digit(line.charAt(i), 10);
                }
                return nanos;
            } catch (NumberFormatException e) {
                return UNKNOWN;
            }
        }
    }
}
