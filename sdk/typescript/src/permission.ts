/**
 * How long the holder of a reservation may go on. It holds rules R1 to R3 of docs/sdk-protocol.md.
 *
 * It is a pure machine, as the inbox is: it reads no clock. Of a clock with an error, `ask` and `renew` want a reading that is not too
 * great, and all others one that is not too small.
 */
import type { Instant } from "./inbox.js";

/** Renewals without an answer that are remembered. */
export const renewalsMax = 64;

/**
 * The bounds of the time between two renewals, in milliseconds: a third of what the last answer gave, so that one renewal may fail also with
 * short leases.
 */
const renewMost = 500;
const renewLeast = 20;

/** The longest time between two renewals of a reservation with a ttl, in milliseconds: a sixth of the ttl. */
const renewCoveredMost = 10_000;

export class Permission {
  /** The deadline; undefined before there is any permission. */
  until: Instant | undefined = undefined;
  /** Milliseconds until the next renewal. */
  every = renewMost;
  readonly #ttl: number;
  #covered = false;
  #asked: Instant = 0;
  readonly #renewals = new Map<bigint, Instant>();
  #k = 0n;

  /** @param ttl in milliseconds; 0 is none. */
  constructor(ttl = 0) {
    this.#ttl = ttl;
  }

  /** Whether there is permission, or was; with a ttl only once the control log has the reservation. */
  get mayBegin(): boolean {
    return this.until !== undefined && (this.#ttl === 0 || this.#covered);
  }

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

  /** Takes the permission of a Granted on the present stream. With half of it gone the holder renews before it begins. */
  granted(remainingMs: number, now: Instant): void {
    if (this.#asked + remainingMs - now > remainingMs / 2) this.#extend(this.#asked, remainingMs, now);
    this.#renewLive(now); // at a next owner the permission of a covered reservation is that of a live one at first
  }

  /** Takes the permission of a Renewed. */
  renewed(k: bigint, remainingMs: number, now: Instant, covered = false): void {
    const sent = this.#renewals.get(k);
    for (const older of this.#renewals.keys()) {
      if (older <= k) this.#renewals.delete(older);
    }
    const extended = sent !== undefined && this.#extend(sent, remainingMs, now);
    if (covered && this.#ttl > 0 && !this.overdue(now)) {
      this.#covered = true;
      this.every = Math.max(renewLeast, Math.min(renewCoveredMost, this.#ttl / 6));
    } else if (extended) this.#renewLive(now);
  }

  /** Whether there was permission, and it has passed. */
  overdue(now: Instant): boolean {
    return this.until !== undefined && now >= this.until;
  }

  #extend(sent: Instant, remainingMs: number, now: Instant): boolean {
    if (!(remainingMs > 0) || this.overdue(now)) return false; // a passed deadline is never extended
    const until = sent + remainingMs;
    if (!(now < until && (this.until === undefined || until > this.until))) return false;
    this.until = until;
    return true;
  }

  #renewLive(now: Instant): void {
    if (this.until !== undefined) this.every = Math.max(renewLeast, Math.min(renewMost, (this.until - now) / 3));
  }
}
