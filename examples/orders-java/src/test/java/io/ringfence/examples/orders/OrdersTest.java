package io.ringfence.examples.orders;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.ringfence.client.Event;
import io.ringfence.client.Fence;
import io.ringfence.client.MessageId;
import io.ringfence.junit5.Outcome;
import io.ringfence.junit5.RingfenceTest;
import io.ringfence.junit5.TestRouter;
import org.junit.jupiter.api.Test;

@RingfenceTest
class OrdersTest {
    private final Ledger sums = new Ledger();
    private int sent;

    private TestRouter.Delivery deliver(TestRouter router, String customer, String payload) {
        return router.deliver(Event.of(customer).payload(payload).messageId(new MessageId(0, ++sent, -1, -1)));
    }

    @Test
    void booksEachOrderOnce(TestRouter router) {
        router.start(Orders.handler(sums));
        TestRouter.Delivery first = deliver(router, "alice", "{\"cents\": 500}");
        deliver(router, "alice", "{\"cents\": 250}").outcome();
        deliver(router, "bob", "{\"cents\": 1}").outcome();
        assertEquals(Outcome.Kind.DONE, first.outcome().kind(), "an order");
        assertEquals(Outcome.Kind.DONE, first.redeliver().outcome().kind(), "the same order again");
        assertEquals(Outcome.Kind.REJECT, deliver(router, "carol", "gibberish").outcome().kind(), "no JSON");
        assertEquals(Outcome.Kind.REJECT, deliver(router, "carol", "{\"cents\": 0}").outcome().kind(), "nothing ordered");
        assertEquals(new Ledger.Sum(2, 3, 751), sums.sum());
    }

    @Test
    void theLedgerRefusesAnEarlierDelivery() throws Exception {
        sums.add("alice", "1", new Fence(7, 1), 100);
        sums.add("alice", "2", new Fence(7, 3), 100); // the next worker beside the same router
        assertThrows(Ledger.StaleFenceException.class, () -> sums.add("alice", "3", new Fence(7, 1), 100));
        sums.add("alice", "3", new Fence(9, 2), 100); // the next owner
        assertThrows(Ledger.StaleFenceException.class, () -> sums.add("alice", "4", new Fence(7, 4), 100));
        sums.add("alice", "3", new Fence(9, 2), 100); // once more
        assertEquals(new Ledger.Sum(1, 3, 300), sums.sum());
    }
}
