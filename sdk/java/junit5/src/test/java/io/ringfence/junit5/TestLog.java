package io.ringfence.junit5;

import java.util.ResourceBundle;

/** A log whose lines go to a test. */
record TestLog(Lines lines) implements System.Logger {
    /** Gets the format of a line, what was thrown or null, and the parameters. */
    interface Lines {
        void accept(String format, Throwable thrown, Object... parameters);
    }

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
        lines.accept(format, null, parameters);
    }
}
