package io.ringfence.client;

import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.reflect.Array;
import java.lang.reflect.Method;
import java.util.Optional;

/**
 * Calls clock_gettime by java.lang.foreign, which is final since Java 22. This class is compiled for Java 17, so it finds
 * that package by reflection, once; the calls themselves go through a constant method handle and cost as much as in C.
 */
final class NativeClock implements RawClock.Source {
    private static final System.Logger LOG = System.getLogger("io.ringfence.client");

    private static final int FOREIGN_SINCE = 22;
    private static final int CLOCK_MONOTONIC = 1;
    private static final int CLOCK_MONOTONIC_RAW = 4;
    private static final int CLOCK_BOOTTIME = 7;

    /** (int clock, long[2] timespec)int; null where it cannot be called. Static and final, so that the compiler inlines it. */
    private static final MethodHandle CLOCK_GETTIME = link();

    private NativeClock() {}

    /** Returns the clocks, or null where they cannot be read. */
    static NativeClock open() {
        if (CLOCK_GETTIME == null) {
            return null;
        }
        NativeClock clock = new NativeClock();
        return clock.raw() > 0 && clock.boot() > 0 && clock.monotonic() > 0 ? clock : null;
    }

    @Override
    public long raw() {
        return read(CLOCK_MONOTONIC_RAW);
    }

    @Override
    public long boot() {
        return read(CLOCK_BOOTTIME);
    }

    @Override
    public long monotonic() {
        return read(CLOCK_MONOTONIC);
    }

    @Override
    public long nanoTime() {
        return System.nanoTime();
    }

    @Override
    public long wall() {
        return System.currentTimeMillis() * 1_000_000;
    }

    private static long read(int clock) {
        long[] timespec = new long[2];
        int failed;
        try {
            failed = (int) CLOCK_GETTIME.invokeExact(clock, timespec);
        } catch (Throwable e) {
            throw new IllegalStateException("clock_gettime cannot be called: start Java with -D" + SystemClocks.RAW_CLOCK_PROPERTY + "=false", e);
        }
        return failed != 0 ? -1 : timespec[0] * 1_000_000_000 + timespec[1];
    }

    private static MethodHandle link() {
        boolean wide = "64".equals(System.getProperty("sun.arch.data.model")); // both halves of a timespec are long there
        if (Runtime.version().feature() < FOREIGN_SINCE || !wide || !System.getProperty("os.name").equals("Linux")) {
            return null;
        }
        try {
            Class<?> segment = Class.forName("java.lang.foreign.MemorySegment");
            Class<?> layout = Class.forName("java.lang.foreign.MemoryLayout");
            Class<?> values = Class.forName("java.lang.foreign.ValueLayout");
            Class<?> function = Class.forName("java.lang.foreign.FunctionDescriptor");
            Class<?> linker = Class.forName("java.lang.foreign.Linker");
            Class<?> option = Class.forName("java.lang.foreign.Linker$Option");

            // Linker.nativeLinker().downcallHandle(
            //     linker.defaultLookup().find("clock_gettime").get(),
            //     FunctionDescriptor.of(JAVA_INT, JAVA_INT, ADDRESS), Linker.Option.critical(true))
            // critical(true): the call is short, and may write to an array of Java.
            Object nativeLinker = linker.getMethod("nativeLinker").invoke(null);
            Object lookup = linker.getMethod("defaultLookup").invoke(nativeLinker);
            Object symbol = ((Optional<?>) Class.forName("java.lang.foreign.SymbolLookup").getMethod("find", String.class)
                    .invoke(lookup, "clock_gettime")).orElse(null);
            if (symbol == null) {
                return null;
            }
            Object layouts = Array.newInstance(layout, 2);
            Array.set(layouts, 0, values.getField("JAVA_INT").get(null));
            Array.set(layouts, 1, values.getField("ADDRESS").get(null));
            Object descriptor = function.getMethod("of", layout, layouts.getClass()).invoke(null, values.getField("JAVA_INT").get(null), layouts);
            Object options = Array.newInstance(option, 1);
            Array.set(options, 0, option.getMethod("critical", boolean.class).invoke(null, true));
            Method downcall = linker.getMethod("downcallHandle", segment, function, options.getClass());
            MethodHandle call = (MethodHandle) downcall.invoke(nativeLinker, symbol, descriptor, options);
            MethodHandle ofArray = MethodHandles.publicLookup().findStatic(segment, "ofArray", MethodType.methodType(segment, long[].class));
            return MethodHandles.filterArguments(call, 1, ofArray);
        } catch (ReflectiveOperationException | RuntimeException e) {
            Throwable cause = e.getCause() != null ? e.getCause() : e;
            LOG.log(System.Logger.Level.INFO, "the clock that NTP cannot slew is not available, so deadlines are 11 % shorter:"
                    + " allow it by --enable-native-access=ALL-UNNAMED ({0})", cause.toString());
            return null;
        }
    }
}
