package io.ringfence.client;

import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ConnectivityState;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.ForwardingClientCallListener.SimpleForwardingClientCallListener;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.protobuf.ProtoUtils;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.StreamObserver;
import io.ringfence.client.proto.LaneServiceGrpc;
import io.ringfence.client.proto.Release;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * The channel of a lane. Its connection is replaced when a request has ended by its deadline, or a reservation is not renewed, and nothing was heard meanwhile:
 * the other end may be gone without a word, and TCP would wait for a quarter of an hour. What is under way on the old one goes on.
 */
final class Connections extends ManagedChannel {
    /** An old connection takes calls for so long: one may be just beginning. */
    private static final long LINGER_SECONDS = 1;

    private static final long PATIENCE_LEAST = TimeUnit.SECONDS.toNanos(1);
    private static final long PATIENCE_MAX = TimeUnit.SECONDS.toNanos(10);

    /** How long the answer to a probe is waited for. */
    private static final long PROBE_TIMEOUT_MS = 500;

    /** The health check of gRPC. Its request is empty, and its response is not read. */
    private static final MethodDescriptor<Release, Release> HEALTH = MethodDescriptor
            .newBuilder(ProtoUtils.marshaller(Release.getDefaultInstance()), ProtoUtils.marshaller(Release.getDefaultInstance()))
            .setType(MethodDescriptor.MethodType.UNARY).setFullMethodName("grpc.health.v1.Health/Check").build();

    private final Supplier<ManagedChannel> channels;

    // Guarded by this.
    private Connection connection;
    private final Set<ManagedChannel> old = new HashSet<>();
    private long patience = PATIENCE_LEAST; // how old a connection must be before a call replaces it on which nothing was ever heard
    private boolean closed;

    /** One connection. */
    private static final class Connection {
        final ManagedChannel channel;
        final long made = System.nanoTime();
        volatile long heard = made; // when it was made, or the newest message came
        volatile boolean ever; // a message has come
        boolean probing; // a probe is under way; guarded by the Connections

        Connection(ManagedChannel channel) {
            this.channel = channel;
        }
    }

    Connections(Supplier<ManagedChannel> channels) {
        this.channels = channels;
        this.connection = new Connection(channels.get());
    }

    private synchronized Connection connection() {
        return connection;
    }

    /** Replaces the connection if nothing was heard on it since an instant of System.nanoTime from which on it should have been. */
    synchronized void silent(long since) {
        replace(since);
    }

    /**
     * Is {@link #silent} for a call that has ended by its deadline. A connection on which nothing was ever heard may still be in the making: each one that calls
     * replace in a row has twice the time of the one before, PATIENCE_MAX at most. Otherwise calls with a timeout shorter than that would never connect.
     */
    private synchronized void unanswered(long since) {
        Connection of = connection;
        if (!of.ever && System.nanoTime() - of.made < patience) {
            return;
        }
        if (replace(since) && !of.ever) {
            patience = Math.min(2 * patience, PATIENCE_MAX);
        }
    }

    /**
     * Asks the router how it is, which every router answers at once, if nothing was heard on a connection since an instant of System.nanoTime. Without an
     * answer the connection is replaced. What the answer says is of no interest.
     */
    private void probe(Connection of, long since) {
        synchronized (this) {
            if (closed || of != connection || of.probing || of.heard - since >= 0) {
                return;
            }
            of.probing = true;
        }
        ClientCall<Release, Release> call =
                newCall(HEALTH, CallOptions.DEFAULT.withExecutor(Threads.ANSWERS).withDeadlineAfter(PROBE_TIMEOUT_MS, TimeUnit.MILLISECONDS));
        ClientCalls.asyncUnaryCall(call, Release.getDefaultInstance(), new StreamObserver<>() {
            @Override
            public void onNext(Release health) {}

            @Override
            public void onError(Throwable failure) {
                onCompleted();
            }

            @Override
            public void onCompleted() {
                synchronized (Connections.this) {
                    of.probing = false;
                }
            }
        });
    }

    private synchronized void told(Connection of) {
        of.heard = System.nanoTime();
        of.ever = true;
        patience = PATIENCE_LEAST;
    }

    /** Reports whether it has replaced the connection. Guarded by this. */
    private boolean replace(long since) {
        if (closed || connection.heard - since >= 0) {
            return false;
        }
        ManagedChannel before = connection.channel;
        ManagedChannel next = channels.get();
        if (next == before) { // there is no other
            return false;
        }
        connection = new Connection(next);
        old.removeIf(ManagedChannel::isTerminated);
        old.add(before);
        CompletableFuture.delayedExecutor(LINGER_SECONDS, TimeUnit.SECONDS, Threads.ANSWERS).execute(before::shutdown);
        return true;
    }

    @Override
    public <Q, R> ClientCall<Q, R> newCall(MethodDescriptor<Q, R> method, CallOptions options) {
        Connection of = connection();
        long begun = System.nanoTime();
        CompletableFuture<Boolean> late = isSend(method) ? lateAfter(options) : null;
        if (late != null) {
            late.thenAcceptAsync(is -> {
                if (is) {
                    probe(of, begun);
                }
            }, Threads.ANSWERS);
        }
        return new SimpleForwardingClientCall<>(of.channel.newCall(method, options)) {
            @Override
            public void start(Listener<R> listener, Metadata headers) {
                super.start(new SimpleForwardingClientCallListener<>(listener) {
                    @Override
                    public void onMessage(R message) {
                        told(of);
                        super.onMessage(message);
                    }

                    @Override
                    public void onClose(Status status, Metadata trailers) {
                        if (late != null) {
                            late.complete(false);
                        }
                        if (status.getCode() == Status.Code.DEADLINE_EXCEEDED && late != null) {
                            super.onClose(status, trailers); // the router need not have answered by then: the probe decides
                            return;
                        }
                        if (status.getCode() == Status.Code.DEADLINE_EXCEEDED) {
                            unanswered(begun);
                        } else if (status.getCode() == Status.Code.UNAVAILABLE) { // as of a connection that was refused
                            of.heard = System.nanoTime();
                        } else if (!status.isOk() && status.getCode() != Status.Code.CANCELLED) { // before OK came a message
                            told(of);
                        }
                        super.onClose(status, trailers);
                    }
                }, headers);
            }
        };
    }

    private static boolean isSend(MethodDescriptor<?, ?> method) {
        return method.getFullMethodName().equals(LaneServiceGrpc.getSendMethod().getFullMethodName());
    }

    /** Returns what completes with true when the time of a Send is up, and only its grace is left. */
    private static CompletableFuture<Boolean> lateAfter(CallOptions options) {
        long left = options.getDeadline().timeRemaining(TimeUnit.NANOSECONDS) - Sender.GRACE.toNanos();
        return new CompletableFuture<Boolean>().completeOnTimeout(true, left, TimeUnit.NANOSECONDS);
    }

    @Override
    public String authority() {
        return connection().channel.authority();
    }

    @Override
    public ConnectivityState getState(boolean connect) {
        return connection().channel.getState(connect);
    }

    @Override
    public void resetConnectBackoff() {
        connection().channel.resetConnectBackoff();
    }

    @Override
    public ManagedChannel shutdown() {
        return shutdownNow();
    }

    @Override
    public synchronized ManagedChannel shutdownNow() {
        closed = true;
        connection.channel.shutdownNow();
        old.forEach(ManagedChannel::shutdownNow);
        old.clear();
        return this;
    }

    @Override
    public boolean isShutdown() {
        return connection().channel.isShutdown();
    }

    @Override
    public boolean isTerminated() {
        return connection().channel.isTerminated();
    }

    @Override
    public boolean awaitTermination(long timeout, TimeUnit unit) throws InterruptedException {
        return connection().channel.awaitTermination(timeout, unit);
    }
}
