/**
 * How long the holder of a reservation may go on. It holds rules R1 to R3 of docs/sdk-protocol.md.
 *
 * It is a pure machine, as the inbox is: it reads no clock. Of a clock with an error, `ask` and `renew` want a reading that is not too
 * great, and all others one that is not too small.
 */
import type { Instant } from "./inbox.js";

/** Renewals without an answer that are remembered. */
export const renewalsMax = 64;

export class Permission {
  /** The deadline; undefined before there is any permission. */
  until: Instant | undefined = undefined;
  #asked: Instant = 0;
  readonly #renewals = new Map<bigint, Instant>();
  #k = 0n;

  /** Notes when the Ask of the present stream is sent; call it before. */
  ask(sent: Instant): void {
    this.#asked = sent;
  }

  /** Notes when a Renew is sent, and returns its number; call it before. */
  renew(sent: Instant): bigint {
    this.#k++;
    if (this.#renewals.size < renewalsMax) this.#renewals.set(this.#k, sent);
    return this.#k;
  }

  /** Takes the permission of a Granted on the present stream. */
  granted(remainingMs: number, now: Instant): void {
    this.#extend(this.#asked, remainingMs, now);
  }

  /** Takes the permission of a Renewed. */
  renewed(k: bigint, remainingMs: number, now: Instant): void {
    const sent = this.#renewals.get(k);
    for (const older of this.#renewals.keys()) {
      if (older <= k) this.#renewals.delete(older);
    }
    if (sent !== undefined) this.#extend(sent, remainingMs, now);
  }

  /** Whether there was permission, and it has passed. */
  overdue(now: Instant): boolean {
    return this.until !== undefined && now >= this.until;
  }

  #extend(sent: Instant, remainingMs: number, now: Instant): void {
    if (!(remainingMs > 0) || this.overdue(now)) return; // a passed deadline is never extended
    const until = sent + remainingMs;
    if (now < until && (this.until === undefined || until > this.until)) this.until = until;
  }
}
