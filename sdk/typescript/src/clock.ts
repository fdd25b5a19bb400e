/**
 * The clock that leases run on. No other file reads it.
 *
 * A lease must go on while the machine sleeps, so the clock must, too. Node offers these:
 *
 * - `performance.now()` and `process.hrtime()` are libuv's uv_hrtime. On Linux that is
 *   CLOCK_MONOTONIC, which stops in a suspend: a worker that trusted it would take a lease of last
 *   night for valid. On macOS (mach_continuous_time) and Windows (QueryPerformanceCounter) it goes on.
 * - `Date.now()` goes on, but anybody can set it.
 * - `/proc/uptime` on Linux is CLOCK_BOOTTIME, which goes on and cannot be set, in steps of 10 ms.
 * - CLOCK_MONOTONIC_RAW, which NTP cannot slew, needs a native module. So this SDK does not declare
 *   `raw_clock`, and the router shortens its deadlines by what NTP can do (docs/exclusivity.md, "The clock of an
 *   application").
 *
 * On Linux the lease clock is therefore /proc/uptime. Its steps make a reading up to 10 ms too small,
 * which is harmless if each reading is used on its safe side ({@link Clock.sent}, {@link Clock.now}).
 * A reading costs some microseconds, too much for each event, so for one millisecond a reading is
 * extrapolated by performance.now(), unless a suspend came between: see {@link UptimeClock}.
 *
 * Wall-clock time decides nothing: a jump of Date.now() only causes another reading.
 */
import { closeSync, openSync, readSync } from "node:fs";
import type { Instant } from "./inbox.js";

/** The clock of a worker. Its methods do not block. */
export interface Clock {
  /** The present instant, or up to 13 ms later: starts and deadlines are compared with it. */
  now(): Instant;
  /** The present instant, or up to 10 ms earlier: deadlines count from it. */
  sent(): Instant;
  /** Nanoseconds of the machine's boot clock, as exactly as Node can tell, for Result.started_ns. */
  bootNs(): number;
  /** Called after each Pong with the newest deadline. For the test router. */
  renewed?(until: Instant): void;
  /** Called when there will be no more Pongs. For the test router. */
  ended?(): void;
}

// Fake timers of test frameworks replace the functions of Node, but not these: leases go on in a test, too.
const monotonic = performance.now.bind(performance);
const wall = Date.now.bind(Date);

/** What an {@link UptimeClock} is made of. All are in milliseconds. */
export interface Readings {
  /** CLOCK_BOOTTIME, rounded down to a multiple of stepMs. */
  uptime(): number;
  /** CLOCK_MONOTONIC, less any constant. */
  monotonic(): number;
  /** The wall clock, rounded down to whole milliseconds. */
  wall(): number;
}

/** How long one reading of /proc/uptime is extrapolated, in milliseconds of CLOCK_MONOTONIC. */
export const extrapolateMax = 1;

/**
 * How much the wall clock may move against CLOCK_MONOTONIC before /proc/uptime is read again, in
 * milliseconds. NTP slews both alike, so they part only when the wall clock is set, and in a suspend,
 * by exactly its length. Date.now() has whole milliseconds, so less than one proves nothing.
 */
const wallStep = 1;

/** The steps of /proc/uptime in milliseconds. */
const uptimeStep = 10;

/**
 * The lease clock of Linux.
 *
 * Why `now` is never behind CLOCK_BOOTTIME: a reading is behind by less than its step. It was taken
 * after the reading of CLOCK_MONOTONIC from which it is extrapolated. Both clocks have one rate, which NTP
 * steers, unless the machine sleeps; then the wall clock moves against CLOCK_MONOTONIC by the same
 * length, and the reading is discarded, if it is longer than wallStep plus the millisecond by which
 * the wall clock is rounded. So `now` adds the step and these two. A wall clock that is set back
 * by the length of the suspend at its end could hide it only until extrapolateMax is over.
 *
 * Why `sent` is never ahead of it: it is a reading just taken.
 */
export class UptimeClock implements Clock {
  #uptime = 0; // the newest reading
  #monotonic = -Infinity; // right before it
  #shift = 0; // the wall clock less CLOCK_MONOTONIC, right before it
  #least = -Infinity; // the greatest lower bound of CLOCK_BOOTTIME less CLOCK_MONOTONIC
  #step = uptimeStep;

  /** Called when the uptime turns out to have longer steps than 10 ms. */
  constructor(
    private readonly readings: Readings,
    private readonly coarse: (stepMs: number) => void,
  ) {}

  now(): Instant {
    const monotonic = this.readings.monotonic();
    const shift = this.readings.wall() - monotonic;
    if (!(monotonic - this.#monotonic < extrapolateMax) || Math.abs(shift - this.#shift) > wallStep) {
      this.#read(monotonic, shift);
    }
    return this.#uptime + this.#step + wallStep + 1 + (monotonic - this.#monotonic);
  }

  sent(): Instant {
    const monotonic = this.readings.monotonic();
    this.#read(monotonic, this.readings.wall() - monotonic);
    return this.#uptime;
  }

  #read(monotonic: number, shift: number): void {
    this.#uptime = this.readings.uptime();
    this.#monotonic = monotonic;
    this.#shift = shift;
    this.#least = Math.max(this.#least, this.#uptime - this.readings.monotonic());
    // CLOCK_BOOTTIME less CLOCK_MONOTONIC never shrinks. If it seems to, by more than a step, then this is not the
    // kernel's /proc/uptime: some containers have one that counts whole seconds.
    const behind = this.#least - (this.#uptime - monotonic);
    if (behind > this.#step) {
      this.#step = Math.ceil(behind);
      this.coarse(this.#step);
    }
  }

  /**
   * CLOCK_MONOTONIC plus the time asleep. Each reading narrows the error, which is less than 10 ms from
   * the first one on, and after a suspend.
   */
  bootNs(): number {
    if (this.#least === -Infinity) this.sent();
    return Math.round((this.readings.monotonic() + this.#least) * 1e6);
  }

  /** Reads until the uptime makes a step, which makes bootNs exact. Blocks for up to 10 ms. */
  calibrate(): void {
    const before = this.sent();
    const end = this.readings.monotonic() + 2 * uptimeStep;
    while (this.sent() === before && this.readings.monotonic() < end);
  }
}

/** The clock of systems without /proc/uptime, and a stand-in for it in tests. */
export class MonotonicClock implements Clock {
  /** One more, since instant 0 is in the past. */
  now(): Instant {
    return monotonic() + 1;
  }

  sent(): Instant {
    return this.now();
  }

  bootNs(): number {
    return Number(process.hrtime.bigint());
  }
}

/** Returns a function that reads the first number of /proc/uptime, in milliseconds. */
export function procUptime(path = "/proc/uptime"): () => number {
  const file = openSync(path, "r"); // as long as the process lives: one reading is one system call
  const buffer = Buffer.alloc(64);
  const uptime = () => {
    const length = readSync(file, buffer, 0, buffer.length, 0);
    const ms = Math.round(Number.parseFloat(buffer.toString("latin1", 0, length)) * 1000);
    if (!(ms > 0)) throw new Error(`${path} does not begin with a number of seconds`);
    return ms;
  };
  try {
    uptime();
  } catch (err) {
    closeSync(file);
    throw err;
  }
  return uptime;
}

let system: Clock | undefined;

/**
 * Returns the lease clock of this process, the same one at each call. `warn` is told what the clock
 * lacks.
 * @throws on Linux, if /proc/uptime cannot be read.
 */
export function systemClock(warn: (text: string) => void): Clock {
  if (system !== undefined) return system;
  if (process.platform !== "linux") {
    warn("leases run on process.hrtime, which may stop while this machine sleeps on some systems: use Linux in production");
    return (system = new MonotonicClock());
  }
  let uptime: () => number;
  try {
    uptime = procUptime();
  } catch (err) {
    throw new Error(`leases need a clock that continues while the machine sleeps: make /proc/uptime readable (${String(err)})`, { cause: err });
  }
  return (system = new UptimeClock({ uptime, monotonic, wall }, (stepMs) =>
    warn(`/proc/uptime is behind the kernel's clock by up to ${stepMs} ms, so handlers end that much earlier: it should be the kernel's own`),
  ));
}
