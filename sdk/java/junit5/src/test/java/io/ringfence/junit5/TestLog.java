package io.ringfence.junit5;

import java.util.ResourceBundle;
import java.util.function.BiConsumer;

/** A log whose lines go to a test: their format, and what was thrown or null. */
record TestLog(BiConsumer<String, Throwable> lines) implements System.Logger {
    @Override
    public String getName() {
        return "test";
    }

    @Override
    public boolean isLoggable(Level level) {
        return true;
    }

    @Override
    public void log(Level level, ResourceBundle bundle, String message, Throwable thrown) {
        lines.accept(message, thrown);
    }

    @Override
    public void log(Level level, ResourceBundle bundle, String format, Object... parameters) {
        lines.accept(format, null);
    }
}
