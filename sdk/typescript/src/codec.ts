/**
 * The frames of the stream. Those that carry events and answers go through code of our own: the
 * protobuf library makes an object for each field and a bigint for each number, which costs several times
 * as much as all else that the SDK does for an event. All other frames go through the library.
 */
import { create, fromBinary, toBinary, type MessageInitShape } from "@bufbuild/protobuf";
import type { Arrival } from "./call.js";
import { FrameTables, LeasedEvent, type EventOwner, type RawDelivery } from "./event.js";
import { WorkRequestSchema, WorkResponseSchema, type WorkResponse } from "./gen/ringfence/app/v1/app_pb.js";
import type { Result } from "./inbox.js";
import { bytes, fixed64, MalformedError, Reader, sizeOf, tag, varint, Writer } from "./wire.js";

/** One frame from the router. */
export interface FromRouter {
  /** The number of the newest Results frame that the router has received. */
  receipt: number;
  /** The number of a Deliveries frame, 0 for any other frame. */
  number: number;
  /** The events of a Deliveries frame. */
  events: LeasedEvent[];
  /** Any other frame. */
  other: WorkResponse["frame"] | undefined;
}

/** Returns whether a frame has the field `deliveries`. */
function hasDeliveries(r: Reader): boolean {
  while (r.more()) {
    if (r.tag() === tag(3, bytes)) return true;
    r.skip();
  }
  return false;
}

/**
 * Decodes a frame of the router. The events refer to its bytes, which must not change any more.
 * @throws MalformedError, or an error of the protobuf library.
 */
export function decodeFrame(frame: Buffer, owner: EventOwner): FromRouter {
  if (!hasDeliveries(new Reader(frame, 0, frame.length))) {
    const message = fromBinary(WorkResponseSchema, frame);
    return { receipt: checkNumber(Number(message.receipt)), number: 0, events: [], other: message.frame };
  }
  const from: FromRouter = { receipt: 0, number: 0, events: [], other: undefined };
  const r = new Reader(frame, 0, frame.length);
  const tables = new FrameTables(frame);
  while (r.more()) {
    switch (r.tag()) {
      case tag(1, varint):
        from.receipt = checkNumber(Number(r.uint64()));
        break;
      case tag(3, bytes): {
        const end = r.span();
        decodeDeliveries(new Reader(frame, r.at, end), tables, owner, from);
        r.at = end;
        break;
      }
      default:
        r.skip();
    }
  }
  if (from.number === 0) throw new MalformedError("a Deliveries frame has no number"); // no receipt could tell the router that it has come
  for (const event of from.events) checkIndices(event, tables);
  return from;
}

function decodeDeliveries(r: Reader, tables: FrameTables, owner: EventOwner, from: FromRouter): void {
  while (r.more()) {
    switch (r.tag()) {
      case tag(1, varint):
        from.number = checkNumber(Number(r.uint64()));
        break;
      case tag(2, bytes):
        tables.topics.push(r.text());
        break;
      case tag(3, bytes): {
        const end = r.span();
        for (const packed = new Reader(r.buffer, r.at, end); packed.more(); ) tables.tokens.push(packed.int64());
        r.at = end;
        break;
      }
      case tag(3, varint):
        tables.tokens.push(r.int64());
        break;
      case tag(4, bytes):
        tables.names.push(r.text());
        break;
      case tag(5, bytes): {
        const outer = r.end;
        r.end = r.span();
        from.events.push(decodeDelivery(r, tables, owner));
        r.end = outer;
        break;
      }
      case tag(7, bytes): {
        const end = r.span();
        tables.schemaVersions.push(r.buffer.subarray(r.at, end));
        r.at = end;
        break;
      }
      default:
        r.skip();
    }
  }
}

/** Written and read for one delivery at a time. */
const d: RawDelivery = {
  id: 0, partition: 0, keyAt: 0, keyEnd: 0, payloadAt: 0, payloadEnd: 0, propertyAt: undefined, ledger: 0, entry: 0, batch: 0,
  topicPartition: 0, topic: 0, token: 0, schemaVersion: 0, turn: 0, generation: 0, publishMs: 0, eventMs: 0, attempt: 0, redelivery: 0, call: undefined, timer: undefined,
  fired: undefined,
};

function decodeDelivery(r: Reader, tables: FrameTables, owner: EventOwner): LeasedEvent {
  d.id = d.ledger = d.entry = d.turn = d.generation = 0;
  d.partition = d.batch = d.topicPartition = d.topic = d.token = d.schemaVersion = d.publishMs = d.eventMs = d.attempt = d.redelivery = 0;
  d.keyAt = d.keyEnd = d.payloadAt = d.payloadEnd = 0;
  d.propertyAt = undefined;
  d.call = undefined;
  d.timer = undefined;
  d.fired = undefined;
  while (r.more()) {
    switch (r.tag()) {
      case tag(1, varint):
        d.id = r.uint64();
        break;
      case tag(2, varint):
        d.partition = r.uint32();
        break;
      case tag(3, bytes):
        d.keyEnd = r.span();
        d.keyAt = r.at;
        r.at = d.keyEnd;
        break;
      case tag(4, bytes):
        d.payloadEnd = r.span();
        d.payloadAt = r.at;
        r.at = d.payloadEnd;
        break;
      case tag(5, bytes): {
        const end = r.span();
        (d.propertyAt ??= []).push(r.at, end);
        r.at = end;
        break;
      }
      case tag(6, varint):
        d.ledger = r.int64();
        break;
      case tag(7, varint):
        d.entry = r.int64();
        break;
      case tag(8, varint):
        d.batch = r.sint32();
        break;
      case tag(9, varint):
        d.topicPartition = r.sint32();
        break;
      case tag(10, varint):
        d.topic = r.uint32();
        break;
      case tag(11, varint):
        d.token = r.uint32();
        break;
      case tag(12, varint):
        d.publishMs = Number(r.int64());
        break;
      case tag(13, varint):
        d.eventMs = Number(r.int64());
        break;
      case tag(14, varint):
        d.attempt = r.uint32();
        break;
      case tag(16, varint):
        d.redelivery = r.uint32();
        break;
      case tag(17, varint):
        d.turn = r.uint64();
        break;
      case tag(18, bytes): {
        const end = r.span();
        d.call = decodeCall(new Reader(r.buffer, r.at, end));
        r.at = end;
        break;
      }
      case tag(19, varint):
        d.generation = r.uint64();
        break;
      case tag(20, bytes): {
        const end = r.span();
        decodeTimer(new Reader(r.buffer, r.at, end));
        r.at = end;
        break;
      }
      case tag(21, varint):
        d.schemaVersion = r.uint32();
        break;
      default: // the trace context, field 15, is among the properties, too
        r.skip();
    }
  }
  return new LeasedEvent(d, owner, tables);
}

/** The time that is left counts from here. */
function decodeCall(r: Reader): Arrival {
  let method = "";
  let id = "";
  let timeoutMs = 0;
  const path: bigint[] = [];
  while (r.more()) {
    switch (r.tag()) {
      case tag(1, bytes):
        method = r.text();
        break;
      case tag(2, varint):
        timeoutMs = Number(r.uint64());
        break;
      case tag(3, bytes):
        id = r.text();
        break;
      case tag(4, bytes):
        for (const end = r.span(); r.at < end; ) path.push(r.fixed64());
        break;
      case tag(4, fixed64):
        path.push(r.fixed64());
        break;
      default:
        r.skip();
    }
  }
  return { method, id, deadline: Date.now() + timeoutMs, path };
}

/** Sets what a delivery has that a router published. */
function decodeTimer(r: Reader): void {
  let name = "";
  let dueMs = 0;
  let fired: { timeMs: number; missed: number } | undefined;
  while (r.more()) {
    switch (r.tag()) {
      case tag(1, bytes):
        name = r.text();
        break;
      case tag(2, varint):
        dueMs = Number(r.int64());
        break;
      case tag(3, bytes): {
        const end = r.span();
        fired = decodeFiring(new Reader(r.buffer, r.at, end));
        r.at = end;
        break;
      }
      default:
        r.skip();
    }
  }
  d.timer = { name, due: new Date(dueMs) };
  if (fired !== undefined) d.fired = { schedule: name, ...fired };
}

function decodeFiring(r: Reader): { timeMs: number; missed: number } {
  let timeMs = 0;
  let missed = 0;
  while (r.more()) {
    switch (r.tag()) {
      case tag(1, varint):
        timeMs = Number(r.int64());
        break;
      case tag(2, varint):
        missed = r.uint32();
        break;
      default:
        r.skip();
    }
  }
  return { timeMs, missed };
}

/** Numbers of frames count from 1. One that is too large for a number of this language would not be the same in a receipt. */
function checkNumber(of: number): number {
  if (!Number.isSafeInteger(of)) throw new MalformedError(`a frame has the number ${of}`);
  return of;
}

/** An index beside its list is an error of the router: a handler must not get another event's topic or token. */
function checkIndices(event: LeasedEvent, tables: FrameTables): void {
  const beside = (index: number, list: { length: number }) => index >= list.length && (index > 0 || list.length > 0);
  if (beside(event.topicIndex, tables.topics) || beside(event.tokenIndex, tables.tokens) || event.schemaIndex > tables.schemaVersions.length) {
    throw new MalformedError("a delivery names a topic, token or schema version that its frame does not have");
  }
}

/** Encodes any frame of the worker but Results. */
export function encodeRequest(receipt: number, frame?: MessageInitShape<typeof WorkRequestSchema>["frame"]): Buffer {
  const init = frame === undefined ? { receipt: BigInt(receipt) } : { receipt: BigInt(receipt), frame };
  const encoded = toBinary(WorkRequestSchema, create(WorkRequestSchema, init));
  return Buffer.from(encoded.buffer, encoded.byteOffset, encoded.byteLength);
}

/** Encodes a frame that carries a receipt and nothing else. */
export function encodeReceipt(receipt: number): Buffer {
  const w = new Writer(16, 0);
  w.byte(tag(1, varint));
  w.number(receipt);
  return w.done(0);
}

/** The most bytes before the results: two tags, a receipt, a length, a tag, a number. */
const headMax = 40;

/** The most bytes of one result, besides its reason and what it has for a call. */
const resultMax = 64;

/**
 * Encodes a Results frame with the first results of a list, at most `bytesMax` bytes of them and at least
 * one; a reply that would go beyond them waits for the next frame. It returns how many they are. Reasons are cut to `reasonMax` bytes of valid UTF-8.
 */
export function encodeResults(receipt: number, number: number, results: readonly Result[], reasonMax: number, bytesMax: number): { frame: Buffer; taken: number } {
  const w = new Writer(headMax + Math.min(24 * results.length, bytesMax), headMax);
  let taken = 0;
  for (; taken < results.length && w.at - headMax < bytesMax; taken++) {
    const r = results[taken]!;
    if (r.reply !== undefined && taken > 0 && w.at - headMax + r.reply.length > bytesMax) break;
    w.reserve(resultMax);
    w.byte(tag(2, bytes));
    w.byte(0);
    const begin = w.at;
    w.byte(tag(1, varint));
    w.number(r.id);
    w.byte(tag(2, varint));
    w.byte(r.kind);
    if (r.afterMs > 0) {
      w.byte(tag(3, varint));
      w.number(r.afterMs);
    }
    if (r.startedNs > 0) {
      w.byte(tag(8, varint));
      w.number(r.startedNs);
      w.byte(tag(9, varint));
      w.number(r.tookNs);
    }
    if (r.reason !== "") {
      const reason = cutReason(r.reason, reasonMax);
      w.byte(tag(4, bytes));
      w.number(reason.length);
      w.append(reason);
    }
    if (r.reply !== undefined) {
      w.reserve(resultMax);
      w.byte(tag(5, bytes));
      w.number(r.reply.length);
      w.append(r.reply);
    }
    if (r.code !== undefined && r.code !== "") {
      const code = Buffer.from(r.code);
      w.reserve(resultMax);
      w.byte(tag(6, bytes));
      w.number(code.length);
      w.append(code);
    }
    w.close(begin);
  }
  // The head is written last, right before the results: its length depends on theirs.
  const length = 1 + sizeOf(number) + w.at - headMax;
  const head = new Writer(headMax, 0);
  if (receipt > 0) {
    head.byte(tag(1, varint));
    head.number(receipt);
  }
  head.byte(tag(3, bytes));
  head.number(length);
  head.byte(tag(1, varint));
  head.number(number);
  const from = headMax - head.at;
  const frame = w.done(from);
  frame.set(head.done(0));
  return { frame, taken };
}

/** Returns a text as UTF-8 of at most `max` bytes, cut between characters. */
export function cutReason(text: string, max: number): Buffer {
  // A character of UTF-16 takes a byte at least, so the rest need not be encoded.
  const all = Buffer.from(text.length > max ? text.slice(0, max) : text);
  if (all.length <= max) return all;
  let end = max;
  while (end > 0 && (all[end]! & 0xc0) === 0x80) end--;
  return all.subarray(0, end);
}
