package io.ringfence.client;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import io.ringfence.client.Frame.Cursor;
import io.ringfence.client.proto.Deliveries;
import io.ringfence.client.proto.Delivery;
import io.ringfence.client.proto.WorkResponse;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.Optional;

/**
 * One event as the producer sent it, with the router's data about its delivery.
 *
 * <p>An event belongs to its handler until the handler returns. Its methods are safe for concurrent use. It shares memory
 * with the other events of its frame, up to 9 MiB: copy what you keep for longer than the handler runs.
 */
public final class Event extends Inbox.Item {
    // Field numbers of app.proto.
    private static final int DELIVERY_ID = 1;
    private static final int PARTITION = 2;
    private static final int KEY = 3;
    private static final int PAYLOAD = 4;
    private static final int PROPERTIES = 5;
    private static final int LEDGER_ID = 6;
    private static final int ENTRY_ID = 7;
    private static final int BATCH_INDEX = 8;
    private static final int TOPIC_PARTITION = 9;
    private static final int TOPIC = 10;
    private static final int TOKEN = 11;
    private static final int PUBLISH_TIME_MS = 12;
    private static final int EVENT_TIME_MS = 13;
    private static final int ATTEMPT = 14;
    private static final int TRACEPARENT = 15;
    private static final int REDELIVERY_COUNT = 16;
    private static final int TURN = 17;
    private static final int CALL = 18;
    private static final int GENERATION = 19;
    private static final int TIMER = 20;
    private static final int SCHEMA_VERSION = 21;
    private static final int PROPERTY_NAME = 1;
    private static final int PROPERTY_VALUE = 2;

    /** Why a handler must stop. */
    enum Cancellation {
        KEY_LOST, HANDLER_TIMEOUT, CALLER_GONE, DRAIN_TIMEOUT;

        HandlerCancelledException exception() {
            return switch (this) {
                case KEY_LOST -> new KeyLostException();
                case HANDLER_TIMEOUT -> new HandlerTimeoutException();
                case CALLER_GONE -> new CallerGoneException();
                case DRAIN_TIMEOUT -> new DrainTimeoutException();
            };
        }
    }

    // As in the frame: decoded when it is asked for.
    private final Frame frame;
    private final int from;
    private final int to;
    private int keyAt;
    private int keySize;
    private int payloadAt;
    private int payloadSize;
    private int traceAt;
    private int traceSize;
    private boolean hasProperties;
    private int topic;
    private int token;
    private int schemaVersion;
    private long ledger;
    private long entry;
    private int batch;
    private int topicPartition;
    private long publishTimeMs;
    private long eventTimeMs;
    private int attempt;
    private int redelivery;
    private long turn;
    /** Between two turns of the key with the same token and this number, all turns were on the same stream; 0: the router does not say. */
    long generation;

    /** What it has that is a call; null for an event. */
    Call.Arrival arrival;

    private Timer timer; // null: no router published it

    /** What it has that is a firing of a schedule, beside its timer; null for any other event. */
    io.ringfence.client.proto.Firing firing;

    private List<Sender.Setting> timers = List.of(); // that the handler has set; guarded by this
    private boolean timersTaken; // what is set now would be set by nobody; guarded by this

    private byte[] payload; // the first copy; guarded by this
    private volatile List<Property> properties;

    /** The stream that it arrived on; null if no router delivered it. Set before it is given to the inbox. */
    Stream stream;
    /** The thread of the handler, from its start to its return; guarded by this, set under the runner's lock. */
    private Thread thread;
    private volatile Cancellation cancellation;
    /** The handler has returned: the event is over, and another handler may work on the key. */
    private volatile boolean returned;
    /** A report of its progress is queued. Written under the runner's lock. */
    volatile boolean reports;

    Event(Frame frame, int from, int to) {
        this.frame = frame;
        this.from = from;
        this.to = to;
        Cursor in = new Cursor(frame.bytes, from, to);
        while (in.more()) {
            int tag = in.tag();
            switch (tag) {
                case DELIVERY_ID << 3 -> id = in.varint();
                case PARTITION << 3 -> partition = (int) in.varint();
                case KEY << 3 | 2 -> {
                    keySize = in.size();
                    keyAt = in.at;
                    in.at += keySize;
                }
                case PAYLOAD << 3 | 2 -> {
                    payloadSize = in.size();
                    payloadAt = in.at;
                    in.at += payloadSize;
                }
                case PROPERTIES << 3 | 2 -> {
                    hasProperties = true;
                    int size = in.size();
                    in.at += size;
                }
                case LEDGER_ID << 3 -> ledger = in.varint();
                case ENTRY_ID << 3 -> entry = in.varint();
                case BATCH_INDEX << 3 -> batch = in.zigzag();
                case TOPIC_PARTITION << 3 -> topicPartition = in.zigzag();
                case TOPIC << 3 -> topic = (int) in.varint();
                case TOKEN << 3 -> token = (int) in.varint();
                case PUBLISH_TIME_MS << 3 -> publishTimeMs = in.varint();
                case EVENT_TIME_MS << 3 -> eventTimeMs = in.varint();
                case ATTEMPT << 3 -> attempt = (int) in.varint();
                case TRACEPARENT << 3 | 2 -> {
                    traceSize = in.size();
                    traceAt = in.at;
                    in.at += traceSize;
                }
                case REDELIVERY_COUNT << 3 -> redelivery = (int) in.varint();
                case TURN << 3 -> turn = in.varint();
                case CALL << 3 | 2 -> {
                    int size = in.size();
                    arrival = arrivalOf(frame.bytes, in.at, size);
                    in.at += size;
                }
                case GENERATION << 3 -> generation = in.varint();
                case TIMER << 3 | 2 -> {
                    int size = in.size();
                    readTimer(frame.bytes, in.at, size);
                    in.at += size;
                }
                case SCHEMA_VERSION << 3 -> schemaVersion = (int) in.varint();
                default -> in.skip(tag);
            }
        }
    }

    /** Decodes a call. Calls are few, so protobuf's own code does it. The time that is left counts from now. */
    private static Call.Arrival arrivalOf(byte[] bytes, int at, int size) {
        try {
            var call = io.ringfence.client.proto.Call.parseFrom(ByteBuffer.wrap(bytes, at, size));
            long[] path = call.getPathList().stream().mapToLong(Long::longValue).toArray();
            long ms = Math.min(Integer.MAX_VALUE, Math.max(0, call.getTimeoutMs()));
            return new Call.Arrival(call.getMethod(), call.getId(), Instant.now().plusMillis(ms), path);
        } catch (InvalidProtocolBufferException e) {
            throw new IllegalArgumentException("the router sent a call that is not a valid protobuf message", e);
        }
    }

    private void readTimer(byte[] bytes, int at, int size) {
        try {
            var read = io.ringfence.client.proto.Timer.parseFrom(ByteBuffer.wrap(bytes, at, size));
            timer = new Timer(read.getName(), Instant.ofEpochMilli(read.getDueMs()));
            firing = read.hasFiring() ? read.getFiring() : null;
        } catch (InvalidProtocolBufferException e) {
            throw new IllegalArgumentException("the router sent a timer that is not a valid protobuf message", e);
        }
    }

    /**
     * Returns the method of a call. Hooks and interceptors see calls as events, whose message id, topic and times say nothing.
     *
     * @return the method, empty for an event
     */
    public String method() {
        return arrival == null ? "" : arrival.method();
    }

    /**
     * Returns the event's key: events with one key are handled one at a time.
     *
     * @return the key as UTF-8; bytes that are not become U+FFFD, see {@link #keyBytes}
     */
    public String key() {
        return new String(frame.bytes, keyAt, keySize, StandardCharsets.UTF_8);
    }

    /**
     * Returns the bytes of the key.
     *
     * @return up to 4,096 bytes of any value, a copy
     */
    public byte[] keyBytes() {
        return Arrays.copyOfRange(frame.bytes, keyAt, keyAt + keySize);
    }

    /** Returns the key as text with a character for each byte: other than {@link #key()}, it differs for any two keys. It shares no memory with the frame. */
    String keyText() {
        return new String(frame.bytes, keyAt, keySize, StandardCharsets.ISO_8859_1);
    }

    /**
     * Returns the producer's bytes. Each call returns the same array; the handler may write to it.
     *
     * @return the payload, not null
     */
    public synchronized byte[] payload() {
        if (payload == null) {
            payload = Arrays.copyOfRange(frame.bytes, payloadAt, payloadAt + payloadSize);
        }
        return payload;
    }

    /**
     * Returns the size of the payload.
     *
     * @return bytes
     */
    public int payloadSize() {
        return payloadSize;
    }

    /**
     * Returns the producer's properties, in its order.
     *
     * @return a list that cannot be changed
     */
    public List<Property> properties() {
        List<Property> known = properties;
        if (known == null) {
            known = hasProperties ? decodeProperties() : List.of();
            properties = known;
        }
        return known;
    }

    private List<Property> decodeProperties() {
        List<Property> list = new ArrayList<>();
        Cursor in = new Cursor(frame.bytes, from, to);
        while (in.more()) {
            int tag = in.tag();
            if (tag != Cursor.bytesTag(PROPERTIES)) {
                in.skip(tag);
                continue;
            }
            int size = in.size();
            Cursor property = new Cursor(frame.bytes, in.at, in.at + size);
            in.at += size;
            int name = 0;
            String value = "";
            while (property.more()) {
                int field = property.tag();
                if (field == Cursor.varintTag(PROPERTY_NAME)) {
                    name = (int) property.varint();
                } else if (field == Cursor.bytesTag(PROPERTY_VALUE)) {
                    value = property.string();
                } else {
                    property.skip(field);
                }
            }
            list.add(new Property(frame.name(name), value));
        }
        return List.copyOf(list);
    }

    /**
     * Returns the value of the first property of a name.
     *
     * @param name the name, with its case
     * @return the value, empty if there is none
     */
    public Optional<String> property(String name) {
        for (Property p : properties()) {
            if (p.name().equals(name)) {
                return Optional.of(p.value());
            }
        }
        return Optional.empty();
    }

    /**
     * Returns the event's W3C trace context: that of this delivery if the router traces the event, else the producer's.
     *
     * @return the value of traceparent
     */
    public Optional<String> traceparent() {
        Optional<String> ofProperty = propertyOfAnyCase("traceparent");
        if (ofProperty.isPresent() || traceSize == 0) {
            return ofProperty;
        }
        return Optional.of(new String(frame.bytes, traceAt, traceSize, StandardCharsets.US_ASCII));
    }

    /**
     * Returns the vendors' part of the event's W3C trace context.
     *
     * @return the value of tracestate
     */
    public Optional<String> tracestate() {
        return propertyOfAnyCase("tracestate");
    }

    Optional<String> propertyOfAnyCase(String name) {
        for (Property p : properties()) {
            if (p.name().equalsIgnoreCase(name)) {
                return Optional.of(p.value());
            }
        }
        return Optional.empty();
    }

    /**
     * Returns the name of the event, the same through all retries.
     *
     * @return Pulsar's id of the message
     */
    public MessageId messageId() {
        return new MessageId(ledger, entry, batch, topicPartition);
    }

    /**
     * Returns the topic that the event was first sent to.
     *
     * @return its full name, such as persistent://public/default/orders
     */
    public String topic() {
        return frame.topic(topic);
    }

    /**
     * Returns the fence of this delivery, which is greater than that of any earlier delivery of the key. Pass it to your
     * database with every write: as two numbers, or as the text of {@link Fence#toString}.
     *
     * @return the fence
     */
    public Fence fence() {
        return new Fence(fencingToken(), turn);
    }

    /**
     * Returns {@link Fence#token}, for a database that keeps one number for each key. The number refuses writes of former
     * owners of the key, but not writes of an earlier delivery by the same owner.
     *
     * @return the token
     */
    public long fencingToken() {
        return frame.token(token);
    }

    /**
     * Returns {@link Fence#turn}.
     *
     * @return the turn
     */
    public long turn() {
        return turn;
    }

    /**
     * Returns the number of this attempt: 1 for the first delivery. It grows with each failure of a handler, not with moves
     * of the key.
     *
     * @return 1 or more
     */
    public int attempt() {
        return attempt;
    }

    /**
     * Returns how often Pulsar had delivered the event before.
     *
     * @return 0 or more
     */
    public int redelivery() {
        return redelivery;
    }

    /**
     * Returns the partition of the key in the router group.
     *
     * @return 0 to 4092
     */
    public int partition() {
        return partition;
    }

    /**
     * Returns the time of sending, by the producer's clock.
     *
     * @return the time, in steps of 1 ms
     */
    public Instant publishTime() {
        return Instant.ofEpochMilli(publishTimeMs);
    }

    /**
     * Returns the time that the producer assigned to the event.
     *
     * @return the time, in steps of 1 ms; empty if there is none
     */
    public Optional<Instant> eventTime() {
        return eventTimeMs == 0 ? Optional.empty() : Optional.of(Instant.ofEpochMilli(eventTimeMs));
    }

    /**
     * Returns the version of the payload's schema in Pulsar's registry for the topic.
     *
     * @return the version, a copy; empty if the producer gave none
     */
    public Optional<byte[]> schemaVersion() {
        byte[] version = frame.schemaVersion(schemaVersion);
        return version == null ? Optional.empty() : Optional.of(version.clone());
    }

    /**
     * Returns the present end of the handler's lease, which is renewed as long as the key remains here. Use it only for
     * planning, such as whether to begin another part of the work: {@link #checkActive} decides.
     *
     * @return wall time, not in the future when the handler has returned; empty for an event that no router delivered
     */
    public Optional<Instant> leaseUntil() {
        return stream == null ? Optional.empty() : Optional.of(returned ? Instant.now() : Instant.now().plus(stream.left(this)));
    }

    /**
     * Reports whether the handler must stop and write nothing. It reads the clock itself, so it notices a passed deadline
     * even if the process has just thawed. It does not block. An event is over when its handler has returned: from then on
     * this is true, for a task that the handler has left behind.
     *
     * @return whether the key is lost, the handler took too long or has returned, or the drain has ended
     */
    public boolean isCancelled() {
        return cancellation != null || returned || stream != null && stream.overdue(this);
    }

    /** Whether the key of a handler that has returned is still its own. Unlike {@link #isCancelled} it cancels nothing. */
    boolean holds() {
        return cancellation == null && !stream.passed(this);
    }

    /**
     * Throws if the handler must stop: call it before each write. It reads the clock itself and does not block. An event is
     * over when its handler has returned: from then on this always throws, for a task that the handler has left behind.
     *
     * @throws KeyLostException if another handler may work on the key now, as it may once this event's handler has returned
     * @throws HandlerTimeoutException if the handler took longer than the router's handler.timeout
     * @throws DrainTimeoutException if the handler outlasted the drain grace
     */
    public void checkActive() {
        if (isCancelled()) {
            Cancellation why = cancellation;
            throw why != null ? why.exception() : returned ? new KeyLostException("the handler has returned") : new KeyLostException();
        }
    }

    /**
     * Tells the router that the handler is still working on this event, which restarts the handler timeout if the router
     * has one. It does not block. When the handler has returned it sends nothing, and throws.
     *
     * @throws HandlerCancelledException as {@link #checkActive}
     */
    public void progress() {
        checkActive();
        if (stream != null) {
            stream.progress(this);
        }
    }

    /**
     * Returns what an event has that a router published: a timer, or an event of {@link Lane#send}. Its message id is none of Pulsar's. Hooks and
     * interceptors see a firing of a schedule as such an event, with the name of the schedule.
     *
     * @return the timer, empty for any other event
     */
    public Optional<Timer> timer() {
        return Optional.ofNullable(timer);
    }

    /**
     * Sets a timer: when so much time has passed, the handler gets an event of the same key, with this payload and a {@link Timer} of this name,
     * on whichever machine owns the key then.
     *
     * <p>Timers are durable: when the handler has returned they are published, and only then the event counts as done. If the handler fails they
     * are dropped. If it runs again for the same event, the n-th timer of that run is the same one as the n-th of the run before. A timer
     * cannot be cancelled: let its handler look whether it is still wanted. Call it before the handler returns.
     *
     * @param delay at most 366 days; parts of a millisecond are lost
     * @param name up to 128 bytes of printable text, may be empty
     * @param payload up to 1 MiB
     * @throws IllegalArgumentException if one of them is out of range, or the event has 100 timers
     * @throws KeyLostException if the handler has returned: the timer is not set
     */
    public synchronized void after(Duration delay, String name, byte[] payload) {
        if (timersTaken || returned) {
            throw new KeyLostException("the handler has returned");
        }
        Sender.Setting setting = Sender.Setting.of(delay, name, payload);
        if (timers.size() >= Sender.TIMERS_MAX) {
            throw new IllegalArgumentException("more than " + Sender.TIMERS_MAX + " timers of one event");
        }
        if (timers.isEmpty()) {
            timers = new ArrayList<>(2);
        }
        timers.add(setting);
    }

    /**
     * Returns the value that the last turn of the key has left in this process, or otherwise the value that {@code load} returns.
     *
     * <pre>{@code Cart cart = event.state(Cart.class, () -> store.cartOf(event.key()));}</pre>
     *
     * <p>The handler changes the value in place, and need not give it back. The value is kept for the next turn of the key if this handler returns
     * normally. It is returned there only if no other turn of the key came in between, in any process: so a handler reads what the handler before
     * it has written, without a query. Events, calls, timers and firings are all turns of their key. A turn whose handler does not ask for the
     * value drops it. So does any doubt: an exception, a cancelled handler, a key that has moved or was reserved, a worker that has come or
     * gone, a router of an older release. The value is never durable: write to your database what must last, with the fence.
     *
     * <p>A handler that writes a changed copy, as of a record, leaves the old value for the next turn: keep the copy in an object that can be changed.
     *
     * <p>The states of at most {@link Worker.Builder#stateMax} keys are kept, those that were used last. An event that no router delivered always
     * loads.
     *
     * @param <T> the type of the value
     * @param <X> what {@code load} throws
     * @param type the class of the value, which is its name: a key may have values of several classes. For a generic type make a class of
     *     your own that holds it
     * @param load loads the value; null, texts, numbers, enums and the times of java.time are not kept, since no handler can change them in place
     * @return the value
     * @throws X as {@code load} does: nothing is kept then
     */
    public <T, X extends Exception> T state(Class<T> type, Loader<? extends T, X> load) throws X {
        Objects.requireNonNull(type, "type");
        return stream == null ? load.load() : stream.states.of(this, type, load);
    }

    /** Returns the timers that the handler has set. It can set no more. */
    synchronized List<Sender.Setting> timersSet() {
        timersTaken = true;
        return timers;
    }

    /** Notes the thread of the handler before it starts. The runner's lock is held. */
    void starts(Thread handler) {
        thread = handler;
    }

    /** Ends the handler, and with it the event: nothing interrupts its thread for it any more. Returns why it was cancelled, or null. */
    synchronized Cancellation returns() {
        thread = null;
        returned = true;
        return cancellation;
    }

    /** Reports whether the handler has returned. */
    boolean hasReturned() {
        return returned;
    }

    /** Cancels the handler, once. Returns whether this call did. */
    synchronized boolean cancel(Cancellation why) {
        if (cancellation != null || thread == null) {
            return false;
        }
        cancellation = why;
        thread.interrupt();
        return true;
    }

    /**
     * Begins an event that no router delivered: for a test that calls a handler, or for a test router.
     *
     * @param key its key
     * @return a builder
     */
    public static Builder of(String key) {
        return new Builder(key.getBytes(StandardCharsets.UTF_8));
    }

    /**
     * Begins an event that no router delivered, with a key of any bytes.
     *
     * @param key its key
     * @return a builder
     */
    public static Builder of(byte[] key) {
        return new Builder(key);
    }

    /** Builds an event that no router delivered. */
    public static final class Builder {
        private final Delivery.Builder delivery = Delivery.newBuilder().setBatchIndex(-1).setTopicPartition(-1).setAttempt(1);
        private final Deliveries.Builder frame = Deliveries.newBuilder().setNumber(1);

        private Builder(byte[] key) {
            delivery.setKey(ByteString.copyFrom(key));
        }

        /**
         * Sets the payload; empty by default.
         *
         * @param payload any bytes
         * @return this
         */
        public Builder payload(byte[] payload) {
            delivery.setPayload(ByteString.copyFrom(payload));
            return this;
        }

        /**
         * Sets the payload to text in UTF-8.
         *
         * @param payload the text
         * @return this
         */
        public Builder payload(String payload) {
            return payload(payload.getBytes(StandardCharsets.UTF_8));
        }

        /**
         * Adds a property.
         *
         * @param name its name
         * @param value its value
         * @return this
         */
        public Builder property(String name, String value) {
            delivery.addProperties(io.ringfence.client.proto.Property.newBuilder().setName(frame.getNamesCount()).setValue(value));
            frame.addNames(name);
            return this;
        }

        /**
         * Sets the topic; empty by default.
         *
         * @param topic its full name
         * @return this
         */
        public Builder topic(String topic) {
            frame.clearTopics().addTopics(topic);
            return this;
        }

        /**
         * Sets the id; 0:0:-1:-1 by default.
         *
         * @param id the id
         * @return this
         */
        public Builder messageId(MessageId id) {
            delivery.setLedgerId(id.ledger()).setEntryId(id.entry()).setBatchIndex(id.batch()).setTopicPartition(id.topicPartition());
            return this;
        }

        /**
         * Sets the fence; a test router sets it by default.
         *
         * @param fence the fence
         * @return this
         */
        public Builder fence(Fence fence) {
            frame.clearTokens().addTokens(fence.token());
            delivery.setTurn(fence.turn());
            return this;
        }

        /**
         * Sets the number of the attempt; 1 by default.
         *
         * @param attempt 1 or more
         * @return this
         */
        public Builder attempt(int attempt) {
            delivery.setAttempt(attempt);
            return this;
        }

        /**
         * Sets how often Pulsar had delivered the event before; 0 by default.
         *
         * @param redelivery 0 or more
         * @return this
         */
        public Builder redelivery(int redelivery) {
            delivery.setRedeliveryCount(redelivery);
            return this;
        }

        /**
         * Sets the time of sending; the beginning of 1970 by default.
         *
         * @param time the time; parts of a millisecond are lost
         * @return this
         */
        public Builder publishTime(Instant time) {
            delivery.setPublishTimeMs(time.toEpochMilli());
            return this;
        }

        /**
         * Sets the producer's time of the event; none by default.
         *
         * @param time the time; parts of a millisecond are lost
         * @return this
         */
        public Builder eventTime(Instant time) {
            delivery.setEventTimeMs(time.toEpochMilli());
            return this;
        }

        /**
         * Sets the version of the payload's schema; none by default.
         *
         * @param version the version
         * @return this
         */
        public Builder schemaVersion(byte[] version) {
            frame.clearSchemaVersions().addSchemaVersions(ByteString.copyFrom(version));
            delivery.setSchemaVersion(1);
            return this;
        }

        /**
         * Makes it an event that a router published; by default it is not.
         *
         * @param timer its name, and when it was due
         * @return this
         */
        public Builder timer(Timer timer) {
            delivery.setTimer(io.ringfence.client.proto.Timer.newBuilder().setName(timer.name()).setDueMs(timer.due().toEpochMilli()));
            return this;
        }

        /** Makes it a firing of a schedule. */
        Builder firing(String schedule, Instant time, long missed) {
            delivery.setTimer(io.ringfence.client.proto.Timer.newBuilder().setName(schedule).setDueMs(time.toEpochMilli())
                    .setFiring(io.ringfence.client.proto.Firing.newBuilder().setTimeMs(time.toEpochMilli()).setMissed((int) missed)));
            return this;
        }

        /** Makes it a call. */
        Builder call(io.ringfence.client.proto.Call call) {
            delivery.setCall(call);
            return this;
        }

        /**
         * Returns the event.
         *
         * @return an event that no router delivered: it is never cancelled
         */
        public Event build() {
            Deliveries built = frame.clone().addDeliveries(delivery.clone()).build();
            return Frame.parse(WorkResponse.newBuilder().setDeliveries(built).build().toByteArray()).events.get(0);
        }
    }
}
