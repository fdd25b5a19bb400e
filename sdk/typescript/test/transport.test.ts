import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer, type AddressInfo, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { credentials, ServerCredentials } from "@grpc/grpc-js";
import { Lane, run, type Options } from "../src/index.js";
import { testRouter, type TestRouter } from "../src/testing/index.js";
import { grpcConnect, noting } from "../src/transport.js";
import { deferred } from "./script.js";

const silent = { info() {}, warn() {}, error() {} };

/** Runs a worker by gRPC until the end of the test, which it must drain at. */
function worker(t: { after(f: () => Promise<void>): void }, endpoint: string, handler: Parameters<typeof run>[0], more: Options = {}): void {
  const stop = new AbortController();
  const ended = run(handler, { endpoint, signal: stop.signal, logger: silent, tokenFile: "", ...more });
  t.after(async () => {
    stop.abort();
    await ended;
  });
}

const payload = Buffer.alloc(8 << 20, 7);

async function handles(router: TestRouter): Promise<void> {
  const small = router.deliver({ key: "small" });
  const large = router.deliver({ key: "large", payload });
  assert.equal((await small.outcome()).kind, "done");
  assert.equal((await large.outcome()).kind, "done");
}

describe("gRPC", () => {
  let folder = "";
  before(() => void (folder = mkdtempSync(join(tmpdir(), "ringfence-"))));
  after(() => rmSync(folder, { recursive: true }));

  it("reaches a router on loopback, with events of 8 MiB", async (t) => {
    const router = testRouter(t);
    const endpoint = await router.serve();
    const seen = deferred<boolean>();
    worker(t, endpoint, (event) => {
      if (event.key === "large") seen.resolve(event.payload.equals(payload));
    });
    await handles(router);
    assert.equal(await seen.promise, true);
  });

  it("reaches a router at a Unix socket", async (t) => {
    const router = testRouter(t);
    const endpoint = await router.serve(`unix://${join(folder, "socket")}`);
    worker(t, endpoint, () => {});
    await handles(router);
  });

  it("finds the router by the environment, and dials until it is there", async (t) => {
    const taken = createServer().listen(0, "127.0.0.1");
    await new Promise((resolve) => taken.once("listening", resolve));
    const { port } = taken.address() as { port: number };
    await new Promise((resolve) => taken.close(resolve));
    const old = process.env.RINGFENCE_APP_ENDPOINT;
    process.env.RINGFENCE_APP_ENDPOINT = `127.0.0.1:${port}`;
    t.after(() => {
      if (old === undefined) delete process.env.RINGFENCE_APP_ENDPOINT;
      else process.env.RINGFENCE_APP_ENDPOINT = old;
    });
    const refused = deferred<unknown>();
    worker(t, "", () => {}, { logger: { ...silent, warn: (message, fields) => message === "no stream to the router" && refused.resolve(fields.code) } });
    assert.equal(await refused.promise, "unreachable");
    const router = testRouter(t);
    await router.serve(`127.0.0.1:${port}`);
    await handles(router);
  });

  /** A listener that accepts connections and never says a word, as that of a frozen router. */
  async function leavesNoSocket(t: { after(f: () => void): void }, tls?: Options["tls"]): Promise<void> {
    const accepted = deferred<Socket>();
    const frozen = createServer((socket) => accepted.resolve(socket.on("error", () => {}).resume())).listen(0, "127.0.0.1");
    await once(frozen, "listening");
    t.after(() => frozen.close());
    const ended = deferred<unknown>();
    const wire = grpcConnect(`127.0.0.1:${(frozen.address() as AddressInfo).port}`, tls)("", { frame() {}, end: ended.resolve });
    const socket = await accepted.promise;
    t.after(() => void socket.destroy());
    await sleep(100); // gRPC has begun to speak HTTP/2
    wire.cancel();
    await ended.promise;
    if (!socket.closed) await once(socket, "close", { signal: AbortSignal.timeout(10_000) });
  }

  it("leaves no socket behind to a router that never says a word", (t) => leavesNoSocket(t));

  it("works with another version of gRPC, whose credentials are made otherwise", () => {
    const plain = credentials.createInsecure();
    for (const other of [{ _createSecureConnector: undefined }, { _createSecureConnector: () => ({}) }, { _createSecureConnector: () => undefined }]) {
      const of = noting(Object.assign(Object.create(plain), other), new Set());
      of._createSecureConnector?.({ path: "" }, {});
    }
  });

  it("connects again when the stream breaks", async (t) => {
    const router = testRouter(t);
    const lost = deferred<unknown>();
    worker(t, await router.serve(), () => {}, { hooks: { disconnected: (error) => error !== undefined && lost.resolve(error.code) } });
    await handles(router);
    router.disconnect();
    assert.equal(await lost.promise, "broken");
    await handles(router);
  });

  it("uses mutual TLS, and no connection without it", async (t) => {
    const openssl = (...args: string[]) => execFileSync("openssl", args, { cwd: folder, stdio: ["ignore", "ignore", "pipe"] });
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=router.test", "-addext", "subjectAltName=DNS:router.test");
    const [key, cert] = ["key.pem", "cert.pem"].map((name) => readFileSync(join(folder, name)));
    const router = testRouter(t);
    const endpoint = await router.serve("127.0.0.1:0", ServerCredentials.createSsl(cert!, [{ private_key: key!, cert_chain: cert! }], true));
    const tls = { ca: cert!, cert: cert!.toString(), key: key!, serverName: "router.test" };
    const refused = deferred<unknown>();
    worker(t, endpoint, () => assert.fail("a worker without a certificate got an event"), { hooks: { disconnected: (error) => error !== undefined && refused.resolve(error.code) } });
    assert.equal(await refused.promise, "unreachable");
    worker(t, endpoint, () => {}, { tls });
    await handles(router);
    await leavesNoSocket(t, tls);
  });

  it("warns of an endpoint that is reached without TLS", async () => {
    const warned: unknown[] = [];
    const stop = new AbortController();
    stop.abort();
    await run(() => {}, { endpoint: "router.example:16650", signal: stop.signal, logger: { ...silent, warn: (message, fields) => warned.push(message, fields.endpoint) } });
    assert.match(String(warned[0]), /without TLS: set the option tls/);
    new Lane("router.example:16650", { logger: { ...silent, warn: (message) => warned.push(message) } }).close();
    assert.match(String(warned.at(-1)), /without TLS/);
  });

  it("warns of a lane without TLS to another machine, too", (t) => {
    const written = t.mock.method(process.stderr, "write", () => true);
    for (const endpoint of ["router.example:16650", "127.0.0.1:16650"]) new Lane(endpoint).close();
    const lines = written.mock.calls.map((call) => String(call.arguments[0])).filter((line) => line.includes("without TLS"));
    written.mock.restore();
    assert.deepEqual(lines, ["ringfence: warn: the connection leaves this machine without TLS: set the option tls endpoint=router.example:16650\n"]);
  });
});
