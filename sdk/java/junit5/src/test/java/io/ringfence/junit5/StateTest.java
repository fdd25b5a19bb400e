package io.ringfence.junit5;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.ringfence.client.Event;
import io.ringfence.client.Handler;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** State between the turns of a key, against the router in memory. */
@RingfenceTest
class StateTest {
    private static final class Cart {}

    private final AtomicInteger loads = new AtomicInteger();

    private final Handler handler = event -> event.state(Cart.class, () -> {
        loads.incrementAndGet();
        return new Cart();
    });

    private boolean turnLoads(TestRouter router, String key) {
        int before = loads.get();
        assertEquals(Outcome.Kind.DONE, router.deliver(Event.of(key)).outcome().kind());
        return loads.get() > before;
    }

    /** It is kept while one worker has all turns of the key, as at a router. */
    @Test
    void aStateIsKept(TestRouter router) {
        router.start(handler);
        assertEquals(List.of(true, false, true, false),
                List.of(turnLoads(router, "k"), turnLoads(router, "k"), turnLoads(router, "other"), turnLoads(router, "k")));
        for (Runnable change : List.<Runnable>of(() -> router.lose("k"), router::expire, router::disconnect)) {
            change.run();
            assertEquals(List.of(true, false), List.of(turnLoads(router, "k"), turnLoads(router, "k")));
        }
    }

    /** A worker that keeps none is told no generations. */
    @Test
    void withoutStates(TestRouter router) {
        router.start(handler, options -> options.stateMax(0));
        assertEquals(List.of(true, true), List.of(turnLoads(router, "k"), turnLoads(router, "k")));
    }
}
