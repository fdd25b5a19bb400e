import assert from "node:assert/strict";
import { describe, it, test } from "node:test";
import { Fence, json, type Handler } from "../src/index.js";
import { isLocal, settingsOf, targetOf } from "../src/options.js";
import { testRouter } from "../src/testing/index.js";

test("a handler gets its signal however it asks for it", async (t) => {
  const handlers: Record<string, (got: (signal: unknown) => void) => Handler> = {
    second: (got) => (_, signal) => got(signal),
    rest: (got) => (...all) => got(all[1]),
    arguments: (got) =>
      function () {
        got(arguments[1]);
      },
    event: (got) => (event) => got(event.signal),
    json: (got) => json((_event, _value, signal) => got(signal)),
    "json and event": (got) => json((event) => got(event.signal)),
    "json and rest": (got) => json((...all) => got(all[2])),
  };
  for (const [name, handler] of Object.entries(handlers)) {
    const router = testRouter(t);
    let signal: unknown;
    await router.start(handler((its) => (signal = its)));
    assert.equal((await router.deliver({ key: "k", payload: "1" }).outcome()).kind, "done");
    assert.ok(signal instanceof AbortSignal, name);
  }
});

describe("json", () => {
  it("passes the value on, and rejects payloads that do not decode", async (t) => {
    const router = testRouter(t);
    const values: unknown[] = [];
    await router.start(json<{ cents: number }>((_, order) => void values.push(order.cents)));
    assert.equal((await router.deliver({ key: "k", payload: '{"cents": 5}' }).outcome()).kind, "done");
    assert.deepEqual(values, [5]);
    for (const payload of ["", "gibberish", Buffer.of(0x22, 0xff, 0x22)]) {
      const outcome = await router.deliver({ key: "k", payload }).outcome();
      assert.equal(outcome.kind, "reject");
      assert.match(outcome.reason, /^decode JSON: /);
    }
  });

  it("rejects what the check throws for, but not what the handler throws", async (t) => {
    const router = testRouter(t);
    const check = (value: unknown): number => {
      if (typeof value !== "number") throw new TypeError("want a number");
      return value;
    };
    await router.start(
      json((_, n) => {
        if (n > 1) throw new Error("too many");
      }, check),
    );
    const outcomeOf = async (payload: string) => {
      const { kind, reason } = await router.deliver({ key: "k", payload }).outcome();
      return [kind, reason];
    };
    assert.deepEqual(await outcomeOf("1"), ["done", ""]);
    assert.deepEqual(await outcomeOf('"1"'), ["reject", "decode JSON: want a number"]);
    assert.deepEqual(await outcomeOf("2"), ["retry", "too many"]);
  });
});

describe("fence", () => {
  it("is compared by its numbers and by its text alike", () => {
    const fences = [new Fence(0n, 0n), new Fence(1n, 2n ** 64n - 1n), new Fence(9n, 1n), new Fence(10n, 0n), new Fence(2n ** 63n - 1n, 5n)];
    for (const [i, a] of fences.entries()) {
      for (const [j, b] of fences.entries()) {
        assert.equal(a.compare(b), Math.sign(i - j));
        assert.equal(a.before(b), i < j);
        assert.equal(String(a) < String(b), i < j);
      }
      assert.equal(String(a).length, 40);
      assert.deepEqual(Fence.parse(String(a)), a);
    }
    assert.equal(JSON.stringify({ fence: fences[2] }), '{"fence":"0000000000000000009.00000000000000000001"}');
  });

  it("is not made of another text", () => {
    for (const text of ["", "5", "0000000000004194310.0000000000000000001", "9223372036854775808.00000000000000000000", "0000000000000000000.18446744073709551616", "000000000000419431x.00000000000000000017"]) {
      assert.throws(() => Fence.parse(text), RangeError, text);
    }
  });
});

describe("options", () => {
  it("have the defaults of the page", (t) => {
    const before = { ...process.env };
    t.after(() => (process.env = before));
    delete process.env.RINGFENCE_APP_ENDPOINT;
    delete process.env.RINGFENCE_APP_TOKEN_FILE;
    const { endpoint, maxInFlight, drainGraceMs, tokenFile, handleSignals, leaveGroup } = settingsOf({});
    assert.deepEqual({ endpoint, maxInFlight, drainGraceMs, tokenFile, handleSignals, leaveGroup }, { endpoint: "127.0.0.1:16650", maxInFlight: 1000, drainGraceMs: 30_000, tokenFile: "", handleSignals: true, leaveGroup: false });
    process.env.RINGFENCE_APP_ENDPOINT = "unix:///run/ringfence.sock";
    process.env.RINGFENCE_APP_TOKEN_FILE = "/run/token";
    assert.deepEqual([settingsOf({}).endpoint, settingsOf({}).tokenFile], ["unix:/run/ringfence.sock", "/run/token"]);
    assert.deepEqual([settingsOf({ endpoint: "router:1", tokenFile: "" }).endpoint, settingsOf({ tokenFile: "" }).tokenFile], ["router:1", ""]);
    assert.equal(settingsOf({ signal: new AbortController().signal }).handleSignals, false);
  });

  it("know endpoints", () => {
    for (const [text, target] of [["127.0.0.1:1", "127.0.0.1:1"], ["[::1]:16650", "[::1]:16650"], [":16650", "localhost:16650"], ["unix:/a b", "unix:/a b"], ["unix:///a", "unix:/a"], ["unix:a", undefined], ["host", undefined], ["host:0", undefined], ["host:99999", undefined], ["http://host:1", undefined], ["::1:5", undefined]] as const) {
      assert.equal(targetOf(text), target, text);
    }
    for (const local of ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/a"]) assert.equal(isLocal(local), true, local);
    for (const remote of ["10.0.0.1:1", "router:1", "127.example.org:1"]) assert.equal(isLocal(remote), false, remote);
  });

  it("refuse what is of no use", () => {
    const wrong: [object, string][] = [
      [{ maxInFlight: 1.5 }, "maxInFlight"], [{ maxInFlight: 100_001 }, "maxInFlight"], [{ drainGraceMs: NaN }, "drainGraceMs"], [{ drainGraceMs: Infinity }, "drainGraceMs"],
      [{ drainGraceMs: 2 ** 31 - 0.5 }, "drainGraceMs"],
      [{ logger: {} }, "logger"], [{ logger: null }, "logger"], [{ interceptors: [1] }, "interceptors"], [{ tls: { ca: "x" } }, "tls"], [{ signal: {} }, "signal"], [{ name: 1 }, "name"],
    ];
    for (const [options, argument] of wrong) assert.throws(() => settingsOf(options), { code: "argument", argument }, argument);
  });
});

test("the log is lines on standard error", (t) => {
  const lines: string[] = [];
  t.mock.method(process.stderr, "write", (line: string) => lines.push(line) > 0);
  settingsOf({}).logger.warn("no stream to the router", { endpoint: "a:1", error: new Error("two words"), again_in_ms: 50, none: undefined });
  assert.deepEqual(lines, ['ringfence: warn: no stream to the router endpoint=a:1 error="two words" again_in_ms=50 none=undefined\n']);
});

test("a logger that throws ends nothing: its line goes to standard error, with the reason", (t) => {
  const lines: string[] = [];
  t.mock.method(process.stderr, "write", (line: string) => lines.push(line) > 0);
  const broken = () => {
    throw new Error("disk full");
  };
  const { logger } = settingsOf({ logger: { info: broken, warn: broken, error: broken } });
  for (const level of ["info", "warn", "error"] as const) logger[level]("draining", { running: 2 });
  assert.deepEqual(lines, ["info", "warn", "error"].flatMap((level) => ['ringfence: error: the logger failed error="disk full"\n', `ringfence: ${level}: draining running=2\n`]));
});

test("a logger whose promise rejects ends nothing either", async (t) => {
  const lines: string[] = [];
  t.mock.method(process.stderr, "write", (line: string) => lines.push(line) > 0);
  const broken = () => Promise.reject(new Error("disk full"));
  settingsOf({ logger: { info: broken, warn: broken, error: broken } }).logger.warn("draining", { running: 2 });
  await new Promise(setImmediate); // of a rejection that nobody has caught Node tells before
  assert.deepEqual(lines, ['ringfence: error: the logger failed error="disk full"\n', "ringfence: warn: draining running=2\n"]);
});
