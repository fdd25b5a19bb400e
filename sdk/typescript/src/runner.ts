import { systemClock, type Clock } from "./clock.js";
import { codeOf, NoHandler, withCalls } from "./call.js";
import { DrainTimeoutError, isA, Reject, RetryAfter, RingfenceError, textOf, verdictOf } from "./errors.js";
import type { LeasedEvent } from "./event.js";
import { refuseGenerator, refuseGeneratorFunction, withoutGenerators, type Handler } from "./handler.js";
import { Kind, kindNames } from "./inbox.js";
import { readToken, type Options, type Session as Described, type Settings, settingsOf, warnOfPlainText } from "./options.js";
import { withSchedules } from "./schedules.js";
import { checkEvery, Session, type SessionEnd, type SessionUser } from "./session.js";
import { publishTimers } from "./sending.js";
import { States } from "./state.js";
import { installedTraces, Tracer } from "./traces.js";
import { grpcConnect, type Connect } from "./transport.js";

/** The delays before a new stream, in milliseconds. The router is on this machine, so a short delay is cheap and finds a restarted one soon. */
const delayMin = 50;
const delayMax = 2000;

/** The longest delay that a router may ask for, in milliseconds: its settings may be wrong, and the next one at the endpoint has no part in it. */
const awayMax = 60_000;

/**
 * How long, in milliseconds, a stopping worker waits for handlers that were cancelled at the end of the drain grace, and
 * for a router that has not sent its Welcome.
 */
const patience = 1000;

/** The least time between two lines about failed handlers, in milliseconds. */
const failuresEvery = 1000;

const spanFailed = "a span failed";

/** How deliveries are started: by calls of a handler, or by an iterator that asks for them. */
export interface Source {
  ready(): boolean;
  begin(event: LeasedEvent): void;
}

/** One worker: it opens one session after the other, and knows the handlers of all of them. */
export class Runner implements SessionUser {
  readonly settings: Settings;
  readonly clock: Clock;
  readonly states: States;
  source: Source | undefined;

  readonly #connect: Connect;
  readonly #sessions = new Set<Session>(); // the live one, and those whose handlers still run
  #live: Session | undefined;
  #running = 0; // handlers without an answer
  #stopping = false;
  #gaveUp = false;
  #refused: RingfenceError | undefined; // why the worker has stopped by itself
  #connecting = false; // the loop of connections has not ended
  #delay = delayMin;
  #opened = 0; // when the newest session was opened
  #pause: NodeJS.Timeout | undefined; // before the next stream
  #ticks: NodeJS.Timeout | undefined;
  readonly #ends: NodeJS.Timeout[] = [];
  #tracer: Tracer | undefined;
  #failures = 0; // not logged yet
  #failuresLogged = -Infinity;
  readonly #restore: (() => void)[] = []; // takes listeners away
  #resolve: () => void = () => {};
  #reject: (error: Error) => void = () => {};
  readonly #done = new Promise<void>((resolve, reject) => {
    this.#resolve = resolve;
    this.#reject = reject;
  });

  /** @throws RingfenceError with the code "argument". */
  constructor(options: Options) {
    const settings = (this.settings = settingsOf(options));
    this.states = new States(settings.stateMax, (keyName) => this.#hasLost(keyName));
    try {
      this.clock = options.clock ?? systemClock((text) => settings.logger.warn(text, {}));
    } catch (err) {
      throw new RingfenceError("argument", textOf(err), "clock", { cause: err });
    }
    this.#connect = options.connect ?? grpcConnect(settings.endpoint, options.tls);
    warnOfPlainText(settings);
  }

  /** Works until it is stopped. Resolves when all handlers have ended and the router has their answers. */
  async run(source: Source): Promise<void> {
    this.source = source;
    const { signal, traces } = this.settings.options;
    const api = traces === undefined ? await installedTraces() : traces || undefined;
    if (api !== undefined) this.#tracer = new Tracer(api);
    const stop = () => this.stop();
    if (signal !== undefined) {
      if (signal.aborted) this.#stopping = true;
      signal.addEventListener("abort", stop, { once: true });
      this.#restore.push(() => signal.removeEventListener("abort", stop));
    }
    if (this.settings.handleSignals) {
      const unlisten = () => {
        process.off("SIGTERM", onSignal);
        process.off("SIGINT", onSignal);
      };
      const onSignal = (name: string) => {
        if (!this.#stopping) {
          this.settings.logger.info("draining", { signal: name, running: this.#running, grace_ms: this.settings.drainGraceMs });
          this.stop();
          return;
        }
        unlisten(); // a further signal ends the process
        this.settings.logger.warn("a second signal: cancelling the running handlers", { signal: name, running: this.#running });
        this.#cut();
      };
      process.on("SIGTERM", onSignal);
      process.on("SIGINT", onSignal);
      this.#restore.push(unlisten);
    }
    this.#ticks = setInterval(() => this.#tick(), checkEvery);
    this.#connecting = true;
    if (this.#stopping) this.#disconnected(undefined);
    else this.#open();
    try {
      await this.#done;
    } finally {
      clearInterval(this.#ticks);
      for (const timer of this.#ends) clearTimeout(timer);
      for (const restore of this.#restore) restore();
      this.clock.ended?.();
    }
  }

  /** Handlers without an answer. */
  get running(): number {
    return this.#running;
  }

  /** Begins to stop: requests no more events, and lets running handlers end within the grace. Further calls do nothing. */
  stop(): void {
    if (this.#stopping) return;
    this.#stopping = true;
    if (!this.#connecting) return; // run has not begun to connect, and will see it
    this.#ends.push(setTimeout(() => this.#cut(), this.settings.drainGraceMs));
    const live = this.#live;
    if (live === undefined) {
      clearTimeout(this.#pause);
      this.#disconnected(undefined);
      return;
    }
    if (!live.welcomed) {
      this.#ends.push(setTimeout(() => live.welcomed || live.fail(new RingfenceError("unreachable", "the router sent no Welcome")), patience));
    }
    live.drain();
  }

  /** Cancels all handlers at the end of the grace, and gives those up that ignore it. */
  #cut(): void {
    // Not from the beginning of the drain: grace and patience together may be more than a timer can wait, and it would fire at once.
    this.#ends.push(setTimeout(() => this.#giveUp(), patience));
    for (const session of this.#sessions) {
      session.check(); // what has lost its key says so
      const running: LeasedEvent[] = [];
      session.inbox.cut(() => true, running);
      for (const event of running) session.cancel(event, new DrainTimeoutError());
    }
  }

  #giveUp(): void {
    this.#gaveUp = true;
    this.#live?.fail(new RingfenceError("drain_timeout"));
    this.#settle();
  }

  #tick(): void {
    for (const session of this.#sessions) session.check();
    this.start(); // handlers that have lost their keys make room
    this.#live?.tick();
  }

  #open(): void {
    const session = new Session(this);
    this.#opened = performance.now();
    this.#live = session;
    this.#sessions.add(session);
    session.open((events) => this.#connect(readToken(this.settings.tokenFile), events));
  }

  ended(session: Session, { welcomed, awayMs, wrongSchedule, error }: SessionEnd): void {
    this.#live = undefined;
    if (session.inbox.started === 0) this.#sessions.delete(session);
    if (this.#stopping) {
      if (error !== undefined) this.settings.logger.warn("the stream ended before the worker had drained", { error });
      this.#disconnected(undefined);
      return;
    }
    const reason = error ?? new RingfenceError("broken", "the router closed the stream");
    this.#tellDisconnected(reason);
    if (this.#stopping) return; // the hook has stopped the worker, and stop has told the rest
    if (wrongSchedule) {
      this.#refused = reason;
      this.settings.logger.error("the router refuses a schedule: the worker ends", { endpoint: this.settings.endpoint, code: reason.code, error: reason, running: this.#running });
      this.stop();
      return;
    }
    if (welcomed && performance.now() - this.#opened >= delayMax) this.#delay = delayMin; // a router may end each session right after its Welcome
    // The jitter keeps the workers of one router apart.
    const again = Math.max(Math.min(awayMs, awayMax), this.#delay * (1 - Math.random() / 2));
    this.#delay = Math.min(2 * this.#delay, delayMax);
    this.#pause = setTimeout(() => this.#open(), again); // before the line: a logger that stops the worker clears it
    this.settings.logger.warn("no stream to the router", { endpoint: this.settings.endpoint, code: reason.code, error: reason, again_in_ms: Math.round(again) });
  }

  /** There will be no further stream. */
  #disconnected(error: RingfenceError | undefined): void {
    this.#connecting = false;
    this.#tellDisconnected(error);
    this.#settle();
  }

  #tellDisconnected(error: RingfenceError | undefined): void {
    this.hook(() => this.settings.options.ready?.(false));
    this.hook(() => this.settings.hooks.disconnected?.(error));
  }

  /** Calls a hook, ready, or a tracer. What it throws, or its promise rejects with, is logged by its place: it must not keep the worker from going on. */
  hook(call: () => unknown, message = "a hook failed"): void {
    const failed = (thrown: unknown) => this.settings.logger.error(message, { ...placeOf(thrown) });
    try {
      const returned = call();
      if (returned instanceof Promise) returned.catch(failed);
    } catch (err) {
      failed(err);
    }
  }

  /** Ends run if nothing is left, or after the patience. */
  #settle(): void {
    if (!this.#stopping || this.#connecting) return;
    if (this.#refused !== undefined && (this.#running === 0 || this.#gaveUp)) this.#reject(this.#refused);
    else if (this.#running === 0) this.#resolve();
    else if (this.#gaveUp) this.#reject(new RingfenceError("drain_timeout", `${this.#running} are still running`));
  }

  connected(session: Described): void {
    this.hook(() => this.settings.hooks.connected?.(session));
    this.hook(() => this.settings.options.ready?.(true));
  }

  /** Whether a handler runs that has lost this key, on any stream. */
  #hasLost(keyName: string): boolean {
    for (const session of this.#sessions) if (session.inbox.hasLost((event) => event.keyName === keyName)) return true;
    return false;
  }

  aliveElsewhere(session: Session): number {
    let alive = 0;
    for (const other of this.#sessions) if (other !== session) alive += other.inbox.alive;
    return alive;
  }

  ready(): boolean {
    return this.source!.ready();
  }

  /** Starts what may start, after the source has become ready. */
  start(): void {
    this.#live?.start();
    this.#live?.tell();
  }

  begin(event: LeasedEvent): void {
    this.#running++;
    this.states.begun(event);
    const { hooks } = this.settings;
    if (hooks.started !== undefined) this.hook(() => hooks.started?.(event));
    if (hooks.finished !== undefined) event.begun = performance.now();
    if ((event.owner as Session).intervals) event.startedNs = this.clock.bootNs();
    this.source!.begin(event);
  }

  /** Calls a function with the trace of an event, if there is one. The span ends with the event. An event whose span cannot be started has none. */
  traced<T>(event: LeasedEvent, call: () => T): T {
    const tracer = this.#tracer;
    let started: ReturnType<Tracer["start"]> | undefined;
    if (tracer !== undefined) this.hook(() => void (started = tracer.start(event)), spanFailed);
    if (tracer === undefined || started === undefined) return call();
    event.endSpan = started.end;
    return tracer.with(started.active, call);
  }

  get traces(): boolean {
    return this.#tracer !== undefined;
  }

  /** Answers an event whose handler has succeeded, even after it was cancelled: when its timers are published, if it has set any. */
  done(event: LeasedEvent): void {
    event.returned = true;
    if (event.timers === undefined) {
      this.#finish(event, Kind.Done, 0, "", undefined);
      return;
    }
    publishTimers(event, (event.owner as Session).publish).then(
      () => this.#finish(event, Kind.Done, 0, "", undefined),
      (err: unknown) => this.failed(event, err),
    );
  }

  /** Answers an event whose handler has thrown, whatever that is. What a handler throws after its cancellation is not a failure. */
  failed(event: LeasedEvent, thrown: unknown): void {
    event.returned = true;
    const verdict = verdictOf(thrown);
    if (event.cause !== undefined || (this.#stopping && isA(thrown, DrainTimeoutError))) {
      this.#finish(event, Kind.Cancelled, 0, "", thrown);
    } else if (isA(thrown, NoHandler)) {
      event.startedNs = 0; // nothing has run
      this.#finish(event, Kind.NotStarted, 0, textOf(thrown), thrown);
    } else if (verdict instanceof Reject) {
      this.#finish(event, Kind.Reject, 0, textOf(verdict), thrown);
    } else if (verdict instanceof RetryAfter) {
      this.#finish(event, Kind.Retry, delayOf(verdict), textOf(verdict), thrown);
    } else {
      if (event.call === undefined || verdict === undefined) this.#logFailure(event, thrown);
      this.#finish(event, Kind.Retry, 0, textOf(verdict ?? thrown), thrown);
    }
  }

  /** Names the place of a failure, but not its text, which may contain parts of the event. */
  #logFailure(event: LeasedEvent, thrown: unknown): void {
    const now = performance.now();
    this.#failures++;
    if (now - this.#failuresLogged < failuresEvery) return;
    this.settings.logger.warn("handler failed", { message_id: String(event.messageId), attempt: event.attempt, ...placeOf(thrown), failures: this.#failures });
    this.#failuresLogged = now;
    this.#failures = 0;
  }

  #finish(event: LeasedEvent, kind: Kind, afterMs: number, reason: string, error: unknown): void {
    const session = event.owner as Session;
    const tookNs = event.startedNs > 0 ? this.clock.bootNs() - event.startedNs : 0;
    if (this.states.size > 0) this.states.ended(event, kind === Kind.Done && session.holds(event));
    if (event.call === undefined) session.inbox.end(event, kind, afterMs, reason, event.startedNs, tookNs);
    else session.inbox.end(event, kind, 0, reason, event.startedNs, tookNs, callResult(event, kind, error));
    this.#running--;
    if (event.endSpan !== undefined) this.hook(() => event.endSpan?.(kind), spanFailed);
    const { hooks } = this.settings;
    if (hooks.finished !== undefined) this.hook(() => hooks.finished?.(event, { kind: kindNames[kind], error, durationMs: performance.now() - event.begun }));
    if (session.over) {
      if (session.inbox.started === 0) this.#sessions.delete(session);
      this.#live?.start(); // it may have waited for room
      this.#live?.tell();
    } else {
      session.start();
      session.tell();
    }
    if (this.#stopping) this.#settle();
  }
}

/** Calls a handler for each event. */
export class Calls implements Source {
  readonly #handler: Handler;

  constructor(
    private readonly runner: Runner,
    handler: Handler,
  ) {
    if (typeof handler !== "function") throw new RingfenceError("argument", "handler is not a function", "handler");
    refuseGeneratorFunction("handler", handler);
    const { calls, schedules } = runner.settings;
    for (const [method, of] of calls) refuseGeneratorFunction(`calls: the handler of ${method}`, of);
    for (const [name, { handler: of }] of schedules) refuseGeneratorFunction(`schedules: the handler of ${name}`, of);
    this.#handler = intercepted(withCalls(calls, withSchedules(schedules, handler)), runner.settings);
  }

  ready(): boolean {
    return true;
  }

  begin(event: LeasedEvent): void {
    let later: PromiseLike<unknown> | undefined;
    try {
      const returned = this.runner.traces ? this.runner.traced(event, () => this.#handler(event, event.signal)) : this.#handler(event, event.signal);
      if (returned instanceof Promise) later = returned;
      else if (isThenable(returned)) later = Promise.resolve(returned);
      else refuseGenerator(returned);
    } catch (err) {
      this.runner.failed(event, err);
      return;
    }
    if (later === undefined) this.runner.done(event);
    else later.then((value) => this.#resolved(event, value), (err: unknown) => this.runner.failed(event, err));
  }

  #resolved(event: LeasedEvent, value: unknown): void {
    try {
      refuseGenerator(value);
    } catch (err) {
      this.runner.failed(event, err);
      return;
    }
    this.runner.done(event);
  }
}

/** Returns what the answer of a call has besides that of an event. */
function callResult(event: LeasedEvent, kind: Kind, thrown: unknown): { reply?: Uint8Array; code?: string } {
  if (kind === Kind.Done) return event.reply === undefined ? {} : { reply: event.reply };
  return kind === Kind.Cancelled ? {} : { code: codeOf(isA(thrown, NoHandler) ? thrown : verdictOf(thrown)) };
}

/** Returns the delay of a retry in whole milliseconds, 0 for none. It never throws: the application can have changed the error since it was made. */
function delayOf(thrown: RetryAfter): number {
  try {
    const { afterMs } = thrown;
    return typeof afterMs === "number" && afterMs > 0 ? Math.min(Math.ceil(afterMs), Number.MAX_SAFE_INTEGER) : 0;
  } catch {
    return 0;
  }
}

function isThenable(value: unknown): value is PromiseLike<unknown> {
  return typeof value === "object" && value !== null && typeof (value as { then?: unknown }).then === "function";
}

/** Puts the interceptors around a handler. */
function intercepted(handler: Handler, { interceptors }: Settings): Handler {
  for (const [i, interceptor] of [...interceptors.entries()].reverse()) {
    handler = interceptor(withoutGenerators(handler));
    if (typeof handler !== "function") throw new RingfenceError("argument", `interceptors: number ${i + 1} did not return a function`, "interceptors");
    refuseGeneratorFunction(`interceptors: what number ${i + 1} returned`, handler);
  }
  return handler;
}

/** The class of an error and the first lines of its stack. It never throws. */
function placeOf(thrown: unknown): { error: string; at?: string } {
  if (!isA(thrown, Error)) return { error: typeof thrown };
  try {
    const frames = String(thrown.stack).split("\n").filter((line) => /^\s+at /.test(line)).slice(0, 3);
    return { error: String(thrown.name), at: frames.map((line) => line.trim().slice(3)).join(" < ") };
  } catch {
    return { error: "Error" };
  }
}
