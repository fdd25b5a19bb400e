import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { cutReason, decodeFrame, encodeReceipt, encodeRequest, encodeResults } from "../src/codec.js";
import type { EventOwner, LeasedEvent } from "../src/event.js";
import { WorkRequestSchema, WorkResponseSchema, type Delivery, type Deliveries } from "../src/gen/ringfence/app/v1/app_pb.js";
import { Kind, type Result } from "../src/inbox.js";
import { Reader, sizeOf, tag, varint, Writer } from "../src/wire.js";
import { randomly, type Draw } from "./randomly.js";

const owner = {} as EventOwner;

/** Numbers at the edges of what bytes, bits and doubles hold. */
const edges = [0n, 1n, 127n, 128n, 16383n, 16384n, 2n ** 31n - 1n, 2n ** 31n, 2n ** 32n, 2n ** 49n - 1n, 2n ** 49n, 2n ** 53n - 1n, 2n ** 53n, 2n ** 56n, 2n ** 63n - 1n];
const unsigned = (draw: Draw) => edges[draw(0, edges.length - 1)]! + BigInt(draw(0, 1));
const signed = (draw: Draw) => (draw(0, 1) ? 1n : -1n) * edges[draw(0, edges.length - 1)]!;
const u32 = (draw: Draw) => Number([0n, 1n, 127n, 128n, 2n ** 31n, 2n ** 32n - 1n][draw(0, 5)]!);
const texts = ["", "a", "Heidestraße", "traceparent", "x".repeat(200)];
const text = (draw: Draw) => texts[draw(0, texts.length - 1)]!;
const data = (draw: Draw) => Buffer.alloc([0, 1, 127, 128, 5000][draw(0, 4)]!, draw(0, 255));
const list = <T>(draw: Draw, most: number, one: () => T): T[] => Array.from({ length: draw(0, most) }, one);

/** No timer, or one that is a firing or none. Its time is one that a Date can have. */
function timer(draw: Draw) {
  const firing = { timeMs: signed(draw) % 2n ** 53n, missed: u32(draw) };
  return draw(0, 1) ? {} : { timer: { name: text(draw), dueMs: unsigned(draw) % 2n ** 52n, ...(draw(0, 1) ? {} : { firing }) } };
}

/** What the SDK shows of a delivery, made from the message of the protobuf library. */
function shown(frame: Deliveries, d: Delivery) {
  return {
    id: d.deliveryId, partition: d.partition, key: Buffer.from(d.key).toString(), keyBytes: Buffer.from(d.key), payload: Buffer.from(d.payload),
    properties: d.properties.map((p) => ({ name: frame.names[p.name] ?? "", value: p.value })),
    ledger: d.ledgerId, entry: d.entryId, batch: d.batchIndex, topicPartition: d.topicPartition, topic: frame.topics[d.topic] ?? "",
    token: frame.tokens[d.token] ?? 0n, turn: d.turn, generation: d.generation, publish: Number(d.publishTimeMs), event: Number(d.eventTimeMs), attempt: d.attempt,
    redelivery: d.redeliveryCount, schema: d.schemaVersion === 0 ? undefined : Buffer.from(frame.schemaVersions[d.schemaVersion - 1]!),
    timer: d.timer && { name: d.timer.name, due: Number(d.timer.dueMs) },
    fired: d.timer?.firing && { schedule: d.timer.name, timeMs: Number(d.timer.firing.timeMs), missed: d.timer.firing.missed },
  };
}

function shownEvent(e: LeasedEvent) {
  const { ledger, entry, batch, topicPartition } = e.messageId;
  return {
    id: BigInt(e.id), partition: e.partition, key: e.key, keyBytes: e.keyBytes, payload: e.payload, properties: e.properties,
    ledger, entry, batch, topicPartition, topic: e.topic, token: e.fence.token, turn: e.turn, generation: BigInt(e.generation), publish: e.publishMs, event: e.eventMs, attempt: e.attempt,
    redelivery: e.redelivery, schema: e.schemaVersion, timer: e.timer && { name: e.timer.name, due: e.timer.due.getTime() }, fired: e.fired,
  };
}

describe("codec", () => {
  randomly("decodes deliveries as the protobuf library does", 500, (draw) => {
    const topics = list(draw, 2, () => text(draw));
    const tokens = list(draw, 2, () => signed(draw));
    const names = list(draw, 2, () => text(draw));
    const schemaVersions = list(draw, 2, () => data(draw));
    const index = (of: unknown[]) => draw(0, Math.max(0, of.length - 1));
    const frame = create(WorkResponseSchema, {
      receipt: unsigned(draw) % 2n ** 53n,
      frame: {
        case: "deliveries",
        value: {
          number: 1n + BigInt(draw(0, 1000)), topics, tokens, names, schemaVersions,
          deliveries: list(draw, 5, () => ({
            deliveryId: unsigned(draw), partition: draw(0, 4092), key: data(draw), payload: data(draw),
            properties: list(draw, 3, () => ({ name: index(names), value: text(draw) })),
            ledgerId: signed(draw), entryId: signed(draw), batchIndex: draw(-1, 300), topicPartition: draw(-1, 300), topic: index(topics), token: index(tokens),
            publishTimeMs: signed(draw) % 2n ** 53n, eventTimeMs: unsigned(draw) % 2n ** 53n, attempt: u32(draw), traceparent: text(draw), redeliveryCount: u32(draw),
            turn: unsigned(draw), generation: unsigned(draw), schemaVersion: draw(0, schemaVersions.length), ...timer(draw),
          })),
        },
      },
    });
    const encoded = Buffer.from(toBinary(WorkResponseSchema, frame));
    const decoded = decodeFrame(encoded, owner);
    assert.equal(decoded.other, undefined);
    assert.equal(BigInt(decoded.receipt), frame.receipt);
    const want = frame.frame.value as Deliveries;
    assert.equal(decoded.number, Number(want.number));
    assert.deepEqual(decoded.events.map(shownEvent), want.deliveries.map((d) => shown(want, d)));

    // No prefix of a frame is taken for a whole one without an error, or it has fewer events.
    const cut = encoded.subarray(0, draw(0, encoded.length - 1));
    try {
      const part = decodeFrame(Buffer.from(cut), owner);
      assert.ok(part.events.length <= decoded.events.length);
    } catch (err) {
      assert.ok(err instanceof Error && !(err instanceof TypeError) && !(err instanceof assert.AssertionError), String(err));
    }
  });

  it("ignores unknown fields at every level", () => {
    const unknown = (field: number) => {
      const w = new Writer(64, 0);
      w.number(tag(field, 2));
      w.number(3);
      w.append(Buffer.from("new"));
      w.number(tag(field + 1, varint));
      w.number(2 ** 40);
      w.number(tag(field + 2, 1));
      w.append(Buffer.alloc(8));
      w.number(tag(field + 3, 5));
      w.append(Buffer.alloc(4));
      return w.done(0);
    };
    const inside = (field: number, content: Buffer) => {
      const w = new Writer(8, 0);
      w.number(tag(field, 2));
      w.number(content.length);
      w.append(content);
      return w.done(0);
    };
    const property = inside(5, Buffer.concat([unknown(300), inside(2, Buffer.from("value"))]));
    const timer = inside(20, Buffer.concat([unknown(400), inside(1, Buffer.from("t")), inside(3, Buffer.concat([unknown(500), Buffer.from([8, 9]), unknown(600)])), unknown(700)]));
    const delivery = inside(5, Buffer.concat([unknown(100), Buffer.from([8, 7]), property, timer, unknown(200)]));
    const frame = inside(3, Buffer.concat([unknown(50), Buffer.from([8, 1]), inside(4, Buffer.from("name")), delivery]));
    const { events, number } = decodeFrame(Buffer.concat([unknown(1000), frame]), owner);
    assert.equal(number, 1);
    assert.deepEqual(events.map((e) => [e.id, e.properties, e.fired]), [[7, [{ name: "name", value: "value" }], { schedule: "t", timeMs: 9, missed: 0 }]]);
  });

  it("refuses deliveries whose topic, token or schema version is not in the frame", () => {
    for (const wrong of [{ topic: 1 }, { token: 1 }, { schemaVersion: 2 }]) {
      const frame = create(WorkResponseSchema, {
        frame: { case: "deliveries", value: { number: 1n, topics: ["t"], tokens: [1n], schemaVersions: [Buffer.of(1)], deliveries: [{ deliveryId: 1n, ...wrong }] } },
      });
      assert.throws(() => decodeFrame(Buffer.from(toBinary(WorkResponseSchema, frame)), owner), /does not have/, JSON.stringify(wrong));
    }
  });

  it("refuses what is no protobuf", () => {
    for (const bad of [[0x1a, 5, 8], [0x1a, 2, 8, 0xff], [0x1a, 1, 0x80], [0x1a, 2, 0x2a, 9], [0x1a, 2, 0x0b, 1], [0x1a, 2, 0, 1], [0x1a, 11, 8, ...Array(10).fill(0xff)]]) {
      assert.throws(() => decodeFrame(Buffer.from(bad as number[]), owner), { name: "MalformedError" }, String(bad));
    }
  });

  randomly("encodes results that the protobuf library decodes", 500, (draw) => {
    const reasonMax = draw(1, 100);
    const results: Result[] = Array.from({ length: draw(1, 20) }, () => {
      const id = unsigned(draw);
      return {
        id: id < 2n ** 53n ? Number(id) : id, kind: draw(1, 5) as Kind, afterMs: draw(0, 1) ? Number(unsigned(draw) % 2n ** 53n) : 0,
        reason: text(draw), startedNs: draw(0, 1) ? 1 + Number(unsigned(draw) % 2n ** 52n) : 0, tookNs: draw(0, 1_000_000),
      };
    });
    const receipt = draw(0, 300);
    const number = draw(1, 100_000);
    const bytesMax = draw(1, 400);
    const { frame, taken } = encodeResults(receipt, number, results, reasonMax, bytesMax);
    assert.ok(taken >= 1 && taken <= results.length);
    assert.ok(frame.length <= bytesMax + 64 + 100 + 40, `${frame.length} bytes, want at most about ${bytesMax}`);
    const message = fromBinary(WorkRequestSchema, frame);
    assert.equal(message.receipt, BigInt(receipt));
    assert.ok(message.frame.case === "results");
    assert.equal(message.frame.value.number, BigInt(number));
    assert.deepEqual(
      message.frame.value.results.map((r) => [r.deliveryId, r.kind as number, r.afterMs, r.reason, r.startedNs, r.tookNs]),
      results.slice(0, taken).map((r) => [BigInt(r.id), r.kind, BigInt(r.afterMs), cutReason(r.reason, reasonMax).toString(), BigInt(r.startedNs), r.startedNs > 0 ? BigInt(r.tookNs) : 0n]),
    );
  });

  it("takes all results that fit", () => {
    const results = Array.from({ length: 1000 }, (_, i): Result => ({ id: i + 1, kind: Kind.Done, afterMs: 0, reason: "", startedNs: 0, tookNs: 0 }));
    assert.equal(encodeResults(1, 1, results, 100, 1 << 20).taken, 1000);
    const { frame, taken } = encodeResults(1, 1, results, 100, 1000);
    assert.ok(taken > 50 && taken < 1000 && frame.length < 1100, `${taken} results in ${frame.length} bytes`);
  });

  it("encodes receipts and other frames", () => {
    assert.equal(fromBinary(WorkRequestSchema, encodeReceipt(300)).receipt, 300n);
    const ping = fromBinary(WorkRequestSchema, encodeRequest(2, { case: "ping", value: { k: 9n } }));
    assert.equal(ping.receipt, 2n);
    assert.deepEqual([ping.frame.case, ping.frame.case === "ping" && ping.frame.value.k], ["ping", 9n]);
  });

  randomly("cuts reasons between characters", 500, (draw) => {
    const characters = ["a", "é", "€", "😀", "\ud800"];
    const reason = Array.from({ length: draw(0, 12) }, () => characters[draw(0, 4)]).join("");
    const max = draw(0, 30);
    const cut = cutReason(reason, max);
    assert.ok(cut.length <= max);
    const again = new TextDecoder("utf-8", { fatal: true }).decode(cut);
    const whole = Buffer.from(reason).toString();
    assert.ok(whole.startsWith(again), `${JSON.stringify(again)} is no beginning of ${JSON.stringify(whole)}`);
    assert.ok(cut.length === Buffer.byteLength(whole) || cut.length > max - 4, "it cuts too much");
  });

  it("reads and writes the edges of numbers", () => {
    for (const edge of edges) {
      for (const value of edge < 2n ** 53n ? [Number(edge), edge] : [edge]) {
        const w = new Writer(16, 0);
        w.number(value);
        const bytes = w.done(0);
        const r = new Reader(bytes, 0, bytes.length);
        assert.equal(BigInt(r.uint64()), edge);
        assert.equal(r.more(), false);
        if (typeof value === "number") assert.equal(sizeOf(value), bytes.length);
      }
    }
  });
});
