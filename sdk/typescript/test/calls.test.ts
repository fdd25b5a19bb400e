import assert from "node:assert/strict";
import { getEventListeners, once } from "node:events";
import { mkdtempSync, rmSync, unlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { createServer, type AddressInfo, type Socket } from "node:net";
import { join } from "node:path";
import { describe, it, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Server, ServerCredentials, status, type sendUnaryData, type ServerUnaryCall } from "@grpc/grpc-js";
import { replyMax } from "../src/call.js";
import { decodeFrame, encodeResults } from "../src/codec.js";
import type { EventOwner } from "../src/event.js";
import { WorkRequestSchema, WorkResponseSchema } from "../src/gen/ringfence/app/v1/app_pb.js";
import { InvokeRequestSchema, InvokeResponseSchema, Outcome, type InvokeRequest, type InvokeResponse } from "../src/gen/ringfence/lane/v1/lane_pb.js";
import { Kind, type Result } from "../src/inbox.js";
import {
  CallError, CallerGoneError, CallFailure, deliveries, HandlerTimeoutError, KeyLostError, Lane, NotSentError, Reject, RetryAfter, RingfenceError, run, type Call, type CallHandler, type CallOutcome, type LaneOptions,
} from "../src/index.js";
import { pathOf, type InvokeOptions, type SendOptions } from "../src/lane.js";
import { payloadMax, requestMax } from "../src/sending.js";
import { testRouter } from "../src/testing/index.js";
import { xxh64 } from "../src/xxh64.js";
import { deferred, hostile, mute, withoutFields } from "./script.js";

const nothing = () => {};

function* generator() {
  yield assert.fail("it runs");
}
const returnedGenerator = "the handler returned a generator, which has run nothing: call a function, or an async function, without function* and yield";

/** Waits until a signal aborts, and throws its reason. */
const untilAborted = (signal: AbortSignal) => new Promise<never>((_, reject) => signal.addEventListener("abort", () => reject(signal.reason), { once: true }));

describe("the answers of handlers of calls", () => {
  const empty = { afterMs: 0, reason: "", startedNs: 0n, tookNs: 0n, reply: Buffer.alloc(0), code: "" };
  const fail = (error: unknown): CallHandler => () => Promise.reject(error);
  const tests: Record<string, { handler: CallHandler; want: object }> = {
    "a reply": { handler: (call) => Buffer.concat([call.payload, call.payload]), want: { kind: "done", reply: Buffer.from("hellohello") } },
    "a reply later": { handler: async () => Uint8Array.of(1), want: { kind: "done", reply: Buffer.of(1) } },
    "no reply": { handler: nothing, want: { kind: "done" } },
    "null is no reply": { handler: () => null, want: { kind: "done" } },
    "null is no reply later": { handler: async () => null, want: { kind: "done" } },
    "a failure as a cause": { handler: fail(new Error("x", { cause: new CallFailure("no_stock", "none left") })), want: { kind: "retry", code: "no_stock", reason: "none left" } },
    "no reply later": { handler: async () => {}, want: { kind: "done" } },
    "the largest reply": { handler: () => Buffer.alloc(replyMax), want: { kind: "done", reply: Buffer.alloc(replyMax) } },
    "a larger reply": { handler: () => Buffer.alloc(replyMax + 1), want: { kind: "retry", code: "too_large", reason: "a reply of 1048577 bytes, want at most 1048576" } },
    "a larger reply later": { handler: async () => Buffer.alloc(replyMax + 1), want: { kind: "retry", code: "too_large", reason: "a reply of 1048577 bytes, want at most 1048576" } },
    "a text": { handler: (() => "text") as unknown as CallHandler, want: { kind: "retry", reason: "the handler returned string, want a Uint8Array or undefined" } },
    "a generator": { handler: (() => generator()) as unknown as CallHandler, want: { kind: "retry", reason: returnedGenerator } },
    "a generator later": { handler: (async () => generator()) as unknown as CallHandler, want: { kind: "retry", reason: returnedGenerator } },
    "a failure with a code": { handler: fail(new CallFailure("no_stock", "none left")), want: { kind: "retry", code: "no_stock", reason: "none left" } },
    "a failure at once": {
      handler: () => {
        throw new CallFailure("no_stock", "none left");
      },
      want: { kind: "retry", code: "no_stock", reason: "none left" },
    },
    "the longest code": { handler: fail(new CallFailure("x".repeat(64), "")), want: { kind: "retry", code: "x".repeat(64) } },
    "a longer code": { handler: fail(new CallFailure("é".repeat(33), "long")), want: { kind: "retry", reason: "long" } },
    "an error": { handler: fail(new Error("no database")), want: { kind: "retry", reason: "no database" } },
    "an error that wants a retry": { handler: fail(new RetryAfter(5, "later")), want: { kind: "retry", reason: "later" } },
    "a value without a text": { handler: fail(Object.create(null)), want: { kind: "retry", reason: "the handler threw a value that has no text" } },
    "a code that cannot be read": { handler: fail(withoutFields(new CallFailure("no_stock", "none left"), "code")), want: { kind: "retry", reason: "none left" } },
    "a value of which nothing can be read": {
      handler: () => {
        throw hostile();
      },
      want: { kind: "retry", reason: "the handler threw a value that has no text" },
    },
    reject: { handler: fail(new Reject("never")), want: { kind: "reject", reason: "never" } },
  };
  for (const [name, { handler, want }] of Object.entries(tests)) {
    it(name, async (t) => {
      const router = testRouter(t);
      await router.start(nothing, { calls: { do: handler } });
      assert.deepEqual(await router.call({ key: "k", method: "do", payload: "hello" }).outcome(), { ...empty, ...want });
      assert.equal((await router.deliver({ key: "k" }).outcome()).kind, "done");
    });
  }

  it("a method without a handler", async (t) => {
    const router = testRouter(t, { capabilities: ["intervals"] });
    await router.start(nothing, { calls: { do: nothing } });
    const want = { ...empty, kind: "not_started", code: "no_handler", reason: "this worker has no handler for the method" };
    for (const method of ["other", "toString"]) assert.deepEqual(await router.call({ key: "k", method }).outcome(), want);
  });

  it("a worker without calls", async (t) => {
    const router = testRouter(t);
    await router.start(nothing);
    const call = router.call({ key: "k", method: "do" });
    const event = router.deliver({ key: "k" });
    assert.equal((await call.outcome()).code, "no_handler");
    assert.equal((await event.outcome()).kind, "done");
  });
});

test("a call has all that its caller has sent", async (t) => {
  const router = testRouter(t);
  const seen = deferred<Call>();
  await router.start(nothing, { calls: { do: (call, signal) => (assert.equal(signal, call.signal), seen.resolve(call)) } });
  const before = Date.now();
  await router.call({ key: Buffer.of(0x61, 0xff), method: "do", payload: "hello", id: "id-1", timeoutMs: 60_000, path: [1n, 2n ** 64n - 1n] }).outcome();
  const call = await seen.promise;
  assert.deepEqual([call.key, call.keyBytes, call.method, call.payload.toString(), call.id], ["a\ufffd", Buffer.of(0x61, 0xff), "do", "hello", "id-1"]);
  assert.ok(call.deadline.getTime() >= before + 60_000 && call.deadline.getTime() <= Date.now() + 60_000);
  assert.ok(call.fence.token === 1n && call.fence.turn > 0n && call.leaseUntil.getTime() > before);
  assert.deepEqual(pathOf(call), [1n, 2n ** 64n - 1n, xxh64(Buffer.of(0x61, 0xff))]);
});

test("a handler whose caller is gone is cancelled", async (t) => {
  const router = testRouter(t);
  const started = deferred<void>();
  const reason = deferred<unknown>();
  await router.start(nothing, {
    calls: {
      do: async (_, signal) => {
        started.resolve();
        await untilAborted(signal).catch((err: unknown) => reason.resolve(err));
        throw signal.reason;
      },
    },
  });
  const call = router.call({ key: "k", method: "do" });
  await started.promise;
  const waits = router.call({ key: "k", method: "do" });
  waits.giveUp();
  call.giveUp();
  assert.ok((await reason.promise) instanceof CallerGoneError);
  assert.equal((await call.outcome()).kind, "cancelled");
  assert.equal((await waits.outcome()).kind, "not_started");
});

test("a call that takes too long has that as its reason, and not that its caller is gone", async (t) => {
  const router = testRouter(t, { handlerTimeoutMs: 1000 });
  const reason = deferred<unknown>();
  await router.start(nothing, { calls: { do: (_, signal) => untilAborted(signal).catch((err: unknown) => reason.resolve(err)).then(() => Promise.reject(signal.reason)) } });
  const outcome = router.call({ key: "k", method: "do" }).outcome();
  assert.ok((await reason.promise) instanceof HandlerTimeoutError);
  assert.notEqual((await outcome).kind, "done");
});

test("a call that makes progress does not take too long", async (t) => {
  const router = testRouter(t, { handlerTimeoutMs: 2000 }); // a busy machine may take some of it between two reports
  const do_: CallHandler = async (call, signal) => {
    for (let i = 0; i < 50; i++) {
      call.progress();
      await new Promise((resolve) => setTimeout(resolve, 50));
      signal.throwIfAborted();
    }
  };
  await router.start(nothing, { calls: { do: do_ } });
  assert.equal((await router.call({ key: "k", method: "do" }).outcome()).kind, "done");
});

test("a lost key cancels the handler of a call", async (t) => {
  const router = testRouter(t);
  const started = deferred<void>();
  const reason = deferred<unknown>();
  await router.start(nothing, {
    calls: {
      do: (_, signal) => {
        started.resolve();
        return untilAborted(signal).catch((err: unknown) => reason.resolve(err));
      },
    },
  });
  const call = router.call({ key: "k", method: "do" });
  await started.promise;
  await router.lose("k");
  assert.ok((await reason.promise) instanceof KeyLostError);
  assert.equal((await call.outcome()).kind, "done", "what it has done counts");
});

test("hooks and interceptors see calls as events with a method", async (t) => {
  const router = testRouter(t);
  const seen: unknown[] = [];
  await router.start(nothing, {
    calls: { do: () => Buffer.of(1) },
    hooks: { finished: (event, { kind }) => seen.push([event.method, kind]) },
    interceptors: [(next) => (event, signal) => (seen.push(event.method), next(event, signal))],
  });
  assert.deepEqual((await router.call({ key: "k", method: "do" }).outcome()).reply, Buffer.of(1));
  await router.call({ key: "k", method: "other" }).outcome();
  await router.deliver({ key: "k" }).outcome();
  assert.deepEqual(seen, ["do", ["do", "done"], "other", ["other", "not_started"], "", ["", "done"]]);
});

test("wrong handlers of calls are refused", async () => {
  const wrong: [unknown, RegExp][] = [
    [{ "": nothing }, /the method "", want 1 to 64/],
    [{ "a b": nothing }, /the method "a b"/],
    [{ ["x".repeat(65)]: nothing }, /want 1 to 64/],
    [{ "a\n": nothing }, /the method/],
    [{ do: 1 }, /calls has no function for the method do/],
    [null, /calls is no object of functions/],
  ];
  for (const [calls, message] of wrong) {
    await assert.rejects(run(nothing, { calls: calls as Record<string, CallHandler> }), { code: "argument", argument: "calls", message });
  }
  assert.throws(() => deliveries({ calls: { do: nothing } }), { code: "argument", argument: "calls", message: /only run accepts calls/ });
  assert.throws(() => deliveries({ interceptors: [(next) => next] }), { code: "argument", argument: "interceptors" });
});

test("replies wait for the next frame when they do not fit", () => {
  const call = (id: number, size: number): Result => ({ id, kind: Kind.Done, afterMs: 0, reason: "", startedNs: 0, tookNs: 0, reply: Buffer.alloc(size, id) });
  const done = (id: number): Result => ({ id, kind: Kind.Done, afterMs: 0, reason: "", startedNs: 0, tookNs: 0 });
  for (const [results, want] of [
    [[call(1, 1 << 20), call(2, 1 << 20)], 1],
    [[done(1), call(2, 1 << 20)], 1],
    [[call(1, 10), done(2), call(3, 10)], 3],
    [[call(1, 900 << 10), call(2, 50 << 10), call(3, 900 << 10)], 2],
    [[{ ...done(1), kind: Kind.Retry, reason: "é", code: "told" }], 1],
  ] as [Result[], number][]) {
    const { frame, taken } = encodeResults(1, 1, results, 100, 1 << 20);
    assert.equal(taken, want);
    assert.ok(frame.length < 2 << 20);
    const message = fromBinary(WorkRequestSchema, frame);
    assert.ok(message.frame.case === "results");
    assert.deepEqual(
      message.frame.value.results.map((r) => [r.deliveryId, Buffer.from(r.reply), r.code, r.reason]),
      results.slice(0, taken).map((r) => [BigInt(r.id), Buffer.from(r.reply ?? ""), r.code ?? "", r.reason]),
    );
  }
});

test("a path that is not packed, or that has no end, is read as protobuf reads it", () => {
  const call = Buffer.from([0x0a, 1, 0x78, 0x21, 1, 0, 0, 0, 0, 0, 0, 0, 0x21, 2, 0, 0, 0, 0, 0, 0, 0]); // method x, path 1 and 2
  const delivery = Buffer.concat([Buffer.from([0x92, 0x01, call.length]), call]);
  const list = Buffer.concat([Buffer.from([0x08, 1, 0x2a, delivery.length]), delivery]);
  const frame = Buffer.concat([Buffer.from([0x1a, list.length]), list]);
  assert.ok(fromBinary(WorkResponseSchema, frame).frame.case === "deliveries");
  const [event] = decodeFrame(frame, {} as EventOwner).events;
  assert.deepEqual([event!.method, event!.call!.path], ["x", [1n, 2n]]);
  const cut = Buffer.from([0x1a, 9, 0x08, 1, 0x2a, 5, 0x92, 0x01, 2, 0x22, 9, 0, 0]);
  assert.throws(() => decodeFrame(cut, {} as EventOwner));
});

test("xxh64", () => {
  const want: Record<string, bigint> = {
    "": 0xef46db3751d8e999n, a: 0xd24ec4f1a98c6e5bn, abc: 0x44bc2cf5ad770999n, "message digest": 0x066ed728fceeb3ben,
    abcdefghijklmnopqrstuvwxyz: 0xcfe1f278fa89835cn, ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789: 0xaaa46907d3047814n,
    ["1234567890".repeat(8)]: 0xe04a477f19ee145dn, ["y".repeat(100)]: 0xcd300b25f4b8a0bfn,
  };
  for (const [text, hash] of Object.entries(want)) assert.equal(xxh64(Buffer.from(text)), hash, text);
});

describe("a lane", () => {
  /** Returns a lane to the test's router, and closes it at the end of the test. */
  async function laneTo(t: { after(close: () => void): void }, endpoint: string, options: LaneOptions = {}): Promise<Lane> {
    const lane = new Lane(endpoint, options);
    t.after(() => lane.close());
    return lane;
  }

  it("calls a handler", async (t) => {
    const router = testRouter(t);
    await router.start(nothing, { calls: { do: (call) => Buffer.from(`${call.key} ${call.id} ${call.payload}`) } });
    const lane = await laneTo(t, await router.serve());
    assert.equal(String(await lane.invoke("k", "do", "x", { id: "id-1" })), "k id-1 x");
    assert.equal(String(await lane.invoke(Buffer.from("k"), "do")), "k  ");
    await assert.rejects(lane.invoke("k", "other"), {
      name: "CallError", outcome: "not_run", code: "no_handler", message: "the call has not run (no_handler): this worker has no handler for the method",
    });
  });

  it("tells why a call failed", async (t) => {
    const router = testRouter(t);
    await router.start(nothing, { calls: { do: () => Promise.reject(new CallFailure("no_stock", "none left")) } });
    const lane = await laneTo(t, await router.serve());
    await assert.rejects(lane.invoke("k", "do"), { outcome: "failed", code: "no_stock", text: "none left" });
  });

  it("gives a call up at its timeout, and when its signal aborts", async (t) => {
    const router = testRouter(t);
    const reasons: unknown[] = [];
    let began = () => {};
    await router.start(nothing, {
      calls: { do: (_, signal) => (began(), untilAborted(signal).catch((err: unknown) => void reasons.push(err) as undefined).then(() => Promise.reject(signal.reason))) },
    });
    const lane = await laneTo(t, await router.serve());
    let begins = 0;
    began = () => void begins++;
    for (let timeoutMs = 500; begins === 0 && timeoutMs < 60_000; timeoutMs *= 2) { // on a busy machine a call may be over before its handler begins
      await assert.rejects(lane.invoke("k", "do", "", { timeoutMs }), (err) => err instanceof CallError && (err.outcome === "unknown" || (begins === 0 && err.outcome === "not_run")));
    }
    assert.equal(begins, 1);
    while (reasons.length < 1) await sleep(10);
    assert.ok(reasons[0] instanceof CallerGoneError);
    const abort = new AbortController();
    began = () => abort.abort(new Error("enough"));
    const call = lane.invoke("k", "do", "", { signal: abort.signal, timeoutMs: 30_000 });
    await assert.rejects(call, { outcome: "unknown", text: "enough" });
    await assert.rejects(lane.invoke("k", "do", "", { signal: abort.signal }), { outcome: "not_run", text: "enough" });
  });

  it("is refused by the router in memory what routers refuse", async (t) => {
    const router = testRouter(t);
    await router.start(nothing, { calls: { do: (call) => Buffer.from(call.payload) } });
    const lane = await laneTo(t, await router.serve());
    await lane.invoke("k".repeat(4096), "do", "", { id: "i".repeat(128), timeoutMs: 600_000 });
    const calls: [string, string, InvokeOptions][] = [
      ["", "do", {}], ["k".repeat(4097), "do", {}], ["k", "", {}], ["k", "m".repeat(65), {}], ["k", "do it", {}], ["k", "do", { id: "i".repeat(129) }], ["k", "do", { timeoutMs: 600_001 }],
    ];
    for (const [key, method, options] of calls) await assert.rejects(lane.invoke(key, method, "", options), { outcome: "not_run", code: "" }, JSON.stringify([key, method, options]));

    const properties = Object.fromEntries(Array.from({ length: 64 }, (_, i) => [`p${i}`, ""]));
    await lane.send("k".repeat(4096), "", { id: "i".repeat(256), properties: { ...properties, p0: "v".repeat(4094), traceparent: "" } });
    const sends: [string, SendOptions][] = [
      ["", {}], ["k".repeat(4097), {}], ["k", { id: "i".repeat(257) }], ["k", { properties: { ...properties, more: "" } }], ["k", { properties: { "": "v" } }],
      ["k", { properties: { p: "v".repeat(4096) } }], ["k", { properties: { "Ringfence-Key": "v" } }],
    ];
    for (const [key, options] of sends) await assert.rejects(lane.send(key, "", options), { name: "NotSentError" }, JSON.stringify([key, options]));
  });

  /** A connection whose other end is gone without a word: it ends by no status, and TCP gives up after a quarter of an hour. */
  it("uses a new connection after a call in which nothing was heard", async (t) => {
    const router = testRouter(t);
    await router.start(nothing, { calls: { do: (call) => Buffer.from(call.payload) } });
    const proxy = await mute(t, await router.serve());
    const lane = await laneTo(t, proxy.endpoint);
    const briefly = { timeoutMs: 300 };
    await lane.invoke("k", "do");
    proxy.mute();
    await assert.rejects(lane.invoke("k", "do", "", briefly), { outcome: "unknown" });
    assert.equal(String(await lane.invoke("k", "do", "x")), "x");
    proxy.mute();
    await assert.rejects(lane.send("k", "", briefly), { name: "MaybeSentError" });
    assert.equal(String(await lane.invoke("k", "do", "y")), "y");
  });

  it("connects again when the first connection meets a router that says nothing, and leaves no socket behind", async (t) => {
    const router = testRouter(t);
    await router.start(nothing, { calls: { do: (call) => Buffer.from(call.payload) } });
    const proxy = await mute(t, await router.serve());
    proxy.muteNext = true;
    const lane = await laneTo(t, proxy.endpoint);
    await assert.rejects(lane.invoke("k", "do", "", { timeoutMs: 300 }), { name: "CallError" });
    proxy.muteNext = false;
    assert.equal(String(await lane.invoke("k", "do", "x")), "x");
    lane.close();
    for (const socket of proxy.accepted) if (!socket.closed) await once(socket, "close", { signal: AbortSignal.timeout(10_000) });
  });

  it("connects though the timeouts of its calls are shorter than that takes", async (t) => {
    const router = testRouter(t);
    await router.start(nothing, { calls: { do: (call) => Buffer.from(call.payload) } });
    const proxy = await mute(t, await router.serve());
    proxy.connectingMs = 2500; // longer than a call waits for its answer
    const lane = await laneTo(t, proxy.endpoint);
    const until = performance.now() + 60_000;
    for (;;) {
      try {
        assert.equal(String(await lane.invoke("k", "do", "x", { timeoutMs: 100 })), "x");
        return;
      } catch (err) {
        assert.ok(err instanceof CallError && performance.now() < until, `over ${proxy.accepted.length} connections: ${String(err)}`);
      }
    }
  });

  it("makes many calls with one signal without a warning of Node", async (t) => {
    const router = testRouter(t);
    await router.start(nothing, { calls: { do: async (_, signal) => untilAborted(signal) } });
    const lane = await laneTo(t, await router.serve());
    const warnings: string[] = [];
    const warned = (warning: Error) => void warnings.push(warning.name);
    process.on("warning", warned);
    t.after(() => void process.off("warning", warned));
    const abort = new AbortController();
    const calls = Array.from({ length: 20 }, (_, n) => lane.invoke(`k${n}`, "do", "", { signal: abort.signal, timeoutMs: 30_000 }));
    const ends = Promise.all(calls.map((call) => assert.rejects(call, { text: "enough" })));
    setTimeout(() => abort.abort(new Error("enough")), 50);
    await ends;
    assert.deepEqual(warnings, []);
    assert.equal(getEventListeners(abort.signal, "abort").length, 0);
  });

  it("ends its calls when it closes: they may have run", async (t) => {
    const router = testRouter(t);
    const started = deferred<void>();
    const reason = deferred<unknown>();
    await router.start(nothing, { calls: { do: (_, signal) => (started.resolve(), untilAborted(signal).catch((err: unknown) => (reason.resolve(err), Promise.reject(err)))) } });
    const lane = await laneTo(t, await router.serve());
    const call = assert.rejects(lane.invoke("k", "do", "", { timeoutMs: 300_000 }), { name: "CallError", outcome: "unknown", code: "", text: "the lane was closed" });
    await started.promise;
    lane.close();
    await call;
    assert.ok((await Promise.race([reason.promise, sleep(60_000, "the handler goes on", { ref: false })])) instanceof CallerGoneError);
  });

  it("makes no call again after it has closed", async (t) => {
    let count = 0;
    const refused = deferred<void>();
    const lane = await laneTo(t, await serve(t, () => (++count === 3 && refused.resolve(), { status: status.RESOURCE_EXHAUSTED })));
    const call = assert.rejects(lane.invoke("k", "do", "", { timeoutMs: 30_000 }), { name: "CallError", text: "the lane was closed" });
    await refused.promise;
    lane.close();
    await call;
  });

  it("refuses a call that would wait for its own key", async (t) => {
    const router = testRouter(t);
    const lane = await laneTo(t, await router.serve());
    const call = async (call: Call) => Buffer.from(await lane.invoke(call.keyBytes, "do", "", { caller: call }).catch((err: CallError) => err.code));
    await router.start(nothing, { calls: { do: call } });
    assert.equal(String(await lane.invoke("k", "do")), "cycle");
  });

  /** A router that answers each Invoke as the test says. */
  async function serve(t: { after(close: () => void): void }, answer: (request: InvokeRequest, call: ServerUnaryCall<Buffer, Buffer>) => Partial<InvokeResponse> | { status: number }): Promise<string> {
    const server = new Server();
    const same = (frame: Buffer): Buffer => frame;
    server.addService(
      { invoke: { path: "/ringfence.lane.v1.LaneService/Invoke", requestStream: false, responseStream: false, requestSerialize: same, requestDeserialize: same, responseSerialize: same, responseDeserialize: same } },
      {
        invoke: (call: ServerUnaryCall<Buffer, Buffer>, done: sendUnaryData<Buffer>) => {
          const response = answer(fromBinary(InvokeRequestSchema, call.request), call);
          if ("status" in response) done({ code: response.status, details: "as told" });
          else done(null, Buffer.from(toBinary(InvokeResponseSchema, create(InvokeResponseSchema, response as object))));
        },
      },
    );
    const port = await new Promise<number>((resolve, reject) => server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (err, bound) => (err ? reject(err) : resolve(bound))));
    t.after(() => server.forceShutdown());
    return `127.0.0.1:${port}`;
  }

  const statuses: Record<string, CallOutcome> = {
    INVALID_ARGUMENT: "not_run", UNIMPLEMENTED: "not_run", UNAUTHENTICATED: "not_run", PERMISSION_DENIED: "not_run", RESOURCE_EXHAUSTED: "not_run",
    UNAVAILABLE: "unknown", INTERNAL: "unknown", CANCELLED: "unknown", DEADLINE_EXCEEDED: "unknown",
  };
  for (const [code, outcome] of Object.entries(statuses)) {
    it(`makes of the status ${code}: ${outcome}`, async (t) => {
      const lane = await laneTo(t, await serve(t, () => ({ status: status[code as keyof typeof status] })));
      const again = code === "RESOURCE_EXHAUSTED"; // until the call's time is over
      await assert.rejects(lane.invoke("k", "do", "", { timeoutMs: again ? 2000 : 30_000 }), { outcome, message: /as told/, code: again ? "overloaded" : "" });
    });
  }

  it("calls again while the router refuses the call unread", async (t) => {
    const seen: InvokeRequest[] = [];
    const endpoint = await serve(t, (request) => {
      seen.push(request);
      return seen.length < 20 ? { status: status.RESOURCE_EXHAUSTED } : { outcome: Outcome.REPLIED, reply: Buffer.from("r") }; // more often than gRPC itself would try
    });
    const lane = await laneTo(t, endpoint);
    assert.equal(String(await lane.invoke("k", "do", "", { timeoutMs: 30_000 })), "r");
    assert.equal(seen.length, 20);
    assert.ok(seen[0]!.timeoutMs > seen.at(-1)!.timeoutMs && seen.at(-1)!.timeoutMs > 1000n, "its time is not longer for that");
  });

  it("has not run without a connection", async (t) => {
    const sockets: Socket[] = [];
    const silent = createServer((socket) => void sockets.push(socket)).listen(0, "127.0.0.1"); // it says nothing
    await once(silent, "listening");
    t.after(() => {
      silent.close();
      for (const socket of sockets) socket.destroy();
    });
    const lane = new Lane(`127.0.0.1:${(silent.address() as AddressInfo).port}`);
    t.after(() => lane.close());
    await assert.rejects(lane.invoke("k", "do", "", { timeoutMs: 1 }), { outcome: "not_run", code: "unreachable" });
    await assert.rejects(lane.send("k", "", { timeoutMs: 1 }), NotSentError);
  });

  it("does not make a call that a router would not read", async (t) => {
    let count = 0;
    const lane = await laneTo(t, await serve(t, () => (count++, { outcome: Outcome.REPLIED, reply: Buffer.from("r") })));
    assert.equal(String(await lane.invoke("k", "do", Buffer.alloc(payloadMax))), "r");
    const large: [string, string | Uint8Array, RegExp][] = [
      ["k", "é".repeat(payloadMax / 2) + "e", /a payload of 1048577 bytes, want at most 1048576/],
      ["k", Buffer.alloc(3 * payloadMax), /a payload of 3145728 bytes, want at most 1048576/],
      ["k".repeat(requestMax), "", /a request of 20971\d\d bytes, want at most 2097152/],
    ];
    for (const [key, payload, message] of large) await assert.rejects(lane.invoke(key, "do", payload, { timeoutMs: 30_000 }), { outcome: "not_run", code: "too_large", message });
    assert.equal(count, 1);
  });

  it("does not call, or reserve, what is no text", async (t) => { // Node would write U+FFFD: the key, or the id, would be another one
    let count = 0;
    const lane = await laneTo(t, await serve(t, () => (count++, { outcome: Outcome.REPLIED })));
    const no = { outcome: "not_run", code: "", text: /has no UTF-8/ };
    await assert.rejects(lane.invoke("k\ud800", "do"), no);
    await assert.rejects(lane.invoke("k", "do\udfff"), no);
    await assert.rejects(lane.invoke("k", "do", "", { id: "order\ud800x" }), no);
    await assert.rejects(lane.reserve("k\ud800"), { name: "NotReservedError", code: "", text: no.text });
    await lane.invoke("k\ud83d\ude00", "do");
    assert.equal(count, 1);
  });

  it("has the outcome of the router", async (t) => {
    const all: [number, CallOutcome][] = [[Outcome.FAILED, "failed"], [Outcome.NOT_RUN, "not_run"], [Outcome.UNKNOWN, "unknown"], [Outcome.DONE_BEFORE, "done_before"], [Outcome.UNSPECIFIED, "unknown"], [99, "unknown"]];
    let next: Outcome = Outcome.UNSPECIFIED;
    const lane = await laneTo(t, await serve(t, () => ({ outcome: next, code: "c", text: "why", retryAfterMs: 1500n })));
    for (const [sent, outcome] of all) {
      next = sent;
      await assert.rejects(lane.invoke("k", "do"), { outcome, code: "c", text: "why", retryAfterMs: 1500 });
    }
  });

  it("sends what the caller says, and the token", async (t) => {
    const folder = mkdtempSync(join(tmpdir(), "ringfence-lane-"));
    t.after(() => rmSync(folder, { recursive: true }));
    const tokenFile = join(folder, "token");
    writeFileSync(tokenFile, "one\n");
    const seen: { request: InvokeRequest; token: unknown; deadline: number; at: number }[] = [];
    const endpoint = await serve(t, (request, call) => {
      seen.push({ request, token: call.metadata.get("authorization")[0], deadline: new Date(call.getDeadline()).getTime(), at: Date.now() });
      return { outcome: Outcome.REPLIED, reply: new Uint8Array(replyMax) };
    });
    const lane = await laneTo(t, endpoint, { tokenFile });
    const begun = Date.now();
    assert.equal((await lane.invoke("é", "do", "ü", { id: "id-1", timeoutMs: 2500.7 })).length, replyMax);
    const { request, token, deadline, at } = seen.pop()!;
    assert.deepEqual([Buffer.from(request.key).toString(), request.method, Buffer.from(request.payload).toString(), request.id, request.timeoutMs, request.path], ["é", "do", "ü", "id-1", 2500n, []]);
    assert.equal(token, "Bearer one");
    assert.ok(deadline >= begun + 3000 && deadline < at + 4000, `the router's own answer comes first: ${deadline - begun} ms after the call began, ${deadline - at} after it arrived`);
    writeFileSync(tokenFile, "two");
    await lane.invoke("k", "do");
    assert.deepEqual([seen[0]!.token, seen[0]!.request.timeoutMs], ["Bearer two", 10_000n]);
    unlinkSync(tokenFile);
    await assert.rejects(lane.invoke("k", "do"), { outcome: "not_run", message: /token file/ });
    for (const timeoutMs of [0, -1, NaN, Infinity]) await assert.rejects(lane.invoke("k", "do", "", { timeoutMs }), RingfenceError);
  });

  it("says that a call has not run when there is no router, or the lane is closed", async () => {
    const lane = new Lane("127.0.0.1:1");
    for (let i = 0; i < 2; i++) await assert.rejects(lane.invoke("k", "do"), { outcome: "not_run", code: "unreachable" });
    lane.close();
    await assert.rejects(lane.invoke("k", "do"), { outcome: "not_run", text: "the lane was closed" });
    assert.throws(() => new Lane("nowhere"), { code: "argument", argument: "endpoint" });
    assert.throws(() => new Lane("127.0.0.1:1", { name: "x" } as LaneOptions), { code: "argument", argument: "name" });
  });
});
