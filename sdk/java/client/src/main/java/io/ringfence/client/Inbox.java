package io.ringfence.client;

import java.util.ArrayDeque;
import java.util.List;
import java.util.function.Consumer;
import java.util.function.Predicate;

/**
 * The deliveries of one stream and their deadlines: rules 1 to 7 of docs/sdk-protocol.md.
 *
 * <p>It is a pure machine: time is an argument, and there is no thread, lock or clock in it. It is not safe for
 * concurrent use: {@link Runner} calls it under its lock.
 *
 * <p>Instants are nanoseconds of the lease clock. A deadline belongs to one delivery. Deliveries that are not revoked
 * share the newest deadline; a Revoke freezes a copy of it.
 *
 * @param <T> a delivery
 */
final class Inbox<T extends Inbox.Item> {
    /** The inbox's part of a delivery. */
    abstract static class Item {
        /** The router's name for the delivery on its stream. Set before {@link Inbox#give}, never after. */
        long id;
        /** The partition of its key. Set before {@link Inbox#give}, never after. */
        int partition;

        /** The answer, from {@link Inbox#end} on. */
        ResultKind kind;
        /** RETRY: when to try again in ms; 0: the router's own back-off. */
        long afterMs;
        /** RETRY, REJECT: why; may be null. */
        String reason;
        /** When the handler started, in ns of the boot clock; 0: nobody has asked. */
        long startedNs;
        /** How long the handler ran in ns. */
        long tookNs;
        /** DONE, of a call: the reply; null for an empty one. */
        byte[] reply;
        /** Of a call that failed or has no handler: why, for programs; may be null. */
        String code;

        private Chain chain; // the one that it is in, null for none
        private Item previous;
        private Item next;
        private long deadline; // frozen or lost: of this delivery alone

        final void move(Chain to) {
            if (chain != null) {
                chain.remove(this);
            }
            if (to != null) {
                to.add(this);
            }
        }
    }

    /** How many of the newest Pings may still be answered. */
    private static final int PINGS_MAX = 8;

    private final Chain waiting = new Chain(); // not started
    private final Chain running = new Chain(); // started; their deadline is newest
    private final Chain frozen = new Chain(); // started, then revoked: each has its own deadline
    private final Chain lost = new Chain(); // started, and cancelled for good: the deadline has passed, or it took too long

    /** Deliveries with an answer that is on its way to the router, in order: the sender removes them. */
    final ArrayDeque<T> results = new ArrayDeque<>();

    private long newest = Long.MIN_VALUE; // deadline of unrevoked deliveries; in the past until the first Pong
    private final long[] pingTimes = new long[PINGS_MAX]; // before it was sent, by k modulo PINGS_MAX
    private long pings; // number of the newest Ping

    private boolean suspended; // the router lets nothing start
    private boolean draining; // we let nothing start
    private boolean broken; // the stream has ended: deadlines stay, results have nowhere to go

    /** Adds a delivery to the waiting ones. */
    void give(T item) {
        if (draining) {
            refuse(item);
            return;
        }
        item.move(waiting);
    }

    /**
     * Returns the next delivery to start, null if there is none or none may start: a delivery starts only while the
     * deadline of the newest Pong lies ahead. {@code now} must have been read right before.
     */
    T take(long now) {
        if (!startable() || now >= newest) {
            return null;
        }
        Item item = waiting.head;
        item.move(running);
        return cast(item);
    }

    /** Reports whether {@link #take} would return a delivery, judged without the clock. */
    boolean startable() {
        return waiting.size > 0 && !suspended && !broken;
    }

    /** Answers a delivery whose handler has returned. Its answer is in the item. */
    void end(T item) {
        item.move(null);
        if (!broken) { // only an answer on the same stream counts
            results.add(item);
        }
    }

    private void refuse(T item) {
        item.move(null);
        if (!broken) {
            item.kind = ResultKind.NOT_STARTED;
            results.add(item);
        }
    }

    /** Notes a Ping that is sent after {@code now}, and returns its number. */
    long sendPing(long now) {
        pings++;
        pingTimes[(int) (pings % PINGS_MAX)] = now;
        return pings;
    }

    /**
     * Takes a Pong in. {@code overdue} gets the deliveries whose deadline had passed before it came: a deadline that has
     * passed is never extended.
     */
    void pong(long now, long k, long remaining, List<Long> listed, Consumer<T> overdue) {
        check(now, overdue);
        if (k <= 0 || k > pings || k <= pings - PINGS_MAX || remaining <= 0) {
            return;
        }
        // The router computed remaining after it had received the Ping, so counting from before its sending is early enough.
        long deadline = plus(pingTimes[(int) (k % PINGS_MAX)], remaining);
        newest = Math.max(newest, deadline);
        for (long id : listed) {
            Item item = frozen.find(id);
            if (item != null) {
                item.deadline = Math.max(item.deadline, deadline);
            }
        }
    }

    /** A sum that stays at the greatest instant instead of turning into the past. */
    private static long plus(long instant, long remaining) {
        long sum = instant + remaining;
        return sum < instant ? Long.MAX_VALUE : sum;
    }

    /** Takes deliveries back. Those that have not started are answered; started ones keep their deadlines. */
    void revoke(Predicate<? super T> hit) {
        for (Item item = waiting.head, next; item != null; item = next) {
            next = item.next;
            if (hit.test(cast(item))) {
                refuse(cast(item));
            }
        }
        for (Item item = running.head, next; item != null; item = next) {
            next = item.next;
            if (hit.test(cast(item))) {
                item.deadline = newest;
                item.move(frozen);
            }
        }
    }

    /**
     * Takes single deliveries back that took too long. Those that have not started are answered. {@code cut} gets the
     * started ones: their handlers must be cancelled, and need not run until their deadline, which stays where it is.
     */
    void cut(Predicate<? super T> hit, Consumer<T> cut) {
        revoke(hit);
        for (Item item = frozen.head, next; item != null; item = next) {
            next = item.next;
            if (hit.test(cast(item))) {
                item.move(lost);
                cut.accept(cast(item));
            }
        }
    }

    /**
     * Passes the running deliveries whose deadline has passed to {@code overdue}. Their handlers must be cancelled; these
     * deliveries stay lost, whatever follows.
     */
    void check(long now, Consumer<T> overdue) {
        if (running.size > 0 && now >= newest) {
            for (Item item = running.head, next; item != null; item = next) {
                next = item.next;
                item.deadline = newest;
                item.move(lost);
                overdue.accept(cast(item));
            }
        }
        for (Item item = frozen.head, next; item != null; item = next) {
            next = item.next;
            if (now >= item.deadline) {
                item.move(lost);
                overdue.accept(cast(item));
            }
        }
    }

    /** The deadline of the deliveries that are not revoked. It never moves back. */
    long newest() {
        return newest;
    }

    /** Reports whether all deliveries that have started share {@link #newest} as their deadline. */
    boolean shared() {
        return frozen.size + lost.size == 0;
    }

    /** Until when a delivery may run. */
    long deadline(T item) {
        Chain in = ((Item) item).chain;
        return in == frozen || in == lost ? ((Item) item).deadline : newest;
    }

    /** Lets nothing start until {@link #resume}. */
    void suspend() {
        suspended = true;
    }

    /** Ends a suspend. */
    void resume() {
        suspended = false;
    }

    /** Starts no more deliveries: waiting ones are answered as not started, and later ones will be. */
    void drain() {
        draining = true;
        while (waiting.size > 0) {
            refuse(cast(waiting.head));
        }
    }

    boolean draining() {
        return draining;
    }

    /**
     * Records the end of the stream. Running deliveries keep their last deadline; waiting ones are dropped, since their
     * results could not be sent.
     */
    void breakOff() {
        broken = true;
        while (waiting.size > 0) {
            waiting.head.move(null);
        }
        results.clear();
    }

    /** Passes all deliveries whose handlers run to {@code each}. */
    void forStarted(Consumer<T> each) {
        for (Chain chain : new Chain[] {running, frozen, lost}) {
            for (Item item = chain.head; item != null; item = item.next) {
                each.accept(cast(item));
            }
        }
    }

    /** How many handlers run. */
    int started() {
        return running.size + frozen.size + lost.size;
    }

    /** How many handlers run on though they are cancelled for good. */
    int late() {
        return lost.size;
    }

    /** Whether a handler runs that was cancelled for good and that hits. */
    boolean hasLate(Predicate<? super T> hit) {
        for (Item item = lost.head; item != null; item = item.next) {
            if (hit.test(cast(item))) {
                return true;
            }
        }
        return false;
    }

    /** How many deliveries have not started. */
    int waiting() {
        return waiting.size;
    }

    /** How many deliveries have no answer: those that wait and those that run. */
    int held() {
        return waiting.size + started();
    }

    /** Where a delivery is: for tests. */
    enum Place {
        WAITING, RUNNING, FROZEN, LOST, NOWHERE
    }

    Place place(T item) {
        Chain in = ((Item) item).chain;
        if (in == waiting) {
            return Place.WAITING;
        } else if (in == running) {
            return Place.RUNNING;
        } else if (in == frozen) {
            return Place.FROZEN;
        }
        return in == lost ? Place.LOST : Place.NOWHERE;
    }

    @SuppressWarnings("unchecked") // only give adds items
    private T cast(Item item) {
        return (T) item;
    }

    /** A doubly linked list through the items themselves: it costs no memory and no look-up to move a delivery. */
    private static final class Chain {
        Item head;
        Item tail;
        int size;

        void add(Item item) {
            item.chain = this;
            item.previous = tail;
            if (tail == null) {
                head = item;
            } else {
                tail.next = item;
            }
            tail = item;
            size++;
        }

        void remove(Item item) {
            if (item.previous == null) {
                head = item.next;
            } else {
                item.previous.next = item.next;
            }
            if (item.next == null) {
                tail = item.previous;
            } else {
                item.next.previous = item.previous;
            }
            item.chain = null;
            item.previous = null;
            item.next = null;
            size--;
        }

        Item find(long id) {
            for (Item item = head; item != null; item = item.next) {
                if (item.id == id) {
                    return item;
                }
            }
            return null;
        }
    }
}
