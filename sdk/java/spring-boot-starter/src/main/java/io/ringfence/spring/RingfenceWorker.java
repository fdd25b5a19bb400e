package io.ringfence.spring;

import io.grpc.TlsChannelCredentials;
import io.ringfence.client.RingfenceException;
import io.ringfence.client.Worker;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.concurrent.atomic.AtomicBoolean;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.springframework.beans.factory.DisposableBean;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.autoconfigure.thread.Threading;
import org.springframework.context.ApplicationContext;
import org.springframework.context.ApplicationContextAware;
import org.springframework.context.ApplicationListener;
import org.springframework.context.SmartLifecycle;
import org.springframework.context.event.ContextClosedEvent;
import org.springframework.core.Ordered;
import org.springframework.core.env.Environment;

/**
 * The worker of the application. It starts when all beans are ready, and stops before any of them: it requests no more
 * events, waits for the running listeners up to ringfence.drain-grace, and delivers their results.
 */
public final class RingfenceWorker implements SmartLifecycle, ApplicationListener<ContextClosedEvent>, ApplicationContextAware, Ordered, DisposableBean {
    private static final Logger LOG = LoggerFactory.getLogger(RingfenceWorker.class);

    private final RingfenceProperties properties;
    private final ListenerRegistry listeners;
    private final ObjectProvider<RingfenceCustomizer> customizers;
    private final Environment environment;
    private final AtomicBoolean connected = new AtomicBoolean();
    private Worker worker; // guarded by this
    private ApplicationContext context;

    RingfenceWorker(RingfenceProperties properties, ListenerRegistry listeners, ObjectProvider<RingfenceCustomizer> customizers, Environment environment) {
        this.properties = properties;
        this.listeners = listeners;
        this.customizers = customizers;
        this.environment = environment;
    }

    @Override
    public synchronized void start() {
        if (worker != null) {
            return;
        }
        if (listeners.isEmpty()) {
            LOG.warn("no bean has a method with @RingfenceListener: the worker does not start, and the router beside this application delivers nothing");
            return;
        }
        Worker.Builder options = Worker.builder(listeners).endpoint(properties.getEndpoint()).name(properties.getName())
                .maxInFlight(properties.getMaxInFlight()).drainGrace(properties.getDrainGrace()).leaveGroup(properties.isLeaveGroup()).stateMax(properties.getStateMax())
                .ready(connected::set);
        if (properties.getMaxThreads() != null) {
            options.maxThreads(properties.getMaxThreads());
        }
        if (properties.getVirtualThreads() != null) {
            options.virtualThreads(properties.getVirtualThreads());
        } else if (Threading.VIRTUAL.isActive(environment)) { // spring.threads.virtual.enabled, and a Java that has them
            options.virtualThreads(true);
        }
        if (properties.getTokenFile() != null) {
            options.tokenFile(properties.getTokenFile());
        }
        tls(options);
        customizers.orderedStream().forEach(customizer -> customizer.customize(options));
        worker = options.start();
    }

    private void tls(Worker.Builder options) {
        RingfenceProperties.Tls tls = properties.getTls();
        if (tls.getCertificate() == null && tls.getKey() == null && tls.getTrust() == null) {
            return;
        }
        if (tls.getCertificate() == null || tls.getKey() == null) {
            throw new IllegalArgumentException("ringfence.tls: the router requires a client certificate, so set certificate and key");
        }
        try {
            TlsChannelCredentials.Builder credentials = TlsChannelCredentials.newBuilder().keyManager(tls.getCertificate().toFile(), tls.getKey().toFile());
            if (tls.getTrust() != null) {
                credentials.trustManager(tls.getTrust().toFile());
            }
            options.tls(credentials.build());
        } catch (IOException e) {
            throw new UncheckedIOException("ringfence.tls: " + e.getMessage(), e);
        }
    }

    @Override
    public void stop() {
        Worker stopping;
        synchronized (this) {
            stopping = worker;
        }
        if (stopping == null) {
            return;
        }
        RingfenceException failure = null;
        try {
            stopping.close();
        } catch (RingfenceException e) {
            failure = e;
        }
        synchronized (this) { // not before: another thread that stops it must wait, too
            if (worker != stopping) {
                return;
            }
            worker = null;
        }
        if (failure != null) {
            LOG.error("the worker did not shut down cleanly: {}", failure.getMessage());
        }
    }

    @Override
    public void setApplicationContext(ApplicationContext context) {
        this.context = context;
    }

    /** Stops before the life cycles of other beans: the running listeners may use one of the same phase. */
    @Override
    public void onApplicationEvent(ContextClosedEvent event) {
        if (event.getApplicationContext() == context) { // not that of a child
            stop();
        }
    }

    /** The application goes on with its end when the worker has stopped, also if it has its other events delivered by threads. */
    @Override
    public boolean supportsAsyncExecution() {
        return false;
    }

    /** The order of the listeners for the end of the application. */
    @Override
    public int getOrder() {
        return HIGHEST_PRECEDENCE;
    }

    /** Of an application that fails to start when the worker has started, Spring stops no life cycle. */
    @Override
    public void destroy() {
        stop();
    }

    @Override
    public synchronized boolean isRunning() {
        return worker != null;
    }

    /**
     * Reports whether there is a session with the router.
     *
     * @return whether events can come
     */
    public boolean isConnected() {
        return connected.get();
    }
}
