// An application of the fault tests on the TypeScript SDK. It asks the process that has started it for each step, as
// chaos/foreign.go describes: one JSON object in a line, on standard output, and the answers on standard input.
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";
import { run } from "@ringfence/client";

const waiting = new Map();
let asked = 0;

/** Asks, and resolves with the answer. */
function ask(question) {
  const n = ++asked;
  return new Promise((resolve) => {
    waiting.set(n, resolve);
    process.stdout.write(JSON.stringify({ n, ...question }) + "\n");
  });
}

const lines = createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const answer = JSON.parse(line);
  waiting.get(answer.n)(answer);
  waiting.delete(answer.n);
});

async function handle(event, signal) {
  const begun = await ask({ do: "begin", event: event.payload.toString(), key: event.key, fence: String(event.fence) });
  if (!begun.ok) throw new Error("the key is somebody else's");
  try {
    await sleep(begun.ms ?? 0, undefined, { signal });
    signal.throwIfAborted();
  } catch (error) {
    await ask({ do: "end", handling: begun.handling, outcome: "cancelled" });
    throw error;
  }
  const ended = await ask({ do: "end", handling: begun.handling, outcome: "done" });
  if (!ended.ok) throw new Error("the key is somebody else's by now");
}

await run(handle, { maxInFlight: 256 });
process.exit(0); // standard input is still open
