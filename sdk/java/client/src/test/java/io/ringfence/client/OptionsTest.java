package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.List;
import java.util.ResourceBundle;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledForJreRange;

class OptionsTest {
    @Test
    void endpoints() {
        assertEquals(new Endpoint(null, "127.0.0.1", 16650), Endpoint.parse("127.0.0.1:16650"));
        assertEquals(new Endpoint(null, "127.0.0.1", 1), Endpoint.parse(":1"));
        assertEquals(new Endpoint(null, "::1", 1), Endpoint.parse("[::1]:1"));
        assertEquals(new Endpoint("/run/r.sock", null, 0), Endpoint.parse("unix:///run/r.sock"));
        assertEquals(new Endpoint("/run/r.sock", null, 0), Endpoint.parse("unix:/run/r.sock"));
        for (String text : List.of("localhost", "host:", "host:0", "host:65536", "host:x", "::1:80", "unix:relative", "unix://relative")) {
            assertTrue(assertThrows(IllegalArgumentException.class, () -> Endpoint.parse(text), text).getMessage().contains("want host:port or unix:///path"));
        }
        for (String text : List.of("127.0.0.1:16650", "[::1]:1", "unix:///run/r.sock")) {
            assertEquals(text, Endpoint.parse(text).toString());
            assertTrue(Endpoint.parse(text).isLocal(), text);
        }
        assertEquals(false, Endpoint.parse("192.0.2.1:1").isLocal());
    }

    /** All mistakes at once, each by the name of its option. */
    @Test
    void optionsOutOfRangeAreRefused() {
        IllegalArgumentException refused = assertThrows(IllegalArgumentException.class, () -> Worker.builder(null).endpoint("nowhere").maxInFlight(0)
                .maxThreads(0).drainGrace(Duration.ofSeconds(-1)).stateMax(-1).logger(null).hooks(null).ready(null).leaseClock(null).start());
        for (String name : List.of("endpoint", "handler", "maxInFlight = 0", "maxThreads", "drainGrace", "stateMax = -1", "logger", "hooks", "ready", "leaseClock")) {
            assertTrue(refused.getMessage().contains(name), name + " is missing in: " + refused.getMessage());
        }
        assertThrows(IllegalArgumentException.class, () -> Worker.builder(event -> { }).maxInFlight(100_001).start());
        // Its nanoseconds would be too many for a long: the worker would fail at its drain.
        assertThrows(IllegalArgumentException.class, () -> Worker.builder(event -> { }).drainGrace(ChronoUnit.FOREVER.getDuration()).start());
        assertTrue(assertThrows(IllegalArgumentException.class, () -> Worker.builder(event -> { }).interceptors(next -> null).start())
                .getMessage().contains("number 1"));
    }

    /** The log of the application warns of the endpoint, and throws. */
    @Test
    void aLogThatThrowsKeepsNoLaneBack() {
        Handler failing = new Handler() {
            @Override
            public void publish(LogRecord line) {
                throw new IllegalStateException("the log is broken");
            }

            @Override
            public void flush() { }

            @Override
            public void close() { }
        };
        Logger log = Logger.getLogger("io.ringfence.client");
        log.addHandler(failing);
        try {
            Lane.dial("192.0.2.1:1").close();
        } finally {
            log.removeHandler(failing);
        }
    }

    @Test
    void aLaneHasALogOfItsOwn() {
        List<String> lines = new ArrayList<>();
        System.Logger log = new System.Logger() {
            @Override
            public String getName() {
                return "own";
            }

            @Override
            public boolean isLoggable(Level level) {
                return true;
            }

            @Override
            public void log(Level level, ResourceBundle bundle, String message, Throwable thrown) {
                lines.add(message);
            }

            @Override
            public void log(Level level, ResourceBundle bundle, String format, Object... parameters) {
                lines.add(format);
            }
        };
        Lane.builder().endpoint("192.0.2.1:1").logger(log).dial().close();
        assertEquals(1, lines.size(), lines.toString());
        assertTrue(lines.get(0).contains("not encrypted"), lines.get(0));
        assertThrows(IllegalArgumentException.class, () -> Lane.builder().logger(null).dial());
    }

    /** A second function does not take the place of the first. */
    @Test
    void readinessHasSeveralListeners() {
        List<String> told = new ArrayList<>();
        Worker.Builder options = Worker.builder(event -> { }).ready(up -> told.add("first " + up)).ready(up -> told.add("second " + up));
        options.connected(new Runner(options, event -> { }, null, 1, () -> false), null);
        assertEquals(List.of("first true", "second true"), told);
        assertTrue(assertThrows(IllegalArgumentException.class, () -> options.ready(null).ready(up -> { }).start()).getMessage().contains("ready"));
    }

    /** The router judges them, as other times that are too long. */
    @Test
    void timesTooLongForANumberAreNoFailureOfArithmetic() {
        Duration ever = ChronoUnit.FOREVER.getDuration();
        try (Lane lane = Lane.dial("unix:/nobody/is/there")) {
            assertThrows(CallException.class, () -> lane.invoke("k", "do", new byte[0], CallOptions.NONE.timeout(ever)));
            String refusal = assertThrows(NotReservedException.class, () -> lane.reserve("k", ever)).getMessage();
            assertFalse(refusal.contains("Arithmetic"), refusal);
            refusal = assertThrows(NotReservedException.class, () -> lane.reserve("k", Duration.ofDays(400 * 365))).getMessage();
            assertFalse(refusal.contains("Arithmetic"), refusal);
            assertThrows(NotSentException.class, () -> lane.send("k", new byte[0], SendOptions.NONE.timeout(ever)));
        }
        assertEquals(1, SendOptions.NONE.at(Instant.MIN).atMs); // it has passed
        assertEquals(Long.MAX_VALUE, SendOptions.NONE.at(Instant.MAX).atMs);
    }

    @Test
    void ttlsTooLongForANumberAreOutOfRange() {
        assertThrows(IllegalArgumentException.class, () -> ReserveOptions.NONE.ttl(ChronoUnit.FOREVER.getDuration()));
    }

    @Test
    void virtualThreadsNeedAJavaThatHasThem() {
        if (Runtime.version().feature() < 21) {
            assertTrue(assertThrows(IllegalArgumentException.class, () -> Worker.builder(event -> { }).virtualThreads(true).start())
                    .getMessage().contains("Java 21"));
        } else {
            assertNotNull(Threads.virtual("x-").newThread(() -> { }));
        }
    }

    @Test
    @EnabledForJreRange(minVersion = 21)
    void virtualThreadsAreNamed() throws InterruptedException {
        Thread thread = Threads.virtual("ringfence-handler-").newThread(() -> { });
        assertEquals("ringfence-handler-0", thread.getName());
        assertTrue(thread.isDaemon());
        thread.start();
        thread.join();
    }
}
