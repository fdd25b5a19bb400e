import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { deliveries, DrainTimeoutError, KeyLostError, type Delivery } from "../src/index.js";
import { testRouter } from "../src/testing/index.js";
import { Script, settled } from "./script.js";

describe("deliveries", () => {
  it("are answered one by one", async (t) => {
    const router = testRouter(t);
    const stop = new AbortController();
    const sent = [router.deliver({ key: "done" }), router.deliver({ key: "retry" }), router.deliver({ key: "reject" })];
    const outcomes = Promise.all(sent.map((one) => one.outcome()));
    for await (const delivery of router.deliveries({ signal: stop.signal })) {
      assert.equal(delivery.answered, false);
      switch (delivery.event.key) {
        case "done":
          delivery.done();
          break;
        case "retry":
          delivery.retry(new Error("busy"), 700);
          break;
        default:
          delivery.reject("nonsense");
          stop.abort();
      }
      assert.equal(delivery.answered, true);
      assert.throws(() => delivery.done(), /done: the delivery was already answered/);
    }
    assert.deepEqual((await outcomes).map((o) => [o.kind, o.afterMs, o.reason]), [["done", 0, ""], ["retry", 700, "busy"], ["reject", 0, "nonsense"]]);
  });

  it("start only when they are asked for", async () => {
    const script = new Script();
    const iterator = deliveries(script.options());
    const first = iterator.next();
    await script.until(() => script.streams.length === 1 && script.streams[0]!.pings.length === 1);
    const stream = script.streams[0]!;
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1, 2, 3);
    const one = (await first).value!;
    assert.equal(one.event.key, "1");
    one.done();
    await settled();
    assert.equal(stream.answers.length, 1);

    script.clock.at += 1000; // the lease of the two that wait runs out
    const second = iterator.next();
    let resolved = false;
    void second.then(() => (resolved = true));
    await settled();
    assert.equal(resolved, false, "a delivery started after the deadline");
    stream.send({ case: "revoke", value: { partitions: [2] } }, 1n);
    stream.pong(60_000);
    assert.equal((await second).value!.event.key, "3", "a revoked delivery started");
    (await second).value!.done();
    stream.send(undefined, 2n);
    await settled();
    assert.deepEqual(new Set(stream.answers.map((a) => Number(a.id))), new Set([1, 2, 3]));
    const last = iterator.next();
    script.stop();
    stream.send(undefined, 3n);
    await script.until(() => stream.halfClosed);
    stream.end(0);
    assert.equal((await last).done, true);
    assert.equal((await iterator.next()).done, true);
  });

  it("lose their keys", async (t) => {
    const router = testRouter(t);
    const stop = new AbortController();
    const iterator = router.deliveries({ signal: stop.signal });
    const sent = router.deliver({ key: "k" });
    const { value } = (await iterator.next()) as { value: Delivery };
    const aborted = new Promise((resolve) => value.signal.addEventListener("abort", resolve));
    await router.lose("k");
    await aborted;
    assert.ok(value.signal.reason instanceof KeyLostError);
    value.retry(value.signal.reason);
    assert.equal((await sent.outcome()).kind, "cancelled");
    stop.abort();
    assert.equal((await iterator.next()).done, true);
  });

  it("can be answered after a delay that is no number", async (t) => {
    const router = testRouter(t);
    const iterator = router.deliveries();
    const sent = router.deliver({ key: "k" });
    const { value } = (await iterator.next()) as { value: Delivery };
    assert.throws(() => value.retry("busy", 1000n as unknown as number), TypeError);
    assert.throws(() => value.retry("busy", NaN), RangeError);
    assert.equal(value.answered, false);
    value.retry("busy", 5);
    const { kind, afterMs } = await sent.outcome();
    assert.deepEqual([kind, afterMs], ["retry", 5]);
    await iterator.return();
  });

  it("can be handled at once", async (t) => {
    const router = testRouter(t);
    const iterator = router.deliveries();
    const sent = ["a", "b", "c"].map((key) => router.deliver({ key }));
    const all = await Promise.all([iterator.next(), iterator.next(), iterator.next()]);
    assert.deepEqual(all.map((one) => one.value!.event.key), ["a", "b", "c"]);
    for (const one of all) one.value!.done();
    assert.deepEqual((await Promise.all(sent.map((one) => one.outcome()))).map((o) => o.kind), ["done", "done", "done"]);
    await iterator.return();
  });

  it("are waited for when the loop is left", async () => {
    const script = new Script();
    const iterator = deliveries(script.options({ drainGraceMs: 20 }));
    const first = iterator.next();
    await script.until(() => script.streams.length === 1 && script.streams[0]!.pings.length === 1);
    const stream = script.streams[0]!;
    stream.welcome();
    stream.pong(1000);
    stream.deliver(1);
    const { value } = (await first) as { value: Delivery };
    const aborted = new Promise((resolve) => value.signal.addEventListener("abort", resolve));
    const left = iterator.return();
    assert.ok(script.log.some((l) => l.message.includes("waiting for answers") && l.fields.unanswered === 1));
    await aborted;
    assert.ok(value.signal.reason instanceof DrainTimeoutError);
    await assert.rejects(left, { code: "drain_timeout" });
    await assert.rejects(iterator.next(), { code: "drain_timeout" });
  });

  it("end at once if nothing was asked for", async () => {
    const script = new Script();
    const iterator = deliveries(script.options());
    assert.equal((await iterator.return()).done, true);
    assert.equal((await iterator.next()).done, true);
    assert.equal(script.streams.length, 0);
  });

  it("refuse wrong options at once", () => {
    assert.throws(() => deliveries({ maxInFlight: 0 }), { code: "argument" });
  });
});
