import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { MonotonicClock } from "../src/clock.js";
import { ResultKind } from "../src/gen/ringfence/app/v1/app_pb.js";
import { HandlerTimeoutError, KeyLostError, type Event, type Handler } from "../src/index.js";
import { deferred, Script, settled, type ScriptedStream } from "./script.js";

/** A handler that never ends by itself, and records what it sees. */
function hanging(): { handler: Handler; started: Event[]; lost: Map<string, unknown>; end: Map<string, () => void> } {
  const started: Event[] = [];
  const lost = new Map<string, unknown>();
  const end = new Map<string, () => void>();
  const handler: Handler = (event, signal) => {
    started.push(event);
    return new Promise<void>((resolve, reject) => {
      end.set(event.key, resolve);
      signal.addEventListener("abort", () => {
        lost.set(event.key, signal.reason);
        reject(signal.reason as Error);
      });
    });
  };
  return { handler, started, lost, end };
}

const kindsOf = (stream: ScriptedStream) => stream.answers.map((a) => [Number(a.id), ResultKind[a.kind]]);

describe("session", () => {
  it("says Hello, then pings, then receipts and answers in one frame", async () => {
    const script = new Script();
    const stream = await script.start(() => {}, { name: "me", maxInFlight: 7 });
    const hello = stream.requests[0]!.frame;
    assert.ok(hello.case === "hello");
    const { worker, maxInFlight, sdk, versionMin, versionMax, capabilities, maxBatchPerKey } = hello.value;
    assert.deepEqual({ worker, maxInFlight, versionMin, versionMax, capabilities, maxBatchPerKey }, { worker: "me", maxInFlight: 7, versionMin: 1, versionMax: 1, capabilities: ["conformant", "state"], maxBatchPerKey: 0 });
    assert.match(sdk, /^ringfence-typescript\/\d/);
    assert.deepEqual(stream.pings, [1n]);
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1, 2, 3);
    await settled();
    assert.deepEqual(stream.cases, ["hello", "ping", "results"]);
    const results = stream.requests[2]!;
    assert.equal(results.receipt, 1n);
    assert.ok(results.frame.case === "results");
    assert.equal(results.frame.value.number, 1n);
    assert.deepEqual(results.frame.value.results.map((r) => [r.deliveryId, r.kind, r.startedNs, r.tookNs]), [1n, 2n, 3n].map((id) => [id, ResultKind.DONE, 0n, 0n]));
    await script.end();
  });

  it("has one Results frame without a receipt in flight, and collects further answers", async () => {
    const script = new Script();
    const { handler, end } = hanging();
    const stream = await script.start(handler);
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1, 2, 3);
    await settled();
    assert.deepEqual(stream.cases, ["hello", "ping", "receipt"], "the receipt waits for a handler");
    for (const key of ["1", "2", "3"]) {
      end.get(key)!();
      await settled();
    }
    assert.deepEqual(kindsOf(stream), [[1, "DONE"]]);
    stream.send(undefined, 1n);
    await settled();
    assert.deepEqual(kindsOf(stream), [[1, "DONE"], [2, "DONE"], [3, "DONE"]]);
    const frames = stream.requests.flatMap(({ frame }) => (frame.case === "results" ? [frame.value] : []));
    assert.deepEqual(frames.map((f) => [f.number, f.results.length]), [[1n, 1], [2n, 2]]);
    await script.end();
  });

  it("pings at the interval of the Welcome", async () => {
    const script = new Script();
    const stream = await script.start(() => {});
    stream.welcome({ pingIntervalMs: 5 });
    await script.until(() => stream.pings.length >= 5);
    assert.deepEqual(stream.pings.slice(0, 5), [1n, 2n, 3n, 4n, 5n]);
    await script.end();
  });

  // A clock with steps has two readings, each on its safe side.
  it("counts deadlines from the earlier reading of the clock, and compares them with the later one", async () => {
    const script = new Script();
    script.clock.sent = () => script.clock.at - 10;
    const { handler, started } = hanging();
    const stream = await script.start(handler);
    stream.welcome();
    stream.pong(1000); // the Ping was sent at 990
    script.clock.at = 1990;
    stream.deliver(1);
    assert.equal(started.length, 0, "the deadline counts from a later reading");
    script.clock.at = 1989;
    stream.deliver(2);
    assert.equal(started.length, 2);
    await script.end();
  });

  it("starts nothing before the Pong, and between Suspend and Resume", async () => {
    const script = new Script();
    const { handler, started } = hanging();
    const stream = await script.start(handler);
    stream.welcome();
    stream.deliver(1);
    assert.equal(started.length, 0);
    stream.send({ case: "suspend", value: {} });
    stream.pong(1000);
    assert.equal(started.length, 0);
    stream.send({ case: "resume", value: {} });
    assert.equal(started.length, 1);
    await script.end();
  });

  it("cancels at the deadline, also after the stream has broken, and an abort is not a failure", async () => {
    const script = new Script();
    const { handler, started, lost, end } = hanging();
    const stream = await script.start(handler);
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1, 2);
    stream.end(14, "gone");
    await script.until(() => script.streams.length === 2 && script.streams[1]!.pings.length > 0);
    const next = script.streams[1]!;
    next.welcome();
    next.pong(60_000); // moves nothing of the older stream
    const ended = new Promise<void>((resolve) => started[0]!.signal.addEventListener("abort", () => resolve()));
    end.get("2")!(); // its answer is dropped
    script.clock.at += 1000;
    await ended; // by the timer
    assert.ok(lost.get("1") instanceof KeyLostError);
    next.deliver(1);
    await settled();
    assert.equal(started.length, 3);
    end.get("1")!();
    await settled();
    assert.deepEqual(kindsOf(next), [[1, "DONE"]], "an answer of the older stream was sent on the newer one");
    assert.deepEqual(kindsOf(stream), []);
    await script.end();
  });

  it("drops what waits when the stream breaks", async () => {
    const script = new Script();
    const { handler, started } = hanging();
    const stream = await script.start(handler);
    stream.welcome();
    stream.deliver(1);
    stream.end(14, "gone");
    await script.until(() => script.streams.length === 2 && script.streams[1]!.pings.length > 0);
    script.streams[1]!.welcome();
    script.streams[1]!.pong(60_000);
    await settled();
    assert.equal(started.length, 0);
    await script.end();
  });

  it("asks the clock when a handler asks its signal", async () => {
    const script = new Script();
    const seen: unknown[] = [];
    const stream = await script.start((event, signal) => {
      seen.push(signal.aborted, signal.reason);
      script.clock.at += 1000;
      seen.push(signal.aborted, signal.reason instanceof KeyLostError, event.signal === signal);
      assert.throws(() => signal.throwIfAborted(), KeyLostError);
      assert.throws(() => event.progress(), KeyLostError);
      throw new Error("too late");
    });
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1);
    await settled();
    assert.deepEqual(seen, [false, undefined, true, true, true]);
    assert.deepEqual(stream.answers, [{ id: 1n, kind: ResultKind.CANCELLED, reason: "" }]);
    await script.end();
  });

  it("tells the progress of every handler, also when one of them reports in a loop", async () => {
    const script = new Script();
    const { handler, started } = hanging();
    const stream = await script.start(handler);
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1, 2);
    await settled();
    const told = () => stream.requests.flatMap(({ frame }) => (frame.case === "progress" ? [frame.value.deliveryIds] : []));
    started[1]!.progress();
    for (let i = 0; i < 1000; i++) started[0]!.progress();
    await settled();
    assert.deepEqual(told(), [[2n, 1n]]);
    for (let i = 0; i < 1000; i++) started[0]!.progress();
    started[1]!.progress();
    await script.until(() => told().length > 1);
    assert.deepEqual(told(), [[2n, 1n], [1n, 2n]]);
    await script.end();
  });

  it("sends a few frames of progress, also when a handler reports with each turn of the loop", async () => {
    const script = new Script();
    const { handler, started } = hanging();
    const stream = await script.start(handler);
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1);
    await settled();
    const begun = performance.now();
    for (let i = 0; i < 2000; i++) {
      started[0]!.progress();
      await settled();
    }
    const most = 2 + (performance.now() - begun) / 10;
    const frames = stream.cases.filter((of) => of === "progress").length;
    assert.ok(frames >= 1 && frames <= most, `${frames} frames, want at most ${most}`);
    await script.end();
  });

  it("has signals that all of Node takes", async () => {
    const script = new Script();
    const done = deferred<unknown[]>();
    const stream = await script.start(async (_, signal) => {
      const { setTimeout: sleep } = await import("node:timers/promises");
      const any = AbortSignal.any([signal, new AbortController().signal]);
      const results = await Promise.allSettled([sleep(60_000, undefined, { signal }), sleep(60_000, undefined, { signal: any })]);
      done.resolve([signal instanceof AbortSignal, any.aborted, any.reason instanceof KeyLostError, ...results.map((r) => r.status === "rejected" && (r.reason as Error).name)]);
    });
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1);
    await settled();
    script.clock.at += 1000; // the timer notices it
    assert.deepEqual(await done.promise, [true, true, true, "AbortError", "AbortError"]);
    await script.end();
  });

  it("tells what a handler has left behind that its event is over, though the lease goes on", async () => {
    const script = new Script();
    const events: Event[] = [];
    const stream = await script.start((event) => {
      assert.equal(event.signal.aborted, false);
      events.push(event);
      if (events.length === 2) throw new Error("it fails");
    });
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1, 2);
    await settled();
    assert.deepEqual(kindsOf(stream), [[1, "DONE"], [2, "RETRY"]]);
    for (const event of events) {
      assert.equal(event.signal.aborted, true);
      for (const call of [() => event.signal.throwIfAborted(), () => event.progress(), () => event.after(0)]) assert.throws(call, { name: "KeyLostError", message: /the handler has returned/ });
    }
    await script.end();
  });

  it("freezes the deadline of a revoked handler, and moves it if the Pong lists it", async () => {
    const script = new Script();
    const { handler, lost, started } = hanging();
    const stream = await script.start(handler);
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1, 2, 3);
    stream.send({ case: "revoke", value: { partitions: [1, 2] } });
    stream.pong(5000, undefined, [2n]);
    script.clock.at += 1000;
    stream.pong(5000);
    assert.deepEqual([...lost.keys()], ["1"]);
    const before = Date.now();
    const until = started[1]!.leaseUntil.getTime();
    assert.ok(before + 4000 <= until && until <= Date.now() + 4000, `the lease ends in ${until - before} ms`);
    script.clock.at += 4000;
    assert.equal(started[1]!.signal.aborted, true);
    assert.equal(started[2]!.signal.aborted, true, "the stream's deadline has passed, too: the Ping was sent before");
    await script.end();
  });

  it("answers what a Revoke finds waiting, and cancels single deliveries at once", async () => {
    const script = new Script();
    const { handler, lost, started } = hanging();
    const stream = await script.start(handler);
    stream.welcome();
    stream.deliver(1, 2);
    stream.send({ case: "revoke", value: { all: true } });
    await settled();
    assert.deepEqual(kindsOf(stream), [[1, "NOT_STARTED"], [2, "NOT_STARTED"]]);
    stream.pong(1000);
    stream.deliver(3, 4);
    stream.send({ case: "revoke", value: { deliveryIds: [3n] } }, 1n);
    await settled();
    assert.deepEqual(started.map((e) => e.key), ["3", "4"]);
    assert.ok(lost.get("3") instanceof HandlerTimeoutError);
    assert.deepEqual(kindsOf(stream).at(-1), [3, "CANCELLED"]);
    await script.end();
  });

  it("says when handlers ran only if the router asks", async () => {
    for (const asks of [true, false]) {
      const script = new Script();
      const stream = await script.start(() => void (script.clock.at += 5));
      stream.welcome({ capabilities: asks ? ["something", "intervals"] : ["something"] });
      stream.pong(1000);
      stream.deliver(1);
      await settled();
      const { frame } = stream.requests.at(-1)!;
      assert.ok(frame.case === "results");
      assert.deepEqual(frame.value.results.map((r) => [r.startedNs, r.tookNs]), asks ? [[1_000_000_000n, 5_000_000n]] : [[0n, 0n]]);
      await script.end();
    }
  });

  it("ends the session at a version that it does not speak, and at a frame that is none", async () => {
    const script = new Script();
    const stream = await script.start(() => {});
    stream.welcome({ version: 99 });
    assert.ok(stream.cancelled);
    await script.until(() => script.streams.length === 2 && script.streams[1]!.pings.length > 0);
    const codes = () => script.log.filter((l) => l.message === "no stream to the router").map((l) => l.fields.code);
    assert.deepEqual(codes(), ["version"]);
    script.streams[1]!.welcome();
    script.streams[1]!.bytes(Buffer.of(0x1a, 200));
    assert.ok(script.streams[1]!.cancelled);
    await script.until(() => script.streams.length === 3);
    assert.deepEqual(codes(), ["version", "broken"]);
    await script.end();
  });

  it("ignores frames and fields of later routers", async () => {
    const script = new Script();
    const stream = await script.start(() => {});
    stream.welcome();
    stream.bytes(Buffer.of(0xc2, 0x3e, 1, 0)); // field 1000
    stream.bytes(Buffer.alloc(0));
    stream.pong(1000);
    stream.deliver(1);
    await settled();
    assert.deepEqual(kindsOf(stream), [[1, "DONE"]]);
    await script.end();
  });

  it("dials again after retry_after_ms of a GoAway", async () => {
    const script = new Script();
    const stream = await script.start(() => {});
    stream.welcome();
    stream.send({ case: "goAway", value: { reason: "deploy", retryAfterMs: 300 } });
    const at = performance.now();
    stream.end(14, "bye");
    await script.until(() => script.streams.length === 2);
    assert.ok(performance.now() - at >= 299);
    assert.ok(script.log.some((l) => l.fields.code === "go_away"));
    await script.end();
  });

  it("waits also for times that are too long for a timer of Node", async () => {
    const script = new Script();
    const stream = await script.start(() => {});
    stream.welcome({ pingIntervalMs: 2 ** 32 - 1 });
    const pings = stream.pings.length;
    stream.send({ case: "goAway", value: { reason: "for ever", retryAfterMs: 2 ** 32 - 1 } });
    await sleep(100);
    assert.equal(stream.pings.length, pings);
    stream.end(14, "bye");
    await sleep(100);
    assert.equal(script.streams.length, 1);
    await script.end();
  });

  it("waits longer and longer for a router that ends each session right after its Welcome", async () => {
    const script = new Script();
    await script.start(() => {});
    for (let n = 1; n <= 5; n++) {
      await script.until(() => script.streams.length === n);
      script.streams.at(-1)!.welcome();
      script.streams.at(-1)!.end(14, "bye");
    }
    const pauses = script.log.flatMap(({ message, fields }) => (message === "no stream to the router" ? [Number(fields.again_in_ms)] : []));
    assert.ok(pauses.length === 5 && pauses[4]! >= 400, pauses.join());
    await script.end();
  });

  it("stays away for a minute at most", async () => {
    const script = new Script();
    const stream = await script.start(() => {});
    stream.welcome();
    stream.send({ case: "goAway", value: { reason: "for ever", retryAfterMs: 2 ** 32 - 1 } });
    stream.end(14, "bye");
    assert.equal(script.log.find(({ message }) => message === "no stream to the router")?.fields.again_in_ms, 60_000);
    await script.end();
  });

  it("ends the session at deliveries without a number: nobody would answer them", async () => {
    const script = new Script();
    const stream = await script.start(() => {});
    stream.welcome();
    stream.pong(1000);
    stream.send({ case: "deliveries", value: { topics: ["t"], tokens: [1n], deliveries: [{ deliveryId: 1n, partition: 1, key: Buffer.from("k"), attempt: 1, turn: 1n }] } });
    await settled();
    assert.ok(stream.cancelled);
    await script.end();
  });

  it("says that timers were not published when the token cannot be read", async () => {
    const folder = mkdtempSync(join(tmpdir(), "ringfence-"));
    const tokenFile = join(folder, "token");
    try {
      writeFileSync(tokenFile, "first");
      const script = new Script();
      const stream = await script.start((event) => event.after(0), { tokenFile });
      rmSync(tokenFile);
      stream.welcome();
      stream.pong(1000);
      stream.deliver(1);
      await settled();
      assert.match(stream.answers[0]?.reason ?? "", /the event was not published.*token file/);
      await script.end();
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it("ends the session at a frame with a number that no router reaches", async () => {
    const script = new Script();
    const stream = await script.start((event) => event.progress());
    stream.welcome();
    stream.pong(1000);
    stream.send({ case: "deliveries", value: { number: 2n ** 64n - 1n, topics: ["t"], tokens: [1n], deliveries: [{ deliveryId: 1n, partition: 1, key: Buffer.from("k"), attempt: 1, turn: 1n }] } });
    await settled();
    assert.ok(stream.cancelled);
    await script.end();
  });

  it("ends the session at a receipt for a frame that was not sent: no answer would follow it", async () => {
    const script = new Script();
    const stream = await script.start(() => {});
    stream.welcome();
    stream.pong(1000);
    stream.send(undefined, 7n);
    assert.ok(stream.cancelled);
    await script.end();
  });

  it("reads the token for each stream, and makes no attempt without it", async () => {
    const folder = mkdtempSync(join(tmpdir(), "ringfence-"));
    const tokenFile = join(folder, "token");
    try {
      writeFileSync(tokenFile, " first\n");
      const script = new Script();
      const stream = await script.start(() => {}, { tokenFile });
      writeFileSync(tokenFile, "\n");
      stream.end(16, "wrong token");
      await script.until(() => script.log.filter((l) => l.fields.code === "unauthenticated").length >= 2);
      assert.match(String((script.log.at(-1)!.fields.error as Error).message), /token file: .*token is empty/);
      assert.equal(script.streams.length, 1);
      writeFileSync(tokenFile, "second");
      await script.until(() => script.streams.length === 2);
      assert.deepEqual(script.streams.map((s) => s.token), ["first", "second"]);
      await script.end();
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it("names why a session was refused", async () => {
    const script = new Script();
    await script.start(() => {});
    const codes = [[14, "unreachable"], [16, "unauthenticated"], [9, "version"], [8, "too_many_workers"], [3, "refused"], [0, "refused"]] as const;
    for (const [i, [code]] of codes.entries()) {
      await script.until(() => script.streams.length === i + 1);
      script.streams[i]!.end(code, "because");
    }
    await script.until(() => script.log.length === codes.length);
    assert.deepEqual(script.log.map((l) => l.fields.code), codes.map(([, name]) => name));
    await script.end();
  });

  it("gives a silent stream up by ticks of its timer", async (t) => {
    t.mock.timers.enable({ apis: ["setInterval", "setTimeout"] });
    const script = new Script();
    const stream = await script.start(() => {});
    stream.welcome();
    t.mock.timers.tick(10_000);
    assert.equal(stream.cancelled, false, "it was given up too early");
    stream.send(undefined);
    t.mock.timers.tick(10_000);
    assert.equal(stream.cancelled, false, "a frame did not count");
    t.mock.timers.tick(50);
    assert.ok(stream.cancelled);
    await settled();
    assert.deepEqual(script.log.filter((l) => l.level === "warn").map((l) => l.fields.code), ["silent"]);
    const ending = script.end();
    t.mock.timers.tick(60_000);
    await ending;
  });
});

// The event loop may be blocked by a handler, for longer than the lease. What is read afterwards is old.
describe("a blocked event loop", () => {
  it("starts nothing after the deadline (rule 2)", async () => {
    const script = new Script();
    const started: string[] = [];
    const stream = await script.start((event) => {
      started.push(event.key);
      if (event.key === "1") script.clock.at += 1000; // it computes for a second
    });
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1, 2, 3);
    await settled();
    assert.deepEqual(started, ["1"]);
    stream.pong(1001); // of a Ping from before the block: it leaves a millisecond
    await settled();
    assert.deepEqual(started, ["1", "2", "3"]);
    await script.end();
  });

  it("does not revive a handler by a Pong that is read late (rule 3)", async () => {
    const script = new Script();
    script.clock.at = 1000;
    const { handler, lost, started } = hanging();
    const stream = await script.start(handler);
    stream.welcome({ pingIntervalMs: 5 });
    stream.pong(1000, 1n); // until 2000
    stream.deliver(1);
    script.clock.at = 1500;
    const before = stream.pings.length;
    await script.until(() => stream.pings.length > before);
    const k = stream.pings.at(-1)!; // sent at 1500: its Pong lies in the socket while the loop is blocked
    script.clock.at = 2000;
    stream.pong(60_000, k); // read before any timer runs
    assert.ok(lost.get("1") instanceof KeyLostError, "a passed deadline was extended");
    assert.equal(started[0]!.signal.aborted, true);
    await settled();
    assert.deepEqual(kindsOf(stream), [[1, "CANCELLED"]]);
    await script.end();
  });

  it("lets Pongs and Pings pass between handlers that compute", async () => {
    const script = new Script();
    const clock = new MonotonicClock();
    let started = 0;
    const stream = await script.start(
      () => {
        started++;
        for (const end = performance.now() + 3; performance.now() < end; );
      },
      { clock },
    );
    stream.welcome({ pingIntervalMs: 20 });
    stream.pong(60_000);
    stream.deliver(...Array.from({ length: 100 }, (_, i) => i + 1));
    assert.ok(started < 10, `${started} handlers of 3 ms ran without a pause`);
    await script.until(() => stream.answers.length > 0);
    await script.until(() => stream.pings.length >= 4);
    assert.ok(started < 100, "no Ping was sent while handlers were started");
    stream.send({ case: "suspend", value: {} });
    const at = started;
    await settled();
    await settled();
    assert.equal(started, at, "a handler started after a Suspend");
    stream.send({ case: "resume", value: {} });
    for (let receipt = 1n; stream.answers.length < 100; receipt++) {
      const answers = stream.answers.length;
      stream.send(undefined, receipt);
      await script.until(() => stream.answers.length > answers);
    }
    await script.end();
  });

  it("cancels in real time as soon as the loop runs again", async () => {
    const script = new Script();
    const { handler, lost } = hanging();
    const stream = await script.start(handler, { clock: new MonotonicClock() });
    stream.welcome();
    stream.pong(500);
    stream.deliver(1);
    for (const end = performance.now() + 500; performance.now() < end; );
    stream.pong(60_000);
    assert.ok(lost.get("1") instanceof KeyLostError);
    await script.end();
  });
});
