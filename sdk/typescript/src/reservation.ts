import { randomBytes } from "node:crypto";
import { create, fromBinary, toBinary, type MessageInitShape } from "@bufbuild/protobuf";
import { status as codes, type ClientDuplexStream, type StatusObject } from "@grpc/grpc-js";
import { onAbort } from "./abort.js";
import type { Clock } from "./clock.js";
import { KeyLostError, NotReservedError, textOf } from "./errors.js";
import { Fence } from "./event.js";
import { ReserveRequestSchema, ReserveResponseSchema, type ReserveResponse } from "./gen/ringfence/lane/v1/lane_pb.js";
import type { Instant } from "./inbox.js";
import { Permission } from "./permission.js";
import { callPauseMax } from "./sending.js";
import { checkEvery } from "./session.js";
import { signalOf, type Cancellable } from "./signal.js";

export const reservePath = "/ringfence.lane.v1.LaneService/Reserve";

/** So long beyond the wait for a key there may be no connection, and then no answer of the router, in milliseconds. */
const grace = 5000;

/**
 * How long the next stream of a reservation has at least until it has a connection, in milliseconds. Then it gets another connection: with a ttl after a third of
 * what is left of the permission, if that is longer, and after grace at most.
 */
const redialLeast = 1000;

/** How long it may take from a grant until there is permission to begin, beyond the wait for the key, in milliseconds. */
const beginMax = 10_000;

/** The pauses between renewals while the control log does not have a reservation with a ttl, in milliseconds: doubled from the first to the second. */
const coverMin = 4;
const coverMax = 50;

/**
 * So many renewals of a covered reservation in a row without any frame, and the connection is given up when the next one is due: half of the ttl is left. A
 * live one has no time for that.
 */
const unheardMax = 2;

/** How long a stream stays open after its last frame of this side, in milliseconds. */
const releaseMax = 500;

/** The pauses before the next stream when one breaks, in milliseconds: doubled from the first to the second. */
const pauseMin = 20;
const pauseMax = 500;

/** The longest time that a timer can wait, in milliseconds. Routers allow an hour. */
export const waitMax = 2 ** 31 - 1 - grace;

/** The longest ttl that an Ask can carry, in milliseconds. Routers allow 5 minutes. */
const ttlMax = 2 ** 32 - 1;

/** The codes of statuses with which a router refuses an ask. All others: unreachable. */
const refusals: Partial<Record<number, string>> = {
  [codes.INVALID_ARGUMENT]: "", [codes.UNIMPLEMENTED]: "", [codes.UNAUTHENTICATED]: "", [codes.PERMISSION_DENIED]: "", [codes.RESOURCE_EXHAUSTED]: "overloaded",
};

type Stream = ClientDuplexStream<Buffer, Buffer>;

/** What a reservation needs of its lane. */
export interface Opener {
  readonly clock: Clock;
  /** Opens a stream. It does not wait. Calls a function when there is a connection for it. @throws NotReservedError */
  open(connected: () => void): Stream;
  /** Says that nothing was heard since an instant of performance.now(): the next stream needs another connection. */
  silent(since: number): void;
  /** Called when no stream follows: it is over, was refused, or is lost. */
  ended(): void;
}

/** Who asks for what. */
export interface Asking {
  key: Uint8Array;
  waitMs: number;
  /** 0: none. */
  ttlMs: number;
  path: bigint[];
  /** Ends the wait. */
  signal: AbortSignal | undefined;
}

/**
 * A key that this process holds: no handler of the key runs, and nobody else holds it, until {@link release} or until it is lost.
 * Lane.reserve makes it.
 */
export class Reservation {
  readonly #holder: Holder;

  /**
   * Aborts with a KeyLostError when the key is lost: stop at once, and write nothing. That is at most 50 ms after the last permission
   * has passed, or when the router says so; `aborted` and `throwIfAborted` ask the clock. After a release it aborts with an AbortError.
   */
  readonly signal: AbortSignal;

  /** @internal */
  constructor(holder: Holder) {
    this.#holder = holder;
    this.signal = signalOf(holder);
  }

  /**
   * Is greater than that of any earlier delivery, call or reservation of the key. That of a reservation with a ttl grows when the key has another
   * owner; the earlier one is as good.
   */
  get fence(): Fence {
    return this.#holder.fence;
  }

  /** When the reservation ends if it is renewed no more. For planning only. */
  get leaseUntil(): Date {
    return new Date(Date.now() + this.#holder.leftMs());
  }

  /**
   * Ends the reservation. It resolves when its owner knows, at the latest when the reservation would have ended without a renewal: if the
   * connection is broken, it is made again for that. Further calls do nothing but wait.
   */
  release(): Promise<void> {
    return this.#holder.release();
  }

  /** Is release, for `await using`. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.release();
  }
}

/** Gets and keeps one reservation. */
export class Holder implements Cancellable {
  cause: Error | undefined = undefined;
  controller: AbortController | undefined = undefined;
  fence = new Fence(0n, 0n);

  readonly #opener: Opener;
  readonly #asking: Asking;
  readonly #id = randomBytes(16);
  readonly #permission: Permission;
  #askedAt: Instant = 0; // for the first time
  #begunAt = 0; // the same, by performance.now()
  #connectedMs: number | undefined; // how long it took until there was a connection, for the first time
  #opened = 0; // streams
  #connectBy: Instant = Infinity; // when the present stream must have one; Infinity: it has, or is the first one
  #crowded: { failure: NotReservedError; pauseMs: number } | undefined; // the router has refused the last ask unread
  #begun: { resolve(): void; reject(failure: NotReservedError): void } | undefined; // until there is permission, or none will come
  #granted = false;
  #stream: Stream | undefined; // the newest; those before it are not heard any more
  #ticks: NodeJS.Timeout | undefined;
  #soon: NodeJS.Timeout | undefined;
  #renewAt: Instant = Infinity;
  #redialAt: Instant = Infinity;
  #pauseMs = 0;
  #coverMs = coverMin;
  #answered = false; // the owner has granted it on the present stream; before, it may be waited for in silence
  #unheard = 0; // renewals since the newest frame
  #unheardSince: number | undefined; // by performance.now(): when the first request since the newest frame was sent
  #released: Promise<void> | undefined;
  #over: (() => void) | undefined; // after a release: ends the wait for it

  constructor(opener: Opener, asking: Asking) {
    this.#opener = opener;
    this.#asking = asking;
    this.#permission = new Permission(asking.ttlMs);
  }

  /** Waits for the key, and for permission to begin. */
  async begin(): Promise<void> {
    const { signal, waitMs } = this.#asking;
    let timer: NodeJS.Timeout | undefined;
    let forget = () => {};
    const giveUp = () => this.#fail(new NotReservedError("timeout", textOf(signal?.reason), 0, { cause: signal?.reason }));
    this.#askedAt = this.#opener.clock.now();
    this.#begunAt = performance.now();
    const late = () => {
      if (!this.#granted) this.#opener.silent(this.#begunAt);
      const text = this.#connectedMs === undefined ? "no connection to the router in time" : "the router has not answered in time";
      this.#fail(this.#crowded?.failure ?? new NotReservedError("unreachable", text));
    };
    let extended = false; // by the time until there was a connection, which does not count up to a bound
    const over = () => {
      if (this.#granted) timer = setTimeout(late, beginMax);
      else if (this.#connectedMs === undefined || extended) late();
      else {
        extended = true;
        timer = setTimeout(over, Math.min(grace, this.#connectedMs));
      }
    };
    try {
      await new Promise<void>((resolve, reject) => {
        this.#begun = { resolve, reject };
        timer = setTimeout(over, waitMs + grace);
        forget = onAbort(signal, giveUp);
        if (signal?.aborted) giveUp();
        else this.#open(false);
      });
    } finally {
      clearTimeout(timer);
      forget();
    }
  }

  /** Whether it is held: not lost, not released. */
  get #held(): boolean {
    return this.#begun === undefined && this.cause === undefined;
  }

  ask(): void {
    if (!this.#held || !this.#permission.overdue(this.#opener.clock.now())) return;
    this.#giveUpSilent();
    this.#lose("its permission has passed");
  }

  leftMs(): number {
    return Math.max(0, (this.#permission.until ?? 0) - this.#opener.clock.now());
  }

  release(): Promise<void> {
    return (this.#released ??= this.#release());
  }

  async #release(): Promise<void> {
    if (this.cause !== undefined) return;
    this.cause = new DOMException("the reservation was released", "AbortError");
    clearTimeout(this.#soon);
    const over = new Promise<void>((resolve) => (this.#over = resolve));
    this.#send({ case: "release", value: {} }); // without a stream it is said on the next one
    this.controller?.abort(this.cause);
    await over;
    clearInterval(this.#ticks);
    this.#stream?.cancel();
    this.#opener.ended();
  }

  /** Ends everything, since no further stream can be opened. A release that waits for its answer has been sent, or cannot be. */
  close(why: string): void {
    this.#fail(new NotReservedError("", why));
    this.#lose(why);
    if (this.#over === undefined) return;
    this.#stop();
    this.#over();
  }

  #open(resume: boolean): void {
    const { key, ttlMs, path } = this.#asking;
    this.#permission.ask(this.#opener.clock.sent());
    let stream: Stream;
    this.#connectBy = resume ? this.#opener.clock.now() + Math.max(redialLeast, Math.min(grace, this.leftMs() / 3)) : Infinity;
    const n = ++this.#opened;
    const connected = () => { // perhaps before open returns
      if (n !== this.#opened) return;
      this.#connectBy = Infinity;
      this.#connectedMs ??= performance.now() - this.#begunAt;
    };
    try {
      stream = this.#opener.open(connected);
    } catch (err) {
      if (!(err instanceof NotReservedError)) throw err;
      if (err.cause === undefined) this.#over?.(); // the lane was closed: nothing can be told. A token may come back
      return this.#broke(err);
    }
    this.#stream = stream;
    this.#unheardSince = undefined;
    this.#answered = false;
    this.#unheard = 0;
    this.#redialAt = Infinity;
    stream.on("data", (bytes: Buffer) => {
      if (stream !== this.#stream) return;
      let frame: ReserveResponse;
      try {
        frame = fromBinary(ReserveResponseSchema, bytes);
      } catch (err) { // nobody would catch it here
        stream.cancel();
        this.#broke(new NotReservedError("unreachable", `a frame of the router: ${textOf(err)}`, 0, { cause: err }));
        return;
      }
      this.#hear(frame);
    });
    stream.on("error", () => {}); // the status says the same, and comes also without an error
    stream.on("status", ({ code, details }: StatusObject) => {
      if (stream !== this.#stream) return;
      const failure = new NotReservedError(refusals[code] ?? "unreachable", details || codes[code]);
      if (code === codes.RESOURCE_EXHAUSTED && this.#begun !== undefined) this.#again(failure);
      else this.#broke(failure);
    });
    // Not rawClock: NTP can slew the clock (clock.ts).
    const wait = BigInt(Math.floor(this.#waitMs(resume)));
    this.#send({ case: "ask", value: { key, id: this.#id, waitMs: wait, resume, path, ttlMs: Math.min(Math.ceil(ttlMs), ttlMax) } });
  }

  /** What is left of the wait. The owner of a covered reservation may have died: the next one is waited for as long as the permission lasts. */
  #waitMs(resume: boolean): number {
    const { waitMs, ttlMs } = this.#asking;
    if (resume) return ttlMs > 0 ? this.leftMs() : 0;
    return this.#crowded === undefined ? waitMs : Math.max(0, waitMs - (this.#opener.clock.now() - this.#askedAt));
  }

  /** Asks again soon: the router has taken nothing in, since too many calls of its callers are just beginning. */
  #again(failure: NotReservedError): void {
    this.#stream = undefined;
    const pauseMs = Math.min(2 * (this.#crowded?.pauseMs ?? 0.5), callPauseMax);
    this.#crowded = { failure, pauseMs };
    this.#soon = setTimeout(() => this.#begun !== undefined && this.#open(false), pauseMs * (1 - Math.random() / 2));
  }

  #send(frame: NonNullable<MessageInitShape<typeof ReserveRequestSchema>["frame"]>): void {
    this.#unheardSince ??= performance.now();
    this.#stream?.write(Buffer.from(toBinary(ReserveRequestSchema, create(ReserveRequestSchema, { frame }))));
  }

  #renew(): void {
    const { clock } = this.#opener;
    const k = this.#permission.renew(clock.sent());
    if (this.#begun !== undefined) this.#coverMs = Math.min(2 * this.#coverMs, coverMax);
    this.#schedule(clock.now() + this.#every);
    this.#unheard++;
    this.#send({ case: "renew", value: { k } });
  }

  /** Milliseconds until the next renewal. */
  get #every(): number {
    return this.#begun !== undefined && this.#asking.ttlMs > 0 ? this.#coverMs : this.#permission.every;
  }

  /** Sets when the next renewal is due. Short leases are renewed more often than the clock is compared with the deadline. */
  #schedule(at: Instant): void {
    this.#renewAt = at;
    clearTimeout(this.#soon);
    const inMs = at - this.#opener.clock.now();
    if (inMs < checkEvery) this.#soon = setTimeout(() => this.#tick(), inMs);
  }

  #hear({ frame }: ReserveResponse): void {
    this.#crowded = undefined;
    this.#unheard = 0;
    this.#unheardSince = undefined;
    if (frame.case === "over") {
      const { code, text, retryAfterMs } = frame.value;
      this.#over?.();
      this.#fail(new NotReservedError(code, text, Number(retryAfterMs)));
      this.#lose(text || code);
      return;
    }
    if (this.#over !== undefined) {
      // The owner has answered on a new stream: before, the router would not have told it.
      if (frame.case === "granted") this.#send({ case: "release", value: {} });
      return;
    }
    this.ask(); // whether it was lost before
    if (this.cause !== undefined) return;
    const now = this.#opener.clock.now();
    if (frame.case === "renewed") this.#permission.renewed(frame.value.k, Number(frame.value.remainingNs) / 1e6, now, frame.value.covered);
    if (frame.case === "granted") {
      this.#answered = true;
      this.#permission.granted(Number(frame.value.remainingNs) / 1e6, now);
      // A former owner that does not know yet that it is one answers with its own fence, and no permission.
      const fence = new Fence(frame.value.token, frame.value.turn);
      if (this.fence.before(fence)) this.fence = fence;
      this.#granted = true;
      this.#ticks ??= setInterval(() => this.#tick(), checkEvery);
    }
    this.#pauseMs = 0;
    const begun = this.#permission.mayBegin ? this.#begun : undefined;
    if (begun !== undefined) this.#begun = undefined;
    this.#schedule(now + this.#every);
    if (begun !== undefined) begun.resolve();
    else if (frame.case === "granted") this.#renew(); // it took long until the grant, or the control log does not have it yet, or this stream is a new one
  }

  /** Compares the deadline with the clock, and does what is due. */
  #tick(): void {
    this.ask();
    const now = this.#opener.clock.now();
    if (now >= this.#connectBy && this.#redialAt === Infinity) this.#quit(); // another attempt may meet a router that answers
    if (this.#over !== undefined) {
      if (this.#permission.overdue(now)) {
        this.#giveUpSilent();
        this.#over(); // the key is free without a release
      } else if (now >= this.#redialAt) this.#open(true);
      return;
    }
    if (this.cause !== undefined) return;
    if (now >= this.#redialAt) this.#open(true);
    else if (now >= this.#renewAt && this.#redialAt === Infinity) {
      if (this.#asking.ttlMs > 0 && this.#answered && this.#unheard >= unheardMax && this.#begun === undefined) this.#quit();
      else this.#renew();
    }
  }

  /** Gives the connection up if a request had no answer, and nothing else was heard on it since: the next reservation gets another one. */
  #giveUpSilent(): void {
    if (this.#unheardSince !== undefined) this.#opener.silent(this.#unheardSince);
  }

  /** Gives up a stream on which nothing comes any more, and its connection. */
  #quit(): void {
    this.#unheard = 0;
    this.#giveUpSilent();
    this.#stream?.cancel();
    this.#broke(new NotReservedError("unreachable", "the router does not answer"));
  }

  /** The stream has ended, or could not be opened. A reservation that is held goes on until its deadline. */
  #broke(failure: NotReservedError): void {
    this.#stream = undefined;
    this.#fail(failure);
    this.#pauseMs = Math.min(Math.max(2 * this.#pauseMs, pauseMin), pauseMax);
    this.#redialAt = this.#opener.clock.now() + this.#pauseMs;
  }

  /** Ends the wait for the key, if that is not over. */
  #fail(failure: NotReservedError): void {
    const begun = this.#begun;
    if (begun === undefined) return;
    this.#begun = undefined;
    this.cause = failure;
    begun.reject(failure);
    this.#send({ case: "release", value: {} });
    this.#stop();
  }

  #lose(why: string): void {
    if (!this.#held) return;
    this.cause = new KeyLostError(why);
    this.controller?.abort(this.cause);
    this.#stop();
  }

  #stop(): void {
    this.#opener.ended();
    clearInterval(this.#ticks);
    clearTimeout(this.#soon);
    const stream = this.#stream;
    this.#stream = undefined;
    stream?.end(); // what was written before it goes out first
    if (stream !== undefined) setTimeout(() => stream.cancel(), releaseMax).unref();
  }
}
