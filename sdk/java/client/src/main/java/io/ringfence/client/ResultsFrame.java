package io.ringfence.client;

import java.nio.ByteBuffer;
import java.nio.CharBuffer;
import java.nio.charset.CharsetEncoder;
import java.nio.charset.CodingErrorAction;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** A frame of results, encoded by hand: an answer is a few bytes, and an object for each would cost more. */
final class ResultsFrame {
    // Field numbers of app.proto.
    private static final int RECEIPT = 1;
    private static final int RESULTS = 3;
    private static final int NUMBER = 1;
    private static final int RESULT = 2;
    private static final int DELIVERY_ID = 1;
    private static final int KIND = 2;
    private static final int AFTER_MS = 3;
    private static final int REASON = 4;
    private static final int REPLY = 5;
    private static final int CODE = 6;
    private static final int STARTED_NS = 8;
    private static final int TOOK_NS = 9;

    private static final int VARINT_MAX = 10; // bytes
    private static final int NUMBERS_MAX = 5 * (1 + VARINT_MAX) + 4 * (1 + VARINT_MAX); // bytes of a result less its reason, reply and code

    private final long receipt;
    private byte[] body; // the fields of Results
    private int size;

    ResultsFrame(long receipt, long number, int expected) {
        this.receipt = receipt;
        body = new byte[VARINT_MAX + 1 + 12 * Math.min(expected, 100_000)];
        field(NUMBER, number);
    }

    /** Its size so far, in bytes. */
    int size() {
        return size;
    }

    /** Adds an answer, whose reason is cut to {@code reasonBytesMax} of UTF-8. */
    void add(Inbox.Item item, int reasonBytesMax) {
        byte[] reason = item.reason == null || item.reason.isEmpty() ? null : cut(item.reason, reasonBytesMax);
        byte[] reply = item.reply == null || item.reply.length == 0 ? null : item.reply;
        byte[] code = item.code == null || item.code.isEmpty() ? null : cut(item.code, Call.CODE_MAX);
        int most = NUMBERS_MAX + length(reason) + length(reply) + length(code);
        if (body.length - size < most) {
            body = Arrays.copyOf(body, Math.max(2 * body.length, size + most));
        }
        int length = fieldSize(item.id) + 2 + fieldSize(item.afterMs) + fieldSize(item.startedNs) + fieldSize(item.tookNs)
                + bytesSize(reason) + bytesSize(reply) + bytesSize(code);
        varint(RESULT << 3 | 2);
        varint(length);
        field(DELIVERY_ID, item.id);
        field(KIND, item.kind.number);
        field(AFTER_MS, item.afterMs);
        bytes(REASON, reason);
        bytes(REPLY, reply);
        bytes(CODE, code);
        field(STARTED_NS, item.startedNs);
        field(TOOK_NS, item.tookNs);
    }

    /** The whole frame. */
    byte[] toBytes() {
        byte[] results = body;
        int length = size;
        body = new byte[2 * (1 + VARINT_MAX) + length];
        size = 0;
        field(RECEIPT, receipt);
        varint(RESULTS << 3 | 2);
        varint(length);
        System.arraycopy(results, 0, body, size, length);
        return Arrays.copyOf(body, size + length);
    }

    /** Shortens a text to valid UTF-8 of at most {@code bytesMax} bytes. */
    static byte[] cut(String text, int bytesMax) {
        CharsetEncoder encoder = StandardCharsets.UTF_8.newEncoder()
                .onMalformedInput(CodingErrorAction.REPLACE).onUnmappableCharacter(CodingErrorAction.REPLACE);
        ByteBuffer out = ByteBuffer.allocate((int) Math.min(bytesMax, 3L * text.length()));
        encoder.encode(CharBuffer.wrap(text), out, true); // stops before the character that does not fit
        return Arrays.copyOf(out.array(), out.position());
    }

    private void field(int field, long value) {
        if (value != 0) {
            varint(field << 3);
            varint(value);
        }
    }

    /** Writes a field, unless it is null. There is room. */
    private void bytes(int field, byte[] value) {
        if (value != null) {
            varint(field << 3 | 2);
            varint(value.length);
            System.arraycopy(value, 0, body, size, value.length);
            size += value.length;
        }
    }

    private static int length(byte[] value) {
        return value == null ? 0 : value.length;
    }

    private static int bytesSize(byte[] value) {
        return value == null ? 0 : 1 + varintSize(value.length) + value.length;
    }

    private static int fieldSize(long value) {
        return value == 0 ? 0 : 1 + varintSize(value);
    }

    private static int varintSize(long value) {
        return (Long.SIZE - Long.numberOfLeadingZeros(value | 1) + 6) / 7;
    }

    private void varint(long value) {
        long rest = value;
        while ((rest & ~0x7fL) != 0) {
            body[size++] = (byte) (rest | 0x80);
            rest >>>= 7;
        }
        body[size++] = (byte) rest;
    }
}
