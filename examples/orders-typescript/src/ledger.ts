import type { Fence } from "@ringfence/client";

/** Refuses a write with an older fence than that of an earlier write. */
export class StaleError extends Error {
  override name = "StaleError";

  constructor() {
    super("the fence is stale: a later delivery of this customer has written");
  }
}

interface Account {
  fence: Fence; // of the last write: handlers of earlier deliveries are refused
  readonly last: Set<string>;
  cents: number;
}

/** Bounds the ids that an account keeps; a database would have an index on them. */
const ordersRemembered = 1000;

/**
 * Stands for your database. It shows the two checks that make every write safe: a fence refuses a handler that has lost the
 * customer, and the id of the event makes a repetition harmless.
 */
export class Ledger {
  readonly #customers = new Map<string, Account>();
  #orders = 0;

  /**
   * Books an order, once.
   * @throws StaleError if a later delivery of the customer has written.
   */
  add(customer: string, id: string, fence: Fence, cents: number): void {
    let account = this.#customers.get(customer);
    if (account === undefined) {
      account = { fence, last: new Set(), cents: 0 };
      this.#customers.set(customer, account);
    }
    if (fence.before(account.fence)) throw new StaleError();
    if (account.last.has(id)) return;
    if (account.last.size >= ordersRemembered) account.last.clear();
    account.fence = fence;
    account.last.add(id);
    account.cents += cents;
    this.#orders++;
  }

  /** Returns the orders of all customers of this process. */
  sum(): { customers: number; orders: number; cents: number } {
    let cents = 0;
    for (const account of this.#customers.values()) cents += account.cents;
    return { customers: this.#customers.size, orders: this.#orders, cents };
  }

  /** Logs the sum now and then, until the returned function is called. */
  report(everyMs: number): () => void {
    const timer = setInterval(() => console.error(JSON.stringify({ msg: "orders booked", ...this.sum() })), everyMs);
    return () => clearInterval(timer);
  }
}
