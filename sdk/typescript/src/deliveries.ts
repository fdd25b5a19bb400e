import { Reject, RetryAfter, RingfenceError, textOf } from "./errors.js";
import type { Event, LeasedEvent } from "./event.js";
import type { Options } from "./options.js";
import { Runner, type Source } from "./runner.js";
import { UndeclaredSchedule } from "./schedules.js";

/**
 * An event that the application has asked for, to be answered once: by done, retry or reject. Its key waits until then, or
 * until the key is lost.
 */
export class Delivery {
  #answered = false;

  /** @internal */
  constructor(
    private readonly runner: Runner,
    private readonly leased: LeasedEvent,
  ) {}

  get event(): Event {
    return this.leased;
  }

  /** Aborts when the key is lost; see Event.signal. */
  get signal(): AbortSignal {
    return this.leased.signal;
  }

  get answered(): boolean {
    return this.#answered;
  }

  /** The event is handled: it is acked. */
  done(): void {
    this.#answer("done");
    this.runner.done(this.leased);
  }

  /**
   * The handling failed, and is retried.
   * @param reason an error, or anything with a text.
   * @param afterMs in milliseconds; 0: after the router's own back-off.
   * @throws TypeError or RangeError if afterMs is no number: the delivery is not answered then.
   */
  retry(reason: unknown, afterMs = 0): void {
    const failure = new RetryAfter(afterMs, textOf(reason), { cause: reason });
    this.#answer("retry");
    this.runner.failed(this.leased, failure);
  }

  /** The event will never succeed: it goes to the dead letter topic. */
  reject(reason: unknown): void {
    this.#answer("reject");
    this.runner.failed(this.leased, new Reject(textOf(reason), { cause: reason }));
  }

  #answer(how: string): void {
    if (this.#answered) throw new Error(`${how}: the delivery was already answered`);
    this.#answered = true;
  }
}

/** Somebody who waits for a delivery. */
interface Waiter {
  resolve(result: IteratorResult<Delivery, undefined>): void;
  reject(error: unknown): void;
}

/** The iterator of deliveries. */
export class Deliveries implements AsyncIterableIterator<Delivery> {
  readonly #runner: Runner;
  readonly #waiters: Waiter[] = [];
  readonly #source: Source = {
    ready: () => this.#waiters.length > 0,
    begin: (event) => {
      if (event.fired !== undefined) {
        this.#runner.failed(event, new UndeclaredSchedule(event.fired.schedule));
        return;
      }
      this.#runner.hook(() => this.#runner.traced(event, () => {}), "a span failed");
      this.#waiters.shift()!.resolve({ done: false, value: new Delivery(this.#runner, event) });
    },
  };
  #running: Promise<void> | undefined;
  #over = false;
  #error: unknown;

  /** @internal */
  constructor(options: Options) {
    this.#runner = new Runner(options);
    const { calls, schedules, interceptors } = this.#runner.settings;
    if (calls.size > 0) throw new RingfenceError("argument", "calls: only run accepts calls", "calls");
    if (schedules.size > 0) throw new RingfenceError("argument", "schedules: only run accepts schedules", "schedules");
    if (interceptors.length > 0) throw new RingfenceError("argument", "interceptors: only run has a handler, which they would be around", "interceptors");
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** Resolves with the next delivery, right when it starts, or with the end once the worker has stopped. */
  next(): Promise<IteratorResult<Delivery, undefined>> {
    this.#running ??= this.#runner.run(this.#source).then(
      () => this.#end(undefined),
      (err: unknown) => this.#end(err),
    );
    return new Promise((resolve, reject) => {
      if (this.#over) {
        if (this.#error !== undefined) reject(this.#error);
        else resolve({ done: true, value: undefined });
        return;
      }
      this.#waiters.push({ resolve, reject });
      this.#runner.start();
    });
  }

  #end(error: unknown): void {
    this.#over = true;
    this.#error = error;
    for (const waiter of this.#waiters.splice(0)) {
      if (error !== undefined) waiter.reject(error);
      else waiter.resolve({ done: true, value: undefined });
    }
  }

  /**
   * Stops the worker, as leaving the loop does, and waits for the answers of all deliveries that were handed out, for
   * drainGraceMs at most.
   */
  async return(): Promise<IteratorResult<Delivery, undefined>> {
    const { running } = this.#runner;
    if (running > 0) {
      const { logger, drainGraceMs } = this.#runner.settings;
      logger.warn("the loop over deliveries has ended; waiting for answers", { unanswered: running, grace_ms: drainGraceMs });
    }
    this.#runner.stop();
    await this.#running;
    if (this.#error !== undefined) throw this.#error;
    this.#over = true;
    return { done: true, value: undefined };
  }
}

/**
 * Connects to the router, as run does, and returns an iterator of deliveries. A delivery starts when the application
 * asks for it; the next one may be asked for before it is answered, which is how several keys are handled at once.
 *
 *     for await (const delivery of deliveries()) {
 *       await handle(delivery.event);
 *       delivery.done();
 *     }
 *
 * The loop ends when the worker stops. Answer each delivery before you leave the loop.
 * @throws RingfenceError with the code "argument" if an option is wrong. The iterator throws it with the code
 * "drain_timeout".
 */
export function deliveries(options: Options = {}): Deliveries {
  return new Deliveries(options);
}
