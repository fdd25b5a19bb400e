/** The SDK with a handler that returns at once. Ends at SIGTERM. */
import { run } from "../src/index.js";

await run(() => {}, { maxInFlight: 1000 });
