/** What the handlers of keys leave for the next turns of their keys: see Event.state. It holds the rules of docs/sdk-protocol.md, "State". */
import { RingfenceError } from "./errors.js";
import type { Fence } from "./event.js";
import type { DeliveryId } from "./inbox.js";

/** A value that a handler can change in place, or none. A promise of another value is none either: without `then` TypeScript would infer it as T. */
export type Changeable = (object & { then?: never }) | null | undefined;

/** What loads a value. */
export type Load<T> = () => T | PromiseLike<T>;

/** One turn of a key, by an event, a call or a firing: what there is to know of it here. */
export interface Turn {
  /** The stream that it came from. */
  readonly owner: { readonly over: boolean };
  /** Names the key; keys that are not UTF-8 can have the same text. */
  readonly keyName: string;
  readonly partition: number;
  readonly fence: Fence;
  /** 0: the router did not say, or this turn leaves nothing. */
  generation: DeliveryId;
  /** Its handler has returned. */
  readonly returned: boolean;
}

/** The values of one key. */
class Kept {
  newer: Kept | undefined = undefined;
  older: Kept | undefined = undefined;

  readonly key: string;
  readonly partition: number;
  readonly owner: Turn["owner"];
  readonly generation: DeliveryId;
  /** Of the newest turn that had them. */
  newest: Fence;
  /** The turn that has them; undefined: it has left them. Until then it refers to its frame. */
  user: Turn | undefined;
  values = new Map<string, object>();
  /** Those of values that the user has asked for. */
  used = new Map<string, object>();

  constructor(turn: Turn) {
    this.key = turn.keyName;
    this.partition = turn.partition;
    this.owner = turn.owner;
    this.generation = turn.generation;
    this.newest = turn.fence;
    this.user = turn;
  }

  /** Whether a turn is the next one of the key, anywhere, after the turn that left the values. */
  isOf(turn: Turn): boolean {
    return this.user === undefined && this.generation === turn.generation && this.newest.token === turn.fence.token && this.owner === turn.owner;
  }
}

/** The values that the last turns of keys have left, of at most `max` keys. `hasLost` says whether a handler of a key runs that has lost it: it may write. */
export class States {
  readonly #byKey = new Map<string, Kept>();
  // A list by use. The order of the map would do, but to find its first key takes longer the more keys before that were deleted.
  #newest: Kept | undefined = undefined;
  #oldest: Kept | undefined = undefined;

  constructor(
    private readonly max: number,
    private readonly hasLost: (keyName: string) => boolean,
  ) {}

  /** The number of keys. As long as it is 0, a handler costs no more than to read it. */
  get size(): number {
    return this.#byKey.size;
  }

  /**
   * Is called at the start of every handler. What the turn before has left is for this one alone, asked for or not: its handler may write without
   * asking, lose its key and continue, and then the next turn begins before it has ended.
   */
  begun(turn: Turn): void {
    if (this.size > 0) this.#take(turn);
  }

  /** Makes a turn the user of the values of its key if they are sure to be the newest, and drops them otherwise. */
  #take(turn: Turn): Kept | undefined {
    const kept = this.#byKey.get(turn.keyName);
    if (kept === undefined || kept.user === turn) return kept;
    if (turn.fence.before(kept.newest)) return undefined; // it has lost its key to a later turn, and continues
    if (!kept.isOf(turn)) {
      this.#remove(kept);
      return undefined;
    }
    this.#unlink(kept);
    kept.user = turn;
    kept.used = new Map();
    kept.newest = turn.fence;
    this.#link(kept);
    return kept;
  }

  /** Returns the values that a turn has, or to which it may add what it loads; undefined: it may not. */
  of(turn: Turn): Kept | undefined {
    return turn.returned ? undefined : (this.#take(turn) ?? this.#add(turn));
  }

  /** Makes a turn the user of values that it has not loaded yet: a handler may lose the key, write and end during the load. */
  #add(turn: Turn): Kept | undefined {
    if (this.max === 0 || turn.generation === 0 || this.#byKey.has(turn.keyName)) return undefined; // the values of a later turn
    if (this.hasLost(turn.keyName)) {
      turn.generation = 0; // as in #remove
      return undefined;
    }
    const kept = new Kept(turn);
    this.#byKey.set(kept.key, kept);
    this.#link(kept);
    if (this.size > this.max) this.#remove(this.#oldest!);
    return kept;
  }

  /** Keeps a value that the handler of a turn has loaded, unless the values of the turn were dropped meanwhile. */
  put(turn: Turn, kept: Kept, name: string, value: object): void {
    if (turn.returned || this.#byKey.get(kept.key) !== kept) return;
    kept.values.set(name, value);
    kept.used.set(name, value);
  }

  /**
   * Is called at the end of every handler. It keeps the values that the handler has asked for if that has done its work while the key was its own, and
   * drops all others of the key. So a handler whose loss of the key nobody has noticed drops those of the turn that runs now: that may have loaded
   * them before this one's last write.
   */
  ended(turn: Turn, done: boolean): void {
    if (this.size === 0) return;
    const kept = this.#byKey.get(turn.keyName);
    if (kept === undefined) return;
    if (kept.user === turn && done && kept.used.size > 0 && !turn.owner.over) {
      kept.user = undefined;
      kept.values = kept.used;
    } else this.#remove(kept);
  }

  /** Drops the values of partitions that a stream takes back. */
  forget(owner: Turn["owner"], hit: (partition: number) => boolean): void {
    for (let kept = this.#newest; kept !== undefined; ) {
      const { older } = kept;
      if (kept.owner === owner && hit(kept.partition)) this.#remove(kept);
      kept = older;
    }
  }

  /** Drops the values of a key that a running handler has lost: a later turn may have loaded them before the handler's last write. */
  lose(keyName: string): void {
    const kept = this.#byKey.get(keyName);
    if (kept !== undefined) this.#remove(kept);
  }

  #remove(kept: Kept): void {
    if (kept.user !== undefined) kept.user.generation = 0; // its handler may still change what it has here, so what it loads from now on is not kept
    this.#unlink(kept);
    this.#byKey.delete(kept.key);
  }

  #link(kept: Kept): void {
    kept.older = this.#newest;
    if (this.#newest === undefined) this.#oldest = kept;
    else this.#newest.newer = kept;
    this.#newest = kept;
  }

  #unlink(kept: Kept): void {
    if (kept.newer === undefined) this.#newest = kept.older;
    else kept.newer.older = kept.older;
    if (kept.older === undefined) this.#oldest = kept.newer;
    else kept.older.newer = kept.newer;
    kept.newer = kept.older = undefined;
  }
}

/**
 * Returns the value of a name for a turn, or loads it. Only an object is kept: another value cannot be changed, so it would be outdated once the
 * handler has written.
 */
export async function stateOf<T>(states: States, turn: Turn, name: unknown, load: unknown): Promise<T> {
  if (typeof name !== "string") throw new RingfenceError("argument", "the name of the state is no string", "state");
  if (typeof load !== "function") throw new RingfenceError("argument", "load is not a function", "state");
  const kept = states.of(turn);
  const left = kept?.values.get(name);
  if (left !== undefined) {
    kept!.used.set(name, left);
    return left as T;
  }
  const value = await (load as Load<T>)();
  if (kept !== undefined && Object(value) === value) states.put(turn, kept, name, value as object);
  return value;
}
