/** Schedules: handlers that run at times of the clock, once in the whole group. Routers compute the times; the SDK declares them and calls the handlers. */
import { textOf } from "./errors.js";
import type { Fence, LeasedEvent } from "./event.js";
import { MissedPolicy as WirePolicy } from "./gen/ringfence/app/v1/app_pb.js";
import type { Handler } from "./handler.js";
import type { Changeable, Load } from "./state.js";

/** The most schedules of one worker. */
export const schedulesMax = 256;

/** The router's bounds of a schedule's texts, in bytes. It closes the connection of a Hello that is far longer than they allow, without a reason. */
const scheduleNameMax = 128;
const scheduleCronMax = 256;
const scheduleZoneMax = 64;

/** Times as they were given. Exactly one of cron, everyMs and atMs is set. */
interface Given {
  readonly cron?: string;
  readonly zone?: string;
  readonly everyMs?: number;
  readonly atMs?: number;
}

/** The times of a schedule: see cron, every and at. */
export class Times {
  readonly #given: Given; // private, so that nothing else has this type

  /** @internal */
  constructor(given: Given) {
    this.#given = given;
  }

  /** @internal */
  get given(): Given {
    return this.#given;
  }
}

/**
 * Returns the times of a cron expression of five fields (minute, hour, day of the month, month, day of the week), or of one of `@hourly`, `@daily`,
 * `@weekly`, `@monthly` and `@yearly`. A fixed hour follows the clock on the wall: a time that is skipped when the clock goes forward fires when the gap
 * ends; a time that comes twice when the clock goes back fires the first time. An hour of `*` fires by elapsed time.
 * @param zone a name of the IANA database such as "Europe/Berlin"; "" is UTC.
 */
export function cron(expression: string, zone = ""): Times {
  return new Times({ cron: expression, zone });
}

/** Returns the multiples of a period since 1970 in UTC. The period is in milliseconds, at least 10000. */
export function every(periodMs: number): Times {
  return new Times({ everyMs: typeof periodMs === "number" ? Math.floor(periodMs) : NaN });
}

/** Returns a single time. A schedule that is declared after its time does not run. */
export function at(time: Date): Times {
  return new Times({ atMs: time instanceof Date ? time.getTime() : NaN });
}

/**
 * What becomes of times that were missed, because no member was running, or an earlier firing took too long.
 *
 * - `latest`: the newest firing runs for all of them. The default.
 * - `all`: all run, one after the other, at most the newest 100.
 * - `skip`: firings that are more than a minute late do not run.
 */
export type MissedPolicy = "latest" | "all" | "skip";

const policies: Readonly<Record<MissedPolicy, number>> = { latest: WirePolicy.LATEST, all: WirePolicy.ALL, skip: WirePolicy.SKIP };

/** One run of a schedule. */
export interface Firing {
  /** The name of the schedule. */
  readonly schedule: string;
  /** The time of the schedule that this run is for, before jitter. */
  readonly time: Date;
  /** The number of earlier times that did not run, and that this run stands for, too. */
  readonly missed: number;
  /** 1 for the first run; grows with each failure. */
  readonly attempt: number;
  /** Greater than that of any earlier run of this schedule. Pass it to your database with every write. */
  readonly fence: Fence;
  /** The current end of the handler's lease: see Event.leaseUntil. */
  readonly leaseUntil: Date;
  /** The same signal as the second argument of the handler: see Event.signal. */
  readonly signal: AbortSignal;
  /** Restarts the router's handler.timeout: see Event.progress. */
  progress(): void;
  /** Sets a timer of the key schedule/NAME: see Event.after. The handler of events gets it. */
  after(afterMs: number, name?: string, payload?: string | Uint8Array): void;
  /** Resolves with what the firing before has left in this process, or loads it: see Event.state. */
  state<T extends Changeable>(load: () => T | PromiseLike<T>): Promise<T>;
  state<T extends Changeable>(name: string, load: () => T | PromiseLike<T>): Promise<T>;
}

/**
 * Runs one firing. `signal`, what it returns and what it throws are as for a Handler of events: a firing that fails is tried again until the next one
 * supersedes it, and one that a Reject ends goes to the dead letter topic.
 */
export type FiringHandler = (firing: Firing, signal: AbortSignal) => unknown;

/** A handler and its times. */
export interface Schedule {
  times: Times;
  handler: FiringHandler;
  /** What becomes of missed times: "latest" by default. */
  missed?: MissedPolicy;
  /** The greatest delay with which a firing still runs, in milliseconds: an hour by default, at most a day. Firings begin up to about a second late. */
  graceMs?: number;
  /**
   * Spreads schedules of the same time: each firing is later by a time less than this, in milliseconds, that is computed from the name. 0 by default, at most
   * an hour.
   */
  jitterMs?: number;
}

const fields: ReadonlySet<string> = new Set<keyof Schedule>(["times", "handler", "missed", "graceMs", "jitterMs"]);

/** What a delivery has that is a firing. */
export interface Fired {
  readonly schedule: string;
  readonly timeMs: number;
  readonly missed: number;
}

/** A firing of a session. */
class LeasedFiring implements Firing {
  /** @internal */
  constructor(
    private readonly event: LeasedEvent,
    private readonly fired: Fired,
  ) {}

  get schedule(): string {
    return this.fired.schedule;
  }

  get time(): Date {
    return new Date(this.fired.timeMs);
  }

  get missed(): number {
    return this.fired.missed;
  }

  get attempt(): number {
    return this.event.attempt;
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
    const { schedule, time, missed, attempt } = this;
    return { schedule, time, missed, attempt, fence: String(this.fence) };
  }
}

/** The names that the router takes: those that its logs and pages can show. */
const printable = /^[\p{L}\p{M}\p{N}\p{P}\p{S} ]+$/u;

/** Returns what is wrong with schedules, "" if nothing is. The router checks the rest: expressions, zones, and how long a time may be. */
export function wrongSchedules(schedules: Readonly<Record<string, Schedule>>): string {
  if (typeof schedules !== "object" || schedules === null || Array.isArray(schedules)) return "is no object of schedules";
  const list = Object.entries(schedules);
  if (list.length > schedulesMax) return `has ${list.length} schedules, want at most ${schedulesMax}`;
  for (const [name, schedule] of list) {
    const shown = JSON.stringify(name).slice(0, 80);
    if (!isText(name, scheduleNameMax) || !printable.test(name)) return `has the name ${shown}, want 1 to ${scheduleNameMax} bytes of printable text`;
    const wrong = wrongSchedule(schedule);
    if (wrong !== "") return `has the schedule ${shown}, ${wrong}`;
  }
  return "";
}

function wrongSchedule(schedule: Schedule): string {
  if (typeof schedule !== "object" || schedule === null) return "which is no object: want times and a handler";
  const { times, handler, missed, graceMs, jitterMs } = schedule;
  for (const field of Object.keys(schedule)) if (!fields.has(field)) return `in which ${field} is no option`;
  if (!(times instanceof Times)) return "whose times are none: want cron(…), every(…) or at(…)";
  const { cron, zone = "", everyMs, atMs } = times.given;
  if (cron !== undefined && (cron === "" || !isText(cron, scheduleCronMax))) return `whose expression is wrong: want 1 to ${scheduleCronMax} bytes of text`;
  if (!isText(zone, scheduleZoneMax)) return `whose zone is wrong: want at most ${scheduleZoneMax} bytes of text`;
  if (everyMs !== undefined && !(isMs(everyMs) && everyMs > 0)) return "whose period is wrong: want a number of milliseconds, at least 10000";
  if (atMs !== undefined && !(atMs > 0)) return "whose time is wrong: want a Date after 1970";
  if (typeof handler !== "function") return "which has no function as its handler";
  if (missed !== undefined && (typeof missed !== "string" || !Object.hasOwn(policies, missed))) return `in which missed is ${textOf(missed)}, want latest, all or skip`;
  if (graceMs !== undefined && !isMs(graceMs)) return `in which graceMs is ${textOf(graceMs)}, want 0 milliseconds or more`;
  if (jitterMs !== undefined && !isMs(jitterMs)) return `in which jitterMs is ${textOf(jitterMs)}, want 0 milliseconds or more`;
  return "";
}

/** Whether a value is a text that UTF-8 can express, in at most so many bytes. */
function isText(text: unknown, bytesMax: number): boolean {
  return typeof text === "string" && Buffer.byteLength(text) <= bytesMax && !/\p{Surrogate}/u.test(text);
}

/** Whether a value is a number of milliseconds that a frame can express. */
function isMs(ms: unknown): boolean {
  return typeof ms === "number" && ms >= 0 && ms <= Number.MAX_SAFE_INTEGER;
}

/** A checked schedule. */
export interface Declared {
  readonly handler: FiringHandler;
  /** As Hello declares it. It is described here, so that the types of this package can be read without the protobuf library. */
  readonly wire: {
    readonly name: string;
    readonly cron: string;
    readonly zone: string;
    readonly everyMs: bigint;
    readonly atMs: bigint;
    readonly jitterMs: bigint;
    readonly missed: number;
    readonly graceMs: bigint;
  };
}

/** Returns schedules in which wrongSchedules has found nothing, by name. */
export function declaredOf(schedules: Readonly<Record<string, Schedule>>): ReadonlyMap<string, Declared> {
  const map = new Map<string, Declared>();
  for (const [name, { times, handler, missed, graceMs, jitterMs = 0 }] of Object.entries(schedules)) {
    const { cron = "", zone = "", everyMs = 0, atMs = 0 } = times.given;
    const wire = {
      name, cron, zone, everyMs: BigInt(everyMs), atMs: BigInt(atMs), jitterMs: BigInt(Math.floor(jitterMs)),
      missed: missed === undefined ? WirePolicy.UNSPECIFIED : policies[missed],
      graceMs: graceMs === undefined ? 0n : BigInt(Math.max(1, Math.floor(graceMs))), // 0 is the router's default
    };
    map.set(name, { handler, wire });
  }
  return map;
}

/** Whether the text of a router's refusal names one of the schedules. Other refusals can pass, such as that of too many in all workers. */
export function areNamedIn(schedules: Iterable<string>, text: string): boolean {
  return Array.from(schedules).some((name) => text.includes(`schedule "${name.replace(/["\\]/g, "\\$&")}"`));
}

/** A router sends a firing only to workers that declare its schedule. */
export class UndeclaredSchedule extends Error {
  override name = "UndeclaredSchedule";

  constructor(schedule: string) {
    super(`the schedule ${JSON.stringify(schedule)} is not declared here`);
  }
}

/** Returns a handler of events and firings. */
export function withSchedules(schedules: ReadonlyMap<string, Declared>, handler: Handler): Handler {
  return (event, signal) => {
    const leased = event as LeasedEvent;
    const { fired } = leased;
    if (fired === undefined) return handler(event, signal);
    const run = schedules.get(fired.schedule)?.handler;
    if (run === undefined) throw new UndeclaredSchedule(fired.schedule);
    return run(new LeasedFiring(leased, fired), signal);
  };
}
