import assert from "node:assert/strict";
import { once } from "node:events";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";
import { afterEach } from "node:test";
import { create, fromBinary, toBinary, type MessageInitShape } from "@bufbuild/protobuf";
import type { Clock } from "../src/clock.js";
import { WorkRequestSchema, WorkResponseSchema, type DeliverySchema, type ResultKind, type WorkRequest } from "../src/gen/ringfence/app/v1/app_pb.js";
import type { Instant } from "../src/inbox.js";
import type { Handler, Options } from "../src/index.js";
import { run } from "../src/run.js";
import type { WireEvents } from "../src/transport.js";

/** A clock that a test sets. */
export class ManualClock implements Clock {
  at: Instant = 1000;

  now(): Instant {
    return this.at;
  }

  sent(): Instant {
    return this.at;
  }

  bootNs(): number {
    return this.at * 1e6;
  }
}

export type Response = NonNullable<MessageInitShape<typeof WorkResponseSchema>["frame"]>;

/** One stream, whose frames the test writes one by one. */
export class ScriptedStream {
  readonly requests: WorkRequest[] = [];
  halfClosed = false;
  cancelled = false;
  #over = false;
  #deliveries = 0n;

  constructor(
    readonly token: string,
    private readonly events: WireEvents,
    private readonly changed: () => void,
  ) {}

  send(frame: Response | undefined, receipt = 0n): void {
    this.events.frame(Buffer.from(toBinary(WorkResponseSchema, create(WorkResponseSchema, frame === undefined ? { receipt } : { receipt, frame }))));
  }

  bytes(bytes: Buffer): void {
    this.events.frame(bytes);
  }

  welcome(more: { version?: number; capabilities?: string[]; pingIntervalMs?: number; reasonMaxBytes?: number } = {}): void {
    const { version = 1, capabilities = [], pingIntervalMs = 60_000, reasonMaxBytes = 1024 } = more;
    this.send({ case: "welcome", value: { node: "n", group: "g", worker: "w", version, capabilities, limits: { maxInFlight: 1000, frameMaxBytes: 9 << 20, pingIntervalMs, reasonMaxBytes } } });
  }

  /** Answers the Ping k, or the newest one. */
  pong(remainingMs: number, k?: bigint, draining: bigint[] = []): void {
    this.send({ case: "pong", value: { k: k ?? this.pings.at(-1)!, remainingNs: BigInt(remainingMs * 1e6), draining } });
  }

  /** Delivers events with these ids; the partition and the key are the id. */
  deliver(...ids: number[]): void {
    this.deliverAs(...ids.map((id) => ({ deliveryId: BigInt(id), partition: id, key: Buffer.from(String(id)), attempt: 1, turn: BigInt(id) })));
  }

  /** Delivers in one frame. A token is its index. */
  deliverAs(...deliveries: MessageInitShape<typeof DeliverySchema>[]): void {
    this.send({ case: "deliveries", value: { number: ++this.#deliveries, topics: ["t"], tokens: [1n, 2n], deliveries } });
  }

  end(code: number, details = ""): void {
    if (this.#over) return;
    this.#over = true;
    this.events.end({ code, details });
  }

  get pings(): bigint[] {
    return this.requests.flatMap(({ frame }) => (frame.case === "ping" ? [frame.value.k] : []));
  }

  /** The kinds of the frames, as they were sent. */
  get cases(): string[] {
    return this.requests.map(({ frame }) => frame.case ?? "receipt");
  }

  /** The answers so far. */
  get answers(): { id: bigint; kind: ResultKind; reason: string }[] {
    return this.requests.flatMap(({ frame }) => (frame.case === "results" ? frame.value.results.map((r) => ({ id: r.deliveryId, kind: r.kind, reason: r.reason })) : []));
  }

  /** @internal */
  receive(frame: Buffer): void {
    this.requests.push(fromBinary(WorkRequestSchema, frame));
    this.changed();
  }

  /** @internal */
  closed(how: "halfClosed" | "cancelled"): void {
    this[how] = true;
    this.changed();
    if (how === "cancelled") queueMicrotask(() => this.end(1, "cancelled"));
  }
}

// A worker that a failed test leaves behind would keep its process from ending, and the failure from being shown.
const scripts = new Set<Script>();
afterEach(async () => {
  await Promise.all([...scripts].map((script) => script.end()));
});

/** A worker whose router is written by the test. */
export class Script {
  readonly streams: ScriptedStream[] = [];
  readonly log: { level: string; message: string; fields: Readonly<Record<string, unknown>> }[] = [];
  readonly clock = new ManualClock();
  readonly #waiting = new Set<() => void>();
  readonly #stop = new AbortController();
  ended: Promise<void> | undefined;

  constructor() {
    scripts.add(this);
  }

  options(more: Options = {}): Options {
    const logging = (level: string) => (message: string, fields: Readonly<Record<string, unknown>>) => {
      this.log.push({ level, message, fields });
      this.changed();
    };
    return {
      clock: this.clock,
      connect: (token, events) => {
        const stream = new ScriptedStream(token, events, () => this.changed());
        this.streams.push(stream);
        this.changed();
        return { send: (frame) => stream.receive(frame), halfClose: () => stream.closed("halfClosed"), cancel: () => stream.closed("cancelled"), publish: () => assert.fail("a script has no Send") };
      },
      logger: { info: logging("info"), warn: logging("warn"), error: logging("error") },
      signal: this.#stop.signal,
      tokenFile: "",
      ...more,
    };
  }

  /** Runs a worker and returns its first stream. */
  async start(handler: Handler, more: Options = {}): Promise<ScriptedStream> {
    this.ended = run(handler, this.options(more));
    this.ended.catch(() => {});
    await this.until(() => this.streams.length > 0 && this.streams[0]!.requests.length >= 2);
    return this.streams[0]!;
  }

  stop(): void {
    this.#stop.abort();
  }

  /** Ends the worker whatever it does. */
  async end(): Promise<void> {
    scripts.delete(this);
    this.stop();
    for (const stream of this.streams) stream.end(14, "the test ends");
    this.clock.at += 3_600_000; // handlers that still run lose their keys
    await this.ended;
  }

  changed(): void {
    for (const check of [...this.#waiting]) check();
  }

  /** Resolves when a condition is met, and rejects after five minutes; the frames of the worker and its log are looked at when they come. */
  until(met: () => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      const late = setTimeout(() => {
        this.#waiting.delete(check);
        reject(new Error(`within five minutes there was no ${met}`));
      }, 300_000);
      const check = () => {
        if (!met()) return;
        this.#waiting.delete(check);
        clearTimeout(late);
        resolve();
      };
      this.#waiting.add(check);
      check();
    });
  }
}

/** A proxy to an endpoint that can stop to forward, on the connections that there are or on the next ones, and closes none. */
export async function mute(t: { after(close: () => void): void }, endpoint: string) {
  const [accepted, dialed]: Socket[][] = [[], []];
  const at = endpoint.lastIndexOf(":");
  const proxy = {
    accepted: accepted!, endpoint: "", muteNext: false,
    /** How long it takes until a connection forwards anything, in milliseconds. */
    connectingMs: 0,
    mute: () => {
      for (const socket of [...accepted!, ...dialed!]) socket.unpipe().resume();
    },
  };
  const server = createServer((near) => {
    accepted!.push(near.on("error", () => {}));
    if (proxy.muteNext) return void near.resume();
    const far = connect(Number(endpoint.slice(at + 1)), endpoint.slice(0, at)).on("error", () => {});
    dialed!.push(far);
    setTimeout(() => near.pipe(far).pipe(near), proxy.connectingMs);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  proxy.endpoint = `127.0.0.1:${(server.address() as AddressInfo).port}`;
  t.after(() => {
    server.close();
    for (const socket of [...accepted!, ...dialed!]) socket.destroy();
  });
  return proxy;
}

/** Resolves when all promises that can resolve without a timer or a socket have done so. */
export function settled(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** What throws whatever is asked of it. */
export function hostile(): object {
  const refuse = () => {
    throw new Error("hostile");
  };
  return new Proxy({}, { get: refuse, getPrototypeOf: refuse, has: refuse, ownKeys: refuse, getOwnPropertyDescriptor: refuse });
}

/** Makes fields of an error throw. The stack is made when it is first needed, from the name and the message: name it before them. */
export function withoutFields<T extends Error>(error: T, ...names: string[]): T {
  for (const name of names) {
    Object.defineProperty(error, name, {
      get() {
        throw new Error("hostile");
      },
    });
  }
  return error;
}

/** A promise and its functions. */
export function deferred<T = void>(): { promise: Promise<T>; resolve: (value: T) => void; reject: (error: unknown) => void } {
  let resolve!: (value: T) => void;
  let reject!: (error: unknown) => void;
  const promise = new Promise<T>((a, b) => {
    resolve = a;
    reject = b;
  });
  return { promise, resolve, reject };
}
