package io.ringfence.spring;

import com.fasterxml.jackson.databind.ObjectMapper;
import org.springframework.beans.factory.ObjectProvider;
import org.springframework.boot.LazyInitializationExcludeFilter;
import org.springframework.boot.actuate.health.HealthIndicator;
import org.springframework.boot.autoconfigure.AutoConfiguration;
import org.springframework.boot.autoconfigure.condition.ConditionalOnClass;
import org.springframework.boot.autoconfigure.condition.ConditionalOnMissingBean;
import org.springframework.boot.autoconfigure.condition.ConditionalOnProperty;
import org.springframework.boot.context.properties.EnableConfigurationProperties;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.env.Environment;

/** Starts a worker for the methods with {@link RingfenceListener}, unless ringfence.enabled is false. */
@AutoConfiguration(afterName = "org.springframework.boot.autoconfigure.jackson.JacksonAutoConfiguration")
@ConditionalOnProperty(prefix = "ringfence", name = "enabled", matchIfMissing = true)
@EnableConfigurationProperties(RingfenceProperties.class)
public class RingfenceAutoConfiguration {
    /** Made by Spring. */
    public RingfenceAutoConfiguration() {}

    @Bean
    static ListenerRegistry ringfenceListenerRegistry(ObjectProvider<ObjectMapper> mappers) {
        return new ListenerRegistry(mappers);
    }

    /** Excludes beans with listeners from spring.main.lazy-initialization: no other bean refers to them, so that they would never be made. */
    @Bean
    static LazyInitializationExcludeFilter ringfenceListenersAreNotLazy() {
        return (name, definition, type) -> !ListenerRegistry.listenersOf(type).isEmpty();
    }

    @Bean
    @ConditionalOnMissingBean
    RingfenceWorker ringfenceWorker(RingfenceProperties properties, ListenerRegistry listeners,
            ObjectProvider<RingfenceCustomizer> customizers, Environment environment) {
        return new RingfenceWorker(properties, listeners, customizers, environment);
    }

    /** Health, if the application has the actuator. */
    @Configuration(proxyBeanMethods = false)
    @ConditionalOnClass(HealthIndicator.class)
    static class Health {
        @Bean
        @ConditionalOnMissingBean(name = "ringfenceHealthIndicator")
        HealthIndicator ringfenceHealthIndicator(RingfenceWorker worker) {
            return new RingfenceHealthIndicator(worker);
        }
    }
}
