/**
 * The inbox of one stream: the deliveries of a worker, and their deadlines. It holds rules 1 to 7
 * of docs/sdk-protocol.md.
 *
 * It is a pure machine: it reads no clock, starts nothing and waits for nothing. Time is an
 * argument. The shell around it (session.ts, runner.ts) has the stream, the handlers and the clock.
 *
 * A deadline belongs to one delivery. Deliveries that are not revoked share the newest deadline; a
 * Revoke freezes a copy of it.
 */

/** A point on the lease clock (clock.ts), in milliseconds. Zero and less are long past. */
export type Instant = number;

/**
 * The router's name for a delivery on its stream: a number as long as it is a safe integer, else a
 * bigint. Each id has only one of the two forms, so ids can be compared with `===`.
 */
export type DeliveryId = number | bigint;

/** How a delivery ended. The values are those of ResultKind in app.proto. */
export const Kind = { Done: 1, Retry: 2, Reject: 3, NotStarted: 4, Cancelled: 5 } as const;
export type Kind = (typeof Kind)[keyof typeof Kind];

/** The kinds as hooks and spans name them. */
export const kindNames = {
  [Kind.Done]: "done", [Kind.Retry]: "retry", [Kind.Reject]: "reject", [Kind.NotStarted]: "not_started", [Kind.Cancelled]: "cancelled",
} as const;

/** The answer to one delivery. */
export interface Result {
  id: DeliveryId;
  kind: Kind;
  /** Kind.Retry: how long to wait, in whole milliseconds; 0: the router's own back-off. */
  afterMs: number;
  /** Kind.Retry and Kind.Reject: why. It may be longer than the router allows. */
  reason: string;
  /** When the handler started, in nanoseconds of the boot clock; 0: it did not, or nobody asks. */
  startedNs: number;
  /** How long it ran, in nanoseconds of the same clock. */
  tookNs: number;
  /** Kind.Done, of a call: the reply. */
  reply?: Uint8Array;
  /** Of a call that failed or has no handler: why, for programs. */
  code?: string;
}

/** The inbox's part of a delivery. Users extend it with their own. Only an Inbox writes to it. */
export class Item {
  /** @internal */ list: List | undefined = undefined;
  /** @internal */ prev: Item | undefined = undefined;
  /** @internal */ next: Item | undefined = undefined;
  /** Of this delivery alone, once it is frozen, lost or answered. @internal */
  deadline: Instant = 0;

  constructor(
    readonly id: DeliveryId,
    readonly partition: number,
  ) {}
}

/** A doubly linked list through the items themselves: to move one costs no memory and no search. */
class List {
  head: Item | undefined = undefined;
  tail: Item | undefined = undefined;
  size = 0;

  push(item: Item): void {
    item.list = this;
    item.prev = this.tail;
    item.next = undefined;
    if (this.tail === undefined) this.head = item;
    else this.tail.next = item;
    this.tail = item;
    this.size++;
  }

  remove(item: Item): void {
    if (item.prev === undefined) this.head = item.next;
    else item.prev.next = item.next;
    if (item.next === undefined) this.tail = item.prev;
    else item.next.prev = item.prev;
    this.size--;
    item.list = item.prev = item.next = undefined;
  }

  /** Calls visit for each item, which may move the one that it is given. */
  each(visit: (item: Item) => void): void {
    for (let item = this.head; item !== undefined; ) {
      const next: Item | undefined = item.next;
      visit(item);
      item = next;
    }
  }
}

/** How many Pings may still be answered: a router answers only the newest one that it has read. */
export const pingsRemembered = 8;

/** The deliveries of one stream. T is a delivery of its user. */
export class Inbox<T extends Item> {
  /** Answers on their way to the router: the sender removes them. */
  results: Result[] = [];

  readonly #waiting = new List(); // not started
  readonly #running = new List(); // started; their deadline is the newest one
  readonly #frozen = new List(); // started, then revoked: each has its own deadline
  readonly #lost = new List(); // started, and cancelled for good: past the deadline, or took too long

  #newest: Instant = 0; // the deadline of all that is not revoked; in the past until the first Pong
  #k = 0; // the number of the newest Ping
  readonly #pingK = new Array<number>(pingsRemembered).fill(0); // a ring by k
  readonly #pingAt = new Array<Instant>(pingsRemembered).fill(0); // before that Ping was sent

  #suspended = false; // the router lets nothing start
  #draining = false; // we let nothing start
  #broken = false; // the stream has ended: deadlines remain, results have no receiver

  /** Adds a delivery to the waiting ones. */
  give(item: T): void {
    if (this.#draining) this.#refuse(item);
    else this.#waiting.push(item);
  }

  /**
   * Returns the next delivery to start; undefined if there is none, or none may start: a delivery
   * starts only while the deadline of the newest Pong lies ahead (rule 2). `now` must have been
   * read right before.
   */
  take(now: Instant): T | undefined {
    if (!this.startable || !(now < this.#newest)) return undefined;
    const item = this.#waiting.head as T;
    this.#waiting.remove(item);
    this.#running.push(item);
    return item;
  }

  /** Whether take would return a delivery, judged without the clock. */
  get startable(): boolean {
    return this.#waiting.size > 0 && !this.#suspended && !this.#broken;
  }

  /** Answers a delivery whose handler has ended. */
  end(item: T, kind: Kind, afterMs = 0, reason = "", startedNs = 0, tookNs = 0, call?: Pick<Result, "reply" | "code">): void {
    item.deadline = this.deadline(item);
    item.list?.remove(item);
    if (this.#broken) return; // only an answer on the same stream counts
    const result: Result = { id: item.id, kind, afterMs, reason, startedNs, tookNs };
    this.results.push(call === undefined ? result : { ...result, ...call });
  }

  /** Answers a delivery that does not start. */
  #refuse(item: Item): void {
    item.list?.remove(item);
    if (this.#broken) return;
    this.results.push({ id: item.id, kind: Kind.NotStarted, afterMs: 0, reason: "", startedNs: 0, tookNs: 0 });
  }

  /** Notes a Ping that is sent after `now`, and returns its number. */
  ping(now: Instant): number {
    const k = ++this.#k;
    this.#pingK[k % pingsRemembered] = k;
    this.#pingAt[k % pingsRemembered] = now;
    return k;
  }

  /**
   * Applies a Pong. It appends to `lost` the deliveries whose deadline had passed before it was
   * read: a deadline that has passed is never extended (rule 3).
   */
  pong(now: Instant, k: number, remainingMs: number, draining: readonly DeliveryId[], lost: T[]): void {
    this.check(now, lost);
    if (k === 0 || this.#pingK[k % pingsRemembered] !== k || !(remainingMs > 0)) return;
    // The router computed what remains after it had received the Ping, so counting from before its
    // sending is early enough (rule 1).
    const deadline = this.#pingAt[k % pingsRemembered]! + remainingMs;
    this.#newest = Math.max(this.#newest, deadline);
    if (draining.length === 0 || this.#frozen.size === 0) return;
    const listed = new Set(draining);
    this.#frozen.each((item) => {
      if (listed.has(item.id)) item.deadline = Math.max(item.deadline, deadline);
    });
  }

  /**
   * Takes deliveries back. Those that have not started are answered; started ones keep the deadline
   * that they have now (rule 4).
   */
  revoke(hit: (item: Item) => boolean): void {
    this.#waiting.each((item) => {
      if (hit(item)) this.#refuse(item);
    });
    this.#running.each((item) => {
      if (!hit(item)) return;
      item.deadline = this.#newest;
      this.#running.remove(item);
      this.#frozen.push(item);
    });
  }

  /**
   * Takes single deliveries back that took too long. Those that have not started are answered;
   * started ones are appended to `slow`: their handlers must be cancelled at once.
   */
  cut(hit: (item: Item) => boolean, slow: T[]): void {
    this.revoke(hit);
    this.#frozen.each((item) => {
      if (hit(item)) this.#lose(item, slow);
    });
  }

  /**
   * Appends to `lost` the running deliveries whose deadline has passed. Their handlers must be
   * cancelled; these deliveries stay lost, whatever follows.
   */
  check(now: Instant, lost: T[]): void {
    if (this.#running.size > 0 && !(now < this.#newest)) {
      this.#running.each((item) => {
        item.deadline = this.#newest;
        this.#lose(item, lost);
      });
    }
    if (this.#frozen.size > 0) {
      this.#frozen.each((item) => {
        if (!(now < item.deadline)) this.#lose(item, lost);
      });
    }
  }

  #lose(item: Item, lost: T[]): void {
    item.list!.remove(item);
    this.#lost.push(item);
    lost.push(item as T);
  }

  /** The deadline of all deliveries that are not revoked. */
  get newest(): Instant {
    return this.#newest;
  }

  /** Until when a delivery may run. After its answer: until when it might have run. */
  deadline(item: T): Instant {
    return item.list === this.#running || item.list === this.#waiting ? this.#newest : item.deadline;
  }

  /** Lets nothing start until resume. */
  suspend(): void {
    this.#suspended = true;
  }

  /** Ends a suspend. */
  resume(): void {
    this.#suspended = false;
  }

  /** Starts no more deliveries: waiting ones, and those that still arrive, are answered. */
  drain(): void {
    this.#draining = true;
    this.#waiting.each((item) => this.#refuse(item));
  }

  get draining(): boolean {
    return this.#draining;
  }

  /**
   * Records the end of the stream. Running deliveries keep their last deadline (rule 7); waiting
   * ones are dropped (rule 5), since no answer could be sent.
   */
  breakOff(): void {
    this.#broken = true;
    this.#waiting.each((item) => this.#waiting.remove(item));
    this.results = [];
  }

  /** Deliveries that wait. */
  get waiting(): number {
    return this.#waiting.size;
  }

  /** Handlers that run, those of lost deliveries included. */
  get started(): number {
    return this.#running.size + this.#frozen.size + this.#lost.size;
  }

  /** Handlers that run and have not lost their key. */
  get alive(): number {
    return this.#running.size + this.#frozen.size;
  }

  /** Whether a handler runs that has lost its key and hits. */
  hasLost(hit: (item: T) => boolean): boolean {
    for (let item = this.#lost.head; item !== undefined; item = item.next) if (hit(item as T)) return true;
    return false;
  }

  /** Deliveries without an answer. */
  get held(): number {
    return this.#waiting.size + this.started;
  }

  /** Where a delivery is. For tests. */
  stateOf(item: T): "waiting" | "running" | "frozen" | "lost" | "answered" {
    switch (item.list) {
      case this.#waiting:
        return "waiting";
      case this.#running:
        return "running";
      case this.#frozen:
        return "frozen";
      case this.#lost:
        return "lost";
      default:
        return "answered";
    }
  }
}
