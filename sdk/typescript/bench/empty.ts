/** The SDK with a handler that returns at once. With the argument signal it first listens to its signal, as one that hands it to fetch. Ends at SIGTERM. */
import { run, type Event } from "../src/index.js";

const listen = (_: Event, signal: AbortSignal): void => signal.addEventListener("abort", () => {});

await run(process.argv[2] === "signal" ? listen : () => {}, { maxInFlight: 1000 });
