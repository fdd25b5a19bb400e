/**
 * The worker for `router conformance`: its handler obeys the instruction in the payload, and writes a line when
 * it starts and one when it ends.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { systemClock, UptimeClock } from "../src/clock.js";
import { CallFailure, every, json, Reject, RetryAfter, run, type Call, type CallHandler, type Event, type Firing } from "../src/index.js";

interface Instruction {
  id: number;
  do: string;
  ms: number;
  bytes?: number;
  then?: string;
}

const clock = systemClock((text) => console.error(text));
if (clock instanceof UptimeClock) clock.calibrate();

/** In one call, so that lines do not mix. */
function report(what: "start" | "end", event: Event | Call, { id }: Instruction): void {
  process.stdout.write(`${what} ${id} ${event.key} ${clock.bootNs()}\n`);
}

function setTimers(of: Event | Call | Firing, ms: number): void {
  of.after(ms, "first", "1");
  of.after(0, "second", Buffer.from("2"));
}

/** What the handlers throw that are told to fail. Its text is longer than any reason may be. */
const failure = () => new Error(`told to fail${" é".repeat(500)}`);

/** Notes in the state of the key that this event was here. */
async function visit(event: Event, id: number): Promise<void> {
  const here = await event.state(() => {
    process.stdout.write(`loaded ${id}\n`);
    return { ids: [] as number[] };
  });
  process.stdout.write(`state ${id} ${here.ids[0] ?? id}\n`);
  here.ids.push(id);
}

async function obey(event: Event, instruction: Instruction, signal: AbortSignal): Promise<void> {
  switch (instruction.do) {
    case "done":
      return;
    case "fence":
      process.stdout.write(`fence ${instruction.id} ${String(event.fence)}\n`);
      return;
    case "after":
      setTimers(event, instruction.ms);
      return;
    case "after_fail":
      setTimers(event, instruction.ms);
      throw new Error("told to fail");
    case "fail":
      throw failure();
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
    case "state":
      await visit(event, instruction.id);
      return obey(event, { ...instruction, do: instruction.then || "done" }, signal);
    case "crash":
      throw Object.create(null); // not an Error, and without a text
    default:
      throw new Error(`no such instruction: ${instruction.do}`);
  }
}

const handler = json<Instruction>(async (event, instruction, signal) => {
  report("start", event, instruction);
  if (event.timer !== undefined) process.stdout.write(`timer ${instruction.id} ${event.timer.due.getTime()} ${event.timer.name}\n`);
  try {
    await obey(event, instruction, signal);
  } finally {
    report("end", event, instruction);
  }
});

/** Makes a handler of calls that reports as the handler of events does. */
function instructed(answer: (call: Call, instruction: Instruction, signal: AbortSignal) => Promise<Uint8Array | undefined>): CallHandler {
  return async (call, signal) => {
    const instruction = JSON.parse(call.payload.toString()) as Instruction;
    report("start", call, instruction);
    try {
      return await answer(call, instruction, signal);
    } finally {
      report("end", call, instruction);
    }
  };
}

const echo = instructed(async (call) => call.payload);
const obeyCall = instructed(async (call, { do: what, ms, bytes = 0 }, signal) => {
  switch (what) {
    case "done":
      return undefined;
    case "after":
      setTimers(call, ms);
      return undefined;
    case "reply":
      return Buffer.alloc(bytes, "x");
    case "fail":
      throw new CallFailure("told", `told to fail${" é".repeat(500)}`);
    case "crash":
      throw Object.create(null);
    case "sleep":
      return sleep(ms, undefined, { signal });
    default:
      throw new Error(`no such instruction: ${what}`);
  }
});

/** Firings have no payload: the number of missed times tells the handler what to do. */
async function fire(firing: Firing): Promise<void> {
  process.stdout.write(`firing ${firing.time.getTime()} ${firing.missed} ${firing.attempt} ${String(firing.fence)}\n`);
  if (firing.missed === 1) throw failure();
  if (firing.missed === 2) setTimers(firing, 60_000);
  if (firing.missed === 3) throw new Reject("told to reject");
}

await run(handler, {
  calls: { echo, obey: obeyCall }, schedules: { conformance: { times: every(3_600_000), handler: fire } }, maxInFlight: 100_000, logger: { info() {}, warn() {}, error: console.error },
});
