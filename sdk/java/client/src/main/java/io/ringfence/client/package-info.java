/**
 * The Java SDK of Ringfence: the application's side of the stream between a router and the application beside it. Start with
 * {@link io.ringfence.client.Worker} and {@link io.ringfence.client.Handler}.
 */
package io.ringfence.client;
