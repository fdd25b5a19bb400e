package io.ringfence.client;

import io.grpc.Attributes;
import io.grpc.ClientStreamTracer;
import io.grpc.Metadata;
import io.grpc.Status;

/** How far an attempt to ask a router has come, as gRPC tells. */
final class Attempt extends ClientStreamTracer.Factory {
    private volatile boolean connected;
    private volatile boolean sent;

    @Override
    public ClientStreamTracer newClientStreamTracer(ClientStreamTracer.StreamInfo info, Metadata headers) {
        return new ClientStreamTracer() {
            @Override
            public void streamCreated(Attributes transport, Metadata headers) {
                connected = true;
            }

            @Override
            public void outboundHeaders() { // a request follows them
                sent = true;
            }
        };
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
