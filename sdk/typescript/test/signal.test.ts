import assert from "node:assert/strict";
import { getEventListeners, once, setMaxListeners } from "node:events";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { addAbortSignal, Readable } from "node:stream";
import { inspect } from "node:util";
import { signalOf, standIns, type Cancellable } from "../src/signal.js";

class Work implements Cancellable {
  cause: Error | undefined = undefined;
  controller: AbortController | undefined = undefined;
  asked = 0;
  late: Error | undefined = undefined; // found by the next ask

  ask(): void {
    this.asked++;
    if (this.late !== undefined) this.cancel(this.late);
  }

  cancel(cause: Error): void {
    this.cause = cause;
    this.controller?.abort(cause);
  }
}

const lost = new Error("lost");

it("has stand-ins on this version of Node", () => assert.equal(standIns, true));

for (const standIn of [true, false]) {
  describe(standIn ? "a stand-in for a signal" : "a signal without a stand-in", () => {
    const make = () => {
      const work = new Work();
      return { work, signal: signalOf(work, standIn) };
    };

    it("asks the clock", () => {
      const { work, signal } = make();
      assert.ok(signal instanceof AbortSignal && signal instanceof EventTarget);
      assert.equal(signal.aborted, false);
      signal.throwIfAborted();
      assert.equal(work.asked, 2);
      assert.equal(signal.reason, undefined);
      if (standIn) assert.equal(work.controller, undefined, "a signal of Node was made for nothing");
      work.late = lost;
      assert.throws(() => signal.throwIfAborted(), lost);
      assert.equal(signal.aborted, true);
      assert.equal(signal.reason, lost);
      assert.equal(work.asked, 3, "it asked again after its end");
    });

    it("tells its listeners", () => {
      const { work, signal } = make();
      const heard: string[] = [];
      const removed = () => heard.push("removed");
      signal.removeEventListener("abort", removed);
      signal.addEventListener("abort", () => heard.push("once"), { once: true });
      signal.addEventListener("abort", removed);
      signal.removeEventListener("abort", removed);
      assert.equal(signal.onabort, null);
      const on = (event: { type: string }) => heard.push(event.type);
      signal.onabort = on;
      assert.equal(signal.onabort, on);
      work.cancel(lost);
      assert.deepEqual(heard, ["once", "abort"]);
    });

    it("has aborted for those who come late", async () => {
      const { work, signal } = make();
      work.cancel(lost);
      assert.equal(AbortSignal.any([signal]).reason, lost);
      await assert.rejects(sleep(60_000, undefined, { signal }), { name: "AbortError" });
      await assert.rejects(fetch("http://127.0.0.1:9", { signal }), lost);
    });

    it("is taken by all of Node that takes a signal", async () => {
      const { work, signal } = make();
      const any = AbortSignal.any([signal, new AbortController().signal]);
      const nested = AbortSignal.any([any]);
      const emitter = new EventTarget();
      let heard = 0;
      emitter.addEventListener("x", () => heard++, { signal });
      emitter.dispatchEvent(new Event("x"));
      setMaxListeners(100, signal);
      const stream = addAbortSignal(signal, new Readable({ read() {} }));
      const waits = [sleep(60_000, undefined, { signal }), sleep(60_000, undefined, { signal: nested }), once(emitter, "never", { signal }), once(stream, "end"), fetch("http://127.0.0.1:9", { signal: any }).finally(() => {})];
      const ends = Promise.allSettled(waits);
      assert.ok(getEventListeners(signal, "abort").length >= 3);
      work.cancel(lost);
      assert.deepEqual([any.aborted, any.reason, nested.reason], [true, lost, lost]);
      emitter.dispatchEvent(new Event("x"));
      assert.equal(heard, 1);
      assert.deepEqual((await ends).map((end) => end.status), Array(5).fill("rejected"));
      assert.match(inspect(signal), /aborted: true/);
    });
  });
}
