/**
 * The Node SDK of Ringfence: the application's side of the stream between a router and the application beside it.
 *
 *     await run(async (event, signal) => {
 *       await store.apply(event.key, event.fence.toString(), event.payload, { signal });
 *     });
 *
 * @packageDocumentation
 */
export type { Call, CallHandler } from "./call.js";
export { deliveries, type Deliveries, type Delivery } from "./deliveries.js";
export {
  CallError, CallerGoneError, CallFailure, DrainTimeoutError, HandlerTimeoutError, KeyLostError, MaybeSentError, NotReservedError, NotSentError, Reject, RetryAfter, RingfenceError,
  type CallOutcome, type ErrorCode,
} from "./errors.js";
export { Fence, type Event, type MessageId, type Property, type Timer } from "./event.js";
export { Lane, type InvokeOptions, type LaneOptions, type ReserveOptions, type SendOptions } from "./lane.js";
export { json, type Handler, type Interceptor } from "./handler.js";
export { defaultEndpoint, drainGraceDefault, endpointEnv, maxInFlightDefault, stateMaxDefault, tokenFileEnv } from "./options.js";
export type { Hooks, Logger, Options, Outcome, Session, TlsOptions } from "./options.js";
export type { Reservation } from "./reservation.js";
export { run } from "./run.js";
export { at, cron, every, type Firing, type FiringHandler, type MissedPolicy, type Schedule, type Times } from "./schedules.js";
export type { Traces } from "./traces.js";
