import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { Fence, type Event } from "../src/index.js";
import { TestRouter, testRouter } from "../src/testing/index.js";
import { deferred } from "./script.js";

describe("test router", () => {
  it("delivers the events of a key one by one, in order, and those of other keys beside them", async (t) => {
    const router = testRouter(t);
    const ends: (() => void)[] = [];
    const started: string[] = [];
    const both = deferred();
    await router.start((event) => {
      started.push(`${event.key}${event.payload}`);
      if (started.length === 2) both.resolve();
      return new Promise<void>((resolve) => ends.push(resolve));
    });
    const first = router.deliver({ key: "a", payload: "1" });
    const second = router.deliver({ key: "a", payload: "2" });
    router.deliver({ key: "b", payload: "1" });
    await both.promise;
    assert.deepEqual(started, ["a1", "b1"]);
    assert.equal(second.ended, false);
    ends[0]!();
    await first.outcome();
    const third = deferred();
    const timer = setInterval(() => ends.length === 3 && third.resolve(), 1);
    await third.promise;
    clearInterval(timer);
    assert.deepEqual(started, ["a1", "b1", "a2"]);
    for (const end of ends) end();
  });

  // Each delivery of a key has a greater fence than the one before: a retry, a delivery after the key was lost, and the next
  // event. A fence that the test chooses is kept.
  it("makes fences grow", async (t) => {
    const router = testRouter(t);
    const seen: Event[] = [];
    await router.start((event) => {
      seen.push(event);
      throw new Error("again");
    });
    const first = router.deliver({ key: "k" });
    await first.outcome();
    const retry = await first.redeliver();
    await retry.outcome();
    await router.lose("k");
    const moved = await retry.redeliver();
    await moved.outcome();
    await router.deliver({ key: "k" }).outcome();
    await router.deliver({ key: "k", fence: new Fence(99n, 7n) }).outcome();
    for (const [i, event] of seen.entries()) if (i > 0) assert.ok(seen[i - 1]!.fence.before(event.fence), `${seen[i - 1]!.fence} before ${event.fence}`);
    assert.deepEqual(seen.at(-1)!.fence, new Fence(99n, 7n));
    assert.deepEqual(seen.map((e) => [e.attempt, e.fencingToken]), [[1, 1n], [2, 1n], [3, 2n], [1, 2n], [1, 99n]]);
    assert.equal(String(seen[0]!.messageId), String(seen[2]!.messageId));
    assert.notEqual(String(seen[0]!.messageId), String(seen[3]!.messageId));
  });

  it("does not start the waiting events of a lost key", async (t) => {
    const router = testRouter(t);
    const waits = router.deliver({ key: "k" }); // there is no worker yet
    await router.lose("k");
    await router.lose("unknown");
    assert.equal((await waits.outcome()).kind, "not_started");
    await router.start((event) => {
      assert.equal(event.fencingToken, 2n);
      assert.equal(event.attempt, 1);
    });
    assert.equal((await (await waits.redeliver()).outcome()).kind, "done");
  });

  it("suspends, resumes, and says when handlers ran", async (t) => {
    const router = testRouter(t, { capabilities: ["intervals"] });
    let started = 0;
    await router.start(() => void started++);
    router.suspend();
    const delivery = router.deliver({ key: "k" });
    router.deliver({ key: "other" });
    await router.lose("other"); // resolves after a Pong
    assert.equal(started, 0);
    router.resume();
    const outcome = await delivery.outcome();
    assert.equal(outcome.kind, "done");
    assert.ok(outcome.startedNs > 0n);
  });

  it("has a window", async (t) => {
    const router = testRouter(t, { maxInFlight: 2 });
    const sessions: number[] = [];
    await router.start(() => {}, { hooks: { connected: (session) => sessions.push(session.inFlightMax) } });
    assert.deepEqual(sessions, [2]);
    const all = await Promise.all(Array.from({ length: 100 }, (_, i) => router.deliver({ key: `k${i}` }).outcome()));
    assert.ok(all.every((o) => o.kind === "done"));
  });

  it("fails when a worker is refused, or does not end", async () => {
    const router = new TestRouter();
    await assert.rejects(router.start(() => {}, { maxInFlight: 0 }), { code: "argument" });
    await assert.rejects(router.stop(), { code: "argument" });
    const started = deferred();
    await router.start(
      () => {
        started.resolve();
        return new Promise(() => {});
      },
      { drainGraceMs: 0 },
    );
    router.deliver({ key: "k" });
    await started.promise;
    await assert.rejects(router.stop(), { code: "drain_timeout" });
  });

  it("lets a state be kept while one worker has all turns of the key", async (t) => {
    const router = testRouter(t);
    let loads = 0;
    const handler = async (event: Event) => void (await event.state(() => ({ n: ++loads })));
    const turn = async (key = "k") => {
      const before = loads;
      assert.equal((await router.deliver({ key }).outcome()).kind, "done");
      return loads > before;
    };
    await router.start(handler);
    assert.deepEqual([await turn(), await turn(), await turn("other"), await turn()], [true, false, true, false]);
    for (const change of [() => router.lose("k"), () => router.expire(), () => router.disconnect(), () => router.stop().then(() => router.start(handler))]) {
      await change();
      assert.deepEqual([await turn(), await turn()], [true, false]);
    }
    const none = testRouter(t);
    await none.start(handler, { stateMax: 0 });
    for (let i = 0; i < 2; i++) {
      const before = loads;
      await none.deliver({ key: "k" }).outcome();
      assert.ok(loads > before);
    }
  });

  it("redelivers a call as a call", async (t) => {
    const router = testRouter(t);
    const seen: string[] = [];
    await router.start(() => void seen.push("event"), { calls: { pay: ({ id }) => void seen.push(id) } });
    const call = router.call({ key: "k", method: "pay", id: "order-8" });
    await call.outcome();
    await (await call.redeliver()).outcome();
    assert.deepEqual(seen, ["order-8", "order-8"]);
  });
});
