package io.ringfence.examples.orders;

import io.ringfence.client.Fence;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/**
 * Stands for your database. It shows the two checks that make every write safe: a fence refuses a handler that has lost the
 * customer, and the id of the event makes a repetition harmless. It is safe for concurrent use.
 */
final class Ledger {
    /** Bounds the ids that an account keeps; a database would have an index on them. */
    private static final int ORDERS_REMEMBERED_MAX = 1_000;

    /** Refuses a write with an older fence than that of an earlier write. */
    static final class StaleFenceException extends Exception {
        private static final long serialVersionUID = 1;

        StaleFenceException() {
            super("the fence is stale: a later delivery of this customer has written");
        }
    }

    /**
     * What the customers of this process have ordered.
     *
     * @param customers their number
     * @param orders the number of orders
     * @param cents the sum of all orders
     */
    record Sum(int customers, int orders, long cents) {}

    private static final class Account {
        private Fence fence = Fence.NONE; // of the last write: handlers of earlier deliveries are refused
        private final Set<String> last = new HashSet<>();
        private long cents;
    }

    private final Map<String, Account> customers = new HashMap<>();
    private int orders;

    /** Books an order, once. */
    synchronized void add(String customer, String id, Fence fence, long cents) throws StaleFenceException {
        Account account = customers.computeIfAbsent(customer, name -> new Account());
        if (fence.isBefore(account.fence)) {
            throw new StaleFenceException();
        }
        if (account.last.contains(id)) {
            return;
        }
        if (account.last.size() >= ORDERS_REMEMBERED_MAX) {
            account.last.clear();
        }
        account.fence = fence;
        account.last.add(id);
        account.cents += cents;
        orders++;
    }

    /** Returns the orders of all customers of this process. */
    synchronized Sum sum() {
        return new Sum(customers.size(), orders, customers.values().stream().mapToLong(account -> account.cents).sum());
    }
}
