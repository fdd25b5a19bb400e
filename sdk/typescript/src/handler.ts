import { Reject, textOf } from "./errors.js";
import type { Event } from "./event.js";

/**
 * Works on one event. To return, or to resolve, means done: the event is acked. Thrown errors mean: a
 * {@link Reject} sends the event to the dead letter topic, a {@link RetryAfter} retries it after its
 * delay, any other one after the router's back-off. A generator function is no handler, and a generator that a handler returns, or
 * resolves with, is a failure: nothing of its body has run.
 *
 * `signal` aborts when the key is lost, with a KeyLostError as its reason; when the handler took longer than the
 * router's handler.timeout (HandlerTimeoutError); and when the worker stops and its grace is over
 * (DrainTimeoutError). From then on write nothing. What such a handler throws counts as neither
 * failure nor success; to return counts as success.
 */
export type Handler = (event: Event, signal: AbortSignal) => unknown;

/** Returns a handler that does something before or after it calls `next`. It is called once, when the worker starts. */
export type Interceptor = (next: Handler) => Handler;

/** The tags of what a generator function returns; those of the function itself end in "Function". */
const generatorTags = new Set<unknown>(["Generator", "AsyncGenerator"]);

/**
 * Refuses a generator function as a handler: a call of it runs nothing of its body, and yet it returns.
 * @throws TypeError
 */
export function refuseGeneratorFunction(name: string, handler: unknown): void {
  const tag = (handler as { [Symbol.toStringTag]?: unknown })[Symbol.toStringTag];
  if (tag !== "GeneratorFunction" && tag !== "AsyncGeneratorFunction") return;
  throw new TypeError(`${name} is a generator function, which a call does not run: want a function, or an async function, without function* and yield`);
}

/**
 * Refuses a generator that a handler has returned: nothing of its body has run.
 * @throws TypeError, which fails the event.
 */
export function refuseGenerator(returned: unknown): void {
  if (typeof returned !== "object" || returned === null) return;
  if (generatorTags.has((returned as { [Symbol.toStringTag]?: unknown })[Symbol.toStringTag])) {
    throw new TypeError("the handler returned a generator, which has run nothing: call a function, or an async function, without function* and yield");
  }
}

/** Returns a handler that fails if `handler` returns a generator, or resolves with one: an interceptor may drop what it returns. */
export function withoutGenerators(handler: Handler): Handler {
  return (event, signal) => {
    const returned = handler(event, signal);
    if (returned instanceof Promise) {
      return returned.then((value: unknown) => {
        refuseGenerator(value);
        return value;
      });
    }
    refuseGenerator(returned);
    return returned;
  };
}

const utf8 = new TextDecoder("utf-8", { fatal: true });

/**
 * Returns a handler that decodes the payload as JSON and passes the value on. An event whose payload is not JSON, or
 * that `check` throws for, is rejected.
 * @param check turns the parsed value into a T, such as the parse function of a schema. Without it the value is
 * passed on as it is.
 * @throws TypeError if `handle` is a generator function.
 */
export function json<T = unknown>(handle: (event: Event, value: T, signal: AbortSignal) => unknown, check?: (value: unknown) => T): Handler {
  refuseGeneratorFunction("json: handle", handle);
  const decode = (event: Event): T => {
    try {
      const value: unknown = JSON.parse(utf8.decode(event.payload));
      return check === undefined ? (value as T) : check(value);
    } catch (err) {
      throw new Reject(`decode JSON: ${textOf(err)}`, { cause: err });
    }
  };
  return (event, signal) => handle(event, decode(event), signal);
}
