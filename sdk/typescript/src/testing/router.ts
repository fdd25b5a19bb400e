import { create, fromBinary, toBinary, type MessageInitShape } from "@bufbuild/protobuf";
import { Server, ServerCredentials, status as codes, type sendUnaryData, type ServerDuplexStream, type ServerUnaryCall } from "@grpc/grpc-js";
import { callTimeoutDefault } from "../call.js";
import type { Clock } from "../clock.js";
import { deliveries, type Deliveries } from "../deliveries.js";
import { textOf } from "../errors.js";
import { Fence, messageIdOf, type MessageId, type Property, type Timer } from "../event.js";
import { CallSchema, ResultKind, TimerSchema, WorkRequestSchema, WorkResponseSchema, type Delivery, type Result, type WorkRequest } from "../gen/ringfence/app/v1/app_pb.js";
import {
  InvokeRequestSchema, InvokeResponseSchema, Outcome as LaneOutcome, SendRequestSchema, SendResponseSchema, type InvokeRequest, type SendRequest,
} from "../gen/ringfence/lane/v1/lane_pb.js";
import type { Handler } from "../handler.js";
import type { Instant } from "../inbox.js";
import type { Options } from "../options.js";
import { run } from "../run.js";
import { checkedTimer, sendPath } from "../sending.js";
import { unchanged, type Connect, type Status, type WireEvents } from "../transport.js";
import { xxh64 } from "../xxh64.js";

/** The time between the router's clock and the end of its lease, in milliseconds. */
const lease = 3_600_000;

/** How long TestDelivery.outcome waits before it fails. In milliseconds. */
const outcomeWait = 30_000;

/** Of the ids that routers make themselves. */
const sentLedger = 1n << 61n;
const callLedger = 1n << 62n;

/** What routers take, in bytes. */
const [keyMax, callIdMax, sendIdMax, propertyMax] = [4096, 128, 256, 4096];
const [pathMax, propertiesMax] = [8, 64];
const callTimeoutMax = 600_000n;

const pingIntervalMs = 20;
const partitions = 4093;

/** What a test framework's context offers: node:test, and others with a function `after`. */
export interface TestContext {
  after(cleanup: () => Promise<void>): void;
}

export interface TestRouterOptions {
  /** A handler that takes longer without progress is cancelled, as with handler.timeout. In milliseconds of the test; 0: no timeout. */
  handlerTimeoutMs?: number;
  /** The most unanswered events of a worker, as with app.in_flight_max: 100000 by default. */
  maxInFlight?: number;
  /** Capabilities of the router, such as "intervals". */
  capabilities?: readonly string[];
}

/** An event to deliver. All but the key has a default. */
export interface EventInit {
  key: string | Uint8Array;
  payload?: string | Uint8Array;
  properties?: readonly Property[];
  topic?: string;
  /** Counts up from 1 by default. */
  messageId?: Partial<Omit<MessageId, "toString">>;
  publishTime?: Date;
  eventTime?: Date;
  /** 1 by default. */
  attempt?: number;
  redelivery?: number;
  schemaVersion?: Uint8Array;
  /** Chosen by the router by default, greater with each delivery. */
  fence?: Fence;
  /** Makes it an event that a router published. */
  timer?: Timer;
  /** Makes it a firing of the schedule that the timer names. @internal */
  firing?: { timeMs: bigint; missed: number };
}

/** A firing to deliver. */
export interface FiringInit {
  /** The name of the schedule. */
  schedule: string;
  /** The time that it is for: now by default. */
  time?: Date;
  /** How many earlier times it stands for: 0 by default. */
  missed?: number;
  /** 1 by default. */
  attempt?: number;
  /** Chosen by the router by default, greater with each delivery. */
  fence?: Fence;
}

/** A call to deliver. */
export interface CallInit {
  key: string | Uint8Array;
  method: string;
  payload?: string | Uint8Array;
  id?: string;
  /** What the handler is told. The router itself takes nothing back: see TestDelivery.giveUp. 10 seconds by default. */
  timeoutMs?: number;
  /** Hashes of the keys whose handlers wait for the call. */
  path?: readonly bigint[];
}

/** How a delivery ended. */
export interface TestOutcome {
  /**
   * done: the handler succeeded. retry: it failed. reject: it threw a Reject. cancelled: it was cancelled because the key was
   * lost. not_started: it was not called. lost: the stream broke, and the lease ran out without an answer.
   */
  readonly kind: "done" | "retry" | "reject" | "cancelled" | "not_started" | "lost";
  /** retry: the delay that the handler asked for, 0 for none. */
  readonly afterMs: number;
  /** retry, reject: the text of the error. */
  readonly reason: string;
  /** When the handler ran, in nanoseconds, if the router has the capability "intervals"; else 0. */
  readonly startedNs: bigint;
  readonly tookNs: bigint;
  /** The reply of a call that is done. */
  readonly reply?: Buffer;
  /** The code of a call that failed, or has no handler. */
  readonly code?: string;
}

const kinds: Record<ResultKind, TestOutcome["kind"]> = {
  [ResultKind.UNSPECIFIED]: "retry",
  [ResultKind.DONE]: "done",
  [ResultKind.RETRY]: "retry",
  [ResultKind.REJECT]: "reject",
  [ResultKind.NOT_STARTED]: "not_started",
  [ResultKind.CANCELLED]: "cancelled",
};

/** One delivery of an event to a handler, with its outcome. */
export class TestDelivery {
  #resolve: (outcome: TestOutcome) => void = () => {};
  readonly #over = new Promise<TestOutcome>((resolve) => (this.#resolve = resolve));
  #ended = false;

  /** @internal */
  constructor(
    private readonly router: TestRouter,
    /** @internal */ readonly init: EventInit,
    /** @internal */ readonly attempt: number,
    /** @internal */ readonly entry: bigint,
    /** @internal */ readonly call: CallInit | undefined = undefined,
  ) {}

  /** Whether the delivery has ended. */
  get ended(): boolean {
    return this.#ended;
  }

  /** Waits for the end of the delivery. Rejects after 30 seconds. */
  async outcome(): Promise<TestOutcome> {
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`no outcome after ${outcomeWait / 1000} s: is a worker running, and does its handler end?`)), outcomeWait);
    });
    try {
      return await Promise.race([this.#over, late]);
    } finally {
      clearTimeout(timer);
    }
  }

  /** Takes a call back, as when its caller is no longer waiting: the signal of its handler aborts with a CallerGoneError, if it runs. */
  giveUp(): void {
    this.router.giveUp(this);
  }

  /** Gives the event to the handler again, as the router would: with a greater fence, and with the next attempt if the handler failed. */
  async redeliver(): Promise<TestDelivery> {
    const { kind } = await this.outcome();
    return this.router.redeliver(this, kind === "retry");
  }

  /** @internal */
  end(outcome: TestOutcome): void {
    this.#ended = true;
    this.#resolve(outcome);
  }
}

/** An event that the router was to publish: a timer of a handler, or what Lane.send sent. */
export class TestSent {
  /** @internal */
  constructor(
    private readonly router: TestRouter,
    /** The key. */
    readonly key: Buffer,
    readonly payload: Buffer,
    /** The name of the timer. */
    readonly name: string,
    /** The sender's id: a second event with the same key and id is not recorded. */
    readonly id: string,
    readonly properties: readonly Property[],
    /** In how many milliseconds it was to be due. */
    readonly afterMs: number,
    /** When it is due. */
    readonly due: Date,
    /** The id that the sender was told. */
    readonly messageId: MessageId,
  ) {}

  /** Gives the event to the handler, as when it is due. */
  deliver(): TestDelivery {
    const { key, payload, properties, messageId, name, due } = this;
    return this.router.deliver({ key, payload, properties, messageId, timer: { name, due } });
  }
}

/** One key with deliveries: at most one of them runs. */
interface Box {
  readonly key: string;
  readonly partition: number;
  token: bigint;
  readonly queue: TestDelivery[];
  running: TestDelivery | undefined;
  /** The stream of the last turn; undefined: another router may have had a turn since. */
  at: Stream | undefined;
  /** Counts the changes of `at`. */
  generation: bigint;
}

/** One open delivery of a stream. */
interface Open {
  readonly box: Box;
  readonly delivery: TestDelivery;
  timeout: NodeJS.Timeout | undefined;
}

/** A router in memory, for one test. Any worker of it gets any key. */
export class TestRouter {
  /** @internal */ readonly config: Required<TestRouterOptions>;
  readonly #start = performance.now();
  #ahead = 0; // how far the clock is ahead of the real one
  #until: Instant; // the end of the lease
  readonly #boxes = new Map<string, Box>();
  readonly #ready: Box[] = []; // keys with waiting deliveries and no running one, in order
  readonly #streams = new Set<Stream>();
  readonly #orphans = new Set<Open>(); // of streams that broke
  readonly #clocks = new Set<WorkerClock>();
  readonly #changes = new Set<() => void>(); // those who wait for a change
  readonly #workers: { stop: AbortController; ended: Promise<void> }[] = [];
  readonly #servers: Server[] = [];
  /** What the router was to publish, in the order of its coming: timers of handlers that have succeeded, and what lanes have sent. */
  readonly sent: TestSent[] = [];
  #entries = 0n;
  #deliveries = 0n; // counts deliveries, and is the turn of the newest one
  #streamed = 0;

  constructor(options: TestRouterOptions = {}) {
    this.config = { handlerTimeoutMs: 0, maxInFlight: 100_000, capabilities: [], ...options };
    this.#until = this.at() + lease;
  }

  /** The router's clock. @internal */
  at(): Instant {
    return performance.now() - this.#start + this.#ahead + 1;
  }

  /** What remains of the lease. @internal */
  get remaining(): number {
    return this.#until - this.at();
  }

  /** Options with which run and deliveries reach this router, and use its clock. */
  options(more: Options = {}): Options {
    const clock = new WorkerClock(this);
    const silent = { info() {}, warn() {}, error() {} };
    return { handleSignals: false, logger: silent, connect: this.#connect, clock, ...more };
  }

  /** Is run against this router. */
  run(handler: Handler, options: Options = {}): Promise<void> {
    return run(handler, this.options(options));
  }

  /** Is deliveries against this router. */
  deliveries(options: Options = {}): Deliveries {
    return deliveries(this.options(options));
  }

  /** Runs a worker until stop. Resolves when it is connected; rejects if run refuses an option. */
  async start(handler: Handler, options: Options = {}): Promise<void> {
    const stop = new AbortController();
    const before = this.#streamed;
    const ended = run(handler, this.options({ signal: stop.signal, ...options }));
    this.#workers.push({ stop, ended });
    ended.catch(() => {}); // stop reports it
    await Promise.race([ended, this.#when(() => this.#streamed > before)]);
  }

  /** Ends all workers, and rejects if one of them has failed, such as by handlers that do not end. */
  async stop(): Promise<void> {
    const workers = this.#workers.splice(0);
    for (const worker of workers) worker.stop.abort();
    const ends = await Promise.allSettled(workers.map((worker) => worker.ended));
    for (const stream of [...this.#streams]) stream.close(codes.UNAVAILABLE, "the test router stops");
    for (const server of this.#servers.splice(0)) server.forceShutdown();
    for (const end of ends) if (end.status === "rejected") throw end.reason;
  }

  /** Queues an event for a handler. */
  deliver(init: EventInit): TestDelivery {
    return this.#add(new TestDelivery(this, init, init.attempt ?? 1, ++this.#entries));
  }

  /** Queues a call for the handler of its method, behind what waits for the key already. Its reply is in its outcome. */
  call(init: CallInit): TestDelivery {
    const { key, payload = "" } = init;
    return this.#add(new TestDelivery(this, { key, payload, messageId: { ledger: callLedger } }, 1, ++this.#entries, init));
  }

  /** Queues a firing for the handler of its schedule. The times of the schedule do not matter: nothing fires by itself. */
  fire(init: FiringInit): TestDelivery {
    const { schedule, time = new Date(), missed = 0, ...more } = init;
    const firing = { timeMs: BigInt(time.getTime()), missed };
    return this.deliver({ ...more, key: `schedule/${schedule}`, messageId: { ledger: sentLedger }, timer: { name: schedule, due: time }, firing });
  }

  /** @internal */
  giveUp(delivery: TestDelivery): void {
    const box = this.#boxes.get(nameOf(delivery.init.key))!;
    const i = box.queue.indexOf(delivery);
    if (i < 0) {
      for (const stream of this.#streams) stream.takeBack(delivery);
      return;
    }
    box.queue.splice(i, 1);
    if (box.queue.length === 0 && this.#ready.includes(box)) this.#ready.splice(this.#ready.indexOf(box), 1);
    delivery.end(endOf("not_started"));
  }

  /** Answers a call of a Lane, as a router does. */
  async #invoke({ key, method, payload, id, timeoutMs, path }: InvokeRequest, gone: (giveUp: () => void) => void) {
    const wrong = wrongCall({ key, method, id, timeoutMs, path });
    if (wrong !== "") throw { code: codes.INVALID_ARGUMENT, details: wrong } satisfies Status;
    const running = this.#boxes.get(nameOf(key))?.running;
    if (running !== undefined && path.includes(xxh64(Buffer.from(key)))) {
      return { outcome: LaneOutcome.NOT_RUN, code: "cycle", text: "a handler of the same key waits for it" };
    }
    const delivery = this.call({ key, method, payload, id, timeoutMs: Number(timeoutMs), path });
    const timer = setTimeout(() => delivery.giveUp(), Number(timeoutMs) || callTimeoutDefault);
    gone(() => delivery.giveUp());
    const { kind, reply, code = "", reason: text } = await delivery.outcome();
    clearTimeout(timer);
    switch (kind) {
      case "done":
        return { outcome: LaneOutcome.REPLIED, reply: reply! };
      case "retry":
      case "reject":
        return { outcome: LaneOutcome.FAILED, code, text };
      case "not_started":
        return { outcome: LaneOutcome.NOT_RUN, code: code || "timeout", text };
      default:
        return { outcome: LaneOutcome.UNKNOWN, text: `its handler was ${kind}` };
    }
  }

  /** Publishes an event of a Send, as a router does: it records it. Rejects with a status. @internal */
  async publish({ key, payload, name, id, properties, afterMs, atMs }: SendRequest): Promise<{ messageId: string; dueMs: bigint }> {
    try {
      checkedTimer(Number(afterMs), name, payload);
      const wrong = wrongSend({ key, id, properties, afterMs, atMs });
      if (wrong !== "") throw new Error(wrong);
    } catch (err) {
      throw { code: codes.INVALID_ARGUMENT, details: textOf(err) } satisfies Status;
    }
    let sent = this.sent.find((one) => id !== "" && one.id === id && one.key.equals(key));
    if (sent === undefined) {
      const due = atMs > 0n ? new Date(Number(atMs)) : new Date(Date.now() + Number(afterMs));
      const messageId = messageIdOf(`${sentLedger}:${++this.#entries}:-1:-1`)!;
      const list = Object.entries(properties).map(([of, value]) => ({ name: of, value }));
      sent = new TestSent(this, Buffer.from(key), Buffer.from(payload), name, id, list, Number(afterMs), due, messageId);
      this.sent.push(sent);
    }
    return { messageId: String(sent.messageId), dueMs: BigInt(sent.due.getTime()) };
  }

  /** @internal */
  async publishBytes(request: Uint8Array): Promise<Buffer> {
    return Buffer.from(toBinary(SendResponseSchema, create(SendResponseSchema, await this.publish(fromBinary(SendRequestSchema, request)))));
  }

  /** @internal */
  redeliver(before: TestDelivery, failed: boolean): TestDelivery {
    return this.#add(new TestDelivery(this, before.init, before.attempt + (failed ? 1 : 0), before.entry, before.call));
  }

  #add(delivery: TestDelivery): TestDelivery {
    const key = nameOf(delivery.init.key);
    let box = this.#boxes.get(key);
    if (box === undefined) {
      box = { key, partition: this.#boxes.size % partitions, token: 1n, queue: [], running: undefined, at: undefined, generation: 0n };
      this.#boxes.set(key, box);
    }
    box.queue.push(delivery);
    if (box.running === undefined && box.queue.length === 1) this.#ready.push(box);
    this.pump();
    return delivery;
  }

  /**
   * Moves a key away: its waiting deliveries are not started, and its running handler is cancelled with a KeyLostError. Other
   * keys are not affected. When it resolves, the router's clock is past the deadline of the handler, whose signal aborts within
   * 50 ms. Later deliveries have a fence with a greater token.
   */
  async lose(key: string | Uint8Array): Promise<void> {
    const box = this.#boxes.get(nameOf(key));
    if (box === undefined) return;
    box.token++;
    const waiting = box.queue.splice(0);
    const i = this.#ready.indexOf(box);
    if (i >= 0) this.#ready.splice(i, 1);
    for (const delivery of waiting) delivery.end(endOf("not_started"));
    for (const stream of this.#streams) stream.send({ case: "revoke", value: { partitions: [box.partition], reason: "the test moves the key" } });
    // A running handler may go on until the end of the present lease. Renew the lease for the other keys, and when all workers
    // know, move the clock past the old end.
    const old = this.#until;
    this.#until = old + lease;
    await this.#when(() => this.#streams.size === 0 || [...this.#clocks].every((clock) => clock.until > old));
    this.#passTo(old);
    this.#loseOrphans((open) => open.box === box);
  }

  /**
   * Lets the lease run out, as for a router that has lost its broker: every running handler is cancelled with a KeyLostError.
   * Then there is a new lease.
   */
  expire(): void {
    this.#passTo(this.#until);
    this.#until += lease;
    for (const box of this.#boxes.values()) box.at = undefined;
    this.#loseOrphans(() => true);
  }

  /** Breaks the streams of all workers, which connect again. Their running deliveries have the outcome "lost" after the next expire. */
  disconnect(): void {
    for (const stream of [...this.#streams]) stream.close(codes.UNAVAILABLE, "the test breaks the stream");
  }

  /** Lets nothing start until resume. */
  suspend(): void {
    for (const stream of this.#streams) stream.send({ case: "suspend", value: { reason: "the test" } });
  }

  resume(): void {
    for (const stream of this.#streams) stream.send({ case: "resume", value: {} });
  }

  /**
   * Also serves workers and callers by gRPC, such as other processes, until stop. The workers' leases run on their own clock.
   * @param address host:port or unix:///path; by default a free port on loopback.
   * @returns the endpoint.
   */
  async serve(address = "127.0.0.1:0", credentials: ServerCredentials = ServerCredentials.createInsecure()): Promise<string> {
    const server = new Server({ "grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1 });
    const bytes = { requestSerialize: unchanged, requestDeserialize: unchanged, responseSerialize: unchanged, responseDeserialize: unchanged };
    const work = (call: ServerDuplexStream<Buffer, Buffer>) => {
      const stream = new Stream(this, {
        frame: (bytes) => void call.write(bytes),
        end: ({ code, details }) => (code === codes.OK ? call.end() : call.emit("error", Object.assign(new Error(details), { code, details }))),
      });
      call.on("data", (frame: Buffer) => stream.receive(frame));
      call.on("end", () => stream.halfClosed());
      call.on("cancelled", () => stream.close(codes.CANCELLED, "cancelled"));
    };
    server.addService(
      { work: { path: "/ringfence.app.v1.AppService/Work", requestStream: true, responseStream: true, ...bytes } },
      { work },
    );
    server.addService(
      {
        invoke: { path: "/ringfence.lane.v1.LaneService/Invoke", requestStream: false, responseStream: false, ...bytes },
        send: { path: sendPath, requestStream: false, responseStream: false, ...bytes },
      },
      {
        send: (call: ServerUnaryCall<Buffer, Buffer>, answer: sendUnaryData<Buffer>) => {
          this.publishBytes(call.request).then(
            (response) => answer(null, response),
            (status: Status) => answer(status),
          );
        },
        invoke: (call: ServerUnaryCall<Buffer, Buffer>, answer: sendUnaryData<Buffer>) => {
          this.#invoke(fromBinary(InvokeRequestSchema, call.request), (giveUp) => void call.on("cancelled", giveUp)).then(
            (response) => answer(null, Buffer.from(toBinary(InvokeResponseSchema, create(InvokeResponseSchema, response)))),
            (err: Error | Status) => answer(err instanceof Error ? { code: codes.INTERNAL, details: err.message } : err),
          );
        },
      },
    );
    const port = await new Promise<number>((resolve, reject) => server.bindAsync(address, credentials, (err, bound) => (err ? reject(err) : resolve(bound))));
    this.#servers.push(server);
    return address.startsWith("unix:") ? address : address.replace(/:\d+$/, `:${port}`);
  }

  /** Opens a stream in memory. Frames cross in order, each in a turn of its own. */
  readonly #connect: Connect = (_, events) => {
    let over = false;
    const later = (do_: () => void) => queueMicrotask(() => over || do_());
    const stream = new Stream(this, {
      frame: (bytes) => later(() => events.frame(bytes)),
      end: (status) =>
        later(() => {
          over = true;
          events.end(status);
        }),
    });
    return {
      send: (frame) => later(() => stream.receive(frame)),
      halfClose: () => later(() => stream.halfClosed()),
      cancel: () => later(() => stream.close(codes.CANCELLED, "cancelled")),
      publish: (_token, request, _withinMs, answered) => {
        let done = false;
        const answer = (failure: Status | undefined, response: Uint8Array) => {
          if (!done) answered(failure, response);
          done = true;
        };
        this.publishBytes(request).then(
          (response) => answer(undefined, response),
          (status: Status) => answer(status, Buffer.alloc(0)),
        );
        return () => answer({ code: codes.CANCELLED, details: "cancelled" }, Buffer.alloc(0));
      },
    };
  };

  /** A worker has said Hello. @internal */
  joined(stream: Stream): void {
    this.#streams.add(stream);
    this.#streamed++;
    this.changed();
    this.pump();
  }

  /** @internal */
  left(stream: Stream, open: Iterable<Open>): void {
    this.#streams.delete(stream);
    for (const one of open) this.#orphans.add(one);
    this.changed();
  }

  #loseOrphans(hit: (open: Open) => boolean): void {
    for (const open of this.#orphans) {
      if (!hit(open)) continue;
      this.#orphans.delete(open);
      this.finish(open, endOf("lost"));
    }
    this.pump();
  }

  /** @internal */
  registered(clock: WorkerClock): void {
    this.#clocks.add(clock);
    this.changed();
  }

  /** @internal */
  unregistered(clock: WorkerClock): void {
    this.#clocks.delete(clock);
    this.changed();
  }

  /** Takes the next deliveries, at most `limit`. @internal */
  take(limit: number): { open: Open; id: bigint; wire: Partial<Omit<Delivery, "$typeName" | "$unknown" | "properties">>; tokens: bigint }[] {
    const taken = [];
    while (this.#ready.length > 0 && taken.length < limit) {
      const box = this.#ready.shift()!;
      const delivery = box.queue.shift()!;
      box.running = delivery;
      const id = ++this.#deliveries;
      const { init } = delivery;
      const { fence = new Fence(box.token, id), messageId = {} } = init;
      taken.push({
        open: { box, delivery, timeout: undefined }, id, tokens: fence.token,
        wire: {
          deliveryId: id, partition: box.partition, key: Buffer.from(box.key, "latin1"), payload: Buffer.from(init.payload ?? ""),
          ledgerId: messageId.ledger ?? 1n, entryId: messageId.entry ?? delivery.entry, batchIndex: messageId.batch ?? -1, topicPartition: messageId.topicPartition ?? -1,
          publishTimeMs: BigInt((init.publishTime ?? new Date()).getTime()), eventTimeMs: BigInt(init.eventTime?.getTime() ?? 0),
          attempt: delivery.attempt, redeliveryCount: init.redelivery ?? 0, turn: fence.turn, ...callOf(delivery.call),
          ...(init.timer === undefined ? {} : { timer: timerOf(init.timer, init.firing) }),
        },
      });
    }
    return taken;
  }

  /** @internal */
  finish(open: Open, outcome: TestOutcome): void {
    clearTimeout(open.timeout);
    open.box.running = undefined;
    if (open.box.queue.length > 0) this.#ready.push(open.box);
    open.delivery.end(outcome);
  }

  /** @internal */
  pump(): void {
    for (const stream of this.#streams) stream.pump();
  }

  /** @internal */
  changed(): void {
    for (const check of [...this.#changes]) check();
  }

  /** Resolves when a condition is met. */
  #when(met: () => boolean): Promise<void> {
    return new Promise((resolve) => {
      const check = () => {
        if (!met()) return;
        this.#changes.delete(check);
        resolve();
      };
      this.#changes.add(check);
      check();
    });
  }

  #passTo(instant: Instant): void {
    this.#ahead += Math.max(instant - this.at(), 0);
  }
}

/** Returns a router that stops at the end of a test, which then fails if a worker does not end in order. */
export function testRouter(t: TestContext, options: TestRouterOptions = {}): TestRouter {
  const router = new TestRouter(options);
  t.after(() => router.stop());
  return router;
}

/** The name of a key among the boxes. */
function nameOf(key: string | Uint8Array): string {
  return Buffer.from(key).toString("latin1");
}

/** Returns what makes a delivery a call. */
function callOf(init: CallInit | undefined): { call?: NonNullable<Delivery["call"]> } {
  if (init === undefined) return {};
  const { method, id = "", timeoutMs = callTimeoutDefault, path = [] } = init;
  return { call: create(CallSchema, { method, id, timeoutMs: BigInt(Math.floor(timeoutMs)), path: [...path] }) };
}

function timerOf({ name, due }: Timer, firing: EventInit["firing"]): NonNullable<Delivery["timer"]> {
  return create(TimerSchema, { name, dueMs: BigInt(due.getTime()), ...(firing === undefined ? {} : { firing }) });
}

function endOf(kind: TestOutcome["kind"]): TestOutcome {
  return { kind, afterMs: 0, reason: "", startedNs: 0n, tookNs: 0n };
}

/** The lease clock of one worker. */
class WorkerClock implements Clock {
  until: Instant = 0;

  constructor(private readonly router: TestRouter) {}

  now(): Instant {
    return this.router.at();
  }

  sent(): Instant {
    return this.router.at();
  }

  bootNs(): number {
    return Math.round(this.router.at() * 1e6);
  }

  renewed(until: Instant): void {
    this.until = until;
    this.router.registered(this);
  }

  ended(): void {
    this.router.unregistered(this);
  }
}

/** The router's side of one stream. */
class Stream {
  #welcomed = false;
  #over = false;
  #draining = false;
  #calls = false; // the worker takes calls
  #state = false; // it keeps state
  #window = 0;
  #number = 0n; // of the newest Deliveries frame
  #receipt = 0n; // of the newest one that the worker has received
  #results = 0n; // number of the newest Results frame
  readonly #open = new Map<bigint, Open>();

  constructor(
    private readonly router: TestRouter,
    private readonly events: WireEvents,
  ) {}

  send(frame: MessageInitShape<typeof WorkResponseSchema>["frame"] | undefined): void {
    if (this.#over) return;
    const message = create(WorkResponseSchema, frame === undefined ? { receipt: this.#results } : { receipt: this.#results, frame });
    this.events.frame(Buffer.from(toBinary(WorkResponseSchema, message)));
  }

  /** Handles a frame of the worker. A frame that violates the protocol ends the stream. */
  receive(bytes: Buffer): void {
    if (this.#over) return;
    const request = fromBinary(WorkRequestSchema, bytes);
    const wrong = this.#handle(request);
    if (wrong !== undefined) this.close(codes.INVALID_ARGUMENT, wrong);
  }

  #handle({ receipt, frame }: WorkRequest): string | undefined {
    if (receipt > this.#number) return `a receipt for the frame ${receipt}, which was not sent`;
    this.#receipt = receipt > this.#receipt ? receipt : this.#receipt;
    if (this.#welcomed === (frame.case === "hello")) return "the first frame, and only that, must be a Hello";
    switch (frame.case) {
      case "hello": {
        const { maxInFlight, worker } = frame.value;
        if (maxInFlight < 1 || maxInFlight > 100_000) return `max_in_flight is ${maxInFlight}`;
        this.#welcomed = true;
        this.#calls = frame.value.capabilities.includes("calls");
        this.#state = frame.value.capabilities.includes("state");
        this.#window = Math.min(maxInFlight, this.router.config.maxInFlight);
        this.send({
          case: "welcome",
          value: {
            node: "test", group: "test", version: 1, worker: worker || "worker", capabilities: [...this.router.config.capabilities],
            limits: { maxInFlight: this.#window, frameMaxBytes: 9 << 20, pingIntervalMs, reasonMaxBytes: 1024 },
          },
        });
        this.router.joined(this);
        break;
      }
      case "ping":
        this.send({ case: "pong", value: { k: frame.value.k, remainingNs: BigInt(Math.floor(this.router.remaining * 1e6)) } });
        break;
      case "results":
        if (frame.value.number !== this.#results + 1n) return `the Results frame ${frame.value.number} after ${this.#results}`;
        this.#results++;
        for (const result of frame.value.results) this.#answer(result);
        this.send(undefined);
        break;
      case "progress":
        for (const id of frame.value.deliveryIds) this.#watch(id);
        break;
      case "drain":
        this.#draining = true;
        break;
      default: // a receipt
    }
    this.router.pump();
    return undefined;
  }

  #answer(result: Result): void {
    const open = this.#open.get(result.deliveryId);
    if (open === undefined) return;
    this.#open.delete(result.deliveryId);
    this.router.finish(open, {
      kind: kinds[result.kind], afterMs: Number(result.afterMs), reason: result.reason, startedNs: result.startedNs, tookNs: result.tookNs,
      ...(open.delivery.call === undefined ? {} : { reply: Buffer.from(result.reply), code: result.code }),
    });
  }

  /** Takes a delivery back if it is one of this stream. */
  takeBack(delivery: TestDelivery): void {
    for (const [id, open] of this.#open) {
      if (open.delivery === delivery) this.send({ case: "revoke", value: { deliveryIds: [id], reason: "the caller is no longer waiting" } });
    }
  }

  /** Starts the timeout of a handler anew. */
  #watch(id: bigint): void {
    const { handlerTimeoutMs } = this.router.config;
    const open = this.#open.get(id);
    if (handlerTimeoutMs === 0 || open === undefined) return;
    clearTimeout(open.timeout);
    open.timeout = setTimeout(() => this.send({ case: "revoke", value: { deliveryIds: [id], timedOut: true, reason: "handler.timeout" } }), handlerTimeoutMs);
  }

  /** Sends deliveries, as far as the protocol lets it. */
  pump(): void {
    if (this.#over || this.#draining || this.#receipt < this.#number) return;
    const all = this.router.take(this.#window - this.#open.size);
    const taken = all.filter(({ open }) => this.#calls || open.delivery.call === undefined);
    for (const { open } of all) {
      if (!taken.some((one) => one.open === open)) this.router.finish(open, { ...endOf("not_started"), reply: Buffer.alloc(0), code: "no_handler" });
    }
    if (taken.length < all.length) queueMicrotask(() => this.router.pump()); // more of their keys may wait
    if (taken.length === 0) return;
    const tables = { topics: new Index<string>(), tokens: new Index<bigint>(), names: new Index<string>() };
    const schemaVersions: Uint8Array[] = [];
    const list = taken.map(({ open, id, wire, tokens }) => {
      this.#open.set(id, open);
      const { box } = open;
      if (box.at !== this) {
        box.at = this;
        box.generation++;
      }
      const { topic = "persistent://public/default/test", properties = [], schemaVersion } = open.delivery.init;
      return {
        ...wire,
        generation: this.#state ? box.generation : 0n,
        topic: tables.topics.of(topic),
        token: tables.tokens.of(tokens),
        properties: properties.map(({ name, value }) => ({ name: tables.names.of(name), value })),
        schemaVersion: schemaVersion === undefined ? 0 : schemaVersions.push(schemaVersion),
      };
    });
    this.send({
      case: "deliveries",
      value: { number: ++this.#number, topics: tables.topics.list, tokens: tables.tokens.list, names: tables.names.list, schemaVersions, deliveries: list },
    });
    for (const { id } of taken) this.#watch(id);
  }

  halfClosed(): void {
    this.close(this.#open.size === 0 ? codes.OK : codes.INVALID_ARGUMENT, "");
  }

  close(code: number, details: string): void {
    if (this.#over) return;
    this.#over = true;
    for (const open of this.#open.values()) clearTimeout(open.timeout);
    this.router.left(this, this.#open.values());
    this.events.end({ code, details });
  }
}

/** The values of a list in a frame, by index. */
class Index<T> {
  readonly list: T[] = [];
  readonly #at = new Map<T, number>();

  of(value: T): number {
    let i = this.#at.get(value);
    if (i === undefined) {
      i = this.list.push(value) - 1;
      this.#at.set(value, i);
    }
    return i;
  }
}

function wrongKey(key: Uint8Array): string {
  return key.length > 0 && key.length <= keyMax ? "" : `a key of ${key.length} bytes: want 1 to ${keyMax}`;
}

/** Returns why routers refuse a call, "" if they take it. */
function wrongCall({ key, method, id, timeoutMs, path }: Pick<InvokeRequest, "key" | "method" | "id" | "timeoutMs" | "path">): string {
  if (!/^[A-Za-z0-9._-]{1,64}$/.test(method)) return `method ${JSON.stringify(method.slice(0, 80))}: want 1 to 64 bytes of A-Z, a-z, 0-9, '.', '_' and '-'`;
  if (Buffer.byteLength(id) > callIdMax) return `an id of ${Buffer.byteLength(id)} bytes: want at most ${callIdMax}`;
  if (path.length > pathMax) return `a call behind ${path.length} others: want at most ${pathMax}`;
  if (timeoutMs > callTimeoutMax) return `a timeout of ${timeoutMs} ms: want at most ${callTimeoutMax}`;
  return wrongKey(key);
}

/**
 * Returns why routers refuse an event, "" if they take it. Its name, its payload and its delay are checked as those of a timer. Its time is not, since a test
 * may have a fixed one.
 */
function wrongSend({ key, id, properties, afterMs, atMs }: Pick<SendRequest, "key" | "id" | "properties" | "afterMs" | "atMs">): string {
  if (afterMs > 0n && atMs > 0n) return "after and at are both set: want one of them";
  if (Buffer.byteLength(id) > sendIdMax) return `an id of ${Buffer.byteLength(id)} bytes: want at most ${sendIdMax}`;
  const all = Object.entries(properties);
  if (all.filter(([name]) => name !== "traceparent").length > propertiesMax) return `${all.length} properties: want at most ${propertiesMax}`; // SDKs add that, and not the sender
  for (const [name, value] of all) {
    const quoted = JSON.stringify(name.slice(0, 80));
    if (name === "" || Buffer.byteLength(name) + Buffer.byteLength(value) > propertyMax) return `property ${quoted}: want a name, and at most ${propertyMax} bytes with the value`;
    if (name.toLowerCase().startsWith("ringfence-")) return `property ${quoted}: names that begin with ringfence- are the router's`;
  }
  return wrongKey(key);
}
