import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { extrapolateMax, MonotonicClock, procUptime, systemClock, UptimeClock, type Readings } from "../src/clock.js";
import { Inbox, Item } from "../src/inbox.js";
import { randomly } from "./randomly.js";

/** A machine that runs, sleeps, and whose clocks are read. All times are in milliseconds. */
class Machine implements Readings {
  boot: number;
  mono = 0;
  real = 1.7e12;
  reads = 0;

  constructor(
    boot = 50_000,
    private readonly step = 10,
  ) {
    this.boot = boot;
  }

  /** Both clocks go on; NTP slews them, and the wall clock, alike. */
  run(ms: number): void {
    this.boot += ms;
    this.mono += ms;
    this.real += ms;
  }

  sleep(ms: number): void {
    this.boot += ms;
    this.real += ms;
  }

  uptime(): number {
    this.reads++;
    this.run(0.002);
    return Math.floor(this.boot / this.step) * this.step;
  }

  monotonic(): number {
    return this.mono;
  }

  wall(): number {
    return Math.floor(this.real);
  }
}

const never = (step: number) => assert.fail(`the clock complains of steps of ${step} ms`);

describe("lease clock", () => {
  // now is never behind the boot clock and sent never ahead of it, so a deadline that counts from
  // sent and is compared with now never comes too late, whatever the machine does.
  randomly("errs on the safe side, also across suspends and changes of the wall clock", 500, (draw) => {
    const m = new Machine(50_000 + draw(0, 9_999) / 1000);
    const clock = new UptimeClock(m, never);
    for (let i = 0; i < 200; i++) {
      switch (draw(0, 5)) {
        case 0:
          m.run(draw(0, 2000) / 1000);
          break;
        case 1:
          m.run(draw(0, 300));
          break;
        case 2:
          m.sleep(draw(0, 1) === 0 ? draw(0, 5000) / 1000 : draw(0, 3_600_000));
          break;
        case 3:
          // The wall clock is set, and extrapolateMax passes before the next suspend.
          m.real += draw(-3_600_000, 3_600_000);
          m.run(extrapolateMax);
          break;
        case 4: {
          const before = m.boot;
          const sent = clock.sent();
          assert.ok(sent <= m.boot, `sent is ahead by ${sent - m.boot}`);
          assert.ok(sent > before - 10, `sent is behind by ${before - sent}`);
          break;
        }
        default: {
          const now = clock.now();
          assert.ok(now >= m.boot, `now is behind by ${m.boot - now}`);
          assert.ok(now < m.boot + 13, `now is ahead by ${now - m.boot}`);
        }
      }
    }
  });

  it("lets a lease end in a suspend, which the clock of Node would miss", () => {
    const m = new Machine();
    const clock = new UptimeClock(m, never);
    const b = new Inbox<Item>();
    for (const id of [1, 2]) b.give(new Item(id, 0));
    const k = b.ping(clock.sent());
    b.pong(clock.now(), k, 1570, [], []);
    const running = b.take(clock.now());
    assert.ok(running);
    const hrtime = m.monotonic();
    m.sleep(60_000);
    assert.equal(m.monotonic() - hrtime, 0, "the simulated CLOCK_MONOTONIC went on in a suspend");
    assert.equal(b.take(clock.now()), undefined, "a delivery started after the machine had slept through its deadline");
    const lost: Item[] = [];
    b.check(clock.now(), lost);
    assert.deepEqual(lost, [running]);
  });

  it("reads the file once in a millisecond, not for each event", () => {
    const m = new Machine();
    const clock = new UptimeClock(m, never);
    for (let i = 0; i < 1000; i++) {
      clock.now();
      m.run(0.005);
    }
    assert.ok(m.reads >= 5 && m.reads <= 7, `it was read ${m.reads} times in 5 ms`);
  });

  it("notices an uptime of whole seconds, warns, and is never behind again", () => {
    const m = new Machine(50_900, 1000);
    const steps: number[] = [];
    const clock = new UptimeClock(m, (step) => steps.push(step));
    for (let i = 0; i < 400; i++) {
      m.run(7);
      clock.now();
    }
    assert.ok(steps.length > 0 && steps.at(-1)! > 900 && steps.at(-1)! <= 1000, `reported: ${steps}`);
    for (let i = 0; i < 400; i++) {
      m.run(7);
      const now = clock.now();
      assert.ok(now + 10 >= m.boot, `now is behind by ${m.boot - now}`);
    }
  });

  it("knows the boot clock exactly once it is calibrated, and after more readings", () => {
    const m = new Machine(50_003.5);
    const clock = new UptimeClock(m, never);
    const off = () => Math.abs(clock.bootNs() / 1e6 - m.boot);
    assert.ok(off() < 10);
    clock.calibrate();
    assert.ok(off() < 0.1, `it is off by ${off()} ms`);
    m.sleep(60_000);
    clock.sent();
    assert.ok(off() < 10, `it is off by ${off()} ms after a suspend`);
    for (let i = 0; i < 1000; i++) {
      m.run(3.01);
      clock.sent();
    }
    assert.ok(off() < 0.2, `it is off by ${off()} ms after 1000 readings`);
  });

  it("is the kernel's uptime on this machine", { skip: process.platform === "linux" ? false : "there is no /proc/uptime" }, () => {
    const clock = systemClock((text) => assert.fail(text));
    assert.ok(clock instanceof UptimeClock);
    assert.equal(clock, systemClock(() => {}), "there are two clocks");
    const read = procUptime();
    let last = 0;
    for (let i = 0; i < 2000; i++) {
      const before = read();
      const now = clock.now();
      const sent = clock.sent();
      const after = read();
      assert.ok(now >= before && now >= last, "now is behind, or went back");
      assert.ok(sent >= before && sent <= after, `sent ${sent} is not between ${before} and ${after}`);
      const boot = clock.bootNs() / 1e6;
      assert.ok(boot > before - 10 && boot < read() + 20, `boot clock ${boot}, uptime ${before}`);
      last = before;
    }
  });

  it("refuses an uptime that is none", () => {
    const folder = mkdtempSync(join(tmpdir(), "ringfence-"));
    try {
      const path = join(folder, "uptime");
      writeFileSync(path, "up 3 days\n");
      assert.throws(() => procUptime(path), /does not begin with a number/);
      writeFileSync(path, "12.34 56.78\n");
      assert.equal(procUptime(path)(), 12_340);
      assert.throws(() => procUptime(join(folder, "none")), /ENOENT/);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it("goes on without /proc/uptime by the clock of Node", () => {
    const clock = new MonotonicClock();
    const sent = clock.sent();
    assert.ok(sent > 0 && clock.now() >= sent);
    assert.ok(clock.bootNs() > 0);
  });
});
