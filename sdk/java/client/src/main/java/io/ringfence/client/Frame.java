package io.ringfence.client;

import com.google.protobuf.InvalidProtocolBufferException;
import io.ringfence.client.proto.WorkResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

/**
 * One frame of the router. Deliveries are decoded by hand, in one pass, into events that share the bytes of the frame: most
 * handlers read few of the fields, and objects for the others would cost more than everything else.
 */
final class Frame {
    // Field numbers of app.proto.
    private static final int RECEIPT = 1;
    private static final int DELIVERIES = 3;
    private static final int NUMBER = 1;
    private static final int TOPICS = 2;
    private static final int TOKENS = 3;
    private static final int NAMES = 4;
    private static final int DELIVERY = 5;
    private static final int SCHEMA_VERSIONS = 7;

    final byte[] bytes;

    /** The number of the newest Results frame that the router has taken in. */
    long receipt;
    /** The number of a Deliveries frame; 0: it is another one, or only a receipt. */
    long number;
    /** The deliveries of a Deliveries frame. */
    List<Event> events = List.of();
    /** Any frame but Deliveries, else null. */
    WorkResponse other;

    private final List<String> topics = new ArrayList<>(2);
    private final List<String> names = new ArrayList<>();
    private final List<byte[]> schemaVersions = new ArrayList<>(2);
    private long[] tokens = new long[4];
    private int tokenCount;

    private Frame(byte[] bytes) {
        this.bytes = bytes;
    }

    /**
     * Decodes a frame.
     *
     * @param bytes a WorkResponse; the events keep them
     * @throws IllegalArgumentException if it is not one
     */
    static Frame parse(byte[] bytes) {
        Frame frame = new Frame(bytes);
        try {
            frame.decode();
        } catch (IndexOutOfBoundsException | InvalidProtocolBufferException e) {
            throw new IllegalArgumentException("the router sent a frame that is not a valid protobuf message", e);
        }
        return frame;
    }

    private void decode() throws InvalidProtocolBufferException {
        Cursor in = new Cursor(bytes, 0, bytes.length);
        boolean control = false;
        while (in.more()) {
            int tag = in.tag();
            if (tag == Cursor.varintTag(RECEIPT)) {
                receipt = in.varint();
            } else if (tag == Cursor.bytesTag(DELIVERIES)) {
                int size = in.size();
                deliveries(in.at, in.at + size);
                in.at += size;
            } else {
                control = true; // or a field of a later router
                in.skip(tag);
            }
        }
        if (control && number == 0) {
            other = WorkResponse.parseFrom(bytes);
        }
    }

    private void deliveries(int from, int to) {
        Cursor in = new Cursor(bytes, from, to);
        events = new ArrayList<>(1 + (to - from) / 256);
        while (in.more()) {
            int tag = in.tag();
            if (tag == Cursor.bytesTag(DELIVERY)) {
                int size = in.size();
                events.add(new Event(this, in.at, in.at + size));
                in.at += size;
            } else if (tag == Cursor.varintTag(NUMBER)) {
                number = in.varint();
            } else if (tag == Cursor.bytesTag(TOPICS)) {
                topics.add(in.string());
            } else if (tag == Cursor.bytesTag(NAMES)) {
                names.add(in.string());
            } else if (tag == Cursor.bytesTag(TOKENS)) {
                int end = in.size() + in.at;
                while (in.at < end) {
                    addToken(in.varint());
                }
            } else if (tag == Cursor.varintTag(TOKENS)) {
                addToken(in.varint());
            } else if (tag == Cursor.bytesTag(SCHEMA_VERSIONS)) {
                schemaVersions.add(in.bytes());
            } else {
                in.skip(tag);
            }
        }
    }

    private void addToken(long token) {
        if (tokenCount == tokens.length) {
            tokens = Arrays.copyOf(tokens, 2 * tokenCount);
        }
        tokens[tokenCount++] = token;
    }

    String topic(int index) {
        return index >= 0 && index < topics.size() ? topics.get(index) : "";
    }

    String name(int index) {
        return index >= 0 && index < names.size() ? names.get(index) : "";
    }

    long token(int index) {
        return index >= 0 && index < tokenCount ? tokens[index] : 0;
    }

    /** The schema version of an index plus 1; null for 0. */
    byte[] schemaVersion(int indexPlusOne) {
        return indexPlusOne > 0 && indexPlusOne <= schemaVersions.size() ? schemaVersions.get(indexPlusOne - 1) : null;
    }

    /** Reads protobuf's wire format. It throws IndexOutOfBoundsException where that is violated. */
    static final class Cursor {
        private static final int VARINT = 0;
        private static final int FIXED64 = 1;
        private static final int BYTES = 2;
        private static final int FIXED32 = 5;

        private final byte[] bytes;
        private final int end;
        int at;

        Cursor(byte[] bytes, int from, int to) {
            this.bytes = bytes;
            this.at = from;
            this.end = to;
        }

        static int varintTag(int field) {
            return field << 3 | VARINT;
        }

        static int bytesTag(int field) {
            return field << 3 | BYTES;
        }

        boolean more() {
            if (at > end) {
                throw new IndexOutOfBoundsException("a field ends after its message");
            }
            return at < end;
        }

        int tag() {
            return (int) varint();
        }

        long varint() {
            byte first = bytes[at++];
            if (first >= 0) {
                return first;
            }
            long value = first & 0x7f;
            for (int shift = 7; shift < 64; shift += 7) {
                byte next = bytes[at++];
                value |= (long) (next & 0x7f) << shift;
                if (next >= 0) {
                    return value;
                }
            }
            throw new IndexOutOfBoundsException("a number has more than ten bytes");
        }

        /** A number that protobuf stores by its distance from 0. */
        int zigzag() {
            int value = (int) varint();
            return value >>> 1 ^ -(value & 1);
        }

        /** The size of the bytes that follow. */
        int size() {
            long size = varint();
            if (size < 0 || size > end - at) {
                throw new IndexOutOfBoundsException("a field ends after its message");
            }
            return (int) size;
        }

        String string() {
            int size = size();
            String text = new String(bytes, at, size, StandardCharsets.UTF_8);
            at += size;
            return text;
        }

        byte[] bytes() {
            int size = size();
            byte[] copy = Arrays.copyOfRange(bytes, at, at + size);
            at += size;
            return copy;
        }

        void skip(int tag) {
            switch (tag & 7) {
                case VARINT -> varint();
                case FIXED64 -> at += 8;
                case BYTES -> {
                    int size = size(); // reads, and so moves at, before the sum
                    at += size;
                }
                case FIXED32 -> at += 4;
                default -> throw new IndexOutOfBoundsException("an unknown type of field");
            }
        }
    }
}
