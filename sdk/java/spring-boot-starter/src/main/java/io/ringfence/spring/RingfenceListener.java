package io.ringfence.spring;

import java.lang.annotation.Documented;
import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * Makes a method of a bean the handler for events: {@link io.ringfence.client.Handler} says what its return and its
 * exceptions mean.
 *
 * <p>The method takes an {@link io.ringfence.client.Event}, a payload, or both in this order. A payload is a byte array, a
 * String in UTF-8, or any other type, which is decoded from JSON by the application's ObjectMapper: events whose payload
 * does not decode are rejected. It returns nothing.
 *
 * <pre>{@code
 * @RingfenceListener
 * void add(Event event, Order order) {
 *     store.add(event.key(), event.fence(), order.cents());
 * }
 * }</pre>
 */
@Documented
@Target(ElementType.METHOD)
@Retention(RetentionPolicy.RUNTIME)
public @interface RingfenceListener {
    /**
     * Names the topics whose events the method gets.
     *
     * @return full names, such as persistent://public/default/orders. Empty for the events of all topics that no other
     *     listener names, and for timers and what a lane has sent, whose topic is the routers' own
     */
    String[] topics() default {};
}
