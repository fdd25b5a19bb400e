import { onAbort } from "./abort.js";
import type { Clock } from "./clock.js";
import { UptimeClock } from "./clock.js";
import { decodeFrame, encodeReceipt, encodeRequest, encodeResults } from "./codec.js";
import { CallerGoneError, HandlerTimeoutError, KeyLostError, NotSentError, refusal, RingfenceError, textOf } from "./errors.js";
import { handlerReturned, type EventOwner, type LeasedEvent } from "./event.js";
import type { Pong, Revoke, Welcome, WorkResponse } from "./gen/ringfence/app/v1/app_pb.js";
import { Inbox, type Item } from "./inbox.js";
import { readToken, type Session as Described, type Settings } from "./options.js";
import { areNamedIn } from "./schedules.js";
import type { Publish } from "./sending.js";
import type { States } from "./state.js";
import type { Status, Wire } from "./transport.js";
import { narrow } from "./wire.js";
import { sdk } from "./version.js";

const protocolVersion = 1;

/** The status of gRPC that a router gives to a Hello that is wrong. */
const invalidArgument = 3;

/** How often deadlines are compared with the clock while a stream, or one of its handlers, lives. In milliseconds. */
export const checkEvery = 50;

/** The longest time that a timer of Node can wait, in milliseconds. With a longer one it fires at once. */
const timerMax = 2 ** 31 - 1;

/** The interval of Pings until the router's Welcome sets another one. In milliseconds. */
const pingDefault = 200;

/** The longest reason until the router's Welcome sets another bound. In bytes. */
const reasonMaxDefault = 1024;

/**
 * How long the router may be silent, in milliseconds. A machine that vanishes closes no connection,
 * and TCP notices only after a quarter of an hour. The router has the same bound (app.silence_max).
 */
const silenceMax = 10_000;

/** Bounds the answers in a Results frame. In bytes. */
const resultBytesMax = 1 << 20;

/**
 * How long handlers are started without a pause, in milliseconds: after that the event loop reads Pongs and
 * sends Pings before the next one starts. Otherwise a thousand handlers that compute for 10 ms each would
 * take all deadlines with them.
 */
const startsMax = 5;

/**
 * The least time between two Progress frames, in milliseconds: a handler that reports with each row would fill the memory with them while the router
 * reads nothing, since the stream takes all that is written.
 */
const progressEvery = 10;

/** How the session ended. */
export interface SessionEnd {
  /** The router had sent its Welcome. */
  welcomed: boolean;
  /** How long the router wants no new stream, in milliseconds. */
  awayMs: number;
  /** The router has refused a schedule by its name, and would refuse it again. */
  wrongSchedule: boolean;
  /** Why; undefined at the end of a drain. */
  error: RingfenceError | undefined;
}

/** What a session needs of its runner. */
export interface SessionUser {
  readonly settings: Settings;
  readonly clock: Clock;
  readonly states: States;
  /** Whether a delivery that is taken can start at once. */
  ready(): boolean;
  /** Starts the handler of a delivery that was taken right before. It does not throw. */
  begin(event: LeasedEvent): void;
  /** Handlers of other sessions that have not lost their keys. */
  aliveElsewhere(session: Session): number;
  /** Calls a hook. It does not throw. */
  hook(call: () => unknown): void;
  connected(session: Described): void;
  ended(session: Session, end: SessionEnd): void;
}

/**
 * One stream to the router: the shell around an inbox. All runs on the event loop, so frames are handled one by one and in
 * order. It ends once, and remains the owner of the handlers that still run then, until their deadlines.
 */
export class Session implements EventOwner {
  readonly inbox = new Inbox<LeasedEvent>();
  /** The router asks when handlers ran. */
  intervals = false;

  readonly #user: SessionUser;
  #wire: Wire | undefined;
  #given = 0; // number of the newest Deliveries frame received
  #told = 0; // number of the newest Deliveries frame for which a receipt was sent
  #sent = 0; // number of the newest Results frame sent
  #receipt = 0; // number of the newest Results frame that the router has received
  readonly #ongoing = new Set<LeasedEvent>(); // progress to be reported
  #progressAt = -Infinity; // when the next Progress may be sent
  #pingMs = pingDefault;
  #pings: NodeJS.Timeout | undefined;
  #silence = 0; // since the newest frame, in milliseconds of ticks
  #reasonMax = reasonMaxDefault;
  #described: Described | undefined; // since the Welcome
  #goingAway = false;
  #awayMs = 0;
  #failed: RingfenceError | undefined; // why this side gave the stream up
  #closing = false; // half-closed
  #over = false;
  #flushing = false; // a flush is scheduled
  #starting = false; // start is running
  #more: NodeJS.Immediate | undefined; // start goes on
  #held = 0; // at the last call of the hook

  constructor(user: SessionUser) {
    this.#user = user;
  }

  /** Dials. The end is reported to the user, also that of an attempt that fails. */
  open(connect: (session: Session) => Wire): void {
    try {
      this.#wire = connect(this);
    } catch (err) {
      this.#finish(err instanceof RingfenceError ? err : new RingfenceError("unreachable", textOf(err), "", { cause: err }));
      return;
    }
    const { name, maxInFlight, calls, schedules, stateMax } = this.#user.settings;
    // Not raw_clock: NTP can slew the clock (clock.ts).
    const capabilities = ["conformant", ...(calls.size > 0 ? ["calls"] : []), ...(stateMax > 0 ? ["state"] : [])];
    this.#send(encodeRequest(0, {
      case: "hello",
      value: {
        worker: name, maxInFlight, sdk, versionMin: protocolVersion, versionMax: protocolVersion, capabilities,
        schedules: Array.from(schedules.values(), ({ wire }) => wire),
      },
    }));
    this.#ping();
    this.#schedulePings(pingDefault);
  }

  get over(): boolean {
    return this.#over;
  }

  get welcomed(): boolean {
    return this.#described !== undefined;
  }

  get states(): States {
    return this.#user.states;
  }

  #send(frame: Buffer): void {
    this.#wire?.send(frame);
  }

  /** Asks for new deadlines. The clock is read before the frame is sent: deadlines count from then (rule 1). */
  #ping(): void {
    if (this.#over || this.#closing) return;
    const k = this.inbox.ping(this.#user.clock.sent());
    this.#send(encodeRequest(0, { case: "ping", value: { k: BigInt(k) } }));
  }

  #schedulePings(ms: number): void {
    clearInterval(this.#pings);
    this.#pingMs = ms;
    this.#pings = setInterval(() => this.#ping(), Math.min(ms, timerMax));
  }

  /** Handles a received frame. */
  frame(bytes: Buffer): void {
    if (this.#over || this.#failed) return;
    this.#silence = 0;
    try {
      const frame = decodeFrame(bytes, this);
      if (frame.receipt > this.#sent) throw new Error(`the router sent a receipt for Results frame ${frame.receipt}, but only ${this.#sent} were sent`); // no answer would follow it
      this.#receipt = Math.max(this.#receipt, frame.receipt);
      if (frame.number > 0) {
        this.#given = frame.number;
        for (const event of frame.events) this.inbox.give(event);
      }
      if (frame.other !== undefined) this.#control(frame.other);
    } catch (err) {
      const error = err instanceof RingfenceError ? err : new RingfenceError("broken", `a frame of the router: ${textOf(err)}`, "", { cause: err });
      this.fail(error);
      return;
    }
    this.start();
    this.tell();
  }

  #control(frame: WorkResponse["frame"]): void {
    switch (frame.case) {
      case "welcome":
        this.#welcome(frame.value);
        return;
      case "pong":
        this.#pong(frame.value);
        return;
      case "revoke":
        this.#revoke(frame.value);
        return;
      case "suspend":
        this.inbox.suspend();
        return;
      case "resume":
        this.inbox.resume();
        return;
      case "goAway":
        this.#goingAway = true;
        this.#awayMs = frame.value.retryAfterMs;
        this.#user.settings.logger.info("the router ends the stream", { reason: frame.value.reason });
        return;
      default: // frames of later routers
    }
  }

  #welcome(welcome: Welcome): void {
    if (welcome.version !== protocolVersion) {
      throw new RingfenceError("version", `the router chose ${welcome.version}, this SDK supports ${protocolVersion}`);
    }
    const { clock, settings } = this.#user;
    const { limits } = welcome;
    const first = !this.welcomed;
    if (first) this.intervals = welcome.capabilities.includes("intervals");
    this.#described = {
      node: welcome.node, group: welcome.group, worker: welcome.worker,
      inFlightMax: Math.min(limits?.maxInFlight || settings.maxInFlight, settings.maxInFlight),
    };
    if (limits?.pingIntervalMs && limits.pingIntervalMs !== this.#pingMs) this.#schedulePings(limits.pingIntervalMs);
    if (limits?.reasonMaxBytes) this.#reasonMax = limits.reasonMaxBytes;
    if (!first) return;
    if (this.intervals && clock instanceof UptimeClock) clock.calibrate();
    settings.logger.info("connected to the router", { node: welcome.node, group: welcome.group, worker: welcome.worker });
    this.#user.connected(this.#described);
  }

  #pong(pong: Pong): void {
    const lost: LeasedEvent[] = [];
    const { clock } = this.#user;
    this.inbox.pong(clock.now(), Number(pong.k), Number(pong.remainingNs) / 1e6, pong.draining.map(narrow), lost);
    clock.renewed?.(this.inbox.newest);
    this.#loseAll(lost);
  }

  #revoke(revoke: Revoke): void {
    if (revoke.all || revoke.partitions.length > 0) {
      const partitions = new Set(revoke.partitions);
      this.inbox.revoke((item) => revoke.all || partitions.has(item.partition));
      this.states.forget(this, (partition) => revoke.all || partitions.has(partition));
    }
    if (revoke.deliveryIds.length === 0) return;
    const ids = new Set(revoke.deliveryIds.map(narrow));
    const slow: LeasedEvent[] = [];
    this.inbox.cut((item: Item) => ids.has(item.id), slow);
    for (const event of slow) this.cancel(event, revoke.timedOut || event.call === undefined ? new HandlerTimeoutError() : new CallerGoneError());
  }

  /** Starts handlers as long as some may start. */
  start(): void {
    if (this.#starting || this.#more !== undefined || !this.inbox.startable) return;
    this.#starting = true;
    const user = this.#user;
    const room = user.settings.maxInFlight - user.aliveElsewhere(this);
    let now = user.clock.now();
    const until = now + startsMax;
    while (this.inbox.alive < room && user.ready()) {
      const event = this.inbox.take(now);
      if (event === undefined) break;
      user.begin(event);
      if (!this.inbox.startable) break;
      now = user.clock.now(); // right before each start: the handler may have computed for long (rule 2)
      if (now >= until) {
        this.#more = setImmediate(() => {
          this.#more = undefined;
          this.start();
          this.tell();
        });
        break;
      }
    }
    this.#starting = false;
  }

  /**
   * Sends what is to be sent, after the code that runs now and the promises that it has resolved: handlers that end
   * at once add their answers to one frame.
   */
  tell(): void {
    if (this.#flushing || this.#over || this.#starting) return;
    if (this.#told === this.#given && !this.#progressDue && !this.#canAnswer && !this.inbox.draining && this.#user.settings.hooks.window === undefined) return;
    this.#flushing = true;
    queueMicrotask(() => {
      this.#flushing = false;
      this.#flush();
    });
  }

  /** Whether a Progress is to be sent now. Otherwise what is sent next, or the check of deadlines, looks again. */
  get #progressDue(): boolean {
    return this.#ongoing.size > 0 && performance.now() >= this.#progressAt;
  }

  get #canAnswer(): boolean {
    return this.inbox.results.length > 0 && this.#receipt === this.#sent;
  }

  #flush(): void {
    if (this.#over || this.#closing) return;
    if (this.#progressDue) {
      const deliveryIds = [...this.#ongoing].filter((event) => event.list !== undefined).map((event) => BigInt(event.id)); // none follows its answer
      this.#ongoing.clear();
      if (deliveryIds.length > 0) {
        this.#progressAt = performance.now() + progressEvery;
        this.#send(encodeRequest(this.#given, { case: "progress", value: { deliveryIds } }));
        this.#told = this.#given;
      }
    }
    if (this.#canAnswer) {
      const { results } = this.inbox;
      const { frame, taken } = encodeResults(this.#given, ++this.#sent, results, this.#reasonMax, resultBytesMax);
      this.inbox.results = taken === results.length ? [] : results.slice(taken);
      this.#told = this.#given;
      this.#send(frame);
    } else if (this.#told < this.#given) {
      this.#told = this.#given;
      this.#send(encodeReceipt(this.#given));
    }
    this.#tellWindow();
    if (this.inbox.draining && this.inbox.held === 0 && this.inbox.results.length === 0 && this.#receipt === this.#sent) {
      this.#closing = true;
      clearInterval(this.#pings);
      this.#wire?.halfClose();
    }
  }

  #tellWindow(): void {
    const { hooks } = this.#user.settings;
    const { held } = this.inbox;
    if (hooks.window === undefined || held === this.#held || this.#described === undefined) return;
    this.#held = held;
    const { inFlightMax } = this.#described;
    this.#user.hook(() => hooks.window?.(held, inFlightMax));
  }

  /**
   * Cancels handlers whose deadline has passed. The runner calls it every checkEvery milliseconds, also after the end of
   * the stream, as long as handlers run (rule 6).
   */
  check(): void {
    const lost: LeasedEvent[] = [];
    this.inbox.check(this.#user.clock.now(), lost);
    this.#loseAll(lost);
  }

  /** Counts the silence of the router. In ticks, since a machine that was asleep could not receive anything. */
  tick(): void {
    if (this.#over) return;
    this.#silence += checkEvery;
    if (this.#silence > silenceMax) this.fail(new RingfenceError("silent"));
  }

  #loseAll(lost: LeasedEvent[]): void {
    for (const event of lost) this.cancel(event, new KeyLostError());
  }

  /** Cancels a handler that runs. Only the first cause counts. */
  cancel(event: LeasedEvent, cause: Error): void {
    if (this.states.size > 0) this.states.lose(event.keyName);
    if (event.cause !== undefined) return;
    event.cause = cause;
    this.#user.settings.logger.warn("handler cancelled", { message_id: String(event.messageId), attempt: event.attempt, error: cause.message });
    event.controller?.abort(cause);
  }

  /**
   * Compares the deadline of a delivery with the clock, when a handler asks whether it is cancelled. With its answer the event is over: another
   * handler may work on the key, and what this one has left behind must write nothing.
   */
  ask(event: LeasedEvent): void {
    if (event.cause !== undefined) return;
    if (event.list === undefined) {
      event.cause = new KeyLostError(handlerReturned); // not logged: the handler was not cancelled
      event.controller?.abort(event.cause);
    } else if (this.#user.clock.now() >= this.inbox.deadline(event)) this.check();
  }

  /** Whether the key of a handler is still its own. Unlike ask it cancels nothing. */
  holds(event: LeasedEvent): boolean {
    return event.cause === undefined && this.#user.clock.now() < this.inbox.deadline(event);
  }

  leaseUntil(event: LeasedEvent): Date {
    return new Date(Date.now() + this.inbox.deadline(event) - this.#user.clock.now());
  }

  /** Makes a Send over the connection of the stream. */
  readonly publish: Publish = (request, withinMs, signal) => {
    let token: string;
    try {
      token = readToken(this.#user.settings.tokenFile);
    } catch (err) {
      throw new NotSentError(textOf(err), { cause: err });
    }
    return new Promise((resolve, reject) => {
      const wire = this.#wire;
      if (this.#over || wire === undefined) {
        reject(new NotSentError("the stream has ended"));
        return;
      }
      const giveUp = wire.publish(token, request, withinMs, (failure, response) => {
        forget();
        if (failure === undefined) resolve(response);
        else reject(failure);
      });
      const forget = onAbort(signal, giveUp);
    });
  };

  progress(event: LeasedEvent): void {
    this.ask(event);
    if (event.cause !== undefined) throw event.cause;
    if (this.#over || event.list === undefined) return;
    this.#ongoing.add(event);
    this.tell();
  }

  /** Asks the router for no further deliveries, and ends the stream once all are answered. */
  drain(): void {
    if (this.inbox.draining || this.#over) return;
    this.inbox.drain();
    this.#send(encodeRequest(0, { case: "drain", value: { reason: "the application stops", node: this.#user.settings.leaveGroup } }));
    this.tell();
  }

  /** Gives the stream up. */
  fail(error: RingfenceError): void {
    if (this.#over || this.#failed) return;
    this.#failed = error;
    this.inbox.breakOff(); // nothing starts until the transport reports the end
    this.#wire?.cancel();
  }

  /** Called by the transport, once. */
  end(status: Status): void {
    const detail = status.details || `gRPC status ${status.code}`;
    const wrongSchedule = status.code === invalidArgument && !this.welcomed && areNamedIn(this.#user.settings.schedules.keys(), detail);
    this.#finish(this.#failed ?? (this.#goingAway ? new RingfenceError("go_away", detail) : this.#ending(status.code, detail)), wrongSchedule);
  }

  #ending(code: number, detail: string): RingfenceError | undefined {
    if (this.#closing && code === 0) return undefined;
    if (this.welcomed) return new RingfenceError("broken", detail);
    const kind = refusal(code);
    return new RingfenceError(kind, kind === "unreachable" && /EACCES/.test(detail) ? `${detail}: the router's app.socket_mode and app.socket_owner set the permissions of its socket` : detail);
  }

  #finish(error: RingfenceError | undefined, wrongSchedule = false): void {
    if (this.#over) return;
    this.#over = true;
    clearInterval(this.#pings);
    clearImmediate(this.#more);
    this.inbox.breakOff();
    this.states.forget(this, () => true); // after #over is set: handlers that still run leave none behind
    if (this.#held !== 0) this.#user.hook(() => this.#user.settings.hooks.window?.(0, this.#described!.inFlightMax));
    this.#user.ended(this, { welcomed: this.welcomed, awayMs: this.#awayMs, wrongSchedule, error });
  }
}
