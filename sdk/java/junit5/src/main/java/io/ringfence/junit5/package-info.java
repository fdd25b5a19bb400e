/**
 * A router in memory, for tests of handlers: {@link io.ringfence.junit5.TestRouter}, and the annotation
 * {@link io.ringfence.junit5.RingfenceTest} that gives one to each test.
 */
package io.ringfence.junit5;
