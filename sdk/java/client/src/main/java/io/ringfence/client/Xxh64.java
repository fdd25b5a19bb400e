package io.ringfence.client;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** XXH64 with the seed 0: the hash by which calls name the keys whose handlers wait for them. */
final class Xxh64 {
    private static final long P1 = 0x9E3779B185EBCA87L;
    private static final long P2 = 0xC2B2AE3D27D4EB4FL;
    private static final long P3 = 0x165667B19E3779F9L;
    private static final long P4 = 0x85EBCA77C2B2AE63L;
    private static final long P5 = 0x27D4EB2F165667C5L;
    private static final int STRIPE = 32; // bytes that the four lanes take together

    private Xxh64() {}

    static long hash(byte[] data) {
        ByteBuffer in = ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN);
        long value = P5;
        if (data.length >= STRIPE) {
            long[] lanes = {P1 + P2, P2, 0, -P1};
            while (in.remaining() >= STRIPE) {
                for (int i = 0; i < lanes.length; i++) {
                    lanes[i] = round(lanes[i], in.getLong());
                }
            }
            value = Long.rotateLeft(lanes[0], 1) + Long.rotateLeft(lanes[1], 7) + Long.rotateLeft(lanes[2], 12) + Long.rotateLeft(lanes[3], 18);
            for (long lane : lanes) {
                value = (value ^ round(0, lane)) * P1 + P4;
            }
        }
        value += data.length;
        while (in.remaining() >= Long.BYTES) {
            value = Long.rotateLeft(value ^ round(0, in.getLong()), 27) * P1 + P4;
        }
        if (in.remaining() >= Integer.BYTES) {
            value = Long.rotateLeft(value ^ Integer.toUnsignedLong(in.getInt()) * P1, 23) * P2 + P3;
        }
        while (in.hasRemaining()) {
            value = Long.rotateLeft(value ^ (in.get() & 0xffL) * P5, 11) * P1;
        }
        value = (value ^ value >>> 33) * P2;
        value = (value ^ value >>> 29) * P3;
        return value ^ value >>> 32;
    }

    private static long round(long lane, long word) {
        return Long.rotateLeft(lane + word * P2, 31) * P1;
    }
}
