// Runs the programs of README.md, of the documents and of the repository's README on an environment that has only the built package.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));
const manifest = JSON.parse(readFileSync(join(root, "build/package/package.json"), "utf8"));
const archive = join(root, `build/ringfence-client-${manifest.version}.tgz`);

// A registry may take long to answer, so what npm installs is kept until the dependencies change; then only the package itself is replaced.
const kept = join(root, "build/clean");
const dependencies = JSON.stringify(manifest.dependencies);
const marker = join(kept, "installed.json");
const installed = join(kept, "node_modules/@ringfence/client");
if (existsSync(marker) && readFileSync(marker, "utf8") === dependencies) {
  rmSync(installed, { recursive: true, force: true });
  mkdirSync(installed, { recursive: true });
  execFileSync("tar", ["-xzf", archive, "-C", installed, "--strip-components=1"], { stdio: "inherit" });
} else {
  rmSync(kept, { recursive: true, force: true });
  mkdirSync(kept, { recursive: true });
  writeFileSync(join(kept, "package.json"), '{"private": true}\n');
  execFileSync("npm", ["install", "--prefer-offline", "--no-audit", "--no-fund", "--loglevel=error", archive], { cwd: kept, stdio: "inherit" });
  writeFileSync(marker, dependencies);
}

// Outside of this folder, where Node finds the modules of the SDK's own development, too.
const folder = mkdtempSync(join(tmpdir(), "ringfence-clean-"));
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
cpSync(kept, folder, { recursive: true });
assert.throws(() => createRequire(join(folder, "app.mjs")).resolve("@opentelemetry/api"), { code: "MODULE_NOT_FOUND" }, "the environment is not clean");

const files = [...readFileSync(join(root, "README.md"), "utf8").matchAll(/<!-- file: (\S+) -->\n```js\n(.*?)```/gs)];
assert.deepEqual(files.map((f) => f[1]), ["app.mjs", "charge.mjs", "charge.test.mjs", "total.mjs", "remind.mjs", "remind.test.mjs", "report.mjs", "report.test.mjs", "balance.mjs", "loop.mjs", "app.test.mjs"]);
for (const [, name, text] of files) writeFileSync(join(folder, name), text);
assert.equal(readFileSync(join(root, "README.md"), "utf8").match(/```(js|ts)\b/g).length, files.length, "a block of README.md is no file");
// Each block of the documents is a program in TypeScript, with the functions that they leave to their readers.
writeFileSync(
  join(folder, "names.mts"),
  `import type { Event, FiringHandler } from "@ringfence/client";
export const onEvent = (event: Event): void => console.log(event.key + ": " + event.payload.toString() + " (attempt " + event.attempt + ")");
export const report: FiringHandler = () => {};
export const sweep: FiringHandler = () => {};
`,
);
const docs = join(root, "../../docs");
const pages = [join(root, "../../README.md"), ...readdirSync(docs).filter((name) => name.endsWith(".md")).sort().map((name) => join(docs, name))]
  .flatMap((page) => [...readFileSync(page, "utf8").matchAll(/^```(?:js|ts)\n(.*?)^```/gms)].map(([, text]) => `import { onEvent, report, sweep } from "./names.mjs"; // ${page}\n${text}`));
assert.ok(pages.length >= 2, "a page has gone");
pages.forEach((text, i) => writeFileSync(join(folder, `page${i}.mts`), text));
const line = /^\| \[TypeScript\][^`]*`([^`]*)`/m.exec(readFileSync(join(root, "../../README.md"), "utf8"))[1];
const store = "const store = { apply: (key, fence, payload, signal) => console.log(`${key} ${fence.length} ${payload} ${signal.aborted}`) };";
writeFileSync(join(folder, "line.mjs"), `import { run } from "@ringfence/client";\n${store}\n${line};\n`);
const first = files[0][2].slice(files[0][2].indexOf("await run")).trim().split("\n");
assert.ok(first.length <= 10, `the first handler has ${first.length} lines, want at most 10`);

// The types, all checks on, also of the declarations themselves.
writeFileSync(
  join(folder, "types.mts"),
  `import { at, cron, deliveries, every, Fence, json, Lane, run, type CallHandler, type Event, type FiringHandler, type Handler, type Options, type Schedule, type Times } from "@ringfence/client";
import { TestDelivery, testRouter, TestSent, type TestOutcome } from "@ringfence/client/testing";
const options: Options = { maxInFlight: 5, hooks: { finished: (event: Event, outcome) => void [event.key, outcome.kind] } };
const handler: Handler = json<{ cents: number }>(async (event, order, signal) => void [event.fence.before(Fence.parse("")), order.cents + 1, signal.aborted]);
const charge: CallHandler = async (call, signal) => Buffer.from(call.method + String(signal.aborted));
export const calls: Options = { calls: { charge } };
const report: FiringHandler = async (firing, signal) => firing.after(1000, firing.schedule, firing.fence.toString() + firing.time.toISOString() + String(signal.aborted));
const sweep: Schedule = { times: every(30_000), missed: "skip", graceMs: 60_000, jitterMs: 5, handler: (firing) => new Lane().invoke("k", "charge", "1", { caller: firing }) };
export const schedules: Options = { schedules: { report: { times: cron("0 6 * * *", "Europe/Berlin"), handler: report }, once: { times: at(new Date()), handler: report }, sweep } };
// @ts-expect-error: no text is times
export const text: Times = "0 6 * * *";
// @ts-expect-error: no such policy
export const policy: Schedule = { ...sweep, missed: "none" };
export const reply = () => new Lane().invoke("k", "charge", "1", { id: "1" }).then((bytes) => bytes.length);
export const held = async (): Promise<string> => {
  await using r = await new Lane().reserve("k", { wait: 5, ttl: 5000 });
  return String(r.signal.aborted) + r.fence.toString() + (await r.release());
};
export const remind: Handler = (event) => event.after(1000, "remind", event.timer?.name ?? event.payload);
interface Cart { items: string[] }
const find = (key: string): Promise<Cart | undefined> => Promise.resolve(key === "" ? undefined : { items: [] });
export const keep: Handler = async (event) => {
  const cart: Cart = await event.state(() => ({ items: [] as string[] }));
  const found = await event.state("found", () => find(event.key));
  // @ts-expect-error: there may be none
  cart.items.push(...found.items);
  // @ts-expect-error: a number cannot be changed
  await event.state(() => 5);
};
export const keepers: Options = {
  stateMax: 5, calls: { add: async (call) => void (await call.state(async () => new Map<string, number>())).set("a", 1) },
  schedules: { sweep: { ...sweep, handler: async (firing) => (await firing.state("seen", () => [firing.time])).push(firing.time) } },
};
export const sent = () => new Lane().send("k", "x", { at: new Date(), properties: { a: "b" } }).then((id) => id.ledger + 1n);
export const all = [() => run(handler, options), () => deliveries(options), testRouter];
export const kind: TestOutcome["kind"] = "lost";
// @ts-expect-error: a router makes them
export const delivery = () => new TestDelivery();
// @ts-expect-error: a router makes them
export const event = (of: TestSent) => [of.deliver(), new TestSent()];
`,
);
const options = { strict: true, exactOptionalPropertyTypes: true, target: "es2022", module: "nodenext", typeRoots: [join(root, "node_modules/@types")], types: ["node"] };
writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions: options, files: ["types.mts", ...pages.map((_, i) => `page${i}.mts`)] }));
for (const compiler of ["typescript", "typescript-oldest"]) { // the second is the oldest that README.md names
  execFileSync(process.execPath, [join(root, "node_modules", compiler, "bin/tsc"), "-p", "."], { cwd: folder, stdio: "inherit" });
}

execFileSync(process.execPath, ["--test", "--test-timeout=600000", "app.test.mjs", "charge.test.mjs", "remind.test.mjs", "report.test.mjs"], { cwd: folder, stdio: "inherit" });

assert.ok(readFileSync(join(folder, "node_modules/@ringfence/client/dist/version.js"), "utf8").includes(manifest.version), "the SDK does not name its version");

const { TestRouter } = await import(pathToFileURL(join(folder, "node_modules/@ringfence/client/dist/testing/index.js")));
for (const [name, payload, kind, said] of [["app.mjs", '{"number": 5}', "done", "alice: 1 events, the last one number 5"], ["app.mjs", '{"number": 0}', "reject", ""], ["loop.mjs", "hello", "done", "alice hello"], ["balance.mjs", "5", "done", "alice has 5 cents"], ["line.mjs", "hello", "done", "alice 40 hello false"]]) {
  const router = new TestRouter();
  const env = { ...process.env, RINGFENCE_APP_ENDPOINT: await router.serve() };
  const app = spawn(process.execPath, [name], { cwd: folder, env, stdio: ["ignore", "pipe", "inherit"] });
  let output = "";
  app.stdout.on("data", (text) => (output += text));
  const closed = new Promise((resolve) => app.once("close", resolve));
  assert.equal((await router.deliver({ key: "alice", payload }).outcome()).kind, kind, name);
  app.kill("SIGTERM");
  assert.equal(await closed, 0, `${name} did not end with the exit code 0`);
  assert.equal(output.trim(), said, name);
  await router.stop();
}

// Beside three members of a real router: the documents, whose schedules it has to accept, and one key that handlers hold.
const router = process.env.ROUTER ?? join(root, "build/router");
if (process.env.ROUTER === undefined) execFileSync("go", ["build", "-o", router, "./cmd/router"], { cwd: join(root, "../.."), stdio: "inherit" });
const limited = join(root, "../../tools/limited.sh");
const dev = (program, events) => execFileSync(limited, ["600", router, "dev", "--rate", "100", "--events", events, "--", process.execPath, program], { cwd: folder, stdio: ["ignore", "pipe", "inherit"] }).toString();
for (const i of pages.keys()) assert.equal(dev(`page${i}.mjs`, "20").match(/user-.*: .* \(attempt 1\)/g)?.length, 20, pages[i]);
const total = files.find((f) => f[1] === "total.mjs")[2];
const withTtl = total.replace("{ wait: 30_000, ", "{ wait: 30_000, ttl: 30_000, ");
assert.notEqual(withTtl, total);
writeFileSync(join(folder, "ttl.mjs"), withTtl);
for (const program of ["total.mjs", "ttl.mjs"]) {
  rmSync(join(folder, "total"), { force: true });
  const said = dev(program, "50");
  assert.equal(readFileSync(join(folder, "total"), "utf8"), "x".repeat(50), `the reserved key was held twice at once by ${program}`);
  assert.equal(said.match(/total \d+, fence \d{19}\.\d{20}/g)?.length, 50, program);
}
