package io.ringfence.spring;

import org.springframework.boot.actuate.health.AbstractHealthIndicator;
import org.springframework.boot.actuate.health.Health;

/** Reports UP while there is a session with the router. */
final class RingfenceHealthIndicator extends AbstractHealthIndicator {
    private final RingfenceWorker worker;

    RingfenceHealthIndicator(RingfenceWorker worker) {
        this.worker = worker;
    }

    @Override
    protected void doHealthCheck(Health.Builder builder) {
        if (worker.isConnected()) {
            builder.up();
        } else {
            builder.down().withDetail("reason", "no session with the router: see the log of io.ringfence.client");
        }
    }
}
