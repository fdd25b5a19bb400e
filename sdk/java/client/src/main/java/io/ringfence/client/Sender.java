package io.ringfence.client;

import com.google.protobuf.ByteString;
import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.ConnectivityState;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import io.ringfence.client.proto.LaneServiceGrpc;
import io.ringfence.client.proto.SendRequest;
import io.ringfence.client.proto.SendResponse;
import java.nio.charset.CharsetEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Publishes events that come back when they are due, over one channel. */
final class Sender {
    /** How long the router's answer is waited for. The router itself waits 30 s for the broker. */
    static final Duration TIMEOUT_DEFAULT = Duration.ofSeconds(35);

    /** How much longer the answer to a request is waited for that is under way then: otherwise nobody would know whether it was refused. */
    static final Duration GRACE = Duration.ofSeconds(1);

    /** Bounds of what a handler sets: of one event, until it is due, and in bytes. */
    static final int TIMERS_MAX = 100;
    static final Duration AFTER_MAX = Duration.ofDays(366);
    static final int NAME_MAX = 128;
    static final int PAYLOAD_MAX = 1 << 20; // of any request

    /** Bytes of a request that a router reads. */
    static final int REQUEST_MAX = 2 << 20;

    /** The timers of one event that are under way at once. */
    private static final int TOGETHER_MAX = 8;

    /** As long as a handler has its key. */
    private static final Duration EVER = Duration.ofDays(10_000);

    private static final Pattern MESSAGE_ID = Pattern.compile("(\\d{1,19}):(\\d{1,19}):(-?\\d{1,9}):(-?\\d{1,9})");

    private final ManagedChannel channel;
    private final Worker.Builder options;
    private final Executor executor; // runs what waits for an answer

    Sender(ManagedChannel channel, Worker.Builder options, Executor executor) {
        this.channel = channel;
        this.options = options;
        this.executor = executor;
    }

    /** A timer that a handler has set. */
    record Setting(long afterMs, String name, byte[] payload) {
        /** Throws IllegalArgumentException if routers do not take such a timer. */
        static Setting of(Duration delay, String name, byte[] payload) {
            long ms = checkedDelay(delay);
            if (!isPrintable(name) || name.getBytes(StandardCharsets.UTF_8).length > NAME_MAX) {
                throw new IllegalArgumentException("name: want at most " + NAME_MAX + " bytes of printable text");
            }
            if (payload.length > PAYLOAD_MAX) {
                throw new IllegalArgumentException("payload: " + payload.length + " bytes, want at most " + PAYLOAD_MAX);
            }
            return new Setting(ms, name, payload.clone());
        }
    }

    static long checkedDelay(Duration delay) {
        if (delay.compareTo(AFTER_MAX) > 0) {
            throw new IllegalArgumentException("delay = " + delay + ", want at most " + AFTER_MAX);
        }
        return delay.isNegative() ? 0 : delay.toMillis(); // one in the past, as a run after a crash may ask for, is due at once
    }

    /** Whether a text has letters, marks, numbers, punctuation, symbols and the space alone. */
    private static boolean isPrintable(String text) {
        return text.codePoints().allMatch(c -> c == ' ' || c != 0xfffd && switch (Character.getType(c)) {
            case Character.CONTROL, Character.FORMAT, Character.SURROGATE, Character.PRIVATE_USE, Character.UNASSIGNED, Character.LINE_SEPARATOR,
                    Character.PARAGRAPH_SEPARATOR, Character.SPACE_SEPARATOR -> false;
            default -> true;
        });
    }

    /** The headers of a request. Throws RingfenceException if the token cannot be read. */
    static Metadata headers(Worker.Builder options) {
        Metadata headers = new Metadata();
        String token = options.token();
        if (token != null) {
            headers.put(Stream.AUTHORIZATION, "Bearer " + token);
        }
        return headers;
    }

    /**
     * What is wrong with the bytes of a payload and of its request, null if nothing is. gRPC would refuse a larger one with the status of a router that
     * has taken nothing in, and it would be made again and again.
     */
    static String wrongSize(int payload, int request) {
        if (payload > PAYLOAD_MAX) {
            return "a payload of " + payload + " bytes: want at most " + PAYLOAD_MAX;
        }
        return request > REQUEST_MAX ? "a request of " + request + " bytes: want at most " + REQUEST_MAX : null;
    }

    /**
     * What is wrong with an argument that is text, null if nothing is: half of a surrogate pair has no UTF-8, and Java would write a question mark for it. Then two keys, or two
     * ids, would be one.
     */
    static String wrongText(String argument, String... texts) {
        CharsetEncoder utf8 = StandardCharsets.UTF_8.newEncoder();
        for (String text : texts) {
            if (!utf8.canEncode(text)) {
                return argument + ": half of a surrogate pair has no UTF-8";
            }
        }
        return null;
    }

    /** What is wrong with the texts of an event, null if nothing is. */
    static String wrongText(SendOptions options) {
        String wrong = wrongText("id", options.id);
        wrong = wrong != null ? wrong : wrongText("name", options.name);
        wrong = wrong != null ? wrong : wrongText("properties", options.properties.keySet().toArray(String[]::new));
        return wrong != null ? wrong : wrongText("properties", options.properties.values().toArray(String[]::new));
    }

    /** Sends until the router takes the request. What it returns fails with NotSentException or MaybeSentException; to cancel it gives the request up. */
    CompletableFuture<MessageId> send(SendRequest request, Duration timeout) {
        String wrong = wrongSize(request.getPayload().size(), request.getSerializedSize());
        if (wrong != null) {
            return CompletableFuture.failedFuture(new NotSentException(wrong, null));
        }
        Sending sending = new Sending(request, new Pauses(timeout, Pauses.SEND_MAX));
        sending.attempt();
        return sending.id;
    }

    /** One event, which is sent until it is taken. Its attempts follow each other. */
    private final class Sending implements StreamObserver<SendResponse> {
        private final SendRequest request;
        private final Pauses pauses;
        private final CompletableFuture<MessageId> id = new CompletableFuture<>();
        private volatile ClientCall<SendRequest, SendResponse> call;
        private volatile Attempt attempt; // the newest

        Sending(SendRequest request, Pauses pauses) {
            this.request = request;
            this.pauses = pauses;
            id.whenComplete((known, failure) -> giveUp());
        }

        private void giveUp() {
            ClientCall<SendRequest, SendResponse> current = call;
            if (current != null && id.isCancelled()) {
                current.cancel("the caller stopped waiting", null);
            }
        }

        /** Makes an attempt. An exception of it, as of an interceptor, completes the future: a thread of the pool would drop it. */
        void attempt() {
            try {
                begin();
            } catch (Throwable e) {
                id.completeExceptionally(new MaybeSentException(e.toString(), e));
            }
        }

        private void begin() {
            if (id.isDone()) {
                return;
            }
            Metadata headers;
            try {
                headers = headers(options);
            } catch (RingfenceException e) {
                id.completeExceptionally(new NotSentException(e.getMessage(), e));
                return;
            }
            if (channel.isShutdown()) {
                id.completeExceptionally(new NotSentException("the connection was closed", null));
                return;
            }
            if (channel.getState(false) == ConnectivityState.TRANSIENT_FAILURE) {
                channel.resetConnectBackoff(); // gRPC's own pause grows to two minutes
            }
            Duration left = pauses.left();
            long within = (left.compareTo(TIMEOUT_DEFAULT) < 0 ? left : TIMEOUT_DEFAULT).plus(GRACE).toMillis();
            attempt = new Attempt();
            call = MetadataUtils.newAttachHeadersInterceptor(headers).interceptCall(LaneServiceGrpc.getSendMethod(),
                    CallOptions.DEFAULT.withExecutor(executor).withDeadlineAfter(within, TimeUnit.MILLISECONDS).withStreamTracerFactory(attempt), channel);
            ClientCalls.asyncUnaryCall(call, request, this);
            giveUp(); // if it was cancelled meanwhile
        }

        @Override
        public void onNext(SendResponse response) {
            Matcher text = MESSAGE_ID.matcher(response.getMessageId());
            try {
                if (text.matches()) {
                    id.complete(new MessageId(Long.parseLong(text.group(1)), Long.parseLong(text.group(2)), Integer.parseInt(text.group(4)), Integer.parseInt(text.group(3))));
                }
            } catch (NumberFormatException e) { // as any other text that is no id
                return;
            }
        }

        @Override
        public void onError(Throwable failure) {
            Status status = Status.fromThrowable(failure);
            long pause = status.getCode() == Status.Code.RESOURCE_EXHAUSTED ? pauses.next() : -1;
            if (pause >= 0) { // the router has published nothing
                CompletableFuture.delayedExecutor(pause, TimeUnit.NANOSECONDS, Threads.ANSWERS).execute(this::attempt);
                return;
            }
            String text = Stream.text(status);
            boolean refused = switch (status.getCode()) {
                case INVALID_ARGUMENT, UNIMPLEMENTED, UNAUTHENTICATED, PERMISSION_DENIED, FAILED_PRECONDITION, RESOURCE_EXHAUSTED -> true;
                default -> attempt.neverSent(status);
            };
            id.completeExceptionally(refused ? new NotSentException(text, failure) : new MaybeSentException(text, failure));
        }

        @Override
        public void onCompleted() {
            id.completeExceptionally(new MaybeSentException("the router answered without an id", null)); // unless it did
        }
    }

    /**
     * Publishes the timers of an event whose handler has returned, in its thread. Their ids are the same in every run. It ends when the handler is
     * cancelled, with its HandlerCancelledException.
     */
    void publish(Event event, List<Setting> settings) {
        Thread.interrupted(); // left behind by the handler; whether it was cancelled is asked below
        for (int n = 0; n < settings.size(); n += TOGETHER_MAX) {
            event.checkActive(); // a handler that has lost its key and returns as if it had not has not succeeded
            List<CompletableFuture<MessageId>> sends = new ArrayList<>();
            for (int i = n; i < Math.min(n + TOGETHER_MAX, settings.size()); i++) {
                Setting timer = settings.get(i);
                sends.add(send(SendRequest.newBuilder().setKey(ByteString.copyFrom(event.keyBytes())).setPayload(ByteString.copyFrom(timer.payload))
                        .setName(timer.name).setAfterMs(timer.afterMs).setId("after/" + event.messageId() + "/" + i).build(), EVER));
            }
            try {
                await(event, sends);
            } finally {
                sends.forEach(send -> send.cancel(false));
            }
        }
    }

    private static void await(Event event, List<CompletableFuture<MessageId>> sends) {
        for (CompletableFuture<MessageId> send : sends) {
            while (true) {
                try {
                    send.get(Stream.CHECK_EVERY.toMillis(), TimeUnit.MILLISECONDS);
                    break;
                } catch (ExecutionException e) {
                    event.checkActive(); // a key that is lost is the better reason
                    throw (RuntimeException) e.getCause();
                } catch (InterruptedException | TimeoutException e) { // the runner interrupts it when it cancels it
                    event.checkActive();
                }
            }
        }
    }
}
