package io.ringfence.client;

import java.text.MessageFormat;
import java.util.ResourceBundle;

/** A log that never throws: what another one fails to write goes to standard error, as one line with the reason. */
final class GuardedLogger implements System.Logger {
    private final System.Logger log;

    GuardedLogger(System.Logger log) {
        this.log = log;
    }

    @Override
    public String getName() {
        return log.getName();
    }

    @Override
    public boolean isLoggable(Level level) {
        try {
            return log.isLoggable(level);
        } catch (Throwable failure) { // perhaps the line itself can be written
            return true;
        }
    }

    @Override
    public void log(Level level, ResourceBundle bundle, String message, Throwable thrown) {
        try {
            log.log(level, bundle, message, thrown);
        } catch (Throwable failure) {
            if (thrown == null) {
                tell(level, message, failure);
            } else if (!named(level, bundle, message, thrown)) {
                tell(level, message + ": " + text(thrown), failure);
            }
        }
    }

    /** Logs a line without its exception: perhaps it is that which cannot be printed, since its class may be the application's own. */
    private boolean named(Level level, ResourceBundle bundle, String message, Throwable thrown) {
        try {
            log.log(level, bundle, message + ": " + thrown.getClass().getName() + " cannot be logged", (Throwable) null);
            return true;
        } catch (Throwable failure) {
            return false;
        }
    }

    @Override
    public void log(Level level, ResourceBundle bundle, String format, Object... parameters) {
        try {
            log.log(level, bundle, format, parameters);
        } catch (Throwable failure) {
            tell(level, formatted(format, parameters), failure);
        }
    }

    private static String formatted(String format, Object... parameters) {
        try {
            return MessageFormat.format(format, parameters);
        } catch (Throwable failure) {
            return format;
        }
    }

    private static void tell(Level level, String message, Throwable failure) {
        try {
            String line = "ringfence: " + level + ": " + message + " (the log failed: " + text(failure) + ")";
            System.err.println(line.replaceAll("\\R", " "));
        } catch (Throwable lost) { // the worker matters more than its log
            return;
        }
    }

    private static String text(Throwable failure) {
        try {
            return failure.toString();
        } catch (Throwable unprintable) {
            return failure.getClass().getName();
        }
    }
}
