import assert from "node:assert/strict";
import { mkdtempSync, rmSync, unlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { describe, it } from "node:test";
import { create, fromBinary, toBinary, type MessageInitShape } from "@bufbuild/protobuf";
import { Server, ServerCredentials, status, type ServerDuplexStream } from "@grpc/grpc-js";
import { MonotonicClock } from "../src/clock.js";
import { ReserveRequestSchema, ReserveResponseSchema, type Ask } from "../src/gen/ringfence/lane/v1/lane_pb.js";
import { Fence, KeyLostError, Lane, NotReservedError, RingfenceError, type Event, type LaneOptions, type Reservation } from "../src/index.js";
import { Permission, renewalsMax } from "../src/permission.js";
import { requestMax } from "../src/sending.js";
import { testRouter } from "../src/testing/index.js";
import { randomly } from "./randomly.js";
import { deferred, mute } from "./script.js";

describe("the permission of a holder", () => {
  it("counts from the ask", () => {
    const p = new Permission();
    p.ask(100);
    p.granted(50, 120);
    assert.deepEqual([p.until, p.overdue(149.9), p.overdue(150)], [150, false, true]);
  });

  it("is not there after a long wait", () => {
    for (const remaining of [0, -5, 50, 1800, NaN]) {
      const p = new Permission();
      p.ask(100);
      p.granted(remaining, 1000);
      assert.equal(p.until, undefined);
      p.renewed(p.renew(1001), 50, 1010);
      assert.equal(p.until, 1051);
    }
  });

  it("is extended from the sending of a renewal, and never shortened", () => {
    const p = new Permission();
    p.ask(0);
    p.granted(100, 1);
    const [first, second] = [p.renew(10), p.renew(20)];
    p.renewed(second, 100, 50);
    assert.equal(p.until, 120);
    p.renewed(first, 1000, 51); // older: it was answered with the second
    p.renewed(99n, 1000, 52); // never sent
    p.renewed(second, 1000, 53); // twice
    p.renewed(p.renew(60), 0, 61);
    p.renewed(p.renew(62), 10, 63);
    assert.equal(p.until, 120);
  });

  it("is renewed more often if it is short", () => {
    for (const [remaining, every] of [[1760, 500], [600, 200], [30, 20]] as const) {
      const p = new Permission();
      p.granted(remaining, 0);
      assert.equal(p.every, every);
    }
  });

  it("begins with a ttl when the control log has it", () => {
    const p = new Permission(30_000);
    p.ask(0);
    p.granted(1760, 0);
    assert.equal(p.mayBegin, false);
    p.renewed(p.renew(0), 1760, 0);
    assert.deepEqual([p.mayBegin, p.every], [false, 500]);
    p.renewed(p.renew(0), 30_000, 0, true);
    assert.deepEqual([p.mayBegin, p.every], [true, 5000]);
    p.granted(1760, 1000); // at the next owner it is live at first
    p.renewed(p.renew(1000), 1760, 1000);
    assert.deepEqual([p.until, p.every], [30_000, 500]);
    p.renewed(p.renew(2000), 30_000, 2000, true);
    assert.deepEqual([p.until, p.every], [32_000, 5000]);
    const late = new Permission(30_000);
    late.ask(0);
    late.granted(1000, 0);
    late.renewed(late.renew(0), 30_000, 1000, true);
    assert.equal(late.mayBegin, false);
  });

  it("is renewed every ten seconds with a long ttl", () => {
    for (const [ttl, every] of [[6000, 1000], [60_000, 10_000], [300_000, 10_000]] as const) {
      const p = new Permission(ttl);
      p.renewed(p.renew(0), ttl, 0, true);
      assert.equal(p.every, every);
    }
  });

  it("is never extended after its deadline", () => {
    const p = new Permission();
    p.ask(0);
    p.granted(100, 1);
    p.renewed(p.renew(90), 100, 100);
    p.ask(101);
    p.granted(1000, 102);
    assert.equal(p.until, 100);
  });

  it("remembers so many renewals", () => {
    const p = new Permission();
    p.ask(0);
    p.granted(10_000, 0);
    for (let at = 0; at <= renewalsMax; at++) p.renew(at);
    p.renewed(BigInt(renewalsMax + 1), 1e9, 100);
    assert.equal(p.until, 10_000);
  });

  randomly("is no more than the router has given, counted from before it was asked", 500, (draw) => {
    const ttl = draw(0, 1) * 30_000;
    const p = new Permission(ttl);
    const sent = new Map<bigint, number>();
    let [now, asked, owner, lost, covered] = [0, 0, 0, false, false];
    p.ask(now);
    for (let i = 0; i < 60; i++) {
      now += [0, 1, 5, 30][draw(0, 3)]!;
      lost ||= p.overdue(now);
      const before = p.until;
      const remaining = draw(-5, 59);
      switch (draw(0, 3)) {
        case 0:
          sent.set(p.renew(now), now);
          break;
        case 1:
          p.ask((asked = now));
          break;
        case 2:
          owner = Math.max(owner, asked + remaining);
          p.granted(remaining, now);
          break;
        default: {
          const k = BigInt(draw(1, 40));
          if (sent.has(k)) owner = Math.max(owner, sent.get(k)! + remaining);
          const says = draw(0, 4) === 0;
          covered ||= says;
          p.renewed(k, remaining, now, says);
        }
      }
      assert.ok(p.until === undefined || p.until <= owner);
      assert.ok(!p.mayBegin || (p.until !== undefined && (covered || ttl === 0)));
      assert.ok(before === undefined || p.until! >= before);
      assert.ok(!lost || p.until === before);
      assert.ok(p.every >= 20);
    }
  });
});

/** How long the routers here give permission, and how late a busy machine may be, in milliseconds. */
const lease = 1500;
const late = 5000;

/** Of reservations that are renewed, which may be late, too. */
const long = 3000;

type Frame = MessageInitShape<typeof ReserveResponseSchema>["frame"];

/** The router's end of one stream. */
interface Lending {
  readonly n: number;
  readonly ask: Ask;
  readonly token: unknown;
  /** Called with the number of each Renew. */
  renewed: (k: bigint) => void;
  grant(ms?: number, token?: bigint): void;
  renew(k: bigint, ms?: number, covered?: boolean): void;
  over(code: string, text?: string): void;
  fail(code?: number): void;
  /** Sends a frame that is none. */
  babble(): void;
  /** Answers each renewal. */
  keep(ms?: number): void;
}

/** A router that answers each stream of Reserve as the test says, and a lane to it. */
async function lender(t: { after(end: () => void): void }, serve: (s: Lending) => void, options: LaneOptions & { clock?: MonotonicClock } = {}) {
  const streams: Lending[] = [];
  const server = new Server();
  const same = (frame: Buffer): Buffer => frame;
  const state = { streams, releases: 0, ends: 0, server, endpoint: "", lane: undefined as unknown as Lane };
  server.addService(
    { reserve: { path: "/ringfence.lane.v1.LaneService/Reserve", requestStream: true, responseStream: true, requestSerialize: same, requestDeserialize: same, responseSerialize: same, responseDeserialize: same } },
    {
      reserve: (call: ServerDuplexStream<Buffer, Buffer>) => {
        const send = (frame: Frame) => call.write(Buffer.from(toBinary(ReserveResponseSchema, create(ReserveResponseSchema, { frame: frame! }))));
        const ns = (ms: number) => BigInt(Math.round(ms * 1e6));
        let lending: Lending | undefined;
        let failed = false;
        call.on("error", () => {});
        call.on("end", () => (state.ends++, call.end()));
        call.on("data", (bytes: Buffer) => {
          const { frame } = fromBinary(ReserveRequestSchema, bytes);
          if (frame.case === "ask") {
            const self: Lending = (lending = {
              n: streams.length + 1, ask: frame.value, token: call.metadata.get("authorization")[0], renewed: () => {},
              grant: (ms = lease, token = 7n) => send({ case: "granted", value: { token, turn: 8n, remainingNs: ns(ms) } }),
              renew: (k, ms = lease, covered = false) => send({ case: "renewed", value: { k, remainingNs: ns(ms), covered } }),
              over: (code, text = "as told") => {
                send({ case: "over", value: { code, text, retryAfterMs: 1500n } });
                call.end();
              },
              babble: () => void call.write(Buffer.of(0x1a, 200)),
              fail: (code = status.UNAVAILABLE) => {
                failed = true;
                call.emit("error", { code, details: "as told" });
              },
              keep: (ms = lease) => void (self.renewed = (k) => self.renew(k, ms)),
            });
            streams.push(self);
            serve(self);
          } else if (frame.case === "renew") lending!.renewed(frame.value.k);
          else if (frame.case === "release" && !failed) {
            state.releases++;
            lending!.over("released", "");
          }
        });
      },
    },
  );
  const port = await new Promise<number>((resolve, reject) => server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), (err, bound) => (err ? reject(err) : resolve(bound))));
  state.endpoint = `127.0.0.1:${port}`;
  state.lane = new Lane(state.endpoint, options);
  t.after(() => {
    state.lane.close();
    server.forceShutdown();
  });
  return state;
}

/** Waits until a reservation is lost, and checks when that is. */
async function lostAfter(r: Reservation, begun: number, want: number): Promise<KeyLostError> {
  if (!r.signal.aborted) await new Promise((resolve) => r.signal.addEventListener("abort", resolve, { once: true }));
  const took = performance.now() - begun;
  assert.ok(took >= want - 25 && took <= want + late, `lost after ${took} ms, want ${want}`); // both readings of the clock are on the safe side, by 23 ms at most
  assert.ok(r.signal.reason instanceof KeyLostError, String(r.signal.reason));
  assert.throws(() => r.signal.throwIfAborted(), KeyLostError);
  return r.signal.reason;
}

describe("a reservation", () => {
  it("is held until its release", async (t) => {
    const router = await lender(t, (s) => (s.keep(long), s.grant(long)));
    let caller: Event | undefined;
    const worker = testRouter(t);
    await worker.start((event) => void (caller = event));
    await worker.deliver({ key: "a" }).outcome();
    const r = await router.lane.reserve("user-1", { wait: 30_000, caller: caller! });
    const { ask } = router.streams[0]!;
    assert.deepEqual([Buffer.from(ask.key).toString(), ask.id.length, ask.waitMs, ask.resume, ask.rawClock, ask.path], ["user-1", 16, 30_000n, false, false, [0xd24ec4f1a98c6e5bn]]);
    assert.deepEqual(r.fence, new Fence(7n, 8n));
    await sleep(long + 1000);
    assert.equal(r.signal.aborted, false);
    const left = r.leaseUntil.getTime() - Date.now();
    assert.ok(left > 0 && left <= long, String(left));
    assert.equal(router.releases, 0);
    const heard = new Promise((resolve) => r.signal.addEventListener("abort", resolve));
    await Promise.all([r.release(), r.release(), heard]);
    await r.release();
    assert.equal(router.releases, 1);
    assert.deepEqual([r.signal.aborted, r.signal.reason.name], [true, "AbortError"]);
  });

  /** With a ttl it lives on long enough to be renewed by another connection, however silent the old one is. */
  it("uses a new connection if nothing is heard", async (t) => {
    const router = await lender(t, (s) => {
      s.renewed = (k) => s.renew(k, 6000, true);
      s.grant();
    });
    const proxy = await mute(t, router.endpoint);
    const lane = new Lane(proxy.endpoint);
    t.after(() => lane.close());
    const r = await lane.reserve("user-1", { ttl: 6000 });
    proxy.mute();
    await sleep(6500);
    assert.equal(r.signal.aborted, false);
    assert.deepEqual(router.streams.map((s) => s.ask.resume), [false, true]);
    await r.release();
    assert.equal(router.releases, 1);
    proxy.mute();
    await assert.rejects(lane.reserve("user-1"), { code: "unreachable" });
    await (await lane.reserve("user-1", { wait: 30_000 })).release();
  });

  /** Without a ttl it is lost at its deadline, or its release is given up then. */
  it("leaves a dead connection to none after it", async (t) => {
    const router = await lender(t, (s) => (s.keep(), s.grant()));
    const proxy = await mute(t, router.endpoint);
    const lane = new Lane(proxy.endpoint);
    t.after(() => lane.close());
    const lost = await lane.reserve("user-1");
    proxy.mute();
    await new Promise((resolve) => lost.signal.addEventListener("abort", resolve, { once: true }));
    const released = await lane.reserve("user-1", { wait: 30_000 });
    proxy.mute();
    await released.release();
    await (await lane.reserve("user-1", { wait: 30_000 })).release();
  });

  it("is made over a connection that takes long, and given up with one that is never made", async (t) => {
    const router = await lender(t, (s) => (s.keep(long), s.grant(long)));
    const proxy = await mute(t, router.endpoint);
    const lane = new Lane(proxy.endpoint);
    t.after(() => lane.close());
    proxy.connectingMs = 1500;
    await (await lane.reserve("user-1")).release();
    proxy.connectingMs = 0;
    proxy.muteNext = true;
    const other = new Lane(proxy.endpoint);
    t.after(() => other.close());
    await assert.rejects(other.reserve("user-1"), { code: "unreachable", text: /^no connection/ });
    proxy.muteNext = false;
    await (await other.reserve("user-1", { wait: 30_000 })).release();
  });

  it("comes back with a ttl after a connection that is never made", async (t) => {
    const router = await lender(t, (s) => {
      s.renewed = (k) => s.renew(k, 6000, true);
      s.grant();
    });
    const proxy = await mute(t, router.endpoint);
    const lane = new Lane(proxy.endpoint);
    t.after(() => lane.close());
    const r = await lane.reserve("user-1", { ttl: 6000 });
    const accepted = proxy.accepted.length;
    proxy.muteNext = true;
    for (const socket of proxy.accepted) socket.destroy();
    while (proxy.accepted.length === accepted) await sleep(10);
    proxy.muteNext = false;
    while (router.streams.length < 2 && !r.signal.aborted) await sleep(10);
    assert.deepEqual([r.signal.aborted, router.streams.map((s) => s.ask.resume)], [false, [false, true]]);
    await r.release();
  });

  it("is released at the end of its block", async (t) => {
    const router = await lender(t, (s) => (s.keep(long), s.grant(long)));
    {
      await using r = await router.lane.reserve("user-1");
      assert.equal(r.signal.aborted, false);
    }
    assert.equal(router.releases, 1);
  });

  it("is renewed before it begins if it was granted after a long wait", async (t) => {
    let answered = false;
    const router = await lender(t, (s) => {
      s.renewed = async (k) => {
        await sleep(200);
        answered = true;
        s.renew(k, long);
      };
      s.grant(0);
    });
    const r = await router.lane.reserve("user-1", { wait: 30_000 });
    assert.ok(answered, "it began without permission");
    await r.release();
  });

  it("is lost at its deadline without an answer, counted from the ask", async (t) => {
    const router = await lender(t, (s) => void setTimeout(() => s.grant(), 300));
    const begun = performance.now();
    await lostAfter(await router.lane.reserve("user-1", { wait: 30_000 }), begun, lease);
  });

  it("is lost at its deadline if renewals give no more permission, or come too late", async (t) => {
    const router = await lender(t, (s) => {
      s.renewed = (k) => {
        s.renew(k, 0);
        setTimeout(() => s.renew(k, 3_600_000), lease);
      };
      s.grant();
    });
    const begun = performance.now();
    await lostAfter(await router.lane.reserve("user-1"), begun, lease);
  });

  it("is lost at once when it is over", async (t) => {
    const router = await lender(t, (s) => {
      s.grant(3_600_000);
      setTimeout(() => s.over("lost", "its owner is gone"), 200);
    });
    const begun = performance.now();
    const r = await router.lane.reserve("user-1");
    assert.match((await lostAfter(r, begun, 200)).message, /its owner is gone/);
    await r.release();
  });

  it("is refused by a frame that is none, and outlasts one", async (t) => {
    const refusing = await lender(t, (s) => s.babble());
    await assert.rejects(refusing.lane.reserve("user-1"), (err) => err instanceof NotReservedError && err.code === "unreachable" && /frame/.test(err.text));
    const router = await lender(t, (s) => {
      s.keep(long);
      s.grant(long);
      if (s.n === 1) setTimeout(() => s.babble(), 200);
    });
    const r = await router.lane.reserve("user-1");
    while (router.streams.length < 2) await sleep(10);
    const next = router.streams[1]!;
    const renewed = next.renewed;
    await new Promise<void>((resolve) => (next.renewed = (k) => (renewed(k), resolve()))); // it has heard of the grant there
    assert.equal(r.signal.aborted, false);
    assert.deepEqual(router.streams.map((s) => s.ask.resume), [false, true]);
    await r.release();
    assert.equal(router.releases, 1);
  });

  it("outlasts a broken stream", async (t) => {
    const router = await lender(t, (s) => {
      if (s.n === 1) {
        s.grant(long);
        setTimeout(() => s.fail(), 200);
      } else if (s.n < 4) s.fail(); // routers that are still starting
      else (s.keep(long), s.grant(long));
    });
    const r = await router.lane.reserve("user-1");
    await sleep(long + 1000);
    assert.equal(r.signal.aborted, false);
    await r.release();
    assert.deepEqual(router.streams.map((s) => s.ask.resume), [false, true, true, true]);
    assert.equal(new Set(router.streams.map((s) => Buffer.from(s.ask.id).toString("hex"))).size, 1);
    assert.equal(router.releases, 1);
  });

  it("outlasts the owner of its key with a ttl", async (t) => {
    let renewals = 0;
    const router = await lender(t, (s) => {
      if (s.n === 1) {
        s.renewed = (k) => s.renew(k, 12_000, ++renewals > 5); // from the sixth on the control log has it
        s.grant();
      } else if (s.n === 2) {
        s.grant(0, 6n); // a former owner that does not know yet that it is one
        s.fail();
      } else {
        s.renewed = (k) => s.renew(k, 12_000, true);
        setTimeout(() => s.grant(lease, 9n), lease + 500);
      }
    });
    const r = await router.lane.reserve("user-1", { wait: 30_000, ttl: 12_000 });
    assert.ok(renewals > 5, "it began before the control log had it");
    const before = renewals;
    assert.deepEqual(r.fence, new Fence(7n, 8n));
    await sleep(3000);
    assert.ok(renewals > before && renewals <= before + 2, `${renewals - before} renewals, want one in 2 s`);
    router.streams[0]!.fail(); // its owner is killed
    while (r.fence.token === 7n) await sleep(10);
    assert.deepEqual(r.fence, new Fence(9n, 8n));
    while (r.leaseUntil.getTime() - Date.now() <= lease) await sleep(10); // renewed with the ttl, before the first permission ends
    assert.equal(r.signal.aborted, false);
    const left = r.leaseUntil.getTime() - Date.now();
    assert.ok(left <= 12_000, String(left));
    await r.release();
    const asks = router.streams.map(({ ask }) => ask);
    assert.deepEqual(asks.map(({ ttlMs, resume }) => [ttlMs, resume]), [[12_000, false], [12_000, true], [12_000, true]]);
    assert.deepEqual([asks[0]!.waitMs, asks[1]!.waitMs <= 12_000n, asks[1]!.waitMs >= asks[2]!.waitMs, asks[2]!.waitMs > 1000n], [30_000n, true, true, true]);
    assert.equal(router.releases, 1);
  });

  it("asks for the ttl as it is: the router says what it allows", async (t) => {
    const router = await lender(t, (s) => s.fail(status.INVALID_ARGUMENT));
    for (const ttl of [0.1, 4999.5, 1e12]) await assert.rejects(router.lane.reserve("k", { ttl }), NotReservedError);
    assert.deepEqual(router.streams.map((s) => s.ask.ttlMs), [1, 5000, 2 ** 32 - 1]);
    for (const ttl of [-1, NaN, Infinity]) await assert.rejects(router.lane.reserve("k", { ttl }), { code: "argument" });
  });

  for (const sent of [false, true]) {
    it(`tells its release on the next stream, ${sent ? "if the release was sent on one that broke" : "if there was none at the release"}`, async (t) => {
      const router = await lender(t, (s) => {
        if (s.n === 1) {
          s.grant(long);
          if (sent) s.over = () => s.fail(); // the answer to the release
          else setTimeout(() => s.fail(), 200);
        } else if (s.n === 2) s.fail();
        else setTimeout(() => s.grant(long), 200); // the owner answers
      });
      const r = await router.lane.reserve("user-1");
      if (!sent) await sleep(220);
      const before = router.releases;
      await r.release();
      assert.deepEqual(router.streams.map((s) => s.ask.resume), [false, true, true]);
      assert.equal(router.releases - before, sent ? 2 : 1);
      assert.equal(r.signal.reason.name, "AbortError");
    });
  }

  it("tells its release when its token is back", async (t) => { // the file is being replaced when the stream breaks
    const folder = mkdtempSync(join(tmpdir(), "ringfence-lane-"));
    t.after(() => rmSync(folder, { recursive: true }));
    const tokenFile = join(folder, "token");
    writeFileSync(tokenFile, "one");
    let fail = () => {};
    const router = await lender(
      t,
      (s) => {
        s.keep(long);
        s.grant(3_600_000);
        fail = () => s.fail();
      },
      { tokenFile },
    );
    const r = await router.lane.reserve("user-1");
    unlinkSync(tokenFile);
    fail();
    const released = r.release();
    assert.equal(await Promise.race([released, sleep(300, "waits")]), "waits", "the release was told to nobody");
    writeFileSync(tokenFile, "two");
    await released;
    assert.equal(router.streams.at(-1)!.token, "Bearer two");
  });

  it("ends with its permission if its release cannot be told", async (t) => {
    let fail = () => {};
    const router = await lender(t, (s) => {
      if (s.n > 1) return s.fail(); // at once, or a release could be told
      s.grant();
      fail = () => s.fail();
    });
    const begun = performance.now();
    const r = await router.lane.reserve("user-1");
    fail();
    await sleep(200);
    await r.release();
    const took = performance.now() - begun;
    assert.ok(took >= lease - 25 && took <= lease + late, `it ended after ${took} ms`);
    assert.equal(router.releases, 0);
  });

  it("is lost at its deadline if there is no way back", async (t) => {
    const router = await lender(t, (s) => s.grant());
    const begun = performance.now();
    const r = await router.lane.reserve("user-1");
    router.server.forceShutdown();
    await lostAfter(r, begun, lease);
  });

  it("asks the clock in a process that has just thawed", async (t) => {
    class Thawing extends MonotonicClock {
      frozen = 0;
      override now() {
        return super.now() + this.frozen;
      }
    }
    const clock = new Thawing();
    const router = await lender(t, (s) => (s.keep(3_600_000), s.grant(60_000)), { clock });
    for (const listens of [false, true]) {
      const r = await router.lane.reserve("user-1");
      let heard = false;
      if (listens) r.signal.addEventListener("abort", () => (heard = true));
      assert.equal(r.signal.aborted, false);
      clock.frozen += 7_200_000;
      assert.deepEqual([r.signal.aborted, heard, r.signal.reason instanceof KeyLostError], [true, listens, true]);
    }
  });

  for (const code of ["timeout", "overloaded", "cycle", "parked", "unreachable", "not_exclusive", "not_covered"]) {
    it(`is refused: ${code}`, async (t) => {
      const router = await lender(t, (s) => s.over(code));
      await assert.rejects(router.lane.reserve("k"), { name: "NotReservedError", code, text: "as told", retryAfterMs: 1500, message: `the key is not reserved (${code}): as told` });
    });
  }

  for (const [name, code] of Object.entries({ INVALID_ARGUMENT: "", UNIMPLEMENTED: "", UNAUTHENTICATED: "", PERMISSION_DENIED: "", RESOURCE_EXHAUSTED: "overloaded", UNAVAILABLE: "unreachable" })) {
    it(`makes of the status ${name}: "${code}"`, async (t) => {
      const router = await lender(t, (s) => s.fail(status[name as keyof typeof status]));
      await assert.rejects(router.lane.reserve("k"), { name: "NotReservedError", code, text: "as told" });
    });
  }

  it("is asked for again while the router refuses the ask unread", async (t) => {
    const wait = 30_000;
    const router = await lender(t, (s) => (s.n < 20 ? s.fail(status.RESOURCE_EXHAUSTED) : (s.keep(long), s.grant(long)))); // more often than gRPC itself would try
    const r = await router.lane.reserve("k", { wait });
    assert.equal(r.signal.aborted, false);
    const asks = router.streams.map(({ ask }) => ask);
    assert.deepEqual([asks.length, new Set(asks.map(({ id }) => Buffer.from(id).toString("hex"))).size], [20, 1]);
    assert.ok(asks[0]!.waitMs === BigInt(wait) && asks.at(-1)!.waitMs < BigInt(wait) && asks.at(-1)!.waitMs > 0n, "the wait is not longer for that");
    await r.release();
    const abort = new AbortController();
    const full = await lender(t, (s) => {
      if (s.n === 3) abort.abort(new Error("enough"));
      s.fail(status.RESOURCE_EXHAUSTED);
    });
    await assert.rejects(full.lane.reserve("k", { wait, signal: abort.signal }), { code: "timeout", text: "enough" });
    const asked = full.streams.length;
    await new Promise((resolve) => setTimeout(resolve, 100));
    assert.ok(asked > 1 && full.streams.length <= asked + 1, "it asks on");
  });

  it("is not waited for when its signal aborts, nor for a router that does not answer", async (t) => {
    const abort = new AbortController();
    const router = await lender(t, () => abort.abort(new Error("enough"))); // when it has the ask, and no sooner: it is to be released
    await assert.rejects(router.lane.reserve("k", { wait: 60_000, signal: abort.signal }), { code: "timeout", text: "enough" });
    await assert.rejects(router.lane.reserve("k", { signal: abort.signal }), { code: "timeout", text: "enough" });
    while (router.releases < 1) await sleep(10);
    await assert.rejects(router.lane.reserve("k", { wait: 50 }), { code: "unreachable" });
  });

  it("says that there is no router, or that the lane is closed", async () => {
    const lane = new Lane("127.0.0.1:1");
    await assert.rejects(lane.reserve("k"), { name: "NotReservedError", code: "unreachable" });
    for (const wait of [-1, NaN, Infinity]) await assert.rejects(lane.reserve("k", { wait }), RingfenceError);
    lane.close();
    await assert.rejects(lane.reserve("k"), (err) => err instanceof NotReservedError && err.code === "" && err.text === "the lane was closed");
  });

  it("is not asked for with more than a router would read", async () => {
    const lane = new Lane("127.0.0.1:1");
    await assert.rejects(lane.reserve("k".repeat(requestMax), { wait: 60_000 }), { code: "too_large", text: /want at most 2097152/ });
    lane.close();
  });

  it("is lost when its lane closes", async (t) => {
    const router = await lender(t, (s) => (s.keep(3_600_000), s.grant(3_600_000)));
    const r = await router.lane.reserve("user-1");
    let heard = false;
    r.signal.addEventListener("abort", () => (heard = true));
    router.lane.close();
    assert.ok(heard && r.signal.reason instanceof KeyLostError, String(r.signal.reason));
    assert.match(r.signal.reason.message, /the lane was closed/);
    await r.release();
    while (router.ends < 1) await sleep(10);
    assert.deepEqual([router.streams.length, router.releases], [1, 0], "nobody may have the key before this process has heard that it is lost");
  });

  for (const [name, serve] of Object.entries<(s: Lending) => void>({ "the router": () => {}, "a router that refuses asks unread": (s) => s.fail(status.RESOURCE_EXHAUSTED) })) {
    it(`is not waited for at ${name} when its lane closes`, async (t) => {
      const asked = deferred<void>();
      const router = await lender(t, (s) => (asked.resolve(), serve(s)));
      const refused = assert.rejects(router.lane.reserve("k", { wait: 30_000 }), { name: "NotReservedError", code: "", text: "the lane was closed" });
      await asked.promise;
      router.lane.close();
      await refused;
    });
  }

  it("waits for the answer to its release no longer when its lane closes", { timeout: 120_000 }, async (t) => {
    const router = await lender(t, (s) => {
      s.over = () => {}; // no answer
      s.grant(3_600_000);
    });
    const r = await router.lane.reserve("user-1");
    const released = r.release();
    router.lane.close();
    await released;
    while (router.releases < 1) await sleep(10); // what was sent before goes out
  });

  it("sends the token of each stream", async (t) => {
    const folder = mkdtempSync(join(tmpdir(), "ringfence-lane-"));
    t.after(() => rmSync(folder, { recursive: true }));
    const tokenFile = join(folder, "token");
    writeFileSync(tokenFile, "one\n");
    const router = await lender(
      t,
      (s) => {
        s.keep(long);
        s.grant(long);
        if (s.n > 1) return;
        writeFileSync(tokenFile, "two");
        s.fail();
      },
      { tokenFile },
    );
    const r = await router.lane.reserve("k");
    while (router.streams.length < 2) await sleep(10);
    assert.deepEqual(router.streams.map((s) => s.token), ["Bearer one", "Bearer two"]);
    await r.release();
    unlinkSync(tokenFile);
    await assert.rejects(router.lane.reserve("k"), { code: "", text: /token file/ });
  });
});
