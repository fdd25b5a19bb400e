package io.ringfence.client;

import java.util.regex.Pattern;

/**
 * Orders the deliveries of one key: each delivery has a greater fence than all earlier deliveries of its key, across
 * handlers, applications, routers and restarts. Keep the greatest fence of each key in your database, and refuse a write
 * whose fence is older (docs/sinks.md). Fences of different keys cannot be compared.
 *
 * <p>It is a pair, compared by its first number, then by its second. A database can keep the two numbers in two columns,
 * or {@link #toString} in one.
 *
 * @param token grows whenever the key gets another owner: 63 bits. It is 0 if the routers run with
 *     {@code ownership.mode: gossip}, which cannot order owners: then {@code turn} is 0 too, and no write can be refused
 * @param turn grows with each delivery under one token, from 1, by steps of any size: at most 63 bits. It is 0 if the
 *     router's release has no turns yet
 */
public record Fence(long token, long turn) implements Comparable<Fence> {
    private static final int TOKEN_DIGITS = 19;
    private static final int TURN_DIGITS = 20;
    private static final Pattern TEXT = Pattern.compile("[0-9]{19}\\.[0-9]{20}");

    /** Older than any fence of a delivery. */
    public static final Fence NONE = new Fence(0, 0);

    @Override
    public int compareTo(Fence other) {
        int byToken = Long.compare(token, other.token);
        return byToken != 0 ? byToken : Long.compareUnsigned(turn, other.turn);
    }

    /**
     * Reports whether this fence is older than another one: once a write with {@code other} was accepted, a write with
     * this fence must be refused.
     *
     * @param other the fence of another delivery of the same key
     * @return whether this fence is the older one
     */
    public boolean isBefore(Fence other) {
        return compareTo(other) < 0;
    }

    /**
     * Returns the fence as text: 19 digits, a point and 20 digits. The texts sort bytewise in the order of the fences.
     *
     * @return 40 characters of ASCII
     */
    @Override
    public String toString() {
        StringBuilder text = new StringBuilder(TOKEN_DIGITS + 1 + TURN_DIGITS);
        append(text, Long.toString(token), TOKEN_DIGITS);
        text.append('.');
        append(text, Long.toUnsignedString(turn), TURN_DIGITS);
        return text.toString();
    }

    private static void append(StringBuilder text, String number, int digits) {
        text.append("0".repeat(digits - number.length())).append(number);
    }

    /**
     * Returns the fence whose {@link #toString} is {@code text}.
     *
     * @param text 19 digits, a point and 20 digits
     * @return the fence
     * @throws IllegalArgumentException if the text has another form, or a number is too great
     */
    public static Fence parse(String text) {
        if (!TEXT.matcher(text).matches()) {
            throw new IllegalArgumentException("not a fence: want 19 digits, a point and 20 digits, as Fence.toString writes them");
        }
        return new Fence(Long.parseLong(text, 0, TOKEN_DIGITS, 10), Long.parseUnsignedLong(text, TOKEN_DIGITS + 1, text.length(), 10));
    }
}
