import type { Socket } from "node:net";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Client, status as codes, Metadata, type ClientDuplexStream, type ServiceError } from "@grpc/grpc-js";
import { onAbort } from "./abort.js";
import { callTimeoutDefault, codeTooLarge, LeasedCall, type Call } from "./call.js";
import { systemClock, type Clock } from "./clock.js";
import { CallError, MaybeSentError, NotReservedError, NotSentError, RingfenceError, textOf, type CallOutcome } from "./errors.js";
import { LeasedEvent, type Event, type MessageId } from "./event.js";
import { InvokeRequestSchema, InvokeResponseSchema, Outcome, ReserveRequestSchema, SendRequestSchema, type InvokeRequest, type InvokeResponse } from "./gen/ringfence/lane/v1/lane_pb.js";
import { readToken, settingsOf, warnOfPlainText, type Options } from "./options.js";
import { Holder, Reservation, reservePath, waitMax } from "./reservation.js";
import type { Firing } from "./schedules.js";
import { callPauseMax, Pauses, requestMax, send, sendTimeoutDefault, timerAfterMax, wasNeverSent, wrongSize, wrongText, type Publish } from "./sending.js";
import { installedTraces, type Traces } from "./traces.js";
import { channelCredentials, channelOptions, destroyLater, metadataOf, noting, publishBy, unchanged, whenConnected } from "./transport.js";
import { xxh64 } from "./xxh64.js";

const path = "/ringfence.lane.v1.LaneService/Invoke";

/** How long the router's answer is waited for after the timeout of a call, in milliseconds. */
const grace = 1000;

/** How old, in milliseconds, a connection must be before a call replaces it on which nothing was ever heard. */
const [patienceLeast, patienceMax] = [1000, 10_000];

/** Asks a router how it is, and how long the answer is waited for, in milliseconds. */
const [healthPath, probeTimeout] = ["/grpc.health.v1.Health/Check", 500];

/** The text of the errors of a lane that was closed. */
const closedText = "the lane was closed";

/** The longest time that a timer can wait, in milliseconds. Routers allow 10 minutes. */
const timeoutMax = 2 ** 31 - 1 - grace;

const outcomes: Partial<Record<Outcome, CallOutcome>> = {
  [Outcome.FAILED]: "failed",
  [Outcome.NOT_RUN]: "not_run",
  [Outcome.DONE_BEFORE]: "done_before",
}; // all others: unknown

/** The statuses with which a router refuses a request before it does anything. */
const refusals = new Set([codes.INVALID_ARGUMENT, codes.UNIMPLEMENTED, codes.UNAUTHENTICATED, codes.PERMISSION_DENIED, codes.RESOURCE_EXHAUSTED]);

/** Options of a Lane, which are those of run. */
export type LaneOptions = Pick<Options, "logger" | "tls" | "tokenFile" | "traces">;

/** Options of one call. */
export interface InvokeOptions {
  /**
   * The caller's id of the call, up to 128 bytes. The call then runs at least once within its timeout, even if the owner of the key
   * dies, unless it is refused; and a repeat with the same key and id gets the reply of the first one, or the outcome done_before.
   * Without one it runs at most once.
   */
  id?: string;
  /** How long the call may take, in milliseconds: 10000 by default. Routers allow 10 minutes at most. */
  timeoutMs?: number;
  /** Takes the call back when it aborts. The call may have run then. */
  signal?: AbortSignal;
  /**
   * The event, call or firing whose handler calls. A call that would wait for the caller's own key is then refused, with the code cycle, and
   * does not wait for its timeout.
   */
  caller?: Event | Call | Firing;
}

/** Options of one reservation. */
export interface ReserveOptions {
  /** How long to wait for the key, in milliseconds: up to an hour. By default it must be free. */
  wait?: number;
  /**
   * For how long each renewal promises the key, in milliseconds: 5000 to 300000, also if the owner of the key dies or moves meanwhile. No next owner
   * gives the key to anybody else before. The reservation begins when the control log has it, and a key whose holder has died is free only after the
   * ttl. By default the reservation ends with the lease of the key's owner.
   */
  ttl?: number;
  /** Ends the wait when it aborts. A reservation that was granted goes on. */
  signal?: AbortSignal;
  /** As for InvokeOptions: the event, call or firing whose handler reserves. */
  caller?: Event | Call | Firing;
}

/** Options of one event that is sent. */
export interface SendOptions {
  /** In how many milliseconds it is due, at most 366 days; less than 0: at once. Not together with `at`. */
  afterMs?: number;
  /** When it is due; in the past: at once. */
  at?: Date;
  /** The name of its `timer`, up to 128 bytes of printable text. */
  name?: string;
  /** An id, up to 256 bytes: another event with the same key and id counts as the same, as long as the owner of the key remembers it. */
  id?: string;
  /** The properties that the handler sees, at most 64. */
  properties?: Readonly<Record<string, string>>;
  /** How long to wait for the broker, in milliseconds: 35000 by default. An attempt that is under way then has a second more. */
  timeoutMs?: number;
  /** Ends the wait when it aborts. The event may have been published then. */
  signal?: AbortSignal;
}

/** One client of gRPC, and what was heard by it. */
interface Connection {
  client: Client;
  sockets: Set<Socket>;
  /** When it was made, or the newest answer or frame came: by performance.now(). */
  heardAt: number;
  madeAt: number;
  /** An answer or a frame has come. */
  ever: boolean;
  /** Its calls, Sends and reservations that are under way. */
  open: number;
  /** A probe is under way. */
  probing: boolean;
}

/**
 * Calls handlers of keys, reserves keys, and sends events, through one router of the group. It connects with the first call, and again whenever the connection breaks.
 *
 *     const lane = new Lane();
 *     const reply = await lane.invoke("user-7", "charge", Buffer.from("4200"), { id: "order-8" });
 */
export class Lane {
  readonly #connect: () => Connection;
  #connection: Connection; // of what begins now; earlier ones live as long as their calls
  readonly #tokenFile: string;
  readonly #traces: Traces | false | undefined;
  readonly #clock: () => Clock; // read by reservations alone
  #installed: Promise<Traces | undefined> | undefined; // asked for once: to look for a package that is missing takes long
  readonly #open = new Set<() => void>(); // ends each call, Send and reservation that is under way: gRPC's close lets their streams go on
  #patience = patienceLeast;
  #closed = false;

  /**
   * @param endpoint as in Options.
   * @throws RingfenceError with the code "argument".
   */
  constructor(endpoint?: string, options: LaneOptions = {}) {
    for (const name of Object.keys(options)) {
      if (!["logger", "tls", "tokenFile", "traces", "clock"].includes(name)) throw new RingfenceError("argument", `${name} is not an option of a Lane`, name);
    }
    const { clock, ...rest } = options as LaneOptions & { clock?: Clock }; // the clock is for tests
    const settings = settingsOf(endpoint === undefined ? rest : { ...rest, endpoint });
    warnOfPlainText(settings);
    this.#clock = () => clock ?? systemClock((text) => settings.logger.warn(text, {}));
    this.#tokenFile = settings.tokenFile;
    this.#traces = options.traces;
    const { tls } = options;
    this.#connect = () => {
      const sockets = new Set<Socket>();
      // Without a bound for what is received: its status would look like a refusal of the router.
      const client = new Client(settings.endpoint, noting(channelCredentials(tls), sockets), {
        ...channelOptions(tls), "grpc.max_receive_message_length": -1, "grpc.initial_reconnect_backoff_ms": 50, "grpc.max_reconnect_backoff_ms": 2000,
        "grpc.use_local_subchannel_pool": 1,
      });
      const madeAt = performance.now();
      return { client, sockets, heardAt: madeAt, madeAt, ever: false, open: 0, probing: false };
    };
    this.#connection = this.#connect();
  }

  /** Returns the connection for what begins now. Call the function at its end. */
  #use(): [connection: Connection, ended: () => void] {
    const connection = this.#connection;
    connection.open++;
    return [connection, () => {
      connection.open--;
      if (connection !== this.#connection && connection.open === 0) this.#end(connection);
    }];
  }

  #end({ client, sockets }: Connection): void {
    client.close();
    destroyLater(sockets);
  }

  /**
   * Replaces the connection if nothing was heard on it since an instant from which on it should have been: its other end may be gone without a word, and
   * gRPC would wait for a quarter of an hour, or for ever while it connects. What is under way on the old one goes on.
   */
  #silent(since: number): boolean {
    const old = this.#connection;
    if (this.#closed || old.heardAt >= since) return false;
    this.#connection = this.#connect();
    if (old.open === 0) this.#end(old);
    return true;
  }

  /**
   * Is #silent for a call that has ended by its deadline. A connection on which nothing was ever heard may still be in the making: each one that calls
   * replace in a row has twice the time of the one before, patienceMax at most. Otherwise calls with a timeout shorter than that would never connect.
   */
  #unanswered(since: number): void {
    const { ever, madeAt } = this.#connection;
    if (!ever && performance.now() - madeAt < this.#patience) return;
    if (this.#silent(since) && !ever) this.#patience = Math.min(2 * this.#patience, patienceMax);
  }

  /**
   * Asks the router how it is, which every router answers at once, if nothing was heard on a connection since an instant of performance.now(). Without an
   * answer the connection is replaced. What the answer says is of no interest.
   */
  #probe(connection: Connection, since: number): void {
    if (this.#closed || connection !== this.#connection || connection.probing || connection.heardAt >= since) return;
    connection.probing = true;
    const [, ended] = this.#use();
    const begun = performance.now();
    const call = connection.client.makeUnaryRequest(healthPath, unchanged, unchanged, Buffer.alloc(0), new Metadata(), { deadline: Date.now() + probeTimeout }, (failure) => {
      connection.probing = false;
      this.#told(connection, begun, failure);
      ended();
      this.#open.delete(cancel);
    });
    const cancel = () => call.cancel();
    this.#open.add(cancel);
  }

  /** Notes how a call has ended on a connection that was begun then. */
  #told(connection: Connection, begun: number, failure: { code: number } | null | undefined): void {
    if (failure?.code === codes.DEADLINE_EXCEEDED) this.#unanswered(begun);
    else if (failure?.code === codes.UNAVAILABLE) connection.heardAt = performance.now(); // as of a connection that was refused
    else if (failure?.code !== codes.CANCELLED) this.#heard(connection);
  }

  #heard(connection: Connection): void {
    connection.heardAt = performance.now();
    connection.ever = true;
    this.#patience = patienceLeast;
  }

  /**
   * Ends the connection, and all that goes on over it: calls that wait reject with the outcome unknown, Sends with a MaybeSentError, and waits for a key
   * with a NotReservedError. Reservations are lost at once. None is released, so the router keeps their keys until their permission ends: release them before.
   */
  close(): void {
    this.#closed = true;
    for (const end of this.#open) end(); // first: the client's close would give calls without a connection another status
    this.#end(this.#connection);
  }

  /**
   * Calls the handler that is registered for `method` at the owner of `key`, and resolves with its reply. The handler runs when no event
   * and no other call of the key does, before events that wait. The payload has at most 1 MiB. Rejects with a CallError if there is no reply.
   * @throws RingfenceError with the code "argument" if timeoutMs is out of range.
   */
  async invoke(key: string | Uint8Array, method: string, payload: string | Uint8Array = "", options: InvokeOptions = {}): Promise<Buffer> {
    const { id = "", timeoutMs = callTimeoutDefault, signal, caller } = options;
    if (!(timeoutMs > 0 && timeoutMs <= timeoutMax)) throw new RingfenceError("argument", `timeoutMs is ${timeoutMs}, want more than 0`, "timeoutMs");
    const wrong = wrongText({ key, method, id });
    if (wrong !== "") throw new CallError("not_run", "", wrong);
    let metadata: Metadata;
    try {
      metadata = metadataOf(readToken(this.#tokenFile));
    } catch (err) {
      throw new CallError("not_run", "", textOf(err), 0, { cause: err });
    }
    const request = create(InvokeRequestSchema, {
      key: Buffer.from(key), method, payload: Buffer.from(payload), id, timeoutMs: BigInt(Math.max(1, Math.floor(timeoutMs))), path: pathOf(caller),
      traceparent: await this.#traceparent(),
    });
    const pauses = new Pauses(timeoutMs, callPauseMax);
    for (;;) {
      if (this.#closed) throw new CallError("not_run", "", closedText);
      if (signal?.aborted) throw new CallError("not_run", "", textOf(signal.reason), 0, { cause: signal.reason });
      try {
        return replyOf(await this.#invoke(request, metadata, Math.ceil(pauses.left) + grace, signal));
      } catch (err) {
        // The router has taken nothing in: too many calls of its callers are just beginning.
        const crowded = err instanceof CallError && (err.cause as Partial<ServiceError> | undefined)?.code === codes.RESOURCE_EXHAUSTED;
        if (!crowded || !(await pauses.pass(signal))) throw err;
      }
      request.timeoutMs = BigInt(Math.max(1, Math.floor(pauses.left)));
    }
  }

  /**
   * Publishes an event of a key, and resolves with its id when the broker has it. The handler of the key's events gets it, with a `timer`: at
   * once, or when it is due. It needs no producer, and no rights of the application at the broker.
   *
   *     await lane.send("user-7", "order 8", { afterMs: 3_600_000, name: "remind", id: "order-8" });
   *
   * The payload has at most 1 MiB. Rejects with a NotSentError, or with a MaybeSentError if it may have been published.
   * @throws RingfenceError with the code "argument" if a time is out of range.
   */
  async send(key: string | Uint8Array, payload: string | Uint8Array = "", options: SendOptions = {}): Promise<MessageId> {
    const { afterMs, at, name = "", id = "", properties = {}, timeoutMs = sendTimeoutDefault, signal } = options;
    const wrong = (text: string, argument: string) => new RingfenceError("argument", text, argument);
    if (!(timeoutMs > 0 && timeoutMs <= timeoutMax)) throw wrong(`timeoutMs is ${timeoutMs}, want more than 0`, "timeoutMs");
    if (afterMs !== undefined && at !== undefined) throw wrong("afterMs and at: want one of them", "at");
    if (afterMs !== undefined && !(afterMs <= timerAfterMax)) throw wrong(`afterMs is ${afterMs}, want at most ${timerAfterMax} milliseconds`, "afterMs");
    if (at !== undefined && Number.isNaN(at.getTime())) throw wrong("at is not a valid date", "at");
    const noText = wrongText({ key, name, id, properties: Object.entries(properties).flat().join(" ") });
    if (noText !== "") throw new NotSentError(noText);
    const traceparent = await this.#traceparent();
    const request = create(SendRequestSchema, {
      key: Buffer.from(key), payload: Buffer.from(payload), name, id, properties: traceparent === "" ? properties : { traceparent, ...properties },
      afterMs: BigInt(Math.max(0, Math.floor(afterMs ?? 0))), atMs: at === undefined ? 0n : BigInt(Math.max(1, at.getTime())),
    });
    if (signal?.aborted) throw new NotSentError(textOf(signal.reason), { cause: signal.reason });
    return send(this.#publish, request, timeoutMs, signal);
  }

  readonly #publish: Publish = async (request, withinMs, signal) => {
    let token: string;
    try {
      token = readToken(this.#tokenFile);
    } catch (err) {
      throw new NotSentError(textOf(err), { cause: err });
    }
    if (this.#closed) throw new NotSentError(closedText);
    return new Promise((resolve, reject) => {
      const [connection, ended] = this.#use();
      const begun = performance.now();
      const late = setTimeout(() => this.#probe(connection, begun), withinMs - grace);
      const giveUp = publishBy(connection.client, token, request, withinMs, (failure, response) => {
        clearTimeout(late);
        if (failure?.code !== codes.DEADLINE_EXCEEDED) this.#told(connection, begun, failure); // the router need not have answered by then: the probe decides
        ended();
        this.#open.delete(giveUp);
        forget();
        if (failure === undefined) resolve(response);
        else if (this.#closed && failure.code === codes.CANCELLED) reject(new MaybeSentError(closedText, { cause: failure }));
        else reject(failure);
      });
      this.#open.add(giveUp);
      const forget = onAbort(signal, giveUp);
    });
  };

  /**
   * Reserves a key: no handler of it runs, and nobody else holds it, until `release`.
   *
   *     await using r = await lane.reserve("user-7", { wait: 30_000 });
   *     await store.repair("user-7", { fence: r.fence.toString(), signal: r.signal });
   *
   * It is renewed in the background, and lost if the owner of the key cannot be reached for about a lease (two seconds by default), dies, or gives
   * the key up, and after an hour; with a `ttl` only if no owner can be reached for so long: stop working when `r.signal` aborts, and pass `r.fence` to your database with every write.
   * Rejects with a NotReservedError if there is no reservation.
   * @throws RingfenceError with the code "argument" if wait or ttl is out of range, or leases have no clock.
   */
  async reserve(key: string | Uint8Array, options: ReserveOptions = {}): Promise<Reservation> {
    const { wait = 0, ttl = 0, signal, caller } = options;
    if (!(wait >= 0 && wait <= waitMax)) throw new RingfenceError("argument", `wait is ${wait}, want 0 or more milliseconds`, "wait");
    if (!(ttl >= 0 && ttl < Infinity)) throw new RingfenceError("argument", `ttl is ${ttl}, want 5000 to 300000 milliseconds`, "ttl");
    const wrong = wrongText({ key });
    if (wrong !== "") throw new NotReservedError("", wrong);
    let clock: Clock;
    try {
      clock = this.#clock();
    } catch (err) {
      throw new RingfenceError("argument", textOf(err), "clock", { cause: err });
    }
    const path = pathOf(caller);
    const size = toBinary(ReserveRequestSchema, create(ReserveRequestSchema, { frame: { case: "ask", value: { key: Buffer.from(key), path } } })).length;
    if (size > requestMax) throw new NotReservedError(codeTooLarge, wrongSize(0, size));
    const end = () => holder.close(closedText);
    const opener = { clock, open: (connected: () => void) => this.#stream(connected), silent: (since: number) => void this.#silent(since), ended: () => this.#open.delete(end) };
    const holder = new Holder(opener, { key: Buffer.from(key), waitMs: wait, ttlMs: ttl, path, signal });
    this.#open.add(end);
    await holder.begin();
    return new Reservation(holder);
  }

  #stream(connected: () => void): ClientDuplexStream<Buffer, Buffer> {
    if (this.#closed) throw new NotReservedError("", closedText);
    let metadata: Metadata;
    try {
      metadata = metadataOf(readToken(this.#tokenFile));
    } catch (err) {
      throw new NotReservedError("", textOf(err), 0, { cause: err });
    }
    const [connection, ended] = this.#use();
    const stream = connection.client.makeBidiStreamRequest<Buffer, Buffer>(reservePath, unchanged, unchanged, metadata, { credentials: whenConnected(connected) });
    stream.on("data", () => this.#heard(connection));
    stream.on("status", ended);
    return stream;
  }

  #invoke(request: InvokeRequest, metadata: Metadata, withinMs: number, signal: AbortSignal | undefined): Promise<InvokeResponse> {
    const encoded = Buffer.from(toBinary(InvokeRequestSchema, request));
    const wrong = wrongSize(request.payload.length, encoded.length);
    if (wrong !== "") return Promise.reject(new CallError("not_run", codeTooLarge, wrong));
    return new Promise((resolve, reject) => {
      const decode = (bytes: Buffer) => fromBinary(InvokeResponseSchema, bytes);
      const [connection, ended] = this.#use();
      const begun = performance.now();
      const call = connection.client.makeUnaryRequest(path, unchanged, decode, encoded, metadata, { deadline: Date.now() + withinMs }, (failure, response) => {
        this.#told(connection, begun, failure);
        ended();
        this.#open.delete(cancel);
        forget();
        if (signal?.aborted && failure?.code === codes.CANCELLED) reject(new CallError("unknown", "", textOf(signal.reason), 0, { cause: signal.reason }));
        else if (this.#closed && failure?.code === codes.CANCELLED) reject(new CallError("unknown", "", closedText, 0, { cause: failure }));
        else if (failure !== null) reject(notAnswered(failure));
        else resolve(response!);
      });
      const cancel = () => call.cancel();
      this.#open.add(cancel);
      const forget = onAbort(signal, cancel);
    });
  }

  /** Returns the trace context of the caller, "" if the application uses no OpenTelemetry. */
  async #traceparent(): Promise<string> {
    const api = this.#traces === undefined ? await (this.#installed ??= installedTraces()) : this.#traces || undefined;
    if (api === undefined) return "";
    const carrier: Record<string, string> = {};
    api.propagation.inject(api.context.active(), carrier);
    return carrier.traceparent ?? "";
  }
}

/** Returns the keys whose handlers wait for a call that this handler makes, the outermost first. */
export function pathOf(caller: Event | Call | Firing | undefined): bigint[] {
  if (caller === undefined) return [];
  if ("schedule" in caller) return [xxh64(Buffer.from(`schedule/${caller.schedule}`))];
  const event = caller instanceof LeasedCall ? caller.event : caller;
  const before = event instanceof LeasedEvent ? (event.call?.path ?? []) : [];
  return [...before, xxh64(event.keyBytes)];
}

function replyOf({ outcome, reply, code, text, retryAfterMs }: InvokeResponse): Buffer {
  if (outcome === Outcome.REPLIED) return Buffer.from(reply.buffer, reply.byteOffset, reply.byteLength);
  throw new CallError(outcomes[outcome] ?? "unknown", code, text, Number(retryAfterMs));
}

/** Returns the error for a call that the router has not answered. */
function notAnswered(failure: ServiceError): CallError {
  const { code, details } = failure;
  if (refusals.has(code)) return new CallError("not_run", code === codes.RESOURCE_EXHAUSTED ? "overloaded" : "", details || codes[code], 0, { cause: failure });
  if (wasNeverSent(failure)) return new CallError("not_run", "unreachable", details, 0, { cause: failure });
  return new CallError("unknown", "", details ? `${codes[code]}: ${details}` : codes[code], 0, { cause: failure });
}
