/** Publishing events that come back when they are due: the timers of handlers, and what a lane sends. */
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { status as codes } from "@grpc/grpc-js";
import { onAbort } from "./abort.js";
import { MaybeSentError, NotSentError, RingfenceError } from "./errors.js";
import { messageIdOf, type LeasedEvent, type MessageId } from "./event.js";
import { SendRequestSchema, SendResponseSchema, type SendRequest } from "./gen/ringfence/lane/v1/lane_pb.js";
import type { Status } from "./transport.js";

export const sendPath = "/ringfence.lane.v1.LaneService/Send";

/** How long the answer to a Send is waited for, in milliseconds. The router itself waits 30 s for the broker. */
export const sendTimeoutDefault = 35_000;

/** How much longer the answer to a request is waited for that is under way when the time is up: otherwise nobody would know whether it was refused. */
const grace = 1000;

/** Bounds of timers: of one event, from the setting until it is due in milliseconds, and of a name in bytes. */
export const timersMax = 100;
export const timerAfterMax = 366 * 24 * 3_600_000;
export const timerNameMax = 128;

/** The largest payload, and the largest request that a router reads, in bytes. */
export const payloadMax = 1 << 20;
export const requestMax = 2 << 20;

/** The timers of one event that are under way at once. */
const togetherMax = 8;

/** The pauses before a request that the router has refused unread is made again, in milliseconds: doubled from the first to the second or third. */
const pauseMin = 1;
export const callPauseMax = 20;
const sendPauseMax = 100;

/** The statuses that say that nothing was published. */
const refusals = new Set<number>([
  codes.INVALID_ARGUMENT, codes.UNIMPLEMENTED, codes.UNAUTHENTICATED, codes.PERMISSION_DENIED, codes.FAILED_PRECONDITION, codes.RESOURCE_EXHAUSTED,
]);

/** gRPC's words for a call that was never sent, and for one that still waited for a connection when its time was up. */
const noConnection = /^(No connection established|Name resolution failed)/;
const waited = /,(waiting for name resolution|Waiting for LB pick)$/;

/** Whether there was no connection for a request. */
export function wasNeverSent({ code, details }: Status): boolean {
  return (code === codes.UNAVAILABLE && noConnection.test(details)) || (code === codes.DEADLINE_EXCEEDED && waited.test(details));
}

/**
 * Returns what is wrong with the bytes of a payload and of its request, "" if nothing is. gRPC would refuse a larger one with the status of a router that
 * has taken nothing in, and it would be made again and again.
 */
export function wrongSize(payload: number, request: number): string {
  if (payload > payloadMax) return `a payload of ${payload} bytes, want at most ${payloadMax}`;
  return request > requestMax ? `a request of ${request} bytes, want at most ${requestMax}` : "";
}

/**
 * Returns what is wrong with arguments that are text, "" if nothing is: half of a surrogate pair has no UTF-8, and Node would write U+FFFD for it. Then two keys, or two ids,
 * would be one.
 */
export function wrongText(texts: Record<string, string | Uint8Array>): string {
  const wrong = Object.entries(texts).find(([, text]) => typeof text === "string" && /\p{Surrogate}/u.test(text));
  return wrong === undefined ? "" : `${wrong[0]}: half of a surrogate pair has no UTF-8`;
}

/** The pauses before a refused request is made again. */
export class Pauses {
  #next = pauseMin;
  readonly #end: number;

  constructor(
    private readonly withinMs: number,
    private readonly most: number,
  ) {
    this.#end = performance.now() + withinMs;
  }

  /** What is left of the time, in milliseconds: for the first attempt all. */
  get left(): number {
    return this.#next === pauseMin ? this.withinMs : Math.max(1, this.#end - performance.now());
  }

  /** Waits, and resolves with true; with false at once if the time would be up then. Ends early when the signal aborts. */
  async pass(signal?: AbortSignal): Promise<boolean> {
    const pause = this.#next * (1 - Math.random() / 2);
    this.#next = Math.min(2 * this.#next, this.most);
    if (pause >= this.#end - performance.now()) return false;
    await new Promise<void>((resolve) => {
      const end = () => {
        clearTimeout(timer);
        forget();
        resolve();
      };
      const timer = setTimeout(end, pause);
      const forget = onAbort(signal, end);
    });
    return true;
  }
}

/** Makes one Send: resolves with the response, rejects with a NotSentError, or with the status. */
export type Publish = (request: Uint8Array, withinMs: number, signal: AbortSignal | undefined) => Promise<Uint8Array>;

/** A timer that a handler has set. */
export interface SetTimer {
  readonly afterMs: number;
  readonly name: string;
  readonly payload: Uint8Array;
}

/** @throws RingfenceError with the code "argument" if routers do not take such a timer. */
export function checkedTimer(afterMs: number, name: string, payload: string | Uint8Array): SetTimer {
  if (!(afterMs <= timerAfterMax)) throw new RingfenceError("argument", `afterMs is ${afterMs}, want at most ${timerAfterMax} milliseconds`, "afterMs");
  if (typeof name !== "string" || !/^[\p{L}\p{M}\p{N}\p{P}\p{S} ]*$/u.test(name) || name.includes("\ufffd") || Buffer.byteLength(name) > timerNameMax) {
    throw new RingfenceError("argument", `name is ${JSON.stringify(name).slice(0, 80)}, want at most ${timerNameMax} bytes of printable text`, "name");
  }
  const bytes = Buffer.from(payload); // a copy: the handler may go on with its own
  if (bytes.length > payloadMax) throw new RingfenceError("argument", `payload has ${bytes.length} bytes, want at most ${payloadMax}`, "payload");
  return { afterMs: Math.max(0, Math.floor(afterMs)), name, payload: bytes }; // one in the past, as a run after a crash may ask for, is due at once
}

/** Sends until the router takes the request. Rejects with a NotSentError or a MaybeSentError. */
export async function send(publish: Publish, request: SendRequest, withinMs: number, signal?: AbortSignal): Promise<MessageId> {
  const bytes = toBinary(SendRequestSchema, request);
  const wrong = wrongSize(request.payload.length, bytes.length);
  if (wrong !== "") throw new NotSentError(wrong);
  const pauses = new Pauses(withinMs, sendPauseMax);
  for (;;) {
    try {
      const text = fromBinary(SendResponseSchema, await publish(bytes, Math.min(pauses.left, sendTimeoutDefault) + grace, signal)).messageId;
      const id = messageIdOf(text);
      if (id === undefined) throw new MaybeSentError(`the router answered ${JSON.stringify(text.slice(0, 80))}`);
      return id;
    } catch (err) {
      const failure = failureOf(err);
      if ((err as Status).code !== codes.RESOURCE_EXHAUSTED || !(await pauses.pass(signal)) || signal?.aborted) throw failure;
    }
  }
}

function failureOf(err: unknown): NotSentError | MaybeSentError {
  if (err instanceof NotSentError || err instanceof MaybeSentError) return err;
  const { code, details } = err as Status;
  if (refusals.has(code) || wasNeverSent({ code, details })) return new NotSentError(details || codes[code], { cause: err });
  return new MaybeSentError(details ? `${codes[code]}: ${details}` : (codes[code] ?? String(err)), { cause: err });
}

/** Publishes the timers of an event whose handler has returned, until its signal aborts. Their ids are the same in every run. */
export async function publishTimers(event: LeasedEvent, publish: Publish): Promise<void> {
  const requests = event.timers!.map(({ afterMs, name, payload }, n) =>
    create(SendRequestSchema, { key: event.keyBytes, payload, name, afterMs: BigInt(afterMs), id: `after/${event.messageId}/${n}` }),
  );
  const stop = new AbortController(); // gives the Sends up: when one has failed, and when the key is lost
  const lost = () => stop.abort();
  event.signal.addEventListener("abort", lost);
  const sendAll = async (): Promise<void> => {
    for (let next = requests.shift(); next !== undefined; next = requests.shift()) {
      event.signal.throwIfAborted();
      await send(publish, next, Infinity, stop.signal);
    }
  };
  try {
    await Promise.all(Array.from({ length: Math.min(togetherMax, requests.length) }, sendAll));
  } finally {
    stop.abort();
    event.signal.removeEventListener("abort", lost);
  }
}
