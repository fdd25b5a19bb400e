import assert from "node:assert/strict";
import { getEventListeners, once } from "node:events";
import { describe, it, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { ResultKind } from "../src/gen/ringfence/app/v1/app_pb.js";
import {
  DrainTimeoutError, json, KeyLostError, HandlerTimeoutError, Reject, RetryAfter, RingfenceError, run, type CallHandler, type Event, type Handler, type Interceptor, type Outcome, type Session,
} from "../src/index.js";
import { testRouter } from "../src/testing/index.js";
import { deferred, hostile, Script, settled, withoutFields } from "./script.js";

setFlagsFromString("--expose-gc");
const collectGarbage = runInNewContext("gc") as () => void;

const returnedGenerator = "the handler returned a generator, which has run nothing: call a function, or an async function, without function* and yield";

function* generator() {
  yield assert.fail("it runs");
}

async function* asyncGenerator() {
  yield assert.fail("it runs");
}

describe("the answers of handlers", () => {
  const wait = { afterMs: 0, reason: "", startedNs: 0n, tookNs: 0n };
  const tests: Record<string, { handler: Handler; want: object }> = {
    "a value is done": { handler: () => 7, want: { ...wait, kind: "done" } },
    "a promise is done": { handler: async () => settled(), want: { ...wait, kind: "done" } },
    "a thenable is done": { handler: () => ({ then: (ok: (value: number) => void) => ok(1) }), want: { ...wait, kind: "done" } },
    "a thenable that fails": { handler: () => ({ then: (_: unknown, fail: (err: Error) => void) => fail(new Error("later")) }), want: { ...wait, kind: "retry", reason: "later" } },
    "an error is a retry": { handler: () => Promise.reject(new Error("no database")), want: { ...wait, kind: "retry", reason: "no database" } },
    "an error at once is a retry": {
      handler: () => {
        throw new TypeError("no function");
      },
      want: { ...wait, kind: "retry", reason: "no function" },
    },
    "a retry with its own delay": { handler: () => Promise.reject(new RetryAfter(90_000, "busy")), want: { ...wait, kind: "retry", afterMs: 90_000, reason: "busy" } },
    "a delay of part of a millisecond": { handler: () => Promise.reject(new RetryAfter(0.1, "busy")), want: { ...wait, kind: "retry", afterMs: 1, reason: "busy" } },
    "no delay": { handler: () => Promise.reject(new RetryAfter(-1, "busy")), want: { ...wait, kind: "retry", reason: "busy" } },
    "a delay without an end": { handler: () => Promise.reject(new RetryAfter(Infinity, "busy")), want: { ...wait, kind: "retry", reason: "busy", afterMs: Number.MAX_SAFE_INTEGER } },
    reject: { handler: () => Promise.reject(new Reject("not JSON")), want: { ...wait, kind: "reject", reason: "not JSON" } },
    "a reject in a group": { handler: () => Promise.any([Promise.reject(new Error("x")), Promise.reject(new Reject("never"))]), want: { ...wait, kind: "reject", reason: "never" } },
    "a retry as a cause": {
      handler: () => Promise.reject(new Error("x", { cause: new AggregateError([new RetryAfter(5, "later")]) })), want: { ...wait, kind: "retry", afterMs: 5, reason: "later" },
    },
    "a circle of causes": {
      handler: () => {
        const error = new Error("x");
        error.cause = error;
        throw error;
      },
      want: { ...wait, kind: "retry", reason: "x" },
    },
    "a text": { handler: () => Promise.reject("nonsense"), want: { ...wait, kind: "retry", reason: "nonsense" } },
    nothing: { handler: () => Promise.reject(undefined), want: { ...wait, kind: "retry", reason: "undefined" } },
    "a value without a text": { handler: () => Promise.reject(Object.create(null)), want: { ...wait, kind: "retry", reason: "the handler threw a value that has no text" } },
    "a generator is a retry": { handler: () => generator(), want: { ...wait, kind: "retry", reason: returnedGenerator } },
    "an async generator is a retry": { handler: () => asyncGenerator(), want: { ...wait, kind: "retry", reason: returnedGenerator } },
    "a generator later is a retry": { handler: async () => generator(), want: { ...wait, kind: "retry", reason: returnedGenerator } },
    "an async generator of a thenable is a retry": { handler: () => ({ then: (ok: (value: unknown) => void) => ok(asyncGenerator()) }), want: { ...wait, kind: "retry", reason: returnedGenerator } },
    "another iterator is done": { handler: () => [1][Symbol.iterator](), want: { ...wait, kind: "done" } },
    "a returned value of which nothing can be read": { handler: () => hostile(), want: { ...wait, kind: "retry", reason: "hostile" } },
    "a delay that is a bigint": {
      handler: () => {
        throw new RetryAfter(1000n as unknown as number, "busy");
      },
      want: { ...wait, kind: "retry", reason: "RetryAfter: afterMs is a value of the type bigint, want a number of milliseconds" },
    },
    "a delay that is no number": {
      handler: async () => {
        throw new RetryAfter(NaN, "busy");
      },
      want: { ...wait, kind: "retry", reason: "RetryAfter: afterMs is NaN, want a number of milliseconds" },
    },
    "a delay that is a bigint by now": { handler: () => Promise.reject(Object.assign(new RetryAfter(1, "busy"), { afterMs: 1000n })), want: { ...wait, kind: "retry", reason: "busy" } },
    "a delay that cannot be read": { handler: () => Promise.reject(withoutFields(new RetryAfter(1, "busy"), "afterMs")), want: { ...wait, kind: "retry", reason: "busy" } },
    "an error that cannot be read": {
      handler: () => {
        throw withoutFields(new Error("x"), "stack", "message", "name", "toString", "constructor", "cause");
      },
      want: { ...wait, kind: "retry", reason: "the handler threw a value that has no text" },
    },
    "a reject that cannot be read": { handler: () => Promise.reject(withoutFields(new Reject("x"), "stack", "message")), want: { ...wait, kind: "reject", reason: "the handler threw a value that has no text" } },
    "a value of which nothing can be read": {
      handler: () => {
        throw hostile();
      },
      want: { ...wait, kind: "retry", reason: "the handler threw a value that has no text" },
    },
    "a value of which nothing can be read, later": { handler: () => Promise.reject(hostile()), want: { ...wait, kind: "retry", reason: "the handler threw a value that has no text" } },
  };
  for (const [name, { handler, want }] of Object.entries(tests)) {
    it(name, async (t) => {
      const router = testRouter(t);
      await router.start(handler);
      const delivery = router.deliver({ key: "k" });
      assert.deepEqual(await delivery.outcome(), want);
      assert.deepEqual(await (await delivery.redeliver()).outcome(), want);
    });
  }
});

test("a generator function is no handler", async () => {
  const done = () => {};
  const refused = (text: RegExp) => (err: unknown) => err instanceof TypeError && text.test(err.message);
  for (const handler of [generator, asyncGenerator, generator.bind(undefined)]) {
    const script = new Script();
    await assert.rejects(run(handler, script.options()), refused(/^handler is a generator function, /));
    await assert.rejects(run(done, script.options({ calls: { good: done, bad: handler as unknown as CallHandler } })), refused(/^calls: the handler of bad is a generator function, /));
    await assert.rejects(run(done, script.options({ interceptors: [(next) => next, () => handler] })), refused(/^interceptors: what number 2 returned is a generator function, /));
    assert.throws(() => json(handler), refused(/^json: handle is a generator function, /));
    assert.equal(script.streams.length, 0);
  }
});

test("a generator that an interceptor drops is a retry", async (t) => {
  const drops: Interceptor = (next) => async (event, signal) => {
    await next(event, signal);
  };
  for (const handler of [() => generator(), async () => asyncGenerator(), json(() => generator())]) {
    const router = testRouter(t);
    await router.start(handler, { interceptors: [(next) => next, drops] });
    const { kind, reason } = await router.deliver({ key: "k", payload: "1" }).outcome();
    assert.deepEqual([kind, reason], ["retry", returnedGenerator]);
  }
});

test("a delay is a number", () => {
  for (const wrong of [1000n, "1000", null, undefined, {}, Symbol("1000")]) assert.throws(() => new RetryAfter(wrong as number, "busy"), TypeError);
  assert.throws(() => new RetryAfter(NaN, "busy"), RangeError);
  assert.equal(new RetryAfter(Infinity, "busy").afterMs, Infinity);
});

test("whatever handlers, hooks and loggers throw, further events start", async () => {
  const script = new Script();
  const lines: string[] = [];
  const { write } = process.stderr;
  process.stderr.write = (line) => lines.push(String(line)) > 0;
  const throwing = () => {
    throw hostile();
  };
  try {
    const stream = await script.start(throwing, { logger: { info: throwing, warn: throwing, error: throwing }, hooks: { started: throwing, finished: throwing } });
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1, 2);
    await settled();
    stream.send(undefined, 1n);
    stream.deliver(3);
    await settled();
    assert.deepEqual(stream.answers.map(({ id, kind }) => [id, ResultKind[kind]]), [[1n, "RETRY"], [2n, "RETRY"], [3n, "RETRY"]]);
    await script.end();
  } finally {
    process.stderr.write = write;
  }
  assert.ok(lines.some((line) => line.startsWith("ringfence: warn: handler failed ")), lines.join(""));
});

test("an event has all that the router says of it", async (t) => {
  const router = testRouter(t);
  const seen = deferred<Event>();
  await router.start((event) => seen.resolve(event));
  const key = Buffer.of(0x61, 0xff);
  await router.deliver({
    key, payload: "hello", topic: "persistent://a/b/c", attempt: 3, redelivery: 2, schemaVersion: Buffer.of(0, 7),
    messageId: { ledger: 2n ** 60n, entry: 5n, batch: 4, topicPartition: 6 }, publishTime: new Date(1_700_000_000_000), eventTime: new Date(1_600_000_000_000),
    properties: [{ name: "source", value: "web" }, { name: "Traceparent", value: "00-1" }, { name: "tracestate", value: "a=b" }, { name: "source", value: "second" }],
  }).outcome();
  const event = await seen.promise;
  assert.equal(event.key, "a\ufffd");
  assert.deepEqual(event.keyBytes, key);
  assert.equal(event.payload.toString(), "hello");
  assert.equal(event.topic, "persistent://a/b/c");
  assert.equal(event.property("source"), "web");
  assert.equal(event.property("none"), undefined);
  assert.equal(event.properties.length, 4);
  assert.deepEqual([event.traceparent, event.tracestate], ["00-1", "a=b"]);
  assert.deepEqual([event.attempt, event.redelivery], [3, 2]);
  assert.equal(String(event.messageId), `${2n ** 60n}:5:6:4`);
  assert.deepEqual([event.publishTime.getTime(), event.eventTime?.getTime()], [1_700_000_000_000, 1_600_000_000_000]);
  assert.deepEqual(event.schemaVersion, Buffer.of(0, 7));
  assert.deepEqual([event.fencingToken, event.turn], [1n, 1n]);
  assert.equal(String(event.fence), "0000000000000000001.00000000000000000001");

  assert.doesNotMatch((await import("node:util")).inspect(event), /hello/);
});

test("a fence of 63 and 64 bits reaches the handler unchanged", async (t) => {
  const { Fence } = await import("../src/index.js");
  const router = testRouter(t);
  const seen = deferred<Event>();
  await router.start((event) => seen.resolve(event));
  const fence = new Fence(2n ** 62n + 1n, 2n ** 64n - 1n);
  await router.deliver({ key: "k", fence }).outcome();
  const event = await seen.promise;
  assert.deepEqual(event.fence, fence);
  assert.equal(String(event.fence), "4611686018427387905.18446744073709551615");
});

test("a key is lost", async (t) => {
  const router = testRouter(t);
  const started = deferred();
  const reasons: unknown[] = [];
  await router.start(async (event, signal) => {
    if (event.key === "other") return;
    started.resolve();
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
    reasons.push(signal.reason);
    throw signal.reason;
  });
  const running = router.deliver({ key: "k" });
  const waiting = router.deliver({ key: "k" });
  await started.promise;
  await router.lose("k");
  assert.equal((await running.outcome()).kind, "cancelled");
  assert.equal((await waiting.outcome()).kind, "not_started");
  assert.ok(reasons[0] instanceof KeyLostError);
  assert.equal((await router.deliver({ key: "other" }).outcome()).kind, "done");
});

// Whatever a handler gives its signal to hears of the end at the deadline, each listener once, with the reason; a signal that was made of
// the handler's too, though nothing but its own listener holds it.
test("all listeners of a signal hear of the end of the lease, once", async (t) => {
  const router = testRouter(t);
  const started = deferred();
  const heard: string[] = [];
  const { signal: application } = new AbortController();
  await router.start(async (event, signal) => {
    const ends = [once(signal, "abort"), new Promise<void>((resolve) => AbortSignal.any([signal, application]).addEventListener("abort", () => resolve()))];
    signal.addEventListener("abort", function (this: AbortSignal) {
      heard.push(`listener ${this.aborted} ${(this.reason as Error).name}`);
    });
    signal.onabort = () => heard.push("onabort");
    const removed = () => heard.push("removed");
    signal.addEventListener("abort", removed);
    signal.removeEventListener("abort", removed);
    const timer = sleep(3_600_000, undefined, { signal }).catch((error: Error) => heard.push(`timer ${error.name} ${(error.cause as Error).name}`));
    started.resolve();
    await Promise.all([...ends, timer]);
    heard.push(`event ${event.signal.aborted}`);
    throw signal.reason;
  });
  const delivery = router.deliver({ key: "k" });
  await started.promise;
  collectGarbage();
  router.expire();
  assert.equal((await delivery.outcome()).kind, "cancelled");
  router.expire();
  await settled();
  assert.deepEqual(heard.sort(), ["event true", "listener true KeyLostError", "onabort", "timer AbortError KeyLostError"]);
});

// A process handles events for months: what handlers leave on their signals, and on a signal of the application that they combine it with,
// must go with them.
test("listeners that handlers leave behind are not kept, and are not called", async (t) => {
  const router = testRouter(t);
  const application = new AbortController();
  let signals: WeakRef<AbortSignal>[] = [];
  const called: string[] = [];
  await router.start(async (_, signal) => {
    signal.addEventListener("abort", () => called.push("added"));
    signal.onabort = () => called.push("onabort");
    AbortSignal.any([signal, application.signal]);
    await sleep(0, undefined, { signal });
    signals.push(new WeakRef(signal));
  });
  const count = 200;
  const deliver = async () => {
    const outcomes = await Promise.all(Array.from({ length: count }, (_, i) => router.deliver({ key: `k${i}` }).outcome()));
    assert.ok(outcomes.every(({ kind }) => kind === "done"));
  };
  await deliver();
  assert.equal(signals.length, count);
  assert.equal(getEventListeners(application.signal, "abort").length, 0);
  for (const deadline = Date.now() + 30_000; ; ) {
    collectGarbage();
    await sleep(1); // a WeakRef holds what it names until the end of its turn
    const kept = signals.filter((ref) => ref.deref() !== undefined).length;
    if (kept <= 1) break; // V8 may hold what its newest frames have named
    assert.ok(Date.now() < deadline, `${kept} signals of ${count} handlers that have ended are kept`);
  }
  signals = [];
  await deliver();
  router.expire();
  await router.stop();
  assert.deepEqual(called, [], "a listener was called after its handler had ended");
});

test("a worker leaves no listener behind", async (t) => {
  const stop = new AbortController();
  const counts = () => [getEventListeners(stop.signal, "abort").length, ...["SIGTERM", "SIGINT", "exit", "beforeExit"].map((name) => process.listenerCount(name))];
  const before = counts();
  for (let i = 0; i < 3; i++) {
    const router = testRouter(t);
    const end = new AbortController();
    const ended = router.run(() => {}, { signal: AbortSignal.any([end.signal, stop.signal]) });
    const other = router.run(() => {}, { signal: stop.signal, handleSignals: true });
    await router.deliver({ key: "k" }).outcome();
    assert.ok(counts()[1]! > before[1]!, "the worker does not listen to SIGTERM: this test counts nothing");
    end.abort();
    await ended;
    if (i < 2) {
      process.kill(process.pid, "SIGTERM");
      await other;
      assert.deepEqual(counts(), before);
      continue;
    }
    stop.abort();
    await other;
  }
  assert.deepEqual(counts(), before);
});

test("success after a cancellation is success", async (t) => {
  const router = testRouter(t);
  const started = deferred();
  await router.start(async (_, signal) => {
    started.resolve();
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
  });
  const delivery = router.deliver({ key: "k" });
  await started.promise;
  router.expire();
  assert.equal((await delivery.outcome()).kind, "done");
});

test("a handler that takes too long is cancelled, unless it makes progress", async (t) => {
  const router = testRouter(t, { handlerTimeoutMs: 2000 }); // a busy machine may take some of it between two reports
  const reasons: unknown[] = [];
  await router.start(async (event, signal) => {
    if (event.key === "slow") {
      await new Promise((resolve) => signal.addEventListener("abort", resolve));
      reasons.push(signal.reason);
      throw signal.reason;
    }
    for (let i = 0; i < 50; i++) {
      event.progress();
      await new Promise((resolve) => setTimeout(resolve, 50));
      signal.throwIfAborted();
    }
  });
  const slow = router.deliver({ key: "slow" });
  const steady = router.deliver({ key: "steady" });
  assert.equal((await slow.outcome()).kind, "cancelled");
  assert.ok(reasons[0] instanceof HandlerTimeoutError);
  assert.equal((await steady.outcome()).kind, "done");
});

test("a handler that ignores its cancellation holds up no other event", async (t) => {
  const router = testRouter(t);
  const end = deferred();
  const started = deferred();
  let calls = 0;
  await router.start(
    () => {
      if (calls++ > 0) return undefined;
      started.resolve();
      return end.promise;
    },
    { maxInFlight: 1 },
  );
  const ignores = router.deliver({ key: "k" });
  await started.promise;
  router.disconnect();
  router.expire();
  assert.equal((await ignores.outcome()).kind, "lost");
  assert.equal((await router.deliver({ key: "k" }).outcome()).kind, "done");
  end.resolve();
});

test("a worker takes at most maxInFlight events, also when a former stream's handlers still run", async () => {
  const script = new Script();
  const ends: (() => void)[] = [];
  const stream = await script.start(() => new Promise<void>((resolve) => ends.push(resolve)), { maxInFlight: 2 });
  stream.welcome();
  stream.pong(1000);
  stream.deliver(1, 2, 3);
  assert.equal(ends.length, 2);
  stream.end(14, "gone");
  await script.until(() => script.streams.length === 2 && script.streams[1]!.pings.length > 0);
  const next = script.streams[1]!;
  next.welcome();
  next.pong(60_000);
  next.deliver(1, 2);
  assert.equal(ends.length, 2, "more handlers than maxInFlight run");
  ends[0]!();
  await settled();
  assert.equal(ends.length, 3, "no handler started when another had ended");
  script.clock.at += 1000; // the other one has lost its key, and counts no longer
  await script.until(() => script.log.some((l) => l.message === "handler cancelled"));
  next.send(undefined);
  assert.equal(ends.length, 4);
  for (const end of ends) end();
  await script.end();
});

describe("stopping", () => {
  it("drains: running handlers end, waiting and later deliveries are not started", async () => {
    const script = new Script();
    const end = deferred();
    const stream = await script.start(() => end.promise, { leaveGroup: true });
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1);
    stream.send({ case: "suspend", value: {} });
    stream.deliver(2);
    script.stop();
    stream.deliver(3);
    await settled();
    const drain = stream.requests.find(({ frame }) => frame.case === "drain")!.frame;
    assert.ok(drain.case === "drain" && drain.value.node);
    assert.deepEqual(stream.answers.map((a) => [Number(a.id), a.kind]), [[2, 4], [3, 4]]);
    end.resolve();
    await settled();
    assert.equal(stream.answers.length, 2, "an answer went out before the receipt of the former frame");
    assert.equal(stream.halfClosed, false);
    stream.send(undefined, 1n);
    await settled();
    assert.deepEqual(stream.answers.length, 3);
    assert.equal(stream.halfClosed, false, "it half-closed before the last receipt");
    stream.send(undefined, 2n);
    await settled();
    assert.equal(stream.halfClosed, true);
    stream.end(0);
    await script.ended;
    assert.deepEqual(script.log.map((l) => l.message), ["connected to the router"]);
  });

  it("pings until the last receipt", async () => {
    const script = new Script();
    const end = deferred();
    const stream = await script.start(() => end.promise);
    stream.welcome({ pingIntervalMs: 5 });
    stream.pong(1000);
    stream.deliver(1);
    script.stop();
    const before = stream.pings.length;
    await script.until(() => stream.pings.length > before + 2);
    end.resolve();
    await script.until(() => stream.answers.length === 1);
    const answered = stream.pings.length;
    await script.until(() => stream.pings.length > answered);
    stream.send(undefined, 1n);
    await settled();
    assert.equal(stream.requests.at(-1)!.frame.case, "ping");
    stream.end(0);
    await script.ended;
  });

  it("cancels after the grace, and fails if handlers ignore it", async (t) => {
    const router = testRouter(t);
    const stop = new AbortController();
    const reasons: unknown[] = [];
    const started = deferred();
    const ended = router.run(
      async (event, signal) => {
        if (event.key === "ignores") return new Promise(() => {});
        started.resolve();
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        reasons.push(signal.reason);
        throw signal.reason;
      },
      { signal: stop.signal, drainGraceMs: 20 },
    );
    const delivery = router.deliver({ key: "k" });
    await started.promise;
    router.deliver({ key: "ignores" });
    await settled();
    stop.abort();
    await assert.rejects(ended, { name: "RingfenceError", code: "drain_timeout", message: /1 are still running/ });
    assert.ok(reasons[0] instanceof DrainTimeoutError);
    assert.equal((await delivery.outcome()).kind, "cancelled");
  });

  it("lets handlers end within the longest grace", async (t) => {
    const router = testRouter(t);
    const stop = new AbortController();
    const [started, end] = [deferred(), deferred()];
    const ended = router.run(() => (started.resolve(), end.promise), { signal: stop.signal, drainGraceMs: 2 ** 31 - 1 });
    ended.catch(() => {}); // it is awaited below
    const delivery = router.deliver({ key: "k" });
    await started.promise;
    stop.abort();
    await sleep(100); // for timers that fire at once
    end.resolve();
    assert.equal((await delivery.outcome()).kind, "done");
    await ended;
  });

  it("does not wait for a router that is not there", async () => {
    const script = new Script();
    await script.start(() => {});
    script.stop();
    await script.ended; // no Welcome, no end of the stream
    assert.ok(script.streams[0]!.cancelled);
  });

  it("ends between two streams, and before the first one", async () => {
    const script = new Script();
    const stream = await script.start(() => {});
    stream.end(14, "no router");
    script.stop();
    await script.ended;
    const stopped = new Script();
    stopped.stop();
    await run(() => {}, stopped.options());
    assert.equal(stopped.streams.length, 0);
  });

  // The broken stream is told to the hook before the next one is planned.
  it("opens no further stream if its hook stops the worker", async () => {
    const script = new Script();
    const told: (string | undefined)[] = [];
    const stream = await script.start(() => {}, {
      hooks: {
        disconnected: (error) => {
          told.push(error?.code);
          script.stop();
        },
      },
    });
    stream.welcome();
    stream.end(14, "gone");
    await script.ended;
    await sleep(200); // the next stream would come after at most 50 ms
    assert.equal(script.streams.length, 1);
    assert.deepEqual(told, ["broken", undefined]);
  });

  it("opens no further stream if its logger stops the worker", async () => {
    const script = new Script();
    const quiet = () => {};
    const stream = await script.start(() => {}, { logger: { info: quiet, warn: () => script.stop(), error: quiet } });
    stream.end(14, "gone");
    await script.ended;
    await sleep(200);
    assert.equal(script.streams.length, 1);
  });

  it("happens at SIGTERM, once", async () => {
    const script = new Script();
    const { signal: _, ...options } = script.options();
    const before = process.listenerCount("SIGTERM");
    const ended = run(() => {}, options);
    await script.until(() => script.streams.length === 1);
    assert.equal(process.listenerCount("SIGTERM"), before + 1);
    const stream = script.streams[0]!;
    stream.welcome();
    process.kill(process.pid, "SIGTERM");
    await script.until(() => stream.halfClosed);
    stream.end(0);
    await ended;
    assert.equal(process.listenerCount("SIGTERM"), before);
    assert.ok(script.log.some((l) => l.message === "draining" && l.fields.signal === "SIGTERM"));
  });

  it("cancels handlers at a second signal, and leaves a third one to the process", async () => {
    const script = new Script();
    const { signal: _, ...options } = script.options();
    const before = process.listenerCount("SIGINT");
    const reasons: Error[] = [];
    const ended = run((event) => new Promise<void>((resolve) => event.signal.addEventListener("abort", () => (reasons.push(event.signal.reason as Error), resolve()))), options);
    await script.until(() => script.streams.length === 1);
    const stream = script.streams[0]!;
    stream.welcome();
    stream.pong(60_000);
    stream.deliver(1);
    await settled();
    process.kill(process.pid, "SIGINT");
    await script.until(() => script.log.some((l) => l.message === "draining"));
    assert.equal(reasons.length, 0);
    process.kill(process.pid, "SIGINT");
    await script.until(() => reasons.length === 1);
    assert.equal(reasons.map((reason) => reason.name).join(), "DrainTimeoutError");
    assert.equal(process.listenerCount("SIGINT"), before);
    await script.until(() => stream.answers.length === 1);
    stream.send(undefined, 1n);
    await script.until(() => stream.halfClosed);
    stream.end(0);
    await ended;
  });

  it("takes an event back that a handler gives back", async () => {
    const script = new Script();
    let give = () => {};
    const stream = await script.start(() => new Promise((_, reject) => (give = () => reject(new DrainTimeoutError()))));
    stream.welcome();
    stream.pong(60_000);
    stream.deliver(1);
    give();
    await script.until(() => stream.answers.length === 1);
    assert.equal(stream.answers[0]!.kind, ResultKind.RETRY, "the worker was not told to stop");
    stream.send(undefined, 1n);
    stream.deliver(2);
    script.stop();
    give();
    await script.until(() => stream.answers.length === 2);
    assert.equal(stream.answers[1]!.kind, ResultKind.CANCELLED);
    stream.send(undefined, 2n);
    await script.end();
  });
});

test("hooks and readiness see sessions and handlers", async (t) => {
  const router = testRouter(t);
  const calls: string[] = [];
  const sessions: Session[] = [];
  const outcomes: Outcome[] = [];
  const windows: number[][] = [];
  const again = deferred();
  await router.start(
    (event) => {
      calls.push(`handler ${event.key}`);
      if (event.key === "b") throw new Error("b");
    },
    {
      name: "me", maxInFlight: 5,
      ready: (is) => {
        calls.push(`ready ${is}`);
        if (calls.filter((c) => c === "ready true").length === 2) again.resolve();
      },
      hooks: {
        connected: (session) => sessions.push(session),
        disconnected: (error) => calls.push(`disconnected ${error?.code}`),
        started: (event) => calls.push(`started ${event.key}`),
        finished: (_, outcome) => outcomes.push(outcome),
        window: (held, limit) => windows.push([held, limit]),
      },
    },
  );
  await router.deliver({ key: "a" }).outcome();
  await router.deliver({ key: "b" }).outcome();
  router.disconnect();
  await again.promise;
  assert.deepEqual(calls, ["ready true", "started a", "handler a", "started b", "handler b", "ready false", "disconnected broken", "ready true"]);
  assert.deepEqual(sessions, Array(2).fill({ node: "test", group: "test", worker: "me", inFlightMax: 5 }));
  assert.deepEqual(outcomes.map((o) => [o.kind, (o.error as Error | undefined)?.message, o.durationMs >= 0]), [["done", undefined, true], ["retry", "b", true]]);
  for (const [held, limit] of windows) assert.ok(held! >= 0 && held! <= 5 && limit === 5);
});

test("hooks and readiness that throw are logged, and change nothing", async () => {
  const script = new Script();
  const called: string[] = [];
  class Metrics {
    readonly name = "metrics";
    connected = this.fails("connected");
    disconnected = async () => this.fails("disconnected")();
    started = this.fails("started");
    finished = this.fails("finished");
    window(): void {
      this.fails(`window of ${this.name}`)();
    }
    fails(what: string): () => void {
      return () => {
        called.push(what);
        throw new TypeError("planted-key");
      };
    }
  }
  const hooks = new Metrics();
  let stream = await script.start(settled, { hooks, ready: (is) => hooks.fails(`ready ${is}`)() });
  for (let n = 1; n <= 2; n++) {
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1);
    await settled();
    assert.deepEqual(stream.answers.map((a) => [Number(a.id), a.kind]), [[1, 1]]);
    if (n === 2) break;
    stream.end(14, "gone");
    await script.until(() => script.streams.length === 2 && script.streams[1]!.pings.length > 0);
    stream = script.streams[1]!;
  }
  stream.send(undefined, 1n);
  script.stop();
  await script.until(() => stream.halfClosed);
  stream.end(0);
  await script.ended;
  await settled();
  assert.deepEqual([...new Set(called)].sort(), ["connected", "disconnected", "finished", "ready false", "ready true", "started", "window of metrics"]);
  const failures = script.log.filter((l) => l.message === "a hook failed");
  assert.equal(failures.length, called.length);
  for (const { level, fields } of failures) assert.ok(level === "error" && fields.error === "TypeError" && /run\.test/.test(String(fields.at)));
  assert.doesNotMatch(JSON.stringify(script.log), /planted/);
});

test("interceptors go around the handler, the first one outermost", async (t) => {
  const router = testRouter(t);
  const calls: string[] = [];
  const around = (name: string) => (next: Handler): Handler => async (event, signal) => {
    calls.push(`${name} before`);
    await next(event, signal);
    calls.push(`${name} after`);
  };
  await router.start((event, signal) => void calls.push(`handler ${event.signal === signal}`), { interceptors: [around("outer"), around("inner")] });
  await router.deliver({ key: "k" }).outcome();
  assert.deepEqual(calls, ["outer before", "inner before", "handler true", "inner after", "outer after"]);
});

test("failures are logged by their place, without their text, at most once a second", async () => {
  const script = new Script();
  const stream = await script.start(() => {
    throw new TypeError("planted-payload");
  });
  stream.welcome();
  stream.pong(1000);
  stream.deliver(1, 2, 3);
  await settled();
  const failures = script.log.filter((l) => l.message === "handler failed");
  assert.equal(failures.length, 1);
  assert.equal(failures[0]!.fields.error, "TypeError");
  assert.match(String(failures[0]!.fields.at), /run\.test/);
  assert.doesNotMatch(JSON.stringify(script.log), /planted-payload/);
  await script.end();
});

test("no line of the log has a key, a payload or a property", async () => {
  const script = new Script();
  const stream = await script.start(
    (event) =>
      new Promise((_, reject) => event.signal.addEventListener("abort", () => reject(new Error(`${event.key}${event.payload}`)))),
  );
  stream.welcome();
  stream.pong(1000);
  stream.send({
    case: "deliveries",
    value: { number: 1n, topics: ["t"], tokens: [1n], names: ["planted-name"], deliveries: [{ deliveryId: 1n, key: Buffer.from("planted-key"), payload: Buffer.from("planted-payload"), properties: [{ name: 0, value: "planted-value" }] }] },
  });
  script.clock.at += 1000;
  await script.until(() => script.log.some((l) => l.message === "handler cancelled"));
  await script.end();
  assert.ok(script.log.length > 1);
  assert.doesNotMatch(JSON.stringify(script.log), /planted/);
});

test("an error in options is thrown at once, with all that is wrong", async () => {
  const wrong = run(() => {}, { maxInFlight: 0, drainGraceMs: -1, stateMax: -1, endpoint: "nowhere", maxInflight: 3 } as object);
  await assert.rejects(wrong, (err: unknown) => {
    assert.ok(err instanceof RingfenceError);
    assert.equal(err.code, "argument");
    for (const name of ["maxInFlight is 0, want 1 to 100000", "drainGraceMs is -1", "stateMax is -1, want 0 or more", 'endpoint is "nowhere", want host:port or unix:///path', "maxInflight is no option"]) assert.ok(err.message.includes(name), err.message);
    return true;
  });
  await assert.rejects(run(undefined as never), { code: "argument", argument: "handler" });
  await assert.rejects(run(() => {}, { interceptors: [() => undefined as never] }), { code: "argument", argument: "interceptors" });
});
