package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.ringfence.junit5.TestRouter;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

/** What SIGTERM and SIGINT do. */
class SignalledTest {
    private static final long WAIT_SECONDS = 30;

    /** The first signal lets handlers end; the second one cancels them, long before the end of the grace. */
    @Test
    void aSecondSignalCancelsHandlers() throws InterruptedException {
        CountDownLatch started = new CountDownLatch(1);
        BlockingQueue<String> ends = new LinkedBlockingQueue<>();
        try (TestRouter router = new TestRouter()) {
            Worker worker = router.start(event -> {
                started.countDown();
                try {
                    new CountDownLatch(1).await();
                } catch (InterruptedException e) {
                    ends.add("interrupted");
                    event.checkActive();
                }
            }, options -> options.drainGrace(Worker.DRAIN_GRACE_MAX));
            router.deliver(Event.of("k"));
            assertTrue(started.await(WAIT_SECONDS, TimeUnit.SECONDS));
            worker.signalled();
            assertTrue(worker.isStopping());
            assertNull(ends.poll(100, TimeUnit.MILLISECONDS), "the first signal has cancelled it");
            worker.signalled();
            assertEquals("interrupted", ends.poll(WAIT_SECONDS, TimeUnit.SECONDS));
            assertTrue(worker.awaitEnd(java.time.Duration.ofSeconds(WAIT_SECONDS)));
        }
    }
}
