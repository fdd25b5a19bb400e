package io.ringfence.examples.orders;

import com.fasterxml.jackson.databind.ObjectMapper;
import io.ringfence.client.Handler;
import io.ringfence.client.Handlers;
import io.ringfence.client.RejectException;
import io.ringfence.client.Worker;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * An example application: it adds up the orders of each customer. If two orders of one customer were handled at once, both
 * would read the old sum, and one order would be lost. Ringfence prevents this; the application is just a handler.
 */
public final class Orders {
    private static final System.Logger LOG = System.getLogger("orders");
    private static final int REPORT_EVERY_SECONDS = 10;

    /** The payload of an event. The customer is its key. */
    record Order(long cents) {}

    private Orders() {}

    /**
     * Handles orders until SIGTERM. The router beside it is found by the variable RINGFENCE_APP_ENDPOINT, or at its usual
     * port.
     *
     * @param arguments none
     */
    public static void main(String[] arguments) {
        Ledger sums = new Ledger();
        ScheduledExecutorService reports = Executors.newSingleThreadScheduledExecutor();
        reports.scheduleAtFixedRate(() -> LOG.log(System.Logger.Level.INFO, "orders booked: {0}", sums.sum()),
                REPORT_EVERY_SECONDS, REPORT_EVERY_SECONDS, TimeUnit.SECONDS);
        try {
            Worker.run(handler(sums));
        } finally {
            reports.shutdownNow();
        }
    }

    /** Returns the function that the router calls for one order of a customer at a time. */
    static Handler handler(Ledger sums) {
        ObjectMapper mapper = new ObjectMapper();
        return Handlers.json(payload -> mapper.readValue(payload, Order.class), (event, order) -> {
            if (order.cents() <= 0) {
                throw new RejectException("an order of " + order.cents() + " cents"); // trying again would not help
            }
            // A StaleFenceException means that the customer is somebody else's by now: the event goes to the new owner.
            sums.add(event.key(), event.messageId().toString(), event.fence(), order.cents());
        });
    }
}
