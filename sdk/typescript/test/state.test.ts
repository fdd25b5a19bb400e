import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { ResultKind, type DeliverySchema } from "../src/gen/ringfence/app/v1/app_pb.js";
import { deliveries, every, Fence, KeyLostError, Reject, RetryAfter, type Call, type Event, type Firing, type Options } from "../src/index.js";
import type { LeasedEvent } from "../src/event.js";
import { States, type Turn } from "../src/state.js";
import { randomly } from "./randomly.js";
import { deferred, Script, settled, type Response, type ScriptedStream } from "./script.js";

interface Cart {
  n: number;
}

type Delivery = MessageInitShape<typeof DeliverySchema>;
type Body = (of: Event | Call | Firing) => unknown;

/** A worker each of whose turns does what the test says. Turns are of the key k in the partition 7, with the token 1 and the generation 1, unless it says so. */
class Worker {
  readonly script = new Script();
  stream!: ScriptedStream;
  #turns = 0n;
  readonly #bodies = new Map<bigint, Body>();

  async start(options: Options = {}): Promise<this> {
    const handler = (of: Event | Call | Firing) => this.#bodies.get(of.fence.turn)!(of);
    await this.script.start(handler, { calls: { call: async (call) => void (await handler(call)) }, schedules: { firing: { times: every(60_000), handler } }, ...options });
    this.connected();
    return this;
  }

  /** Welcomes the newest stream. */
  connected(): void {
    this.stream = this.script.streams.at(-1)!;
    this.stream.welcome();
    this.stream.pong(60_000);
  }

  /** Starts a turn, and returns when nothing but the test can continue it. */
  async turn(body: Body, more: Delivery = {}): Promise<void> {
    const turn = ++this.#turns;
    this.#bodies.set(turn, body);
    this.stream.deliverAs({ deliveryId: turn, turn, key: Buffer.from("k"), partition: 7, generation: 1n, attempt: 1, ...more });
    await settled();
  }

  /** A turn that asks for its state: did it load? */
  async loads(more: Delivery = {}, after: () => unknown = () => {}): Promise<boolean> {
    let loaded: boolean | undefined;
    await this.turn(async (of) => {
      loaded = await asks(of);
      await after();
    }, more);
    assert.notEqual(loaded, undefined, "the turn has not run");
    return loaded!;
  }
}

/** Asks for the state of a turn: was it loaded? */
async function asks(of: Event | Call | Firing, name = ""): Promise<boolean> {
  let loaded = false;
  const cart = await of.state(name, async (): Promise<Cart> => {
    loaded = true;
    return { n: 0 };
  });
  cart.n++;
  return loaded;
}

async function isCollected(ref: WeakRef<object>): Promise<boolean> {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as () => void;
  for (let i = 0; i < 100 && ref.deref() !== undefined; i++) {
    await settled();
    collect();
  }
  return ref.deref() === undefined;
}

/** What Event.state does if its load takes no time. Returns undefined if it has put the value. */
function askFor(states: States, turn: Turn, name: string, value: object): object | undefined {
  const kept = states.of(turn);
  const left = kept?.values.get(name);
  if (left !== undefined) kept!.used.set(name, left);
  else if (kept !== undefined) states.put(turn, kept, name, value);
  return left;
}

const failing = (error: unknown) => () => {
  throw error;
};

describe("a state", () => {
  // Turns of a few keys begin, ask, write and end in any order. A turn that begins while another one of its key runs has taken the key from it, and
  // that is noticed sooner or later. What a turn gets is what the database has.
  randomly("is what the turn before has left, whatever turns come", 2000, (draw) => {
    interface Drawn extends Turn {
      owner: { over: boolean };
      returned: boolean;
      lost: boolean;
      noticed: boolean; // that it is lost
      wrote: boolean; // before it has asked
      readonly values: Map<string, Row[]>; // all that it has asked for: several of a name if some were dropped
      from: Drawn | undefined; // the turn before it, if that has left what it has for this one
      left: boolean; // what it has is there for the next turn
      readonly has: Map<string, Row>;
    }
    interface Row {
      n: number;
    }
    const max = draw(1, 4);
    const states = new States(max, (keyName) => running.some((turn) => turn.noticed && turn.keyName === keyName));
    const rows = new Map<string, number>(); // the database: the number of the last write, by key and name
    let writes = 0;
    const notice = (turn: Drawn) => {
      if (turn.noticed) return;
      turn.noticed = true;
      states.lose(turn.keyName);
      drop(newest.get(turn.keyName)!);
    };
    const drop = (turn: Drawn) => { // another handler may have written after that turn had read
      turn.left = false;
      turn.from = undefined;
      turn.has.clear();
    };
    const names = ["", "other"];
    const owners = [{ over: false }, { over: false }];
    const newest = new Map<string, Drawn>();
    let running: Drawn[] = [];
    const ended: Drawn[] = [];
    const one = <T>(list: readonly T[]): T => list[draw(0, list.length - 1)]!;
    for (let step = 0, count = 0n; step < 80; step++) {
      switch (draw(0, 12)) {
        case 0:
        case 1:
        case 2: {
          const keyName = one(["a", "b", "c", "d"]);
          const before = newest.get(keyName);
          const token = (before?.fence.token ?? 1n) + (draw(0, 9) === 0 ? 1n : 0n);
          const turn: Drawn = {
            keyName, fence: new Fence(token, ++count), owner: owners[Math.floor(draw(0, 4) / 4)]!, partition: keyName.charCodeAt(0), generation: one([0, 1, 1, 1, 1, 1, 2n ** 60n]), returned: false, lost: false,
            noticed: false, wrote: false, values: new Map(), left: false, from: undefined, has: new Map(),
          };
          if (before !== undefined) {
            if (before.left && before.owner === turn.owner && before.generation === turn.generation && before.fence.token === turn.fence.token) turn.from = before;
            before.lost = !before.returned;
            before.left = false;
            before.from = undefined;
          }
          newest.set(keyName, turn);
          states.begun(turn);
          running.push(turn);
          break;
        }
        case 3:
        case 4:
        case 5: {
          if (running.length === 0) break;
          const turn = one(running);
          if (turn.wrote) break;
          const name = one(names);
          const fresh: Row = { n: rows.get(turn.keyName + name) ?? 0 };
          const others = running.some((other) => other.noticed && other.keyName === turn.keyName);
          const got = askFor(states, turn, name, fresh) as Row | undefined;
          const mine = turn.has.get(name);
          const theirs = turn.from?.has.get(name);
          if (got !== undefined) assert.ok(got === mine || got === theirs, "a turn got what neither it nor the turn before has left");
          if (max === 4 && !turn.lost) assert.equal(got, mine ?? theirs, "a turn did not get what there is for it");
          if (got !== undefined && turn.values.size === 0) assert.equal(got.n, fresh.n, "a turn got what the database does not have");
          if (turn.generation !== 0 && !others) turn.has.set(name, got ?? fresh);
          turn.values.set(name, [...(turn.values.get(name) ?? []), got ?? fresh]);
          break;
        }
        case 6:
        case 7: {
          if (running.length === 0) break;
          const turn = one(running);
          if (turn.lost && draw(0, 2) > 0) break;
          for (const other of running) if (other.lost && other.keyName === turn.keyName) notice(other); // its deadline is checked in less time than a turn takes
          const done = draw(0, 3) > 0 && !turn.lost;
          running = running.filter((other) => other !== turn);
          turn.returned = true;
          states.ended(turn, done);
          const last = newest.get(turn.keyName)!;
          if (turn === last) turn.left = done && turn.has.size > 0 && !turn.owner.over;
          else drop(last);
          ended.push(turn);
          break;
        }
        case 9:
        case 10: {
          if (running.length === 0) break;
          const lost = running.filter((turn) => turn.lost);
          const turn = one(lost.length > 0 && draw(0, 1) === 0 ? lost : running);
          writes++;
          if (turn.values.size === 0) turn.wrote = true;
          for (const name of turn.values.size === 0 ? names : turn.values.keys()) rows.set(turn.keyName + name, writes);
          for (const of of turn.values.values()) one(of).n = writes;
          break;
        }
        case 11: {
          for (const turn of running) if (turn.lost && draw(0, 1) === 0) notice(turn);
          break;
        }
        case 8: {
          const owner = one(owners);
          const partition = one(["a", "b"]).charCodeAt(0);
          const all = draw(0, 3) === 0;
          if (all) {
            owner.over = true;
            owners.splice(owners.indexOf(owner), 1, { over: false });
          }
          const hit = (of: number) => all || of === partition;
          states.forget(owner, hit);
          for (const turn of [...running, ...ended]) {
            if (turn.owner === owner && hit(turn.partition)) drop(turn);
          }
          break;
        }
        default: { // what a handler has left behind
          if (ended.length === 0) break;
          const turn = one(ended);
          assert.equal(askFor(states, turn, "", {}), undefined);
        }
      }
      assert.ok(states.size <= max, `${states.size} keys`);
    }
  });

  it("is kept in the usual case, and each doubt ends it", async () => {
    const worker = await new Worker().start();
    const other = { generation: 2n ** 63n + 1n };
    for (const [i, [want, more, after]] of ([
      [true],
      [false],
      [false, {}, failing(new Error("no"))],
      [true, {}, failing(new RetryAfter(5, "no"))],
      [true, {}, failing(new Reject("no"))],
      [true],
      [true, other],
      [false, other],
      [true, { generation: 2n ** 63n }],
      [true],
      [true, { generation: 0n }],
      [true, { generation: 0n }],
      [true],
      [false],
      [true, { key: Buffer.from("other") }],
      [false],
      [true, { token: 1 }], // a greater one
      [false, { token: 1 }],
    ] satisfies [boolean, Delivery?, (() => unknown)?][] as [boolean, Delivery?, (() => unknown)?][]).entries()) {
      assert.equal(await worker.loads(more, after), want, `turn ${i}`);
    }
    await worker.turn(() => {}); // does not ask, and may have written
    assert.equal(await worker.loads(), true);
    await worker.script.end();
  });

  it("has what the handler has changed, in that handler and in the next ones", async () => {
    const worker = await new Worker().start();
    const seen: number[] = [];
    for (let i = 0; i < 3; i++) {
      await worker.turn(async (of) => {
        const cart = await of.state((): Cart => ({ n: 10 }));
        cart.n++;
        assert.equal(await of.state(() => ({ n: 0 })), cart);
        seen.push(cart.n);
      });
    }
    assert.deepEqual(seen, [11, 12, 13]);
    await worker.script.end();
  });

  it("is one of several by name, of which only those that were asked for are kept", async () => {
    const worker = await new Worker().start();
    const loaded: boolean[][] = [];
    const turn = (...names: string[]) => worker.turn(async (of) => {
      const list: boolean[] = [];
      for (const name of names) list.push(await asks(of, name));
      loaded.push(list);
    });
    await turn("", "a", "b");
    await turn("b", "", "c");
    await turn("a", "b", "c", "");
    assert.deepEqual(loaded, [[true, true, true], [false, false, true], [true, false, false, false]]);
    await worker.script.end();
  });

  it("is that of the key, whether an event, a call or a firing asks", async () => {
    const worker = await new Worker().start();
    const call = { call: { method: "call", timeoutMs: 1000n } };
    const firing = { timer: { name: "firing", firing: {} } };
    const loaded: boolean[] = [];
    for (const more of [{}, call, firing, call, { timer: { name: "t" } }]) loaded.push(await worker.loads(more));
    assert.deepEqual(loaded, [true, false, false, false, false]);
    await worker.turn(() => assert.fail("it has run"), { call: { method: "none", timeoutMs: 1000n } });
    assert.equal(await worker.loads(), true, "after a call without a handler");
    await worker.script.end();
  });

  it("is not that of another key whose text is the same", async () => {
    const worker = await new Worker().start();
    const [one, other] = [{ key: Buffer.of(0xfe) }, { key: Buffer.of(0xff) }];
    assert.deepEqual([await worker.loads(one), await worker.loads(other), await worker.loads(one), await worker.loads(other)], [true, true, false, false]);
    await worker.script.end();
  });

  it("is left by a delivery of the loop that is done, and by no other", async () => {
    const script = new Script();
    const loop = deliveries(script.options());
    let next = loop.next();
    await script.until(() => script.streams.length === 1 && script.streams[0]!.requests.length >= 2);
    const stream = script.streams[0]!;
    stream.welcome();
    stream.pong(60_000);
    const loaded: boolean[] = [];
    for (const [i, how] of (["done", "retry", "done", "done"] as const).entries()) {
      stream.deliverAs({ deliveryId: BigInt(i + 1), turn: BigInt(i + 1), key: Buffer.from("k"), generation: 1n, attempt: 1 });
      const { value } = await next;
      loaded.push(await asks(value!.event));
      if (how === "done") value!.done();
      else value!.retry("no");
      next = loop.next();
    }
    assert.deepEqual(loaded, [true, false, true, false]);
    stream.end(14);
    await loop.return();
    await next;
    await script.end();
  });

  // Its key may have had another turn, which has read before this one has written.
  it("is not left by a handler that succeeds after its deadline", async () => {
    const worker = await new Worker().start();
    const { script, stream } = worker;
    assert.equal(await worker.loads({}, () => void (script.clock.at += 60_000)), true); // it ends before any timer of the SDK
    assert.deepEqual(stream.answers.map((a) => a.kind), [ResultKind.DONE]);
    assert.equal(script.log.filter((line) => line.message === "handler cancelled").length, 0);
    stream.pong(120_000);
    assert.equal(await worker.loads(), true);
    assert.equal(await worker.loads(), false);
    await script.end();
  });

  it("is not left by a handler that was cancelled and succeeds, nor by one whose timers cannot be published", async () => {
    const worker = await new Worker().start();
    const { stream } = worker;
    const go = deferred();
    await worker.turn(async (of) => {
      await asks(of);
      await go.promise;
      assert.equal(of.signal.aborted, true);
      await asks(of);
    }, { deliveryId: 100n });
    stream.send({ case: "revoke", value: { deliveryIds: [100n], timedOut: true } });
    go.resolve();
    await settled();
    assert.equal(await worker.loads(), true);
    await worker.turn(async (of) => {
      assert.equal(await asks(of), false);
      of.after(0);
    });
    assert.equal(await worker.loads(), true);
    await worker.script.end();
  });

  it("of a key that was lost is not touched by the handler that goes on, and what the two leave is dropped", async () => {
    const worker = await new Worker().start();
    const { script, stream } = worker;
    const [goes, second] = [deferred(), deferred()];
    let lost!: Event | Call | Firing;
    let next!: Event | Call | Firing;
    await worker.turn(async (of) => {
      lost = of;
      assert.equal(await asks(of), true);
      await goes.promise; // does not look at its signal
    });
    script.clock.at += 60_000;
    stream.pong(600_000);
    assert.ok(lost.signal.reason instanceof KeyLostError);
    await worker.turn(async (of) => {
      next = of;
      assert.equal(await asks(of), true, "the next turn got the state of a handler that still runs");
      await second.promise;
    });
    assert.equal(await asks(lost), true, "the handler that goes on got the state of the next turn");
    assert.equal(await asks(next), true, "the next turn has a state that the handler that goes on may have changed since");
    second.resolve();
    await settled();
    assert.equal(await asks(lost), true, "the handler that goes on got what the next turn had left");
    goes.resolve();
    await settled();
    assert.equal(await worker.loads(), true, "what the two left is not in one order");
    assert.equal(await worker.loads(), false);
    await script.end();
  });

  it("is not kept over a turn that has not asked, has lost its key, and goes on", async () => {
    const worker = await new Worker().start();
    const { script, stream } = worker;
    for (const lose of [
      () => stream.send({ case: "revoke", value: { deliveryIds: [100n], timedOut: true } }),
      () => {
        script.clock.at += 60_000;
        stream.pong(600_000);
      },
    ]) {
      const goes = deferred();
      assert.deepEqual([await worker.loads(), await worker.loads()], [true, false]);
      await worker.turn(() => goes.promise, { deliveryId: 100n }); // may have written
      lose();
      assert.equal(await worker.loads(), true);
      goes.resolve();
      await settled();
    }
    await script.end();
  });

  for (const during of ["turn", "load"]) {
    it(`is dropped when a handler that has lost the key ends during the ${during} that it is of`, async () => {
      const worker = await new Worker().start();
      const { script, stream } = worker;
      const [goes, second] = [deferred(), deferred()];
      await worker.turn(() => goes.promise); // may write until it ends
      script.clock.at += 60_000;
      stream.pong(600_000);
      await worker.turn(async (of) => {
        await of.state(async () => {
          if (during === "load") await second.promise;
          return {};
        });
        await second.promise;
      });
      goes.resolve();
      await settled();
      second.resolve();
      await settled();
      assert.equal(await worker.loads(), true);
      assert.equal(await worker.loads(), false);
      await script.end();
    });
  }

  for (const how of ["its deadline has passed", "it took too long", "its stream has ended"]) {
    it(`is neither got nor left while a handler goes on that has lost the key: ${how}`, async () => {
      const worker = await new Worker().start();
      const { script } = worker;
      const [goes, second, last] = [deferred(), deferred(), deferred()];
      await worker.turn(() => goes.promise, { deliveryId: 100n });
      if (how === "its stream has ended") {
        worker.stream.end(14, "gone");
        await script.until(() => script.streams.length === 2 && script.streams[1]!.pings.length > 0);
        worker.connected();
      }
      const turn = (until: Promise<unknown>) => worker.turn(async (of) => {
        await asks(of);
        await until;
      }, { deliveryId: 101n });
      if (how === "it took too long") worker.stream.send({ case: "revoke", value: { deliveryIds: [100n], timedOut: true } });
      else {
        script.clock.at += 60_000;
        worker.stream.pong(600_000);
        await script.until(() => script.log.some((line) => line.message === "handler cancelled"));
      }
      await turn(second.promise);
      second.resolve();
      await settled();
      for (let i = 0; i < 3; i++) assert.equal(await worker.loads(), true, "the handler that goes on may have written since the turn before had loaded");
      await turn(last.promise);
      goes.resolve();
      await settled();
      last.resolve();
      await settled();
      assert.equal(await worker.loads(), true);
      assert.equal(await worker.loads(), false);
      await script.end();
    });
  }

  it("is dropped if the turn that has it began before it was noticed that another one had lost the key", async () => {
    const worker = await new Worker().start();
    const { script, stream } = worker;
    const [goes, second] = [deferred(), deferred()];
    await worker.turn(() => goes.promise, { deliveryId: 100n });
    await worker.turn(async (of) => {
      await asks(of);
      await second.promise;
    });
    stream.send({ case: "revoke", value: { deliveryIds: [100n], timedOut: true } });
    second.resolve();
    await settled();
    assert.equal(await worker.loads(), true);
    goes.resolve();
    await script.end();
  });

  it("that was loaded again after it had been dropped is not left: the handler may still change what it had before", () => {
    const states = new States(1, () => false);
    const owner = { over: false };
    const turn = (keyName: string): Turn => ({ owner, keyName, partition: 7, fence: new Fence(1n, 1n), generation: 1, returned: false });
    const first = turn("k");
    askFor(states, first, "", {});
    askFor(states, turn("other"), "", {}); // there is room for one key
    askFor(states, first, "", {});
    states.ended(first, true);
    assert.equal(askFor(states, turn("k"), "", {}), undefined);

    let others = true; // another handler has lost the key, and runs
    const beside = new States(1, () => others);
    const second = turn("k");
    askFor(beside, second, "", {});
    others = false;
    askFor(beside, second, "", {});
    beside.ended(second, true);
    assert.equal(beside.size, 0);
  });

  for (const [name, revoke, want] of [
    ["of all partitions", { all: true }, true],
    ["of its own", { partitions: [3, 7] }, true],
    ["of another partition", { partitions: [8] }, false],
    ["of one delivery", { deliveryIds: [1n] }, false],
  ] satisfies [string, (Response & { case: "revoke" })["value"], boolean][]) {
    it(`${want ? "ends with" : "survives"} a Revoke ${name}`, async () => {
      const worker = await new Worker().start();
      assert.deepEqual([await worker.loads(), await worker.loads()], [true, false]);
      worker.stream.send({ case: "revoke", value: revoke });
      assert.equal(await worker.loads(), want);
      await worker.script.end();
    });
  }

  it("does not survive its stream", async () => {
    const worker = await new Worker().start();
    const { script } = worker;
    const go = deferred();
    assert.equal(await worker.loads({ key: Buffer.from("other") }), true);
    await worker.turn(async (of) => {
      await asks(of);
      await go.promise;
    });
    worker.stream.end(14, "gone");
    await script.until(() => script.streams.length === 2 && script.streams[1]!.pings.length > 0);
    worker.connected();
    go.resolve();
    await settled();
    assert.equal(await worker.loads(), true);
    assert.equal(await worker.loads({ key: Buffer.from("other") }), true);
    assert.equal(await worker.loads(), false);
    await script.end();
  });

  it("of a stream that has ended does not remain in memory", () => {
    const states = new States(10, () => false);
    const owner = { over: false };
    const turn = (keyName: string): Turn => ({ owner, keyName, partition: 7, fence: new Fence(1n, 1n), generation: 1, returned: false });
    const [before, running, after] = [turn("before"), turn("running"), turn("after")];
    askFor(states, before, "", {});
    states.ended(before, true);
    askFor(states, running, "", {});
    assert.equal(states.size, 2);
    owner.over = true;
    states.forget(owner, () => true);
    assert.equal(states.size, 0);
    for (const of of [running, after]) { // handlers that ask only now
      askFor(states, of, "", {});
      states.ended(of, true);
    }
    assert.equal(states.size, 0);
  });

  it("is dropped with the others of its key if the next turn asks for none of them", () => {
    const states = new States(10, () => false);
    const owner = { over: false };
    const [first, next] = [1n, 2n].map((turn): Turn => ({ owner, keyName: "k", partition: 7, fence: new Fence(1n, turn), generation: 1, returned: false }));
    askFor(states, first!, "", {});
    states.ended(first!, true);
    assert.equal(states.of(next!)?.values.get("another"), undefined); // its load fails, and the handler succeeds
    states.ended(next!, true);
    assert.equal(states.size, 0);
  });

  it("keeps no frame in memory", async () => {
    const worker = await new Worker().start();
    let frame: WeakRef<object> | undefined;
    await worker.turn(async (of) => {
      const { buffer } = (of as LeasedEvent).frame.bytes;
      assert.ok(buffer.byteLength >= 1 << 20);
      frame = new WeakRef(buffer);
      await asks(of);
    }, { payload: Buffer.alloc(1 << 20) });
    assert.ok(await isCollected(frame!));
    assert.equal(await worker.loads(), false);
    await worker.script.end();
  });

  it("is not in memory when its stream has ended", async () => {
    const worker = await new Worker().start();
    let value: WeakRef<object> | undefined;
    await worker.turn(async (of) => void (value = new WeakRef(await of.state(() => ({ n: 0 })))));
    worker.stream.end(14, "gone");
    assert.ok(await isCollected(value!));
    await worker.script.end();
  });

  it("is kept for the keys that were used last", async () => {
    const worker = await new Worker().start({ stateMax: 2 });
    const loaded: string[] = [];
    for (const name of ["a", "b", "a", "c", "a", "b", "c"]) loaded.push(`${name} ${await worker.loads({ key: Buffer.from(name) })}`);
    assert.deepEqual(loaded, ["a true", "b true", "a false", "c true", "a false", "b true", "c true"]);
    await worker.script.end();
  });

  for (const stateMax of [0, 1]) {
    it(`${stateMax === 0 ? "is never kept" : "is announced"} with the option ${stateMax}`, async () => {
      const worker = await new Worker().start({ stateMax });
      const hello = worker.stream.requests[0]!.frame;
      assert.ok(hello.case === "hello");
      assert.deepEqual(hello.value.capabilities, stateMax === 0 ? ["conformant", "calls"] : ["conformant", "calls", "state"]);
      assert.equal(await worker.loads(), true);
      assert.equal(await worker.loads(), stateMax === 0);
      await worker.script.end();
    });
  }

  it("whose load fails is not kept, and the handler gets the error as it is", async () => {
    const worker = await new Worker().start();
    const failed = new Error("no database");
    const thrown: unknown[] = [];
    for (const [key, load] of [["a", failing(failed)], ["b", () => Promise.reject(failed)]] as const) {
      const more = { key: Buffer.from(key) };
      await worker.turn(async (of) => {
        await of.state(load).catch((err: unknown) => thrown.push(err));
      }, more);
      assert.equal(await worker.loads(more), true);
    }
    assert.deepEqual(thrown.map((err) => err === failed), [true, true]);
    await worker.script.end();
  });

  it("is an object: what cannot be changed is returned, and not kept", async () => {
    const worker = await new Worker().start();
    for (const value of [undefined, null, 5, "text"]) {
      const more = { key: Buffer.from(String(value)) };
      const got: unknown[] = [];
      await worker.turn(async (of) => got.push(await of.state(async () => value as never), await of.state(() => value as never)), more);
      assert.deepEqual(got, [value, value]);
      assert.equal(await worker.loads(more), true);
    }
    await worker.script.end();
  });

  it("is the one that was loaded last, if a handler loads two at a time", async () => {
    const worker = await new Worker().start();
    const [first, second] = [deferred<Cart>(), deferred<Cart>()];
    const [one, two] = [{ n: 1 }, { n: 2 }];
    const got: unknown[] = [];
    await worker.turn(async (of) => {
      got.push(...(await Promise.all([of.state(() => first.promise), of.state(() => second.promise)])));
    });
    second.resolve(two);
    await settled();
    first.resolve(one);
    await settled();
    await worker.turn(async (of) => got.push(await of.state(() => assert.fail("loaded"))));
    assert.deepEqual(got.map((value) => [one, two].indexOf(value as Cart)), [0, 1, 0]);
    await worker.script.end();
  });

  it("is neither given to what a handler has left behind, nor taken from it", async () => {
    const worker = await new Worker().start();
    const late = deferred<Cart>();
    let behind: (Event | Call | Firing) | undefined;
    assert.equal(await worker.loads(), true);
    await worker.turn(async (of) => {
      behind = of;
      await asks(of);
      void of.state("late", () => late.promise);
    });
    assert.equal(await asks(behind!), true);
    late.resolve({ n: 0 });
    await settled();
    await worker.turn(async (of) => {
      assert.deepEqual([await asks(of), await asks(of, "late")], [false, true]);
    });
    assert.deepEqual(worker.stream.answers.map((a) => a.kind), [ResultKind.DONE]);
    assert.equal(await worker.loads(), false);
    await worker.script.end();
  });

  it("needs a function that loads it", async () => {
    const worker = await new Worker().start();
    const wrong: unknown[] = [];
    await worker.turn(async (of) => {
      const state = of.state.bind(of) as (...all: unknown[]) => Promise<unknown>;
      for (const all of [[], ["name"], ["name", {}], [5, () => ({})]]) await state(...all).catch((err: unknown) => wrong.push(err));
    });
    assert.equal(wrong.length, 4);
    for (const err of wrong) assert.ok((err as { code: string }).code === "argument", String(err));
    await worker.script.end();
  });

  // The compiler checks it.
  it("has a type, and not that of a value that is not kept", async () => {
    const check = async (event: Event) => {
      const cart: Cart = await event.state(() => ({ n: 0 }));
      const loaded: Cart = await event.state(async () => cart);
      const none: Cart | undefined = await event.state("maybe", async () => (loaded.n > 0 ? cart : undefined));
      const map: Map<string, number> = await event.state("map", async () => new Map([["n", none?.n ?? 0]]));
      // @ts-expect-error a number would be outdated after a write
      await event.state(() => map.size);
      // @ts-expect-error so would one that was awaited
      await event.state(async () => map.size);
      // @ts-expect-error so would a text
      await event.state("text", async () => "");
    };
    const event = { state: async (first: unknown, second = first) => (second as () => unknown)() };
    await check(event as unknown as Event);
  });
});
