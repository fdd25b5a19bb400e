import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { Inbox, Item, Kind, pingsRemembered, type Instant, type Result } from "../src/inbox.js";
import { randomly } from "./randomly.js";

const second = 1000;

/** Returns an inbox with deliveries 1 … n of partitions 1 … n, and no Pong yet. */
function given(n: number): { b: Inbox<Item>; items: Item[] } {
  const b = new Inbox<Item>();
  const items = Array.from({ length: n }, (_, i) => new Item(i + 1, i + 1));
  for (const item of items) b.give(item);
  return { b, items };
}

/** Applies at `now` the Pong of a Ping that was sent at `at`. */
function ponged(b: Inbox<Item>, at: Instant, now: Instant, remaining: number, ...draining: number[]): Item[] {
  const lost: Item[] = [];
  b.pong(now, b.ping(at), remaining, draining, lost);
  return lost;
}

function checked(b: Inbox<Item>, now: Instant): Item[] {
  const lost: Item[] = [];
  b.check(now, lost);
  return lost;
}

const ofPartition = (p: number) => (item: Item) => item.partition === p;
const kinds = (results: Result[]) => results.map((r) => r.kind);

describe("inbox", () => {
  it("starts nothing before the Pong", () => {
    const { b, items } = given(1);
    assert.equal(b.take(0), undefined, "a delivery started without a Pong");
    ponged(b, 10 * second, 11 * second, second); // the answer took as long as it was worth
    assert.equal(b.take(11 * second), undefined, "a delivery started at its deadline");
    ponged(b, 11 * second, 11 * second, second);
    assert.equal(b.take(12 * second - 1), items[0], "a delivery did not start before its deadline");
  });

  it("counts a deadline from before the Ping", () => {
    const { b, items } = given(1);
    ponged(b, 10 * second, 13 * second, 5 * second);
    assert.equal(b.deadline(items[0]!), 15 * second);
  });

  describe("has Pongs that move nothing:", () => {
    const tests: Record<string, (b: Inbox<Item>) => void> = {
      "nothing remains": (b) => void ponged(b, 2 * second, 2 * second, 0),
      "less than nothing": (b) => void ponged(b, 2 * second, 2 * second, -3_600_000),
      "no number": (b) => void ponged(b, 2 * second, 2 * second, NaN),
      "no such ping": (b) => b.pong(2 * second, 77, 3_600_000, [], []),
      "ping 0": (b) => b.pong(2 * second, 0, 3_600_000, [], []),
      "a ping of long ago": (b) => {
        const k = b.ping(2 * second);
        for (let i = 0; i < pingsRemembered; i++) b.ping(2 * second);
        b.pong(2 * second, k, 3_600_000, [], []);
      },
      "an earlier deadline": (b) => void ponged(b, 2 * second, 2 * second, second),
      "of another delivery set": (b) => void ponged(b, 0, second, second, 99),
    };
    for (const [name, pong] of Object.entries(tests)) {
      it(name, () => {
        const { b } = given(1);
        ponged(b, second, second, 4 * second);
        pong(b);
        assert.equal(b.newest, 5 * second);
      });
    }
  });

  it("never extends a passed deadline", () => {
    const { b, items } = given(2);
    ponged(b, 0, 0, second);
    b.take(0);
    const lost = ponged(b, second, second, 60 * second); // frozen since 0; no check ran meanwhile
    assert.deepEqual(lost, [items[0]]);
    assert.equal(b.deadline(items[0]!), second, "the deadline of the lost delivery moved");
    assert.equal(b.take(second), items[1], "the delivery that had not started could not start under the new Pong");
    assert.deepEqual(checked(b, 2 * second), [], "a delivery was lost twice");
  });

  it("freezes deadlines at a Revoke", () => {
    const { b, items } = given(3);
    ponged(b, 0, 0, 10 * second);
    b.take(0); // 1 runs
    b.take(0); // 2 runs; 3 waits
    b.revoke((item) => item.id !== 2);
    assert.deepEqual(b.results.map((r) => [r.id, r.kind]), [[3, Kind.NotStarted]]);

    ponged(b, 5 * second, 5 * second, 10 * second);
    assert.equal(b.deadline(items[0]!), 10 * second, "the revoked one is not frozen");
    assert.equal(b.deadline(items[1]!), 15 * second, "the other one did not move");
    ponged(b, 6 * second, 6 * second, 10 * second, 1);
    assert.equal(b.deadline(items[0]!), 16 * second, "the draining one did not move");
    ponged(b, 7 * second, 7 * second, 10 * second);
    assert.deepEqual(checked(b, 16 * second), [items[0]], "want the revoked one alone lost");
    ponged(b, 16 * second, 16 * second, 10 * second, 1);
    assert.equal(b.deadline(items[0]!), 16 * second, "Pong.draining moved a passed deadline");
  });

  // A delivery that takes too long is cancelled at once, and nothing revives it; a waiting one
  // never takes too long.
  it("cuts single deliveries", () => {
    const { b, items } = given(4);
    ponged(b, 0, 0, 10 * second);
    for (let i = 0; i < 3; i++) b.take(0); // 1, 2 and 3 run; 4 waits
    b.revoke(ofPartition(2));
    const slow: Item[] = [];
    b.cut((item) => item.id !== 3, slow);
    assert.deepEqual(slow, [items[1], items[0]]);
    assert.deepEqual(kinds(b.results), [Kind.NotStarted]);
    ponged(b, 5 * second, 5 * second, 10 * second, 1, 2);
    assert.deepEqual(items.slice(0, 3).map((item) => b.deadline(item)), [10 * second, 10 * second, 15 * second]);
    assert.deepEqual(checked(b, 20 * second), [items[2]], "want the one that was not cut before");
    assert.equal(b.started, 3, "being cut does not end a handler");
    assert.equal(b.alive, 0);
  });

  it("does not revoke later deliveries", () => {
    const { b } = given(0);
    ponged(b, 0, 0, second);
    b.revoke(ofPartition(1));
    const later = new Item(1, 1); // the key came back
    b.give(later);
    assert.equal(b.take(0), later);
  });

  // The process was frozen for long with a delivery that had not started. After that come, in their
  // order, the Revoke and a fresh Pong.
  it("starts nothing revoked in a frozen application", () => {
    const { b } = given(1);
    ponged(b, 0, 0, second);
    b.revoke(ofPartition(1));
    ponged(b, 40 * second, 40 * second, 60 * second);
    assert.equal(b.take(40 * second), undefined, "a revoked delivery started");
    assert.deepEqual(kinds(b.results), [Kind.NotStarted]);
  });

  // The machine slept through the deadline; the clock has gone on.
  it("starts nothing on a machine that was suspended", () => {
    const { b } = given(2);
    ponged(b, 0, 0, second);
    const running = b.take(0);
    assert.equal(b.take(3600 * second), undefined, "a delivery started after its deadline");
    assert.deepEqual(checked(b, 3600 * second), [running]);
  });

  it("keeps the last deadline when the stream breaks", () => {
    const { b, items } = given(2);
    ponged(b, 0, 0, 10 * second);
    b.take(0);
    b.breakOff();
    assert.equal(b.take(second), undefined, "a delivery of a broken stream started");
    assert.equal(b.deadline(items[0]!), 10 * second);
    assert.deepEqual(checked(b, 10 * second - 1), [], "lost before the last deadline");
    assert.deepEqual(checked(b, 10 * second), [items[0]], "not lost at the last deadline");
    b.end(items[0]!, Kind.Done);
    assert.equal(b.results.length, 0);
    assert.equal(b.held, 0);
    b.give(new Item(3, 3));
    assert.equal(b.take(second), undefined, "a delivery of a broken stream started");
  });

  it("suspends and drains", () => {
    const { b, items } = given(2);
    ponged(b, 0, 0, 10 * second);
    b.suspend();
    assert.equal(b.take(0), undefined, "a delivery started while suspended");
    b.resume();
    b.take(0);
    b.drain();
    b.give(new Item(9, 0));
    assert.deepEqual(b.results.map((r) => [r.id, r.kind]), [[2, Kind.NotStarted], [9, Kind.NotStarted]]);
    b.end(items[0]!, Kind.Done);
    assert.equal(b.started, 0);
    assert.equal(b.results.length, 3);
  });

  it("compares ids that no number holds", () => {
    const b = new Inbox<Item>();
    const near = 2n ** 63n;
    const items = [new Item(near, 0), new Item(near + 1n, 0)];
    for (const item of items) b.give(item);
    ponged(b, 0, 0, 10 * second);
    b.take(0);
    b.take(0);
    b.revoke(() => true);
    b.pong(0, b.ping(5 * second), 10 * second, [near + 1n], []);
    assert.deepEqual(items.map((item) => b.deadline(item)), [10 * second, 15 * second]);
  });

  // For any inputs in any order: no delivery starts at or after its present deadline, no cancelled
  // delivery is revived, no deadline moves once it has passed, and none moves beyond the Pongs that
  // may move it.
  randomly("keeps its deadlines", 2000, (draw) => {
    const b = new Inbox<Item>();
    const all: Item[] = [];
    let now = 0;
    let newest = 0;
    const revoked = new Set<Item>();
    const lost = new Set<Item>();
    const lose = (items: Item[]) => {
      for (const item of items) {
        assert.ok(!lost.has(item), "lost twice");
        lost.add(item);
      }
    };
    const actions: Record<string, () => void> = {
      give: () => {
        const item = new Item(all.length + 1, draw(0, 3));
        all.push(item);
        b.give(item);
      },
      take: () => {
        const item = b.take(now);
        if (item === undefined) return;
        assert.ok(!revoked.has(item), "a revoked delivery started");
        assert.ok(now < newest && now < b.deadline(item), `started at ${now}, the newest Pong lasts until ${newest}`);
      },
      pong: () => {
        const at = now;
        const k = b.ping(at);
        now += draw(0, 5);
        const remaining = draw(-2, 20);
        const before = new Map(all.map((item) => [item, b.deadline(item)]));
        const listed = all.filter((item) => revoked.has(item) && draw(0, 1) === 1);
        const passed: Item[] = [];
        b.pong(now, k, remaining, listed.map((item) => item.id), passed);
        lose(passed);
        if (remaining > 0) newest = Math.max(newest, at + remaining);
        for (const item of all) {
          const state = b.stateOf(item);
          const old = before.get(item)!;
          if (state === "answered" || state === "waiting" || b.deadline(item) === old) continue;
          assert.ok(now < old, "a passed deadline moved");
          assert.ok(!revoked.has(item) || listed.includes(item), "a revoked delivery's deadline moved, though it was not listed");
          assert.equal(b.deadline(item), at + remaining);
        }
      },
      revoke: () => {
        const p = draw(0, 3);
        for (const item of all) if (item.partition === p && b.stateOf(item) !== "answered") revoked.add(item);
        b.revoke(ofPartition(p));
        assert.ok(!all.some((item) => item.partition === p && b.stateOf(item) === "waiting"), "a revoked delivery still waits");
      },
      cut: () => {
        const id = draw(1, 1 + all.length);
        const slow: Item[] = [];
        b.cut((item) => item.id === id, slow);
        for (const item of slow) revoked.add(item);
        lose(slow);
      },
      check: () => {
        const due = all.filter((item) => ["running", "frozen"].includes(b.stateOf(item)) && now >= b.deadline(item));
        const passed = checked(b, now);
        assert.deepEqual(new Set(passed), new Set(due), "check does not find exactly what is past its deadline");
        lose(passed);
      },
      end: () => {
        const item = all.find((one) => !["waiting", "answered"].includes(b.stateOf(one)));
        if (item !== undefined) b.end(item, Kind.Done);
      },
      suspend: () => b.suspend(),
      resume: () => b.resume(),
      wait: () => void (now += draw(0, 30)),
    };
    const names = Object.keys(actions);
    for (let step = 0; step < 60; step++) {
      actions[names[draw(0, names.length - 1)]!]!();
      assert.equal(b.held + b.results.length, all.length, "a delivery is not accounted for");
      for (const item of lost) assert.ok(["lost", "answered"].includes(b.stateOf(item)), "a lost delivery was revived");
    }
  });
});
