package io.ringfence.client;

import com.google.protobuf.ByteString;
import io.grpc.ChannelCredentials;
import io.grpc.ClientCall;
import io.grpc.ConnectivityState;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import io.ringfence.client.CallException.Outcome;
import io.ringfence.client.proto.Ask;
import io.ringfence.client.proto.InvokeRequest;
import io.ringfence.client.proto.InvokeResponse;
import io.ringfence.client.proto.LaneServiceGrpc;
import io.ringfence.client.proto.ReserveRequest;
import io.ringfence.client.proto.ReserveResponse;
import io.ringfence.client.proto.SendRequest;
import java.lang.System.Logger;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * Calls handlers of keys, reserves keys, and sends events, through one router of the group. It connects with the first call, and again whenever the connection breaks.
 * Its methods are safe for concurrent use.
 *
 * <pre>{@code
 * try (Lane lane = Lane.dial("127.0.0.1:16650")) {
 *     byte[] reply = lane.invoke("user-7", "charge", payload, CallOptions.NONE.id("order-8"));
 * }
 * }</pre>
 */
public final class Lane implements AutoCloseable {
    /** How long the router's answer is waited for after the timeout of a call. */
    private static final Duration GRACE = Duration.ofSeconds(1);

    private static final String UNREACHABLE = "unreachable";
    private static final String OVERLOADED = "overloaded";

    private final Worker.Builder options;
    private final Supplier<ManagedChannel> channels;
    private final Connections channel;
    private final Sender sender;

    private Lane(Worker.Builder options, Supplier<ManagedChannel> channels) {
        this.options = options;
        this.channels = channels;
        this.channel = new Connections(channels);
        this.sender = new Sender(channel, options, Threads.ANSWERS);
    }

    /**
     * Returns a lane through a router, with default options.
     *
     * @param endpoint host:port, unix:///path or unix:/path; null or empty for the default, as for {@link Worker.Builder#endpoint}
     * @return the lane
     * @throws IllegalArgumentException if the endpoint is none
     */
    public static Lane dial(String endpoint) {
        return builder().endpoint(endpoint).dial();
    }

    /**
     * Begins a lane with options.
     *
     * @return a builder
     */
    public static Builder builder() {
        return new Builder();
    }

    /** The options of a lane. Its methods return the builder itself. It is not safe for concurrent use. */
    public static final class Builder {
        private final Worker.Builder options = Worker.builder(null);

        private Builder() {}

        /**
         * Sets the address of the router, as {@link Worker.Builder#endpoint} does.
         *
         * @param endpoint host:port, unix:///path or unix:/path; null or empty for the default
         * @return this
         */
        public Builder endpoint(String endpoint) {
            options.endpoint(endpoint);
            return this;
        }

        /**
         * Names a file with the token that a router with app.token_file requires, as {@link Worker.Builder#tokenFile} does. The file is
         * read for each call.
         *
         * @param file the file; null for no token
         * @return this
         */
        public Builder tokenFile(Path file) {
            options.tokenFile(file);
            return this;
        }

        /**
         * Encrypts the connection, as {@link Worker.Builder#tls} does.
         *
         * @param credentials gRPC's credentials
         * @return this
         */
        public Builder tls(ChannelCredentials credentials) {
            options.tls(credentials);
            return this;
        }

        /**
         * Sets the log for what the application should know of the connection, as {@link Worker.Builder#logger} does.
         *
         * @param logger that of io.ringfence.client by default
         * @return this
         */
        public Builder logger(Logger logger) {
            options.logger(logger);
            return this;
        }

        /**
         * Replaces the connection to the router, for test routers.
         *
         * @param channels makes a channel, once; the lane shuts it down
         * @return this
         */
        public Builder channels(Supplier<ManagedChannel> channels) {
            options.channels(channels);
            return this;
        }

        /** Replaces the clock that reservations run on, for tests. */
        Builder leaseClock(LeaseClock clock) {
            options.leaseClock(clock);
            return this;
        }

        /**
         * Returns the lane.
         *
         * @return the lane
         * @throws IllegalArgumentException if the endpoint is none, or the logger is null
         */
        public Lane dial() {
            if (options.logger == null) {
                throw new IllegalArgumentException("logger = null");
            }
            options.logger = new GuardedLogger(options.logger);
            return new Lane(options, options.connection());
        }
    }

    /** Ends the connection. Calls that wait throw, with the outcome UNKNOWN; reservations are lost when their permission ends. */
    @Override
    public void close() {
        channel.shutdownNow();
        if (channels instanceof Channels ours) {
            ours.close();
        }
    }

    /**
     * Is {@link #invoke(byte[], String, byte[], CallOptions)} without options.
     *
     * @param key the key
     * @param method the method
     * @param payload the argument, up to 1 MiB
     * @return the reply
     * @throws CallException if there is none
     */
    public byte[] invoke(String key, String method, byte[] payload) {
        return invoke(key, method, payload, CallOptions.NONE);
    }

    /**
     * Is {@link #invoke(byte[], String, byte[], CallOptions)} for a key of text.
     *
     * @param key the key
     * @param method the method
     * @param payload the argument, up to 1 MiB
     * @param options the options
     * @return the reply
     * @throws CallException if there is none
     */
    public byte[] invoke(String key, String method, byte[] payload, CallOptions options) {
        String wrong = Sender.wrongText("key", key);
        if (wrong != null) {
            throw new CallException(Outcome.NOT_RUN, "", wrong, Duration.ZERO, null);
        }
        return invoke(key.getBytes(StandardCharsets.UTF_8), method, payload, options);
    }

    /**
     * Calls the handler that is registered for a method at the owner of a key, and returns its reply. The handler runs when no event and
     * no other call of the key does, before events that wait. An interruption ends the wait; the call may have run then.
     *
     * @param key the key, any bytes
     * @param method the method
     * @param payload the argument, up to 1 MiB
     * @param options the options
     * @return the reply
     * @throws CallException if there is none
     */
    public byte[] invoke(byte[] key, String method, byte[] payload, CallOptions options) {
        CompletableFuture<byte[]> reply = invokeAsync(key, method, payload, options);
        try {
            return reply.get();
        } catch (ExecutionException e) {
            if (e.getCause() instanceof CallException failure) {
                failure.addSuppressed(new Throwable("called here")); // the other stack is that of a thread of gRPC
                throw failure;
            }
            throw new CallException(Outcome.UNKNOWN, "", e.getCause().toString(), Duration.ZERO, e.getCause());
        } catch (InterruptedException e) {
            reply.cancel(false);
            Thread.currentThread().interrupt();
            throw new CallException(Outcome.UNKNOWN, "", "the thread that waited was interrupted", Duration.ZERO, e);
        }
    }

    /**
     * Is {@link #invoke(byte[], String, byte[], CallOptions)} without waiting. To cancel the future takes the call back, which may have run
     * then. Its stages run in a thread of the SDK, and may block.
     *
     * @param key the key, any bytes
     * @param method the method
     * @param payload the argument, up to 1 MiB
     * @param options the options
     * @return the reply, or a {@link CallException}
     */
    public CompletableFuture<byte[]> invokeAsync(byte[] key, String method, byte[] payload, CallOptions options) {
        InvokeRequest.Builder request = InvokeRequest.newBuilder().setKey(ByteString.copyFrom(key)).setMethod(method)
                .setPayload(ByteString.copyFrom(payload)).setId(options.id).setTraceparent(traceparent());
        pathOf(options.caller).forEach(request::addPath);
        String wrongMethod = Sender.wrongText("method", method);
        String wrongText = wrongMethod != null ? wrongMethod : Sender.wrongText("id", options.id);
        if (wrongText != null) {
            return CompletableFuture.failedFuture(new CallException(Outcome.NOT_RUN, "", wrongText, Duration.ZERO, null));
        }
        String wrong = Sender.wrongSize(payload.length, request.setTimeoutMs(options.timeout.toMillis()).build().getSerializedSize()); // it never grows
        if (wrong != null) {
            return CompletableFuture.failedFuture(new CallException(Outcome.NOT_RUN, Call.TOO_LARGE, wrong, Duration.ZERO, null));
        }
        Invoking invoking = new Invoking(request, new Pauses(options.timeout, Pauses.CALL_MAX));
        invoking.attempt();
        return invoking.reply;
    }

    /** One call, which is made until the router takes it in. Its attempts follow each other. */
    private final class Invoking implements StreamObserver<InvokeResponse> {
        private final InvokeRequest.Builder request;
        private final Pauses pauses;
        private final CompletableFuture<byte[]> reply = new CompletableFuture<>();
        private volatile ClientCall<InvokeRequest, InvokeResponse> call;
        private volatile Attempt attempt; // the newest

        Invoking(InvokeRequest.Builder request, Pauses pauses) {
            this.request = request;
            this.pauses = pauses;
            reply.whenComplete((bytes, failure) -> giveUp());
        }

        private void giveUp() {
            ClientCall<InvokeRequest, InvokeResponse> current = call;
            if (current != null && reply.isCancelled()) {
                current.cancel("the caller is no longer waiting", null);
            }
        }

        /** Makes an attempt. An exception of it, as of an interceptor, completes the future: a thread of the pool would drop it. */
        void attempt() {
            try {
                begin();
            } catch (Throwable e) {
                reply.completeExceptionally(new CallException(Outcome.UNKNOWN, "", e.toString(), Duration.ZERO, e));
            }
        }

        private void begin() {
            if (reply.isDone()) {
                return;
            }
            Metadata headers;
            try {
                headers = Sender.headers(options);
            } catch (RingfenceException e) {
                reply.completeExceptionally(new CallException(Outcome.NOT_RUN, "", e.getMessage(), Duration.ZERO, e));
                return;
            }
            if (channel.isShutdown()) {
                reply.completeExceptionally(new CallException(Outcome.NOT_RUN, "", "the lane was closed", Duration.ZERO, null));
                return;
            }
            if (channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
                channel.resetConnectBackoff(); // gRPC's own pause grows to two minutes
            }
            Duration left = pauses.left();
            attempt = new Attempt();
            // Not in the thread that reads: what the application does with the reply must not hold up others.
            io.grpc.CallOptions within = io.grpc.CallOptions.DEFAULT.withExecutor(Threads.ANSWERS)
                    .withDeadlineAfter(left.plus(GRACE).toMillis(), TimeUnit.MILLISECONDS).withStreamTracerFactory(attempt);
            call = MetadataUtils.newAttachHeadersInterceptor(headers).interceptCall(LaneServiceGrpc.getInvokeMethod(), within, channel);
            ClientCalls.asyncUnaryCall(call, request.setTimeoutMs(Math.max(1, left.toMillis())).build(), this);
            giveUp(); // if it was cancelled meanwhile
        }

        @Override
        public void onNext(InvokeResponse response) {
            answer(reply, response);
        }

        @Override
        public void onError(Throwable failure) {
            Status status = Status.fromThrowable(failure);
            long pause = status.getCode() == Status.Code.RESOURCE_EXHAUSTED ? pauses.next() : -1;
            if (pause >= 0) { // the router has taken nothing in: too many calls of its callers are just beginning
                CompletableFuture.delayedExecutor(pause, TimeUnit.NANOSECONDS, Threads.ANSWERS).execute(this::attempt);
                return;
            }
            reply.completeExceptionally(notAnswered(status, failure, attempt));
        }

        @Override
        public void onCompleted() {
            reply.completeExceptionally(new CallException(Outcome.UNKNOWN, "", "the router sent no response", Duration.ZERO, null)); // unless it did
        }
    }

    /**
     * Is {@link #send(byte[], byte[], SendOptions)} for a key of text.
     *
     * @param key the key
     * @param payload up to 1 MiB
     * @param options the options
     * @return the event's id
     * @throws NotSentException if it was not published
     * @throws MaybeSentException if it may have been published
     */
    public MessageId send(String key, byte[] payload, SendOptions options) {
        String wrong = Sender.wrongText("key", key);
        if (wrong != null) {
            throw new NotSentException(wrong, null);
        }
        return send(key.getBytes(StandardCharsets.UTF_8), payload, options);
    }

    /**
     * Publishes an event of a key, and returns its id when the broker has it. The handler of the key's events gets it, with a {@link Timer}: at once, or
     * when it is due. It needs no producer, and no rights of the application at the broker. An interruption ends the wait; the event may
     * have been published then.
     *
     * @param key the key, any bytes
     * @param payload up to 1 MiB
     * @param options the options
     * @return the event's id
     * @throws NotSentException if it was not published
     * @throws MaybeSentException if it may have been published
     */
    public MessageId send(byte[] key, byte[] payload, SendOptions options) {
        CompletableFuture<MessageId> id = sendAsync(key, payload, options);
        try {
            return id.get();
        } catch (ExecutionException e) {
            if (e.getCause() instanceof NotSentException || e.getCause() instanceof MaybeSentException) {
                e.getCause().addSuppressed(new Throwable("called here")); // the other stack is that of a thread of gRPC
                throw (RuntimeException) e.getCause();
            }
            throw new MaybeSentException(e.getCause().toString(), e.getCause());
        } catch (InterruptedException e) {
            id.cancel(false);
            Thread.currentThread().interrupt();
            throw new MaybeSentException("the thread that waited was interrupted", e);
        }
    }

    /**
     * Is {@link #send(byte[], byte[], SendOptions)} without waiting. To cancel the future ends the wait; the event may have been published then.
     *
     * @param key the key, any bytes
     * @param payload up to 1 MiB
     * @param options the options
     * @return the event's id, or a {@link NotSentException} or {@link MaybeSentException}
     */
    public CompletableFuture<MessageId> sendAsync(byte[] key, byte[] payload, SendOptions options) {
        String wrong = Sender.wrongText(options);
        if (wrong != null) {
            return CompletableFuture.failedFuture(new NotSentException(wrong, null));
        }
        SendRequest.Builder request = SendRequest.newBuilder().setKey(ByteString.copyFrom(key)).setPayload(ByteString.copyFrom(payload))
                .setName(options.name).setId(options.id).setAfterMs(options.afterMs).setAtMs(options.atMs);
        String traceparent = traceparent();
        if (!traceparent.isEmpty()) {
            request.putProperties("traceparent", traceparent);
        }
        return sender.send(request.putAllProperties(options.properties).build(), options.timeout);
    }

    /** Returns the keys whose handlers wait for a call that this handler makes, the outermost first. */
    static List<Long> pathOf(Event caller) {
        List<Long> path = new ArrayList<>();
        if (caller == null) {
            return path;
        }
        if (caller.arrival != null) {
            for (long key : caller.arrival.path()) {
                path.add(key);
            }
        }
        path.add(Xxh64.hash(caller.keyBytes()));
        return path;
    }

    /**
     * Is {@link #reserve(byte[], ReserveOptions)} for a key of text.
     *
     * @param key the key
     * @param wait how long to wait for it, up to an hour
     * @return the reservation
     * @throws NotReservedException if there is none
     */
    public Reservation reserve(String key, Duration wait) {
        return reserve(key, ReserveOptions.NONE.waitFor(wait));
    }

    /**
     * Is {@link #reserve(byte[], ReserveOptions)} for a key of text.
     *
     * @param key the key
     * @param options the options
     * @return the reservation
     * @throws NotReservedException if there is none
     */
    public Reservation reserve(String key, ReserveOptions options) {
        String wrong = Sender.wrongText("key", key);
        if (wrong != null) {
            throw new NotReservedException("", wrong, Duration.ZERO, null);
        }
        return reserve(key.getBytes(StandardCharsets.UTF_8), options);
    }

    /**
     * Reserves a key: no handler of it runs, and nobody else holds it, until {@link Reservation#close}. It is renewed in the background, and lost if
     * the owner of the key cannot be reached for about a lease (two seconds by default), dies, or gives the key up, and after an hour; with a
     * {@linkplain ReserveOptions#ttl ttl} only if no owner can be reached for so long. Stop working when {@link Reservation#isLost}, and pass {@link Reservation#fence} to your database with every write. An interruption ends the wait.
     *
     * @param key the key, any bytes
     * @param options the options
     * @return the reservation
     * @throws NotReservedException if there is none
     */
    public Reservation reserve(byte[] key, ReserveOptions options) {
        Ask.Builder ask = Ask.newBuilder().setKey(ByteString.copyFrom(key)).addAllPath(pathOf(options.caller));
        String wrong = Sender.wrongSize(0, ReserveRequest.newBuilder().setAsk(ask).build().getSerializedSize());
        if (wrong != null) {
            throw new NotReservedException(Call.TOO_LARGE, wrong, Duration.ZERO, null);
        }
        Holder holder = new Holder(this.options.clock, this.options.logger, this::reservation, channel::silent, ask, options.wait, options.ttl);
        try {
            holder.start().get();
            return new Reservation(holder);
        } catch (ExecutionException e) {
            NotReservedException failure = (NotReservedException) e.getCause();
            failure.addSuppressed(new Throwable("called here")); // the other stack is that of the reservation's thread
            throw failure;
        } catch (InterruptedException e) {
            holder.release();
            Thread.currentThread().interrupt();
            throw new NotReservedException("timeout", "the thread that waited was interrupted", Duration.ZERO, e);
        }
    }

    /** Makes the call of a stream of a reservation. */
    private ClientCall<ReserveRequest, ReserveResponse> reservation(Attempt attempt) {
        Metadata headers;
        try {
            headers = Sender.headers(options);
        } catch (RingfenceException e) {
            throw new NotReservedException("", e.getMessage(), Duration.ZERO, e);
        }
        if (channel.isShutdown()) {
            throw new NotReservedException("", "the lane was closed", Duration.ZERO, null);
        }
        if (channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
            channel.resetConnectBackoff();
        }
        // In the thread that reads: a holder only queues what comes.
        return MetadataUtils.newAttachHeadersInterceptor(headers)
                .interceptCall(LaneServiceGrpc.getReserveMethod(),
                        io.grpc.CallOptions.DEFAULT.withExecutor(Runnable::run).withStreamTracerFactory(attempt), channel);
    }

    private static void answer(CompletableFuture<byte[]> reply, InvokeResponse response) {
        Outcome outcome = switch (response.getOutcome()) {
            case OUTCOME_REPLIED -> null;
            case OUTCOME_FAILED -> Outcome.FAILED;
            case OUTCOME_NOT_RUN -> Outcome.NOT_RUN;
            case OUTCOME_DONE_BEFORE -> Outcome.DONE_BEFORE;
            default -> Outcome.UNKNOWN;
        };
        if (outcome == null) {
            reply.complete(response.getReply().toByteArray());
        } else {
            reply.completeExceptionally(new CallException(outcome, response.getCode(), response.getText(), Duration.ofMillis(response.getRetryAfterMs()), null));
        }
    }

    /** The exception for a call that the router has not answered. */
    private static CallException notAnswered(Status status, Throwable failure, Attempt attempt) {
        String text = Stream.text(status);
        return switch (status.getCode()) {
            case INVALID_ARGUMENT, UNIMPLEMENTED, UNAUTHENTICATED, PERMISSION_DENIED -> new CallException(Outcome.NOT_RUN, "", text, Duration.ZERO, failure);
            case RESOURCE_EXHAUSTED -> new CallException(Outcome.NOT_RUN, OVERLOADED, text, Duration.ZERO, failure);
            default -> attempt.neverSent(status)
                    ? new CallException(Outcome.NOT_RUN, attempt.foundNoRoom() ? OVERLOADED : UNREACHABLE, text, Duration.ZERO, failure)
                    : new CallException(Outcome.UNKNOWN, "", text, Duration.ZERO, failure);
        };
    }

    /** The trace context of the caller, empty if the application uses no OpenTelemetry. */
    private static String traceparent() {
        try {
            return OpenTelemetryTraces.currentTraceparent();
        } catch (LinkageError absent) { // OpenTelemetry is not on the class path, or older than GlobalOpenTelemetry.isSet
            return "";
        }
    }
}
