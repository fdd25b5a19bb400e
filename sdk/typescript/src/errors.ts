/**
 * Thrown by a handler: the event will never succeed. It goes to the dead letter topic, with the
 * message as the reason.
 */
export class Reject extends Error {
  override name = "Reject";
}

/**
 * Thrown by a handler: the event failed and is to be retried after `afterMs`. The key waits
 * meanwhile. Any other error means a retry after the router's own back-off.
 */
export class RetryAfter extends Error {
  override name = "RetryAfter";

  /**
   * @param afterMs in milliseconds; 0 or less: the router's own back-off.
   * @throws TypeError if afterMs is no number, RangeError if it is NaN. Of a handler they are a failure like any other: a retry after that back-off.
   */
  constructor(
    readonly afterMs: number,
    message: string,
    options?: ErrorOptions,
  ) {
    super(message, options);
    if (typeof afterMs !== "number") throw new TypeError(`RetryAfter: afterMs is a value of the type ${typeof afterMs}, want a number of milliseconds`);
    if (Number.isNaN(afterMs)) throw new RangeError("RetryAfter: afterMs is NaN, want a number of milliseconds");
  }
}

/**
 * Thrown by the handler of a call: the call failed, and the caller gets `code` with the message. Any other error fails
 * the call too, with an empty code.
 */
export class CallFailure extends Error {
  override name = "CallFailure";

  /** @param code of your own, up to 64 bytes; a longer one is dropped. */
  constructor(
    readonly code: string,
    message: string,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/**
 * The reason of a signal: the caller is no longer waiting for the call that the handler answers. The handler's return value is
 * discarded.
 */
export class CallerGoneError extends Error {
  override name = "CallerGoneError";

  constructor() {
    super("the caller is no longer waiting: the handler's return value is discarded");
  }
}

/**
 * What became of a call without a reply.
 *
 * - `failed`: the handler threw.
 * - `not_run`: the call has not run, and never will; it can be repeated.
 * - `unknown`: it may have run, and may still run until its timeout. Only a call with an id can be repeated safely.
 * - `done_before`: a call with its id was answered before, and its reply is no longer known.
 */
export type CallOutcome = "failed" | "not_run" | "unknown" | "done_before";

const callOutcomes: Record<CallOutcome, string> = {
  failed: "the call failed",
  not_run: "the call has not run",
  unknown: "the call may have run",
  done_before: "the call was already done",
};

/** Lane.invoke rejects with it: the call has no reply. */
export class CallError extends Error {
  override name = "CallError";

  constructor(
    readonly outcome: CallOutcome,
    /**
     * failed: the code of the handler's CallFailure, else "". not_run: timeout, overloaded, no_handler, cycle, parked, too_large, leaving or
     * unreachable; "" if the router refused the request.
     */
    readonly code = "",
    /** Why, in words. */
    readonly text = "",
    /** not_run: when to call again, in milliseconds; 0: as you like. */
    readonly retryAfterMs = 0,
    options?: ErrorOptions,
  ) {
    super(`${callOutcomes[outcome]}${code && ` (${code})`}${text && `: ${text}`}`, options);
  }
}

/** Lane.reserve rejects with it: the key was not reserved. */
export class NotReservedError extends Error {
  override name = "NotReservedError";

  constructor(
    /**
     * timeout: it was not free in time. Else overloaded, cycle, parked, too_large, leaving, unreachable, not_exclusive (the routers' ownership.mode is gossip),
     * not_covered (the group cannot promise the ttl), or lost (granted, and over before it could begin); "" if the router refused the request.
     */
    readonly code: string,
    /** Why, in words. */
    readonly text = "",
    /** When to ask again, in milliseconds; 0: as you like. */
    readonly retryAfterMs = 0,
    options?: ErrorOptions,
  ) {
    super(`the key is not reserved${code && ` (${code})`}${text && `: ${text}`}`, options);
  }
}

/** Lane.send rejects with it, and it fails a handler whose timers are not published: the event was not published. It can be sent again. */
export class NotSentError extends Error {
  override name = "NotSentError";

  constructor(
    /** Why, in words. */
    readonly text = "",
    options?: ErrorOptions,
  ) {
    super(`the event was not published${text && `: ${text}`}`, options);
  }
}

/** As NotSentError, but the event may have been published. Only one with an id can be sent again safely. */
export class MaybeSentError extends Error {
  override name = "MaybeSentError";

  constructor(
    /** Why, in words. */
    readonly text = "",
    options?: ErrorOptions,
  ) {
    super(`the event may have been published${text && `: ${text}`}`, options);
  }
}

/**
 * The reason of the signal of a handler or a reservation: the lease on the key has ended. Another handler may work on the
 * key now: write nothing.
 */
export class KeyLostError extends Error {
  override name = "KeyLostError";

  /** @param why in words, of a reservation. */
  constructor(why = "") {
    super(`the key is lost: another handler may work on it now, write nothing${why && ` (${why})`}`);
  }
}

/**
 * The reason of a handler's signal: the handler took longer than the router's handler.timeout
 * without Event.progress. It counts as a failure: the event is retried once the handler has ended. Or an operator has skipped the
 * event (router skip): it goes to the dead letter topic, unless the handler returns.
 */
export class HandlerTimeoutError extends Error {
  override name = "HandlerTimeoutError";

  constructor() {
    super("the handler took longer than handler.timeout: call event.progress() during long work, or raise the timeout");
  }
}

/**
 * The reason of a handler's signal: the worker stops, and the handler did not end within drainGraceMs. A handler that has done nothing yet may throw
 * one once its worker was told to stop: the event goes back to the router at once, and it counts as no failure.
 */
export class DrainTimeoutError extends Error {
  override name = "DrainTimeoutError";

  constructor() {
    super("the worker stops, and the handler did not end within the drain grace");
  }
}

/**
 * What a {@link RingfenceError} means. run() rejects with `argument` and `drain_timeout`, and with `refused` if the router refuses
 * one of Options.schedules; after all others it connects again, and the log and Hooks.disconnected report them.
 *
 * - `argument`: an option is out of range; RingfenceError.argument names it.
 * - `drain_timeout`: handlers ignored even the cancellation after the drain grace.
 * - `unreachable`: there is no router at the endpoint, TLS failed, or the router is stopping.
 * - `unauthenticated`: the token file cannot be read, or the router refuses its token.
 * - `version`: the router and this SDK have no protocol version in common.
 * - `too_many_workers`: the router already serves app.workers_max workers.
 * - `refused`: the router refused the session for another reason, which the message gives.
 * - `go_away`: the router ended the session in order, because it is stopping.
 * - `silent`: the router sent nothing for 10 s, though it answers Pings every 0.2 s.
 * - `broken`: an established session broke.
 */
export type ErrorCode =
  | "argument"
  | "drain_timeout"
  | "unreachable"
  | "unauthenticated"
  | "version"
  | "too_many_workers"
  | "refused"
  | "go_away"
  | "silent"
  | "broken";

const meanings: Record<ErrorCode, string> = {
  argument: "bad argument",
  drain_timeout: "handlers did not end within the drain grace",
  unreachable: "cannot reach the router",
  unauthenticated: "no valid token",
  version: "no common protocol version",
  too_many_workers: "the router has too many workers",
  refused: "the router refused the session",
  go_away: "the router ended the session",
  silent: "the router has been silent for 10 s; it, its machine or the network may be down",
  broken: "the session broke",
};

/** A failure of the SDK or of its session with the router, as opposed to a failure of a handler. */
export class RingfenceError extends Error {
  override name = "RingfenceError";

  /** @param argument with the code `argument`: the name of the option, else "". */
  constructor(
    readonly code: ErrorCode,
    detail = "",
    readonly argument = "",
    options?: ErrorOptions,
  ) {
    super(detail === "" ? meanings[code] : `${meanings[code]}: ${detail}`, options);
  }
}

/** The status codes of gRPC that end a stream in a way of its own. */
const codes = new Map<number, ErrorCode>([
  [14, "unreachable"], // UNAVAILABLE
  [16, "unauthenticated"], // UNAUTHENTICATED
  [9, "version"], // FAILED_PRECONDITION
  [8, "too_many_workers"], // RESOURCE_EXHAUSTED
]);

/** Returns what a status means that ended a session before its Welcome. */
export function refusal(status: number): ErrorCode {
  return codes.get(status) ?? "refused";
}

/** Returns whether something that was thrown is of a class. It never throws: a proxy whose trap throws is of no class. */
export function isA<T>(thrown: unknown, type: abstract new (...args: never[]) => T): thrown is T {
  try {
    return thrown instanceof type;
  } catch {
    return false;
  }
}

const looksMax = 100; // causes may form a circle

/**
 * Returns the first Reject, RetryAfter or CallFailure: of what was thrown, its causes, and the errors of an AggregateError, as Promise.any throws one.
 * undefined: there is none. It never throws.
 */
export function verdictOf(thrown: unknown): Reject | RetryAfter | CallFailure | undefined {
  const left = [thrown];
  try {
    for (let i = 0; i < looksMax && left.length > 0; i++) {
      const one = left.pop();
      if (one instanceof Reject || one instanceof RetryAfter || one instanceof CallFailure) return one;
      if (!(one instanceof Error)) continue;
      left.push(one.cause);
      if (one instanceof AggregateError) left.push(...one.errors.slice(0, looksMax).reverse());
    }
  } catch {} // a property of the application's own class
  return undefined;
}

/** Returns the text of anything that was thrown. It never throws, whatever that is. */
export function textOf(thrown: unknown): string {
  try {
    if (thrown instanceof Error) return String(thrown.message);
    return String(thrown);
  } catch {
    return "the handler threw a value that has no text";
  }
}
