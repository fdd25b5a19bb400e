package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.lang.ref.WeakReference;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

/** Which states are kept: the tests of client/state.go, ported. */
class StatesTest {
    private static class Cart {}

    private static final class Address extends Cart {}

    private static Event event(byte[] key, long token, long turn, long generation) {
        Event event = Event.of(key).fence(new Fence(token, turn)).build();
        event.generation = generation;
        return event;
    }

    private static Event event(String key, long turn) {
        return event(key.getBytes(StandardCharsets.UTF_8), 1, turn, 1);
    }

    /** Begins a turn. */
    private static Event begin(States states, String key, long turn) {
        return begin(states, event(key, turn));
    }

    private static Event begin(States states, Event event) {
        states.begins(event);
        return event;
    }

    private static void end(States states, Event event, boolean done) {
        event.returns();
        states.ended(event, done);
    }

    /** Whether a state is loaded, and not that of another turn. */
    private static boolean loads(States states, Event event) {
        boolean[] loaded = new boolean[1];
        states.of(event, Cart.class, () -> {
            loaded[0] = true;
            return new Cart();
        });
        return loaded[0];
    }

    /** A whole turn that asks for its state. */
    private static boolean turnLoads(States states, Event event) {
        boolean loaded = loads(states, begin(states, event));
        end(states, event, true);
        return loaded;
    }

    /** In the usual case there is one, and each doubt ends it. */
    @Test
    void stateIsKept() {
        record Turn(long generation, long token, boolean asks, boolean done, boolean loads) {}

        List<Turn> turns = List.of(
                new Turn(1, 1, true, true, true),
                new Turn(1, 1, true, true, false),
                new Turn(1, 1, true, false, false),
                new Turn(1, 1, true, true, true),
                new Turn(1, 1, false, true, false),
                new Turn(1, 1, true, true, true),
                new Turn(2, 1, true, true, true),
                new Turn(2, 1, true, true, false),
                new Turn(2, 2, true, true, true),
                new Turn(2, 2, true, true, false),
                new Turn(0, 2, true, true, true),
                new Turn(0, 2, true, true, true));
        States states = new States(10, key -> false);
        for (int i = 0; i < turns.size(); i++) {
            Turn turn = turns.get(i);
            Event event = begin(states, event(new byte[] {'k'}, turn.token, i + 1, turn.generation));
            if (turn.asks) {
                assertEquals(turn.loads, loads(states, event), "turn " + i + " loads");
                assertEquals(turn.generation == 0, loads(states, event), "turn " + i + " loads again");
            }
            end(states, event, turn.done);
        }
        assertFalse(states.any(), "a turn without a generation has left a state");
    }

    @Test
    void aTurnWithoutItsStateDropsIt() {
        States states = new States(10, key -> false);
        assertTrue(turnLoads(states, event("k", 1)));
        end(states, begin(states, "k", 2), true);
        assertFalse(states.any());
        assertTrue(turnLoads(states, event("k", 3)));
    }

    /** Of several values of a key, those are kept that the turn has asked for. */
    @Test
    void eachClassHasItsOwnValue() {
        States states = new States(10, key -> false);
        Cart cart = new Cart();
        Address address = new Address();
        Event first = begin(states, "k", 1);
        assertSame(cart, states.of(first, Cart.class, () -> cart));
        assertSame(address, states.of(first, Address.class, () -> address));
        end(states, first, true);
        Event second = begin(states, "k", 2);
        assertSame(cart, states.of(second, Cart.class, Cart::new));
        end(states, second, true);
        Event third = begin(states, "k", 3);
        Address other = new Address();
        assertSame(other, states.of(third, Address.class, () -> other), "a turn has not asked for it");
        assertSame(cart, states.of(third, Cart.class, Cart::new));
    }

    /** A value that no handler can change in place would be outdated after a write. */
    @Test
    void aValueThatCannotBeChangedIsNotKept() throws Exception {
        States states = new States(10, key -> false);
        for (Object value : List.of("text", 5, 5L, 1.5, true, 'c', BigDecimal.ONE, Thread.State.NEW, Instant.EPOCH, Duration.ZERO)) {
            Event event = begin(states, "k", 1);
            assertEquals(value, states.of(event, Object.class, () -> value));
            end(states, event, true);
            assertFalse(states.any(), value.getClass().toString());
        }
        Event event = begin(states, "k", 2);
        states.of(event, Object.class, AtomicInteger::new);
        end(states, event, true);
        assertTrue(states.any());
    }

    /** What a load throws reaches the handler, and null too; neither is kept. */
    @Test
    void loadsThatFail() {
        States states = new States(10, key -> false);
        Event event = begin(states, "k", 1);
        IOException failure = new IOException("no database");
        assertSame(failure, assertThrows(IOException.class, () -> states.of(event, Cart.class, () -> {
            throw failure;
        })));
        assertNull(states.of(event, Cart.class, () -> null));
        end(states, event, true);
        assertFalse(states.any());
        assertThrows(NullPointerException.class, () -> event.state(null, Cart::new));
    }

    /** A test of a handler needs no router. */
    @Test
    void aHandlerOfATestLoads() {
        Cart cart = new Cart();
        assertSame(cart, Event.of("k").build().state(Cart.class, () -> cart));
        assertSame(cart, Call.of("k", "do", new byte[0]).state(Cart.class, () -> cart));
        assertSame(cart, Firing.of("s", Instant.EPOCH, 0).state(Cart.class, () -> cart));
    }

    /** They are different keys, which as text would be one. */
    @Test
    void keysThatAreNoText() {
        States states = new States(10, key -> false);
        assertTrue(turnLoads(states, event(new byte[] {(byte) 0xff}, 1, 1, 1)));
        assertTrue(turnLoads(states, event(new byte[] {(byte) 0xfe}, 1, 2, 1)), "another key has the state");
        assertFalse(turnLoads(states, event(new byte[] {(byte) 0xff}, 1, 3, 1)));
    }

    /** A handler that has lost its key leaves nothing, and takes nothing from the turn after it. */
    @Test
    void aHandlerThatGoesOn() {
        States states = new States(10, key -> false);
        Event lost = begin(states, "k", 1);
        loads(states, lost);
        Event second = begin(states, "k", 2);
        assertTrue(loads(states, second), "the next turn got the state of a handler that still runs");
        assertTrue(loads(states, lost), "the handler that goes on got the state of the next turn");
        assertFalse(loads(states, second), "the handler that goes on took the state of the next turn");
        end(states, second, true);
        assertTrue(loads(states, lost), "the handler that goes on got what the next turn had left");
        Event third = begin(states, "k", 3);
        assertFalse(loads(states, third), "the handler that goes on took what the next turn had left");
        end(states, lost, false);
        end(states, third, true);
        assertTrue(turnLoads(states, event("k", 4)), "the handler that went on may have written after the third turn had read");
        assertFalse(turnLoads(states, event("k", 5)));
    }

    /** It may have written after the next turn had begun to load. */
    @Test
    void aHandlerThatGoesOnAndEndsDuringALoad() {
        States states = new States(10, key -> false);
        Event lost = begin(states, "k", 1);
        Event second = begin(states, "k", 2);
        states.of(second, Cart.class, () -> {
            end(states, lost, false);
            return new Cart();
        });
        end(states, second, true);
        assertTrue(turnLoads(states, event("k", 3)));
        assertFalse(turnLoads(states, event("k", 4)));
    }

    /** It may have written something before it lost the key, though it has not asked for the state. */
    @Test
    void aHandlerThatGoesOnAndHasNotAsked() {
        States states = new States(10, key -> false);
        turnLoads(states, event("k", 1));
        Event lost = begin(states, "k", 2);
        assertTrue(turnLoads(states, event("k", 3)), "a turn got the state of the last but one");
        end(states, lost, false);
    }

    /** Its thread stood still before it called the handler, and a later turn of the key has begun meanwhile. */
    @Test
    void aHandlerThatBeginsLate() {
        States states = new States(10, key -> false);
        turnLoads(states, event("k", 1));
        assertFalse(turnLoads(states, event("k", 3)));
        Event late = begin(states, "k", 2);
        assertTrue(loads(states, late), "a handler got the state of a later turn");
        Event fourth = begin(states, "k", 4);
        assertFalse(loads(states, fourth));
        end(states, late, false);
        assertTrue(loads(states, fourth), "it may have written meanwhile");
    }

    /** Its writes may be the last ones. */
    @Test
    void aLostHandlerThatEndsLast() {
        States states = new States(10, key -> false);
        Event lost = begin(states, "k", 1);
        loads(states, lost);
        turnLoads(states, event("k", 2));
        end(states, lost, false);
        assertTrue(turnLoads(states, event("k", 3)), "what the two left is not in one order");
    }

    /** A task that a handler has left behind neither gets nor leaves a state: its event would be kept with it. */
    @Test
    void aTaskThatAHandlerLeavesBehind() {
        States states = new States(10, key -> false);
        Event first = begin(states, "k", 1);
        turnLoads(states, first);
        assertTrue(loads(states, first));
        assertFalse(turnLoads(states, event("k", 2)));
        Event other = begin(states, "other", 1);
        end(states, other, true);
        assertTrue(loads(states, other));
        assertEquals(1, states.size());
    }

    @Test
    void theLastUsedKeysAreKept() {
        States states = new States(2, key -> false);
        turnLoads(states, event("a", 1));
        turnLoads(states, event("b", 2));
        assertFalse(turnLoads(states, event("a", 3)));
        assertTrue(turnLoads(states, event("c", 4)));
        assertEquals(2, states.size());
        assertFalse(turnLoads(states, event("a", 5)));
        assertFalse(turnLoads(states, event("c", 6)));
        assertTrue(turnLoads(states, event("b", 7)));
        States none = new States(0, key -> false);
        assertTrue(turnLoads(none, event("a", 1)));
        assertTrue(turnLoads(none, event("a", 2)));
        assertFalse(none.any());
    }

    @Test
    void aStreamThatHasEnded() {
        States states = new States(10, key -> false);
        turnLoads(states, event("before", 1));
        Event running = begin(states, "running", 2);
        loads(states, running);
        assertEquals(2, states.size());
        states.close();
        end(states, running, true);
        assertTrue(turnLoads(states, event("before", 3)));
        assertFalse(states.any(), "states of a stream that has ended are kept");
    }

    /** A state must not keep its event, which shares the memory of its whole frame. */
    @Test
    void stateKeepsNoFrame() throws InterruptedException {
        States states = new States(10, key -> false);
        WeakReference<Event> event = usedUp(states);
        long end = System.nanoTime() + Duration.ofSeconds(30).toNanos();
        while (event.get() != null && System.nanoTime() - end < 0) {
            System.gc();
            Thread.sleep(10);
        }
        assertNull(event.get(), "the event is kept");
        assertEquals(1, states.size());
    }

    private static WeakReference<Event> usedUp(States states) {
        Event event = begin(states, "k", 1);
        turnLoads(states, event);
        return new WeakReference<>(event);
    }

    /** No turn gets or leaves a state while such a handler runs: it may have written since the turn before had loaded. */
    @Test
    void aHandlerThatGoesOnForFurtherTurns() {
        boolean[] runs = new boolean[1];
        States states = new States(10, key -> runs[0] && key.equals("k"));
        Event lost = begin(states, "k", 1);
        Event second = begin(states, "k", 2);
        loads(states, second);
        runs[0] = true; // which is noticed only now
        states.lose("k");
        end(states, second, true);
        for (long turn = 3; turn < 6; turn++) {
            assertTrue(turnLoads(states, event("k", turn)), "turn " + turn);
            assertEquals(turn == 3, turnLoads(states, event("other", turn)));
        }
        Event sixth = begin(states, "k", 6);
        loads(states, sixth);
        end(states, lost, false);
        runs[0] = false;
        loads(states, sixth);
        end(states, sixth, true);
        assertTrue(turnLoads(states, event("k", 7)), "the sixth turn may have changed what it had loaded first");
        assertFalse(turnLoads(states, event("k", 8)));
    }

    /** A handler whose state was dropped may still change that, and not what it has loaded since. */
    @Test
    void aStateThatIsLoadedTwice() {
        States states = new States(1, key -> false);
        Event first = begin(states, "k", 1);
        loads(states, first);
        loads(states, begin(states, "other", 2)); // there is room for one key
        assertTrue(loads(states, first));
        end(states, first, true);
        assertTrue(turnLoads(states, event("k", 3)));
    }

    /**
     * For any turns in any order, also such that overlap because a handler goes on without its key and writes: a turn gets what the turn before has
     * left on the same stream with the same token and generation, or loads. What it gets is what the database has.
     *
     * <p>{@code -Dringfence.seed=N} replays one run.
     */
    @Test
    void stateIsOfTheTurnBefore() {
        Long one = Long.getLong("ringfence.seed");
        long first = one != null ? one : Duration.ofNanos(System.nanoTime()).toMillis() * 10_000;
        int hits = 0;
        int misses = 0;
        for (long seed = first; seed < first + (one != null ? 1 : 1_000); seed++) {
            try {
                RandomRun run = new RandomRun(seed);
                run.steps(120);
                hits += run.hits;
                misses += run.misses;
            } catch (AssertionError | RuntimeException failure) {
                throw new AssertionError("replay with -Dringfence.seed=" + seed + ": " + failure.getMessage(), failure);
            }
        }
        assertTrue(one != null || hits > 1_000 && misses > 1_000, hits + " states that were kept and " + misses + " that were loaded: the run shows nothing");
    }

    private static final class RandomRun {
        private static final List<Class<?>> CLASSES = List.of(Cart.class, Address.class);
        private static final int KEYS = 3;

        private static final class Row {
            private int n;
        }

        /** One turn of a key. */
        private static final class Turn {
            private Event event;
            private States on;
            private boolean lost; // another turn of the key has begun
            private boolean noticed; // that it is lost
            private boolean wrote; // before it has asked
            private final Map<Class<?>, List<Row>> values = new HashMap<>(); // all that it has asked for: several if some were dropped
            private boolean ended;
            private boolean done;
            private boolean disturbed; // what it has, or has left, may be dropped
            private Map<Class<?>, Object> before = Map.of(); // what the turn before has left
            private boolean gets; // it gets that, if it asks: there is no reason to drop it
            private final Map<Class<?>, Object> has = new HashMap<>();
        }

        private final Random random;
        private final int max;
        private States states;
        private final Turn[] newest = new Turn[KEYS]; // by key
        private final List<Turn> all = new ArrayList<>();
        private final long[] token = {1, 1, 1};
        private final int[][] rows = new int[KEYS][CLASSES.size()]; // the database: the number of the last write
        private int writes;
        private long turns;
        private int hits;
        private int misses;

        RandomRun(long seed) {
            random = new Random(seed);
            max = 1 + random.nextInt(KEYS + 1);
            states = new States(max, this::hasLost);
        }

        void steps(int n) {
            for (int i = 0; i < n; i++) {
                int key = random.nextInt(KEYS);
                switch (random.nextInt(28)) {
                    case 0 -> begin(key);
                    case 1 -> askBehind();
                    case 2 -> forget(key);
                    case 3 -> nextStream();
                    case 4 -> end(any());
                    case 5 -> ask(any());
                    case 6, 7, 8 -> write(any());
                    case 9 -> notice(any());
                    default -> step(key);
                }
                assertTrue(states.size() <= max, states.size() + " keys have states, want at most " + max);
            }
        }

        /** What happens mostly: a turn begins, asks and ends, then the next one. */
        private void step(int key) {
            Turn turn = newest[key];
            if (turn == null || turn.ended) {
                begin(key);
            } else if (turn.has.isEmpty() || random.nextInt(3) == 0) {
                ask(turn);
            } else {
                end(turn);
            }
        }

        private boolean hasLost(String key) {
            return all.stream().anyMatch(turn -> turn.noticed && !turn.ended && turn.event.keyText().equals(key));
        }

        /** Notices that a turn has lost its key. */
        private void notice(Turn turn) {
            if (turn == null || !turn.lost || turn.ended || turn.noticed) {
                return;
            }
            turn.noticed = true;
            states.lose(turn.event.keyText());
            disturb(newest[turn.event.partition]);
        }

        /** The writes of another turn and of this one may be in any order. */
        private static void disturb(Turn turn) {
            turn.disturbed = true;
            turn.before = Map.of();
            turn.has.clear();
        }

        private void write(Turn turn) {
            if (turn == null || turn.ended) {
                return;
            }
            writes++;
            turn.wrote |= turn.values.isEmpty();
            for (int i = 0; i < CLASSES.size(); i++) {
                List<Row> values = turn.values.getOrDefault(CLASSES.get(i), List.of());
                if (!values.isEmpty()) {
                    values.get(random.nextInt(values.size())).n = writes;
                }
                if (turn.wrote || !values.isEmpty()) {
                    rows[turn.event.partition][i] = writes;
                }
            }
        }

        private Turn any() {
            return all.isEmpty() ? null : all.get(random.nextInt(all.size()));
        }

        private void begin(int key) {
            Turn turn = new Turn();
            Turn last = newest[key];
            if (random.nextInt(8) == 0) {
                token[key]++;
            }
            long generation = random.nextInt(8) == 0 ? random.nextInt(3) : 1;
            turn.event = event(new byte[] {(byte) key}, token[key], ++turns, generation);
            turn.event.partition = key;
            turn.on = states;
            if (last != null) {
                last.lost = true;
                if (last.ended && last.done && last.on == states && last.event.fencingToken() == token[key] && last.event.generation == generation && generation != 0) {
                    turn.before = Map.copyOf(last.has);
                    turn.gets = !last.disturbed && max >= KEYS;
                }
            }
            states.begins(turn.event);
            newest[key] = turn;
            all.add(turn);
        }

        @SuppressWarnings("unchecked") // the type is only a name
        private void ask(Turn turn) {
            if (turn == null || turn.wrote && !turn.ended) {
                return;
            }
            int at = random.nextInt(CLASSES.size());
            Class<?> type = CLASSES.get(at);
            Row fresh = new Row();
            fresh.n = rows[turn.event.partition][at];
            Object got = turn.on.of(turn.event, (Class<Object>) type, () -> fresh);
            if (turn.ended) {
                assertSame(fresh, got, "a task that a handler has left behind got a state");
                return;
            }
            Object should = turn.has.containsKey(type) ? turn.has.get(type) : turn.before.get(type);
            if (got == fresh) {
                misses++;
                assertFalse(should != null && turn.gets && !turn.lost && !turn.disturbed, "a state was dropped without a reason");
            } else {
                hits++;
                assertNotNull(should, "a turn got what the turn before has not left");
                assertSame(should, got, "a turn got what the turn before has not left");
                assertTrue(turn.values.containsKey(type) || ((Row) got).n == fresh.n, "a turn got what the database does not have");
            }
            turn.values.computeIfAbsent(type, none -> new ArrayList<>()).add((Row) got);
            if (turn.has.isEmpty() && turn.before.isEmpty()) {
                turn.gets = max >= KEYS && turn.event.generation != 0; // from now on it has what it has asked for
            }
            turn.has.put(type, got);
        }

        /** Asks for the state in a task that a handler has left behind. */
        private void askBehind() {
            Turn turn = any();
            if (turn != null && turn.ended) {
                ask(turn);
            }
        }

        private void end(Turn turn) {
            if (turn == null || turn.ended) {
                return;
            }
            if (turn.lost && random.nextInt(3) > 0) {
                return;
            }
            // The check of deadlines takes less time than a turn: the router waits longer for the deadline of a handler.
            all.stream().filter(other -> other.event.partition == turn.event.partition).forEach(this::notice);
            turn.ended = true;
            turn.done = !turn.lost && random.nextInt(6) != 0;
            Turn later = newest[turn.event.partition];
            if (later != turn) {
                disturb(later);
            }
            StatesTest.end(turn.on, turn.event, turn.done);
            if (turn.on != states) {
                states.ended(turn.event, false); // as the Runner does
            }
            all.removeIf(other -> other.ended && random.nextInt(3) != 0);
        }

        private void forget(int key) {
            states.forget(partition -> partition == key);
            Turn turn = newest[key];
            if (turn == null || turn.on != states) {
                return;
            }
            turn.before = Map.of();
            turn.has.clear();
            turn.gets = false; // it may ask again, and leaves that only if it had nothing before
        }

        private void nextStream() {
            if (random.nextInt(4) != 0) {
                return;
            }
            States old = states;
            old.close();
            states = new States(max, this::hasLost);
            Stream.concat(all.stream(), Arrays.stream(newest)).filter(Objects::nonNull).forEach(turn -> {
                turn.before = Map.of();
                turn.has.clear();
                turn.disturbed = true;
            });
            assertFalse(old.any());
        }
    }
}
