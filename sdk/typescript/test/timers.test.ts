import assert from "node:assert/strict";
import { mkdtempSync, rmSync, unlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Server, ServerCredentials, status, type sendUnaryData, type ServerUnaryCall } from "@grpc/grpc-js";
import { SendRequestSchema, SendResponseSchema, type SendRequest } from "../src/gen/ringfence/lane/v1/lane_pb.js";
import {
  deliveries, KeyLostError, Lane, MaybeSentError, NotSentError, Reject, RetryAfter, RingfenceError, type Call, type Event, type LaneOptions, type SendOptions,
} from "../src/index.js";
import { checkedTimer, payloadMax, requestMax, timerAfterMax, timerNameMax, timersMax } from "../src/sending.js";
import { TestRouter, testRouter } from "../src/testing/index.js";
import type { Status } from "../src/transport.js";
import { deferred, mute } from "./script.js";

interface Context {
  after(end: () => unknown): void;
}

const nothing = () => {};
const wait = 30_000;

function setTwo(of: Event | Call): void {
  of.after(1500, "first", "1");
  of.after(0, undefined, Uint8Array.of(0x32));
}

/** A router whose Sends end as the test says. */
class Odd extends TestRouter {
  count = 0;

  constructor(private readonly answer: (n: number) => Promise<void> | void) {
    super();
  }

  override async publish(request: SendRequest): Promise<{ messageId: string; dueMs: bigint }> {
    await this.answer(++this.count);
    return super.publish(request);
  }
}

function odd(t: Context, answer: (n: number) => Promise<void> | void): Odd {
  const router = new Odd(answer);
  t.after(() => router.stop());
  return router;
}

const failing = (code: number) => () => {
  throw { code, details: "as told" } satisfies Status;
};

const crowded = (times: number) => (n: number) => {
  if (n <= times) failing(status.RESOURCE_EXHAUSTED)();
};

function laneTo(t: Context, endpoint: string, options: LaneOptions = {}): Lane {
  const lane = new Lane(endpoint, options);
  t.after(() => lane.close());
  return lane;
}

describe("a timer", () => {
  it("is refused once the handler has returned, also while others are published", async (t) => {
    const asked = deferred<void>();
    const told = deferred<void>();
    const router = odd(t, () => (asked.resolve(), told.promise));
    let event: Event | undefined;
    await router.start((it) => (event ??= it).after(0, "in time"));
    const delivery = router.deliver({ key: "k" });
    await asked.promise;
    assert.equal(event!.signal.aborted, false);
    assert.throws(() => event!.after(0, "too late"), { name: "KeyLostError", message: /the handler has returned/ });
    told.resolve();
    assert.equal((await delivery.outcome()).kind, "done");
    assert.deepEqual(router.sent.map((one) => one.name), ["in time"]);
    assert.throws(() => event!.after(0), { name: "KeyLostError", message: /the handler has returned/ });
  });

  it("is published before its event is done, and comes back", async (t) => {
    const router = testRouter(t);
    const got: Event[] = [];
    await router.start((event) => (event.timer === undefined ? setTwo(event) : void got.push(event)));
    const before = Date.now();
    const key = Uint8Array.of(0xff);
    assert.equal((await router.deliver({ key, messageId: { ledger: 1n << 62n, entry: 8n, topicPartition: 2, batch: 3 } }).outcome()).kind, "done");
    const [first, second] = router.sent; // done says that both are there
    assert.deepEqual([first!.key, first!.name, String(first!.payload), first!.afterMs, first!.id], [Buffer.from(key), "first", "1", 1500, "after/4611686018427387904:8:2:3/0"]);
    assert.deepEqual([second!.key, second!.name, String(second!.payload), second!.afterMs, second!.id], [Buffer.from(key), "", "2", 0, "after/4611686018427387904:8:2:3/1"]);
    assert.ok(first!.due.getTime() >= before + 1500 && first!.due.getTime() <= Date.now() + 1500);
    assert.equal((await first!.deliver().outcome()).kind, "done");
    assert.deepEqual(got[0]!.timer, { name: "first", due: first!.due });
    assert.deepEqual([got[0]!.keyBytes, String(got[0]!.payload), String(got[0]!.messageId)], [Buffer.from(key), "1", String(first!.messageId)]);
    assert.equal(router.sent.length, 2);
  });

  it("is dropped if the handler fails, and is the same one in every run", async (t) => {
    const router = testRouter(t);
    await router.start((event) => {
      setTwo(event);
      if (event.attempt === 1) throw new RetryAfter(1, "later");
      if (event.payload.length > 0) throw new Reject("no");
    });
    const failed = router.deliver({ key: "k" });
    assert.equal((await failed.outcome()).kind, "retry");
    assert.equal((await router.deliver({ key: "k", payload: "reject", attempt: 2 }).outcome()).kind, "reject");
    assert.equal(router.sent.length, 0);
    const again = await failed.redeliver();
    assert.equal((await again.outcome()).kind, "done");
    assert.equal(router.sent.length, 2);
    assert.equal((await (await again.redeliver()).outcome()).kind, "done");
    assert.equal(router.sent.length, 2);
  });

  it("is set by calls, too", async (t) => {
    const router = testRouter(t);
    await router.start(nothing, {
      calls: {
        do: (call) => {
          setTwo(call);
          return Buffer.from("r");
        },
      },
    });
    for (const n of [1, 2]) {
      assert.equal(String((await router.call({ key: "k", method: "do" }).outcome()).reply), "r");
      assert.equal(new Set(router.sent.map(({ id }) => id)).size, 2 * n, "each call has timers of its own");
    }
  });

  it("is set by a loop over deliveries", async (t) => {
    const router = testRouter(t);
    const stop = new AbortController();
    const looped = (async () => {
      for await (const delivery of deliveries(router.options({ signal: stop.signal }))) {
        setTwo(delivery.event);
        delivery.done();
      }
    })();
    assert.equal((await router.deliver({ key: "k" }).outcome()).kind, "done");
    assert.equal(router.sent.length, 2);
    stop.abort();
    await looped;
  });

  it("can be one of many", async (t) => {
    const router = testRouter(t);
    await router.start((event) => {
      for (let n = 0; n < timersMax; n++) event.after(n, `n-${n}`);
    });
    assert.equal((await router.deliver({ key: "k" }).outcome()).kind, "done");
    assert.deepEqual(router.sent.map(({ name }) => name).sort(), Array.from({ length: timersMax }, (_, n) => `n-${n}`).sort());
  });

  it("fails its event if it cannot be published, and is refused if it is out of range", async (t) => {
    for (const [code, reason] of [[status.FAILED_PRECONDITION, "the event was not published: as told"], [status.UNAVAILABLE, "the event may have been published: UNAVAILABLE: as told"]] as const) {
      const router = odd(t, failing(code));
      const finished: string[] = [];
      const call = (of: Call) => {
        setTwo(of);
        return Buffer.from("r");
      };
      await router.start(setTwo, { calls: { do: call }, hooks: { finished: (_, { kind }) => void finished.push(kind) } });
      const outcome = await router.deliver({ key: "k" }).outcome();
      assert.deepEqual([outcome.kind, outcome.reason], ["retry", reason]);
      const called = await router.call({ key: "k", method: "do" }).outcome();
      assert.deepEqual([called.kind, called.reason, called.reply!.length, called.code], ["retry", reason, 0, ""]);
      assert.deepEqual(finished, ["retry", "retry"]);
    }
    const router = testRouter(t);
    const bad: Record<string, [number, string?, (string | Uint8Array)?]> = {
      "afterMs is NaN": [NaN], "afterMs is 31622400001": [timerAfterMax + 1], "name is": [0, "n".repeat(timerNameMax + 1)],
      'name is "a\\nb"': [0, "a\nb"], 'name is "\\ud800"': [0, "\ud800"], 'name is "\ufffd"': [0, "\ufffd"], "payload has 1048577 bytes": [0, "n", new Uint8Array(payloadMax + 1)],
    };
    let seen: unknown;
    await router.start((event) => {
      for (const [text, timer] of Object.entries(bad)) {
        assert.throws(() => event.after(...timer), (err) => err instanceof RingfenceError && err.code === "argument" && err.message.includes(text), text);
      }
      for (let n = 0; n < timersMax; n++) event.after(timerAfterMax, "é".repeat(timerNameMax / 2), new Uint8Array(payloadMax));
      try {
        event.after(0);
      } catch (err) {
        seen = err;
        throw err;
      }
    });
    assert.equal((await router.deliver({ key: "k" }).outcome()).kind, "retry");
    assert.match(String(seen), /more than 100 timers of one event/);
    assert.equal(router.sent.length, 0);
    assert.equal(checkedTimer(-5, "", "").afterMs, 0); // due at once
  });

  it("is sent again while the router refuses it unread", async (t) => {
    const router = odd(t, crowded(20));
    await router.start(setTwo);
    assert.equal((await router.deliver({ key: "k" }).outcome()).kind, "done");
    assert.deepEqual([router.count, router.sent.length], [22, 2]);
  });

  it("is given up when the key is lost", async (t) => {
    for (const answer of [() => opened.promise, crowded(Infinity)]) {
      const sends = deferred();
      const router = odd(t, (n) => {
        sends.resolve();
        return answer(n);
      });
      const reasons: unknown[] = [];
      await router.start((event) => {
        setTwo(event);
        event.signal.addEventListener("abort", () => reasons.push(event.signal.reason));
      });
      const delivery = router.deliver({ key: "k" });
      await sends.promise;
      await router.lose("k");
      assert.equal((await delivery.outcome()).kind, "cancelled");
      assert.ok(reasons[0] instanceof KeyLostError);
    }
    opened.resolve();
  });
  const opened = deferred();
});

describe("what a lane sends", () => {
  it("is published, with its id, and comes to the handler", async (t) => {
    const router = testRouter(t);
    const lane = laneTo(t, await router.serve());
    const at = new Date("2100-01-02T03:04:05.678Z");
    const ids = [
      await lane.send("é", "payload", { afterMs: 2500.7, name: "mine", id: "order-8", properties: { a: "1" } }),
      await lane.send(Uint8Array.of(0xff), "", { at }),
      await lane.send("é", "payload", { id: "order-8" }),
    ];
    const [first, second] = router.sent;
    assert.equal(router.sent.length, 2);
    assert.deepEqual(ids.map(String), [first, second, first].map((one) => String(one!.messageId)));
    assert.equal(ids[0]!.ledger, 1n << 61n);
    assert.deepEqual([String(first!.key), String(first!.payload), first!.name, first!.id, first!.properties, first!.afterMs], ["é", "payload", "mine", "order-8", [{ name: "a", value: "1" }], 2500]);
    assert.deepEqual([second!.key, second!.payload.length, second!.due, second!.id], [Buffer.of(0xff), 0, at, ""]);
    const seen: Event[] = [];
    await router.start((event) => void seen.push(event));
    assert.equal((await first!.deliver().outcome()).kind, "done");
    assert.deepEqual([seen[0]!.property("a"), seen[0]!.timer!.name, String(seen[0]!.messageId)], ["1", "mine", String(ids[0])]);
  });

  it("is due at once after a time that has passed", async (t) => {
    const router = testRouter(t);
    const lane = laneTo(t, await router.serve());
    for (const afterMs of [-0.5, -5000, -Infinity]) await lane.send("k", "", { afterMs });
    assert.deepEqual(router.sent.map((one) => one.afterMs), [0, 0, 0]);
  });

  it("is sent again while the router refuses it unread, until its time is up", async (t) => {
    const router = odd(t, crowded(20));
    await laneTo(t, await router.serve()).send("k", "", { timeoutMs: wait });
    assert.deepEqual([router.count, router.sent.length], [21, 1]);
    const full = odd(t, crowded(Infinity));
    const lane = laneTo(t, await full.serve());
    await assert.rejects(lane.send("k", "", { timeoutMs: 2000 }), { name: "NotSentError", text: "as told" });
    assert.ok(full.count > 3);
    const abort = new AbortController();
    const sent = lane.send("k", "", { signal: abort.signal });
    setTimeout(() => abort.abort(new Error("enough")), 20);
    await assert.rejects(sent, (err) => err instanceof NotSentError || err instanceof MaybeSentError);
    await assert.rejects(lane.send("k", "", { signal: abort.signal }), { name: "NotSentError", text: "enough" });
  });

  /** A router that answers each Send as the test says. */
  async function serve(t: Context, answer: (call: ServerUnaryCall<Buffer, Buffer>) => string | { status: number } | undefined): Promise<string> {
    const server = new Server();
    const same = (frame: Buffer): Buffer => frame;
    server.addService(
      { send: { path: "/ringfence.lane.v1.LaneService/Send", requestStream: false, responseStream: false, requestSerialize: same, requestDeserialize: same, responseSerialize: same, responseDeserialize: same } },
      {
        send: (call: ServerUnaryCall<Buffer, Buffer>, done: sendUnaryData<Buffer>) => {
          fromBinary(SendRequestSchema, call.request);
          const answered = answer(call);
          if (typeof answered === "string") done(null, Buffer.from(toBinary(SendResponseSchema, create(SendResponseSchema, { messageId: answered }))));
          else if (answered !== undefined) done({ code: answered.status, details: "as told" });
        },
      },
    );
    const port = await new Promise<number>((resolve, reject) => server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (err, bound) => (err ? reject(err) : resolve(bound))));
    t.after(() => server.forceShutdown());
    return `127.0.0.1:${port}`;
  }

  const statuses: Record<string, string> = {
    INVALID_ARGUMENT: "NotSentError", UNIMPLEMENTED: "NotSentError", UNAUTHENTICATED: "NotSentError", PERMISSION_DENIED: "NotSentError", FAILED_PRECONDITION: "NotSentError",
    UNAVAILABLE: "MaybeSentError", INTERNAL: "MaybeSentError", CANCELLED: "MaybeSentError", DEADLINE_EXCEEDED: "MaybeSentError",
  };
  for (const [code, name] of Object.entries(statuses)) {
    it(`makes of the status ${code}: ${name}`, async (t) => {
      const lane = laneTo(t, await serve(t, () => ({ status: status[code as keyof typeof status] })));
      await assert.rejects(lane.send("k"), { name, message: /as told/ });
    });
  }

  it("is not sent if a router would not read it", async (t) => {
    let count = 0;
    const lane = laneTo(t, await serve(t, () => (count++, "1:2:-1:-1")));
    assert.equal(String(await lane.send("k", Buffer.alloc(payloadMax))), "1:2:-1:-1");
    const large: [string, string | Uint8Array, string][] = [
      ["k", "é".repeat(payloadMax / 2) + "e", "a payload of 1048577 bytes, want at most 1048576"],
      ["k", Buffer.alloc(3 * payloadMax), "a payload of 3145728 bytes, want at most 1048576"],
      ["k".repeat(requestMax), "", "a request of 2097157 bytes, want at most 2097152"],
    ];
    for (const [key, payload, text] of large) await assert.rejects(lane.send(key, payload, { timeoutMs: 1000 }), { name: "NotSentError", text });
    assert.equal(count, 1);
  });

  it("may have been published if the router does not answer, or answers nonsense", async (t) => {
    let answer: string | undefined = "nonsense";
    const lane = laneTo(t, await serve(t, () => answer));
    await assert.rejects(lane.send("k"), { name: "MaybeSentError", text: 'the router answered "nonsense"' });
    answer = undefined; // over a connection that is there: without one nothing is sent
    await assert.rejects(lane.send("k", "", { timeoutMs: 100 }), { name: "MaybeSentError", message: /DEADLINE_EXCEEDED/ });
  });

  it("keeps its connection when the broker is slower than a caller waits", async (t) => {
    let answer: string | undefined = "1:2:-1:-1";
    const proxy = await mute(t, await serve(t, () => answer));
    const lane = laneTo(t, proxy.endpoint);
    await lane.send("k");
    answer = undefined;
    for (let i = 0; i < 3; i++) await assert.rejects(lane.send("k", "", { timeoutMs: 1 }), { name: "MaybeSentError" });
    answer = "1:2:-1:-1";
    await lane.send("k");
    assert.equal(proxy.accepted.length, 1);
  });

  it("is not sent if it is no text", async (t) => { // Node would write U+FFFD: the key, or the id, would be another one
    let count = 0;
    const lane = laneTo(t, await serve(t, () => (count++, "1:2:-1:-1")));
    const half = "a\ud800";
    const no = { name: "NotSentError", text: /has no UTF-8/ };
    await assert.rejects(lane.send(half), no);
    for (const options of [{ id: half }, { name: half }, { properties: { [half]: "v" } }, { properties: { p: half } }]) await assert.rejects(lane.send("k", "", options), no);
    assert.equal(count, 0);
  });

  it("has the token of the time", async (t) => {
    const folder = mkdtempSync(join(tmpdir(), "ringfence-send-"));
    t.after(() => rmSync(folder, { recursive: true }));
    const tokenFile = join(folder, "token");
    const tokens: unknown[] = [];
    const endpoint = await serve(t, (call) => (tokens.push(call.metadata.get("authorization")[0]), "1:2:-1:-1"));
    const lane = laneTo(t, endpoint, { tokenFile });
    for (const token of ["one\n", "two"]) {
      writeFileSync(tokenFile, token);
      assert.equal(String(await lane.send("k")), "1:2:-1:-1");
    }
    assert.deepEqual(tokens, ["Bearer one", "Bearer two"]);
    unlinkSync(tokenFile);
    await assert.rejects(lane.send("k"), { name: "NotSentError", message: /token file/ });
  });

  it("may have been published when the lane closes", async (t) => {
    const asked = deferred<void>();
    const lane = laneTo(t, await serve(t, () => asked.resolve() as undefined));
    const sent = assert.rejects(lane.send("k"), { name: "MaybeSentError", text: "the lane was closed" });
    await asked.promise;
    lane.close();
    await sent;
  });

  it("is not sent without a router, on a closed lane, and with a time out of range", async () => {
    const lane = new Lane("127.0.0.1:1");
    await assert.rejects(lane.send("k"), { name: "NotSentError" });
    const bad: [SendOptions, string][] = [
      [{ afterMs: NaN }, "afterMs"], [{ afterMs: Infinity }, "afterMs"], [{ afterMs: 1, at: new Date() }, "at"], [{ at: new Date(NaN) }, "at"], [{ timeoutMs: 0 }, "timeoutMs"],
    ];
    for (const [options, argument] of bad) await assert.rejects(lane.send("k", "", options), { name: "RingfenceError", code: "argument", argument });
    lane.close();
    await assert.rejects(lane.send("k"), { name: "NotSentError", text: "the lane was closed" });
  });
});
