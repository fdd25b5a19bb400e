package io.ringfence.client;

import io.grpc.Attributes;
import io.grpc.ClientStreamTracer;
import io.grpc.Metadata;
import io.grpc.Status;

/** How far an attempt to ask a router has come, as gRPC tells. */
final class Attempt extends ClientStreamTracer.Factory {
    private volatile boolean connected;
    private final long begun = System.nanoTime();
    private volatile boolean sent;
    private volatile long sentAfter; // nanoseconds

    @Override
    public ClientStreamTracer newClientStreamTracer(ClientStreamTracer.StreamInfo info, Metadata headers) {
        return new ClientStreamTracer() {
            @Override
            public void streamCreated(Attributes transport, Metadata headers) {
                connected = true;
            }

            @Override
            public void outboundHeaders() { // a request follows them
                sentAfter = System.nanoTime() - begun;
                sent = true;
            }
        };
    }

    /** When it was begun, by System.nanoTime. */
    long begun() {
        return begun;
    }

    /** Whether there was a connection for it, and room on it. */
    boolean isSent() {
        return sent;
    }

    /** How many nanoseconds that took. */
    long sentAfter() {
        return sentAfter;
    }

    /** Whether an attempt with this status has failed because there was no connection for it, or no room on it. */
    boolean neverSent(Status status) {
        return !sent && (status.getCode() == Status.Code.UNAVAILABLE || status.getCode() == Status.Code.DEADLINE_EXCEEDED);
    }

    /** Whether a connection had no room for an attempt that was never sent. */
    boolean foundNoRoom() {
        return connected;
    }
}
