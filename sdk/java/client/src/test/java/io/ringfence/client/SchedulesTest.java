package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.ringfence.client.proto.Schedule;
import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** How schedules are declared. */
class SchedulesTest {
    private static final Times HOURLY = Times.every(Duration.ofHours(1));
    private static final FiringHandler NOTHING = firing -> { };

    private static Schedule declared(Times times, ScheduleOptions options) {
        Schedules schedules = new Schedules();
        schedules.add("s", times, NOTHING, options);
        assertEquals(List.of(), refusedBy(schedules));
        return schedules.declared.get(0);
    }

    private static List<String> refusedBy(Schedules schedules) {
        List<String> refused = new ArrayList<>();
        schedules.check(refused);
        return refused;
    }

    private static Schedule.Builder wire() {
        return Schedule.newBuilder().setName("s");
    }

    @Test
    void timesAndOptionsOnTheWire() {
        Duration ever = ChronoUnit.FOREVER.getDuration();
        Map<Times, Schedule.Builder> times = new LinkedHashMap<>();
        times.put(Times.cron("0 6 * * 1-5", "Europe/Berlin"), wire().setCron("0 6 * * 1-5").setZone("Europe/Berlin"));
        times.put(Times.cron("@daily"), wire().setCron("@daily"));
        times.put(Times.cron("@hourly", null), wire().setCron("@hourly"));
        times.put(Times.every(Duration.ofMillis(10_001).plusNanos(999_999)), wire().setEveryMs(10_001));
        times.put(Times.every(Duration.ofSeconds(-10)), wire()); // the router refuses it, by its name
        times.put(Times.every(ever), wire().setEveryMs(Long.MAX_VALUE));
        times.put(Times.at(Instant.parse("2100-01-02T03:04:05.678999Z")), wire().setAtMs(4_102_542_245_678L));
        times.put(Times.at(Instant.EPOCH), wire().setAtMs(1));
        times.put(Times.at(Instant.EPOCH.minusMillis(1)), wire().setAtMs(-1));
        times.put(Times.at(Instant.MIN), wire().setAtMs(Long.MIN_VALUE));
        times.put(Times.at(Instant.MAX), wire().setAtMs(Long.MAX_VALUE));
        times.forEach((one, want) -> assertEquals(want.build(), declared(one, ScheduleOptions.NONE)));

        Map<ScheduleOptions, Schedule.Builder> options = new LinkedHashMap<>();
        ScheduleOptions none = ScheduleOptions.NONE;
        options.put(none, wire());
        options.put(none.missed(MissedPolicy.LATEST), wire().setMissed(io.ringfence.client.proto.MissedPolicy.MISSED_POLICY_LATEST));
        options.put(none.missed(MissedPolicy.ALL), wire().setMissed(io.ringfence.client.proto.MissedPolicy.MISSED_POLICY_ALL));
        options.put(none.missed(MissedPolicy.SKIP), wire().setMissed(io.ringfence.client.proto.MissedPolicy.MISSED_POLICY_SKIP));
        options.put(none.grace(Duration.ofMinutes(5)), wire().setGraceMs(300_000));
        options.put(none.grace(Duration.ZERO), wire().setGraceMs(1)); // 0 would be an hour
        options.put(none.grace(Duration.ofHours(-1)), wire().setGraceMs(1));
        options.put(none.grace(ever), wire().setGraceMs(Long.MAX_VALUE));
        options.put(none.jitter(Duration.ofSeconds(30)), wire().setJitterMs(30_000));
        options.put(none.jitter(Duration.ofSeconds(-1)), wire());
        options.put(none.jitter(Duration.ofSeconds(3)).missed(MissedPolicy.SKIP).grace(Duration.ofSeconds(2)),
                wire().setMissed(io.ringfence.client.proto.MissedPolicy.MISSED_POLICY_SKIP).setGraceMs(2_000).setJitterMs(3_000));
        options.forEach((one, want) -> assertEquals(want.setEveryMs(3_600_000).build(), declared(HOURLY, one)));
    }

    @Test
    void whatCannotBeASchedule() {
        Schedules schedules = new Schedules();
        schedules.add("twice", HOURLY, NOTHING, ScheduleOptions.NONE);
        schedules.add("é".repeat(64), Times.cron("*".repeat(256), "z".repeat(64)), NOTHING, ScheduleOptions.NONE); // as long as they may be
        assertEquals(List.of(), refusedBy(schedules));
        schedules.add("twice", HOURLY, NOTHING, ScheduleOptions.NONE);
        schedules.add("", HOURLY, NOTHING, ScheduleOptions.NONE);
        schedules.add(null, HOURLY, NOTHING, ScheduleOptions.NONE);
        schedules.add("no times", null, NOTHING, ScheduleOptions.NONE);
        schedules.add("no handler", HOURLY, null, ScheduleOptions.NONE);
        schedules.add("no options", HOURLY, NOTHING, null);
        schedules.add("half \ud800", HOURLY, NOTHING, ScheduleOptions.NONE);
        schedules.add("a\u00a0space", HOURLY, NOTHING, ScheduleOptions.NONE);
        schedules.add("cron", Times.cron("*".repeat(255) + "é"), NOTHING, ScheduleOptions.NONE);
        schedules.add("half a cron", Times.cron("\udc00"), NOTHING, ScheduleOptions.NONE);
        schedules.add("zone", Times.cron("@daily", "é".repeat(33)), NOTHING, ScheduleOptions.NONE);
        schedules.add("é".repeat(65), HOURLY, NOTHING, ScheduleOptions.NONE);
        schedules.add("n".repeat(129), HOURLY, NOTHING, ScheduleOptions.NONE);
        assertEquals(List.of("schedule: \"twice\", \"\", \"null\", \"no times\", \"no handler\", \"no options\", \"half \ud800\", \"a\u00a0space\", \"cron\", \"half a cron\", \"zone\", \""
                + "é".repeat(65) + "\", \"" + "n".repeat(80) + "\": want times, a handler and options, each name once, texts of Unicode, printable names of 1 to 128 bytes, "
                + "expressions of at most 256 and zones of at most 64"), refusedBy(schedules));
        assertEquals(2, schedules.declared.size());
        assertThrows(NullPointerException.class, () -> Times.cron(null));
    }

    /** Before there is a connection, with all other options. */
    @Test
    void startRefusesWrongSchedules() {
        Worker.Builder wrong = Worker.builder(event -> { }).endpoint("nowhere").schedule("", HOURLY, NOTHING);
        String refused = assertThrows(IllegalArgumentException.class, wrong::start).getMessage();
        assertTrue(refused.contains("endpoint") && refused.contains("schedule: \"\": want"), refused);
        Worker.Builder many = Worker.builder(event -> { }).endpoint("nowhere");
        for (int n = 0; n < Worker.SCHEDULES_MAX; n++) {
            many.schedule("s" + n, HOURLY, NOTHING);
        }
        refused = assertThrows(IllegalArgumentException.class, many::start).getMessage();
        assertFalse(refused.contains("schedule"), refused);
        many.schedule("one more", HOURLY, NOTHING);
        refused = assertThrows(IllegalArgumentException.class, many::start).getMessage();
        assertTrue(refused.contains("schedule: 257 schedules, want at most 256"), refused);
    }

    /** A test of a handler needs no router. */
    @Test
    void aFiringOfATest() {
        Firing firing = Firing.of("report", Instant.ofEpochMilli(7), 4_294_967_295L);
        assertEquals(List.of("report", Instant.ofEpochMilli(7), 4_294_967_295L, 1, new Fence(0, 0)),
                List.of(firing.schedule(), firing.time(), firing.missed(), firing.attempt(), firing.fence()));
        assertFalse(firing.isCancelled() || firing.leaseUntil().isPresent());
        firing.checkActive();
        firing.progress();
        firing.after(Duration.ZERO, "later", new byte[0]);
        assertEquals("Firing[report of 1970-01-01T00:00:00.007Z]", firing.toString());
        List<Long> path = Lane.pathOf(Event.of("schedule/report").build());
        assertEquals(path, Lane.pathOf(CallOptions.NONE.caller(firing).caller));
        assertEquals(path, Lane.pathOf(ReserveOptions.NONE.caller(firing).caller));
    }
}
