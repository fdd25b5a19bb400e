import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { inspect } from "node:util";
import { MissedPolicy } from "../src/gen/ringfence/app/v1/app_pb.js";
import {
  at, cron, deliveries, every, KeyLostError, Reject, RetryAfter, RingfenceError, run, type Event, type Firing, type FiringHandler, type Options, type Schedule,
} from "../src/index.js";
import { pathOf } from "../src/lane.js";
import { schedulesMax } from "../src/schedules.js";
import { testRouter } from "../src/testing/index.js";
import { xxh64 } from "../src/xxh64.js";
import { deferred, hostile, Script, settled } from "./script.js";

const nothing = () => {};
const noEvent = (event: Event) => assert.fail(`the handler of events got ${event.key}`);
const time = Date.UTC(2026, 10, 30, 6);

/** Options with one schedule. */
const only = (handler: FiringHandler, more: Partial<Schedule> = {}): Options => ({ schedules: { report: { times: every(10_000), handler, ...more } } });

describe("Hello", () => {
  it("declares the schedules, in each session", async () => {
    const long = { name: "é".repeat(64), cron: "*".repeat(256), zone: "z".repeat(64) };
    const schedules: Record<string, Schedule> = {
      report: { times: cron("0 6 * * 1-5", "Europe/Berlin"), handler: nothing },
      utc: { times: cron("@daily"), handler: nothing, missed: "latest", graceMs: 86_400_000, jitterMs: 3_600_000 },
      tick: { times: every(10_000.9), handler: nothing, missed: "all", graceMs: 0, jitterMs: 0.9 },
      once: { times: at(new Date(time)), handler: nothing, missed: "skip", graceMs: 0.5 },
      [long.name]: { times: cron(long.cron, long.zone), handler: nothing },
    };
    const none = { cron: "", zone: "", everyMs: 0n, atMs: 0n, jitterMs: 0n, missed: MissedPolicy.UNSPECIFIED, graceMs: 0n };
    const want = [
      { ...none, name: "report", cron: "0 6 * * 1-5", zone: "Europe/Berlin" },
      { ...none, name: "utc", cron: "@daily", missed: MissedPolicy.LATEST, graceMs: 86_400_000n, jitterMs: 3_600_000n },
      { ...none, name: "tick", everyMs: 10_000n, missed: MissedPolicy.ALL, graceMs: 1n },
      { ...none, name: "once", atMs: BigInt(time), missed: MissedPolicy.SKIP, graceMs: 1n },
      { ...none, ...long },
    ];
    const script = new Script();
    const declared = (i: number) => {
      const { frame } = script.streams[i]!.requests[0]!;
      return frame.case === "hello" && frame.value.schedules.map(({ $typeName: _, ...fields }) => fields);
    };
    const stream = await script.start(nothing, { schedules });
    assert.deepEqual(declared(0), want);
    delete schedules.report; // what the application does with its object later changes nothing
    schedules.tick!.times = every(1);
    stream.end(14, "gone");
    await script.until(() => script.streams.length === 2 && script.streams[1]!.requests.length > 0);
    assert.deepEqual(declared(1), want);
    await script.end();
  });

  it("declares none without the option", async () => {
    const script = new Script();
    const { frame } = (await script.start(nothing)).requests[0]!;
    assert.deepEqual(frame.case === "hello" && frame.value.schedules, []);
    await script.end();
  });
});

describe("a firing", () => {
  it("has all that the router says of it", async (t) => {
    const router = testRouter(t);
    const seen = deferred<Firing>();
    await router.start(noEvent, only((firing, signal) => (assert.equal(signal, firing.signal), firing.progress(), seen.resolve(firing))));
    assert.equal((await router.fire({ schedule: "report", time: new Date(time), missed: 3, attempt: 2 }).outcome()).kind, "done");
    const firing = await seen.promise;
    assert.deepEqual([firing.schedule, firing.time, firing.missed, firing.attempt, String(firing.fence)], ["report", new Date(time), 3, 2, "0000000000000000001.00000000000000000001"]);
    assert.ok(firing.leaseUntil instanceof Date);
    assert.match(inspect(firing), /schedule: 'report'/);
    assert.deepEqual(pathOf(firing), [xxh64(Buffer.from("schedule/report"))]);
  });

  const throwing = (error: unknown) => () => {
    throw error;
  };
  const tests: Record<string, { handler: FiringHandler; want: object }> = {
    "that succeeds later": { handler: async () => {}, want: { kind: "done" } },
    "that fails": { handler: throwing(new Error("no database")), want: { kind: "retry", reason: "no database" } },
    "that fails later": { handler: async () => Promise.reject(new Error("no database")), want: { kind: "retry", reason: "no database" } },
    "that wants a delay": { handler: throwing(new RetryAfter(5, "busy")), want: { kind: "retry", afterMs: 5, reason: "busy" } },
    "that is rejected": { handler: async () => Promise.reject(new Reject("never")), want: { kind: "reject", reason: "never" } },
    "that throws what has no text": { handler: throwing(hostile()), want: { kind: "retry", reason: "the handler threw a value that has no text" } },
    "whose handler returns a generator": {
      handler: () => (function* () {})(),
      want: { kind: "retry", reason: "the handler returned a generator, which has run nothing: call a function, or an async function, without function* and yield" },
    },
  };
  for (const [name, { handler, want }] of Object.entries(tests)) {
    it(name, async (t) => {
      const router = testRouter(t);
      await router.start(noEvent, only(handler));
      assert.deepEqual(await router.fire({ schedule: "report" }).outcome(), { afterMs: 0, reason: "", startedNs: 0n, tookNs: 0n, ...want });
    });
  }

  it("runs the handler of its schedule, and an event that of events", async (t) => {
    const router = testRouter(t);
    const seen: string[] = [];
    const handler: FiringHandler = ({ schedule }) => void seen.push(`firing of ${schedule}`);
    await router.start((event) => void seen.push(event.timer?.name ?? event.key), { schedules: { a: { times: every(10_000), handler }, b: { times: every(10_000), handler: () => void seen.push("b") } } });
    await router.fire({ schedule: "a" }).outcome();
    await router.fire({ schedule: "b" }).outcome();
    await router.deliver({ key: "schedule/a" }).outcome();
    await router.deliver({ key: "schedule/a", timer: { name: "a timer", due: new Date() } }).outcome();
    assert.deepEqual(seen, ["firing of a", "b", "schedule/a", "a timer"]);
  });

  it("of a schedule that is not declared fails, and runs no handler", async (t) => {
    const router = testRouter(t);
    await router.start(noEvent, only(nothing));
    for (const name of ["other", "toString", "__proto__", ""]) {
      const { kind, reason } = await router.fire({ schedule: name }).outcome();
      assert.deepEqual([kind, reason], ["retry", `the schedule "${name}" is not declared here`]);
    }
  });

  it("fails at a worker without schedules", async (t) => {
    const router = testRouter(t);
    await router.start(noEvent);
    assert.deepEqual((await router.fire({ schedule: "report" }).outcome()).reason, 'the schedule "report" is not declared here');
    await router.stop();
    const iterator = router.deliveries();
    const next = iterator.next();
    const firing = router.fire({ schedule: "other" });
    assert.equal((await firing.outcome()).reason, 'the schedule "other" is not declared here');
    router.deliver({ key: "k" });
    const { value } = await next;
    assert.equal(value!.event.key, "k", "the loop got the firing");
    value!.done();
    await iterator.return();
  });

  it("is cancelled when its key is lost", async (t) => {
    const router = testRouter(t);
    const started = deferred();
    const reasons: unknown[] = [];
    await router.start(noEvent, only(async (firing, signal) => {
      started.resolve();
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
      reasons.push(signal.reason);
      assert.throws(() => firing.progress(), KeyLostError);
      throw signal.reason;
    }));
    const firing = router.fire({ schedule: "report" });
    await started.promise;
    await router.lose("schedule/report");
    assert.equal((await firing.outcome()).kind, "cancelled");
    assert.ok(reasons[0] instanceof KeyLostError);
  });

  it("sets timers of its key, which the handler of events gets", async (t) => {
    const router = testRouter(t);
    const seen: string[] = [];
    await router.start((event) => void seen.push(`${event.key} ${event.timer!.name} ${event.payload}`), only((firing) => {
      firing.after(60_000, "first", "1");
      firing.after(0, undefined, Buffer.from("2"));
      if (firing.attempt === 1) throw new Error("it fails");
    }));
    const first = router.fire({ schedule: "report" });
    assert.equal((await first.outcome()).kind, "retry");
    assert.equal(router.sent.length, 0);
    assert.equal((await (await first.redeliver()).outcome()).kind, "done");
    assert.deepEqual(router.sent.map(({ key, name, payload, id, afterMs }) => [String(key), name, String(payload), id, afterMs]), [
      ["schedule/report", "first", "1", `after/${1n << 61n}:1:-1:-1/0`, 60_000],
      ["schedule/report", "", "2", `after/${1n << 61n}:1:-1:-1/1`, 0],
    ]);
    await router.sent[0]!.deliver().outcome();
    assert.deepEqual(seen, ["schedule/report first 1"]);
  });

  it("is an event with a timer to hooks and interceptors", async (t) => {
    const router = testRouter(t);
    const seen: unknown[] = [];
    await router.start(noEvent, {
      ...only(() => void seen.push("handler")),
      hooks: { started: (event) => seen.push(event.timer), finished: (event, { kind }) => seen.push([event.key, kind]) },
      interceptors: [(next) => (event, signal) => (seen.push(event.key), next(event, signal))],
    });
    const due = new Date(time);
    await router.fire({ schedule: "report", time: due }).outcome();
    assert.deepEqual(seen, [{ name: "report", due }, "schedule/report", "handler", ["schedule/report", "done"]]);
  });
});

describe("a wrong schedule", () => {
  const good: Schedule = { times: every(10_000), handler: nothing };
  const wrong: Record<string, [schedules: unknown, message: string]> = {
    "no object": [null, "schedules is no object of schedules"],
    "a list": [[good], "schedules is no object of schedules"],
    "an empty name": [{ "": good }, 'schedules has the name "", want 1 to 128 bytes of printable text'],
    "a long name": [{ ["é".repeat(64) + "x"]: good }, `has the name "${"é".repeat(64)}x", want 1 to 128 bytes`],
    "half a character": [{ "a\ud800": good }, 'has the name "a\\ud800", want 1 to 128 bytes of printable text'],
    "a line feed": [{ "a\nb": good }, 'has the name "a\\nb", want 1 to 128 bytes of printable text'],
    "a wide space": [{ "a\u00a0b": good }, "bytes of printable text"],
    "no schedule": [{ report: nothing }, 'schedules has the schedule "report", which is no object: want times and a handler'],
    "no handler": [{ report: { times: every(10_000) } }, 'the schedule "report", which has no function as its handler'],
    "no times": [{ report: { handler: nothing } }, 'the schedule "report", whose times are none: want cron(…), every(…) or at(…)'],
    "times that are text": [{ report: { ...good, times: "0 6 * * *" } }, "whose times are none"],
    "a field that does not exist": [{ report: { ...good, grace: 5 } }, 'the schedule "report", in which grace is no option'],
    "no expression": [{ report: { ...good, times: cron("") } }, "whose expression is wrong: want 1 to 256 bytes of text"],
    "an expression that is no text": [{ report: { ...good, times: cron(6 as unknown as string) } }, "whose expression is wrong"],
    "a long expression": [{ report: { ...good, times: cron("é".repeat(129)) } }, "whose expression is wrong"],
    "a long zone": [{ report: { ...good, times: cron("0 6 * * *", "é".repeat(33)) } }, "whose zone is wrong: want at most 64 bytes of text"],
    "a zone that is no text": [{ report: { ...good, times: cron("0 6 * * *", null as unknown as string) } }, "whose zone is wrong"],
    "a policy that does not exist": [{ report: { ...good, missed: "toString" } }, "in which missed is toString, want latest, all or skip"],
    "a policy that is no text": [{ report: { ...good, missed: 1n } }, "in which missed is 1, want latest, all or skip"],
    "a negative grace": [{ report: { ...good, graceMs: -1 } }, "in which graceMs is -1, want 0 milliseconds or more"],
    "a grace that is no number": [{ report: { ...good, graceMs: "5" } }, "in which graceMs is 5, want 0 milliseconds or more"],
    "an endless jitter": [{ report: { ...good, jitterMs: Infinity } }, "in which jitterMs is Infinity, want 0 milliseconds or more"],
    "too many": [Object.fromEntries(Array.from({ length: schedulesMax + 1 }, (_, i) => [`s${i}`, good])), "schedules has 257 schedules, want at most 256"],
  };
  for (const period of [0, 0.5, -10_000, NaN, Infinity, 2 ** 60, 10_000n as unknown as number, "10000" as unknown as number]) {
    wrong[`a period of ${typeof period} ${period}`] = [{ report: { ...good, times: every(period) } }, "whose period is wrong: want a number of milliseconds, at least 10000"];
  }
  for (const wrongTime of [new Date(NaN), new Date(0), new Date(-1), time as unknown as Date]) {
    wrong[`a time of ${typeof wrongTime} ${Number(wrongTime)}`] = [{ report: { ...good, times: at(wrongTime) } }, "whose time is wrong: want a Date after 1970"];
  }
  for (const [name, [schedules, message]] of Object.entries(wrong)) {
    it(`is named before a connection: ${name}`, async () => {
      const script = new Script();
      await assert.rejects(run(nothing, script.options({ schedules: schedules as Record<string, Schedule> })), (err: unknown) => {
        assert.ok(err instanceof RingfenceError && err.code === "argument" && err.argument === "schedules", String(err));
        assert.ok(err.message.includes(message), err.message);
        return true;
      });
      assert.equal(script.streams.length, 0);
    });
  }

  it("is none if there are as many as a worker may have", async () => {
    const script = new Script();
    const stream = await script.start(nothing, { schedules: Object.fromEntries(Array.from({ length: schedulesMax }, (_, i) => [`s${i}`, good])) });
    const { frame } = stream.requests[0]!;
    assert.equal(frame.case === "hello" && frame.value.schedules.length, 256);
    await script.end();
  });

  it("has a generator function as its handler", async () => {
    const script = new Script();
    await assert.rejects(run(nothing, script.options(only(function* () {}))), { name: "TypeError", message: /^schedules: the handler of report is a generator function, / });
    assert.equal(script.streams.length, 0);
  });

  it("is any with deliveries", () => {
    assert.throws(() => deliveries(only(nothing)), { code: "argument", argument: "schedules", message: /only run accepts schedules/ });
  });
});

describe("a schedule that the router refuses", () => {
  const refused = 'app: schedule "report": cron: the minute is 61, want 0 to 59';
  const message = `the router refused the session: ${refused}`;

  /** Waits until the worker has ended because of it. */
  async function ended(script: Script): Promise<void> {
    const worker = script.ended!;
    script.ended = undefined; // its end would throw
    await assert.rejects(worker, { name: "RingfenceError", code: "refused", message });
  }

  it("ends the worker", async () => {
    const script = new Script();
    const heard: unknown[] = [];
    const stream = await script.start(nothing, { ...only(nothing), ready: (is) => heard.push(is), hooks: { disconnected: (err) => heard.push(err?.message) } });
    stream.end(3, refused);
    await ended(script);
    assert.equal(script.streams.length, 1);
    assert.deepEqual(heard, [false, message, false, undefined]);
    assert.deepEqual(script.log.map(({ level, fields }) => [level, fields.code, (fields.error as Error).message]), [["error", "refused", message]]);
  });

  it("lets handlers of an earlier session end first, within the grace", async () => {
    const script = new Script();
    const end = deferred();
    const stream = await script.start(() => end.promise, only(nothing));
    stream.welcome();
    stream.pong(3_600_000);
    stream.deliver(1);
    await settled();
    stream.end(14, "gone");
    await script.until(() => script.streams.length === 2 && script.streams[1]!.requests.length > 0);
    script.streams[1]!.end(3, refused);
    let over = false;
    const waits = ended(script).then(() => (over = true));
    await settled();
    assert.equal(over, false, "the worker did not wait for its handler");
    end.resolve();
    await waits;
  });

  it("ends the worker when handlers ignore the end of the grace", async () => {
    const script = new Script();
    const stream = await script.start(() => new Promise(nothing), { ...only(nothing), drainGraceMs: 0 });
    stream.welcome();
    stream.pong(3_600_000);
    stream.deliver(1);
    await settled();
    stream.end(14, "gone");
    await script.until(() => script.streams.length === 2 && script.streams[1]!.requests.length > 0);
    script.streams[1]!.end(3, refused);
    await ended(script);
  });

  // What is no refusal of a schedule, or can pass: the worker dials again.
  for (const [name, { options = only(nothing), welcome = false, code, text = refused }] of Object.entries<{ options?: Options; welcome?: boolean; code: number; text?: string }>({
    "a worker without schedules": { options: {}, code: 3 },
    "another schedule": { code: 3, text: 'app: schedule "other": hour = 25' },
    "an established session": { welcome: true, code: 3 },
    "a router that is not there": { code: 14 },
    "a router with too many workers": { code: 8 },
    "a router that wants a token": { code: 16 },
  })) {
    it(`is not ${name}`, async () => {
      const script = new Script();
      const stream = await script.start(nothing, options);
      if (welcome) stream.welcome();
      stream.end(code, text);
      await Promise.race([script.until(() => script.streams.length === 2), script.ended]);
      await script.end();
    });
  }
});
