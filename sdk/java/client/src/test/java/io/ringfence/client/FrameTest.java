package io.ringfence.client;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.ByteString;
import com.google.protobuf.UnknownFieldSet;
import io.ringfence.client.proto.Deliveries;
import io.ringfence.client.proto.Delivery;
import io.ringfence.client.proto.Pong;
import io.ringfence.client.proto.ResultKind;
import io.ringfence.client.proto.WorkRequest;
import io.ringfence.client.proto.WorkResponse;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.junit.jupiter.api.Test;

/** What is encoded and decoded by hand must be what protobuf's own code reads and writes. */
class FrameTest {
    private static final UnknownFieldSet LATER = UnknownFieldSet.newBuilder()
            .addField(900, UnknownFieldSet.Field.newBuilder().addVarint(-1).addFixed32(1).addFixed64(2).addLengthDelimited(ByteString.copyFromUtf8("x")).build())
            .build();

    private static final WorkResponse DELIVERIES = WorkResponse.newBuilder().setReceipt(9).setUnknownFields(LATER).setDeliveries(
            Deliveries.newBuilder().setNumber(4).addTopics("a").addTopics("persistent://public/default/orders").addTokens(7).addTokens(1L << 60)
                    .addNames("source").addNames("TraceParent").addNames("tracestate").addSchemaVersions(ByteString.copyFrom(new byte[] {1, 2}))
                    .setUnknownFields(LATER)
                    .addDeliveries(Delivery.newBuilder().setDeliveryId(1L << 40).setPartition(4092).setKey(ByteString.copyFrom(new byte[] {'u', (byte) 0xff}))
                            .setPayload(ByteString.copyFromUtf8("payload")).setLedgerId(7).setEntryId(8).setBatchIndex(-1).setTopicPartition(3)
                            .addProperties(io.ringfence.client.proto.Property.newBuilder().setName(0).setValue("web"))
                            .addProperties(io.ringfence.client.proto.Property.newBuilder().setName(1).setValue("00-1-2-01"))
                            .addProperties(io.ringfence.client.proto.Property.newBuilder().setName(2).setValue("k=ü"))
                            .setTopic(1).setToken(1).setPublishTimeMs(1_763_000_000_123L).setEventTimeMs(5).setAttempt(3).setRedeliveryCount(2)
                            .setTurn(1L << 41).setGeneration(-3).setSchemaVersion(1).setUnknownFields(LATER))
                    .addDeliveries(Delivery.newBuilder().setDeliveryId(2).setBatchIndex(5).setTraceparent("00-3-4-01").setAttempt(1))).build();

    @Test
    void decodesDeliveries() {
        Frame frame = Frame.parse(DELIVERIES.toByteArray());
        assertEquals(9, frame.receipt);
        assertEquals(4, frame.number);
        assertNull(frame.other);
        assertEquals(2, frame.events.size());

        Event event = frame.events.get(0);
        assertEquals(1L << 40, event.id);
        assertEquals(4092, event.partition());
        assertEquals("u\ufffd", event.key());
        assertArrayEquals(new byte[] {'u', (byte) 0xff}, event.keyBytes());
        assertEquals("payload", new String(event.payload(), StandardCharsets.UTF_8));
        assertEquals(7, event.payloadSize());
        assertEquals("7:8:3:-1", event.messageId().toString());
        assertEquals(List.of(new Property("source", "web"), new Property("TraceParent", "00-1-2-01"), new Property("tracestate", "k=ü")), event.properties());
        assertEquals(Optional.of("web"), event.property("source"));
        assertEquals(Optional.empty(), event.property("Source"));
        assertEquals(Optional.of("00-1-2-01"), event.traceparent());
        assertEquals(Optional.of("k=ü"), event.tracestate());
        assertEquals("persistent://public/default/orders", event.topic());
        assertEquals(new Fence(1L << 60, 1L << 41), event.fence());
        assertEquals("1152921504606846976.00000002199023255552", event.fence().toString());
        assertEquals(1L << 60, event.fencingToken());
        assertEquals(1L << 41, event.turn());
        assertEquals(-3, event.generation);
        assertEquals(Instant.ofEpochMilli(1_763_000_000_123L), event.publishTime());
        assertEquals(Optional.of(Instant.ofEpochMilli(5)), event.eventTime());
        assertEquals(3, event.attempt());
        assertEquals(2, event.redelivery());
        assertArrayEquals(new byte[] {1, 2}, event.schemaVersion().orElseThrow());

        Event other = frame.events.get(1);
        assertEquals("", other.key());
        assertEquals(0, other.payload().length);
        assertEquals(List.of(), other.properties());
        assertEquals(Optional.of("00-3-4-01"), other.traceparent());
        assertEquals("a", other.topic());
        assertEquals(7, other.fencingToken());
        assertEquals(Optional.empty(), other.eventTime());
        assertTrue(other.schemaVersion().isEmpty());
        assertEquals(5, other.messageId().batch());
    }

    @Test
    void theHandlerMayWriteToThePayloadAndToNothingElse() {
        Frame frame = Frame.parse(DELIVERIES.toByteArray());
        Event event = frame.events.get(0);
        event.payload()[0] = 'X';
        event.keyBytes()[0] = 'X';
        event.schemaVersion().orElseThrow()[0] = 9;
        assertEquals('X', event.payload()[0]);
        assertEquals('u', event.keyBytes()[0]);
        assertEquals(1, event.schemaVersion().orElseThrow()[0]);
    }

    @Test
    void decodesOtherFramesByProtobuf() {
        WorkResponse pong = WorkResponse.newBuilder().setReceipt(3).setPong(Pong.newBuilder().setK(8).setRemainingNs(-5)).build();
        Frame frame = Frame.parse(pong.toByteArray());
        assertEquals(3, frame.receipt);
        assertEquals(0, frame.number);
        assertEquals(pong, frame.other);

        Frame receipt = Frame.parse(WorkResponse.newBuilder().setReceipt(1L << 63).build().toByteArray());
        assertEquals(1L << 63, receipt.receipt);
        assertNull(receipt.other);
        assertNull(Frame.parse(new byte[0]).other);
        assertEquals(1, Frame.parse(WorkResponse.newBuilder().setReceipt(1).setUnknownFields(LATER).build().toByteArray()).receipt);
    }

    /** A frame that was cut or changed is refused or read as another one; nothing else is thrown, and no memory is exhausted. */
    @Test
    void brokenFramesAreRefused() {
        byte[] good = DELIVERIES.toByteArray();
        int refused = 0;
        long first = System.nanoTime();
        for (long seed = first; seed < first + 20_000; seed++) {
            Random random = new Random(seed);
            byte[] broken = random.nextBoolean() ? Arrays.copyOf(good, random.nextInt(good.length)) : good.clone();
            for (int i = random.nextInt(4); i > 0 && broken.length > 0; i--) {
                broken[random.nextInt(broken.length)] = (byte) random.nextInt();
            }
            try {
                for (Event event : Frame.parse(broken).events) {
                    event.key();
                    event.payload();
                    event.topic();
                    event.fence();
                }
            } catch (IllegalArgumentException e) {
                refused++;
            } catch (Throwable other) {
                throw new AssertionError("seed " + seed, other);
            }
        }
        assertTrue(refused > 1_000, "only " + refused + " of 20,000 broken frames were refused");
    }

    @Test
    void encodesResults() throws Exception {
        Random random = new Random(1);
        ResultsFrame frame = new ResultsFrame(12, 34, 1); // expects less than it gets
        for (int i = 0; i < 500; i++) {
            Inbox.Item item = new Inbox.Item() { };
            item.id = i == 0 ? Long.MAX_VALUE : random.nextLong() >>> random.nextInt(64);
            item.kind = io.ringfence.client.ResultKind.values()[i % 5];
            if (i % 3 == 0) {
                item.afterMs = random.nextInt(100_000);
                item.reason = "why ü " + i;
            }
            if (i % 4 == 0) {
                item.startedNs = random.nextLong() >>> 1;
                item.tookNs = random.nextInt(5_000_000);
            }
            frame.add(item, 500);
        }
        WorkRequest decoded = WorkRequest.parseFrom(frame.toBytes());
        assertEquals(12, decoded.getReceipt());
        assertEquals(34, decoded.getResults().getNumber());
        assertEquals(500, decoded.getResults().getResultsCount());
        assertTrue(decoded.getUnknownFields().asMap().isEmpty());
        random = new Random(1);
        for (int i = 0; i < 500; i++) {
            io.ringfence.client.proto.Result result = decoded.getResults().getResults(i);
            assertEquals(i == 0 ? Long.MAX_VALUE : random.nextLong() >>> random.nextInt(64), result.getDeliveryId());
            assertEquals(ResultKind.forNumber(1 + i % 5), result.getKind());
            assertEquals(i % 3 == 0 ? random.nextInt(100_000) : 0, result.getAfterMs());
            assertEquals(i % 3 == 0 ? "why ü " + i : "", result.getReason());
            assertEquals(i % 4 == 0 ? random.nextLong() >>> 1 : 0, result.getStartedNs());
            assertEquals(i % 4 == 0 ? random.nextInt(5_000_000) : 0, result.getTookNs());
        }
    }

    @Test
    void reasonsAreCutToValidText() {
        assertEquals("told", new String(ResultsFrame.cut("told", 500), StandardCharsets.UTF_8));
        assertEquals("x", new String(ResultsFrame.cut("xé", 2), StandardCharsets.UTF_8)); // é needs two bytes
        assertEquals("xé", new String(ResultsFrame.cut("xé", 3), StandardCharsets.UTF_8));
        assertEquals("", new String(ResultsFrame.cut("\ud83d\ude00", 3), StandardCharsets.UTF_8)); // four bytes
        assertEquals("a?b", new String(ResultsFrame.cut("a\ud83db", 9), StandardCharsets.UTF_8)); // half a character
        assertEquals(499, ResultsFrame.cut(" é".repeat(500), 500).length); // 166 pairs of three bytes and a space
    }

    @Test
    void builtEventsHaveTheirFields() {
        Event event = Event.of("k").payload("p").property("a", "1").property("b", "2").topic("t").fence(new Fence(3, 4)).attempt(5).redelivery(6)
                .messageId(new MessageId(1, 2, 3, 4)).publishTime(Instant.ofEpochMilli(7)).eventTime(Instant.ofEpochMilli(8)).schemaVersion(new byte[] {9}).build();
        assertEquals("k", event.key());
        assertEquals("2", event.property("b").orElseThrow());
        assertEquals(new Fence(3, 4), event.fence());
        assertEquals(new MessageId(1, 2, 3, 4), event.messageId());
        assertEquals(8, event.eventTime().orElseThrow().toEpochMilli());
        assertArrayEquals(new byte[] {9}, event.schemaVersion().orElseThrow());
        event.checkActive(); // no router delivered it: it is never cancelled
        event.progress();
        assertTrue(event.leaseUntil().isEmpty());
    }
}
