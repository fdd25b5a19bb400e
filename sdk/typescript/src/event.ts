import type { Arrival } from "./call.js";
import { KeyLostError, RingfenceError } from "./errors.js";
import { Item, type DeliveryId, type Kind } from "./inbox.js";
import type { Fired } from "./schedules.js";
import { checkedTimer, timersMax, type SetTimer } from "./sending.js";
import { signalOf, type Cancellable } from "./signal.js";
import { stateOf, type Changeable, type Load, type States } from "./state.js";
import { bytes, Reader, tag, varint } from "./wire.js";

/** Why what a handler has left behind must stop. */
export const handlerReturned = "the handler has returned";

/** Pulsar's id of an event, the same through all retries. */
export interface MessageId {
  readonly ledger: bigint;
  readonly entry: bigint;
  /** The partition of the topic, -1 if it has none. */
  readonly topicPartition: number;
  /** The index in the producer's batch, -1 without a batch. */
  readonly batch: number;
  /** As Pulsar's tools write it: ledger:entry:partition:batch. */
  toString(): string;
}

/** One property of an event. */
export interface Property {
  readonly name: string;
  readonly value: string;
}

/** What an event has that a router published: one that a handler set with Event.after, or that Lane.send sent; or a firing of a schedule. */
export interface Timer {
  /** The name that the sender gave it, "" for none; of a firing the name of its schedule. */
  readonly name: string;
  /** When it was due, by the clocks of the routers: the handler does not run earlier. */
  readonly due: Date;
}

/**
 * One event as the producer sent it, with the router's data about its delivery. Its payload shares
 * memory with other events of its frame: copy what you keep for long.
 */
export interface Event {
  /** The key as text: events with one key are handled one at a time. Bytes that are not UTF-8 become U+FFFD; keyBytes has them. */
  readonly key: string;
  /** The key as the producer sent it, up to 4096 bytes. */
  readonly keyBytes: Buffer;
  /** The payload as the producer sent it. */
  readonly payload: Buffer;
  /** The producer's properties, in its order. */
  readonly properties: readonly Property[];
  /** Returns the value of the first property called `name`. */
  property(name: string): string | undefined;
  /** Names the event, through all retries. */
  readonly messageId: MessageId;
  /** The full name of the topic that the event was first sent to. */
  readonly topic: string;
  /** The method of a call, "" for an event. Interceptors and hooks see calls as events, whose messageId, topic and times say nothing. */
  readonly method: string;
  /** Greater than that of any earlier delivery of the key. Pass it to your database with every write. */
  readonly fence: Fence;
  /** fence.token, for a database that keeps one number for each key. It does not refuse earlier deliveries by the same owner. */
  readonly fencingToken: bigint;
  /** fence.turn. */
  readonly turn: bigint;
  /** 1 for the first delivery; grows with each failure of a handler, not with moves of the key. */
  readonly attempt: number;
  /** How often Pulsar had delivered the event before. */
  readonly redelivery: number;
  /** When the event was sent, by the producer's clock. */
  readonly publishTime: Date;
  /** The time that the producer gave the event, undefined if none. */
  readonly eventTime: Date | undefined;
  /** The version of the payload's schema in Pulsar's registry for the topic, undefined if the producer gave none. */
  readonly schemaVersion: Buffer | undefined;
  /**
   * Set for an event that a router published: a timer, or an event of Lane.send. Its messageId is none of Pulsar's. Interceptors and hooks see
   * firings of schedules as such events.
   */
  readonly timer: Timer | undefined;
  /** The partition of the key in the router group, 0 to 4092. */
  readonly partition: number;
  /** The W3C trace context of this delivery, else of the producer; undefined if there is none. */
  readonly traceparent: string | undefined;
  readonly tracestate: string | undefined;
  /**
   * The current end of the handler's lease, which is renewed as long as the key remains here. Use it only
   * for planning, such as whether to begin another chunk of work: the signal says when to stop.
   */
  readonly leaseUntil: Date;
  /**
   * Aborts when the key is lost: the same signal as the second argument of the handler. Its `aborted`
   * reads the lease clock, so ask it before a write that must not be late. Once the handler has returned `aborted` is true, for what it has left
   * behind: another handler may work on the key then.
   */
  readonly signal: AbortSignal;
  /**
   * Tells the router that the work goes on, which restarts handler.timeout. It does not block.
   * @throws the reason of the signal, if that has aborted.
   */
  progress(): void;
  /**
   * Sets a timer: when so many milliseconds have passed, the handler gets an event of the same key, with this payload, and with a `timer` of this
   * name, on whichever machine owns the key then.
   *
   * Timers are durable: when the handler has succeeded they are published, and only then the event counts as done. If it fails they are
   * dropped. If it runs again for the same event, the n-th timer of that run is the same one as the n-th of the run before. A timer
   * cannot be cancelled: let its handler look whether it is still wanted. Call it before the handler returns, or its promise resolves.
   * @throws RingfenceError with the code "argument" for more than 366 days, a name of more than 128 bytes or that is not printable, a payload of
   * more than 1 MiB, and more than 100 timers of one event. KeyLostError if the handler has returned: the timer is not set.
   */
  after(afterMs: number, name?: string, payload?: string | Uint8Array): void;
  /**
   * Resolves with the value that the last turn of the key has left in this process, or otherwise with what `load` returns, or resolves with. A turn is
   * an event, a call or a firing. Calls and firings have this method, too.
   *
   * The handler changes the object in place, and need not give it back. It is kept for the next turn of the key if this handler succeeds, and comes
   * back there only if no other turn of the key came in between, in any process: so a handler reads what the handler before it has written, without a
   * query. A turn whose handler does not ask for the value drops it. So does any doubt: an error, a cancelled handler, a key that has moved or was
   * reserved, a worker that has come or gone, a router of an older release. The value is never durable: write to your database what must last, with
   * the fence.
   *
   * A handler that writes a changed copy leaves the old object for the next turn: assign to its fields instead.
   *
   * Only objects are kept, of at most Options.stateMax keys, those that were used last. null and undefined are returned as they are, and what `load`
   * throws is thrown as it is. Once the handler has returned, this only loads.
   * @throws RingfenceError with the code "argument" if `load` is not a function.
   */
  state<T extends Changeable>(load: () => T | PromiseLike<T>): Promise<T>;
  /** Does the same with one of several values of the key, each with a name of its own. Without a name it is "". */
  state<T extends Changeable>(name: string, load: () => T | PromiseLike<T>): Promise<T>;
}

/**
 * Orders the deliveries of one key: each delivery has a greater fence than all earlier deliveries of
 * its key. Keep the greatest fence of each key in your database, and refuse a write whose fence is less
 * (docs/sinks.md). Fences of different keys cannot be compared.
 */
export class Fence {
  /**
   * @param token grows whenever the key gets another owner; 63 bits. 0 with ownership.mode gossip.
   * @param turn grows with each delivery under one token; 64 bits.
   */
  constructor(
    readonly token: bigint,
    readonly turn: bigint,
  ) {}

  /** Returns -1 if this fence is older than the other, 0 if they are equal, 1 if it is newer. */
  compare(other: Fence): -1 | 0 | 1 {
    if (this.token !== other.token) return this.token < other.token ? -1 : 1;
    if (this.turn !== other.turn) return this.turn < other.turn ? -1 : 1;
    return 0;
  }

  /** Whether a write with this fence must be refused once one with the other was accepted. */
  before(other: Fence): boolean {
    return this.compare(other) < 0;
  }

  /** 19 digits, a point and 20 digits. These texts sort in the order of the fences. */
  toString(): string {
    return `${this.token.toString().padStart(19, "0")}.${this.turn.toString().padStart(20, "0")}`;
  }

  toJSON(): string {
    return this.toString();
  }

  /**
   * Returns the fence whose toString is `text`.
   * @throws RangeError if there is none.
   */
  static parse(text: string): Fence {
    const match = /^(\d{19})\.(\d{20})$/.exec(text);
    const fence = match && new Fence(BigInt(match[1]!), BigInt(match[2]!));
    if (!fence || fence.token >= 1n << 63n || fence.turn >= 1n << 64n) {
      throw new RangeError(`${JSON.stringify(text)} is not a fence: want 19 digits, a point and 20 digits`);
    }
    return fence;
  }
}

class Id implements MessageId {
  constructor(
    readonly ledger: bigint,
    readonly entry: bigint,
    readonly topicPartition: number,
    readonly batch: number,
  ) {}

  toString(): string {
    return `${this.ledger}:${this.entry}:${this.topicPartition}:${this.batch}`;
  }

  toJSON(): string {
    return this.toString();
  }
}

/** Returns the id whose toString is `text`, undefined if there is none. */
export function messageIdOf(text: string): MessageId | undefined {
  const match = /^(\d+):(\d+):(-?\d+):(-?\d+)$/.exec(text);
  return match === null ? undefined : new Id(BigInt(match[1]!), BigInt(match[2]!), Number(match[3]), Number(match[4]));
}

/** What the deliveries of one frame share: they name it by index. */
export class FrameTables {
  readonly topics: string[] = [];
  readonly tokens: DeliveryId[] = [];
  readonly names: string[] = [];
  readonly schemaVersions: Buffer[] = [];

  constructor(readonly bytes: Buffer) {}
}

/** The session that an event came from. */
export interface EventOwner {
  /** Its stream has ended. */
  readonly over: boolean;
  readonly states: States;
  /** Compares the deadline of a handler with the clock, and sets its cause if it must stop. */
  ask(event: LeasedEvent): void;
  leaseUntil(event: LeasedEvent): Date;
  progress(event: LeasedEvent): void;
}

/** Bytes of a frame, from start to end. */
type Span = number;

/**
 * An event of a session. The decoder (codec.ts) writes its fields; strings and bytes are made when they
 * are first asked for, since many handlers need few of them.
 */
export class LeasedEvent extends Item implements Event, Cancellable {
  /** @internal */ owner: EventOwner;
  /** @internal */ frame: FrameTables;
  /** @internal */ keyAt: Span;
  /** @internal */ keyEnd: Span;
  /** @internal */ payloadAt: Span;
  /** @internal */ payloadEnd: Span;
  /** Pairs of start and end of a Property in the frame. @internal */
  propertyAt: number[] | undefined;
  /** @internal */ ledger: DeliveryId;
  /** @internal */ entry: DeliveryId;
  /** @internal */ batch: number;
  /** @internal */ topicPartition: number;
  /** @internal */ topicIndex: number;
  /** @internal */ tokenIndex: number;
  /** @internal */ schemaIndex: number; // plus 1
  /** @internal */ turnOf: DeliveryId;
  /** @internal */ generation: DeliveryId;
  /** @internal */ publishMs: number;
  /** @internal */ eventMs: number;
  readonly attempt: number;
  readonly redelivery: number;
  /** Set for a call. @internal */
  readonly call: Arrival | undefined;
  readonly timer: Timer | undefined;
  /** Set for a firing. @internal */
  readonly fired: Fired | undefined;
  /** That the handler has set. @internal */
  timers: SetTimer[] | undefined = undefined;
  /** Its handler has returned: it can set no more timers, since nobody would publish them. @internal */
  returned = false;
  /** Of a call whose handler has returned. @internal */
  reply: Uint8Array | undefined = undefined;

  cause: Error | undefined = undefined;
  controller: AbortController | undefined = undefined;
  /** When the handler started, by the boot clock in nanoseconds. @internal */
  startedNs = 0;
  /** When the handler started, for Hooks.finished. @internal */
  begun = 0;
  /** Of the handler's span. @internal */
  endSpan: ((kind: Kind) => void) | undefined = undefined;

  #signal: AbortSignal | undefined = undefined;
  #key: string | undefined = undefined;
  #payload: Buffer | undefined = undefined;
  #properties: readonly Property[] | undefined = undefined;
  #fence: Fence | undefined = undefined;

  constructor(d: RawDelivery, owner: EventOwner, frame: FrameTables) {
    super(d.id, d.partition);
    this.owner = owner;
    this.frame = frame;
    this.keyAt = d.keyAt;
    this.keyEnd = d.keyEnd;
    this.payloadAt = d.payloadAt;
    this.payloadEnd = d.payloadEnd;
    this.propertyAt = d.propertyAt;
    this.ledger = d.ledger;
    this.entry = d.entry;
    this.batch = d.batch;
    this.topicPartition = d.topicPartition;
    this.topicIndex = d.topic;
    this.tokenIndex = d.token;
    this.schemaIndex = d.schemaVersion;
    this.turnOf = d.turn;
    this.generation = d.generation;
    this.publishMs = d.publishMs;
    this.eventMs = d.eventMs;
    this.attempt = d.attempt;
    this.redelivery = d.redelivery;
    this.call = d.call;
    this.timer = d.timer;
    this.fired = d.fired;
  }

  get method(): string {
    return this.call?.method ?? "";
  }

  get key(): string {
    return (this.#key ??= this.frame.bytes.toString("utf8", this.keyAt, this.keyEnd));
  }

  get keyBytes(): Buffer {
    return this.frame.bytes.subarray(this.keyAt, this.keyEnd);
  }

  /** A text of its own, which does not keep the frame in memory. @internal */
  get keyName(): string {
    return this.frame.bytes.toString("latin1", this.keyAt, this.keyEnd);
  }

  get payload(): Buffer {
    return (this.#payload ??= this.frame.bytes.subarray(this.payloadAt, this.payloadEnd));
  }

  get properties(): readonly Property[] {
    return (this.#properties ??= propertiesOf(this.frame, this.propertyAt));
  }

  property(name: string): string | undefined {
    for (const p of this.properties) if (p.name === name) return p.value;
    return undefined;
  }

  get messageId(): MessageId {
    return new Id(BigInt(this.ledger), BigInt(this.entry), this.topicPartition, this.batch);
  }

  get topic(): string {
    return this.frame.topics[this.topicIndex] ?? "";
  }

  get fence(): Fence {
    return (this.#fence ??= new Fence(this.fencingToken, this.turn));
  }

  get fencingToken(): bigint {
    return BigInt(this.frame.tokens[this.tokenIndex] ?? 0);
  }

  get turn(): bigint {
    return BigInt(this.turnOf);
  }

  get publishTime(): Date {
    return new Date(this.publishMs);
  }

  get eventTime(): Date | undefined {
    return this.eventMs === 0 ? undefined : new Date(this.eventMs);
  }

  get schemaVersion(): Buffer | undefined {
    return this.schemaIndex === 0 ? undefined : this.frame.schemaVersions[this.schemaIndex - 1];
  }

  get traceparent(): string | undefined {
    return this.#caseless("traceparent");
  }

  get tracestate(): string | undefined {
    return this.#caseless("tracestate");
  }

  /** The names of the trace context are case-insensitive. */
  #caseless(name: string): string | undefined {
    for (const p of this.properties) if (p.name.toLowerCase() === name) return p.value;
    return undefined;
  }

  get leaseUntil(): Date {
    return this.owner.leaseUntil(this);
  }

  get signal(): AbortSignal {
    return (this.#signal ??= signalOf(this));
  }

  ask(): void {
    this.owner.ask(this);
  }

  progress(): void {
    this.owner.progress(this);
  }

  after(afterMs: number, name = "", payload: string | Uint8Array = ""): void {
    if (this.returned) throw new KeyLostError(handlerReturned);
    const timer = checkedTimer(afterMs, name, payload);
    if ((this.timers?.length ?? 0) >= timersMax) throw new RingfenceError("argument", `more than ${timersMax} timers of one event`, "after");
    (this.timers ??= []).push(timer);
  }

  state<T>(...[first, load]: [Load<T>] | [string, Load<T>]): Promise<T> {
    return typeof first === "function" ? stateOf(this.owner.states, this, "", first) : stateOf(this.owner.states, this, first, load);
  }

  /** What console.log shows: no bytes of the frame, which holds other events, too. */
  [Symbol.for("nodejs.util.inspect.custom")](): object {
    const { key, topic, attempt, partition } = this;
    return { key, topic, messageId: String(this.messageId), fence: String(this.fence), attempt, partition };
  }
}

/** The fields of a delivery as they stand in a frame. */
export interface RawDelivery {
  id: DeliveryId;
  partition: number;
  keyAt: number;
  keyEnd: number;
  payloadAt: number;
  payloadEnd: number;
  propertyAt: number[] | undefined;
  ledger: DeliveryId;
  entry: DeliveryId;
  batch: number;
  topicPartition: number;
  topic: number;
  token: number;
  schemaVersion: number;
  turn: DeliveryId;
  generation: DeliveryId;
  publishMs: number;
  eventMs: number;
  attempt: number;
  redelivery: number;
  call: Arrival | undefined;
  timer: Timer | undefined;
  fired: Fired | undefined;
}

/** Reads the properties whose spans are in `at`. */
function propertiesOf(frame: FrameTables, at: number[] | undefined): readonly Property[] {
  if (at === undefined) return [];
  const list: Property[] = [];
  for (let i = 0; i < at.length; i += 2) {
    const r = new Reader(frame.bytes, at[i]!, at[i + 1]!);
    let name = 0;
    let value = "";
    while (r.more()) {
      switch (r.tag()) {
        case tag(1, varint):
          name = r.uint32();
          break;
        case tag(2, bytes):
          value = r.text();
          break;
        default:
          r.skip();
      }
    }
    list.push({ name: frame.names[name] ?? "", value });
  }
  return list;
}
