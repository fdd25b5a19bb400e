package io.ringfence.client;

import io.ringfence.client.proto.Schedule;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

/** The schedules that a worker declares, with the handlers of their firings. */
final class Schedules {
    /** The router's bounds in bytes. It closes the connection of a Hello that is far longer than they allow, without a reason. */
    private static final int NAME_MAX = Sender.NAME_MAX;
    private static final int CRON_MAX = 256;
    private static final int ZONE_MAX = 64;

    /** The names that the router takes: those that its logs and pages can show. */
    private static final Pattern PRINTABLE = Pattern.compile("[\\p{L}\\p{M}\\p{N}\\p{P}\\p{S} ]+");

    private static final int SHOWN_MAX = 80; // characters of a name that is refused

    final List<Schedule> declared = new ArrayList<>();
    private final Map<String, FiringHandler> handlers = new HashMap<>();
    private final List<String> bad = new ArrayList<>();

    void add(String name, Times times, FiringHandler handler, ScheduleOptions options) {
        if (times == null || handler == null || options == null || name == null || !fits(name, NAME_MAX) || !PRINTABLE.matcher(name).matches()
                || !fits(times.wire.getCron(), CRON_MAX) || !fits(times.wire.getZone(), ZONE_MAX) || handlers.putIfAbsent(name, handler) != null) {
            String shown = String.valueOf(name);
            bad.add("\"" + (shown.length() <= SHOWN_MAX ? shown : shown.substring(0, SHOWN_MAX)) + "\"");
            return;
        }
        declared.add(times.wire.toBuilder().setName(name).setMissed(options.missed).setGraceMs(options.graceMs).setJitterMs(options.jitterMs).build());
    }

    /** Whether a text is of Unicode, and of so many bytes at most. */
    private static boolean fits(String text, int bytesMax) {
        return StandardCharsets.UTF_8.newEncoder().canEncode(text) && text.getBytes(StandardCharsets.UTF_8).length <= bytesMax;
    }

    /** Adds what is wrong with the schedules, as far as the worker can tell. */
    void check(List<String> refused) {
        if (!bad.isEmpty()) {
            refused.add("schedule: " + String.join(", ", bad) + ": want times, a handler and options, each name once, texts of Unicode, printable names of 1 to "
                    + NAME_MAX + " bytes, expressions of at most " + CRON_MAX + " and zones of at most " + ZONE_MAX);
        }
        if (declared.size() > Worker.SCHEDULES_MAX) {
            refused.add("schedule: " + declared.size() + " schedules, want at most " + Worker.SCHEDULES_MAX);
        }
    }

    /** Whether the text of a router's refusal names one of the schedules. Other refusals can pass, such as that of too many in all workers. */
    boolean areNamedIn(String text) {
        return declared.stream().anyMatch(s -> text.contains("schedule \"" + s.getName().replace("\\", "\\\\").replace("\"", "\\\"") + "\""));
    }

    /** Returns a handler of firings and of what is none. */
    Handler withFirings(Handler others) {
        Map<String, FiringHandler> all = Map.copyOf(handlers);
        return event -> {
            if (event.firing == null) {
                others.handle(event);
                return;
            }
            Firing firing = new Firing(event);
            FiringHandler handler = all.get(firing.schedule());
            if (handler == null) { // the router sends a firing only to workers that have declared its schedule
                throw new IllegalStateException("this worker does not declare the schedule \"" + firing.schedule() + "\"");
            }
            handler.run(firing);
        };
    }
}
