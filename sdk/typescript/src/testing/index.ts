/**
 * A router in memory: it tests a handler through the real SDK, without a router process or a broker.
 *
 *     test("an order is booked", async (t) => {
 *       const router = testRouter(t);
 *       await router.start(handler);
 *       const outcome = await router.deliver({ key: "alice", payload: '{"cents": 500}' }).outcome();
 *       assert.equal(outcome.kind, "done");
 *     });
 *
 * Events of one key are given to the handler one at a time, in the order of deliver; different keys run at once. The router
 * retries nothing: it records the outcome, and redeliver makes the next attempt. lose moves a key to another machine while its
 * handler runs, expire lets the lease run out, disconnect breaks the stream. Leases last for an hour of the router's own clock,
 * which lose and expire move forward, so a slow machine cancels nothing by accident. What handlers set as timers, and what a lane sends,
 * is in `sent`, and comes back when the test says so; schedules fire when it says so, too.
 *
 * @packageDocumentation
 */
export { TestRouter, testRouter, type CallInit, type EventInit, type FiringInit, type TestContext, type TestDelivery, type TestOutcome, type TestRouterOptions, type TestSent } from "./router.js";
