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
