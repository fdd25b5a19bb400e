import assert from "node:assert/strict";
import { test } from "node:test";
import { Fence } from "@ringfence/client";
import { testRouter } from "@ringfence/client/testing";
import { Ledger, StaleError } from "./ledger.js";
import { handler } from "./orders.js";

test("orders are booked once, and what is no order is rejected", async (t) => {
  const sums = new Ledger();
  const router = testRouter(t);
  await router.start(handler(sums));

  const first = router.deliver({ key: "alice", payload: '{"cents": 500}' });
  await router.deliver({ key: "alice", payload: '{"cents": 250}' }).outcome();
  await router.deliver({ key: "bob", payload: '{"cents": 1}' }).outcome();
  assert.equal((await first.outcome()).kind, "done");
  assert.equal((await (await first.redeliver()).outcome()).kind, "done", "the same order again");
  for (const payload of ["gibberish", '{"cents": 0}', "{}", "null"]) {
    assert.equal((await router.deliver({ key: "carol", payload }).outcome()).kind, "reject", payload);
  }
  assert.deepEqual(sums.sum(), { customers: 2, orders: 3, cents: 751 });
});

test("the cents may be in another field", async (t) => {
  const sums = new Ledger();
  const router = testRouter(t);
  await router.start(handler(sums, "turn"));
  assert.equal((await router.deliver({ key: "user-2", payload: '{"number": 12, "user": "user-2", "turn": 2}' }).outcome()).kind, "done");
  assert.equal(sums.sum().cents, 2);
});

test("an order with a stale fence is not booked, and retried", async (t) => {
  const sums = new Ledger();
  const router = testRouter(t);
  await router.start(handler(sums));
  await router.deliver({ key: "alice", payload: '{"cents": 1}', fence: new Fence(7n, 2n) }).outcome();
  const stale = await router.deliver({ key: "alice", payload: '{"cents": 2}', fence: new Fence(7n, 1n) }).outcome();
  assert.deepEqual([stale.kind, stale.reason], ["retry", "customer is somebody else's by now"]);
  assert.equal(sums.sum().cents, 1);
});

test("the ledger refuses an earlier delivery", () => {
  const sums = new Ledger();
  for (const [id, token, turn, stale] of [
    ["1", 7n, 1n, false],
    ["2", 7n, 3n, false], // the next worker beside the same router
    ["3", 7n, 1n, true],
    ["3", 9n, 2n, false], // the next owner
    ["4", 7n, 4n, true],
    ["3", 9n, 2n, false], // once more
  ] as const) {
    const add = () => sums.add("alice", id, new Fence(token, turn), 100);
    if (stale) assert.throws(add, StaleError, `order ${id}`);
    else add();
  }
  assert.deepEqual(sums.sum(), { customers: 1, orders: 3, cents: 300 });
});
