/**
 * The worker for `router conformance`: its handler obeys the instruction in the payload, and writes a line when
 * it starts and one when it ends.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { systemClock, UptimeClock } from "../src/clock.js";
import { json, Reject, RetryAfter, run, type Event } from "../src/index.js";

interface Instruction {
  id: number;
  do: string;
  ms: number;
}

const clock = systemClock((text) => console.error(text));
if (clock instanceof UptimeClock) clock.calibrate();

/** In one call, so that lines do not mix. */
function report(what: "start" | "end", event: Event, { id }: Instruction): void {
  process.stdout.write(`${what} ${id} ${event.key} ${clock.bootNs()}\n`);
}

async function obey(event: Event, instruction: Instruction, signal: AbortSignal): Promise<void> {
  switch (instruction.do) {
    case "done":
      return;
    case "fail":
      throw new Error(`told to fail${" é".repeat(500)}`); // longer than any reason may be
    case "reject":
      throw new Reject("told to reject");
    case "retry_after":
      throw new RetryAfter(instruction.ms, "told to wait");
    case "sleep":
      return sleep(instruction.ms, undefined, { signal });
    case "progress":
      event.progress();
      return;
    case "ignore_cancel":
      return sleep(instruction.ms);
    case "crash":
      throw Object.create(null); // not an Error, and without a text
    default:
      throw new Error(`no such instruction: ${instruction.do}`);
  }
}

const handler = json<Instruction>(async (event, instruction, signal) => {
  report("start", event, instruction);
  try {
    await obey(event, instruction, signal);
  } finally {
    report("end", event, instruction);
  }
});

await run(handler, { maxInFlight: 100_000, logger: { info() {}, warn() {}, error: console.error } });
