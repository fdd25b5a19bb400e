import { CallFailure, isA } from "./errors.js";
import type { Fence, LeasedEvent } from "./event.js";
import { refuseGenerator, type Handler } from "./handler.js";
import type { Changeable, Load } from "./state.js";

/** The most bytes of a reply, and of the code of a failure. */
export const replyMax = 1 << 20;
export const codeMax = 64;

/** How long a call may take, in milliseconds. */
export const callTimeoutDefault = 10_000;

const codeNoHandler = "no_handler";
export const codeTooLarge = "too_large";

/** A request for a handler of a key, whose caller waits for the reply. */
export interface Call {
  /** The key as text. While the handler runs, no event and no other call of it is handled. */
  readonly key: string;
  /** The key as the caller sent it, up to 4096 bytes. */
  readonly keyBytes: Buffer;
  /** The name under which the handler is registered. */
  readonly method: string;
  /** The argument. It shares memory with other deliveries: copy what you keep for long. */
  readonly payload: Buffer;
  /** The caller's id of the call, "" if it gave none. Only a call with an id may run twice, with two fences. */
  readonly id: string;
  /** When the caller stops waiting, by this machine's clock. The handler's signal aborts then, with a CallerGoneError. */
  readonly deadline: Date;
  /** Greater than that of any earlier delivery of the key, event or call. Pass it to your database with every write. */
  readonly fence: Fence;
  /** The current end of the handler's lease: see Event.leaseUntil. */
  readonly leaseUntil: Date;
  /** The same signal as the second argument of the handler: see Event.signal. */
  readonly signal: AbortSignal;
  /** Restarts the router's handler.timeout, but not the timeout of the caller: see Event.progress. */
  progress(): void;
  /** Sets a timer: see Event.after. It is published before the caller gets its reply; the handler of events gets it. */
  after(afterMs: number, name?: string, payload?: string | Uint8Array): void;
  /** Resolves with what the last turn of the key has left, or loads it: see Event.state. Events and calls of a key share their values. */
  state<T extends Changeable>(load: () => T | PromiseLike<T>): Promise<T>;
  state<T extends Changeable>(name: string, load: () => T | PromiseLike<T>): Promise<T>;
}

/**
 * Answers one call. What it returns, or resolves with, is the reply, of up to 1 MiB; undefined and null are an empty one. What it throws fails the
 * call, which is not tried again: the caller gets the message, and the code of a CallFailure. `signal` is as for a Handler, and
 * also aborts when the caller is no longer waiting, with a CallerGoneError.
 */
export type CallHandler = (call: Call, signal: AbortSignal) => Uint8Array | null | undefined | void | PromiseLike<Uint8Array | null | undefined | void>;

/** What a delivery has that is a call. */
export interface Arrival {
  readonly method: string;
  readonly id: string;
  /** In milliseconds since 1970, by the clock of this machine. */
  readonly deadline: number;
  /** Hashes of the keys whose handlers wait for the call. */
  readonly path: readonly bigint[];
}

/** A call of a session. */
export class LeasedCall implements Call {
  /** @internal */
  constructor(
    /** @internal */ readonly event: LeasedEvent,
    private readonly arrival: Arrival,
  ) {}

  get key(): string {
    return this.event.key;
  }

  get keyBytes(): Buffer {
    return this.event.keyBytes;
  }

  get method(): string {
    return this.arrival.method;
  }

  get payload(): Buffer {
    return this.event.payload;
  }

  get id(): string {
    return this.arrival.id;
  }

  get deadline(): Date {
    return new Date(this.arrival.deadline);
  }

  get fence(): Fence {
    return this.event.fence;
  }

  get leaseUntil(): Date {
    return this.event.leaseUntil;
  }

  get signal(): AbortSignal {
    return this.event.signal;
  }

  progress(): void {
    this.event.progress();
  }

  after(afterMs: number, name?: string, payload?: string | Uint8Array): void {
    this.event.after(afterMs, name, payload);
  }

  state<T>(...of: [Load<T>] | [string, Load<T>]): Promise<T> {
    return this.event.state(...of);
  }

  /** What console.log shows. */
  [Symbol.for("nodejs.util.inspect.custom")](): object {
    const { key, method, id } = this;
    return { key, method, id, fence: String(this.fence) };
  }
}

/** Returns what is wrong with the handlers of calls, "" if nothing is. */
export function wrongCalls(calls: Readonly<Record<string, CallHandler>>): string {
  if (typeof calls !== "object" || calls === null) return "is no object of functions";
  for (const [method, handler] of Object.entries(calls)) {
    if (!/^[A-Za-z0-9._-]{1,64}$/.test(method)) return `has the method ${JSON.stringify(method)}, want 1 to 64 of A-Z, a-z, 0-9, '.', '_' and '-'`;
    if (typeof handler !== "function") return `has no function for the method ${method}`;
  }
  return "";
}

/** There is no handler of the method of a call. */
export class NoHandler extends Error {
  override name = "NoHandler";

  constructor() {
    super("this worker has no handler for the method");
  }
}

/** Returns a handler of events and calls. The reply of a call is in its event. */
export function withCalls(calls: ReadonlyMap<string, CallHandler>, handler: Handler): Handler {
  if (calls.size === 0) return handler;
  return (event, signal) => {
    const leased = event as LeasedEvent;
    const { call } = leased;
    if (call === undefined) return handler(event, signal);
    const of = calls.get(call.method);
    if (of === undefined) throw new NoHandler();
    const returned = of(new LeasedCall(leased, call), signal);
    if (returned instanceof Uint8Array || returned === undefined || returned === null) return void (leased.reply = replyOf(returned));
    return Promise.resolve(returned).then((reply) => void (leased.reply = replyOf(reply)));
  };
}

function replyOf(reply: unknown): Uint8Array | undefined {
  if (reply === undefined || reply === null) return undefined;
  refuseGenerator(reply);
  if (!(reply instanceof Uint8Array)) throw new TypeError(`the handler returned ${typeof reply}, want a Uint8Array or undefined`);
  if (reply.length > replyMax) throw new CallFailure(codeTooLarge, `a reply of ${reply.length} bytes, want at most ${replyMax}`);
  return reply;
}

/** Returns the code of what the handler of a call has thrown, "" if it has none that fits. It never throws. */
export function codeOf(thrown: unknown): string {
  if (isA(thrown, NoHandler)) return codeNoHandler;
  if (!isA(thrown, CallFailure)) return "";
  try {
    const { code } = thrown;
    return typeof code === "string" && Buffer.byteLength(code) <= codeMax ? code : "";
  } catch {
    return "";
  }
}
