import { json, Reject, type Handler } from "@ringfence/client";
import { type Ledger, StaleError } from "./ledger.js";

/** The payload of an event. The customer is its key. */
interface Order {
  cents: number;
}

/** Checks that a payload is an order, with its cents in a field: what it throws for is rejected. */
function orderOf(value: unknown, field: string): Order {
  const cents = (value as Record<string, unknown> | null)?.[field];
  if (!Number.isSafeInteger(cents)) throw new TypeError("cents is no whole number");
  return { cents: cents as number };
}

/** Returns the function that the router calls for one order of a customer at a time. */
export function handler(sums: Ledger, field = "cents"): Handler {
  return json((event, order, signal) => {
    if (order.cents <= 0) throw new Reject(`an order of ${order.cents} cents`); // trying again would not help
    signal.throwIfAborted(); // before the write: another machine may have the customer by now
    try {
      sums.add(event.key, String(event.messageId), event.fence, order.cents);
    } catch (err) {
      if (err instanceof StaleError) throw new Error("customer is somebody else's by now", { cause: err }); // the event goes to the new owner
      throw err;
    }
  }, (value: unknown) => orderOf(value, field));
}
