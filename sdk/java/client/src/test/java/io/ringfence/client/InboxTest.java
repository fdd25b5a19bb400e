package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.Predicate;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;

/** The tests of internal/ownership/inbox, ported. */
class InboxTest {
    private static final long SECOND = 1_000_000_000L;

    /** A delivery. */
    private static final class Work extends Inbox.Item {
        Work(int id, int partition) {
            this.id = id;
            this.partition = partition;
        }

        @Override
        public String toString() {
            return "delivery " + id;
        }
    }

    private final Inbox<Work> box = new Inbox<>();
    private final List<Work> events = new ArrayList<>();

    /** Gives deliveries 1 … n of partitions 1 … n. */
    private void given(int n) {
        for (int i = 1; i <= n; i++) {
            Work work = new Work(i, i);
            events.add(work);
            box.give(work);
        }
    }

    /** Takes a Ping sent at {@code sent} and its Pong at {@code now}; returns the overdue deliveries. */
    private static List<Work> ponged(Inbox<Work> box, long sent, long now, long remaining, Long... draining) {
        List<Work> lost = new ArrayList<>();
        box.pong(now, box.sendPing(sent), remaining, List.of(draining), lost::add);
        return lost;
    }

    private static Predicate<Work> ofPartition(int partition) {
        return work -> work.partition == partition;
    }

    private static List<ResultKind> answers(Inbox<Work> box) {
        return box.results.stream().map(work -> work.kind).toList();
    }

    private static List<Work> check(Inbox<Work> box, long now) {
        List<Work> lost = new ArrayList<>();
        box.check(now, lost::add);
        return lost;
    }

    private static void end(Inbox<Work> box, Work work) {
        work.kind = ResultKind.DONE;
        box.end(work);
    }

    @Test
    void nothingStartsBeforeThePong() {
        given(1);
        assertNull(box.take(0), "a delivery started without a Pong");
        assertNull(box.take(Long.MIN_VALUE + 1), "a delivery started without a Pong, early");
        ponged(box, 10 * SECOND, 11 * SECOND, SECOND); // the answer took as long as it was worth
        assertNull(box.take(11 * SECOND), "a delivery started at its deadline");
        ponged(box, 11 * SECOND, 11 * SECOND, SECOND);
        assertSame(events.get(0), box.take(12 * SECOND - 1), "a delivery did not start before its deadline");
    }

    @Test
    void deadlineCountsFromBeforeThePing() {
        given(1);
        ponged(box, 10 * SECOND, 13 * SECOND, 5 * SECOND);
        assertEquals(15 * SECOND, box.deadline(events.get(0)));
    }

    @TestFactory
    Stream<DynamicTest> pongsThatMoveNothing() {
        Map<String, Consumer<Inbox<Work>>> pongs = new HashMap<>();
        pongs.put("nothing remains", b -> b.pong(2 * SECOND, b.sendPing(2 * SECOND), 0, List.of(), w -> { }));
        pongs.put("less than nothing", b -> b.pong(2 * SECOND, b.sendPing(2 * SECOND), -3600 * SECOND, List.of(), w -> { }));
        pongs.put("no such ping", b -> b.pong(2 * SECOND, 77, 3600 * SECOND, List.of(), w -> { }));
        pongs.put("ping 0", b -> b.pong(2 * SECOND, 0, 3600 * SECOND, List.of(), w -> { }));
        pongs.put("a negative ping", b -> b.pong(2 * SECOND, -1, 3600 * SECOND, List.of(), w -> { }));
        pongs.put("a ping of long ago", b -> {
            for (int i = 0; i < 8; i++) {
                b.sendPing(2 * SECOND);
            }
            b.pong(2 * SECOND, 1, 3600 * SECOND, List.of(), w -> { });
        });
        pongs.put("an earlier deadline", b -> ponged(b, 2 * SECOND, 2 * SECOND, SECOND));
        pongs.put("of another delivery set", b -> ponged(b, 0, SECOND, SECOND, 99L));
        return pongs.entrySet().stream().map(pong -> DynamicTest.dynamicTest(pong.getKey(), () -> {
            Inbox<Work> b = new Inbox<>();
            b.give(new Work(1, 1));
            ponged(b, SECOND, SECOND, 4 * SECOND);
            pong.getValue().accept(b);
            assertEquals(5 * SECOND, b.newest());
        }));
    }

    @Test
    void aPongBeyondTheEndOfTimeIsNotOneOfThePast() {
        given(1);
        ponged(box, 10 * SECOND, 10 * SECOND, Long.MAX_VALUE);
        assertEquals(Long.MAX_VALUE, box.newest());
    }

    @Test
    void passedDeadlineIsNeverExtended() {
        given(2);
        ponged(box, 0, 0, SECOND);
        box.take(0);
        List<Work> lost = ponged(box, SECOND, SECOND, 60 * SECOND); // frozen since 0; no check ran meanwhile
        assertEquals(events.subList(0, 1), lost, "lost, want the one that ran");
        assertEquals(SECOND, box.deadline(events.get(0)), "deadline of the lost delivery, want the passed one");
        assertSame(events.get(1), box.take(SECOND), "the delivery that had not started could not start under the new Pong");
        assertEquals(List.of(), check(box, 2 * SECOND), "lost twice");
    }

    @Test
    void revoke() {
        given(3);
        ponged(box, 0, 0, 10 * SECOND);
        box.take(0); // 1 runs
        box.take(0); // 2 runs; 3 waits
        box.revoke(work -> work.id != 2);
        assertEquals(List.of(ResultKind.NOT_STARTED), answers(box));
        assertEquals(3, box.results.peek().id);

        ponged(box, 5 * SECOND, 5 * SECOND, 10 * SECOND);
        assertEquals(10 * SECOND, box.deadline(events.get(0)), "the revoked one is frozen");
        assertEquals(15 * SECOND, box.deadline(events.get(1)));
        assertFalse(box.shared(), "one deadline for all, though one is frozen");
        ponged(box, 6 * SECOND, 6 * SECOND, 10 * SECOND, 1L);
        assertEquals(16 * SECOND, box.deadline(events.get(0)), "the draining one moves");
        ponged(box, 7 * SECOND, 7 * SECOND, 10 * SECOND);
        assertEquals(events.subList(0, 1), check(box, 16 * SECOND), "lost at 16 s, want the revoked one alone");
        ponged(box, 16 * SECOND, 16 * SECOND, 10 * SECOND, 1L);
        assertEquals(16 * SECOND, box.deadline(events.get(0)), "Pong.draining moved a passed deadline");
    }

    /** An overlong delivery is cancelled at once, and nothing revives it; a waiting delivery is never overlong. */
    @Test
    void cut() {
        given(4);
        ponged(box, 0, 0, 10 * SECOND);
        box.take(0);
        box.take(0);
        box.take(0); // 1, 2 and 3 run; 4 waits
        box.revoke(ofPartition(2));
        List<Work> cut = new ArrayList<>();
        box.cut(work -> work.id != 3, cut::add);
        assertEquals(List.of(events.get(1), events.get(0)), cut);
        assertEquals(List.of(ResultKind.NOT_STARTED), answers(box));
        ponged(box, 5 * SECOND, 5 * SECOND, 10 * SECOND, 1L, 2L);
        assertEquals(10 * SECOND, box.deadline(events.get(0)));
        assertEquals(10 * SECOND, box.deadline(events.get(1)));
        assertEquals(15 * SECOND, box.deadline(events.get(2)));
        assertEquals(events.subList(2, 3), check(box, 20 * SECOND), "lost, want the one that was not cut before");
        assertEquals(3, box.started(), "being cut does not end a handler");
    }

    @Test
    void revokeIsNotForLaterDeliveries() { // the key came back
        ponged(box, 0, 0, SECOND);
        box.revoke(ofPartition(1));
        given(1);
        assertSame(events.get(0), box.take(0), "a delivery that came after the Revoke did not start");
    }

    /** Frozen for long with a delivery that has not started; after that come, in this order, the Revoke and a Pong. */
    @Test
    void frozenApplicationStartsNothingRevoked() {
        given(1);
        ponged(box, 0, 0, SECOND);
        box.revoke(ofPartition(1));
        ponged(box, 40 * SECOND, 40 * SECOND, 60 * SECOND);
        assertNull(box.take(40 * SECOND), "a revoked delivery started");
        assertEquals(List.of(ResultKind.NOT_STARTED), answers(box));
    }

    /** The machine slept through the deadline; the clock has gone on. */
    @Test
    void suspendedMachineStartsNothing() {
        given(2);
        ponged(box, 0, 0, SECOND);
        Work running = box.take(0);
        assertNull(box.take(3600 * SECOND), "a delivery started after its deadline");
        assertEquals(List.of(running), check(box, 3600 * SECOND));
    }

    @Test
    void brokenStreamKeepsTheLastDeadline() {
        given(2);
        ponged(box, 0, 0, 10 * SECOND);
        box.take(0);
        box.breakOff();
        assertNull(box.take(SECOND), "a delivery of a broken stream started");
        assertEquals(10 * SECOND, box.deadline(events.get(0)));
        assertEquals(List.of(), check(box, 10 * SECOND - 1), "lost before the last deadline");
        assertEquals(1, check(box, 10 * SECOND).size(), "not lost at the last deadline");
        end(box, events.get(0));
        assertEquals(0, box.results.size() + box.started(), "a broken stream has results or handlers");
    }

    @Test
    void suspendAndDrain() {
        given(2);
        ponged(box, 0, 0, 10 * SECOND);
        box.suspend();
        assertNull(box.take(0), "a delivery started while suspended");
        box.resume();
        box.take(0);
        box.drain();
        box.give(new Work(9, 0));
        assertEquals(List.of(ResultKind.NOT_STARTED, ResultKind.NOT_STARTED), answers(box), "the waiting and the later one");
        end(box, events.get(0));
        assertEquals(0, box.started());
        assertEquals(3, box.results.size());
    }

    /**
     * For any inputs in any order: no delivery starts at or after its present deadline, no cancelled delivery is revived,
     * no deadline moves once it has passed, and none moves beyond the Pongs that may move it.
     *
     * <p>{@code -Dringfence.seed=N} replays one run.
     */
    @Test
    void inboxKeepsItsDeadlines() {
        Long one = Long.getLong("ringfence.seed");
        long first = one != null ? one : Duration.ofNanos(System.nanoTime()).toMillis() * 10_000;
        for (long seed = first; seed < first + (one != null ? 1 : 3_000); seed++) {
            try {
                new RandomRun(seed).steps(120);
            } catch (AssertionError failure) {
                throw new AssertionError("replay with -Dringfence.seed=" + seed + ": " + failure.getMessage(), failure);
            }
        }
    }

    private static final class RandomRun {
        private final Random random;
        private final Inbox<Work> b = new Inbox<>();
        private final List<Work> all = new ArrayList<>();
        private final Set<Work> revoked = new HashSet<>();
        private final Set<Work> lost = new HashSet<>();
        private long now;
        private long newest;

        RandomRun(long seed) {
            random = new Random(seed);
        }

        void steps(int n) {
            for (int i = 0; i < n; i++) {
                switch (random.nextInt(11)) {
                    case 0, 1 -> give();
                    case 2, 3 -> take();
                    case 4, 5 -> pong();
                    case 6 -> revoke();
                    case 7 -> cut();
                    case 8 -> lose(check(b, now));
                    case 9 -> end();
                    default -> now += random.nextInt(31);
                }
                always();
            }
        }

        private void give() {
            Work work = new Work(all.size() + 1, random.nextInt(4));
            all.add(work);
            b.give(work);
        }

        private void take() {
            Work work = b.take(now);
            if (work != null) {
                assertFalse(revoked.contains(work), "a revoked delivery started");
                assertTrue(now < newest && now < b.deadline(work), "started at " + now + ", newest Pong until " + newest);
            }
        }

        private void pong() {
            long sent = now;
            long k = b.sendPing(sent);
            now += random.nextInt(6);
            long remaining = random.nextInt(23) - 2;
            List<Long> listed = new ArrayList<>();
            Map<Work, Long> before = new HashMap<>();
            for (Work work : all) {
                before.put(work, b.deadline(work));
                if (revoked.contains(work) && random.nextBoolean()) {
                    listed.add(work.id);
                }
            }
            List<Work> overdue = new ArrayList<>();
            b.pong(now, k, remaining, listed, overdue::add);
            lose(overdue);
            if (remaining > 0) {
                newest = Math.max(newest, sent + remaining);
            }
            for (Work work : all) {
                if (b.place(work) == Inbox.Place.NOWHERE || b.place(work) == Inbox.Place.WAITING || b.deadline(work) == before.get(work)) {
                    continue;
                }
                assertTrue(now < before.get(work), "a passed deadline moved");
                assertTrue(!revoked.contains(work) || listed.contains(work.id), "the deadline of a revoked delivery moved, though it was not listed");
                assertEquals(sent + remaining, b.deadline(work), "want ping + remaining");
            }
        }

        private void revoke() {
            int partition = random.nextInt(4);
            for (Work work : all) {
                if (work.partition == partition && b.place(work) != Inbox.Place.NOWHERE) {
                    revoked.add(work);
                }
            }
            b.revoke(ofPartition(partition));
            for (Work work : all) {
                assertFalse(work.partition == partition && b.place(work) == Inbox.Place.WAITING, "a revoked delivery still waits");
            }
        }

        private void cut() {
            int id = 1 + random.nextInt(1 + all.size());
            b.cut(work -> work.id == id, work -> {
                assertTrue(lost.add(work), "a delivery was cut twice");
                revoked.add(work);
            });
        }

        private void end() {
            for (Work work : all) {
                if (b.place(work) != Inbox.Place.NOWHERE && b.place(work) != Inbox.Place.WAITING) {
                    InboxTest.end(b, work);
                    return;
                }
            }
        }

        private void lose(List<Work> overdue) {
            for (Work work : overdue) {
                assertTrue(lost.add(work), "lost twice");
            }
        }

        private void always() {
            assertEquals(all.size(), b.held() + b.results.size(), "deliveries accounted for");
            for (Work work : lost) {
                assertTrue(b.place(work) == Inbox.Place.NOWHERE || b.place(work) == Inbox.Place.LOST, "a lost delivery was revived");
            }
        }
    }
}
