import type { Handler } from "./handler.js";
import type { Options } from "./options.js";
import { Calls, Runner } from "./runner.js";

/**
 * Connects to the router and calls `handler` for every event: one at a time for each key, and many keys at once. Whenever the
 * session breaks it connects again, without a limit of attempts.
 *
 * It ends when Options.signal aborts, or at SIGTERM or SIGINT: it requests no more events, waits for running handlers for
 * drainGraceMs, delivers their answers, and resolves. So a process that does nothing else ends with the exit code 0.
 *
 * @throws TypeError at once if a handler, of events, calls or schedules, is a generator function.
 * @throws RingfenceError with the code "argument" at once if an option is wrong, with the code "refused" if the router refuses one of
 * Options.schedules, and with the code "drain_timeout" if handlers ignored even the cancellation after the grace.
 */
export async function run(handler: Handler, options: Options = {}): Promise<void> {
  const runner = new Runner(options);
  await runner.run(new Calls(runner, handler));
}
