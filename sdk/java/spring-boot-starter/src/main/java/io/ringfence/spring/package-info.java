/** The Spring Boot starter of Ringfence: {@link io.ringfence.spring.RingfenceListener} on a method makes it a handler. */
package io.ringfence.spring;
