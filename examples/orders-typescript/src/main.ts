/**
 * An example application: it adds up the orders of each customer. If two orders of one customer were handled at once, both would
 * read the old sum, and one order would be lost. Ringfence prevents this; the application is just a handler.
 *
 * The router beside it is found by the variable RINGFENCE_APP_ENDPOINT, or at its usual port. It ends in order at SIGTERM.
 */
import { run } from "@ringfence/client";
import { Ledger } from "./ledger.js";
import { handler } from "./orders.js";

const sums = new Ledger();
const stopReports = sums.report(10_000);
try {
  await run(handler(sums, process.env.ORDERS_CENTS_FIELD)); // a field of the payload, cents by default
} finally {
  stopReports();
}
