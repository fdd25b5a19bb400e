package io.ringfence.spring;

import io.ringfence.client.Worker;
import java.nio.file.Path;
import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;

/** The properties {@code ringfence.*}. */
@ConfigurationProperties("ringfence")
public class RingfenceProperties {
    /** Whether the worker starts with the application. */
    private boolean enabled = true;

    /** Address of the router: host:port or unix:///path. By default RINGFENCE_APP_ENDPOINT, else 127.0.0.1:16650. */
    private String endpoint;

    /** Name of the worker in the router's logs. By default the router chooses one. */
    private String name;

    /** Most unanswered events, 1 to 100000. */
    private int maxInFlight = Worker.IN_FLIGHT_DEFAULT;

    /** Most threads of handlers. By default max-in-flight, but at most 1000 if they are threads of the platform. */
    private Integer maxThreads;

    /** Whether handlers run in virtual threads. By default they do if spring.threads.virtual.enabled is true, or from Java 24 on. */
    private Boolean virtualThreads;

    /**
     * How long handlers may continue when the application stops. It is less than the default of
     * spring.lifecycle.timeout-per-shutdown-phase, 30 s, at which Spring stops waiting.
     */
    private Duration drainGrace = Duration.ofSeconds(25);

    /** Whether the router leaves its group when the application stops. */
    private boolean leaveGroup;

    /** Number of keys whose state is kept, those that were used last. With 0 it is always loaded. */
    private int stateMax = Worker.STATE_MAX_DEFAULT;

    /** File with the token for the router. By default RINGFENCE_APP_TOKEN_FILE names it. */
    private Path tokenFile;

    /** TLS, for a router on another machine. */
    private final Tls tls = new Tls();

    /** The properties {@code ringfence.tls.*}. */
    public static class Tls {
        /** PEM file with the certificates of the authorities that the router's certificate is checked against. */
        private Path trust;

        /** PEM file with the certificate of the application. */
        private Path certificate;

        /** PEM file with the private key of the certificate, PKCS 8. */
        private Path key;

        /** Made by Spring. */
        public Tls() {}

        /**
         * Returns ringfence.tls.trust.
         *
         * @return the file; null for the authorities of the JVM
         */
        public Path getTrust() {
            return trust;
        }

        /**
         * Sets ringfence.tls.trust.
         *
         * @param trust the file
         */
        public void setTrust(Path trust) {
            this.trust = trust;
        }

        /**
         * Returns ringfence.tls.certificate.
         *
         * @return the file; null for no TLS
         */
        public Path getCertificate() {
            return certificate;
        }

        /**
         * Sets ringfence.tls.certificate.
         *
         * @param certificate the file
         */
        public void setCertificate(Path certificate) {
            this.certificate = certificate;
        }

        /**
         * Returns ringfence.tls.key.
         *
         * @return the file; null for no TLS
         */
        public Path getKey() {
            return key;
        }

        /**
         * Sets ringfence.tls.key.
         *
         * @param key the file
         */
        public void setKey(Path key) {
            this.key = key;
        }
    }

    /** Made by Spring. */
    public RingfenceProperties() {}

    /**
     * Returns ringfence.enabled.
     *
     * @return its value
     */
    public boolean isEnabled() {
        return enabled;
    }

    /**
     * Sets ringfence.enabled.
     *
     * @param enabled its value
     */
    public void setEnabled(boolean enabled) {
        this.enabled = enabled;
    }

    /**
     * Returns ringfence.endpoint.
     *
     * @return its value
     */
    public String getEndpoint() {
        return endpoint;
    }

    /**
     * Sets ringfence.endpoint.
     *
     * @param endpoint its value
     */
    public void setEndpoint(String endpoint) {
        this.endpoint = endpoint;
    }

    /**
     * Returns ringfence.name.
     *
     * @return its value
     */
    public String getName() {
        return name;
    }

    /**
     * Sets ringfence.name.
     *
     * @param name its value
     */
    public void setName(String name) {
        this.name = name;
    }

    /**
     * Returns ringfence.max-in-flight.
     *
     * @return its value
     */
    public int getMaxInFlight() {
        return maxInFlight;
    }

    /**
     * Sets ringfence.max-in-flight.
     *
     * @param maxInFlight its value
     */
    public void setMaxInFlight(int maxInFlight) {
        this.maxInFlight = maxInFlight;
    }

    /**
     * Returns ringfence.max-threads.
     *
     * @return its value
     */
    public Integer getMaxThreads() {
        return maxThreads;
    }

    /**
     * Sets ringfence.max-threads.
     *
     * @param maxThreads its value
     */
    public void setMaxThreads(Integer maxThreads) {
        this.maxThreads = maxThreads;
    }

    /**
     * Returns ringfence.virtual-threads.
     *
     * @return its value
     */
    public Boolean getVirtualThreads() {
        return virtualThreads;
    }

    /**
     * Sets ringfence.virtual-threads.
     *
     * @param virtualThreads its value
     */
    public void setVirtualThreads(Boolean virtualThreads) {
        this.virtualThreads = virtualThreads;
    }

    /**
     * Returns ringfence.drain-grace.
     *
     * @return its value
     */
    public Duration getDrainGrace() {
        return drainGrace;
    }

    /**
     * Sets ringfence.drain-grace.
     *
     * @param drainGrace its value
     */
    public void setDrainGrace(Duration drainGrace) {
        this.drainGrace = drainGrace;
    }

    /**
     * Returns ringfence.leave-group.
     *
     * @return its value
     */
    public boolean isLeaveGroup() {
        return leaveGroup;
    }

    /**
     * Sets ringfence.leave-group.
     *
     * @param leaveGroup its value
     */
    public void setLeaveGroup(boolean leaveGroup) {
        this.leaveGroup = leaveGroup;
    }

    /**
     * Returns ringfence.state-max.
     *
     * @return its value
     */
    public int getStateMax() {
        return stateMax;
    }

    /**
     * Sets ringfence.state-max.
     *
     * @param stateMax its value
     */
    public void setStateMax(int stateMax) {
        this.stateMax = stateMax;
    }

    /**
     * Returns ringfence.token-file.
     *
     * @return its value
     */
    public Path getTokenFile() {
        return tokenFile;
    }

    /**
     * Sets ringfence.token-file.
     *
     * @param tokenFile its value
     */
    public void setTokenFile(Path tokenFile) {
        this.tokenFile = tokenFile;
    }

    /**
     * Returns ringfence.tls.
     *
     * @return its properties
     */
    public Tls getTls() {
        return tls;
    }
}
