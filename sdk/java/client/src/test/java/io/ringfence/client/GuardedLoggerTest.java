package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.System.Logger.Level;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.ResourceBundle;
import org.junit.jupiter.api.Test;

class GuardedLoggerTest {
    /** A log that has lost its server, or, printing, only fails at exceptions. */
    private static final class Broken implements System.Logger {
        private final List<String> lines = new ArrayList<>();
        private final boolean printing;
        private final RuntimeException failure;

        Broken(boolean printing, RuntimeException failure) {
            this.printing = printing;
            this.failure = failure;
        }

        @Override
        public String getName() {
            return "broken";
        }

        @Override
        public boolean isLoggable(Level level) {
            throw failure;
        }

        @Override
        public void log(Level level, ResourceBundle bundle, String message, Throwable thrown) {
            if (!printing || thrown != null) {
                throw failure;
            }
            lines.add(message);
        }

        @Override
        public void log(Level level, ResourceBundle bundle, String format, Object... parameters) {
            throw failure;
        }
    }

    private static final class Unprintable extends RuntimeException {
        private static final long serialVersionUID = 1;

        @Override
        public String getMessage() {
            throw new IllegalStateException("no message");
        }
    }

    private static String errors(Runnable call) {
        PrintStream before = System.err;
        ByteArrayOutputStream written = new ByteArrayOutputStream();
        System.setErr(new PrintStream(written, true, StandardCharsets.UTF_8));
        try {
            call.run();
        } finally {
            System.setErr(before);
        }
        return written.toString(StandardCharsets.UTF_8).replace(System.lineSeparator(), "\n");
    }

    @Test
    void aLineThatIsNotLoggedGoesToStandardError() {
        GuardedLogger log = new GuardedLogger(new Broken(false, new IllegalStateException("no\nserver")));
        assertTrue(log.isLoggable(Level.DEBUG));
        String reason = " (the log failed: java.lang.IllegalStateException: no server)\n";
        assertEquals("ringfence: WARNING: again in 50 ms" + reason, errors(() -> log.log(Level.WARNING, "again in {0} ms", 50)));
        assertEquals("ringfence: INFO: {bad" + reason, errors(() -> log.log(Level.INFO, "{bad", 50)));
        assertEquals("ringfence: ERROR: a hook failed: java.io.IOException: disk" + reason,
                errors(() -> log.log(Level.ERROR, "a hook failed", new java.io.IOException("disk"))));
        assertEquals("ringfence: DEBUG: handler failed: java.io.IOException: disk" + reason,
                errors(() -> log.log(Level.DEBUG, () -> "handler failed", new java.io.IOException("disk"))));
        assertEquals("ringfence: INFO: x (the log failed: " + Unprintable.class.getName() + ")\n",
                errors(() -> new GuardedLogger(new Broken(false, new Unprintable())).log(Level.INFO, "x")));
    }

    @Test
    void anExceptionThatCannotBePrintedIsNamedInTheLog() {
        Broken broken = new Broken(true, new IllegalStateException("not printed"));
        assertEquals("", errors(() -> new GuardedLogger(broken).log(Level.WARNING, "handler failed", new Unprintable())));
        assertEquals(List.of("handler failed: " + Unprintable.class.getName() + " cannot be logged"), broken.lines);
    }
}
