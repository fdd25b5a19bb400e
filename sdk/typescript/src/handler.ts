import { Reject, textOf } from "./errors.js";
import type { Event } from "./event.js";

/**
 * Works on one event. To return, or to resolve, means done: the event is acked. Thrown errors mean: a
 * {@link Reject} sends the event to the dead letter topic, a {@link RetryAfter} retries it after its
 * delay, any other one after the router's back-off.
 *
 * `signal` aborts when the key is lost, with a KeyLostError as its reason; when the handler took longer than the
 * router's handler.timeout (HandlerTimeoutError); and when the worker stops and its grace is over
 * (DrainTimeoutError). From then on write nothing. What such a handler throws counts as neither
 * failure nor success; to return counts as success.
 */
export type Handler = (event: Event, signal: AbortSignal) => unknown;

/** Returns a handler that does something before or after it calls `next`. It is called once, when the worker starts. */
export type Interceptor = (next: Handler) => Handler;

const utf8 = new TextDecoder("utf-8", { fatal: true });

/**
 * Returns a handler that decodes the payload as JSON and passes the value on. An event whose payload is not JSON, or
 * that `check` throws for, is rejected.
 * @param check turns the parsed value into a T, such as the parse function of a schema. Without it the value is
 * passed on as it is.
 */
export function json<T = unknown>(handle: (event: Event, value: T, signal: AbortSignal) => unknown, check?: (value: unknown) => T): Handler {
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
